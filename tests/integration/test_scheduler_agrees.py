"""What the bridge says of a waiting pod, held against the real scheduler.

In each case all shared nodes are closed by our taint and pods wait. The bridge says which nodes would help which pod.
Then the nodes that it says help nobody are opened: the scheduler tries again and must place nothing. At last the
others are opened, and every pod that was promised a node must get one of those.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge.kube import names
from bridge.kube.connection import MERGE_PATCH, ApiError, Connection, Json
from bridge.kube.port import KubeApi
from bridge.model.errors import Unreadable
from bridge.model.kube import PendingPod
from bridge.settings import KubeSettings
from tests.integration.control_plane import ControlPlane, control_plane, eventually
from tests.integration.kube_world import WallClock, our_object, pod_body

PODS = "/api/v1/namespaces/default/pods"
OURS = {"key": names.TAINT, "value": "lease0001", "effect": "NoSchedule"}
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
SHARED = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
"""Zone of each shared node; node ``c1`` in zone c is none, and has no GPUs."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("kube")) as plane:
        plane.install()
        plane.connect().call("POST", names.FENCES, body=our_object("NodeFence", "shared", {"closed": {}}))
        yield plane


@pytest.fixture(scope="module")
def kube(plane: ControlPlane) -> Iterator[KubeApi]:
    """The broker's port under its own rights."""
    kube = KubeApi.connect(KubeSettings(kubeconfig=plane.kubeconfig_of("bridge-broker")), WallClock())
    yield kube
    kube.close()


class Scene:
    """Five fresh nodes in three zones, and the pods of one case."""

    def __init__(self, admin: Connection, kube: KubeApi, number: int) -> None:
        self.admin, self.kube = admin, kube
        self.nodes = {f"{name}-{number}": zone for name, zone in (*SHARED.items(), ("c1", "c"))}
        self.number = number
        self.made: list[str] = []
        for name, zone in self.nodes.items():
            self._add_node(name, zone, shared=not name.startswith("c"))

    def _add_node(self, name: str, zone: str, *, shared: bool) -> None:
        labels = {HOST: name, ZONE: zone, **({names.SHARED: "true"} if shared else {})}
        path = f"{names.NODES}/{name}"
        self._make(names.NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        if shared:
            amounts |= {names.GPU_RESOURCE: "8", "nvidia.com/mig-1g.10gb": "7", "rdma/hca": "1"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"conditions": [ready], "allocatable": amounts, "capacity": amounts}
        self.admin.call("PATCH", f"{path}/status", body={"status": status}, content_type=MERGE_PATCH)
        self.taint(name, [OURS] if shared else [])

    def taint(self, name: str, taints: list[Json]) -> None:
        body = {"spec": {"taints": taints or None}}
        self.admin.call("PATCH", f"{names.NODES}/{name}", body=body, content_type=MERGE_PATCH)

    def _make(self, path: str, body: Json) -> None:
        self.admin.call("POST", path, body=body)
        self.made.append(f"{path}/{body['metadata']['name']}")

    def named(self, name: str) -> str:
        return f"{name}-{self.number}"

    def place(self, name: str, node: str, labels: Mapping[str, str], spec: Json) -> None:
        body = pod_body(self.named(name), self.named(node), gpus=0, labels=dict(labels))
        body["spec"] |= spec
        self._make(PODS, body)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        path = f"{PODS}/{self.named(name)}/status"
        self.admin.call("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)

    def ask(self, name: str, labels: Mapping[str, str], spec: Json, limits: Mapping[str, str]) -> None:
        body = pod_body(self.named(name), None, labels=dict(labels))
        body["spec"] |= spec
        body["spec"]["containers"][0]["resources"]["limits"] = dict(limits)
        self._make(PODS, body)

    def seen(self, names_: Sequence[str]) -> dict[str, PendingPod]:
        """What the port says of these pods, once the scheduler has tried all of them."""
        wanted = {self.named(name) for name in names_}

        def told() -> dict[str, PendingPod] | None:
            try:
                observed = self.kube.observe()
            except Unreadable:
                return None
            found = {pod.name: pod for pod in observed.pending if pod.name in wanted and pod.message}
            ready = len(found) == len(wanted) and self.nodes.keys() >= observed.nodes.keys() != set()
            return {name: found[self.named(name)] for name in names_} if ready else None

        pods: dict[str, PendingPod] = eventually("all pods were tried", told, timeout_s=30)
        return pods

    def message(self, name: str) -> str:
        conditions = self._pod(name)["status"].get("conditions") or ()
        return next((str(c.get("message")) for c in conditions if c["type"] == "PodScheduled"), "")

    def node_of(self, name: str) -> str:
        return str(self._pod(name)["spec"].get("nodeName") or "")

    def _pod(self, name: str) -> Json:
        return self.admin.call("GET", f"{PODS}/{self.named(name)}")

    def clear(self) -> None:
        for path in reversed(self.made):
            try:
                self.admin.call("DELETE", path, body={"gracePeriodSeconds": 0})
            except ApiError as error:
                if error.status != 404:
                    raise
        eventually("no node of the case is seen", lambda: not (self.kube.observe().nodes.keys() & self.nodes.keys()))


_numbers = itertools.count(1)


@pytest.fixture
def scene(plane: ControlPlane, kube: KubeApi) -> Iterator[Scene]:
    scene = Scene(plane.connect(), kube, next(_numbers))
    yield scene
    scene.clear()


CHAT = {"app": "chat"}
ONE_GPU = {names.GPU_RESOURCE: "1"}


def spread(key: str, **more: Any) -> Json:
    """Over `key`, at most one more in one than in another."""
    body = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **more}
    return {"labelSelector": {"matchLabels": CHAT}, **body}


def affinity(kind: str, key: str, labels: Mapping[str, str], **more: Any) -> Json:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}, **more}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@dataclass(frozen=True)
class Case:
    """`placed`: (node, labels, spec) of pods that run. `expected`: by pod the nodes that help it."""

    spec: Json
    expected: tuple[str, ...]
    """Space-separated names of shared nodes for each waiting pod, empty where no node helps."""
    placed: tuple[tuple[str, Mapping[str, str], Json], ...] = ()
    limits: Mapping[str, str] = field(default_factory=lambda: ONE_GPU)
    labels: Mapping[str, str] = field(default_factory=lambda: CHAT)
    obstacle: str = ""
    per_node: int = 0


ALL = "a1 a2 b1 b2"
IN_A, IN_C, BANK_A = ("a1", CHAT, {}), ("c1", CHAT, {}), ("a1", {"app": "bank"}, {})
EVEN = {"topologySpreadConstraints": [spread(ZONE)]}
ALONE = affinity("podAntiAffinity", HOST, CHAT)

CASES = {
    "GPUs": Case({}, (ALL,)),
    "MIG slices": Case({}, (ALL,), limits={"nvidia.com/mig-1g.10gb": "2"}),
    "more MIG slices than a node has": Case(
        {},
        ("",),
        limits={"nvidia.com/mig-1g.10gb": "8"},
        obstacle="asks for 8 of nvidia.com/mig-1g.10gb, a node has 7",
    ),
    "a NIC beside it": Case({}, (ALL,), limits={**ONE_GPU, "rdma/hca": "1"}),
    "a device that no node has": Case(
        {}, ("",), limits={**ONE_GPU, "example.org/fpga": "1"}, obstacle="asks for 1 of example.org/fpga, a node has 0"
    ),
    "one pod over zones goes where the fewest are": Case(
        EVEN | {"nodeSelector": {names.SHARED: "true"}}, ("b1 b2",), placed=(IN_A,)
    ),
    "two pods over two zones, one each": Case(EVEN | {"nodeSelector": {names.SHARED: "true"}}, ("a1 a2", "b1 b2")),
    "three pods where zone a is ahead by one": Case(
        EVEN | {"nodeSelector": {names.SHARED: "true"}}, ("b1 b2", "a1 a2", "b1 b2"), placed=(IN_A,)
    ),
    "a zone without shared nodes has the fewest": Case(
        EVEN,
        ("",),
        placed=(IN_A, ("b1", CHAT, {})),
        obstacle=f"its pods are to be spread over {ZONE}: c has the fewest (0), "
        "and no shared node that it fits is there",
    ),
    "pods of other labels do not count": Case(
        EVEN | {"nodeSelector": {names.SHARED: "true"}}, (ALL,), placed=(BANK_A,)
    ),
    "fewer zones than it wants": Case(
        {
            "topologySpreadConstraints": [spread(ZONE, minDomains=4)],
            "nodeSelector": {names.SHARED: "true"},
        },
        ("b1 b2",),
        placed=(IN_A,),
    ),
    "one a node by spread": Case({"topologySpreadConstraints": [spread(HOST)]}, (ALL,) * 2, per_node=1),
    "one a node by anti-affinity": Case(ALONE, (ALL,) * 4, per_node=1),
    "one a node, and all nodes of zone a": Case(
        ALONE | {"nodeSelector": {ZONE: "a"}}, ("a1 a2",) * 2, placed=(IN_C,), per_node=1
    ),
    "away from others of its zone": Case(
        affinity("podAntiAffinity", ZONE, {"app": "bank"}), ("b1 b2",), placed=(BANK_A,)
    ),
    "one a zone": Case(
        affinity("podAntiAffinity", ZONE, CHAT),
        ("a1 a2", "b1 b2", ""),
        obstacle=f"no {ZONE} is left for it among the shared nodes that it fits",
    ),
    "kept away by one that runs": Case(
        {}, ("b1 b2",), placed=(("a2", {"app": "bank"}, affinity("podAntiAffinity", ZONE, CHAT)),)
    ),
    "beside others of its zone": Case(affinity("podAffinity", ZONE, {"app": "bank"}), ("a1 a2",), placed=(BANK_A,)),
    "beside what is nowhere": Case(
        affinity("podAffinity", ZONE, {"app": "bank"}),
        ("",),
        obstacle=f"must be beside pods app=bank by {ZONE}, and none is near a shared node that it fits",
    ),
    "the first of those that are to be together": Case(affinity("podAffinity", ZONE, CHAT), (ALL,)),
    "in another namespace": Case(
        affinity("podAntiAffinity", ZONE, {"app": "bank"}, namespaces=["kube-system"]), (ALL,), placed=(BANK_A,)
    ),
    "in any namespace": Case(
        affinity("podAntiAffinity", ZONE, {"app": "bank"}, namespaceSelector={}), ("b1 b2",), placed=(BANK_A,)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_scheduler_agrees(scene: Scene, case: Case) -> None:
    for number, (node, labels, spec) in enumerate(case.placed):
        scene.place(f"runs{number}", node, labels, spec)
    waiting = [f"waits{number}" for number in range(len(case.expected))]
    for name in waiting:
        scene.ask(name, case.labels, case.spec, case.limits)
    shared = frozenset(name for name in scene.nodes if not name.startswith("c"))
    told = scene.seen(waiting)
    helps = [shared if pod.helps is None else pod.helps for pod in told.values()]
    assert sorted(map(sorted, helps)) == sorted(sorted(map(scene.named, text.split())) for text in case.expected)
    assert {pod.obstacle for pod in told.values() if pod.obstacle} == ({case.obstacle} if case.obstacle else set())
    assert {pod.per_node for pod in told.values() if not pod.obstacle} <= {case.per_node}

    useful = frozenset[str]().union(*helps)
    before = {name: scene.message(name) for name in waiting}
    for node in shared - useful:
        scene.taint(node, [])
    if shared - useful:
        for name in waiting:
            eventually(f"{name} is tried again", lambda name=name: scene.message(name) != before[name], timeout_s=40)
    assert [scene.node_of(name) for name in waiting] == [""] * len(waiting)

    for node in useful:
        scene.taint(node, [])
    promised = sum(1 for nodes in helps if nodes)
    got = eventually(
        f"{promised} pods are placed",
        lambda: len(found := [n for n in map(scene.node_of, waiting) if n]) == promised and (found or ["none"]),
        timeout_s=40,
    )
    assert useful.issuperset(node for node in got if node != "none")
    if case.per_node == 1:
        assert len(set(got)) == len(got)
