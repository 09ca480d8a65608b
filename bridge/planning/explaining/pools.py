"""How a pool stands: its floors now, who owns what, what may be lent, and why the rest of its nodes stays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from bridge.model.ownership import Side
from bridge.model.policy import PoolPolicy
from bridge.planning.entitlement import SideShare
from bridge.planning.explaining.answer import NODES, Estimate, Explanation, Kind, Link, Remedy, ranked
from bridge.planning.explaining.layers import command_for, grouped, named, paused
from bridge.planning.explaining.scene import Scene
from bridge.planning.explaining.teams import scene_unknown
from bridge.planning.headroom import headroom_nodes
from bridge.planning.refusals import refusal
from bridge.planning.snapshot import count_nodes
from bridge.planning.timetable import next_change

PAUSE, FLOORS, HEADROOM, DEMAND, TIMETABLE = "pause", "floors", "headroom", "demand", "timetable"
LOOK_AHEAD = timedelta(days=8)
"""A timetable repeats every week."""


def explain_pool(scene: Scene, name: str) -> Explanation | None:
    """None: the policy has no such pool."""
    pool = scene.policy.pool(name)
    if pool is None:
        return None
    subject, shares = f"pool {name}", scene.shares(pool)
    links = (
        *scene_unknown(scene),
        *(paused(pause, PAUSE) for pause in scene.snapshot.halting(name)),
        *(_side(pool, shares[side]) for side in Side),
        _headroom(scene, pool),
        *_demand(scene, pool),
        *_nodes(scene, pool),
        *_timetable(scene, pool),
    )
    first = next((link for link in links if link.holds), None)
    owns = ", ".join(f"{side} owns {shares[side].owned_nodes}" for side in Side)
    total = len(scene.snapshot.of_pool(name))
    text = f"{subject} has {count_nodes(total)}: {owns}"
    text += f"; {first.text}." if first else "; no floor is broken and no demand waits for a node."
    return Explanation(Kind.POOL, subject, text, links, _remedies(scene, pool), _when(scene, pool))


def _side(pool: PoolPolicy, share: SideShare) -> Link:
    lent = share.floor_nodes - share.kept_nodes
    lending = f", lends {lent} of it now" if lent > 0 else ""
    text = (
        f"{share.side}: floor {share.floor_nodes}{lending}, fair share {share.fair_nodes:.4g}, at most "
        f"{share.ceiling_nodes}; owns {share.owned_nodes}, {share.busy_nodes} busy, wants {share.wanted_nodes}"
    )
    if share.owed_nodes:
        text += f"; owed {share.owed_nodes}"
    numbers = {
        "floor_nodes": share.floor_nodes,
        "kept_nodes": share.kept_nodes,
        "lend_limit_nodes": pool.share(share.side).lend_limit_nodes,
        "ceiling_nodes": share.ceiling_nodes,
        "fair_nodes": share.fair_nodes,
        "owned_nodes": share.owned_nodes,
        "busy_nodes": share.busy_nodes,
        "wanted_nodes": share.wanted_nodes,
    }
    return Link(FLOORS, share.owed_nodes > 0, text, numbers, "bridgectl policy show")


def _headroom(scene: Scene, pool: PoolPolicy) -> Link:
    side = Side.KUBERNETES
    wanted = headroom_nodes(pool.headroom, scene.snapshot.reclaim_s.get(side, ()), pool.gpus)
    places = scene.snapshot.of_pool(pool.name)
    idle = sum(place.usable(side) and place.sight.side(side).idle for place in places)
    arriving = sum(place.handoff is not None and place.heading_for is side for place in places)
    text = f"headroom {wanted} ({pool.headroom.mode}): {count_nodes(idle, 'idle')} in Kubernetes, {arriving} arriving"
    numbers = {"wanted_nodes": wanted, "idle_nodes": idle, "arriving_nodes": arriving}
    return Link(HEADROOM, wanted > idle + arriving, text, numbers, "bridgectl plan")


def _demand(scene: Scene, pool: PoolPolicy) -> Iterator[Link]:
    for side in Side:
        waits = [demand for demand in scene.demands(pool) if demand.side is side]
        if not waits:
            continue
        unmet = [demand for demand in waits if scene.told(demand.key)]
        more = "at least " if scene.told(f"{side} queue") else ""
        asked = sum(demand.nodes for demand in waits)
        text = f"{side} demands for {count_nodes(asked)} in all: {len(waits)}, not met by the plan: {more}{len(unmet)}"
        text += f", first {unmet[0].key}" if unmet else ""
        numbers = {"demands": len(waits), "asked_nodes": asked, "not_met": len(unmet)}
        yield Link(DEMAND, bool(unmet), text, numbers, "bridgectl plan")


def _nodes(scene: Scene, pool: PoolPolicy) -> Iterator[Link]:
    """Why the nodes of each side could not be given to the other, a link a reason."""
    places = {place.name: place for place in scene.snapshot.of_pool(pool.name)}
    for side in Side:
        reasons = {
            place.name: reason
            for place in places.values()
            if place.lease.owner is side.owner and (reason := refusal(place, side, pool, scene.now))
        }
        for reason, names in grouped(reasons).items():
            text = f"{count_nodes(len(names))} of {side} ({named(names)}): {reason}"
            yield Link(NODES, False, text, {"nodes": len(names)}, command_for(places[names[0]], reason))
    nobody = [place for place in places.values() if place.lease.owner.side is None]
    moving = [place.name for place in nobody if place.handoff is not None]
    resting = [place.name for place in nobody if place.handoff is None]
    if moving:
        yield Link(
            NODES,
            False,
            f"{count_nodes(len(moving))} in motion ({named(moving)})",
            {"nodes": len(moving)},
            "bridgectl handoffs",
        )
    if resting:
        text = (
            f"{count_nodes(len(resting))} of nobody ({named(resting)}): {places[resting[0]].record.unusable or 'spare'}"
        )
        yield Link(NODES, False, text, {"nodes": len(resting)}, f"bridgectl nodes {resting[0]}")


def _timetable(scene: Scene, pool: PoolPolicy) -> Iterator[Link]:
    change = next_change(pool, scene.policy.timezone, scene.now, within=LOOK_AHEAD)
    if change is None:
        return
    at, then = change
    floors = ", ".join(f"{side} {then[side]}" for side in Side)
    in_s = (at - scene.now).total_seconds()
    text = f"floors change at {at:%Y-%m-%d %H:%M} UTC to {floors}"
    yield Link(
        TIMETABLE,
        False,
        text,
        {"in_s": in_s, **{f"{side}_floor_nodes": then[side] for side in Side}},
        "bridgectl policy show",
    )


def _remedies(scene: Scene, pool: PoolPolicy) -> tuple[Remedy, ...]:
    found = []
    for place in scene.snapshot.of_pool(pool.name):
        for side in Side:
            foreign = place.sight.side(side).foreign
            if foreign:
                text = f"give {place.name} back to service once it is mended ({foreign})"
                found.append(Remedy(text, command=f"bridgectl explain node {place.name}"))
    return ranked(found)


def _when(scene: Scene, pool: PoolPolicy) -> Estimate:
    change = next_change(pool, scene.policy.timezone, scene.now, within=LOOK_AHEAD)
    if change is None:
        return Estimate(None, "no timetable changes its floors within a week")
    return Estimate((change[0] - scene.now).total_seconds(), "then its timetable changes the floors")
