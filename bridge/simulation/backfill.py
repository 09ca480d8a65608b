"""One round of the simulated Slurm's scheduler, as a pure function: EASY backfill.

In order of priority, a job starts when all its nodes are free now. The first one that cannot start gets the nodes that
will be free soonest by the time limits of what runs there (PLANNED); whoever comes later may use these only if it ends
before. A job that the usable nodes can never hold plans nothing, so smaller ones pass it: that is how a gang starves
whose nodes come one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

NO_PLAN = (math.inf, frozenset[str]())


@dataclass(frozen=True, slots=True)
class Host:
    """A node that may start jobs: its free GPUs, and in how many seconds all of it is free, by the time limits."""

    name: str
    gpus_free: int
    all_free_in_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that may start. `limit_s` is infinite without a time limit."""

    job: int
    nodes: int
    gpus_per_node: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """Which jobs start where, why each of the others waits (Slurm's words), and which idle nodes are planned."""

    starts: Mapping[int, tuple[str, ...]]
    waits_for: Mapping[int, str]
    planned: frozenset[str]


def schedule(queue: Sequence[Waiting], hosts: Sequence[Host], *, nodes: int, reserved: int) -> Round:
    """`queue` in order of priority, `hosts` the usable ones in the order in which they are filled; `nodes` is how many
    the partition has, `reserved` how many of them are inside reservations."""
    free = {host.name: host for host in hosts}
    starts: dict[int, tuple[str, ...]] = {}
    waits_for: dict[int, str] = {}
    begin_s, planned = NO_PLAN
    for job in queue:
        fitting = [
            host.name
            for host in free.values()
            if host.gpus_free >= job.gpus_per_node and (host.name not in planned or job.limit_s <= begin_s)
        ]
        if len(fitting) >= job.nodes:
            starts[job.job] = chosen = tuple(fitting[: job.nodes])
            for name in chosen:
                free[name] = _take(free[name], job)
            continue
        if not waits_for:
            begin_s, planned = _plan(job, list(free.values()))
        waits_for[job.job] = _reason(job, first=not waits_for, nodes=nodes, reserved=reserved)
    return Round(starts, waits_for, planned)


def _take(host: Host, job: Waiting) -> Host:
    return replace(
        host, gpus_free=host.gpus_free - job.gpus_per_node, all_free_in_s=max(host.all_free_in_s, job.limit_s)
    )


def _plan(job: Waiting, hosts: Sequence[Host]) -> tuple[float, frozenset[str]]:
    soonest = sorted(hosts, key=lambda host: host.all_free_in_s)[: job.nodes]
    if len(soonest) < job.nodes:
        return NO_PLAN
    return soonest[-1].all_free_in_s, frozenset(host.name for host in soonest)


def _reason(job: Waiting, *, first: bool, nodes: int, reserved: int) -> str:
    if job.nodes > nodes:
        return "PartitionNodeLimit"
    if job.nodes > nodes - reserved:
        return "ReqNodeNotAvail"
    return "Resources" if first else "Priority"
