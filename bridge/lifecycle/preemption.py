"""When the victims of a handoff are asked to go, and when they are made to. Pure.

``NothingForNothing``
    A victim is signalled only when its going frees the nodes: every node of the gang reads as closed, no node of it
    goes back, and on none stands work that would stay. Until then, and for ever where a deadline comes first, it runs.
``OnlyVictims``
    Only a job that the handoff names, that is seen RUNNING on the node and may be requeued is touched. One that may
    not, or not any more, is waited for like any other work.

A job that the policy does not force (``after_grace: wait``) is signalled and then waited for. One that ends in its
grace, of the signal too, is over: Slurm would revive it, so it is not requeued, here nor in the drivers.

A job that was requeued may start again as soon as it is no longer COMPLETING: Slurm would hold it for 120 s, and loses
a StartTime that is set before.

`signalled_at` is committed before the first signal; the grace counts from it. A signal is sent at least once: a new
leader cannot know whether the old one's arrived, so it begins the grace anew and sends it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from bridge.lifecycle.facts import SideFacts, job_blocker
from bridge.model.demand import Victim
from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Side
from bridge.model.slurm import REQUEUE_HOLD, SlurmJob

_CLOSED_BEFORE = frozenset({Step.EMPTY, Step.CLEAN})
"""Steps of a handoff whose source was read as closed and that has not been opened yet."""

Fellow = tuple[Handoff, SideFacts]
"""A handoff of a gang, and the facts of its source."""


def running_victims(handoff: Handoff, source: SideFacts) -> tuple[tuple[Victim, SlurmJob], ...]:
    """The victims of the handoff that may be ended on its node now; empty unless it is in `empty` behind closed doors.

    A het component stands for the whole job, which is named by its leader.
    """
    if handoff.step is not Step.EMPTY or handoff.source is not Side.SLURM or not _is_shut(source):
        return ()
    found = ((_victim(handoff, job), job) for job in source.jobs)
    return tuple((victim, job) for victim, job in found if victim is not None and _may_end(job))


def signal_due(handoff: Handoff, source: SideFacts, gang: Sequence[Fellow]) -> bool:
    """Whether the grace should begin in this pass. `gang`: all live handoffs of the lease, itself included."""
    if handoff.signalled_at is not None or not running_victims(handoff, source):
        return False
    return all(_is_freed_by_its_victims(other, facts) for other, facts in gang)


def signalled(handoff: Handoff, now: datetime) -> Handoff:
    """The handoff with the grace of its victims beginning at `now`."""
    return replace(handoff, signalled_at=now)


def signalled_again(handoff: Handoff, *, now: datetime, skew: timedelta, new_leader: bool) -> Handoff:
    """A grace moves with a clock that was set, and begins anew under a new leader; unchanged where there is none."""
    if handoff.signalled_at is None or handoff.step.ended:
        return handoff
    return signalled(handoff, now if new_leader else handoff.signalled_at + skew)


def grace_ends_at(handoff: Handoff, victim: Victim) -> datetime | None:
    """From when on a victim is requeued; None before it was signalled, and for one that is not forced."""
    if handoff.signalled_at is None or not victim.forced:
        return None
    return handoff.signalled_at + timedelta(seconds=victim.grace_s)


def held_back(
    handoffs: Iterable[Handoff], requeued: Collection[int], jobs: Iterable[SlurmJob], now: datetime
) -> tuple[int, ...]:
    """Jobs that Slurm holds back after a requeue of ours, by the id that names the whole job.

    Ours are the victims of handoffs that still run, and those of the ids in `requeued`.
    """
    ours = {victim.job for each in handoffs if each.signalled_at is not None for victim in each.victims} | set(requeued)
    seen = [job for job in jobs if (job.het_job or job.id) in ours]
    busy = {job.het_job or job.id for job in seen if job.state != "PENDING"}
    held = {job.het_job or job.id for job in seen if job.restarts and _is_held_back(job, now)}
    return tuple(sorted(held - busy))


def _is_held_back(job: SlurmJob, now: datetime) -> bool:
    if job.state != "PENDING" or job.held or job.begins_at is None:
        return False
    waits = job.waits_for == "BeginTime" or job.begins_at > now
    return waits and job.begins_at - now <= REQUEUE_HOLD


def waits_for(handoff: Handoff, source: SideFacts) -> tuple[str, ...]:
    """The blockers of a source that is being emptied, with what is done about its victims."""
    words = {job_blocker(job): _fate(handoff, job) for job in source.jobs}
    return tuple(words.get(blocker) or blocker for blocker in source.blockers)


def _fate(handoff: Handoff, job: SlurmJob) -> str:
    victim = _victim(handoff, job)
    if victim is None or job.state != "RUNNING":
        return ""
    who = f"job {job.id} of {job.user}"
    if not job.may_requeue:
        return f"{who} may not be requeued: it is waited for"
    if handoff.signalled_at is not None and not victim.forced:
        return f"{who}: signalled {victim.signal}, and waited for, as the policy requeues nobody after a grace"
    ends_at = grace_ends_at(handoff, victim)
    if ends_at is None:
        return f"{who} is asked to go once only such jobs keep the nodes that are wanted"
    said = f"signalled {victim.signal}" if victim.signal else "not signalled"
    return f"{who}: {said}, requeued at {ends_at:%H:%M:%S} UTC"


def _is_freed_by_its_victims(handoff: Handoff, source: SideFacts) -> bool:
    if handoff.step not in _CLOSED_BEFORE or not _is_shut(source):
        return False
    return all(job.state == "COMPLETING" or (_victim(handoff, job) and _may_end(job)) for job in source.jobs)


def _victim(handoff: Handoff, job: SlurmJob) -> Victim | None:
    named = (victim for victim in handoff.victims if victim.side is Side.SLURM and victim.job is not None)
    return next((victim for victim in named if victim.job in (job.id, job.het_job)), None)


def _may_end(job: SlurmJob) -> bool:
    return job.state == "RUNNING" and job.may_requeue


def _is_shut(source: SideFacts) -> bool:
    return source.known and source.closed and not source.foreign
