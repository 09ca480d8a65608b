"""One sentence for a demand."""

from __future__ import annotations

from bridge.planning.explaining.answer import Link
from bridge.planning.explaining.waiting import Waiting
from bridge.planning.snapshot import count_nodes


def verdict(waiting: Waiting, subject: str, chain: tuple[Link, ...]) -> str:
    """Begins with the subject, names the first obstacle, or what happens instead of waiting."""
    first = next((link for link in chain if link.holds), None)
    gets = waiting.scene.gets(waiting.demand)
    if gets:
        return f"{subject} gets {', '.join(gets)} from {waiting.side.other}: the plan of this moment begins it."
    if first is not None:
        return f"{subject} waits ({first.layer}): {first.text}."
    if waiting.lacking == 0:
        arriving = sum(place.handoff is not None for place in waiting.had)
        coming = f", {arriving} of them on their way" if arriving else ""
        has = count_nodes(waiting.demand.nodes)
        return f"{subject} needs no move: {waiting.side} has {has} for it{coming}; its own scheduler is next."
    return f"{subject} waits for {count_nodes(waiting.lacking)}, and nothing known is in the way."
