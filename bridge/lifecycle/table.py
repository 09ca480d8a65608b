"""The one table of handoff steps: what may follow what, on which fact, and the reason why.

The same five steps (close, empty, clean, open, prove) serve both directions; `reopen` and `reprove` undo a handoff that
never opened its destination. `OWNER_IN` says who owns the node in each step, and a side is wanted open exactly while
it is the owner. That is how two invariants are kept by construction:

``OneOwner``
    A node has one lease with one owner, so at most one side is ever wanted open; `bridge.lifecycle.acts` opens a side
    only after the other one was read back closed.
``IntentFirst``
    Entering a step is committed before any of its outside calls; every call is idempotent, so a crash anywhere is
    followed by the same step again.

`docs/lifecycle.md` holds the diagram made of this table by ``python -m bridge.lifecycle.diagram``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from bridge.model.errors import InvariantViolation
from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Owner


class Fact(StrEnum):
    """What was observed that moves a handoff on. At most one holds for a handoff at a time."""

    CLOSED = "closed"
    EMPTY = "empty"
    CLEAN = "clean"
    OPENED = "opened"
    PROVEN = "proven"
    TAKEN = "taken"
    DISTURBED = "disturbed"
    GANG_BROKEN = "gang broken"
    LATE = "late"
    OVERTAKEN = "overtaken"


@dataclass(frozen=True, slots=True)
class Edge:
    """From `step`, on `fact`, to `to`, because of `why`."""

    step: Step
    fact: Fact
    to: Step
    why: str


TABLE: tuple[Edge, ...] = (
    # First day, both sides are open. Nothing runs: both are closed until the side that gets nothing is proved empty.
    Edge(
        Step.ADMIT,
        Fact.EMPTY,
        Step.OPEN,
        "closed on both sides, nothing runs on the side that does not get it, and no process holds a GPU device",
    ),
    Edge(Step.ADMIT, Fact.LATE, Step.QUARANTINED, "the side that does not get the node did not get empty or clean"),
    # First day, one side has work: it keeps the node and stays open; only the other side is closed.
    Edge(Step.ADOPT, Fact.EMPTY, Step.DONE, "the side that does not own the node is closed and nothing runs there"),
    Edge(Step.ADOPT, Fact.DISTURBED, Step.QUARANTINED, "work appeared on the other side too: a person must choose"),
    Edge(Step.ADOPT, Fact.LATE, Step.QUARANTINED, "the side that does not own the node did not get empty"),
    # The way forward.
    Edge(Step.CLOSE, Fact.CLOSED, Step.EMPTY, "both latches of the source were read back with our mark"),
    Edge(Step.EMPTY, Fact.EMPTY, Step.CLEAN, "a fresh read after the closing proved the source empty"),
    Edge(Step.CLEAN, Fact.CLEAN, Step.OPEN, "no process holds a GPU device, on any node of the gang"),
    Edge(Step.OPEN, Fact.OPENED, Step.PROVE, "our latches on the destination were read back as lifted"),
    Edge(Step.PROVE, Fact.PROVEN, Step.DONE, "the destination offers the node with all its GPUs"),
    # Somebody lifted a latch: emptiness must be proved again behind a closed door.
    Edge(Step.EMPTY, Fact.DISTURBED, Step.CLOSE, "a latch of the source was lifted by another hand"),
    Edge(Step.CLEAN, Fact.DISTURBED, Step.CLOSE, "a latch of the source was lifted by another hand"),
    # The way back, possible until the destination is opened.
    Edge(Step.CLOSE, Fact.TAKEN, Step.REOPEN, "a person drained or cordoned the node: it is theirs"),
    Edge(Step.EMPTY, Fact.TAKEN, Step.REOPEN, "a person drained or cordoned the node: it is theirs"),
    Edge(Step.CLEAN, Fact.TAKEN, Step.REOPEN, "a person drained or cordoned the node: it is theirs"),
    Edge(Step.CLOSE, Fact.LATE, Step.REOPEN, "the source could not be closed in time"),
    Edge(Step.EMPTY, Fact.LATE, Step.REOPEN, "the source did not get empty in time"),
    Edge(Step.CLEAN, Fact.LATE, Step.REOPEN, "a process kept holding a GPU device"),
    Edge(
        Step.CLOSE,
        Fact.GANG_BROKEN,
        Step.REOPEN,
        "another node of the gang went back: a gang moves whole or not at all",
    ),
    Edge(
        Step.EMPTY,
        Fact.GANG_BROKEN,
        Step.REOPEN,
        "another node of the gang went back: a gang moves whole or not at all",
    ),
    Edge(
        Step.CLEAN,
        Fact.GANG_BROKEN,
        Step.REOPEN,
        "another node of the gang went back: a gang moves whole or not at all",
    ),
    Edge(Step.REOPEN, Fact.OPENED, Step.REPROVE, "our latches on the source were read back as lifted"),
    Edge(Step.REPROVE, Fact.PROVEN, Step.RETURNED, "the source offers the node again"),
    # An opening that does not work: never guess, stay closed; what was opened but not proved stays with its owner.
    Edge(Step.OPEN, Fact.LATE, Step.QUARANTINED, "the destination could not be opened in time: closed on both sides"),
    Edge(Step.REOPEN, Fact.LATE, Step.QUARANTINED, "the source could not be opened again: closed on both sides"),
    Edge(Step.PROVE, Fact.LATE, Step.FAILED, "opened, but the destination does not offer all its GPUs"),
    Edge(Step.REPROVE, Fact.LATE, Step.FAILED, "opened again, but the source does not offer all its GPUs"),
    # A ledger restored from the past: what the handoff has become since is not known. Both sides are closed, anew.
    *(
        Edge(
            step, Fact.OVERTAKEN, Step.QUARANTINED, "the world is ahead of the ledger, which was restored from the past"
        )
        for step in Step
        if not step.ended
    ),
)

_NEXT: dict[tuple[Step, Fact], Edge] = {(edge.step, edge.fact): edge for edge in TABLE}

_Owner = Callable[[Handoff], Owner]


def _nobody(_: Handoff) -> Owner:
    return Owner.BRIDGE


def _source(handoff: Handoff) -> Owner:
    return handoff.source.owner


def _destination(handoff: Handoff) -> Owner:
    return handoff.destination.owner


OWNER_IN: dict[Step, _Owner | None] = {
    Step.ADMIT: _nobody,
    Step.ADOPT: _destination,
    Step.CLOSE: _nobody,
    Step.EMPTY: _nobody,
    Step.CLEAN: _nobody,
    Step.OPEN: _destination,
    Step.PROVE: _destination,
    Step.REOPEN: _source,
    Step.REPROVE: _source,
    Step.DONE: _destination,
    Step.RETURNED: _source,
    Step.FAILED: None,
    Step.QUARANTINED: _nobody,
}
"""Who owns the node while a handoff is in a step. None: whoever owned it in the step before."""


def follow(step: Step, fact: Fact) -> Edge:
    """The edge that `fact` opens from `step`; raises `InvariantViolation` for a pair that the table does not have."""
    edge = _NEXT.get((step, fact))
    if edge is None:
        raise InvariantViolation("StateTable", f"no way from {step} on {fact}")
    return edge


def allows(step: Step, fact: Fact) -> bool:
    return (step, fact) in _NEXT


def owner_in(step: Step, handoff: Handoff, before: Owner) -> Owner:
    """The owner after `handoff` entered `step`, when it was `before`."""
    rule = OWNER_IN[step]
    return before if rule is None else rule(handoff)
