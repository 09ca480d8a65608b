"""Demand of both worlds in one shape: who waits for how many whole nodes, since when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from bridge.model.ownership import Side


@dataclass(frozen=True, slots=True)
class Demand:
    """Work that waits for `nodes` whole nodes on `side`.

    `whole` is True for a gang (all nodes or none, opened together) and False for serving pods, where each node helps by
    itself. `key` names it for people (``job 17``, ``Deployment default/chat``). Larger `priority` goes first, then the
    longer wait.
    """

    key: str
    side: Side
    pool: str
    nodes: int
    whole: bool
    priority: int
    since: datetime
