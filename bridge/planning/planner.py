"""``plan(snapshot, policy, now)``: floor plus borrow, gangs whole, cheapest victims last.

A pool is planned in four rounds: floors that are owed, nodes that are of no use where they are, demand of both sides,
headroom. Demand is served strictly in the order of its own scheduler inside a side, and between the two heads by
guarantee, rank, fair-share ratio and wait. Each demand first gets what comes to it without a move, then the cheapest
source: spare nodes, idle ones of the other side, those that are about to be idle, those that victims free. A pool that
is paused is left alone; one that is recalled is planned by `bridge.planning.recall`.

``FloorHolds``
    Floors count usable nodes. No node leaves a side whose usable nodes would fall below what it keeps of its floor; for
    victims, below its fair share either, unless it is somebody's floor or a team's guarantee that is broken.
``NoFlap``
    A node that changed hands stays for the minimum hold, unless a floor is broken.
``WholeGang``
    A gang gets all the nodes it lacks under one lease, or none. A gang that must wait lets no other one pass, as its
    scheduler would not either; it keeps idle nodes of its own side from being lent until its deadline.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil

from bridge.model.demand import Demand, Work
from bridge.model.ownership import Side
from bridge.model.pause import joined
from bridge.model.policy import Policy, PoolPolicy, PreemptionMode
from bridge.planning import placement, victims
from bridge.planning.entitlement import SideShare, TeamStanding, held_nodes, side_shares, team_standings
from bridge.planning.headroom import headroom_nodes
from bridge.planning.recall import recall, recalling
from bridge.planning.refusals import refusal
from bridge.planning.snapshot import Move, Place, Plan, Snapshot, Why, count_nodes, in_line, obstacle, owned_usable
from bridge.planning.stock import Requirement, Stock, requirement
from bridge.planning.timetable import floors

PLANNER = "policy"
MOST_WHYS = 20
"""Of one side's waiting demands as many are told each why; those behind them are counted in one line."""


def plan(snapshot: Snapshot, policy: Policy, now: datetime) -> Plan:
    """What to hand over now. The same snapshot gives the same plan; a plan after its own execution is empty."""
    halted = {pool.name: pauses for pool in policy.pools if (pauses := snapshot.halting(pool.name))}
    reasons = {pool: f"paused: {joined(pauses)}" for pool, pauses in halted.items()}
    whys = tuple(Why(f"pool {pool}", reason) for pool, reason in reasons.items())
    if snapshot.unknown:
        unknown = (Why("everything", f"UNKNOWN moves nothing: {detail}") for detail in snapshot.unknown)
        return Plan(whys=(*whys, *unknown))
    gpus_of = {place.name: place.record.node.gpus for place in snapshot.places}
    teams = team_standings(policy, snapshot.works, snapshot.usage, gpus_of)
    parts = []
    for pool in policy.pools:
        if pool.name not in halted:
            parts.append(_pool(pool, policy, snapshot, teams, gpus_of, now).plan())
        elif (by := recalling(halted[pool.name])) is not None:
            parts.append(recall(pool, snapshot, by, now))
    return Plan(
        moves=tuple(move for part in parts for move in part.moves),
        whys=(*whys, *(why for part in parts for why in part.whys)),
        paused={demand.key: reasons[demand.pool] for demand in snapshot.demands if demand.pool in reasons},
    )


def _pool(
    pool: PoolPolicy,
    policy: Policy,
    snapshot: Snapshot,
    teams: Mapping[str, TeamStanding],
    gpus_of: Mapping[str, int],
    now: datetime,
) -> _Pool:
    places = snapshot.of_pool(pool.name)
    names = {place.name for place in places}
    works = [
        victims.spared(work, snapshot.preempted, pool.preemption, now)
        for work in snapshot.works
        if names.intersection(work.nodes)
    ]
    demands = sorted((d for d in snapshot.demands if d.pool == pool.name), key=in_line)
    judged = [(demand, uncounted(demand, snapshot, teams, len(places), now)) for demand in demands]
    counted = [demand for demand, why_not in judged if not why_not]
    hold_now = floors(pool, policy.timezone, now)
    return _Pool(
        pool=pool,
        snapshot=snapshot,
        now=now,
        demands=judged,
        stock=Stock(pool, places, works, now, {demand.key for demand in counted}),
        shares=side_shares(pool, places, counted, hold_now),
        teams=teams,
        gpus_of=gpus_of,
    )


def uncounted(demand: Demand, snapshot: Snapshot, teams: Mapping[str, TeamStanding], nodes: int, now: datetime) -> str:
    """Why a demand is no demand now, whatever nodes there are; empty when it is one."""
    if demand.impossible:
        return demand.impossible
    if demand.whole and demand.nodes > nodes:
        return f"needs {count_nodes(demand.nodes)}, the whole pool has {nodes}: it can never run"
    standing = teams.get(demand.team)
    if standing and standing.ceiling_nodes is not None and demand.nodes > standing.ceiling_nodes and demand.whole:
        return (
            f"needs {count_nodes(demand.nodes)}, team {demand.team} may hold {standing.ceiling_nodes}: it can never run"
        )
    until = snapshot.backoffs.get(demand.key)
    if until is not None and now < until:
        left_s = (until - now).total_seconds()
        return f"could not be collected in time, left alone for {left_s:.0f} s more"
    return ""


@dataclass
class _Claim:
    """A demand, what comes to it without a move, and what it lacks."""

    demand: Demand
    has: list[Place]
    lacking: int


@dataclass
class _Choice:
    """Nodes for one demand; `victims` are all works that would be ended for them."""

    places: tuple[Place, ...] = ()
    victims: tuple[Work, ...] = ()


@dataclass
class _Pool:
    """The planning of one pool. Nodes leave `stock` as they are given to somebody."""

    pool: PoolPolicy
    snapshot: Snapshot
    now: datetime
    demands: list[tuple[Demand, str]]
    """In line, each with why it is not counted, or an empty text."""
    stock: Stock
    shares: dict[Side, SideShare]
    teams: Mapping[str, TeamStanding]
    gpus_of: Mapping[str, int]
    moves: list[Move] = field(default_factory=list)
    whys: list[Why] = field(default_factory=list)
    granted: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    """Nodes that this plan gives to a side."""
    coming: dict[Side, list[Place]] = field(default_factory=lambda: {side: [] for side in Side})
    """Of those, nodes for a floor that no demand counts on yet."""
    team_gets: dict[str, int] = field(default_factory=dict)
    """Nodes that this plan, or what comes anyway, gives to a team."""
    team_loses: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    dry: dict[tuple[Side, Requirement, bool], int] = field(default_factory=dict)
    """At which version of the stock nothing at all was found for whom: nothing is to be found again."""
    said: dict[tuple[Side, bool, int], str] = field(default_factory=dict)
    told: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))

    def plan(self) -> Plan:
        for side in Side:
            self._restore_floor(side)
        self._send_home_the_unusable()
        held_back = self._held_back()
        if held_back:
            self._why(f"demand in pool {self.pool.name}", held_back)
        else:
            self._meet_demand()
            self._keep_headroom()
        for side, told in self.told.items():
            if told > MOST_WHYS:
                self.whys.append(Why(f"{side} queue", f"{told - MOST_WHYS} more demands wait behind those listed"))
        return Plan(tuple(self.moves), tuple(self.whys))

    # --- floors, and nodes of no use ---

    def _restore_floor(self, side: Side) -> None:
        """What a side has whether it wants it or not. What it lends and wants back, its demands fetch, see `_owed`."""
        share = self.shares[side]
        lacking = share.unlent_nodes - share.owned_nodes
        if lacking <= 0:
            return
        reason = (
            f"{side} has {count_nodes(share.owned_nodes, 'usable or arriving')}, it never lends {share.unlent_nodes} "
            f"of its floor {share.floor_nodes}"
        )
        count = min(lacking, self._may_start(), self._room(side))
        spare = self.stock.spare(side)[:count]
        owned = self._floor_nodes(side.other, count - len(spare), self.stock.any_of(side.other))
        for place, ended in (*((place, ()) for place in spare), *owned):
            self._move((place,), side, reason, ended=ended)
            self.coming[side].append(place)
        short = lacking - self.granted[side]
        if short > 0:
            self._why(f"floor of {side}", f"{reason}; {self._why_short(side, need_idle=False)}")

    def _floor_nodes(self, source: Side, count: int, able: Sequence[Place]) -> list[tuple[Place, tuple[Work, ...]]]:
        """At most `count` nodes for a broken floor, of those `able`: idle ones, then the cheapest to empty."""
        left = max(0, min(count, self._above(source, self.shares[source].kept_nodes)))
        idle = sorted((p for p in able if p.sight.side(source).idle), key=self._longest_idle)
        found: list[tuple[Place, tuple[Work, ...]]] = [(place, ()) for place in idle[:left]]
        left -= len(found)
        mode = self.pool.preemption.mode
        if left <= 0 or mode is PreemptionMode.NONE:
            return found
        busy = sorted(
            (p for p in able if not p.sight.side(source).idle), key=lambda p: (self.stock.ends_in_s(p), p.name)
        )
        if mode is PreemptionMode.REQUEUE:
            choice = self._cheapest(busy, left, self._spare_by_team())
            if choice is not None:
                return found + [(place, self._ended_on(place, choice.victims)) for place in choice.places]
        return found + [(place, ()) for place in busy[:left]]

    def _longest_idle(self, place: Place) -> tuple[float, str]:
        return (-place.idle_for_s(self.now), place.name)

    def _send_home_the_unusable(self) -> None:
        home, away = self.pool.home, self.pool.home.other
        for place in self.stock.rest[away.owner]:
            if not place.record.unusable or place.name in self.stock.taken:
                continue
            backing_off = place.record.backoff_until is not None and self.now < place.record.backoff_until
            useless = not place.usable(away) and not backing_off
            if useless and self._may_start() and self._room(home) and not obstacle(place, away):
                self._move((place,), home, f"of no use to {away}: {place.record.unusable}")

    def _held_back(self) -> str:
        """Why no demand leads to a move in this pass; floors do not wait for this."""
        most = self.pool.max_maintenance_nodes
        if most is not None:
            out = sum(self._is_out(place) for place in self.stock.places)
            if out > most:
                return (
                    f"{count_nodes(out)} drained by people, quarantined, down or UNKNOWN, more than the {most} allowed"
                )
        began = [
            p.handoff.began_at for p in self.stock.places if p.handoff is not None and p.handoff.requested_by == PLANNER
        ]
        since_s = (self.now - max(began)).total_seconds() if began else float("inf")
        if since_s < self.pool.batch_window_s:
            return f"moves began {since_s:.0f} s ago, demand is gathered for {self.pool.batch_window_s:g} s"
        return ""

    def _is_out(self, place: Place) -> bool:
        if place.handoff is not None:
            return False
        side = place.lease.owner.side
        return side is None or not place.usable(side)

    # --- demand ---

    def _meet_demand(self) -> None:
        """Both queues, each in its own order; whichever head has the better claim goes first."""
        queues = {side: deque(self._claims(side)) for side in Side}
        while any(queues.values()):
            side = min((side for side in Side if queues[side]), key=lambda side: self._claim_order(queues[side][0]))
            claim = queues[side].popleft()
            if not self._meet(claim) and claim.demand.whole:
                queues[side] = self._behind(claim.demand, queues[side])
                if self._waited_s(claim.demand) > self.pool.gang_deadline_s:
                    self.stock.release(claim.has)

    def _behind(self, first: Demand, queue: Iterable[_Claim]) -> deque[_Claim]:
        """What may still be met of a queue whose gang `first` waits: no other gang."""
        gangs = [claim for claim in queue if claim.demand.whole]
        for claim in gangs:
            self._tell(claim.demand, f"one gang at a time: {first.key} comes first")
        self.stock.release(place for claim in gangs for place in claim.has)
        return deque(claim for claim in queue if not claim.demand.whole)

    def _claims(self, side: Side) -> list[_Claim]:
        """The demands of a side that nodes could help, with what each will get without a move."""
        found = []
        for demand, why_not in self.demands:
            if demand.side is not side:
                continue
            has = [] if why_not else self.stock.claim(demand)
            no = why_not or self._over_quota(demand, len(has))
            if no:
                self.stock.release(has)
                self._tell(demand, no)
                continue
            lacking = demand.nodes - len(has)
            arriving = self._able(demand, self.coming[side])[:lacking]
            self.coming[side] = [place for place in self.coming[side] if place not in arriving]
            self._count_for_team(demand, len(has) + len(arriving))
            found.append(_Claim(demand, has, lacking - len(arriving)))
        return found

    def _over_quota(self, demand: Demand, more_nodes: int) -> str:
        """Counts what the team holds, what comes to it and what this plan gives it; never what it only asks for."""
        standing = self.teams.get(demand.team)
        if standing is None or standing.ceiling_nodes is None:
            return ""
        gets = self.team_gets.get(demand.team, 0)
        if standing.holds_nodes + gets + more_nodes <= standing.ceiling_nodes:
            return ""
        return (
            f"quota: team {demand.team} holds {standing.holds_nodes:.4g} nodes and gets {gets} more, it may hold "
            f"{standing.ceiling_nodes} (guarantee {standing.guarantee_nodes})"
        )

    def _team_room(self, demand: Demand) -> int:
        standing = self.teams.get(demand.team)
        if standing is None or standing.ceiling_nodes is None:
            return len(self.stock.places)
        return int(standing.ceiling_nodes - standing.holds_nodes) - self.team_gets.get(demand.team, 0)

    def _count_for_team(self, demand: Demand, nodes: int) -> None:
        self.team_gets[demand.team] = self.team_gets.get(demand.team, 0) + nodes

    def _claim_order(self, claim: _Claim) -> tuple[bool, int, float, datetime, str]:
        demand = claim.demand
        standing = self.teams.get(demand.team)
        ratio = standing.ratio if standing else 0.0
        return (not self._under_guarantee(demand), -demand.rank, ratio, demand.since, demand.key)

    def _under_guarantee(self, demand: Demand) -> bool:
        standing = self.teams.get(demand.team)
        return standing is not None and standing.holds_nodes < standing.guarantee_nodes

    def _meet(self, claim: _Claim) -> bool:
        """Whether the demand has all its nodes now, or will by the moves of this plan."""
        demand = claim.demand
        if claim.lacking <= 0:
            return True
        waited_s = self._waited_s(demand)
        if waited_s < self.pool.demand_age_s:
            self._tell(demand, f"waits for {waited_s:.0f} s, counted from {self.pool.demand_age_s:g} s on")
            return False
        over = self._over_quota(demand, claim.lacking if demand.whole else 1)
        if over:
            self._tell(demand, over)
            return False
        alone = demand.whole and self.stock.in_flight == 0
        start = len(self.stock.places) if alone else self._may_start()
        count = min(claim.lacking, self._room(demand.side), start, self._team_room(demand))
        least = claim.lacking if demand.whole else 1
        chosen = self._choose(claim, count) if count >= least else _Choice()
        if len(chosen.places) < claim.lacking:
            if self._tells_more(demand.side):
                self._tell(demand, self._short(claim, len(chosen.places)))
            else:
                self.told[demand.side] += 1
            if demand.whole:
                return False
        self._begin(claim, chosen)
        return len(chosen.places) >= claim.lacking

    def _begin(self, claim: _Claim, chosen: _Choice) -> None:
        demand = claim.demand
        self._count_for_team(demand, len(chosen.places))
        lacks = f", {claim.lacking} lacking" if claim.lacking < demand.nodes else ""
        reason = f"{demand.key} waits for {count_nodes(demand.nodes)}{lacks}"
        if demand.whole:
            reason += _spread((*claim.has, *chosen.places), demand)
            self._move(chosen.places, demand.side, reason, demand=demand.key, ended=chosen.victims)
            return
        for place in chosen.places:
            ended = self._ended_on(place, chosen.victims)
            self._move((place,), demand.side, reason, demand=demand.key, ended=ended)

    def _choose(self, claim: _Claim, count: int) -> _Choice:
        """At most `count` nodes from the sources in order; for a gang all of them or none."""
        demand, source = claim.demand, claim.demand.side.other
        asked = (demand.side, requirement(demand), self._under_guarantee(demand))
        if self.dry.get(asked) == self.stock.version:
            return _Choice()
        found = list(self._place(claim, self._able(demand, self.stock.spare(demand.side)), count, []))
        limit = min(count - len(found), self._above(source, self.shares[source].kept_nodes))
        found += self._place(claim, self._able(demand, self._idle(source)), limit, found)
        if len(found) < count and self.pool.preemption.mode is not PreemptionMode.NONE:
            limit = min(count - len(found), self._above(source, self._needed(source)) - self._given(found, source))
            found += self._place(claim, self._able(demand, self.stock.soon(source)), limit, found)
        owed = self._owed(claim, count - len(found), found)
        if owed:
            places, works = zip(*owed, strict=True)
            return _Choice((*found, *places), tuple({work.key: work for each in works for work in each}.values()))
        if len(found) < count and self.pool.preemption.mode is not PreemptionMode.NONE:
            choice = self._reclaim(claim, count - len(found), found)
            if choice is not None:
                return _Choice((*found, *choice.places), choice.victims)
        if not found and not demand.whole:
            self.dry[asked] = self.stock.version
        return _Choice(tuple(found))

    def _owed(self, claim: _Claim, count: int, found: Sequence[Place]) -> list[tuple[Place, tuple[Work, ...]]]:
        """Nodes of its own floor that the side has lent and now wants back, whatever is on them."""
        demand, source = claim.demand, claim.demand.side.other
        share = self.shares[demand.side]
        lent = share.kept_nodes - share.owned_nodes - self.granted[demand.side] - len(found)
        wanted = min(count, lent)
        if wanted <= 0 or (demand.whole and wanted < count):
            return []
        taken = {place.name for place in found}
        able = [place for place in self._able(demand, self.stock.any_of(source)) if place.name not in taken]
        nodes = self._floor_nodes(source, wanted, able)
        return [] if demand.whole and len(nodes) < count else nodes

    def _able(self, demand: Demand, places: Iterable[Place]) -> list[Place]:
        able = self.stock.offering(requirement(demand))
        return [place for place in places if place.name in able]

    def _idle(self, source: Side) -> list[Place]:
        """Idle nodes of `source`, less the headroom that it keeps ready."""
        idle = self.stock.idle(source)
        if source is Side.SLURM:
            return idle
        kept = self._headroom()
        beyond = max(0, self.stock.unclaimed(source) - kept)
        return sorted(idle, key=self._longest_idle)[:beyond] if kept else idle

    def _place(self, claim: _Claim, candidates: list[Place], count: int, found: list[Place]) -> tuple[Place, ...]:
        if count <= 0 or not candidates:
            return ()
        taken = {place.name for place in found}
        return placement.choose(
            [place for place in candidates if place.name not in taken],
            count,
            whole=self.stock.whole_switches(),
            anchored={place.switch for place in (*claim.has, *found)},
            together=claim.demand.whole,
            mig=self.pool.topology.mig(claim.demand.side),
            now=self.now,
        )

    # --- how far the other side may be taken down ---

    def _above(self, source: Side, keep: int) -> int:
        """How many more nodes `source` may give while it keeps `keep` usable ones."""
        return max(0, self.stock.usable[source] - keep)

    def _needed(self, source: Side) -> int:
        """What `source` keeps of nodes with work on them: its fair share, as far as it wants it, and its floor."""
        share = self.shares[source]
        return max(share.kept_nodes, min(share.wanted_nodes, ceil(share.fair_nodes)))

    def _given(self, found: Iterable[Place], source: Side) -> int:
        return sum(place.lease.owner is source.owner for place in found)

    # --- victims ---

    def _reclaim(self, claim: _Claim, count: int, found: list[Place]) -> _Choice | None:
        """Nodes freed by victims, if `claim` may have any: its side under its fair share, or its team's guarantee."""
        demand, source = claim.demand, claim.demand.side.other
        share = self.shares[demand.side]
        guaranteed = self._under_guarantee(demand)
        gets = share.owned_nodes + self.granted[demand.side] + len(found)
        entitled = int(share.fair_nodes) - gets if share.has_something else 0
        keep = self.shares[source].kept_nodes if guaranteed else self._needed(source)
        limit = min(count, self._above(source, keep) - self._given(found, source))
        if not guaranteed:
            limit = min(limit, entitled)
        if limit <= 0 or (demand.whole and limit < count):
            return None
        taken = {place.name for place in found}
        busy = [p for p in self._able(demand, self.stock.busy(source)) if p.name not in taken]
        choice = self._cheapest(busy, limit, self._spare_by_team(), claim=claim, found=found)
        while choice is None and limit > 1 and not demand.whole:
            limit //= 2
            choice = self._cheapest(busy, limit, self._spare_by_team(), claim=claim, found=found)
        return choice

    def _cheapest(
        self,
        busy: Sequence[Place],
        count: int,
        spare_nodes: Mapping[str, float],
        *,
        claim: _Claim | None = None,
        found: Sequence[Place] = (),
    ) -> _Choice | None:
        idle_only = self.pool.preemption.mode is not PreemptionMode.REQUEUE
        if self._victims_left() == 0 or (idle_only and not self.stock.has_idle_workers):
            return None
        able: dict[str, Place] = {}
        works: dict[str, Work] = {}
        for place in busy:
            on_it = self.stock.works_on(place.name)
            if on_it and not (idle_only and any(not work.idle_worker for work in on_it)):
                able[place.name] = place
                works.update((work.key, work) for work in on_it if work.key not in self.ended)
        limits = victims.Limits(self._victims_left(), spare_nodes, self.gpus_of)
        choice = victims.cheapest(tuple(works.values()), tuple(able), count, limits)
        if choice is None:
            return None
        freed = [able[name] for name in choice.freed]
        if claim is None:
            return _Choice(tuple(sorted(freed, key=lambda p: p.name)[:count]), choice.works)
        return _Choice(self._place(claim, freed, count, list(found)), choice.works)

    def _spare_by_team(self) -> dict[str, float]:
        return {
            name: max(0.0, standing.spare_nodes - self.team_loses.get(name, 0.0))
            for name, standing in self.teams.items()
        }

    def _victims_left(self) -> int:
        left = victims.left_in_window(self.snapshot.preempted, self.pool.preemption, self.now)
        return max(0, left - len(self.ended))

    def _ended_on(self, place: Place, works: Iterable[Work]) -> tuple[Work, ...]:
        return tuple(work for work in works if place.name in work.nodes)

    # --- headroom ---

    def _headroom(self) -> int:
        measured = self.snapshot.reclaim_s.get(Side.KUBERNETES, ())
        return headroom_nodes(self.pool.headroom, measured, self.pool.gpus)

    def _keep_headroom(self) -> None:
        """Idle nodes beyond all demand, from what is idle on the other side and its queue does not wait for."""
        wanted = self._headroom()
        side = Side.KUBERNETES
        lacking = wanted - self.stock.unclaimed(side)
        if wanted == 0 or lacking <= 0:
            return
        name = f"headroom of pool {self.pool.name}"
        demand = Demand(name, side, self.pool.name, lacking, False, 0, self.now)
        claim = _Claim(demand, [], lacking)
        count = min(lacking, self._room(side), self._may_start())
        found = list(self._place(claim, self.stock.spare(side), count, []))
        limit = min(count - len(found), self._above(side.other, self.shares[side.other].kept_nodes))
        found += self._place(claim, self.stock.idle(side.other), limit, found)
        for place in found:
            self._move((place,), side, f"{name}: {count_nodes(wanted, 'idle')} wanted, {lacking} lacking", demand=name)
        if len(found) < lacking:
            self._why(name, f"{count_nodes(lacking - len(found))} short; {self._why_short(side, need_idle=True)}")

    # --- limits ---

    def _waited_s(self, demand: Demand) -> float:
        return (self.now - demand.since).total_seconds()

    def _may_start(self) -> int:
        """How many more handoffs may begin now. (A gang larger than the limit goes alone, see `_meet`.)"""
        return max(0, self.pool.max_in_flight - self.stock.in_flight)

    def _room(self, side: Side) -> int:
        """How many more nodes `side` may own under its ceiling."""
        return max(0, self.shares[side].ceiling_nodes - self.stock.heading[side] - self.granted[side])

    # --- the record ---

    def _move(
        self,
        places: tuple[Place, ...],
        destination: Side,
        reason: str,
        *,
        demand: str = "",
        ended: Sequence[Work] = (),
    ) -> None:
        self.stock.take(places)
        self.granted[destination] += len(places)
        for work in ended:
            if work.key not in self.ended:
                self.ended.add(work.key)
                self.team_loses[work.team] = self.team_loses.get(work.team, 0.0) + held_nodes(work, self.gpus_of)
        self.moves.append(
            Move(
                nodes=tuple(place.name for place in places),
                source=destination.other,
                destination=destination,
                reason=reason + _costs(ended),
                evict=self.pool.preemption.mode is not PreemptionMode.NONE,
                requested_by=PLANNER,
                demand=demand,
                victims=tuple(victims.named(work, self.pool.preemption) for work in ended),
            )
        )

    def _why(self, subject: str, reason: str) -> None:
        self.whys.append(Why(subject, reason))

    def _tell(self, demand: Demand, reason: str) -> None:
        if self._tells_more(demand.side):
            more = f" ({demand.alike} alike)" if demand.alike > 1 else ""
            self._why(demand.key, f"{reason}{more}")
        self.told[demand.side] += 1

    def _tells_more(self, side: Side) -> bool:
        return self.told[side] < MOST_WHYS

    def _short(self, claim: _Claim, found: int) -> str:
        if claim.demand.whole:
            side, room = claim.demand.side, self._room(claim.demand.side)
            most = f", {side} may own {room} more" if 0 < room < claim.lacking else ""
            return f"lacks {count_nodes(claim.lacking)}{most}; {self._why_short(side, need_idle=True)}"
        missing = claim.lacking - found
        return f"{count_nodes(missing)} short; {self._why_short(claim.demand.side, need_idle=True)}"

    def _why_short(self, destination: Side, *, need_idle: bool) -> str:
        asked = (destination, need_idle, self.stock.version)
        if asked not in self.said:
            self.said[asked] = self._whole_story(destination, need_idle=need_idle)
        return self.said[asked]

    def _whole_story(self, destination: Side, *, need_idle: bool) -> str:
        source = destination.other
        share = self.shares[source]
        left = [p for p in self.stock.rest[source.owner] if p.name not in self.stock.taken]
        refused = {p.name: r for p in left if (r := refusal(p, source, self.pool, self.now, need_idle=need_idle))}
        usable = owned_usable(tuple(left), source)
        claimed = sum(p.name in self.stock.claimed for p in left)
        limits = [
            f"{source} has {usable} usable, keeps {share.kept_nodes} of its floor {share.floor_nodes}",
            f"{claimed} awaited by its own queue",
        ]
        ready = self._headroom() if source is Side.KUBERNETES else 0
        if ready:
            limits.append(f"{count_nodes(ready)} of headroom kept ready")
        if self._room(destination) == 0:
            limits.append(f"{destination} may own {self.shares[destination].ceiling_nodes}")
        if self._may_start() == 0:
            limits.append(f"{self.stock.in_flight} handoffs run, the most at a time is {self.pool.max_in_flight}")
        return "; ".join((", ".join(limits), *_grouped(refused)))


_MANY = 8


def _grouped(refused: Mapping[str, str]) -> list[str]:
    """One line a node, or where there are many, one a kind of reason with its count and an example."""
    if len(refused) <= _MANY:
        return [f"{name}: {reason}" for name, reason in refused.items()]
    kinds: dict[str, list[str]] = {}
    for name, reason in refused.items():
        kinds.setdefault(re.sub(r"\d+", "N", reason), []).append(name)
    return [f"{count_nodes(len(names))} ({names[0]}…): {refused[names[0]]}" for names in kinds.values()]


def _spread(places: Iterable[Place], demand: Demand) -> str:
    """Under how many switches a gang comes to be: what is more than it asked for costs it bandwidth."""
    switches = {place.switch for place in places}
    if "" in switches or demand.nodes == 1:
        return ""
    wish = f", it asked for at most {demand.switches}" if 0 < demand.switches < len(switches) else ""
    return f", under {len(switches)} switch{'es' if len(switches) > 1 else ''}{wish}"


def _costs(ended: Sequence[Work]) -> str:
    if not ended:
        return ""
    loss_h = sum(work.loss_gpu_s for work in ended) / 3600
    names = ", ".join(work.key for work in ended[:3]) + (f" and {len(ended) - 3} more" if len(ended) > 3 else "")
    return f"; ends {names}, {loss_h:.2f} GPU-hours lost"
