"""A busy fleet of any size from a seed: what both schedulers would answer, and what the ledger would hold of it.

Of the nodes a third run Slurm jobs and a third serve, on either side; the rest is idle, in motion, spare or down. Gang
sizes fall off as in published traces of GPU clusters: half of all jobs want one node, one in a hundred wants many.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.handoff import Handoff, Step
from bridge.model.kube import KubeNode, KubeObservation, PendingPod, RunningPod
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Lease, Node, Owner, Side
from bridge.model.policy import Policy
from bridge.model.slurm import SlurmJob, SlurmNode, SlurmObservation
from bridge.planning.snapshot import Place

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
POOL = "shared"
GPUS = 8
NODES_A_SWITCH = 16
RUNNING_PODS_A_NODE = 4
MOST_RUNNING_PODS = 15_000

_CLOSED = SideFacts(first_latch=True, second_latch=True, idle=True, answers=True, empty=True)
_IDLE = SideFacts(opened=True, ready=True, idle=True, answers=True)
_BUSY = SideFacts(opened=True, ready=True, answers=True)
_DOWN = SideFacts(not_ready="slurmctld shows DOWN")

_ACCOUNTS = tuple(f"account-{number}" for number in range(24))
_NAMESPACES = tuple(f"namespace-{number}" for number in range(24))
_QOS = ("normal", "high", "urgent")
_CLASSES = ("batch", "serving", "critical")
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_SIZE_WEIGHTS = (50, 18, 14, 9, 5, 3, 1)
_FEATURES = ("", "", "", "h100", "h100&ib", "a100|h100")
_REASONS = ("Priority", "Resources", "Dependency", "QOSMaxNodePerUserLimit", "JobHeldUser", "BeginTime")
_REASON_WEIGHTS = (80, 5, 6, 5, 2, 2)


@dataclass(frozen=True, slots=True)
class Fleet:
    """`places` stand for what the ledger and the observations say of each node; `names`: Kubernetes' name -> ours."""

    policy: Policy
    slurm: SlurmObservation
    kubernetes: KubeObservation
    places: tuple[Place, ...]
    usage: dict[str, float]

    @property
    def kube_names(self) -> dict[str, str]:
        return {place.record.node.kube_name: place.name for place in self.places}

    @property
    def slurm_names(self) -> dict[str, str]:
        return {place.record.node.slurm_name: place.name for place in self.places}


def policy(mode: str, nodes: int) -> Policy:
    """Floors of a quarter for each side, headroom, limits; eight teams, four of them with a guarantee."""
    teams = [
        {
            "name": f"team-{number}",
            "accounts": _ACCOUNTS[number::8],
            "namespaces": _NAMESPACES[number::8],
            "guarantee_nodes": nodes // 20 if number < 4 else 0,
            "borrow_limit_nodes": None if number < 6 else nodes // 10,
            "weight": 1 + number % 3,
        }
        for number in range(8)
    ]
    pool = {
        "name": POOL,
        "all_of_partition": True,
        "partition": POOL,
        "gpus": GPUS,
        "slurm": {"floor_nodes": nodes // 4, "lend_limit_nodes": nodes // 8},
        "kubernetes": {"floor_nodes": nodes // 4, "borrow_limit_nodes": nodes // 3, "weight": 2},
        "headroom": {"nodes": max(1, nodes // 100)},
        "preemption": {"mode": mode, "max_victims_per_window": 64, "checkpoint_interval_s": 1800},
        "batch_window_s": 0,
        "max_in_flight": max(8, nodes // 10),
    }
    priorities = {"qos": {"high": 10, "urgent": 100}, "priority_classes": {"serving": 10, "critical": 100}}
    return Policy.model_validate({"pools": [pool], "teams": teams, "priorities": priorities})


def fleet(nodes: int, jobs: int, pods: int, *, mode: str, seed: int = 4) -> Fleet:
    """`jobs` wait in Slurm's queue beside those that run; `pods` is running and waiting pods together."""
    rng = random.Random(seed)
    words = [_word(number) for number in range(nodes)]
    places = tuple(_place(number, word, rng) for number, word in enumerate(words))
    running = tuple(_running_jobs([p for p, word in zip(places, words, strict=True) if word == "slurm"], rng))
    waiting = tuple(_waiting_job(1_000_000 + number, rng) for number in range(jobs))
    serving = [place.record.node.kube_name for place, word in zip(places, words, strict=True) if word == "kubernetes"]
    on_nodes = _running_pods(serving, min(MOST_RUNNING_PODS, pods // 2, RUNNING_PODS_A_NODE * len(serving)), rng)
    pending = tuple(_waiting_pods(pods - sum(len(found) for found in on_nodes.values()), rng))
    return Fleet(
        policy=policy(mode, nodes),
        slurm=SlurmObservation(NOW, {p.name: _slurm_node(p) for p in places}, running + waiting),
        kubernetes=KubeObservation(
            NOW,
            {p.record.node.kube_name: _kube_node(p, on_nodes.get(p.record.node.kube_name, ())) for p in places},
            pending,
        ),
        places=places,
        usage={f"team-{number}": rng.uniform(0, 1e9) for number in range(8)},
    )


def _word(number: int) -> str:
    """Of a hundred nodes 33 run jobs, 33 serve, 30 are idle, two move and two are out; spread evenly."""
    at = (number * 37) % 100
    if at < 66:
        return "slurm" if at < 33 else "kubernetes"
    if at < 96:
        return "slurm idle" if at % 2 else "kubernetes idle"
    return ("to slurm", "to kubernetes", "spare", "down")[at - 96]


def _place(number: int, word: str, rng: random.Random) -> Place:
    name = f"gpu-{number:05d}"
    node = Node(name, name, f"{name}.example.org", POOL, GPUS)
    owner = {"to": Owner.BRIDGE, "spare": Owner.BRIDGE, "down": Owner.SLURM}.get(word.split()[0])
    owner = owner or Owner(word.split()[0])
    lease = Lease(f"lease-{number:05d}", name, owner, 1, number, NOW - timedelta(seconds=rng.randint(600, 90_000)))
    here = _IDLE if "idle" in word else _DOWN if word == "down" else _BUSY
    sight = {
        Owner.SLURM: Sight(here, _CLOSED),
        Owner.KUBERNETES: Sight(_CLOSED, here),
        Owner.BRIDGE: Sight(_CLOSED, _CLOSED),
    }[owner]
    since = NOW - timedelta(seconds=rng.randint(0, 3600)) if "idle" in word else None
    return Place(
        record=NodeRecord(node, since),
        lease=lease,
        handoff=_handoff(name, Side(word.split()[1])) if word.startswith("to ") else None,
        sight=sight,
        features=frozenset({"h100" if number % 4 else "a100", *(("ib",) if number % 3 else ())}),
        switch=f"leaf-{number // NODES_A_SWITCH}",
    )


def _handoff(name: str, to: Side) -> Handoff:
    began, deadline = NOW - timedelta(seconds=90), NOW + timedelta(seconds=900)
    return Handoff(
        id=f"handoff-{name}",
        lease=f"lease-of-{name}",
        node=name,
        source=to.other,
        destination=to,
        step=Step.EMPTY,
        reason="",
        requested_by="policy",
        generation=1,
        nonce="",
        evict=False,
        began_at=began,
        step_began_at=began,
        step_deadline_at=deadline,
    )


def _slurm_node(place: Place) -> SlurmNode:
    return SlurmNode(place.name, frozenset({"IDLE"}), GPUS, features=place.features, topology=f"core:{place.switch}")


def _kube_node(place: Place, running: tuple[RunningPod, ...]) -> KubeNode:
    return KubeNode(
        name=place.record.node.kube_name,
        uid=place.name,
        ready=True,
        cordoned=False,
        gpus_allocatable=GPUS,
        gpus_used=sum(pod.gpus for pod in running),
        running=running,
        labels={"accelerator": "h100" if "h100" in place.features else "a100"},
        cpu_allocatable_m=192_000,
        memory_allocatable_mib=2_000_000,
    )


def _waiting_job(number: int, rng: random.Random) -> SlurmJob:
    """Priorities differ for nearly all jobs, as Slurm's multifactor ones do."""
    size = rng.choices(_SIZES, _SIZE_WEIGHTS)[0]
    waits_for = rng.choices(_REASONS, _REASON_WEIGHTS)[0]
    submitted = NOW - timedelta(seconds=rng.randint(10, 604_800))
    return SlurmJob(
        id=number,
        state="PENDING",
        user=f"user-{number % 200}",
        account=rng.choice(_ACCOUNTS),
        partition=POOL,
        priority=rng.randint(1, 1_000_000),
        node_count=size,
        gpus_per_node=GPUS if size > 1 else rng.choice((1, 2, 4, 8)),
        waits_for=waits_for,
        submitted_at=submitted,
        begins_at=NOW + timedelta(hours=1) if waits_for == "BeginTime" else None,
        time_limit_s=rng.choice((3600.0, 14_400.0, 86_400.0)),
        features=rng.choice(_FEATURES),
        exclusive=size > 1,
        may_requeue=True,
        held=waits_for == "JobHeldUser",
        task_count=rng.randint(2, 50) if number % 20 == 0 else 1,
        array=number if number % 20 == 0 else None,
        qos=rng.choices(_QOS, (90, 8, 2))[0],
        switches=1 if size > 1 and number % 10 == 0 else 0,
    )


def _running_jobs(places: list[Place], rng: random.Random) -> Iterator[SlurmJob]:
    left, number = [place.name for place in places], 1
    while left:
        size = min(len(left), rng.choices(_SIZES, _SIZE_WEIGHTS)[0])
        nodes, left = left[:size], left[size:]
        began = NOW - timedelta(seconds=rng.randint(60, 80_000))
        yield SlurmJob(
            id=number,
            state="RUNNING",
            user=f"user-{number % 200}",
            account=rng.choice(_ACCOUNTS),
            partition=POOL,
            priority=rng.randint(1, 1_000_000),
            node_count=size,
            gpus_per_node=GPUS,
            nodes=tuple(nodes),
            started_at=began,
            ends_at=began + timedelta(days=1),
            time_limit_s=86_400.0,
            may_requeue=number % 7 > 0,
            qos=rng.choices(_QOS, (90, 8, 2))[0],
        )
        number += 1


def _running_pods(nodes: list[str], pods: int, rng: random.Random) -> dict[str, tuple[RunningPod, ...]]:
    found: dict[str, list[RunningPod]] = {}
    for number in range(pods):
        namespace, group = rng.choice(_NAMESPACES), f"chat-{number % 500}"
        pod = RunningPod(
            namespace=namespace,
            name=f"{group}-{number}",
            uid=f"running-{number}",
            gpus=2,
            group=f"Deployment {namespace}/{group}",
            owner="ReplicaSet",
            priority_class=rng.choice(_CLASSES),
            started_at=NOW - timedelta(seconds=rng.randint(60, 80_000)),
            warm_up_s=rng.choice((30.0, 120.0, 600.0)),
            disruptions_allowed=rng.choice((None, None, 0, 1, 2)),
        )
        found.setdefault(nodes[number % len(nodes)], []).append(pod)
    return {node: tuple(running) for node, running in found.items()}


def _waiting_pods(pods: int, rng: random.Random) -> Iterator[PendingPod]:
    """Deployments of ten pods; one in ten is a gang."""
    for number in range(pods):
        name = number // 10
        group_rng = random.Random(name)
        namespace, gpus = group_rng.choice(_NAMESPACES), group_rng.choice((1, 2, 4, 8, 8))
        kind = "JobSet" if name % 10 == 0 else "Deployment"
        yield PendingPod(
            namespace=namespace,
            name=f"waits-{number}",
            uid=f"pending-{number}",
            gpus=gpus,
            group=f"{kind} {namespace}/waits-{name}",
            priority=group_rng.choice((0, 0, 1000)),
            pending_since=NOW - timedelta(seconds=rng.randint(5, 7200)),
            message="0/9 nodes are available: Insufficient nvidia.com/gpu",
            cpu_m=8000 * gpus,
            memory_mib=64_000 * gpus,
            priority_class=group_rng.choice(_CLASSES),
            gang=f"JobSet {namespace}/waits-{name}" if kind == "JobSet" else "",
            gang_pods=10 if kind == "JobSet" else 0,
        )
