"""Run by Alembic, through `bridge.store.migrate`, on the connection and in the transaction given to it."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from bridge.store.tables import metadata

connection: Connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
