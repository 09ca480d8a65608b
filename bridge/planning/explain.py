"""An answer to every "why": for a job, a pod, a node, a team or a pool, from the first obstacle to the last.

``explain`` is pure and reads the same snapshot and the same plan as the reconciler. It is made only when somebody
asks, for one subject, so it may look at every node.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from bridge.model.policy import Policy
from bridge.planning.explaining.answer import Estimate, Explanation, Kind, Link, Remedy
from bridge.planning.explaining.jobs import explain_job
from bridge.planning.explaining.nodes import explain_node
from bridge.planning.explaining.pods import explain_pod
from bridge.planning.explaining.pools import explain_pool
from bridge.planning.explaining.scene import Scene, Seen
from bridge.planning.explaining.teams import explain_team
from bridge.planning.snapshot import Plan, Snapshot

__all__ = ["Estimate", "Explanation", "Kind", "Link", "Remedy", "Seen", "explain"]

_EXPLAINERS: dict[Kind, Callable[[Scene, str], Explanation | None]] = {
    Kind.JOB: explain_job,
    Kind.POD: explain_pod,
    Kind.NODE: explain_node,
    Kind.TEAM: explain_team,
    Kind.POOL: explain_pool,
}


def explain(
    kind: Kind, name: str, seen: Seen, snapshot: Snapshot, policy: Policy, planned: Plan, now: datetime
) -> Explanation | None:
    """Why `name` waits or stays as it does; None: there is no such subject.

    `planned` is the plan of `snapshot`. A side that could not be read is UNKNOWN in the answer:
    nothing of it is guessed.
    """
    return _EXPLAINERS[kind](Scene(seen, snapshot, policy, planned, now), name)
