"""The floors of a pool by hour and weekday: which ones hold at a moment, and when they change next.

A line of the timetable holds from the moment the clock on the wall first shows its `from` (or a later time) until it
first shows its `until`. So a line begins once and ends once also on the days on which clocks are set: a time that is
left out means the moment of the jump, and a time that comes twice means the first of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from bridge.model.ownership import Side
from bridge.model.policy import Day, Hours, PoolPolicy

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_DAYS = tuple(Day)


def floors(pool: PoolPolicy, timezone: str, now: datetime) -> dict[Side, int]:
    """The floor of each side that holds at `now` (an aware time), in nodes.

    Of the lines that hold and name a floor for a side the last one in the document counts, side by side; where none
    does, `Share.floor_nodes`.
    """
    return _floors_at(now, pool, _spans(pool, ZoneInfo(timezone), now, now))


def next_change(
    pool: PoolPolicy, timezone: str, now: datetime, *, within: timedelta
) -> tuple[datetime, dict[Side, int]] | None:
    """The first moment after `now` and at most `within` later at which the floors are others than now, and those.

    The moment is in UTC. None when nothing changes until then.
    """
    now = now.astimezone(UTC)
    last = now + within
    spans = _spans(pool, ZoneInfo(timezone), now, last)
    present = _floors_at(now, pool, spans)
    for turn in _turns(spans):
        if now < turn <= last and (then := _floors_at(turn, pool, spans)) != present:
            return turn, then
    return None


def floors_of_a_week(pool: PoolPolicy) -> dict[datetime, dict[Side, int]]:
    """All floors of a week in which no clock is set, by the moment at which they begin: what a timetable may ask for.

    The moments are the wall's, written as UTC.
    """
    monday = datetime(2024, 1, 1, tzinfo=UTC)
    last = monday + 7 * _DAY
    spans = _spans(pool, ZoneInfo("UTC"), monday, last)
    return {turn: _floors_at(turn, pool, spans) for turn in [monday, *_turns(spans)] if monday <= turn < last}


_Span = tuple[datetime, datetime, Hours]
"""A line of the timetable from a moment until another one, which is not in it any more."""


def _floors_at(moment: datetime, pool: PoolPolicy, spans: Sequence[_Span]) -> dict[Side, int]:
    found = {side: pool.share(side).floor_nodes for side in Side}
    for begin, end, line in spans:
        if begin <= moment < end:
            found |= {side: nodes for side in Side if (nodes := line.floor(side)) is not None}
    return found


def _turns(spans: Sequence[_Span]) -> list[datetime]:
    return sorted({turn for begin, end, _ in spans for turn in (begin, end)})


def _spans(pool: PoolPolicy, zone: ZoneInfo, first: datetime, last: datetime) -> list[_Span]:
    """The spans that touch the time from `first` to `last` (and some more), in UTC, in the order of the document."""
    yesterday, last_day = first.astimezone(zone).date() - _DAY, last.astimezone(zone).date()
    days = [yesterday + number * _DAY for number in range((last_day - yesterday).days + 1)]
    return [
        (
            _moment(day, line.from_, zone),
            _moment(day if line.until > line.from_ else day + _DAY, line.until, zone),
            line,
        )
        for line in pool.timetable
        for day in days
        if _DAYS[day.weekday()] in line.days
    ]


def _moment(day: date, at: time, zone: ZoneInfo) -> datetime:
    """The first moment at which a clock in `zone` shows `at` on `day`, or anything later."""
    wall = datetime.combine(day, at)
    first = wall.replace(tzinfo=zone).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == wall:
        return first
    # The clocks jump over it. Read with the offset of before the jump it is too late, with that of after it too early.
    early, late = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), first
    while late - early > _SECOND:
        middle = early + (late - early) // 2
        if middle.astimezone(zone).replace(tzinfo=None) < wall:
            early = middle
        else:
            late = middle
    return late.replace(microsecond=0)
