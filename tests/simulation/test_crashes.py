"""The broker, or the node controller, dies before and after every write of a story, one case each; the next goes on.

A story is first played without a crash, which numbers its calls: to both schedulers and to the ledger. Then it is
played once for each point at which a broker can die in it: before and after each write, and once at each kind of read
(a read has no effect, so it makes no difference which one it is). Each time the story must reach its end; what stands
outside must then be what the ledger says, and still be when the next broker has led for a while. Meanwhile the
`Auditor` judges every commit and call, and the world every event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bridge.model.errors import BridgeError
from bridge.model.handoff import Step
from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner, Side
from bridge.ports import KubePort, Ledger, SlurmPort
from bridge.reconciler.loop import Reconciler
from bridge.simulation.auditor import Auditor
from bridge.simulation.faults import When, faulty
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import LEDGER_READS, TIMING, Fleet, without_log

READS = frozenset({"slurm.observe", "kube.observe", *(f"ledger.{read}" for read in LEDGER_READS)})

ENDS_WITHIN_S = 300.0
"""The longest story, the time without a leader after a crash, and a call that the next leader makes again."""


class Audited(Fleet):
    """Two nodes; every broker's ledger can break, and all that it does is judged."""

    def __init__(self, **policy: object) -> None:
        self._auditor: Auditor | None = None
        super().__init__(nodes=2, **{"min_hold_s": 0, **policy})
        self._auditor = Auditor(self.world.clock)
        judged = self._auditor.ledger(self.ledger)
        self.broker_ledger = faulty(judged, "ledger", self.world.faults, reads=LEDGER_READS)
        self.new_broker()

    def new_broker(
        self, slurm: SlurmPort | None = None, kubernetes: KubePort | None = None, ledger: Ledger | None = None
    ) -> Reconciler:
        if self._auditor is None:
            return super().new_broker(slurm, kubernetes, ledger)
        ledger, slurm, kubernetes = self._auditor.broker(
            ledger or self.broker_ledger, slurm or self.world.slurm, kubernetes or self.world.kube
        )
        return super().new_broker(slurm, kubernetes, ledger)

    def await_end(self, condition: Callable[[], bool], what: str) -> None:
        self.run_until(condition, what, within_s=ENDS_WITHIN_S)


@dataclass(frozen=True, slots=True)
class Story:
    """`before` plays without a crash; `tell` is what a broker may die in, and waits for its own end."""

    name: str
    before: Callable[[Audited], None]
    tell: Callable[[Audited], None]
    policy: dict[str, object] = field(default_factory=dict)

    def begin(self) -> Audited:
        fleet = Audited(**self.policy)
        self.before(fleet)
        return fleet

    def play(self, fleet: Audited) -> None:
        self.tell(fleet)
        fleet.await_end(lambda: at_rest(fleet) and not unaccounted(fleet), "all is at rest and accounted for")


# --- the stories ---


def nothing(_: Audited) -> None:
    """The first day: nobody has adopted anything yet."""


def settled(fleet: Audited) -> None:
    fleet.settle()


def all_lent(fleet: Audited) -> None:
    """Each node serves a pod."""
    lent(fleet, pods=2)


def one_lent(fleet: Audited) -> None:
    lent(fleet, pods=1)


def lent(fleet: Audited, pods: int) -> None:
    fleet.settle()
    to_kubernetes(fleet, pods)
    fleet.run_until(lambda: at_rest(fleet) and not unaccounted(fleet), "the loan is done")


def both_busy(fleet: Audited) -> None:
    """A job of one node on each node."""
    fleet.settle()
    for job in [fleet.sbatch(runs_s=5000), fleet.sbatch(runs_s=5000)]:
        fleet.run_until(lambda job=job: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")  # type: ignore[misc]


def adoption(fleet: Audited) -> None:
    fleet.await_end(lambda: fleet.owned(Owner.SLURM) == ["gpu-1", "gpu-2"], "every node is adopted")


def to_kubernetes(fleet: Audited, pods: int = 1) -> None:
    chat = fleet.deploy("chat", replicas=pods)
    fleet.await_end(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "all pods serve")
    fleet.await_end(lambda: len(fleet.owned(Owner.KUBERNETES)) == pods, "as many nodes are lent")


def to_slurm(fleet: Audited) -> None:
    """A job that needs both nodes, of which one or both are Kubernetes': it starts when all of them are back."""
    fleet.world.kube.cluster.scale("default/chat", 0)
    job = fleet.sbatch(nodes=2, runs_s=5000)
    fleet.await_end(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")
    fleet.await_end(lambda: fleet.owned(Owner.SLURM) == ["gpu-1", "gpu-2"], "both nodes are Slurm's")


def victim(fleet: Audited) -> None:
    """A floor is raised while both nodes are busy: one job of the two is signalled and requeued, and once."""
    policy = fleet.world.policy(
        demand_age_s=1,
        min_hold_s=0,
        preemption={"mode": "requeue", "signal": "USR1", "grace_s": 5, "min_runtime_s": 0},
        kubernetes={"floor_nodes": 1},
    )
    now = fleet.world.clock.now()
    fleet.ledger.apply_policy(policy, fleet.world.nodes, replaces=1, author="admin", note="", at=now)
    fleet.await_end(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "the floor is kept")
    shown = fleet.world.slurm.live()
    jobs = sorted((job.state, job.restarts) for job in map(fleet.world.slurm.job, shown))
    assert jobs == [("PENDING", 1), ("RUNNING", 0)]


def by_hand(fleet: Audited) -> None:
    request = fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.await_end(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 is lent")
    answered = fleet.ledger.request(request.id)
    assert answered is not None
    assert answered.state is RequestState.ACCEPTED


def goes_back(fleet: Audited) -> None:
    """While a job is waited for, a person drains the node: it stays Slurm's, and the job runs on."""
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.await_end(lambda: fleet.at_step("gpu-1", Step.EMPTY), "the job on gpu-1 is waited for")
    fleet.world.slurm.admin_drain("gpu-1", "bad DIMM")
    fleet.await_end(lambda: fleet.at_step("gpu-1", Step.RETURNED), "gpu-1 is given back")
    assert [fleet.world.slurm.job(job).restarts for job in fleet.world.slurm.live()] == [0, 0]


STORIES = (
    Story("adoption", nothing, adoption),
    Story("to Kubernetes", settled, to_kubernetes),
    Story("back to Slurm", one_lent, to_slurm),
    Story("gang", all_lent, to_slurm),
    Story("victim", both_busy, victim),
    Story("by hand", settled, by_hand),
    Story("goes back", both_busy, goes_back),
)


# --- the points ---


@dataclass(frozen=True, slots=True)
class Point:
    """Where the broker dies: at the `number`-th of all calls."""

    number: int
    call: str
    when: When

    def __str__(self) -> str:
        return f"{self.when} call {self.number}, {self.call}"


def points(story: Story) -> list[Point]:
    """Of the story as it goes without a crash: each write twice, each kind of read once.

    Of renewals that follow one another with no other write between them, the first: nothing but time has changed.
    """
    fleet = story.begin()
    first = len(fleet.world.faults.calls)
    story.play(fleet)
    found: list[Point] = []
    read: set[str] = set()
    last = ""
    for number, call in enumerate(fleet.world.faults.calls[first:], first):
        if call not in READS:
            if (call, last) == ("ledger.renew", "ledger.renew"):
                continue
            last = call
            found += [Point(number, call, When.CRASH_BEFORE), Point(number, call, When.CRASH_AFTER)]
        elif call not in read:
            read.add(call)
            found.append(Point(number, call, When.CRASH_BEFORE))
    return found


def failure(story: Story, point: Point) -> str:
    """What goes wrong when a broker dies there; empty when nothing does."""
    fleet = story.begin()
    fleet.world.faults.fail_number(point.number, when=point.when)
    try:
        story.play(fleet)
        fleet.run_for(TIMING.leader_ttl_s + TIMING.settle_s)
        assert at_rest(fleet), f"not at rest under the next broker\n{fleet.describe()}"
        assert not unaccounted(fleet), f"{unaccounted(fleet)} under the next broker"
    except (AssertionError, BridgeError) as why:
        return f"{point}: {type(why).__name__} {why}"
    journal = [(entry.number, entry.call, entry.when) for entry in fleet.world.faults.journal]
    return "" if journal == [(point.number, point.call, point.when)] else f"{point}: died at {journal}"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_the_broker_dies_at_each_point_and_the_next_one_goes_on(story: Story) -> None:
    with without_log():
        tried = points(story)
        failures = list(filter(None, (failure(story, point) for point in tried)))
    assert {"ledger.commit", "ledger.read", "slurm.observe"} <= {point.call for point in tried}
    assert not failures, f"{len(failures)} of {len(tried)} points:\n" + "\n\n".join(failures)


# --- the node controller: in all stories but the last, in which it has nothing to do ---


def controller_failure(story: Story, number: int, after: bool) -> str:
    """What goes wrong when the node controller dies at its `number`-th write; empty when nothing does."""
    fleet = story.begin()
    fleet.world.kube.controller.die_at(number, after=after)
    try:
        story.play(fleet)
        fleet.run_for(TIMING.leader_ttl_s)
        assert at_rest(fleet), f"not at rest afterwards\n{fleet.describe()}"
        assert not unaccounted(fleet), f"{unaccounted(fleet)} afterwards"
    except (AssertionError, BridgeError) as why:
        return f"{'after' if after else 'before'} write {number}: {type(why).__name__} {why}"
    return ""


@pytest.mark.parametrize("story", STORIES[:-1], ids=lambda story: story.name)
def test_the_node_controller_dies_at_each_write_and_the_next_one_goes_on(story: Story) -> None:
    with without_log():
        fleet = story.begin()
        writes = fleet.world.kube.controller.writes
        first = len(writes)
        story.play(fleet)
        tried = [(number, after) for number in range(first, len(writes)) for after in (False, True)]
        failures = list(filter(None, (controller_failure(story, *point) for point in tried)))
    kinds = {write.split()[0] for write in writes[first:]}
    assert {"fence", "taint", "status"} <= kinds
    assert not failures, f"{len(failures)} of {len(tried)} points:\n" + "\n\n".join(failures)
