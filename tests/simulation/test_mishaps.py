"""Faults that seeds have found, each as a story of its own."""

from __future__ import annotations

from bridge.model.handoff import Step
from bridge.model.ownership import Owner, Side
from bridge.simulation.faults import When
from tests.simulation.accounts import unaccounted
from tests.simulation.fleet import TIMING, Fleet

# --- found by seeds, kept as stories ---


def test_an_order_that_names_a_node_twice_moves_it_once() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1", "gpu-1")
    fleet.order(Side.KUBERNETES, "gpu-2")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1", "gpu-2"], "both orders are carried out")


def test_a_drain_that_arrives_after_the_opening_is_lifted() -> None:
    """On the first day too: a node closed on both sides goes home in less time than a call may linger."""
    fleet = Fleet()
    fleet.world.faults.fail_next("slurm.drain", when=When.LATE, delay_s=4.9)
    fleet.settle()
    fleet.run_until(
        lambda: any("DRAIN" in fleet.world.slurm.node(node.slurm_name).states for node in fleet.world.nodes),
        "the late drain arrives",
        within_s=10,
    )
    fleet.run_until(lambda: not unaccounted(fleet), "the late drain is lifted", within_s=10)
    assert len(fleet.owned(Owner.SLURM)) == len(fleet.world.nodes)


def test_late_openings_of_slurm_do_not_meet_a_node_that_was_lent_meanwhile() -> None:
    """Both late calls together would lift both latches at once; no agent keeps the third one, the fence, here."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 is lent")
    fleet.world.faults.fail_next("slurm.resume", when=When.LATE, delay_s=5)
    fleet.world.faults.fail_next("slurm.release", when=When.LATE, delay_s=4.3)
    fleet.order(Side.SLURM, "gpu-1")
    fleet.run_until(lambda: "gpu-1" in fleet.owned(Owner.SLURM), "gpu-1 is back, each call made twice")
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 is lent again")
    fleet.run_for(30)
    assert unaccounted(fleet) == []


def test_a_node_that_does_not_answer_is_not_asked_in_a_hot_loop() -> None:
    """Each pass reads all of Slurm: asking a silent inspector again must not make passes follow without a pause."""
    fleet = Fleet()
    fleet.settle()
    fleet.world.kube.silence_inspector("gpu-1.testbed")
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.CLEAN), "the inspector of gpu-1 is asked")
    before = fleet.world.faults.calls.count("slurm.observe")
    fleet.run_for(60)
    assert fleet.at_step("gpu-1", Step.CLEAN)
    assert fleet.world.faults.calls.count("slurm.observe") - before <= 2 * 60 / TIMING.busy_tick_s
    fleet.world.kube.restore_inspector("gpu-1.testbed")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 is lent", within_s=10)


def test_what_an_order_moves_in_the_same_pass_counts_for_the_plan() -> None:
    """A Deployment waits for one node and a person sends one: no second one goes, above all not over the maximum."""
    fleet = Fleet(min_hold_s=0, kubernetes={"max_nodes": 1})
    fleet.settle()
    fleet.ledger.pause("until both are there", actor="oncall", at=fleet.world.clock.now())
    fleet.deploy("chat", replicas=1)
    fleet.run_for(10)
    fleet.ledger.resume(actor="oncall", at=fleet.world.clock.now())
    fleet.order(Side.KUBERNETES, "gpu-4")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) != [], "gpu-4 is lent")
    fleet.run_for(30)
    assert fleet.owned(Owner.KUBERNETES) == ["gpu-4"]
