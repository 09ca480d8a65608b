"""What the simulated Slurm does, fact by fact as a real Slurm was seen to do it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bridge.model.errors import CallFailed, InvariantViolation, Unreadable
from bridge.model.ownership import Mark, Side
from bridge.model.slurm import SlurmJob
from bridge.simulation.slurm import JobRequest, SimulatedSlurm
from bridge.simulation.world import World

MARK = Mark("lease0001", 1, 7)
POOL = "bridge-shared"
ALL = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")


@pytest.fixture
def world() -> World:
    """One in which Kubernetes is out of the way: its side of every node is closed."""
    world = World(seed=1, exact=True)
    for node in world.nodes:
        world.kube.cluster.set_taint(node.kube_name, "elsewhere")
    return world


@pytest.fixture
def slurm(world: World) -> SimulatedSlurm:
    return world.slurm


def states(slurm: SimulatedSlurm, node: str = "gpu-1") -> frozenset[str]:
    return slurm.observe().nodes[node].states


def close(slurm: SimulatedSlurm, *nodes: str) -> None:
    slurm.drain(nodes, MARK, "lent to kubernetes")
    slurm.hold(nodes, POOL)


def run_job(world: World, request: JobRequest) -> int:
    job = world.slurm.submit(request)
    world.run(world.clock.monotonic_s() + 1)
    assert world.slurm.job(job).state == "RUNNING"
    return job


# --- drain and resume ---


def test_a_fresh_node_is_idle_and_nothing_else(slurm: SimulatedSlurm) -> None:
    seen = slurm.observe()
    assert {node.states for node in seen.nodes.values()} == {frozenset({"IDLE"})}
    assert seen.held == frozenset()


def test_drain_writes_the_mark_the_calling_user_and_whole_seconds(world: World, slurm: SimulatedSlurm) -> None:
    world.clock.advance(1.7)
    slurm.drain(["gpu-1"], MARK, "lent to kubernetes")
    node = slurm.observe().nodes["gpu-1"]
    assert node.states == {"IDLE", "DRAIN"}
    assert Mark.parse(node.reason) == MARK
    assert node.reason_user == "bridge"
    assert node.reason_set_at == (world.clock.now() - timedelta(seconds=0.7))


def test_the_same_drain_again_changes_nothing(world: World, slurm: SimulatedSlurm) -> None:
    slurm.drain(["gpu-1"], MARK, "x")
    before = slurm.observe().nodes["gpu-1"]
    world.clock.advance(10)
    slurm.drain(["gpu-1"], MARK, "x")
    assert slurm.observe().nodes["gpu-1"] == before


def test_a_node_with_jobs_is_draining_not_drained(world: World, slurm: SimulatedSlurm) -> None:
    job = run_job(world, JobRequest(duration_s=100))
    slurm.drain(["gpu-1"], MARK, "x")
    assert states(slurm) == {"ALLOCATED", "DRAIN"}
    world.run(200)
    assert slurm.job(job).state == "COMPLETED"
    assert states(slurm) == {"IDLE", "DRAIN"}


def test_a_node_that_is_partly_used_is_mixed(world: World, slurm: SimulatedSlurm) -> None:
    run_job(world, JobRequest(gpus_per_node=2))
    slurm.drain(["gpu-1"], MARK, "x")
    assert states(slurm) == {"MIXED", "DRAIN"}
    assert slurm.observe().nodes["gpu-1"].gpus_used == 2


def test_draining_an_already_drained_node_overwrites_the_reason(slurm: SimulatedSlurm) -> None:
    slurm.drain(["gpu-1"], MARK, "x")
    slurm.admin_drain("gpu-1", "fan broken", user="root")
    node = slurm.observe().nodes["gpu-1"]
    assert (node.reason, node.reason_user) == ("fan broken", "root")


def test_the_bridge_destroying_an_admins_drain_it_was_shown_is_not_ours(slurm: SimulatedSlurm) -> None:
    slurm.admin_drain("gpu-1", "fan broken")
    slurm.observe()
    with pytest.raises(InvariantViolation, match=r"NotOurs: .*'fan broken' on gpu-1"):
        slurm.drain(["gpu-1"], MARK, "x")


def test_the_bridge_lifting_an_admins_drain_it_was_shown_is_not_ours(slurm: SimulatedSlurm) -> None:
    close(slurm, "gpu-1")
    slurm.admin_drain("gpu-1", "fan broken")
    slurm.observe()
    with pytest.raises(InvariantViolation, match="NotOurs"):
        slurm.resume(["gpu-1"])


def test_a_drain_that_came_after_the_last_look_could_not_be_heeded(world: World, slurm: SimulatedSlurm) -> None:
    slurm.observe()
    slurm.admin_drain("gpu-1", "fan broken")
    slurm.drain(["gpu-1"], MARK, "x")
    assert world.oracle.violations == []


def test_a_late_drain_is_judged_by_what_was_known_when_it_was_sent(world: World, slurm: SimulatedSlurm) -> None:
    slurm.observe()
    world.faults.fail_next("drain", when="late", delay_s=3)
    with pytest.raises(CallFailed):
        slurm.drain(["gpu-1"], MARK, "x")
    slurm.admin_drain("gpu-1", "fan broken")
    slurm.observe()
    world.clock.advance(3)
    assert Mark.parse(slurm.observe().nodes["gpu-1"].reason) == MARK
    assert world.oracle.violations == []


def test_slurms_own_drain_is_lost_under_ours(slurm: SimulatedSlurm) -> None:
    slurm.drain(["gpu-1"], MARK, "x")
    slurm.slurm_drains("gpu-1", "Kill task failed")
    assert Mark.parse(slurm.observe().nodes["gpu-1"].reason) == MARK


def test_resume_clears_anybodys_drain(world: World, slurm: SimulatedSlurm) -> None:
    slurm.admin_drain("gpu-1", "fan broken", user="root")
    slurm.admin_resume("gpu-1", user="somebody")
    world.run(2)
    assert states(slurm) == {"IDLE"}


def test_the_reason_stays_after_resume_until_a_job_starts(world: World, slurm: SimulatedSlurm) -> None:
    slurm.drain(["gpu-1"], MARK, "x")
    slurm.resume(["gpu-1"])
    world.run(2)
    assert Mark.parse(slurm.observe().nodes["gpu-1"].reason) == MARK
    run_job(world, JobRequest(nodes=4))
    assert slurm.observe().nodes["gpu-1"].reason == ""


def test_a_resumed_node_does_not_respond_for_a_moment(world: World, slurm: SimulatedSlurm) -> None:
    close(slurm, "gpu-1")
    slurm.resume(["gpu-1"])
    assert "NOT_RESPONDING" in states(slurm)
    world.clock.advance(0.3)
    assert "NOT_RESPONDING" in states(slurm)
    world.clock.advance(0.7)
    assert states(slurm) == {"IDLE", "MAINTENANCE", "RESERVED"}


def test_resume_of_an_open_node_does_nothing(slurm: SimulatedSlurm) -> None:
    slurm.resume(["gpu-1"])
    assert states(slurm) == {"IDLE"}


# --- the reservation, the second latch ---


def test_resume_inside_the_reservation_does_not_open(world: World, slurm: SimulatedSlurm) -> None:
    close(slurm, *ALL)
    job = slurm.submit(JobRequest())
    slurm.admin_resume("gpu-1")
    world.run(60)
    assert slurm.job(job).state == "PENDING"
    assert slurm.job(job).waits_for == "ReqNodeNotAvail"
    assert slurm.observe().held == set(ALL)


def test_a_gang_starts_whole_after_the_one_release(world: World, slurm: SimulatedSlurm) -> None:
    close(slurm, *ALL)
    gang = slurm.submit(JobRequest(nodes=3))
    small = slurm.submit(JobRequest(nodes=1, priority=10))
    slurm.resume(ALL)
    world.run(5)
    assert (slurm.job(gang).state, slurm.job(small).state) == ("PENDING", "PENDING")
    slurm.release(ALL[:3], POOL)
    world.run(6)
    assert slurm.job(gang).nodes == ALL[:3]
    assert slurm.job(small).state == "PENDING"
    assert slurm.observe().held == {"gpu-4"}


def test_nodes_resumed_one_by_one_are_taken_by_smaller_jobs(world: World, slurm: SimulatedSlurm) -> None:
    """S9: without the reservation the gang waits for good."""
    slurm.drain(ALL, MARK, "x")
    gang = slurm.submit(JobRequest(nodes=3))
    for priority in (1, 2, 3):
        slurm.submit(JobRequest(nodes=1, priority=priority))
    for node in ALL[:3]:
        slurm.resume([node])
        world.run(world.clock.monotonic_s() + 5)
    assert slurm.job(gang).state == "PENDING"
    assert all("ALLOCATED" in states(slurm, node) for node in ALL[:3])


def test_a_reservation_around_running_jobs_ignores_them(world: World, slurm: SimulatedSlurm) -> None:
    job = run_job(world, JobRequest(duration_s=100))
    slurm.hold(["gpu-1"], POOL)
    world.run(50)
    assert slurm.job(job).state == "RUNNING"
    assert states(slurm) == {"ALLOCATED", "MAINTENANCE", "RESERVED"}


def test_an_admins_reservation_blocks_and_is_not_counted_as_ours(world: World, slurm: SimulatedSlurm) -> None:
    slurm.admin_reserve("maintenance-march", ["gpu-1"])
    job = slurm.submit(JobRequest(nodes=4))
    world.run(5)
    assert slurm.job(job).state == "PENDING"
    assert slurm.observe().held == frozenset()
    assert {"MAINTENANCE", "RESERVED"} <= states(slurm)


def test_hold_and_release_are_idempotent(slurm: SimulatedSlurm) -> None:
    for _ in range(2):
        slurm.hold(["gpu-1", "gpu-2"], POOL)
    assert slurm.observe().held == {"gpu-1", "gpu-2"}
    for _ in range(2):
        slurm.release(["gpu-1", "gpu-2"], POOL)
    assert slurm.observe().held == frozenset()


def test_a_reservation_call_on_somebody_elses_reservation_is_not_ours(slurm: SimulatedSlurm) -> None:
    with pytest.raises(InvariantViolation, match="NotOurs"):
        slurm.release(["gpu-1"], "maintenance-march")


def test_an_unknown_node_is_refused_before_anything_happens(slurm: SimulatedSlurm) -> None:
    with pytest.raises(CallFailed, match="gpu-9"):
        slurm.drain(["gpu-1", "gpu-9"], MARK, "x")
    assert states(slurm) == {"IDLE"}


# --- jobs ---


def test_higher_priority_first_then_first_come(world: World, slurm: SimulatedSlurm) -> None:
    later = slurm.submit(JobRequest(nodes=4, duration_s=10))
    urgent = slurm.submit(JobRequest(nodes=4, duration_s=10, priority=5000))
    last = slurm.submit(JobRequest(nodes=4, duration_s=10))
    world.run(40)
    order = [start.work for start in world.oracle.starts(Side.SLURM, "gpu-1")]
    assert order == [f"job {urgent}", f"job {later}", f"job {last}"]


def test_a_small_job_runs_behind_a_gang_that_does_not_fit(world: World, slurm: SimulatedSlurm) -> None:
    run_job(world, JobRequest(nodes=2))
    gang = slurm.submit(JobRequest(nodes=3))
    small = slurm.submit(JobRequest(nodes=2, priority=1))
    third = slurm.submit(JobRequest(nodes=1, priority=1))
    world.run(5)
    assert slurm.job(gang).waits_for == "Resources"
    assert slurm.job(small).state == "RUNNING"
    assert slurm.job(third).waits_for == "Priority"


def test_a_gang_larger_than_the_partition_says_so(world: World, slurm: SimulatedSlurm) -> None:
    job = slurm.submit(JobRequest(nodes=5))
    world.run(2)
    assert slurm.job(job).waits_for == "PartitionNodeLimit"


def test_idle_nodes_are_planned_for_a_gang_that_will_fit(world: World, slurm: SimulatedSlurm) -> None:
    run_job(world, JobRequest(nodes=2))
    slurm.submit(JobRequest(nodes=3))
    world.run(5)
    assert states(slurm, "gpu-3") == {"IDLE", "PLANNED"}


def test_a_job_that_is_over_is_completing_until_its_processes_are_gone(world: World, slurm: SimulatedSlurm) -> None:
    """S10: the epilog hangs; nothing but the COMPLETING flag tells it from an idle node."""
    job = run_job(world, JobRequest(duration_s=10, dying_s=30))
    slurm.drain(["gpu-1"], MARK, "x")
    world.run(20)
    assert slurm.job(job).state == "COMPLETING"
    assert states(slurm) == {"IDLE", "DRAIN", "COMPLETING"}
    assert len(world.machines.running("gpu-1")) == 1
    world.run(60)
    assert states(slurm) == {"IDLE", "DRAIN"}
    assert world.machines.running("gpu-1") == ()


def test_a_child_that_left_its_session_outlives_its_job_unseen(world: World, slurm: SimulatedSlurm) -> None:
    run_job(world, JobRequest(duration_s=10, orphan_s=100))
    world.run(20)
    assert slurm.observe().jobs == ()
    assert states(slurm) == {"IDLE"}
    assert len(world.machines.running("gpu-1")) == 1
    world.run(150)
    assert world.machines.running("gpu-1") == ()


def test_cancel_ends_pending_and_running_jobs(world: World, slurm: SimulatedSlurm) -> None:
    running = run_job(world, JobRequest(nodes=4))
    pending = slurm.submit(JobRequest())
    slurm.cancel(pending)
    slurm.cancel(running)
    assert slurm.job(running).state == "COMPLETING"
    world.run(10)
    assert {slurm.job(running).state, slurm.job(pending).state} == {"CANCELLED"}
    assert slurm.observe().jobs == ()


def test_a_requeued_job_is_held_back_for_two_minutes(world: World, slurm: SimulatedSlurm) -> None:
    job = run_job(world, JobRequest())
    slurm.user_requeue(job)
    world.run(60)
    assert (slurm.job(job).state, slurm.job(job).waits_for) == ("PENDING", "BeginTime")
    world.run(130)
    assert slurm.job(job).state == "RUNNING"


def test_requeue_is_refused_for_a_job_that_forbids_it(world: World, slurm: SimulatedSlurm) -> None:
    job = run_job(world, JobRequest(may_requeue=False))
    with pytest.raises(CallFailed, match="may not be requeued"):
        slurm.user_requeue(job)


def test_a_held_job_waits_until_it_is_let_go(world: World, slurm: SimulatedSlurm) -> None:
    job = slurm.submit(JobRequest(held=True))
    world.run(5)
    assert (slurm.job(job).waits_for, slurm.job(job).held) == ("JobHeldUser", True)
    slurm.let_go(job)
    world.run(10)
    assert slurm.job(job).state == "RUNNING"


def test_a_suspended_job_leaves_the_node_idle_and_its_processes_there(world: World, slurm: SimulatedSlurm) -> None:
    job = run_job(world, JobRequest())
    slurm.suspend(job)
    assert states(slurm) == {"IDLE"}
    assert [seen.state for seen in slurm.observe().jobs] == ["SUSPENDED"]
    assert len(world.machines.running("gpu-1")) == 1


def test_the_prolog_fence_refuses_a_job_and_leaves_the_node_idle(world: World, slurm: SimulatedSlurm) -> None:
    slurm.fence = frozenset({"gpu-1"})
    requeued = slurm.submit(JobRequest(nodes=4))
    cancelled = slurm.submit(JobRequest(nodes=4, may_requeue=False))
    world.run(5)
    assert slurm.job(requeued).state == "PENDING"
    assert not slurm.job(requeued).held
    assert slurm.job(cancelled).state == "CANCELLED"
    assert states(slurm) == {"IDLE"}
    assert world.oracle.evidence == []


# --- arrays and het jobs ---


def shown(slurm: SimulatedSlurm, job: int) -> SlurmJob:
    return next(each for each in slurm.observe().jobs if each.id == job)


def test_a_pending_array_is_one_record_and_each_task_that_starts_another(world: World, slurm: SimulatedSlurm) -> None:
    array = slurm.submit(JobRequest(tasks=6, duration_s=100))
    assert (len(slurm.observe().jobs), shown(slurm, array).task_count) == (1, 6)
    world.run(5)
    seen = {job.id: job for job in slurm.observe().jobs}
    assert (seen[array].state, seen[array].task_count, seen[array].array) == ("PENDING", 2, array)
    assert sorted(job.nodes for job in seen.values() if job.nodes) == [(node,) for node in ALL]
    assert {job.array for job in seen.values()} == {array}
    world.run(130)
    assert slurm.job(array).state == "RUNNING", "the last task keeps the id of the array"


def test_a_throttled_array_runs_as_many_tasks_as_it_may(world: World, slurm: SimulatedSlurm) -> None:
    array = slurm.submit(JobRequest(tasks=10, tasks_at_once=2))
    assert shown(slurm, array).task_count == 2
    world.run(5)
    assert (shown(slurm, array).task_count, shown(slurm, array).waits_for) == (0, "JobArrayTaskLimit")
    assert sum(bool(job.nodes) for job in slurm.observe().jobs) == 2


def test_the_components_of_a_het_job_start_together(world: World, slurm: SimulatedSlurm) -> None:
    busy = run_job(world, JobRequest(nodes=2, duration_s=30))
    leader = slurm.submit_het(JobRequest(nodes=1), JobRequest(nodes=2, gpus_per_node=4))
    world.run(10)
    seen = [job for job in slurm.observe().jobs if job.het_job == leader]
    assert [(job.id, job.state, job.waits_for) for job in seen] == [
        (leader, "PENDING", "Resources"),
        (leader + 1, "PENDING", "Resources"),
    ]
    slurm.cancel(busy)
    world.run(20)
    seen = [job for job in slurm.observe().jobs if job.het_job == leader]
    assert [len(job.nodes) for job in seen] == [1, 2]
    assert len({node for job in seen for node in job.nodes}) == 3
    slurm.cancel(leader)
    assert {job.state for job in slurm.observe().jobs} == {"COMPLETING"}


# --- a slurm.conf that changes ---


def test_a_node_that_leaves_slurm_conf_takes_its_marks_with_it(world: World, slurm: SimulatedSlurm) -> None:
    job = run_job(world, JobRequest(nodes=4))
    close(slurm, "gpu-1", "gpu-2")
    slurm.remove_node("gpu-1")
    with pytest.raises(Unreadable):
        slurm.observe()
    world.run(10)
    seen = slurm.observe()
    assert set(seen.nodes) == {"gpu-2", "gpu-3", "gpu-4"}
    assert seen.held == {"gpu-2"}
    assert slurm.job(job).state == "NODE_FAIL"
    assert len(world.machines.running("gpu-1")) == 1, "nobody told its slurmd"
    with pytest.raises(CallFailed, match="gpu-1"):
        slurm.drain(["gpu-1"], MARK, "x")
    slurm.put_node_back("gpu-1")
    world.run(20)
    assert states(slurm) == {"IDLE"}
    assert slurm.observe().nodes["gpu-1"].reason == ""
    assert world.machines.running("gpu-1") == ()


def test_a_drain_without_a_reason_keeps_the_old_one(world: World, slurm: SimulatedSlurm) -> None:
    slurm.drain(["gpu-1"], MARK, "lent")
    before = slurm.observe().nodes["gpu-1"]
    slurm.resume(["gpu-1"])
    world.run(5)
    slurm.admin_drain("gpu-1", "")
    after = slurm.observe().nodes["gpu-1"]
    assert "DRAIN" in after.states
    assert (after.reason, after.reason_user, after.reason_set_at) == (
        before.reason,
        before.reason_user,
        before.reason_set_at,
    )


# --- what breaks ---


def test_a_lost_slurmd_is_noticed_late_and_its_processes_run_on(world: World, slurm: SimulatedSlurm) -> None:
    job = run_job(world, JobRequest(duration_s=10_000))
    slurm.lose_slurmd("gpu-1")
    world.run(10)
    assert states(slurm) == {"ALLOCATED"}
    world.run(40)
    assert states(slurm) == {"ALLOCATED", "NOT_RESPONDING"}
    world.run(310)
    assert {"DOWN", "NOT_RESPONDING"} <= states(slurm)
    assert slurm.job(job).state == "PENDING"
    assert len(world.machines.running("gpu-1")) == 1


def test_a_slurmd_that_returns_kills_what_it_missed_and_registers(world: World, slurm: SimulatedSlurm) -> None:
    run_job(world, JobRequest(duration_s=10_000))
    slurm.lose_slurmd("gpu-1")
    world.run(310)
    slurm.return_slurmd("gpu-1")
    assert world.machines.running("gpu-1") == ()
    world.run(312)
    assert states(slurm) == {"IDLE"}


def test_slurm_appends_its_own_words_to_our_reason(world: World, slurm: SimulatedSlurm) -> None:
    """S4: ours is still recognised behind them."""
    slurm.drain(["gpu-1"], MARK, "lent")
    slurm.lose_slurmd("gpu-1")
    world.run(310)
    reason = slurm.observe().nodes["gpu-1"].reason
    assert reason == f"{MARK} lent : Not responding"
    assert Mark.parse(reason) == MARK


def test_a_dead_machine_starts_no_process_though_slurm_starts_a_job(world: World, slurm: SimulatedSlurm) -> None:
    world.power_off("gpu-1")
    job = slurm.submit(JobRequest(nodes=4))
    world.run(5)
    assert slurm.job(job).state == "RUNNING"
    assert world.machines.running("gpu-1") == ()


@pytest.mark.parametrize("flag", ["POWERED_DOWN", "FAIL", "INVALID_REG", "REBOOT_ISSUED"])
def test_a_node_with_an_odd_flag_starts_no_job(world: World, slurm: SimulatedSlurm, flag: str) -> None:
    slurm.set_flags("gpu-1", {flag})
    job = slurm.submit(JobRequest(nodes=4))
    world.run(5)
    assert slurm.job(job).state == "PENDING"
    assert states(slurm) == {"IDLE", flag}


def test_a_node_that_has_just_registered_looks_as_if_it_had_no_gpu(world: World, slurm: SimulatedSlurm) -> None:
    slurm.forget_gres("gpu-1", for_s=60)
    assert slurm.observe().nodes["gpu-1"].gpus == 0
    world.run(61)
    assert slurm.observe().nodes["gpu-1"].gpus == 8


def test_a_restarting_slurmctld_is_unreadable_and_refuses_writes(world: World, slurm: SimulatedSlurm) -> None:
    slurm.restart_controller(away_s=2)
    with pytest.raises(Unreadable):
        slurm.observe()
    with pytest.raises(CallFailed):
        slurm.drain(["gpu-1"], MARK, "x")
    world.run(3)
    assert states(slurm) == {"IDLE"}


def test_right_after_its_restart_slurmctld_tells_old_news(world: World, slurm: SimulatedSlurm) -> None:
    """The node looks drained and idle although a job's processes are still there: only the start time warns."""
    run_job(world, JobRequest(duration_s=5, dying_s=60))
    slurm.drain(["gpu-1"], MARK, "x")
    world.run(6)
    assert "COMPLETING" in states(slurm)
    slurm.restart_controller(away_s=2)
    world.run(9)
    seen = slurm.observe()
    assert seen.nodes["gpu-1"].states == {"IDLE", "DRAIN"}
    assert seen.jobs == ()
    assert seen.controller_up_s is not None
    assert seen.controller_up_s < 8
    world.run(20)
    assert "COMPLETING" in states(slurm)


def test_both_latches_survive_a_restart_but_not_the_loss_of_the_state(world: World, slurm: SimulatedSlurm) -> None:
    close(slurm, "gpu-1")
    slurm.restart_controller()
    world.run(10)
    assert states(slurm) == {"IDLE", "DRAIN", "MAINTENANCE", "RESERVED"}
    world.lose_slurm_state()
    world.run(20)
    assert states(slurm) == {"IDLE"}
    assert slurm.observe().held == frozenset()
