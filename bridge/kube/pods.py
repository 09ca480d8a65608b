"""What matters of a Pod, and which pods keep a node from being empty. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from bridge.kube.connection import Json
from bridge.kube.gangs import Gang, gang_of
from bridge.kube.names import DO_NOT_DISRUPT, EVICT, GPU_RESOURCE, IDLE
from bridge.kube.nearness import Near, kept_apart, near_of
from bridge.kube.quantities import asked_cpu_m, asked_mib, whole
from bridge.kube.resources import time_of

_MIRROR = "kubernetes.io/config.mirror"
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_KARPENTER_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
_CRITICAL_PRIORITY = 2_000_000_000
"""Where Kubernetes' own system-cluster-critical and system-node-critical begin."""

_COUNTED = frozenset({"cpu", "memory", GPU_RESOURCE})
_HAS_NEAR = frozenset({"affinity", "topologySpreadConstraints"})
_VENDOR = GPU_RESOURCE.partition("/")[0] + "/"

_RAY_ROLES = {"head": "ray-head", "worker": "ray-worker"}


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The scheduler found no node for a pod: since when, and its words."""

    since: datetime | None
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One Pod, trimmed. `controller` is (kind, name) of what would make it again, the Deployment for its pods.

    `running` is False only when the pod has ended and none of its containers is left. `terminating_since` is when its
    deletion was asked for (Kubernetes itself notes only the deadline, which includes the grace period). `cpu_m`,
    `memory_mib`, `others` (further resources by name), `gates` (names of scheduling gates) and constraints are read
    only while it waits for a node, times only once it has one. `near` is what it asks of its place among other pods; of
    a placed pod, whom it keeps away. `requires` is the same for waiting pods that ask the same of a node. `nominated`
    is a node on which others are being preempted for it.
    """

    namespace: str
    name: str
    uid: str
    node: str
    running: bool
    ready: bool
    gpus: int
    priority: int
    created_at: datetime | None
    controller: tuple[str, str] | None = None
    mirror: bool = False
    terminating_since: datetime | None = None
    finalizers: tuple[str, ...] = ()
    evictable: bool | None = None
    unschedulable: Unschedulable | None = None
    node_selector: Json | None = None
    affinity: Json | None = None
    tolerations: tuple[Json, ...] = ()
    cpu_m: int = 0
    memory_mib: int = 0
    others: Mapping[str, int] = field(default_factory=dict)
    near: Near | None = None
    requires: bytes = b""
    nominated: str = ""
    priority_class: str = ""
    gang: Gang | None = None
    gates: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    started_at: datetime | None = None
    ready_since: datetime | None = None
    role: str = ""
    idle: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def devices(self) -> list[tuple[str, int]]:
        """What it asks for of the GPUs' vendor beside whole GPUs, such as MIG slices: resource and count."""
        return [(name, count) for name, count in self.others.items() if name.startswith(_VENDOR)]

    @property
    def asks_for_devices(self) -> bool:
        """Only such pods are demand for shared nodes."""
        return self.gpus > 0 or bool(self.devices)

    @property
    def daemon(self) -> bool:
        return self.controller is not None and self.controller[0] == "DaemonSet"

    @property
    def tier(self) -> int:
        """Order of eviction: ordinary, daemon, critical, critical daemon."""
        return 2 * self.critical + self.daemon

    @property
    def critical(self) -> bool:
        """Of the classes that Kubernetes keeps for itself."""
        return self.priority >= _CRITICAL_PRIORITY

    @property
    def warm_up_s(self) -> float:
        """From start to Ready; 0 while it is not Ready. One that was unready in between looks slower than it was."""
        if self.started_at is None or self.ready_since is None:
            return 0.0
        return max(0.0, (self.ready_since - self.started_at).total_seconds())

    @property
    def group(self) -> str:
        """Whose pod it is, for people: ``Deployment default/chat``."""
        if self.controller is None:
            return f"Pod {self.key}"
        kind, name = self.controller
        return f"{kind} {self.namespace}/{name}"


def read_pod(body: Json) -> Pod:
    """A Pod from the apiserver's JSON; see `Pod` for what is kept when."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    node = spec.get("nodeName") or ""
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    is_ready = ready.get("status") == "True"
    near = near_of(metadata["namespace"], labels, spec) if _HAS_NEAR & spec.keys() else None
    gpus = _total(spec, GPU_RESOURCE, whole)
    asked = {} if node else _asked_of_a_node(gpus, spec)
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node=node,
        running=_running(status),
        ready=is_ready,
        gpus=gpus,
        priority=int(spec.get("priority") or 0),
        created_at=time_of(metadata.get("creationTimestamp")),
        controller=_controller(metadata),
        mirror=_MIRROR in annotations,
        terminating_since=_terminating_since(metadata),
        finalizers=tuple(metadata.get("finalizers") or ()),
        evictable=_evictable(annotations),
        unschedulable=None if node else _unschedulable(conditions.get("PodScheduled") or {}),
        near=kept_apart(near) if node else near,
        priority_class=spec.get("priorityClassName") or "",
        gang=gang_of(metadata),
        gates=() if node else tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        labels=labels,
        started_at=time_of(status.get("startTime")) if node else None,
        ready_since=time_of(ready.get("lastTransitionTime")) if node and is_ready else None,
        role=_RAY_ROLES.get(labels.get("ray.io/node-type", ""), ""),
        idle=annotations.get(IDLE) == "true",
        nominated="" if node else status.get("nominatedNodeName") or "",
        **asked,
    )


def _asked_of_a_node(gpus: int, spec: Json) -> dict[str, Any]:
    found: dict[str, Any] = {
        "node_selector": spec.get("nodeSelector"),
        "affinity": (spec.get("affinity") or {}).get("nodeAffinity"),
        "tolerations": tuple(spec.get("tolerations") or ()),
        "cpu_m": _total(spec, "cpu", asked_cpu_m),
        "memory_mib": _total(spec, "memory", asked_mib),
        "others": {name: total for name in _other_resources(spec) if (total := _total(spec, name, whole))},
    }
    requires = orjson.dumps([gpus, *found.values()], option=orjson.OPT_SORT_KEYS)
    return {**found, "requires": requires}


def _other_resources(spec: Json) -> set[str]:
    """Names of what the pod asks for beside CPU, memory and GPUs."""
    names: set[str] = set()
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()), spec):
        resources = container.get("resources")
        if resources:
            names.update(resources.get("requests") or (), resources.get("limits") or ())
    return {name for name in names - _COUNTED if "/" in name or name.startswith(("hugepages-", "ephemeral-storage"))}


def keeps_busy(pod: Pod, infrastructure: Collection[str]) -> bool:
    """Whether the pod keeps its node from being empty.

    Everything does but what has ended, mirror pods, and DaemonSet pods of the site's `infrastructure` namespaces. A
    terminating pod does until its object is gone: its processes may still run.
    """
    return pod.running and not pod.mirror and not (pod.daemon and pod.namespace in infrastructure)


def gpus_used(pods: Iterable[Pod]) -> int:
    return sum(pod.gpus for pod in pods if pod.running)


def _running(status: Json) -> bool:
    if status.get("phase") not in ("Succeeded", "Failed"):
        return True
    # Whoever gave up on a node may have written "Failed" while its kubelet, unheard, runs the containers on.
    containers = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return any("running" in (c.get("state") or {}) for c in containers)


def _total(spec: Json, resource: str, read: Callable[[str], int]) -> int:
    """What the pod occupies of a resource, as the scheduler counts it.

    Containers and sidecars together, or if that is more, one init container beside the sidecars started before it;
    and the overhead of its runtime class. What is asked for the pod as a whole goes before its containers' sum.
    """
    pod_level = _asked(spec, resource, read)
    return (pod_level or _containers(spec, resource, read)) + _amount(spec.get("overhead"), resource, read)


def _containers(spec: Json, resource: str, read: Callable[[str], int]) -> int:
    sidecars = peak = 0
    for container in spec.get("initContainers") or ():
        asked = _asked(container, resource, read)
        peak = max(peak, sidecars + asked)
        if container.get("restartPolicy") == "Always":
            sidecars += asked
    return max(peak, sidecars + sum(_asked(c, resource, read) for c in spec.get("containers") or ()))


def _asked(container: Json, resource: str, read: Callable[[str], int]) -> int:
    resources = container.get("resources")
    if not resources:
        return 0
    requests = resources.get("requests")
    return _amount(requests if requests and resource in requests else resources.get("limits"), resource, read)


def _amount(amounts: Json | None, resource: str, read: Callable[[str], int]) -> int:
    return read(str(amounts[resource])) if amounts and resource in amounts else 0


def _controller(metadata: Json) -> tuple[str, str] | None:
    owner = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), None)
    if owner is None:
        return None
    kind, name = str(owner["kind"]), str(owner["name"])
    template = (metadata.get("labels") or {}).get("pod-template-hash")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return "Deployment", name.removesuffix(f"-{template}")
    return kind, name


def _terminating_since(metadata: Json) -> datetime | None:
    deadline = time_of(metadata.get("deletionTimestamp"))
    if deadline is None:
        return None
    return deadline - timedelta(seconds=int(metadata.get("deletionGracePeriodSeconds") or 0))


def _evictable(annotations: Json) -> bool | None:
    """What the pod's owner says about evicting it; None: nothing."""
    said = (annotations.get(EVICT), annotations.get(_SAFE_TO_EVICT))
    if "true" in (annotations.get(DO_NOT_DISRUPT), annotations.get(_KARPENTER_DO_NOT_DISRUPT)) or "false" in said:
        return False
    return True if "true" in said else None


def _unschedulable(condition: Json) -> Unschedulable | None:
    if condition.get("status") != "False" or condition.get("reason") != "Unschedulable":
        return None
    return Unschedulable(time_of(condition.get("lastTransitionTime")), str(condition.get("message") or ""))
