"""Pauses: set and ended by people, through any replica."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, delete, select, text, update
from sqlalchemy.dialects.postgresql import insert

from bridge.model.pause import EVERYTHING, Pause, Scope
from bridge.store import rows
from bridge.store.tables import pauses, settings

_KEY = [pauses.c.reach, pauses.c.name]


def all_of(connection: Connection) -> list[Pause]:
    return [rows.pause(row) for row in connection.execute(select(pauses))]


def begin(connection: Connection, pause: Pause) -> bool:
    """Whether anything changed: False when one of that scope stands with the same reason."""
    standing = _locked(connection, pause.scope)
    if standing is not None and standing.reason == pause.reason:
        return False
    row = rows.of_pause(pause)
    connection.execute(insert(pauses).values(row).on_conflict_do_update(index_elements=_KEY, set_=row))
    _show_older_brokers(connection, pause.scope, pause.reason)
    return True


def end(connection: Connection, scope: Scope) -> Pause | None:
    """What stood there and does not any more."""
    standing = _locked(connection, scope)
    if standing is not None:
        connection.execute(delete(pauses).where(*_at(scope)))
        _show_older_brokers(connection, scope, "")
    return standing


def _locked(connection: Connection, scope: Scope) -> Pause | None:
    """What stands there; nobody else sets or ends one before this transaction is over."""
    connection.execute(text("LOCK TABLE pauses IN SHARE ROW EXCLUSIVE MODE"))
    row = connection.execute(select(pauses).where(*_at(scope))).one_or_none()
    return None if row is None else rows.pause(row)


def _at(scope: Scope) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return (pauses.c.reach == scope.reach.value, pauses.c.name == scope.name)


def _show_older_brokers(connection: Connection, scope: Scope, reason: str) -> None:
    """A broker of the version before, while both run, knows one reason for everything and nothing else."""
    if scope == EVERYTHING:
        connection.execute(update(settings).values(paused=reason))
