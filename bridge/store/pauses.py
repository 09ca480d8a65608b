"""Pauses: set and ended by people, through any replica, and by the leader's circuit breaker within a commit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, delete, select, text, update
from sqlalchemy.dialects.postgresql import insert

from bridge.model.pause import EVERYTHING, Pause, PauseKey, Scope, joined, standing
from bridge.store import rows
from bridge.store.tables import pauses, settings

_KEY = [pauses.c.reach, pauses.c.name, pauses.c.kind]


def all_of(connection: Connection) -> list[Pause]:
    """Those that were released too."""
    return [rows.pause(row) for row in connection.execute(select(pauses))]


def locked(connection: Connection) -> list[Pause]:
    """All of them; nobody else sets or ends one before this transaction is over."""
    connection.execute(text("LOCK TABLE pauses IN SHARE ROW EXCLUSIVE MODE"))
    return all_of(connection)


def begin(connection: Connection, pause: Pause) -> bool:
    """Whether anything changed: False when one of that scope and kind stands with the same reason."""
    found = {each.key: each for each in locked(connection)}.get(pause.key)
    if found is not None and found.reason == pause.reason:
        return False
    write(connection, {pause.key: pause})
    return True


def end(connection: Connection, scope: Scope, at: datetime) -> list[Pause]:
    """What stood there and does not any more."""
    ended = [pause for pause in standing(locked(connection)) if pause.scope == scope]
    write(connection, {pause.key: pause.lifted(at) for pause in ended})
    return ended


def write(connection: Connection, written: Mapping[PauseKey, Pause | None]) -> None:
    """Rows as they shall be; None: no row."""
    for (scope, kind), pause in written.items():
        if pause is None:
            there = (pauses.c.reach == scope.reach.value, pauses.c.name == scope.name, pauses.c.kind == kind.value)
            connection.execute(delete(pauses).where(*there))
        else:
            row = rows.of_pause(pause)
            connection.execute(insert(pauses).values(row).on_conflict_do_update(index_elements=_KEY, set_=row))
    if any(scope == EVERYTHING for scope, _ in written):
        _show_older_brokers(connection)


def _show_older_brokers(connection: Connection) -> None:
    """A broker of the first version, while both run, knows one reason for everything and nothing else."""
    shown = joined(pause for pause in standing(all_of(connection)) if pause.scope == EVERYTHING)
    connection.execute(update(settings).values(paused=shown))
