"""Reads the queue without reading all of it every time.

A job is 8 kB of JSON and takes slurmrestd a millisecond; a hundred thousand are 770 MB and two minutes. So
``/jobs/state/`` (80 bytes a job) says what changed, and only that is read in full. A small queue is read whole. What
did not change is not even looked at: a pass over a long queue costs what happened since the last one.

Jobs that may hold a node are always complete and as fresh as their state: those that are neither plainly pending nor
plainly running are read anew every time, and all that runs is after a restart of slurmctld. What the user of a running
job changes under way (its comment, whether it may be requeued) is read anew too, now and then: it may be a minute old,
or older where many run. A pending job may be missing until its turn comes, and what it waits for may be
`PENDING_MAX_AGE_S` old: it holds no node, so that only delays demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, islice, takewhile

from bridge.model.errors import Unreadable
from bridge.model.slurm import SlurmJob
from bridge.slurm import reading
from bridge.slurm.client import NotThere, RestClient
from bridge.slurm.states import LiveStates

WHOLE_QUEUE_JOBS = 300
"""Up to this many job records are read in one call (2.5 MB): simpler and fresher than asking for each."""

PENDING_MAX_AGE_S = 30
PENDING_READS = 100
"""How many pending jobs are read in full in one go, newly seen ones first, then the longest unread."""

RUNNING_MAX_AGE_S = 60
RUNNING_READS = 25
"""How many running jobs that did not change are read again in one go, the longest unread first."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a job record."""

    jobs: tuple[SlurmJob, ...]
    read_at_s: float


class JobQueue:
    """All live jobs, from one `read` to the next. Not thread-safe.

    A live job is in one of the sets of jobs to read, or known as it is: `_busy` may hold a node and is to be read now,
    `_fresh` waits and is to be read in its turn. `_restless` is neither plainly pending nor plainly running. `_waiting`
    are the known pending ones, `_settled` the known running ones, the longest unread first.
    """

    def __init__(self, client: RestClient, budget_s: float, monotonic_s: Callable[[], float]) -> None:
        self._client = client
        self._budget_s = budget_s
        self._monotonic_s = monotonic_s
        self._states = LiveStates()
        self._known: dict[int, _Known] = {}
        self._busy: dict[int, None] = {}
        self._fresh: dict[int, None] = {}
        self._restless: dict[int, None] = {}
        self._waiting: dict[int, None] = {}
        self._settled: dict[int, None] = {}

    def read(self) -> tuple[SlurmJob, ...]:
        """`Unreadable` when a job that may hold a node could not be read within the time budget; what was read until
        then is kept, so that the next call gets further."""
        try:
            body = self._client.body("jobs/state/")
        except NotThere:  # before v0.0.41
            return self._whole()
        self._sort(self._states.update(body))
        if self._states.records <= WHOLE_QUEUE_JOBS:
            self._forget(list(self._known))
            self._sort(self._states.live)
            return self._whole()
        self._catch_up()
        return tuple(job for known in self._known.values() for job in known.jobs)

    def doubt(self) -> None:
        """Read all that runs anew in the next `read`: the same state may be another run of the job, on other nodes."""
        self._busy |= self._settled

    def _whole(self) -> tuple[SlurmJob, ...]:
        return reading.decode_jobs(self._client.body("jobs/"))

    def _sort(self, changed: Iterable[int]) -> None:
        """Put these jobs where they are to be read, or forget them when they are gone.

        Of a job that waits now what was known is forgotten: out of date is worse than missing, it would pass for
        demand, or hold a node that another job has by now.
        """
        for id in sorted(changed):
            for where in (self._busy, self._fresh, self._restless):
                where.pop(id, None)
            states = self._states.live.get(id)
            if states is None:
                self._forget([id])
                continue
            shown = _shown(states)
            if shown == {"PENDING"}:
                self._forget([id])
                self._fresh[id] = None
                continue
            self._busy[id] = None
            if shown != {"RUNNING"}:
                self._restless[id] = None

    def _forget(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._known.pop(id, None)
            self._waiting.pop(id, None)
            self._settled.pop(id, None)

    def _catch_up(self) -> None:
        began_s = self._monotonic_s()
        busy = list(self._busy | self._restless)
        for done, id in enumerate(busy):
            if self._monotonic_s() - began_s > self._budget_s:
                raise Unreadable("Slurm queue", f"{len(busy) - done} of {len(busy)} busy jobs are still to be read")
            self._learn(id)
        for id in (*self._long_unread(self._settled, RUNNING_MAX_AGE_S, RUNNING_READS), *self._pending_to_read()):
            if self._monotonic_s() - began_s > self._budget_s:
                return
            self._learn(id)

    def _pending_to_read(self) -> list[int]:
        """Pending jobs in the order in which they should be read: new or changed ones, then those read longest ago."""
        stale = self._long_unread(self._waiting, PENDING_MAX_AGE_S, PENDING_READS)
        return list(islice(chain(self._fresh, stale), PENDING_READS))

    def _long_unread(self, known: Iterable[int], max_age_s: float, most: int) -> list[int]:
        before_s = self._monotonic_s() - max_age_s
        return list(islice(takewhile(lambda id: self._known[id].read_at_s < before_s, known), most))

    def _learn(self, id: int) -> None:
        source = f"Slurm job {id}"
        answer = self._client.read(f"job/{id}")
        listed = any(record.get("job_id") == id for record in reading.records(answer, "jobs", source))
        if not listed and _shown(self._states.live[id]) != {"PENDING"}:
            raise Unreadable(source, "it is in the queue, and yet Slurm has no record of it")
        # An array answers for its running tasks too, and a het leader for its components: each has its own place here.
        # A job that ended since its state was read leaves nothing.
        own = tuple(job for job in reading.jobs(answer, source) if job.id == id)
        self._known[id] = _Known(own, self._monotonic_s())
        for where in (self._busy, self._fresh, self._waiting, self._settled):
            where.pop(id, None)
        if any(job.state == "PENDING" for job in own):
            self._waiting[id] = None
        elif own and id not in self._restless:
            self._settled[id] = None


def _shown(states: frozenset[str]) -> frozenset[str]:
    return frozenset(word.rpartition(" ")[2] for word in states)
