"""What every ledger must do. A test module of an implementation subclasses `LedgerContract` and gives its fixtures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from bridge.model.demand import Victim
from bridge.model.errors import BridgeError, Conflict, Fenced, Invalid, InvariantViolation
from bridge.model.handoff import ADOPTER, Handoff, Step
from bridge.model.ledger import (
    PREEMPTED_FOR_S,
    RECLAIMS,
    AnswerRequest,
    Backoff,
    Change,
    DropBackoff,
    DropClosure,
    DropPause,
    FenceAck,
    LedgerState,
    NodeRecord,
    Note,
    Preempted,
    PutBackoff,
    PutClosure,
    PutHandoff,
    PutLease,
    PutPause,
    PutPreempted,
    PutRecord,
    PutSighting,
    PutUsage,
    Request,
    RequestState,
    Usage,
)
from bridge.model.ownership import Closure, Lease, Mark, Node, Owner, Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Reach, Scope
from bridge.model.policy import Policy, PoolPolicy
from bridge.ports import Ledger

T0 = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
TTL_S = 60.0
WAIT_S = 20.0

Expire = Callable[[], None]


def a_policy(*pools: str, home: Side = Side.SLURM) -> Policy:
    return Policy(
        pools=tuple(
            PoolPolicy(name=pool, nodes=(f"{pool}-[1-9]",), partition="gpu", home=home) for pool in pools or ("gpu",)
        )
    )


def a_node(name: str, pool: str = "gpu") -> Node:
    return Node(name, name, f"{name}.cluster", pool, 8)


def a_lease(node: str = "gpu-1", generation: int = 1, **fields: Any) -> Lease:
    given: dict[str, Any] = {"id": f"lease{generation:04}", "owner": Owner.SLURM, "epoch": 1, "owner_since": T0}
    return Lease(node=node, generation=generation, **given | fields)


def a_handoff(id: str = "h1", node: str = "gpu-1", step: Step = Step.CLOSE, **fields: Any) -> Handoff:
    given: dict[str, Any] = {
        "lease": "lease0001",
        "source": Side.SLURM,
        "destination": Side.KUBERNETES,
        "reason": "3 pods wait",
        "requested_by": "planner",
        "generation": 1,
        "nonce": f"nonce-{step}",
        "evict": False,
        "began_at": T0,
        "step_began_at": T0,
        "step_deadline_at": T0 + timedelta(seconds=60),
        "ended_at": T0 if step.ended else None,
        "outcome": step.value if step.ended else None,
    }
    return Handoff(id=id, node=node, step=step, **given | fields)


def a_victim(key: str = "job 17 of alice", **fields: Any) -> Victim:
    given: dict[str, Any] = {"side": Side.SLURM, "job": 17, "loss_gpu_s": 9600.5, "signal": "USR1", "grace_s": 120.0}
    return Victim(key, **given | fields)


def a_closure(node: str = "gpu-1", side: Side = Side.SLURM, generation: int = 1, **fields: Any) -> Closure:
    return Closure(node, side, Mark("lease0001", 1, generation), **fields)


def a_request(id: str = "r1", **fields: Any) -> Request:
    given: dict[str, Any] = {
        "nodes": ("gpu-1", "gpu-2"),
        "destination": Side.KUBERNETES,
        "requested_by": "mia",
        "reason": "launch day",
        "requested_at": T0,
    }
    return Request(id=id, **given | fields)


class Heard:
    """Counts the calls of a watcher, and waits for them."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, word: str) -> None:
        with self._changed:
            self.words.append(word)
            self._changed.notify_all()

    def wait_for(self, calls: int) -> None:
        with self._changed:
            heard = self._changed.wait_for(lambda: len(self.words) >= calls, WAIT_S)
        assert heard, f"expected {calls} calls within {WAIT_S} s, got {len(self.words)}"


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind of error it raises."""
    try:
        return call()
    except BridgeError as error:
        return type(error)


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The outcomes of calls that start together, each in a thread of its own."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait(WAIT_S)
        return outcome(call)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


class LedgerContract:
    @pytest.fixture
    def ledger(self) -> Ledger:
        raise NotImplementedError

    @pytest.fixture
    def expire(self) -> Expire:
        """Makes the leader's lease run out on the ledger's clock."""
        raise NotImplementedError

    @pytest.fixture
    def again(self) -> Callable[[], Ledger]:
        """The same ledger as a process sees it that has just started."""
        raise NotImplementedError

    def listening(self, ledger: Ledger) -> Heard:
        """A watcher that will hear of the next change."""
        heard = Heard()
        ledger.watch(heard)
        return heard

    @pytest.fixture
    def epoch(self, ledger: Ledger) -> int:
        epoch = ledger.campaign("broker-a", TTL_S)
        assert epoch == 1
        return epoch

    @pytest.fixture
    def stocked(self, ledger: Ledger, epoch: int) -> Ledger:
        """A ledger that is led, with gpu-1, gpu-2 and gpu-3 in its inventory, which have no leases yet."""
        nodes = [a_node(f"gpu-{number}") for number in (1, 2, 3)]
        ledger.apply_policy(a_policy(), nodes, replaces=0, author="ada", note="first", at=T0)
        return ledger

    def refuses(self, ledger: Ledger, kind: type[BridgeError], *changes: Change, match: str = "") -> None:
        """The commit fails with `kind`, and leaves no trace of any of its changes."""
        before = (ledger.read(), ledger.handoffs(limit=100), ledger.events(after=0, limit=100))
        with pytest.raises(kind, match=match):
            ledger.commit(1, [Note("before", "must not stay", T0), *changes])
        assert (ledger.read(), ledger.handoffs(limit=100), ledger.events(after=0, limit=100)) == before

    # --- leadership ---

    def test_a_free_ledger_has_no_leader(self, ledger: Ledger) -> None:
        assert ledger.leader() is None

    def test_the_first_to_campaign_leads_and_nobody_else_can(self, ledger: Ledger) -> None:
        assert ledger.campaign("broker-a", TTL_S) == 1
        assert ledger.leader() == ("broker-a", 1)
        assert ledger.campaign("broker-b", TTL_S) is None
        assert ledger.campaign("broker-a", TTL_S) is None
        assert ledger.leader() == ("broker-a", 1)

    def test_the_epoch_grows_when_another_leads_after_an_expiry(
        self, ledger: Ledger, epoch: int, expire: Expire
    ) -> None:
        expire()
        assert ledger.leader() is None
        assert ledger.campaign("broker-b", TTL_S) == epoch + 1

    def test_the_epoch_grows_when_the_same_one_leads_again(self, ledger: Ledger, epoch: int) -> None:
        ledger.resign("broker-a", epoch)
        assert ledger.leader() is None
        assert ledger.campaign("broker-a", TTL_S) == epoch + 1

    def test_renewing_keeps_the_lead(self, ledger: Ledger, epoch: int) -> None:
        assert ledger.renew("broker-a", epoch, TTL_S, {})
        assert ledger.leader() == ("broker-a", epoch)

    def test_whoever_asks_is_told_what_the_leader_could_not_read(
        self, ledger: Ledger, epoch: int, expire: Expire
    ) -> None:
        assert ledger.leaders_sight() is None, "it has not finished a pass"
        assert ledger.renew("broker-a", epoch, TTL_S, {Side.SLURM: "slurmrestd: time-out"})
        told = ledger.leaders_sight()
        assert told is not None
        assert told.unread == {Side.SLURM: "slurmrestd: time-out"}
        assert ledger.renew("broker-a", epoch, TTL_S, {})
        later = ledger.leaders_sight()
        assert later is not None
        assert later.unread == {}
        assert later.at >= told.at
        assert not ledger.renew("broker-b", epoch, TTL_S, {Side.KUBERNETES: "not its to say"})
        assert ledger.leaders_sight() == later

        ledger.resign("broker-a", epoch)
        assert ledger.leaders_sight() is None, "nobody leads"
        ledger.campaign("broker-b", TTL_S)
        assert ledger.leaders_sight() is None, "what the leader before said is not its word"
        ledger.renew("broker-b", epoch + 1, TTL_S, {})
        expire()
        assert ledger.leaders_sight() is None, "its lead is over"

    @pytest.mark.parametrize(("holder", "epoch_off"), [("broker-b", 0), ("broker-a", 1), ("broker-a", -1)])
    def test_only_the_leader_renews(self, ledger: Ledger, epoch: int, holder: str, epoch_off: int) -> None:
        assert not ledger.renew(holder, epoch + epoch_off, TTL_S, {})

    def test_an_expired_lead_cannot_be_renewed(self, ledger: Ledger, epoch: int, expire: Expire) -> None:
        expire()
        assert not ledger.renew("broker-a", epoch, TTL_S, {})
        assert ledger.leader() is None

    def test_resigning_with_an_old_epoch_leaves_the_new_leader_alone(
        self, ledger: Ledger, epoch: int, expire: Expire
    ) -> None:
        expire()
        new = ledger.campaign("broker-a", TTL_S)
        ledger.resign("broker-a", epoch)
        ledger.resign("broker-b", epoch + 1)
        assert ledger.leader() == ("broker-a", new)

    def test_a_leader_may_ask_for_an_epoch_above_the_marks_outside(self, ledger: Ledger, epoch: int) -> None:
        """After a restore from the past: no earlier epoch is handed out again, and the next one is one higher still."""
        assert ledger.campaign("broker-b", TTL_S, above=(40, 0)) is None
        ledger.resign("broker-a", epoch)
        assert ledger.campaign("broker-a", TTL_S, above=(41, 0)) == 42
        assert ledger.leader() == ("broker-a", 42)
        ledger.commit(42, [])
        ledger.resign("broker-a", 42)
        assert ledger.campaign("broker-a", TTL_S, above=(7, 0)) == 43, "it never goes back"

    def test_generations_are_raised_above_the_marks_outside(self, ledger: Ledger, epoch: int, expire: Expire) -> None:
        drawn = ledger.next_generation()
        assert ledger.campaign("broker-b", TTL_S, above=(0, 900)) is None
        assert ledger.next_generation() == drawn + 1, "who does not win raises nothing"
        expire()
        assert ledger.campaign("broker-b", TTL_S, above=(0, 1000)) == epoch + 1
        assert ledger.next_generation() == 1001
        ledger.resign("broker-b", epoch + 1)
        assert ledger.campaign("broker-b", TTL_S, above=(0, 1000)) == epoch + 2
        assert ledger.next_generation() == 1002, "nor do they go back"

    def test_the_first_leader_of_an_empty_ledger_may_ask_too(self, ledger: Ledger, again: Callable[[], Ledger]) -> None:
        """The database was lost whole, and its marks stand outside."""
        assert ledger.campaign("broker-a", TTL_S, above=(6, 77)) == 7
        assert again().next_generation() == 78

    def test_of_many_campaigners_at_once_one_wins(self, ledger: Ledger, again: Callable[[], Ledger]) -> None:
        won = at_once([partial(again().campaign, f"broker-{number}", TTL_S) for number in range(4)])
        assert sorted(won, key=str) == [1, None, None, None]

    # --- generations ---

    def test_generations_grow(self, ledger: Ledger) -> None:
        assert ledger.next_generation() < ledger.next_generation() < ledger.next_generation()

    def test_generations_drawn_at_once_all_differ(self, ledger: Ledger) -> None:
        drawn = at_once([ledger.next_generation] * 8)
        assert len(set(drawn)) == 8

    def test_a_generation_counts_once_it_is_committed(self, stocked: Ledger) -> None:
        """The fence file is believed up to this number, so it must not run ahead of what the same reading shows."""
        generation = stocked.next_generation()
        assert stocked.read().generation == 0
        stocked.commit(1, [PutLease(a_lease(generation=generation), None)])
        assert stocked.read().generation == generation

    # --- reading and committing ---

    def test_an_empty_ledger_reads_as_nothing(self, ledger: Ledger) -> None:
        assert ledger.read() == LedgerState()

    def test_a_commit_is_read_back_whole(self, stocked: Ledger) -> None:
        lease = a_lease(owner=Owner.BRIDGE, handoff="h1")
        handoff = a_handoff(blockers=("job 17", "job 18"))
        closure = a_closure(set_by="root", set_at=T0)
        record = NodeRecord(a_node("gpu-2"), idle_since=T0, backoff_until=T0 + timedelta(hours=1), unusable="no GPUs")
        stocked.commit(1, [PutLease(lease, None), PutHandoff(handoff, None), PutClosure(closure), PutRecord(record)])
        state = stocked.read()
        assert state.leases == {"gpu-1": lease}
        assert state.handoffs == {"gpu-1": handoff}
        assert state.closures == {("gpu-1", Side.SLURM): closure}
        assert state.nodes == {
            "gpu-1": NodeRecord(a_node("gpu-1")),
            "gpu-2": record,
            "gpu-3": NodeRecord(a_node("gpu-3")),
        }

    def test_a_restart_finds_everything(self, stocked: Ledger, again: Callable[[], Ledger]) -> None:
        stocked.commit(1, [PutLease(a_lease(), None), Note("leased", "gpu-1", T0)])
        stocked.pause("maintenance", actor="ada", at=T0)
        other = again()
        assert other.read() == stocked.read()
        assert other.leader() == ("broker-a", 1)
        assert other.events(after=0, limit=10) == stocked.events(after=0, limit=10)

    def test_a_reading_does_not_change_afterwards(self, stocked: Ledger) -> None:
        before = stocked.read()
        stocked.commit(1, [PutLease(a_lease(), None)])
        assert before.leases == {}

    def test_changes_apply_in_order(self, stocked: Ledger) -> None:
        first, second = a_lease(generation=1), a_lease(generation=2, owner=Owner.KUBERNETES)
        stocked.commit(
            1,
            [
                PutLease(first, None),
                PutLease(second, ("lease0001", 1)),
                PutHandoff(a_handoff(), None),
                PutHandoff(a_handoff(step=Step.RETURNED), Step.CLOSE),
                PutHandoff(a_handoff("h2"), None),
                PutClosure(a_closure()),
                DropClosure("gpu-1", Side.SLURM, a_closure().mark),
            ],
        )
        state = stocked.read()
        assert state.leases == {"gpu-1": second}
        assert state.handoffs == {"gpu-1": a_handoff("h2")}
        assert state.closures == {}
        assert [each.id for each in stocked.handoffs(limit=10)] == ["h2", "h1"]

    def test_an_empty_commit_only_asks_whether_we_lead(self, ledger: Ledger, epoch: int) -> None:
        ledger.commit(epoch, [])
        with pytest.raises(Fenced):
            ledger.commit(epoch + 1, [])

    # --- fencing ---

    def test_nobody_commits_without_a_leader(self, ledger: Ledger) -> None:
        with pytest.raises(Fenced):
            ledger.commit(0, [Note("k", "m", T0)])

    @pytest.mark.parametrize("epoch", [0, 2])
    def test_another_epoch_is_fenced(self, stocked: Ledger, epoch: int) -> None:
        with pytest.raises(Fenced):
            stocked.commit(epoch, [PutLease(a_lease(), None)])
        assert stocked.read().leases == {}

    def test_an_expired_lead_is_fenced_though_nobody_else_leads(self, stocked: Ledger, expire: Expire) -> None:
        expire()
        with pytest.raises(Fenced):
            stocked.commit(1, [PutLease(a_lease(), None)])
        assert stocked.read().leases == {}

    def test_the_old_epoch_is_fenced_after_a_change_of_leader(self, stocked: Ledger, expire: Expire) -> None:
        expire()
        assert stocked.campaign("broker-b", TTL_S) == 2
        with pytest.raises(Fenced):
            stocked.commit(1, [PutLease(a_lease(), None)])
        stocked.commit(2, [PutLease(a_lease(epoch=2), None)])

    # --- leases ---

    @pytest.mark.parametrize("replaces", [("lease0001", 2), ("lease0002", 1), None])
    def test_a_lease_replaces_only_the_one_that_was_read(
        self, stocked: Ledger, replaces: tuple[str, int] | None
    ) -> None:
        stocked.commit(1, [PutLease(a_lease(generation=1), None)])
        self.refuses(
            stocked, Conflict, PutLease(a_lease(generation=3), replaces), match=r"gpu-1: expected .*, found lease0001:1"
        )

    def test_a_first_lease_cannot_replace_one(self, stocked: Ledger) -> None:
        self.refuses(stocked, Conflict, PutLease(a_lease(), ("lease0001", 1)), match="expected lease0001:1, found none")

    def test_of_two_commits_that_replace_the_same_lease_one_wins(
        self, stocked: Ledger, again: Callable[[], Ledger]
    ) -> None:
        stocked.commit(1, [PutLease(a_lease(generation=1), None)])
        ledgers = [again() for _ in range(4)]

        def commit(ledger: Ledger, generation: int) -> None:
            lease = a_lease(generation=generation)
            ledger.commit(1, [PutLease(lease, ("lease0001", 1)), Note("leased", str(generation), T0)])

        ended = at_once([partial(commit, mine, number + 2) for number, mine in enumerate(ledgers)])
        assert sorted(map(str, ended)) == sorted(map(str, [None, Conflict, Conflict, Conflict]))
        winner = ended.index(None) + 2
        assert stocked.read().leases["gpu-1"].generation == winner
        assert [event.message for event in stocked.events(after=0, limit=10) if event.kind == "leased"] == [str(winner)]

    def test_a_handoff_may_come_and_go_in_one_generation(self, stocked: Ledger) -> None:
        lease = a_lease(owner=Owner.BRIDGE, handoff="h1")
        stocked.commit(1, [PutLease(lease, None), PutHandoff(a_handoff(), None)])
        stocked.commit(1, [PutLease(replace(lease, handoff=None, epoch=2), (lease.id, lease.generation))])
        assert stocked.read().leases["gpu-1"] == replace(lease, handoff=None, epoch=2)

    def test_the_owner_cannot_change_within_a_generation(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutLease(a_lease(), None)])
        taken = a_lease(owner=Owner.KUBERNETES)
        self.refuses(stocked, InvariantViolation, PutLease(taken, ("lease0001", 1)), match="LaterWins")

    def test_the_epoch_of_a_lease_cannot_go_back(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutLease(a_lease(epoch=2), None)])
        self.refuses(stocked, InvariantViolation, PutLease(a_lease(epoch=1), ("lease0001", 1)), match="LaterWins")

    def test_generations_of_a_node_cannot_go_back(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutLease(a_lease(generation=5), None)])
        older = a_lease(generation=4)
        self.refuses(stocked, InvariantViolation, PutLease(older, ("lease0005", 5)), match="LaterWins")

    def test_nodes_of_a_gang_share_a_lease(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutLease(a_lease("gpu-1"), None), PutLease(a_lease("gpu-2"), None)])
        assert {lease.mark for lease in stocked.read().leases.values()} == {Mark("lease0001", 1, 1)}

    def test_a_lease_names_no_handoff_that_is_not_there(self, stocked: Ledger) -> None:
        self.refuses(stocked, InvariantViolation, PutLease(a_lease(handoff="h1"), None), match="LegalRow")

    def test_a_lease_names_no_handoff_of_another_node(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(node="gpu-2"), None)])
        self.refuses(stocked, InvariantViolation, PutLease(a_lease(handoff="h1"), None), match="LegalRow")

    @pytest.mark.parametrize("fields", [{"id": "Lease-1"}, {"id": "short"}, {"epoch": 0}, {"generation": 0}])
    def test_a_lease_whose_mark_could_not_be_read_back_is_refused(
        self, stocked: Ledger, fields: dict[str, Any]
    ) -> None:
        lease = replace(a_lease(), **fields)
        self.refuses(stocked, InvariantViolation, PutLease(lease, None), match="LegalRow")

    # --- handoffs ---

    def test_a_handoff_moves_from_step_to_step(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(), None)])
        emptying = a_handoff(step=Step.EMPTY, step_began_at=T0 + timedelta(seconds=5), blockers=("job 17",), evict=True)
        stocked.commit(1, [PutHandoff(emptying, Step.CLOSE)])
        assert stocked.read().handoffs == {"gpu-1": emptying}
        waiting = replace(emptying, blockers=("job 18",))
        stocked.commit(1, [PutHandoff(waiting, Step.EMPTY)])
        assert stocked.read().handoffs == {"gpu-1": waiting}

    def test_an_ended_handoff_is_listed_but_not_live(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(), None)])
        done = a_handoff(step=Step.DONE)
        stocked.commit(1, [PutHandoff(done, Step.CLOSE)])
        assert stocked.read().handoffs == {}
        assert stocked.handoffs(limit=10) == [done]

    @pytest.mark.parametrize("replaces", [Step.EMPTY, None])
    def test_a_handoff_replaces_only_the_step_that_was_read(self, stocked: Ledger, replaces: Step | None) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(), None)])
        self.refuses(stocked, Conflict, PutHandoff(a_handoff(step=Step.CLEAN), replaces), match="h1: .*found close")

    def test_a_handoff_that_is_not_there_cannot_move_on(self, stocked: Ledger) -> None:
        self.refuses(stocked, Conflict, PutHandoff(a_handoff(step=Step.EMPTY), Step.CLOSE), match="found none")

    def test_a_node_has_one_live_handoff(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(), None)])
        self.refuses(stocked, Conflict, PutHandoff(a_handoff("h2"), None), match="found h1")

    def test_an_ended_handoff_is_not_written_again(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(), None)])
        stocked.commit(1, [PutHandoff(a_handoff(step=Step.FAILED), Step.CLOSE)])
        self.refuses(stocked, InvariantViolation, PutHandoff(a_handoff(), Step.FAILED), match="HistoryStands")

    def test_a_handoff_stays_on_its_node(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(), None)])
        self.refuses(stocked, InvariantViolation, PutHandoff(a_handoff(node="gpu-2"), Step.CLOSE), match="LegalRow")

    @pytest.mark.parametrize(
        "fields",
        [
            {"destination": Side.SLURM},
            {"ended_at": T0},
            {"step": Step.DONE},
            {"generation": 0},
            {"lease": "lease 1 2 3"},
            {"victims": (a_victim(loss_gpu_s=-1.0),)},
            {"victims": (a_victim(loss_gpu_s=float("nan")),)},
            {"victims": (a_victim(), a_victim(grace_s=float("inf")))},
        ],
    )
    def test_a_handoff_that_cannot_be_true_is_refused(self, stocked: Ledger, fields: dict[str, Any]) -> None:
        wrong = replace(a_handoff(), **fields)
        self.refuses(stocked, InvariantViolation, PutHandoff(wrong, None), match="LegalRow")

    def test_handoffs_are_listed_newest_first_and_by_node(self, stocked: Ledger) -> None:
        for number in (1, 2, 3):
            stocked.commit(1, [PutHandoff(a_handoff(f"h{number}", f"gpu-{number}"), None)])
        stocked.commit(1, [PutHandoff(a_handoff("h1", step=Step.EMPTY), Step.CLOSE)])
        assert [each.id for each in stocked.handoffs(limit=10)] == ["h3", "h2", "h1"]
        assert [each.id for each in stocked.handoffs(limit=2)] == ["h3", "h2"]
        assert [each.id for each in stocked.handoffs(limit=10, node="gpu-2")] == ["h2"]

    def test_a_handoff_is_found_by_its_id_also_after_its_end(self, stocked: Ledger) -> None:
        ended = a_handoff("h1", step=Step.QUARANTINED)
        stocked.commit(1, [PutHandoff(ended, None), PutHandoff(a_handoff("h2"), None)])
        assert stocked.handoff("h1") == ended
        assert stocked.handoff("h2") == a_handoff("h2")
        assert stocked.handoff("h3") is None

    @pytest.mark.parametrize("step", Step)
    def test_every_step_can_be_stored(self, stocked: Ledger, step: Step) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(step=step), None)])
        assert stocked.handoff("h1") == a_handoff(step=step)

    def test_a_handoff_remembers_whom_it_may_end_and_for_what(
        self, stocked: Ledger, again: Callable[[], Ledger]
    ) -> None:
        pod = a_victim("pod serving/chat-1", side=Side.KUBERNETES, job=None, loss_gpu_s=0.0, signal="", grace_s=0.0)
        handoff = a_handoff(demand="job 30 of bob", victims=(a_victim(), pod))
        stocked.commit(1, [PutHandoff(handoff, None)])
        signalled = replace(handoff, step=Step.EMPTY, signalled_at=T0 + timedelta(seconds=3))
        stocked.commit(1, [PutHandoff(signalled, Step.CLOSE)])
        assert again().read().handoffs == {"gpu-1": signalled}
        assert again().handoff("h1") == signalled

    # --- what a pass remembers for the planner ---

    def test_use_is_kept_by_team(self, ledger: Ledger, epoch: int, again: Callable[[], Ledger]) -> None:
        b, a = Usage("b", 0.1 + 0.2, T0), Usage("a", 1e12, T0)
        ledger.commit(epoch, [PutUsage(b), PutUsage(a)])
        later = Usage("b", 480.0, T0 + timedelta(minutes=1))
        ledger.commit(epoch, [PutUsage(Usage("b", 3.0, T0)), PutUsage(later)])
        assert again().read().usage == {"a": a, "b": later}
        assert list(again().read().usage) == ["a", "b"]

    def test_a_backoff_stands_until_it_is_dropped(
        self, ledger: Ledger, epoch: int, again: Callable[[], Ledger]
    ) -> None:
        first, other = Backoff("job 17 of alice", T0, 1), Backoff("job 18 of bob", T0, 1)
        ledger.commit(epoch, [PutBackoff(first), PutBackoff(other)])
        second = replace(first, until=T0 + timedelta(minutes=5), failures=2)
        ledger.commit(epoch, [PutBackoff(second), DropBackoff(other.demand), DropBackoff("never heard of")])
        assert again().read().backoffs == {first.demand: second}
        ledger.commit(epoch, [DropBackoff(first.demand), PutBackoff(first)])
        assert again().read().backoffs == {first.demand: first}
        ledger.commit(epoch, [PutBackoff(second), DropBackoff(first.demand)])
        assert again().read().backoffs == {}

    def test_victims_are_read_newest_first(self, ledger: Ledger, epoch: int) -> None:
        old = Preempted("job 17 of alice", Side.SLURM, T0, 9600.5)
        new = Preempted("job 17 of alice", Side.SLURM, T0 + timedelta(hours=1), 100.0)
        pod = Preempted("B", Side.KUBERNETES, T0, 0.0)
        ledger.commit(epoch, [PutPreempted(old), PutPreempted(new), PutPreempted(pod)])
        assert ledger.read().preempted == (new, pod, old)

    def test_the_same_victim_at_the_same_time_is_one(self, ledger: Ledger, epoch: int) -> None:
        chosen = Preempted("job 17 of alice", Side.SLURM, T0, 9600.5)
        ledger.commit(epoch, [PutPreempted(chosen), PutPreempted(replace(chosen, loss_gpu_s=1.0))])
        ledger.commit(epoch, [PutPreempted(chosen)])
        assert ledger.read().preempted == (chosen,)

    def test_victims_of_more_than_a_day_ago_are_forgotten_with_the_next(self, ledger: Ledger, epoch: int) -> None:
        def chosen(after_s: float) -> Preempted:
            return Preempted("job 17 of alice", Side.SLURM, T0 + timedelta(seconds=after_s), 1.0)

        ledger.commit(epoch, [PutPreempted(chosen(0)), PutPreempted(chosen(1))])
        ledger.commit(epoch, [PutPreempted(chosen(PREEMPTED_FOR_S + 1))])
        assert ledger.read().preempted == (chosen(PREEMPTED_FOR_S + 1), chosen(1))

    @pytest.mark.parametrize(
        "change",
        [
            PutUsage(Usage("a", -0.1, T0)),
            PutUsage(Usage("a", float("nan"), T0)),
            PutUsage(Usage("a", float("inf"), T0)),
            PutBackoff(Backoff("job 17 of alice", T0, 0)),
            PutPreempted(Preempted("job 17 of alice", Side.SLURM, T0, -1.0)),
        ],
        ids=str,
    )
    def test_what_is_remembered_can_be_true(self, ledger: Ledger, epoch: int, change: Change) -> None:
        self.refuses(ledger, InvariantViolation, change, match="LegalRow")

    def test_how_long_reclaims_took_is_read_newest_first_by_side(self, stocked: Ledger) -> None:
        def ended(id: str, took_s: float, step: Step = Step.DONE, **fields: Any) -> PutHandoff:
            return PutHandoff(a_handoff(id, step=step, ended_at=T0 + timedelta(seconds=took_s), **fields), None)

        back = {"source": Side.KUBERNETES, "destination": Side.SLURM}
        stocked.commit(1, [ended("h1", 40), ended("h2", 300, **back), ended("h3", 50.5)])
        stocked.commit(1, [ended("h4", 60, requested_by=ADOPTER), ended("h5", 70, Step.RETURNED), ended("h6", -1)])
        stocked.commit(1, [PutHandoff(a_handoff("h7"), None)])
        assert stocked.read().reclaim_s == {Side.KUBERNETES: (0.0, 50.5, 40.0), Side.SLURM: (300.0,)}

    def test_only_the_last_reclaims_count(self, stocked: Ledger) -> None:
        ends = [T0 + timedelta(seconds=number) for number in range(RECLAIMS + 5)]
        done = [a_handoff(f"h{number}", step=Step.DONE, ended_at=at) for number, at in enumerate(ends)]
        stocked.commit(1, [PutHandoff(each, None) for each in done])
        assert stocked.read().reclaim_s == {
            Side.KUBERNETES: tuple(float(number) for number in range(RECLAIMS + 4, 4, -1))
        }

    # --- closures, records, sightings ---

    def test_a_closure_is_told_what_was_read_back(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutClosure(a_closure())])
        seen = a_closure(set_by="bridge", set_at=T0)
        stocked.commit(1, [PutClosure(seen), PutClosure(a_closure(side=Side.KUBERNETES))])
        assert stocked.read().closures == {
            ("gpu-1", Side.SLURM): seen,
            ("gpu-1", Side.KUBERNETES): a_closure(side=Side.KUBERNETES),
        }

    def test_a_closure_with_another_mark_is_not_dropped(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutClosure(a_closure(generation=2))])
        stocked.commit(1, [DropClosure("gpu-1", Side.SLURM, a_closure(generation=1).mark)])
        stocked.commit(1, [DropClosure("gpu-1", Side.KUBERNETES, a_closure(generation=2).mark)])
        assert stocked.read().closures == {("gpu-1", Side.SLURM): a_closure(generation=2)}

    def test_a_closure_with_its_mark_is_dropped(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutClosure(a_closure()), PutClosure(a_closure("gpu-2"))])
        stocked.commit(1, [DropClosure("gpu-1", Side.SLURM, a_closure().mark)])
        assert stocked.read().closures == {("gpu-2", Side.SLURM): a_closure("gpu-2")}

    def test_a_record_does_not_change_the_inventory(self, stocked: Ledger) -> None:
        renamed = NodeRecord(replace(a_node("gpu-1"), kube_name="other", gpus=1), idle_since=T0)
        stocked.commit(1, [PutRecord(renamed)])
        assert stocked.read().nodes["gpu-1"] == NodeRecord(a_node("gpu-1"), idle_since=T0)

    def test_the_last_sighting_is_kept(self, stocked: Ledger) -> None:
        first = PutSighting("gpu-1", Side.SLURM, T0, {"state": "IDLE", "jobs": [1, 2]})
        later = PutSighting("gpu-1", Side.SLURM, T0 + timedelta(seconds=1), {}, unknown="slurmrestd timed out")
        stocked.commit(1, [PutSighting("gpu-1", Side.KUBERNETES, T0, {}), first])
        assert stocked.sightings()["gpu-1", Side.SLURM] == first  # type: ignore[attr-defined]
        stocked.commit(1, [later])
        assert stocked.sightings()["gpu-1", Side.SLURM] == later  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        "change",
        [
            PutLease(a_lease("gpu-9"), None),
            PutHandoff(a_handoff(node="gpu-9"), None),
            PutClosure(a_closure("gpu-9")),
            PutRecord(NodeRecord(a_node("gpu-9"))),
            PutSighting("gpu-9", Side.SLURM, T0, {}),
        ],
        ids=lambda change: type(change).__name__,
    )
    def test_a_node_outside_the_inventory_is_a_conflict(self, stocked: Ledger, change: Change) -> None:
        self.refuses(stocked, Conflict, change, match="gpu-9 is not in the inventory")

    # --- events ---

    def test_notes_become_events_in_order(self, ledger: Ledger, epoch: int) -> None:
        ledger.commit(
            epoch,
            [
                Note("opened", "gpu-1", T0, actor="ada", node="gpu-1", handoff="h1", lease="l1", data={"s": 1.5}),
                Note("closed", "gpu-2", T0),
            ],
        )
        ledger.commit(epoch, [Note("third", "", T0, handoff="h1")])
        first, second, third = ledger.events(after=0, limit=10)
        assert (first.kind, first.message, first.at, first.actor) == ("opened", "gpu-1", T0, "ada")
        assert (first.node, first.handoff, first.lease, first.data) == ("gpu-1", "h1", "l1", {"s": 1.5})
        assert (second.actor, second.node, second.data) == ("broker", None, {})
        assert first.id < second.id < third.id
        assert ledger.handoff_events("h1") == [first, third]
        assert ledger.handoff_events("h2") == []

    def test_events_are_read_on_from_the_last_one_seen(self, ledger: Ledger, epoch: int) -> None:
        ledger.commit(epoch, [Note("k", str(number), T0) for number in range(5)])
        page = ledger.events(after=0, limit=2)
        rest = ledger.events(after=page[-1].id, limit=10)
        assert [event.message for event in page + rest] == ["0", "1", "2", "3", "4"]
        assert ledger.events(after=rest[-1].id, limit=10) == []
        assert ledger.last_event_id() == rest[-1].id

    def test_an_empty_log_ends_at_zero(self, ledger: Ledger) -> None:
        assert ledger.last_event_id() == 0
        assert ledger.events(after=0, limit=10) == []

    def test_a_reader_that_follows_the_log_misses_nothing(self, ledger: Ledger, again: Callable[[], Ledger]) -> None:
        """Ids appear in the order of commits, or a reader would pass over one that is committed late."""
        writers, each = 4, 10
        ledgers = [again() for _ in range(writers)]
        seen: list[int] = []
        over = threading.Event()

        def follow() -> None:
            finished = False
            while not finished:
                finished = over.is_set()
                seen.extend(event.id for event in ledger.events(after=seen[-1] if seen else 0, limit=1000))

        def write(mine: Ledger, writer: int) -> None:
            for number in range(each):
                mine.submit(a_request(f"r-{writer}-{number}"))

        reader = threading.Thread(target=follow)
        reader.start()
        try:
            assert at_once([partial(write, mine, number) for number, mine in enumerate(ledgers)]) == [None] * writers
        finally:
            over.set()
            reader.join(WAIT_S)
        assert len(seen) == writers * each

    def test_words_from_outside_cannot_break_a_commit(self, stocked: Ledger) -> None:
        stocked.commit(
            1,
            [
                Note("odd", "nul \x00 and \ud800", T0, data={"\x00": ["\udfff", ("a", 1)]}),
                PutHandoff(a_handoff(blockers=("pod\x00",)), None),
                PutSighting("gpu-1", Side.SLURM, T0, {"reason": "\x00"}, unknown="\x00"),
            ],
        )
        event = stocked.events(after=1, limit=1)[0]
        assert (event.message, event.data) == ("nul \ufffd and \ufffd", {"\ufffd": ["\ufffd", ["a", 1]]})
        assert stocked.read().handoffs["gpu-1"].blockers == ("pod\ufffd",)

    def test_a_time_without_a_zone_is_refused(self, stocked: Ledger) -> None:
        self.refuses(stocked, Invalid, Note("k", "m", T0.replace(tzinfo=None)), match="zone")

    def test_times_keep_their_instant(self, ledger: Ledger, epoch: int) -> None:
        elsewhere = T0.astimezone(timezone(timedelta(hours=5)))
        ledger.commit(epoch, [Note("k", "m", elsewhere)])
        assert ledger.events(after=0, limit=1)[0].at == T0

    # --- policies and the inventory ---

    def test_policy_versions_are_kept(self, ledger: Ledger) -> None:
        first, second = a_policy(), a_policy("gpu", "big")
        nodes = [a_node("gpu-1")]
        assert ledger.apply_policy(first, nodes, replaces=0, author="ada", note="first", at=T0) == 1
        later = T0 + timedelta(days=1)
        assert ledger.apply_policy(second, nodes, replaces=1, author="mia", note="", at=later) == 2
        state = ledger.read()
        assert (state.policy, state.policy_version) == (second, 2)
        assert ledger.policy_history(10) == [(2, later, "mia", "", second), (1, T0, "ada", "first", first)]
        assert ledger.policy_history(1) == [(2, later, "mia", "", second)]

    def test_a_policy_replaces_only_the_version_that_was_read(self, stocked: Ledger) -> None:
        with pytest.raises(Conflict, match="expected version 0, found 1"):
            stocked.apply_policy(a_policy(), [], replaces=0, author="mia", note="", at=T0)
        assert stocked.read().policy_version == 1

    def test_of_two_policies_at_once_one_wins(self, stocked: Ledger, again: Callable[[], Ledger]) -> None:
        nodes = [record.node for record in stocked.read().nodes.values()]

        def apply(ledger: Ledger) -> int:
            return ledger.apply_policy(a_policy(), nodes, replaces=1, author="x", note="", at=T0)

        ended = at_once([partial(apply, again()) for _ in range(4)])
        assert sorted(map(str, ended)) == sorted(map(str, [2, Conflict, Conflict, Conflict]))

    def test_nodes_join_change_and_leave_with_the_policy(self, stocked: Ledger) -> None:
        record = NodeRecord(a_node("gpu-1"), idle_since=T0)
        stocked.commit(1, [PutRecord(record), PutLease(a_lease("gpu-2"), None), PutClosure(a_closure("gpu-2"))])
        grown = replace(a_node("gpu-1"), gpus=4)
        new = a_node("gpu-4")
        stocked.apply_policy(a_policy(), [grown, new], replaces=1, author="ada", note="swap", at=T0)
        state = stocked.read()
        assert state.nodes == {"gpu-1": NodeRecord(grown, idle_since=T0), "gpu-4": NodeRecord(new)}
        assert (state.leases, state.closures) == ({}, {})
        event = stocked.events(after=0, limit=10)[-1]
        assert (event.kind, event.actor) == ("policy", "ada")
        assert event.data == {"version": 2, "joining": ["gpu-4"], "changing": ["gpu-1"], "leaving": ["gpu-2", "gpu-3"]}

    def test_a_node_that_returns_starts_anew_and_keeps_its_history(self, stocked: Ledger) -> None:
        nodes = [a_node("gpu-1"), a_node("gpu-2"), a_node("gpu-3")]
        stocked.commit(
            1,
            [
                PutRecord(NodeRecord(nodes[0], idle_since=T0, unusable="broken")),
                PutLease(a_lease(generation=7), None),
                PutHandoff(a_handoff(step=Step.FAILED), None),
                PutClosure(a_closure(side=Side.KUBERNETES)),
            ],
        )
        stocked.apply_policy(a_policy(), nodes[1:], replaces=1, author="ada", note="", at=T0)
        stocked.apply_policy(a_policy(), nodes, replaces=2, author="ada", note="", at=T0)
        state = stocked.read()
        assert state.nodes["gpu-1"] == NodeRecord(nodes[0])
        assert state.leases == {}
        assert state.generation == 7
        assert state.closures == {("gpu-1", Side.KUBERNETES): a_closure(side=Side.KUBERNETES)}
        assert [each.id for each in stocked.handoffs(limit=10, node="gpu-1")] == ["h1"]
        self.refuses(stocked, InvariantViolation, PutLease(a_lease(generation=7), None), match="LaterWins")
        stocked.commit(1, [PutLease(a_lease(generation=8), None)])

    def test_a_node_in_motion_cannot_leave(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutHandoff(a_handoff(), None)])
        with pytest.raises(Invalid, match="gpu-1 is in motion"):
            stocked.apply_policy(a_policy(), [a_node("gpu-2")], replaces=1, author="a", note="", at=T0)
        state = stocked.read()
        assert (len(state.nodes), state.policy_version) == (3, 1)

    @pytest.mark.parametrize(
        ("home", "owner", "may_leave"),
        [
            (Side.SLURM, Owner.KUBERNETES, False),
            (Side.SLURM, Owner.SLURM, True),
            (Side.SLURM, Owner.BRIDGE, True),
            (Side.KUBERNETES, Owner.SLURM, False),
            (Side.KUBERNETES, Owner.KUBERNETES, True),
        ],
    )
    def test_a_lent_node_cannot_leave(
        self, ledger: Ledger, epoch: int, home: Side, owner: Owner, may_leave: bool
    ) -> None:
        policy = a_policy(home=home)
        ledger.apply_policy(policy, [a_node("gpu-1")], replaces=0, author="a", note="", at=T0)
        ledger.commit(epoch, [PutLease(a_lease(owner=owner), None)])
        left = outcome(lambda: ledger.apply_policy(policy, [], replaces=1, author="a", note="", at=T0))
        assert left == (2 if may_leave else Invalid)

    def test_a_lent_node_cannot_be_renamed(self, stocked: Ledger) -> None:
        stocked.commit(1, [PutLease(a_lease(owner=Owner.KUBERNETES), None)])
        nodes = [record.node for record in stocked.read().nodes.values()]
        renamed = [replace(node, kube_name=f"new-{node.name}") for node in nodes]
        with pytest.raises(Invalid, match="gpu-1 is lent to kubernetes"):
            stocked.apply_policy(a_policy(), renamed, replaces=1, author="a", note="", at=T0)
        grown = [replace(node, gpus=4) for node in nodes]
        assert stocked.apply_policy(a_policy(), grown, replaces=1, author="a", note="", at=T0) == 2

    def test_two_nodes_may_swap_their_names(self, stocked: Ledger) -> None:
        one, two, three = (a_node(f"gpu-{number}") for number in (1, 2, 3))
        swapped = [replace(one, kube_name=two.kube_name), replace(two, kube_name=one.kube_name), three]
        stocked.apply_policy(a_policy(), swapped, replaces=1, author="a", note="", at=T0)
        assert [record.node for record in stocked.read().nodes.values()] == swapped

    @pytest.mark.parametrize(
        ("nodes", "match"),
        [
            ([a_node("gpu-1"), a_node("gpu-1")], "name used by more than one node: gpu-1"),
            ([a_node("gpu-1"), replace(a_node("gpu-2"), slurm_name="gpu-1")], "slurm_name used by more"),
            ([a_node("gpu-1"), replace(a_node("gpu-2"), kube_name="gpu-1.cluster")], "kube_name used by more"),
            ([a_node("gpu-1", pool="other")], "other"),
            ([replace(a_node("gpu-1"), gpus=0)], "GPU"),
            ([replace(a_node("gpu-1"), slurm_name="")], "name"),
        ],
    )
    def test_an_inventory_that_contradicts_itself_is_invalid(
        self, ledger: Ledger, nodes: list[Node], match: str
    ) -> None:
        with pytest.raises(Invalid, match=match):
            ledger.apply_policy(a_policy(), nodes, replaces=0, author="a", note="", at=T0)
        assert ledger.read() == LedgerState()

    # --- requests, pause, fence ---

    def test_a_request_waits_until_the_leader_answers(self, stocked: Ledger) -> None:
        first, second = a_request("r1"), a_request("r2", destination=Side.SLURM, nodes=("gpu-3",))
        stocked.submit(first)
        stocked.submit(second)
        assert stocked.read().requests == (first, second)
        stocked.commit(1, [AnswerRequest("r1", RequestState.REFUSED, "gpu-1 is at its floor")])
        assert stocked.read().requests == (second,)
        assert stocked.request("r1") == replace(first, state=RequestState.REFUSED, answer="gpu-1 is at its floor")
        assert stocked.request("r2") == second
        assert stocked.request("r3") is None

    def test_submitting_again_changes_nothing(self, stocked: Ledger) -> None:
        stocked.submit(a_request())
        stocked.commit(1, [AnswerRequest("r1", RequestState.ACCEPTED, "")])
        stocked.submit(a_request())
        assert stocked.read().requests == ()
        with pytest.raises(Conflict, match="r1"):
            stocked.submit(a_request(nodes=("gpu-3",)))
        assert [event.kind for event in stocked.events(after=0, limit=10)] == ["policy", "request"]

    def test_a_request_names_nodes(self, ledger: Ledger) -> None:
        with pytest.raises(Invalid, match="r1 names no node"):
            ledger.submit(a_request(nodes=()))

    def test_a_request_is_answered_once(self, stocked: Ledger) -> None:
        stocked.submit(a_request())
        accepted = AnswerRequest("r1", RequestState.ACCEPTED, "as h1")
        stocked.commit(1, [accepted])
        stocked.commit(1, [accepted])
        self.refuses(stocked, Conflict, AnswerRequest("r1", RequestState.REFUSED, ""), match="found accepted")
        self.refuses(stocked, Conflict, AnswerRequest("r2", RequestState.REFUSED, ""), match="found none")

    def test_a_pause_stands_until_it_is_cleared(self, ledger: Ledger) -> None:
        ledger.pause("switch maintenance", actor="ada", at=T0)
        ledger.pause("switch maintenance", actor="mia", at=T0)
        assert ledger.read().paused == "switch maintenance"
        ledger.resume(actor="mia", at=T0)
        assert ledger.read().paused == ""
        told = [(event.kind, event.actor) for event in ledger.events(after=0, limit=10)]
        assert told == [("paused", "ada"), ("unpaused", "mia")]

    def test_pauses_of_different_scopes_stand_beside_each_other(self, ledger: Ledger) -> None:
        node, pool = Scope(Reach.NODE, "gpu-1"), Scope(Reach.POOL, "gpu")
        for reason, scope in ("bad fan", node), ("new driver", pool), ("switch maintenance", EVERYTHING):
            ledger.pause(reason, actor="ada", at=T0, scope=scope)
        ledger.pause("new firmware", actor="mia", at=T0, scope=pool)
        assert ledger.read().pauses == (
            Pause(EVERYTHING, "switch maintenance", "ada", T0),
            Pause(pool, "new firmware", "mia", T0),
            Pause(node, "bad fan", "ada", T0),
        )
        assert ledger.read().paused == "switch maintenance"
        ledger.resume(actor="mia", at=T0)
        ledger.resume(actor="mia", at=T0, scope=Scope(Reach.POOL, "gpu-1"))
        assert [pause.scope for pause in ledger.read().pauses] == [pool, node]
        assert ledger.read().paused == ""
        ledger.resume(actor="mia", at=T0, scope=node)
        told = [(event.kind, event.node, event.message) for event in ledger.events(after=0, limit=10)]
        assert told == [
            ("paused", "gpu-1", "node gpu-1: bad fan"),
            ("paused", None, "pool gpu: new driver"),
            ("paused", None, "switch maintenance"),
            ("paused", None, "pool gpu: new firmware"),
            ("unpaused", None, "handoffs may start again"),
            ("unpaused", "gpu-1", "node gpu-1: handoffs may start again"),
        ]

    def test_a_recall_stands_beside_a_pause_of_its_scope_and_both_end_together(self, ledger: Ledger) -> None:
        pool = Scope(Reach.POOL, "gpu")
        ledger.pause("power cut", actor="ada", at=T0, scope=pool, kind=PauseKind.RECALL)
        ledger.pause("power cut", actor="mia", at=T0, scope=pool, kind=PauseKind.RECALL)
        ledger.pause("new driver", actor="mia", at=T0, scope=pool)
        ledger.pause("everybody home", actor="mia", at=T0, kind=PauseKind.RECALL)
        assert ledger.read().pauses == (
            Pause(EVERYTHING, "everybody home", "mia", T0, PauseKind.RECALL),
            Pause(pool, "power cut", "ada", T0, PauseKind.RECALL),
            Pause(pool, "new driver", "mia", T0),
        )
        assert ledger.read().paused == "recalled by mia: everybody home"
        ledger.resume(actor="ada", at=T0, scope=pool)
        assert [pause.scope for pause in ledger.read().pauses] == [EVERYTHING]
        told = [(event.kind, event.message, event.data.get("ended")) for event in ledger.events(after=0, limit=10)]
        assert told == [
            ("recalled", "pool gpu: recalled by ada: power cut", None),
            ("paused", "pool gpu: new driver", None),
            ("recalled", "recalled by mia: everybody home", None),
            ("unpaused", "pool gpu: handoffs may start again", ["recalled by ada: power cut", "new driver"]),
        ]

    def test_the_breaker_is_set_and_ended_by_the_leader_who_saw_what_stands(self, stocked: Ledger) -> None:
        scope = Scope(Reach.POOL, "gpu")
        tripped = Pause(scope, "11 leases", "breaker", T0, PauseKind.BREAKER)
        calm = replace(tripped, calm_since=T0 + timedelta(seconds=9))
        stocked.commit(1, [PutPause(tripped, None)])
        with pytest.raises(Conflict, match="breaker of pool gpu: expected none"):
            stocked.commit(1, [PutPause(tripped, None)])
        stocked.commit(1, [PutPause(calm, tripped)])
        assert (stocked.read().pauses, stocked.read().releases) == ((calm,), ())
        with pytest.raises(Conflict, match="breaker of pool gpu"):
            stocked.commit(1, [DropPause(tripped)])
        stocked.commit(1, [DropPause(calm)])
        assert (stocked.read().pauses, stocked.read().releases) == ((), ())

    def test_a_breaker_that_a_person_ends_is_remembered_and_stops_nothing(self, stocked: Ledger) -> None:
        scope, later = Scope(Reach.POOL, "gpu"), T0 + timedelta(seconds=60)
        tripped = Pause(scope, "11 leases", "breaker", T0, PauseKind.BREAKER)
        stocked.commit(1, [PutPause(tripped, None)])
        stocked.pause("new driver", actor="ada", at=T0, scope=scope)
        stocked.resume(actor="ada", at=later, scope=scope)
        stocked.resume(actor="mia", at=later + timedelta(seconds=9), scope=scope)
        lifted = replace(tripped, released_at=later)
        assert (stocked.read().pauses, stocked.read().releases) == ((), (lifted,))
        assert [event.actor for event in stocked.events(after=0, limit=100) if event.kind == "unpaused"] == ["ada"]
        with pytest.raises(Conflict):
            stocked.commit(1, [DropPause(tripped)])
        again = replace(tripped, at=later + timedelta(seconds=99))
        stocked.commit(1, [PutPause(again, lifted)])
        assert (stocked.read().pauses, stocked.read().releases) == ((again,), ())

    def test_what_ended_within_the_breakers_window_is_read_newest_first(self, stocked: Ledger) -> None:
        """Counted from the newest, so that one which a wrong clock put into the past hides nothing."""
        for node, ago_s, late_in in (
            ("gpu-1", 601, None),
            ("gpu-2", 599, Step.EMPTY),
            ("gpu-3", 1, None),
            ("gpu-1", 0, Step.REOPEN),
        ):
            end = T0 - timedelta(seconds=ago_s)
            handoff = a_handoff(f"h{ago_s}", node, step=Step.QUARANTINED, ended_at=end, late_in=late_in)
            stocked.commit(1, [PutHandoff(handoff, None)])
        stocked.commit(1, [PutHandoff(a_handoff("live", "gpu-2"), None)])
        assert [(each.node, each.late_in, each.ended_at) for each in stocked.read().ended] == [
            ("gpu-1", Step.REOPEN, T0),
            ("gpu-3", None, T0 - timedelta(seconds=1)),
            ("gpu-2", Step.EMPTY, T0 - timedelta(seconds=599)),
        ]
        found = stocked.handoff("h599")
        assert found is not None
        assert found.late_in is Step.EMPTY

    def test_a_single_node_is_not_recalled(self, ledger: Ledger) -> None:
        with pytest.raises(Invalid, match="brought home by an order"):
            ledger.pause("x", actor="ada", at=T0, scope=Scope(Reach.NODE, "gpu-1"), kind=PauseKind.RECALL)
        assert ledger.read().pauses == ()

    def test_a_pause_without_a_reason_is_refused(self, ledger: Ledger) -> None:
        """Nor does it end one: that is what a client of the first version would have meant by it."""
        ledger.pause("why", actor="ada", at=T0)
        with pytest.raises(Invalid, match="end one with resume"):
            ledger.pause("", actor="ada", at=T0)
        assert ledger.read().paused == "why"

    def test_the_fence_is_what_the_agent_said_last(self, ledger: Ledger) -> None:
        """Also when it says less than before: an agent may have lost its file."""
        assert ledger.read().fence_ack is None
        for generation in (7, 3):
            ack = FenceAck(generation, T0 + timedelta(seconds=generation))
            ledger.acknowledge_fence(ack)
            assert ledger.read().fence_ack == ack

    # --- watching ---

    def test_every_kind_of_commit_is_heard(self, stocked: Ledger, again: Callable[[], Ledger]) -> None:
        heard, other = self.listening(stocked), again()
        calls = (
            lambda: other.commit(1, [Note("k", "m", T0)]),
            lambda: other.apply_policy(a_policy(), [], replaces=1, author="a", note="", at=T0),
            lambda: other.submit(a_request()),
            lambda: other.pause("why", actor="ada", at=T0),
            lambda: other.acknowledge_fence(FenceAck(1, T0)),
            lambda: other.resign("broker-a", 1),
        )
        for call in calls:
            before = len(heard.words)
            call()
            heard.wait_for(before + 1)
        assert set(heard.words) == {"ledger"}

    def test_what_changes_nothing_is_not_told(self, stocked: Ledger) -> None:
        heard = self.listening(stocked)
        before = len(heard.words)
        stocked.resume(actor="ada", at=T0)
        stocked.renew("broker-a", 1, TTL_S, {})
        stocked.commit(1, [])
        stocked.next_generation()
        assert outcome(lambda: stocked.commit(2, [Note("k", "m", T0)])) is Fenced
        # Notifications arrive in order: had one of those been told, this one would come after it.
        stocked.pause("now", actor="ada", at=T0)
        heard.wait_for(before + 1)
        assert len(heard.words) == before + 1

    def test_all_watchers_hear(self, ledger: Ledger) -> None:
        heard = [self.listening(ledger) for _ in range(3)]
        before = [len(each.words) for each in heard]
        ledger.pause("why", actor="ada", at=T0)
        for each, count in zip(heard, before, strict=True):
            each.wait_for(count + 1)

    def test_closing_ends_the_watching(self, ledger: Ledger, again: Callable[[], Ledger]) -> None:
        mine, other = again(), again()
        heard = self.listening(mine)
        mine.close()
        before = len(heard.words)
        witness = self.listening(other)
        told = len(witness.words)
        other.pause("why", actor="ada", at=T0)
        witness.wait_for(told + 1)
        assert len(heard.words) == before
