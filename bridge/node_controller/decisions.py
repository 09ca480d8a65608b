"""What the node controller does about one node: pure functions from what was read to what is to be written.

Closing sets the taint, then the fence entry; opening takes away the fence entry, then the taint (in the other order the
scheduler would place pods that the fence then refuses, and make them wait for it). Each mark outside carries the token
``(epoch, generation)`` it was set with: a NodeLoan older than a mark is a late read of ours, and is not acted on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bridge.kube.connection import Json
from bridge.kube.names import EVICT, TAINT
from bridge.kube.pods import Pod, keeps_busy
from bridge.model.kube import LoanSpec, LoanStatus
from bridge.model.ownership import Mark, Owner

EVICTIONS_PER_PASS = 10
LOOK_AGAIN_S = 2.0
"""How soon a node that something keeps from its goal is looked at again, should no watch ring before."""


# --- what was read ---


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A Node, as read in this pass. `mark` is our annotation's text; `last_writer` wrote it after us."""

    name: str
    uid: str
    version: str
    ready: bool
    ready_since: datetime | None
    ready_reason: str
    cordoned: bool
    gpus_allocatable: int
    taints: tuple[Json, ...]
    mark: str
    last_writer: str

    @property
    def lease(self) -> str | None:
        """The value of our taint, or None when it is not there."""
        return next((str(t.get("value") or "") for t in self.taints if _is_our_key(t)), None)


@dataclass(frozen=True, slots=True)
class FenceSeen:
    """The NodeFence, as far as one node goes: whether the object exists, and the node's entry in it."""

    exists: bool
    entry: str = ""


# --- what is to be done about the latches ---


@dataclass(frozen=True, slots=True)
class MakeFence:
    """Create the NodeFence, which is missing."""


@dataclass(frozen=True, slots=True)
class PutFence:
    """Set the node's entry in the NodeFence, which reads `replaces` now (empty: absent)."""

    replaces: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class LiftFence:
    """Take the entry, which must still read `entry`, out of the NodeFence."""

    entry: str


@dataclass(frozen=True, slots=True)
class PutTaint:
    """Set our taint and annotation. `taken_off_by` names who took the taint off, when somebody did."""

    mark: Mark
    taken_off_by: str = ""


@dataclass(frozen=True, slots=True)
class LiftTaint:
    """Take away our taint and annotation."""


Act = MakeFence | PutFence | LiftFence | PutTaint | LiftTaint


@dataclass(frozen=True, slots=True)
class Latches:
    """The next write (one at a time: what follows is decided on its outcome), and what holds as read."""

    act: Act | None = None
    closed: bool = False
    open: bool = False
    blockers: tuple[str, ...] = ()


def latches(spec: LoanSpec, node: NodeSeen | None, fence: FenceSeen, *, may_repair: bool, fence_seen: bool) -> Latches:
    """What to do about taint and fence.

    `may_repair` is False when others took our taint off too often lately. `fence_seen` is False for a moment after the
    fence entry was lifted, while admission may still refuse pods by it.
    """
    newer = _newer_mark(spec.mark, node, fence)
    if newer is not None:
        return Latches(blockers=(f"{newer} stands outside, newer than this NodeLoan's {spec.mark}: not acted on",))
    if spec.owner is Owner.KUBERNETES:
        return _opening(spec, node, fence, fence_seen=fence_seen)
    return _closing(spec, node, fence, may_repair=may_repair)


def _closing(spec: LoanSpec, node: NodeSeen | None, fence: FenceSeen, *, may_repair: bool) -> Latches:
    if node is None:
        return Latches(_fence_act(spec, fence), blockers=(_no_node(spec),))
    if strange := _strange_taint(spec, node, fence):
        return Latches(_fence_act(spec, fence), blockers=(strange,))
    if node.lease is None and Mark.parse(node.mark) is not None:
        if not may_repair:
            who = f"{node.last_writer} keeps taking the bridge's taint off {node.name}: not put back for a while"
            return Latches(_fence_act(spec, fence), blockers=(who,))
        return Latches(PutTaint(spec.mark, taken_off_by=node.last_writer))
    if node.lease != spec.mark.lease or node.mark != str(spec.mark):
        return Latches(PutTaint(spec.mark))
    act = _fence_act(spec, fence)
    return Latches(act, closed=act is None)


def _fence_act(spec: LoanSpec, fence: FenceSeen) -> Act | None:
    if not fence.exists:
        return MakeFence()
    return None if fence.entry == str(spec.mark) else PutFence(fence.entry, spec.mark)


def _opening(spec: LoanSpec, node: NodeSeen | None, fence: FenceSeen, *, fence_seen: bool) -> Latches:
    if node is None:
        return Latches(blockers=(_no_node(spec),))
    if fence.entry and Mark.parse(fence.entry) is None:
        return Latches(blockers=(f"the NodeFence's entry '{fence.entry}' is not the bridge's: remove it by hand",))
    if strange := _strange_taint(spec, node, fence):
        return Latches(blockers=(strange,))
    if fence.entry:
        return Latches(LiftFence(fence.entry))
    if node.lease is not None or node.mark:
        return Latches(LiftTaint() if fence_seen else None)
    return Latches(open=True)


def _newer_mark(mark: Mark, node: NodeSeen | None, fence: FenceSeen) -> Mark | None:
    found = (Mark.parse(fence.entry), Mark.parse(node.mark) if node else None)
    return next((m for m in found if m is not None and m.token > mark.token), None)


def _strange_taint(spec: LoanSpec, node: NodeSeen, fence: FenceSeen) -> str:
    """Why our key's taint cannot be ours: its lease is in none of the marks that we set along with it."""
    known = {spec.mark.lease} | {m.lease for m in (Mark.parse(node.mark), Mark.parse(fence.entry)) if m}
    if node.lease is None or node.lease in known:
        return ""
    return f"the taint {TAINT}={node.lease} was not set by the bridge: remove it by hand"


def _no_node(spec: LoanSpec) -> str:
    return f"Kubernetes has no node {spec.node}"


def _is_our_key(taint: Json) -> bool:
    return bool(taint["key"] == TAINT and taint["effect"] == "NoSchedule")


def taints_with(node: NodeSeen, lease: str | None) -> list[Json]:
    """The node's taints with ours set to `lease` (None: without ours); everybody else's as they are, in their order."""
    others = [taint for taint in node.taints if not _is_our_key(taint)]
    return others if lease is None else [*others, {"key": TAINT, "value": lease, "effect": "NoSchedule"}]


# --- emptying ---


@dataclass(frozen=True, slots=True)
class Emptying:
    """Which pods to evict now, what keeps the node from being empty (pods with their why), whether it is proved so."""

    evict: tuple[Pod, ...] = ()
    left: tuple[tuple[Pod, str], ...] = ()
    others: tuple[str, ...] = ()
    empty: bool = False
    look_again_s: float | None = None

    def blockers(self, refusals: Mapping[str, str]) -> tuple[str, ...]:
        """For people. `refusals`: what turned down the eviction of a pod, by its UID."""
        return (*self.others, *(refusals.get(pod.uid, why) for pod, why in self.left))


def emptying(
    spec: LoanSpec,
    node: NodeSeen,
    pods: Sequence[Pod],
    attachments: Sequence[str],
    infrastructure: Collection[str],
    *,
    stood_s: float,
    late_bind_wait_s: float,
) -> Emptying:
    """What to do about the pods of a closed node.

    `pods` are all pods of the node and `attachments` its volumes that are nobody's but work's, both read in this pass;
    `infrastructure` the allow-listed namespaces; `stood_s` how long both latches had stood before that reading.
    """
    busy = sorted((pod for pod in pods if keeps_busy(pod, infrastructure)), key=lambda pod: (pod.tier, pod.key))
    if not node.ready:
        since = f" since {clock_time(node.ready_since)}" if node.ready_since else ""
        why = f"the kubelet of {node.name} does not answer{since} ({node.ready_reason}): its pods are UNKNOWN"
        left = tuple((pod, f"pod {pod.key} was there when it was last heard of") for pod in busy)
        return Emptying(left=left, others=(why,), look_again_s=LOOK_AGAIN_S)
    if busy or attachments:
        evict = _to_evict(busy)[:EVICTIONS_PER_PASS] if busy and spec.evict else ()
        left = tuple((pod, _why_left(pod, spec, evict)) for pod in busy)
        others = () if busy else tuple(attachments)  # volumes go after their pods
        return Emptying(evict, left, others, look_again_s=LOOK_AGAIN_S)
    if stood_s < late_bind_wait_s:
        return Emptying(look_again_s=late_bind_wait_s - stood_s)
    return Emptying(empty=True)


def _to_evict(busy: Sequence[Pod]) -> tuple[Pod, ...]:
    """The lowest tier that is left; the next one follows when it is gone."""
    first = [pod for pod in busy if pod.tier == busy[0].tier]
    return tuple(pod for pod in first if pod.terminating_since is None and not _spared(pod))


def _spared(pod: Pod) -> str:
    """Why we do not evict the pod even when told to empty the node."""
    if pod.evictable is False:
        return "asks not to be disrupted"
    if pod.controller is None and pod.evictable is None:
        return f"has no controller that would make it again: delete it, or annotate it {EVICT}=true"
    return ""


def _why_left(pod: Pod, spec: LoanSpec, evicted: Collection[Pod]) -> str:
    if pod.terminating_since is not None:
        held = f" (finalizers: {', '.join(pod.finalizers)})" if pod.finalizers else ""
        return f"pod {pod.key} is terminating since {clock_time(pod.terminating_since)}{held}"
    if not spec.evict:
        return f"pod {pod.key} runs ({pod.group})"
    if spared := _spared(pod):
        return f"pod {pod.key} {spared}"
    return f"pod {pod.key} is being evicted" if pod in evicted else f"pod {pod.key} is evicted after the others"


def refused(pod: Pod, why: str) -> str:
    """A blocker for an eviction that the apiserver turned down."""
    hint = "" if pod.ready else "; the pod is not ready: unhealthyPodEvictionPolicy AlwaysAllow would let it go"
    return f"pod {pod.key}: {why}{hint}"


# --- the answer ---


def closed_status(
    spec: LoanSpec, node: NodeSeen | None, found: Latches, plan: Emptying | None, blockers: Sequence[str]
) -> LoanStatus:
    """The status of a node that is not Kubernetes'. `plan` is None while the latches do not stand."""
    empty = plan is not None and plan.empty
    left = len(plan.left) if plan else 0
    if not found.closed:
        phase = "Closing"
    elif empty:
        phase = "Empty"
    else:
        phase = "Draining" if left else "Closed"
    return LoanStatus(
        phase=phase,
        observed=spec.mark,
        closed=found.closed,
        empty_nonce=spec.nonce if empty else "",
        node_uid=node.uid if node else "",
        pods_left=left,
        gpus_allocatable=node.gpus_allocatable if node else 0,
        blockers=(*found.blockers, *blockers),
    )


def open_status(spec: LoanSpec, node: NodeSeen | None, found: Latches) -> LoanStatus:
    """The status of a node that is Kubernetes'. It counts as open once our latches are gone, usable or not."""
    blockers = (*found.blockers, *(_unusable(spec, node) if node else ()))
    return LoanStatus(
        phase="Open" if found.open and not blockers else "Opening",
        observed=spec.mark,
        open=found.open,
        node_uid=node.uid if node else "",
        gpus_allocatable=node.gpus_allocatable if node else 0,
        blockers=blockers,
    )


def _unusable(spec: LoanSpec, node: NodeSeen) -> list[str]:
    blockers = []
    if not node.ready:
        since = f" since {clock_time(node.ready_since)}" if node.ready_since else ""
        blockers.append(f"the kubelet of {node.name} is not ready{since} ({node.ready_reason})")
    if node.gpus_allocatable < spec.gpus:
        blockers.append(f"the kubelet offers {node.gpus_allocatable} of {spec.gpus} GPUs")
    if node.cordoned:
        blockers.append(f"{node.name} is cordoned by a person")
    return blockers


def conditions(status: LoanStatus, before: Sequence[Json], *, unknown: bool, generation: int, now: str) -> list[Json]:
    """Kubernetes' standard conditions for `status`; a condition that did not change keeps its time.

    `unknown`: the node itself does not answer, so that nothing can be said of its pods.
    """
    first = status.blockers[0] if status.blockers else ""
    empty = status.phase == "Empty"
    wanted = [
        ("Closed", _word(status.closed), "BothLatchesStand" if status.closed else "LatchMissing"),
        ("Empty", "Unknown" if unknown else _word(empty), "Proved" if empty else "NotProved"),
        ("Open", _word(status.open), "NoLatchStands" if status.open else "LatchStands"),
    ]
    times = {(c["type"], c["status"]): c["lastTransitionTime"] for c in before}
    return [
        {
            "type": kind,
            "status": word,
            "reason": reason,
            "message": first,
            "observedGeneration": generation,
            "lastTransitionTime": times.get((kind, word), now),
        }
        for kind, word, reason in wanted
    ]


def _word(value: bool) -> str:
    return "True" if value else "False"


def clock_time(at: datetime) -> str:
    """A time that stays the same text while nothing changes: ``2026-05-04T12:01:03Z``."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
