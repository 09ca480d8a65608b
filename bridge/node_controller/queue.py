"""A work queue of keys: each at most once in line, never with two workers, again later when a worker says so."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable


class KeyQueue:
    """Safe to use from many threads. `monotonic_s` is the clock by which delays are counted."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._busy: dict[str, float] = {}
        self._closed = False

    def add(self, key: str, after_s: float = 0) -> None:
        """Put `key` in line, to be taken in `after_s`; the earliest of several times counts."""
        with self._changed:
            due_s = self._monotonic_s() + after_s
            if self._due.get(key, float("inf")) <= due_s:
                return
            self._due[key] = due_s
            heapq.heappush(self._heap, (due_s, key))
            self._changed.notify()

    def take(self) -> str | None:
        """Wait for the next key that is due and that no one else works on; None once closed."""
        with self._changed:
            while not self._closed:
                wait_s = self._next()
                if isinstance(wait_s, str):
                    return wait_s
                self._changed.wait(wait_s)
            return None

    def done(self, key: str) -> None:
        """The worker that took `key` has finished with it."""
        with self._changed:
            self._busy.pop(key, None)
            if key in self._due:
                heapq.heappush(self._heap, (self._due[key], key))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def depth(self) -> int:
        """How many keys are due and not taken."""
        with self._changed:
            now_s = self._monotonic_s()
            return sum(due_s <= now_s for due_s in self._due.values())

    def longest_s(self) -> float:
        """How long the slowest piece of work has been going on, or been overdue."""
        with self._changed:
            now_s = self._monotonic_s()
            since = [*self._busy.values(), *(due_s for key, due_s in self._due.items() if key not in self._busy)]
            return max(0.0, now_s - min(since, default=now_s))

    def _next(self) -> str | float | None:
        """A key to work on, or the seconds until there may be one (None: until something is added)."""
        now_s = self._monotonic_s()
        while self._heap:
            due_s, key = self._heap[0]
            if self._due.get(key) != due_s or key in self._busy:
                heapq.heappop(self._heap)  # superseded, or put back in line by `done`
            elif due_s > now_s:
                return due_s - now_s
            else:
                heapq.heappop(self._heap)
                del self._due[key]
                self._busy[key] = now_s
                return key
        return None
