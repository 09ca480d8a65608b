"""Slurm's queue as demand, and its running jobs as work that a handoff might end.

A queue may hold 100,000 jobs and a plan can use no more of them than the pool has nodes. So jobs are grouped by shape
in one pass, only the first of each shape become demands, and the rest are a number.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter

from bridge.model.demand import Demand, Work
from bridge.model.ownership import Side
from bridge.model.policy import Policy, PoolPolicy, Preemption
from bridge.model.slurm import GPU_TYPE, REQUEUE_HOLD, SlurmJob, SlurmObservation
from bridge.planning.constraints import alternatives
from bridge.planning.losses import loss_gpu_s, too_young, unsaved_s
from bridge.planning.snapshot import in_line
from bridge.planning.wishes import Wishes, wishes

NODES_WOULD_HELP = frozenset({"", "None", "Resources", "Priority", "ReqNodeNotAvail", "NodeDown", "Reservation"})
"""Slurm's pending reasons that more nodes can cure. A dependency, a hold or a limit is not cured by nodes."""

REACH = 4
"""Demands are listed until they ask for this many times the pool's nodes: the first may be refused, or left alone."""

_Place = tuple[int, float, int, int]
"""Of a demand in its queue: see `_order`, and which of an array's it is."""

_SHAPE = attrgetter(
    *("account", "qos", "node_count", "gpus_per_node", "features", "switches", "exclusive", "gpu_type"),
)
_KIND = attrgetter(
    *("account", "qos", "node_count", "gpus_per_node", "features", "switches", "exclusive", "gpu_type"),
    *("state", "partition", "held", "reservation", "waits_for", "het_job"),
)
_BY_PRIORITY = attrgetter("priority")
_BY_AGE = attrgetter("submitted_at", "id")


@dataclass(frozen=True, slots=True)
class Queue:
    """The head of a queue in its scheduler's order, then one demand for each kind that no node of the pool can help.

    `waiting` counts all jobs (array tasks one by one) or pods that wait for nodes, those behind the head included and
    the impossible ones not. A job far behind may be in it though it may not begin yet.
    """

    demands: tuple[Demand, ...] = ()
    waiting: int = 0


# --- demand ---


def slurm_queue(pool: PoolPolicy, policy: Policy, seen: SlurmObservation, now: datetime, *, nodes: int) -> Queue:
    """The jobs of the pool's partition that wait for nodes, in Slurm's order: priority, time of submission, id.

    `nodes` is how many nodes the pool has. Of each shape (account, QoS, size, features) so many are listed that they
    would fill the pool; of all shapes together `REACH` times as much. What is behind them cannot matter to one plan.

    One-node jobs that leave room for others of their shape share a node: `pool.gpus` // (GPUs asked) of them are one
    demand, under the name of the first. A job that asks for no GPU is counted as one GPU. Jobs of different shapes may
    share a node too in Slurm, so a demand is at most one node a shape too large, until the next pass.
    """
    shapes = _by_shape(seen.jobs, pool, now)
    heads: list[Iterator[_Head]] = []
    impossible: list[Demand] = []
    waiting = 0
    teams = _teams(policy)
    types_told = any(feature.startswith(GPU_TYPE) for node in seen.nodes.values() for feature in node.features)
    for alike in shapes.values():
        gang = _Gang(pool, teams, policy, alike[0], types_told, now)
        count = sum([job.task_count for job in alike])
        why = _impossible(alike[0], pool, nodes)
        if why:
            impossible.append(replace(gang.demand(min(alike, key=_order), 0), impossible=why, alike=count))
        else:
            waiting += count
            heads.append(gang.heads(alike, nodes))
    listed = (gang.demand(job, place[-1]) for place, gang, job in heapq.merge(*heads, key=itemgetter(0)))
    return Queue((*_reach(listed, REACH * nodes), *_merged(impossible)), waiting)


def why_not_demand(job: SlurmJob, pool: PoolPolicy, now: datetime) -> str:
    """Why more nodes in the pool's partition would not start this job, in words for people; empty if they would."""
    return _why_not_its_kind(job, pool) or _why_not_yet(job, now)


def _why_not_its_kind(job: SlurmJob, pool: PoolPolicy) -> str:
    """What is true of all jobs that are alike in `_KIND`."""
    if job.state != "PENDING":
        return f"it is {job.state}"
    if job.partition != pool.partition and pool.partition not in job.partition.split(","):
        return f"it waits in partition {job.partition}, the pool's is {pool.partition}"
    if job.held:
        return f"it is held ({job.waits_for or 'JobHeldUser'})"
    if job.reservation:
        return f"it waits for reservation {job.reservation}"
    return _not_cured(job.waits_for)


def _why_not_yet(job: SlurmJob, now: datetime) -> str:
    if job.task_count < 1:
        return "its array already runs as many tasks as its limit allows"
    if job.begins_at is None:
        return "it waits for its begin time, which Slurm does not tell" if job.waits_for == "BeginTime" else ""
    if job.begins_at > now and not _was_requeued(job, now):
        return f"it may not begin before {job.begins_at:%Y-%m-%d %H:%M:%S} UTC"
    return ""


def _was_requeued(job: SlurmJob, now: datetime) -> bool:
    """It is demand all through Slurm's hold, or its nodes are lent from under it."""
    return job.restarts > 0 and job.begins_at is not None and job.begins_at - now <= REQUEUE_HOLD


@lru_cache(maxsize=1024)
def _not_cured(waits_for: str) -> str:
    reason = waits_for.split(",")[0].split("(")[0].strip()
    if reason in NODES_WOULD_HELP or reason == "BeginTime":  # whether its time has come is told by the time
        return ""
    if reason.startswith("Dependency"):
        return f"it waits for other jobs ({reason})"
    if reason.startswith(("Assoc", "QOS", "MaxJobs", "MaxSubmit", "MaxCpu", "MaxGRES", "MaxTRES", "MaxNode")):
        return f"a limit of its association or QoS is reached ({reason})"
    return f"more nodes do not cure what it waits for ({reason})"


def _by_shape(jobs: Iterable[SlurmJob], pool: PoolPolicy, now: datetime) -> dict[tuple[object, ...], list[SlurmJob]]:
    """What waits for nodes, by shape; a het job as one, if no part of it waits for something else.

    This is the one walk over the whole queue, so what can be judged by kind is. Whether a job may begin yet is asked
    when it might be listed, unless Slurm says that it waits for that: to ask all takes longer than all the rest.
    """
    kinds: dict[tuple[object, ...], list[SlurmJob]] = {}
    for job in jobs:
        kind = _KIND(job)
        found = kinds.get(kind)
        if found is None:
            kinds[kind] = [job]
        else:
            found.append(job)
    shapes: dict[tuple[object, ...], list[SlurmJob]] = {}
    parts: dict[int, list[SlurmJob]] = {}
    blocked: set[int] = set()
    for alike in kinds.values():
        first = alike[0]
        if _why_not_its_kind(first, pool):
            able = []
        elif first.waits_for == "BeginTime" or first.het_job is not None:
            able = [job for job in alike if not _why_not_yet(job, now)]
        else:
            able = alike
        if first.het_job is None:
            if able:
                shapes.setdefault(_SHAPE(first), []).extend(able)
        elif len(able) == len(alike):
            parts.setdefault(first.het_job, []).extend(able)
        elif first.state == "PENDING" and pool.partition in first.partition.split(","):
            blocked.add(first.het_job)
    for id, components in parts.items():
        if id not in blocked:
            gang = _het(components)
            shapes.setdefault(_SHAPE(gang), []).append(gang)
    return shapes


def _het(components: list[SlurmJob]) -> SlurmJob:
    """One gang with the nodes of all components, in the leader's name; it shares its nodes with nobody."""
    leader = min(components, key=attrgetter("id"))
    wishes = sorted({job.features for job in components})
    return replace(
        leader,
        node_count=sum(job.node_count for job in components),
        gpus_per_node=max(job.gpus_per_node for job in components),
        features="" if "" in wishes else "|".join(f"({wish})" for wish in wishes),
        switches=0,
        gpu_type="" if len({job.gpu_type for job in components}) > 1 else leader.gpu_type,
        exclusive=True,
    )


def _impossible(job: SlurmJob, pool: PoolPolicy, nodes: int) -> str:
    if job.gpus_per_node > pool.gpus:
        return f"it asks for {job.gpus_per_node} GPUs a node, and a node of pool {pool.name} has {pool.gpus}"
    if job.node_count > nodes:
        return f"it asks for {job.node_count} nodes, and pool {pool.name} has {nodes}"
    return ""


def _teams(policy: Policy) -> dict[str, str]:
    return {account: team.name for team in policy.teams for account in team.accounts}


_Head = tuple[_Place, "_Gang", SlurmJob]
"""A demand that may be listed: its place, and what it is made of."""


@dataclass(frozen=True, slots=True)
class _Gang:
    """What all demands of one shape have in common, told by any job of the shape."""

    pool: PoolPolicy
    teams: Mapping[str, str]
    policy: Policy
    shape: SlurmJob
    types_told: bool
    now: datetime

    @property
    def per_node(self) -> int:
        """How many jobs of this shape make one demand."""
        if self.shape.node_count > 1 or self.shape.exclusive:
            return 1
        return max(1, self.pool.gpus // max(1, self.shape.gpus_per_node))

    def heads(self, alike: list[SlurmJob], nodes: int) -> Iterator[_Head]:
        """The first demands of this shape with their place in the queue, until they would fill `nodes` nodes."""
        left = math.ceil(nodes / self.shape.node_count)
        room = 0
        for job in _in_order(alike):
            if _why_not_yet(job, self.now):
                continue
            opened = 0
            for _ in range(job.task_count):
                if room == 0:
                    if left == 0:
                        return
                    yield (*_order(job), opened), self, job
                    left -= 1
                    opened += 1
                    room = self.per_node
                room -= 1

    def demand(self, job: SlurmJob, already: int) -> Demand:
        """The demand of `job`; for an array the one after `already` others."""
        shape = self.shape
        return Demand(
            key=_key(job) + (f" ({already + 1})" if already else ""),
            side=Side.SLURM,
            pool=self.pool.name,
            nodes=shape.node_count,
            whole=True,
            priority=job.priority,
            since=job.submitted_at or self.now,
            team=self.teams.get(shape.account, shape.account),
            rank=self.policy.priorities.qos.get(shape.qos, 0),
            gpus_per_node=shape.gpus_per_node,
            features=self._features(),
            switches=shape.switches,
        )

    def _features(self) -> tuple[frozenset[str], ...]:
        """Of ``--constraint``, and the GPU type where Slurm's nodes tell theirs."""
        wishes = alternatives(self.shape.features, self.shape.node_count)
        if not self.shape.gpu_type or not self.types_told:
            return wishes
        return tuple(wish | {GPU_TYPE + self.shape.gpu_type} for wish in wishes or (frozenset[str](),))


def _key(job: SlurmJob) -> str:
    folded = job.state == "PENDING" and (job.task_count > 1 or job.array == job.id)
    return f"job {job.id}{'_*' if folded else ''} of {job.user}"


def _order(job: SlurmJob) -> tuple[int, float, int]:
    """Slurm's own: larger priority, then earlier submission, then smaller id."""
    return (-job.priority, job.submitted_at.timestamp() if job.submitted_at else math.inf, job.id)


def _in_order(jobs: list[SlurmJob]) -> Iterator[SlurmJob]:
    """In Slurm's order, sorted only as far as it is read: whole numbers first, and the rest within equal ones."""
    for _, equal in groupby(sorted(jobs, key=_BY_PRIORITY, reverse=True), key=_BY_PRIORITY):
        same = list(equal)
        try:
            yield from sorted(same, key=_BY_AGE)
        except TypeError:  # some were submitted at an unknown time
            yield from sorted(same, key=_order)


def _reach(demands: Iterable[Demand], nodes: int) -> Iterator[Demand]:
    """Up to and with the one that takes the sum above `nodes`."""
    total = 0
    for demand in demands:
        yield demand
        total += demand.nodes
        if total > nodes:
            return


def _merged(impossible: list[Demand]) -> Iterator[Demand]:
    """One for each reason, in the name of the first in the queue."""
    by_reason: dict[str, list[Demand]] = {}
    for demand in impossible:
        by_reason.setdefault(demand.impossible, []).append(demand)
    for reason in sorted(by_reason):
        same = by_reason[reason]
        first = min(same, key=in_line)
        yield replace(first, alike=sum(demand.alike for demand in same))


# --- work ---


def slurm_works(
    policy: Policy, preemption: Preemption, seen: SlurmObservation, names: Mapping[str, str], now: datetime
) -> tuple[Work, ...]:
    """What runs on the shared nodes, het components together. `names`: Slurm's node name -> the bridge's.

    What ending one loses is `losses.loss_gpu_s`, by the job's own report of its last checkpoint, else by its interval
    (see `bridge.planning.wishes`), else by the policy's. A job on whole nodes counts all their GPUs, and a job that
    asks for none as one a node, or else it would cost nothing to end.
    """
    together: dict[int, list[SlurmJob]] = {}
    for job in seen.jobs:
        if job.nodes and job.state != "PENDING":
            together.setdefault(job.het_job or job.id, []).append(job)
    works = _Works(policy, _teams(policy), preemption, seen, names, now)
    return tuple(
        works.of(sorted(parts, key=attrgetter("id")))
        for _, parts in sorted(together.items())
        if any(node in names for job in parts for node in job.nodes)
    )


@dataclass(frozen=True, slots=True)
class _Works:
    policy: Policy
    teams: Mapping[str, str]
    preemption: Preemption
    seen: SlurmObservation
    names: Mapping[str, str]
    now: datetime

    def of(self, parts: list[SlurmJob]) -> Work:
        """One job; of a het job all components, which run and end together."""
        leader = parts[0]
        wish = wishes(leader)
        runs_for_s = max(self._runs_for_s(job) for job in parts)
        ends = [self._ends_in_s(job) for job in parts]
        return Work(
            key=_key(leader),
            side=Side.SLURM,
            team=self.teams.get(leader.account, leader.account),
            nodes=tuple(dict.fromkeys([self.names[node] for job in parts for node in job.nodes if node in self.names])),
            gpus=sum(self._gpus(job) for job in parts),
            priority=leader.priority,
            rank=self.policy.priorities.qos.get(leader.qos, 0),
            runs_for_s=runs_for_s,
            ends_in_s=None if None in ends else max(end for end in ends if end is not None),
            loss_gpu_s=sum(self._loss_gpu_s(job, wish) for job in parts),
            protected=next((why for job in parts if (why := self._protected(job))), ""),
            job=leader.het_job or leader.id,
            signal=wish.signal,
            grace_s=wish.grace_s,
            saves=self._saves(leader, wish),
        )

    def _runs_for_s(self, job: SlurmJob) -> float:
        return max(0.0, (self.now - job.started_at).total_seconds()) if job.started_at else 0.0

    def _ends_in_s(self, job: SlurmJob) -> float | None:
        """Without a limit Slurm shows an end in a year: that is none."""
        if job.state == "COMPLETING":
            return 0.0
        if job.time_limit_s is None:
            return None
        limit_s = job.time_limit_s
        end = job.ends_at or (job.started_at + timedelta(seconds=limit_s) if job.started_at else None)
        return None if end is None else max(0.0, (end - self.now).total_seconds())

    def _gpus(self, job: SlurmJob) -> int:
        asked = job.gpus_per_node * len(job.nodes)
        if not job.exclusive:
            return asked
        return max(asked, sum(node.gpus for name in job.nodes if (node := self.seen.nodes.get(name))))

    def _loss_gpu_s(self, job: SlurmJob, wish: Wishes) -> float:
        gpus = self._gpus(job) or len(job.nodes)
        since_s = unsaved_s(self._runs_for_s(job), self._saved_s_ago(wish), self._interval_s(wish))
        return loss_gpu_s(gpus, since_s, self.preemption.restart_s)

    def _interval_s(self, wish: Wishes) -> float | None:
        return wish.checkpoint_s or self.preemption.checkpoint_interval_s

    def _saved_s_ago(self, wish: Wishes) -> float | None:
        return None if wish.saved_at is None else (self.now - wish.saved_at).total_seconds()

    def _saves(self, job: SlurmJob, wish: Wishes) -> str:
        """What its loss rests on, in words for people."""
        ago_s, runs_for_s = self._saved_s_ago(wish), self._runs_for_s(job)
        if ago_s is not None and ago_s <= runs_for_s:
            return f"it reported a checkpoint {max(0.0, ago_s):.0f} s ago"
        if wish.checkpoint_s:
            return f"it says that it saves every {wish.checkpoint_s:g} s"
        if self.preemption.checkpoint_interval_s:
            return f"the policy takes it to save every {self.preemption.checkpoint_interval_s:g} s"
        return "it says nothing of checkpoints"

    def _protected(self, job: SlurmJob) -> str:
        never = self.preemption.never
        if job.state != "RUNNING":
            return f"it is {job.state}"
        if not job.may_requeue:
            return "it may not be requeued (not a batch job, or sbatch --no-requeue)"
        for kind, name, names in (
            ("account", job.account, never.accounts),
            ("user", job.user, never.users),
            ("QoS", job.qos, never.qos),
        ):
            if name in names:
                return f"its {kind} {name} is never a victim"
        return too_young(self._runs_for_s(job), self.preemption)
