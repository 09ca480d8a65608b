"""Who is under what is theirs and who is over it: floors, limits and fair shares of sides and of teams.

``FloorHolds``
    A floor counts usable nodes. Only a side under its own floor, or under its fair share, may have running work of the
    other side ended for it, and never so that the other side falls under its own floor or fair share in turn: what was
    reclaimed gives nobody a claim to reclaim it back, so there is no circle.

Fair share of a side: its floor, and of what all floors leave a part by weight (weighted max-min: a side that wants less
than its part leaves the rest to the other). Fair-share ratio of a team: (usage / usage of all) / (weight / weight of
all), smallest first, as in Slurm's classic fair share; usage loses half its weight every half-life.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bridge.model.demand import Demand, Work
from bridge.model.ownership import Side
from bridge.model.policy import Policy, PoolPolicy
from bridge.planning.snapshot import Place


@dataclass(frozen=True, slots=True)
class SideShare:
    """One side of a pool, in nodes.

    `owned_nodes` are usable or on their way to it; `busy_nodes` of them run something. `wanted_nodes` is what it could
    use now: busy and demanded. `unlent_nodes` is what it has of its floor whether it wants it or not, `kept_nodes` how
    far the other side may have its idle ones: that, or as much of its floor as it wants. `ceiling_nodes` is the most
    it may own, `fair_nodes` its share.
    """

    side: Side
    floor_nodes: int
    unlent_nodes: int
    kept_nodes: int
    ceiling_nodes: int
    fair_nodes: float
    owned_nodes: int
    busy_nodes: int
    wanted_nodes: int

    @property
    def has_something(self) -> bool:
        """A side without floor and without weight borrows what is idle, and never has anything ended for it."""
        return self.fair_nodes > 0

    @property
    def owed_nodes(self) -> int:
        """How many nodes it lacks of the floor that it wants now, or may not lend."""
        return max(0, self.kept_nodes - self.owned_nodes)


def side_shares(
    pool: PoolPolicy, places: Sequence[Place], demands: Iterable[Demand], floors: Mapping[Side, int]
) -> dict[Side, SideShare]:
    """The shares of both sides of `pool`. `places` and `demands` are the pool's; `floors` are those that hold now."""
    owned, busy = _counts(places)
    demanded = dict.fromkeys(Side, 0)
    for demand in demands:
        if not demand.impossible:
            demanded[demand.side] += demand.nodes
    wanted = {side: busy[side] + demanded[side] for side in Side}
    total = sum(owned.values())
    fair = _fair(pool, total, floors, wanted)
    unlent = {side: max(0, floors[side] - pool.share(side).lend_limit_nodes) for side in Side}
    return {
        side: SideShare(
            side=side,
            floor_nodes=floors[side],
            unlent_nodes=unlent[side],
            kept_nodes=max(unlent[side], min(floors[side], wanted[side])),
            ceiling_nodes=ceiling(pool, side, floors, len(places)),
            fair_nodes=fair[side],
            owned_nodes=owned[side],
            busy_nodes=busy[side],
            wanted_nodes=wanted[side],
        )
        for side in Side
    }


def ceiling(pool: PoolPolicy, side: Side, floors: Mapping[Side, int], nodes: int) -> int:
    """The most nodes `side` may own: the smaller of its maximum and floor + borrow limit; all `nodes` without them."""
    share = pool.share(side)
    limits = [nodes]
    if share.max_nodes is not None:
        limits.append(share.max_nodes)
    if share.borrow_limit_nodes is not None:
        limits.append(floors[side] + share.borrow_limit_nodes)
    return min(limits)


def _counts(places: Iterable[Place]) -> tuple[dict[Side, int], dict[Side, int]]:
    """(owned, busy) by side. One walk: this is the hot path of a plan over thousands of nodes."""
    owned, busy = dict.fromkeys(Side, 0), dict.fromkeys(Side, 0)
    for place in places:
        side = place.heading_for
        if side is None:
            continue
        if place.handoff is not None:
            owned[side] += 1
            continue
        facts = place.sight.side(side)
        if not facts.unknown and facts.ready:
            owned[side] += 1
            busy[side] += not facts.free
    return owned, busy


def _fair(pool: PoolPolicy, total: int, floors: Mapping[Side, int], wanted: Mapping[Side, int]) -> dict[Side, float]:
    """Weighted max-min of what the floors leave. What nobody wants is shared by weight as well."""
    surplus = max(0, total - sum(floors.values()))
    weights = {side: pool.share(side).weight for side in Side}
    parts = _by_weight(surplus, weights)
    needs = {side: float(max(0, wanted[side] - floors[side])) for side in Side}
    for side in Side:
        unneeded = max(0.0, parts[side] - needs[side])
        missing = max(0.0, needs[side.other] - parts[side.other])
        if weights[side.other] > 0:
            shift = min(unneeded, missing)
            parts[side] -= shift
            parts[side.other] += shift
    return {side: floors[side] + parts[side] for side in Side}


def _by_weight(amount: float, weights: Mapping[Side, float]) -> dict[Side, float]:
    total = sum(weights.values())
    return {side: amount * weights[side] / total if total else 0.0 for side in weights}


@dataclass(frozen=True, slots=True)
class TeamStanding:
    """A team across both sides and all pools. `holds_nodes` counts GPUs in use as parts of whole nodes.

    `ceiling_nodes` is guarantee + borrow limit, None without a limit. `ratio` is its fair-share ratio: 1 has used
    exactly its part, 0 nothing.
    """

    team: str
    guarantee_nodes: int
    ceiling_nodes: int | None
    holds_nodes: float
    ratio: float

    @property
    def spare_nodes(self) -> float:
        """How many nodes may be taken from it by ending its work."""
        return max(0.0, self.holds_nodes - self.guarantee_nodes)


def team_standings(
    policy: Policy, works: Iterable[Work], usage: Mapping[str, float], gpus_of: Mapping[str, int]
) -> dict[str, TeamStanding]:
    """Every team that the policy names or that runs or ran something. `gpus_of`: GPUs by node name.

    Only what runs counts as held and used, never what was asked for.
    """
    holds: dict[str, float] = {}
    for work in works:
        nodes_held = held_nodes(work, gpus_of)
        holds[work.team] = holds.get(work.team, 0.0) + nodes_held
    names = {*(team.name for team in policy.teams), *holds, *usage}
    weights = {name: team.weight if (team := policy.team(name)) else 1.0 for name in names}
    total_usage, total_weight = sum(usage.values()), sum(weights.values())
    found = {}
    for name in sorted(names):
        team = policy.team(name)
        guarantee = team.guarantee_nodes if team else 0
        limit = team.borrow_limit_nodes if team else None
        found[name] = TeamStanding(
            team=name,
            guarantee_nodes=guarantee,
            ceiling_nodes=None if limit is None else guarantee + limit,
            holds_nodes=holds.get(name, 0.0),
            ratio=_ratio(usage.get(name, 0.0), total_usage, weights[name], total_weight),
        )
    return found


def held_nodes(work: Work, gpus_of: Mapping[str, int]) -> float:
    """Nodes that `work` takes up: all of a gang's, or the part of one node whose GPUs it uses."""
    if len(work.nodes) != 1:
        return float(len(work.nodes))
    size = gpus_of.get(work.nodes[0], 0)
    return min(1.0, work.gpus / size) if size and work.gpus else 1.0


def _ratio(usage: float, total_usage: float, weight: float, total_weight: float) -> float:
    if total_usage <= 0:
        return 0.0
    if weight <= 0:
        return float("inf") if usage > 0 else 0.0
    return (usage / total_usage) / (weight / total_weight)
