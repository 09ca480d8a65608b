"""Stories of trouble by seed, as in `tests/simulation/test_fuzz.py`, with the ledger on a real Postgres.

Its leader lease runs on the database's clock, which is the simulation's here: a function of the same name stands in
front of Postgres' own. Failovers that lose commits are played in memory only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import psycopg
import pytest

from bridge.simulation.clock import SimulatedClock
from bridge.store.memory import MemoryLedger
from bridge.store.postgres import PostgresLedger
from tests.fuzz.stage import failure_of
from tests.fuzz.story import FailsOver, tell
from tests.integration.conftest import PostgresServer

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("SEEDS", "10"))

SIMULATED_TIME = (
    "CREATE SCHEMA simulated",
    "CREATE TABLE simulated.clock (now timestamptz NOT NULL)",
    "INSERT INTO simulated.clock VALUES (clock_timestamp())",
    "CREATE FUNCTION simulated.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE"
    " AS 'SELECT now FROM simulated.clock'",
)

TELLING = frozenset({"commit", "apply_policy", "submit", "pause", "resume", "resign", "acknowledge_fence"})


class OnSimulatedTime:
    """A ledger whose database is told the time before each call, and whose watchers are told of writes at once."""

    def __init__(self, ledger: PostgresLedger, clock: SimulatedClock, connection: psycopg.Connection) -> None:
        self._ledger, self._clock, self._connection = ledger, clock, connection
        self._watchers: list[Callable[[str], None]] = []

    def watch(self, on_change: Callable[[str], None]) -> None:
        self._watchers.append(on_change)

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._ledger, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._connection.execute("UPDATE simulated.clock SET now = %s", [self._clock.now()])
            answer = found(*args, **kwargs)
            for watcher in self._watchers if attribute in TELLING else ():
                watcher("ledger")
            return answer

        return call


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_whatever_happens_every_invariant_holds_and_all_settles(
    seed: int, postgres: PostgresServer, postgres_database: str
) -> None:
    story = tell(seed)
    story = replace(story, events=tuple(event for event in story.events if not isinstance(event, FailsOver)))
    with postgres.connect(postgres_database) as connection:
        for statement in (
            *SIMULATED_TIME,
            f"ALTER DATABASE {postgres_database} SET search_path = simulated, pg_catalog, public",
        ):
            connection.execute(statement)  # type: ignore[call-overload]
        ledger = PostgresLedger(postgres.url(postgres_database))
        try:
            failure = failure_of(story, lambda clock: cast(MemoryLedger, OnSimulatedTime(ledger, clock, connection)))
        finally:
            ledger.close()
    assert failure is None, f"{failure}\n{story}"
