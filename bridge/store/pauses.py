"""Pauses: set and ended by people, through any replica."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, text, update
from sqlalchemy.dialects.postgresql import insert

from bridge.model.pause import EVERYTHING, Pause, Scope, in_order, joined
from bridge.store import rows
from bridge.store.tables import pauses, settings

_KEY = [pauses.c.reach, pauses.c.name, pauses.c.kind]


def all_of(connection: Connection) -> list[Pause]:
    return [rows.pause(row) for row in connection.execute(select(pauses))]


def begin(connection: Connection, pause: Pause) -> bool:
    """Whether anything changed: False when one of that scope and kind stands with the same reason."""
    standing = {each.key: each for each in _locked(connection)}.get(pause.key)
    if standing is not None and standing.reason == pause.reason:
        return False
    row = rows.of_pause(pause)
    connection.execute(insert(pauses).values(row).on_conflict_do_update(index_elements=_KEY, set_=row))
    _show_older_brokers(connection, pause.scope)
    return True


def end(connection: Connection, scope: Scope) -> tuple[Pause, ...]:
    """What stood there and does not any more."""
    ended = in_order(pause for pause in _locked(connection) if pause.scope == scope)
    if ended:
        there = (pauses.c.reach == scope.reach.value, pauses.c.name == scope.name)
        connection.execute(delete(pauses).where(*there))
        _show_older_brokers(connection, scope)
    return ended


def _locked(connection: Connection) -> list[Pause]:
    """What stands; nobody else sets or ends one before this transaction is over."""
    connection.execute(text("LOCK TABLE pauses IN SHARE ROW EXCLUSIVE MODE"))
    return all_of(connection)


def _show_older_brokers(connection: Connection, scope: Scope) -> None:
    """A broker of the first version, while both run, knows one reason for everything and nothing else."""
    if scope == EVERYTHING:
        shown = joined(in_order(pause for pause in all_of(connection) if pause.scope == EVERYTHING))
        connection.execute(update(settings).values(paused=shown))
