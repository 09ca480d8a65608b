"""Reading pods, and whether a waiting one could ever run on a shared node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bridge.kube.fit import Shape, fits
from bridge.kube.names import GPU_RESOURCE, TAINT
from bridge.kube.pods import Pod, Unschedulable, gpus_used, keeps_busy, read_pod

CREATED = "2026-05-04T12:00:00Z"


def body(
    *, metadata: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **status: Any
) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "p", "uid": "u", "creationTimestamp": CREATED, **(metadata or {})},
        "spec": {"containers": [container(1)], **(spec or {})},
        "status": {"phase": "Pending", **status},
    }


def container(gpus: int, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {GPU_RESOURCE: str(gpus)}} if gpus else {}, **more}


def owned_by(kind: str, name: str, **labels: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "controller": True}], "labels": labels}


@pytest.mark.parametrize(
    ("metadata", "group"),
    [
        (owned_by("ReplicaSet", "chat-5d4f", **{"pod-template-hash": "5d4f"}), "Deployment default/chat"),
        (owned_by("ReplicaSet", "chat-5d4f"), "ReplicaSet default/chat-5d4f"),
        (owned_by("StatefulSet", "db"), "StatefulSet default/db"),
        ({"ownerReferences": [{"kind": "Node", "name": "n"}]}, "Pod default/p"),
        ({}, "Pod default/p"),
    ],
)
def test_a_pod_is_grouped_by_what_would_make_it_again(metadata: dict[str, Any], group: str) -> None:
    assert read_pod(body(metadata=metadata)).group == group


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({"containers": [container(1), container(2), container(0)]}, 3),
        ({"containers": [container(1)], "initContainers": [container(4)]}, 4),
        ({"containers": [container(3)], "initContainers": [container(2)]}, 3),
        ({"containers": [container(3)], "initContainers": [container(2, restartPolicy="Always")]}, 5),
    ],
    ids=["sum", "large init", "small init", "sidecar"],
)
def test_gpus_of_a_pod(spec: dict[str, Any], gpus: int) -> None:
    assert read_pod(body(spec=spec)).gpus == gpus


def asking(cpu: str = "", memory: str = "", **more: Any) -> dict[str, Any]:
    amounts = {key: text for key, text in (("cpu", cpu), ("memory", memory)) if text}
    return {"name": "c", "resources": {"requests": amounts}, **more}


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "cpu_m", "memory_mib"),
    [
        ({"containers": [asking("500m", "1Gi"), asking("1.5", "512Mi")]}, 2000, 1536),
        ({"containers": [asking("1")], "initContainers": [asking("3", "2Gi")]}, 3000, 2048),
        ({"containers": [asking("3")], "initContainers": [asking("1", **SIDECAR), asking("2")]}, 4000, 0),
        ({"containers": [asking("1")], "initContainers": [asking("1", **SIDECAR), asking("3")]}, 4000, 0),
        ({"containers": [asking("1")], "initContainers": [asking("3"), asking("1", **SIDECAR)]}, 3000, 0),
        ({"containers": [asking("1", "1Gi")], "overhead": {"cpu": "250m", "memory": "120Mi"}}, 1250, 1144),
        ({"containers": [asking("1")], "resources": {"requests": {"cpu": "4"}}}, 4000, 0),
        ({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}, 2000, 0),
        ({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}, 1000, 0),
        ({"containers": [{"name": "c"}]}, 0, 0),
        ({"containers": [asking("1", "1Gi")], "nodeName": "n"}, 0, 0),
    ],
    ids=[
        "sum",
        "large init",
        "sidecar beside the containers",
        "init beside an earlier sidecar",
        "init before a sidecar",
        "overhead",
        "the pod as a whole",
        "limits alone",
        "requests before limits",
        "nothing",
        "placed: not read",
    ],
)
def test_cpu_and_memory_of_a_waiting_pod(spec: dict[str, Any], cpu_m: int, memory_mib: int) -> None:
    pod = read_pod(body(spec=spec))
    assert (pod.cpu_m, pod.memory_mib) == (cpu_m, memory_mib)


@pytest.mark.parametrize(
    ("ready", "warm_up_s"),
    [("True", 95), ("False", 0)],
    ids=["Ready 95 s after its start", "not Ready yet: nothing to lose"],
)
def test_warm_up_is_from_start_to_ready(ready: str, warm_up_s: float) -> None:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-05-04T12:01:40Z"}
    status = {"phase": "Running", "startTime": "2026-05-04T12:00:05Z", "conditions": [condition]}
    assert read_pod(body(spec={"nodeName": "n"}, **status)).warm_up_s == warm_up_s


RUNS = {"containerStatuses": [{"state": {"running": {}}}]}
ENDED = {"containerStatuses": [{"state": {"terminated": {}}}]}


@pytest.mark.parametrize(
    ("status", "running"),
    [
        ({"phase": "Pending"}, True),
        ({"phase": "Running", **RUNS}, True),
        ({"phase": "Unknown"}, True),
        ({"phase": "Succeeded", **ENDED}, False),
        ({"phase": "Failed", **ENDED}, False),
        ({"phase": "Failed"}, False),
        ({"phase": "Failed", **RUNS}, True),
    ],
)
def test_a_pod_has_ended_when_all_its_containers_have(status: dict[str, Any], running: bool) -> None:
    """A pod that was given up on, as its node is silent, is called Failed while its containers run on."""
    pod = read_pod(body(spec={"nodeName": "n"}, **status))
    assert pod.running is running
    assert keeps_busy(pod, ()) is running
    assert gpus_used([pod]) == int(running)


def test_a_terminating_pod_tells_when_that_began() -> None:
    """Kubernetes notes the deadline, which lies a grace period later."""
    metadata = {"deletionTimestamp": "2026-05-04T12:01:30Z", "deletionGracePeriodSeconds": 30}
    pod = read_pod(body(metadata=metadata, phase="Running"))
    assert pod.terminating_since == datetime(2026, 5, 4, 12, 1, 0, tzinfo=UTC)
    assert keeps_busy(pod, ())


@pytest.mark.parametrize(
    ("annotations", "evictable"),
    [
        ({}, None),
        ({"bridge.slurm-kube.io/evict": "true"}, True),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, True),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, False),
        ({"karpenter.sh/do-not-disrupt": "true"}, False),
        ({"bridge.slurm-kube.io/do-not-disrupt": "true", "bridge.slurm-kube.io/evict": "true"}, False),
    ],
)
def test_what_a_pods_owner_says_of_evicting_it(annotations: dict[str, str], evictable: bool | None) -> None:
    assert read_pod(body(metadata={"annotations": annotations})).evictable is evictable


def scheduled(status: str, reason: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": status, "reason": reason, "message": "no room"}
    return {"conditions": [{**condition, "lastTransitionTime": CREATED}]}


@pytest.mark.parametrize(
    ("status", "waits"),
    [
        (scheduled("False", "Unschedulable"), True),
        (scheduled("False", "SchedulingGated"), False),
        (scheduled("False", "SchedulerError"), False),
        (scheduled("True", ""), False),
        ({}, False),
    ],
)
def test_only_a_pod_that_the_scheduler_tried_to_place_is_unschedulable(status: dict[str, Any], waits: bool) -> None:
    since = Unschedulable(datetime(2026, 5, 4, 12, tzinfo=UTC), "no room")
    assert read_pod(body(**status)).unschedulable == (since if waits else None)


# --- fit ---

SHAPE = Shape("gpu-1", {"pool": "a100", "rank": "7"}, (), 8)
POD = read_pod(body())
REPAIR = {"key": "repair", "value": "yes", "effect": "NoSchedule"}


def affine(*terms: dict[str, Any]) -> Pod:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return replace(POD, affinity=required)


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(POD, True, id="no wishes"),
        pytest.param(replace(POD, gpus=8), True, id="all GPUs"),
        pytest.param(replace(POD, gpus=9), False, id="more GPUs than any node has"),
        pytest.param(replace(POD, node_selector={"pool": "a100"}), True, id="label"),
        pytest.param(replace(POD, node_selector={"pool": "h100"}), False, id="other label"),
        pytest.param(replace(POD, node_selector={"zone": "x"}), False, id="missing label"),
        pytest.param(affine(expression("pool", "In", "h100", "a100")), True, id="In"),
        pytest.param(affine(expression("pool", "NotIn", "a100")), False, id="NotIn"),
        pytest.param(affine(expression("zone", "NotIn", "x")), True, id="NotIn of an absent label"),
        pytest.param(affine(expression("pool", "Exists")), True, id="Exists"),
        pytest.param(affine(expression("pool", "DoesNotExist")), False, id="DoesNotExist"),
        pytest.param(affine(expression("rank", "Gt", "6")), True, id="Gt"),
        pytest.param(affine(expression("rank", "Lt", "6")), False, id="Lt"),
        pytest.param(affine(expression("pool", "Gt", "6")), False, id="Gt of no number"),
        pytest.param(affine(expression("pool", "In", "h100"), expression("rank", "Exists")), True, id="one of terms"),
        pytest.param(affine({}), False, id="empty term"),
        pytest.param(
            affine({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-2"]}]}),
            False,
            id="another node's name",
        ),
    ],
)
def test_fit(pod: Pod, expected: bool) -> None:
    assert fits(pod, SHAPE) is expected


@pytest.mark.parametrize(
    ("taint", "tolerations", "expected"),
    [
        pytest.param(REPAIR, [], False, id="not tolerated"),
        pytest.param(REPAIR, [{"operator": "Exists"}], True, id="everything"),
        pytest.param(REPAIR, [{"key": "repair", "operator": "Exists"}], True, id="key"),
        pytest.param(REPAIR, [{"key": "repair", "value": "yes", "effect": "NoSchedule"}], True, id="value"),
        pytest.param(REPAIR, [{"key": "repair", "value": "no"}], False, id="other value"),
        pytest.param(REPAIR, [{"key": "repair", "value": "yes", "effect": "NoExecute"}], False, id="other effect"),
        pytest.param({**REPAIR, "effect": "PreferNoSchedule"}, [], True, id="a mere preference"),
        pytest.param({"key": TAINT, "value": "lease0001", "effect": "NoSchedule"}, [], True, id="ours"),
        pytest.param(
            {"key": "node.kubernetes.io/not-ready", "value": "", "effect": "NoSchedule"}, [], True, id="passing"
        ),
        pytest.param(
            {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}, [], False, id="cordon"
        ),
    ],
)
def test_fit_by_taints(taint: dict[str, str], tolerations: list[dict[str, str]], expected: bool) -> None:
    shape = replace(SHAPE, taints=(taint,))
    assert fits(replace(POD, tolerations=tuple(tolerations)), shape) is expected
