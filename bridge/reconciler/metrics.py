"""What the loop counts about itself, in Prometheus' default registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

TICKS = Counter("bridge_ticks_total", "Passes of the reconciler, by how they ended", ["outcome"])
TICK_SECONDS = Histogram("bridge_tick_seconds", "Duration of one pass: observe, commit, act")
CALLS = Counter("bridge_outside_calls_total", "Calls to Slurm and Kubernetes that change something")
CALL_FAILURES = Counter("bridge_outside_call_failures_total", "Outside calls that failed or whose outcome is unknown")
REQUEUES = Counter("bridge_requeues_total", "Slurm jobs that were put back into the queue after their grace")
LOST_GPU_SECONDS = Counter(
    "bridge_lost_gpu_seconds_total",
    "GPU-seconds lost by requeued jobs: since their last checkpoint, by their own report where there is one, and to "
    "start again",
)
UNKNOWN = Gauge("bridge_side_unknown", "1 while a side could not be read", ["side"])
DRIFT = Gauge(
    "bridge_drift", "Findings in which the world and the ledger disagree, of the leader's last pass", ["kind"]
)
LEADER = Gauge("bridge_leader_epoch", "The epoch this replica leads with, 0 for a standby")
MODE = Gauge("bridge_mode", "1 for the mode of this replica", ["mode"])
WOULD_MOVE = Gauge("bridge_would_move_nodes", "Nodes that would move now: of a leader in dry_run", ["destination"])
BREAKER_TRIPS = Counter("bridge_breaker_trips_total", "How often the circuit breaker stopped a pool's moves", ["pool"])
HANDOFF_SECONDS = Histogram(
    "bridge_handoff_seconds",
    "From decision to end of a handoff",
    ["direction", "outcome"],
    buckets=(0.5, 1, 2, 3, 5, 8, 13, 30, 60, 300, 1800, 7200, 86400),
)
