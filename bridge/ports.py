"""What the core needs from the world, as Protocols. Adapters and simulations implement them; the reconciler calls them.

Every method is synchronous, has a time-out of the adapter's own, and raises only errors of `bridge.model.errors`:
reads raise `Unreadable`, outside writes raise `CallFailed` (outcome unknown: they may have happened), ledger writes
raise `Fenced` or `Conflict`. Each write is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from bridge.model.handoff import Handoff
from bridge.model.kube import KubeObservation, LoanSpec, PodNote
from bridge.model.ledger import Change, Event, FenceAck, LeadersSight, LedgerState, PutSighting, Request
from bridge.model.ownership import Mark, Node, Side
from bridge.model.pause import EVERYTHING, PauseKind, Scope
from bridge.model.policy import Policy
from bridge.model.slurm import SlurmObservation

OnChange = Callable[[str], None]
"""Called from any thread with a short word saying what changed (``ledger``, ``kubernetes``); must return at once."""


class Clock(Protocol):
    """Time as an argument: wall time for records, monotonic time for waiting."""

    def now(self) -> datetime: ...

    def monotonic_s(self) -> float: ...


class SlurmPort(Protocol):
    """Slurm, for the shared nodes. Names are Slurm's node names; a call takes many nodes and is not atomic."""

    def observe(self) -> SlurmObservation:
        """Nodes, jobs and our reservations, read now; raises `Unreadable` unless all of it was read."""
        ...

    def drain(self, nodes: Collection[str], mark: Mark, why: str) -> None:
        """Set DRAIN with the reason ``<mark> <why>``. The caller has checked that no person's drain stands there."""
        ...

    def hold(self, nodes: Collection[str], reservation: str) -> None:
        """Add nodes to the pool's MAINT,IGNORE_JOBS reservation, creating it when it is missing."""
        ...

    def resume(self, nodes: Collection[str]) -> None:
        """RESUME nodes whose drain was read back as exactly ours. They stay inside the reservation."""
        ...

    def release(self, nodes: Collection[str], reservation: str) -> None:
        """Take nodes out of the reservation in one call: the opening. The reservation is deleted when it gets empty."""
        ...

    def signal(self, job: int, nodes: Collection[str], signal: str) -> None:
        """Send a signal (see `is_signal`) to a job that runs on one of `nodes`.

        A job that does not, one that is gone above all, is left alone and no failure. A het job goes by its leader's
        id, and is meant when any component runs there.
        """
        ...

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        """End a job that runs on one of `nodes`, whole, and put it back into the queue, to start anew.

        A job that does not run there is left alone and no failure; one that may not be requeued is left running, and
        the call fails. Where the job runs is read right before, as Slurm has no compare-and-set: in the moment between
        that reading and Slurm's answer (at most a call's time-out) it may end, or start elsewhere, and is then requeued
        all the same.
        """
        ...

    def hasten(self, job: int) -> None:
        """Lift the wait of about 120 s that Slurm puts on a job after a requeue; het jobs by their leader's id.

        For a job that was read as PENDING: while it is COMPLETING Slurm would take this and forget it. One that does
        not wait any more is left alone and no failure.
        """
        ...

    def renew_reservations(self) -> Collection[str]:
        """Give those of our reservations that come to their end a new one; the names of those renewed."""
        ...


class KubePort(Protocol):
    """Kubernetes, through the node controller's custom resources. Names are Kubernetes node names."""

    def observe(self) -> KubeObservation:
        """Nodes, loans, inspections, pods that wait for GPUs; `Unreadable` when the view may be old or partial."""
        ...

    def want(self, loans: Sequence[LoanSpec]) -> None:
        """Write each ``NodeLoan.spec``. Raises `Fenced` when a newer epoch or generation stands there already."""
        ...

    def inspect(self, node: str, nonce: str) -> None:
        """Ask the node's inspector who holds its GPU devices; the answer appears in a later observation."""
        ...

    def tell(self, notes: Sequence[PodNote]) -> None:
        """Tell people about pods. Returns at once and never fails: nothing depends on whether it is read."""
        ...

    def watch(self, on_change: OnChange) -> None:
        """From now on call `on_change` whenever an observation would differ."""
        ...

    def close(self) -> None: ...


class Ledger(Protocol):
    """Postgres: the one truth. Every write by the leader names its epoch and fails with `Fenced` when that is over."""

    # leadership, on the database's own clock
    def campaign(self, holder: str, ttl_s: float, above: tuple[int, int] = (0, 0)) -> int | None:
        """Become leader when the lease row is free or expired: the new epoch, higher than all before. None otherwise.

        `above` is the largest (epoch, generation) of the marks outside, each number by itself, when they are ahead of a
        ledger that was restored from the past: the epoch and all generations from now on are larger than these too.
        """
        ...

    def renew(self, holder: str, epoch: int, ttl_s: float, unread: Mapping[Side, str]) -> bool:
        """Extend the leader lease, and say which sides this pass could not read. False: somebody else leads now."""
        ...

    def resign(self, holder: str, epoch: int) -> None: ...

    def leader(self) -> tuple[str, int] | None:
        """(holder, epoch) of the unexpired leader."""
        ...

    def leaders_sight(self) -> LeadersSight | None:
        """What the unexpired leader said when it last renewed. None: nobody leads, or it has not finished a pass."""
        ...

    # the leader's reads and writes
    def read(self) -> LedgerState: ...

    def next_generation(self) -> int:
        """A number larger than all before, from one sequence for all nodes."""
        ...

    def commit(self, epoch: int, changes: Sequence[Change]) -> None:
        """All or nothing. `Fenced`: the epoch is over. `Conflict`: a row is not what the change replaces."""
        ...

    # what any replica may do
    def sightings(self) -> Mapping[tuple[str, Side], PutSighting]:
        """What was last seen of each node on each side, by (node name, side)."""
        ...

    def apply_policy(
        self, policy: Policy, nodes: Sequence[Node], *, replaces: int, author: str, note: str, at: datetime
    ) -> int:
        """Store a new version, make `nodes` the inventory of its pools, and return its number.

        `Conflict` when the current version is not `replaces`; `Invalid` when a node that leaves the inventory is in
        motion or lent.
        """
        ...

    def policy_history(self, limit: int) -> list[tuple[int, datetime, str, str, Policy]]:
        """Newest first: (version, at, author, note, document)."""
        ...

    def submit(self, request: Request) -> None: ...

    def request(self, id: str) -> Request | None: ...

    def pause(
        self, reason: str, *, actor: str, at: datetime, scope: Scope = EVERYTHING, kind: PauseKind = PauseKind.STOP
    ) -> None:
        """Start no new handoff in `scope` until it is resumed; running ones finish. `Invalid` without a reason.

        A `kind` of recall is the same, but that every node which is lent comes home.
        """
        ...

    def resume(self, *, actor: str, at: datetime, scope: Scope = EVERYTHING) -> None:
        """End the pauses of exactly this scope, of whatever kind; those of other scopes stand."""
        ...

    def acknowledge_fence(self, ack: FenceAck) -> None: ...

    def handoffs(self, *, limit: int, node: str | None = None) -> list[Handoff]:
        """Newest first, ended ones included."""
        ...

    def handoff(self, id: str) -> Handoff | None: ...

    def handoff_events(self, handoff: str) -> list[Event]:
        """In order of id."""
        ...

    def events(self, *, after: int, limit: int) -> list[Event]:
        """In order of id, those with a larger id than `after`."""
        ...

    def last_event_id(self) -> int:
        """The id of the newest event, 0 when there is none."""
        ...

    def watch(self, on_change: OnChange) -> None:
        """From now on call `on_change` whenever something was committed, by anyone."""
        ...

    def close(self) -> None: ...
