"""Handoffs, and people's orders for them. An order is a row in the ledger; only the leader acts on it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from bridge.api.dependencies import ApiDependencies, Deps, Operator, Polls, Reader
from bridge.api.eventlog import step_durations
from bridge.api.inputs import AnswerWait, HandoffId, HandoffOrder, Limit, NodeFilter, RequestId
from bridge.api.problems import BODY, InputError, Problem, invalid, responses
from bridge.api.views import EventView, HandoffDetail, HandoffView, Listing, RequestView
from bridge.model import hostlists
from bridge.model.errors import Invalid
from bridge.model.ledger import Request, RequestState
from bridge.ports import Ledger

router = APIRouter(prefix="/v1", tags=["handoffs"], responses=responses())
_MAX_NODES_AN_ORDER = 1024


@router.get("/handoffs", operation_id="listHandoffs", summary="Handoffs, newest first")
def list_handoffs(
    deps: Deps,
    caller: Reader,
    node: NodeFilter = None,
    live: Annotated[bool | None, Query(description="Only running ones (true) or only ended ones (false)")] = None,
    limit: Limit = 50,
) -> Listing[HandoffView]:
    """Running and ended handoffs."""
    running = sorted(deps.ledger.read().handoffs.values(), key=lambda handoff: handoff.began_at, reverse=True)
    if live:
        found = [handoff for handoff in running if node in (None, handoff.node)]
    else:
        # Running ones may stand anywhere among the newest: read so many more that enough ended ones are left.
        newest = deps.ledger.handoffs(limit=limit + (len(running) if live is False else 0), node=node)
        found = [handoff for handoff in newest if live is None or handoff.step.ended]
    items = [HandoffView.of(handoff) for handoff in found[:limit]]
    return Listing[HandoffView](now=deps.clock.now(), items=items)


@router.get("/handoffs/{id}", operation_id="getHandoff", summary="One handoff", responses=responses(404))
def get_handoff(id: HandoffId, deps: Deps, caller: Reader) -> HandoffDetail:
    """With the time it spent in each step and its events."""
    handoff = deps.ledger.handoff(id)
    if handoff is None:
        raise Problem(404, "unknown-handoff", f"there is no handoff {id}")
    now = deps.clock.now()
    events = deps.ledger.handoff_events(id)
    return HandoffDetail(
        **HandoffView.of(handoff).__dict__,
        now=now,
        steps=step_durations(handoff, events, now),
        events=[EventView.of(event) for event in events],
    )


@router.post(
    "/handoffs",
    operation_id="orderHandoff",
    summary="Order nodes to be moved",
    status_code=202,
    responses={
        **responses(*BODY, 409),
        201: {"model": RequestView, "description": "The leader accepted: the handoffs begin"},
        202: {"model": RequestView, "description": "Written, not answered yet: ask again at Location"},
    },
)
async def order_handoff(
    order: HandoffOrder, response: Response, deps: Deps, polls: Polls, caller: Operator, wait_s: AnswerWait = 3
) -> RequestView:
    """Writes the order into the ledger and waits up to `wait_s` for the leader to accept (201) or refuse it (409)."""
    request = await run_in_threadpool(_submit, deps, order, caller.name)
    location = f"/v1/requests/{request.id}"

    def answer() -> Request:
        return deps.ledger.request(request.id) or request

    answered = await polls.until(answer, lambda found: found.state is not RequestState.PENDING, wait_s)
    if answered.state is RequestState.REFUSED:
        raise Problem(409, "refused", answered.answer, headers={"Location": location})
    response.headers["Location"] = location
    response.status_code = 201 if answered.state is RequestState.ACCEPTED else 202
    return RequestView.of(answered)


@router.get("/requests/{id}", operation_id="getRequest", summary="One order", responses=responses(404))
def get_request(id: RequestId, deps: Deps, caller: Reader) -> RequestView:
    """Pending, accepted or refused, with the leader's words."""
    request = deps.ledger.request(id)
    if request is None:
        raise Problem(404, "unknown-request", f"there is no request {id}")
    return RequestView.of(request)


def _submit(deps: ApiDependencies, order: HandoffOrder, requested_by: str) -> Request:
    request = Request(
        id=deps.new_id(),
        nodes=_known_nodes(order.nodes, deps.ledger),
        destination=order.destination,
        requested_by=requested_by,
        reason=order.reason,
        requested_at=deps.clock.now(),
    )
    deps.ledger.submit(request)
    return request


def _known_nodes(expressions: list[str], ledger: Ledger) -> tuple[str, ...]:
    known = ledger.read().nodes
    names: dict[str, None] = {}
    errors = []
    for index, expression in enumerate(expressions):
        try:
            expanded = hostlists.expand([expression], limit=_MAX_NODES_AN_ORDER)
        except Invalid as error:
            errors.append(_node_error(index, str(error), "write a name or a Slurm host list such as gpu-[1-4]"))
            continue
        strangers = [name for name in expanded if name not in known]
        if strangers:
            message = f"no pool of the policy has {', '.join(strangers[:5])}"
            errors.append(_node_error(index, message, "use names that GET /v1/nodes (bridgectl nodes) lists"))
        names.update(dict.fromkeys(expanded))
    if len(names) > _MAX_NODES_AN_ORDER:
        errors.append(_node_error(0, f"{len(names)} nodes in one order", f"order at most {_MAX_NODES_AN_ORDER}"))
    if errors:
        raise invalid(errors)
    return tuple(names)


def _node_error(index: int, message: str, remedy: str) -> InputError:
    return InputError(location=("body", "nodes", index), message=message, remedy=remedy)
