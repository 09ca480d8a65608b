"""What a leader has told running jobs, so that none is told twice.

Acts are found anew in each pass, and a signal is due all through a grace: it is sent once. A call that failed may still
arrive within its time-out, as Slurm has no token that would refuse it. Until then its job is told nothing more: a late
second requeue would end the job again where it has started meanwhile, a late signal would meet its next run.

A job that was requeued may be COMPLETING for longer than the handoff lasts that ended it. So it is remembered here too:
a new leader knows only the victims of handoffs that still run, and lets the others wait as long as Slurm makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from bridge.lifecycle.acts import Act, Hasten, Requeue, Signal
from bridge.reconciler.carry_out import Outcome

REMEMBERED_S = 3600.0


@dataclass
class Endings:
    """The memory of one leader. `_signalled`: jobs with the beginning of the grace. `_in_doubt`, `_requeued`: jobs, and
    until when in monotonic seconds."""

    _signalled: set[tuple[int, datetime]] = field(default_factory=set)
    _in_doubt: dict[int, float] = field(default_factory=dict)
    _requeued: dict[int, float] = field(default_factory=dict)

    def requeued(self, now_s: float) -> frozenset[int]:
        """What was requeued in the last `REMEMBERED_S`, or may have been by a call that failed."""
        self._requeued = {job: until_s for job, until_s in self._requeued.items() if until_s > now_s}
        return frozenset(self._requeued)

    def still_due(self, acts: Iterable[Act], graces: Collection[datetime | None], now_s: float) -> list[Act]:
        """`acts` without what was told already or is in doubt. `graces`: when those began that the ledger holds."""
        self._signalled = {(job, since) for job, since in self._signalled if since in graces}
        self._in_doubt = {job: until_s for job, until_s in self._in_doubt.items() if until_s > now_s}
        return [act for act in acts if not isinstance(act, (Signal, Requeue, Hasten)) or self._is_due(act)]

    def _is_due(self, act: Signal | Requeue | Hasten) -> bool:
        sent = isinstance(act, Signal) and (act.job, act.since) in self._signalled
        return not sent and act.job not in self._in_doubt

    def note(self, outcome: Outcome, *, now_s: float, doubt_until_s: float) -> None:
        """Remember what was told, and what failed and may arrive until `doubt_until_s`."""
        maybe_requeued = outcome.requeued | outcome.jobs_in_doubt
        self._requeued.update(dict.fromkeys(maybe_requeued, now_s + REMEMBERED_S))
        self._signalled |= outcome.signalled
        self._in_doubt.update(dict.fromkeys(outcome.jobs_in_doubt, doubt_until_s))
