"""Which pods are demand, which gangs they are in, and what speaks against ending those that run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.kube.budgets import Budgets, read_budget
from bridge.kube.fit import Fleet, Shape, Verdict
from bridge.kube.gangs import Gang, gang_of
from bridge.kube.load import pending, running
from bridge.kube.names import DO_NOT_DISRUPT, EVICT, GPU_RESOURCE, IDLE
from bridge.kube.neighbours import Neighbours
from bridge.kube.pods import Pod, read_pod
from bridge.model.kube import PendingPod, RunningPod

SHAPES = [Shape(f"gpu-{i}", {"rank": str(i)}, (), 8, cpu_m=64_000, memory_mib=512 * 1024) for i in (1, 2)]
FLEET = Fleet(SHAPES)
TRIED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]
GATED = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
ADMISSION = [{"name": "kueue.x-k8s.io/admission"}]
JOBSET = {"jobset.sigs.k8s.io/jobset-name": "train"}


def pod(
    name: str = "p",
    *,
    gpus: int = 1,
    node: str = "",
    tried: bool = False,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owner: str = "",
    deleted: bool = False,
    **spec: Any,
) -> Pod:
    metadata: dict[str, Any] = {"namespace": "lab", "name": name, "uid": name, "labels": labels or {}}
    metadata["annotations"] = annotations or {}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "x", "controller": True}]
    if deleted:
        metadata["deletionTimestamp"] = "2026-05-04T12:00:00Z"
    containers = [{"name": "c", "resources": {"limits": {GPU_RESOURCE: str(gpus)}}}]
    conditions = GATED if "schedulingGates" in spec else TRIED if tried else []
    return read_pod(
        {
            "metadata": metadata,
            "spec": {"nodeName": node, "containers": containers, **spec},
            "status": {"phase": "Running" if node else "Pending", "conditions": conditions},
        }
    )


def waiting(*pods: Pod) -> list[PendingPod]:
    return list(pending(pods, FLEET, Neighbours(pods, SHAPES)))


# --- gangs ---


@pytest.mark.parametrize(
    ("labels", "annotations", "gang"),
    [
        ({}, {}, None),
        ({"kueue.x-k8s.io/pod-group-name": "g"}, {}, Gang("pod group lab/g")),
        (
            {"kueue.x-k8s.io/pod-group-name": "g"},
            {"kueue.x-k8s.io/pod-group-total-count": "4"},
            Gang("pod group lab/g", 4),
        ),
        ({**JOBSET, "jobset.sigs.k8s.io/global-replicas": "3"}, {}, Gang("JobSet lab/train", 3)),
        (JOBSET, {"jobset.sigs.k8s.io/global-replicas": "3"}, Gang("JobSet lab/train", 3)),
        ({"scheduling.x-k8s.io/pod-group": "g"}, {}, Gang("PodGroup lab/g")),
        ({"pod-group.scheduling.sigs.k8s.io": "g"}, {}, Gang("PodGroup lab/g")),
        (
            {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"},
            {},
            Gang("PodGroup lab/g", 2),
        ),
        ({}, {"scheduling.k8s.io/group-name": "g"}, Gang("PodGroup lab/g")),
        ({}, {"scheduling.k8s.io/group-name": "podgroup-8c1f"}, None),
        (
            {},
            {"scheduling.k8s.io/group-name": "podgroup-8c1f", "scheduling.volcano.sh/group-min-member": "3"},
            Gang("PodGroup lab/podgroup-8c1f", 3),
        ),
        (
            {"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/group-index": "1"},
            {"leaderworkerset.sigs.k8s.io/size": "2"},
            Gang("LeaderWorkerSet lab/llm group 1", 2),
        ),
        ({"ray.io/cluster": "r", "ray.io/node-type": "worker"}, {}, None),
        ({**JOBSET, "jobset.sigs.k8s.io/global-replicas": "many"}, {}, Gang("JobSet lab/train")),
    ],
)
def test_gangs_are_told_by_labels(labels: dict[str, str], annotations: dict[str, str], gang: Gang | None) -> None:
    assert gang_of({"namespace": "lab", "labels": labels, "annotations": annotations}) == gang


def test_of_a_gang_all_members_wait_once_one_was_tried() -> None:
    """Four declared: one runs, one was tried, one was not yet, one does not exist. Three do not run."""
    labels = {**JOBSET, "jobset.sigs.k8s.io/global-replicas": "4"}
    members = pod("a", node="gpu-1", labels=labels), pod("b", tried=True, labels=labels), pod("c", labels=labels)
    assert [(p.name, p.gang, p.gang_pods, p.obstacle) for p in waiting(*members)] == [
        ("b", "JobSet lab/train", 3, ""),
        ("c", "JobSet lab/train", 3, ""),
    ]


def test_a_gang_that_was_not_tried_yet_is_no_demand() -> None:
    assert waiting(pod("a", labels=JOBSET), pod("b", labels=JOBSET)) == []


def test_a_members_end_makes_room_for_its_successor() -> None:
    labels = {**JOBSET, "jobset.sigs.k8s.io/global-replicas": "2"}
    (one,) = waiting(pod("a", node="gpu-1", labels=labels, deleted=True), pod("b", tried=True, labels=labels))
    assert one.gang_pods == 2


GATE = "is held by scheduling gate kueue.x-k8s.io/admission: more nodes do not lift it"


def test_a_gated_pod_is_named_and_not_counted() -> None:
    (single,) = waiting(pod(schedulingGates=ADMISSION))
    assert (single.helps, single.obstacle) == (frozenset(), GATE)
    gang = [pod(name, labels=JOBSET, schedulingGates=ADMISSION) for name in "ab"]
    assert [one.obstacle for one in waiting(*gang)] == [GATE, GATE]


def test_a_gate_is_no_obstacle_in_a_gang_that_was_tried() -> None:
    gang = pod("a", labels=JOBSET, schedulingGates=ADMISSION), pod("b", labels=JOBSET, tried=True)
    assert [(one.name, one.obstacle) for one in waiting(*gang)] == [("a", ""), ("b", "")]


# --- which pods help, and why none does ---


@pytest.mark.parametrize(
    ("asked", "helps", "obstacle"),
    [
        pytest.param({}, None, "", id="any node"),
        pytest.param({"nodeSelector": {"rank": "2"}}, {"gpu-2"}, "", id="one by its label"),
        pytest.param({"gpus": 9}, set(), "asks for 9 GPUs, a node has 8", id="GPUs"),
        pytest.param({"cpu": "65"}, set(), "asks for 65 CPUs, a node has 64", id="CPU"),
        pytest.param({"cpu": "500m"}, None, "", id="a little CPU"),
        pytest.param({"memory": "600Gi"}, set(), "asks for 600 GiB of memory, a node has 512", id="memory"),
        pytest.param({"nodeSelector": {"x": "y"}}, set(), "no shared node has label x=y", id="label"),
        pytest.param(
            {"nodeSelector": {"rank": "1"}, "affinity": {"In": "2"}},
            set(),
            "no shared node has all at once that it asks for",
            id="two labels of two nodes",
        ),
        pytest.param({"affinity": {"In": "3"}}, set(), "no shared node matches its node affinity", id="affinity"),
        pytest.param({"affinity": {"NotIn": "1"}}, {"gpu-2"}, "", id="helpful by affinity"),
    ],
)
def test_which_nodes_help(asked: dict[str, Any], helps: set[str] | None, obstacle: str) -> None:
    spec = {key: asked[key] for key in ("nodeSelector",) if key in asked}
    if "affinity" in asked:
        ((operator, value),) = asked["affinity"].items()
        terms = [{"matchExpressions": [{"key": "rank", "operator": operator, "values": [value]}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    requests = {key: asked[key] for key in ("cpu", "memory") if key in asked}
    limits = {GPU_RESOURCE: str(asked.get("gpus", 1))}
    spec["containers"] = [{"name": "c", "resources": {"limits": limits, "requests": requests}}]
    (one,) = waiting(pod(tried=True, **spec))
    assert (one.helps, one.obstacle) == (helps, obstacle)


def test_taints_that_are_not_tolerated_are_named() -> None:
    repair = {"key": "repair", "value": "", "effect": "NoSchedule"}
    fleet = Fleet([Shape("gpu-1", {}, (repair,), 8)])
    assert fleet.judge(pod(tried=True)) == Verdict(frozenset(), "does not tolerate taint repair of the shared nodes")
    assert Fleet([]).judge(pod(tried=True)) == Verdict(frozenset(), "there is no shared node")


def test_a_volume_that_is_not_bound_is_not_cured_by_nodes() -> None:
    words = "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    body = {
        "metadata": {"namespace": "lab", "name": "p", "uid": "p"},
        "spec": {"containers": [{"resources": {"limits": {GPU_RESOURCE: "1"}}}]},
        "status": {"conditions": [{**TRIED[0], "message": words}]},
    }
    (one,) = waiting(read_pod(body))
    assert one.obstacle == "waits for a volume claim: more nodes do not bind it"


MIG = "nvidia.com/mig-1g.10gb"


def asking(**limits: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"limits": limits}}]}


@pytest.mark.parametrize(
    ("limits", "helps", "share_ppm", "asks", "obstacle"),
    [
        pytest.param({GPU_RESOURCE: "1"}, None, 0, "", "", id="GPUs alone"),
        pytest.param({MIG: "2"}, {"gpu-1"}, 142_857, f"2 of {MIG}", "", id="2 of 14 slices"),
        pytest.param({MIG: "15"}, set(), 0, f"15 of {MIG}", f"asks for 15 of {MIG}, a node has 14", id="too many"),
        pytest.param({GPU_RESOURCE: "1", MIG: "7"}, {"gpu-1"}, 500_000, f"1 GPUs and 7 of {MIG}", "", id="both"),
        pytest.param({GPU_RESOURCE: "1", "rdma/hca": "1"}, {"gpu-2"}, 0, "", "", id="a NIC"),
        pytest.param({GPU_RESOURCE: "1", "ephemeral-storage": "2Gi"}, {"gpu-2"}, 0, "", "", id="disk"),
        pytest.param(
            {GPU_RESOURCE: "1", "hugepages-2Mi": "4Mi"},
            set(),
            0,
            "",
            "asks for 4194304 of hugepages-2Mi, a node has 0",
            id="huge pages",
        ),
    ],
)
def test_further_resources(
    limits: dict[str, str], helps: set[str] | None, share_ppm: int, asks: str, obstacle: str
) -> None:
    """gpu-1 has 14 slices and a disk of 1 GiB, gpu-2 a NIC and says nothing of its disk."""
    shapes = [Shape("gpu-1", {}, (), 8, others={MIG: 14, "ephemeral-storage": 2**30})]
    shapes.append(Shape("gpu-2", {}, (), 8, others={"rdma/hca": 1}))
    one = pod(tried=True, **asking(**limits))
    (found,) = pending([one], Fleet(shapes), Neighbours([one], shapes))
    assert (found.helps, found.share_ppm, found.asks, found.obstacle) == (helps, share_ppm, asks, obstacle)


@pytest.mark.parametrize("limits", [{"cpu": "4"}, {"rdma/hca": "1"}, {"devices.kubevirt.io/kvm": "1"}])
def test_pods_that_ask_for_no_gpu_are_no_demand_for_gpu_nodes(limits: dict[str, str]) -> None:
    assert waiting(pod(tried=True, **asking(**limits))) == []


def nominated(one: Pod) -> Pod:
    return replace(one, nominated="gpu-1")


def test_a_pod_that_preempts_others_has_its_place() -> None:
    (found,) = waiting(nominated(pod(tried=True)))
    assert found.obstacle == "gets the room of pods that are preempted for it on gpu-1"
    (member, _) = waiting(nominated(pod("a", labels=JOBSET, tried=True)), pod("b", labels=JOBSET, tried=True))
    assert member.obstacle == "", "its gang still needs the rest"


@pytest.mark.parametrize(
    "other",
    [
        pod(node="gpu-1", tried=True),
        pod(gpus=0, tried=True),
        pod(deleted=True, tried=True),
        pod(owner="DaemonSet", tried=True),
        pod(),
    ],
    ids=["placed", "without GPUs", "on its way out", "a DaemonSet's: tied to its node", "not tried yet"],
)
def test_what_is_no_demand(other: Pod) -> None:
    assert waiting(other) == []


# --- running pods and their budgets ---


def budget(name: str, allowed: int | None, selector: Any, **metadata: Any) -> dict[str, Any]:
    status = {} if allowed is None else {"disruptionsAllowed": allowed, "observedGeneration": 1}
    return {
        "metadata": {"namespace": "lab", "name": name, "generation": 1, **metadata},
        "spec": {"selector": selector},
        "status": status,
    }


def shown(one: Pod, *budgets: dict[str, Any]) -> RunningPod:
    read = (read_budget(body) for body in budgets)
    return running(one, Budgets(b for b in read if b is not None))


APP = {"matchLabels": {"app": "chat"}}


@pytest.mark.parametrize(
    ("budgets", "allowed"),
    [
        pytest.param([], None, id="none"),
        pytest.param([budget("a", 2, APP)], 2, id="its own"),
        pytest.param([budget("a", 2, {"matchLabels": {"app": "web"}})], None, id="another's"),
        pytest.param([budget("a", 2, APP, namespace="default")], None, id="another namespace's"),
        pytest.param([budget("a", 2, {"matchLabels": {"app": "chat", "tier": "x"}})], None, id="one label of two"),
        pytest.param([budget("a", 2, {})], 2, id="an empty selector is the whole namespace"),
        pytest.param([budget("a", 2, None)], None, id="no selector is nothing"),
        pytest.param([budget("a", 0, APP)], 0, id="no room"),
        pytest.param([budget("a", None, APP)], 0, id="no status yet: no room"),
        pytest.param([budget("a", 2, APP, generation=2)], 0, id="a status of an older spec: no room"),
        pytest.param(
            [budget("a", 2, {"matchExpressions": [{"key": "app", "operator": "In", "values": ["chat", "web"]}]})],
            2,
            id="by expression",
        ),
        pytest.param(
            [budget("a", 2, {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})],
            None,
            id="by expression, not met",
        ),
        pytest.param([budget("a", 3, APP), budget("b", 1, {})], 1, id="the tightest of two"),
    ],
)
def test_room_of_a_disruption_budget(budgets: list[dict[str, Any]], allowed: int | None) -> None:
    found = shown(pod(node="gpu-1", labels={"app": "chat"}, owner="ReplicaSet"), *budgets)
    assert found.disruptions_allowed == allowed


def test_two_budgets_on_one_pod_protect_it() -> None:
    """K4: the Eviction API answers 500 for such a pod."""
    found = shown(pod(node="gpu-1", labels={"app": "chat"}), budget("a", 3, APP), budget("b", 1, {}))
    assert found.protected == "2 disruption budgets cover it, and the Eviction API refuses such a pod"


@pytest.mark.parametrize(
    ("one", "protected"),
    [
        (pod(node="n", owner="Job"), ""),
        (pod(node="n", deleted=True), "it is terminating already"),
        (pod(node="n", annotations={DO_NOT_DISRUPT: "true"}), "it says itself that it must not be disrupted"),
        (pod(node="n", priority=2_000_001_000), "it is a system pod (priority 2000001000)"),
    ],
)
def test_who_is_not_evicted(one: Pod, protected: str) -> None:
    assert shown(one).protected == protected


@pytest.mark.parametrize(
    ("one", "owner"),
    [
        (pod(node="n", owner="StatefulSet"), "StatefulSet"),
        (pod(node="n"), ""),
        (pod(node="n", annotations={EVICT: "true"}), "Pod"),
    ],
    ids=["made again", "bare", "bare, and content to go"],
)
def test_who_makes_it_again(one: Pod, owner: str) -> None:
    assert shown(one).owner == owner


def test_ray_pods_tell_their_role_and_whether_they_idle() -> None:
    head = shown(pod(node="n", labels={"ray.io/node-type": "head"}))
    worker = shown(pod(node="n", labels={"ray.io/node-type": "worker"}, annotations={IDLE: "true"}))
    assert [(one.role, one.idle) for one in (head, worker)] == [("ray-head", False), ("ray-worker", True)]
