"""How many idle nodes Kubernetes keeps ready, so that a ramp of traffic is met before the next nodes can come.

Headroom = ramp (GPUs a minute) x reclaim time (minutes, p99 of what was measured), in whole nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from bridge.model.policy import Headroom

ENOUGH_MEASURED = 20
"""Below so many measured handoffs their p99 says little, and the assumed reclaim time counts if it is longer."""


def nearest_rank(measured: Sequence[float], share: float) -> float:
    """The smallest of `measured` (at least one) that is not below a `share` of them, which is in (0, 1]."""
    return sorted(measured)[ceil(share * len(measured)) - 1]


def handover_p50_s(measured_s: Sequence[float]) -> float | None:
    """The median (the upper of two) of measured handoffs, None without any."""
    return sorted(measured_s)[len(measured_s) // 2] if measured_s else None


def reclaim_p99_s(measured_s: Sequence[float], assumed_s: float) -> float:
    """The p99 by nearest rank of measured reclaim times; with few of them not below what is assumed."""
    if not measured_s:
        return assumed_s
    p99 = nearest_rank(measured_s, 0.99)
    return p99 if len(measured_s) >= ENOUGH_MEASURED else max(p99, assumed_s)


def headroom_nodes(headroom: Headroom, measured_s: Sequence[float], gpus_per_node: int) -> int:
    """``fixed``: as written. ``auto``: ceil(ramp x reclaim time / GPUs a node), at most `max_nodes`."""
    if headroom.mode == "fixed":
        return headroom.nodes
    gpus = headroom.ramp_gpus_per_min * reclaim_p99_s(measured_s, headroom.assumed_reclaim_s) / 60
    return min(headroom.max_nodes, ceil(gpus / gpus_per_node - 1e-9))
