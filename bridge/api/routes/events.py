"""The event log: what happened, in order, and then what happens."""

from __future__ import annotations

from fastapi import APIRouter

from bridge.api.dependencies import Deps, Polls, Reader
from bridge.api.eventlog import newest_events
from bridge.api.inputs import After, Limit, PollWait
from bridge.api.problems import responses
from bridge.api.views import EventView, Listing
from bridge.model.ledger import Event

router = APIRouter(prefix="/v1", tags=["events"], responses=responses())


@router.get("/events", operation_id="listEvents", summary="The event log, as a list or a long poll")
async def list_events(
    deps: Deps, polls: Polls, caller: Reader, after: After | None = None, limit: Limit = 100, wait_s: PollWait = 0
) -> Listing[EventView]:
    """Events with an id above `after`, in order; without `after` the newest ones.

    With `wait_s` the answer comes as soon as there is an event, or empty after that time. Ask again with `after` set to
    the last id seen.
    """

    def read() -> list[Event]:
        if after is None:
            return newest_events(deps.ledger, limit)
        return deps.ledger.events(after=after, limit=limit)

    events = await polls.until(read, bool, wait_s)
    return Listing[EventView](now=deps.clock.now(), items=[EventView.of(event) for event in events])
