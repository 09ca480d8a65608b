"""What running jobs are told, and with slurmrestd: a signal through it, a requeue through ``scontrol``.

Where a job runs is read right before, for two reasons seen on a real Slurm: a requeue revives a job that is over, and a
job that started again elsewhere would be ended there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bridge.model.errors import CallFailed, Invalid, Unreadable
from bridge.model.slurm import SIGNALS, SlurmJob, is_signal
from bridge.slurm import reading
from bridge.slurm.client import ReadRefused, RestClient, WriteRefused
from bridge.slurm.scontrol import RunsScontrol

_INVALID_JOB_ID = 2017
_NOT_IN_THIS_STATE = 2020
_ALREADY_DONE = 2021
GONE = frozenset({_INVALID_JOB_ID, _NOT_IN_THIS_STATE, _ALREADY_DONE})
"""Slurm's answers to a signal for a job that is not there, not running, or over."""


_FLAGS = {"": "&flags=FULL_JOB", "B": "&flags=BATCH_JOB", "S": ""}


@dataclass(frozen=True, slots=True)
class There:
    """A job that Slurm knows and that is not over. `address` is what Slurm calls it, and nothing but it; `own` are its
    records, those of all components of a het job that goes by this one's id."""

    id: int
    address: str
    own: tuple[SlurmJob, ...]

    def runs_on(self, nodes: Collection[str]) -> bool:
        return any(found.state == "RUNNING" and not set(nodes).isdisjoint(found.nodes) for found in self.own)

    @property
    def waits(self) -> bool:
        """All of it does: while any part is COMPLETING Slurm forgets what it is told."""
        return all(found.state == "PENDING" for found in self.own)

    def check_may_requeue(self) -> None:
        leads = [found for found in self.own if found.id == self.id] or self.own
        if not all(found.may_requeue for found in leads):
            raise CallFailed(f"job {self.id} may not be requeued")


class JobCalls:
    """Calls about one job at a time. They raise `CallFailed`, and `Invalid` for what can be no job."""

    def __init__(self, client: RestClient, scontrol: RunsScontrol) -> None:
        self._client = client
        self._scontrol = scontrol

    def signal(self, job: int, nodes: Collection[str], signal: str) -> None:
        """By default Slurm spares the batch script; ``FULL_JOB`` means it and the steps, ``BATCH_JOB`` it alone."""
        check_signal(signal)
        running = self._look_up(job)
        if running is None or not running.runs_on(nodes):
            return
        target, _, name = signal.rpartition(":")
        path = f"job/{running.address}?signal={name}{_FLAGS[target]}"
        try:
            answer = self._client.write("DELETE", path)
        except WriteRefused as refusal:
            if not refusal.numbers or not refusal.numbers <= GONE:
                raise
            return
        refused = _refused(answer)
        if refused:
            raise CallFailed(f"signal {signal} for job {job}: {'; '.join(refused)}")

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        running = self._look_up(job)
        if running is None or not running.runs_on(nodes):
            return
        running.check_may_requeue()
        self._scontrol("requeue", running.address)

    def hasten(self, job: int) -> None:
        hasten(self._scontrol, self._look_up(job))

    def _look_up(self, job: int) -> There | None:
        check_id(job)
        try:
            return there(job, self._client.read(f"job/{job}"))
        except ReadRefused as refusal:
            if _INVALID_JOB_ID in refusal.numbers:
                return None
            raise CallFailed(str(refusal)) from refusal
        except Unreadable as error:
            raise CallFailed(str(error)) from error


def check_signal(signal: str) -> None:
    if not is_signal(signal):
        raise CallFailed(f"{signal!r} is no signal for a job: it must be one of {', '.join(sorted(SIGNALS))}")


def check_id(job: object) -> None:
    if isinstance(job, bool) or not isinstance(job, int) or job <= 0:
        raise Invalid(f"{job!r} is no job id")


def hasten(scontrol: RunsScontrol, found: There | None) -> None:
    """StartTime=now, after the job was read once more: its last run may not have ended, or its next one begun."""
    if found is not None and found.waits:
        scontrol("update", f"JobId={found.address}", "StartTime=now")


def there(job: int, answer: reading.Record) -> There | None:
    """What Slurm has of a job and its components now; None where it has nothing that is not over.

    `answer` may have more: an array answers for all its tasks, and a het leader for its components.
    """
    source = f"Slurm job {job}"
    own = tuple(found for found in reading.jobs(answer, source) if job in (found.id, found.het_job))
    return There(job, _address(job, reading.records(answer, "jobs", source)), own) if own else None


def _address(job: int, records: list[reading.Record]) -> str:
    """The last task of an array to start has the array's own id, by which Slurm would understand all of its tasks."""
    for record in records:
        task = reading.number(record.get("array_task_id"))
        if record.get("job_id") == job and reading.number(record.get("array_job_id")) == job and task is not None:
            return f"{job}_{task:.0f}"
    return str(job)


def _refused(answer: reading.Record) -> list[str]:
    """Slurm's words for each part of the job that it would not signal: they stand beside an empty ``errors``."""
    words = []
    for status in answer.get("status") or ():
        error = (status.get("error") if isinstance(status, dict) else None) or {}
        if error.get("code") and error["code"] not in GONE:
            words.append(f"{error.get('string') or 'refused'} ({error['code']})")
    return words
