"""Who owns a node on its first day, when both sides are open and work may run on either.

Where one side has work, only the other one is closed, and only while it is empty there; where nothing runs, both are
closed until that is proved. What is ambiguous is said and left to a person. A mark of ours that the ledger does not
know (a ledger restored from the past) means: ours, and closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.lifecycle.progress import Sight
from bridge.model.ownership import Owner, Side


@dataclass(frozen=True, slots=True)
class Adoption:
    """`owner` gets the node, or nobody does yet (None) because of `reason`. `busy`: its work runs there already."""

    owner: Owner | None
    reason: str
    busy: bool = False


def adopt(sight: Sight, home: Side) -> Adoption:
    for side in Side:
        facts = sight.side(side)
        if not facts.known:
            return Adoption(None, f"UNKNOWN on the {side} side: {facts.unknown}")
        if facts.stray_mark is not None:
            return Adoption(Owner.BRIDGE, f"carries {facts.stray_mark} on the {side} side, unknown to the ledger")
        if not facts.answers:
            return Adoption(None, f"does not answer on the {side} side: {facts.not_ready}")
    busy = [side for side in Side if not sight.side(side).idle]
    if len(busy) == 2:
        return Adoption(None, "work runs on both sides: end one of them, or drain it, and it is adopted by itself")
    owner = busy[0] if busy else home
    why = f"work runs on the {owner} side" if busy else "nothing runs on it: it goes to its home side"
    return Adoption(owner.owner, why, busy=bool(busy))
