"""Policy versions, which are never rewritten, and the inventory that follows the newest one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from bridge.model.errors import Conflict, Unreadable
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Node
from bridge.model.policy import Policy
from bridge.store import rows
from bridge.store.inventory import InventoryChange, inventory_change
from bridge.store.tables import handoffs, leases, nodes, policies


def current(connection: Connection) -> tuple[int, Policy]:
    """(version, document); version 0 is the empty policy before the first."""
    row = connection.execute(
        select(policies.c.version, policies.c.document).order_by(policies.c.version.desc()).limit(1)
    ).one_or_none()
    return (0, Policy()) if row is None else (row.version, _document(row))


def history(connection: Connection, limit: int) -> list[tuple[int, datetime, str, str, Policy]]:
    found = connection.execute(select(policies).order_by(policies.c.version.desc()).limit(limit))
    return [(row.version, row.at, row.author, row.note, _document(row)) for row in found]


def _document(row: rows.AnyRow) -> Policy:
    try:
        return Policy.model_validate(row.document)
    except ValidationError as error:
        raise Unreadable("ledger", f"policy version {row.version} is not understood: {error}") from error


def apply(
    connection: Connection,
    policy: Policy,
    inventory: Sequence[Node],
    *,
    replaces: int,
    author: str,
    note: str,
    at: datetime,
) -> tuple[int, InventoryChange]:
    """Store `policy` as the version after `replaces` and make `inventory` so. Raises `Conflict` and `Invalid`."""
    found, old = current(connection)
    if found != replaces:
        raise Conflict(f"policy: expected version {replaces}, found {found}")
    version = found + 1
    # First, because its key makes whoever applies the same version at the same time wait, and then fail.
    connection.execute(
        insert(policies).values(
            version=version, at=at, author=author, note=note, document=policy.model_dump(mode="json")
        )
    )
    change = inventory_change(old, policy, inventory, _locked_inventory(connection), *_in_use(connection))
    _leave(connection, change)
    _change(connection, change.changing)
    _join(connection, change.joining)
    return version, change


def _locked_inventory(connection: Connection) -> dict[str, NodeRecord]:
    """All nodes, locked in the order of their names, as commits lock them."""
    found = connection.execute(
        select(*rows.RECORD).where(nodes.c.removed_at.is_(None)).order_by(nodes.c.name).with_for_update(key_share=True)
    )
    return {row.name: rows.record(row) for row in found}


def _in_use(connection: Connection) -> tuple[dict[str, Any], set[str]]:
    live = connection.execute(select(*rows.LEASE).where(leases.c.ended_at.is_(None)))
    moving = connection.execute(select(handoffs.c.node).where(handoffs.c.ended_at.is_(None)))
    return {row.node: rows.lease(row) for row in live}, set(moving.scalars())


def _leave(connection: Connection, change: InventoryChange) -> None:
    # Those that change step aside too, so that two nodes may swap a name without meeting in the unique index.
    aside = [*change.leaving, *(node.name for node in change.changing)]
    if aside:
        connection.execute(
            update(nodes).where(nodes.c.name == rows.any_of("aside")).values(removed_at=func.now()), {"aside": aside}
        )
    if change.leaving:
        connection.execute(
            update(leases)
            .where(leases.c.node == rows.any_of("leaving"), leases.c.ended_at.is_(None))
            .values(ended_at=func.now()),
            {"leaving": list(change.leaving)},
        )


def _change(connection: Connection, changing: Sequence[Node]) -> None:
    if changing:
        connection.execute(
            update(nodes).where(nodes.c.name == bindparam("key")).values(removed_at=None),
            [{"key": node.name, **rows.of_node(node)} for node in changing],
        )


def _join(connection: Connection, joining: Sequence[Node]) -> None:
    if joining:
        statement = upsert(nodes)
        fresh = {
            "slurm_name": statement.excluded.slurm_name,
            "kube_name": statement.excluded.kube_name,
            "pool": statement.excluded.pool,
            "gpus": statement.excluded.gpus,
            "idle_since": None,
            "backoff_until": None,
            "unusable": "",
            "lifted_drain_at": None,
            "removed_at": None,
        }
        connection.execute(
            statement.on_conflict_do_update(index_elements=[nodes.c.name], set_=fresh),
            [rows.of_node(node) for node in joining],
        )
