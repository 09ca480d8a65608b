"""What the node controller counts, under names that outlive refactorings."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_PREFIX = "slurm_kube_bridge_node_controller"

PASSES = Counter(f"{_PREFIX}_passes", "Passes over a node", ["result"])
PASS_SECONDS = Histogram(
    f"{_PREFIX}_pass_seconds", "Duration of a pass", buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
)
TAINT_REPAIRS = Counter(f"{_PREFIX}_taint_repairs", "How often a taint of ours was taken off by others and put back")
EVICTIONS = Counter(f"{_PREFIX}_evictions", "Evictions asked for", ["result"])
LEADS = Gauge(f"{_PREFIX}_leads", "1 while this replica leads")
QUEUE_DEPTH = Gauge(f"{_PREFIX}_queue_depth", "Nodes that wait for a pass")
VIEW_AGE_SECONDS = Gauge(f"{_PREFIX}_view_age_seconds", "Age of the oldest watch")
