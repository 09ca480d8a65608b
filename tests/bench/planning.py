"""How long a plan takes, and the way to it from two readings: queues into demands, what runs into works, then ``plan``.

A row is one size of fleet. `p50_s` and `p99_s` (nearest rank) are of ``plan(snapshot, policy, now)``; `from_reading_…`
are of all three parts together, `queues_p50_s` and `works_p50_s` of the other two. Runs are warm, on one core, with the
garbage collector as in production. `peak_mib` is what a run of all three allocates at most above the observations, by
tracemalloc.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence
from math import ceil, log
from statistics import median
from time import perf_counter
from typing import TypedDict

from bridge.model.ownership import Side
from bridge.planning.demand import slurm_queue, slurm_works
from bridge.planning.planner import plan
from bridge.planning.serving import kube_queue, kube_works
from bridge.planning.snapshot import Plan, Snapshot
from tests.bench.fleet import NOW, Fleet, fleet

NODES = (100, 1_000, 5_000, 10_000)
JOBS = (1_000, 10_000, 100_000)
PODS = 20_000
MODES = ("idle_only", "requeue")
RUNS = 30


class Row(TypedDict):
    nodes: int
    jobs: int
    pods: int
    preemption: str
    runs: int
    p50_s: float
    p99_s: float
    from_reading_p50_s: float
    from_reading_p99_s: float
    queues_p50_s: float
    works_p50_s: float
    peak_mib: float
    demands: int
    works: int
    moves: int
    victims: int


def rows(nodes: Sequence[int] = NODES, jobs: Sequence[int] = JOBS, modes: Sequence[str] = MODES) -> list[Row]:
    found = []
    for mode in modes:
        _say(_HEAD)
        for size in nodes:
            for queue in jobs:
                found.append(_row(size, queue, mode))
                _say(_line(found[-1]))
    return found


def _row(nodes: int, jobs: int, mode: str) -> Row:
    seen = fleet(nodes, jobs, PODS, mode=mode)
    Lap(seen)
    laps = [Lap(seen) for _ in range(RUNS)]
    snapshot, planned = laps[-1].snapshot, laps[-1].plan
    plans = [lap.plan_s for lap in laps]
    totals = [lap.queues_s + lap.works_s + lap.plan_s for lap in laps]
    return Row(
        nodes=nodes,
        jobs=jobs,
        pods=PODS,
        preemption=mode,
        runs=RUNS,
        p50_s=round(median(plans), 5),
        p99_s=round(_p99(plans), 5),
        from_reading_p50_s=round(median(totals), 5),
        from_reading_p99_s=round(_p99(totals), 5),
        queues_p50_s=round(median(lap.queues_s for lap in laps), 5),
        works_p50_s=round(median(lap.works_s for lap in laps), 5),
        peak_mib=round(_peak_mib(seen), 2),
        demands=len(snapshot.demands),
        works=len(snapshot.works),
        moves=len(planned.moves),
        victims=sum(len(move.victims) for move in planned.moves),
    )


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[ceil(0.99 * len(seconds)) - 1]


class Lap:
    """One run and what each part of it took, in seconds."""

    def __init__(self, seen: Fleet) -> None:
        pool, policy = seen.policy.pools[0], seen.policy
        kube_names, slurm_names = seen.kube_names, seen.slurm_names
        began = perf_counter()
        training = slurm_queue(pool, policy, seen.slurm, NOW, nodes=len(seen.places))
        serving = kube_queue(pool, policy, seen.kubernetes, kube_names, NOW)
        queued = perf_counter()
        works = (
            *slurm_works(policy, pool.preemption, seen.slurm, slurm_names, NOW),
            *kube_works(policy, pool.preemption, seen.kubernetes, kube_names, NOW),
        )
        worked = perf_counter()
        self.snapshot = Snapshot(
            places=seen.places,
            demands=(*training.demands, *serving.demands),
            works=works,
            usage=seen.usage,
            waiting={Side.SLURM: training.waiting, Side.KUBERNETES: serving.waiting},
        )
        self.plan: Plan = plan(self.snapshot, policy, NOW)
        ended = perf_counter()
        self.queues_s, self.works_s, self.plan_s = queued - began, worked - queued, ended - worked


def _peak_mib(seen: Fleet) -> float:
    tracemalloc.start()
    try:
        Lap(seen)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


_HEAD = (
    f"{'nodes':>6} {'jobs':>7} {'mode':>9} {'p50 ms':>7} {'p99 ms':>7} {'all p50':>7} {'all p99':>7} "
    f"{'queues':>7} {'works':>7} {'MiB':>6} {'demands':>8} {'moves':>6} {'victims':>7}"
)


def _line(row: Row) -> str:
    size = f"{row['nodes']:6} {row['jobs']:7} {row['preemption']:>9}"
    plans = (row["p50_s"], row["p99_s"])
    parts = (row["from_reading_p50_s"], row["from_reading_p99_s"], row["queues_p50_s"], row["works_p50_s"])
    times = " ".join(f"{1000 * s:7.1f}" for s in (*plans, *parts))
    what = f"{row['demands']:8} {row['moves']:6} {row['victims']:7}"
    return f"{size} {times} {row['peak_mib']:6.1f} {what}"


def growth(found: Sequence[Row]) -> str:
    """How the time grows with ten times the nodes, and with ten times the jobs, beside what n log n would."""
    by_size = {(row["preemption"], row["nodes"], row["jobs"]): row for row in found}
    lines = []
    for (mode, nodes, jobs), row in by_size.items():
        more_nodes, more_jobs = by_size.get((mode, 10 * nodes, jobs)), by_size.get((mode, nodes, 10 * jobs))
        if more_nodes and nodes >= 1_000:
            lines.append(f"{mode:>9}, {jobs:6} jobs, {nodes} -> {10 * nodes} nodes: {_times(row, more_nodes, nodes)}")
        if more_jobs and jobs >= 10_000:
            lines.append(f"{mode:>9}, {nodes:6} nodes, {jobs} -> {10 * jobs} jobs: {_times(row, more_jobs, jobs)}")
    return "\n".join(lines)


def _times(small: Row, large: Row, n: int) -> str:
    allowed = 10 * log(10 * n) / log(n)
    grew = large["from_reading_p50_s"] / small["from_reading_p50_s"]
    return f"{grew:.1f} times as long (n log n: {allowed:.1f})"
