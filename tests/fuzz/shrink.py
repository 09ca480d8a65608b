"""The shortest part of a story that still breaks the same thing: delta debugging over its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrunk(items: Sequence[T], fails: Callable[[Sequence[T]], bool], *, most_tries: int = 1000) -> tuple[T, ...]:
    """A subsequence of `items` that fails too and none of whose items can be left out alone (`most_tries` permitting).

    `items` must fail. Runs are left out that get shorter and shorter, as long as what remains fails.
    """
    kept, tries = tuple(items), 0
    length = max(1, len(kept) // 2)
    while kept and tries < most_tries:
        before, start = len(kept), 0
        while start < len(kept) and tries < most_tries:
            tries += 1
            rest = kept[:start] + kept[start + length :]
            if fails(rest):
                kept = rest
            else:
                start += length
        if length == 1 and len(kept) == before:
            break
        length = max(1, min(length // 2, len(kept)))
    return kept
