"""How long it takes to read 20,000 pods and to make an observation of them: at most 1 s together.

Bodies are decoded a page of 1,000 at a time, as the view lists them; decoding JSON is shown by itself, as it is paid
only once a minute (and for each pod that changes), while an observation is made of what was read in every pass.
"""

from __future__ import annotations

from statistics import median
from time import process_time
from typing import Any

import orjson

from bridge.kube import names
from bridge.kube.budgets import Budget, Budgets, read_budget
from bridge.kube.connection import Json
from bridge.kube.fit import Fleet, Shape
from bridge.kube.load import pending, running
from bridge.kube.neighbours import Neighbours
from bridge.kube.pods import Pod, keeps_busy, read_pod
from bridge.model.kube import PendingPod, RunningPod

PODS = 20_000
PAGE = 1_000
RUNS = 5
GROUPS = 400
"""Controllers; pods of one are alike, as in a cluster."""


def rows() -> list[dict[str, Any]]:
    """Half of the pods run and half wait, on 1,000 and on 5,000 nodes; then all of them wait."""
    found = []
    for nodes, waiting in ((1_000, PODS // 2), (5_000, PODS // 2), (5_000, PODS)):
        bodies = [_pod(i, f"gpu-{i % nodes}" if i >= waiting else "") for i in range(PODS)]
        pages = [orjson.dumps(bodies[at : at + PAGE]) for at in range(0, PODS, PAGE)]
        del bodies
        shapes = [_shape(i) for i in range(nodes)]
        budgets = [budget for i in range(0, GROUPS, 4) if (budget := read_budget(_budget(i)))]
        size = {"pods": PODS, "waiting": waiting, "nodes": nodes}
        runs = [_run(pages, shapes, budgets) for _ in range(RUNS)]
        read_s, decode_s, observe_s = (median(run[i] for run in runs) for i in range(3))
        found += [
            {"what": "decode pods", "seconds": round(decode_s, 4), **size},
            {"what": f"read {PODS} pods", "seconds": round(read_s + observe_s, 4), **size},
        ]
    return found


def _run(pages: list[bytes], shapes: list[Shape], budgets: list[Budget]) -> tuple[float, float, float]:
    """Seconds of one core for reading, for decoding, for the observation."""
    read_s = decode_s = 0.0
    pods: list[Pod] = []
    for page in pages:
        began = process_time()
        bodies = orjson.loads(page)
        decoded = process_time()
        pods += [read_pod(body) for body in bodies]
        read_s += process_time() - decoded
        decode_s += decoded - began
    began = process_time()
    _observe(pods, shapes, budgets)
    return read_s, decode_s, process_time() - began


def _observe(
    pods: list[Pod], shapes: list[Shape], budgets: list[Budget]
) -> tuple[tuple[PendingPod, ...], list[RunningPod]]:
    indexed = Budgets(budgets)
    return (
        pending(pods, Fleet(shapes), Neighbours(pods, shapes)),
        [running(pod, indexed) for pod in pods if pod.node and keeps_busy(pod, ())],
    )


def _shape(i: int) -> Shape:
    labels = {"kubernetes.io/hostname": f"gpu-{i}", "gpu": ("a100", "h100")[i % 2], "rack": f"r{i // 18}"}
    more = {f"feature.node.kubernetes.io/f{n}": "true" for n in range(40)}
    return Shape(f"gpu-{i}", labels | more, (), 8, cpu_m=128_000, memory_mib=2_000_000)


def _budget(group: int) -> Json:
    return {
        "metadata": {"namespace": f"team-{group % 20}", "name": f"app-{group}", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": f"app-{group}"}}},
        "status": {"disruptionsAllowed": 1, "observedGeneration": 1},
    }


def _pod(i: int, node: str) -> Json:
    """As large as pods of a cluster are, about 3 kB of JSON: selectors, tolerations, volumes, conditions."""
    group = i % GROUPS
    resources = {names.GPU_RESOURCE: str(1 << (group % 4)), "cpu": f"{group % 8 + 1}000m", "memory": "64Gi"}
    labels = {"app": f"app-{group}", "pod-template-hash": "5d4f7c", "version": "v1"}
    if group % 10 == 0:
        labels["jobset.sigs.k8s.io/jobset-name"] = f"train-{i // 4}"
    conditions: list[Json] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": "2026-05-04T11:01:00Z",
        }
    ]
    if node:
        kinds = ("Initialized", "ContainersReady", "Ready", "PodScheduled", "PodReadyToStartContainers")
        conditions = [{"type": k, "status": "True", "lastTransitionTime": "2026-05-04T11:02:30Z"} for k in kinds]
    return {
        "metadata": {
            "namespace": f"team-{group % 20}",
            "name": f"app-{group}-{i}",
            "uid": f"00000000-0000-0000-0000-{i:012}",
            "creationTimestamp": "2026-05-04T11:00:00Z",
            "labels": labels,
            "annotations": {"prometheus.io/scrape": "true"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"app-{group}-5d4f7c", "controller": True}],
        },
        "spec": {
            "nodeName": node,
            "priority": group % 3,
            "nodeSelector": {"gpu": ("a100", "h100")[group % 2]},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": "server",
                    "image": "registry.example/server:1",
                    "env": [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(20)],
                    "resources": {"limits": resources, "requests": resources},
                    "volumeMounts": [{"name": f"v{n}", "mountPath": f"/mnt/{n}"} for n in range(5)],
                }
            ],
            "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(5)],
        },
        "status": {
            "phase": "Running" if node else "Pending",
            "startTime": "2026-05-04T11:01:00Z" if node else None,
            "conditions": conditions,
            "containerStatuses": [{"name": "server", "state": {"running": {}}}] if node else [],
        },
    }
