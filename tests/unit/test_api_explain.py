"""``GET /v1/explain/{kind}/{name}``: what it answers, and what it does with names that are not there or hostile."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bridge.model.errors import Unreadable
from bridge.model.ownership import Owner
from bridge.planning.explain import Estimate, Explanation, Kind, Link, Remedy
from tests.unit.api_world import World, bearer

FOUND = Explanation(
    Kind.JOB,
    "job 17 of alice",
    "job 17 of alice waits (quota): the floor.",
    (Link("quota", True, "the floor", {"kept_nodes": 2, "ratio": float("inf")}, "bridgectl explain pool h100"),),
    (Remedy("end job 12", "job 12 of bob", 3840.0, "scontrol requeue 12"),),
    Estimate(60.0, "1 node ends by its time limits within 60 s"),
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tokens")
    world.share()
    world.own("gpu-1", Owner.SLURM)
    world.explanations = {(Kind.JOB, "17"): FOUND, (Kind.POD, "web/chat-1"): FOUND}
    return world


def test_the_whole_answer(world: World) -> None:
    answer = TestClient(world.app()).get("/v1/explain/job/17", headers=bearer("viewer"))
    assert answer.status_code == 200
    assert answer.json() == {
        "now": "2026-03-02T12:00:00Z",
        "kind": "job",
        "subject": "job 17 of alice",
        "verdict": "job 17 of alice waits (quota): the floor.",
        "chain": [
            {
                "layer": "quota",
                "holds": True,
                "text": "the floor",
                "numbers": {"kept_nodes": 2, "ratio": "inf"},
                "command": "bridgectl explain pool h100",
            }
        ],
        "remedies": [
            {
                "text": "end job 12",
                "displaces": "job 12 of bob",
                "displaces_gpu_s": 3840.0,
                "command": "scontrol requeue 12",
            }
        ],
        "estimate": {"in_s": 60.0, "basis": "1 node ends by its time limits within 60 s"},
    }


def test_a_pod_is_namespace_and_name(world: World) -> None:
    client = TestClient(world.app())
    for path in ("web/chat-1", "web%2Fchat-1"):
        assert client.get(f"/v1/explain/pod/{path}", headers=bearer("viewer")).status_code == 200


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("job/99", "Slurm's queue has no job 99: ended ones leave it (squeue --states=all, sacct -j 99)"),
        ("pod/web/x", "no pod web/x (namespace/name) waits for GPUs or runs on a shared node: kubectl get pods -A"),
        ("node/gpu-9", "there is no node gpu-9; there are: gpu-1"),
        ("team/x", "there is no team x; there are: none"),
        ("pool/x", "there is no pool x; there are: h100"),
    ],
)
def test_what_is_not_there_is_a_404_that_says_what_is(world: World, path: str, detail: str) -> None:
    answer = TestClient(world.app()).get(f"/v1/explain/{path}", headers=bearer("viewer"))
    assert (answer.status_code, answer.json()["detail"]) == (404, detail)


@pytest.mark.parametrize(
    "path",
    ["cluster/x", "node/-x", "node/a%0ab", "node/a%00", "job/17;rm", "node/..", "pod/" + "a" * 400, "node/%E2%80%AE"],
)
def test_hostile_names_are_refused(world: World, path: str) -> None:
    answer = TestClient(world.app()).get(f"/v1/explain/{path}", headers=bearer("viewer"))
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_unknown_is_a_503(world: World) -> None:
    world.plan_fails = Unreadable("slurmrestd", "refused")
    answer = TestClient(world.app()).get("/v1/explain/job/17", headers=bearer("viewer"))
    assert (answer.status_code, answer.json()["detail"]) == (503, "slurmrestd is unreadable: refused")
