"""Why a Slurm job waits: Slurm's own limits first, then what every demand is asked."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

from bridge.model.demand import Demand
from bridge.model.errors import Unreadable
from bridge.model.ownership import Side
from bridge.model.policy import PoolPolicy
from bridge.model.slurm import SlurmJob, SlurmObservation
from bridge.planning.demand import slurm_queue, why_not_demand
from bridge.planning.explaining.answer import LIMITS, QUOTA, Estimate, Explanation, Kind, Link, Number, Remedy, unknown
from bridge.planning.explaining.help import remedies
from bridge.planning.explaining.layers import chain
from bridge.planning.explaining.scene import Scene
from bridge.planning.explaining.verdict import verdict
from bridge.planning.explaining.waiting import Waiting
from bridge.planning.explaining.when import estimate

_NAME = re.compile(r"(\d{1,10})(?:[_+]\d{1,10})?")


def explain_job(scene: Scene, name: str) -> Explanation | None:
    """`name` is an id, ``17``, a task ``17_3`` or a het component ``17+1``; None: no such job in a readable queue."""
    seen = scene.seen.slurm
    if isinstance(seen, Unreadable):
        return unknown(Kind.JOB, f"job {name}", str(seen))
    job = _find(seen, name)
    if job is None:
        return None
    subject = f"job {name} of {job.user}"
    if job.state != "PENDING":
        return _not_pending(scene, subject, job)
    pool = next((pool for pool in scene.policy.pools if pool.partition in job.partition.split(",")), None)
    if pool is None:
        return _elsewhere(scene, subject, job)
    parts = _parts(seen, job)
    limits = tuple(_limit(part, pool, scene.now) for part in parts)
    own = _demand(scene, pool, seen, parts)
    demand = own if own is not None else _bare(scene, pool, parts)
    waiting = Waiting(scene, demand, pool)
    links = _behind(scene, waiting, chain(waiting, limits)) if own is not None else chain(waiting, limits)
    begins_s = [link.numbers["begins_in_s"] for link in limits if "begins_in_s" in link.numbers]
    when = estimate(waiting, links, not_before_s=max((float(s) for s in begins_s), default=0.0))
    helps = (*_slurm_remedies(parts, links), *remedies(waiting, links, when))
    return Explanation(Kind.JOB, subject, verdict(waiting, subject, links), links, helps, when)


def _find(seen: SlurmObservation, name: str) -> SlurmJob | None:
    """The job itself, else a waiting task of the array with this id, else any of its tasks."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    id = int(found[1])
    alike = [job for job in seen.jobs if id in (job.id, job.array, job.het_job)]
    return min(alike, key=lambda job: (job.state != "PENDING", job.id != id, job.id), default=None)


def _parts(seen: SlurmObservation, job: SlurmJob) -> tuple[SlurmJob, ...]:
    """The components of a het job, or the job alone."""
    if job.het_job is None:
        return (job,)
    return tuple(sorted((part for part in seen.jobs if part.het_job == job.het_job), key=lambda part: part.id))


def _limit(job: SlurmJob, pool: PoolPolicy, now: datetime) -> Link:
    why = why_not_demand(job, pool, now)
    if not why:
        said = job.waits_for or "None"
        text = f"not held, no dependency, within Slurm's limits: its reason is {said}"
        return Link(LIMITS, False, text, {"reason": said}, f"scontrol show job {job.id}")
    numbers: dict[str, Number] = {"reason": job.waits_for}
    if job.begins_at is not None and job.begins_at > now and not job.held and "begin" in why:
        numbers["begins_in_s"] = (job.begins_at - now).total_seconds()
    return Link(LIMITS, True, f"more nodes would not start it: {why}", numbers, _limit_command(job))


def _limit_command(job: SlurmJob) -> str:
    if job.waits_for.startswith("QOS") and job.qos:
        return f"sacctmgr show qos {job.qos} format=name,grptres,maxtrespu,maxjobspu"
    if job.waits_for.startswith(("Assoc", "Max", "QOS")):
        return f"sacctmgr show assoc where account={job.account} format=account,user,grptres,maxjobs,maxsubmit"
    return f"scontrol show job {job.id}"


def _demand(scene: Scene, pool: PoolPolicy, seen: SlurmObservation, parts: tuple[SlurmJob, ...]) -> Demand | None:
    """The demand of the snapshot, else what the planner makes of this job alone; None: it is none now."""
    alone = replace(seen, jobs=parts)
    nodes = len(scene.snapshot.of_pool(pool.name))
    made = slurm_queue(pool, scene.policy, alone, scene.now, nodes=max(1, nodes)).demands
    if not made:
        return None
    listed = (d for d in scene.snapshot.demands if (d.pool, d.key) == (pool.name, made[0].key))
    return next(listed, made[0])


def _bare(scene: Scene, pool: PoolPolicy, parts: tuple[SlurmJob, ...]) -> Demand:
    """The request of a job that is no demand: it is told all the same how its nodes stand."""
    leader = parts[0]
    return Demand(
        key=f"job {leader.id} of {leader.user}",
        side=Side.SLURM,
        pool=pool.name,
        nodes=sum(part.node_count for part in parts),
        whole=True,
        priority=leader.priority,
        since=leader.submitted_at or scene.now,
        team=scene.policy.team_of_account(leader.account),
        gpus_per_node=max(part.gpus_per_node for part in parts),
    )


def _behind(scene: Scene, waiting: Waiting, links: tuple[Link, ...]) -> tuple[Link, ...]:
    """Adds that the job is behind those at which one plan looks, when it is."""
    demand, listed = waiting.demand, [d for d in scene.snapshot.demands if d.side is Side.SLURM]
    if demand.impossible or any(d.key == demand.key for d in listed) or not listed:
        return links
    mate = next((d for d in listed if _same_shape(d, demand)), None)
    total = scene.snapshot.waiting.get(Side.SLURM, len(listed))
    text = f"one plan looks at the first {len(listed)} demands of {total} waiting jobs, and it is behind them"
    if mate is not None and demand.nodes == 1:
        text = f"it waits with {mate.key}: jobs of this shape share a node, or come after it"
    behind = Link(QUOTA, True, text, {"listed": len(listed), "waiting": total}, "squeue --states=PD --sort=-p")
    last = max(index for index, link in enumerate(links) if link.layer == QUOTA)
    return (*links[: last + 1], behind, *links[last + 1 :])


def _same_shape(one: Demand, other: Demand) -> bool:
    return (one.pool, one.nodes, one.gpus_per_node, one.features, one.team) == (
        other.pool,
        other.nodes,
        other.gpus_per_node,
        other.features,
        other.team,
    )


def _slurm_remedies(parts: tuple[SlurmJob, ...], links: tuple[Link, ...]) -> tuple[Remedy, ...]:
    held = [part.id for part in parts if part.held]
    if held and any(link.holds and link.layer == LIMITS for link in links):
        return (Remedy("release it", command=f"scontrol release {held[0]}"),)
    return ()


def _not_pending(scene: Scene, subject: str, job: SlurmJob) -> Explanation:
    where = f" on {', '.join(job.nodes)}" if job.nodes else ""
    command = f"scontrol show job {job.id}"
    links = [Link(LIMITS, False, f"it is {job.state}{where}", {"nodes": len(job.nodes)}, command)]
    work = next((work for work in scene.snapshot.works if work.job == (job.het_job or job.id)), None)
    if work is not None:
        spared = f"; no victim: {work.protected}" if work.protected else ""
        lost = f"ending it now loses {work.loss_gpu_s:.0f} GPU-s, as {work.saves}{spared}"
        links.append(Link("work", False, lost, {"gpus": work.gpus, "loss_gpu_s": work.loss_gpu_s}, command))
    text = f"{subject} is {job.state}{where}: it does not wait."
    return Explanation(Kind.JOB, subject, text, tuple(links), (), Estimate(None, "it does not wait"))


def _elsewhere(scene: Scene, subject: str, job: SlurmJob) -> Explanation:
    pools = ", ".join(pool.partition for pool in scene.policy.pools) or "none"
    text = f"it waits in partition {job.partition}; the shared pools' partitions are: {pools}"
    link = Link(LIMITS, True, text, {"reason": job.waits_for}, f"scontrol show job {job.id}")
    return Explanation(
        Kind.JOB,
        subject,
        f"{subject} waits outside the bridge: {text}.",
        (link,),
        (),
        Estimate(None, "not known: Slurm alone decides it"),
    )
