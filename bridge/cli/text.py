"""Values as words for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

_STEPS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def clean(text: str) -> str:
    """`text` without what could move the cursor, change colours or break a line: reasons come from anyone."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def duration(seconds: float) -> str:
    """Two units at most: ``4s``, ``3m05s``, ``2h00m``, ``5d03h``."""
    whole = max(int(seconds), 0)
    for size, unit, smaller, smaller_unit in _STEPS:
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller:02d}{smaller_unit}"
    return f"{whole}s"


def moment(text: str) -> datetime:
    """A time of the API, which is ISO 8601 with a zone."""
    return datetime.fromisoformat(text)


def age(then: str | None, now: str) -> str:
    """How long ago `then` was at `now`; empty when there is no `then`."""
    return duration((moment(now) - moment(then)).total_seconds()) if then else ""


def until(then: str | None, now: str) -> str:
    """How far away `then` still is at `now`: ``in 4s``, or ``over`` when it has passed."""
    if not then:
        return ""
    left = (moment(then) - moment(now)).total_seconds()
    return f"in {duration(left)}" if left > 0 else "over"


def dotted(path: Sequence[str | int]) -> str:
    """``pools[0].slurm.floor_nodes``"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).lstrip(".") or "document"


def joined(words: Iterable[str], none: str = "none") -> str:
    return ", ".join(words) or none


def paused_text(pause: dict[str, Any]) -> str:
    """A pause as the API tells it: the reason, for a pool or a node with its name before it, and who recalls."""
    kind = pause.get("kind", "stop")
    before = {"recall": f"recalled by {pause['by']}: ", "breaker": "circuit breaker: "}.get(kind, "")
    why = f"{before}{pause['reason']}"
    return f"{pause['scope']} {pause['name']}: {why}" if pause["name"] else why


KINDS = {"recall": "recalled", "breaker": "breaker"}
"""What pauses are called that are more than that."""
