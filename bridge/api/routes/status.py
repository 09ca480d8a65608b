"""How well the broker sees, whether it acts, and the switch that stops it."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter

from bridge.api.dependencies import ApiDependencies, Deps, Operator, Reader
from bridge.api.inputs import OnlySay, PauseOrder, RecallOrder, ScopedOrder
from bridge.api.problems import BODY, InputError, invalid, responses
from bridge.api.views import Freshness, PauseEntry, PauseView, PlanView, RecallView, SourceView, StatusReport
from bridge.model.errors import Unreadable
from bridge.model.ledger import PREEMPTED_FOR_S, LedgerState
from bridge.model.pause import EVERYTHING, PauseKind, Reach, Scope

router = APIRouter(prefix="/v1", responses=responses())


@router.get("/status", operation_id="getStatus", tags=["status"], summary="How well the broker sees and acts")
def get_status(deps: Deps, caller: Reader) -> StatusReport:
    """Freshness of Slurm, Kubernetes and the ledger, with the reason where one is UNKNOWN; the leader; the pauses.

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
    victims = [each for each in state.preempted if (now - each.at).total_seconds() < PREEMPTED_FOR_S]
    return StatusReport(
        **known,
        now=now,
        paused=state.paused,
        pauses=[PauseEntry.of(pause) for pause in state.pauses],
        policy_version=state.policy_version,
        nodes_by_owner=dict(owners),
        handoffs_live=len(state.handoffs),
        victims_last_day=len(victims),
        lost_gpu_s_last_day=sum(each.loss_gpu_s for each in victims),
    )


@router.get("/plan", operation_id="getPlan", tags=["status"], summary="What the leader would do now, and why not more")
def get_plan(deps: Deps, caller: Reader) -> PlanView:
    """A dry run of the planner: nothing moves because of this call. 503 while a source is UNKNOWN."""
    return deps.plan(None, ())


@router.post(
    "/pause", operation_id="pause", tags=["control"], summary="Start no new handoff", responses=responses(*BODY, 409)
)
def pause(order: PauseOrder, deps: Deps, caller: Operator) -> PauseView:
    """In a pool, on a node, or at all. Handoffs that run already finish: half of one is worse than either end.

    Pauses of different scopes stand beside each other; one of the same scope gets the new reason.
    """
    scope = _scope(order, deps.ledger.read())
    deps.ledger.pause(order.reason, actor=caller.name, at=deps.clock.now(), scope=scope)
    return PauseView(paused=order.reason, pauses=_standing(deps))


@router.post(
    "/recall",
    operation_id="recall",
    tags=["control"],
    summary="Call every lent node home",
    responses=responses(*BODY, 409),
)
def recall(order: RecallOrder, deps: Deps, caller: Operator, dry_run: OnlySay = False) -> RecallView:
    """Of one pool or of all, until it is resumed. Nothing else begins to move there meanwhile.

    Pods are evicted politely and jobs get their grace. Floors and minimum holds are not asked; a pause of a single node
    holds that node, other pauses do not hold any.
    """
    state = deps.ledger.read()
    if order.all == (order.pool is not None):
        raise invalid([_wrong("pool", "neither a pool nor all, or both", "name a pool, or say all: true")])
    scope = _scope(ScopedOrder(pool=order.pool), state)
    if not dry_run:
        deps.ledger.pause(order.reason, actor=caller.name, at=deps.clock.now(), scope=scope, kind=PauseKind.RECALL)
    return RecallView(lent=_lent(state, scope), pauses=_standing(deps))


@router.post(
    "/resume",
    operation_id="resume",
    tags=["control"],
    summary="Let handoffs start again",
    responses=responses(*BODY, 409),
)
def resume(deps: Deps, caller: Operator, order: ScopedOrder | None = None) -> PauseView:
    """Ends the pause and the recall of that scope, and no other; does nothing when there is none."""
    scope = _scope(order or ScopedOrder(), deps.ledger.read())
    deps.ledger.resume(actor=caller.name, at=deps.clock.now(), scope=scope)
    return PauseView(paused="", pauses=_standing(deps))


def _standing(deps: ApiDependencies) -> list[PauseEntry]:
    return [PauseEntry.of(pause) for pause in deps.ledger.read().pauses]


def _lent(state: LedgerState, scope: Scope) -> list[str]:
    """Nodes in `scope` that are away from home, or will be when their handoffs end."""
    home = {pool.name: pool.home for pool in state.policy.pools if scope.covers_pool(pool.name)}
    found = []
    for name, lease in state.leases.items():
        handoff, record = state.handoffs.get(name), state.nodes.get(name)
        side = lease.owner.side or (handoff.destination if handoff else None)
        if record is not None and record.node.pool in home and side is home[record.node.pool].other:
            found.append(name)
    return sorted(found)


def _scope(order: ScopedOrder, state: LedgerState) -> Scope:
    """Of a pool and a node that there are, or of which a pause stands still; raises a `Problem` for others."""
    if order.pool is not None and order.node is not None:
        raise invalid([_wrong("node", "both a pool and a node", "name one: the pause of a pool covers its nodes")])
    if order.pool is not None:
        scope, known = Scope(Reach.POOL, order.pool), state.policy.pool(order.pool) is not None
        wrong = _wrong("pool", f"the policy has no pool {order.pool}", "use a name of GET /v1/policy")
    elif order.node is not None:
        scope, known = Scope(Reach.NODE, order.node), order.node in state.nodes
        wrong = _wrong("node", f"no pool of the policy has {order.node}", "use a name that GET /v1/nodes lists")
    else:
        return EVERYTHING
    if not known and all(pause.scope != scope for pause in state.pauses):
        raise invalid([wrong])
    return scope


def _wrong(field: str, message: str, remedy: str) -> InputError:
    return InputError(location=("body", field), message=message, remedy=remedy)
