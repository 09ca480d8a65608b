"""Floors by hour and weekday: worked out by hand on a calendar, also on the days on which clocks are set."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model.ownership import Side
from bridge.model.policy import Day, Hours, PoolPolicy, Share
from bridge.planning.timetable import floors, floors_of_a_week, next_change

WORKDAYS = tuple(Day)[:5]
BERLIN = "Europe/Berlin"

OFFICE = Hours(
    name="office",
    days=WORKDAYS,
    from_=time(8),
    until=time(18),
    slurm_floor_nodes=2,
    kubernetes_floor_nodes=6,
)
NIGHT = Hours(name="night", from_=time(22), until=time(6), slurm_floor_nodes=7)
LAUNCH = Hours(name="launch", days=(Day.WEDNESDAY,), from_=time(9), until=time(12), kubernetes_floor_nodes=8)


def pool(*lines: Hours) -> PoolPolicy:
    return PoolPolicy(
        name="shared",
        nodes=("gpu-[1-10]",),
        partition="gpu",
        slurm=Share(floor_nodes=4),
        kubernetes=Share(floor_nodes=1),
        timetable=lines,
    )


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


def both(slurm: int, kubernetes: int) -> dict[Side, int]:
    return {Side.SLURM: slurm, Side.KUBERNETES: kubernetes}


# 2027-03-01 is a Monday.
@pytest.mark.parametrize(
    ("moment", "slurm", "kubernetes"),
    [
        ("2027-03-01 07:59:59", 4, 1),  # Monday before the office opens: no line holds
        ("2027-03-01 08:00", 2, 6),  # from is in
        ("2027-03-01 17:59:59", 2, 6),
        ("2027-03-01 18:00", 4, 1),  # until is out
        ("2027-03-01 22:00", 7, 1),  # the night says nothing of Kubernetes
        ("2027-03-02 05:59:59", 7, 1),  # Monday's night, on Tuesday
        ("2027-03-02 06:00", 4, 1),
        ("2027-03-03 10:00", 2, 8),  # Wednesday: the launch wins for Kubernetes, the office still counts for Slurm
        ("2027-03-03 12:00", 2, 6),
        ("2027-03-06 10:00", 4, 1),  # Saturday: no office
        ("2027-03-07 23:00", 7, 1),  # Sunday's night
    ],
)
def test_the_floors_of_a_week(moment: str, slurm: int, kubernetes: int) -> None:
    assert floors(pool(OFFICE, NIGHT, LAUNCH), "UTC", at(moment)) == both(slurm, kubernetes)


def test_of_two_lines_at_the_same_time_the_last_one_counts() -> None:
    wednesday = at("2027-03-03 10:00")
    assert floors(pool(LAUNCH, OFFICE), "UTC", wednesday) == both(2, 6)
    assert floors(pool(OFFICE, LAUNCH), "UTC", wednesday) == both(2, 8)


def test_a_night_belongs_to_the_day_on_which_it_begins() -> None:
    friday = pool(NIGHT.model_copy(update={"days": (Day.FRIDAY,)}))
    assert floors(friday, "UTC", at("2027-03-05 05:00")) == both(4, 1)  # Friday morning is Thursday's night
    assert floors(friday, "UTC", at("2027-03-05 23:00")) == both(7, 1)
    assert floors(friday, "UTC", at("2027-03-06 05:00")) == both(7, 1)
    assert floors(friday, "UTC", at("2027-03-06 23:00")) == both(4, 1)


def test_a_line_from_a_time_until_the_same_time_holds_a_whole_day() -> None:
    saturday = pool(Hours(name="saturday", days=(Day.SATURDAY,), slurm_floor_nodes=9))
    assert floors(saturday, "UTC", at("2027-03-05 23:59:59"))[Side.SLURM] == 4
    assert floors(saturday, "UTC", at("2027-03-06 00:00"))[Side.SLURM] == 9
    assert floors(saturday, "UTC", at("2027-03-06 23:59:59"))[Side.SLURM] == 9
    assert floors(saturday, "UTC", at("2027-03-07 00:00"))[Side.SLURM] == 4


def test_the_times_are_those_of_the_policys_time_zone() -> None:
    # 07:30 UTC on a Monday in winter is 08:30 in Berlin and 02:30 in New York.
    moment = at("2027-03-01 07:30")
    assert floors(pool(OFFICE), BERLIN, moment) == both(2, 6)
    assert floors(pool(OFFICE), "America/New_York", moment) == both(4, 1)


# In Berlin clocks jump from 02:00 to 03:00 on 2027-03-28 (01:00 UTC) and back from 03:00 to 02:00 on 2027-10-31
# (01:00 UTC). A line that is named by times that are left out or come twice begins once and ends once.
@pytest.mark.parametrize(
    ("from_", "until", "day", "begin", "end"),
    [
        (time(1), time(4), "2027-03-28", "00:00", "02:00"),  # three hours on the clock, two of time
        (time(1), time(2, 30), "2027-03-28", "00:00", "01:00"),  # 02:30 is left out: it ends at the jump
        (time(2, 30), time(4), "2027-03-28", "01:00", "02:00"),  # and begins at the jump
        (time(2, 10), time(2, 50), "2027-03-28", "01:00", "01:00"),  # wholly left out: it does not hold on this day
        (time(1), time(4), "2027-10-31", "23:00-", "03:00"),  # three hours on the clock, four of time
        (time(1), time(2, 30), "2027-10-31", "23:00-", "00:30"),  # ends at the first 02:30 and does not come back
        (time(2, 30), time(4), "2027-10-31", "00:30", "03:00"),  # begins at the first 02:30 and holds through
    ],
)
def test_days_on_which_clocks_are_set(from_: time, until: time, day: str, begin: str, end: str) -> None:
    line = pool(Hours(name="line", from_=from_, until=until, slurm_floor_nodes=9))
    midnight = at(day)
    begins = at(f"{day} {begin.rstrip('-')}") - timedelta(days=begin.endswith("-"))
    ends = at(f"{day} {end}")
    minutes = [midnight + timedelta(minutes=each) for each in range(-119, 300)]
    held = [minute for minute in minutes if floors(line, BERLIN, minute)[Side.SLURM] == 9]
    assert held == [minute for minute in minutes if begins <= minute < ends]


def test_a_night_over_the_change_of_clocks() -> None:
    night = pool(NIGHT)
    # Saturday 22:00 in Berlin is 21:00 UTC in winter; Sunday 06:00 is 04:00 UTC in summer: seven hours, not eight.
    assert next_change(night, BERLIN, at("2027-03-27 20:00"), within=timedelta(days=1)) == (
        at("2027-03-27 21:00"),
        both(7, 1),
    )
    assert next_change(night, BERLIN, at("2027-03-27 21:00"), within=timedelta(days=1)) == (
        at("2027-03-28 04:00"),
        both(4, 1),
    )


@pytest.mark.parametrize(
    ("moment", "change"),
    [
        ("2027-03-01 07:00", ("2027-03-01 08:00", 2, 6)),
        ("2027-03-01 08:00", ("2027-03-01 18:00", 4, 1)),  # the change that is now is not the next one
        ("2027-03-03 08:30", ("2027-03-03 09:00", 2, 8)),
        ("2027-03-05 17:00", ("2027-03-05 18:00", 4, 1)),
        ("2027-03-05 18:00", None),  # a weekend is longer than two days here: Monday 08:00 is 62 hours away
        ("2027-03-06 08:00", ("2027-03-08 08:00", 2, 6)),  # just within
    ],
)
def test_the_next_change(moment: str, change: tuple[str, int, int] | None) -> None:
    expected = change and (at(change[0]), both(change[1], change[2]))
    assert next_change(pool(OFFICE, LAUNCH), "UTC", at(moment), within=timedelta(days=2)) == expected


def test_a_line_that_changes_nothing_is_no_change() -> None:
    same = Hours(name="same", from_=time(8), until=time(18), slurm_floor_nodes=4, kubernetes_floor_nodes=1)
    assert next_change(pool(same), "UTC", at("2027-03-01 07:00"), within=timedelta(days=8)) is None
    assert next_change(pool(), "UTC", at("2027-03-01 07:00"), within=timedelta(days=8)) is None


def test_all_floors_of_a_week() -> None:
    saturday = Hours(name="saturday", days=(Day.SATURDAY,), from_=time(12), until=time(12), slurm_floor_nodes=9)
    sunday = Hours(name="sunday", days=(Day.SUNDAY,), from_=time(20), until=time(2), kubernetes_floor_nodes=3)
    assert floors_of_a_week(pool(saturday, sunday)) == {
        at("2024-01-01 00:00"): both(4, 3),  # Sunday's line, on Monday
        at("2024-01-01 02:00"): both(4, 1),
        at("2024-01-06 12:00"): both(9, 1),
        at("2024-01-07 12:00"): both(4, 1),
        at("2024-01-07 20:00"): both(4, 3),
    }
    assert floors_of_a_week(pool()) == {at("2024-01-01 00:00"): both(4, 1)}


# --- laws ---

_clock = st.times(min_value=time(0), max_value=time(23, 59)).map(lambda t: t.replace(second=0, microsecond=0))
_floor = st.none() | st.integers(0, 9)


def _named(lines: list[Hours]) -> list[Hours]:
    return [line.model_copy(update={"name": f"line-{index}"}) for index, line in enumerate(lines)]


_lines = st.lists(
    st.builds(
        Hours,
        name=st.just("line"),
        days=st.sets(st.sampled_from(Day), min_size=1).map(tuple),
        from_=_clock,
        until=_clock,
        slurm_floor_nodes=st.integers(0, 9),
        kubernetes_floor_nodes=_floor,
    ),
    max_size=4,
).map(_named)
_zones = st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Kolkata", "UTC"])
_minutes = st.integers(0, 2 * 365 * 24 * 60).map(lambda minutes: timedelta(minutes=minutes))
_moments = st.builds(lambda minutes, s: at("2026-01-01") + minutes + timedelta(seconds=s), _minutes, st.integers(0, 59))


@given(_lines, _zones, _moments, st.floats(0, 1, exclude_max=True))
def test_until_the_next_change_the_floors_stay_and_then_they_differ(
    lines: list[Hours], zone: str, now: datetime, part: float
) -> None:
    within = timedelta(days=3)
    shared, present = pool(*lines), floors(pool(*lines), zone, now)
    change = next_change(shared, zone, now, within=within)
    turn = change[0] if change else now + within
    assert now < turn <= now + within
    between = min(now + (turn - now) * part, turn - timedelta(microseconds=1))
    assert floors(shared, zone, between) == present
    if change:
        assert floors(shared, zone, turn) == change[1] != present


@given(_lines, _zones, _moments)
def test_a_timetable_comes_again_each_week_by_the_clock_on_the_wall(
    lines: list[Hours], zone: str, now: datetime
) -> None:
    """Where no clock is set within the two weeks, a week later the same floors hold."""
    later = now + timedelta(days=7)
    offsets = {(now + timedelta(days=day)).astimezone(ZoneInfo(zone)).utcoffset() for day in range(-2, 9)}
    if len(offsets) == 1:
        assert floors(pool(*lines), zone, now) == floors(pool(*lines), zone, later)
