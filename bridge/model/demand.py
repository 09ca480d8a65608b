"""Demand of both worlds in one shape, who waits for how many whole nodes; and what runs, which may be a victim."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from bridge.model.ownership import Side


@dataclass(frozen=True, slots=True)
class Demand:
    """Work that waits for `nodes` whole nodes on `side`.

    `whole` is True for a gang (all nodes or none, opened together) and False for serving pods, where each node helps by
    itself. `key` names it for people and stays the same from pass to pass (``job 17 of alice``,
    ``Deployment default/chat``). `rank` is what the policy's priorities make of its QoS or priority class, comparable
    across both sides; `priority` is its own scheduler's order inside its side. Larger goes first, then the longer wait.

    A node helps only if it has `gpus_per_node` GPUs and, where `features` is not empty, all features of one of its
    alternatives (Slurm features, and Kubernetes labels as ``key=value``). `switches` is the most leaf switches that the
    gang wants to be under, 0 for no wish. `impossible` says why no lent node can ever help: such a demand is named to
    people and not counted. `alike` is how many demands this one stands for: 1, or more where `impossible` is set.
    """

    key: str
    side: Side
    pool: str
    nodes: int
    whole: bool
    priority: int
    since: datetime
    team: str = ""
    rank: int = 0
    gpus_per_node: int = 0
    features: tuple[frozenset[str], ...] = ()
    switches: int = 0
    impossible: str = ""
    alike: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """What runs and could only be ended whole: a Slurm job on all its nodes (het components together), or one pod.

    `nodes` are the bridge's names, shared nodes only. `ends_in_s` is when its time limit ends it at the latest, None
    without a limit. `loss_gpu_s` is what ending it now would lose, in GPU-seconds:
    GPUs x (seconds since its last checkpoint + seconds to restart), for a serving pod GPUs x warm-up seconds.
    `protected` says why it is never a victim, in words for people, or is empty. `job` is the Slurm job id to requeue,
    None for a pod, which is evicted. `idle_worker`: holds its GPUs without using them (a Ray worker that waits).
    """

    key: str
    side: Side
    team: str
    nodes: tuple[str, ...]
    gpus: int
    priority: int
    rank: int
    runs_for_s: float
    ends_in_s: float | None
    loss_gpu_s: float
    protected: str = ""
    job: int | None = None
    idle_worker: bool = False
    signal: str = ""
    """The one that it wants its end told by (see `bridge.model.slurm.is_signal`), or empty."""
    grace_s: float | None = None
    """How long it wants from the signal to the end."""
    saves: str = ""
    """What its loss rests on, in words for people, or empty."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Work that a handoff may end to empty its node: what it costs, and how it is asked to go.

    A Slurm job gets `signal` (empty: none) when its node is closed and is requeued `grace_s` later if it still runs, or
    waited for where not `forced`; a pod (`job` None) is evicted through its disruption budget.
    """

    key: str
    side: Side
    job: int | None
    loss_gpu_s: float
    signal: str = ""
    grace_s: float = 0.0
    forced: bool = True
