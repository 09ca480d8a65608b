"""What each team has used on both sides, as a sum that forgets: use counts half after the team's half-life.

With `rate` GPUs at work and ``lambda = ln 2 / half-life``, the sum obeys ``d(sum)/dt = rate - lambda * sum``. Over an
interval of `t` seconds with a constant rate that is, exactly and however the interval is cut into pieces::

    sum(t) = sum(0) * 0.5 ** (t / half-life) + rate / lambda * (1 - 0.5 ** (t / half-life))

so steady use tends to ``rate * half-life / ln 2`` GPU-seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from bridge.model.demand import Work
from bridge.model.ledger import Usage

SAMPLE_EVERY = timedelta(seconds=60)
LONGEST_CHARGED_S = 600.0
FORGOTTEN_GPU_S = 1.0


def decayed(usage: Usage, half_life_s: float, now: datetime) -> float:
    """`usage` in GPU-seconds as it counts at `now`. A clock that was set back makes nothing grow."""
    return usage.gpu_s * _left(max(0.0, (now - usage.at).total_seconds()), half_life_s)


def due(usage: Mapping[str, Usage], now: datetime) -> bool:
    """Whether the last sample is a minute old, or from a time that is still to come (the clock was set back)."""
    last = _last_sample(usage)
    return last is None or not timedelta(0) <= now - last < SAMPLE_EVERY


def sample(
    usage: Mapping[str, Usage], works: Sequence[Work], half_life_s: Callable[[str], float], now: datetime
) -> tuple[Usage, ...]:
    """The use of every team at `now`, by name: what is left of the old one, and `works` charged since the last sample.

    What runs now is taken to have run since the last sample of any team, so that work that begins and ends between two
    samples is charged right on the average. At most `LONGEST_CHARGED_S` are charged: longer than that, nobody looked.
    Teams that use nothing and have less than `FORGOTTEN_GPU_S` left are left out.
    """
    running: Counter[str] = Counter()
    for work in works:
        running[work.team] += work.gpus
    last = _last_sample(usage)
    elapsed_s = 0.0 if last is None else (now - last).total_seconds()
    charged_s = min(max(0.0, elapsed_s), LONGEST_CHARGED_S)
    sampled = []
    for team in sorted((usage.keys() | running.keys()) - {""}):
        half_life = half_life_s(team)
        before = decayed(usage[team], half_life, now) if team in usage else 0.0
        gpu_s = before + _used(running[team], charged_s, half_life)
        if running[team] or gpu_s >= FORGOTTEN_GPU_S:
            sampled.append(Usage(team, gpu_s, now))
    return tuple(sampled)


def _last_sample(usage: Mapping[str, Usage]) -> datetime | None:
    return max((each.at for each in usage.values()), default=None)


def _left(seconds: float, half_life_s: float) -> float:
    return float(0.5 ** (seconds / half_life_s))


def _used(gpus: int, seconds: float, half_life_s: float) -> float:
    """What `gpus` GPUs that worked the last `seconds` add to the sum (expm1 keeps the digits of a short interval)."""
    decay_per_s = math.log(2) / half_life_s
    return gpus / decay_per_s * -math.expm1(-decay_per_s * seconds)
