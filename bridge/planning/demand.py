"""Reads what waits in both queues into one shape. Formulas: whole nodes = ceil(GPUs asked / GPUs a node)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import groupby

from bridge.model.demand import Demand
from bridge.model.kube import KubeObservation, PendingPod
from bridge.model.ownership import Side
from bridge.model.policy import PoolPolicy
from bridge.model.slurm import SlurmJob, SlurmObservation

NODES_WOULD_HELP = frozenset({"", "None", "Resources", "Priority", "ReqNodeNotAvail", "NodeDown", "Reservation"})
"""Slurm's pending reasons that more nodes can cure. A dependency, a hold or a limit is not cured by nodes."""


def slurm_demands(pool: PoolPolicy, seen: SlurmObservation, now: datetime) -> tuple[Demand, ...]:
    """The pending jobs of the pool's partition that wait for nodes, as gangs."""
    het_leaders: dict[int, list[SlurmJob]] = {}
    for job in seen.jobs:
        if _waits_for_nodes(job, pool, now):
            het_leaders.setdefault(job.het_job or job.id, []).append(job)
    return tuple(_gang(pool, jobs, now) for jobs in het_leaders.values())


def _waits_for_nodes(job: SlurmJob, pool: PoolPolicy, now: datetime) -> bool:
    if job.state != "PENDING" or job.held or pool.partition not in job.partition.split(","):
        return False
    if job.waits_for.split(",")[0].split("(")[0] not in NODES_WOULD_HELP:
        return False
    return job.begins_at is None or job.begins_at <= now


def _gang(pool: PoolPolicy, jobs: list[SlurmJob], now: datetime) -> Demand:
    leader = min(jobs, key=lambda job: job.id)
    return Demand(
        key=f"job {leader.id} of {leader.user}",
        side=Side.SLURM,
        pool=pool.name,
        nodes=sum(job.node_count for job in jobs),
        whole=True,
        priority=leader.priority,
        since=leader.submitted_at or now,
    )


def kube_demands(pool: PoolPolicy, seen: KubeObservation, now: datetime) -> tuple[Demand, ...]:
    """Unschedulable pods by their controller, packed into whole nodes. Pods larger than a node are no demand."""
    pods = sorted((pod for pod in seen.pending if 0 < pod.gpus <= pool.gpus), key=_by_group)
    return tuple(_serving(pool, group, list(alike), now) for group, alike in groupby(pods, key=_by_group))


def _by_group(pod: PendingPod) -> str:
    return pod.group


def _serving(pool: PoolPolicy, group: str, pods: list[PendingPod], now: datetime) -> Demand:
    return Demand(
        key=group,
        side=Side.KUBERNETES,
        pool=pool.name,
        nodes=nodes_for((pod.gpus for pod in pods), pool.gpus),
        whole=False,
        priority=max(pod.priority for pod in pods),
        since=min((pod.pending_since or now for pod in pods), default=now),
    )


def nodes_for(gpus_per_pod: Iterable[int], gpus_per_node: int) -> int:
    """How many empty nodes these pods fill, first-fit decreasing (at most 22 % above the optimum: Johnson 1973)."""
    free: list[int] = []
    for gpus in sorted(gpus_per_pod, reverse=True):
        fits = next((i for i, room in enumerate(free) if room >= gpus), None)
        if fits is None:
            free.append(gpus_per_node - gpus)
        else:
            free[fits] -= gpus
    return len(free)
