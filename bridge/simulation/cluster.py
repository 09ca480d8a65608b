"""The simulated Kubernetes without the bridge: nodes, Deployments, their pods, a scheduler, kubelets, evictions.

`bridge.simulation.node_controller` works on it as the real one does on an apiserver, and `bridge.simulation.kube` shows
it to the broker. Simulated is what 1.34 was seen to do: a binding that is on its way lands after a taint; a pod that
terminates holds its GPUs until it is gone; with a dead kubelet it never goes; an eviction asks the budget first.
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
    heartbeat_stale_s: float = 10
    inspector_s: float = 0.3
    inspector_recheck_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Deployment:
    """`replicas` pods that each ask for `gpus` GPUs; a pod is Ready `startup_s` after it was bound (infinite: never)
    and gone `shutdown_s` after it was told to go. `min_available` is its PodDisruptionBudget."""

    name: str
    replicas: int
    gpus: int = 8
    namespace: str = "default"
    priority: int = 0
    startup_s: float = 1.5
    shutdown_s: float = 1.0
    min_available: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True, eq=False)
class Pod:
    """`binding` is where the scheduler has decided to put it, `node` where it is. Gone means not listed any more."""

    name: str
    uid: str
    deployment: str
    namespace: str
    gpus: int
    priority: int
    created_at: datetime
    binding: str = ""
    node: str = ""
    ready: bool = False
    terminating: bool = False
    finalizer: bool = False
    unschedulable: str = ""
    process: Process | None = None
    started_at: datetime | None = None
    warm_up_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class KubeletNode:
    """A Node, its kubelet and device plugin. `taint` is the bridge's, by lease; `others_taint` is anybody else's."""

    name: str
    machine: str
    uid: str
    gpus: int
    gpus_allocatable: int
    ready: bool = True
    cordoned: bool = False
    taint: str = ""
    others_taint: bool = False
    kubelet_alive: bool = True
    device_plugin_alive: bool = True
    notice: Timer | None = None
    waiting_to_go: list[Pod] = field(default_factory=list)


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

    def set_taint(self, node: str, lease: str) -> None:
        """The bridge's taint, or with an empty `lease` its removal, by whomever."""
        if self.nodes[node].taint != lease:
            self.nodes[node].taint = lease
            self._touched(node)

    def set_others_taint(self, node: str, on: bool) -> None:
        self.nodes[node].others_taint = on
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
        old = self.nodes[name]
        for pod in self.on(name):
            self._gone(pod)
        generation = int(old.uid.rsplit("-", 1)[1]) + 1
        self.nodes[name] = KubeletNode(name, old.machine, f"uid-{name}-{generation}", old.gpus, 0)
        self.restart_device_plugin(name)
        self._touched(name)

    # --- what breaks ---

    def lose_kubelet(self, node: str) -> None:
        """The kubelet is gone, its containers run on. The Node turns NotReady only when its lease is old."""
        found = self.nodes[node]
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
        """Pods that exist on a node, terminating ones included, in order of creation."""
        return [pod for pod in self.pods.values() if pod.node == node]

    def used(self, node: str) -> int:
        """GPUs taken on a node, by pods that are bound to it or are going to be."""
        return sum(pod.gpus for pod in self.pods.values() if node in (pod.node, pod.binding))

    def of(self, deployment: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.deployment == deployment and not pod.terminating]

    def pending(self) -> tuple[PendingPod, ...]:
        """Pods that the scheduler has tried and found no node for."""
        return tuple(
            self._waiting(pod) for pod in self.pods.values() if not pod.node and pod.unschedulable and pod.gpus
        )

    def _waiting(self, pod: Pod) -> PendingPod:
        helps = frozenset(
            node.name
            for node in self.nodes.values()
            if pod.gpus <= node.gpus and not node.cordoned and not node.others_taint
        )
        return PendingPod(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            gpus=pod.gpus,
            group=f"Deployment {pod.deployment}",
            priority=pod.priority,
            pending_since=pod.created_at,
            message=pod.unschedulable,
            helps=None if len(helps) == len(self.nodes) else helps,
            obstacle="" if helps else f"no shared node would take its {pod.gpus} GPUs",
        )

    def running(self, node: str) -> tuple[RunningPod, ...]:
        """The pods on a node with what ending them costs."""
        return tuple(
            RunningPod(
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                gpus=pod.gpus,
                group=f"Deployment {pod.deployment}",
                owner="Deployment",
                priority=pod.priority,
                started_at=pod.started_at,
                warm_up_s=pod.warm_up_s,
                disruptions_allowed=self._disruptions_allowed(pod.deployment),
                protected="it is terminating already" if pod.terminating else "",
            )
            for pod in self.on(node)
        )

    def _disruptions_allowed(self, deployment: str) -> int | None:
        needed = self.deployments[deployment].min_available
        return max(0, sum(pod.ready for pod in self.of(deployment)) - needed) if needed else None

    # --- evictions and endings ---

    def evict(self, pod: Pod) -> str:
        """The Eviction API: empty when the pod is told to go (or is on its way already), else why the budget says no.

        A pod that is not Ready is protected only while its Deployment has fewer healthy pods than the budget wants
        (the API's default policy, which lets crash-looping pods block a drain).
        """
        if pod.terminating:
            return ""
        deployment = self.deployments[pod.deployment]
        healthy = sum(other.ready for other in self.of(pod.deployment))
        needed = deployment.min_available + (1 if pod.ready else 0)
        if deployment.min_available and healthy < needed:
            return (
                f"pod {pod.key}: PodDisruptionBudget {deployment.key} allows no eviction "
                f"({healthy} healthy, {deployment.min_available} needed)"
            )
        self.delete(pod)
        return ""

    def delete(self, pod: Pod) -> None:
        """Ask a pod to go. It is gone when its kubelet says so and no finalizer holds it."""
        if pod.terminating:
            return
        pod.terminating, pod.ready = True, False
        if pod.node:
            self._clock.after(self._latency(self.deployments[pod.deployment].shutdown_s), lambda: self._shut_down(pod))
        else:
            self._gone(pod)
        self._sync(pod.deployment)
        self._touched(pod.node)

    def drop_finalizer(self, pod: Pod) -> None:
        pod.finalizer = False
        if pod.terminating and pod.process is None:
            self._gone(pod)

    def _shut_down(self, pod: Pod) -> None:
        node = self.nodes[pod.node]
        if pod.key not in self.pods:
            return
        if not node.kubelet_alive:
            node.waiting_to_go.append(pod)
        else:
            self._gone(pod)

    def _gone(self, pod: Pod) -> None:
        if pod.process is not None:
            self._machines.stop(pod.process)
            pod.process = None
        if not pod.finalizer:
            self.pods.pop(pod.key, None)
            self._sync(pod.deployment)
        self._touched(pod.node)

    # --- controllers of Kubernetes itself ---

    def _sync(self, key: str) -> None:
        """Make as many pods as wanted; of too many, those go that serve least, the youngest first."""
        if not self.apiserver_up:
            return
        deployment = self.deployments[key]
        pods = self.of(key)
        for _ in range(deployment.replicas - len(pods)):
            self._create(deployment)
        by_service = sorted(pods, key=lambda pod: (not pod.ready, not pod.node))
        for pod in by_service[deployment.replicas :]:
            self.delete(pod)
        self._schedule_soon()

    def _create(self, deployment: Deployment) -> None:
        self._created += 1
        pod = Pod(
            name=f"{deployment.name}-{self._created}",
            uid=f"pod-{self._created}",
            deployment=deployment.key,
            namespace=deployment.namespace,
            gpus=deployment.gpus,
            priority=deployment.priority,
            created_at=self._clock.now(),
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
        if node.taint or node.others_taint:
            return "had untolerated taint"
        if node.cordoned:
            return "were unschedulable"
        if not node.ready:
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
        if pod.terminating:
            return
        if node in self._admitted_fence or not self.apiserver_up:
            self._schedule_soon()
            return
        pod.node, pod.unschedulable = node, ""
        if self.nodes[node].kubelet_alive:
            self._run(pod)
        self._touched(node)

    def _refresh_admission(self) -> None:
        self._admitted_fence = frozenset(self.fence)
        self._schedule_soon()

    # --- kubelets ---

    def _run(self, pod: Pod) -> None:
        node = self.nodes[pod.node]
        if node.gpus_allocatable < pod.gpus:
            self._reject(pod)
            return
        pod.process = self._machines.start(node.machine, Side.KUBERNETES, f"pod {pod.key}", "root")
        pod.started_at = self._clock.now()
        startup_s = self.deployments[pod.deployment].startup_s
        if math.isfinite(startup_s):
            self._clock.after(self._latency(startup_s), lambda: self._become_ready(pod))

    def _reject(self, pod: Pod) -> None:
        """UnexpectedAdmissionError: no healthy device. The pod fails, its Deployment makes another."""
        pod.terminating = True
        self._gone(pod)

    def _become_ready(self, pod: Pod) -> None:
        if not pod.terminating and pod.process is not None:
            pod.ready = True
            if pod.started_at is not None:
                pod.warm_up_s = (self._clock.now() - pod.started_at).total_seconds()
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
        self._schedule_soon()
        self.changed(node)
