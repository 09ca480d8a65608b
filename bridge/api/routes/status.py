"""How well the broker sees, whether it acts, and the switch that stops it."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter

from bridge.api.dependencies import Deps, Operator, Reader
from bridge.api.inputs import PauseOrder
from bridge.api.problems import BODY, responses
from bridge.api.views import Freshness, PauseView, PlanView, SourceView, StatusReport
from bridge.model.errors import Unreadable

router = APIRouter(prefix="/v1", responses=responses())


@router.get("/status", operation_id="getStatus", tags=["status"], summary="How well the broker sees and acts")
def get_status(deps: Deps, caller: Reader) -> StatusReport:
    """Freshness of Slurm, Kubernetes and the ledger, with the reason where one is UNKNOWN; the leader; the pause.

    Answers 200 even when the ledger cannot be read, and says so: this is the page one looks at then.
    """
    known = deps.status().model_dump()
    now = deps.clock.now()
    try:
        state = deps.ledger.read()
    except Unreadable as error:
        unknown = SourceView(state=Freshness.UNKNOWN, reason=error.detail)
        return StatusReport(**{**known, "ledger": unknown, "now": now})
    owners = Counter(lease.owner for lease in state.leases.values())
    return StatusReport(
        **known,
        now=now,
        paused=state.paused,
        policy_version=state.policy_version,
        nodes_by_owner=dict(owners),
        handoffs_live=len(state.handoffs),
    )


@router.get("/plan", operation_id="getPlan", tags=["status"], summary="What the leader would do now, and why not more")
def get_plan(deps: Deps, caller: Reader) -> PlanView:
    """A dry run of the planner: nothing moves because of this call. 503 while a source is UNKNOWN."""
    return deps.plan(None, ())


@router.post(
    "/pause", operation_id="pause", tags=["control"], summary="Start no new handoff", responses=responses(*BODY, 409)
)
def pause(order: PauseOrder, deps: Deps, caller: Operator) -> PauseView:
    """Handoffs that run already finish: half of one is worse than either end."""
    deps.ledger.pause(order.reason, actor=caller.name, at=deps.clock.now())
    return PauseView(paused=order.reason)


@router.post(
    "/resume",
    operation_id="resume",
    tags=["control"],
    summary="Let handoffs start again",
    responses=responses(409),
)
def resume(deps: Deps, caller: Operator) -> PauseView:
    """Ends a pause; does nothing when there is none."""
    deps.ledger.pause("", actor=caller.name, at=deps.clock.now())
    return PauseView(paused="")
