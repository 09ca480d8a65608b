"""bridgectl's tables, written out by hand, against the real API on an in-memory ledger."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from textwrap import dedent

import httpx
import pytest
from rich.console import Console

from bridge.api.views import Freshness, PlanView, SourceView
from bridge.cli import output
from bridge.model.handoff import Step
from bridge.model.ledger import Note, Preempted, PutHandoff, PutPreempted, PutRecord
from bridge.model.ownership import Owner, Side
from tests.unit.api_world import NOON, World
from tests.unit.cli_world import Terminal


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tokens")
    world.share()
    return world


@pytest.fixture
def terminal(world: World, tmp_path: Path) -> Terminal:
    return Terminal(world, tmp_path, "viewer")


def busy(world: World) -> None:
    """gpu-1 is Slurm's for two hours and idle, gpu-2 is on its way, gpu-3 is broken, gpu-4 is not adopted."""
    world.clock.pass_s(-7200)
    world.own("gpu-1", Owner.SLURM)
    world.clock.pass_s(7200)
    world.begin("gpu-2", "h2", blockers=("job 17 runs until 12:40", "job 18 completes"))
    records = world.ledger.read().nodes
    world.commit(
        PutRecord(replace(records["gpu-1"], idle_since=NOON - timedelta(seconds=9))),
        PutRecord(replace(records["gpu-3"], unusable="0 of 8 GPUs", backoff_until=NOON + timedelta(seconds=280))),
    )


def text(block: str) -> str:
    return dedent(block).lstrip("\n")


def test_nodes(world: World, terminal: Terminal) -> None:
    busy(world)
    assert terminal.shown("nodes") == text("""
        NODE   OWNER        SINCE  STEP                 NOTE                                                     POOL  GPUS  IDLE
        gpu-1  slurm        2h00m                                                                                h100  8     9s
        gpu-2  bridge       1m10s  empty to kubernetes  job 17 runs until 12:40; job 18 completes                h100  8
        gpu-3  not adopted                              unusable: 0 of 8 GPUs; left alone, tried again in 4m40s  h100  8
        gpu-4  not adopted                                                                                       h100  8
    """)  # noqa: E501


def test_one_node(world: World, terminal: Terminal) -> None:
    busy(world)
    assert terminal.shown("nodes", "gpu-2") == text("""
        node           gpu-2
        owner          bridge
        since          1m10s ago
        lease          k3v9q2m8, epoch 1, generation 2
        pool           h100, 8 GPUs
        in Kubernetes  gpu-2.testbed
        note           job 17 runs until 12:40; job 18 completes
        handoff        h2: launch day
        step           empty to kubernetes for 1m05s
        deadline       in 1h00m
        closed         slurm by bridge:k3v9q2m8:1:2
    """)


def test_no_nodes_says_how_to_get_some(tmp_path: Path) -> None:
    terminal = Terminal(World(tmp_path / "other-tokens"), tmp_path, "viewer")
    assert terminal.shown("nodes") == "no node is shared: apply a policy with `bridgectl policy apply FILE`\n"


def test_handoffs(world: World, terminal: Terminal) -> None:
    busy(world)
    ended = world.begin("gpu-4", "h4")
    outcome = {"step": Step.RETURNED, "ended_at": NOON, "outcome": "the source did not get empty in time"}
    world.commit(PutHandoff(replace(ended, **outcome), replaces=Step.EMPTY))
    world.clock.pass_s(3600)
    assert terminal.shown("handoffs") == text("""
        ID  NODE   TO          STEP      BEGAN  TOOK   NOTE                                       REASON      BY
        h4  gpu-4  kubernetes  returned  1h01m  1m10s  the source did not get empty in time       launch day  oncall
        h2  gpu-2  kubernetes  empty     1h01m  1h01m  job 17 runs until 12:40; job 18 completes  launch day  oncall
    """)
    only = terminal.shown("handoffs", "--node", "gpu-4")
    assert [line.split()[0] for line in only.splitlines()] == ["ID", "h4"]


def test_one_handoff(world: World, terminal: Terminal) -> None:
    busy(world)
    assert terminal.shown("handoffs", "h2") == text("""
        handoff    h2
        node       gpu-2: slurm to kubernetes
        step       empty
        lease      k3v9q2m8, generation 2
        reason     launch day (by oncall)
        began      1m10s ago
        deadline   in 1h00m
        waits for  job 17 runs until 12:40; job 18 completes

        STEP   TOOK
        close  5s
        empty  1m05s

        AGO    EVENT
        1m10s  gpu-2: close
        1m05s  gpu-2: empty
    """)


def test_status(world: World, terminal: Terminal) -> None:
    busy(world)
    world.clock.pass_s(2)
    world.ledger.pause("switch maintenance", actor="oncall", at=NOON)
    assert terminal.shown("status") == text("""
        slurm       fresh, read 2s ago
        kubernetes  fresh, read 2s ago
        ledger      fresh, read 2s ago
        mode        active
        leader      broker-0 (epoch 1), last pass 0s ago
        policy      version 1
        nodes       bridge 1, slurm 1
        handoffs    1 running
        paused      paused switch maintenance
    """)


def test_status_names_victims_only_where_there_were_any(world: World, terminal: Terminal) -> None:
    world.commit(PutPreempted(Preempted("job 17 of alice", Side.SLURM, NOON, 5400.0)))
    assert "victims     1 in the last day, 1.5 GPU-hours lost" in terminal.shown("status")


def test_status_of_a_blind_broker_ends_with_3(world: World, terminal: Terminal) -> None:
    unknown = SourceView(state=Freshness.UNKNOWN, reason="the view is 9 s old")
    world.status = world.status.model_copy(update={"kubernetes": unknown})
    world.ledger.away = "connection refused"
    result = terminal.run("status")
    assert result.exit_code == 3
    assert result.stdout == text("""
        slurm       fresh, read 0s ago
        kubernetes  UNKNOWN the view is 9 s old
        ledger      UNKNOWN connection refused
        mode        active
        leader      broker-0 (epoch 1), last pass 0s ago
    """)


def test_status_without_a_leader_ends_with_3(world: World, terminal: Terminal) -> None:
    world.status = world.status.model_copy(update={"leader": None, "epoch": None, "last_tick_age_s": None})
    result = terminal.run("status", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["leader"]) == (3, None)


def test_plan(world: World, terminal: Terminal) -> None:
    assert terminal.shown("plan") == text("""
        NODES         FROM   TO          REASON
        gpu-1, gpu-2  slurm  kubernetes  Deployment default/chat waits for 2 nodes since 40 s

        STAYS  BECAUSE
        gpu-3  changed hands 12 s ago, minimum hold is 60 s
    """)
    world.plan = PlanView(moves=[], whys=[])
    assert terminal.shown("plan") == "nothing moves now\n"


def test_events(world: World, terminal: Terminal) -> None:
    world.clock.pass_s(65)
    world.ledger.pause("storage", actor="oncall", at=world.clock.now())
    assert terminal.shown("events") == text("""
        AGO    KIND    MESSAGE                  BY
        1m05s  policy  policy version 1: first  platform
        0s     paused  storage                  oncall
    """)
    assert terminal.shown("events", "--limit", "1").splitlines()[1].split() == ["0s", "paused", "storage", "oncall"]


def test_following_events_begins_with_the_newest_and_misses_none(world: World, terminal: Terminal) -> None:
    polls = 0

    def at_a_long_poll(request: httpx.Request) -> None:
        nonlocal polls
        if "wait_s" in request.url.params:
            polls += 1
            if polls > 2:
                raise KeyboardInterrupt
            world.ledger.pause(f"pause {polls}", actor="oncall", at=NOON + timedelta(seconds=polls))

    terminal.wire.before = at_a_long_poll
    assert terminal.shown("events", "--follow") == text("""
        2026-03-02 12:00:00Z  policy     policy version 1: first
        2026-03-02 12:00:01Z  paused     pause 1
        2026-03-02 12:00:02Z  paused     pause 2
    """)


def test_following_events_as_json_is_one_document_a_line(world: World, terminal: Terminal) -> None:
    def stop(request: httpx.Request) -> None:
        if "wait_s" in request.url.params:
            raise KeyboardInterrupt

    world.ledger.pause("x", actor="oncall", at=NOON)
    terminal.wire.before = stop
    lines = terminal.shown("events", "--follow", "-o", "json").splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["policy", "paused"]


@pytest.mark.parametrize(("end", "exit_code"), [(Step.DONE, 0), (Step.RETURNED, 1), (Step.FAILED, 1)])
def test_watching_handoffs_until_they_end(world: World, terminal: Terminal, end: Step, exit_code: int) -> None:
    handoff = world.begin("gpu-2", "h2", blockers=("job 17 runs",))
    changes = iter(
        [
            replace(handoff, step=Step.CLEAN, blockers=("process 7 (python, user7) holds /dev/nvidia0",)),
            replace(handoff, step=end, blockers=(), ended_at=NOON + timedelta(seconds=5), outcome="that is all"),
        ]
    )
    before = Step.EMPTY

    def at_a_long_poll(request: httpx.Request) -> None:
        nonlocal before
        if "wait_s" in request.url.params:
            change = next(changes)
            world.commit(PutHandoff(change, replaces=before), Note("step", "on it goes", NOON, handoff="h2"))
            before = change.step

    terminal.wire.before = at_a_long_poll
    result = terminal.run("handoffs", "--watch", "--node", "gpu-2")
    assert result.stdout == text(f"""
          1m10s  gpu-2  empty to kubernetes  job 17 runs
          1m10s  gpu-2  clean to kubernetes  process 7 (python, user7) holds /dev/nvidia0
          1m15s  gpu-2  {end} to kubernetes  that is all
    """).replace("1m1", "  1m1")
    assert result.exit_code == exit_code


def test_watching_nothing_ends_at_once(terminal: Terminal) -> None:
    assert terminal.shown("handoffs", "--watch") == ""


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (("nodes",), "/v1/nodes"),
        (("nodes", "gpu-2"), "/v1/nodes/gpu-2"),
        (("handoffs",), "/v1/handoffs"),
        (("handoffs", "h2"), "/v1/handoffs/h2"),
        (("status",), "/v1/status"),
        (("plan",), "/v1/plan"),
        (("events",), "/v1/events"),
        (("policy", "show"), "/v1/policy"),
        (("policy", "history"), "/v1/policy/history"),
    ],
)
def test_json_is_what_the_api_says(world: World, terminal: Terminal, command: tuple[str, ...], path: str) -> None:
    busy(world)
    found = json.loads(terminal.shown(*command, "-o", "json"))
    assert terminal.wire.sent[-1].url.path == path
    assert found
    assert found.keys() & {"now", "items", "moves", "pools"}


def test_a_narrow_terminal_loses_the_least_important_columns_first(
    world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(world)

    def columns(width: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width, color_system=None)
        monkeypatch.setattr(output, "_console", lambda: console)
        lines = terminal.shown("nodes").splitlines()
        assert max(map(len, lines)) <= width
        return lines[0].split()

    everything = ["NODE", "OWNER", "SINCE", "STEP", "NOTE", "POOL", "GPUS", "IDLE"]
    assert columns(121) == everything
    assert columns(120) == everything[:-1]
    assert columns(115) == everything[:-1]
    assert columns(114) == everything[:-2]
    assert columns(108) == everything[:-3]
    # Narrower still, cells are folded: nothing that is needed gets lost.
    assert columns(60) == everything[:-3]


def test_colours_on_a_terminal_only(world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    busy(world)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in terminal.shown("nodes")
    console = Console(file=io.StringIO(), width=140, force_terminal=True, color_system="standard")
    monkeypatch.setattr(output, "_console", lambda: console)
    assert "\x1b[36mslurm" in terminal.shown("nodes")


def test_a_reason_cannot_drive_the_terminal(world: World, terminal: Terminal) -> None:
    world.begin("gpu-2", "h2", blockers=("[red]\x1b[2Jgone\r\n\u202eevil",))
    for command in (("nodes",), ("handoffs",), ("handoffs", "h2"), ("nodes", "gpu-2")):
        shown = terminal.shown(*command)
        assert "[red]\ufffd[2Jgone\ufffd\ufffd\ufffdevil" in shown
        assert not set(shown) & {"\x1b", "\r", "\u202e"}


# --- a broker of another version ---


LOOKS = (
    ("status",),
    ("nodes",),
    ("nodes", "gpu-2"),
    ("handoffs",),
    ("handoffs", "h2"),
    ("plan",),
    ("events",),
    ("drift",),
    ("policy", "history"),
)


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_a_field_that_a_broker_of_another_version_does_not_have_ends_in_a_sentence(
    world: World, terminal: Terminal, command: tuple[str, ...]
) -> None:
    """Whichever it is, wherever it stands: a default, or what is missing and what to do."""
    busy(world)
    asks = terminal.wire.handle_request
    whole: list[object] = []

    def without(field: str, request: httpx.Request) -> httpx.Response:
        answer = asks(request)
        whole.append(json.loads(answer.read()))
        return httpx.Response(answer.status_code, headers=answer.headers, json=_without(field, whole[-1]))

    terminal.wire.handle_request = partial(without, "")  # type: ignore[method-assign]
    terminal.shown(*command)
    fields = sorted({field for answer in whole for field in _fields(answer)})
    assert fields
    for field in fields:
        terminal.wire.handle_request = partial(without, field)  # type: ignore[method-assign]
        result = terminal.run(*command)
        assert result.exception is None or isinstance(result.exception, SystemExit), (field, result.exception)
        assert result.exit_code == 0 or f"has no field '{field}'" in result.stderr, (field, result.output)


def _fields(answer: object) -> set[str]:
    if isinstance(answer, list):
        return {field for each in answer for field in _fields(each)}
    return {*answer, *(f for each in answer.values() for f in _fields(each))} if isinstance(answer, dict) else set()


def _without(field: str, answer: object) -> object:
    if isinstance(answer, list):
        return [_without(field, each) for each in answer]
    if isinstance(answer, dict):
        return {key: _without(field, each) for key, each in answer.items() if key != field}
    return answer
