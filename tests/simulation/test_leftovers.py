"""What `bridge.planning.leftovers` finds of a bridge that has worked, and what is left when all of it was removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bridge.model.ownership import Owner, Side
from bridge.planning.leftovers import KubeMarks, KubeObject, Leftover, LeftoverKind, SlurmMarks, leftovers
from bridge.simulation.slurm import OURS
from bridge.simulation.world import World
from tests.simulation.fleet import Fleet

NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")


def slurm_marks(world: World) -> SlurmMarks:
    seen = world.slurm.observe()
    reservations = {
        name: frozenset(nodes) for name, nodes in world.slurm._reservations.items() if name.startswith(OURS)
    }
    return SlurmMarks(nodes=seen.nodes, reservations=reservations, jobs=seen.jobs)


def kube_marks(world: World) -> KubeMarks:
    nodes = (KubeObject("nodes", node.name, taint=node.taint or None) for node in world.kube.cluster.nodes.values())
    loans = (KubeObject("nodeloans.bridge.slurm-kube.io", name) for name in world.kube.controller.loans)
    return KubeMarks((*nodes, *loans))


def standing(fleet: Fleet) -> tuple[Leftover, ...]:
    return leftovers(slurm_marks(fleet.world), kube_marks(fleet.world))


def names(found: tuple[Leftover, ...], kind: LeftoverKind) -> list[str]:
    return [each.name for each in found if each.kind is kind]


def taints(*nodes: str) -> list[str]:
    return [f"nodes {node}.testbed" for node in nodes]


def closed(fleet: Fleet) -> tuple[set[str], set[str]]:
    """Nodes that a mark of ours closes, by the world itself: to Slurm, to Kubernetes."""
    world = fleet.world
    return (
        {name for name in NODES if world.slurm.closed_by_bridge(name)},
        {name for name in NODES if world.kube.cluster.nodes[f"{name}.testbed"].taint},
    )


def found_closed(fleet: Fleet) -> tuple[set[str], set[str]]:
    """The same by what the check finds."""
    found = standing(fleet)
    held = {name for nodes in slurm_marks(fleet.world).reservations.values() for name in nodes}
    assert bool(names(found, LeftoverKind.RESERVATION)) == bool(held)
    tainted = {name.removeprefix("nodes ").removesuffix(".testbed") for name in names(found, LeftoverKind.TAINT)}
    return set(names(found, LeftoverKind.DRAIN)) | held, tainted


def test_a_day_of_lending_and_what_it_leaves() -> None:
    fleet = Fleet(min_hold_s=0)
    assert standing(fleet) == ()
    fleet.settle()
    assert names(standing(fleet), LeftoverKind.TAINT) == taints(*NODES)
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 is lent")
    found = standing(fleet)
    assert names(found, LeftoverKind.DRAIN) == ["gpu-1"]
    assert names(found, LeftoverKind.RESERVATION) == ["bridge-shared"]
    assert names(found, LeftoverKind.TAINT) == taints("gpu-2", "gpu-3", "gpu-4")
    fleet.order(Side.SLURM, "gpu-1")
    fleet.run_until(lambda: fleet.owned(Owner.SLURM) == list(NODES), "gpu-1 is back")
    found = standing(fleet)
    assert names(found, LeftoverKind.DRAIN) == names(found, LeftoverKind.RESERVATION) == []
    assert names(found, LeftoverKind.REASON) == list(NODES), "reasons are there until a job starts"
    assert names(found, LeftoverKind.TAINT) == taints(*NODES)


def test_marks_of_people_are_never_among_them() -> None:
    fleet = Fleet()
    world = fleet.world
    world.slurm.admin_drain("gpu-1", "bad fan")
    world.slurm.admin_reserve("weekly", ["gpu-2"])
    fleet.run_for(30)
    found = [each for each in standing(fleet) if each.side is Side.SLURM]
    assert {"gpu-1", "weekly"}.isdisjoint(each.name for each in found)
    assert not any("weekly" in each.command for each in found)


TROUBLE: dict[str, Callable[[World], None]] = {
    "nothing": lambda world: None,
    "a resumed node": lambda world: world.slurm.admin_resume("gpu-1"),
    "a restart of slurmctld": lambda world: world.slurm.restart_controller(2),
    "a lost slurmd": lambda world: world.slurm.lose_slurmd("gpu-2"),
    "a node taken out of the reservation": lambda world: world.slurm.admin_takes_out("gpu-1"),
}


@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=list(TROUBLE))
@pytest.mark.parametrize("stop_after_s", [0.1, 0.3, 0.6, 1.0, 3.0])
def test_whenever_the_broker_dies_no_mark_that_closes_is_missed(
    trouble: Callable[[World], None], stop_after_s: float
) -> None:
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1", "gpu-2")
    fleet.run_for(stop_after_s)
    trouble(fleet.world)
    fleet.world.run(fleet.world.clock.monotonic_s() + 10)  # nobody at the wheel
    assert found_closed(fleet) == closed(fleet)


def test_what_it_says_to_remove_is_all_there_is() -> None:
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1", "gpu-2")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1", "gpu-2"], "two nodes are lent")
    for each in standing(fleet):
        carry_out(fleet.world, each)
    assert standing(fleet) == ()
    assert closed(fleet) == (set(), set())


def carry_out(world: World, found: Leftover) -> None:
    """What a person does who takes the command as it is said."""
    match found.kind:
        case LeftoverKind.DRAIN:
            world.slurm.admin_resume(found.name)
            world.slurm._nodes[found.name].reason = ""
        case LeftoverKind.REASON:
            world.slurm._nodes[found.name].reason = ""
        case LeftoverKind.RESERVATION:
            world.slurm.admin_unreserve(found.name)
        case LeftoverKind.TAINT:
            world.kube.cluster.set_taint(found.name.removeprefix("nodes "), "")
        case LeftoverKind.RESOURCE:
            world.kube.controller.loans.clear()
        case other:
            raise AssertionError(f"{other} cannot be here")
