"""A node, its loan and its pods on a played apiserver, and the node controller that may die at any call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bridge.kube import names
from bridge.kube.connection import Json
from bridge.model.errors import CallFailed, Conflict
from bridge.model.ownership import Mark
from bridge.node_controller.cluster import Cluster
from bridge.node_controller.reconcile import Reconciler
from bridge.simulation.clock import SimulatedClock
from tests.unit.kube_store import StoredApi

NODE = "gpu-1.test"
LEASE = "lease0001"
NODE_PATH, LOAN_PATH = f"{names.NODES}/{NODE}", f"{names.LOANS}/{NODE}"
FENCE_PATH = f"{names.FENCES}/shared"
POD_PATH = "/api/v1/namespaces/default/pods/chat-1"
PLUGIN_PATH = "/api/v1/namespaces/gpu-operator/pods/device-plugin"
BUDGET_PATH = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/keep"
THEIR_TAINT = {"key": "site.example/burn-in", "value": "yes", "effect": "NoSchedule"}
GRACE_S = 2

BUDGET: Json = {
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "keep"},
    "spec": {"selector": {"matchLabels": {"app": "chat"}}},
    "status": {"disruptionsAllowed": 0},
}


def loan(owner: str, generation: int, *, evict: bool = False, nonce: str = "") -> Json:
    spec = {"owner": owner, "lease": LEASE, "epoch": 2, "generation": generation, "gpus": 8, "evict": evict}
    return {"kind": "NodeLoan", "metadata": {"name": NODE}, "spec": {**spec, "nonce": nonce, "reason": ""}}


def pod(name: str, namespace: str, owner: str) -> Json:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app": name.split("-")[0]},
            "ownerReferences": [{"kind": owner, "name": "x", "controller": True}],
        },
        "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": GRACE_S, "containers": []},
        "status": {"phase": "Running"},
    }


def stock(api: StoredApi) -> None:
    """A Ready node with a taint and a cordon of people, a pod of a Deployment, a device plugin, an empty fence."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-05-04T00:00:00Z"}
    api.put(
        NODE_PATH,
        {
            "kind": "Node",
            "metadata": {"name": NODE, "labels": {names.SHARED: "true"}},
            "spec": {"taints": [THEIR_TAINT], "unschedulable": True},
            "status": {"conditions": [ready], "allocatable": {names.GPU_RESOURCE: "8"}},
        },
    )
    api.put(FENCE_PATH, {"kind": "NodeFence", "metadata": {"name": "shared"}, "spec": {"closed": {}}})
    infrastructure = {"name": "gpu-operator", "labels": {names.INFRASTRUCTURE: "true"}}
    api.put(f"{names.NAMESPACES}/gpu-operator", {"kind": "Namespace", "metadata": infrastructure})
    api.put(POD_PATH, pod("chat-1", "default", "ReplicaSet"))
    api.put(PLUGIN_PATH, pod("device-plugin", "gpu-operator", "DaemonSet"))


class Killed(BaseException):
    """The process is gone: nothing of the program may catch it."""


@dataclass
class Mortal:
    """The apiserver as one life of the controller sees it: its calls are counted, and one of them is its last.

    `dies_at` is (number of the call from 0, whether its effect still happens).
    """

    api: StoredApi
    judge: Callable[[str, str, Json | Sequence[Json] | None], None]
    dies_at: tuple[int, bool] | None = None
    calls: list[str] = field(default_factory=list)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        number = len(self.calls)
        self.calls.append(f"{method} {path}")
        if self.dies_at == (number, False):
            raise Killed
        if method != "GET":
            self.judge(method, path, body)
        try:
            return self.api.call(method, path, query=query, body=body, content_type=content_type)
        finally:
            if self.dies_at == (number, True):
                raise Killed  # also instead of a refusal

    def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Iterator[Json]:
        return self.api.watch(path, query, silence_s=silence_s)


class Stage:
    """One node, and controllers one after the other. What each writes is judged before it happens."""

    def __init__(self, dies_at: tuple[int, bool] | None = None) -> None:
        self.clock = SimulatedClock()
        self.api = StoredApi(now=self.clock.now, after=self.clock.after)
        stock(self.api)
        self.mortal = Mortal(self.api, self._judge, dies_at)
        self.deaths = 0
        self._reconciler = self._new()

    def _new(self) -> Reconciler:
        return Reconciler(
            Cluster(self.mortal, fence="shared", leads=lambda: True),
            monotonic_s=self.clock.monotonic_s,
            now=self.clock.now,
            late_bind_wait_s=0.5,
            eviction_grace_s=None,
        )

    def run_until(self, true: Callable[[], bool], what: str, *, within_s: float = 30) -> None:
        """Passes as the controller's queue would have them, each when the one before asks for it."""
        deadline_s = self.clock.monotonic_s() + within_s
        while not true():
            assert self.clock.monotonic_s() < deadline_s, f"not within {within_s} s: {what}; {self.status}"
            self.clock.advance(self.one_pass())

    def one_pass(self) -> float:
        """The seconds until the next one is due; a new controller starts where one died."""
        try:
            return self._reconciler.reconcile(NODE) or 0.25
        except Conflict:
            return 0.02
        except CallFailed:
            return 1.0
        except Killed:
            self.deaths += 1
            self._reconciler = self._new()
            return 1.0

    # --- what is there ---

    @property
    def status(self) -> Json:
        status: Json = self.api.objects[LOAN_PATH].get("status") or {} if LOAN_PATH in self.api.objects else {}
        return status

    @property
    def lease(self) -> str | None:
        taints = self.api.objects[NODE_PATH]["spec"].get("taints") or ()
        return next((taint["value"] for taint in taints if taint["key"] == names.TAINT), None)

    @property
    def mark(self) -> str:
        return str((self.api.objects[NODE_PATH]["metadata"].get("annotations") or {}).get(names.MARK) or "")

    @property
    def entry(self) -> str | None:
        fence = self.api.objects.get(FENCE_PATH)
        return None if fence is None else fence["spec"]["closed"].get(NODE)

    def wants(self) -> Mark:
        spec = self.api.objects[LOAN_PATH]["spec"]
        return Mark(spec["lease"], spec["epoch"], spec["generation"])

    def answered(self, phase: str) -> bool:
        mark, observed = self.wants(), self.status.get("observed", {})
        return self.status.get("phase") == phase and observed.get("generation") == mark.generation

    # --- what must hold of every write ---

    def _judge(self, method: str, path: str, body: Json | Sequence[Json] | None) -> None:
        if path == f"{LOAN_PATH}/status" and isinstance(body, dict):
            self._judge_status(body["status"])
        if path == NODE_PATH and isinstance(body, dict):
            taints = body["spec"]["taints"] or []
            assert THEIR_TAINT in taints, "a person's taint stays"
            assert "unschedulable" not in body["spec"], "a cordon belongs to people"
            ours = [taint for taint in taints if taint["key"] == names.TAINT]
            assert ours or self.entry is None, "opening: the fence entry goes before the taint"
        if path == FENCE_PATH and isinstance(body, list) and body[-1]["op"] == "add":
            assert self.lease == LEASE, "closing: the taint comes before the fence entry"
        if path.endswith("/eviction"):
            spec = self.api.objects[LOAN_PATH]["spec"]
            assert spec["evict"], "nothing is evicted that was not to be"
            assert None not in (self.lease, self.entry), "nothing is evicted where the next pod may start"
            assert path == f"{POD_PATH}/eviction"

    def _judge_status(self, status: Json) -> None:
        mark = self.wants()
        if status.get("closed"):
            assert (self.lease, self.mark, self.entry) == (LEASE, str(mark), str(mark)), "called closed, and is not"
        if status.get("open"):
            assert (self.lease, self.mark, self.entry) == (None, "", None), "called open, and is not"
        if status.get("emptyNonce"):
            assert status["closed"]
            assert POD_PATH not in self.api.objects, "called empty, and a pod is there"
            assert status["emptyNonce"] == self.api.objects[LOAN_PATH]["spec"]["nonce"]
