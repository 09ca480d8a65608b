"""The use of teams: what is charged, what is forgotten, and what a clock or an outage must not do."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model.demand import Work
from bridge.model.ledger import Usage
from bridge.model.ownership import Side
from bridge.planning.usage import decayed, due, sample

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WEEK_S = 604_800.0


def later(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def a_week(team: str) -> float:
    return WEEK_S


def runs(team: str, gpus: int, side: Side = Side.SLURM) -> Work:
    return Work(f"job of {team}", side, team, ("gpu-1",), gpus, 0, 0, 1000.0, None, 0.0)


def used(*usages: Usage) -> dict[str, Usage]:
    return {usage.team: usage for usage in usages}


@pytest.mark.parametrize(
    ("after_s", "left"),
    [
        (0, 800.0),
        (WEEK_S, 400.0),
        (2 * WEEK_S, 200.0),
        (WEEK_S / 2, 565.685424949238),  # 800 / sqrt(2)
        (-3600, 800.0),
    ],
)
def test_use_counts_half_after_each_half_life(after_s: float, left: float) -> None:
    assert decayed(Usage("a", 800.0, T0), WEEK_S, later(after_s)) == pytest.approx(left, rel=1e-12)


@pytest.mark.parametrize(
    ("what", "after_s", "gpu_s"),
    [
        (
            "a minute of 8 GPUs, less what is forgotten within it",
            60,
            480 - 480 * 60 * math.log(2) / WEEK_S / 2,
        ),
        ("ten minutes", 600, 4800 - 4800 * 600 * math.log(2) / WEEK_S / 2),
        ("nobody looked for an hour: ten minutes are charged", 3600, 4800 - 4800 * 600 * math.log(2) / WEEK_S / 2),
        ("the clock was set back: nothing is charged", -60, 0.0),
    ],
)
def test_what_runs_is_charged_since_the_last_sample(what: str, after_s: float, gpu_s: float) -> None:
    (usage,) = sample(used(Usage("a", 0.0, T0)), [runs("a", 8)], a_week, later(after_s))
    assert usage.at == later(after_s)
    # To the second order of the exponential; the third is below a millionth here.
    assert usage.gpu_s == pytest.approx(gpu_s, abs=1e-3), what


def test_both_sides_count_for_one_team() -> None:
    works = [runs("a", 8), runs("a", 4, Side.KUBERNETES), runs("b", 2)]
    a, b = sample(used(Usage("a", 100.0, T0)), works, a_week, later(60))
    assert (a.team, b.team) == ("a", "b")
    assert a.gpu_s == pytest.approx(100 + 12 * 60, rel=1e-3)
    assert b.gpu_s == pytest.approx(2 * 60, rel=1e-3), "it is new, and charged since the last look like everybody"


def test_the_first_sample_charges_nothing() -> None:
    assert sample({}, [runs("a", 8)], a_week, T0) == (Usage("a", 0.0, T0),)


def test_who_has_nothing_left_is_left_out_and_work_of_nobody_too() -> None:
    usage = used(Usage("gone", 0.99, T0), Usage("past", 500.0, T0))
    assert [each.team for each in sample(usage, [runs("", 8)], a_week, later(60))] == ["past"]


def test_each_team_has_its_own_half_life() -> None:
    day_s = 86_400.0
    usage = used(Usage("slow", 800.0, T0), Usage("quick", 800.0, T0))
    quick, slow = sample(usage, [], {"slow": 2 * day_s, "quick": day_s}.__getitem__, later(2 * day_s))
    assert (quick.gpu_s, slow.gpu_s) == (pytest.approx(200.0), pytest.approx(400.0))


@pytest.mark.parametrize(("after_s", "is_due"), [(0, False), (59.9, False), (60, True), (3600, True), (-1, True)])
def test_a_sample_is_due_once_a_minute(after_s: float, is_due: bool) -> None:
    assert due(used(Usage("a", 1.0, T0), Usage("b", 1.0, later(-900))), later(after_s)) is is_due


def test_the_first_sample_is_due() -> None:
    assert due({}, T0)


def test_steady_use_tends_to_rate_times_half_life_over_ln_2() -> None:
    half_life_s = 3600.0
    usage = used(Usage("a", 0.0, T0))
    for minute in range(1, 60 * 40):
        usage = used(*sample(usage, [runs("a", 8)], lambda _: half_life_s, later(60 * minute)))
    assert usage["a"].gpu_s == pytest.approx(8 * half_life_s / math.log(2), rel=1e-9)


@given(
    gpus=st.integers(0, 10_000),
    first_s=st.integers(0, 300),
    second_s=st.integers(0, 300),
    before=st.floats(1, 1e9),
    half_life_s=st.floats(60, 1e8),
)
def test_it_does_not_matter_how_often_is_looked(
    gpus: int, first_s: int, second_s: int, before: float, half_life_s: float
) -> None:
    works = [runs("a", gpus)]

    def look(usage: dict[str, Usage], at_s: int) -> dict[str, Usage]:
        return used(*sample(usage, works, lambda _: half_life_s, later(at_s))) or usage

    start = used(Usage("a", before, T0))
    once = look(start, first_s + second_s)
    twice = look(look(start, first_s), first_s + second_s)
    end = later(first_s + second_s)
    assert decayed(once["a"], half_life_s, end) == pytest.approx(decayed(twice["a"], half_life_s, end), rel=1e-9)
