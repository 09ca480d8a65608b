"""Brokers that only say what they would do, or only look: nothing moves by them, and the next active one goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from bridge.model.errors import CallFailed
from bridge.model.handoff import Step
from bridge.model.ledger import Event, RequestState
from bridge.model.mode import Mode
from bridge.model.ownership import Owner, Side
from bridge.planning.snapshot import Plan
from bridge.ports import KubePort, Ledger, SlurmPort
from bridge.reconciler import onlooker
from bridge.simulation.faults import When
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import BOUNDS, Fleet

READS = {"slurm.observe", "kube.observe"}


def writes(fleet: Fleet, since: int = 0) -> list[str]:
    """Outside calls that change something, from the `since`-th of all calls on."""
    return [call for call in fleet.world.faults.calls[since:] if call not in READS]


def events(fleet: Fleet, kind: str) -> list[Event]:
    return [event for event in fleet.ledger.events(after=0, limit=10_000) if event.kind == kind]


def latches(fleet: Fleet) -> dict[tuple[str, Side], bool]:
    """Whether each side of each node is closed by us."""
    return {
        (node.name, side): closed
        for node in fleet.world.nodes
        for side, closed in (
            (Side.SLURM, fleet.world.slurm.closed_by_bridge(node.slurm_name)),
            (Side.KUBERNETES, not fleet.world.kube.open(node.kube_name)),
        )
    }


# --- dry_run ---


def test_the_first_weeks_at_a_new_site_nothing_is_touched_and_each_move_is_said_once() -> None:
    """Until then people keep the two apart themselves: without that, both sides start on one node."""
    fleet = Fleet(mode=Mode.DRY_RUN)
    for node in ("gpu-1", "gpu-2"):
        fleet.world.kube.cluster.cordon(f"{node}.testbed")
    for node in ("gpu-3", "gpu-4"):
        fleet.world.slurm.admin_drain(node, "for pods")
    fleet.deploy("chat", replicas=3)
    jobs = [fleet.sbatch(nodes=1, runs_s=1e6) for _ in range(3)]
    fleet.run_for(1200)
    assert [fleet.world.slurm.job(job).state for job in jobs] == ["RUNNING", "RUNNING", "PENDING"]
    assert fleet.reconciler.pulse.epoch is not None, "it leads"

    state = fleet.ledger.read()
    assert writes(fleet) == []
    assert (state.leases, state.handoffs, state.closures, state.generation) == ({}, {}, {}, 0)
    assert not any(latches(fleet).values())
    said = [event.message for event in events(fleet, "would")]
    assert said == [
        "gpu-1, gpu-2, gpu-3, gpu-4 would be taken in as slurm's: nothing runs on it: it goes to its home side",
        "gpu-3, gpu-4 would be taken in as kubernetes's: work runs on the kubernetes side",
    ]


def test_what_would_move_is_said_with_reason_and_numbers_and_shown_by_the_plan() -> None:
    fleet = Fleet(mode=Mode.DRY_RUN, kubernetes={"floor_nodes": 1}, min_hold_s=0)
    fleet.run_for(600)
    moves = [event for event in events(fleet, "would") if "destination" in event.data]
    assert [event.data for event in moves] == [
        {
            "nodes": ["gpu-1"],
            "source": "slurm",
            "destination": "kubernetes",
            "demand": "",
            "victims": [],
            "loss_gpu_s": 0,
        }
    ]
    assert "gpu-1 would go from slurm to kubernetes: " in moves[0].message
    assert [move.nodes for move in fleet.reconciler.preview().moves] == [("gpu-1",)]
    assert [move.nodes for move in fleet.reconciler.pulse.plan.moves] == [("gpu-1",)]
    assert writes(fleet) == []


def test_a_move_that_was_not_needed_for_a_while_is_said_again() -> None:
    fleet = Fleet(mode=Mode.DRY_RUN, kubernetes={"floor_nodes": 1})
    fleet.run_for(60)

    def moves() -> int:
        return sum("destination" in event.data for event in events(fleet, "would"))

    assert moves() == 1
    fleet.ledger.pause("a holiday", actor="oncall", at=fleet.world.clock.now())
    fleet.run_for(660)
    fleet.ledger.resume(actor="oncall", at=fleet.world.clock.now())
    fleet.run_for(60)
    assert moves() == 2


def test_an_order_in_dry_run_is_refused_with_what_would_have_become_of_it() -> None:
    fleet = Fleet(mode=Mode.DRY_RUN, slurm={"floor_nodes": 3})
    fleet.run_for(10)
    good, bad = fleet.order(Side.KUBERNETES, "gpu-1"), fleet.order(Side.KUBERNETES, "gpu-1", "gpu-2")
    fleet.run_for(10)
    answers = [fleet.ledger.request(request.id) for request in (good, bad)]
    assert [answer and answer.state for answer in answers] == [RequestState.REFUSED] * 2
    first, second = (answer.answer for answer in answers if answer)
    assert "runs in dry_run and moves nothing (in active mode it would be begun)" in first
    assert "it would be refused too: slurm has 4 usable nodes in pool shared and a floor of 3" in second
    assert all("BRIDGE_MODE=active" in answer for answer in (first, second))
    assert writes(fleet) == []


def test_after_dry_run_an_active_broker_takes_all_in_and_moves_as_usual() -> None:
    fleet = Fleet(mode=Mode.DRY_RUN)
    fleet.run_for(600)
    fleet.restart(Mode.ACTIVE)
    fleet.settle()
    assert fleet.owned(Owner.SLURM) == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    fleet.run_for(40)
    chat = fleet.deploy("chat", replicas=2)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "both pods are ready")
    fleet.run_until(lambda: at_rest(fleet), "all is at rest")
    assert len(fleet.owned(Owner.KUBERNETES)) == 2
    assert unaccounted(fleet) == []


# --- changing the mode under way ---


def interrupted(to: Side, step: Step) -> Fleet:
    """A fleet whose gpu-1 is on its way `to` and has just come to `step`, or is about to enter it for the first time.

    A gang with gpu-2: where the move is to go back (`REOPEN`, `REPROVE`), a person takes that one meanwhile.
    """
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    if to is Side.SLURM:
        fleet.order(Side.KUBERNETES, "gpu-1", "gpu-2")
        fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1", "gpu-2"], "two nodes are lent")
    if step in (Step.REOPEN, Step.REPROVE):
        fleet.world.kube.silence_inspector("gpu-2.testbed")
    fleet.order(to, "gpu-1", "gpu-2")
    if step in (Step.REOPEN, Step.REPROVE):
        fleet.run_until(lambda: fleet.at_step("gpu-2", Step.CLEAN), "gpu-2 is about to be opened")
        if to is Side.KUBERNETES:
            fleet.world.slurm.admin_drain("gpu-2", "bad DIMM")
        else:
            fleet.world.kube.cluster.cordon("gpu-2.testbed")
    fleet.run_until(lambda: fleet.at_step("gpu-1", step), f"gpu-1 is at {step}")
    return fleet


WAY = (Step.CLOSE, Step.EMPTY, Step.CLEAN, Step.OPEN, Step.PROVE, Step.REOPEN, Step.REPROVE)


@pytest.mark.parametrize("to", list(Side))
@pytest.mark.parametrize("step", WAY)
def test_a_move_that_dry_run_finds_half_done_stands_still_and_is_finished_afterwards(to: Side, step: Step) -> None:
    fleet = interrupted(to, step)
    before, calls = fleet.ledger.read(), len(fleet.world.faults.calls)
    closed = {each for each, stands in latches(fleet).items() if stands}
    fleet.restart(Mode.DRY_RUN)
    fleet.run_for(BOUNDS.clean_s + 60)

    state = fleet.ledger.read()
    assert writes(fleet, calls) == []
    assert (state.leases, state.handoffs, state.closures) == (before.leases, before.handoffs, before.closures)
    still = {each for each, stands in latches(fleet).items() if stands}
    assert closed - still <= told_to_open(fleet), "what was closed is closed still, but for what was being opened"
    assert [event.message for event in events(fleet, "mode")] == [
        f"broker-2 leads in dry_run: it says what it would do, begins no handoff and calls nothing outside; "
        f"handoffs that stand still: {', '.join(sorted(state.handoffs))}"
    ]

    fleet.world.kube.restore_inspector("gpu-2.testbed")
    fleet.restart(Mode.ACTIVE)
    fleet.run_until(lambda: at_rest(fleet), "the move is finished")
    end = to.other if step in (Step.REOPEN, Step.REPROVE) else to
    assert {fleet.owner("gpu-1"), fleet.owner("gpu-2")} == {end.owner}
    assert unaccounted(fleet) == []


def told_to_open(fleet: Fleet) -> set[tuple[str, Side]]:
    """Sides of Kubernetes whose NodeLoan said so before: the node controller carries that out by itself."""
    loans = fleet.world.kube.controller.loans
    return {
        (node.name, Side.KUBERNETES)
        for node in fleet.world.nodes
        if node.kube_name in loans and loans[node.kube_name].spec.owner is Owner.KUBERNETES
    }


@pytest.mark.parametrize("to", list(Side))
@pytest.mark.parametrize("call", ["drain", "hold", "want", "inspect", "resume", "release"])
def test_a_late_call_of_the_active_life_arrives_during_dry_run(to: Side, call: str) -> None:
    """It was on its way when the broker was stopped; both sides are watched all the time (``OneOwner``)."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    if to is Side.SLURM:
        fleet.order(Side.KUBERNETES, "gpu-1")
        fleet.run_until(lambda: "gpu-1" in fleet.owned(Owner.KUBERNETES), "gpu-1 is lent")
    fleet.world.faults.fail_next(call, when=When.LATE, delay_s=4)
    fleet.order(to, "gpu-1")
    done: Callable[[], bool] = lambda: "gpu-1" in fleet.owned(to.owner)  # noqa: E731
    fleet.run_until(lambda: done() or bool(fleet.world.faults.journal), f"a {call} is late, or none was needed")
    fleet.restart(Mode.DRY_RUN)
    fleet.run_for(300)
    fleet.restart(Mode.ACTIVE)
    fleet.run_until(done, "the move is finished")
    fleet.run_until(lambda: at_rest(fleet), "all is at rest")
    assert unaccounted(fleet) == []


# --- read_only ---


def test_a_broker_that_only_looks_never_leads_and_writes_nothing() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.EMPTY), "gpu-1 is on its way")
    fleet.restart(Mode.READ_ONLY)
    before, last_event = fleet.ledger.read(), fleet.ledger.last_event_id()
    calls = len(fleet.world.faults.calls)
    fleet.run_for(600)
    assert fleet.ledger.leader() is None
    assert (fleet.ledger.read(), fleet.ledger.last_event_id()) == (before, last_event)
    assert writes(fleet, calls) == []
    assert fleet.reconciler.pulse.epoch is None
    assert fleet.reconciler.pulse.finished_monotonic_s is not None
    assert fleet.reconciler.preview() == Plan()
    fleet.restart(Mode.ACTIVE)
    fleet.run_until(lambda: "gpu-1" in fleet.owned(Owner.KUBERNETES), "gpu-1 is lent")


def test_a_broker_that_only_looks_says_which_side_it_cannot_see() -> None:
    fleet = Fleet(mode=Mode.READ_ONLY)
    fleet.world.faults.away("slurm.")
    fleet.run_for(5)
    assert [text.split(" ")[0] for text in fleet.reconciler.pulse.unknown] == ["slurm.observe"]


# --- what a mode takes away ---


class Untouchable:
    """A port whose every method is a failure of the test."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was reached")


def methods(port: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(port, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("mode", [Mode.DRY_RUN, Mode.READ_ONLY])
def test_no_write_of_any_port_gets_through(mode: Mode) -> None:
    """Whatever a port can do, today or later: only what is listed as reading is let through."""
    slurm = onlooker.slurm_in(mode, Untouchable())  # type: ignore[arg-type]
    kubernetes = onlooker.kube_in(mode, Untouchable())  # type: ignore[arg-type]
    ported: list[tuple[object, set[str]]] = [
        (slurm, methods(SlurmPort) - onlooker.SLURM_READS),
        (kubernetes, methods(KubePort) - onlooker.KUBE_READS),
    ]
    if mode is Mode.READ_ONLY:
        ledger = onlooker.ledger_in(mode, Untouchable())  # type: ignore[arg-type]
        ported.append((ledger, methods(Ledger) - onlooker.LEDGER_READS))
    for port, forbidden in ported:
        assert len(forbidden) >= 2
        for name in forbidden:
            with pytest.raises(CallFailed, match=f"{name} is not called: this broker runs in {mode}"):
                getattr(port, name)()


def test_the_reads_of_each_port_are_methods_of_it() -> None:
    assert methods(SlurmPort) > onlooker.SLURM_READS
    assert methods(KubePort) > onlooker.KUBE_READS
    assert methods(Ledger) > onlooker.LEDGER_READS


@pytest.mark.parametrize("mode", [Mode.DRY_RUN, Mode.READ_ONLY])
def test_even_the_acting_part_of_the_loop_reaches_nothing(mode: Mode) -> None:
    """As if the pass itself had forgotten its mode: the ports of the process are what keeps it from acting."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.CLOSE), "gpu-1 is to be closed")
    fleet.restart(mode)
    calls = len(fleet.world.faults.calls)
    fleet.reconciler.mode = Mode.ACTIVE
    fleet.reconciler.order_upkeep()
    fleet.run_for(120)
    assert writes(fleet, calls) == []
