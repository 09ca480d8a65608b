"""The simulated Kubernetes without the bridge: nodes, Deployments, their pods, a scheduler, kubelets, evictions.

`bridge.simulation.node_controller` works on it as the real one does on an apiserver, and `bridge.simulation.kube` shows
it to the broker. Simulated is what 1.34 was seen to do: a binding that is on its way lands after a taint; a pod that
terminates holds its GPUs until it is gone; with a dead kubelet it never goes; an eviction asks the budget first; what
has no controller never comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from bridge.model.kube import PendingPod, RunningPod
from bridge.model.ownership import Node, Side
from bridge.simulation.clock import Latency, SimulatedClock, Timer
from bridge.simulation.machines import Machines, Process


@dataclass(frozen=True, slots=True)
class KubeTimings:
    """Seconds that Kubernetes takes, as measured on small real clusters."""

    scheduling_s: float = 0.1
    bind_s: float = 0.05
    admission_s: float = 0.2
    not_ready_s: float = 50
    device_plugin_s: float = 3
    controller_s: float = 0.1
    controller_retry_s: float = 2
    fence_settle_s: float = 0.3
    late_bind_wait_s: float = 0.5
    bind_retry_s: float = 1
    heartbeat_stale_s: float = 10
    pod_collection_s: float = 60
    inspector_s: float = 0.3
    inspector_recheck_s: float = 0.5


CRITICAL_PRIORITY = 2_000_000_000
"""Where the classes begin that Kubernetes keeps for itself."""

TWO_BUDGETS = "more than one PodDisruptionBudget covers it, which the eviction API does not support: remove all but one"


@dataclass(frozen=True, slots=True)
class Deployment:
    """`replicas` pods that each ask for `gpus` GPUs; a pod is Ready `startup_s` after it was bound (infinite: never)
    and gone `shutdown_s` after it was told to go: for one that ignores TERM that is its grace period, infinite for one
    that hangs in the kernel.

    With another `kind` it is another controller: a ``DaemonSet`` wants one pod on every node that it may use
    (`replicas` says nothing), a ``Job`` makes no other pod for one that has ended well, and with an empty kind the pods
    are bare, each made once and never again.

    `min_available` is its PodDisruptionBudget; `budgets` is how many such cover it, and `evicts_unready` that it says
    ``unhealthyPodEvictionPolicy: AlwaysAllow``. `evictable` is what its pods' own annotation says (None: nothing).
    `only_on` are the nodes that its selector matches (None: all), and `tolerates` that it tolerates every taint. Each
    pod has `finalizer` or not, and a volume that stays attached `detach_s` after it is gone (None: no volume).
    """

    name: str
    replicas: int
    gpus: int = 8
    namespace: str = "default"
    priority: int = 0
    startup_s: float = 1.5
    shutdown_s: float = 1.0
    min_available: int = 0
    kind: str = "Deployment"
    budgets: int = 1
    evicts_unready: bool = False
    evictable: bool | None = None
    only_on: frozenset[str] | None = None
    tolerates: bool = False
    finalizer: bool = False
    detach_s: float | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def daemon(self) -> bool:
        return self.kind == "DaemonSet"

    @property
    def critical(self) -> bool:
        return self.priority >= CRITICAL_PRIORITY

    @property
    def tier(self) -> int:
        """Order of eviction: ordinary, daemon, critical, critical daemon."""
        return 2 * self.critical + self.daemon

    def selects(self, node: str) -> bool:
        return self.only_on is None or node in self.only_on


@dataclass(slots=True, eq=False)
class Pod:
    """`binding` is where the scheduler has decided to put it, `node` where it is. Gone means not listed any more.

    `only_on` is the one node that a DaemonSet made it for; empty for all others.
    """

    name: str
    uid: str
    deployment: str
    namespace: str
    gpus: int
    priority: int
    created_at: datetime
    binding: str = ""
    node: str = ""
    only_on: str = ""
    ready: bool = False
    terminating_since: datetime | None = None
    finalizer: bool = False
    finished: bool = False
    unschedulable: str = ""
    process: Process | None = None
    started_at: datetime | None = None
    warm_up_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def terminating(self) -> bool:
        return self.terminating_since is not None


@dataclass(slots=True)
class KubeletNode:
    """A Node, its kubelet and device plugin. `taint` is the bridge's, by lease, and `mark` the annotation that the node
    controller writes with it; `others_taint` is anybody else's. `volumes` are attached for other than infrastructure.
    """

    name: str
    machine: str
    uid: str
    gpus: int
    gpus_allocatable: int
    ready: bool = True
    cordoned: bool = False
    taint: str = ""
    mark: str = ""
    others_taint: bool = False
    kubelet_alive: bool = True
    device_plugin_alive: bool = True
    notice: Timer | None = None
    waiting_to_go: list[Pod] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)


class Cluster:
    """See the module. `changed` is called with a node name, or nothing, whenever something visible changed."""

    def __init__(
        self,
        clock: SimulatedClock,
        nodes: Collection[Node],
        machines: Machines,
        timings: KubeTimings,
        latency: Latency,
    ) -> None:
        self._clock = clock
        self._machines = machines
        self._timings = timings
        self._latency = latency
        self.nodes = {
            node.kube_name: KubeletNode(node.kube_name, node.name, f"uid-{node.kube_name}-1", node.gpus, node.gpus)
            for node in nodes
        }
        self.removed: dict[str, KubeletNode] = {}
        """Machines whose Node object was deleted."""
        self.infrastructure: set[str] = set()
        """The namespaces on the site's allow-list."""
        self.deployments: dict[str, Deployment] = {}
        self.pods: dict[str, Pod] = {}
        self.fence: dict[str, str] = {}
        """NodeFence.spec.closed as it is stored: node -> mark."""
        self._admitted_fence: frozenset[str] = frozenset()
        self.apiserver_up = True
        self._created = 0
        self._scheduling: Timer | None = None
        self._observers: list[Callable[[str], None]] = []

    def on_change(self, observer: Callable[[str], None]) -> None:
        self._observers.append(observer)

    def changed(self, node: str = "") -> None:
        for observer in self._observers:
            observer(node)

    # --- what inference teams do ---

    def apply(self, deployment: Deployment) -> None:
        """Create or replace a Deployment; pods that exist keep their shape."""
        self.deployments[deployment.key] = deployment
        self._sync(deployment.key)

    def scale(self, deployment: str, replicas: int) -> None:
        self.apply(replace(self.deployments[deployment], replicas=replicas))

    # --- what people and other systems do to nodes ---

    def cordon(self, node: str, on: bool = True) -> None:
        self.nodes[node].cordoned = on
        self._touched(node)

    def set_taint(self, node: str, lease: str, mark: str | None = None) -> None:
        """The bridge's taint, or with an empty `lease` its removal. `mark` is the node controller's annotation, which
        others leave as it is (None)."""
        found = self.nodes[node]
        after = (lease, found.mark if mark is None else mark)
        if (found.taint, found.mark) != after:
            found.taint, found.mark = after
            self._sync_daemons()
            self._touched(node)

    def set_others_taint(self, node: str, on: bool) -> None:
        self.nodes[node].others_taint = on
        self._sync_daemons()
        self._touched(node)

    def set_fence(self, node: str, mark: str) -> None:
        """Write or, with an empty `mark`, remove a fence entry. Admission sees it a moment later."""
        if self.fence.get(node, "") == mark:
            return
        if mark:
            self.fence[node] = mark
        else:
            del self.fence[node]
        self._clock.after(self._latency(self._timings.admission_s), self._refresh_admission)
        self._touched(node)

    def replace_node(self, name: str) -> None:
        """The Node object is deleted and made anew: another UID, no taint, its pods gone. The machine was reset."""
        self.remove_node(name)
        self._collect_pods(self.removed[name])
        self.return_node(name)

    def remove_node(self, name: str) -> None:
        """kubectl delete node. The NodeFence keeps its entry, and the machine goes on: its pods are collected only when
        the node stays away."""
        gone = self.removed[name] = self.nodes.pop(name)
        self._clock.after(self._latency(self._timings.pod_collection_s), lambda: self._collect_pods(gone))
        self._touched(name)

    def _collect_pods(self, gone: KubeletNode) -> None:
        """They go as if a kubelet had said so, but for what a finalizer holds."""
        if self.removed.get(gone.name) is not gone:
            return
        for pod in self.on(gone.name):
            pod.terminating_since, pod.ready = pod.terminating_since or self._clock.now(), False
            self._gone(pod)

    def return_node(self, name: str) -> None:
        """The kubelet registers again: a Node with another UID and nothing that others had written on the old one."""
        old = self.removed.pop(name)
        generation = int(old.uid.rsplit("-", 1)[1]) + 1
        self.nodes[name] = KubeletNode(name, old.machine, f"uid-{name}-{generation}", old.gpus, 0)
        self.restart_device_plugin(name)
        self._sync_daemons()
        self._touched(name)

    def detach(self, node: str) -> None:
        """The attach-detach controller, or a person, is done with all volumes of a node."""
        self.nodes[node].volumes.clear()
        self._touched(node)

    def empty_fence(self) -> None:
        """The NodeFence is deleted by force, as a careless uninstall does: admission refuses nothing any more."""
        for node in list(self.fence):
            self.set_fence(node, "")

    # --- what breaks ---

    def lose_kubelet(self, node: str) -> None:
        """The kubelet is gone, its containers run on. The Node turns NotReady only when its lease is old."""
        found = self.nodes[node]
        if not found.kubelet_alive:
            return
        found.kubelet_alive = False
        if found.notice is not None:
            found.notice.cancel()
        found.notice = self._clock.after(
            self._latency(self._timings.not_ready_s), lambda: self._set_ready(found, False)
        )

    def return_kubelet(self, node: str) -> None:
        """It carries out what it missed, and its device plugin must register again."""
        found = self.nodes[node]
        found.kubelet_alive = True
        if found.notice is not None:
            found.notice.cancel()
        missed, found.waiting_to_go = found.waiting_to_go, []
        for pod in missed:
            self._gone(pod)
        for pod in self.on(node):
            if pod.process is None and not pod.terminating:
                self._run(pod)
        self.restart_device_plugin(node)
        self._set_ready(found, True)

    def stop_device_plugin(self, node: str) -> None:
        """The Node stays Ready and offers no GPU; pods that run keep theirs."""
        self.nodes[node].device_plugin_alive = False
        self._set_allocatable(self.nodes[node], 0)

    def restart_device_plugin(self, node: str) -> None:
        found = self.nodes[node]
        found.device_plugin_alive = True
        self._set_allocatable(found, 0)
        self._clock.after(self._latency(self._timings.device_plugin_s), lambda: self._offer_gpus(found))

    def stop_apiserver(self) -> None:
        """Nothing is scheduled, evicted or told until it is back; kubelets run on."""
        self.apiserver_up = False
        self.changed()

    def start_apiserver(self) -> None:
        self.apiserver_up = True
        for deployment in list(self.deployments):
            self._sync(deployment)
        for node in self.nodes:
            self._touched(node)

    # --- questions ---

    def on(self, node: str) -> list[Pod]:
        """Pods on a node that have not finished, terminating ones included, in order of creation."""
        return [pod for pod in self.pods.values() if pod.node == node and not pod.finished]

    def fenced(self, node: str, namespace: str) -> bool:
        """Whether admission, by what it has seen of the NodeFence, refuses a pod of that namespace on that node."""
        return node in self._admitted_fence and namespace not in self.infrastructure

    def work_on(self, node: str) -> list[Pod]:
        """Pods that keep a node from being empty: all but DaemonSet pods of the infrastructure."""
        return [pod for pod in self.on(node) if not self._is_infrastructure(pod)]

    def _is_infrastructure(self, pod: Pod) -> bool:
        return pod.namespace in self.infrastructure and self.deployments[pod.deployment].daemon

    def used(self, node: str) -> int:
        """GPUs taken on a node, by pods that are bound to it or are going to be."""
        return sum(pod.gpus for pod in self.pods.values() if node in (pod.node, pod.binding) and not pod.finished)

    def of(self, deployment: str) -> list[Pod]:
        return [
            pod for pod in self.pods.values() if pod.deployment == deployment and not (pod.terminating or pod.finished)
        ]

    def pending(self) -> tuple[PendingPod, ...]:
        """Pods that the scheduler has tried and found no node for. A DaemonSet's are tied to a node that is there."""
        return tuple(
            self._waiting(pod)
            for pod in self.pods.values()
            if not pod.node and pod.unschedulable and pod.gpus and not pod.only_on and not pod.terminating
        )

    def _waiting(self, pod: Pod) -> PendingPod:
        made_by = self.deployments[pod.deployment]
        fitting = {node.name: node for node in self.nodes.values() if pod.gpus <= node.gpus}
        selected = {name: node for name, node in fitting.items() if made_by.selects(name)}
        helps = frozenset(
            name for name, node in selected.items() if made_by.tolerates or not (node.cordoned or node.others_taint)
        )
        return PendingPod(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            gpus=pod.gpus,
            group=self.group(pod),
            priority=pod.priority,
            pending_since=pod.created_at,
            message=pod.unschedulable,
            helps=None if len(helps) == len(self.nodes) else helps,
            obstacle="" if helps else self._obstacle_everywhere(pod, fitting, selected),
        )

    def _obstacle_everywhere(self, pod: Pod, fitting: Collection[str], selected: Collection[str]) -> str:
        """The first thing for which no node will do, in the words of the real reading."""
        if not fitting:
            return f"asks for {pod.gpus} GPUs, a node has {max((n.gpus for n in self.nodes.values()), default=0)}"
        if not selected:
            return "no shared node matches its node affinity"
        return "does not tolerate a taint of the shared nodes"

    def group(self, pod: Pod) -> str:
        """Whose pod it is, for people."""
        kind = self.deployments[pod.deployment].kind
        return f"{kind} {pod.deployment}" if kind else f"Pod {pod.key}"

    def running(self, node: str) -> tuple[RunningPod, ...]:
        """The pods on a node with what ending them costs."""
        return tuple(
            RunningPod(
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                gpus=pod.gpus,
                group=self.group(pod),
                owner=self._made_again_by(pod),
                priority=pod.priority,
                started_at=pod.started_at,
                warm_up_s=pod.warm_up_s,
                disruptions_allowed=self._disruptions_allowed(pod.deployment),
                protected=self._protected(pod),
            )
            for pod in self.work_on(node)
        )

    def _made_again_by(self, pod: Pod) -> str:
        """A bare pod that says itself that it may be evicted is treated as if something made it again."""
        made_by = self.deployments[pod.deployment]
        return made_by.kind or ("Pod" if made_by.evictable else "")

    def _protected(self, pod: Pod) -> str:
        made_by = self.deployments[pod.deployment]
        if pod.terminating:
            return "it is terminating already"
        if made_by.evictable is False:
            return "it says itself that it must not be disrupted"
        if made_by.critical:
            return f"it is a system pod (priority {pod.priority})"
        if made_by.min_available and made_by.budgets > 1:
            return f"{made_by.budgets} disruption budgets cover it, and the Eviction API refuses such a pod"
        return ""

    def _disruptions_allowed(self, deployment: str) -> int | None:
        needed = self.deployments[deployment].min_available
        return max(0, sum(pod.ready for pod in self.of(deployment)) - needed) if needed else None

    # --- evictions and endings ---

    def evict(self, pod: Pod) -> str:
        """The Eviction API: empty when the pod is told to go (or is on its way already), else why the budget says no.

        A pod that is not Ready is protected only while its Deployment has fewer healthy pods than the budget wants
        (the API's default policy, which lets crash-looping pods block a drain); one that has no node yet never is. Two
        budgets on one pod are an error 500, whatever room they have.
        """
        if pod.terminating:
            return ""
        budget = self.deployments[pod.deployment]
        if budget.min_available and pod.node:
            if budget.budgets > 1:
                return TWO_BUDGETS
            healthy = sum(other.ready for other in self.of(pod.deployment))
            may_go = budget.evicts_unready and not pod.ready
            if not may_go and healthy < budget.min_available + (1 if pod.ready else 0):
                return (
                    f"PodDisruptionBudget allows no disruption: The disruption budget {budget.name} needs "
                    f"{budget.min_available} healthy pods and has {healthy} currently"
                )
        self.delete(pod)
        return ""

    def delete(self, pod: Pod) -> None:
        """Ask a pod to go. It is gone when its kubelet says so and no finalizer holds it."""
        if pod.terminating:
            return
        pod.terminating_since, pod.ready = self._clock.now(), False
        if pod.node:
            self._clock.after(self._latency(self.deployments[pod.deployment].shutdown_s), lambda: self._shut_down(pod))
        else:
            self._gone(pod)
        self._sync(pod.deployment)
        self._touched(pod.node)

    def finish(self, pod: Pod) -> None:
        """All its containers end well. The object stays, and holds nothing any more."""
        if pod.process is not None:
            self._machines.stop(pod.process)
        pod.process, pod.ready, pod.finished = None, False, True
        self._sync(pod.deployment)
        self._touched(pod.node)

    def drop_finalizer(self, pod: Pod) -> None:
        pod.finalizer = False
        if pod.terminating and pod.process is None:
            self._gone(pod)

    def _shut_down(self, pod: Pod) -> None:
        if self.pods.get(pod.key) is not pod:
            return
        node = self.nodes.get(pod.node)
        if node is not None and not node.kubelet_alive:
            node.waiting_to_go.append(pod)
        else:
            self._gone(pod)

    def _gone(self, pod: Pod) -> None:
        if pod.process is not None:
            self._machines.stop(pod.process)
            pod.process = None
        if not pod.finalizer and self.pods.pop(pod.key, None) is not None:
            self._leave(pod)
        self._touched(pod.node)

    def _leave(self, pod: Pod) -> None:
        """A bare pod takes its place with it, a volume follows when it has been detached."""
        made_by = self.deployments[pod.deployment]
        if not made_by.kind:
            self.deployments[made_by.key] = replace(made_by, replicas=made_by.replicas - 1)
        self._sync(made_by.key)
        if made_by.detach_s is not None and pod.node in self.nodes:
            node = self.nodes[pod.node]
            self._clock.after(made_by.detach_s, lambda: self._detached(node, f"pvc-{pod.uid}"))

    def _detached(self, node: KubeletNode, volume: str) -> None:
        if volume in node.volumes:
            node.volumes.remove(volume)
            self._touched(node.name)

    # --- controllers of Kubernetes itself ---

    def _sync(self, key: str) -> None:
        """Make as many pods as wanted; of too many, those go that serve least, the youngest first."""
        if not self.apiserver_up:
            return
        deployment = self.deployments[key]
        if deployment.daemon:
            self._sync_daemon(deployment)
            return
        pods = self.of(key)
        if deployment.kind == "Job":
            pods += [pod for pod in self.pods.values() if pod.deployment == key and pod.finished]
        elif not deployment.kind:
            pods = [pod for pod in self.pods.values() if pod.deployment == key]  # one that ends is not replaced
        for _ in range(deployment.replicas - len(pods)):
            self._create(deployment)
        by_service = sorted(pods, key=lambda pod: (not pod.ready, not pod.node))
        for pod in by_service[deployment.replicas :]:
            self.delete(pod)
        self._schedule_soon()

    def _sync_daemons(self) -> None:
        for deployment in list(self.deployments.values()):
            if deployment.daemon:
                self._sync(deployment.key)

    def _sync_daemon(self, daemon: Deployment) -> None:
        """One pod for every node that it selects and may begin on; NoSchedule ends none that is there already. The
        controller tolerates cordons and NotReady for it."""
        covered = {pod.only_on for pod in self.of(daemon.key)}
        for node in self.nodes.values():
            welcome = daemon.tolerates or not (node.taint or node.others_taint)
            if daemon.selects(node.name) and welcome and node.name not in covered:
                self._create(daemon, only_on=node.name)
        self._schedule_soon()

    def _create(self, deployment: Deployment, only_on: str = "") -> None:
        self._created += 1
        pod = Pod(
            name=f"{deployment.name}-{self._created}",
            uid=f"pod-{self._created}",
            deployment=deployment.key,
            namespace=deployment.namespace,
            gpus=deployment.gpus,
            priority=deployment.priority,
            created_at=self._clock.now(),
            only_on=only_on,
            finalizer=deployment.finalizer,
        )
        self.pods[pod.key] = pod

    def _schedule_soon(self) -> None:
        if self._scheduling is None:
            self._scheduling = self._clock.after(self._latency(self._timings.scheduling_s), self._schedule)

    def _schedule(self) -> None:
        self._scheduling = None
        if not self.apiserver_up:
            return
        waiting = [pod for pod in self.pods.values() if not pod.node and not pod.binding]
        for pod in sorted(waiting, key=lambda pod: -pod.priority):
            obstacles = {name: self._obstacle(pod, node) for name, node in self.nodes.items()}
            feasible = [name for name, obstacle in obstacles.items() if not obstacle]
            if feasible:
                self._decide(pod, feasible[0])
            else:
                self._give_up(pod, list(obstacles.values()))

    def _obstacle(self, pod: Pod, node: KubeletNode) -> str:
        made_by = self.deployments[pod.deployment]
        if not made_by.selects(node.name) or pod.only_on not in ("", node.name):
            return "didn't match Pod's node affinity/selector"
        if (node.taint or node.others_taint) and not made_by.tolerates:
            return "had untolerated taint"
        if node.cordoned and not (made_by.tolerates or made_by.daemon):
            return "were unschedulable"
        if not node.ready and not (made_by.tolerates or made_by.daemon):
            return "had untolerated taint node.kubernetes.io/not-ready"
        free = node.gpus_allocatable - self.used(node.name)
        return "" if pod.gpus <= free else "Insufficient nvidia.com/gpu"

    def _give_up(self, pod: Pod, obstacles: list[str]) -> None:
        counted = ", ".join(f"{obstacles.count(why)} {why}" for why in sorted(set(obstacles)))
        message = f"0/{len(obstacles)} nodes are available: {counted}."
        if pod.unschedulable != message:
            pod.unschedulable = message
            self.changed()

    def _decide(self, pod: Pod, node: str) -> None:
        """The scheduler's mind is made up now; the binding lands a little later, whatever happens to the node."""
        pod.binding = node
        self._clock.after(self._latency(self._timings.bind_s), lambda: self._bind(pod))

    def _bind(self, pod: Pod) -> None:
        node, pod.binding = pod.binding, ""
        if pod.terminating or node not in self.nodes:
            return
        if self.fenced(node, pod.namespace) or not self.apiserver_up:
            self._clock.after(self._timings.bind_retry_s, self._schedule_soon)
            return
        pod.node, pod.unschedulable = node, ""
        if self.deployments[pod.deployment].detach_s is not None:
            self.nodes[node].volumes.append(f"pvc-{pod.uid}")
        if self.nodes[node].kubelet_alive:
            self._run(pod)
        self._touched(node)

    def _refresh_admission(self) -> None:
        self._admitted_fence = frozenset(self.fence)
        self._schedule_soon()

    # --- kubelets ---

    def _run(self, pod: Pod) -> None:
        """The infrastructure computes nothing: no process of it is on a GPU, nor in the oracle's way."""
        node = self.nodes[pod.node]
        if node.gpus_allocatable < pod.gpus:
            self._reject(pod)
            return
        if not self._is_infrastructure(pod):
            pod.process = self._machines.start(node.machine, Side.KUBERNETES, f"pod {pod.key}", "root")
        pod.started_at = self._clock.now()
        startup_s = self.deployments[pod.deployment].startup_s
        if math.isfinite(startup_s):
            self._clock.after(self._latency(startup_s), lambda: self._become_ready(pod))

    def _reject(self, pod: Pod) -> None:
        """UnexpectedAdmissionError: no healthy device. The pod fails, its Deployment makes another."""
        pod.terminating_since = self._clock.now()
        self._gone(pod)

    def _become_ready(self, pod: Pod) -> None:
        if not pod.terminating and (pod.process is not None or self._is_infrastructure(pod)):
            pod.ready = True
            if pod.started_at is not None:
                # Not negative where a clock was set back in between: so the real driver reads it.
                pod.warm_up_s = max(0.0, (self._clock.now() - pod.started_at).total_seconds())
            self._touched(pod.node)

    def _set_ready(self, node: KubeletNode, ready: bool) -> None:
        node.ready = ready
        self._touched(node.name)

    def _offer_gpus(self, node: KubeletNode) -> None:
        if node.device_plugin_alive and node.kubelet_alive:
            self._set_allocatable(node, node.gpus)

    def _set_allocatable(self, node: KubeletNode, gpus: int) -> None:
        node.gpus_allocatable = gpus
        self._touched(node.name)

    def _touched(self, node: str) -> None:
        """Something about `node` is different (it may have been removed)."""
        self._schedule_soon()
        self.changed(node)
