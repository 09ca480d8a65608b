"""What the days came to: handoffs, waiting times, node time by owner, and whether a node was ever used twice."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.table import Table

from bridge.model.handoff import ADOPTER, Handoff, Step
from bridge.model.ownership import Owner, Side
from bridge.simulation.world import World


class PodWaits:
    """Seconds from a pod's creation until it was first Ready, for each pod that ever was."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: set[str] = set()
        self._waited_s: dict[str, float] = {}
        world.kube.cluster.on_change(self._look)

    @property
    def pods(self) -> int:
        return len(self._seen)

    @property
    def over_s(self) -> list[float]:
        return list(self._waited_s.values())

    def _look(self, node: str) -> None:
        del node
        now = self._world.clock.now()
        for pod in self._world.kube.cluster.pods.values():
            self._seen.add(pod.uid)
            if pod.ready:
                self._waited_s.setdefault(pod.uid, (now - pod.created_at).total_seconds())


def job_waits(world: World, jobs: int, began: datetime) -> list[float]:
    """Seconds from the submission of the jobs 1 to `jobs` until their first start; those still waiting are left out."""
    first_start_s: dict[str, float] = {}
    for start in world.oracle.starts(Side.SLURM):
        first_start_s.setdefault(start.work, start.at_s)
    submitted_s = {id: (world.slurm.job(id).submitted_at or began) - began for id in range(1, jobs + 1)}
    return [
        first_start_s[f"job {id}"] - since.total_seconds()
        for id, since in submitted_s.items()
        if f"job {id}" in first_start_s
    ]


def owned_s(handoffs: Iterable[Handoff], until: datetime) -> dict[Owner, float]:
    """Node-seconds by owner, from each node's first handoff on. While a node is on its way, nobody owns it."""
    total = dict.fromkeys(Owner, 0.0)
    by_node: dict[str, list[Handoff]] = {}
    for handoff in sorted(handoffs, key=lambda h: h.began_at):
        by_node.setdefault(handoff.node, []).append(handoff)
    for own in by_node.values():
        for handoff, following in zip(own, [*own[1:], None], strict=True):
            ended_at = handoff.ended_at or until
            rested = (following.began_at if following else until) - ended_at
            total[Owner.BRIDGE] += (ended_at - handoff.began_at).total_seconds()
            total[_owner_after(handoff)] += rested.total_seconds()
    return total


def _owner_after(handoff: Handoff) -> Owner:
    if handoff.step is Step.QUARANTINED:
        return Owner.BRIDGE
    return handoff.source.owner if handoff.step is Step.RETURNED else handoff.destination.owner


def handoff_table(handoffs: Sequence[Handoff]) -> Table:
    """By direction. A move is what one decision hands over: a node, or a gang of them under one lease."""
    moved = [handoff for handoff in handoffs if handoff.requested_by != ADOPTER]
    rows = []
    for side in Side:
        found = [handoff for handoff in moved if handoff.destination is side]
        gangs = sum(count > 1 for count in Counter(handoff.lease for handoff in found).values())
        moves = len({handoff.lease for handoff in found})
        done = [(h.ended_at - h.began_at).total_seconds() for h in found if h.step is Step.DONE and h.ended_at]
        rows.append((f"to {side}", str(moves), str(gangs), str(len(found)), str(len(done)), *_typical(done)))
    return _table(("handoffs", "moves", "of gangs", "nodes", "arrived", "p50", "max"), rows)


def wait_table(jobs_s: Sequence[float], jobs: int, pods: PodWaits) -> Table:
    """`jobs_s` are the waits that are over, of `jobs` jobs. A pod may also be taken back before it was Ready."""
    rows = [
        ("jobs, to start", str(jobs), str(len(jobs_s)), *_typical(jobs_s)),
        ("pods, to be Ready", str(pods.pods), str(len(pods.over_s)), *_typical(pods.over_s)),
    ]
    return _table(("waits", "wanted", "served", "p50", "max"), rows)


def job_line(world: World, jobs: int) -> str:
    states = Counter(world.slurm.job(id).state for id in range(1, jobs + 1))
    return "jobs: " + ", ".join(f"{count} {state.lower()}" for state, count in states.most_common())


def owner_line(owned: dict[Owner, float]) -> str:
    total_s = sum(owned.values()) or 1.0
    slurm, kubernetes, nobody = (owned[owner] / total_s for owner in (Owner.SLURM, Owner.KUBERNETES, Owner.BRIDGE))
    return f"node time: Slurm {slurm:.1%}, Kubernetes {kubernetes:.1%}, on the way {nobody:.1%}"


def booking_line(world: World) -> str:
    starts = world.oracle.evidence
    double = sum(bool(start.others) for start in starts)
    return f"double bookings: {double} ({len(starts)} starts on a node, each checked for work of the other side)"


def _typical(seconds: Sequence[float]) -> tuple[str, str]:
    if not seconds:
        return ("-", "-")
    return (f"{statistics.median(seconds):.1f} s", f"{max(seconds):.1f} s")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 3), header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left", no_wrap=True, min_width=0 if number else 17)
    for row in rows:
        table.add_row(*row)
    return table
