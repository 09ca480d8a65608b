"""How the database is reached: time-outs on everything, the password from a file, errors in the bridge's own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError

from bridge.model.errors import BridgeError, CallFailed, Conflict, Invalid, InvariantViolation, Unreadable

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 5


def open_engine(url: str, password_file: Path | None = None, *, read_only: bool = False) -> Engine:
    """A pool of connections to `url` (``postgresql+psycopg://user@host/database``), none of them opened yet.

    The password is read from its file for each new connection, so that a rotated one is picked up and none is ever kept
    where it could be logged. With `read_only` the server refuses every write. Raises `Invalid` for a URL that is not
    Postgres or that carries a password. A pooler in between must pool sessions, as time-outs and LISTEN belong to one.
    """
    engine = create_engine(
        _checked(url),
        pool_pre_ping=True,
        pool_timeout=CONNECT_TIMEOUT_S,
        hide_parameters=True,
        connect_args=_connect_args(read_only=read_only),
        # Besides the session's default: SQLAlchemy overrules that with READ WRITE once a connection was used to read.
        execution_options={"postgresql_readonly": True} if read_only else {},
        json_serializer=lambda value: orjson.dumps(value).decode(),
        json_deserializer=orjson.loads,
    )
    if password_file is not None:

        @event.listens_for(engine, "do_connect")
        def _add_password(dialect: Any, record: Any, cargs: Any, cparams: dict[str, Any]) -> None:
            cparams["password"] = password_file.read_text().strip()

    return engine


def _checked(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError:
        raise Invalid("the database URL is not of the form postgresql+psycopg://user@host/database") from None
    if url.password is not None:
        raise Invalid("the database URL carries a password: put it into BRIDGE_DATABASE_PASSWORD_FILE's file instead")
    if url.get_backend_name() != "postgresql":
        raise Invalid(f"the ledger needs Postgres, not {url.get_backend_name()}")
    return url.set(drivername="postgresql+psycopg")


def _connect_args(*, read_only: bool) -> dict[str, Any]:
    session = {
        "statement_timeout": f"{STATEMENT_TIMEOUT_S}s",
        "lock_timeout": f"{LOCK_TIMEOUT_S}s",
        "idle_in_transaction_session_timeout": f"{3 * STATEMENT_TIMEOUT_S}s",
        "timezone": "UTC",
        **({"default_transaction_read_only": "on"} if read_only else {}),
    }
    return {
        "application_name": "slurm-kube-bridge",
        "connect_timeout": CONNECT_TIMEOUT_S,
        # A server that vanished without a word is noticed by the kernel, not after its default of two hours.
        "keepalives_idle": CONNECT_TIMEOUT_S,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 1000 * STATEMENT_TIMEOUT_S,
        "options": " ".join(f"-c {name}={value}" for name, value in session.items()),
    }


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view: a REPEATABLE READ, read-only transaction. Raises `Unreadable`."""
    try:
        with engine.connect() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection
    except (SQLAlchemyError, OSError) as error:
        raise Unreadable("ledger", _said(error)) from error


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction, all or nothing.

    Raises `CallFailed` when the outcome is unknown or the database is busy, `Conflict` when somebody else wrote the
    same row at the same time, and `InvariantViolation` or `Invalid` for rows that the database refuses.
    """
    try:
        with engine.begin() as connection:
            yield connection
    except IntegrityError as error:
        raise _refusal(error) from error
    except DataError as error:
        raise Invalid(f"ledger: {_said(error)}") from error
    except (SQLAlchemyError, OSError) as error:
        raise CallFailed(f"ledger: {_said(error)}") from error


def _refusal(error: IntegrityError) -> BridgeError:
    if isinstance(error.orig, psycopg.errors.UniqueViolation | psycopg.errors.ForeignKeyViolation):
        return Conflict(f"ledger: {_said(error)}")
    return InvariantViolation("LegalRow", _said(error))


def _said(error: Exception) -> str:
    """The error in one line, without the statement and its parameters."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    parts = [str(cause)]
    if isinstance(cause, psycopg.Error) and cause.diag.message_primary:
        parts = [cause.diag.message_primary, cause.diag.message_detail or ""]
    return " ".join(" ".join(parts).split())
