"""Brings a database to the schema that this program was written for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, func, select, text

from bridge.model.errors import Invalid
from bridge.store.connections import open_engine, reading, writing
from bridge.store.tables import metadata

_PLACES = (Path(__file__).with_name("migrations"), Path(__file__).parents[2] / "migrations")
"""In an installed wheel, and in a checkout."""

_MIGRATION_S = 600
_ONE_AT_A_TIME = func.hashtext("slurm-kube-bridge migrations")


def upgrade(url: str, password_file: Path | None = None, *, revision: str = "head") -> None:
    """Migrate up to `revision` in one transaction; replicas that start together take turns.

    Raises `CallFailed` when the database cannot be reached, `Invalid` when its schema is newer than this program.
    """
    with _migrating(url, password_file) as config:
        command.upgrade(config, revision)


def downgrade(url: str, password_file: Path | None = None, *, revision: str) -> None:
    """Migrate down to `revision` (``base``: nothing is left). What only the newer schema can hold is lost."""
    with _migrating(url, password_file) as config:
        command.downgrade(config, revision)


def check(url: str, password_file: Path | None = None) -> None:
    """Whether the schema is the newest, without writing anything.

    Raises `Unreadable` when the database cannot be reached, `Invalid` when its schema is older or newer.
    """
    engine = open_engine(url, password_file)
    try:
        with reading(engine) as connection:
            found = MigrationContext.configure(connection).get_current_heads()
    finally:
        engine.dispose()
    wanted = ScriptDirectory(str(_location())).get_heads()
    if set(found) != set(wanted):
        raise Invalid(
            f"the database has schema {', '.join(found) or 'none'} and this program reads {', '.join(wanted)}: look at "
            "it with the version that wrote it, or at a copy that `bridgectl migrate` was run on"
        )


def differences(connection: Connection) -> list[Any]:
    """What Alembic would have to change for the database to match `bridge.store.tables`."""
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, metadata))


@contextmanager
def _migrating(url: str, password_file: Path | None) -> Iterator[Config]:
    engine = open_engine(url, password_file)
    try:
        with writing(engine) as connection:
            for bound in ("lock_timeout", "statement_timeout"):
                connection.execute(text(f"SET LOCAL {bound} = '{_MIGRATION_S}s'"))
            connection.execute(select(func.pg_advisory_xact_lock(_ONE_AT_A_TIME)))
            config = Config()
            config.set_main_option("script_location", str(_location()))
            config.attributes["connection"] = connection
            yield config
    except CommandError as error:
        raise Invalid(f"the database's schema does not fit this program: {error}") from error
    finally:
        engine.dispose()


def _location() -> Path:
    for place in _PLACES:
        if (place / "env.py").is_file():
            return place
    raise Invalid(f"no migrations in {' or '.join(str(place) for place in _PLACES)}: the installation is incomplete")
