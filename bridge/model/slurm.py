"""What the bridge reads of Slurm, in Slurm's own words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

SIGNALS = frozenset({"ALRM", "CONT", "HUP", "INT", "QUIT", "TERM", "URG", "USR1", "USR2"})
"""What a job may be sent. No other name ever leaves the bridge: slurmrestd answers one that it does not know with an
error, and cancels the job all the same (seen on 24.11)."""


WHOLE, BATCH_SCRIPT, STEPS = "", "B:", "S:"
"""Whom a signal is for, written before its name: the batch script and all steps, the script alone (sbatch's own
spelling), or the steps alone (what sbatch means without ``B:``)."""


def is_signal(spelled: str) -> bool:
    """Whether `spelled` is one of `SIGNALS`, or one with ``B:`` or ``S:`` before it."""
    return spelled.removeprefix(BATCH_SCRIPT) in SIGNALS or spelled.removeprefix(STEPS) in SIGNALS


REQUEUE_HOLD = timedelta(seconds=150)
"""Slurm lets a requeued job wait for about 120 s before it may start again."""

GPU_TYPE = "gpu:"
"""Begins the feature that tells a node's GPU type, as in ``gpu:h100``."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as slurmctld reports it. `states` are Slurm's flags in capitals, e.g. ``{"IDLE", "DRAIN"}``.

    `gpus` is the configured number (from Gres), `gpus_used` the allocated one. `reason_set_at` and `reason_user` belong
    to `reason` and outlive the drain that they once explained. `features` are Slurm's and one for each GPU type that
    the node tells (``gpu:h100``).
    """

    name: str
    states: frozenset[str]
    gpus: int
    gpus_used: int = 0
    reason: str = ""
    reason_user: str = ""
    reason_set_at: datetime | None = None
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    slurmd_started_at: datetime | None = None
    topology: str = ""
    """The switches above it as Slurm spells them, root first (``core:leaf1``), or empty."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job record: a plain job, one het component, or one (possibly still folded) array.

    `nodes` are the allocated nodes (empty while pending). `node_count` and `gpus_per_node` are the request, the latter
    0 when the job asks for no GPU. `waits_for` is Slurm's pending reason (``Resources``, ``Dependency``…).
    `task_count` is how many tasks of a pending array may run at once. `features` is Slurm's expression (``h100&ib``,
    ``a|b``, ``[x|y]``), `switches` the most leaf switches it asked for (0: no wish), `gpu_type` the type it asked for.
    """

    id: int
    state: str
    user: str
    account: str
    partition: str
    name: str = ""
    priority: int = 0
    node_count: int = 1
    gpus_per_node: int = 0
    nodes: tuple[str, ...] = ()
    waits_for: str = ""
    submitted_at: datetime | None = None
    begins_at: datetime | None = None
    started_at: datetime | None = None
    ends_at: datetime | None = None
    time_limit_s: float | None = None
    features: str = ""
    exclusive: bool = False
    may_requeue: bool = False
    held: bool = False
    task_count: int = 1
    het_job: int | None = None
    admin_comment: str = ""
    comment: str = ""
    qos: str = ""
    reservation: str = ""
    gpu_type: str = ""
    switches: int = 0
    array: int | None = None
    """The id of its array, for a task or a folded array."""
    restarts: int = 0
    """How often it was requeued."""


@dataclass(frozen=True, slots=True)
class SlurmObservation:
    """A complete, fresh reading of the shared nodes, of all their jobs and of the bridge's reservations.

    Nothing partial is ever put in here: a driver that could not read everything raises `Unreadable` instead.
    `held` are the nodes inside the bridge's own reservations, one a pool (its second latch).
    `controller_up_s` lets the core distrust what slurmctld says of nodes right after its restart: an age, as the
    clocks of two hosts may differ; None when the server does not tell.
    """

    read_at: datetime
    nodes: dict[str, SlurmNode]
    jobs: tuple[SlurmJob, ...] = ()
    held: frozenset[str] = frozenset()
    controller_up_s: float | None = None
