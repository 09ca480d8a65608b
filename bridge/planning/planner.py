"""``plan(snapshot, policy, now)``: the first policy. A floor and a maximum a side, idle nodes only, one gang at a time.

``FloorHolds``
    Floors count usable nodes. No node leaves a side whose usable nodes would fall below its floor; only a side below
    its own floor may take nodes that are not idle (drained and waited for, or evicted politely, never killed).
``NoFlap``
    A node that changed hands stays for the minimum hold, unless a floor is broken.
``WholeGang``
    A gang gets all the nodes it lacks under one lease, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from bridge.model.demand import Demand
from bridge.model.ownership import Side
from bridge.model.policy import Policy, PoolPolicy
from bridge.planning.snapshot import Move, Place, Plan, Snapshot, Why, count_nodes, obstacle, owned_usable

PLANNER = "policy"


def _first_need(waiting: list[Demand]) -> int:
    """Whole nodes that the head of a side's queue is collecting: its first gang, or its serving needs together."""
    first_gang = next((demand.nodes for demand in waiting if demand.whole), 0)
    return first_gang + sum(demand.nodes for demand in waiting if not demand.whole)


def plan(snapshot: Snapshot, policy: Policy, now: datetime) -> Plan:
    """What to hand over now. The same snapshot gives the same plan; a plan after its own execution is empty."""
    if snapshot.paused:
        return Plan(whys=(Why("everything", f"paused: {snapshot.paused}"),))
    if snapshot.unknown:
        return Plan(whys=tuple(Why("everything", f"UNKNOWN moves nothing: {detail}") for detail in snapshot.unknown))
    parts = [_Pool(pool, snapshot.of_pool(pool.name), now).plan(snapshot.demands) for pool in policy.pools]
    return Plan(
        moves=tuple(move for part in parts for move in part.moves),
        whys=tuple(why for part in parts for why in part.whys),
    )


@dataclass
class _Pool:
    """The planning of one pool: nodes are taken out of `places` as they are given to somebody."""

    pool: PoolPolicy
    places: tuple[Place, ...]
    now: datetime
    taken: set[str] = field(default_factory=set)
    moves: list[Move] = field(default_factory=list)
    whys: list[Why] = field(default_factory=list)
    own_need: dict[Side, int] = field(default_factory=dict)
    """Nodes that the head of a side's own queue waits for: its idle nodes are not lent from under it."""

    def plan(self, demands: Iterable[Demand]) -> Plan:
        ours = sorted((d for d in demands if d.pool == self.pool.name), key=lambda d: (-d.priority, d.since, d.key))
        by_side = {side: [demand for demand in ours if demand.side is side] for side in Side}
        self.own_need = {side: _first_need(waiting) for side, waiting in by_side.items()}
        for side in Side:
            self._restore_floor(side)
        self._send_home_the_unusable()
        for side in Side:
            self._meet(by_side[side], side)
        return Plan(tuple(self.moves), tuple(self.whys))

    # --- the three reasons to move a node ---

    def _restore_floor(self, side: Side) -> None:
        floor = self.pool.share(side).floor_nodes
        usable, arriving = owned_usable(self.places, side), self._arriving(side)
        lacking = floor - usable - arriving
        if lacking <= 0:
            return
        reason = f"{side} has {count_nodes(usable, 'usable')} and {arriving} arriving, its floor is {floor}"
        nodes = self._choose(side.other, min(lacking, self._may_start(), self._room(side)), need_idle=False)
        for place in nodes:
            self._move((place,), side, reason)
        if len(nodes) < lacking:
            self._why(f"floor of {side}", f"{reason}; {self._why_short(side.other, len(nodes), need_idle=False)}")

    def _send_home_the_unusable(self) -> None:
        home, away = self.pool.home, self.pool.home.other
        for place in self._free(away):
            backing_off = place.record.backoff_until is not None and self.now < place.record.backoff_until
            useless = place.record.unusable and not place.usable(away) and not backing_off
            if useless and self._may_start() and self._room(home) and not obstacle(place, away):
                self._move((place,), home, f"of no use to {away}: {place.record.unusable}")

    def _meet(self, demands: list[Demand], side: Side) -> None:
        """Gangs strictly in order, one at a time; serving needs each by themselves."""
        waiting_gang = False
        spare = self._idle_here(side) + self._arriving(side)
        for demand in demands:
            if demand.whole and waiting_gang:
                self._why(demand.key, "one gang at a time: another one of higher priority comes first")
                continue
            waiting_gang = waiting_gang or demand.whole
            lacking = demand.nodes - spare
            spare = max(0, spare - demand.nodes)
            if lacking > 0:
                self._meet_one(demand, lacking, side)

    def _meet_one(self, demand: Demand, lacking: int, side: Side) -> None:
        waited_s = (self.now - demand.since).total_seconds()
        if waited_s < self.pool.demand_age_s:
            self._why(demand.key, f"waits for {waited_s:.0f} s, counted from {self.pool.demand_age_s:.0f} s on")
            return
        if demand.whole and demand.nodes > len(self.places):
            self._why(
                demand.key, f"needs {demand.nodes} nodes, the whole pool has {len(self.places)}: it can never run"
            )
            return
        start = len(self.places) if demand.whole and self._in_flight() == 0 else self._may_start()
        nodes = self._choose(side.other, min(lacking, self._room(side), start), need_idle=True)
        if demand.whole and len(nodes) < lacking:
            self._why(
                demand.key, f"lacks {count_nodes(lacking)}; {self._why_short(side.other, len(nodes), need_idle=True)}"
            )
            return
        lacks = f", {lacking} lacking" if lacking < demand.nodes else ""
        reason = f"{demand.key} waits for {count_nodes(demand.nodes)}{lacks}"
        if demand.whole:
            self._move(nodes, side, reason)
        else:
            for place in nodes:
                self._move((place,), side, reason)
        if len(nodes) < lacking:
            short = self._why_short(side.other, len(nodes), need_idle=True)
            self._why(demand.key, f"{count_nodes(lacking - len(nodes))} short; {short}")

    # --- which nodes ---

    def _choose(self, source: Side, count: int, *, need_idle: bool) -> tuple[Place, ...]:
        """At most `count` nodes that `source` can give, the longest idle first."""
        spare = owned_usable(self._free(source), source) - self.pool.share(source).floor_nodes
        limit = max(0, min(count, spare))
        able = [place for place in self._free(source) if not self._refusal(place, source, need_idle=need_idle)]
        if need_idle:
            limit = min(limit, max(0, self._idle_here(source) - self.own_need[source]))
        able.sort(key=lambda place: (-place.idle_for_s(self.now), place.name))
        return tuple(able[:limit])

    def _refusal(self, place: Place, source: Side, *, need_idle: bool) -> str:
        """Why `place` may not be taken from `source` now."""
        found = obstacle(place, source)
        if found:
            return found
        theirs = place.sight.side(source.other).foreign
        if theirs:
            return f"of no use there: {theirs} on the {source.other} side"
        backoff = place.record.backoff_until
        if backoff is not None and self.now < backoff:
            return f"left alone for {(backoff - self.now).total_seconds():.0f} s more after a failed handoff"
        if not need_idle:
            return ""
        held_s = (self.now - place.lease.owner_since).total_seconds()
        if held_s < self.pool.min_hold_s:
            return f"changed hands {held_s:.0f} s ago, minimum hold {self.pool.min_hold_s:.0f} s"
        idle_s = place.idle_for_s(self.now)
        if idle_s < self.pool.idle_age_s:
            return "busy" if idle_s < 0 else f"idle for {idle_s:.0f} s, needed {self.pool.idle_age_s:.0f} s"
        return ""

    def _free(self, side: Side) -> tuple[Place, ...]:
        return tuple(p for p in self.places if p.lease.owner is side.owner and p.name not in self.taken)

    def _idle_here(self, side: Side) -> int:
        return sum(place.usable(side) and place.sight.side(side).idle for place in self._free(side))

    def _arriving(self, side: Side) -> int:
        moving = sum(place.handoff is not None and place.heading_for is side for place in self.places)
        return moving + sum(len(move.nodes) for move in self.moves if move.destination is side)

    def _in_flight(self) -> int:
        return sum(place.handoff is not None for place in self.places) + len(self.taken)

    def _may_start(self) -> int:
        """How many more handoffs may begin now. (A gang larger than the limit goes alone, see `_meet_one`.)"""
        return max(0, self.pool.max_in_flight - self._in_flight())

    def _room(self, side: Side) -> int:
        """How many more nodes `side` may own under its maximum."""
        most = self.pool.share(side).max_nodes
        if most is None:
            return len(self.places)
        heading = sum(place.heading_for is side for place in self.places if place.name not in self.taken)
        return max(0, most - heading - sum(len(move.nodes) for move in self.moves if move.destination is side))

    # --- the record ---

    def _move(self, places: tuple[Place, ...], destination: Side, reason: str) -> None:
        names = tuple(place.name for place in places)
        self.taken.update(names)
        self.moves.append(Move(names, destination.other, destination, reason, evict=True, requested_by=PLANNER))

    def _why(self, subject: str, reason: str) -> None:
        self.whys.append(Why(subject, reason))

    def _why_short(self, source: Side, found: int, *, need_idle: bool) -> str:
        refusals = [
            f"{p.name}: {r}" for p in self._free(source) if (r := self._refusal(p, source, need_idle=need_idle))
        ]
        usable, floor = owned_usable(self._free(source), source), self.pool.share(source).floor_nodes
        kept = self.own_need[source] if need_idle else 0
        text = f"{source} can give {found} (has {usable} usable, floor {floor}, {kept} awaited by its own queue)"
        return text + (f"; {'; '.join(refusals)}" if refusals else "")
