"""Reading the event log from its end, and a handoff's history out of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from bridge.api.views import StepView
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import Event
from bridge.ports import Ledger


def last_event_id(ledger: Ledger) -> int:
    """The largest event id, 0 for an empty log, in about 2·log2(id) reads of one row each.

    The ledger lists events forwards only, and ids have gaps: so the end is found by doubling, then by halving.
    """
    high = 1
    while ledger.events(after=high, limit=1):
        high *= 2
    low = high // 2
    # No event has an id above high; at low > 0 there is one.
    while low < high:
        middle = (low + high) // 2
        found = ledger.events(after=middle, limit=1)
        if found:
            low = found[0].id
        else:
            high = middle
    return low


def newest_events(ledger: Ledger, limit: int) -> list[Event]:
    """At most `limit` events from the end of the log, in order of id; fewer where ids have gaps."""
    return ledger.events(after=max(last_event_id(ledger) - limit, 0), limit=limit)


def step_durations(handoff: Handoff, events: Sequence[Event], now: datetime) -> list[StepView]:
    """How long `handoff` was in each of its steps so far, from the events that say which step it entered.

    An event tells of an entered step by ``data["step"]``. The step that the handoff is in now is known without one, so
    that it is there even when the log was cut.
    """
    entered: list[tuple[Step, datetime]] = []
    for event in events:
        step = _step_of(event)
        if step is not None and (not entered or entered[-1][0] is not step):
            entered.append((step, event.at))
    if not entered or entered[-1][0] is not handoff.step:
        entered.append((handoff.step, handoff.step_began_at))
    end = handoff.ended_at or now
    bounded = pairwise([*entered, (handoff.step, end)])
    return [
        StepView(step=step, began_at=began_at, duration_s=max((until - began_at).total_seconds(), 0))
        for (step, began_at), (_, until) in bounded
        if not step.ended
    ]


def _step_of(event: Event) -> Step | None:
    try:
        return Step(event.data["step"])
    except (KeyError, ValueError):
        return None
