"""The pods of a cluster as the planner wants them: who waits for a node, and what runs on one. Pure.

Demand is only what more nodes can cure. A pod that a scheduling gate holds waits for whoever set it (Kueue: for quota),
so it is named and not counted. The gate of a gang's member is no obstacle once another member was tried and found no
room: Kueue admits a gang whole. A pod for which others are being preempted has its place. DaemonSet pods are tied to a
node that is there already, and are never demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from datetime import datetime

from bridge.kube.budgets import Budgets
from bridge.kube.fit import Fleet, Verdict
from bridge.kube.neighbours import Neighbours, Placed
from bridge.kube.pods import Pod
from bridge.model.kube import PendingPod, RunningPod


def pending(pods: Collection[Pod], fleet: Fleet, neighbours: Neighbours) -> tuple[PendingPod, ...]:
    """Pods that wait for a node and ask for GPUs, the longest waiting first."""
    waiting = sorted(filter(_waits, pods), key=_waits_longest)
    gangs = _Gangs(pods)
    judged = [(pod, verdict) for pod in waiting if (verdict := _verdict(pod, gangs, fleet)) is not None]
    placed = _placed([(pod, verdict) for pod, verdict in judged if not verdict.obstacle], fleet, neighbours)
    return tuple(_pending(pod, gangs, verdict, placed.get(pod.key, _ANYWHERE)) for pod, verdict in judged)


_ANYWHERE = Placed()


def _waits(pod: Pod) -> bool:
    return not pod.node and pod.asks_for_devices and pod.terminating_since is None and not pod.daemon


def _since(pod: Pod) -> datetime | None:
    return (pod.unschedulable.since if pod.unschedulable else None) or pod.created_at


def _waits_longest(pod: Pod) -> tuple[bool, datetime | None, str, str]:
    since = _since(pod)
    return (since is None, since, pod.namespace, pod.name)


class _Gangs:
    """Members of all gangs: which gangs were tried, how many members wait and run, how many there should be."""

    def __init__(self, pods: Iterable[Pod]) -> None:
        self._tried: set[str] = set()
        self._waiting: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._declared: dict[str, int] = {}
        for pod in pods:
            if pod.gang is None:
                continue
            name = pod.gang.name
            self._declared[name] = max(self._declared.get(name, 0), pod.gang.pods)
            if pod.unschedulable is not None:
                self._tried.add(name)
            self._waiting[name] += _waits(pod)
            self._running[name] += bool(pod.node) and pod.terminating_since is None

    def tried(self, name: str) -> bool:
        return name in self._tried

    def lacking(self, name: str) -> int:
        """Members that do not run: as many as are declared beyond the running ones, and no less than those seen."""
        return max(self._waiting[name], self._declared[name] - self._running[name])


def _verdict(pod: Pod, gangs: _Gangs, fleet: Fleet) -> Verdict | None:
    """Which nodes would help it, or why none; None: the scheduler has not tried it yet, and nothing holds it."""
    in_tried_gang = pod.gang is not None and gangs.tried(pod.gang.name)
    if pod.nominated and not in_tried_gang:
        return Verdict(frozenset(), f"gets the room of pods that are preempted for it on {pod.nominated}")
    if pod.unschedulable or in_tried_gang:
        return fleet.judge(pod)
    if pod.gates:
        return Verdict(frozenset(), f"is held by scheduling gate {', '.join(pod.gates)}: more nodes do not lift it")
    return None


def _placed(able: Iterable[tuple[Pod, Verdict]], fleet: Fleet, neighbours: Neighbours) -> dict[str, Placed]:
    """By their keys, the pods to which other pods matter: larger priority first, as their scheduler takes them."""
    kinds: dict[Hashable, list[tuple[Pod, Verdict]]] = {}
    for pod, verdict in able:
        if pod.near is not None or neighbours.guarded:
            kind = neighbours.kind(pod)
            if kind is not None:
                kinds.setdefault(kind, []).append((pod, verdict))
    found: dict[str, Placed] = {}
    for alike in kinds.values():
        pods = sorted((pod for pod, _ in alike), key=lambda pod: -pod.priority)
        for pod, placed in zip(pods, neighbours.place(pods, alike[0][1].helps), strict=True):
            helps = None if placed.helps is None else fleet.same(placed.helps)
            found[pod.key] = replace(placed, helps=helps)
    return found


def _pending(pod: Pod, gangs: _Gangs, verdict: Verdict, placed: Placed) -> PendingPod:
    gang = pod.gang.name if pod.gang else ""
    return PendingPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        gpus=pod.gpus,
        group=pod.group,
        priority=pod.priority,
        pending_since=_since(pod),
        message=pod.unschedulable.message if pod.unschedulable else "",
        cpu_m=pod.cpu_m,
        memory_mib=pod.memory_mib,
        priority_class=pod.priority_class,
        gang=gang,
        gang_pods=gangs.lacking(gang) if gang else 0,
        helps=verdict.helps if placed.helps is None else placed.helps,
        obstacle=verdict.obstacle or placed.obstacle,
        share_ppm=verdict.share_ppm,
        per_node=placed.per_node,
        asks=_asks(pod),
    )


def _asks(pod: Pod) -> str:
    """In words, where it is more than GPUs."""
    if not pod.devices:
        return ""
    gpus = (f"{pod.gpus} GPUs",) if pod.gpus else ()
    return " and ".join((*gpus, *(f"{count} of {name}" for name, count in sorted(pod.devices))))


def running(pod: Pod, budgets: Budgets) -> RunningPod:
    """A pod on a node, with what speaks against ending it."""
    own = budgets.of(pod)
    return RunningPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        gpus=pod.gpus,
        group=pod.group,
        owner=_owner(pod),
        priority=pod.priority,
        priority_class=pod.priority_class,
        started_at=pod.started_at,
        warm_up_s=pod.warm_up_s,
        disruptions_allowed=min((budget.allowed for budget in own), default=None),
        protected=_protected(pod, len(own)),
        role=pod.role,
        idle=pod.idle,
        gang=pod.gang.name if pod.gang else "",
    )


def _owner(pod: Pod) -> str:
    """A bare pod that says itself that it may be evicted is treated as if something made it again."""
    if pod.controller is not None:
        return pod.controller[0]
    return "Pod" if pod.evictable else ""


def _protected(pod: Pod, budgets: int) -> str:
    """Why the node controller could not or should not evict it; what a policy adds is the planner's."""
    if pod.terminating_since is not None:
        return "it is terminating already"
    if pod.evictable is False:
        return "it says itself that it must not be disrupted"
    if pod.critical:
        return f"it is a system pod (priority {pod.priority})"
    if budgets > 1:
        return f"{budgets} disruption budgets cover it, and the Eviction API refuses such a pod"
    return ""
