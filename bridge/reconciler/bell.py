"""What wakes the loop: a notification from any thread, or a monotonic time-out."""

from __future__ import annotations

import threading


class Bell:
    """Rung from any thread, waited on by one. A ring between two waits is not lost."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self, why: str) -> None:
        del why  # Names the source for other listeners; the loop reads everything anew whatever it was.
        self._rung.set()

    def wait(self, timeout_s: float) -> None:
        self._rung.wait(timeout_s)
        self._rung.clear()
