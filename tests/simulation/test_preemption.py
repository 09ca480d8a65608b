"""Victims on their way: signalled, given their grace, requeued whole; and never ended for nothing.

The handoff is put into the ledger as the leader would commit it, so that these stories are about carrying it out and
not about who is chosen. ``OnlyVictims`` is checked by the world's oracle at every call.
"""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from bridge.model.demand import Victim
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import Change, PutClosure, PutHandoff, PutLease
from bridge.model.ownership import Closure, Lease, Owner, Side
from bridge.simulation.faults import SURVIVABLE, When
from bridge.simulation.slurm import JobRequest
from tests.simulation.fleet import BOUNDS, TIMING, Fleet

GRACE_S = 30.0


def preempt(
    fleet: Fleet, *jobs: int, signal: str = "TERM", grace_s: float = GRACE_S, forced: bool = True
) -> tuple[str, ...]:
    """A gang of all nodes of the jobs is to be handed to Kubernetes, with the jobs as victims; the nodes."""
    nodes = tuple(sorted({name for job in jobs for name in fleet.world.slurm.job(job).nodes}))
    leader = fleet.ledger.leader()
    assert leader is not None
    state, now, epoch = fleet.ledger.read(), fleet.world.clock.now(), leader[1]
    generation = fleet.ledger.next_generation()
    lease_id = f"preempts{generation}"
    victims = tuple(Victim(f"job {job} of alice", Side.SLURM, job, 1000.0, signal, grace_s, forced) for job in jobs)
    changes: list[Change] = []
    for name in nodes:
        lease = Lease(lease_id, name, Owner.BRIDGE, epoch, generation, now, f"handoff-{name}-{generation}")
        before = state.leases[name]
        changes += [
            PutLease(lease, replaces=(before.id, before.generation)),
            PutClosure(Closure(name, Side.SLURM, lease.mark)),
            PutHandoff(
                Handoff(
                    id=f"handoff-{name}-{generation}",
                    lease=lease.id,
                    node=name,
                    source=Side.SLURM,
                    destination=Side.KUBERNETES,
                    step=Step.CLOSE,
                    reason="Deployment default/chat",
                    requested_by="planner",
                    generation=generation,
                    nonce=f"nonce-{name}-{generation}",
                    evict=False,
                    began_at=now,
                    step_began_at=now,
                    step_deadline_at=now + timedelta(seconds=BOUNDS.close_s),
                    victims=victims,
                ),
                replaces=None,
            ),
        ]
    fleet.ledger.commit(epoch, changes)
    return nodes


def raise_floor(fleet: Fleet) -> None:
    """Kubernetes is owed two nodes from now on, and jobs may be ended for it."""
    policy = fleet.world.policy(
        demand_age_s=1,
        min_hold_s=30,
        preemption={"mode": "requeue", "signal": "USR1", "grace_s": 20, "min_runtime_s": 0},
        kubernetes={"floor_nodes": 2},
    )
    now = fleet.world.clock.now()
    fleet.ledger.apply_policy(policy, fleet.world.nodes, replaces=1, author="test", note="", at=now)


def running(fleet: Fleet, nodes: int = 2, **more: object) -> int:
    job = fleet.sbatch(nodes=nodes, runs_s=5000, **more)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", f"job {job} runs")
    return job


def blockers(fleet: Fleet, node: str) -> str:
    return "; ".join(fleet.handoff(node).blockers)


def lent(fleet: Fleet, nodes: tuple[str, ...]) -> bool:
    return all(fleet.handoff(name).step is Step.DONE for name in nodes)


@pytest.fixture
def fleet() -> Fleet:
    """Four idle nodes that only move when a test says so."""
    fleet = Fleet(min_hold_s=600)
    fleet.settle()
    return fleet


def test_a_gang_is_signalled_requeued_whole_after_its_grace_and_runs_again(fleet: Fleet) -> None:
    job = running(fleet)
    others = [running(fleet, nodes=1), running(fleet, nodes=1)]
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.signals(job) == ("TERM",), "the job is signalled")
    signalled_at = fleet.handoff(nodes[0]).signalled_at
    assert {fleet.handoff(name).signalled_at for name in nodes} == {signalled_at}
    fleet.run_for(GRACE_S - 2)
    assert fleet.world.slurm.job(job).state == "RUNNING"
    assert fleet.world.slurm.signals(job) == ("TERM",), "once"
    assert f"job {job} of alice: signalled TERM, requeued at " in blockers(fleet, nodes[0])
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")
    shown = fleet.world.slurm.job(job)
    assert (shown.state, shown.restarts, shown.priority, shown.held) == ("PENDING", 1, 1000, False)
    for other in others:
        fleet.world.slurm.cancel(other)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "it runs again on the other two nodes")
    assert not set(fleet.world.slurm.job(job).nodes) & set(nodes)
    assert fleet.world.slurm.job(job).restarts == 1


def test_without_a_signal_there_is_still_the_grace(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job, signal="")
    fleet.run_until(lambda: fleet.at_step(nodes[0], Step.EMPTY), "closed")
    fleet.run_for(GRACE_S - 2)
    assert fleet.world.slurm.job(job).state == "RUNNING"
    assert "not signalled, requeued at" in blockers(fleet, nodes[0])
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")
    assert (fleet.world.slurm.signals(job), fleet.world.slurm.job(job).restarts) == ((), 1)


def test_a_job_that_ends_in_its_grace_is_not_requeued(fleet: Fleet) -> None:
    job = running(fleet, exits_on_signal=True, exits_in_s=10)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent", within_s=GRACE_S)
    assert (fleet.world.slurm.job(job).state, fleet.world.slurm.job(job).restarts) == ("COMPLETED", 0)
    assert "slurm.requeue" not in fleet.world.faults.calls


def test_a_job_that_takes_long_to_die_still_comes_back_at_once(fleet: Fleet) -> None:
    """Slurm's 120 s are lifted after it was COMPLETING: before, that would be forgotten."""
    job = running(fleet, dying_s=45)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "COMPLETING", "its grace is over")
    assert "slurm.hasten" not in fleet.world.faults.calls
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "PENDING", "it is back in the queue", within_s=60)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "on the other nodes", within_s=10)
    assert fleet.world.faults.calls.count("slurm.hasten") == 1
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")


def test_a_job_that_also_runs_elsewhere_is_not_forgotten_with_its_handoff(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "COMPLETING", "its grace is over")
    fleet.world.faults.away("slurm.hasten")
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")
    fleet.world.faults.back("slurm.hasten")
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "it runs again", within_s=30)


def test_a_het_job_goes_whole_and_comes_back_whole(fleet: Fleet) -> None:
    slurm = fleet.world.slurm
    leader = slurm.submit_het(JobRequest(nodes=1, duration_s=5000), JobRequest(nodes=1, duration_s=5000, dying_s=20))
    parts = (leader, leader + 1)
    fleet.run_until(lambda: all(slurm.job(part).state == "RUNNING" for part in parts), "both components run")
    nodes = preempt(fleet, leader)
    assert len(nodes) == 1
    fleet.run_until(lambda: lent(fleet, nodes), "the leader's node is lent")
    fleet.run_until(lambda: all(slurm.job(part).state == "RUNNING" for part in parts), "both run again", within_s=40)
    assert [slurm.job(part).restarts for part in parts] == [1, 1]


def test_of_an_array_one_task_is_put_back_and_comes_back(fleet: Fleet) -> None:
    slurm = fleet.world.slurm
    array = slurm.submit(JobRequest(nodes=1, duration_s=5000, tasks=3))
    tasks = [array, array + 1, array + 2]
    fleet.run_until(lambda: all(slurm.job(task).state == "RUNNING" for task in tasks), "all three tasks run")
    nodes = preempt(fleet, array)
    fleet.run_until(lambda: lent(fleet, nodes), "its node is lent")
    fleet.run_until(lambda: slurm.job(array).state == "RUNNING", "on the fourth node", within_s=20)
    assert [slurm.job(task).restarts for task in tasks] == [1, 0, 0]


def test_what_a_requeue_lost_is_written_down_by_the_jobs_own_report(fleet: Fleet) -> None:
    job = running(fleet)
    fleet.run_for(300)
    at = fleet.world.clock.now()
    fleet.world.slurm.user_comments(job, f"bridge: checkpoint=9999 saved={at.timestamp():.0f}")
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")
    [lost] = [event for event in fleet.ledger.events(after=0, limit=10_000) if event.kind == "requeue"]
    ago_s = (lost.at - at).total_seconds()
    assert GRACE_S <= ago_s < GRACE_S + 10
    # Two nodes of 8 GPUs, and 120 s to start again, the policy's default.
    assert lost.data["lost_gpu_s"] == pytest.approx(16 * (ago_s + 120), abs=16)
    assert (lost.data["job"], lost.data["nodes"], lost.lease) == (job, list(nodes), fleet.handoff(nodes[0]).lease)
    assert f"job {job} of alice was requeued and lost" in lost.message
    assert "it reported a checkpoint" in lost.message


def test_the_measured_loss_takes_the_place_of_the_guess() -> None:
    fleet = Fleet()
    fleet.settle()
    jobs = [running(fleet), running(fleet)]
    raise_floor(fleet)
    fleet.run_until(lambda: fleet.ledger.read().preempted != (), "a victim is chosen")
    [guess] = fleet.ledger.read().preempted
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 2, "the floor is kept")
    [measured] = fleet.ledger.read().preempted
    assert (measured.key, measured.at) == (guess.key, guess.at)
    # Two nodes of 8 GPUs ran on for the grace of 20 s and the closing before it.
    assert 16 * 20 <= measured.loss_gpu_s - guess.loss_gpu_s < 16 * 30
    assert measured.key in {f"job {job} of alice" for job in jobs}


def test_a_job_that_ends_in_its_grace_has_lost_nothing_by_us(fleet: Fleet) -> None:
    nodes = preempt(fleet, running(fleet, exits_on_signal=True))
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")
    assert not [event for event in fleet.ledger.events(after=0, limit=10_000) if event.kind == "requeue"]


def test_a_job_that_ignores_its_signal_runs_on_where_the_policy_forces_nobody(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job, forced=False)
    fleet.run_for(10 * GRACE_S)
    assert (fleet.world.slurm.job(job).state, fleet.world.slurm.signals(job)) == ("RUNNING", ("TERM",))
    assert "the policy requeues nobody after a grace" in blockers(fleet, nodes[0])
    fleet.world.slurm.cancel(job)
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")


def test_a_job_that_may_not_be_requeued_is_waited_for(fleet: Fleet) -> None:
    job = running(fleet, may_requeue=False)
    nodes = preempt(fleet, job)
    fleet.run_for(10 * GRACE_S)
    assert fleet.world.slurm.job(job).state == "RUNNING"
    assert fleet.world.slurm.signals(job) == ()
    assert blockers(fleet, nodes[0]) == f"job {job} of alice may not be requeued: it is waited for"
    fleet.world.slurm.cancel(job)
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent after all")


def test_a_job_whose_user_forbids_the_requeue_in_its_grace_is_waited_for(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.signals(job) == ("TERM",), "the job is signalled")
    fleet.world.slurm.may_not_requeue(job)
    fleet.run_for(2 * GRACE_S)
    assert fleet.world.slurm.job(job).state == "RUNNING"
    assert "may not be requeued" in blockers(fleet, nodes[0])


def test_nothing_is_ended_for_nothing(fleet: Fleet) -> None:
    """One of two victims cannot go, so its node stays busy and the gang waits: the other one runs on meanwhile."""
    stays, goes = running(fleet, nodes=1, may_requeue=False), running(fleet, nodes=1)
    nodes = preempt(fleet, stays, goes)
    fleet.run_for(3 * GRACE_S)
    assert fleet.world.slurm.signals(goes) == ()
    assert fleet.world.slurm.job(goes).state == "RUNNING"
    fleet.world.slurm.cancel(stays)
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")
    assert fleet.world.slurm.job(goes).restarts == 1


def test_when_an_admin_takes_a_node_before_the_gang_is_closed_no_victim_is_touched(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.world.slurm.admin_drain(nodes[1], "bad DIMM")
    fleet.run_until(lambda: all(fleet.at_step(name, Step.RETURNED) for name in nodes), "the gang is given back")
    assert (fleet.world.slurm.signals(job), fleet.world.slurm.job(job).state) == ((), "RUNNING")


def test_when_an_admin_takes_a_node_in_the_grace_the_job_runs_on(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.signals(job) == ("TERM",), "the job is signalled")
    fleet.world.slurm.admin_drain(nodes[1], "bad DIMM")
    fleet.run_for(2 * GRACE_S)
    assert fleet.world.slurm.job(job).state == "RUNNING"
    assert fleet.world.slurm.job(job).restarts == 0


def test_an_admin_who_lifts_a_latch_in_the_grace_delays_the_requeue_until_it_stands_again(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.signals(job) == ("TERM",), "the job is signalled")
    fleet.world.slurm.admin_resume(nodes[0])
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")
    assert (fleet.world.slurm.signals(job), fleet.world.slurm.job(job).restarts) == (("TERM",), 1)


def test_a_person_who_requeues_the_job_first_is_not_followed(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.signals(job) == ("TERM",), "the job is signalled")
    fleet.world.slurm.user_requeue(job)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "it runs elsewhere, at once", within_s=20)
    fleet.run_for(2 * GRACE_S)
    assert lent(fleet, nodes)
    assert (fleet.world.slurm.job(job).state, fleet.world.slurm.job(job).restarts) == ("RUNNING", 1)
    assert "slurm.requeue" not in fleet.world.faults.calls


def test_a_patience_that_ends_before_the_grace_gives_the_nodes_back_and_requeues_nobody() -> None:
    fleet = Fleet(min_hold_s=600, empty_patience_s=60)
    fleet.settle()
    job = running(fleet)
    nodes = preempt(fleet, job, grace_s=90)
    fleet.run_until(lambda: all(fleet.at_step(name, Step.RETURNED) for name in nodes), "the gang is given back")
    fleet.run_for(120)
    assert (fleet.world.slurm.job(job).state, fleet.world.slurm.job(job).restarts) == ("RUNNING", 0)


def test_while_slurm_is_unreadable_nobody_is_requeued(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.signals(job) == ("TERM",), "the job is signalled")
    fleet.world.faults.away("slurm.observe")
    fleet.run_for(3 * GRACE_S)
    assert fleet.world.slurm.job(job).state == "RUNNING"
    fleet.world.faults.back("slurm.observe")
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")


def test_a_clock_set_forward_takes_nothing_from_the_grace(fleet: Fleet) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: fleet.world.slurm.signals(job) == ("TERM",), "the job is signalled")
    fleet.world.clock.step_wall(3600)
    fleet.run_for(GRACE_S - 5)
    assert fleet.world.slurm.job(job).state == "RUNNING"
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent", within_s=20)


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER, When.LATE])
@pytest.mark.parametrize("call", ["slurm.signal", "slurm.requeue"])
def test_a_call_that_broke_is_made_again_and_ends_nobody_twice(fleet: Fleet, call: str, when: When) -> None:
    """Late: the first requeue lands after it was given up; the job has started elsewhere soon after and stays there."""
    job = running(fleet)
    fleet.world.faults.fail_next(call, when=when, delay_s=TIMING.call_timeout_s - 0.5)
    nodes = preempt(fleet, job, grace_s=2)
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent")
    fleet.run_for(60)
    assert fleet.world.slurm.job(job).restarts == 1
    assert fleet.world.slurm.job(job).state == "RUNNING"


@pytest.mark.parametrize(
    ("call", "when", "signals", "requeues"),
    [
        ("slurm.signal", When.CRASH_BEFORE, 2, 1),
        ("slurm.signal", When.CRASH_AFTER, 2, 1),
        ("slurm.requeue", When.CRASH_BEFORE, 2, 2),
        ("slurm.requeue", When.CRASH_AFTER, 1, 1),
    ],
)
def test_a_broker_that_dies_at_the_call_is_followed_by_one_that_goes_on(
    fleet: Fleet, call: str, when: When, signals: int, requeues: int
) -> None:
    """The next leader signals again what still runs, and gives it a whole grace: the last one may never have got it."""
    job = running(fleet)
    fleet.world.faults.fail_next(call, when=when)
    nodes = preempt(fleet, job)
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent", within_s=200)
    fleet.run_for(60)
    assert fleet.world.slurm.job(job).restarts == 1
    calls = fleet.world.faults.calls
    assert (calls.count("slurm.signal"), calls.count("slurm.requeue")) == (signals, requeues)


@pytest.mark.parametrize("number", range(24))
@pytest.mark.parametrize("when", [When.CRASH_BEFORE, When.CRASH_AFTER])
def test_the_broker_dies_at_any_call_of_the_story(fleet: Fleet, number: int, when: When) -> None:
    job = running(fleet)
    nodes = preempt(fleet, job)
    fleet.world.faults.fail_number(len(fleet.world.faults.calls) + number * 2, when=when)
    fleet.run_until(lambda: lent(fleet, nodes), "both nodes are lent", within_s=300)
    assert fleet.world.slurm.job(job).restarts == 1


def test_a_floor_that_is_raised_takes_the_planners_own_victim() -> None:
    """From the policy to the requeue, with nothing put in by hand: two of four busy nodes are owed to Kubernetes."""
    fleet = Fleet()
    fleet.settle()
    jobs = [running(fleet), running(fleet)]
    raise_floor(fleet)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 2, "the floor is kept")
    fleet.run_for(60)
    shown = [fleet.world.slurm.job(job) for job in jobs]
    assert sorted((job.state, job.restarts) for job in shown) == [("PENDING", 1), ("RUNNING", 0)]
    assert sorted(map(fleet.world.slurm.signals, jobs)) == [(), ("USR1",)]
    assert len(fleet.owned(Owner.KUBERNETES)) == 2


@pytest.mark.parametrize("seed", range(12))
def test_on_a_day_of_broken_calls_nobody_is_ended_but_victims_and_each_once(seed: int) -> None:
    """``OnlyVictims``, with jobs of every temper, admins, dying brokers and calls that arrive late."""
    rng = random.Random(seed)
    fleet = Fleet(seed, nodes=6, exact=False, min_hold_s=60)
    fleet.settle()
    fleet.world.faults.chaos(rng, rate=0.05, kinds=(*SURVIVABLE, When.CRASH_BEFORE, When.CRASH_AFTER))
    jobs: list[int] = []
    chosen = 0
    for _ in range(25):
        tempers = {"may_requeue": rng.random() < 0.8, "exits_on_signal": rng.random() < 0.3}
        jobs.append(fleet.sbatch(nodes=rng.choice([1, 2, 3]), runs_s=rng.uniform(60, 600), **tempers))
        fleet.run_for(rng.uniform(5, 60))
        chosen += _preempt_one(fleet, rng, jobs)
        if rng.random() < 0.1:
            fleet.world.slurm.admin_resume(rng.choice(fleet.world.nodes).slurm_name)
    fleet.world.faults.calm()
    fleet.run_until(lambda: not fleet.ledger.read().handoffs, "every handoff has ended", within_s=3600)
    assert chosen >= 2
    assert not fleet.world.oracle.violations


def _preempt_one(fleet: Fleet, rng: random.Random, jobs: list[int]) -> bool:
    """Choose a job at random whose nodes are all at rest with Slurm, if there is one and somebody leads."""
    at_rest = set(fleet.owned(Owner.SLURM))
    shown = [fleet.world.slurm.job(job) for job in jobs]
    may_go = [job for job in shown if job.state == "RUNNING" and at_rest.issuperset(job.nodes)]
    if not may_go or fleet.ledger.leader() is None:
        return False
    preempt(fleet, rng.choice(may_go).id, grace_s=rng.choice([0.0, 2.0, 20.0]))
    return True
