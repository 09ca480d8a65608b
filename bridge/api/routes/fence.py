"""What the Slurm agent writes next to slurmctld: nodes that no job may start on, the policy that job_submit reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from fastapi import APIRouter

from bridge.api.auth import Role
from bridge.api.dependencies import Agent, AgentOrReader, Deps, Polls, may_write
from bridge.api.inputs import After, FenceAckOrder, PollWait
from bridge.api.problems import BODY, Problem, responses
from bridge.api.views import FenceView, PoolFenceView
from bridge.model.ledger import FenceAck, LedgerState
from bridge.model.mode import Mode
from bridge.model.ownership import Owner, Side
from bridge.model.policy import PoolPolicy
from bridge.planning.entitlement import ceiling
from bridge.planning.headroom import nearest_rank
from bridge.planning.timetable import floors_of_a_week

router = APIRouter(prefix="/v1/slurm/fence", tags=["slurm agent"], responses=responses())


@router.get("", operation_id="getFence", summary="The fence, at once or when it changes", responses=responses(409))
async def get_fence(
    deps: Deps, polls: Polls, caller: AgentOrReader, after: After | None = None, wait_s: PollWait = 0
) -> FenceView:
    """Answers at once unless the ledger's generation is `after`; then when it changes, or after `wait_s` seconds.

    A new policy version ends the wait too. In mode dry_run `policy` is empty, so that no job is refused for it; in mode
    read_only the agent is refused, as the ledger may be yesterday's.
    """
    if caller.role is Role.AGENT:
        may_write(deps)
    first: FenceView | None = None

    def read() -> FenceView:
        nonlocal first
        fence = fence_of(deps.ledger.read(), deps.mode)
        first = first or fence
        return fence

    return await polls.until(read, lambda fence: fence.generation != after or fence != first, wait_s)


@router.post(
    "/ack",
    operation_id="acknowledgeFence",
    summary="Say what the fence file shows",
    status_code=204,
    responses=responses(*BODY, 409),
)
def acknowledge_fence(order: FenceAckOrder, deps: Deps, caller: Agent) -> None:
    """For role agent alone: the broker opens nothing to Kubernetes on anyone else's word.

    A generation above the ledger's is refused with 409: it comes from a ledger that is not this one.
    """
    highest = deps.ledger.read().generation
    if order.generation > highest:
        detail = f"generation {order.generation} is above the ledger's {highest}: read the fence again"
        raise Problem(409, "from-the-future", detail)
    deps.ledger.acknowledge_fence(FenceAck(generation=order.generation, at=deps.clock.now()))


def fence_of(state: LedgerState, mode: Mode = Mode.ACTIVE) -> FenceView:
    """Closed are the nodes with a live lease that is not Slurm's; one without a lease is not ours to fence yet."""
    closed = [
        record.node.slurm_name
        for name, record in state.nodes.items()
        if name in state.leases and state.leases[name].owner is not Owner.SLURM
    ]
    return FenceView(
        generation=state.generation,
        policy_version=state.policy_version,
        closed=sorted(closed),
        policy={pool.name: _pool_fence(pool, state) for pool in state.policy.pools if mode is not Mode.DRY_RUN},
    )


def _pool_fence(pool: PoolPolicy, state: LedgerState) -> PoolFenceView:
    """A job that needs more than Slurm can own at any hour of the week can never run."""
    nodes = sum(record.node.pool == pool.name for record in state.nodes.values())
    lent = pool.share(Side.KUBERNETES).lend_limit_nodes
    most = max(
        min(ceiling(pool, Side.SLURM, floors, nodes), nodes - max(0, floors[Side.KUBERNETES] - lent))
        for floors in floors_of_a_week(pool).values()
    )
    mine = [name for name, record in state.nodes.items() if record.node.pool == pool.name]
    wishes = pool.submission
    return PoolFenceView(
        partition=pool.partition,
        nodes=nodes,
        max_nodes=max(most, 0),
        gpus=pool.gpus,
        owned=sum(name not in state.leases or state.leases[name].owner is Owner.SLURM for name in mine),
        reclaim_s=_reclaim_p90_s(state.reclaim_s.get(Side.SLURM, ())),
        warn=wishes.warn,
        borrow_qos=wishes.borrow_qos or None,
        switches=wishes.switches,
        switches_wait_s=wishes.switches_wait_s if wishes.switches else None,
        segment_nodes=wishes.segment_nodes,
    )


def _reclaim_p90_s(measured_s: Sequence[float]) -> int | None:
    """The p90 by nearest rank in whole seconds, at least 1; None when nothing was measured."""
    if not measured_s:
        return None
    return max(1, ceil(nearest_rank(measured_s, 0.9)))
