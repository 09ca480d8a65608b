"""The ledger is from the past: restored from a backup, or failed over with the last commits lost, at any moment of a
move in either direction. Whatever the world has become since, both sides are never open at once, nobody's work is
ended, every node gets an owner again, and moves go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from bridge.model.handoff import Step
from bridge.model.kube import LoanSpec
from bridge.model.ledger import Change
from bridge.model.ownership import Mark, Owner, Side
from bridge.simulation.faults import When
from bridge.store.memory import Backup
from tests.fuzz.stage import Stage
from tests.fuzz.story import LENGTH_S, Orders, Wishes, tell
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


def serve(fleet: Fleet, replicas: int) -> str:
    chat = fleet.deploy("chat", replicas=replicas)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "the pods serve")
    return chat


def events(fleet: Fleet, kind: str) -> list[str]:
    return [event.message for event in fleet.ledger.events(after=0, limit=1000) if event.kind == kind]


def test_a_database_that_was_lost_whole_finds_its_nodes_by_their_marks() -> None:
    """One is lent and serves; the other one computes. Both keep what they do, and the side that they do it for."""
    fleet = Fleet(nodes=2, min_hold_s=0)
    nothing = fleet.ledger.backup()
    fleet.settle()
    chat = serve(fleet, 1)
    job = fleet.sbatch(runs_s=3000)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")
    lent = fleet.owned(Owner.KUBERNETES)
    pods = [pod.key for pod in fleet.world.kube.cluster.of(chat)]
    fleet.ledger.restore(nothing)
    fleet.new_broker()
    fleet.settle()
    assert fleet.owned(Owner.KUBERNETES) == lent
    assert [pod.key for pod in fleet.world.kube.cluster.of(chat)] == pods
    fleet.world.kube.cluster.scale(chat, 0)
    settles(fleet)


def test_a_node_that_the_ledger_has_never_heard_of() -> None:
    """It joined after the backup, and was lent: until the policy is applied anew nothing is done to it."""
    fleet = Fleet(nodes=2, min_hold_s=0)
    policy = fleet.ledger.read().policy
    pools = tuple(pool.model_copy(update={"nodes": ("gpu-1",)}) for pool in policy.pools)
    one = policy.model_copy(update={"pools": pools})
    now = fleet.world.clock.now()
    fleet.ledger.apply_policy(one, fleet.world.nodes[:1], replaces=1, author="ada", note="", at=now)
    fleet.run_until(lambda: fleet.owned(Owner.SLURM) == ["gpu-1"], "gpu-1 is taken in")
    backup = fleet.ledger.backup()
    fleet.ledger.apply_policy(policy, fleet.world.nodes, replaces=2, author="ada", note="", at=now)
    fleet.settle()
    chat = serve(fleet, 2)
    fleet.ledger.restore(backup)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 is taken back")
    epoch = fleet.reconciler.pulse.epoch
    fleet.ledger.apply_policy(policy, fleet.world.nodes, replaces=2, author="ada", note="again", at=now)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1", "gpu-2"], "gpu-2 is taken back")
    assert fleet.reconciler.pulse.epoch == epoch, "its mark was counted before anybody knew the node"
    fleet.world.kube.cluster.scale(chat, 0)
    settles(fleet)


def test_a_gang_of_which_the_ledger_knows_the_past() -> None:
    """Both nodes go to Slurm for one job. Restored to when they were still collected, and the job runs."""
    fleet = Fleet(nodes=2, min_hold_s=0)
    fleet.settle()
    chat = serve(fleet, 2)
    fleet.world.kube.cluster.scale(chat, 0)
    tape = Tape(fleet)
    job = fleet.sbatch(nodes=2, runs_s=3000)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")
    for backup in tuple(tape.backups):
        fleet.ledger.restore(backup)
        fleet.run_until(lambda: at_rest(fleet) and not unaccounted(fleet), "all is at rest", within_s=300)
        assert fleet.owned(Owner.SLURM) == ["gpu-1", "gpu-2"]
        assert fleet.world.slurm.job(job).state == "RUNNING"
    settles(fleet)


NO_NUMBER = 2**62


@pytest.mark.parametrize(
    "mark",
    [Mark("lease0666", 1, NO_NUMBER), Mark("lease0666", NO_NUMBER, 1), Mark("lease0666", 99, NO_NUMBER)],
    ids=str,
)
def test_a_number_without_measure_is_said_and_never_followed(mark: Mark) -> None:
    """A person with kubectl wrote it. Nobody can write over it: the node is closed where it can be."""
    fleet = Fleet(nodes=2, min_hold_s=0)
    fleet.settle()
    fleet.world.kube.controller.want(LoanSpec("gpu-1.testbed", Owner.KUBERNETES, mark, 8))
    fleet.run_until(lambda: fleet.owned(Owner.BRIDGE) == ["gpu-1"], "gpu-1 is nobody's")
    fleet.run_for(100)
    assert not fleet.world.slurm.open("gpu-1")
    said = fleet.ledger.read().nodes["gpu-1"].unusable
    assert said.startswith(f"carries {mark} on the kubernetes side, a number that no ledger")
    assert sum("a number that no ledger" in message for message in events(fleet, "adoption")) == 1, "it is said once"
    leader = fleet.ledger.leader()
    assert leader is not None
    assert leader[1] == 1
    assert fleet.ledger.next_generation() < 100

    fleet.order(Side.KUBERNETES, "gpu-2")
    fleet.run_until(lambda: "gpu-2" in fleet.owned(Owner.KUBERNETES), "all others move on")
    refused = fleet.order(Side.SLURM, "gpu-1")
    fleet.run_for(5)
    answered = fleet.ledger.request(refused.id)
    assert answered is not None
    assert "carries" in answered.answer

    del fleet.world.kube.controller.loans["gpu-1.testbed"]
    fleet.run_for(10)
    fleet.order(Side.SLURM, "gpu-1")
    fleet.run_until(lambda: "gpu-1" in fleet.owned(Owner.SLURM), "without that NodeLoan a person may give it away")
    settles(fleet)


def test_a_believable_mark_of_a_stranger_costs_no_more_than_numbers() -> None:
    fleet = Fleet(nodes=2, min_hold_s=0)
    fleet.settle()
    strange = Mark("lease0666", 1000, 1_000_000)
    fleet.world.slurm.admin_drain("gpu-1", f"{strange} haha", user="bridge")
    fleet.run_for(60)
    leader = fleet.ledger.leader()
    assert leader is not None
    assert leader[1] == 1001
    assert fleet.ledger.read().leases["gpu-1"].generation > 1_000_000
    settles(fleet)


def test_a_node_with_work_on_both_sides_stays_closed_until_one_is_left() -> None:
    """It should never be; when it is, after a restore, nobody's work is ended."""
    fleet = a_fleet()
    backup = fleet.ledger.backup()
    chat = serve(fleet, 1)
    node = fleet.owned(Owner.KUBERNETES)[0]
    fleet.world._strict = fleet.world.oracle._strict = False
    fleet.world.slurm.admin_resume(node)
    fleet.world.slurm.admin_unreserve("bridge-shared")
    job = fleet.sbatch(nodes=2, runs_s=200)
    fleet.world.run(fleet.world.clock.monotonic_s() + 5)
    assert node in fleet.world.slurm.job(job).nodes
    fleet.ledger.restore(backup)
    fleet.run_until(lambda: fleet.owned(Owner.BRIDGE) == [node], "the node is nobody's")
    fleet.run_for(60)
    assert "work runs on both sides" in fleet.ledger.read().nodes[node].unusable
    assert fleet.world.slurm.job(job).state == "RUNNING"
    assert fleet.world.oracle.double_booked() == (node,)
    fleet.world.run(fleet.world.clock.monotonic_s() + 250)
    order = fleet.order(Side.SLURM, node)
    fleet.run_until(lambda: node in fleet.owned(Owner.KUBERNETES), "it is the pod's once the job is over")
    answered = fleet.ledger.request(order.id)
    assert answered is not None
    assert "in motion to kubernetes" in answered.answer, "an order of the same moment comes after"
    assert fleet.world.slurm.job(job).state == "COMPLETED"
    assert fleet.world.kube.cluster.of(chat)[0].ready
    fleet.world.kube.cluster.scale(chat, 0)
    settles(fleet)


@pytest.mark.parametrize("seed", [1, 4, 27, 34, 59, 62])
def test_whole_days_on_which_the_ledger_is_taken_back(seed: int) -> None:
    """Jobs, pods, orders and every policy of the fuzzer's stories, with all their audits; by 2 s to minutes."""
    rng, story = random.Random(seed), tell(seed)
    stage = Stage(replace(story, events=tuple(each for each in story.events if isinstance(each, Wishes | Orders))))
    backups = [stage.ledger.backup()]

    def keep() -> None:
        backups.append(stage.ledger.backup())
        if len(backups) < LENGTH_S / 2:
            stage.world.clock.after(2, keep)

    def take_back() -> None:
        stage.ledger.restore(backups[-min(rng.choice([1, 3, 10, 30, 100]), len(backups))])

    keep()
    for _ in range(rng.choice([1, 2, 5])):
        stage.world.at(rng.uniform(30, LENGTH_S), take_back)
    stage.play()


def test_a_process_that_outlived_its_job_is_found_before_a_node_is_given_back() -> None:
    """Slurm does not see it. Both nodes were lent when the backup was made, and no pod runs on them any more."""
    fleet = a_fleet()
    chat = serve(fleet, 2)
    backup = fleet.ledger.backup()
    fleet.world.kube.cluster.scale(chat, 0)
    job = fleet.sbatch(nodes=2, runs_s=5, orphan_s=100)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "COMPLETED", "the job is over")
    orphans = [node.name for node in fleet.world.nodes if fleet.world.machines.running(node.name)]
    fleet.ledger.restore(backup)
    fleet.run_until(lambda: fleet.owned(Owner.BRIDGE) == orphans, "the node with the process is nobody's")
    assert "holds /dev/nvidia0" in fleet.ledger.read().nodes[orphans[0]].unusable
    assert len(fleet.owned(Owner.KUBERNETES)) == 1
    fleet.order(Side.SLURM, *orphans)
    fleet.run_until(lambda: fleet.owned(Owner.SLURM) == orphans, "a person gives it away once the process is gone")
    settles(fleet)


@pytest.mark.parametrize("step", [Step.CLOSE, Step.EMPTY, Step.CLEAN])
@pytest.mark.parametrize("life", [stays, is_succeeded, is_succeeded_blindly])
def test_a_node_that_was_open_to_slurm_does_not_go_back_past_what_ran_there(
    step: Step, life: Callable[[Fleet], None]
) -> None:
    """The backup knows of a move to Slurm that has just begun. It was done, a job ran, and left a process behind. Then
    the move is called off: nothing but that process tells that Slurm was ever open, and no pod may meet it."""
    fleet, node = Fleet(nodes=1, min_hold_s=0), "gpu-1"
    fleet.settle()
    chat = serve(fleet, 1)
    fleet.run_until(lambda: at_rest(fleet), "the loan is done")
    fleet.world.kube.cluster.scale(chat, 0)
    fleet.order(Side.SLURM, node)
    fleet.run_until(lambda: fleet.at_step(node, step), "the move has begun")
    backup = fleet.ledger.backup()
    fleet.run_until(lambda: node in fleet.owned(Owner.SLURM) and at_rest(fleet), "and is done")
    job = fleet.sbatch(runs_s=3, orphan_s=200)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "COMPLETED", "the job is over")
    assert fleet.world.machines.running(node)
    fleet.ledger.restore(backup)
    life(fleet)
    fleet.world.kube.cluster.cordon(f"{node}.testbed")
    fleet.world.kube.cluster.scale(chat, 1)
    fleet.run_for(90)
    fleet.world.kube.cluster.cordon(f"{node}.testbed", on=False)
    fleet.run_for(60)
    assert node not in fleet.owned(Owner.KUBERNETES), "the oracle would have broken the run, too"
