"""What happens in a soak, by seed: what people do, what breaks and for how long. Data only; others carry it out.

Never two mishaps of one family at once (a machine cannot be off and frozen), at most `AT_ONCE` of any, and every kind
before any kind comes again. All of it lies within the first minutes but the last `CALM_S` seconds.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
DEPLOYMENTS = ("chat", "embed")
AT_ONCE = 2
CALM_S = 20.0
FIRST_MISHAP_S = 20.0
"""So that the first handoffs of a run are those of a healthy cluster."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of mishap. `verb`: how `tests.soak.mishaps` does it. `targets`: to whom; a cut's is ``A/B``."""

    name: str
    family: str
    verb: str
    targets: tuple[str, ...]
    shortest_s: float
    longest_s: float


def _container(name: str, longest_s: float) -> Kind:
    return Kind(f"kill {name}", name, "kill", (name,), 1, longest_s)


def _cut(name: str, *pairs: str, longest_s: float = 45) -> Kind:
    return Kind(f"cut {name}", f"cut {name}", "cut", pairs, 3, longest_s)


KINDS = (
    _container("broker", 30),
    _container("postgres", 40),
    _container("slurmctld", 30),
    _container("slurmrestd", 30),
    _container("slurm-agent", 60),
    _container("kube", 30),
    Kind("kill node", "node", "kill", NODES, 5, 40),
    Kind("pause node", "node", "pause", NODES, 5, 60),
    Kind("pause broker", "broker", "pause", ("broker",), 3, 30),
    Kind("kill slurmd", "slurmd", "kill service", tuple(f"{node}/slurmd" for node in NODES), 3, 60),
    Kind("kill kubelet", "kubelet", "kill service", tuple(f"{node}/kubelet" for node in NODES), 3, 60),
    Kind("kill node-controller", "node-controller", "kill pod", ("infra-1/node-controller",), 1, 2),
    Kind("kill inspector", "inspector", "kill pod", tuple(f"{node}/inspector" for node in NODES), 1, 2),
    _cut("broker from slurmrestd", "broker/slurmrestd"),
    _cut("broker from kube", "broker/kube"),
    _cut("broker from postgres", "broker/postgres"),
    _cut("slurm-agent from broker", "slurm-agent/broker", longest_s=60),
    _cut("slurmrestd from slurmctld", "slurmrestd/slurmctld"),
    _cut("node-controller from kube", "kube/infra-1"),
    _cut("node from kube", *(f"kube/{node}" for node in NODES), longest_s=60),
    _cut("node from slurmctld", *(f"slurmctld/{node}" for node in NODES), longest_s=60),
)
KIND = MappingProxyType({kind.name: kind for kind in KINDS})


@dataclass(frozen=True, slots=True)
class Mishap:
    """Something breaks at `at_s` and is mended `lasts_s` later."""

    at_s: float
    kind: str
    target: str
    lasts_s: float

    @property
    def family(self) -> str:
        return KIND[self.kind].family

    @property
    def until_s(self) -> float:
        return self.at_s + self.lasts_s


class Manner(StrEnum):
    """What a job makes of the signal by which a victim is told: saves its work, ignores it, or may not be requeued.

    One that may be requeued and does not know the signal would die of it; docs/policy.md says so, and nobody here does.
    """

    SAVES = "saves"
    IGNORES = "ignores"
    STAYS = "stays"


@dataclass(frozen=True, slots=True)
class Job:
    """An sbatch."""

    at_s: float
    name: str
    nodes: int
    seconds: int
    manner: Manner
    user: str


@dataclass(frozen=True, slots=True)
class Scale:
    at_s: float
    deployment: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Order:
    """A person sends nodes to one side, together."""

    at_s: float
    nodes: tuple[str, ...]
    destination: str


@dataclass(frozen=True, slots=True)
class Edit:
    """The pool's policy becomes another one; `pool` is what differs from the testbed's usual one."""

    at_s: float
    name: str
    pool: Mapping[str, Any]


Act = Mishap | Job | Scale | Order | Edit

_REQUEUE = {
    "mode": "requeue",
    "signal": "USR1",
    "grace_s": 3,
    "min_runtime_s": 0,
    "respite_s": 20,
    "restart_s": 0,
    "max_victims_per_window": 4,
    "window_s": 60,
}
USUAL: Mapping[str, Any] = {"empty_patience_s": 120, "gang_deadline_s": 120, "gang_backoff_s": 10}
EDITS: Mapping[str, Mapping[str, Any]] = {
    "usual": {},
    "a floor of one node for Slurm": {"slurm": {"floor_nodes": 1}},
    "a floor of one node for Kubernetes": {"kubernetes": {"floor_nodes": 1}},
    "floors for both": {"slurm": {"floor_nodes": 2}, "kubernetes": {"floor_nodes": 2}},
    "Kubernetes owns two nodes at most": {"kubernetes": {"max_nodes": 2}},
    "one node of headroom": {"headroom": {"mode": "fixed", "nodes": 1}},
    "jobs may be requeued": {"preemption": _REQUEUE},
    "jobs may be requeued, for a floor of two": {"preemption": _REQUEUE, "kubernetes": {"floor_nodes": 2}},
    "nothing is ended": {"preemption": {"mode": "none"}},
    "a long hold": {"min_hold_s": 15, "batch_window_s": 2},
    "little patience": {"empty_patience_s": 10, "gang_deadline_s": 15},
}


@dataclass(frozen=True, slots=True)
class Story:
    """Acts in order of time."""

    seed: int
    minutes: float
    acts: tuple[Act, ...]

    @property
    def mishaps(self) -> tuple[Mishap, ...]:
        return tuple(act for act in self.acts if isinstance(act, Mishap))


def tell(seed: int, minutes: float) -> Story:
    """The story of a seed. Each kind of act has randomness of its own, so that a change of one leaves the others."""
    until_s = minutes * 60 - CALM_S

    def by(what: str) -> random.Random:
        return random.Random(f"{seed} {what}")

    acts: Iterator[Act] = heapq.merge(
        _mishaps(by("mishaps"), until_s),
        _jobs(by("jobs"), until_s),
        _scales(by("scales"), until_s),
        _orders(by("orders"), until_s),
        _edits(by("edits"), until_s),
        key=_at_s,
    )
    return Story(seed, minutes, tuple(acts))


def _at_s(act: Act) -> float:
    return act.at_s


def _times(rng: random.Random, mean_s: float, until_s: float, *, first_s: float = 1.0) -> Iterator[float]:
    at_s = first_s
    while at_s < until_s:
        yield at_s
        at_s = round(at_s + 0.1 + rng.expovariate(1 / mean_s), 1)


def _mishaps(rng: random.Random, until_s: float) -> Iterator[Mishap]:
    bag: list[Kind] = []
    running: list[Mishap] = []
    at_s = FIRST_MISHAP_S
    while at_s < until_s:
        running = [mishap for mishap in running if mishap.until_s >= at_s]
        if len(running) >= AT_ONCE:
            at_s = min(mishap.until_s for mishap in running) + 0.1
            continue
        bag = bag or rng.sample(KINDS, len(KINDS))
        families = {mishap.family for mishap in running}
        free = next((kind for kind in bag if kind.family not in families), None)
        if free is None:
            at_s = min(mishap.until_s for mishap in running) + 0.1
            continue
        bag.remove(free)
        lasts_s = min(free.longest_s, free.shortest_s + rng.expovariate(3 / (free.longest_s - free.shortest_s)))
        mishap = Mishap(round(at_s, 1), free.name, rng.choice(free.targets), round(lasts_s, 1))
        if mishap.until_s < until_s:
            running.append(mishap)
            yield mishap
        at_s = mishap.at_s + rng.uniform(5, 35)


def _jobs(rng: random.Random, until_s: float) -> Iterator[Job]:
    for number, at_s in enumerate(_times(rng, 7, until_s)):
        nodes = rng.choices((1, 2, 3, 4), (62, 26, 8, 4))[0]
        seconds = min(60, 2 + round(rng.expovariate(1 / 8)))
        manner = rng.choices(tuple(Manner), (40, 40, 20))[0]
        yield Job(at_s, f"soak-{number}", nodes, seconds, manner, rng.choice(("alice", "bob")))


def _scales(rng: random.Random, until_s: float) -> Iterator[Scale]:
    for at_s in _times(rng, 8, until_s):
        yield Scale(at_s, rng.choice(DEPLOYMENTS), rng.choices((0, 1, 2, 3), (45, 30, 17, 8))[0])


def _orders(rng: random.Random, until_s: float) -> Iterator[Order]:
    for at_s in _times(rng, 20, until_s, first_s=15):
        count = rng.choices((1, 2), (80, 20))[0]
        yield Order(at_s, tuple(sorted(rng.sample(NODES, count))), rng.choice(("slurm", "kubernetes")))


def _edits(rng: random.Random, until_s: float) -> Iterator[Edit]:
    for at_s in _times(rng, 45, until_s, first_s=10):
        name = rng.choice(sorted(EDITS))
        yield Edit(at_s, name, {**USUAL, **EDITS[name]})
