"""Nodes, handoffs, orders, status, plan and the pause, as the API tells them."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bridge.api.views import Freshness, SourceView
from bridge.model.errors import Unreadable
from bridge.model.handoff import Step
from bridge.model.ledger import (
    AnswerRequest,
    NodeRecord,
    Preempted,
    PutHandoff,
    PutPreempted,
    PutRecord,
    PutSighting,
    Request,
    RequestState,
)
from bridge.model.ownership import Owner, Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Reach, Scope
from tests.unit.api_world import NOON, World, bearer


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tokens")
    world.share()
    return world


@pytest.fixture
def client(world: World) -> TestClient:
    return TestClient(world.app(), headers=bearer("oncall"))


ORDER = {"nodes": ["gpu-[1-2]"], "destination": "kubernetes", "reason": "launch day"}


def test_a_node_in_motion_says_everything_about_itself(world: World, client: TestClient) -> None:
    world.begin("gpu-1", "h1", blockers=("job 17 runs until 12:40",))
    state = world.ledger.read()
    world.commit(PutRecord(NodeRecord(state.nodes["gpu-1"].node, idle_since=NOON - timedelta(seconds=5))))
    assert client.get("/v1/nodes/gpu-1").json() == {
        "name": "gpu-1",
        "slurm_name": "gpu-1",
        "kube_name": "gpu-1.testbed",
        "pool": "h100",
        "gpus": 8,
        "owner": "bridge",
        "owner_since": "2026-03-02T11:58:50Z",
        "lease": {"id": "k3v9q2m8", "epoch": 1, "generation": 1},
        "handoff": {
            "id": "h1",
            "step": "empty",
            "source": "slurm",
            "destination": "kubernetes",
            "reason": "launch day",
            "step_began_at": "2026-03-02T11:58:55Z",
            "step_deadline_at": "2026-03-02T13:00:00Z",
            "blockers": ["job 17 runs until 12:40"],
        },
        "closures": [
            {"side": "slurm", "mark": "bridge:k3v9q2m8:1:1", "set_by": "bridge", "set_at": "2026-03-02T11:58:50Z"}
        ],
        "idle_since": "2026-03-02T11:59:55Z",
        "backoff_until": None,
        "unusable": "",
        "paused": "",
        "now": "2026-03-02T12:00:00Z",
        "seen": [],
    }


def test_a_node_tells_what_was_last_seen_of_it(world: World, client: TestClient) -> None:
    world.commit(PutSighting("gpu-1", Side.SLURM, NOON, {"idle": True}), PutSighting("gpu-2", Side.SLURM, NOON, {}))
    assert client.get("/v1/nodes/gpu-1").json()["seen"] == [
        {"side": "slurm", "at": "2026-03-02T12:00:00Z", "unknown": "", "facts": {"idle": True}}
    ]


def test_a_node_that_is_not_adopted_yet_has_no_owner(client: TestClient) -> None:
    listing = client.get("/v1/nodes").json()
    assert listing["now"] == "2026-03-02T12:00:00Z"
    assert [(node["name"], node["owner"], node["lease"]) for node in listing["items"]] == [
        (f"gpu-{number}", None, None) for number in (1, 2, 3, 4)
    ]


def test_an_unknown_node_is_a_404(client: TestClient) -> None:
    answer = client.get("/v1/nodes/gpu-9")
    assert (answer.status_code, answer.json()["detail"]) == (404, "no pool of the policy has a node gpu-9")


def test_handoffs_by_node_and_by_whether_they_run(world: World, client: TestClient) -> None:
    world.begin("gpu-1", "h1")
    ended = world.begin("gpu-2", "h2")
    world.clock.pass_s(30)
    done = {"step": Step.RETURNED, "ended_at": world.clock.now(), "outcome": "the source did not get empty in time"}
    world.commit(PutHandoff(replace(ended, **done), replaces=Step.EMPTY))

    def ids(query: str) -> list[str]:
        return [handoff["id"] for handoff in client.get(f"/v1/handoffs{query}").json()["items"]]

    assert ids("") == ["h2", "h1"]
    assert ids("?live=true") == ["h1"]
    assert ids("?live=false") == ["h2"]
    assert ids("?node=gpu-1") == ["h1"]
    assert ids("?live=true&node=gpu-2") == []
    assert ids("?limit=1") == ["h2"]


def test_ended_handoffs_are_found_behind_more_running_ones_than_the_limit(world: World, client: TestClient) -> None:
    ended = world.begin("gpu-1", "h1")
    world.commit(PutHandoff(replace(ended, step=Step.FAILED, ended_at=NOON), replaces=Step.EMPTY))
    for number in (2, 3, 4):
        world.begin(f"gpu-{number}", f"h{number}")
    assert [each["id"] for each in client.get("/v1/handoffs?live=false&limit=1").json()["items"]] == ["h1"]


def test_one_handoff_with_the_time_in_each_step(world: World, client: TestClient) -> None:
    world.begin("gpu-1", "h1")
    found = client.get("/v1/handoffs/h1").json()
    assert [(step["step"], step["duration_s"]) for step in found["steps"]] == [("close", 5), ("empty", 65)]
    assert [event["message"] for event in found["events"]] == ["gpu-1: close", "gpu-1: empty"]
    assert (found["requested_by"], found["generation"], found["ended_at"]) == ("oncall", 1, None)


def test_an_ended_handoff_is_found_and_its_clock_has_stopped(world: World, client: TestClient) -> None:
    handoff = world.begin("gpu-1", "h1")
    end = NOON + timedelta(seconds=10)
    world.commit(PutHandoff(replace(handoff, step=Step.DONE, step_began_at=end, ended_at=end), replaces=Step.EMPTY))
    world.clock.pass_s(9999)
    found = client.get("/v1/handoffs/h1").json()
    assert [(step["step"], step["duration_s"]) for step in found["steps"]] == [("close", 5), ("empty", 75)]


def test_an_unknown_handoff_is_a_404(client: TestClient) -> None:
    assert client.get("/v1/handoffs/h9").status_code == 404


def test_an_accepted_order_is_201(world: World, client: TestClient) -> None:
    world.answer_all(RequestState.ACCEPTED, "2 handoffs begin")
    answer = client.post("/v1/handoffs", json=ORDER)
    assert (answer.status_code, answer.headers["Location"]) == (201, "/v1/requests/req-1")
    assert answer.json() == {
        "id": "req-1",
        "nodes": ["gpu-1", "gpu-2"],
        "destination": "kubernetes",
        "reason": "launch day",
        "requested_by": "oncall",
        "requested_at": "2026-03-02T12:00:00Z",
        "state": "accepted",
        "answer": "2 handoffs begin",
    }


def test_a_refused_order_is_409_in_the_leaders_words(world: World, client: TestClient) -> None:
    world.answer_all(RequestState.REFUSED, "gpu-1 is in motion already")
    answer = client.post("/v1/handoffs", json=ORDER)
    assert (answer.status_code, answer.json()["detail"]) == (409, "gpu-1 is in motion already")
    assert client.get(answer.headers["Location"]).json()["state"] == "refused"


def test_an_order_that_nobody_answers_is_202(client: TestClient) -> None:
    answer = client.post("/v1/handoffs?wait_s=0", json=ORDER)
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    assert client.get(answer.headers["Location"]).json() == answer.json()


def test_the_answer_wakes_the_one_who_waits(world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    request_of = world.ledger.request

    def watched(id: str) -> Request | None:
        found = request_of(id)
        looked.set()
        return found

    def lead() -> None:
        # Only after the waiting request has looked and found nothing.
        assert looked.wait(timeout=20), "nobody looked for the answer"
        world.commit(AnswerRequest("req-1", RequestState.ACCEPTED, "begins"))

    monkeypatch.setattr(world.ledger, "request", watched)
    leader = threading.Thread(target=lead)
    leader.start()
    answer = client.post("/v1/handoffs?wait_s=10", json=ORDER)
    leader.join()
    assert answer.status_code == 201
    assert answer.elapsed < timedelta(seconds=8), "the answer came by time-out, not by being woken"


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (["gpu-9"], "no pool of the policy has gpu-9"),
        (["gpu-1", "gpu-[8-9]"], "no pool of the policy has gpu-8, gpu-9"),
        (["gpu-[1-"], "a bracket is not closed"),
        (["gpu-[1-99999]"], "at most 1024"),
        (["gpu;reboot"], "String should match pattern"),
        (["../gpu-1"], "String should match pattern"),
        (["@all"], "String should match pattern"),
        ([], "List should have at least 1 item"),
    ],
)
def test_nodes_that_an_order_cannot_name(client: TestClient, nodes: list[str], message: str) -> None:
    answer = client.post("/v1/handoffs", json={**ORDER, "nodes": nodes})
    assert answer.status_code == 422
    error = answer.json()["errors"][0]
    assert message in error["message"]
    assert error["location"][:2] == ["body", "nodes"]
    assert error["remedy"]


def test_a_reason_with_control_characters_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/handoffs", json={**ORDER, "reason": "x\x1b[2J"})
    assert answer.json()["errors"][0]["location"] == ["body", "reason"]


def test_pause_and_resume_write_who_and_why(world: World, client: TestClient) -> None:
    answer = client.post("/v1/pause", json={"reason": "switch maintenance"}).json()
    standing = {"kind": "stop", "scope": "everything", "name": "", "reason": "switch maintenance", "by": "oncall"}
    assert answer == {"paused": "switch maintenance", "pauses": [{**standing, "at": "2026-03-02T12:00:00Z"}]}
    assert world.ledger.read().paused == "switch maintenance"
    assert client.get("/v1/status").json()["paused"] == "switch maintenance"
    assert client.post("/v1/resume").json() == {"paused": "", "pauses": []}
    assert world.ledger.read().paused == ""
    log = [(event.kind, event.message, event.actor) for event in world.ledger.events(after=0, limit=100)]
    assert ("paused", "switch maintenance", "oncall") in log
    assert [kind for kind, _, actor in log if actor == "oncall"] == ["paused", "unpaused"]


def test_a_pool_or_a_node_is_paused_by_itself(world: World, client: TestClient) -> None:
    client.post("/v1/pause", json={"reason": "new driver", "pool": "h100"})
    client.post("/v1/pause", json={"reason": "bad fan", "node": "gpu-1"})
    status = client.get("/v1/status").json()
    assert status["paused"] == ""
    assert [(each["scope"], each["name"]) for each in status["pauses"]] == [("pool", "h100"), ("node", "gpu-1")]
    paused = {node["name"]: node["paused"] for node in client.get("/v1/nodes").json()["items"]}
    assert (paused["gpu-1"], paused["gpu-2"]) == ("pool h100: new driver; node gpu-1: bad fan", "pool h100: new driver")
    left = client.post("/v1/resume", json={"pool": "h100"}).json()["pauses"]
    assert [each["reason"] for each in left] == ["bad fan"]
    assert client.post("/v1/resume", json={}).json()["pauses"] == left, "everything was not paused"
    assert client.post("/v1/resume", json={"node": "gpu-1"}).json() == {"paused": "", "pauses": []}


@pytest.mark.parametrize("route", ["pause", "resume"])
@pytest.mark.parametrize(
    ("scope", "field", "message"),
    [
        ({"pool": "a100"}, "pool", "the policy has no pool a100"),
        ({"node": "gpu-9"}, "node", "no pool of the policy has gpu-9"),
        ({"pool": "h100", "node": "gpu-1"}, "node", "both a pool and a node"),
        ({"pool": ""}, "pool", "at least 1 character"),
    ],
)
def test_a_scope_that_is_none_is_named(
    world: World, client: TestClient, route: str, scope: dict[str, str], field: str, message: str
) -> None:
    body = {"reason": "x", **scope} if route == "pause" else scope
    answer = client.post(f"/v1/{route}", json=body)
    assert answer.status_code == 422
    error = answer.json()["errors"][0]
    assert error["location"] == ["body", field]
    assert message in error["message"]
    assert error["remedy"]
    assert world.ledger.read().pauses == ()


def test_the_pause_of_a_pool_that_has_left_can_still_be_ended(world: World, client: TestClient) -> None:
    gone = Scope(Reach.POOL, "a100")
    world.ledger.pause("new driver", actor="oncall", at=world.clock.now(), scope=gone)
    assert client.post("/v1/resume", json={"pool": "a100"}).json()["pauses"] == []


@pytest.mark.parametrize(
    ("asked", "scope"), [({"all": True}, EVERYTHING), ({"pool": "h100"}, Scope(Reach.POOL, "h100"))]
)
def test_a_recall_names_what_it_is_about(
    world: World, client: TestClient, asked: dict[str, object], scope: Scope
) -> None:
    """What is lent and what is on its way out; with dry_run nothing is written."""
    world.own("gpu-1", Owner.KUBERNETES)
    world.begin("gpu-2", "h2")
    world.own("gpu-3", Owner.SLURM)
    body = {"reason": "power cut", **asked}
    assert client.post("/v1/recall?dry_run=true", json=body).json() == {"lent": ["gpu-1", "gpu-2"], "pauses": []}
    assert world.ledger.read().pauses == ()
    answer = client.post("/v1/recall", json=body).json()
    assert answer["lent"] == ["gpu-1", "gpu-2"]
    assert [(each["kind"], each["reason"]) for each in answer["pauses"]] == [("recall", "power cut")]
    assert world.ledger.read().pauses == (Pause(scope, "power cut", "oncall", NOON, PauseKind.RECALL),)
    assert client.get("/v1/status").json()["pauses"] == answer["pauses"]
    assert client.get("/v1/nodes/gpu-3").json()["paused"].endswith("recalled by oncall: power cut")
    event = client.get("/v1/events").json()["items"][-1]
    assert (event["kind"], event["actor"], event["data"]) == (
        "recalled",
        "oncall",
        {"scope": scope.reach, "name": scope.name},
    )
    client.post("/v1/resume", json={key: name for key, name in asked.items() if key == "pool"})
    assert world.ledger.read().pauses == ()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "neither a pool nor all, or both"),
        ({"all": True, "pool": "h100"}, "neither a pool nor all, or both"),
        ({"pool": "a100"}, "the policy has no pool a100"),
    ],
)
def test_nothing_is_recalled_by_mistake(
    world: World, client: TestClient, asked: dict[str, object], message: str
) -> None:
    answer = client.post("/v1/recall", json={"reason": "x", **asked})
    assert (answer.status_code, answer.json()["errors"][0]["message"]) == (422, message)
    assert world.ledger.read().pauses == ()


def test_status(world: World, client: TestClient) -> None:
    world.own("gpu-1", Owner.KUBERNETES)
    world.begin("gpu-2", "h2")
    world.status = world.status.model_copy(
        update={"kubernetes": SourceView(state=Freshness.UNKNOWN, reason="the view is 9 s old")}
    )
    status = client.get("/v1/status").json()
    assert status["slurm"]["state"] == "fresh"
    assert status["kubernetes"] == {"state": "unknown", "read_at": None, "reason": "the view is 9 s old"}
    assert (status["leader"], status["epoch"], status["last_tick_age_s"]) == ("broker-0", 1, 0.4)
    assert status["nodes_by_owner"] == {"kubernetes": 1, "bridge": 1}
    assert (status["handoffs_live"], status["paused"], status["policy_version"]) == (1, "", 1)


def test_status_tells_of_the_victims_of_the_last_day(world: World, client: TestClient) -> None:
    now = world.clock.now()
    chosen = [
        Preempted("job 17 of alice", Side.SLURM, now, 3600.0),
        Preempted("Pod web/chat", Side.KUBERNETES, now - timedelta(hours=23), 900.0),
        Preempted("job 9 of bob", Side.SLURM, now - timedelta(hours=24), 5000.0),
    ]
    world.commit(*map(PutPreempted, chosen))
    status = client.get("/v1/status").json()
    assert (status["victims_last_day"], status["lost_gpu_s_last_day"]) == (2, 4500)


def test_status_answers_when_the_ledger_does_not(world: World, client: TestClient) -> None:
    world.ledger.away = "connection refused"
    status = client.get("/v1/status")
    assert status.status_code == 200
    assert status.json()["ledger"] == {"state": "unknown", "read_at": None, "reason": "connection refused"}
    assert status.json()["paused"] is None


def test_plan(client: TestClient) -> None:
    plan = client.get("/v1/plan").json()
    assert plan["moves"][0]["nodes"] == ["gpu-1", "gpu-2"]
    assert plan["whys"] == [{"subject": "gpu-3", "reason": "changed hands 12 s ago, minimum hold is 60 s"}]


def test_a_plan_on_an_unknown_world_is_503(world: World, client: TestClient) -> None:
    world.plan_fails = Unreadable("slurm", "connection refused")
    answer = client.get("/v1/plan")
    assert (answer.status_code, answer.json()["detail"]) == (503, "slurm is unreadable: connection refused")
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/nodes", None),
        ("GET", "/v1/handoffs", None),
        ("GET", "/v1/events", None),
        ("GET", "/v1/policy", None),
        ("GET", "/v1/slurm/fence", None),
        ("GET", "/readyz", None),
        ("POST", "/v1/pause", {"reason": "x"}),
        ("POST", "/v1/recall", {"reason": "x", "all": True}),
        ("POST", "/v1/handoffs", ORDER),
    ],
)
def test_a_ledger_that_is_away_is_503(
    world: World, client: TestClient, method: str, path: str, body: dict[str, object] | None
) -> None:
    world.ledger.away = "connection refused"
    answer = client.request(method, path, json=body)
    assert answer.status_code == 503
    assert "connection refused" in answer.json()["detail"]
    assert int(answer.headers["Retry-After"]) > 0


def test_the_process_is_healthy_while_the_ledger_is_away(world: World, client: TestClient) -> None:
    world.ledger.away = "connection refused"
    assert client.get("/healthz").json() == {"status": "ok"}
