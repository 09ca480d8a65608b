"""When victims are asked to go and made to, and how a leader tells each of them once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from bridge.lifecycle.acts import Act, Drain, Hasten, Hold, Release, Requeue, Resume, Signal, Standing, acts, closes
from bridge.lifecycle.facts import SideFacts, job_blocker
from bridge.lifecycle.preemption import held_back
from bridge.lifecycle.progress import Member, Sight, graces, judge
from bridge.model.demand import Victim
from bridge.model.errors import CallFailed
from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Lease, Mark, Node, Owner, Side
from bridge.model.slurm import SlurmJob
from bridge.ports import KubePort, SlurmPort
from bridge.reconciler.carry_out import Outcome, carry_out
from bridge.reconciler.endings import Endings

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
MARK = Mark("lease0001", 1, 1)
NO_SKEW = timedelta(0)
VICTIM = Victim("job 17 of alice", Side.SLURM, 17, 1000.0, "TERM", 90.0)


def job(id: int = 17, state: str = "RUNNING", *, may_requeue: bool = True, het_job: int | None = None) -> SlurmJob:
    return SlurmJob(id, state, "alice", "research", "shared", may_requeue=may_requeue, het_job=het_job)


def facts(*jobs: SlurmJob, **more: object) -> SideFacts:
    closed = SideFacts(first_latch=True, second_latch=True, blockers=tuple(map(job_blocker, jobs)), jobs=jobs)
    return replace(closed, **more)  # type: ignore[arg-type]


def member(
    slurm: SideFacts,
    step: Step = Step.EMPTY,
    *victims: Victim,
    node: str = "gpu-1",
    source: Side = Side.SLURM,
    signalled_at: datetime | None = None,
) -> Member:
    handoff = Handoff(
        id=f"h-{node}",
        lease=MARK.lease,
        node=node,
        source=source,
        destination=source.other,
        step=step,
        reason="test",
        requested_by="test",
        generation=1,
        nonce="nonce",
        evict=False,
        began_at=NOW,
        step_began_at=NOW,
        step_deadline_at=NOW + timedelta(hours=1),
        victims=victims or (VICTIM,),
        signalled_at=signalled_at,
    )
    return Member(handoff, Sight(slurm, SideFacts()))


def begun(*gang: Member, skew: timedelta = NO_SKEW, new_leader: bool = False) -> list[datetime | None]:
    return [m.handoff.signalled_at for m in graces(gang, now=NOW, skew=skew, new_leader=new_leader)]


POD = Victim("pod default/chat", Side.KUBERNETES, None, 1.0)
OTHER = replace(VICTIM, job=18)


@pytest.mark.parametrize(
    ("one", "due"),
    [
        (member(facts(job())), True),
        (member(facts(job(), job(9, "COMPLETING"))), True),
        (member(facts(job(18, het_job=17))), True),
        (member(facts(job(17, "SUSPENDED"))), False),
        (member(facts(job(17, "COMPLETING"))), False),
        (member(facts(job(may_requeue=False))), False),
        (member(facts(job(), job(18))), False),
        (member(facts(job(), job(18)), Step.EMPTY, VICTIM, OTHER), True),
        (member(facts(job(), job(18, may_requeue=False)), Step.EMPTY, VICTIM, OTHER), False),
        (member(facts(job(18))), False),
        (member(facts()), False),
        (member(facts(job()), Step.CLOSE), False),
        (member(facts(job()), Step.CLEAN), False),
        (member(facts(job()), Step.REOPEN), False),
        (member(facts(job(), first_latch=False)), False),
        (member(facts(job(), second_latch=False)), False),
        (member(facts(job(), first_latch=False, foreign="drained by admin: bad DIMM")), False),
        (member(SideFacts(unknown="timeout")), False),
        (member(facts(job()), source=Side.KUBERNETES), False),
        (member(facts(job()), Step.EMPTY, POD), False),
    ],
)
def test_a_grace_begins_where_the_victims_free_the_node(one: Member, due: bool) -> None:
    assert begun(one) == [NOW if due else None]


@pytest.mark.parametrize(
    ("fellow", "due"),
    [
        (member(facts(job()), node="gpu-2"), [NOW, NOW]),
        (member(facts(), node="gpu-2"), [NOW, None]),
        (member(facts(), Step.CLEAN, node="gpu-2"), [NOW, None]),
        (member(facts(job()), Step.CLOSE, node="gpu-2"), [None, None]),
        (member(facts(), Step.REOPEN, node="gpu-2"), [None, None]),
        (member(facts(job(18)), node="gpu-2"), [None, None]),
        (member(SideFacts(unknown="timeout"), node="gpu-2"), [None, None]),
    ],
)
def test_a_gang_is_asked_to_go_when_all_of_it_can(fellow: Member, due: list[datetime | None]) -> None:
    assert begun(member(facts(job())), fellow) == due


def test_a_grace_that_runs_moves_with_the_clock_and_begins_anew_under_a_new_leader() -> None:
    earlier = NOW - timedelta(seconds=60)
    runs = member(facts(job()), signalled_at=earlier)
    assert begun(runs) == [earlier]
    assert begun(runs, skew=timedelta(hours=1)) == [earlier + timedelta(hours=1)]
    assert begun(runs, new_leader=True) == [NOW]
    assert begun(member(facts(job()), Step.CLOSE), new_leader=True) == [None]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (member(facts(job(), job(9))), ("job 17 of alice is asked to go once only such jobs keep the nodes that are "
                                        "wanted", "job 9 of alice is RUNNING")),
        (member(facts(job()), signalled_at=NOW), ("job 17 of alice: signalled TERM, requeued at 12:01:30 UTC",)),
        (member(facts(job()), Step.EMPTY, replace(VICTIM, signal=""), signalled_at=NOW),
         ("job 17 of alice: not signalled, requeued at 12:01:30 UTC",)),
        (member(facts(job(may_requeue=False)), signalled_at=NOW),
         ("job 17 of alice may not be requeued: it is waited for",)),
        (member(facts(job(17, "COMPLETING")), signalled_at=NOW), ("job 17 of alice is COMPLETING",)),
    ],
)  # fmt: skip
def test_people_read_what_is_done_about_a_victim(one: Member, words: tuple[str, ...]) -> None:
    assert judge(one, [one], NOW).blockers == words


LET_RUN = replace(VICTIM, forced=False)


def test_a_job_that_the_policy_does_not_force_is_signalled_and_waited_for() -> None:
    runs = member(facts(job()), Step.EMPTY, LET_RUN, signalled_at=NOW)
    assert told(runs, at_s=0) == told(runs, at_s=9000) == [SIGNAL]
    assert judge(runs, [runs], NOW).blockers == (
        "job 17 of alice: signalled TERM, and waited for, as the policy requeues nobody after a grace",
    )


# --- what Slurm holds back after a requeue ---

WAITS = replace(job(state="PENDING"), restarts=1, waits_for="BeginTime", begins_at=NOW + timedelta(seconds=118))


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ({}, (17,)),
        ({"waits_for": "None"}, (17,)),
        ({"begins_at": NOW - timedelta(seconds=300)}, (17,)),  # its clock is behind ours
        ({"waits_for": "Resources", "begins_at": NOW - timedelta(seconds=3)}, ()),
        ({"state": "COMPLETING"}, ()),
        ({"state": "RUNNING"}, ()),
        ({"restarts": 0}, ()),
        ({"held": True}, ()),
        ({"begins_at": None}, ()),
        ({"begins_at": NOW + timedelta(hours=1)}, ()),  # its user wants it so
        ({"id": 18}, ()),
        ({"id": 18, "het_job": 17}, (17,)),
    ],
)
def test_a_job_that_was_requeued_may_start_once_it_is_not_completing(
    change: dict[str, object], held: tuple[int, ...]
) -> None:
    seen = [replace(WAITS, **change)]  # type: ignore[arg-type]
    ours = member(facts(), Step.CLEAN, signalled_at=NOW).handoff
    assert held_back([ours], (), seen, NOW) == held
    assert held_back([], {17}, seen, NOW) == held
    assert held_back([replace(ours, signalled_at=None)], {19}, seen, NOW) == ()


def test_a_het_job_is_hastened_once() -> None:
    parts = [replace(WAITS, het_job=17), replace(WAITS, id=18, het_job=17)]
    assert held_back([], {17}, parts, NOW) == (17,)
    assert held_back([], {17}, [parts[0], replace(parts[1], state="COMPLETING")], NOW) == ()


# --- acts ---


def standing(one: Member, owner: Owner = Owner.BRIDGE) -> Standing:
    name = one.handoff.node
    node = Node(name, name, f"{name}.testbed", "shared", 8)
    lease = Lease(MARK.lease, name, owner, 1, 1, NOW, one.handoff.id)
    return Standing(node, lease, one.handoff, {}, one.sight, None)


def told(one: Member, *fellows: Member, at_s: float) -> list[Act]:
    gang = [standing(each) for each in (one, *fellows)]
    return list(acts(gang[0], gang, now=NOW + timedelta(seconds=at_s), fence_shows_lease=True))


RUNS = member(facts(job()), signalled_at=NOW)
NODE = Node("gpu-1", "gpu-1", "gpu-1.testbed", "shared", 8)
SIGNAL, REQUEUE = Signal(NODE, 17, "TERM", NOW), Requeue(NODE, 17)


@pytest.mark.parametrize(
    ("one", "at_s", "expected"),
    [
        (RUNS, 0, [SIGNAL]),
        (RUNS, 89.9, [SIGNAL]),
        (RUNS, 90, [REQUEUE]),
        (RUNS, 9000, [REQUEUE]),
        (member(facts(job())), 9000, []),
        (member(facts(job()), Step.EMPTY, replace(VICTIM, signal=""), signalled_at=NOW), 0, []),
        (member(facts(job()), Step.EMPTY, replace(VICTIM, signal=""), signalled_at=NOW), 90, [REQUEUE]),
        (member(facts(job()), Step.EMPTY, replace(VICTIM, grace_s=0), signalled_at=NOW), 0, [REQUEUE]),
        (member(facts(job(18, het_job=17)), signalled_at=NOW), 90, [REQUEUE]),
        (member(facts(job(may_requeue=False)), signalled_at=NOW), 90, []),
        (member(facts(job(17, "COMPLETING")), signalled_at=NOW), 90, []),
        (member(facts(job(18)), signalled_at=NOW), 90, []),
        (member(facts(job()), Step.CLOSE, signalled_at=NOW), 90, []),
        (member(facts(job()), Step.CLEAN, signalled_at=NOW), 90, []),
        (member(facts(job(), first_latch=False), signalled_at=NOW), 90, []),
        (member(SideFacts(unknown="timeout"), signalled_at=NOW), 90, []),
    ],
)
def test_what_a_victim_is_told(one: Member, at_s: float, expected: list[Act]) -> None:
    assert told(one, at_s=at_s) == expected


def test_while_a_node_of_the_gang_goes_back_nobody_is_told_anything() -> None:
    assert told(RUNS, member(facts(), Step.REOPEN, node="gpu-2"), at_s=90) == []


def test_a_new_leader_waits_for_the_calls_of_the_old_one_before_it_tells_anybody() -> None:
    assert not closes(SIGNAL)
    assert not closes(REQUEUE)


# --- carrying out ---


@dataclass
class Calls:
    """Records what it is asked for, in order; fails for the jobs in `refuses`."""

    made: list[tuple[object, ...]] = field(default_factory=list)
    refuses: frozenset[int] = frozenset()

    def signal(self, job: int, nodes: Collection[str], signal: str) -> None:
        self._tell("signal", job, *nodes, signal)

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        self._tell("requeue", job, *nodes)

    def hasten(self, job: int) -> None:
        self._tell("hasten", job)

    def _tell(self, call: str, job: int, *more: str) -> None:
        self.made.append((call, job, *more))
        if job in self.refuses:
            raise CallFailed("no answer in time")

    def drain(self, nodes: Collection[str], mark: Mark, why: str) -> None:
        self.made.append(("drain", *nodes))

    def hold(self, nodes: Collection[str], reservation: str) -> None:
        self.made.append(("hold", *nodes))

    def resume(self, nodes: Collection[str]) -> None:
        self.made.append(("resume", *nodes))

    def release(self, nodes: Collection[str], reservation: str) -> None:
        self.made.append(("release", *nodes))


def other(name: str) -> Node:
    return Node(name, name, f"{name}.testbed", "shared", 8)


def carried_out(calls: Calls, *found: Act, leads_for: int = 99) -> Outcome:
    leads = iter([True] * leads_for + [False] * 99)
    return carry_out(
        found,
        cast(SlurmPort, calls),
        cast(KubePort, None),
        reservation_of=lambda node: f"bridge-{node.pool}",
        still_leader=lambda: next(leads),
    )


GANG = (SIGNAL, replace(SIGNAL, node=other("gpu-2")))


def test_closings_come_first_and_a_job_on_many_nodes_is_told_once() -> None:
    calls = Calls()
    two = other("gpu-2")
    told = (Hasten(19), Requeue(two, 18), Requeue(NODE, 18), *GANG)
    found = (Release(two), *told, Resume(two), Hold(two), Drain(two, MARK, "x"))
    outcome = carried_out(calls, *found)
    assert calls.made == [
        ("drain", "gpu-2"),
        ("hold", "gpu-2"),
        ("signal", 17, "gpu-1", "gpu-2", "TERM"),
        ("requeue", 18, "gpu-2", "gpu-1"),
        ("hasten", 19),
        ("resume", "gpu-2"),
        ("release", "gpu-2"),
    ]
    assert (outcome.signalled, outcome.requeued, outcome.jobs_in_doubt) == ({(17, NOW)}, {18}, set())


def test_one_job_that_cannot_be_told_does_not_hide_the_next() -> None:
    calls = Calls(refuses=frozenset({17}))
    outcome = carried_out(calls, *GANG, replace(SIGNAL, job=18), Requeue(NODE, 19))
    assert [made[:2] for made in calls.made] == [("signal", 17), ("signal", 18), ("requeue", 19)]
    assert outcome.failures == ["signal job 17: no answer in time"]
    assert (outcome.signalled, outcome.jobs_in_doubt, outcome.in_doubt) == ({(18, NOW)}, {17}, set())


def test_leadership_is_asked_for_before_each_call() -> None:
    calls = Calls()
    outcome = carried_out(calls, SIGNAL, Requeue(NODE, 18), leads_for=1)
    assert [made[0] for made in calls.made] == ["signal"]
    assert outcome.failures == ["stopped: the leader lease is about to end"]


# --- what a leader remembers ---


def test_a_signal_is_sent_once_and_again_for_another_grace() -> None:
    endings, later = Endings(), NOW + timedelta(minutes=5)
    assert endings.still_due([*GANG, Hold(NODE)], {NOW}, 0.0) == [*GANG, Hold(NODE)]
    endings.note(Outcome(signalled={(17, NOW)}), now_s=0.0, doubt_until_s=5.0)
    assert endings.still_due([*GANG, REQUEUE], {NOW}, 0.25) == [REQUEUE]
    again = replace(SIGNAL, since=later)
    assert endings.still_due([again], {later}, 300.0) == [again]


def test_what_failed_may_still_arrive_so_its_job_is_told_nothing_until_it_cannot() -> None:
    endings = Endings()
    endings.note(Outcome(jobs_in_doubt={17}), now_s=0.0, doubt_until_s=5.0)
    assert endings.still_due([SIGNAL, REQUEUE, Requeue(NODE, 18)], {NOW}, 4.9) == [Requeue(NODE, 18)]
    assert endings.still_due([SIGNAL, REQUEUE], {NOW}, 5.0) == [SIGNAL, REQUEUE]


def test_what_was_requeued_or_may_have_been_is_remembered_for_an_hour() -> None:
    endings = Endings()
    endings.note(Outcome(requeued={17}, jobs_in_doubt={18}), now_s=100.0, doubt_until_s=105.0)
    assert endings.requeued(3699.0) == {17, 18}
    assert endings.requeued(3700.0) == set()


def test_a_job_in_doubt_is_not_hastened_either() -> None:
    endings = Endings()
    endings.note(Outcome(jobs_in_doubt={17}), now_s=0.0, doubt_until_s=5.0)
    assert endings.still_due([Hasten(17), Hasten(18)], set(), 4.9) == [Hasten(18)]


def test_only_graces_that_run_are_remembered() -> None:
    endings = Endings()
    endings.note(Outcome(signalled={(17, NOW)}), now_s=0.0, doubt_until_s=5.0)
    endings.still_due([], set(), 1.0)
    assert endings.still_due([SIGNAL], {NOW}, 2.0) == [SIGNAL]
