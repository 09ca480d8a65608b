"""Modes as people meet them: settings, REST and bridgectl. What a broker does in them is in tests/simulation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from bridge.api.auth import Role
from bridge.api.dependencies import ApiDependencies
from bridge.cli.failures import _of_settings
from bridge.model.errors import CallFailed, Invalid, Unreadable
from bridge.model.ledger import RequestState
from bridge.model.mode import Mode
from bridge.model.ownership import Owner
from bridge.reconciler import onlooker
from bridge.settings import KubeSettings, ModeSettings, StoreSettings
from bridge.wiring import NoKubernetes, connect_kubernetes, open_ledger, status_view
from tests.simulation.fleet import Fleet
from tests.unit.api_world import POLICY, TOKENS, StoppedClock, World, bearer
from tests.unit.cli_world import Terminal


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tokens")
    world.share()
    return world


def text(block: str) -> str:
    return dedent(block).lstrip("\n")


# --- settings ---


def test_the_mode_is_active_unless_something_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ModeSettings().mode is Mode.ACTIVE
    for mode in Mode:
        monkeypatch.setenv("BRIDGE_MODE", mode)
        assert ModeSettings().mode is mode


@pytest.mark.parametrize("wrong", ["dry-run", "readonly", "ACTIVE", ""])
def test_a_mode_that_is_none_is_refused_with_those_there_are(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never taken for the default: a typing error must not make a broker act."""
    monkeypatch.setenv("BRIDGE_MODE", wrong)
    with pytest.raises(ValidationError) as raised:
        ModeSettings()
    assert _of_settings(raised.value).lines() == [
        "error: the environment holds settings that cannot be",
        "  BRIDGE_MODE: Input should be 'active', 'dry_run' or 'read_only'",
    ]


# --- read_only over REST ---

BODIES = {
    "/v1/handoffs": {"nodes": ["gpu-1"], "destination": "kubernetes", "reason": "launch day"},
    "/v1/policy": POLICY,
    "/v1/pause": {"reason": "switch maintenance"},
    "/v1/slurm/fence/ack": {"generation": 0},
}
HOLDERS = {role: name for name, (role, _) in TOKENS.items()}


def writing_routes(client: TestClient) -> Iterator[tuple[str, str]]:
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method in operations.keys() - {"get", "head"}:
            yield method.upper(), path.replace("{id}", "x").replace("{name}", "gpu-1")


def test_every_route_that_writes_is_refused_and_nothing_is_written(world: World) -> None:
    """Also one that comes some day: its body may be missing here, and then it is the first to be asked for."""
    world.mode = Mode.READ_ONLY
    client = TestClient(world.app())
    before, last_event = world.ledger.read(), world.ledger.last_event_id()
    routes = list(writing_routes(client))
    assert len(routes) >= 5
    for method, path in routes:
        for role in Role:
            answer = client.request(method, path, json=BODIES.get(path, {}), headers=bearer(HOLDERS[role]))
            if answer.status_code == 403:
                continue
            assert answer.status_code == 409, f"{method} {path} as {role}: {answer.text}"
            assert answer.json()["type"] == "urn:slurm-kube-bridge:problem:read-only"
            assert "runs in read_only and writes nothing: ask one that runs in active" in answer.json()["detail"]
    assert (world.ledger.read(), world.ledger.last_event_id()) == (before, last_event)


def test_every_route_that_writes_says_so_in_its_description(world: World) -> None:
    client = TestClient(world.app())
    paths = client.get("/openapi.json").json()["paths"]
    silent = [
        (method, path)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if method != "get" and "409" not in operation["responses"]
    ]
    assert silent == []


def test_who_may_not_write_at_all_is_told_that_first(world: World) -> None:
    world.mode = Mode.READ_ONLY
    client = TestClient(world.app())
    assert client.post("/v1/resume").status_code == 401
    assert client.post("/v1/resume", headers=bearer("viewer")).status_code == 403


def test_what_only_looks_is_answered(world: World) -> None:
    world.mode = Mode.READ_ONLY
    client = TestClient(world.app(), headers=bearer("viewer"))
    for path in ("status", "plan", "nodes", "handoffs", "events", "policy", "policy/history", "slurm/fence"):
        assert client.get(f"/v1/{path}").status_code == 200, path
    assert client.put("/v1/policy?dry_run=true", json=POLICY).status_code == 200


def test_the_agent_is_refused_the_fence_of_a_ledger_that_may_be_a_backup(world: World) -> None:
    world.mode = Mode.READ_ONLY
    answer = TestClient(world.app()).get("/v1/slurm/fence", headers=bearer("slurmctl"))
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:slurm-kube-bridge:problem:read-only")


@pytest.mark.parametrize("path", ["plan", "nodes", "policy", "explain/node/gpu-1"])
def test_a_ledger_that_is_away_is_503_with_words(world: World, path: str) -> None:
    world.mode = Mode.READ_ONLY
    world.ledger.away = "connection refused"
    world.plan_fails = Unreadable("ledger", "connection refused")
    answer = TestClient(world.app(), headers=bearer("viewer")).get(f"/v1/{path}")
    assert (answer.status_code, answer.json()["detail"]) == (503, "ledger is unreadable: connection refused")
    assert answer.headers["Retry-After"] == "2"


def test_a_preview_without_a_ledger_is_unreadable_and_not_empty() -> None:
    fleet = Fleet(mode=Mode.READ_ONLY)
    fleet.run_for(5)
    fleet.ledger.away = "connection refused"
    with pytest.raises(Unreadable, match="connection refused"):
        fleet.reconciler.preview()
    fleet.run_for(5)
    assert fleet.reconciler.pulse.unknown == (), "both schedulers are seen all the same"


# --- dry_run over REST ---


def test_in_dry_run_people_change_policy_and_pause_and_no_job_is_refused_at_submission(world: World) -> None:
    world.mode = Mode.DRY_RUN
    client = TestClient(world.app(), headers=bearer("platform"))
    assert client.get("/v1/slurm/fence").json()["policy"] == {}
    answer = client.put("/v1/policy", json=POLICY, headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.json()["mode"]) == (200, "dry_run")
    assert client.post("/v1/pause", json={"reason": "a holiday"}).status_code == 200
    world.mode = Mode.ACTIVE
    active = TestClient(world.app(), headers=bearer("platform"))
    assert active.get("/v1/slurm/fence").json()["policy"].keys() == {"h100"}


# --- bridgectl ---


def test_status_in_dry_run_says_what_would_move_and_what_stands_still(world: World, tmp_path: Path) -> None:
    world.own("gpu-1", Owner.SLURM)
    world.begin("gpu-2", "h2")
    terminal = Terminal(world, tmp_path, "viewer")
    world.status = world.status.model_copy(update={"mode": Mode.DRY_RUN, "would_move_nodes": 2})
    assert terminal.shown("status") == text("""
        slurm       fresh, read 0s ago
        kubernetes  fresh, read 0s ago
        ledger      fresh, read 0s ago
        mode        dry_run: says what it would do, moves nothing; 2 nodes would move: bridgectl plan
        leader      broker-0 (epoch 1), last pass 0s ago
        policy      version 1
        nodes       bridge 1, slurm 1
        handoffs    1 begun in mode active, standing still until a broker is active again
    """)
    for number, words in {0: "; no node would move", 1: "; 1 node would move: bridgectl plan", None: ""}.items():
        world.status = world.status.model_copy(update={"would_move_nodes": number})
        assert f"mode        dry_run: says what it would do, moves nothing{words}\n" in terminal.shown("status")


def test_status_of_a_new_site_in_dry_run_has_no_handoff_that_stands_still(world: World, tmp_path: Path) -> None:
    world.status = world.status.model_copy(update={"mode": Mode.DRY_RUN, "would_move_nodes": 0})
    assert "handoffs    0 running\n" in Terminal(world, tmp_path, "viewer").shown("status")


def test_status_in_read_only_says_what_that_is(world: World, tmp_path: Path) -> None:
    world.status = world.status.model_copy(update={"mode": Mode.READ_ONLY})
    shown = Terminal(world, tmp_path, "viewer").shown("status")
    assert "mode        read_only: looks on, never leads, takes no orders\n" in shown


def test_an_order_to_a_broker_that_only_looks_fails_with_the_way_out(world: World, tmp_path: Path) -> None:
    world.mode = Mode.READ_ONLY
    result = Terminal(world, tmp_path, "oncall").run("lend", "gpu-1")
    assert result.exit_code == 1
    assert result.stderr == text("""
        error: refused: this broker runs in read_only and writes nothing: ask one that runs in active (BRIDGE_MODE)
          where: POST http://broker/v1/handoffs
          remedy: name another broker with --url or BRIDGE_URL: `bridgectl status` says which one leads
    """)


def test_an_order_in_dry_run_fails_with_the_words_of_the_leader(world: World, tmp_path: Path) -> None:
    world.answer_all(RequestState.REFUSED, "this broker runs in dry_run and moves nothing")
    result = Terminal(world, tmp_path, "oncall").run("lend", "gpu-1")
    assert result.exit_code == 1
    assert "error: refused: this broker runs in dry_run and moves nothing\n" in result.stderr


def test_a_plan_in_dry_run_begins_with_the_word_that_it_is_not_done(world: World, tmp_path: Path) -> None:
    terminal = Terminal(world, tmp_path, "viewer")
    first = "The broker runs in dry_run: none of this is done.\n\n"
    done = terminal.shown("plan")
    world.plan = world.plan.model_copy(update={"mode": Mode.DRY_RUN})
    assert terminal.shown("plan") == first + done


def test_a_policy_in_dry_run_is_not_said_to_move_anything(world: World, tmp_path: Path) -> None:
    world.mode = Mode.DRY_RUN
    terminal = Terminal(world, tmp_path, "platform")
    file = tmp_path / "policy.yaml"
    file.write_text(terminal.shown("policy", "show"))
    assert "would move now, if the broker did not run in dry_run:\n" in terminal.shown("policy", "apply", str(file))


def test_help_of_serve_names_the_modes(world: World, tmp_path: Path) -> None:
    shown = Terminal(world, tmp_path, "viewer").shown("serve", "--help")
    assert all(word in shown for word in ("BRIDGE_MODE", *Mode))


# --- what the process says of itself ---


def test_the_status_of_a_process_in_each_mode() -> None:
    fleet = Fleet(mode=Mode.DRY_RUN, kubernetes={"floor_nodes": 1})
    status = status_view(fleet.ledger, fleet.reconciler, fleet.world.clock)
    assert (status.slurm.state, status.would_move_nodes) == ("unknown", None), "it does not lead yet"
    fleet.run_for(30)
    status = status_view(fleet.ledger, fleet.reconciler, fleet.world.clock)
    assert (status.mode, status.would_move_nodes, status.slurm.state) == (Mode.DRY_RUN, 1, "fresh")
    fleet.restart(Mode.READ_ONLY)
    status = status_view(fleet.ledger, fleet.reconciler, fleet.world.clock)
    assert status.slurm.reason == "this replica has just started and has not looked yet"
    fleet.world.kube.cluster.stop_apiserver()
    fleet.run_for(5)
    status = status_view(fleet.ledger, fleet.reconciler, fleet.world.clock)
    assert (status.mode, status.would_move_nodes, status.leader) == (Mode.READ_ONLY, None, None)
    assert (status.slurm.state, status.kubernetes.state) == ("fresh", "unknown")
    assert "the apiserver does not answer" in status.kubernetes.reason


# --- wiring ---


def test_read_only_makes_no_database_where_there_is_none(tmp_path: Path) -> None:
    settings = StoreSettings(data_dir=tmp_path / "none")
    with pytest.raises(Invalid, match=r"there is no database in .*none, and in mode read_only none is made"):
        open_ledger(settings, Mode.READ_ONLY)
    assert list(tmp_path.iterdir()) == []


def test_only_read_only_starts_without_a_way_to_kubernetes(tmp_path: Path) -> None:
    settings = KubeSettings(kubeconfig=tmp_path / "none")
    for mode in (Mode.ACTIVE, Mode.DRY_RUN):
        with pytest.raises(Invalid, match="BRIDGE_KUBECONFIG"):
            connect_kubernetes(settings, StoppedClock(), mode)
    port = connect_kubernetes(settings, StoppedClock(), Mode.READ_ONLY)
    assert isinstance(port, NoKubernetes)
    with pytest.raises(Unreadable, match="BRIDGE_KUBECONFIG"):
        port.observe()


def test_the_api_of_a_broker_that_only_looks_cannot_write_past_its_guard(world: World) -> None:
    """Two locks: the routes refuse, and the ledger that they were given does too."""
    world.mode = Mode.READ_ONLY
    deps: ApiDependencies = world.app().state.dependencies
    ledger = onlooker.ledger_in(Mode.READ_ONLY, deps.ledger)
    assert ledger.read() == world.ledger.read()
    with pytest.raises(CallFailed, match="pause is not called: this broker runs in read_only"):
        ledger.pause("x", actor="x", at=world.clock.now())
