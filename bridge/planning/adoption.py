"""Who owns a node that the ledger knows nothing of, or knows only from the past.

On its first day both sides are open and work may run on either. Where one side has work, only the other one is closed,
and only while it is empty there; where nothing runs, both are closed until that is proved. What is ambiguous is said
and left to a person.

A mark of ours that the ledger does not know (it was restored from the past) means: ours, and closed on both sides,
until one of them is proved empty. Then the other one has the node: the one with work on it, else the one that the
ledger knew last. Nobody's work is ended for it. A node with work on both sides stays closed until that of one side is
over, or a person has it ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from bridge.lifecycle.progress import Sight
from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Lease, Mark, Owner, Side

_NOT_OPENED = frozenset({Step.CLOSE, Step.EMPTY, Step.CLEAN})

ASSUMED = "as-if-adopted"
"""The id of a lease that is in no ledger: a broker that takes nothing in plans with it."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """`owner` gets the node, or nobody does yet (None) because of `reason`. `busy`: its work runs there already, and it
    is not closed meanwhile."""

    owner: Owner | None
    reason: str
    busy: bool = False


def adopt(sight: Sight, home: Side, *, newest: tuple[int, int]) -> Adoption:
    """A node without a lease. `newest` is the largest (epoch, generation) that a ledger of ours can have written."""
    if any(sight.side(side).stray_mark is not None for side in Side):
        return take_back(sight, home, newest=newest)
    for side in Side:
        facts = sight.side(side)
        if not facts.known:
            return Adoption(None, _unknown(sight, side))
        if not facts.answers:
            return Adoption(None, f"does not answer on the {side} side: {facts.not_ready}")
    busy = [side for side in Side if not sight.side(side).idle]
    if len(busy) == 2:
        return Adoption(None, "work runs on both sides: end one of them, or drain it, and it is adopted by itself")
    owner = busy[0] if busy else home
    why = f"work runs on the {owner} side" if busy else "nothing runs on it: it goes to its home side"
    return Adoption(owner.owner, why, busy=bool(busy))


def assumed(node: str, owner: Owner) -> Lease:
    """The lease that `node` would have, held since ever: no minimum hold stands against a move."""
    return Lease(ASSUMED, node, owner, epoch=0, generation=0, owner_since=datetime.min.replace(tzinfo=UTC))


def take_back(sight: Sight, last: Side, *, newest: tuple[int, int]) -> Adoption:
    """A node of which the ledger knows the past only. `last` is who had it then; `newest` as for `adopt`.

    A side that is UNKNOWN is waited for, but where Slurm is open: that it was is forgotten as soon as it is closed. It
    is closed on both sides then, too, and whose work runs there shows later.
    """
    unknown = [side for side in Side if not sight.side(side).known]
    if unknown and not sight.slurm.opened:
        return Adoption(None, _unknown(sight, unknown[0]))
    marks = {side: mark for side in Side if (mark := sight.side(side).stray_mark) is not None}
    for side, mark in marks.items():
        if mark.token > newest:
            return Adoption(Owner.BRIDGE, _forged(mark, side))
    carried = " and ".join(f"{mark} on the {side} side" for side, mark in marks.items())
    what = f"carries {carried}, unknown to the ledger" if carried else "changed hands after what the ledger knows"
    working = [side for side in Side if sight.side(side).works]
    if len(working) == 2:
        return Adoption(Owner.BRIDGE, f"{what}; work runs on both sides: the one that is left alone keeps the node")
    owner = working[0] if working else last
    why = f"work runs on the {owner} side" if working else f"nothing runs on it, {owner} had it last"
    return Adoption(owner.owner, f"{what}; {why}")


def worker(sight: Sight) -> Side | None:
    """The one side whose work runs on a node that is closed on the other side: a proof that it may keep it."""
    for side in Side:
        other = sight.side(side.other)
        if sight.side(side).works and other.known and other.closed and not other.works:
            return side
    return None


def is_overtaken(sight: Sight, lease: Lease, handoff: Handoff | None) -> bool:
    """Whether the world is ahead of the ledger, which was restored from the past.

    A mark of ours stands outside that is newer than the node's lease; or a node that is only on its way to Slurm runs
    jobs, or is open there already. That opening leaves no mark: it takes marks away. Jobs that it let in may be over by
    now, and their processes not: such a node is proved anew on both sides.
    """
    marks = (sight.side(side).stray_mark for side in Side)
    if any(mark is not None and mark.token > lease.mark.token for mark in marks):
        return True
    to_slurm = handoff is not None and handoff.destination is Side.SLURM and handoff.step in _NOT_OPENED
    return to_slurm and (sight.slurm.works or sight.slurm.opened)


def _unknown(sight: Sight, side: Side) -> str:
    return f"UNKNOWN on the {side} side: {sight.side(side).unknown}"


def _forged(mark: Mark, side: Side) -> str:
    lift = "resume it in Slurm" if side is Side.SLURM else "delete its NodeLoan"
    return f"carries {mark} on the {side} side, a number that no ledger of ours can have written: {lift}"
