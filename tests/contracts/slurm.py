"""What every `SlurmPort` must do, whether simulated or real. Subclass `SlurmPortContract` and give it a `world`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest

from bridge.model.errors import CallFailed
from bridge.model.ownership import Mark
from bridge.model.slurm import SlurmJob
from bridge.ports import SlurmPort

_T = TypeVar("_T")

MARK = Mark("contract1", 3, 41)
LATER = Mark("contract2", 3, 42)


class SlurmWorld(Protocol):
    """A Slurm whose shared nodes (three or more, of eight GPUs) are idle, open and undrained; and its levers."""

    slurm: SlurmPort
    nodes: tuple[str, ...]
    reservation: str

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        """Let time pass until `check` gives something truthy; fail with `what` when it never does."""
        ...

    def settle(self) -> None:
        """Let so much time pass that Slurm would have started whatever it can start."""
        ...

    def submit(self, nodes: int, *, requeue: bool = True, exits_on_signal: bool = False) -> int:
        """An sbatch for `nodes` whole nodes with 8 GPUs each, which runs until it is cancelled; the job's id.

        With `exits_on_signal` its batch script catches USR1 and ends well soon after.
        """
        ...

    def cancel(self, job: int) -> None: ...

    def admin_drain(self, node: str, reason: str) -> None: ...

    def admin_resume(self, node: str) -> None: ...


class SlurmPortContract:
    """The tests. `world` is to be overridden by the subclass."""

    @pytest.fixture
    def world(self) -> SlurmWorld:
        raise NotImplementedError

    # --- observing ---

    def test_idle_nodes_with_their_gpus(self, world: SlurmWorld) -> None:
        seen = world.slurm.observe()
        for name in world.nodes:
            node = seen.nodes[name]
            assert (node.states, node.gpus, node.gpus_used) == ({"IDLE"}, 8, 0)
        assert not seen.held & set(world.nodes)
        assert seen.controller_up_s is not None
        assert seen.controller_up_s >= 0

    def test_a_running_gang_holds_its_nodes_until_it_is_gone(self, world: SlurmWorld) -> None:
        id = world.submit(2)
        job = world.until("gang runs", lambda: _job(world, id, "RUNNING"))
        assert len(job.nodes) == 2
        assert (job.node_count, job.gpus_per_node) == (2, 8)
        nodes = world.slurm.observe().nodes
        assert all("IDLE" not in nodes[name].states and nodes[name].gpus_used == 8 for name in job.nodes)
        world.cancel(id)
        world.until("nodes idle again", lambda: _all_idle(world))
        assert all(id != found.id or not found.nodes for found in world.slurm.observe().jobs)

    def test_a_gang_that_waits_is_shown_with_what_it_asks(self, world: SlurmWorld) -> None:
        world.slurm.drain(world.nodes[:1], MARK, "test")
        id = world.submit(len(world.nodes))
        world.settle()
        job = _job(world, id, "PENDING")
        assert job is not None
        assert (job.node_count, job.gpus_per_node, job.nodes) == (len(world.nodes), 8, ())
        assert not job.held
        assert job.submitted_at is not None

    # --- the first latch ---

    def test_a_drain_carries_the_mark_its_user_and_a_time(self, world: SlurmWorld) -> None:
        world.slurm.drain(world.nodes[:2], MARK, "lent to kubernetes, for job 7")
        for name in world.nodes[:2]:
            node = world.slurm.observe().nodes[name]
            assert "DRAIN" in node.states
            assert node.reason == f"{MARK} lent to kubernetes, for job 7"
            assert Mark.parse(node.reason) == MARK
            assert node.reason_user
            assert node.reason_set_at is not None
        assert "DRAIN" not in world.slurm.observe().nodes[world.nodes[2]].states

    def test_a_drain_twice_is_a_drain_and_a_later_mark_replaces_ours(self, world: SlurmWorld) -> None:
        for mark in (MARK, MARK, LATER):
            world.slurm.drain(world.nodes[:1], mark, "test")
        node = world.slurm.observe().nodes[world.nodes[0]]
        assert "DRAIN" in node.states
        assert Mark.parse(node.reason) == LATER

    def test_nothing_starts_on_a_drained_node(self, world: SlurmWorld) -> None:
        world.slurm.drain(world.nodes[:1], MARK, "test")
        id = world.submit(len(world.nodes))
        world.settle()
        assert _job(world, id, "PENDING")
        assert "IDLE" in world.slurm.observe().nodes[world.nodes[0]].states

    def test_a_drain_leaves_a_running_job_alone_and_the_node_is_not_idle(self, world: SlurmWorld) -> None:
        id = world.submit(len(world.nodes))
        world.until("gang runs", lambda: _job(world, id, "RUNNING"))
        world.slurm.drain(world.nodes, MARK, "test")
        world.slurm.hold(world.nodes, world.reservation)
        world.settle()
        job, seen = _job(world, id, "RUNNING"), world.slurm.observe()
        assert job is not None
        assert set(job.nodes) == set(world.nodes)
        assert set(world.nodes) <= seen.held
        for name in world.nodes:
            assert "DRAIN" in seen.nodes[name].states
            assert "IDLE" not in seen.nodes[name].states

    def test_resume_lifts_the_drain_and_is_no_error_when_there_is_none(self, world: SlurmWorld) -> None:
        world.slurm.drain(world.nodes[:1], MARK, "test")
        for _ in range(2):
            world.slurm.resume(world.nodes[:2])
            assert "DRAIN" not in world.slurm.observe().nodes[world.nodes[0]].states
        world.until("responding", lambda: _all_idle(world))

    # --- the second latch ---

    def test_hold_adds_up_and_may_be_repeated(self, world: SlurmWorld) -> None:
        first, second = world.nodes[:1], world.nodes[1:2]
        world.slurm.hold(first, world.reservation)
        assert world.slurm.observe().held & set(world.nodes) == set(first)
        for _ in range(2):
            world.slurm.hold((*first, *second), world.reservation)
            assert world.slurm.observe().held & set(world.nodes) == {*first, *second}

    def test_nothing_starts_on_a_held_node_that_is_not_drained(self, world: SlurmWorld) -> None:
        world.slurm.hold(world.nodes[:1], world.reservation)
        id = world.submit(len(world.nodes))
        world.settle()
        assert _job(world, id, "PENDING")

    def test_a_stray_resume_by_a_person_does_not_open(self, world: SlurmWorld) -> None:
        _close(world, world.nodes)
        id = world.submit(1)
        for name in world.nodes:
            world.admin_resume(name)
        world.settle()
        assert _job(world, id, "PENDING")
        assert set(world.nodes) <= world.slurm.observe().held

    def test_a_resume_inside_the_reservation_does_not_open(self, world: SlurmWorld) -> None:
        _close(world, world.nodes)
        id = world.submit(1)
        world.slurm.resume(world.nodes)
        world.settle()
        assert _job(world, id, "PENDING")
        assert all("DRAIN" not in world.slurm.observe().nodes[name].states for name in world.nodes)

    def test_the_release_of_many_is_one_opening(self, world: SlurmWorld) -> None:
        """A job for one node that waits as well must not get the first node that opens: there is no first."""
        _close(world, world.nodes)
        gang = world.submit(len(world.nodes))
        small = world.submit(1)
        world.slurm.resume(world.nodes)
        world.until("responding inside the reservation", lambda: _responding(world))
        world.settle()
        world.slurm.release(world.nodes, world.reservation)
        job = world.until("gang runs", lambda: _job(world, gang, "RUNNING"))
        assert set(job.nodes) == set(world.nodes)
        assert _job(world, small, "PENDING")
        assert not world.slurm.observe().held & set(world.nodes)

    def test_release_keeps_the_others_held(self, world: SlurmWorld) -> None:
        world.slurm.hold(world.nodes, world.reservation)
        world.slurm.release(world.nodes[:1], world.reservation)
        assert world.slurm.observe().held & set(world.nodes) == set(world.nodes[1:])
        for _ in range(2):
            world.slurm.release(world.nodes[1:], world.reservation)
            assert not world.slurm.observe().held & set(world.nodes)
        world.slurm.hold(world.nodes[:1], world.reservation)
        assert world.slurm.observe().held & set(world.nodes) == set(world.nodes[:1])

    def test_release_alone_does_not_open_a_drained_node(self, world: SlurmWorld) -> None:
        _close(world, world.nodes)
        id = world.submit(1)
        world.slurm.release(world.nodes, world.reservation)
        world.settle()
        assert _job(world, id, "PENDING")

    # --- what running jobs are told ---

    def test_a_signal_reaches_the_batch_script(self, world: SlurmWorld) -> None:
        id = world.submit(2, exits_on_signal=True)
        job = world.until("gang runs", lambda: _job(world, id, "RUNNING"))
        world.settle()
        world.slurm.signal(id, job.nodes[:1], "USR1")
        world.until("the job has ended", lambda: not _listed(world, id))

    @pytest.mark.parametrize("signal", ["NOSUCH", "KILL", "RTMIN+1", "term", "USR1&flags=HURRY", ""])
    def test_only_a_signal_that_asks_is_sent(self, world: SlurmWorld, signal: str) -> None:
        id = world.submit(1)
        job = world.until("job runs", lambda: _job(world, id, "RUNNING"))
        with pytest.raises(CallFailed):
            world.slurm.signal(id, job.nodes, signal)
        world.settle()
        assert _job(world, id, "RUNNING")

    def test_a_requeue_ends_the_whole_gang_and_it_runs_again(self, world: SlurmWorld) -> None:
        id = world.submit(2)
        job = world.until("gang runs", lambda: _job(world, id, "RUNNING"))
        _close(world, job.nodes)
        world.slurm.requeue(id, job.nodes[:1])
        waits = world.until("it is back in the queue", lambda: _job(world, id, "PENDING"))
        assert (waits.nodes, waits.held, waits.may_requeue, waits.restarts) == ((), False, True, 1)
        world.until("its nodes are free", lambda: _is_free(world, job.nodes))
        world.slurm.resume(job.nodes)
        world.slurm.release(job.nodes, world.reservation)
        world.slurm.hasten(id)
        world.until("gang runs again", lambda: _job(world, id, "RUNNING"))

    def test_a_job_that_may_not_be_requeued_runs_on_and_the_call_fails(self, world: SlurmWorld) -> None:
        id = world.submit(1, requeue=False)
        job = world.until("job runs", lambda: _job(world, id, "RUNNING"))
        assert not job.may_requeue
        with pytest.raises(CallFailed):
            world.slurm.requeue(id, job.nodes)
        world.settle()
        assert _job(world, id, "RUNNING")

    def test_a_job_that_runs_elsewhere_is_left_alone(self, world: SlurmWorld) -> None:
        id = world.submit(1, exits_on_signal=True)
        job = world.until("job runs", lambda: _job(world, id, "RUNNING"))
        elsewhere = [name for name in world.nodes if name not in job.nodes]
        world.slurm.signal(id, elsewhere, "USR1")
        world.slurm.requeue(id, elsewhere)
        world.settle()
        shown = _job(world, id, "RUNNING")
        assert shown is not None
        assert shown.restarts == 0

    def test_a_job_that_waits_is_left_alone(self, world: SlurmWorld) -> None:
        _close(world, world.nodes)
        id = world.submit(1)
        world.settle()
        world.slurm.signal(id, world.nodes, "USR1")
        world.slurm.requeue(id, world.nodes)
        world.slurm.hasten(id)
        waits = _job(world, id, "PENDING")
        assert waits is not None
        assert (waits.held, waits.restarts) == (False, 0)

    def test_a_job_that_is_over_is_not_revived(self, world: SlurmWorld) -> None:
        """Slurm itself would: a requeue puts a cancelled job back into the queue."""
        id = world.submit(1)
        job = world.until("job runs", lambda: _job(world, id, "RUNNING"))
        world.cancel(id)
        world.until("nodes idle again", lambda: _all_idle(world))
        world.slurm.signal(id, job.nodes, "USR1")
        world.slurm.requeue(id, job.nodes)
        world.settle()
        assert not _listed(world, id)

    def test_a_job_that_never_was_is_no_failure(self, world: SlurmWorld) -> None:
        world.slurm.signal(999_999, world.nodes, "USR1")
        world.slurm.requeue(999_999, world.nodes)
        world.slurm.hasten(999_999)

    # --- what is not ours, or not there ---

    def test_a_persons_drain_is_shown_as_it_is(self, world: SlurmWorld) -> None:
        world.admin_drain(world.nodes[0], "not a bridge: problem")
        node = world.slurm.observe().nodes[world.nodes[0]]
        assert "DRAIN" in node.states
        assert (node.reason, Mark.parse(node.reason)) == ("not a bridge: problem", None)

    def test_a_node_that_slurm_does_not_know_is_an_error_and_never_observed(self, world: SlurmWorld) -> None:
        assert "no-such-node" not in world.slurm.observe().nodes
        for call in (
            lambda: world.slurm.drain(["no-such-node"], MARK, "test"),
            lambda: world.slurm.resume(["no-such-node"]),
            lambda: world.slurm.hold(["no-such-node"], world.reservation),
        ):
            with pytest.raises(CallFailed):
                call()
        assert "no-such-node" not in world.slurm.observe().held


def _listed(world: SlurmWorld, id: int) -> bool:
    return any(job.id == id for job in world.slurm.observe().jobs)


def _is_free(world: SlurmWorld, nodes: tuple[str, ...]) -> bool:
    shown = world.slurm.observe().nodes
    return all("IDLE" in shown[name].states and "COMPLETING" not in shown[name].states for name in nodes)


def _close(world: SlurmWorld, nodes: tuple[str, ...]) -> None:
    world.slurm.drain(nodes, MARK, "test")
    world.slurm.hold(nodes, world.reservation)


def _job(world: SlurmWorld, id: int, state: str) -> SlurmJob | None:
    return next((job for job in world.slurm.observe().jobs if job.id == id and job.state == state), None)


def _all_idle(world: SlurmWorld) -> bool:
    nodes = world.slurm.observe().nodes
    return all(nodes[name].states == {"IDLE"} for name in world.nodes)


def _responding(world: SlurmWorld) -> bool:
    nodes = world.slurm.observe().nodes
    return all("NOT_RESPONDING" not in nodes[name].states for name in world.nodes)
