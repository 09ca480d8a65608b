"""Judges a move that a person orders. Their word replaces idle age and minimum hold; never a floor, pause or fact."""

from __future__ import annotations

from datetime import datetime

from bridge.model.ledger import Request
from bridge.model.ownership import Owner
from bridge.model.pause import PauseKind
from bridge.model.policy import Policy
from bridge.planning.snapshot import Move, Place, Snapshot, count_nodes, obstacle, owned_usable
from bridge.planning.timetable import floors


def judge_order(request: Request, snapshot: Snapshot, policy: Policy, now: datetime) -> Move | str:
    """The move that `request` asks for, whole, or a sentence that says why it is refused and what would help."""
    if snapshot.unknown:
        return f"UNKNOWN moves nothing: {'; '.join(snapshot.unknown)}"
    source = request.destination.other
    places: list[Place] = []
    names = tuple(dict.fromkeys(request.nodes))
    for name in names:
        place = snapshot.place(name)
        if place is None:
            return f"node {name} is not in the inventory: `bridgectl nodes` lists it"
        for pause in snapshot.pauses:
            if pause.kind is not PauseKind.BREAKER and pause.scope.covers(place.record.node.pool, name):
                return f"paused ({pause}): `{pause.scope.ended_by}` first"
        found = obstacle(place, source)
        if found:
            return f"node {name} cannot be taken from {source}: {found}"
        places.append(place)
    broken = _broken_floor(places, snapshot, policy, request, now)
    if broken:
        return broken
    return Move(names, source, request.destination, request.reason, evict=True, requested_by=request.requested_by)


def _broken_floor(places: list[Place], snapshot: Snapshot, policy: Policy, request: Request, now: datetime) -> str:
    source = request.destination.other
    for pool in policy.pools:
        leaving = sum(
            place.record.node.pool == pool.name and place.lease.owner is not Owner.BRIDGE and place.usable(source)
            for place in places
        )
        usable, floor = owned_usable(snapshot.of_pool(pool.name), source), floors(pool, policy.timezone, now)[source]
        if leaving and usable - leaving < floor:
            return (
                f"{source} has {count_nodes(usable, 'usable')} in pool {pool.name} and a floor of {floor}: "
                f"{leaving} fewer would break it; change the policy first"
            )
    return ""
