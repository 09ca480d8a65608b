"""What ending work loses, and when it is too young to be ended: the same for both worlds.

Loss = GPUs x (seconds since the last checkpoint + seconds to restart), with the last checkpoint at
start + floor(run / interval) x interval, or at the start without an interval.
"""

from __future__ import annotations

from bridge.model.policy import Preemption


def loss_gpu_s(gpus: int, runs_for_s: float, interval_s: float | None, restart_s: float) -> float:
    """GPU-seconds lost by ending now what has run for `runs_for_s` and saves its state every `interval_s`."""
    unsaved_s = runs_for_s % interval_s if interval_s else runs_for_s
    return gpus * (unsaved_s + restart_s)


def too_young(runs_for_s: float, preemption: Preemption) -> str:
    """Why work that has run for `runs_for_s` is no victim yet; empty when its minimum runtime is over."""
    if runs_for_s >= preemption.min_runtime_s:
        return ""
    return f"it has run for {runs_for_s:.0f} s of at least {preemption.min_runtime_s:.0f} s"
