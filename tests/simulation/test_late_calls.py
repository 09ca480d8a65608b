"""Calls that arrive long after they were sent, and a slurmctld that lost its state: at every step, in both directions.

What holds of one late call, whenever it arrives: a late RESUME meets the reservation and a late release the drain, a
late NodeLoan is refused by its mark, a late closing is found to be nobody's and lifted. Both of Slurm's latches lifted
by two late calls is what the reconciler waits for before it opens a node to anybody else, for the time-out of a call.
Beyond that only the Prolog's fence stands in the way of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest

from bridge.model.errors import BridgeError, CallFailed, InvariantViolation
from bridge.model.ledger import Change
from bridge.model.ownership import Owner, Side
from bridge.simulation.agent import SimulatedAgent
from bridge.simulation.clock import SimulatedClock
from bridge.simulation.faults import Crash
from bridge.simulation.machines import Process
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import Fleet

WRITES = frozenset({"drain", "hold", "resume", "release", "want", "inspect"})

Port = TypeVar("Port")


@dataclass
class Post:
    """Delivers the outside writes of a broker; those of `late` (by number, or by name) all at once, `delay_s` after the
    first of them.

    The caller of a late one dies at it (`dies`), or is told in time that no answer came.
    """

    clock: SimulatedClock
    late: Callable[[int, str], bool]
    delay_s: float
    dies: bool = False
    sent: list[str] = field(default_factory=list)
    delayed: list[str] = field(default_factory=list)
    arrived: list[str] = field(default_factory=list)
    due_s: float = 0.0

    def around(self, port: Port) -> Port:
        return cast(Port, _Posted(port, self))

    def deliver(self, call: str, make: Callable[[], None]) -> None:
        self.sent.append(call)
        if not self.late(len(self.sent) - 1, call):
            make()
            return
        if not self.delayed:
            self.due_s = self.clock.monotonic_s() + self.delay_s
        self.delayed.append(call)
        self.clock.after(max(0.0, self.due_s - self.clock.monotonic_s()), lambda: self._arrive(call, make))
        if self.dies:
            raise Crash(f"right after {call}")
        raise CallFailed(f"{call}: no answer in time")

    def _arrive(self, call: str, make: Callable[[], None]) -> None:
        self.arrived.append(call)
        try:
            make()
        except BridgeError:
            return  # nobody hears of a refusal any more


class _Posted:
    def __init__(self, port: object, post: Post) -> None:
        self._port, self._post = port, post

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._port, attribute)
        if attribute not in WRITES:
            return found
        return lambda *args, **more: self._post.deliver(attribute, lambda: found(*args, **more))


def a_fleet(*, agent: bool = False) -> Fleet:
    """Two nodes at rest."""
    fleet = Fleet(nodes=2, min_hold_s=0)
    if agent:
        SimulatedAgent(fleet.world.clock, fleet.ledger, fleet.world.slurm).start()
    fleet.settle()
    return fleet


def sends_by(fleet: Fleet, late: Callable[[int, str], bool], delay_s: float, *, dies: bool) -> Post:
    """Its broker from now on sends by a post of its own; those that follow it send as usual."""
    post = Post(fleet.world.clock, late, delay_s, dies)
    leader = fleet.ledger.leader()
    if leader is not None:
        fleet.ledger.resign(*leader)
    fleet.new_broker(post.around(fleet.world.slurm), post.around(fleet.world.kube))
    return post


def move(fleet: Fleet, to: Side) -> None:
    fleet.order(to, "gpu-1")
    fleet.run_until(lambda: "gpu-1" in fleet.owned(to.owner), f"gpu-1 is {to}'s", within_s=300)


def settles(fleet: Fleet) -> None:
    fleet.run_until(lambda: at_rest(fleet) and not unaccounted(fleet), "all is at rest", within_s=200)
    assert not fleet.owned(Owner.BRIDGE), fleet.describe()


def writes_of_two_moves() -> list[str]:
    fleet = a_fleet()
    post = sends_by(fleet, lambda number, call: False, 0, dies=False)
    for to in (Side.KUBERNETES, Side.SLURM):
        move(fleet, to)
    return post.sent


@pytest.mark.parametrize("dies", [False, True], ids=["told", "dies"])
@pytest.mark.parametrize("delay_s", [0.5, 4.9, 21, 30, 300])
def test_any_one_call_may_arrive_at_any_time(delay_s: float, dies: bool) -> None:
    """No fence stands here. The node goes on to and fro meanwhile, and the call meets it wherever it is."""
    for late in range(len(writes_of_two_moves())):
        fleet = a_fleet()
        post = sends_by(fleet, lambda number, call, late=late: number == late, delay_s, dies=dies)  # type: ignore[misc]
        for to in (Side.KUBERNETES, Side.SLURM) * 3:
            move(fleet, to)
        fleet.run_until(lambda post=post: bool(post.arrived), "the late call arrives", within_s=400)  # type: ignore[misc]
        fleet.run_for(2)
        settles(fleet)


def test_the_story_makes_every_kind_of_write() -> None:
    assert set(writes_of_two_moves()) == WRITES


@pytest.mark.parametrize("dies", ["resume", "release", ""])
@pytest.mark.parametrize("delay_s", [0.5, 2.5, 4.9])
def test_both_openings_of_slurm_may_arrive_within_the_time_out_of_a_call(delay_s: float, dies: str) -> None:
    """Together they lift both latches. Nobody opens the node to anybody else before they must have arrived."""
    fleet = a_fleet()
    move(fleet, Side.KUBERNETES)
    post = late_openings(fleet, delay_s, dies=dies)
    for to in (Side.SLURM, Side.KUBERNETES):
        move(fleet, to)
    assert len(post.arrived) == len(post.delayed) > 0
    settles(fleet)


def late_openings(fleet: Fleet, delay_s: float, *, dies: str = "") -> Post:
    """The next RESUME and the next release are late, and the broker dies at the one that is named."""
    seen: list[str] = []

    def late(_: int, call: str) -> bool:
        chosen = call in ("resume", "release") and call not in seen
        seen.extend([call] if chosen else [])
        post.dies = chosen and call == dies
        return chosen

    post = sends_by(fleet, late, delay_s, dies=False)
    return post


@pytest.mark.parametrize("delay_s", [30, 300])
def test_beyond_it_only_the_fence_keeps_jobs_from_a_lent_node(delay_s: float) -> None:
    fleet = a_fleet(agent=True)
    job = lent_again_with_both_openings_on_their_way(fleet, delay_s)
    fleet.run_until(lambda: fleet.world.slurm.open("gpu-1"), "both latches are lifted", within_s=400)
    fleet.world.run(fleet.world.clock.monotonic_s() + 5)
    assert fleet.world.slurm.job(job).restarts == 1, "while no broker looks, the Prolog refuses the job"
    fleet.run_until(lambda: not fleet.world.slurm.open("gpu-1"), "and the latches are made again", within_s=5)
    assert fleet.owned(Owner.KUBERNETES) == ["gpu-1"]
    settles(fleet)


def test_without_a_fence_they_meet() -> None:
    """What the wait cannot help against: no bound on how long a call lingers is known to hold."""
    fleet = a_fleet()
    lent_again_with_both_openings_on_their_way(fleet, 30)
    with pytest.raises(InvariantViolation, match="OneOwner"):
        fleet.run_for(60)


def lent_again_with_both_openings_on_their_way(fleet: Fleet, delay_s: float) -> int:
    """A pod serves on gpu-1, and a job waits for it."""
    move(fleet, Side.KUBERNETES)
    late_openings(fleet, delay_s)
    for to in (Side.SLURM, Side.KUBERNETES):
        move(fleet, to)
    chat = fleet.deploy("chat", replicas=1)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "the pod serves")
    return fleet.sbatch(nodes=2, runs_s=60)


# --- a slurmctld that lost its state ---


def a_story(fleet: Fleet) -> None:
    """A pod has a node lent while jobs wait for it, and gives it back to them."""
    chat = fleet.deploy("chat", replicas=1)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "the pod serves")
    jobs = [fleet.sbatch(runs_s=400) for _ in range(2)]
    fleet.run_for(10)
    fleet.world.kube.cluster.scale(chat, 0)
    running = lambda: all(fleet.world.slurm.job(job).state == "RUNNING" for job in jobs)  # noqa: E731
    fleet.run_until(running, "both jobs run", within_s=300)
    fleet.run_for(10)


def commits_of_the_story() -> int:
    fleet = a_fleet(agent=True)
    made = at_commit(fleet, lambda _: None)
    a_story(fleet)
    return len(made)


def at_commit(fleet: Fleet, then: Callable[[int], None]) -> list[int]:
    """Call `then` with the number of each commit, right after it; the numbers so far."""
    commit, made = fleet.ledger.commit, []

    def counted(epoch: int, changes: Sequence[Change]) -> None:
        commit(epoch, changes)
        made.append(len(made))
        then(made[-1])

    fleet.ledger.commit = counted  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("away_s", [0.1, 10])
def test_slurmctld_loses_its_state_at_any_commit(away_s: float) -> None:
    """Both latches are gone, and the reasons with them: jobs meet the fence until the latches stand again."""
    for lost_at in range(commits_of_the_story()):
        fleet = a_fleet(agent=True)
        no_job_starts_on_a_node_of_somebody_else(fleet)
        at_commit(fleet, lambda made, fleet=fleet, at=lost_at: made == at and fleet.world.lose_slurm_state(away_s))  # type: ignore[misc]
        a_story(fleet)
        settles(fleet)
        assert not fleet.world.oracle.double_booked()


def no_job_starts_on_a_node_of_somebody_else(fleet: Fleet) -> None:
    def check(process: Process, _: tuple[Process, ...]) -> None:
        if process.side is Side.SLURM:
            assert fleet.owner(process.node) is Owner.SLURM, f"{process} starts on a node that is not Slurm's"

    fleet.world.machines.on_start(check)
