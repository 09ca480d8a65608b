"""The nodes of one pool while a plan is made: which of them could be had from whom, cheapest source first.

Sources in order: ``spare`` (nobody's), ``idle`` of the other side, ``soon`` (busy, but its work ends by its time limit
within `soon_s`), then nodes freed by victims. A node that was given to somebody is taken out of all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bridge.model.demand import Demand, Work
from bridge.model.ownership import Owner, Side
from bridge.model.policy import PoolPolicy
from bridge.planning.refusals import hold_refusal, lasting_refusal, refusal
from bridge.planning.snapshot import Place, works_by_node

Requirement = tuple[int, tuple[frozenset[str], ...]]
"""What a node must offer: GPUs, and one of these sets of features (any, when there is none)."""


def requirement(demand: Demand) -> Requirement:
    return (demand.gpus_per_node, demand.features)


def offers(place: Place, required: Requirement) -> bool:
    gpus, features = required
    return place.record.node.gpus >= gpus and (not features or any(wish <= place.features for wish in features))


@dataclass
class Stock:
    """`rest` are the nodes of each owner that stand still, `arriving` those in motion, by where they go.

    `awaited` are the keys of all demands: what is collected for one of them is nobody else's.
    """

    pool: PoolPolicy
    places: Sequence[Place]
    works: Sequence[Work]
    now: datetime
    awaited: Collection[str]
    rest: dict[Owner, list[Place]] = field(init=False)
    arriving: dict[Side, list[Place]] = field(init=False)
    usable: dict[Side, int] = field(init=False)
    """Usable nodes that a side has left, `heading` all that it owns or will, `in_flight` all that are in motion."""
    heading: dict[Side, int] = field(init=False)
    in_flight: int = field(init=False)
    has_idle_workers: bool = field(init=False)
    taken: set[str] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)
    """Idle or arriving nodes that their own side's queue will use."""
    version: int = 0
    """Grows with everything taken, claimed or released: what was found out at the same version still holds."""
    _idle: dict[Side, list[Place]] = field(init=False)
    _givable: dict[Side, list[Place]] = field(default_factory=dict)
    _left: dict[Side, tuple[int, list[Place]]] = field(default_factory=dict)
    _drainable: dict[Side, list[Place]] = field(default_factory=dict)
    _soon: dict[Side, list[Place]] = field(default_factory=dict)
    _works_on: dict[str, list[Work]] | None = None
    _whole: frozenset[str] | None = None
    _by_demand: dict[tuple[Side, str], list[Place]] | None = None
    _lines: dict[tuple[Side, Requirement], list[Place]] = field(default_factory=dict)
    _offering: dict[Requirement, set[str]] = field(default_factory=dict)
    _featured: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rest = {owner: [] for owner in Owner}
        self.arriving = {side: [] for side in Side}
        self.usable = dict.fromkeys(Side, 0)
        self.heading = dict.fromkeys(Side, 0)
        self.in_flight = 0
        self.has_idle_workers = any(work.idle_worker for work in self.works)
        self._idle = {side: [] for side in Side}
        for place in sorted(self.places, key=_by_name):
            if place.handoff is not None:
                self.in_flight += 1
                heading = place.heading_for
                if heading is not None:
                    self.arriving[heading].append(place)
                    self.heading[heading] += 1
                continue
            self.rest[place.lease.owner].append(place)
            side = place.lease.owner.side
            if side is None:
                continue
            self.heading[side] += 1
            facts = place.sight.side(side)
            if not facts.unknown and facts.ready:
                self.usable[side] += 1
                if facts.free:
                    self._idle[side].append(place)

    # --- what a side has itself ---

    def offering(self, required: Requirement) -> Collection[str]:
        """Names of all nodes of the pool that offer what is required."""
        if required not in self._offering:
            gpus, wishes = required
            enough = {place.name for place in self.places if place.record.node.gpus >= gpus}
            wished = [set.intersection(enough, *map(self._having, wish)) for wish in wishes]
            self._offering[required] = set().union(*wished) if wishes else enough
        return self._offering[required]

    def _having(self, feature: str) -> set[str]:
        if feature not in self._featured:
            self._featured[feature] = {place.name for place in self.places if feature in place.features}
        return self._featured[feature]

    def claim(self, demand: Demand) -> list[Place]:
        """Set aside nodes that `demand` will get without a move, at most as many as it needs: those collected for it,
        then idle ones, then others that are on their way to its side."""
        able = self.offering(requirement(demand))
        found = [p for p in self._collected_for(demand) if p.name in able and self._here(p)][: demand.nodes]
        self.claimed.update(place.name for place in found)
        self.version += bool(found)
        line = self._line(demand.side, requirement(demand))
        while line and len(found) < demand.nodes:
            place = line.pop()
            if self._here(place):
                self.claimed.add(place.name)
                self.version += 1
                found.append(place)
        return found

    def release(self, places: Iterable[Place]) -> None:
        """Take back a claim: others may have these nodes."""
        names = {place.name for place in places}
        if names:
            self.claimed -= names
            self.version += 1
            self._lines.clear()

    def _collected_for(self, demand: Demand) -> list[Place]:
        """Nodes on their way to its side for it; those that go back from where they were fetched are not."""
        if self._by_demand is None:
            self._by_demand = {}
            for side, places in self.arriving.items():
                for place in places:
                    if place.handoff is not None and place.handoff.demand:
                        self._by_demand.setdefault((side, place.handoff.demand), []).append(place)
        return self._by_demand.get((demand.side, demand.key), [])

    def _line(self, side: Side, required: Requirement) -> list[Place]:
        """Idle and arriving nodes of `side` that offer what is required, the first to be claimed at the end."""
        if (side, required) not in self._lines:
            able = self.offering(required)
            free = (p for p in self.arriving[side] if p.handoff is None or p.handoff.demand not in self.awaited)
            in_order = (*self._idle[side], *free)
            self._lines[side, required] = [place for place in in_order if place.name in able][::-1]
        return self._lines[side, required]

    def unclaimed(self, side: Side) -> int:
        """Idle and arriving nodes of `side` that none of its demands will use."""
        return sum(self._here(place) for place in (*self._idle[side], *self.arriving[side]))

    def _here(self, place: Place) -> bool:
        return place.name not in self.taken and place.name not in self.claimed

    # --- what could be taken ---

    def spare(self, destination: Side) -> list[Place]:
        """Nodes that nobody owns and nothing is wrong with."""
        return [
            place
            for place in self.rest[Owner.BRIDGE]
            if place.name not in self.taken
            and not place.record.unusable
            and not lasting_refusal(place, destination.other, self.now)
        ]

    def idle(self, source: Side) -> list[Place]:
        """Idle nodes that `source` may give under ``NoFlap`` and the hysteresis, and that its queue will not use."""
        if source not in self._givable:
            self._givable[source] = [
                place for place in self.rest[source.owner] if not refusal(place, source, self.pool, self.now)
            ]
        if self._left.get(source, (-1, []))[0] != self.version:
            self._left[source] = (self.version, [place for place in self._givable[source] if self._here(place)])
        return self._left[source][1]

    def busy(self, source: Side) -> list[Place]:
        """Nodes of `source` with work on them that could be drained for a demand."""
        if source not in self._drainable:
            self._drainable[source] = [
                place
                for place in self.rest[source.owner]
                if not place.sight.side(source).free
                and not lasting_refusal(place, source, self.now)
                and not hold_refusal(place, self.pool, self.now)
            ]
        return [place for place in self._drainable[source] if place.name not in self.taken]

    def soon(self, source: Side) -> list[Place]:
        """Those of the busy nodes whose work ends by its time limits within the policy's `soon_s`."""
        if source not in self._soon:
            within_s = self.pool.preemption.soon_s
            self._soon[source] = [place for place in self.busy(source) if self.ends_in_s(place) <= within_s]
        return [place for place in self._soon[source] if place.name not in self.taken]

    def any_of(self, source: Side) -> list[Place]:
        """For a broken floor: whatever may be taken at all, idle or not, however short its hold."""
        return [
            place
            for place in self.rest[source.owner]
            if place.name not in self.taken and not lasting_refusal(place, source, self.now)
        ]

    def works_on(self, name: str) -> list[Work]:
        if self._works_on is None:
            self._works_on = works_by_node(self.works)
        return self._works_on.get(name, [])

    def ends_in_s(self, place: Place) -> float:
        """Until all work on the node must have ended by its time limits; infinite when some has none or is unknown."""
        works = self.works_on(place.name)
        ends = [float("inf") if work.ends_in_s is None else work.ends_in_s for work in works]
        return max(ends, default=float("inf"))

    def take(self, places: Iterable[Place]) -> None:
        for place in places:
            self.taken.add(place.name)
            self.version += 1
            self.in_flight += 1
            side = place.lease.owner.side
            if side is not None:
                self.heading[side] -= 1
                self.usable[side] -= place.usable(side)

    def whole_switches(self) -> frozenset[str]:
        """Switches whose nodes all belong to one owner, as this plan found them."""
        if self._whole is None:
            owners: dict[str, set[Owner]] = {}
            for place in self.places:
                owners.setdefault(place.switch, set()).add(place.lease.owner)
            self._whole = frozenset(switch for switch, found in owners.items() if switch and len(found) == 1)
        return self._whole


def _by_name(place: Place) -> str:
    return place.name
