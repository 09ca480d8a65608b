"""A handoff: one node on its way from one side to the other, and the steps it goes through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from bridge.model.demand import Victim
from bridge.model.ownership import Side


class Step(StrEnum):
    """Where a handoff stands. What may follow what, and why, is the table in `bridge.lifecycle.table`."""

    ADMIT = "admit"
    ADOPT = "adopt"
    CLOSE = "close"
    EMPTY = "empty"
    CLEAN = "clean"
    OPEN = "open"
    PROVE = "prove"
    REOPEN = "reopen"
    REPROVE = "reprove"

    DONE = "done"
    RETURNED = "returned"
    FAILED = "failed"
    QUARANTINED = "quarantined"

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = frozenset({Step.DONE, Step.RETURNED, Step.FAILED, Step.QUARANTINED})


ADOPTER = "adoption"
"""Who asks for the handoffs of the first day, by which nodes are taken in."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """One node's move from `source` to `destination` under `lease`.

    Handoffs with the same `lease` are one gang: they are opened together or go back. `nonce` is what a proof asked for
    in the present step must quote; it changes with every step, so an old proof cannot pass for a new one. `evict`
    says whether pods on the source may be evicted. Slurm jobs are waited for, but for `victims`: those are signalled at
    `signalled_at` and requeued after their grace. `demand` is the key of the demand that the node is collected for,
    empty when it moves for a floor or a person. `blockers` is what the step is waiting for, for people to read.
    `late_in` is the step whose deadline passed last: the handoff ends badly because of it, or has.
    """

    id: str
    lease: str
    node: str
    source: Side
    destination: Side
    step: Step
    reason: str
    requested_by: str
    generation: int
    nonce: str
    evict: bool
    began_at: datetime
    step_began_at: datetime
    step_deadline_at: datetime
    blockers: tuple[str, ...] = ()
    ended_at: datetime | None = None
    outcome: str | None = None
    demand: str = ""
    victims: tuple[Victim, ...] = ()
    signalled_at: datetime | None = None
    late_in: Step | None = None
