"""``GET /v1/drift`` and ``bridgectl drift``: what they say and how they end."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bridge.model.ownership import Side
from bridge.planning.drift import DriftKind, Finding
from tests.unit.api_world import NOON, World, bearer
from tests.unit.cli_world import Terminal

STRAY = Finding(
    DriftKind.UNKNOWN_DRAIN,
    Side.SLURM,
    "",
    "gpu-9",
    "drained with bridge:k3v9q2m8:7:42",
    "in no pool of the policy",
    "nothing: for a person to say",
    "scontrol update NodeName=gpu-9 State=RESUME",
    NOON - timedelta(seconds=72),
)
MISSING = Finding(
    DriftKind.MARK_MISSING,
    Side.KUBERNETES,
    "gpu-1",
    "gpu-1.testbed",
    "its NodeLoan is not there",
    "closed to Kubernetes",
    "sets it again at once",
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tokens", findings=(STRAY, MISSING))


@pytest.fixture
def terminal(world: World, tmp_path: Path) -> Terminal:
    return Terminal(world, tmp_path, "viewer")


def test_the_whole_answer(world: World) -> None:
    answer = TestClient(world.app()).get("/v1/drift", headers=bearer("viewer"))
    assert answer.status_code == 200
    found = answer.json()
    assert (found["now"], found["unknown"], len(found["items"])) == ("2026-03-02T12:00:00Z", [], 2)
    assert found["items"][0] == {
        "kind": "unknown_drain",
        "side": "slurm",
        "node": "",
        "name": "gpu-9",
        "stands": "drained with bridge:k3v9q2m8:7:42",
        "known": "in no pool of the policy",
        "does": "nothing: for a person to say",
        "command": "scontrol update NodeName=gpu-9 State=RESUME",
        "since": "2026-03-02T11:58:48Z",
    }


def test_one_unknown_side_does_not_hide_the_other(world: World, terminal: Terminal) -> None:
    world.unknown = ("kubernetes is unreadable: refused",)
    world.findings = (STRAY,)
    answer = TestClient(world.app()).get("/v1/drift", headers=bearer("viewer"))
    assert (answer.status_code, answer.json()["unknown"]) == (200, ["kubernetes is unreadable: refused"])
    shown = terminal.run("drift")
    assert shown.exit_code == 3
    assert shown.stdout.startswith("UNKNOWN kubernetes is unreadable: refused\n")
    assert "gpu-9" in shown.stdout


def test_two_unknown_sides_are_a_503(world: World, terminal: Terminal) -> None:
    world.unknown = ("slurm is unreadable: a", "kubernetes is unreadable: b")
    answer = TestClient(world.app()).get("/v1/drift", headers=bearer("viewer"))
    assert (answer.status_code, answer.json()["detail"]) == (503, "slurm is unreadable: a; kubernetes is unreadable: b")
    assert answer.headers["Retry-After"] == "2"
    assert terminal.run("drift").exit_code == 3


def test_the_table_and_the_commands(terminal: Terminal) -> None:
    shown = terminal.run("drift")
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["NODE", "SIDE", "KIND", "STANDS", "THE", "BRIDGE", "LEDGER", "SINCE"]
    assert lines[1].split()[:3] == ["gpu-9", "slurm", "unknown_drain"]
    assert lines[1].endswith("1m12s")
    assert lines[3:] == ["", "for a person", "  gpu-9: scontrol update NodeName=gpu-9 State=RESUME"]


def test_no_finding_ends_with_0(world: World, terminal: Terminal) -> None:
    world.findings = ()
    assert terminal.shown("drift") == "world and ledger agree\n"


def test_json_is_what_the_api_says_and_ends_alike(terminal: Terminal) -> None:
    shown = terminal.run("drift", "-o", "json")
    assert shown.exit_code == 1
    assert [item["kind"] for item in json.loads(shown.stdout)["items"]] == ["unknown_drain", "mark_missing"]
