"""The event log and the fence: lists, long polls, and what hundreds of waiting clients do to the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from bridge.model.ledger import LedgerState
from bridge.model.ownership import Owner, Side
from tests.unit.api_world import POLICY, World, bearer

DEADLINE_S = 20


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tokens")
    world.share()
    return world


@pytest.fixture
def client(world: World) -> TestClient:
    return TestClient(world.app(), headers=bearer("viewer"))


@pytest.fixture
def agent(world: World) -> TestClient:
    return TestClient(world.app(), headers=bearer("slurmctl"))


def messages(client: TestClient, query: str) -> list[str]:
    answer = client.get(f"/v1/events{query}")
    assert answer.status_code == 200, answer.text
    return [event["message"] for event in answer.json()["items"]]


def test_events_forwards_and_from_the_end(world: World, client: TestClient) -> None:
    for number in range(1, 5):
        world.ledger.pause(f"pause {number}", actor="oncall", at=world.clock.now())
    first = ["policy version 1: first"]
    pauses = [f"pause {number}" for number in range(1, 5)]
    assert messages(client, "?after=0") == first + pauses
    assert messages(client, "?after=0&limit=2") == first + pauses[:1]
    assert messages(client, "?after=3") == pauses[2:]
    assert messages(client, "?limit=2") == pauses[2:]
    assert messages(client, "") == first + pauses
    assert messages(client, "?after=5") == []


def test_a_long_poll_for_events_ends_empty_after_its_time(client: TestClient) -> None:
    assert messages(client, "?after=1&wait_s=0.05") == []


@pytest.mark.parametrize("query", ["?after=-1", "?limit=0", "?limit=501", "?wait_s=31", "?wait_s=nan", "?after=x"])
def test_bounds(client: TestClient, query: str) -> None:
    answer = client.get(f"/v1/events{query}")
    assert (answer.status_code, answer.json()["errors"][0]["location"][0]) == (422, "query")


POOL: dict[str, Any] = {
    "partition": "gpu",
    "nodes": 4,
    "max_nodes": 3,
    "gpus": 8,
    "owned": 4,
    "reclaim_s": None,
    "warn": True,
    "borrow_qos": None,
    "switches": None,
    "switches_wait_s": None,
    "segment_nodes": None,
}


def test_the_fence_of_a_fresh_inventory_closes_nothing(agent: TestClient) -> None:
    assert agent.get("/v1/slurm/fence").json() == {
        "generation": 0,
        "policy_version": 1,
        "closed": [],
        "policy": {"h100": POOL},
    }


def test_the_fence_closes_what_is_not_slurms(world: World, agent: TestClient) -> None:
    world.own("gpu-1", Owner.SLURM)
    world.own("gpu-2", Owner.KUBERNETES)
    world.own("gpu-4", Owner.BRIDGE)
    fence = agent.get("/v1/slurm/fence").json()
    assert (fence["generation"], fence["closed"]) == (3, ["gpu-2", "gpu-4"])
    assert fence["policy"]["h100"]["owned"] == 2, "gpu-1, and gpu-3 which nobody has taken in yet"


@pytest.mark.parametrize(
    ("measured_s", "p90_s"),
    [((), None), ((0.2,), 1), ((12.1,), 13), ((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.5, 400.0), 10)],
)
def test_the_agent_is_told_how_long_nodes_lately_took_to_come_back(
    world: World, agent: TestClient, monkeypatch: pytest.MonkeyPatch, measured_s: tuple[float, ...], p90_s: int | None
) -> None:
    state = replace(world.ledger.read(), reclaim_s={Side.SLURM: measured_s, Side.KUBERNETES: (7.0,)})
    monkeypatch.setattr(world.ledger, "read", lambda: state)
    assert agent.get("/v1/slurm/fence").json()["policy"]["h100"]["reclaim_s"] == p90_s


def test_the_agent_is_told_what_the_policy_does_to_jobs(tmp_path: Path) -> None:
    world = World(tmp_path / "tokens")
    asked = {"warn": False, "borrow_qos": "cheap", "switches": 1, "segment_nodes": 2}
    world.share({"pools": [{**POLICY["pools"][0], "submission": asked}]})
    found = TestClient(world.app(), headers=bearer("slurmctl")).get("/v1/slurm/fence").json()["policy"]["h100"]
    assert {key: found[key] for key in asked} == asked
    assert found["switches_wait_s"] == 300


EVENING = {"name": "evening", "from": "18:00", "until": "22:00", "kubernetes_floor_nodes": 0}
SMALL_HOURS = {"name": "small-hours", "until": "06:00", "slurm_floor_nodes": 2}


@pytest.mark.parametrize(
    ("slurm", "kubernetes", "timetable", "most"),
    [
        ({}, {"floor_nodes": 1}, [], 3),
        ({"max_nodes": 2}, {"floor_nodes": 1}, [], 2),
        ({"max_nodes": 4}, {"floor_nodes": 3}, [], 1),
        ({}, {}, [], 4),
        ({"max_nodes": 0}, {}, [], 0),
        ({}, {"floor_nodes": 3, "lend_limit_nodes": 1}, [], 2),  # one node of the floor is lent while it is idle
        ({"floor_nodes": 1, "borrow_limit_nodes": 1}, {}, [], 2),
        ({}, {"floor_nodes": 3}, [EVENING], 4),  # a job may wait for the evening
        ({"borrow_limit_nodes": 1}, {}, [SMALL_HOURS], 3),  # and for the hours in which Slurm's floor is 2
    ],
)
def test_the_most_nodes_that_slurm_can_ever_own(
    tmp_path: Path, slurm: dict[str, int], kubernetes: dict[str, int], timetable: list[dict[str, Any]], most: int
) -> None:
    world = World(tmp_path / "tokens")
    world.share({"pools": [{**POLICY["pools"][0], "slurm": slurm, "kubernetes": kubernetes, "timetable": timetable}]})
    fence = TestClient(world.app(), headers=bearer("slurmctl")).get("/v1/slurm/fence").json()
    assert fence["policy"]["h100"]["max_nodes"] == most


def test_an_agent_that_knows_less_is_answered_at_once(world: World, agent: TestClient) -> None:
    world.own("gpu-1", Owner.KUBERNETES)
    for after in ("0", "7"):
        answer = agent.get("/v1/slurm/fence", params={"after": after, "wait_s": 25})
        assert (answer.json()["generation"], answer.elapsed < timedelta(seconds=5)) == (1, True)


def test_an_agent_that_knows_all_gets_the_same_again_after_its_time(world: World, agent: TestClient) -> None:
    world.own("gpu-1", Owner.KUBERNETES)
    assert agent.get("/v1/slurm/fence?after=1&wait_s=0.05").json()["closed"] == ["gpu-1"]


@pytest.mark.parametrize("change", ["lease", "policy"])
def test_a_change_wakes_the_agent(
    world: World, agent: TestClient, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    read, looked = world.ledger.read, threading.Event()

    def watched() -> LedgerState:
        state = read()
        looked.set()
        return state

    def act() -> None:
        assert looked.wait(DEADLINE_S), "the agent's request never read the ledger"
        if change == "lease":
            world.own("gpu-3", Owner.KUBERNETES)
        else:
            world.ledger.apply_policy(world.ledger.read().policy, nodes, replaces=1, author="a", note="", at=now)

    nodes, now = [record.node for record in read().nodes.values()], world.clock.now()
    monkeypatch.setattr(world.ledger, "read", watched)
    actor = threading.Thread(target=act)
    actor.start()
    answer = agent.get("/v1/slurm/fence?after=0&wait_s=25")
    actor.join()
    assert answer.elapsed < timedelta(seconds=15), "the answer came by time-out, not by being woken"
    if change == "lease":
        assert (answer.json()["generation"], answer.json()["closed"]) == (1, ["gpu-3"])
    else:
        assert answer.json()["policy_version"] == 2


def test_an_acknowledgement_is_kept_with_its_time(world: World, agent: TestClient) -> None:
    world.own("gpu-1", Owner.KUBERNETES)
    world.clock.pass_s(3)
    answer = agent.post("/v1/slurm/fence/ack", json={"generation": 1})
    assert (answer.status_code, answer.content) == (204, b"")
    ack = world.ledger.read().fence_ack
    assert ack is not None
    assert (ack.generation, ack.at) == (1, world.clock.now())


def test_an_acknowledgement_from_the_future_is_refused(world: World, agent: TestClient) -> None:
    answer = agent.post("/v1/slurm/fence/ack", json={"generation": 1})
    assert answer.status_code == 409
    assert world.ledger.read().fence_ack is None


def test_waiting_clients_hold_no_thread_and_are_bounded(world: World) -> None:
    """64 clients wait, more than the server has threads; others are served, one more is turned away, all are woken."""
    app = world.app()

    async def until(true: Callable[[], bool], what: str) -> None:
        deadline = monotonic() + DEADLINE_S
        while not true():
            assert monotonic() < deadline, what
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://broker", headers=bearer("viewer")) as client:
            poll = "/v1/events?after=1&wait_s=30"
            waiting = [asyncio.create_task(client.get(poll)) for _ in range(64)]
            await until(lambda: app.state.changes.waiting == 64, "64 requests did not come to wait")
            assert (await client.get("/v1/nodes")).status_code == 200
            refused = await client.get(poll)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert (await client.get("/v1/events?after=0&wait_s=0")).status_code in (200, 503)
            world.ledger.pause("x", actor="oncall", at=world.clock.now())
            answers = await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
            assert {len(answer.json()["items"]) for answer in answers} == {1}
            assert app.state.changes.waiting == 0

    asyncio.run(scenario())
