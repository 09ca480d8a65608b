"""Which lines the event log gets of the drift."""

from __future__ import annotations

from datetime import UTC, datetime

from bridge.model.ownership import Side
from bridge.planning.drift import DriftKind, Finding
from bridge.reconciler.drifting import MOST_NAMED, Told, drift_notes, still_told

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def gone(name: str, side: Side = Side.SLURM) -> Finding:
    return Finding(DriftKind.VANISHED, side, name, name, f"does not list {name}", "slurm's", "nothing", "look")


def told(*findings: Finding) -> Told:
    return {finding.key: finding for finding in findings}


def test_a_finding_is_told_when_it_appears_and_when_it_goes() -> None:
    (line,) = drift_notes({}, told(gone("gpu-1")), NOW)
    assert (line.kind, line.node) == ("drift", "gpu-1")
    assert line.message == "gpu-1 in slurm: does not list gpu-1; the ledger: slurm's. The bridge: nothing (look)"
    assert line.data == {"kind": "vanished", "side": "slurm", "name": "gpu-1"}
    assert list(drift_notes(told(gone("gpu-1")), told(gone("gpu-1")), NOW)) == []
    (line,) = drift_notes(told(gone("gpu-1")), {}, NOW)
    assert (line.kind, line.message) == ("drift_over", "gpu-1 in slurm: no longer so: does not list gpu-1")


def test_a_finding_of_an_unknown_side_does_not_go() -> None:
    before = told(gone("gpu-1"), gone("gpu-2", Side.KUBERNETES))
    assert still_told(before, [], [Side.SLURM]) == told(gone("gpu-1"))
    assert still_told(before, [gone("gpu-3")], []) == told(gone("gpu-3"))


def test_many_findings_of_a_kind_are_one_line() -> None:
    many = [gone(f"gpu-{number:04}") for number in range(1, MOST_NAMED + 2)]
    (line,) = drift_notes({}, told(*many), NOW)
    assert line.message.startswith("vanished on 21 nodes in slurm: gpu-0001, gpu-0002, ")
    assert line.message.endswith("gpu-0020 and 1 more")
    assert line.data == {"kind": "vanished", "side": "slurm", "nodes": 21}
    lines = list(drift_notes({}, told(*many, gone("gpu-1", Side.KUBERNETES)), NOW))
    assert [line.data["side"] for line in lines] == ["kubernetes", "slurm"]
