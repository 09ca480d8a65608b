"""Reading the event log from its end, and a handoff's history out of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from bridge.api.views import StepView
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import Event
from bridge.ports import Ledger


def newest_events(ledger: Ledger, limit: int) -> list[Event]:
    """At most `limit` events from the end of the log, in order of id; fewer where ids have gaps."""
    return ledger.events(after=max(ledger.last_event_id() - limit, 0), limit=limit)


def step_durations(handoff: Handoff, events: Sequence[Event], now: datetime) -> list[StepView]:
    """How long `handoff` was in each of its steps so far, from the events that say which step it entered.

    An event tells of an entered step by ``data["step"]`` and of the one before by ``data["from"]``. The step that the
    handoff is in now is known without one, so that it is there even when the log was cut.
    """
    entered: list[tuple[Step, datetime]] = []
    for event in events:
        step, before = _step_of(event, "step"), _step_of(event, "from")
        if step is not None:
            if not entered and before is not None:
                entered.append((before, handoff.began_at))
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


def _step_of(event: Event, key: str) -> Step | None:
    try:
        return Step(event.data[key])
    except (KeyError, ValueError):
        return None
