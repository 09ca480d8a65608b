"""Time that moves only when told to, and the queue of what is going to happen.

The world's latency is modelled by effects that take place at a later simulated time. Two effects at the same moment
happen in the order in which they were asked for, so that a run is a function of its seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

Effect = Callable[[], None]

EPOCH = datetime(2030, 1, 7, tzinfo=UTC)
"""When simulations begin: a Monday at midnight, so that daily curves and timetables are easy to read."""


@dataclass(order=True, slots=True)
class Timer:
    """An effect that is going to happen at `due_s`, unless it is cancelled."""

    due_s: float
    order: int
    effect: Effect = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class SimulatedClock:
    """A `bridge.ports.Clock` with a queue of timed effects."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._wall_offset_s = 0.0
        self._queue: list[Timer] = []
        self._asked = 0
        self._advancing = False

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s + self._wall_offset_s)

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def step_wall(self, seconds: float) -> None:
        """Somebody sets the wall clock forward or back; monotonic time does not notice."""
        self._wall_offset_s += seconds

    def after(self, delay_s: float, effect: Effect) -> Timer:
        """Let `effect` happen `delay_s` from now; an infinite delay means never."""
        if not delay_s >= 0:
            raise ValueError(f"an effect cannot happen {delay_s} s from now")
        self._asked += 1
        timer = Timer(self._elapsed_s + delay_s, self._asked, effect)
        if math.isfinite(delay_s):
            heapq.heappush(self._queue, timer)
        return timer

    def next_s(self) -> float | None:
        """When the next effect is due (monotonic), or None when nothing is going to happen by itself."""
        while self._queue and self._queue[0].cancelled:
            heapq.heappop(self._queue)
        return self._queue[0].due_s if self._queue else None

    def advance(self, seconds: float) -> None:
        self.advance_to(self._elapsed_s + seconds)

    def advance_to(self, moment_s: float) -> None:
        """Move time to `moment_s`, carrying out every effect that falls due on the way, each at its own moment."""
        if self._advancing:
            raise RuntimeError("an effect must not move time: ask for a later effect instead")
        if moment_s < self._elapsed_s:
            raise ValueError(f"time moves forward only: it is {self._elapsed_s} s already, not {moment_s} s")
        self._advancing = True
        try:
            while (due_s := self.next_s()) is not None and due_s <= moment_s:
                self._elapsed_s = due_s
                heapq.heappop(self._queue).effect()
            self._elapsed_s = moment_s
        finally:
            self._advancing = False


class Latency:
    """How long things take: exactly what was said or, with a generator, that times a factor of 1 ± `spread`.

    The spread is what lets two seeds meet different interleavings of the same story.
    """

    def __init__(self, rng: random.Random | None = None, spread: float = 0.4) -> None:
        if not 0 <= spread < 1:
            raise ValueError(f"spread {spread} is not within [0, 1): a latency would become negative")
        self._rng = rng
        self._spread = spread

    def __call__(self, seconds: float) -> float:
        if self._rng is None or not math.isfinite(seconds):
            return seconds
        return seconds * self._rng.uniform(1 - self._spread, 1 + self._spread)
