"""The eyes of a soak, each a thread: processes on the nodes, the leader's row, the event log."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable

import psycopg

from tests.e2e.testbed import STATE, Json, Testbed, container
from tests.soak.evidence import Look, read_look
from tests.soak.people import BROKEN

AGAIN_S = 0.5
EVENTS_EVERY_S = 2.0
PAGE = 500
OVERLAP_EVENTS = 100
"""Ids are given before their commit: a smaller one may come to be seen after a larger one."""

# Ends when its standard input does, which is when the one who watches is gone. `read` is the pause between two looks.
_SCRIPT = r"""
while :; do
    printf 'at %s\0' "$EPOCHREALTIME"
    grep -azsoHE '^(SLURM_JOB_ID|NVIDIA_VISIBLE_DEVICES|HOSTNAME)=.*' /proc/[0-9]*/environ
    printf 'end\0'
    IFS= read -r -t 0.4 _
    (($? > 128)) || exit 0
done
"""


class NodeWatch(threading.Thread):
    """Looks at all processes of one node twice a second, from inside it; starts anew when the node was gone."""

    def __init__(self, node: str, stop: threading.Event) -> None:
        super().__init__(name=f"watch {node}", daemon=True)
        self._node, self._over = node, stop
        self.looks: list[Look] = []

    def run(self) -> None:
        while not self._over.is_set():
            self._follow()
            self._over.wait(AGAIN_S)

    def _follow(self) -> None:
        command = ("docker", "exec", "-i", container(self._node), "bash", "-c", _SCRIPT)
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            assert process.stdin
            assert process.stdout
            rest, found, at_s = b"", list[bytes](), 0.0
            while not self._over.is_set() and (chunk := os.read(process.stdout.fileno(), 65536)):
                *lines, rest = (rest + chunk).split(b"\0")
                for line in lines:
                    if line.startswith(b"at "):
                        found, at_s = [], float(line[3:])
                    elif line == b"end":
                        self.looks.append(read_look(self._node, at_s, found))
                    else:
                        found.append(line)
            process.stdin.close()


class Poll(threading.Thread):
    """Calls `look` again and again."""

    def __init__(self, look: Callable[[], None], every_s: float, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._look, self._every_s, self._over = look, every_s, stop

    def run(self) -> None:
        while not self._over.is_set():
            self._look()
            self._over.wait(self._every_s)


class LeaderEyes:
    """Who leads, by the row in Postgres and its clock; a database that does not answer has no leader for anybody."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, str | None]] = []
        self._connection: psycopg.Connection[tuple[str]] | None = None

    def look(self) -> None:
        try:
            self._connection = self._connection or self._connect()
            row = self._connection.execute(
                "SELECT holder || ' epoch ' || epoch FROM leader WHERE expires_at > clock_timestamp()"
            ).fetchone()
            holder = row[0] if row else None
        except psycopg.Error:
            self._connection, holder = None, None
        self.looks.append((time.time(), holder))

    @staticmethod
    def _connect() -> psycopg.Connection[tuple[str]]:
        password = (STATE / "postgres.password").read_text().strip()
        options = "-c statement_timeout=1000"
        return psycopg.connect(
            host="127.0.0.1",
            port=15432,
            user="bridge",
            dbname="bridge",
            password=password,
            connect_timeout=2,
            options=options,
            autocommit=True,
        )


class EventEyes:
    """The whole event log from when it was first looked at."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._events: dict[int, Json] = {}
        self._first = max((event["id"] for event in testbed.bridge.get("/v1/events?limit=1")["items"]), default=0)

    @property
    def events(self) -> list[Json]:
        return [self._events[id] for id in sorted(self._events)]

    def look(self) -> None:
        """Reads on; what could not be read now will be later."""
        try:
            while self._read_on():
                pass
        except BROKEN:
            return

    def _read_on(self) -> bool:
        after = max(self._first, max(self._events, default=0) - OVERLAP_EVENTS)
        found = self._testbed.bridge.get(f"/v1/events?after={after}&limit={PAGE}")["items"]
        self._events |= {event["id"]: event for event in found}
        return len(found) == PAGE
