"""What an answer is read from: both sides' words, the planner's snapshot, the policy, and the plan made of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from bridge.model.demand import Demand, Work
from bridge.model.errors import Unreadable
from bridge.model.kube import KubeNode, KubeObservation
from bridge.model.ownership import Side
from bridge.model.policy import Policy, PoolPolicy
from bridge.model.slurm import SlurmNode, SlurmObservation
from bridge.planning.entitlement import SideShare, TeamStanding, side_shares, team_standings
from bridge.planning.headroom import handover_p50_s
from bridge.planning.planner import uncounted
from bridge.planning.snapshot import Place, Plan, Snapshot, in_line, works_by_node
from bridge.planning.timetable import floors


@dataclass(frozen=True, slots=True)
class Seen:
    """What both schedulers answered, or why they did not."""

    slurm: SlurmObservation | Unreadable
    kubernetes: KubeObservation | Unreadable

    def unreadable(self, side: Side) -> str:
        """Why `side` could not be read, or empty."""
        answer = self.slurm if side is Side.SLURM else self.kubernetes
        return str(answer) if isinstance(answer, Unreadable) else ""


@dataclass(frozen=True)
class Scene:
    seen: Seen
    snapshot: Snapshot
    policy: Policy
    planned: Plan
    now: datetime

    def slurm_node(self, place: Place) -> SlurmNode | None:
        seen = self.seen.slurm
        return None if isinstance(seen, Unreadable) else seen.nodes.get(place.record.node.slurm_name)

    def kube_node(self, place: Place) -> KubeNode | None:
        seen = self.seen.kubernetes
        return None if isinstance(seen, Unreadable) else seen.nodes.get(place.record.node.kube_name)

    def demands(self, pool: PoolPolicy) -> tuple[Demand, ...]:
        """Those of the pool that count, in the order of their own schedulers."""
        found = (demand for demand in self.snapshot.demands if demand.pool == pool.name and not demand.impossible)
        return tuple(sorted(found, key=in_line))

    def shares(self, pool: PoolPolicy) -> dict[Side, SideShare]:
        places = self.snapshot.of_pool(pool.name)
        counted = [
            demand
            for demand in self.demands(pool)
            if not uncounted(demand, self.snapshot, self.standings, len(places), self.now)
        ]
        return side_shares(pool, places, counted, floors(pool, self.policy.timezone, self.now))

    @cached_property
    def gpus_of(self) -> dict[str, int]:
        return {place.name: place.record.node.gpus for place in self.snapshot.places}

    @cached_property
    def standings(self) -> dict[str, TeamStanding]:
        return team_standings(self.policy, self.snapshot.works, self.snapshot.usage, self.gpus_of)

    @cached_property
    def works_on(self) -> dict[str, list[Work]]:
        return works_by_node(self.snapshot.works)

    def backs_off_s(self, key: str) -> float:
        """How long a demand is still left alone; 0 when it is not."""
        until = self.snapshot.backoffs.get(key)
        return 0.0 if until is None else max(0.0, (until - self.now).total_seconds())

    def told(self, subject: str) -> str:
        """The planner's own words about `subject`, or empty."""
        return next((why.reason for why in self.planned.whys if why.subject == subject), "")

    def gets(self, demand: Demand) -> tuple[str, ...]:
        """Nodes whose handover for `demand` begins with this plan."""
        moves = (move for move in self.planned.moves if move.demand == demand.key)
        return tuple(name for move in moves for name in move.nodes)

    def free_gpus(self, place: Place, side: Side) -> int | None:
        """GPUs of the node that `side` has not given away; None when it does not tell."""
        if side is Side.SLURM:
            slurm = self.slurm_node(place)
            return None if slurm is None else max(0, slurm.gpus - slurm.gpus_used)
        kube = self.kube_node(place)
        return None if kube is None else max(0, kube.gpus_allocatable - kube.gpus_used)

    def handover_s(self, side: Side) -> float | None:
        """How long handoffs to `side` usually take, None: not measured."""
        return handover_p50_s(self.snapshot.reclaim_s.get(side, ()))
