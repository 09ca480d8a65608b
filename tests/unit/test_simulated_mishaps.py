"""Every mishap ends and leaves nothing behind."""

from __future__ import annotations

import random

import pytest

from bridge.model.ownership import Mark
from bridge.simulation.mishaps import MISHAPS, Mishap
from bridge.simulation.workload import Deploy, Scale, Submit, restless
from bridge.simulation.world import World


def health(world: World) -> list[object]:
    """What a fleet manager would ask of every node, marks and identities aside."""
    slurm, kube = world.slurm.observe(), world.kube.observe()
    return [
        *(sorted(node.states) for node in slurm.nodes.values()),
        *((node.ready, node.cordoned, node.gpus_allocatable) for node in kube.nodes.values()),
        kube.controller_alive,
        world.clock.now().timestamp() - world.clock.monotonic_s(),
    ]


@pytest.mark.parametrize("mishap", MISHAPS.values(), ids=MISHAPS)
@pytest.mark.parametrize("lasts_s", [1, 90, 400])
def test_a_mishap_that_is_over_leaves_a_healthy_fleet(mishap: Mishap, lasts_s: float) -> None:
    world = World(seed=1)
    before = health(world)
    undo = mishap(world, world.nodes[0], random.Random(1))
    world.run(lasts_s)
    undo()
    world.run(lasts_s + 120)
    assert health(world) == before


def test_an_admin_does_not_resume_a_drain_that_is_not_theirs_any_more() -> None:
    world = World(seed=1, nodes=1)
    undo = MISHAPS["admin_drains"](world, world.nodes[0], random.Random(1))
    world.slurm.admin_drain("gpu-1", "another admin's reason")
    undo()
    assert "DRAIN" in world.slurm.observe().nodes["gpu-1"].states


def test_nobody_lifts_the_second_latch_of_a_side() -> None:
    world = World(seed=1, nodes=1)
    node = world.nodes[0]
    world.slurm.drain(["gpu-1"], Mark("lease0001", 1, 1), "lent")
    world.slurm.hold(["gpu-1"], "bridge-shared")
    world.kube.cluster.set_taint(node.kube_name, "lease0001")
    world.kube.cluster.set_fence(node.kube_name, "bridge:lease0001:1:1")
    for mishap in (
        "admin_resumes",
        "admin_edits_the_reservation",
        "other_controller_untaints",
        "fence_entry_is_deleted",
    ):
        MISHAPS[mishap](world, node, random.Random(1))
    assert world.slurm.closed_by_bridge("gpu-1")
    assert not world.kube.open(node.kube_name)


def test_restless_demand_jumps_on_both_sides_and_ends() -> None:
    wishes = restless(random.Random(1), nodes=4, length_s=3600)
    assert isinstance(wishes[0], Deploy)
    scalings = [wish for wish in wishes if isinstance(wish, Scale)]
    assert len({wish.replicas for wish in scalings}) == 5
    assert {wish.job.nodes for wish in wishes if isinstance(wish, Submit)} == {1, 2, 3, 4}
    assert scalings[-1].replicas == 0
