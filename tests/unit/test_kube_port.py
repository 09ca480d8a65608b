"""The broker's port when things are not well: it says so rather than show half a picture."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bridge.kube import names
from bridge.kube.connection import ApiError, Json, NoAnswer
from bridge.kube.port import KubeApi
from bridge.kube.resources import loan_object
from bridge.model.errors import CallFailed, Fenced, Unreadable
from bridge.model.kube import KubeObservation, LoanSpec, RunningPod
from bridge.model.ownership import Mark, Owner
from tests.unit.kube_api import END, FakeApi, eventually

LISTS = (names.LOANS, names.INSPECTIONS, names.NODES, names.PODS, names.NAMESPACES, names.BUDGETS)
LEASE = names.lease_path(names.NAMESPACE, names.CONTROLLER_LEASE)
LABELS = {"pool": "a100", names.SHARED: "true"}
START = datetime(2026, 5, 4, 12, tzinfo=UTC)


class Clock:
    """Time that only a test moves."""

    passed_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    def monotonic_s(self) -> float:
        return self.passed_s


def node_body(name: str, *, gpus: int = 8, ready: str = "True", **spec: Any) -> Json:
    amounts = {names.GPU_RESOURCE: str(gpus)}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": LABELS},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "allocatable": amounts,
            "capacity": {names.GPU_RESOURCE: "8"},
        },
    }


def pod_body(name: str, *, node: str = "", gpus: int = 1, unschedulable: bool = False, **spec: Any) -> Json:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    limits = {"limits": {names.GPU_RESOURCE: str(gpus)}} if gpus else {}
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": "2026-05-04T11:00:00Z",
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": limits}], **spec},
        "status": {"phase": "Pending", "conditions": [condition] if unschedulable else []},
    }


class Setup:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = Clock()
        for path in LISTS:
            self.api.objects[path] = []
        self.api.objects[names.NODES] = [node_body("gpu-1"), node_body("gpu-2", gpus=0, ready="Unknown")]
        self.kube: KubeApi | None = None

    def start(self) -> KubeApi:
        self.kube = KubeApi(self.api, self.clock, max_age_s=5, close=lambda: None)
        return self.kube

    def observe(self) -> KubeObservation:
        """The first whole picture."""
        kube = self.kube or self.start()

        def picture() -> KubeObservation | None:
            try:
                return kube.observe()
            except Unreadable:
                return None

        observed: KubeObservation = eventually("a picture", picture)
        return observed

    def end(self) -> None:
        if self.kube is not None:
            self.kube.close()
        for path in LISTS:
            self.api.feed(path, END, END)


@pytest.fixture
def setup() -> Iterator[Setup]:
    setup = Setup()
    yield setup
    setup.end()


def test_what_is_observed(setup: Setup) -> None:
    setup.api.objects[names.PODS] = [
        pod_body("chat", node="gpu-1", gpus=3),
        pod_body("web", node="gpu-1", gpus=0),
        pod_body("elsewhere", node="cpu-1"),
    ]
    seen = setup.observe()
    first, second = seen.nodes["gpu-1"], seen.nodes["gpu-2"]
    assert (first.uid, first.ready, first.gpus_allocatable, first.gpus_used) == ("uid-gpu-1", True, 8, 3)
    assert first.work_pods == ("default/chat", "default/web")
    assert (second.ready, second.gpus_allocatable, second.work_pods) == (False, 0, ())
    assert seen.read_at == START
    assert not seen.controller_alive


def test_our_taint_and_loans_of_nodes_that_are_not_there_are_shown(setup: Setup) -> None:
    ours = {"key": names.TAINT, "value": "lease0001", "effect": "NoSchedule"}
    other = {"key": "example.org/dedicated", "effect": "NoSchedule"}
    setup.api.objects[names.NODES] = [node_body("gpu-1", taints=[other, ours]), node_body("gpu-2", taints=[other])]
    loans = [LoanSpec(name, Owner.SLURM, Mark("lease0001", 3, 17), 8) for name in ("gpu-1", "gpu-9")]
    setup.api.objects[names.LOANS] = [
        {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}} for body in map(loan_object, loans)
    ]
    seen = setup.observe()
    assert {name: node.taint for name, node in seen.nodes.items()} == {"gpu-1": "lease0001", "gpu-2": ""}
    assert seen.nodes["gpu-1"].spec == loans[0]
    assert seen.loans_elsewhere == {"gpu-9": loans[1]}


def test_demand_is_what_a_lent_node_could_meet_and_the_rest_is_named(setup: Setup) -> None:
    setup.api.objects[names.PODS] = [
        pod_body("fits", unschedulable=True),
        pod_body("too-large", gpus=9, unschedulable=True),
        pod_body("other-pool", unschedulable=True, nodeSelector={"pool": "h100"}),
        pod_body("no-gpu", gpus=0, unschedulable=True),
        pod_body("not-tried-yet"),
        pod_body("placed", node="gpu-1"),
    ]
    fits, *others = setup.observe().pending
    assert (fits.name, fits.group, fits.gpus, fits.message) == ("fits", "Pod default/fits", 1, "no room")
    assert fits.pending_since == datetime(2026, 5, 4, 11, tzinfo=UTC)
    assert (fits.helps, fits.obstacle) == (None, "")
    assert [(pod.name, pod.obstacle) for pod in others] == [
        ("other-pool", "no shared node has label pool=h100"),
        ("too-large", "asks for 9 GPUs, a node has 8"),
    ]


def test_a_running_pod_is_shown_with_its_budget_and_its_warm_up(setup: Setup) -> None:
    pod = pod_body("chat", node="gpu-1", gpus=3)
    pod["metadata"] |= {
        "labels": {"app": "chat", "pod-template-hash": "5d4f"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-5d4f", "controller": True}],
    }
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-05-04T11:02:30Z"}
    pod["status"] = {"phase": "Running", "startTime": "2026-05-04T11:01:00Z", "conditions": [ready]}
    pod["spec"] |= {"priority": 7, "priorityClassName": "production"}
    setup.api.objects[names.PODS] = [pod]
    setup.api.objects[names.BUDGETS] = [
        {
            "metadata": {"namespace": "default", "name": "chat", "resourceVersion": "1", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "chat"}}},
            "status": {"disruptionsAllowed": 2, "observedGeneration": 1},
        }
    ]
    (shown,) = setup.observe().nodes["gpu-1"].running
    assert shown == RunningPod(
        namespace="default",
        name="chat",
        uid="chat",
        gpus=3,
        group="Deployment default/chat",
        owner="Deployment",
        priority=7,
        priority_class="production",
        started_at=datetime(2026, 5, 4, 11, 1, tzinfo=UTC),
        warm_up_s=90,
        disruptions_allowed=2,
    )


def test_a_node_shows_its_labels_and_what_it_offers(setup: Setup) -> None:
    node = setup.api.objects[names.NODES][0]
    node["status"]["allocatable"] |= {"cpu": "63500m", "memory": "527849472Ki"}
    first = setup.observe().nodes["gpu-1"]
    assert (first.labels, first.cpu_allocatable_m) == (LABELS, 63_500)
    assert first.memory_allocatable_mib == 515_478  # 527,849,472 / 1,024 = 515,478


@pytest.mark.parametrize("missing", LISTS)
def test_a_part_that_was_never_read_makes_all_unreadable(setup: Setup, missing: str) -> None:
    del setup.api.objects[missing]
    kube = setup.start()
    eventually("all else is read", lambda: len({path for path, _ in setup.api.watched}) == len(LISTS) - 1)
    with pytest.raises(Unreadable, match=rf"{missing} was never read.*not found"):
        kube.observe()


def test_a_part_that_fell_silent_makes_all_unreadable(setup: Setup) -> None:
    setup.observe()
    setup.clock.passed_s = 5.1
    for path in LISTS[1:]:
        setup.api.feed(path, END)
    eventually("the others are heard", lambda: len(setup.api.watched) == 2 * len(LISTS) - 1)
    assert setup.kube is not None
    kube = setup.kube
    eventually("the heartbeat is read", lambda: kube._heartbeat.age_s() == 0)
    with pytest.raises(Unreadable, match=rf"{names.LOANS} was last read 5.1 s ago"):
        kube.observe()


def test_an_apiserver_that_answers_from_its_cache_alone_is_not_believed(setup: Setup) -> None:
    """Cut off from etcd its watches go on in good order; only a quorum read fails."""

    def cut_off(_body: Any) -> Json:
        raise ApiError(500, {"message": "etcdserver: request timed out"})

    setup.observe()
    setup.api.answers[("GET", LEASE)] = cut_off
    setup.clock.passed_s = 5.1
    for path in LISTS:
        setup.api.feed(path, END)
    assert setup.kube is not None
    kube = setup.kube
    eventually("all watches are heard", lambda: len(setup.api.watched) == 2 * len(LISTS))
    eventually("the refusal", lambda: "etcdserver" in kube._heartbeat.problem)
    with pytest.raises(Unreadable, match=r"leases/node-controller.*etcdserver"):
        kube.observe()


def loan(node: str) -> LoanSpec:
    return LoanSpec(node, Owner.BRIDGE, Mark("lease0001", 1, 2), 8)


def refuse(api: FakeApi, node: str, error: Exception) -> None:
    def answer(_body: Any) -> Json:
        raise error

    api.answers[("PATCH", f"{names.LOANS}/{node}")] = answer


def accept(api: FakeApi, node: str) -> None:
    api.answers[("PATCH", f"{names.LOANS}/{node}")] = lambda body: dict(body)


def test_a_fencing_outweighs_other_failures_and_the_other_loans_are_written(setup: Setup) -> None:
    kube = setup.start()
    refuse(setup.api, "gpu-1", NoAnswer("timed out"))
    refuse(setup.api, "gpu-2", ApiError(422, {"message": f"NodeLoan is invalid: spec: {names.FENCING_RULE}"}))
    accept(setup.api, "gpu-3")
    with pytest.raises(Fenced, match="gpu-2"):
        kube.want([loan(f"gpu-{i}") for i in (1, 2, 3)])
    assert len(setup.api.sent) == 3


def test_another_422_is_our_mistake_and_no_fencing(setup: Setup) -> None:
    kube = setup.start()
    refuse(setup.api, "gpu-1", ApiError(422, {"message": "spec.gpus: must be at least 0"}))
    with pytest.raises(CallFailed, match="must be at least 0"):
        kube.want([loan("gpu-1")])
