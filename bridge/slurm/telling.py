"""What running jobs are told: a signal through slurmrestd, a requeue through ``scontrol``.

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
from bridge.slurm.scontrol import Scontrol

_INVALID_JOB_ID = 2017
_NOT_IN_THIS_STATE = 2020
_ALREADY_DONE = 2021
_GONE = frozenset({_INVALID_JOB_ID, _NOT_IN_THIS_STATE, _ALREADY_DONE})
"""Slurm's answers to a signal for a job that is not there, not running, or over."""


_FLAGS = {"": "&flags=FULL_JOB", "B": "&flags=BATCH_JOB", "S": ""}


@dataclass(frozen=True, slots=True)
class _There:
    """A job that Slurm knows and that is not over. `address` is what Slurm calls it, and nothing but it."""

    address: str
    own: tuple[SlurmJob, ...]


@dataclass(frozen=True, slots=True)
class _Running:
    """A job that runs where it was looked for."""

    address: str
    may_requeue: bool


class JobCalls:
    """Calls about one job at a time. They raise `CallFailed`, and `Invalid` for what can be no job."""

    def __init__(self, client: RestClient, scontrol: Scontrol) -> None:
        self._client = client
        self._scontrol = scontrol

    def signal(self, job: int, nodes: Collection[str], signal: str) -> None:
        """By default Slurm spares the batch script; ``FULL_JOB`` means it and the steps, ``BATCH_JOB`` it alone."""
        if not is_signal(signal):
            raise CallFailed(f"{signal!r} is no signal for a job: it must be one of {', '.join(sorted(SIGNALS))}")
        running = self._running(job, nodes)
        if running is None:
            return
        target, _, name = signal.rpartition(":")
        path = f"job/{running.address}?signal={name}{_FLAGS[target]}"
        try:
            answer = self._client.write("DELETE", path)
        except WriteRefused as refusal:
            if not refusal.numbers or not refusal.numbers <= _GONE:
                raise
            return
        refused = _refused(answer)
        if refused:
            raise CallFailed(f"signal {signal} for job {job}: {'; '.join(refused)}")

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        running = self._running(job, nodes)
        if running is None:
            return
        if not running.may_requeue:
            raise CallFailed(f"job {job} may not be requeued")
        self._scontrol("requeue", running.address)

    def hasten(self, job: int) -> None:
        """StartTime=now, after the job was read once more: its last run may not have ended, or its next one begun."""
        found = self._look_up(job)
        if found is None or any(each.state != "PENDING" for each in found.own):
            return
        self._scontrol("update", f"JobId={found.address}", "StartTime=now")

    def _running(self, job: int, nodes: Collection[str]) -> _Running | None:
        """None for a job that does not run on any of the nodes, or is not there at all."""
        there = self._look_up(job)
        if there is None:
            return None
        if not any(found.state == "RUNNING" and not set(nodes).isdisjoint(found.nodes) for found in there.own):
            return None
        leads = [found for found in there.own if found.id == job] or there.own
        return _Running(there.address, all(found.may_requeue for found in leads))

    def _look_up(self, job: int) -> _There | None:
        """What Slurm has of a job and its components now; None where it has nothing that is not over."""
        if isinstance(job, bool) or not isinstance(job, int) or job <= 0:
            raise Invalid(f"{job!r} is no job id")
        source = f"Slurm job {job}"
        try:
            answer = self._client.read(f"job/{job}")
            # An array answers for all its tasks, and a het leader for its components.
            own = tuple(found for found in reading.jobs(answer, source) if job in (found.id, found.het_job))
            address = _address(job, reading.records(answer, "jobs", source))
        except ReadRefused as refusal:
            if _INVALID_JOB_ID in refusal.numbers:
                return None
            raise CallFailed(str(refusal)) from refusal
        except Unreadable as error:
            raise CallFailed(str(error)) from error
        return _There(address, own) if own else None


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
        if error.get("code") and error["code"] not in _GONE:
            words.append(f"{error.get('string') or 'refused'} ({error['code']})")
    return words
