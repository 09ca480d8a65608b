"""Long polls: one watch on the ledger, fanned out to any number of waiting requests.

A waiting request holds no thread: it sleeps on the event loop and borrows one only to read. Notifications arrive on the
store's own thread, possibly on none at all after a lost connection, so every wait ends with one more read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from bridge.api.problems import Problem

_T = TypeVar("_T")


class _Waiter:
    """One waiting request: its event, and the loop on which alone that event may be set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()

    def wake(self) -> None:
        # A loop that has been closed meanwhile has nobody left to wake.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.changed.set)


class Changes:
    """Wakes waiting requests when the ledger changed. At most `max_waiters` wait at the same time."""

    def __init__(self, max_waiters: int = 64) -> None:
        self._max_waiters = max_waiters
        self._lock = threading.Lock()
        self._waiters: set[_Waiter] = set()

    def notify(self, what: str) -> None:
        """A `bridge.ports.OnChange`: called from any thread, returns at once."""
        del what
        with self._lock:
            waiters = tuple(self._waiters)
        for waiter in waiters:
            waiter.wake()

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        return len(self._waiters)

    async def until(self, read: Callable[[], _T], ready: Callable[[_T], bool], wait_s: float) -> _T:
        """What `read` (run on a thread) returned when it was first `ready`, or after `wait_s` seconds in any case."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            # Subscribed before reading, so that no change can fall between the read and the wait.
            with self._subscribed() as waiter:
                value = await run_in_threadpool(read)
                left_s = deadline - loop.time()
                if left_s <= 0 or ready(value):
                    return value
                with suppress(TimeoutError):
                    await asyncio.wait_for(waiter.changed.wait(), left_s)

    @contextmanager
    def _subscribed(self) -> Iterator[_Waiter]:
        waiter = _Waiter()
        with self._lock:
            if len(self._waiters) >= self._max_waiters:
                raise Problem(
                    503,
                    "busy",
                    f"{self._max_waiters} requests wait for changes already: ask again, or with wait_s=0",
                    headers={"Retry-After": "1"},
                )
            self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)
