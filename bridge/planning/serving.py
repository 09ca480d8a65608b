"""Kubernetes' unschedulable pods as demand, and its running pods as work that a handoff might end.

Pods ask for parts of nodes and the bridge moves whole ones. So pods are packed, and only the nodes that they would open
are demanded. What has to start together (a gang) is one demand; a pod that no shared node can ever run is named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bridge.model.demand import Demand, Work
from bridge.model.kube import KubeNode, KubeObservation, PendingPod, RunningPod, ServingPool
from bridge.model.ownership import Side
from bridge.model.policy import Policy, PoolPolicy, Preemption
from bridge.planning.demand import REACH, Queue
from bridge.planning.losses import loss_gpu_s, too_young, unsaved_s

MOST_NAMED = 16
"""Up to so many helpful nodes are named one by one in a demand that no label tells apart."""

LOWEST_PRIORITY = -(2**31)
"""Below every priority class: the headroom of a ServingPool that says nothing else."""

RUNS_TO_AN_END = frozenset({"Job", "RayCluster", "PyTorchJob", "MPIJob", "TFJob", "JAXJob", "XGBoostJob", "Workflow"})
"""Controllers whose pods compute something: ending one loses what it did since its checkpoint, not a warm-up."""

Size = tuple[int, int, int, int]
"""GPUs, thousandths of a CPU, MiB of memory, and millionths of a node's other devices."""

_WHOLE = 1_000_000

_NO_LIMIT = 10**15


# --- packing ---


@dataclass(slots=True)
class Packing:
    """Pods packed into empty nodes of one size by first-fit decreasing, several groups one after the other.

    By one resource at most 11/9 of the optimum and one node more (Johnson 1973); by several the pod with the largest
    share of a node in any of them goes first (vector bin packing, Panigrahy et al. 2011). A later group goes first into
    the room that earlier ones left. Equal nodes are kept as one entry, so that thousands of equal pods cost nothing.
    """

    node: Size
    _open: list[tuple[Size, int]] = field(default_factory=list)

    def add(self, pods: Iterable[Size], per_node: int = 0) -> int:
        """How many more nodes these pods open. A pod larger than the node is taken to fill one.

        `per_node`: at most so many of one size go on one node, 0 for as many as fit.
        """
        counted = Counter(self._clamped(pod) for pod in pods)
        in_order = sorted(counted, key=self._share, reverse=True)
        return sum(self._place(size, counted[size], per_node or counted[size]) for size in in_order)

    def _clamped(self, pod: Size) -> Size:
        """A pod that asks for no device at all counts as one GPU."""
        gpus = pod[0] if pod[0] or pod[3] else 1
        return (
            min(gpus, self.node[0]),
            min(pod[1], self.node[1]),
            min(pod[2], self.node[2]),
            min(pod[3], self.node[3]),
        )

    def _share(self, size: Size) -> tuple[float, Size]:
        return max(asked / limit for asked, limit in zip(size, self.node, strict=True)), size

    def _place(self, size: Size, count: int, most: int) -> int:
        entries, self._open = self._open, []
        for free, nodes in entries:
            count = self._fill(free, nodes, size, count, most)
        each = min(most, _times(self.node, size))
        opened = -(-count // each)
        self._fill(self.node, opened, size, count, most)
        return opened

    def _fill(self, free: Size, nodes: int, size: Size, count: int, most: int) -> int:
        """Put pods of `size` into `nodes` nodes with `free` each, up to `most` in the first, then the next."""
        each = min(most, _times(free, size))
        full = min(nodes, count // each) if each else 0
        self._keep(_less(free, size, each), full)
        count, nodes = count - full * each, nodes - full
        if nodes and each and count:
            self._keep(_less(free, size, count), 1)
            count, nodes = 0, nodes - 1
        self._keep(free, nodes)
        return count

    def _keep(self, free: Size, nodes: int) -> None:
        if nodes == 0 or free[0] == 0 or free[3] == 0:
            return
        if self._open and self._open[-1][0] == free:
            nodes += self._open.pop()[1]
        self._open.append((free, nodes))


def _times(free: Size, size: Size) -> int:
    return min(room // asked for room, asked in zip(free, size, strict=True) if asked)


def _less(free: Size, size: Size, times: int) -> Size:
    taken = [room - times * asked for room, asked in zip(free, size, strict=True)]
    return (taken[0], taken[1], taken[2], taken[3])


# --- demand ---


def kube_queue(
    pool: PoolPolicy, policy: Policy, seen: KubeObservation, names: Mapping[str, str], now: datetime
) -> Queue:
    """The pods that wait for nodes of `pool`, as demands in Kubernetes' order: priority, then the longer wait.

    `names`: Kubernetes' name of each node of the pool -> the bridge's.

    - Pods of one controller are one demand with ``whole=False``. Groups of one team that could use the same nodes are
      packed together, so one whose pods all fit into what another opens is not listed (they do not share with other
      teams: a reclaim from one would end the other's pods).
    - A gang is one demand with ``whole=True``. Its pods that do not exist yet count like its largest one.
    - Where only some nodes of the pool help, `features` tells which: by the labels that all helpful nodes have in
      common if no other node has them, else as ``node=<name>`` for each if there are at most `MOST_NAMED`, else nothing
      is said. A gang's is the union of what helps its pods.
    - A pod whom only nodes of other pools help is no demand of this one. What no shared node can ever run is one demand
      with `impossible` for each group and reason, named under the first pool of the policy.
    - A ServingPool's headroom is a demand for all of it, met by idle nodes first.
    """
    reading = _Reading(pool, policy, seen, names, now)
    possible, impossible = reading.split()
    listed: list[Demand] = []
    total = 0
    for demand in reading.packed(sorted(possible, key=_Waiting.order)):
        if total > REACH * len(names):
            break
        listed.append(demand)
        total += demand.nodes
    listed += sorted(reading.headroom(), key=lambda demand: (-demand.priority, demand.key))
    return Queue((*listed, *impossible), sum(len(waiting.pods) for waiting in possible))


def group_of(key: str) -> str:
    """The group or gang of a demand's key, without the number that tells parts of a group apart."""
    return _PART.sub("", key)


_PART = re.compile(r" \(\d+\)$")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Pods that make one demand. `helps` are Kubernetes' names of the pool's nodes that help; None: all of them."""

    key: str
    pods: tuple[PendingPod, ...]
    helps: frozenset[str] | None
    since: datetime
    gang: bool

    @property
    def priority(self) -> int:
        return max(pod.priority for pod in self.pods)

    def order(self) -> tuple[int, datetime, str]:
        return (-self.priority, self.since, self.key)

    def pack(self, packing: Packing) -> int:
        """How many more nodes its pods open; those that do not exist yet are like the largest."""
        parts: dict[int, list[Size]] = {}
        for pod in self.pods:
            parts.setdefault(pod.per_node, []).append(_size(pod))
        missing = max(pod.gang_pods for pod in self.pods) - len(self.pods) if self.gang else 0
        if missing > 0:
            largest = max(self.pods, key=_size)
            parts[largest.per_node] += [_size(largest)] * missing
        return sum(packing.add(sizes, per_node) for per_node, sizes in sorted(parts.items(), reverse=True))


def _size(pod: PendingPod) -> Size:
    return (pod.gpus, pod.cpu_m, pod.memory_mib, pod.share_ppm)


class _Reading:
    """One pool's half of an observation."""

    def __init__(
        self, pool: PoolPolicy, policy: Policy, seen: KubeObservation, names: Mapping[str, str], now: datetime
    ) -> None:
        self._pool, self._seen, self._names, self._now = pool, seen, names, now
        self._teams = _teams(policy)
        self._ranks = policy.priorities.priority_classes
        self._first = not policy.pools or policy.pools[0].name == pool.name
        self._nodes = {name: node for name, node in seen.nodes.items() if name in names}
        self._all = frozenset(self._nodes)
        self._helpful: dict[frozenset[str], frozenset[str] | None] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        self._features: dict[frozenset[str] | None, tuple[frozenset[str], ...]] = {None: ()}
        self._node_size: Size = (
            pool.gpus,
            _smallest(node.cpu_allocatable_m for node in self._nodes.values()),
            _smallest(node.memory_allocatable_mib for node in self._nodes.values()),
            _WHOLE,
        )

    def split(self) -> tuple[list[_Waiting], list[Demand]]:
        """What waits for nodes of this pool, and what can never be helped."""
        gangs: dict[str, list[PendingPod]] = {}
        groups: dict[tuple[str, frozenset[str] | None], list[PendingPod]] = {}
        hopeless: dict[tuple[str, str], list[PendingPod]] = {}
        for pod in self._seen.pending:
            if pod.gang:
                gangs.setdefault(pod.gang, []).append(pod)
            elif why := self._obstacle(pod):
                hopeless.setdefault((pod.group, why), []).append(pod)
            elif self._concerns(pod):
                groups.setdefault((pod.group, self._helps(pod)), []).append(pod)
        possible = self._groups(groups)
        for gang, pods in gangs.items():
            if not self._first and any(pod.obstacle for pod in pods):
                continue  # named under the first pool
            if why := self._gang_obstacle(pods):
                hopeless[gang, why] = pods
            elif any(self._concerns(pod) for pod in pods):
                possible.append(self._gang(gang, pods))
        return possible, [self._impossible(group, why, pods) for (group, why), pods in sorted(hopeless.items())]

    def packed(self, waiting: Iterable[_Waiting]) -> Iterator[Demand]:
        """Demands in the given order; groups that need no node of their own are passed over."""
        packings: dict[tuple[str, int, frozenset[str] | None], Packing] = {}
        for one in waiting:
            alike = (self._team(one.pods), self._rank(one.pods), one.helps)
            packing = Packing(self._node_size) if one.gang else packings.setdefault(alike, Packing(self._node_size))
            nodes = one.pack(packing)
            if nodes:
                yield self._demand(one, nodes)

    def headroom(self) -> Iterator[Demand]:
        """Of each ServingPool; they name no pool of the bridge, so the first one of the policy is meant."""
        for serving in self._seen.serving_pools if self._first else ():
            nodes = self._headroom_nodes(serving)
            if nodes > 0:
                yield self._headroom(serving, nodes)

    def _headroom_nodes(self, serving: ServingPool) -> int:
        """Idle nodes that it wants to have ready, or what its floor lacks if that is more; up to its maximum."""
        held = sum(any(pod.namespace in serving.namespaces for pod in node.running) for node in self._nodes.values())
        nodes = max(serving.headroom_nodes, serving.floor_nodes - held)
        return nodes if serving.max_nodes is None else min(nodes, serving.max_nodes - held)

    def _headroom(self, serving: ServingPool, nodes: int) -> Demand:
        namespace = serving.namespaces[0] if serving.namespaces else serving.name
        return Demand(
            key=f"ServingPool {serving.name}",
            side=Side.KUBERNETES,
            pool=self._pool.name,
            nodes=nodes,
            whole=False,
            priority=serving.priority or LOWEST_PRIORITY,
            # It waits for nothing that happened, so its age is what the policy asks for: never in the way of a pod.
            since=self._now - timedelta(seconds=self._pool.demand_age_s),
            team=serving.team or self._teams.get(namespace, namespace),
        )

    # --- one pod ---

    def _obstacle(self, pod: PendingPod) -> str:
        if pod.obstacle:
            return pod.obstacle if self._first else ""
        if pod.helps is None and pod.gpus > self._pool.gpus:
            return f"asks for {pod.gpus} GPUs, a node of pool {self._pool.name} has {self._pool.gpus}"
        return ""

    def _concerns(self, pod: PendingPod) -> bool:
        return (
            (pod.gpus > 0 or pod.share_ppm > 0)
            and not pod.obstacle
            and (pod.helps is None or self._helps(pod) != frozenset())
        )

    def _helps(self, pod: PendingPod) -> frozenset[str] | None:
        if pod.helps is None:
            return None
        if pod.helps not in self._helpful:
            here = pod.helps & self._all
            # Equal sets are one object here: thousands of names are compared again and again otherwise.
            self._helpful[pod.helps] = None if here == self._all and here else self._sets.setdefault(here, here)
        return self._helpful[pod.helps]

    # --- groups and gangs ---

    def _groups(self, groups: Mapping[tuple[str, frozenset[str] | None], list[PendingPod]]) -> list[_Waiting]:
        """A group whose pods ask for different nodes (in the middle of a rollout) is told apart by a number."""
        sets = {helps: sorted(helps or ()) for helps in {helps for _, helps in groups}}
        found: list[_Waiting] = []
        parts: Counter[str] = Counter()
        for (group, helps), pods in sorted(groups.items(), key=lambda entry: (entry[0][0], sets[entry[0][1]])):
            parts[group] += 1
            key = group if parts[group] == 1 else f"{group} ({parts[group]})"
            found.append(_Waiting(key, tuple(pods), helps, self._since(pods), gang=False))
        return found

    def _gang(self, gang: str, pods: list[PendingPod]) -> _Waiting:
        parts = {self._helps(pod) for pod in pods}
        helps = parts.pop() if len(parts) == 1 else self._union(parts)
        return _Waiting(gang, tuple(pods), helps, self._since(pods), gang=True)

    def _union(self, parts: Collection[frozenset[str] | None]) -> frozenset[str] | None:
        union = frozenset().union(*(self._all if part is None else part for part in parts))
        return None if union == self._all else union

    def _gang_obstacle(self, pods: list[PendingPod]) -> str:
        """A gang that cannot be had whole is not worth a node."""
        why = min((why for pod in pods if (why := self._obstacle(pod))), default="")
        concerned = sum(self._concerns(pod) for pod in pods)
        if why or concerned == 0:
            return f"a pod of the gang {why}" if why else ""
        if concerned < len(pods):
            return f"{len(pods) - concerned} of its {len(pods)} pods cannot run in pool {self._pool.name}"
        nodes = self._gang("", pods).pack(Packing(self._node_size))
        if nodes > len(self._names):
            return f"needs {nodes} nodes, and pool {self._pool.name} has {len(self._names)}"
        return ""

    def _demand(self, waiting: _Waiting, nodes: int) -> Demand:
        return Demand(
            key=waiting.key,
            side=Side.KUBERNETES,
            pool=self._pool.name,
            nodes=nodes,
            whole=waiting.gang,
            priority=waiting.priority,
            since=waiting.since,
            team=self._team(waiting.pods),
            rank=self._rank(waiting.pods),
            gpus_per_node=max(pod.gpus for pod in waiting.pods),
            features=self._wishes(waiting.helps),
        )

    def _impossible(self, group: str, why: str, pods: list[PendingPod]) -> Demand:
        return Demand(
            key=group,
            side=Side.KUBERNETES,
            pool=self._pool.name,
            nodes=1,
            whole=bool(pods[0].gang),
            priority=max(pod.priority for pod in pods),
            since=self._since(pods),
            team=self._team(pods),
            rank=self._rank(pods),
            gpus_per_node=max(pod.gpus for pod in pods),
            impossible=why,
            alike=len(pods),
        )

    def _since(self, pods: Collection[PendingPod]) -> datetime:
        return min(pod.pending_since or self._now for pod in pods)

    def _team(self, pods: Collection[PendingPod]) -> str:
        namespace = min(pod.namespace for pod in pods)
        return self._teams.get(namespace, namespace)

    def _rank(self, pods: Collection[PendingPod]) -> int:
        return max(self._ranks.get(pod.priority_class, 0) for pod in pods)

    def _wishes(self, helps: frozenset[str] | None) -> tuple[frozenset[str], ...]:
        if helps not in self._features:
            self._features[helps] = self._told_apart(helps or frozenset())
        return self._features[helps]

    def _told_apart(self, helps: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Features by which a node is known to be one of `helps`; see `kube_queue`."""
        others = [self._nodes[name].labels.items() for name in self._all - helps]
        common = frozenset.intersection(*(frozenset(self._nodes[name].labels.items()) for name in helps))
        telling = sorted(label for label in common if not all(label in other for other in others))
        for wish in (*((label,) for label in telling), tuple(telling)):
            if wish and not any(other >= set(wish) for other in others):
                return (frozenset(f"{key}={value}" for key, value in wish),)
        if len(helps) > MOST_NAMED:
            return ()
        return tuple(frozenset({f"node={self._names[name]}"}) for name in sorted(helps))


def _smallest(amounts: Iterable[int]) -> int:
    """0 is unknown, and no limit."""
    return min((amount for amount in amounts if amount), default=_NO_LIMIT)


def _teams(policy: Policy) -> dict[str, str]:
    return {namespace: team.name for team in policy.teams for namespace in team.namespaces}


# --- work ---


def kube_works(
    policy: Policy, preemption: Preemption, seen: KubeObservation, names: Mapping[str, str], now: datetime
) -> tuple[Work, ...]:
    """What runs on the nodes in `names` (Kubernetes' name -> the bridge's) and keeps them busy; a gang together.

    Loss of a serving pod = GPUs x its warm-up; of a pod of `RUNS_TO_AN_END` as of a Slurm job (`losses.loss_gpu_s`). A
    pod without GPUs counts as one. An idle Ray worker loses nothing.

    The room of a disruption budget is shared by its pods: of a group only so many, the cheapest, are not protected.
    """
    works = _Works(policy, preemption, now)
    crowded = works.beyond_budget(pod for node in seen.nodes.values() for pod in node.running)
    gangs: dict[str, list[tuple[str, RunningPod]]] = {}
    for node, pod in _running(seen.nodes, names):
        gangs.setdefault(pod.gang or f"pod {pod.namespace}/{pod.name}", []).append((node, pod))
    return tuple(works.of(key, members, crowded) for key, members in sorted(gangs.items()))


def _running(nodes: Mapping[str, KubeNode], names: Mapping[str, str]) -> Iterator[tuple[str, RunningPod]]:
    for name, node in nodes.items():
        if name in names:
            for pod in node.running:
                yield names[name], pod


class _Works:
    def __init__(self, policy: Policy, preemption: Preemption, now: datetime) -> None:
        self._teams = _teams(policy)
        self._ranks = policy.priorities.priority_classes
        self._preemption = preemption
        self._now = now

    def of(self, key: str, members: list[tuple[str, RunningPod]], crowded: Mapping[str, str]) -> Work:
        """One pod, or the members of a gang that run on the nodes asked about."""
        pods = [pod for _, pod in members]
        namespace = pods[0].namespace
        reasons = (self._protected(pod) or crowded.get(pod.uid, "") for pod in pods)
        return Work(
            key=key,
            side=Side.KUBERNETES,
            team=self._teams.get(namespace, namespace),
            nodes=tuple(dict.fromkeys(node for node, _ in members)),
            gpus=sum(pod.gpus for pod in pods),
            priority=max(pod.priority for pod in pods),
            rank=max(self._ranks.get(pod.priority_class, 0) for pod in pods),
            runs_for_s=max(self._runs_for_s(pod) for pod in pods),
            ends_in_s=None,
            loss_gpu_s=sum(self._loss_gpu_s(pod) for pod in pods),
            protected=next((why for why in reasons if why), ""),
            idle_worker=all(_idle_worker(pod) for pod in pods),
        )

    def beyond_budget(self, pods: Iterable[RunningPod]) -> dict[str, str]:
        """By uid, the pods that the room of their group's budget does not cover, as cheaper ones go first."""
        groups: dict[str, list[RunningPod]] = {}
        for pod in pods:
            if pod.disruptions_allowed and not pod.gang and not self._protected(pod):
                groups.setdefault(pod.group, []).append(pod)
        found: dict[str, str] = {}
        for group in groups.values():
            room = min(pod.disruptions_allowed or 0 for pod in group)
            for pod in sorted(group, key=lambda pod: (self._loss_gpu_s(pod), pod.uid))[room:]:
                found[pod.uid] = f"its disruption budget allows {room} more, and cheaper ones go first"
        return found

    def _runs_for_s(self, pod: RunningPod) -> float:
        return max(0.0, (self._now - pod.started_at).total_seconds()) if pod.started_at else 0.0

    def _loss_gpu_s(self, pod: RunningPod) -> float:
        if _idle_worker(pod):
            return 0.0
        if pod.owner not in RUNS_TO_AN_END:
            return max(1, pod.gpus) * pod.warm_up_s
        asked = self._preemption
        since_s = unsaved_s(self._runs_for_s(pod), None, asked.checkpoint_interval_s)
        return loss_gpu_s(max(1, pod.gpus), since_s, asked.restart_s)

    def _protected(self, pod: RunningPod) -> str:
        never = self._preemption.never
        if pod.protected:
            return pod.protected
        if not pod.owner:
            return "no controller would make it again"
        if pod.role == "ray-head":
            return "a Ray head: its cluster would end"
        if pod.namespace in never.namespaces:
            return f"its namespace {pod.namespace} is never a victim"
        if pod.priority_class in never.priority_classes:
            return f"its priority class {pod.priority_class} is never a victim"
        if pod.disruptions_allowed == 0:
            return "its disruption budget has no room"
        return too_young(self._runs_for_s(pod), self._preemption)


def _idle_worker(pod: RunningPod) -> bool:
    return pod.idle and pod.role == "ray-worker"
