"""What a team has, may have and waits for, across both schedulers."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.model.demand import Demand
from bridge.planning.entitlement import TeamStanding
from bridge.planning.explaining.answer import QUOTA, Estimate, Explanation, Kind, Link, Remedy
from bridge.planning.explaining.help import APPLY
from bridge.planning.explaining.layers import named
from bridge.planning.explaining.scene import Scene
from bridge.planning.snapshot import count_nodes

GUARANTEE, FAIR_SHARE, QUEUE = "guarantee", "fair share", "queue"


def explain_team(scene: Scene, name: str) -> Explanation | None:
    """None: the policy does not name it, and it neither runs, ran nor waits."""
    waits = [demand for demand in scene.snapshot.demands if demand.team == name]
    standing = scene.standings.get(name)
    if standing is None:
        if not waits:
            return None
        standing = TeamStanding(name, 0, None, 0.0, 0.0)
    subject = f"team {name}"
    links = (*scene_unknown(scene), *_entitled(scene, standing, waits), *_queue(scene, standing, waits))
    first = next((link for link in links if link.holds), None)
    asked = sum(demand.nodes for demand in waits)
    if first is not None:
        text = f"{subject} waits for {count_nodes(asked)}: {first.text}."
    elif waits:
        text = f"{subject} waits for {count_nodes(asked)}, and no limit of its own is in the way."
    else:
        text = f"{subject} holds {standing.holds_nodes:.4g} nodes and waits for nothing."
    helps = (Remedy("raise its borrow_limit_nodes", command=APPLY),) if first and first.layer == QUOTA else ()
    when = Estimate(None, "ask for one of its jobs or pods" if waits else "it does not wait for anything")
    return Explanation(Kind.TEAM, subject, text, links, helps, when)


def scene_unknown(scene: Scene) -> Iterator[Link]:
    """Sides that could not be read: what a team or a pool holds there is not known."""
    for detail in scene.snapshot.unknown:
        yield Link("sight", True, f"UNKNOWN: {detail}; what is there is not counted", {}, "bridgectl status")


def _entitled(scene: Scene, standing: TeamStanding, waits: list[Demand]) -> Iterator[Link]:
    holds, guarantee, limit = standing.holds_nodes, standing.guarantee_nodes, standing.ceiling_nodes
    under = f", {guarantee - holds:.4g} under it: its demand goes first" if holds < guarantee else ""
    text = f"holds {holds:.4g} nodes, {guarantee} are guaranteed{under}"
    numbers: dict[str, float | int | str] = {"holds_nodes": holds, "guarantee_nodes": guarantee}
    yield Link(GUARANTEE, False, text, numbers, "bridgectl policy show")
    smallest = min((demand.nodes for demand in waits), default=0)
    if limit is None:
        yield Link(QUOTA, False, "it has no limit", numbers, "bridgectl policy show")
    else:
        over = bool(waits) and holds + smallest > limit
        text = f"may hold {limit} nodes, holds {holds:.4g}" + (
            f", its smallest demand asks for {smallest}" if waits else ""
        )
        yield Link(
            QUOTA, over, text, {**numbers, "ceiling_nodes": limit, "smallest": smallest}, "bridgectl policy show"
        )
    used, total = scene.snapshot.usage.get(standing.team, 0.0), sum(scene.snapshot.usage.values())
    text = (
        f"fair-share ratio {standing.ratio:.2f} (1: just its part): {used / 3600:.1f} of {total / 3600:.1f} GPU-hours, "
        "halved every half-life"
    )
    numbers = {"ratio": standing.ratio, "usage_gpu_s": used, "usage_of_all_gpu_s": total}
    yield Link(FAIR_SHARE, False, text, numbers, "sshare -l")


def _queue(scene: Scene, standing: TeamStanding, waits: list[Demand]) -> Iterator[Link]:
    """Whose demand goes before the team's first one: more rank, or the same rank and a smaller ratio."""
    if not waits:
        return
    rank = max(demand.rank for demand in waits)
    pools = {demand.pool for demand in waits}
    ratios = {team: other.ratio for team, other in scene.standings.items()}
    before = sorted(
        {
            demand.team
            for demand in scene.snapshot.demands
            if demand.team != standing.team
            and demand.pool in pools
            and not demand.impossible
            and (-demand.rank, ratios.get(demand.team, 0.0)) < (-rank, standing.ratio)
        }
    )
    numbers = {"waits_for_nodes": sum(demand.nodes for demand in waits), "teams_before": len(before)}
    text = f"waits behind {named(before)}: more rank or a smaller ratio" if before else "no other team goes before it"
    yield Link(QUEUE, bool(before), text, numbers, "bridgectl plan")
