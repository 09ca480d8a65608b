"""Which nodes a recall calls home, and which stay, in fleets written as in `tests.unit.test_planner`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from bridge.model.demand import Victim, Work
from bridge.model.ledger import Preempted, Request
from bridge.model.ownership import Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Reach, Scope
from bridge.planning.orders import judge_order
from bridge.planning.planner import plan
from bridge.planning.snapshot import Move, Snapshot
from tests.unit.test_planner import NOW, fleet, gang, place, policy, serving

SHARED = Scope(Reach.POOL, "shared")
RECALL = Pause(SHARED, "power cut", "oncall", NOW, PauseKind.RECALL)
STOP = Pause(EVERYTHING, "switch maintenance", "mia", NOW)


def recalled(words: str, **snapshot: object) -> Snapshot:
    return fleet(words, **{"pauses": (RECALL,), **snapshot})  # type: ignore[arg-type]


def stays(snapshot: Snapshot, **pool: object) -> dict[str, str]:
    """Node -> why it stays."""
    whys = plan(snapshot, policy(**pool), NOW).whys
    return {why.subject: why.reason.partition("stays for now: ")[2] for why in whys if why.subject.startswith("n")}


def comes(snapshot: Snapshot, **pool: object) -> list[str]:
    moves = plan(snapshot, policy(**pool), NOW).moves
    assert all(len(move.nodes) == 1 for move in moves)
    return [move.nodes[0] for move in moves]


@pytest.mark.parametrize("kinds", [(RECALL,), (STOP, RECALL), (replace(RECALL, scope=EVERYTHING),)])
def test_every_lent_node_comes_home_by_a_move_of_its_own(kinds: tuple[Pause, ...]) -> None:
    """A pause of more than the node holds none of them."""
    planned = plan(fleet("KkSs", pauses=kinds), policy(), NOW)
    assert planned.moves == tuple(
        Move((name,), Side.KUBERNETES, Side.SLURM, "recalled: power cut", evict=True, requested_by="oncall")
        for name in ("n1", "n2")
    )


def test_another_pools_recall_calls_nobody() -> None:
    elsewhere = replace(RECALL, scope=Scope(Reach.POOL, "another"))
    assert plan(fleet("Kk", pauses=(elsewhere,)), policy(), NOW).moves == ()


def test_what_the_policy_asks_of_its_own_moves_is_not_asked() -> None:
    """Floor, most nodes, minimum hold and moves in flight."""
    kept = {"kubernetes": {"floor_nodes": 4}, "slurm": {"max_nodes": 1}, "min_hold_s": 86_400, "max_in_flight": 1}
    assert comes(recalled("kkkkS"), **kept) == ["n1", "n2", "n3", "n4"]


def test_nothing_else_is_planned_there() -> None:
    """Neither demand of either side nor a floor."""
    asked = fleet("SSKK", serving(2), gang(3), pauses=(RECALL,))
    assert comes(asked, kubernetes={"floor_nodes": 3}) == ["n3", "n4"]


def test_home_may_be_kubernetes() -> None:
    assert comes(recalled("SsKk"), home="kubernetes") == ["n1", "n2"]


def test_a_node_with_an_obstacle_is_named_and_asked_again() -> None:
    cordoned = replace(place(1, "k"), sight=place(1, "a").sight)
    cordoned = replace(
        cordoned,
        sight=replace(cordoned.sight, kubernetes=replace(cordoned.sight.slurm), slurm=cordoned.sight.kubernetes),
    )
    away = replace(place(2, "K"), record=replace(place(2, "K").record, backoff_until=NOW + timedelta(seconds=40)))
    held = replace(place(3, "K"), paused="bad fan")
    snapshot = Snapshot((cordoned, away, held, place(4, ">"), place(5, "<"), place(6, "K")), (), pauses=(RECALL,))
    assert comes(snapshot) == ["n6"]
    assert stays(snapshot) == {
        "n1": "drained by admin: bad DIMM on the kubernetes side",
        "n2": "left alone for 40 s more after a failed handoff",
        "n3": "paused: bad fan",
        "n4": "in motion to kubernetes (empty)",
    }


def test_unknown_calls_nobody() -> None:
    assert plan(recalled("Kk", unknown=("kubernetes: timeout",)), policy(), NOW).moves == ()


def test_orders_are_refused_with_the_command_that_ends_it() -> None:
    request = Request("r1", ("n1",), Side.KUBERNETES, "ada", "x", NOW)
    assert judge_order(request, recalled("SS"), policy(), NOW) == (
        "paused (pool shared: recalled by oncall: power cut): `bridgectl resume --pool shared` first"
    )


REQUEUE = {"home": "kubernetes", "preemption": {"mode": "requeue", "signal": "USR1", "grace_s": 30}}


class TestJobsOnLentNodes:
    """Where Kubernetes is home."""

    @staticmethod
    def job(number: int, *nodes: str, protected: str = "") -> Work:
        return Work(f"job {number}", Side.SLURM, "red", nodes, 8, 0, 0, 7200, None, 100.0, protected, number)

    def test_are_given_their_grace_where_the_policy_requeues(self) -> None:
        works = (self.job(7, "n1", "n2"), self.job(8, "n3", protected="its account is never a victim"))
        planned = plan(recalled("sssK", works=works), policy(**REQUEUE), NOW)
        seven = Victim("job 7", Side.SLURM, 7, 100.0, "USR1", 30)
        assert [(move.nodes, move.victims) for move in planned.moves] == [
            (("n1",), (seven,)),
            (("n2",), (seven,)),
            (("n3",), ()),
        ]

    @pytest.mark.parametrize("mode", ["none", "idle_only"])
    def test_are_waited_for_where_it_does_not(self, mode: str) -> None:
        pool = {"home": "kubernetes", "preemption": {"mode": mode}}
        planned = plan(recalled("s", works=(self.job(7, "n1"),)), policy(**pool), NOW)
        assert [(move.nodes, move.victims) for move in planned.moves] == [(("n1",), ())]

    def test_go_no_faster_than_the_policy_lets_victims_go(self) -> None:
        """A job on two nodes is one victim; idle nodes wait for nothing."""
        asked = {**REQUEUE, "preemption": {"mode": "requeue", "max_victims_per_window": 2, "window_s": 60}}
        works = (self.job(7, "n1", "n2"), self.job(8, "n3"))
        past = (Preempted("job 1", Side.SLURM, NOW - timedelta(seconds=50), 1.0),)
        snapshot = recalled("sssS", works=works, preempted=past)
        assert comes(snapshot, **asked) == ["n1", "n2", "n4"]
        assert stays(snapshot, **asked) == {"n3": "its work is asked to go later: at most 2 in 60 s"}

    def test_are_not_ended_twice_within_their_respite(self) -> None:
        past = (Preempted("job 7", Side.SLURM, NOW - timedelta(seconds=50), 1.0),)
        planned = plan(recalled("s", works=(self.job(7, "n1"),), preempted=past), policy(**REQUEUE), NOW)
        assert [move.victims for move in planned.moves] == [()]
