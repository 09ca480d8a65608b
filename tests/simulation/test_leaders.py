"""Two brokers on one ledger, one of which stops at the worst moment and goes on when another one leads."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from bridge.model.handoff import Step
from bridge.model.ownership import Side
from bridge.reconciler.loop import Reconciler
from bridge.simulation.agent import SimulatedAgent
from bridge.simulation.faults import Crash, When
from bridge.simulation.workload import restless
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import BOUNDS, TIMING, Fleet

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("SEEDS", "6"))

Port = TypeVar("Port")


class Pause:
    """Stops a process right before a call goes out, for as long as `meanwhile` takes, as a SIGSTOP would: once armed,
    once. No check before the call can prevent that; only what stands in the world can."""

    def __init__(self) -> None:
        self.over = False
        self._call = ""
        self._meanwhile: Callable[[], None] = lambda: None

    def before(self, call: str, meanwhile: Callable[[], None]) -> None:
        self._call, self._meanwhile = call, meanwhile

    def around(self, port: Port) -> Port:
        return cast(Port, _Pausing(port, self))

    def strike(self, call: str) -> None:
        if call == self._call and not self.over:
            self._call = ""
            self._meanwhile()
            self.over = True


class _Pausing:
    def __init__(self, port: object, pause: Pause) -> None:
        self._port, self._pause = port, pause

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._port, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._pause.strike(attribute)
            return found(*args, **kwargs)

        return call


@pytest.mark.parametrize(
    ("call", "to"),
    [
        ("drain", Side.KUBERNETES),
        ("hold", Side.KUBERNETES),
        ("inspect", Side.KUBERNETES),
        ("want", Side.KUBERNETES),
        ("want", Side.SLURM),
        ("inspect", Side.SLURM),
        ("resume", Side.SLURM),
        ("release", Side.SLURM),
    ],
)
def test_a_call_of_a_leader_that_was_paused_meets_what_its_successor_did(call: str, to: Side) -> None:
    """The successor finishes the move and a person orders the node back; then the old call arrives."""
    fleet, pause = Fleet(min_hold_s=0), Pause()
    old = fleet.new_broker(pause.around(fleet.world.slurm), pause.around(fleet.world.kube))
    fleet.settle()
    if to is Side.SLURM:
        move(fleet, Side.KUBERNETES)
    pause.before(call, lambda: succeed(fleet, to))
    fleet.order(to, "gpu-1")
    fleet.run_until(lambda: pause.over, f"the old leader was paused before {call} and woke up")
    assert fleet.reconciler is not old

    assert old.tick() == TIMING.idle_tick_s
    assert old.pulse.epoch is None, "it has stepped down"
    fleet.run_for(30)
    assert fleet.owned(to.other.owner).count("gpu-1") == 1
    assert at_rest(fleet)
    assert unaccounted(fleet) == []


def succeed(fleet: Fleet, to: Side) -> None:
    """What happens while the old leader stands still: it is succeeded, its move is finished and another one made."""
    paused_s = fleet.world.clock.monotonic_s()
    fleet.new_broker()
    fleet.run_until(lambda: "gpu-1" in fleet.owned(to.owner), "the successor finishes the move")
    assert fleet.world.clock.monotonic_s() - paused_s >= TIMING.leader_ttl_s
    move(fleet, to.other)


def move(fleet: Fleet, to: Side) -> None:
    fleet.order(to, "gpu-1")
    fleet.run_until(lambda: "gpu-1" in fleet.owned(to.owner), f"gpu-1 is {to}'s")


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_brokers_that_hang_in_turn_while_calls_arrive_late(seed: int) -> None:
    rng = random.Random(seed)
    fleet = Fleet(seed, exact=False, min_hold_s=rng.choice([0, 5]))
    pair = (fleet.reconciler, fleet.new_broker())
    hung: set[Reconciler] = set()
    SimulatedAgent(fleet.world.clock, fleet.ledger, fleet.world.slurm).start()
    fleet.world.play(restless(rng, nodes=3, length_s=900, mean_s=40))
    fleet.world.faults.chaos(rng, rate=0.1, kinds=[When.LATE])
    for moment_s in range(60, 840, 60):
        fleet.world.at(moment_s, lambda: hung.update(broker for broker in pair if broker.pulse.epoch is not None))
        fleet.world.at(moment_s + rng.uniform(5, 55), hung.clear)

    def both() -> float:
        return min((broker.tick() for broker in pair if broker not in hung), default=TIMING.busy_tick_s)

    fleet.world.run(900, both)
    leader = fleet.ledger.leader()
    assert leader is not None
    assert leader[1] > 3, "few brokers hung long enough to be succeeded"
    fleet.world.faults.calm()
    settled = fleet.world.run(1800, both, stop_when=lambda: at_rest(fleet) and not unaccounted(fleet))
    assert settled, f"{unaccounted(fleet)}\n{fleet.describe()}"


# --- found by seeds, kept as stories ---


@pytest.mark.parametrize(
    ("call", "to"), [("kube.want", Side.KUBERNETES), ("slurm.resume", Side.SLURM), ("slurm.release", Side.SLURM)]
)
def test_time_without_any_leader_counts_for_no_deadline(call: str, to: Side) -> None:
    """The broker dies right before an opening and is away for longer than an opening may take (an upgrade)."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    if to is Side.SLURM:
        move(fleet, Side.KUBERNETES)
    fleet.order(to, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.CLEAN), "gpu-1 is about to be opened")
    fleet.world.faults.fail_next(call, when=When.CRASH_BEFORE)
    now_s = fleet.world.clock.monotonic_s()
    with pytest.raises(Crash):
        fleet.world.run(now_s + 100, fleet.reconciler.tick)
    fleet.world.run(now_s + 3 * BOUNDS.open_s)
    fleet.new_broker()
    fleet.run_until(lambda: "gpu-1" in fleet.owned(to.owner), "the move is finished")


def test_a_drain_that_a_new_leader_sets_again_at_once_is_the_bridges_own() -> None:
    """It does so before it moves anything, hence before it wrote down that the old one is gone."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    move(fleet, Side.KUBERNETES)
    fleet.world.run(fleet.world.clock.monotonic_s() + 2 * TIMING.leader_ttl_s)
    fleet.world.slurm.admin_resume("gpu-1")
    fleet.new_broker()
    fleet.run_until(lambda: "DRAIN" in fleet.world.slurm.node("gpu-1").states, "gpu-1 is drained again")
    fleet.run_for(10)
    move(fleet, Side.SLURM)
    assert unaccounted(fleet) == []
