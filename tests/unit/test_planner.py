"""The first policy, in cases a scheduler person can read.

A fleet is written as one word a node: ``S`` Slurm idle, ``s`` Slurm busy, ``K`` Kubernetes idle, ``k`` Kubernetes busy,
``>`` in motion to Kubernetes, ``<`` in motion to Slurm, ``?`` unknown on the Slurm side, ``a`` drained by an admin.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.demand import Demand
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import NodeRecord, Request
from bridge.model.ownership import Lease, Node, Owner, Side
from bridge.model.pause import EVERYTHING, Pause, Reach, Scope
from bridge.model.policy import Policy, PoolPolicy
from bridge.planning.orders import judge_order
from bridge.planning.planner import plan
from bridge.planning.snapshot import Move, Place, Plan, Snapshot, Why

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
PAUSED = Pause(EVERYTHING, "Friday evening", "oncall", NOW)
LONG_AGO = NOW - timedelta(hours=1)

CLOSED = SideFacts(first_latch=True, second_latch=True, idle=True, answers=True, empty=True)
IDLE = SideFacts(opened=True, ready=True, idle=True, answers=True)
BUSY = SideFacts(opened=True, ready=True, answers=True)


def place(number: int, word: str) -> Place:
    node = Node(f"n{number}", f"n{number}", f"n{number}.k", "shared", 8)
    owner = {
        "S": Owner.SLURM,
        "s": Owner.SLURM,
        "?": Owner.SLURM,
        "a": Owner.SLURM,
        "K": Owner.KUBERNETES,
        "k": Owner.KUBERNETES,
    }
    lease = Lease("lease0001", node.name, owner.get(word, Owner.BRIDGE), 1, 1, LONG_AGO)
    facts = IDLE if word in "SK" else BUSY
    if word == "?":
        facts = SideFacts(unknown="slurmctld does not list it")
    if word == "a":
        facts = SideFacts(foreign="drained by admin: bad DIMM", idle=True, answers=True)
    sight = Sight(CLOSED, facts) if lease.owner is Owner.KUBERNETES else Sight(facts, CLOSED)
    handoff = None
    if word in "<>":
        source = Side.SLURM if word == ">" else Side.KUBERNETES
        times = (LONG_AGO, LONG_AGO, NOW + timedelta(hours=1))
        handoff = Handoff(
            f"h{number}", "lease0001", node.name, source, source.other, Step.EMPTY, "", "", 1, "", False, *times
        )
        sight = Sight(CLOSED, CLOSED)
    return Place(NodeRecord(node, idle_since=LONG_AGO if word in "SK" else None), lease, handoff, sight)


def fleet(words: str, *demands: Demand, **snapshot: object) -> Snapshot:
    return Snapshot(tuple(place(n, word) for n, word in enumerate(words, 1)), demands, **snapshot)  # type: ignore[arg-type]


def gang(nodes: int, *, waited_s: float = 60, priority: int = 0, key: str = "job 17 of alice") -> Demand:
    return Demand(key, Side.SLURM, "shared", nodes, True, priority, NOW - timedelta(seconds=waited_s))


def serving(nodes: int, *, waited_s: float = 60) -> Demand:
    return Demand("default/chat", Side.KUBERNETES, "shared", nodes, False, 0, NOW - timedelta(seconds=waited_s))


def policy(**pool: object) -> Policy:
    fields: dict[str, object] = {"name": "shared", "nodes": ("n[1-9]",), "partition": "shared", "min_hold_s": 60}
    return Policy(pools=(PoolPolicy.model_validate({**fields, **pool}),))


def moved(snapshot: Snapshot, used: Policy | None = None) -> dict[str, tuple[str, ...]]:
    """Destination -> nodes, one entry a move: ``{"kubernetes": ("n1",)}``."""
    found: dict[str, tuple[str, ...]] = {}
    for move in plan(snapshot, used or policy(), NOW).moves:
        key = str(move.destination)
        while key in found:
            key += "'"
        found[key] = move.nodes
    return found


@pytest.mark.parametrize(
    ("words", "demands", "pool", "expected"),
    [
        # serving pods take idle Slurm nodes, each under a lease of its own
        ("SSSS", [serving(1)], {}, {"kubernetes": ("n1",)}),
        ("SSSS", [serving(2)], {}, {"kubernetes": ("n1",), "kubernetes'": ("n2",)}),
        ("sSss", [serving(1)], {}, {"kubernetes": ("n2",)}),
        ("ssss", [serving(1)], {}, {}),
        # what is idle there or on its way already counts
        ("KSSS", [serving(1)], {}, {}),
        (">SSS", [serving(1)], {}, {}),
        (">SSS", [serving(2)], {}, {"kubernetes": ("n2",)}),
        # floors and maxima
        ("SSSS", [serving(4)], {"slurm": {"floor_nodes": 3}}, {"kubernetes": ("n1",)}),
        ("SSSS", [serving(4)], {"kubernetes": {"max_nodes": 1}}, {"kubernetes": ("n1",)}),
        ("kSSS", [serving(4)], {"kubernetes": {"max_nodes": 1}}, {}),
        ("sS", [serving(1)], {"slurm": {"floor_nodes": 2}}, {}),
        # a gang gets all it lacks under one lease, or nothing
        ("KKKS", [gang(3)], {}, {"slurm": ("n1", "n2")}),
        ("KkkS", [gang(3)], {}, {}),
        ("KKKK", [gang(4)], {"kubernetes": {"floor_nodes": 1}}, {}),
        ("KK<S", [gang(4)], {}, {"slurm": ("n1", "n2")}),
        # one gang at a time, in order of priority
        ("KKKK", [gang(2, key="low"), gang(3, priority=9, key="high")], {}, {"slurm": ("n1", "n2", "n3")}),
        # idle nodes that a gang is collecting are not lent from under it
        ("SSss", [gang(3), serving(1)], {}, {}),
        ("SSSs", [gang(2), serving(1)], {}, {"kubernetes": ("n3",)}),
        # a broken floor takes busy nodes too (they are drained and waited for)
        ("kkkk", [], {"slurm": {"floor_nodes": 1}}, {"slurm": ("n1",)}),
        ("ssss", [], {"kubernetes": {"floor_nodes": 2}}, {"kubernetes": ("n1",), "kubernetes'": ("n2",)}),
        ("<kkk", [], {"slurm": {"floor_nodes": 1}}, {}),
        # unknown and admin-drained nodes are neither counted nor taken
        ("?SSS", [serving(3)], {"slurm": {"floor_nodes": 2}}, {"kubernetes": ("n2",)}),
        ("aS", [serving(2)], {}, {"kubernetes": ("n2",)}),
        # limits on handoffs at the same time; a gang larger than the limit goes alone
        ("SSSS", [serving(4)], {"max_in_flight": 2}, {"kubernetes": ("n1",), "kubernetes'": ("n2",)}),
        ("KKKK", [gang(4)], {"max_in_flight": 2}, {"slurm": ("n1", "n2", "n3", "n4")}),
        ("KKK>", [gang(3)], {"max_in_flight": 2}, {}),
    ],
)
def test_who_gets_what(words: str, demands: list[Demand], pool: dict[str, object], expected: dict[str, object]) -> None:
    assert moved(fleet(words, *demands), policy(**pool)) == expected


def test_every_demand_that_is_not_met_is_told_why() -> None:
    whys = plan(fleet("KkkS", gang(3)), policy(), NOW).whys
    assert [why.subject for why in whys] == ["job 17 of alice"]
    assert "lacks 2 nodes" in whys[0].reason
    assert "n2: busy" in whys[0].reason


def test_a_gang_larger_than_the_pool_is_told_that_it_can_never_run() -> None:
    assert "can never run" in plan(fleet("SSSS", gang(5)), policy(), NOW).whys[0].reason


def test_young_demand_waits() -> None:
    young = fleet("SSSS", serving(1, waited_s=1))
    assert moved(young, policy(demand_age_s=2)) == {}
    assert moved(young, policy(demand_age_s=1)) == {"kubernetes": ("n1",)}


def changed(snapshot: Snapshot, **record: object) -> Snapshot:
    first = snapshot.places[0]
    return replace(snapshot, places=(replace(first, record=replace(first.record, **record)), *snapshot.places[1:]))  # type: ignore[arg-type]


def test_a_node_must_have_been_idle_for_a_while() -> None:
    just = changed(fleet("S", serving(1)), idle_since=NOW - timedelta(seconds=9))
    assert moved(just, policy(idle_age_s=10)) == {}
    assert moved(just, policy(idle_age_s=9)) == {"kubernetes": ("n1",)}


def test_a_node_that_changed_hands_stays_for_its_minimum_hold_unless_a_floor_is_broken() -> None:
    fresh = fleet("K", gang(1))
    lease = replace(fresh.places[0].lease, owner_since=NOW - timedelta(seconds=59))
    fresh = replace(fresh, places=(replace(fresh.places[0], lease=lease),))
    assert moved(fresh) == {}
    assert moved(fresh, policy(slurm={"floor_nodes": 1})) == {"slurm": ("n1",)}


def test_a_node_whose_handoff_failed_is_left_alone_for_a_while() -> None:
    failed = changed(fleet("S", serving(1)), backoff_until=NOW + timedelta(seconds=1))
    assert moved(failed) == {}
    assert moved(changed(failed, backoff_until=NOW)) == {"kubernetes": ("n1",)}


def test_the_longest_idle_node_goes_first() -> None:
    fleet_ = changed(fleet("SS", serving(1)), idle_since=NOW - timedelta(seconds=30))
    assert moved(fleet_) == {"kubernetes": ("n2",)}


def test_a_lent_node_that_kubernetes_cannot_use_goes_home() -> None:
    why = "the kubelet offers 0 of 8 GPUs"
    useless = changed(fleet("kk"), unusable=why)
    assert moved(useless) == {}, "by now it is usable again"
    broken = replace(useless.places[0], sight=Sight(CLOSED, replace(BUSY, ready=False, not_ready=why)))
    useless = replace(useless, places=(broken, *useless.places[1:]))
    assert moved(useless) == {"slurm": ("n1",)}
    assert moved(changed(useless, backoff_until=NOW + timedelta(seconds=1))) == {}


@pytest.mark.parametrize("state", [{"pauses": (PAUSED,)}, {"unknown": ("slurm is unreadable: timeout",)}])
def test_paused_or_blind_nothing_moves_and_it_is_said(state: dict[str, object]) -> None:
    planned = plan(fleet("SSSS", serving(1), **state), policy(), NOW)
    assert planned.moves == ()
    assert planned.whys


def test_a_pool_is_paused_alone_and_is_told_of_once() -> None:
    pause = Pause(Scope(Reach.POOL, "shared"), "new driver", "oncall", NOW)
    elsewhere = replace(pause, scope=Scope(Reach.POOL, "other"))
    waits = fleet("SSSS", serving(1))
    assert plan(replace(waits, pauses=(pause,)), policy(), NOW) == Plan(
        whys=(Why("pool shared", "paused: pool shared: new driver"),),
        paused={"default/chat": "paused: pool shared: new driver"},
    )
    assert plan(replace(waits, pauses=(elsewhere,)), policy(), NOW) == plan(waits, policy(), NOW)


def test_a_paused_node_stays_and_another_one_goes() -> None:
    waits = fleet("SS", serving(1))
    assert moved(waits) == {"kubernetes": ("n1",)}
    held = replace(waits, places=(replace(waits.places[0], paused="bad fan"), waits.places[1]))
    assert moved(held) == {"kubernetes": ("n2",)}
    alone = replace(waits, places=held.places[:1])
    assert moved(alone) == {}
    assert "n1: paused: bad fan" in plan(alone, policy(), NOW).whys[0].reason


class TestOrders:
    @pytest.mark.parametrize(
        ("scope", "refused"),
        [
            (EVERYTHING, "paused (bad fan): `bridgectl resume` first"),
            (Scope(Reach.POOL, "shared"), "paused (pool shared: bad fan): `bridgectl resume --pool shared` first"),
            (Scope(Reach.NODE, "n1"), "paused (node n1: bad fan): `bridgectl resume --node n1` first"),
            (Scope(Reach.POOL, "other"), ""),
            (Scope(Reach.NODE, "n2"), ""),
        ],
    )
    def test_an_order_is_refused_while_a_pause_covers_its_node(self, scope: Scope, refused: str) -> None:
        snapshot = replace(fleet("SS"), pauses=(Pause(scope, "bad fan", "oncall", NOW),))
        request = Request("r1", ("n1",), Side.KUBERNETES, "mia", "maintenance window", NOW)
        judged = judge_order(request, snapshot, policy(), NOW)
        assert judged == refused if refused else isinstance(judged, Move)

    def order(self, words: str, *nodes: str, to: Side = Side.KUBERNETES, used: Policy | None = None) -> Move | str:
        request = Request("r1", nodes, to, "oncall", "maintenance window", NOW)
        return judge_order(request, fleet(words), used or policy(), NOW)

    def test_a_node_may_go_back_to_the_person_who_drained_it_meanwhile(self) -> None:
        snapshot = fleet("K")
        drained = SideFacts(second_latch=True, foreign="drained by admin: bad DIMM", idle=True, answers=True)
        back = replace(snapshot.places[0], sight=Sight(drained, IDLE))
        snapshot = replace(snapshot, places=(back,))
        request = Request("r1", ("n1",), Side.SLURM, "oncall", "repair", NOW)
        assert isinstance(judge_order(request, snapshot, policy(), NOW), Move)
        assert moved(replace(snapshot, demands=(gang(1),))) == {}, "for a job it would be of no use"

    def test_a_busy_node_may_be_ordered_and_is_waited_for(self) -> None:
        move = self.order("s", "n1")
        assert isinstance(move, Move)
        assert (move.nodes, move.requested_by, move.reason) == (("n1",), "oncall", "maintenance window")

    @pytest.mark.parametrize(
        ("words", "node", "used", "words_of_refusal"),
        [
            ("S", "n9", None, "not in the inventory"),
            ("K", "n1", None, "owned by kubernetes"),
            (">", "n1", None, "in motion to kubernetes"),
            ("?", "n1", None, "UNKNOWN on the slurm side"),
            ("a", "n1", None, "drained by admin: bad DIMM"),
            ("SS", "n1", policy(slurm={"floor_nodes": 2}), "a floor of 2"),
        ],
    )
    def test_what_is_refused(self, words: str, node: str, used: Policy | None, words_of_refusal: str) -> None:
        answer = self.order(words, node, used=used)
        assert isinstance(answer, str)
        assert words_of_refusal in answer
