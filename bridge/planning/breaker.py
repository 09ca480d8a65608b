"""The circuit breaker of a pool: whether the planner should begin nothing there, after what lately happened. Pure.

``Bounded``
    It trips when within a window too many leases ended badly (a step was not done by its deadline), when too many nodes
    are out at once, or when the policy began too many moves. What runs goes on to its end; what people order, a recall
    too, is begun all the same. It ends when a person resumes the pool, or by itself once none of that has held for the
    cool-down.

After a person's word only later endings and moves count, and nodes that are out are not judged before they were fewer
once: whoever looked knows of them. That a node was overtaken by a restored ledger, or not taken in on its first day,
says nothing about handoffs. Where a side shows none of its nodes, it is our sight that fails and not they.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from bridge.model.handoff import ADOPTER
from bridge.model.ledger import Ended
from bridge.model.ownership import Side
from bridge.model.pause import Pause, PauseKind, Reach, Scope
from bridge.model.policy import PoolPolicy
from bridge.planning.planner import PLANNER
from bridge.planning.snapshot import Place, count_nodes

ACTOR = "breaker"
"""Who sets and ends these pauses, in the ledger's words."""


def judge(
    pool: PoolPolicy, places: Sequence[Place], ended: Sequence[Ended], before: Pause | None, now: datetime
) -> Pause | None:
    """What should stand of the breaker of `pool` at `now`, when `before` stood: None when nothing should.

    `places` are those of the pool, with the handoffs that run; `ended` the handoffs of all pools that ended lately.
    """
    released_at = before.released_at if before is not None else None
    since = now - timedelta(seconds=pool.breaker.window_s)
    names = {place.name for place in places}
    lately = [each for each in ended if each.node in names and each.ended_at <= now]
    counted_from = since if released_at is None else max(since, released_at)
    troubles = [*_endings(pool, lately, counted_from), *_moves(pool, places, lately, counted_from, now)]
    out = _nodes_out(pool, places)
    if before is None or released_at is not None:
        troubles += [out] if out and before is None else []
        if troubles:
            scope = Scope(Reach.POOL, pool.name)
            return Pause(scope, "; ".join(troubles), ACTOR, now, PauseKind.BREAKER)
        over = released_at is not None and released_at <= since and not out
        return None if over else before
    if troubles or out:
        return replace(before, calm_since=None)
    # A clock that was set back must not make the cool-down longer.
    calm_since = min(before.calm_since or now, now)
    if now - calm_since >= timedelta(seconds=pool.breaker.cool_down_s):
        return None
    return replace(before, calm_since=calm_since)


def _endings(pool: PoolPolicy, ended: Sequence[Ended], since: datetime) -> Iterator[str]:
    """Leases, not nodes: a gang goes back whole because of one of them."""
    late = {
        each.lease: each.late_in
        for each in ended
        if each.late_in is not None and each.ended_at > since and each.requested_by != ADOPTER
    }
    most = pool.breaker.max_late_leases
    if len(late) > most:
        steps = ", ".join(f"{step} {count}" for step, count in sorted(Counter(late.values()).items()))
        yield f"{len(late)} leases ended badly within {pool.breaker.window_s:g} s, at most {most}; late in: {steps}"


def _moves(
    pool: PoolPolicy, places: Sequence[Place], ended: Sequence[Ended], since: datetime, now: datetime
) -> Iterator[str]:
    running = [place.handoff for place in places if place.handoff is not None]
    began = [each.began_at for each in running if each.requested_by == PLANNER]
    began += [each.began_at for each in ended if each.requested_by == PLANNER]
    moves = sum(since < at <= now for at in began)
    most = max(pool.breaker.max_moves, len(places))
    if moves > most:
        yield f"the policy began {moves} moves within {pool.breaker.window_s:g} s, at most {most}"


def _nodes_out(pool: PoolPolicy, places: Sequence[Place]) -> str:
    """Nodes at rest of no use to anybody: drained by people, quarantined, down, or UNKNOWN while others are known."""
    blind = [side for side in Side if not any(_owned(place, side) and place.sight.side(side).known for place in places)]
    out = sum(place.handoff is None and _is_out(place) for place in places if place.lease.owner.side not in blind)
    asked = pool.breaker
    if out < asked.min_out_nodes or out <= asked.max_out_fraction * len(places):
        return ""
    return (
        f"{count_nodes(out)} of {len(places)} are drained by people, quarantined, down or UNKNOWN, at most "
        f"{asked.max_out_fraction:.0%}"
    )


def _owned(place: Place, side: Side) -> bool:
    return place.lease.owner is side.owner


def _is_out(place: Place) -> bool:
    side = place.lease.owner.side
    return side is None or not place.usable(side)
