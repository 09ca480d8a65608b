"""Every mishap ends and leaves nothing behind; a bad day is a function of its seed."""

from __future__ import annotations

import random

import pytest

from bridge.simulation.mishaps import MISHAPS, Mishap, mishap_every
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


@pytest.mark.parametrize("mishap", MISHAPS, ids=lambda mishap: mishap.__name__)
@pytest.mark.parametrize("lasts_s", [1, 90, 400])
def test_a_mishap_that_is_over_leaves_a_healthy_fleet(mishap: Mishap, lasts_s: float) -> None:
    world = World(seed=1)
    before = health(world)
    undo = mishap(world, random.Random(1))
    world.run(lasts_s)
    undo()
    world.run(lasts_s + 60)
    assert health(world) == before


def test_an_admin_does_not_resume_a_drain_that_is_not_theirs_any_more() -> None:
    world = World(seed=1, nodes=1)
    admin_drains = next(mishap for mishap in MISHAPS if mishap.__name__ == "admin_drains")
    undo = admin_drains(world, random.Random(1))
    world.slurm.admin_drain("gpu-1", "another admin's reason")
    undo()
    assert "DRAIN" in world.slurm.observe().nodes["gpu-1"].states


def test_a_bad_day_is_a_function_of_its_seed_and_over_in_time() -> None:
    def day(seed: int) -> tuple[list[str], list[object]]:
        world = World(seed=1, strict=False)
        world.play(restless(random.Random(seed), nodes=4, length_s=600))
        mishap_every(world, random.Random(seed), mean_s=20, until_s=600)
        world.run(1500)
        return [str(start) for start in world.oracle.evidence], health(world)

    assert day(1) == day(1)
    assert day(1)[0] != day(2)[0]
    assert day(1)[1] == health(World(seed=1))


def test_restless_demand_jumps_on_both_sides_and_ends() -> None:
    wishes = restless(random.Random(1), nodes=4, length_s=3600)
    assert isinstance(wishes[0], Deploy)
    scalings = [wish for wish in wishes if isinstance(wish, Scale)]
    assert len({wish.replicas for wish in scalings}) == 5
    assert {wish.job.nodes for wish in wishes if isinstance(wish, Submit)} == {1, 2, 3, 4}
    assert scalings[-1].replicas == 0
