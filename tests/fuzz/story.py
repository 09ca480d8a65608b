"""A story is data: what happens when, on which fleet. Whatever is left out of one leaves a story again.

That is what lets a failing one be shrunk. Nothing in it depends on what happened before it: a call breaks because it
is the next of its name after a moment, not because it is the hundredth.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.model.ownership import Side
from bridge.simulation.cluster import Deployment
from bridge.simulation.faults import When
from bridge.simulation.mishaps import MISHAPS
from bridge.simulation.slurm import JobRequest
from bridge.simulation.workload import Deploy, Scale, Submit, Wish

LENGTH_S = 300.0
"""How long trouble lasts. Short and dense: as many seeds as possible, each shrinks quickly."""

WRITES = (
    "slurm.drain",
    "slurm.hold",
    "slurm.resume",
    "slurm.release",
    "slurm.signal",
    "slurm.requeue",
    "kube.want",
    "kube.inspect",
    "ledger.commit",
    "ledger.renew",
    "ledger.next_generation",
    "ledger.campaign",
)
"""Where a broker may die or freeze: between the intent and its act, and between the act and the next commit."""

OUTSIDE = tuple(call for call in WRITES if not call.startswith("ledger."))

READS = ("slurm.observe", "kube.observe", "ledger.read", "ledger.leader")


@dataclass(frozen=True, slots=True)
class Happens:
    """A mishap on a node (see `bridge.simulation.mishaps`), for `lasts_s`."""

    at_s: float
    mishap: str
    node: int
    lasts_s: float
    seed: int

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  {self.mishap} on gpu-{self.node + 1} for {self.lasts_s:.3f} s"


@dataclass(frozen=True, slots=True)
class Breaks:
    """The next call of that name breaks; a late one arrives `delay_s` after it was made."""

    at_s: float
    call: str
    when: When
    delay_s: float = 0

    def __str__(self) -> str:
        late = f", {self.delay_s:.3f} s late" if self.when is When.LATE else ""
        return f"{self.at_s:8.3f} s  the next {self.call} breaks: {self.when}{late}"


@dataclass(frozen=True, slots=True)
class Freezes:
    """The broker that makes the next call of that name stops right before it, for `lasts_s`; another one goes on."""

    at_s: float
    call: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  the broker freezes before its next {self.call} for {self.lasts_s:.3f} s"


@dataclass(frozen=True, slots=True)
class FailsOver:
    """A copy of the database falls behind, and takes over `lost_s` later: all commits in between are lost."""

    at_s: float
    lost_s: float

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  all commits of the next {self.lost_s:.3f} s are lost in a failover"


@dataclass(frozen=True, slots=True)
class Orders:
    """A person orders a node to a side, whatever the policy's minimum hold says."""

    at_s: float
    side: Side
    node: int

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  gpu-{self.node + 1} is ordered to {self.side}"


@dataclass(frozen=True, slots=True)
class Recalls:
    """A person recalls every lent node, and resumes after `lasts_s`."""

    at_s: float
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  every lent node is recalled for {self.lasts_s:.3f} s"


@dataclass(frozen=True, slots=True)
class Edits:
    """A person changes the policy."""

    at_s: float
    policy: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  the policy becomes {dict(self.policy)}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """Work: an sbatch, a Deployment, an autoscaler."""

    wish: Wish

    @property
    def at_s(self) -> float:
        return self.wish.at_s

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  {self.wish}"


Event = Happens | Breaks | Freezes | FailsOver | Orders | Recalls | Edits | Wishes


@dataclass(frozen=True, slots=True)
class Story:
    """`nodes` and `policy` (fields of `PoolPolicy`) are the fleet, `agent` whether a Slurm agent keeps the fence."""

    seed: int
    nodes: int
    agent: bool
    policy: Mapping[str, Any]
    events: tuple[Event, ...] = field(default=())

    def __str__(self) -> str:
        agent = "with" if self.agent else "without"
        head = f"seed {self.seed}: {self.nodes} nodes {agent} a Slurm agent, policy {dict(self.policy)}"
        return "\n".join([head, *map(str, self.events)])


def tell(seed: int) -> Story:
    """The story of a seed. Switches have chances of their own, so that older stories stay what they were."""
    rng, switches = random.Random(seed), random.Random(f"switches of {seed}")
    nodes = rng.choice([2, 3, 3, 4])
    policy = _policy(rng)
    events = [
        *map(Wishes, _work(rng, nodes)),
        *_mishaps(rng, nodes),
        *_broken_calls(rng),
        *_deaths(rng),
        *_people(rng, nodes),
        *_failovers(rng),
    ]
    agent = rng.random() < 0.7
    breaker = _breaker(switches)
    events = [_with_breaker(event, breaker) for event in events]
    events += _recalls(switches)
    events.sort(key=lambda event: event.at_s)
    return Story(seed, nodes, agent, {**policy, "breaker": breaker}, tuple(events))


def _breaker(rng: random.Random) -> dict[str, Any]:
    """It trips soon or late, and ends before what can be served must be served."""
    return {
        "window_s": 60,
        "cool_down_s": 30,
        "max_late_leases": rng.choice([0, 1, 10]),
        "max_out_fraction": rng.choice([0.3, 1]),
        "min_out_nodes": rng.choice([1, 2, 8]),
        "max_moves": rng.choice([4, 200]),
    }


def _with_breaker(event: Event, breaker: Mapping[str, Any]) -> Event:
    return replace(event, policy={**event.policy, "breaker": breaker}) if isinstance(event, Edits) else event


def _recalls(rng: random.Random) -> Iterator[Recalls]:
    for at_s in _moments(rng, rng.choice([100, 1000, 1000])):
        yield Recalls(at_s, round(min(LENGTH_S - at_s, rng.choice([5, 60]) * rng.random()), 3))


def _moments(rng: random.Random, mean_s: float, until_s: float = LENGTH_S) -> Iterator[float]:
    moment_s = rng.expovariate(1 / mean_s)
    while moment_s < until_s:
        yield round(moment_s, 3)
        moment_s += rng.expovariate(1 / mean_s)


def _work(rng: random.Random, nodes: int) -> Iterator[Wish]:
    """Demand that jumps, so that nodes change hands often; over when trouble is."""
    chat = Deployment(
        "chat",
        replicas=0,
        startup_s=2,
        shutdown_s=rng.choice([1, 1, 30]),
        min_available=rng.choice([0, 0, 1]),
    )
    mean_s = rng.choice([10, 25, 60])
    yield Deploy(0, chat)
    for at_s in _moments(rng, mean_s):
        yield Scale(at_s, chat.key, rng.randint(0, nodes))
    for at_s in _moments(rng, mean_s):
        yield Submit(at_s, _job(rng, nodes))
    yield Scale(LENGTH_S, chat.key, 0)


def _job(rng: random.Random, nodes: int) -> JobRequest:
    limit_s = rng.choice([30.0, 90.0])
    return JobRequest(
        nodes=rng.randint(1, nodes),
        duration_s=round(rng.uniform(5, limit_s), 3),
        time_limit_s=limit_s,
        gpus_per_node=rng.choice([8, 8, 4]),
        may_requeue=rng.random() < 0.8,
        dying_s=rng.choice([0, 0, 5]),
        epilog_s=rng.choice([0.5, 0.5, 40]),
        orphan_s=rng.choice([0, 0, 0, 20]),
        exits_on_signal=rng.random() < 0.5,
    )


def _mishaps(rng: random.Random, nodes: int) -> Iterator[Happens]:
    names = sorted(MISHAPS)
    for at_s in _moments(rng, rng.choice([8, 20, 60, 1000])):
        lasts_s = round(min(rng.choice([5, 40, 120]) * rng.random(), LENGTH_S - at_s), 3)
        yield Happens(at_s, rng.choice(names), rng.randrange(nodes), lasts_s, rng.getrandbits(32))


def _broken_calls(rng: random.Random) -> Iterator[Breaks]:
    for at_s in _moments(rng, rng.choice([3, 10, 1000])):
        if rng.random() < 0.2:
            yield Breaks(at_s, rng.choice(READS), When.BEFORE)
        elif rng.random() < 0.1:
            yield Breaks(at_s, "kube.observe", When.OLD)
        else:
            when = rng.choice([When.BEFORE, When.PARTWAY, When.AFTER, When.LATE, When.LATE])
            yield Breaks(at_s, rng.choice(WRITES), when, round(rng.uniform(0.1, 4.9), 3))


def _deaths(rng: random.Random) -> Iterator[Breaks | Freezes]:
    for at_s in _moments(rng, rng.choice([40, 150, 1000])):
        yield Breaks(at_s, rng.choice(WRITES), rng.choice([When.CRASH_BEFORE, When.CRASH_AFTER]))
    for at_s in _moments(rng, rng.choice([60, 200, 1000])):
        yield Freezes(at_s, rng.choice(OUTSIDE), round(rng.choice([3, 20, 90]) * (0.2 + rng.random()), 3))


def _failovers(rng: random.Random) -> Iterator[FailsOver]:
    for at_s in _moments(rng, rng.choice([100, 1000, 1000])):
        yield FailsOver(at_s, round(min(LENGTH_S - at_s, rng.choice([0.5, 3, 30]) * rng.random()), 3))


def _people(rng: random.Random, nodes: int) -> Iterator[Orders | Edits]:
    for at_s in _moments(rng, rng.choice([40, 120, 1000])):
        yield Orders(at_s, rng.choice(list(Side)), rng.randrange(nodes))
    for at_s in _moments(rng, rng.choice([80, 1000])):
        yield Edits(at_s, _policy(rng))


def _policy(rng: random.Random) -> dict[str, Any]:
    floor_nodes = rng.choice([0, 0, 1])
    return {
        "demand_age_s": 1,
        "idle_age_s": 1,
        "min_hold_s": rng.choice([0, 5, 30]),
        "max_in_flight": rng.choice([1, 2, 100]),
        "failure_backoff_s": 30,
        "gang_deadline_s": rng.choice([60, 1800]),
        "gang_backoff_s": 30,
        "slurm": {"floor_nodes": floor_nodes, "lend_limit_nodes": rng.choice([0, floor_nodes])},
        "kubernetes": {
            "floor_nodes": rng.choice([0, 0, 1]),
            "max_nodes": rng.choice([None, 2]),
            "weight": rng.choice([0, 1, 3]),
        },
        "headroom": {"nodes": rng.choice([0, 0, 1])},
        "preemption": {
            "mode": rng.choice(["none", "idle_only", "requeue", "requeue"]),
            "signal": rng.choice(["", "USR1"]),
            "grace_s": rng.choice([2, 20]),
            "min_runtime_s": 0,
            "respite_s": 60,
            "window_s": 120,
        },
    }
