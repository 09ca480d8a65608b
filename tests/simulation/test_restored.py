"""The ledger is from the past: restored from a backup, or failed over with the last commits lost, at any moment of a
move in either direction. Whatever the world has become since, both sides are never open at once, nobody's work is
ended, every node gets an owner again, and moves go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from bridge.model.ledger import Change
from bridge.model.ownership import Owner, Side
from bridge.simulation.faults import When
from bridge.store.memory import Backup
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import Fleet

LATER_S = 6.0
"""From a commit to the restore, where that is not at once: enough for work to start on what was opened."""


@dataclass
class Tape:
    """A backup after each commit that changed what the ledger says of the nodes; the first is the state at the start.

    With `after`, the ledger is taken back to the backup `back_to` once that many more were taken: in the very pass,
    between its commit and its acts, or `later_s`. `life` is what befalls the broker then.
    """

    fleet: Fleet
    after: int | None = None
    back_to: int = 0
    later_s: float = 0.0
    life: Callable[[Fleet], None] = lambda _: None
    backups: list[Backup] = field(default_factory=list)
    restored: bool = False

    def __post_init__(self) -> None:
        self._commit = self.fleet.ledger.commit
        self._said = self._says()
        self.backups.append(self.fleet.ledger.backup())
        self.fleet.ledger.commit = self._taped  # type: ignore[method-assign]

    def _taped(self, epoch: int, changes: Sequence[Change]) -> None:
        self._commit(epoch, changes)
        if len(self.backups) - 1 == self.after or self._says() == self._said:
            return
        self._said = self._says()
        self.backups.append(self.fleet.ledger.backup())
        if len(self.backups) - 1 == self.after and self.later_s:
            self.fleet.world.clock.after(self.later_s, self._restore)
        elif len(self.backups) - 1 == self.after:
            self._restore()

    def _restore(self) -> None:
        self.restored = True
        self.fleet.ledger.restore(self.backups[self.back_to])
        self.life(self.fleet)

    def _says(self) -> object:
        state = self.fleet.ledger.read()
        steps = {name: handoff.step for name, handoff in state.handoffs.items()}
        return state.leases, steps, state.closures


# --- stories: two moves each ---

Story = Callable[[Fleet], None]


def by_hand(fleet: Fleet) -> None:
    """An empty node, ordered to and fro by a person."""
    for to in (Side.KUBERNETES, Side.SLURM):
        fleet.order(to, "gpu-1")
        fleet.run_until(lambda to=to: "gpu-1" in fleet.owned(to.owner), f"gpu-1 is {to}'s")  # type: ignore[misc]
    fleet.run_for(2 * LATER_S)


def by_demand(fleet: Fleet) -> None:
    """A pod has a node lent, and works there until a job wants both nodes, and runs for long."""
    chat = fleet.deploy("chat", replicas=1)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "the pod serves")
    fleet.run_for(2 * LATER_S)
    fleet.world.kube.cluster.scale(chat, 0)
    job = fleet.sbatch(nodes=2, runs_s=3000)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")
    fleet.run_for(2 * LATER_S)


# --- what befalls the broker when the ledger is taken back ---


def stays(fleet: Fleet) -> None:
    """Its process goes on as if nothing had been."""


def is_succeeded(fleet: Fleet) -> None:
    """It dies, and the next one knows nothing."""
    fleet.world.faults.fail_next("slurm.observe", when=When.CRASH_BEFORE)


def is_succeeded_blindly(fleet: Fleet) -> None:
    """And Kubernetes cannot be read for a while: what stands there is seen long after the next one leads."""
    is_succeeded(fleet)
    fleet.world.faults.away("kube.observe")
    fleet.world.clock.after(45, lambda: fleet.world.faults.back("kube.observe"))


def commits(story: Story) -> int:
    """How many commits it has."""
    fleet = a_fleet()
    tape = Tape(fleet)
    story(fleet)
    return len(tape.backups) - 1


def a_fleet() -> Fleet:
    fleet = Fleet(nodes=2, min_hold_s=0)
    fleet.settle()
    return fleet


def restored(story: Story, after: int, back_to: int, later_s: float, life: Callable[[Fleet], None]) -> None:
    """The story with a ledger that is taken back, and what must hold afterwards. `life`: what the broker does then."""
    fleet = a_fleet()
    evicted: list[str] = []
    evict = fleet.world.kube.cluster.evict
    fleet.world.kube.cluster.evict = lambda pod: (evicted.append(pod.key), evict(pod))[1]  # type: ignore[method-assign]
    tape = Tape(fleet, after, back_to, later_s, life)
    try:
        story(fleet)
    except AssertionError:
        assert tape.restored, "the story itself went wrong"  # later, a person's order may be forgotten
    settles(fleet)
    assert not evicted


def settles(fleet: Fleet) -> None:
    """All is at rest and accounted for, every node has an owner, nobody's job was ended, and moves go on both ways."""
    slurm, cluster = fleet.world.slurm, fleet.world.kube.cluster
    fleet.run_until(lambda: at_rest(fleet) and not unaccounted(fleet), "all is at rest", within_s=300)
    assert not fleet.owned(Owner.BRIDGE), fleet.describe()
    for job in slurm.observe().jobs:
        assert (job.state, job.restarts) == ("RUNNING", 0)
        slurm.cancel(job.id)
    chat = fleet.deploy("again", replicas=2)
    fleet.run_until(lambda: all(pod.ready for pod in cluster.of(chat)), "both nodes serve")
    cluster.scale(chat, 0)
    last = fleet.sbatch(nodes=2)
    fleet.run_until(lambda: slurm.job(last).state == "RUNNING", "both nodes compute")


# --- the tests ---


@pytest.mark.parametrize("after", range(1, 14))
def test_a_ledger_taken_back_in_the_middle_of_a_pass(after: int) -> None:
    """A failover that loses the last commits, between a commit and its acts."""
    for back_to in range(after):
        restored(by_hand, after, back_to, 0, stays)


@pytest.mark.parametrize("after", range(1, 14))
def test_a_ledger_taken_back_seconds_later_with_work_on_what_was_opened(after: int) -> None:
    lives = (stays, is_succeeded, is_succeeded_blindly)
    for back_to in range(after):
        restored(by_demand, after, back_to, LATER_S, lives[(after + back_to) % len(lives)])


def test_the_stories_have_as_many_commits_as_are_tried() -> None:
    assert [commits(by_hand), commits(by_demand)] == [13, 13]
