"""The oracle sees what happens without a bridge; the loop runs a broker between events; a seed is a whole run."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bridge.model.errors import InvariantViolation
from bridge.model.ownership import Mark, Side
from bridge.simulation.cluster import Deployment
from bridge.simulation.faults import Crash
from bridge.simulation.slurm import JobRequest
from bridge.simulation.workload import Day, Deploy, Scale, Submit, small_day, traffic
from bridge.simulation.world import World

MARK = Mark("lease0001", 1, 7)
CHAT = Deployment("chat", replicas=1)
NODE = "gpu-1"


@pytest.fixture
def world() -> World:
    return World(seed=1, nodes=1, exact=True)


# --- the oracle ---


def test_without_a_bridge_both_sides_start_on_one_node(world: World) -> None:
    world.play([Submit(1, JobRequest()), Deploy(5, CHAT)])
    with pytest.raises(InvariantViolation, match=r"OneOwner: .*pod default/chat-1 on gpu-1, where .*job 1"):
        world.run(60)


def test_the_hazard_can_be_watched_rather_than_raised() -> None:
    world = World(seed=1, nodes=1, strict=False)
    world.play([Submit(1, JobRequest(duration_s=20)), Deploy(5, CHAT), Scale(40, CHAT.key, 0)])
    world.run(10)
    assert world.oracle.double_booked() == (NODE,)
    world.run(60)
    assert world.oracle.double_booked() == ()
    assert [violation.invariant for violation in world.oracle.violations] == ["OneOwner"]


def test_work_of_one_side_after_the_other_is_no_violation_and_is_all_in_evidence(world: World) -> None:
    world.play(
        [Submit(1, JobRequest(duration_s=10)), Deploy(30, CHAT), Scale(60, CHAT.key, 0), Submit(90, JobRequest())]
    )
    world.run(120)
    assert [(start.side, start.work, start.others) for start in world.oracle.evidence] == [
        (Side.SLURM, "job 1", ()),
        (Side.KUBERNETES, "pod default/chat-1", ()),
        (Side.SLURM, "job 2", ()),
    ]


def test_a_process_that_outlived_its_job_counts(world: World) -> None:
    world.play([Submit(1, JobRequest(duration_s=10, orphan_s=100)), Deploy(30, CHAT)])
    with pytest.raises(InvariantViolation, match="OneOwner"):
        world.run(60)


def test_a_node_that_was_closed_once_must_never_again_be_open_to_both(world: World) -> None:
    world.slurm.drain([NODE], MARK, "x")
    world.slurm.hold([NODE], "bridge-shared")
    world.check()
    world.slurm.resume([NODE])
    world.check()
    world.slurm.release([NODE], "bridge-shared")
    with pytest.raises(InvariantViolation, match="both sides are open on gpu-1"):
        world.check()


def test_a_story_that_takes_the_latches_away_by_force_is_excused_while_nothing_starts_twice(world: World) -> None:
    world.slurm.drain([NODE], MARK, "x")
    world.check()
    world.lose_slurm_state()
    world.run(10)
    assert world.slurm.open(NODE)


def test_a_dead_machine_runs_nothing_and_comes_back_clean(world: World) -> None:
    world.play([Submit(1, JobRequest(duration_s=10_000))])
    world.run(5)
    world.power_off(NODE)
    assert world.machines.running(NODE) == ()
    world.run(400)
    assert not world.kube.observe().nodes["gpu-1.testbed"].ready
    assert "DOWN" in world.slurm.observe().nodes[NODE].states
    world.power_on(NODE)
    world.run(410)
    assert world.kube.observe().nodes["gpu-1.testbed"].gpus_allocatable == 8
    assert world.slurm.observe().nodes[NODE].states == {"IDLE"}


# --- the loop ---


def test_a_step_is_called_again_when_it_said_so(world: World) -> None:
    called: list[float] = []

    def step() -> float:
        called.append(world.clock.monotonic_s())
        return 2.0

    world.run(7, step)
    assert called == pytest.approx([0, 2, 4, 6], abs=0.02)


def test_a_ring_wakes_a_step_that_would_have_slept(world: World) -> None:
    called: list[float] = []
    world.at(10, lambda: world.kube.cluster.cordon("gpu-1.testbed"))
    world.run(20, lambda: called.append(world.clock.monotonic_s()))
    assert called[-1] == pytest.approx(10.01)


def test_a_step_that_rings_its_own_bell_does_not_stop_time(world: World) -> None:
    world.run(1, lambda: world.ring())
    assert world.clock.monotonic_s() == 1


def test_a_crashed_broker_lives_again_after_a_while(world: World) -> None:
    lives: list[tuple[str, float]] = []

    def life(name: str) -> Callable[[], float]:
        def step() -> float:
            lives.append((name, world.clock.monotonic_s()))
            if name == "first":
                raise Crash("slurm.drain")
            return 100.0

        return step

    world.run(10, life("first"), restart=lambda: life("second"), restart_s=3)
    assert lives == [("first", 0), ("second", 3)]


def test_a_crash_without_a_next_life_ends_the_run(world: World) -> None:
    world.faults.fail_next("observe", when="crash_before")
    with pytest.raises(Crash):
        world.run(10, lambda: bool(world.slurm.observe()) and 1.0)


def test_run_stops_when_its_condition_holds_and_says_whether_it_does(world: World) -> None:
    world.play([Submit(1, JobRequest())])
    assert world.run(60, stop_when=lambda: bool(world.machines.running(NODE)))
    assert world.clock.monotonic_s() < 3
    assert not world.run(10, stop_when=lambda: False)


def test_the_demo_sleeps_real_time_through_its_sleeper(world: World) -> None:
    slept: list[float] = []
    world.run(100, lambda: 10.0, speed=50, sleeper=slept.append)
    assert sum(slept) == pytest.approx(2)


# --- seeds and days ---


def run_day(seed: int) -> list[str]:
    world = World(seed, strict=False)
    world.play(small_day(world.rng, Day(length_s=3600)))
    world.run(3600)
    return [str(start) for start in world.oracle.evidence]


def test_a_run_is_a_function_of_its_seed() -> None:
    assert run_day(7) == run_day(7)
    assert run_day(7) != run_day(8)


def test_two_seeds_differ_in_their_latencies_too() -> None:
    def first_start(seed: int) -> float:
        world = World(seed)
        world.play([Submit(1, JobRequest())])
        world.run(5)
        return world.oracle.evidence[0].at_s

    assert first_start(1) != first_start(2)


@pytest.mark.parametrize("seed", range(5))
def test_a_small_day_is_in_order_fits_the_pool_and_follows_the_sun(seed: int) -> None:
    day = Day(nodes=4)
    wishes = small_day(random.Random(seed), day)
    assert [wish.at_s for wish in wishes] == sorted(wish.at_s for wish in wishes)
    jobs = [wish.job for wish in wishes if isinstance(wish, Submit)]
    assert len(jobs) == day.jobs
    assert {job.nodes for job in jobs} <= {1, 2, 3}
    scalings = [wish for wish in wishes if isinstance(wish, Scale)]
    assert {wish.replicas for wish in scalings} <= set(range(4))
    busiest = max(scalings, key=lambda wish: wish.replicas)
    assert 8 / 24 < busiest.at_s / day.length_s < 22 / 24


def test_traffic_is_lowest_at_three_in_the_morning_and_highest_at_three_in_the_afternoon() -> None:
    assert traffic(3 / 24) == pytest.approx(0)
    assert traffic(15 / 24) == pytest.approx(1)
    assert traffic(9 / 24) == pytest.approx(0.5)


def test_the_worlds_policy_names_its_own_nodes(world: World) -> None:
    pool = world.policy(min_hold_s=5).pools[0]
    assert pool.nodes == (NODE,)
    assert pool.kube_name.format(node=NODE) == world.nodes[0].kube_name
    assert pool.min_hold_s == 5
