"""What of the drift is written into the event log: when a finding appears and when it goes, not in each pass. Pure.

Only the leader writes, and it keeps in mind what it has said: a new leader says once more what it finds. While a side
is UNKNOWN nothing is known of its findings, so none of them goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from bridge.model.ledger import Note
from bridge.model.ownership import Side
from bridge.planning.drift import Finding

MOST_NAMED = 20
"""Of one kind and side in one pass; more than these are one line with their number (a rack, a wrong slurm.conf)."""

Told = Mapping[tuple[str, Side, str], Finding]


def still_told(told: Told, found: Iterable[Finding], unknown: Iterable[Side]) -> Told:
    """What stands after this pass: all that was `found`, and what was told of the sides that are `unknown` now."""
    kept = {key: finding for key, finding in told.items() if finding.side in unknown}
    return {**kept, **{finding.key: finding for finding in found}}


def drift_notes(before: Told, after: Told, now: datetime) -> Iterator[Note]:
    """The lines that lead from `before` to `after`."""
    yield from _lines("drift", [after[key] for key in after.keys() - before.keys()], now)
    yield from _lines("drift_over", [before[key] for key in before.keys() - after.keys()], now)


def _lines(kind: str, findings: list[Finding], now: datetime) -> Iterator[Note]:
    groups: dict[tuple[str, Side], list[Finding]] = {}
    for finding in sorted(findings, key=lambda each: each.name):
        groups.setdefault((finding.kind, finding.side), []).append(finding)
    for (of, side), group in sorted(groups.items()):
        if len(group) > MOST_NAMED:
            names = ", ".join(finding.name for finding in group[:MOST_NAMED])
            message = f"{of} on {len(group)} nodes in {side}: {names} and {len(group) - MOST_NAMED} more"
            yield Note(kind, message, now, data={"kind": of, "side": str(side), "nodes": len(group)})
            continue
        for finding in group:
            yield Note(kind, _line(kind, finding), now, node=finding.node or None, data=_data(finding))


def _line(kind: str, finding: Finding) -> str:
    subject = f"{finding.name} in {finding.side}"
    if kind == "drift_over":
        return f"{subject}: no longer so: {finding.stands}"
    command = f" ({finding.command})" if finding.command else ""
    return f"{subject}: {finding.stands}; the ledger: {finding.known}. The bridge: {finding.does}{command}"


def _data(finding: Finding) -> dict[str, str]:
    return {"kind": str(finding.kind), "side": str(finding.side), "name": finding.name}
