"""A clock that is set, and the first seconds of a new leader."""

from __future__ import annotations

import pytest

from bridge.model.handoff import Step
from bridge.model.ownership import Owner, Side
from bridge.simulation.faults import When
from tests.simulation.fleet import TIMING, Fleet


@pytest.mark.parametrize("set_by_s", [30 * 86_400, -86_400])
def test_a_wall_clock_that_is_set_moves_the_deadlines_with_it(set_by_s: float) -> None:
    fleet = Fleet()
    fleet.settle()
    job = fleet.sbatch(nodes=1, runs_s=200)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")
    node = fleet.world.slurm.job(job).nodes[0]
    fleet.order(Side.KUBERNETES, node)
    fleet.run_until(lambda: fleet.at_step(node, Step.EMPTY), "the node waits for the job")
    before = fleet.handoff(node)

    fleet.world.clock.step_wall(set_by_s)
    fleet.run_for(20)  # the leader's lease ran out on the same clock: it is won again first
    waiting = fleet.handoff(node)
    assert waiting.step is Step.EMPTY
    assert (waiting.step_deadline_at - before.step_deadline_at).total_seconds() == pytest.approx(set_by_s, abs=1)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == [node], "the node is lent after the job", within_s=400)


def test_a_new_leader_only_closes_until_the_old_ones_calls_must_have_ended() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.CLEAN), "gpu-1 is about to be opened")
    opened_before = len(fleet.world.faults.calls)
    fleet.world.faults.fail_next("kube.want", when=When.CRASH_BEFORE)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "the next broker opens it")
    crashed_s = next(injected.at_s for injected in fleet.world.faults.journal if injected.call == "kube.want")
    opened = [event for event in fleet.ledger.events(after=0, limit=1000) if event.data.get("step") == Step.PROVE]
    opened_s = (opened[-1].at - fleet.ledger.events(after=0, limit=1)[0].at).total_seconds()
    assert opened_s - crashed_s >= TIMING.call_timeout_s
    assert len(fleet.world.faults.calls) > opened_before
