"""Large ledgers stay quick. The bounds are far above what is measured: they catch a query a row, not a slow machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from bridge.model.ledger import Change, NodeRecord, Note, PutClosure, PutHandoff, PutLease, PutRecord, PutSighting
from bridge.model.ownership import Side
from bridge.store.postgres import PostgresLedger
from tests.contracts.ledger import T0, a_closure, a_handoff, a_lease, a_node, a_policy

FLEET = 5000
PLAN = 200


def name(number: int) -> str:
    return f"gpu-{number:04}"


@pytest.fixture
def fleet(postgres_url: str) -> Iterator[PostgresLedger]:
    """5,000 nodes, each with a lease and a closure."""
    ledger = PostgresLedger(postgres_url)
    ledger.apply_policy(
        a_policy(), [a_node(name(number)) for number in range(FLEET)], replaces=0, author="a", note="", at=T0
    )
    ledger.campaign("broker-a", 600)
    changes: list[Change] = []
    for number in range(FLEET):
        changes.append(PutLease(a_lease(name(number)), None))
        changes.append(PutClosure(a_closure(name(number), Side.KUBERNETES)))
    ledger.commit(1, changes)
    yield ledger
    ledger.close()


def took_ms(what: str, call: Callable[[], object], report: Callable[[str, object], None]) -> float:
    began = time.perf_counter()
    call()
    ms = (time.perf_counter() - began) * 1000
    report(what, f"{ms:.0f} ms")
    return ms


def test_a_large_ledger(fleet: PostgresLedger, record_property: Callable[[str, object], None]) -> None:
    begin: list[Change] = []
    for number in range(PLAN):
        node, id = name(number), f"h{number}"
        begin.append(PutLease(a_lease(node, 2, handoff=id), ("lease0001", 1)))
        begin.append(PutHandoff(a_handoff(id, node), None))
        begin.append(PutClosure(a_closure(node)))
        begin.append(Note("began", node, T0, node=node, handoff=id))
    seen: list[Change] = [
        PutSighting(name(number), side, T0, {"states": ["IDLE"]}) for number in range(FLEET) for side in Side
    ]
    records: list[Change] = [PutRecord(NodeRecord(a_node(name(number)), T0)) for number in range(FLEET)]

    assert took_ms(f"read {FLEET} nodes", fleet.read, record_property) < 3000
    assert took_ms(f"begin {PLAN} handoffs", lambda: fleet.commit(1, begin), record_property) < 3000
    assert took_ms(f"commit {2 * FLEET} sightings", lambda: fleet.commit(1, seen), record_property) < 15_000
    assert took_ms(f"commit {FLEET} records", lambda: fleet.commit(1, records), record_property) < 15_000
    assert len(fleet.read().handoffs) == PLAN
