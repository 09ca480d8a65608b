"""One pass's reading of the world through the ports, and the facts it proves about each node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from bridge.lifecycle.facts import DeviceFacts, device_facts, kube_facts, slurm_facts
from bridge.lifecycle.progress import Sight
from bridge.model.errors import Unreadable
from bridge.model.kube import KubeNode, KubeObservation
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Side
from bridge.model.slurm import SlurmObservation
from bridge.planning.demand import kube_demands, slurm_demands
from bridge.planning.snapshot import Place, Snapshot
from bridge.ports import KubePort, SlurmPort

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class World:
    """What both sides answered, or why they did not."""

    slurm: SlurmObservation | Unreadable
    kubernetes: KubeObservation | Unreadable

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(str(side) for side in (self.slurm, self.kubernetes) if isinstance(side, Unreadable))

    def kube_node(self, name: str) -> KubeNode | None:
        return None if isinstance(self.kubernetes, Unreadable) else self.kubernetes.nodes.get(name)


def observe(slurm: SlurmPort, kubernetes: KubePort) -> World:
    """Read both sides; one that cannot be read does not hide the other."""
    return World(_read(slurm.observe), _read(kubernetes.observe))


def _read(read: Callable[[], Seen]) -> Seen | Unreadable:
    try:
        return read()
    except Unreadable as why:
        return why


def sights(state: LedgerState, world: World, *, settle_s: float) -> dict[str, Sight]:
    """The facts about every node of the inventory, by node name."""
    return {name: _sight(name, state, world, settle_s) for name in state.nodes}


def _sight(name: str, state: LedgerState, world: World, settle_s: float) -> Sight:
    node, lease, handoff = state.nodes[name].node, state.leases.get(name), state.handoffs.get(name)
    slurm_closure = state.closures.get((name, Side.SLURM))
    kube_closure = state.closures.get((name, Side.KUBERNETES))
    return Sight(
        slurm=slurm_facts(node, slurm_closure, world.slurm, settle_s=settle_s),
        kubernetes=kube_facts(node, lease, kube_closure, handoff, world.kubernetes),
        devices=device_facts(node, handoff, world.kubernetes) if handoff else DeviceFacts(),
    )


def snapshot(state: LedgerState, world: World, seen: dict[str, Sight], now: datetime) -> Snapshot:
    """The planner's view. Nodes without a lease are not adopted yet and are not in it."""
    places = tuple(
        Place(state.nodes[name], lease, state.handoffs.get(name), seen[name])
        for name, lease in sorted(state.leases.items())
        if name in state.nodes
    )
    demands = tuple(
        demand
        for pool in state.policy.pools
        for demand in (
            *(() if isinstance(world.slurm, Unreadable) else slurm_demands(pool, world.slurm, now)),
            *(() if isinstance(world.kubernetes, Unreadable) else kube_demands(pool, world.kubernetes, now)),
        )
    )
    return Snapshot(places, demands, unknown=world.unknown, paused=state.paused)
