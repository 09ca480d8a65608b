"""Who owns a node, why it does not move, and, layer by layer, why Kubernetes may see no GPU on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from bridge.lifecycle.facts import SideFacts
from bridge.model.handoff import Handoff
from bridge.model.kube import KubeNode
from bridge.model.ownership import Owner, Side
from bridge.model.pause import Reach
from bridge.model.policy import PoolPolicy
from bridge.planning.adoption import ASSUMED
from bridge.planning.explaining.answer import DEVICE_PLUGIN, Estimate, Explanation, Kind, Link, Remedy, ranked
from bridge.planning.explaining.layers import paused, pods_on
from bridge.planning.explaining.scene import Scene
from bridge.planning.recall import recalling
from bridge.planning.refusals import hold_refusal
from bridge.planning.snapshot import Place, count_nodes

LEASE, HANDOFF, PAUSE, WORK, POLICY, DEMAND = "lease", "handoff", "pause", "work", "policy", "demand"
HARDWARE, LABELS, TAINTS, ALLOCATABLE = "driver", "labels", "taints", "allocatable"

PCI_LABEL = "feature.node.kubernetes.io/pci-10de.present"
"""Node Feature Discovery: an NVIDIA device is on the PCI bus."""
PLUGIN_LABEL = "nvidia.com/gpu.deploy.device-plugin"
PRESENT_LABEL = "nvidia.com/gpu.present"


def explain_node(scene: Scene, name: str) -> Explanation | None:
    """None: no node of that name, in either scheduler's spelling, has a lease."""
    place = next((p for p in scene.snapshot.places if name in _names(p)), None)
    if place is None:
        return None
    pool = scene.policy.pool(place.record.node.pool)
    links = (
        _lease(place, scene.now),
        *_handoff(place, scene.now),
        *_paused(scene, place),
        *_sides(place),
        *_work(scene, place),
        *(_policy(scene, place, pool) if pool else ()),
        *_gpus(scene, place),
        *_not_ready(place),
        *(_demand(scene, place, pool) if pool else ()),
    )
    first = next((link for link in links if link.holds), None)
    owner = "nobody" if place.lease.owner is Owner.BRIDGE else str(place.lease.owner)
    subject = f"node {place.name}"
    move = next((move for move in scene.planned.moves if place.name in move.nodes), None)
    if move is not None:
        text = f"{subject} moves to {move.destination} with the plan of this moment: {move.reason}."
    elif first is None:
        needs = "nobody" if place.lease.owner is Owner.BRIDGE else "nobody on the other side"
        text = f"{subject} belongs to {owner} and could move: {needs} needs it now."
    else:
        text = f"{subject} belongs to {owner} and stays: {first.text}."
    return Explanation(Kind.NODE, subject, text, links, _remedies(place), _when(scene, place))


def _names(place: Place) -> tuple[str, ...]:
    node = place.record.node
    return (node.name, node.slurm_name, node.kube_name)


def _lease(place: Place, now: datetime) -> Link:
    if place.lease.id == ASSUMED:
        text = f"not taken in yet, and planned for as if it were {place.lease.owner}'s"
        return Link(LEASE, False, text, {}, f"bridgectl nodes {place.name}")
    lease, held_s = place.lease, (now - place.lease.owner_since).total_seconds()
    owner = "nobody owns it, both sides are closed" if lease.owner is Owner.BRIDGE else f"{lease.owner} owns it"
    text = f"{owner} for {held_s:.0f} s, lease {lease.id}, generation {lease.generation}"
    numbers = {"held_s": held_s, "epoch": lease.epoch, "generation": lease.generation}
    return Link(LEASE, False, text, numbers, f"bridgectl nodes {place.name}")


def _handoff(place: Place, now: datetime) -> Iterator[Link]:
    handoff = place.handoff
    if handoff is None:
        if place.record.unusable:
            yield Link(HANDOFF, True, f"its last handoff failed: {place.record.unusable}", {}, _history(place))
        return
    left_s = (handoff.step_deadline_at - now).total_seconds()
    waits = f" and waits for: {'; '.join(handoff.blockers)}" if handoff.blockers else ""
    text = f"in motion to {handoff.destination}, step {handoff.step}{waits}"
    numbers = {
        "in_step_s": (now - handoff.step_began_at).total_seconds(),
        "deadline_in_s": left_s,
        "blockers": len(handoff.blockers),
    }
    yield Link(HANDOFF, True, text, numbers, _history(place))


def _paused(scene: Scene, place: Place) -> Iterator[Link]:
    """A lent node that is recalled is kept by the pause of its own alone."""
    name = place.record.node.pool
    pool, found = scene.policy.pool(name), [p for p in scene.snapshot.pauses if p.scope.covers(name, place.name)]
    called = pool is not None and place.heading_for is pool.home.other and recalling(found) is not None
    for pause in found:
        yield paused(pause, PAUSE, holds=not called or pause.scope.reach is Reach.NODE)


def _history(place: Place) -> str:
    return f"bridgectl handoffs --node {place.name}"


def _sides(place: Place) -> Iterator[Link]:
    """What stands against moving it that the two schedulers show: UNKNOWN, people's marks, strange marks, silence."""
    for side in Side:
        facts = place.sight.side(side)
        text = _side(side, facts)
        yield Link(str(side), bool(text), text or _state(side, facts), {}, _show(place, side))


def _side(side: Side, facts: SideFacts) -> str:
    if not facts.known:
        return f"UNKNOWN on the {side} side: {facts.unknown}"
    if facts.foreign:
        return f"{facts.foreign} on the {side} side: only who did this lifts it"
    if facts.stray_mark is not None:
        return f"carries {facts.stray_mark} on the {side} side, which the ledger does not know"
    if not facts.answers:
        return f"does not answer on the {side} side: {facts.not_ready or 'not responding'}"
    return ""


def _state(side: Side, facts: SideFacts) -> str:
    if facts.closed:
        return f"closed to {side} by both latches"
    work = "idle" if facts.idle else "busy"
    return f"open to {side} and {work}" if facts.ready else f"not ready for {side}: {facts.not_ready or 'not open'}"


def _show(place: Place, side: Side) -> str:
    node = place.record.node
    return f"scontrol show node {node.slurm_name}" if side is Side.SLURM else f"kubectl describe node {node.kube_name}"


def _work(scene: Scene, place: Place) -> Iterator[Link]:
    node, side = place.record.node, place.lease.owner.side
    works = scene.works_on.get(place.name, [])
    command = pods_on(node.kube_name) if side is Side.KUBERNETES else f"squeue -w {node.slurm_name}"
    for work in works:
        ends = "no time limit" if work.ends_in_s is None else f"ends by its time limit in {work.ends_in_s:.0f} s"
        spared = f"; no victim: {work.protected}" if work.protected else ""
        uses = f"{work.key} of team {work.team} uses {work.gpus} GPUs, {ends}"
        rests_on = f" ({work.saves})" if work.saves else ""
        text = f"{uses}; ending it loses {work.loss_gpu_s:.0f} GPU-s{rests_on}{spared}"
        yield Link(WORK, True, text, {"gpus": work.gpus, "loss_gpu_s": work.loss_gpu_s}, command)
    if not works and side is not None and place.sight.side(side).known and not place.sight.side(side).idle:
        yield Link(WORK, True, f"busy on the {side} side", {}, command)


def _policy(scene: Scene, place: Place, pool: PoolPolicy) -> Iterator[Link]:
    now, side = scene.now, place.lease.owner.side
    if place.handoff is not None or side is None:
        return
    held = hold_refusal(place, pool, now)
    backoff = place.record.backoff_until
    if backoff is not None and now < backoff:
        left_s = (backoff - now).total_seconds()
        text = f"left alone for {left_s:.0f} s more after a failed handoff"
        yield Link(POLICY, True, text, {"left_s": left_s}, _history(place))
    numbers = {"held_s": (now - place.lease.owner_since).total_seconds(), "min_hold_s": pool.min_hold_s}
    yield Link(POLICY, bool(held), held or "its minimum hold is over", numbers, "bridgectl policy show")
    idle_s = place.idle_for_s(now)
    if idle_s >= 0:
        text = f"idle for {idle_s:.0f} s, given away after {pool.idle_age_s:g} s"
        yield Link(
            POLICY,
            idle_s < pool.idle_age_s,
            text,
            {"idle_s": idle_s, "idle_age_s": pool.idle_age_s},
            f"bridgectl nodes {place.name}",
        )
    share = scene.shares(pool)[side]
    usable = sum(each.usable(side) for each in scene.snapshot.of_pool(pool.name))
    text = f"{side} has {count_nodes(usable, 'usable')} and keeps {share.kept_nodes} of its floor {share.floor_nodes}"
    numbers = {"usable_nodes": usable, "kept_nodes": share.kept_nodes}
    yield Link(
        POLICY, place.usable(side) and usable <= share.kept_nodes, text, numbers, f"bridgectl explain pool {pool.name}"
    )


def _not_ready(place: Place) -> Iterator[Link]:
    """Behind what may be the cause of it: only a node that its owner can use is idle to the planner."""
    side = place.lease.owner.side
    if place.handoff is not None or side is None:
        return
    facts = place.sight.side(side)
    if facts.known and not facts.ready:
        yield Link(str(side), True, _state(side, facts), {}, _show(place, side))


def _demand(scene: Scene, place: Place, pool: PoolPolicy) -> Iterator[Link]:
    """Last, as it stops only what nothing else does: who else waits for nodes, and why this one does not help."""
    if place.handoff is not None:
        return
    side = place.lease.owner.side
    elsewhere = "" if side is None else f" on the {side.other} side"
    waiting = [demand for demand in scene.demands(pool) if demand.side is not side]
    command = f"bridgectl explain pool {pool.name}"
    if not waiting:
        yield Link(DEMAND, False, f"nothing waits for nodes{elsewhere}", {"waiting": 0}, command)
        return
    first = waiting[0].key
    why = scene.told(first) or "what it has and gets without this node is enough"
    text = f"{first}, which waits{elsewhere}, is not given it: {why}"
    yield Link(DEMAND, True, text, {"waiting": len(waiting)}, command)


# --- a node with 8 GPUs on which Kubernetes sees none ---


def _gpus(scene: Scene, place: Place) -> Iterator[Link]:
    """The first broken layer, in the order: PCI and driver, device plugin, labels, taints, allocatable."""
    found, wanted = scene.kube_node(place), place.record.node.gpus
    if found is None:
        return
    show = f"kubectl describe node {found.name}"
    if found.gpus_allocatable >= wanted:
        text = f"Kubernetes may give out {found.gpus_allocatable} of {wanted} GPUs, {found.gpus_used} are in use"
        yield Link(ALLOCATABLE, False, text, _counts(found, wanted), show)
        return
    yield from _layers(place, found, show)
    text = f"the kubelet offers {found.gpus_allocatable} of {wanted} GPUs"
    yield Link(ALLOCATABLE, True, text, _counts(found, wanted), show)


def _counts(found: KubeNode, wanted: int) -> dict[str, float | int | str]:
    return {"allocatable": found.gpus_allocatable, "wanted": wanted, "used": found.gpus_used}


def _layers(place: Place, found: KubeNode, show: str) -> Iterator[Link]:
    labels, show_labels = found.labels, f"kubectl get node {found.name} --show-labels"
    pci = labels.get(PCI_LABEL)
    on_bus = {"true": "a GPU is on the PCI bus", None: "not told: no label says whether a GPU is on the PCI bus"}
    text = on_bus.get(pci, f"{PCI_LABEL}={pci}: no GPU on the PCI bus")
    yield Link(HARDWARE, pci not in (None, "true"), text, {}, "nvidia-smi -L; lspci -d 10de:")
    if not found.ready:
        yield Link("runtime", True, "the kubelet is not Ready", {}, show)
    deploys = labels.get(PLUGIN_LABEL)
    off = deploys not in (None, "true")
    said = "told" if deploys is None else f"{PLUGIN_LABEL}={deploys}"
    text = f"the device plugin is not to run here ({said})" if off else "no label keeps the device plugin away"
    yield Link(DEVICE_PLUGIN, off, text, {}, f"{pods_on(found.name)} | grep device-plugin")
    absent = labels.get(PRESENT_LABEL) == "false"
    text = f"{PRESENT_LABEL}=false" if absent else "no label denies the GPUs"
    yield Link(LABELS, absent, text, {}, show_labels)
    closed = place.lease.owner is not Owner.KUBERNETES and place.sight.kubernetes.closed
    text = (
        "our taint and fence keep work away; a device plugin must tolerate the taint" if closed else "no taint of ours"
    )
    yield Link(TAINTS, False, text, {}, show)


# --- what helps, and when ---


def _remedies(place: Place) -> tuple[Remedy, ...]:
    node, found = place.record.node, []
    if place.sight.slurm.foreign:
        found.append(Remedy("end the drain", command=f"scontrol update nodename={node.slurm_name} state=resume"))
    if place.sight.kubernetes.foreign:
        found.append(Remedy("end the cordon", command=f"kubectl uncordon {node.kube_name}"))
    if not place.sight.kubernetes.unknown and "GPUs" in place.sight.kubernetes.not_ready:
        found.append(Remedy("restart its device plugin pod and read its log", command=f"{pods_on(node.kube_name)}"))
    side = place.lease.owner.side
    if place.handoff is None and side is not None and not found:
        verb = "lend" if side is Side.SLURM else "reclaim"
        text = "order it: a person's order replaces idle age and minimum hold, never a floor"
        found.append(Remedy(text, command=f"bridgectl {verb} {place.name} --reason TEXT"))
    return ranked(found)


def _when(scene: Scene, place: Place) -> Estimate:
    handoff = place.handoff
    if handoff is not None:
        return _arrives(scene, handoff)
    ends = [work.ends_in_s for work in scene.works_on.get(place.name, ())]
    if ends:
        known = [end for end in ends if end is not None]
        if len(known) == len(ends):
            return Estimate(max(known), "its work ends by its time limits")
        return Estimate(None, "not known: work without a time limit runs on it")
    return Estimate(None, "it moves when somebody on the other side needs it")


def _arrives(scene: Scene, handoff: Handoff) -> Estimate:
    measured_s, gone_s = scene.handover_s(handoff.destination), (scene.now - handoff.began_at).total_seconds()
    if measured_s is not None and gone_s < measured_s:
        return Estimate(measured_s - gone_s, f"handoffs to {handoff.destination}: measured p50 {measured_s:.1f} s")
    left_s = max(0.0, (handoff.step_deadline_at - scene.now).total_seconds())
    return Estimate(left_s, f"at the latest the deadline of its step {handoff.step}")
