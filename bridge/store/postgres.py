"""The ledger in Postgres. Each method is one transaction; what happens in it is in the module of its subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from sqlalchemy.dialects.postgresql import insert

from bridge.model.handoff import Handoff
from bridge.model.ledger import Change, Event, FenceAck, LeadersSight, LedgerState, PutSighting, Request
from bridge.model.ownership import Node, Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Scope
from bridge.model.policy import Policy
from bridge.ports import OnChange
from bridge.store import events, leadership, ledger, pauses, policies, requests
from bridge.store.connections import open_engine, reading, writing
from bridge.store.listen import Listener
from bridge.store.notes import pause_note, policy_note, request_note, resume_note
from bridge.store.plain import plain
from bridge.store.tables import fence_ack


class PostgresLedger:
    """Implements `bridge.ports.Ledger` on the database at `url`, whose schema `bridge.store.migrate` has made.

    Nothing is connected before the first call. Reads raise `Unreadable`, writes `CallFailed`, when the database cannot
    be reached or does not answer in time; every later call tries anew. With `read_only` every write is refused by the
    server.
    """

    def __init__(self, url: str, password_file: Path | None = None, *, read_only: bool = False) -> None:
        self._engine = open_engine(url, password_file, read_only=read_only)
        self._listener = Listener(self._engine)

    # --- leadership ---

    def campaign(self, holder: str, ttl_s: float, above: tuple[int, int] = (0, 0)) -> int | None:
        with writing(self._engine) as connection:
            return leadership.campaign(connection, holder, ttl_s, above)

    def renew(self, holder: str, epoch: int, ttl_s: float, unread: Mapping[Side, str]) -> bool:
        with writing(self._engine) as connection:
            return leadership.renew(connection, holder, epoch, ttl_s, unread)

    def resign(self, holder: str, epoch: int) -> None:
        with writing(self._engine) as connection:
            if leadership.resign(connection, holder, epoch):
                events.tell(connection)

    def leader(self) -> tuple[str, int] | None:
        with reading(self._engine) as connection:
            return leadership.current(connection)

    def leaders_sight(self) -> LeadersSight | None:
        with reading(self._engine) as connection:
            return leadership.sight(connection)

    # --- the leader's reads and writes ---

    def read(self) -> LedgerState:
        with reading(self._engine) as connection:
            return ledger.read(connection)

    def next_generation(self) -> int:
        with writing(self._engine) as connection:
            return ledger.next_generation(connection)

    def commit(self, epoch: int, changes: Sequence[Change]) -> None:
        storable = [plain(change) for change in changes]
        with writing(self._engine) as connection:
            leadership.demand(connection, epoch)
            if storable:
                ledger.commit(connection, storable)
                events.tell(connection)

    # --- what any replica may do ---

    def apply_policy(
        self, policy: Policy, nodes: Sequence[Node], *, replaces: int, author: str, note: str, at: datetime
    ) -> int:
        author, note, at = plain((author, note, at))
        with writing(self._engine) as connection:
            version, change = policies.apply(
                connection, policy, nodes, replaces=replaces, author=author, note=note, at=at
            )
            events.append(connection, [policy_note(version, author=author, note=note, at=at, change=change)])
            events.tell(connection)
            return version

    def policy_history(self, limit: int) -> list[tuple[int, datetime, str, str, Policy]]:
        with reading(self._engine) as connection:
            return policies.history(connection, limit)

    def submit(self, request: Request) -> None:
        request = plain(request)
        with writing(self._engine) as connection:
            if requests.submit(connection, request):
                events.append(connection, [request_note(request)])
                events.tell(connection)

    def request(self, id: str) -> Request | None:
        with reading(self._engine) as connection:
            return requests.by_id(connection, id)

    def pause(
        self, reason: str, *, actor: str, at: datetime, scope: Scope = EVERYTHING, kind: PauseKind = PauseKind.STOP
    ) -> None:
        pause = plain(Pause(scope, reason, actor, at, kind))
        with writing(self._engine) as connection:
            if pauses.begin(connection, pause):
                events.append(connection, [pause_note(pause)])
                events.tell(connection)

    def resume(self, *, actor: str, at: datetime, scope: Scope = EVERYTHING) -> None:
        actor, at, scope = plain((actor, at, scope))
        with writing(self._engine) as connection:
            ended = pauses.end(connection, scope, at)
            if ended:
                events.append(connection, [resume_note(ended, actor=actor, at=at)])
                events.tell(connection)

    def acknowledge_fence(self, ack: FenceAck) -> None:
        word = {"generation": ack.generation, "at": plain(ack.at)}
        with writing(self._engine) as connection:
            connection.execute(
                insert(fence_ack).values(word).on_conflict_do_update(index_elements=[fence_ack.c.single], set_=word)
            )
            events.tell(connection)

    def handoffs(self, *, limit: int, node: str | None = None) -> list[Handoff]:
        with reading(self._engine) as connection:
            return ledger.listed(connection, limit, node)

    def handoff(self, id: str) -> Handoff | None:
        with reading(self._engine) as connection:
            return ledger.by_id(connection, id)

    def handoff_events(self, handoff: str) -> list[Event]:
        with reading(self._engine) as connection:
            return events.of_handoff(connection, handoff)

    def events(self, *, after: int, limit: int) -> list[Event]:
        with reading(self._engine) as connection:
            return events.after(connection, after, limit)

    def last_event_id(self) -> int:
        with reading(self._engine) as connection:
            return events.last_id(connection)

    def sightings(self) -> Mapping[tuple[str, Side], PutSighting]:
        """What was last seen of each node on each side."""
        with reading(self._engine) as connection:
            return ledger.seen(connection)

    def watch(self, on_change: OnChange) -> None:
        self._listener.add(on_change)

    def close(self) -> None:
        self._listener.close()
        self._engine.dispose()
