"""Who wants what, when: a day's work as a list of timed wishes, made from a seed.

Training arrives as gangs of one to three whole nodes, more of it towards the evening, when people queue what is to run
overnight. Inference traffic follows the sun: lowest before dawn, highest in the afternoon.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from bridge.simulation.cluster import Deployment
from bridge.simulation.slurm import JobRequest

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Submit:
    """An sbatch at `at_s` of the simulation."""

    at_s: float
    job: JobRequest


@dataclass(frozen=True, slots=True)
class Deploy:
    """A Deployment is created or replaced."""

    at_s: float
    deployment: Deployment


@dataclass(frozen=True, slots=True)
class Scale:
    """An autoscaler changes the number of replicas."""

    at_s: float
    deployment: str
    replicas: int


Wish = Submit | Deploy | Scale


@dataclass(frozen=True, slots=True)
class Day:
    """The shape of a day for a pool of `nodes` nodes. `length_s` squeezes it: a demo's day may last half an hour.

    `jobs` is how many are submitted; each runs for `mean_job` of the day on average, on one node, two, three… as often
    as `gang_weights` says. Serving scales between `fewest_replicas` and `most_replicas`, looked at `scalings` times a
    day.
    """

    nodes: int = 4
    length_s: float = DAY_S
    jobs: int = 24
    mean_job: float = 1 / 30
    gang_weights: tuple[float, ...] = (6, 3, 1)
    fewest_replicas: int = 0
    most_replicas: int = 3
    scalings: int = 48


USERS = (("alice", "research"), ("bob", "research"), ("svc-pretrain", "foundation"))
"""Accounts as the field's examples have them; they mean nobody."""


def small_day(rng: random.Random, day: Day | None = None) -> list[Wish]:
    """The wishes of one day, in order of time."""
    day = day or Day()
    return sorted([*_training(rng, day), *_serving(rng, day)], key=lambda wish: wish.at_s)


def small_days(rng: random.Random, day: Day, count: int) -> list[Wish]:
    """`count` such days, one after another, no two alike. At midnight serving is down to its fewest replicas."""
    return [
        replace(wish, at_s=number * day.length_s + wish.at_s) for number in range(count) for wish in small_day(rng, day)
    ]


def traffic(time_of_day: float) -> float:
    """Serving load at `time_of_day` (0 to 1), as a share of its peak: lowest at 3 in the morning, highest at 15."""
    return 0.5 - 0.5 * math.cos(2 * math.pi * (time_of_day - 3 / 24))


def _training(rng: random.Random, day: Day) -> list[Submit]:
    weights = day.gang_weights[: day.nodes]
    jobs = []
    for number in range(day.jobs):
        user, account = rng.choice(USERS)
        duration_s = day.length_s * day.mean_job * rng.lognormvariate(-0.125, 0.5)
        nodes = rng.choices(range(1, len(weights) + 1), weights)[0]
        job = JobRequest(
            nodes=nodes,
            duration_s=duration_s,
            user=user,
            account=account,
            name=f"train-{number + 1}",
            time_limit_s=2 * duration_s,
        )
        jobs.append(Submit(day.length_s * rng.triangular(0, 1, 0.75), job))
    return jobs


def _serving(rng: random.Random, day: Day) -> list[Deploy | Scale]:
    """Replicas follow the curve with some noise; a scaling that changes nothing is left out."""
    startup_s = min(30.0, day.length_s / 500)
    chat = Deployment("chat", replicas=day.fewest_replicas, startup_s=startup_s)
    wishes: list[Deploy | Scale] = [Deploy(0, chat)]
    present = day.fewest_replicas
    for step in range(day.scalings):
        time_of_day = step / day.scalings
        load = traffic(time_of_day) + rng.gauss(0, 0.04)
        span = day.most_replicas - day.fewest_replicas
        wanted = day.fewest_replicas + round(span * min(1.0, max(0.0, load)))
        if wanted != present:
            wishes.append(Scale(day.length_s * time_of_day, chat.key, wanted))
            present = wanted
    return wishes


def restless(rng: random.Random, *, nodes: int, length_s: float, mean_s: float = 60) -> list[Wish]:
    """No day that anybody has: demand that jumps every `mean_s` or so, so that nodes change hands often."""
    chat = Deployment("chat", replicas=0, startup_s=2)
    wishes: list[Wish] = [Deploy(0, chat)]
    moment_s = rng.expovariate(1 / mean_s)
    while moment_s < length_s:
        wishes.append(Scale(moment_s, chat.key, rng.randint(0, nodes)))
        gang = JobRequest(
            nodes=rng.randint(1, nodes),
            duration_s=rng.uniform(5, mean_s),
            time_limit_s=2 * mean_s,
            dying_s=rng.choice([0, 0, 5]),
            orphan_s=rng.choice([0, 0, 0, 20]),
        )
        wishes.append(Submit(moment_s + rng.uniform(0, mean_s), gang))
        moment_s += rng.expovariate(1 / mean_s)
    wishes.append(Scale(length_s, chat.key, 0))
    return sorted(wishes, key=lambda wish: wish.at_s)
