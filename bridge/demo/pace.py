"""Simulated time at the speed that was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

LATEST_S = 2.0
"""Further behind than this (a suspended machine, a speed beyond this processor) is not made up for."""


class Pace:
    """Sleeps until the seconds asked for have passed in all: the time that the broker's own work took counts too."""

    def __init__(
        self, monotonic_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._due_s = monotonic_s()

    def __call__(self, seconds: float) -> None:
        now_s = self._monotonic_s()
        self._due_s = max(self._due_s + seconds, now_s - LATEST_S)
        self._sleep(max(0.0, self._due_s - now_s))
