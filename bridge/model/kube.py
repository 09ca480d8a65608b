"""What the bridge reads of Kubernetes, and the two custom resources through which it speaks to its node controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from bridge.model.ownership import Mark, Owner


@dataclass(frozen=True, slots=True)
class LoanSpec:
    """What the broker wants of one node: the body of ``NodeLoan.spec``.

    With `owner` Kubernetes the node is to be open (no taint, no fence entry), else closed. `evict` allows the
    controller to evict what still runs. A non-empty `nonce` asks for a proof of emptiness that quotes it.
    """

    node: str
    owner: Owner
    mark: Mark
    gpus: int
    evict: bool = False
    nonce: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LoanStatus:
    """What the node controller last made true of a node: ``NodeLoan.status``.

    `observed` is the mark of the spec this status answers. `closed`/`open` are what was read back: both latches stand /
    neither does. `empty_nonce` quotes the nonce of the last proof of emptiness (given from a quorum list after both
    latches stood, for the node with `node_uid`). `blockers` say what keeps the node from being empty or usable.
    """

    phase: str = ""
    observed: Mark | None = None
    closed: bool = False
    open: bool = False
    empty_nonce: str = ""
    node_uid: str = ""
    pods_left: int = 0
    gpus_allocatable: int = 0
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A process that has a GPU device file open, as the inspector on its node saw it."""

    pid: int
    command: str
    user: str
    device: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}, {self.user}) holds {self.device}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """An inspector's answer to a nonce. `error` is set when it could not look; then nothing may be concluded."""

    nonce: str
    holders: tuple[DeviceHolder, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod that keeps a node from being empty, as far as choosing victims needs it.

    `owner` is the kind that makes it again (empty: bare, it would never come back). `disruptions_allowed` is the room
    left in the tightest of its PodDisruptionBudgets, None without one. `warm_up_s` is how long it took from start to
    Ready. `protected` says why nobody may evict it (its own annotation, a system pod). `role`: ``ray-head``,
    ``ray-worker`` or empty; `idle`: says itself that it holds its GPUs without using them. `gang` as in `PendingPod`:
    they end together.
    """

    namespace: str
    name: str
    uid: str
    gpus: int
    group: str = ""
    owner: str = ""
    priority: int = 0
    priority_class: str = ""
    started_at: datetime | None = None
    warm_up_s: float = 0.0
    disruptions_allowed: int | None = None
    protected: str = ""
    role: str = ""
    idle: bool = False
    gang: str = ""


@dataclass(frozen=True, slots=True)
class KubeNode:
    """One Node. `work_pods` keep it from being empty: all but mirror and allow-listed DaemonSet pods.

    `taint` is the lease in the bridge's taint as it stands, or empty.
    """

    name: str
    uid: str
    ready: bool
    cordoned: bool
    gpus_allocatable: int
    gpus_used: int = 0
    work_pods: tuple[str, ...] = ()
    spec: LoanSpec | None = None
    status: LoanStatus = LoanStatus()
    inspection: Inspection | None = None
    running: tuple[RunningPod, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu_allocatable_m: int = 0
    memory_allocatable_mib: int = 0
    taint: str = ""


@dataclass(frozen=True, slots=True)
class PendingPod:
    """An unschedulable pod that asks for GPUs or other devices of theirs.

    `group` names its controller, for people and for grouping.

    `gang` names the set of pods that only start together (a Kueue Workload, JobSet, PodGroup or Ray placement group),
    empty for none; `gang_pods` is how many of them do not run yet, also those that do not exist. `cpu_m` (thousandths
    of a CPU) and `memory_mib` are requested. `helps` are the names of the shared nodes on which it could run if they
    were open and free, None: any. `obstacle` says why no shared node can ever run it; it is then named and not counted.
    `share_ppm` is the largest share of a node that it takes of devices beside GPUs, in millionths, and `asks` tells
    them in words. `per_node`: at most so many of its group may run on one node, 0 for any number.
    """

    namespace: str
    name: str
    uid: str
    gpus: int
    group: str
    priority: int = 0
    pending_since: datetime | None = None
    message: str = ""
    cpu_m: int = 0
    memory_mib: int = 0
    priority_class: str = ""
    gang: str = ""
    gang_pods: int = 0
    helps: frozenset[str] | None = None
    obstacle: str = ""
    share_ppm: int = 0
    per_node: int = 0
    asks: str = ""


@dataclass(frozen=True, slots=True)
class PodNote:
    """What a pod's people are told, as an Event on it. `reason` is one word in CamelCase, `message` a sentence."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ServingPool:
    """What an inference team asks for in a ServingPool: `floor` and `headroom` in nodes, for `namespaces`."""

    name: str
    namespaces: tuple[str, ...]
    floor_nodes: int = 0
    headroom_nodes: int = 0
    max_nodes: int | None = None
    priority: int = 0
    team: str = ""


@dataclass(frozen=True, slots=True)
class KubeObservation:
    """A complete and fresh reading of the shared nodes and of the pods that wait for GPUs, or nothing (`Unreadable`).

    `controller_alive` is False when the node controller's heartbeat is stale: its status is then not to be believed.
    `loans_elsewhere` are the NodeLoans of nodes that are not in `nodes`: gone, or not shared (any more).
    """

    read_at: datetime
    nodes: dict[str, KubeNode]
    pending: tuple[PendingPod, ...] = ()
    serving_pools: tuple[ServingPool, ...] = ()
    controller_alive: bool = True
    loans_elsewhere: Mapping[str, LoanSpec] = field(default_factory=dict)
