"""Our manifests, node controller and port on a real control plane, each under its own service account.

Nodes are objects without a kubelet, so the world plays one: it starts pods on them and, unless told otherwise, lets
terminating pods go.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from bridge.inspector.inspector import Inspector
from bridge.kube import names
from bridge.kube.connection import ApiError, Connection, Json
from bridge.kube.port import KubeApi
from bridge.model.kube import DeviceHolder, KubeNode
from bridge.node_controller.controller import Controller
from bridge.settings import KubeSettings, NodeControllerSettings
from tests.contracts.kube_facts import FINALIZER
from tests.integration.control_plane import ControlPlane, eventually

_T = TypeVar("_T")
SETTLE_S = 1.5
"""Longer than the late bind wait and the slowest reaction seen."""


class WallClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


class Cluster:
    """What all tests of a module share: the control plane, the broker's port, a running node controller."""

    def __init__(self, plane: ControlPlane, kube: KubeApi, admin: Connection, controller_api: Connection) -> None:
        self.plane = plane
        self.kube = kube
        self.admin = admin
        self._controller_api = controller_api
        self._controller = ExitStack()
        self._numbers = itertools.count(1)

    def start_controller(self) -> None:
        self._controller.enter_context(running_controller(self._controller_api, f"replica-{next(self._numbers)}"))
        eventually("the heartbeat is seen", lambda: _alive(self.kube))

    def stop_controller(self) -> None:
        self._controller.close()

    def world(self) -> RealKubeWorld:
        return RealKubeWorld(self, f"gpu-{next(self._numbers)}.test")


@contextmanager
def running_controller(api: Connection, holder: str) -> Iterator[Controller]:
    """A node controller, ticked by a thread as its process does, until the end of the block."""
    settings = NodeControllerSettings()
    controller = Controller(api, settings, holder=holder, monotonic_s=time.monotonic, now=WallClock().now)
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.3):
            controller.tick()

    controller.start()
    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield controller
    finally:
        stop.set()
        ticking.join()
        controller.close()


@contextmanager
def running_cluster(plane: ControlPlane) -> Iterator[Cluster]:
    plane.install()
    admin = plane.connect()
    _await_admission(admin)
    kube = KubeApi.connect(KubeSettings(kubeconfig=plane.kubeconfig_of("bridge-broker")), WallClock())
    controller_api = Connection.open(plane.kubeconfig_of("node-controller"), timeout_s=10)
    try:
        cluster = Cluster(plane, kube, admin, controller_api)
        cluster.start_controller()
        yield cluster
        cluster.stop_controller()
    finally:
        kube.close()
        controller_api.close()


def _alive(kube: KubeApi) -> bool:
    try:
        return kube.observe().controller_alive
    except Exception:
        return False


def _await_admission(admin: Connection) -> None:
    """A policy is enforced a moment after it was written: wait until a fence refuses a pod."""
    closed = {"no-such-node": "bridge:lease0000:0:0"}
    admin.call("POST", names.FENCES, body=our_object("NodeFence", "shared", {"closed": closed}))

    def refused() -> bool:
        try:
            admin.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", body=pod_body("probe", "no-such-node"))
        except ApiError as error:
            return error.status == 403
        return False

    eventually("the fence is enforced", refused)


def our_object(kind: str, name: str, spec: Json) -> Json:
    """One of our custom resources."""
    return {"apiVersion": f"{names.GROUP}/{names.VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def pod_body(name: str, node: str | None, *, gpus: int = 1, grace_s: int = 1, **metadata: Any) -> Json:
    resources = {"limits": {names.GPU_RESOURCE: str(gpus)}} if gpus else {}
    spec: Json = {
        "terminationGracePeriodSeconds": grace_s,
        "containers": [{"name": "main", "image": "none", "resources": resources}],
    }
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


class Levers:
    """What a cluster admin can do from the outside, whoever plays the kubelet. Work pods live in `namespace`."""

    kube: KubeApi
    admin: Connection
    node: str

    @property
    def namespace(self) -> str:
        raise NotImplementedError

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        raise NotImplementedError

    # --- the node ---

    def untaint(self) -> None:
        self.patch_node({"spec": {"taints": None}}, manager="uncordoner")

    def cordon(self, on: bool) -> None:
        self.patch_node({"spec": {"unschedulable": on}})

    def patch_node(self, patch: Json, *, manager: str = "kubectl-edit") -> None:
        path = f"{names.NODES}/{self.node}"
        query = {"fieldManager": manager}
        self.admin.call("PATCH", path, query=query, body=patch, content_type="application/merge-patch+json")

    def raw_node(self) -> Json:
        return self.admin.call("GET", f"{names.NODES}/{self.node}")

    def taints(self) -> list[Json]:
        return [
            {key: taint.get(key) for key in ("key", "value", "effect")}
            for taint in self.raw_node()["spec"].get("taints") or ()
        ]

    def seen(self) -> KubeNode:
        return self.kube.observe().nodes[self.node]

    # --- our own objects ---

    def fence_entry(self) -> str:
        try:
            closed = self.admin.call("GET", f"{names.FENCES}/shared")["spec"]["closed"]
        except ApiError:
            return ""
        return str(closed.get(self.node, ""))

    def write_fence_entry(self, entry: str) -> None:
        body = {"spec": {"closed": {self.node: entry or None}}}
        self.admin.call("PATCH", f"{names.FENCES}/shared", body=body, content_type="application/merge-patch+json")

    def delete_fence(self) -> None:
        self._allow_deletion(f"{names.FENCES}/shared")
        self.admin.call("DELETE", f"{names.FENCES}/shared")

    def delete_loan(self, *, annotated: bool) -> str:
        path = f"{names.LOANS}/{self.node}"
        if annotated:
            self._allow_deletion(path)
        try:
            self.admin.call("DELETE", path)
        except ApiError as refusal:
            return refusal.message
        return ""

    def _allow_deletion(self, path: str) -> None:
        allowed = {"metadata": {"annotations": {f"{names.GROUP}/allow-deletion": "true"}}}
        self.admin.call("PATCH", path, body=allowed, content_type="application/merge-patch+json")

    # --- pods ---

    def hold_pod(self, key: str, on: bool) -> None:
        body = {"metadata": {"finalizers": [FINALIZER] if on else None}}
        self.admin.call("PATCH", _path(key), body=body, content_type="application/merge-patch+json")

    def delete_pod(self, key: str) -> None:
        self.admin.call("DELETE", _path(key))

    def pod_exists(self, key: str) -> bool:
        return _exists(self.admin, _path(key))

    def admits_pod(self) -> bool:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        try:
            self.admin.call("POST", path, query={"dryRun": "All"}, body=pod_body("probe", self.node))
        except ApiError as refusal:
            if "not open to Kubernetes" not in refusal.message:
                raise
            return False
        return True

    def budget(self, name: str) -> str:
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"{name}-budget"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
        }
        self.admin.call("POST", self._budgets, body=body)
        path = f"{self._budgets}/{name}-budget"
        counted = self.until("the budget counts", lambda: self.admin.call("GET", path).get("status"))
        assert counted["disruptionsAllowed"] == 0
        return f"{name}-budget"

    def lift_budget(self, name: str) -> None:
        self.admin.call("DELETE", f"{self._budgets}/{name}-budget")

    @property
    def _budgets(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"


class RealKubeWorld(Levers):
    """One fresh node of the cluster: `tests.contracts.kube_facts.KubeFactsWorld` and some levers more."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.cluster = cluster
        self.kube = cluster.kube
        self.admin = cluster.admin
        self.node = node
        self.scan: Callable[[], tuple[DeviceHolder, ...]] = tuple
        self._stays: set[str] = set()
        self._stubborn: set[str] = set()
        self._kubelet_alive = True
        self._ended: set[str] = set()
        self.add_node()

    # --- the node ---

    def add_node(self) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.node, "labels": {names.SHARED: "true", "kubernetes.io/hostname": self.node}},
        }
        self.admin.call("POST", names.NODES, body=body)
        self.set_ready("True", reason="KubeletReady")
        # The admission of a new node taints it until it was seen ready; nobody runs the controller that lifts it.
        self.patch_node({"spec": {"taints": None}})
        self.until("the node is seen", lambda: self.node in self.kube.observe().nodes)

    def delete_node(self) -> None:
        self.admin.call("DELETE", f"{names.NODES}/{self.node}")

    def return_node(self) -> None:
        self.add_node()

    def lose_kubelet(self) -> None:
        self._kubelet_alive = False
        self.set_ready("Unknown", reason="NodeStatusUnknown")

    def return_kubelet(self) -> None:
        self._kubelet_alive = True
        self.set_ready("True", reason="KubeletReady")

    def set_ready(self, status: str, *, reason: str, gpus: int = 8) -> None:
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", names.GPU_RESOURCE: str(gpus)}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": now}
        body = {"status": {"conditions": [ready], "allocatable": amounts, "capacity": amounts}}
        path = f"{names.NODES}/{self.node}/status"
        self.admin.call("PATCH", path, body=body, content_type="application/strategic-merge-patch+json")

    # --- pods ---

    def start_pod(self, name: str, *, gpus: int = 1, stays: bool = False) -> str:
        key = self.create_pod(name, gpus=gpus, **_made_by_deployment(name))
        if stays:
            self._stays.add(key)
        return key

    def start_stubborn_pod(self, name: str, *, grace_s: int) -> str:
        key = self.create_pod(name, grace_s=grace_s, **_made_by_deployment(name))
        self._stubborn.add(key)
        return key

    def start_daemon(self, name: str, *, infrastructure: bool) -> str:
        if not infrastructure:
            return self.create_pod(f"{name}-x", gpus=0, ownerReferences=[_owner("DaemonSet", name)])
        namespace = self.make_namespace(f"plugins-{self.node.replace('.', '-')}", **{names.INFRASTRUCTURE: "true"})
        body = pod_body(f"{name}-x", self.node, gpus=0, ownerReferences=[_owner("DaemonSet", name)])
        self.admin.call("POST", f"/api/v1/namespaces/{namespace}/pods", body=body)
        return f"{namespace}/{name}-x"

    def run_to_its_end(self, name: str) -> str:
        key = self.create_pod(f"{name}-x", ownerReferences=[_owner("Job", name)])
        self._write_status(key, {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]})
        return key

    def create_pod(self, name: str, *, gpus: int = 1, grace_s: int = 1, **metadata: Any) -> str:
        """A pod on the node, made by any owner or none, in the namespace of the node's own."""
        key = f"{self.namespace}/{name}"
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        self.admin.call("POST", path, body=pod_body(name, self.node, gpus=gpus, grace_s=grace_s, **metadata))
        self.set_pod_ready(key)
        self.until(f"pod {key} is seen", lambda: key in self.seen().work_pods)
        return key

    def set_pod_ready(self, key: str, *, ready: bool = True) -> None:
        word = "True" if ready else "False"
        self._write_status(key, {"phase": "Running", "conditions": [{"type": "Ready", "status": word}]})

    def _write_status(self, key: str, status: Json) -> None:
        path = f"{_path(key)}/status"
        self.admin.call("PATCH", path, body={"status": status}, content_type="application/strategic-merge-patch+json")

    def end_pod(self, key: str) -> None:
        self._stays.discard(key)

    def play_kubelet(self) -> None:
        """Let terminating pods go, but those that stay; stubborn ones when their grace is over."""
        if not self._kubelet_alive:
            return
        query = {"fieldSelector": f"spec.nodeName={self.node}"}
        for pod in self.admin.call("GET", names.PODS, query=query)["items"]:
            metadata = pod["metadata"]
            key = f"{metadata['namespace']}/{metadata['name']}"
            deadline = metadata.get("deletionTimestamp")
            if not deadline or key in self._stays or metadata.get("finalizers"):
                continue
            if key not in self._stubborn or datetime.now(UTC) > datetime.fromisoformat(deadline):
                self.admin.call("DELETE", _path(key), body={"gracePeriodSeconds": 0})

    def ask_for_gpus(self, name: str, gpus: int) -> None:
        self.admin.call("POST", "/apis/apps/v1/namespaces/default/deployments", body=deployment(name, gpus, self.node))

    @property
    def namespace(self) -> str:
        """Every node's pods live in a namespace of their own, so that tests do not meet."""
        name = self.node.replace(".", "-")
        if name not in self._ended:
            self._ended.add(name)
            self.make_namespace(name)
        return name

    def make_namespace(self, name: str, **labels: str) -> str:
        metadata = {"name": name, "labels": labels}
        self.admin.call("POST", names.NAMESPACES, body={"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.until(f"the service account of {name} exists", lambda: _exists(self.admin, account))
        return name

    # --- time ---

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        def step() -> _T:
            self.play_kubelet()
            return check()

        result: _T = eventually(f"{what} ({self.node})", step)
        return result

    def settle(self) -> None:
        """Nothing in a real cluster says that nothing more will come: give it the time it has never needed."""
        deadline_s = time.monotonic() + SETTLE_S
        self.until("time has passed", lambda: time.monotonic() > deadline_s)

    # --- the inspector of the node ---

    @contextmanager
    def running_inspector(self) -> Iterator[None]:
        """An inspector whose token is bound to a pod on this node, as in production."""
        api = Connection.open(self.kubeconfig_of_inspector(), timeout_s=10)
        inspector = Inspector(api, self.node, lambda: self.scan(), recheck_s=0.1, monotonic_s=time.monotonic)
        thread = threading.Thread(target=inspector.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            inspector.stop()
            thread.join()
            api.close()

    def kubeconfig_of_inspector(self) -> Path:
        query = {"fieldSelector": f"spec.nodeName={self.node}", "labelSelector": "app.kubernetes.io/name=inspector"}
        path = f"/api/v1/namespaces/{names.NAMESPACE}/pods"
        (pod,) = self.until("its inspector is placed", lambda: self.admin.call("GET", path, query=query)["items"])
        metadata = pod["metadata"]
        return self.cluster.plane.kubeconfig_of("inspector", kind="Pod", name=metadata["name"], uid=metadata["uid"])


def deployment(name: str, gpus: int, node: str) -> Json:
    template = pod_body(name, None, gpus=gpus)["spec"]
    template.pop("terminationGracePeriodSeconds")
    template["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": template},
        },
    }


def _made_by_deployment(name: str) -> Json:
    """What the metadata of its pods say."""
    labels = {"app": name, "pod-template-hash": "5d4f"}
    return {"labels": labels, "ownerReferences": [_owner("ReplicaSet", f"{name}-5d4f")]}


def _owner(kind: str, name: str) -> Json:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "name": name, "uid": "0-0", "controller": True}


def _path(key: str) -> str:
    namespace, name = key.split("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _exists(api: Connection, path: str) -> bool:
    try:
        api.call("GET", path)
    except ApiError:
        return False
    return True
