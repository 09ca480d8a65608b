"""People's orders to move nodes: written by any replica, answered by the leader."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from bridge.model.errors import Conflict, Invalid
from bridge.model.ledger import Request, RequestState
from bridge.store import rows
from bridge.store.tables import requests


def submit(connection: Connection, request: Request) -> bool:
    """Store it; False when the very same request is there already. `Conflict`: its id was used for another one."""
    if not request.nodes:
        raise Invalid(f"request {request.id} names no node")
    stored = connection.execute(
        insert(requests)
        .values(rows.of_request(request))
        .on_conflict_do_nothing(index_elements=[requests.c.id])
        .returning(requests.c.id)
    )
    if stored.scalar() is not None:
        return True
    standing = by_id(connection, request.id)
    if standing is None or replace(standing, state=request.state, answer=request.answer) != request:
        raise Conflict(f"request {request.id} exists already and says something else")
    return False


def by_id(connection: Connection, id: str) -> Request | None:
    row = connection.execute(select(*rows.REQUEST).where(requests.c.id == id)).one_or_none()
    return None if row is None else rows.request(row)


def pending(connection: Connection) -> tuple[Request, ...]:
    """In the order of their arrival."""
    waiting = select(*rows.REQUEST).where(requests.c.state == RequestState.PENDING.value).order_by(requests.c.ordinal)
    return tuple(rows.request(row) for row in connection.execute(waiting))
