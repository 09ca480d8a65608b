"""What ending work loses, and when it is too young to be ended: the same for both worlds.

Loss = GPUs x (seconds since the last checkpoint + seconds to restart). The last checkpoint is the one that the work
reported in this run, else it was at start + floor(run / interval) x interval, or at the start without an interval.
"""

from __future__ import annotations

from bridge.model.policy import Preemption


def unsaved_s(runs_for_s: float, saved_s_ago: float | None, interval_s: float | None) -> float:
    """Seconds since the last checkpoint of what has run for `runs_for_s`.

    `saved_s_ago` is a report, None without one. One from before the start is of an earlier run, and tells nothing of
    this; one from the future, of a clock that is ahead, is one from now.
    """
    if saved_s_ago is not None and saved_s_ago <= runs_for_s:
        return max(0.0, saved_s_ago)
    return runs_for_s % interval_s if interval_s else runs_for_s


def loss_gpu_s(gpus: int, unsaved_s: float, restart_s: float) -> float:
    """GPU-seconds lost by ending now what has not saved its state for `unsaved_s`."""
    return gpus * (unsaved_s + restart_s)


def too_young(runs_for_s: float, preemption: Preemption) -> str:
    """Why work that has run for `runs_for_s` is no victim yet; empty when its minimum runtime is over."""
    if runs_for_s >= preemption.min_runtime_s:
        return ""
    return f"it has run for {runs_for_s:.0f} s of at least {preemption.min_runtime_s:.0f} s"
