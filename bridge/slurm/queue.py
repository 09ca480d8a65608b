"""Reads the queue without reading all of it every time.

A job is 8 kB of JSON and takes slurmrestd a millisecond; a hundred thousand are 770 MB and two minutes. So
``/jobs/state/`` (80 bytes a job) says what changed, and only that is read in full. A small queue is read whole.

Jobs that may hold a node are always complete and as fresh as their state: those that are neither plainly pending nor
plainly running are read anew every time. A pending job may be missing until its turn comes, and what it waits for may
be `PENDING_MAX_AGE_S` old: it holds no node, so that only delays demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bridge.model.errors import Unreadable
from bridge.model.slurm import SlurmJob
from bridge.slurm import reading
from bridge.slurm.client import NotThere, RestClient

WHOLE_QUEUE_JOBS = 300
"""Up to this many job records are read in one call (2.5 MB): simpler and fresher than asking for each."""

PENDING_MAX_AGE_S = 30
PENDING_READS = 100
"""How many pending jobs are read in full in one go, newly seen ones first, then the longest unread."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a job record, and the states under which it was read."""

    states: frozenset[str]
    jobs: tuple[SlurmJob, ...]
    read_at_s: float


class JobQueue:
    """All live jobs, from one `read` to the next. Not thread-safe."""

    def __init__(self, client: RestClient, budget_s: float, monotonic_s: Callable[[], float]) -> None:
        self._client = client
        self._budget_s = budget_s
        self._monotonic_s = monotonic_s
        self._known: dict[int, _Known] = {}

    def read(self) -> tuple[SlurmJob, ...]:
        """`Unreadable` when a job that may hold a node could not be read within the time budget; what was read until
        then is kept, so that the next call gets further."""
        try:
            answer = self._client.read("jobs/state/")
        except NotThere:  # before v0.0.41
            return self._whole()
        states = reading.queue_states(answer)
        if len(states.live) + states.over <= WHOLE_QUEUE_JOBS:
            self._known.clear()
            return self._whole()
        self._catch_up(states.live)
        return tuple(job for known in self._known.values() for job in known.jobs)

    def _whole(self) -> tuple[SlurmJob, ...]:
        return reading.jobs(self._client.read("jobs/"))

    def _catch_up(self, live: Mapping[int, frozenset[str]]) -> None:
        began_s = self._monotonic_s()
        for gone in self._known.keys() - live.keys():
            del self._known[gone]
        busy = [id for id, states in live.items() if self._must_read(id, states)]
        for done, id in enumerate(busy):
            if self._monotonic_s() - began_s > self._budget_s:
                raise Unreadable("Slurm queue", f"{len(busy) - done} of {len(busy)} busy jobs are still to be read")
            self._learn(id, live[id])
        for id in self._pending_to_read(live):
            if self._monotonic_s() - began_s > self._budget_s:
                return
            self._learn(id, live[id])

    def _must_read(self, id: int, states: frozenset[str]) -> bool:
        """True for a job that may hold a node, unless it is known and has been simply running since."""
        if _only_pending(states):
            return False
        known = self._known.get(id)
        return known is None or known.states != states or not _shown(states) <= {"RUNNING"}

    def _pending_to_read(self, live: Mapping[int, frozenset[str]]) -> list[int]:
        """Pending jobs in the order in which they should be read: new or changed ones, then those read longest ago."""
        before_s = self._monotonic_s() - PENDING_MAX_AGE_S
        fresh, stale = [], []
        for id, states in live.items():
            known = self._known.get(id)
            if known is None or known.states != states:
                fresh.append(id)
            elif known.read_at_s < before_s and any(job.state == "PENDING" for job in known.jobs):
                stale.append((known.read_at_s, id))
        # Out of date is worse than missing: it would pass for demand, or hold a node that another job has by now.
        for id in fresh:
            self._known.pop(id, None)
        return [*fresh, *(id for _, id in sorted(stale))][:PENDING_READS]

    def _learn(self, id: int, states: frozenset[str]) -> None:
        source = f"Slurm job {id}"
        answer = self._client.read(f"job/{id}")
        listed = any(record.get("job_id") == id for record in reading.records(answer, "jobs", source))
        if not listed and not _only_pending(states):
            raise Unreadable(source, "it is in the queue, and yet Slurm has no record of it")
        # An array answers for its running tasks too, and a het leader for its components: each has its own place here.
        # A job that ended since its state was read leaves nothing.
        own = tuple(job for job in reading.jobs(answer, source) if job.id == id)
        self._known[id] = _Known(states, own, self._monotonic_s())


def _shown(states: frozenset[str]) -> frozenset[str]:
    return frozenset(word.rpartition(" ")[2] for word in states)


def _only_pending(states: frozenset[str]) -> bool:
    return _shown(states) == {"PENDING"}
