"""What a pass writes down for later ones: victims, demands that are left alone, breakers that trip. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from bridge.model.demand import Victim, Work
from bridge.model.handoff import Step
from bridge.model.ledger import (
    Backoff,
    Change,
    DropBackoff,
    DropPause,
    LedgerState,
    Note,
    Preempted,
    PutBackoff,
    PutPause,
    PutPreempted,
)
from bridge.model.ownership import Side
from bridge.model.pause import Pause, Reach
from bridge.model.slurm import SlurmObservation
from bridge.planning.demand import slurm_works
from bridge.planning.snapshot import Move

MOST_DOUBLINGS = 8
LONGEST_BACKOFF_S = 6 * 3600.0
FORGOTTEN_AFTER = timedelta(days=1)

_NOT_COLLECTED = frozenset({Step.REOPEN, Step.REPROVE, Step.RETURNED, Step.FAILED, Step.QUARANTINED})


def victims_by_node(move: Move, works: Sequence[Work]) -> dict[str, tuple[Victim, ...]]:
    """Whom each node's handoff may end: the victims of `move` that run there.

    One that is not among `works` (any more) could be on any node and is given to all of them; one that runs only
    elsewhere is in nobody's way and is left out.
    """
    if not move.victims:
        return {}
    runs_on: dict[tuple[str, Side], set[str]] = {}
    for work in works:
        runs_on.setdefault((work.key, work.side), set()).update(work.nodes)
    return {
        node: tuple(victim for victim in move.victims if node in runs_on.get((victim.key, victim.side), (node,)))
        for node in move.nodes
    }


def chosen_victims(
    move: Move, by_node: Mapping[str, Sequence[Victim]], *, lease: str, now: datetime
) -> Iterator[Change]:
    """Each victim once, however many of its nodes move: for the limits of the planner, and for people to read."""
    for victim in move.victims:
        nodes = [node for node in move.nodes if victim in by_node.get(node, ())]
        if not nodes:
            continue
        yield PutPreempted(Preempted(victim.key, victim.side, now, victim.loss_gpu_s))
        for_whom = move.demand or f"{move.requested_by} ({move.reason})"
        yield Note(
            "preempt",
            f"{victim.key} may be ended on {', '.join(nodes)}, which loses {victim.loss_gpu_s:.0f} GPU-seconds: "
            f"for {for_whom}",
            now,
            node=nodes[0] if len(nodes) == 1 else None,
            lease=lease,
            data={
                "victim": victim.key,
                "side": str(victim.side),
                "nodes": nodes,
                "loss_gpu_s": victim.loss_gpu_s,
                "signal": victim.signal,
                "grace_s": victim.grace_s,
                "for": for_whom,
            },
        )


def losses(state: LedgerState, seen: SlurmObservation, requeued: Collection[int], now: datetime) -> dict[int, Work]:
    """Of the jobs of `requeued` that `seen` shows running on our nodes: each as it was when it was put back."""
    found: dict[int, Work] = {}
    names = {each.node.slurm_name: each.node.name for each in state.nodes.values()}
    for handoff in state.handoffs.values():
        record = state.nodes.get(handoff.node)
        pool = state.policy.pool(record.node.pool) if record else None
        ours = {victim.job for victim in handoff.victims if victim.job in requeued and victim.job not in found}
        if pool is None or not ours:
            continue
        for work in slurm_works(state.policy, pool.preemption, seen, names, now):
            if work.job is not None and work.job in ours:
                found[work.job] = work
    return found


def loss_changes(state: LedgerState, lost: Mapping[int, Work], now: datetime) -> Iterator[Change]:
    """For people to read, and in the place of what its end was guessed to lose when it was chosen."""
    for job, work in lost.items():
        message = f"{work.key} was requeued and lost {work.loss_gpu_s:.0f} GPU-seconds: {work.saves}"
        data = {"job": job, "lost_gpu_s": work.loss_gpu_s, "nodes": list(work.nodes)}
        ends = (each.lease for each in state.handoffs.values() if any(victim.job == job for victim in each.victims))
        yield Note("requeue", message, now, lease=next(ends, None), data=data)
        chosen = next((each for each in state.preempted if (each.key, each.side) == (work.key, work.side)), None)
        if chosen is not None:
            yield PutPreempted(replace(chosen, loss_gpu_s=work.loss_gpu_s))


def breaker_changes(pool: str, before: Pause | None, after: Pause | None, now: datetime) -> Iterator[Change]:
    """What is written when the breaker of `pool` stood as `before` and shall stand as `after`, which is not the same.

    That it trips is told, and that it ends by itself; a person's release is told where the person says it.
    """
    if after is not None:
        yield PutPause(after, before)
    elif before is not None:
        yield DropPause(before)
    if after is not None and trips(before, after):
        yield Note("breaker", f"{after}; `{after.scope.ended_by}` ends it", now, data=_of_pool(pool, tripped=True))
    elif after is None and before is not None and before.released_at is None:
        yield Note(
            "breaker", f"pool {pool}: the circuit breaker ends: all is calm", now, data=_of_pool(pool, tripped=False)
        )


def trips(before: Pause | None, after: Pause) -> bool:
    """Whether the breaker that stood as `before` begins to stop moves with `after`."""
    return after.released_at is None and (before is None or before.released_at is not None)


def _of_pool(pool: str, *, tripped: bool) -> dict[str, object]:
    return {"scope": Reach.POOL.value, "name": pool, "tripped": tripped}


def backoff_change(
    demand: str,
    steps: Collection[Step],
    *,
    began_at: datetime,
    standing: Backoff | None,
    base_s: float,
    now: datetime,
) -> PutBackoff | DropBackoff | None:
    """What the handoffs of one lease, now at `steps`, say about the demand that they are for.

    The first of them that leaves the way forward makes the demand back off, at once, so that no other nodes are begun
    for it meanwhile; those that follow it say nothing new. They are told apart by the time: nothing is begun for a
    demand that is left alone, so a backoff that ends after `began_at` came of these very handoffs, or of others
    that were begun beside them.
    """
    counted = standing is not None and standing.until > began_at
    if counted:
        return None
    if not _NOT_COLLECTED.isdisjoint(steps):
        failures = standing.failures + 1 if standing else 1
        return PutBackoff(Backoff(demand, now + timedelta(seconds=backoff_s(base_s, failures)), failures))
    if standing is not None and all(step is Step.DONE for step in steps):
        return DropBackoff(demand)
    return None


def backoff_s(base_s: float, failures: int) -> float:
    """`base_s`, doubled at each failure after the first, at most eight times and to at most six hours."""
    doubled_s = base_s * 2.0 ** min(failures - 1, MOST_DOUBLINGS)
    return max(base_s, min(doubled_s, LONGEST_BACKOFF_S))


def outlived(backoffs: Mapping[str, Backoff], now: datetime) -> Iterator[DropBackoff]:
    """Demands that nothing was tried for in a day after their backoff: gone, most of them."""
    for demand, backoff in backoffs.items():
        if now - backoff.until >= FORGOTTEN_AFTER:
            yield DropBackoff(demand)
