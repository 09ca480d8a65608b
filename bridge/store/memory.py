"""A ledger in memory, for tests and simulation: deterministic, and the same to its callers as Postgres.

One object stands for the database, so brokers that share it share their ledger, and a broker that restarts finds it as
it was. It keeps nothing that the Postgres ledger would not, and refuses what that refuses.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from bridge.model.errors import CallFailed, Conflict, Fenced, Invalid, Unreadable
from bridge.model.handoff import ADOPTER, Handoff, Step
from bridge.model.ledger import (
    RECLAIMS,
    Change,
    Ended,
    Event,
    FenceAck,
    LeadersSight,
    LedgerState,
    NodeRecord,
    Note,
    PutSighting,
    Request,
    RequestState,
)
from bridge.model.ownership import Lease, Node, Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Scope, released, standing
from bridge.model.policy import Policy
from bridge.ports import OnChange
from bridge.store.changes import (
    Draft,
    Rows,
    breaker_window,
    by_key,
    forgotten_before,
    last_ended,
    newest_first,
    took_s,
)
from bridge.store.inventory import inventory_change
from bridge.store.notes import pause_note, policy_note, request_note, resume_note
from bridge.store.plain import plain

_STORED = (
    "_lease_history",
    "_policies",
    "_events",
    "_fence_ack",
    "_drawn",
    "_epoch",
    "_holder",
    "_leads_until",
)
"""The fields of a ledger that are its database, but for its rows."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What a ledger held at a moment. `fields` are its own, by name; nothing in them is ever changed."""

    fields: dict[str, Any]


class MemoryLedger:
    """Implements `bridge.ports.Ledger`. `clock` is the database's clock, which leases run on.

    Fault knobs for simulations: while `away` is not empty the database cannot be reached, for that reason. The next
    `lost_answers` writes happen, and then fail with `CallFailed` as if the connection had broken before the answer.
    `backup` and `restore` take it back to the past.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.away = ""
        self.lost_answers = 0
        self._clock = clock
        self._lock = threading.RLock()
        self._rows = Rows()
        self._lease_history: list[Lease] = []
        self._policies: list[tuple[int, datetime, str, str, Policy]] = []
        self._events: list[Event] = []
        self._fence_ack: FenceAck | None = None
        self._drawn = 0
        self._epoch = 0
        self._holder: str | None = None
        self._leads_until: datetime | None = None
        self._sight: tuple[int, LeadersSight | None] = (0, None)
        self._watchers: list[OnChange] = []

    # --- leadership ---

    def campaign(self, holder: str, ttl_s: float, above: tuple[int, int] = (0, 0)) -> int | None:
        with self._writing(tell=False):
            if self._leading() is not None:
                return None
            self._epoch = max(self._epoch, above[0]) + 1
            self._drawn = max(self._drawn, above[1])
            self._holder = holder
            self._leads_until = self._clock() + timedelta(seconds=ttl_s)
            return self._epoch

    def renew(self, holder: str, epoch: int, ttl_s: float, unread: Mapping[Side, str]) -> bool:
        with self._writing(tell=False):
            if self._leading() != (holder, epoch):
                return False
            self._leads_until = self._clock() + timedelta(seconds=ttl_s)
            self._sight = (epoch, LeadersSight(dict(unread), self._clock()))
            return True

    def resign(self, holder: str, epoch: int) -> None:
        with self._writing() as tell:
            if (self._holder, self._epoch) != (holder, epoch):
                tell.clear()
                return
            self._holder = self._leads_until = None

    def leader(self) -> tuple[str, int] | None:
        with self._reading():
            return self._leading()

    def leaders_sight(self) -> LeadersSight | None:
        with self._reading():
            epoch, told = self._sight
            leading = self._leading()
            return told if leading is not None and leading[1] == epoch else None

    def _leading(self) -> tuple[str, int] | None:
        if self._holder is None or self._leads_until is None or self._leads_until <= self._clock():
            return None
        return self._holder, self._epoch

    # --- the leader's reads and writes ---

    def read(self) -> LedgerState:
        with self._reading():
            rows = self._rows
            return LedgerState(
                policy=self._policies[-1][4] if self._policies else Policy(),
                policy_version=len(self._policies),
                pauses=standing(self._pauses()),
                releases=released(self._pauses()),
                generation=max(rows.generations.values(), default=0),
                nodes=by_key(rows.nodes),
                leases=by_key(rows.leases),
                handoffs=by_key({node: rows.handoffs[id] for node, id in rows.moving.items() if id is not None}),
                closures=by_key(
                    {key: each for key, each in rows.closures.items() if each is not None and each.node in rows.nodes}
                ),
                requests=tuple(each for each in rows.requests.values() if each.state is RequestState.PENDING),
                fence_ack=self._fence_ack,
                usage=by_key(rows.usage),
                backoffs=by_key({demand: each for demand, each in rows.backoffs.items() if each is not None}),
                preempted=newest_first(rows.preempted.values()),
                reclaim_s=self._reclaims(),
                ended=self._ended(),
            )

    def _pauses(self) -> list[Pause]:
        return [pause for pause in self._rows.pauses.values() if pause is not None]

    def _ended(self) -> tuple[Ended, ...]:
        ended = [(each.ended_at, each) for each in self._rows.handoffs.values() if each.ended_at is not None]
        newest = min(max((at for at, _ in ended), default=self._clock()), self._clock())
        oldest = newest - breaker_window(self._policies[-1][4] if self._policies else Policy())
        return last_ended(
            Ended(each.node, each.lease, each.requested_by, each.began_at, at, each.late_in)
            for at, each in ended
            if at > oldest
        )

    def _reclaims(self) -> dict[Side, tuple[float, ...]]:
        found: dict[Side, list[float]] = {}
        for handoff in reversed(list(self._rows.handoffs.values())):
            done = handoff.step is Step.DONE and handoff.requested_by != ADOPTER
            if done and handoff.ended_at is not None and len(found.get(handoff.destination, ())) < RECLAIMS:
                found.setdefault(handoff.destination, []).append(took_s(handoff.began_at, handoff.ended_at))
        return {side: tuple(found[side]) for side in sorted(found)}

    def next_generation(self) -> int:
        with self._writing(tell=False):
            self._drawn += 1
            return self._drawn

    def commit(self, epoch: int, changes: Sequence[Change]) -> None:
        with self._writing() as tell:
            self._demand(epoch)
            draft = Draft(self._rows)
            draft.apply([plain(change) for change in changes])
            self._keep(draft)
            if not changes:
                tell.clear()

    def _demand(self, epoch: int) -> None:
        leading = self._leading()
        if leading is None:
            raise Fenced(f"epoch {epoch} is over: its leader lease has expired")
        if leading[1] != epoch:
            raise Fenced(f"epoch {epoch} is over: epoch {leading[1]} leads")

    def _keep(self, draft: Draft) -> None:
        rows, written = self._rows, draft.written
        rows.nodes.update(written.nodes)
        rows.leases.update(written.leases)
        rows.generations.update(written.generations)
        rows.moving.update(written.moving)
        rows.handoffs.update(written.handoffs)
        rows.sightings.update(written.sightings)
        rows.requests.update(written.requests)
        for key, closure in written.closures.items():
            rows.closures.pop(key, None)
            if closure is not None:
                rows.closures[key] = closure
        self._keep_memory(written)
        self._lease_history.extend(draft.replaced)
        self._log(draft.notes)

    def _keep_memory(self, written: Rows) -> None:
        rows = self._rows
        rows.pauses.update(written.pauses)
        rows.usage.update(written.usage)
        rows.backoffs.update(written.backoffs)
        rows.preempted.update(written.preempted)
        if written.preempted:
            oldest = forgotten_before(written.preempted.values())
            rows.preempted = {key: each for key, each in rows.preempted.items() if each.at >= oldest}

    def _log(self, notes: Sequence[Note]) -> None:
        for note in notes:
            self._events.append(
                Event(
                    id=len(self._events) + 1,
                    at=note.at,
                    kind=note.kind,
                    message=note.message,
                    actor=note.actor,
                    node=note.node,
                    handoff=note.handoff,
                    lease=note.lease,
                    data=note.data,
                )
            )

    # --- what any replica may do ---

    def apply_policy(
        self, policy: Policy, nodes: Sequence[Node], *, replaces: int, author: str, note: str, at: datetime
    ) -> int:
        with self._writing():
            author, note, at = plain((author, note, at))
            found = len(self._policies)
            if found != replaces:
                raise Conflict(f"policy: expected version {replaces}, found {found}")
            old = self._policies[-1][4] if self._policies else Policy()
            moving = {node for node, id in self._rows.moving.items() if id is not None}
            change = inventory_change(old, policy, nodes, self._rows.nodes, self._rows.leases, moving)
            for name in change.leaving:
                del self._rows.nodes[name]
                self._end_lease(name)
            for node in change.joining:
                self._rows.nodes[node.name] = NodeRecord(node)
            for node in change.changing:
                self._rows.nodes[node.name] = replace(self._rows.nodes[node.name], node=node)
            version = found + 1
            self._policies.append((version, at, author, note, policy))
            self._log([policy_note(version, author=author, note=note, at=at, change=change)])
            return version

    def _end_lease(self, node: str) -> None:
        lease = self._rows.leases.pop(node, None)
        if lease is not None:
            self._lease_history.append(lease)

    def policy_history(self, limit: int) -> list[tuple[int, datetime, str, str, Policy]]:
        with self._reading():
            return list(itertools.islice(reversed(self._policies), limit))

    def submit(self, request: Request) -> None:
        with self._writing() as tell:
            request = plain(request)
            if not request.nodes:
                raise Invalid(f"request {request.id} names no node")
            standing = self._rows.requests.get(request.id)
            if standing is not None:
                if replace(standing, state=request.state, answer=request.answer) != request:
                    raise Conflict(f"request {request.id} exists already and says something else")
                tell.clear()
                return
            self._rows.requests[request.id] = request
            self._log([request_note(request)])

    def request(self, id: str) -> Request | None:
        with self._reading():
            return self._rows.requests.get(id)

    def pause(
        self, reason: str, *, actor: str, at: datetime, scope: Scope = EVERYTHING, kind: PauseKind = PauseKind.STOP
    ) -> None:
        with self._writing() as tell:
            pause = plain(Pause(scope, reason, actor, at, kind))
            found = self._rows.pauses.get(pause.key)
            if found is not None and found.reason == pause.reason:
                tell.clear()
                return
            self._rows.pauses[pause.key] = pause
            self._log([pause_note(pause)])

    def resume(self, *, actor: str, at: datetime, scope: Scope = EVERYTHING) -> None:
        with self._writing() as tell:
            actor, at, scope = plain((actor, at, scope))
            ended = [pause for pause in standing(self._pauses()) if pause.scope == scope]
            if not ended:
                tell.clear()
                return
            self._rows.pauses.update({pause.key: pause.lifted(at) for pause in ended})
            self._log([resume_note(ended, actor=actor, at=at)])

    def acknowledge_fence(self, ack: FenceAck) -> None:
        with self._writing():
            self._fence_ack = plain(ack)

    def handoffs(self, *, limit: int, node: str | None = None) -> list[Handoff]:
        with self._reading():
            newest_first = reversed(list(self._rows.handoffs.values()))
            return list(itertools.islice((each for each in newest_first if node in (None, each.node)), limit))

    def handoff(self, id: str) -> Handoff | None:
        with self._reading():
            return self._rows.handoffs.get(id)

    def handoff_events(self, handoff: str) -> list[Event]:
        with self._reading():
            return [event for event in self._events if event.handoff == handoff]

    def events(self, *, after: int, limit: int) -> list[Event]:
        with self._reading():
            return self._events[max(after, 0) :][:limit]

    def last_event_id(self) -> int:
        with self._reading():
            return len(self._events)

    def sightings(self) -> Mapping[tuple[str, Side], PutSighting]:
        """What was last seen of each node on each side."""
        with self._reading():
            return {key: seen for key, seen in self._rows.sightings.items() if key[0] in self._rows.nodes}

    def watch(self, on_change: OnChange) -> None:
        with self._lock:
            self._watchers.append(on_change)

    def close(self) -> None:
        """Forget the watchers. The rows stay, as they would in a database that a broker disconnects from."""
        with self._lock:
            self._watchers.clear()

    # --- faults and notifications ---

    def backup(self) -> Backup:
        """All that the database holds now, as an honest backup of it would: rows, history, counters and who leads."""
        with self._lock:
            return Backup({name: copy(getattr(self, name)) for name in _STORED} | {"_rows": self._rows.copy()})

    def restore(self, backup: Backup) -> None:
        """Be what the backup says, as after a restore, or a failover that lost the last commits. Watchers stay."""
        with self._lock:
            for name, value in backup.fields.items():
                setattr(self, name, value.copy() if isinstance(value, Rows) else copy(value))
            watchers = tuple(self._watchers)
        for on_change in watchers:
            on_change("ledger")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            if self.away:
                raise Unreadable("ledger", self.away)
            yield

    @contextmanager
    def _writing(self, *, tell: bool = True) -> Iterator[set[str]]:
        """A write; at its end the watchers are told what is left in the yielded set."""
        words = {"ledger"} if tell else set()
        with self._lock:
            if self.away:
                raise CallFailed(f"ledger: {self.away}")
            yield words
            watchers = tuple(self._watchers)
            lost = self.lost_answers > 0
            if lost:
                self.lost_answers -= 1
        # Outside the lock, as a watcher may belong to a thread that is about to call us.
        for word in sorted(words):
            for on_change in watchers:
                on_change(word)
        if lost:
            raise CallFailed("ledger: the connection broke before the answer to a write")
