"""What a commit does to the ledger: the rules, as pure code that both ledgers share.

Invariants kept here, and once more by the constraints of `bridge.store.tables`:

- `OneLease`: a node has at most one live lease and at most one live handoff.
- `LaterWins`: a node's leases carry growing generations, and owner changes only with the generation; of two marks on a
  node the later one is always the larger.
- `HistoryStands`: an ended handoff and a replaced lease are never written again.
- `LegalRow`: a row says something that can be true (`legal_lease`, `legal_handoff`, `legal_amount`).

`Conflict` says that the world moved on since the caller read it; `InvariantViolation` that the caller is wrong.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TypeVar

from bridge.model.errors import Conflict, InvariantViolation
from bridge.model.handoff import Handoff
from bridge.model.ledger import (
    PREEMPTED_FOR_S,
    AnswerRequest,
    Backoff,
    Change,
    DropBackoff,
    DropClosure,
    DropPause,
    Ended,
    NodeRecord,
    Note,
    Preempted,
    PutBackoff,
    PutClosure,
    PutHandoff,
    PutLease,
    PutPause,
    PutPreempted,
    PutRecord,
    PutSighting,
    PutUsage,
    Request,
    RequestState,
    Usage,
)
from bridge.model.ownership import Closure, Lease, Mark, Side
from bridge.model.pause import Pause, PauseKey
from bridge.model.policy import Policy

LEASE_ID = r"^[a-z0-9]{8,40}$"
"""What a lease id must look like, or a mark made with it could not be read back (see `Mark.parse`)."""

K = TypeVar("K", str, tuple[str, Side])
V = TypeVar("V")

_LEASE_ID = re.compile(LEASE_ID)


@dataclass(slots=True)
class Rows:
    """Rows of the ledger by their keys: all of them, or those that a commit touches.

    `nodes` are the inventory; `leases` the live ones by node; `generations` the largest one a node's leases ever had;
    `moving` the live handoff's id by node; `handoffs` by id; `usage` by team, `backoffs` by demand, `preempted` by
    (key, side, time), `pauses` by scope and kind. None stands for a row that was taken away.
    """

    nodes: MutableMapping[str, NodeRecord] = field(default_factory=dict)
    leases: MutableMapping[str, Lease] = field(default_factory=dict)
    generations: MutableMapping[str, int] = field(default_factory=dict)
    moving: MutableMapping[str, str | None] = field(default_factory=dict)
    handoffs: MutableMapping[str, Handoff] = field(default_factory=dict)
    closures: MutableMapping[tuple[str, Side], Closure | None] = field(default_factory=dict)
    sightings: MutableMapping[tuple[str, Side], PutSighting] = field(default_factory=dict)
    requests: MutableMapping[str, Request] = field(default_factory=dict)
    usage: MutableMapping[str, Usage] = field(default_factory=dict)
    backoffs: MutableMapping[str, Backoff | None] = field(default_factory=dict)
    preempted: MutableMapping[tuple[str, Side, datetime], Preempted] = field(default_factory=dict)
    pauses: MutableMapping[PauseKey, Pause | None] = field(default_factory=dict)

    def copy(self) -> Rows:
        """The same rows, to be changed apart from these (a row itself never changes)."""
        return Rows(**{each.name: dict(getattr(self, each.name)) for each in fields(self)})


def by_key(found: Mapping[K, V]) -> dict[K, V]:
    """In the order of the keys, so that what is decided on a reading does not hang on how rows happen to lie."""
    return {key: found[key] for key in sorted(found)}


def newest_first(found: Iterable[Preempted]) -> tuple[Preempted, ...]:
    """Newest first, and in an order of their own where the times are the same."""
    return tuple(sorted(sorted(found, key=lambda each: (each.key, each.side)), key=lambda each: each.at, reverse=True))


def forgotten_before(written: Iterable[Preempted]) -> datetime:
    """Victims that were chosen before this are forgotten in the commit that writes `written`, which is not empty."""
    return max(each.at for each in written) - timedelta(seconds=PREEMPTED_FOR_S)


def last_ended(found: Iterable[Ended]) -> tuple[Ended, ...]:
    """Newest first, and in an order of their own where the times are the same."""
    in_order = sorted(
        found, key=lambda each: (each.node, each.lease, each.requested_by, each.began_at, str(each.late_in))
    )
    return tuple(sorted(in_order, key=lambda each: each.ended_at, reverse=True))


def breaker_window(policy: Policy) -> timedelta:
    """How far back the breakers of the policy look; handoffs that ended before are not read."""
    return timedelta(seconds=max((pool.breaker.window_s for pool in policy.pools), default=0.0))


def took_s(began_at: datetime, ended_at: datetime) -> float:
    """Seconds from begin to end; 0 when the clock was set back in between."""
    return max(0.0, (ended_at - began_at).total_seconds())


class Draft:
    """Changes applied on top of rows that stay untouched, so that a commit which fails half-way leaves no trace.

    `written` holds the last state of each row that was written, `replaced` the leases that ended (in order), `notes`
    the lines for the event log.
    """

    def __init__(self, base: Rows) -> None:
        self.written = Rows()
        self.replaced: list[Lease] = []
        self.notes: list[Note] = []
        self._base = base
        self._now = Rows(
            nodes=ChainMap(self.written.nodes, base.nodes),
            leases=ChainMap(self.written.leases, base.leases),
            generations=ChainMap(self.written.generations, base.generations),
            moving=ChainMap(self.written.moving, base.moving),
            handoffs=ChainMap(self.written.handoffs, base.handoffs),
            closures=ChainMap(self.written.closures, base.closures),
            sightings=self.written.sightings,
            requests=ChainMap(self.written.requests, base.requests),
            usage=self.written.usage,
            backoffs=self.written.backoffs,
            preempted=self.written.preempted,
            pauses=ChainMap(self.written.pauses, base.pauses),
        )

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply in order. Raises `Conflict` or `InvariantViolation`; the draft is then worthless."""
        for change in changes:
            self._apply(change)
        self._leases_name_their_own_handoffs()

    def _apply(self, change: Change) -> None:
        match change:
            case PutLease():
                self._put_lease(change)
            case PutHandoff():
                self._put_handoff(change)
            case PutClosure(closure=closure):
                self._known(closure.node)
                legal_mark(closure.mark)
                self._now.closures[closure.node, closure.side] = closure
            case DropClosure(node=node, side=side, mark=mark):
                standing = self._now.closures.get((node, side))
                if standing is not None and standing.mark == mark:
                    self._now.closures[node, side] = None
            case PutRecord(record=record):
                # The inventory itself changes only with the policy: a pass must not write back names it read before.
                known = self._known(record.node.name)
                self._now.nodes[record.node.name] = replace(record, node=known.node)
            case PutSighting():
                self._known(change.node)
                self._now.sightings[change.node, change.side] = change
            case AnswerRequest():
                self._answer(change)
            case Note():
                self.notes.append(change)
            case PutPause(pause=pause, replaces=replaces):
                self._pause_is(pause, replaces)
                self._now.pauses[pause.key] = pause
            case DropPause(pause=pause):
                self._pause_is(pause, pause)
                self._now.pauses[pause.key] = None
            case _:
                self._remember(change)

    def _remember(self, change: PutUsage | PutBackoff | DropBackoff | PutPreempted) -> None:
        match change:
            case PutUsage(usage=usage):
                legal_amount(f"use of team {usage.team}", usage.gpu_s)
                self._now.usage[usage.team] = usage
            case PutBackoff(backoff=backoff):
                if backoff.failures < 1:
                    raise InvariantViolation(
                        "LegalRow", f"backoff of {backoff.demand} after {backoff.failures} failures"
                    )
                self._now.backoffs[backoff.demand] = backoff
            case DropBackoff(demand=demand):
                self._now.backoffs[demand] = None
            case PutPreempted(preempted=chosen):
                legal_amount(f"loss of {chosen.key}", chosen.loss_gpu_s)
                self._now.preempted[chosen.key, chosen.side, chosen.at] = chosen

    def _pause_is(self, pause: Pause, expected: Pause | None) -> None:
        found = self._now.pauses.get(pause.key)
        if found != expected:
            raise Conflict(f"{pause.kind} of {pause.scope}: expected {expected or 'none'}, found {found or 'none'}")

    def _known(self, node: str) -> NodeRecord:
        record = self._now.nodes.get(node)
        if record is None:
            raise Conflict(f"node {node} is not in the inventory (any more)")
        return record

    def _put_lease(self, change: PutLease) -> None:
        lease = change.lease
        self._known(lease.node)
        legal_lease(lease)
        standing = self._now.leases.get(lease.node)
        found = None if standing is None else (standing.id, standing.generation)
        if found != change.replaces:
            raise Conflict(f"lease of node {lease.node}: expected {_said(change.replaces)}, found {_said(found)}")
        if standing is not None and found == (lease.id, lease.generation):
            _same_right(standing, lease)
        else:
            latest = self._now.generations.get(lease.node, 0)
            if lease.generation <= latest:
                raise InvariantViolation(
                    "LaterWins", f"node {lease.node} had generation {latest}, its next lease has {lease.generation}"
                )
            if standing is not None:
                self.replaced.append(standing)
        self._now.leases[lease.node] = lease
        self._now.generations[lease.node] = lease.generation

    def _put_handoff(self, change: PutHandoff) -> None:
        handoff = change.handoff
        self._known(handoff.node)
        legal_handoff(handoff)
        standing = self._now.handoffs.get(handoff.id)
        found = None if standing is None else standing.step
        if found != change.replaces:
            raise Conflict(f"handoff {handoff.id}: expected {change.replaces or 'none'}, found {found or 'none'}")
        if standing is not None and standing.node != handoff.node:
            raise InvariantViolation("LegalRow", f"handoff {handoff.id} moves from {standing.node} to {handoff.node}")
        if standing is not None and standing.step.ended:
            raise InvariantViolation("HistoryStands", f"handoff {handoff.id} has ended as {standing.step}")
        moving = self._now.moving.get(handoff.node)
        if moving not in (None, handoff.id):
            raise Conflict(f"node {handoff.node}: expected no live handoff, found {moving}")
        self._now.handoffs[handoff.id] = handoff
        self._now.moving[handoff.node] = None if handoff.step.ended else handoff.id

    def _answer(self, change: AnswerRequest) -> None:
        request = self._now.requests.get(change.id)
        if request is None:
            raise Conflict(f"request {change.id}: expected pending, found none")
        answered = replace(request, state=change.state, answer=change.answer)
        if request.state is not RequestState.PENDING and request != answered:
            raise Conflict(f"request {change.id}: expected pending, found {request.state}")
        self._now.requests[change.id] = answered

    def _leases_name_their_own_handoffs(self) -> None:
        for lease in self.written.leases.values():
            if lease.handoff is None:
                continue
            handoff = self._now.handoffs.get(lease.handoff)
            if handoff is None or handoff.node != lease.node:
                raise InvariantViolation(
                    "LegalRow",
                    f"lease {lease.id} of {lease.node} names handoff {lease.handoff}, which is not the node's",
                )


@dataclass(frozen=True, slots=True)
class Touched:
    """The keys that changes are about, for a ledger that loads only these rows.

    `nodes` are written to; `sighted` need only exist. `pauses`: whether any of them is about a pause.
    """

    nodes: frozenset[str]
    sighted: frozenset[str]
    handoffs: frozenset[str]
    requests: frozenset[str]
    pauses: bool


def touched(changes: Sequence[Change]) -> Touched:
    nodes: set[str] = set()
    sighted: set[str] = set()
    handoffs: set[str] = set()
    requests: set[str] = set()
    pauses = False
    for change in changes:
        match change:
            case PutLease(lease=lease):
                nodes.add(lease.node)
                handoffs.update([lease.handoff] if lease.handoff else [])
            case PutHandoff(handoff=handoff):
                nodes.add(handoff.node)
                handoffs.add(handoff.id)
            case PutClosure(closure=closure):
                nodes.add(closure.node)
            case DropClosure(node=node):
                nodes.add(node)
            case PutRecord(record=record):
                nodes.add(record.node.name)
            case PutSighting(node=node):
                sighted.add(node)
            case AnswerRequest(id=id):
                requests.add(id)
            case PutPause() | DropPause():
                pauses = True
            case Note() | PutUsage() | PutBackoff() | DropBackoff() | PutPreempted():
                pass
    return Touched(frozenset(nodes), frozenset(sighted), frozenset(handoffs), frozenset(requests), pauses)


def legal_lease(lease: Lease) -> None:
    """Raise `InvariantViolation` for a lease that the database would refuse."""
    _legal_id(lease.id)
    if lease.epoch < 1 or lease.generation < 1:
        raise InvariantViolation("LegalRow", f"lease {lease.mark} of {lease.node}: epoch and generation start at 1")


def legal_handoff(handoff: Handoff) -> None:
    """Raise `InvariantViolation` for a handoff that the database would refuse."""
    _legal_id(handoff.lease)
    wrong = None
    if handoff.source is handoff.destination:
        wrong = f"goes from {handoff.source} to itself"
    elif handoff.step.ended != (handoff.ended_at is not None):
        wrong = f"is at step {handoff.step} and ended at {handoff.ended_at}"
    elif handoff.generation < 1:
        wrong = "has no generation"
    if wrong:
        raise InvariantViolation("LegalRow", f"handoff {handoff.id} of {handoff.node} {wrong}")
    for victim in handoff.victims:
        legal_amount(f"loss of {victim.key}", victim.loss_gpu_s)
        legal_amount(f"grace of {victim.key}", victim.grace_s)


def legal_amount(what: str, amount: float) -> None:
    """Raise `InvariantViolation` for a number that is none, or below nothing."""
    if not 0 <= amount < math.inf:
        raise InvariantViolation("LegalRow", f"{what} is {amount}")


def legal_mark(mark: Mark) -> None:
    """Raise `InvariantViolation` for a mark that could not be read back outside."""
    _legal_id(mark.lease)
    if min(mark.token) < 0:
        raise InvariantViolation("LegalRow", f"mark {mark} has a negative number")


def _legal_id(lease: str) -> None:
    if not _LEASE_ID.fullmatch(lease):
        raise InvariantViolation(
            "LegalRow", f"lease id {lease!r} does not match {LEASE_ID}: its marks would be unreadable"
        )


def _same_right(standing: Lease, lease: Lease) -> None:
    if standing.owner is not lease.owner:
        raise InvariantViolation(
            "LaterWins",
            f"lease {lease.id} of {lease.node} goes from {standing.owner} to {lease.owner} in one generation",
        )
    if lease.epoch < standing.epoch:
        raise InvariantViolation(
            "LaterWins", f"lease {lease.id} of {lease.node} goes back from epoch {standing.epoch} to {lease.epoch}"
        )


def _said(version: tuple[str, int] | None) -> str:
    return "none" if version is None else f"{version[0]}:{version[1]}"
