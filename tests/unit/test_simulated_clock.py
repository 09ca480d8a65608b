"""The fake clock: time moves only when told to, and effects happen in their order."""

from __future__ import annotations

import math
import random
from datetime import timedelta

import pytest

from bridge.simulation.clock import EPOCH, Latency, SimulatedClock


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def test_effects_happen_in_order_of_time_each_at_its_own_moment(clock: SimulatedClock) -> None:
    seen: list[tuple[str, float]] = []
    clock.after(3, lambda: seen.append(("late", clock.monotonic_s())))
    clock.after(1, lambda: seen.append(("early", clock.monotonic_s())))
    clock.advance(5)
    assert seen == [("early", 1), ("late", 3)]
    assert clock.now() == EPOCH + timedelta(seconds=5)


def test_effects_of_the_same_moment_happen_in_the_order_they_were_asked_for(clock: SimulatedClock) -> None:
    seen: list[int] = []
    for number in range(20):
        clock.after(1, lambda number=number: seen.append(number))
    clock.advance(1)
    assert seen == list(range(20))


def test_an_effect_may_ask_for_another_that_still_falls_into_the_same_advance(clock: SimulatedClock) -> None:
    seen: list[float] = []
    clock.after(1, lambda: clock.after(1, lambda: seen.append(clock.monotonic_s())))
    clock.advance(2)
    assert seen == [2]


def test_a_cancelled_effect_never_happens_and_is_not_waited_for(clock: SimulatedClock) -> None:
    timer = clock.after(1, lambda: pytest.fail("was cancelled"))
    timer.cancel()
    assert clock.next_s() is None
    clock.advance(2)


def test_an_infinite_delay_means_never(clock: SimulatedClock) -> None:
    clock.after(math.inf, lambda: pytest.fail("never means never"))
    assert clock.next_s() is None


def test_an_effect_must_not_move_time_itself(clock: SimulatedClock) -> None:
    clock.after(1, lambda: clock.advance(1))
    with pytest.raises(RuntimeError, match="must not move time"):
        clock.advance(1)


@pytest.mark.parametrize("delay_s", [-1, math.nan])
def test_no_effect_happens_in_the_past(clock: SimulatedClock, delay_s: float) -> None:
    with pytest.raises(ValueError, match="cannot happen"):
        clock.after(delay_s, lambda: None)


def test_monotonic_time_does_not_notice_that_the_wall_clock_is_set_back(clock: SimulatedClock) -> None:
    clock.advance(100)
    clock.step_wall(-3600)
    assert clock.now() < EPOCH
    assert clock.monotonic_s() == 100


def test_latency_is_exact_without_a_generator_and_within_its_spread_with_one() -> None:
    assert Latency()(2.0) == 2.0
    spread = Latency(random.Random(1), spread=0.4)
    drawn = [spread(10.0) for _ in range(200)]
    assert 6 <= min(drawn) < 7
    assert 13 < max(drawn) <= 14
    assert spread(math.inf) == math.inf
