"""The ledger in memory passes the contract, and has knobs for faults."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from bridge.model.errors import CallFailed, Unreadable
from bridge.model.ledger import Note, PutLease
from bridge.ports import Ledger
from bridge.store.memory import MemoryLedger
from tests.contracts.ledger import T0, TTL_S, Expire, LedgerContract, a_lease, a_node, a_policy


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


class TestMemoryLedger(LedgerContract):
    @pytest.fixture
    def ledger(self, clock: HandClock) -> Ledger:
        return MemoryLedger(clock)

    @pytest.fixture
    def expire(self, clock: HandClock) -> Expire:
        def run_out() -> None:
            clock.now += timedelta(seconds=TTL_S)

        return run_out

    @pytest.fixture
    def again(self, ledger: Ledger) -> Callable[[], Ledger]:
        return lambda: ledger

    def test_closing_ends_the_watching(self, ledger: Ledger, again: Callable[[], Ledger]) -> None:
        heard = self.listening(ledger)
        ledger.close()
        ledger.pause("why", actor="ada", at=T0)
        assert heard.words == []


def test_a_lead_ends_on_the_ledgers_clock(clock: HandClock) -> None:
    ledger = MemoryLedger(clock)
    ledger.campaign("broker-a", 10)
    clock.now += timedelta(seconds=9.999)
    assert ledger.renew("broker-a", 1, 10, {})
    clock.now += timedelta(seconds=9.999)
    assert ledger.leader() == ("broker-a", 1)
    clock.now += timedelta(seconds=0.001)
    assert ledger.leader() is None


def test_while_away_nothing_is_read_or_written(clock: HandClock) -> None:
    ledger = MemoryLedger(clock)
    ledger.away = "no route to host"
    with pytest.raises(Unreadable, match="ledger is unreadable: no route to host"):
        ledger.read()
    with pytest.raises(CallFailed, match="no route to host"):
        ledger.campaign("broker-a", TTL_S)
    ledger.away = ""
    assert ledger.campaign("broker-a", TTL_S) == 1


def test_a_lost_answer_hides_a_write_that_happened(clock: HandClock) -> None:
    ledger = MemoryLedger(clock)
    ledger.campaign("broker-a", TTL_S)
    ledger.lost_answers = 1
    with pytest.raises(CallFailed):
        ledger.commit(1, [Note("k", "first", T0)])
    ledger.commit(1, [Note("k", "second", T0)])
    assert [event.message for event in ledger.events(after=0, limit=10)] == ["first", "second"]


def test_a_watcher_may_call_the_ledger(clock: HandClock) -> None:
    ledger = MemoryLedger(clock)
    paused: list[str] = []
    ledger.watch(lambda word: paused.append(ledger.read().paused))
    ledger.pause("why", actor="ada", at=T0)
    assert paused == ["why"]


def test_a_ledger_can_be_taken_back_to_the_past_again_and_again(clock: HandClock) -> None:
    ledger = MemoryLedger(clock)
    told: list[str] = []
    ledger.watch(told.append)
    ledger.campaign("broker-a", TTL_S)
    assert ledger.next_generation() == 1
    ledger.commit(1, [Note("k", "first", T0)])
    backup, before = ledger.backup(), ledger.read()
    for _ in range(2):
        nodes = [a_node("gpu-1")]
        ledger.apply_policy(a_policy(), nodes, replaces=0, author="ada", note="", at=T0)
        ledger.commit(1, [PutLease(a_lease(generation=ledger.next_generation()), None), Note("k", "second", T0)])
        ledger.pause("why", actor="ada", at=T0)
        ledger.resign("broker-a", 1)
        told.clear()
        ledger.restore(backup)
        assert told == ["ledger"]
        assert ledger.read() == before
        assert [event.message for event in ledger.events(after=0, limit=10)] == ["first"]
        assert ledger.leader() == ("broker-a", 1)
        assert ledger.next_generation() == 2
        ledger.restore(backup)
