"""The ledger in Postgres passes the contract; here is also what only a database can do wrong."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bridge.model.errors import CallFailed, Conflict, Invalid, Unreadable
from bridge.model.handoff import Step
from bridge.model.ledger import Note, PutClosure, PutHandoff, PutLease
from bridge.model.ownership import Side
from bridge.model.policy import Policy, PoolPolicy, Share
from bridge.ports import Ledger
from bridge.store import connections
from bridge.store.postgres import PostgresLedger
from tests.contracts.ledger import (
    T0,
    TTL_S,
    WAIT_S,
    Expire,
    Heard,
    LedgerContract,
    a_closure,
    a_handoff,
    a_lease,
    a_node,
    a_policy,
    a_request,
)
from tests.integration.conftest import PostgresServer


@pytest.fixture
def again(postgres_url: str) -> Iterator[Callable[[], PostgresLedger]]:
    made: list[PostgresLedger] = []

    def make() -> PostgresLedger:
        made.append(PostgresLedger(postgres_url))
        return made[-1]

    yield make
    for ledger in made:
        ledger.close()


@pytest.fixture
def ledger(again: Callable[[], PostgresLedger]) -> PostgresLedger:
    return again()


@pytest.fixture
def sql(postgres: PostgresServer, postgres_database: str) -> Iterator[psycopg.Connection]:
    """A hand that types SQL into the same database."""
    with postgres.connect(postgres_database) as connection:
        yield connection


def eventually(holds: Callable[[], Any], missing: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"{missing} within {WAIT_S} s"


def waits_for_a_lock(postgres: PostgresServer, statement: str) -> bool:
    with postgres.connect() as connection:  # a new one, as a transaction keeps what it has once seen of activity
        query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND starts_with(query, %s)"
        return connection.execute(query, (statement,)).fetchone() is not None


def listening(ledger: Ledger) -> Heard:
    """A watcher that has been told that LISTEN stands."""
    heard = Heard()
    ledger.watch(heard)
    heard.wait_for(1)
    return heard


class TestPostgresLedger(LedgerContract):
    @pytest.fixture
    def ledger(self, again: Callable[[], PostgresLedger]) -> Ledger:
        return again()

    @pytest.fixture
    def again(self, again: Callable[[], PostgresLedger]) -> Callable[[], Ledger]:
        return again

    @pytest.fixture
    def expire(self, sql: psycopg.Connection) -> Expire:
        def run_out() -> None:
            sql.execute("UPDATE leader SET expires_at = clock_timestamp()")

        return run_out

    def listening(self, ledger: Ledger) -> Heard:
        heard = Heard()
        ledger.watch(heard)
        if len(getattr(ledger, "_listener")._watchers) == 1:  # noqa: B009
            heard.wait_for(1)
        return heard


# --- leadership ---


def test_a_lead_runs_out_on_the_databases_clock(ledger: PostgresLedger) -> None:
    assert ledger.campaign("broker-a", 0.05) == 1
    eventually(lambda: ledger.campaign("broker-b", TTL_S) == 2, "the lease did not run out")


def test_a_new_leader_waits_for_a_commit_that_is_under_way(
    ledger: PostgresLedger, again: Callable[[], PostgresLedger], postgres: PostgresServer, sql: psycopg.Connection
) -> None:
    ledger.campaign("broker-a", 0.05)
    epochs: list[int | None] = []
    with sql.transaction():
        sql.execute("SELECT epoch FROM leader FOR SHARE")  # what every commit does first
        eventually(lambda: ledger.leader() is None, "the lease did not run out")
        campaigner = threading.Thread(target=lambda: epochs.append(again().campaign("broker-b", TTL_S)))
        campaigner.start()
        eventually(lambda: waits_for_a_lock(postgres, "UPDATE leader"), "the campaign did not wait for the commit")
        assert epochs == []
    campaigner.join(WAIT_S)
    assert epochs == [2]


# --- the database refuses illegal rows, whoever writes them ---

_LEASE = "INSERT INTO leases (node, generation, id, owner, epoch, owner_since) VALUES "
_HANDOFF = (
    "INSERT INTO handoffs (id, lease, node, source, destination, step, reason, requested_by, generation, nonce, evict,"
    " began_at, step_began_at, step_deadline_at, ended_at) VALUES "
)
_ILLEGAL = {
    "a second live lease": (_LEASE + "('gpu-1', 9, 'lease0009', 'slurm', 1, now())", "uq_leases_live_node"),
    "a lease from before": (_LEASE + "('gpu-1', 1, 'lease0009', 'slurm', 1, now())", "not later"),
    "a lease of nobody": (_LEASE + "('gpu-3', 9, 'lease0009', 'nobody', 1, now())", "ck_leases_owner"),
    "a lease with an unreadable id": (_LEASE + "('gpu-3', 9, 'Lease 9', 'slurm', 1, now())", "ck_leases_id"),
    "a lease of epoch 0": (_LEASE + "('gpu-3', 9, 'lease0009', 'slurm', 0, now())", "ck_leases_epoch"),
    "a lease of no known node": (_LEASE + "('gpu-9', 9, 'lease0009', 'slurm', 1, now())", "fk_leases_node"),
    "another owner": ("UPDATE leases SET owner = 'kubernetes' WHERE node = 'gpu-1'", "written already"),
    "another id": ("UPDATE leases SET id = 'lease0009' WHERE node = 'gpu-1'", "written already"),
    "an older epoch": ("UPDATE leases SET epoch = 1 WHERE generation = 2", "written already"),
    "a replaced lease comes back": ("UPDATE leases SET ended_at = NULL WHERE ended_at IS NOT NULL", "written already"),
    "a lease is forgotten": ("DELETE FROM leases", "history"),
    "leases are emptied": ("TRUNCATE leases", "history"),
    "a second live handoff": (
        _HANDOFF + "('h9', 'lease0009', 'gpu-1', 'slurm', 'kubernetes', 'close', '', '', 9, '', false,"
        " now(), now(), now(), NULL)",
        "uq_handoffs_live_node",
    ),
    "a handoff to itself": (
        _HANDOFF + "('h9', 'lease0009', 'gpu-3', 'slurm', 'slurm', 'close', '', '', 9, '', false,"
        " now(), now(), now(), NULL)",
        "ck_handoffs_moves",
    ),
    "a step that is none": ("UPDATE handoffs SET step = 'teleport' WHERE id = 'h1'", "ck_handoffs_step"),
    "a step that ended without an end": ("UPDATE handoffs SET step = 'done' WHERE id = 'h1'", "ck_handoffs_ended"),
    "an end without a step that ended": ("UPDATE handoffs SET ended_at = now() WHERE id = 'h1'", "ck_handoffs_ended"),
    "an ended handoff is written": ("UPDATE handoffs SET outcome = '' WHERE id = 'h2'", "written already"),
    "a handoff changes its node": ("UPDATE handoffs SET node = 'gpu-3' WHERE id = 'h1'", "written already"),
    "a handoff is forgotten": ("DELETE FROM handoffs WHERE id = 'h2'", "history"),
    "a lease names another's handoff": (
        "UPDATE leases SET handoff = 'h1' WHERE node = 'gpu-2' AND ended_at IS NULL",
        "fk_leases_node_hand",
    ),
    "a closure of a third side": ("UPDATE closures SET side = 'both'", "ck_closures_side"),
    "an unreadable mark": ("UPDATE closures SET lease = 'x'", "ck_closures_lease"),
    "the same name twice": ("UPDATE nodes SET kube_name = 'gpu-1.cluster'", "uq_nodes_kube_name"),
    "a node without GPUs": ("UPDATE nodes SET gpus = 0", "ck_nodes_gpus"),
    "a node is forgotten": ("DELETE FROM nodes WHERE name = 'gpu-3'", "history"),
    "an event is changed": ("UPDATE events SET message = ''", "history"),
    "an event is deleted": ("DELETE FROM events", "history"),
    "the log is emptied": ("TRUNCATE events", "history"),
    "a policy is changed": ("UPDATE policies SET document = '{}'", "history"),
    "a policy is deleted": ("DELETE FROM policies", "history"),
    "an epoch goes back": ("UPDATE leader SET epoch = 0", "needs an epoch"),
    "a leader without an epoch": ("UPDATE leader SET holder = 'x', expires_at = now()", "needs an epoch"),
    "a second leader": ("INSERT INTO leader (single) VALUES (2)", "ck_leader_single"),
    "no leader row": ("DELETE FROM leader", "history"),
    "use below nothing": ("INSERT INTO usage VALUES ('a', -1, now())", "ck_usage_gpu_s"),
    "use that is no number": ("INSERT INTO usage VALUES ('a', 'NaN', now())", "ck_usage_gpu_s"),
    "a backoff without a failure": ("INSERT INTO backoffs VALUES ('job 17', now(), 0)", "ck_backoffs_failures"),
    "a victim of a third side": ("INSERT INTO preempted VALUES (now(), 'job 17', 'both', 1)", "ck_preempted_side"),
    "a loss without end": ("INSERT INTO preempted VALUES (now(), 'x', 'slurm', 'inf')", "ck_preempted_loss_gpu_s"),
    "victims that are no list": ("UPDATE handoffs SET victims = '{}' WHERE id = 'h1'", "ck_handoffs_victims"),
    "a request for nothing": ("UPDATE requests SET nodes = '{}'", "ck_requests_nodes"),
    "an answer that is none": ("UPDATE requests SET state = 'perhaps'", "ck_requests_state"),
}


@pytest.fixture
def full(ledger: PostgresLedger) -> PostgresLedger:
    """gpu-1 moves under lease0003 with h1, gpu-2 has a lease with a history, h2 has ended, gpu-3 has nothing."""
    nodes = [a_node(f"gpu-{number}") for number in (1, 2, 3)]
    ledger.apply_policy(a_policy(), nodes, replaces=0, author="ada", note="", at=T0)
    ledger.campaign("broker-a", TTL_S)
    ledger.submit(a_request())
    ledger.commit(
        1,
        [
            PutHandoff(a_handoff("h2", "gpu-2", step=Step.DONE), None),
            PutHandoff(a_handoff("h1"), None),
            PutLease(a_lease("gpu-1", 3, handoff="h1"), None),
            PutLease(a_lease("gpu-2", 1), None),
            PutLease(a_lease("gpu-2", 2, epoch=2), ("lease0001", 1)),
            PutClosure(a_closure()),
        ],
    )
    return ledger


@pytest.mark.parametrize(("statement", "match"), _ILLEGAL.values(), ids=_ILLEGAL.keys())
def test_the_database_refuses(full: PostgresLedger, sql: psycopg.Connection, statement: str, match: str) -> None:
    with pytest.raises(psycopg.IntegrityError, match=match):
        sql.execute(statement)  # type: ignore[call-overload]


def test_an_application_role_cannot_rewrite_history_either(full: PostgresLedger, sql: psycopg.Connection) -> None:
    sql.execute("CREATE ROLE app")
    try:
        sql.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
        sql.execute("SET ROLE app")
        for statement in ("UPDATE events SET message = ''", "DELETE FROM events", "TRUNCATE events"):
            with pytest.raises(psycopg.IntegrityError, match="history"):
                sql.execute(statement)
    finally:
        sql.execute("RESET ROLE")
        sql.execute("DROP OWNED BY app")
        sql.execute("DROP ROLE app")


def test_replaced_leases_stay_as_history(full: PostgresLedger, sql: psycopg.Connection) -> None:
    rows = sql.execute(
        "SELECT generation, id, ended_at IS NOT NULL FROM leases WHERE node = 'gpu-2' ORDER BY generation"
    )
    assert rows.fetchall() == [(1, "lease0001", True), (2, "lease0002", False)]


def test_a_policy_that_meets_another_one_is_a_conflict(
    ledger: PostgresLedger, postgres: PostgresServer, sql: psycopg.Connection
) -> None:
    """Both have read version 0; the loser learns it from the key."""
    ended: list[Any] = []

    def apply() -> None:
        try:
            ledger.apply_policy(a_policy(), [], replaces=0, author="a", note="", at=T0)
        except Conflict as error:
            ended.append(error)

    with sql.transaction():
        sql.execute("INSERT INTO policies (version, at, author, document) VALUES (1, now(), 'b', '{}')")
        loser = threading.Thread(target=apply)
        loser.start()
        eventually(lambda: waits_for_a_lock(postgres, "INSERT INTO policies"), "the second policy did not wait")
    loser.join(WAIT_S)
    assert len(ended) == 1


def test_a_policy_document_of_another_time_is_unreadable(ledger: PostgresLedger, sql: psycopg.Connection) -> None:
    sql.execute("INSERT INTO policies (version, at, author, document) VALUES (1, now(), 'b', '{\"tribes\": []}')")
    with pytest.raises(Unreadable, match="policy version 1 is not understood"):
        ledger.read()


def test_a_document_of_the_first_policy_says_the_same_today(ledger: PostgresLedger, sql: psycopg.Connection) -> None:
    """Written field by field as the first version stored it; what came later has its default."""
    sql.execute(
        "INSERT INTO policies (version, at, author, document) VALUES (1, now(), 'ada', %s)",
        [
            json.dumps(
                {
                    "pools": [
                        {
                            "name": "shared",
                            "nodes": ["gpu-[1-4]"],
                            "kube_name": "{node}.cluster",
                            "gpus": 4,
                            "partition": "gpu",
                            "home": "kubernetes",
                            "slurm": {"floor_nodes": 1, "max_nodes": 3},
                            "kubernetes": {"floor_nodes": 0, "max_nodes": None},
                            "demand_age_s": 5.0,
                            "idle_age_s": 6.0,
                            "min_hold_s": 7.0,
                            "max_in_flight": 2,
                            "empty_patience_s": 3600.0,
                            "failure_backoff_s": 30.0,
                        }
                    ]
                }
            )
        ],
    )
    state = ledger.read()
    assert state.policy_version == 1
    assert state.policy == Policy(
        pools=(
            PoolPolicy(
                name="shared",
                nodes=("gpu-[1-4]",),
                kube_name="{node}.cluster",
                gpus=4,
                partition="gpu",
                home=Side.KUBERNETES,
                slurm=Share(floor_nodes=1, max_nodes=3),
                demand_age_s=5,
                idle_age_s=6,
                min_hold_s=7,
                max_in_flight=2,
                empty_patience_s=3600,
                failure_backoff_s=30,
            ),
        )
    )
    assert ledger.policy_history(10)[0][4] == state.policy
    assert ledger.apply_policy(state.policy, [], replaces=1, author="ada", note="", at=T0) == 2
    assert ledger.read().policy == state.policy


# --- a database that is away, slow or deaf ---


def test_a_database_that_is_away_is_unreadable_and_comes_back(
    ledger: PostgresLedger, postgres: PostgresServer, postgres_database: str
) -> None:
    ledger.campaign("broker-a", TTL_S)
    postgres.execute(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS false")
    terminate_all(postgres, postgres_database)
    with pytest.raises(Unreadable, match="ledger is unreadable"):
        ledger.read()
    with pytest.raises(CallFailed):
        ledger.commit(1, [Note("k", "m", T0)])
    with pytest.raises(CallFailed):
        ledger.renew("broker-a", 1, TTL_S, {})
    postgres.execute(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS true")
    assert ledger.leader() == ("broker-a", 1)
    ledger.commit(1, [Note("k", "m", T0)])


def terminate_all(postgres: PostgresServer, database: str) -> int:
    with postgres.connect() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        return len(connection.execute(query, (database,)).fetchall())


def test_idle_connections_that_were_cut_are_not_noticed_by_callers(
    ledger: PostgresLedger, postgres: PostgresServer, postgres_database: str
) -> None:
    ledger.campaign("broker-a", TTL_S)
    assert terminate_all(postgres, postgres_database) >= 1
    assert ledger.renew("broker-a", 1, TTL_S, {})


def test_no_server_at_all(tmp_path: Path) -> None:
    ledger = PostgresLedger(f"postgresql+psycopg://postgres@/bridge?host={tmp_path}")
    with pytest.raises(Unreadable):
        ledger.read()
    with pytest.raises(CallFailed):
        ledger.campaign("broker-a", TTL_S)
    ledger.close()


def test_a_database_without_our_schema_says_so(postgres: PostgresServer) -> None:
    ledger = PostgresLedger(postgres.url("postgres"))
    with pytest.raises(Unreadable, match="policies"):
        ledger.read()
    ledger.close()


def test_a_row_that_stays_locked_fails_the_commit_in_time(
    monkeypatch: pytest.MonkeyPatch, again: Callable[[], PostgresLedger], sql: psycopg.Connection
) -> None:
    monkeypatch.setattr(connections, "LOCK_TIMEOUT_S", 0.1)
    ledger = again()
    ledger.campaign("broker-a", TTL_S)
    with sql.transaction():
        sql.execute("SELECT FROM leader FOR UPDATE")
        with pytest.raises(CallFailed, match="lock timeout"):
            ledger.commit(1, [Note("k", "m", T0)])
    ledger.commit(1, [Note("k", "m", T0)])


def test_every_connection_has_its_time_outs(ledger: PostgresLedger) -> None:
    with connections.reading(ledger._engine) as connection:
        shown = {
            name: connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in (
                "statement_timeout",
                "lock_timeout",
                "timezone",
                "transaction_isolation",
                "transaction_read_only",
            )
        }
    assert shown == {
        "statement_timeout": "10s",
        "lock_timeout": "5s",
        "timezone": "UTC",
        "transaction_isolation": "repeatable read",
        "transaction_read_only": "on",
    }


# --- listening ---


def listeners(sql: psycopg.Connection) -> list[int]:
    """Server processes that sit behind a LISTEN of this database."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN bridge'"
    return [pid for (pid,) in sql.execute(query).fetchall()]


def test_a_listener_whose_connection_is_killed_connects_again_and_says_so(
    ledger: PostgresLedger, again: Callable[[], PostgresLedger], sql: psycopg.Connection
) -> None:
    heard = listening(ledger)
    (killed,) = listeners(sql)
    sql.execute("SELECT pg_terminate_backend(%s)", (killed,))
    heard.wait_for(2)  # it may have missed something
    again().pause("why", actor="ada", at=T0)
    heard.wait_for(3)


def test_a_listener_waits_for_a_database_that_is_away(
    ledger: PostgresLedger, postgres: PostgresServer, postgres_database: str
) -> None:
    heard = listening(ledger)
    postgres.execute(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS false")
    terminate_all(postgres, postgres_database)
    with pytest.raises(Unreadable):
        ledger.read()
    postgres.execute(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS true")
    heard.wait_for(2)


def test_a_watcher_that_fails_does_not_make_others_deaf(ledger: PostgresLedger) -> None:
    def failing(word: str) -> None:
        raise RuntimeError(word)

    ledger.watch(failing)
    heard = Heard()
    ledger.watch(heard)
    ledger.pause("why", actor="ada", at=T0)
    heard.wait_for(1)


def test_closing_ends_the_listener_at_once(ledger: PostgresLedger, sql: psycopg.Connection) -> None:
    listening(ledger)
    thread = ledger._listener._thread
    assert thread is not None
    assert thread.is_alive()
    began = time.monotonic()
    ledger.close()
    assert not thread.is_alive()
    assert time.monotonic() - began < 1
    eventually(lambda: not listeners(sql), "the listening connection did not end")


def test_closing_does_not_wait_for_a_database_that_is_away(tmp_path: Path) -> None:
    ledger = PostgresLedger(f"postgresql+psycopg://postgres@/bridge?host={tmp_path}")
    ledger.watch(Heard())
    began = time.monotonic()
    ledger.close()
    assert time.monotonic() - began < 1


# --- secrets ---


def test_the_password_is_read_from_its_file_for_each_connection(
    postgres: PostgresServer, postgres_database: str, tmp_path: Path
) -> None:
    hba = postgres.data_dir / "pg_hba.conf"
    before = hba.read_text()
    secret = tmp_path / "password"
    hba.write_text(f"local all by_password scram-sha-256\n{before}")
    try:
        postgres.execute("CREATE ROLE by_password LOGIN SUPERUSER PASSWORD 'first-secret'", "SELECT pg_reload_conf()")
        secret.write_text("first-secret\n")
        ledger = PostgresLedger(postgres.url(postgres_database, "by_password"), secret)
        eventually(lambda: can_read(ledger), "the right password was not taken")

        postgres.execute("ALTER ROLE by_password PASSWORD 'second-secret'")
        terminate_all(postgres, postgres_database)
        with pytest.raises(Unreadable, match="password authentication failed") as refused:
            ledger.read()
        assert "secret" not in str(refused.value)
        secret.write_text("second-secret\n")
        assert can_read(ledger)

        secret.unlink()
        terminate_all(postgres, postgres_database)
        with pytest.raises(Unreadable, match="No such file"):
            ledger.read()
        ledger.close()
    finally:
        hba.write_text(before)
        postgres.execute("SELECT pg_reload_conf()", "DROP ROLE IF EXISTS by_password")


def can_read(ledger: PostgresLedger) -> bool:
    try:
        ledger.read()
    except Unreadable:
        return False
    return True


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(Invalid, match="PASSWORD_FILE") as refused:
        PostgresLedger("postgresql+psycopg://bridge:hunter2@db/bridge")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["sqlite:///x", "not a url", "mysql://db/bridge"])
def test_only_postgres_will_do(url: str) -> None:
    with pytest.raises(Invalid):
        PostgresLedger(url)
