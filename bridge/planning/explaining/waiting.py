"""A demand, and by node whether it could have it: what all layers of its chain, the remedies and the estimate read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from bridge.model.demand import Demand
from bridge.model.ownership import Owner, Side
from bridge.model.policy import PoolPolicy
from bridge.planning.entitlement import SideShare, TeamStanding
from bridge.planning.explaining.scene import Scene
from bridge.planning.refusals import BUSY, lasting_refusal, refusal
from bridge.planning.snapshot import Place
from bridge.planning.stock import offers, requirement


@dataclass(frozen=True)
class Waiting:
    """A demand and the nodes that it could have. `pod_gpus` is what a single pod asks for, 0 for a job."""

    scene: Scene
    demand: Demand
    pool: PoolPolicy
    pod_gpus: int = 0

    @property
    def side(self) -> Side:
        return self.demand.side

    @cached_property
    def places(self) -> tuple[Place, ...]:
        return self.scene.snapshot.of_pool(self.pool.name)

    @cached_property
    def shares(self) -> dict[Side, SideShare]:
        return self.scene.shares(self.pool)

    @property
    def standing(self) -> TeamStanding | None:
        return self.scene.standings.get(self.demand.team)

    @cached_property
    def refused(self) -> dict[str, str]:
        """By node, the first reason why the demand cannot have it now; nodes that it can have are not in it."""
        return {place.name: reason for place in self.places if (reason := self._refusal(place))}

    @cached_property
    def had(self) -> list[Place]:
        """Nodes on its own side, free or arriving."""
        return [place for place in self.places if place.name not in self.refused and place.heading_for is self.side]

    @cached_property
    def takeable(self) -> list[Place]:
        """Nodes that could come from the other side, or that nobody owns: each by itself, whatever the quota says."""
        return [place for place in self.places if place.name not in self.refused and place.heading_for is not self.side]

    @cached_property
    def poor(self) -> dict[str, str]:
        """Nodes that are Ready in Kubernetes and offer fewer GPUs there than the pool says, each with its numbers."""
        found = {}
        for place in self.places:
            gpus, kube = place.record.node.gpus, self.scene.kube_node(place)
            if kube is not None and kube.ready and kube.gpus_allocatable < gpus:
                found[place.name] = f"Ready, but offers {kube.gpus_allocatable} of {gpus} GPUs to Kubernetes"
        return found

    @property
    def lacking(self) -> int:
        return max(0, self.demand.nodes - len(self.had))

    @property
    def may_give(self) -> int:
        """How many usable nodes the other side has above what it keeps of its floor."""
        other = self.side.other
        return max(0, sum(place.usable(other) for place in self.places) - self.shares[other].kept_nodes)

    @cached_property
    def spare(self) -> int:
        return sum(place.lease.owner is Owner.BRIDGE for place in self.takeable)

    @property
    def room(self) -> int:
        """How many more nodes its side may own."""
        heading = sum(place.heading_for is self.side for place in self.places)
        return max(0, self.shares[self.side].ceiling_nodes - heading)

    @cached_property
    def ahead(self) -> tuple[Demand, ...]:
        """Gangs of its own side that come first and are not met either: one gang at a time."""
        if not self.demand.whole:
            return ()
        line = [demand for demand in self.scene.demands(self.pool) if demand.side is self.side and demand.whole]
        keys = [demand.key for demand in line]
        before = line[: keys.index(self.demand.key)] if self.demand.key in keys else line
        return tuple(d for d in before if self.scene.told(d.key) and not self.scene.backs_off_s(d.key))

    def _refusal(self, place: Place) -> str:
        if not offers(place, requirement(self.demand)):
            return self._mismatch(place)
        if place.heading_for is self.side:
            return "" if place.handoff is not None else self._not_free(place)
        if place.lease.owner is Owner.BRIDGE and place.handoff is None:
            return place.record.unusable or lasting_refusal(place, self.side.other, self.scene.now)
        return refusal(place, self.side.other, self.pool, self.scene.now)

    def _not_free(self, place: Place) -> str:
        """Why a node of its own side at rest is of no use to it now."""
        facts = place.sight.side(self.side)
        if not facts.known:
            return f"UNKNOWN on the {self.side} side: {facts.unknown}"
        if facts.foreign:
            return f"{facts.foreign} on the {self.side} side"
        if not facts.ready:
            return f"not ready on the {self.side} side: {facts.not_ready or 'not open yet'}"
        if facts.idle or (self.is_planned(place) and not self.ahead):
            return ""
        return "planned by Slurm for another job" if self.is_planned(place) else f"{BUSY} on the {self.side} side"

    def is_planned(self, place: Place) -> bool:
        """Free, and kept by Slurm's backfill for the first job in its queue: no work is on it."""
        return place.sight.side(self.side).planned

    def _mismatch(self, place: Place) -> str:
        gpus = place.record.node.gpus
        if gpus < self.demand.gpus_per_node:
            return f"has {gpus} GPUs, asked are {self.demand.gpus_per_node}"
        return f"lacks {wishes(self.demand)}"


def wishes(demand: Demand) -> str:
    """``h100+ib or a100``: what a node must offer."""
    return " or ".join(sorted("+".join(sorted(wish)) for wish in demand.features)) or "nothing special"
