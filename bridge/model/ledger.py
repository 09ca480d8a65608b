"""What the ledger holds, as one consistent reading, and the changes that may be committed to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Closure, Lease, Mark, Node, Side
from bridge.model.pause import EVERYTHING, Pause, joined
from bridge.model.policy import Policy


class RequestState(StrEnum):
    PENDING = "pending"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Request:
    """A person's order to move `nodes` to `destination`, written by any broker replica and answered by the leader."""

    id: str
    nodes: tuple[str, ...]
    destination: Side
    requested_by: str
    reason: str
    requested_at: datetime
    state: RequestState = RequestState.PENDING
    answer: str = ""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What is remembered of a node between two passes.

    `idle_since`: since when it has been seen idle on its owner's side. `backoff_until`: left alone until then after a
    failed handoff. `unusable`: why its owner cannot use it (an opening that was never proved), or empty.
    `lifted_drain_at`: when the drain of ours had been set whose reason Slurm still showed after it was lifted.
    """

    node: Node
    idle_since: datetime | None = None
    backoff_until: datetime | None = None
    unusable: str = ""
    lifted_drain_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FenceAck:
    """The Slurm agent's word that the fence file on the controller host shows all leases up to `generation`."""

    generation: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Usage:
    """What a team has used on both sides until `at`, in GPU-seconds that lose half their weight every half-life."""

    team: str
    gpu_s: float
    at: datetime


@dataclass(frozen=True, slots=True)
class Backoff:
    """A demand whose gang could not be collected in time is left alone until then; `failures` so far, in a row."""

    demand: str
    until: datetime
    failures: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """A victim that was chosen: counted against the limits per window, and against ending the same work twice."""

    key: str
    side: Side
    at: datetime
    loss_gpu_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """What the circuit breaker must know of a handoff that ended; see `bridge.model.handoff.Handoff`."""

    node: str
    lease: str
    requested_by: str
    began_at: datetime
    ended_at: datetime
    late_in: Step | None


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Everything the reconciler needs, read in one transaction. Keys of the maps are node names."""

    policy: Policy = field(default_factory=Policy)
    policy_version: int = 0
    pauses: tuple[Pause, ...] = ()
    """What stops new handoffs, those that reach farthest first."""
    releases: tuple[Pause, ...] = ()
    """Pauses of the circuit breaker that a person lifted: they stop nothing."""
    generation: int = 0
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    handoffs: dict[str, Handoff] = field(default_factory=dict)
    closures: dict[tuple[str, Side], Closure] = field(default_factory=dict)
    requests: tuple[Request, ...] = ()
    fence_ack: FenceAck | None = None
    usage: dict[str, Usage] = field(default_factory=dict)
    """By team."""
    backoffs: dict[str, Backoff] = field(default_factory=dict)
    """By demand; one that is over for a day may be missing."""
    preempted: tuple[Preempted, ...] = ()
    """Newest first. Older ones than `PREEMPTED_FOR_S` are forgotten when the next victim is chosen."""
    reclaim_s: dict[Side, tuple[float, ...]] = field(default_factory=dict)
    """How long the last handoffs (at most `RECLAIMS`) to each side took that went well, in seconds, newest first."""
    ended: tuple[Ended, ...] = ()
    """Handoffs that ended within the longest window of the policy's breakers, newest first."""

    @property
    def paused(self) -> str:
        """Why nothing at all begins to move; empty when that is not so."""
        return joined(pause for pause in self.pauses if pause.scope == EVERYTHING)


PREEMPTED_FOR_S = 86_400.0
RECLAIMS = 100


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the append-only log. `id` grows; `actor` is a user or ``broker``."""

    id: int
    at: datetime
    kind: str
    message: str
    actor: str
    node: str | None = None
    handoff: str | None = None
    lease: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


# --- changes: one commit is a tuple of these, all or nothing ---


@dataclass(frozen=True, slots=True)
class PutLease:
    """Make `lease` the node's live lease. `replaces` is the (id, generation) that was read, None: no lease yet."""

    lease: Lease
    replaces: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class PutHandoff:
    """Insert `handoff` (`replaces` None) or rewrite it if its stored step is still `replaces`."""

    handoff: Handoff
    replaces: Step | None


@dataclass(frozen=True, slots=True)
class PutClosure:
    """Record that a side of a node is (about to be) closed with a mark, or what was read back of it."""

    closure: Closure


@dataclass(frozen=True, slots=True)
class DropClosure:
    """Forget a closure, after it was read back as lifted. Does nothing when another mark stands there."""

    node: str
    side: Side
    mark: Mark


@dataclass(frozen=True, slots=True)
class PutRecord:
    """Remember what was learned of a node: idle since, backoff, unusable."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class PutSighting:
    """The last thing seen of a node on one side, for people. `unknown` says why nothing is known."""

    node: str
    side: Side
    at: datetime
    summary: dict[str, Any]
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class LeadersSight:
    """What the leader said of its last pass: `unread` has the sides that it could not read, and why.

    `at` is on the ledger's own clock. A standby does not look at Slurm and Kubernetes, and answers with this.
    """

    unread: Mapping[Side, str]
    at: datetime


@dataclass(frozen=True, slots=True)
class PutUsage:
    usage: Usage


@dataclass(frozen=True, slots=True)
class PutBackoff:
    """Remember that a demand is left alone for a while; one whose demand is gone for a day may be forgotten."""

    backoff: Backoff


@dataclass(frozen=True, slots=True)
class DropBackoff:
    """The demand's gang was collected: the next failure is its first again."""

    demand: str


@dataclass(frozen=True, slots=True)
class PutPreempted:
    preempted: Preempted


@dataclass(frozen=True, slots=True)
class PutPause:
    """Set a pause, or rewrite what stands there if it is still `replaces` (None: nothing of that scope and kind)."""

    pause: Pause
    replaces: Pause | None


@dataclass(frozen=True, slots=True)
class DropPause:
    """Forget a pause if it is still the same."""

    pause: Pause


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    id: str
    state: RequestState
    answer: str


@dataclass(frozen=True, slots=True)
class Note:
    """Append a line to the event log."""

    kind: str
    message: str
    at: datetime
    actor: str = "broker"
    node: str | None = None
    handoff: str | None = None
    lease: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


Change = (
    PutLease
    | PutHandoff
    | PutClosure
    | DropClosure
    | PutRecord
    | PutSighting
    | PutUsage
    | PutBackoff
    | DropBackoff
    | PutPreempted
    | PutPause
    | DropPause
    | AnswerRequest
    | Note
)
