"""The pods of a cluster as the planner wants them: who waits for a node, and what runs on one. Pure.

Demand is only what more nodes can cure. A pod that a scheduling gate holds waits for whoever set it (Kueue: for quota),
so it is named and not counted. The gate of a gang's member is no obstacle once another member was tried and found no
room: Kueue admits a gang whole. DaemonSet pods are tied to a node that is there already, and are never demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from bridge.kube.budgets import Budgets
from bridge.kube.fit import Fleet
from bridge.kube.pods import Pod
from bridge.model.kube import PendingPod, RunningPod


def pending(pods: Collection[Pod], fleet: Fleet) -> tuple[PendingPod, ...]:
    """Pods that wait for a node and ask for GPUs, the longest waiting first."""
    waiting = [pod for pod in pods if _waits(pod)]
    gangs = _Gangs(pods)
    found = (one for pod in waiting for one in _pending(pod, gangs, fleet))
    return tuple(sorted(found, key=lambda p: (p.pending_since is None, p.pending_since, p.namespace, p.name)))


def _waits(pod: Pod) -> bool:
    return not pod.node and pod.gpus > 0 and pod.terminating_since is None and not pod.daemon


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


def _pending(pod: Pod, gangs: _Gangs, fleet: Fleet) -> Iterator[PendingPod]:
    gang = pod.gang.name if pod.gang else ""
    in_tried_gang = bool(gang) and gangs.tried(gang)
    if pod.unschedulable or in_tried_gang:
        helps, obstacle = fleet.judge(pod)
    elif pod.gates:
        helps, obstacle = frozenset(), f"is held by scheduling gate {', '.join(pod.gates)}: more nodes do not lift it"
    else:
        return
    yield PendingPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        gpus=pod.gpus,
        group=pod.group,
        priority=pod.priority,
        pending_since=(pod.unschedulable.since if pod.unschedulable else None) or pod.created_at,
        message=pod.unschedulable.message if pod.unschedulable else "",
        cpu_m=pod.cpu_m,
        memory_mib=pod.memory_mib,
        priority_class=pod.priority_class,
        gang=gang,
        gang_pods=gangs.lacking(gang) if gang else 0,
        helps=helps,
        obstacle=obstacle,
    )


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
