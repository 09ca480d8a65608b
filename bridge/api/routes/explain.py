"""An answer to every "why": for a job, a pod, a node, a team or a pool."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from bridge.api.dependencies import Deps, Reader
from bridge.api.explanations import ExplanationView
from bridge.api.inputs import SubjectName
from bridge.api.problems import Problem, responses
from bridge.model.ledger import LedgerState
from bridge.planning.explain import Kind

router = APIRouter(prefix="/v1/explain", tags=["status"], responses=responses())

_MOST_NAMED = 10


@router.get("/{kind}/{name:path}", operation_id="explain", summary="Why it waits or stays", responses=responses(404))
def explain(
    kind: Annotated[Kind, Path(description="What `name` is")], name: SubjectName, deps: Deps, caller: Reader
) -> ExplanationView:
    """The chain from the first obstacle to the last, what would help, and when; from a fresh reading, moving nothing.

    Names: a job's id (also `17_3`, `17+1`), namespace/name of a pod, a node in either scheduler's spelling, a team, a
    pool. 503 while the side that a job or a pod waits on is UNKNOWN, 404 when there is no such thing.
    """
    found = deps.explain(kind, name)
    if found is None:
        raise Problem(404, "unknown-subject", _missing(kind, name, deps.ledger.read()))
    return found


def _missing(kind: Kind, name: str, state: LedgerState) -> str:
    """That it is not there, and what is."""
    if kind is Kind.JOB:
        return f"Slurm's queue has no job {name}: ended ones leave it (squeue --states=all, sacct -j {name})"
    if kind is Kind.POD:
        return f"no pod {name} (namespace/name) waits for GPUs or runs on a shared node: kubectl get pods -A"
    there = {
        Kind.NODE: sorted(state.leases),
        Kind.TEAM: [team.name for team in state.policy.teams],
        Kind.POOL: [pool.name for pool in state.policy.pools],
    }[kind]
    more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
    return f"there is no {kind} {name}; there are: {', '.join(there[:_MOST_NAMED]) or 'none'}{more}"
