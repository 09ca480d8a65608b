"""A Postgres for the tests that need one: started once a process, a fresh migrated database for each test."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from bridge.store import embedded, migrate

_FAST_BUT_FORGETFUL = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass(slots=True)
class PostgresServer:
    """An embedded server whose databases are copies of one that was migrated once."""

    data_dir: Path
    _names: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str, user: str = "postgres") -> str:
        return f"postgresql+psycopg://{user}@/{database}?host={self.data_dir}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(host=str(self.data_dir), user="postgres", dbname=database, autocommit=True)

    def create(self, template: str = "migrated") -> str:
        name = f"test_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    # Not below pytest's own folder: as root the server runs as another user, who may not pass through that.
    folder = Path(tempfile.mkdtemp(prefix="bridge-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # runs after the server's stop, registered later
    data_dir = folder / "pg"
    embedded.start(data_dir)
    server = PostgresServer(data_dir)
    server.execute(*(f"ALTER SYSTEM SET {setting} = off" for setting in _FAST_BUT_FORGETFUL))
    server.execute("SELECT pg_reload_conf()", "CREATE DATABASE migrated")
    migrate.upgrade(server.url("migrated"))
    return server


@pytest.fixture
def postgres_database(postgres: PostgresServer) -> Iterator[str]:
    """The name of a fresh, migrated database."""
    name = postgres.create()
    yield name
    postgres.drop(name)


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_database: str) -> str:
    """The URL of a fresh, migrated database."""
    return postgres.url(postgres_database)
