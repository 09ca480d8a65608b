"""LISTEN on a connection of its own, for as long as the process lives.

A notification is only a hint to read again. One that is lost with its connection is made up for: after every connect,
the first included, all watchers are told as if something had changed.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import psycopg
import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from tenacity import Retrying, retry_if_exception_type, sleep_using_event, stop_when_event_set, wait_random_exponential

from bridge.ports import OnChange
from bridge.store.events import CHANNEL

_ARE_YOU_THERE_S = 10
"""After this much silence the server is asked, so that a connection that died without a word is noticed."""
_LONGEST_WAIT_S = 5
_JOIN_S = 5

_LOST = (psycopg.Error, SQLAlchemyError, OSError)

log = structlog.get_logger(__name__)


class Listener:
    """A daemon thread that calls every watcher after each notification on the channel."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watchers: list[OnChange] = []
        self._over = threading.Event()
        self._wake, self._waker = socket.socketpair()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, on_change: OnChange) -> None:
        with self._lock:
            self._watchers.append(on_change)
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="ledger-listen", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End at once, whatever the thread is waiting for."""
        with self._lock:
            self._watchers.clear()
            if self._over.is_set():
                return
            self._over.set()
        self._waker.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        connect = Retrying(
            retry=retry_if_exception_type(_LOST),
            wait=wait_random_exponential(multiplier=0.1, max=_LONGEST_WAIT_S),
            stop=stop_when_event_set(self._over),
            sleep=sleep_using_event(self._over),
            reraise=True,
        )
        while not self._over.is_set():
            try:
                connection = connect(self._connect)
                with connection:
                    self._follow(connection)
            except _LOST as error:
                log.warning("ledger notifications lost, connecting again", error=str(error).strip())
                self._over.wait(0.1)
        self._wake.close()

    def _connect(self) -> psycopg.Connection:
        """A connection made as all others are, but taken out of the pool for good."""
        pooled = self._engine.raw_connection()
        connection = cast(psycopg.Connection, pooled.driver_connection)
        pooled.detach()
        connection.autocommit = True
        connection.execute(f"LISTEN {CHANNEL}")
        return connection

    def _follow(self, connection: psycopg.Connection) -> None:
        self._tell()
        with self._selector(connection) as selector:
            while True:
                ready = selector.select(_ARE_YOU_THERE_S)
                if self._over.is_set():
                    return
                if not ready:
                    connection.execute("SELECT 1")
                if list(connection.notifies(timeout=0)):
                    self._tell()

    @contextmanager
    def _selector(self, connection: psycopg.Connection) -> Iterator[selectors.BaseSelector]:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            yield selector

    def _tell(self) -> None:
        with self._lock:
            watchers = tuple(self._watchers)
        for on_change in watchers:
            try:
                on_change("ledger")
            except Exception:
                # One watcher's mistake must not leave all others deaf.
                log.exception("a watcher of the ledger failed")
