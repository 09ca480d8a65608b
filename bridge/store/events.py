"""The event log: append-only, in an order that a reader can follow by id."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select

from bridge.model.ledger import Event, Note
from bridge.store.rows import AnyRow
from bridge.store.tables import events

CHANNEL = "bridge"
"""Notified, with the word `ledger`, by every transaction that changes something."""

_IN_ORDER = func.hashtext("slurm-kube-bridge events")


def append(connection: Connection, notes: Sequence[Note]) -> None:
    """Append as the last act of a transaction.

    Ids are drawn under a lock held until commit: a reader that has seen an id can be sure that no smaller one appears
    later, which a sequence alone does not promise.
    """
    if not notes:
        return
    connection.execute(select(func.pg_advisory_xact_lock(_IN_ORDER)))
    connection.execute(
        insert(events),
        [
            {
                "at": note.at,
                "kind": note.kind,
                "message": note.message,
                "actor": note.actor,
                "node": note.node,
                "handoff": note.handoff,
                "lease": note.lease,
                "data": note.data,
            }
            for note in notes
        ],
    )


def tell(connection: Connection) -> None:
    """Wake everyone who watches, once the transaction has committed."""
    connection.execute(select(func.pg_notify(CHANNEL, "ledger")))


def after(connection: Connection, id: int, limit: int) -> list[Event]:
    rows = connection.execute(select(events).where(events.c.id > id).order_by(events.c.id).limit(limit))
    return [_event(row) for row in rows]


def last_id(connection: Connection) -> int:
    found: int = connection.execute(select(func.coalesce(func.max(events.c.id), 0))).scalar_one()
    return found


def of_handoff(connection: Connection, handoff: str) -> list[Event]:
    rows = connection.execute(select(events).where(events.c.handoff == handoff).order_by(events.c.id))
    return [_event(row) for row in rows]


def _event(row: AnyRow) -> Event:
    return Event(**row._mapping)
