"""Migrations and `bridge.store.tables` agree, and every migration goes both ways."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from bridge.model.errors import CallFailed, Invalid, Unreadable
from bridge.model.handoff import Step
from bridge.model.ledger import PutHandoff, PutPause, PutUsage, Usage
from bridge.model.ownership import Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Reach, Scope
from bridge.store import migrate
from bridge.store.connections import open_engine
from bridge.store.postgres import PostgresLedger
from bridge.store.tables import metadata
from tests.contracts.ledger import T0, TTL_S, a_handoff, a_node, a_policy, a_victim
from tests.integration.conftest import PostgresServer

_CATALOGUE = {
    "columns": """
        SELECT table_name, column_name, data_type, udt_name, is_nullable, column_default, is_identity
        FROM information_schema.columns WHERE table_schema = 'public'""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "sequences": "SELECT sequencename, data_type::text, cache_size FROM pg_sequences WHERE schemaname = 'public'",
    "triggers": "SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
    "functions": "SELECT proname, prosrc, '' FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
}


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create("template1")
    yield postgres.url(name)
    postgres.drop(name)


def catalogue(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Everything that makes up a schema, but for Alembic's own table."""
    engine = open_engine(url)
    with engine.connect() as connection:
        found = {
            what: sorted(
                (tuple(row) for row in connection.execute(text(query)) if not row[0].startswith("alembic")), key=str
            )
            for what, query in _CATALOGUE.items()
        }
    engine.dispose()
    return found


def test_alembic_finds_no_difference(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    with engine.connect() as connection:
        assert migrate.differences(connection) == []
    engine.dispose()


def test_tables_made_without_migrations_are_the_same(postgres_url: str, empty: str) -> None:
    """Also what Alembic does not compare: CHECKs, conditions of indexes, deferrable keys."""
    engine = open_engine(empty)
    metadata.create_all(engine)
    engine.dispose()
    made, migrated = catalogue(empty), catalogue(postgres_url)
    for what in ("columns", "constraints", "indexes", "sequences"):
        assert made[what], f"no {what} were made"
        assert made[what] == migrated[what]


def test_down_leaves_nothing_and_up_makes_it_all_again(empty: str) -> None:
    migrate.upgrade(empty)
    first = catalogue(empty)
    migrate.downgrade(empty, revision="base")
    assert not any(catalogue(empty).values())
    migrate.upgrade(empty)
    assert catalogue(empty) == first


def test_what_the_version_before_wrote_is_read_as_it_was(postgres_url: str) -> None:
    """Down and up again leaves just what the older schema can hold: handoffs without a demand and without victims."""
    ledger = PostgresLedger(postgres_url)
    ledger.apply_policy(a_policy(), [a_node("gpu-1"), a_node("gpu-2")], replaces=0, author="a", note="", at=T0)
    ledger.campaign("broker-a", TTL_S)
    live = a_handoff("h1", demand="job 30 of bob", victims=(a_victim(),), signalled_at=T0)
    done = a_handoff("h2", "gpu-2", step=Step.DONE, ended_at=T0 + timedelta(seconds=40))
    ledger.commit(1, [PutHandoff(live, None), PutHandoff(done, None), PutUsage(Usage("a", 1.0, T0))])
    ledger.close()
    migrate.downgrade(postgres_url, revision="0001")
    migrate.upgrade(postgres_url)
    again = PostgresLedger(postgres_url)
    state = again.read()
    again.close()
    assert state.handoffs == {"gpu-1": replace(live, demand="", victims=(), signalled_at=None)}
    assert state.usage == {}
    assert state.reclaim_s == {Side.KUBERNETES: (40.0,)}


def test_a_pause_of_the_version_before_stands_after_the_upgrade(postgres_url: str) -> None:
    ledger = PostgresLedger(postgres_url)
    ledger.pause("switch maintenance", actor="oncall", at=T0)
    ledger.pause("bad fan", actor="oncall", at=T0, scope=Scope(Reach.NODE, "gpu-1"))
    ledger.close()
    migrate.downgrade(postgres_url, revision="0002")
    migrate.upgrade(postgres_url)
    again = PostgresLedger(postgres_url)
    found = [(pause.scope, pause.reason, pause.actor) for pause in again.read().pauses]
    again.close()
    assert found == [(EVERYTHING, "switch maintenance", "before the upgrade")]


def test_a_version_that_knows_no_recalls_finds_the_pauses_alone(
    postgres: PostgresServer, postgres_database: str
) -> None:
    url = postgres.url(postgres_database)
    ledger = PostgresLedger(url)
    ledger.pause("switch maintenance", actor="oncall", at=T0)
    ledger.pause("power cut", actor="oncall", at=T0, kind=PauseKind.RECALL)
    ledger.pause("power cut", actor="oncall", at=T0, scope=Scope(Reach.POOL, "gpu"), kind=PauseKind.RECALL)

    def shown() -> str:
        with postgres.connect(postgres_database) as connection:
            (paused,) = connection.execute("SELECT paused FROM settings").fetchone() or ("",)
            return str(paused)

    assert shown() == "recalled by oncall: power cut; switch maintenance"
    ledger.close()
    migrate.downgrade(url, revision="0004")
    assert shown() == "switch maintenance"
    migrate.upgrade(url)
    again = PostgresLedger(url)
    found = [(pause.scope, pause.reason, pause.kind) for pause in again.read().pauses]
    again.close()
    assert found == [(EVERYTHING, "switch maintenance", PauseKind.STOP)]


def test_a_version_that_knows_no_breaker_finds_neither_it_nor_its_release(postgres_url: str) -> None:
    ledger = PostgresLedger(postgres_url)
    ledger.apply_policy(a_policy(), [a_node("gpu-1")], replaces=0, author="a", note="", at=T0)
    ledger.campaign("broker-a", TTL_S)
    gpu, big = (
        Pause(Scope(Reach.POOL, name), "11 leases", "breaker", T0, PauseKind.BREAKER) for name in ("gpu", "big")
    )
    live = a_handoff("h1", step=Step.REOPEN, late_in=Step.EMPTY)
    ledger.commit(1, [PutPause(gpu, None), PutPause(big, None), PutHandoff(live, None)])
    ledger.resume(actor="oncall", at=T0, scope=big.scope)
    ledger.close()
    migrate.downgrade(postgres_url, revision="0006")
    migrate.upgrade(postgres_url)
    again = PostgresLedger(postgres_url)
    state = again.read()
    again.close()
    assert (state.pauses, state.releases) == ((), ())
    assert state.handoffs == {"gpu-1": replace(live, late_in=None)}


def test_upgrading_what_is_new_already_does_nothing(postgres_url: str) -> None:
    before = catalogue(postgres_url)
    migrate.upgrade(postgres_url)
    assert catalogue(postgres_url) == before


def test_replicas_that_start_together_take_turns(empty: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(migrate.upgrade, [empty] * 3))
    assert catalogue(empty)["triggers"]


def test_a_schema_from_the_future_is_refused(postgres: PostgresServer, postgres_database: str) -> None:
    with postgres.connect(postgres_database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Invalid, match=r"does not fit this program.*9999"):
        migrate.upgrade(postgres.url(postgres_database))


def test_a_database_that_is_away_is_said(postgres: PostgresServer) -> None:
    with pytest.raises(CallFailed, match="nowhere"):
        migrate.upgrade(postgres.url("nowhere"))


# --- for brokers that only look ---


def test_a_check_writes_nothing_and_says_what_does_not_fit(empty: str) -> None:
    before = catalogue(empty)
    with pytest.raises(Invalid, match=r"the database has schema none and this program reads .*bridgectl migrate"):
        migrate.check(empty)
    assert catalogue(empty) == before
    migrate.upgrade(empty)
    migrate.check(empty)
    with pytest.raises(Unreadable):
        migrate.check("postgresql+psycopg://nobody@/none?host=/nowhere")


def test_a_ledger_that_only_looks_reads_all_and_the_server_refuses_its_writes(postgres_url: str) -> None:
    writer, looker = PostgresLedger(postgres_url), PostgresLedger(postgres_url, read_only=True)
    try:
        writer.apply_policy(a_policy(), [a_node("gpu-1")], replaces=0, author="platform", note="", at=T0)
        assert looker.leader() is None
        assert looker.read() == writer.read()
        for write in (
            lambda: looker.pause("x", actor="x", at=T0),
            lambda: looker.campaign("broker-1", TTL_S),
            lambda: looker.next_generation(),
        ):
            with pytest.raises(CallFailed, match="read-only transaction"):
                write()
            assert looker.read() == writer.read(), "a connection that was used to read is no way to write either"
        assert writer.leader() is None
    finally:
        writer.close()
        looker.close()
