"""The layers of a demand's chain after its scheduler's own limits: quota, fit, nodes, device plugin.

The same functions as the planner's answer here (`entitlement`, `refusals`, `stock`), so that both say the same; what
only the order of a plan decides is quoted in the planner's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.model.ownership import Owner, Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind
from bridge.model.policy import PreemptionMode
from bridge.planning.explaining.answer import DEVICE_PLUGIN, FIT, NODES, QUOTA, Link, Number
from bridge.planning.explaining.waiting import Waiting, wishes
from bridge.planning.refusals import BUSY
from bridge.planning.snapshot import Place, count_nodes
from bridge.planning.stock import offers, requirement

MOST_NAMES = 5
PLANNER_WORDS = 300
"""Of the planner's own words so many characters are quoted at most."""


# --- quota ---


def quota(waiting: Waiting) -> Iterator[Link]:
    """What the policy leaves for it: the links that hold, or one that says with how much room none does."""
    yield from _whole_bridge(waiting)
    yield from _of_demand(waiting)
    yield _team(waiting)
    yield _ceiling(waiting)
    yield _floor(waiting)
    yield from _order(waiting)


def _whole_bridge(waiting: Waiting) -> Iterator[Link]:
    snapshot = waiting.scene.snapshot
    for pause in snapshot.halting(waiting.pool.name):
        yield paused(pause, QUOTA)
    for detail in snapshot.unknown:
        yield Link(QUOTA, True, f"UNKNOWN: {detail}; nothing moves", command="bridgectl status")
    held_back = waiting.scene.told(f"demand in pool {waiting.pool.name}")
    if held_back:
        yield Link(QUOTA, True, f"no demand moves nodes now: {held_back}", command="bridgectl plan")


def paused(pause: Pause, layer: str, *, holds: bool = True) -> Link:
    """The link of a pause that covers what is explained."""
    whole = "the bridge" if pause.scope == EVERYTHING else pause.scope
    since = f"{pause.at:%Y-%m-%d %H:%M} UTC"
    told = {
        PauseKind.STOP: f"{whole} is paused",
        PauseKind.RECALL: f"{whole} is recalled by {pause.actor} since {since}, every lent node comes home",
        PauseKind.BREAKER: f"the circuit breaker of {whole} stops its policy's moves since {since}",
    }
    return Link(layer, holds, f"{told[pause.kind]}: {pause.reason}", command="bridgectl status")


def _of_demand(waiting: Waiting) -> Iterator[Link]:
    left_s = waiting.scene.backs_off_s(waiting.demand.key)
    if left_s > 0:
        text = f"its nodes could not be collected in time; it is left alone for {left_s:.0f} s more"
        yield Link(QUOTA, True, text, {"left_s": left_s}, "bridgectl events")
    waited_s, age_s = (waiting.scene.now - waiting.demand.since).total_seconds(), waiting.pool.demand_age_s
    if waited_s < age_s:
        text = f"it waits for {waited_s:.0f} s and counts from {age_s:.0f} s on"
        yield Link(QUOTA, True, text, {"waited_s": waited_s, "demand_age_s": age_s}, "bridgectl policy show")


def _team(waiting: Waiting) -> Link:
    demand, standing = waiting.demand, waiting.standing
    if standing is None:
        return Link(QUOTA, False, f"no team limit applies to {demand.team or 'it'}", {}, "bridgectl policy show")
    numbers: dict[str, Number] = {
        "holds_nodes": standing.holds_nodes,
        "guarantee_nodes": standing.guarantee_nodes,
        "asked_nodes": demand.nodes,
    }
    command = f"bridgectl explain team {demand.team}"
    limit = standing.ceiling_nodes
    if limit is None:
        text = f"team {demand.team} holds {standing.holds_nodes:.4g} nodes and has no limit"
        return Link(QUOTA, False, text, numbers, command)
    numbers["ceiling_nodes"] = limit
    holds = standing.holds_nodes + demand.nodes > limit
    text = (
        f"team {demand.team} holds {standing.holds_nodes:.4g} nodes and may hold {limit} "
        f"(guarantee {standing.guarantee_nodes}), {demand.nodes} more are asked"
    )
    return Link(QUOTA, holds, text, numbers, command)


def _ceiling(waiting: Waiting) -> Link:
    share, room = waiting.shares[waiting.side], waiting.room
    heading = sum(place.heading_for is waiting.side for place in waiting.places)
    text = (
        f"{waiting.side} owns {heading} of at most {share.ceiling_nodes} nodes of pool {waiting.pool.name}, "
        f"{waiting.lacking} more are needed"
    )
    numbers = {"owned_nodes": heading, "ceiling_nodes": share.ceiling_nodes, "lacking_nodes": waiting.lacking}
    limited = share.ceiling_nodes < len(waiting.places)
    return Link(QUOTA, limited and waiting.lacking > room, text, numbers, f"bridgectl explain pool {waiting.pool.name}")


def _floor(waiting: Waiting) -> Link:
    other = waiting.side.other
    share = waiting.shares[other]
    usable = sum(place.usable(other) for place in waiting.places)
    nobody = f", {waiting.spare} are nobody's" if waiting.spare else ""
    text = (
        f"{other} has {count_nodes(usable, 'usable')} and keeps {share.kept_nodes} of its floor {share.floor_nodes}: "
        f"it may give {waiting.may_give}{nobody}, {waiting.lacking} needed"
    )
    numbers = {
        "usable_nodes": usable,
        "floor_nodes": share.floor_nodes,
        "kept_nodes": share.kept_nodes,
        "may_give_nodes": waiting.may_give,
        "lacking_nodes": waiting.lacking,
    }
    # Where nothing is above the floor the floor is the reason only if there is something below it to be had.
    holds = share.kept_nodes > 0 and waiting.lacking > waiting.may_give + waiting.spare
    return Link(QUOTA, holds, text, numbers, f"bridgectl explain pool {waiting.pool.name}")


def _order(waiting: Waiting) -> Iterator[Link]:
    if waiting.ahead:
        first = waiting.ahead[0]
        text = f"one gang at a time: {first.key} comes first and lacks nodes"
        numbers = {"before": len(waiting.ahead), "first_asks_nodes": first.nodes}
        command = "squeue --states=PD --sort=-p" if waiting.side is Side.SLURM else "bridgectl plan"
        yield Link(QUOTA, True, text, numbers, command)
    running, most = sum(place.handoff is not None for place in waiting.places), waiting.pool.max_in_flight
    alone = waiting.demand.whole and running == 0
    needed = waiting.lacking if waiting.demand.whole else min(waiting.lacking, 1)
    if not alone and needed > most - running:
        text = f"{running} handoffs run, at most {most} at a time"
        yield Link(QUOTA, True, text, {"running": running, "max_in_flight": most}, "bridgectl handoffs")


# --- fit ---


def fit(waiting: Waiting) -> Iterator[Link]:
    """Whether the nodes of the pool could hold it at all, and whether what is free is free in whole nodes."""
    demand, pool = waiting.demand, waiting.pool
    if demand.impossible:
        yield Link(FIT, True, demand.impossible, {"asked_nodes": demand.nodes}, "bridgectl policy show")
        return
    offering = sum(offers(place, requirement(demand)) for place in waiting.places)
    numbers = {"asked_nodes": demand.nodes, "pool_nodes": len(waiting.places), "offering_nodes": offering}
    asked = f"it asks for {count_nodes(demand.nodes, 'whole')}"
    if demand.gpus_per_node:
        asked += f" with {demand.gpus_per_node} GPUs"
    if demand.features:
        asked += f" that offer {wishes(demand)}"
    text = f"{asked}; pool {pool.name} has {len(waiting.places)}, {offering} of them offer that"
    needed = demand.nodes if demand.whole else min(1, demand.nodes)
    command = f"sinfo -N -p {pool.partition} -o '%N %G %f'"
    yield Link(FIT, offering < needed, text, numbers, command)
    yield from _fragmentation(waiting)


def _fragmentation(waiting: Waiting) -> Iterator[Link]:
    """Free GPUs against free whole nodes, on the demand's own side."""
    side = waiting.side
    own = [place for place in waiting.places if place.usable(side)]
    free = {place.name: waiting.scene.free_gpus(place, side) or 0 for place in own}
    whole = sum(place.sight.side(side).idle or waiting.is_planned(place) for place in own)
    gpus = sum(free.values())
    asked = waiting.pod_gpus or waiting.demand.nodes * (waiting.demand.gpus_per_node or waiting.pool.gpus)
    numbers = {"free_gpus": gpus, "free_whole_nodes": whole, "asked_gpus": asked}
    command = f"sinfo -N -p {waiting.pool.partition} -O NodeList,Gres,GresUsed"
    if side is Side.KUBERNETES:
        command = "kubectl describe nodes | grep -A 8 'Allocated resources'"
    if waiting.pod_gpus:
        most = max(free.values(), default=0)
        text = f"its nodes in Kubernetes have {gpus} free GPUs, at most {most} on one; the pod asks for {asked}"
        yield Link(FIT, gpus >= asked > most, text, {**numbers, "most_free_on_a_node": most}, command)
        return
    text = f"on the nodes of {side} {gpus} GPUs are free, {count_nodes(whole)} wholly; it asks for {asked} GPUs"
    yield Link(FIT, gpus >= asked and whole < waiting.demand.nodes, text, numbers, command)


# --- nodes ---


def nodes(waiting: Waiting) -> Iterator[Link]:
    """How many nodes could be had, then why the others could not, a link a reason.

    Nodes that only lack GPUs are counted apart: where they would be enough the obstacle is their device plugin.
    """
    needed = waiting.demand.nodes
    arriving = sum(place.handoff is not None for place in waiting.had)
    free = len(waiting.had) - arriving
    own_poor = [name for name in waiting.refused if name in _own_poor(waiting)]
    short = free + arriving + len(waiting.takeable) + len(own_poor) < needed
    text = (
        f"{needed} needed: {free} free on the {waiting.side} side, {arriving} arriving, {len(waiting.takeable)} "
        f"could be handed over, {len(waiting.refused)} could not"
    )
    if own_poor:
        text += f", {len(own_poor)} of them offer too few GPUs"
    numbers = {
        "needed_nodes": needed,
        "free_nodes": free,
        "arriving_nodes": arriving,
        "takeable_nodes": len(waiting.takeable),
        "refused_nodes": len(waiting.refused),
    }
    yield Link(NODES, short, text, numbers, "bridgectl nodes")
    by_name = {place.name: place for place in waiting.places}
    for reason, found in grouped(waiting.refused).items():
        text = f"{count_nodes(len(found))} ({named(found)}): {reason}"
        yield Link(NODES, short, text, {"nodes": len(found)}, command_for(by_name[found[0]], reason))
    if short:
        yield from _ending(waiting)


def _ending(waiting: Waiting) -> Iterator[Link]:
    """Whether work of the other side may be ended for it: its side's fair share, its team's guarantee, the mode."""
    other, share = waiting.side.other, waiting.shares[waiting.side]
    if not any(p.lease.owner is other.owner and waiting.refused.get(p.name) == BUSY for p in waiting.places):
        return
    mode, standing = waiting.pool.preemption.mode, waiting.standing
    guaranteed = standing is not None and standing.holds_nodes < standing.guarantee_nodes
    entitled = guaranteed or share.owned_nodes + 1 <= share.fair_nodes
    whose = f"team {waiting.demand.team} is below its guarantee" if guaranteed else "it is below that"
    claim = whose if entitled else "it has a claim to no more"
    text = (
        f"work of {other} may be ended for {waiting.side} up to its fair share: it owns {share.owned_nodes} of "
        f"{share.fair_nodes:.4g}, {claim}; preemption is {mode}"
    )
    numbers: dict[str, Number] = {
        "owned_nodes": share.owned_nodes,
        "fair_nodes": share.fair_nodes,
        "preemption": str(mode),
    }
    holds = not entitled or mode is not PreemptionMode.REQUEUE
    yield Link(NODES, holds, text, numbers, f"bridgectl explain pool {waiting.pool.name}")


def _own_poor(waiting: Waiting) -> frozenset[str]:
    """Nodes at rest on the demand's side in Kubernetes that would be free for it if they offered their GPUs."""
    if waiting.side is not Side.KUBERNETES:
        return frozenset()
    return frozenset(
        place.name
        for place in waiting.places
        if place.name in waiting.poor
        and place.handoff is None
        and place.lease.owner is Owner.KUBERNETES
        and place.sight.kubernetes.idle
        and not place.sight.kubernetes.foreign
    )


def grouped(reasons: dict[str, str]) -> dict[str, list[str]]:
    """Reason -> nodes, the most frequent first. Reasons that differ only in numbers are one, shown by its first."""
    kinds: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        kinds.setdefault(re.sub(r"\d+(\.\d+)?", "N", reason), []).append(name)
    ordered = sorted(kinds.values(), key=lambda names: (-len(names), names))
    return {reasons[names[0]]: names for names in ordered}


def named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def command_for(place: Place, reason: str) -> str:
    """What an operator would type to see `reason` of a node."""
    node = place.record.node
    if "UNKNOWN" in reason or reason == f"paused: {place.paused}":
        return "bridgectl status"
    if place.handoff is not None:
        return f"bridgectl handoffs --node {node.name}"
    if BUSY in reason:
        in_slurm = place.lease.owner is Owner.SLURM
        return f"squeue -w {node.slurm_name}" if in_slurm else pods_on(node.kube_name)
    if f"on the {Side.SLURM} side" in reason:
        return f"scontrol show node {node.slurm_name}"
    if f"on the {Side.KUBERNETES} side" in reason:
        return f"kubectl describe node {node.kube_name}"
    return f"bridgectl nodes {node.name}"


def pods_on(kube_name: str) -> str:
    return f"kubectl get pods -A --field-selector spec.nodeName={kube_name}"


# --- device plugin ---

ALLOCATABLE = "kubectl describe nodes | grep nvidia.com/gpu"


def device_plugin(waiting: Waiting) -> Iterator[Link]:
    """Ready nodes that offer fewer GPUs to Kubernetes than the pool says."""
    if waiting.scene.seen.unreadable(Side.KUBERNETES):
        return
    poor = waiting.poor
    if not poor:
        yield Link(DEVICE_PLUGIN, False, "every node that is Ready in Kubernetes offers all its GPUs", {}, ALLOCATABLE)
        return
    by_name = {place.name: place for place in waiting.places}
    for reason, found in grouped(poor).items():
        matters = waiting.lacking > len(waiting.takeable) and bool(_own_poor(waiting).intersection(found))
        text = f"{count_nodes(len(found))} ({named(found)}): {reason}; see `bridgectl explain node {found[0]}`"
        command = f"kubectl describe node {by_name[found[0]].record.node.kube_name}"
        yield Link(DEVICE_PLUGIN, matters, text, {"nodes": len(found)}, command)


# --- all of it ---


def chain(waiting: Waiting, limits: tuple[Link, ...]) -> tuple[Link, ...]:
    """All links in order. Where none holds and the plan yet does not meet the demand, the planner's words are one."""
    found = [*limits, *quota(waiting), *fit(waiting), *nodes(waiting), *device_plugin(waiting)]
    words = waiting.scene.told(waiting.demand.key)
    if not words and waiting.lacking:
        words = waiting.scene.told(f"{waiting.side} queue")
    if words and not any(link.holds for link in found) and not waiting.scene.gets(waiting.demand):
        last_quota = max(index for index, link in enumerate(found) if link.layer == QUOTA)
        short = words if len(words) <= PLANNER_WORDS else words[:PLANNER_WORDS] + "…"
        found.insert(last_quota + 1, Link(QUOTA, True, f"the plan says: {short}", command="bridgectl plan"))
    return tuple(found)
