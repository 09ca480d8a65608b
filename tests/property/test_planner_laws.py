"""What holds of every plan, whatever the fleet, the queues and the policy are."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.demand import Demand
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Lease, Mark, Node, Owner, Side
from bridge.model.policy import Policy, PoolPolicy, Share
from bridge.planning.planner import plan
from bridge.planning.snapshot import Move, Place, Plan, Snapshot, obstacle, owned_usable
from tests.property.worlds import NOW, OFFERED, SHUT

POOL = "shared"

ages_s = st.sampled_from([0, 1, 5, 30, 60, 3600])

at_home = st.sampled_from(
    [
        OFFERED,
        OFFERED,
        OFFERED,
        replace(OFFERED, idle=False),
        replace(OFFERED, idle=False),
        SideFacts(unknown="slurmctld does not list it"),
        replace(OFFERED, ready=False, foreign="drained by admin: bad DIMM"),
        replace(OFFERED, ready=False, answers=False, not_ready="slurmctld shows DOWN"),
        replace(OFFERED, ready=False, not_ready="slurmctld offers 4 of 8 GPUs"),
        replace(OFFERED, opened=False, stray_mark=Mark("lease0009", 9, 9)),
    ]
)
away = st.sampled_from(
    [SHUT] * 6
    + [
        SideFacts(unknown="the node controller's heartbeat is stale"),
        replace(SHUT, foreign="cordoned"),
        replace(SHUT, answers=False, not_ready="the kubelet does not answer"),
    ]
)


@st.composite
def places(draw: st.DrawFn, number: int) -> Place:
    name = f"n{number}"
    node = Node(name, name, f"{name}.k", POOL, 8)
    motion = draw(st.sampled_from([None] * 5 + [Step.CLOSE, Step.EMPTY, Step.OPEN, Step.REPROVE]))
    source = draw(st.sampled_from(list(Side)))
    owner = draw(st.sampled_from([Owner.SLURM] * 4 + [Owner.KUBERNETES] * 4 + [Owner.BRIDGE]))
    handoff = None
    if motion is not None:
        owner = {Step.OPEN: source.other.owner, Step.REPROVE: source.owner}.get(motion, Owner.BRIDGE)
        handoff = in_motion(name, source, motion)
    lease = Lease("lease0001", name, owner, 1, 1, NOW - timedelta(seconds=draw(ages_s)))
    home, other = draw(at_home), draw(away)
    sight = Sight(other, home) if owner is Owner.KUBERNETES else Sight(home, other)
    idle_since = NOW - timedelta(seconds=draw(ages_s)) if home.idle and handoff is None else None
    backoff = draw(st.sampled_from([None, None, None, NOW + timedelta(seconds=5), NOW]))
    unusable = draw(st.sampled_from(["", "", "", "the kubelet offers 0 of 8 GPUs"]))
    return Place(NodeRecord(node, idle_since, backoff, unusable), lease, handoff, sight)


def in_motion(name: str, source: Side, step: Step) -> Handoff:
    long_ago, later = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
    return Handoff(
        f"h-{name}", "lease0002", name, source, source.other, step, "", "", 1, "", True, long_ago, long_ago, later
    )


@st.composite
def demands(draw: st.DrawFn, number: int) -> Demand:
    side = draw(st.sampled_from(list(Side)))
    key = f"job {number} of alice" if side is Side.SLURM else f"default/chat-{number}"
    waited = NOW - timedelta(seconds=draw(ages_s))
    return Demand(key, side, POOL, draw(st.integers(1, 5)), side is Side.SLURM, draw(st.integers(0, 2)), waited)


@st.composite
def fleets(draw: st.DrawFn) -> Snapshot:
    size, wishes = draw(st.integers(1, 7)), draw(st.integers(0, 4))
    return Snapshot(
        tuple(draw(places(number)) for number in range(1, size + 1)),
        tuple(draw(demands(number)) for number in range(1, wishes + 1)),
    )


@st.composite
def shares(draw: st.DrawFn) -> Share:
    floor = draw(st.sampled_from([0, 0, 1, 2, 3]))
    return Share(floor_nodes=floor, max_nodes=draw(st.sampled_from([None, None, floor, floor + 1, floor + 3])))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    pool = PoolPolicy(
        name=POOL,
        nodes=("n[1-9]",),
        partition=POOL,
        home=draw(st.sampled_from(list(Side))),
        slurm=draw(shares()),
        kubernetes=draw(shares()),
        demand_age_s=draw(st.sampled_from([0, 2])),
        idle_age_s=draw(st.sampled_from([0, 2])),
        min_hold_s=draw(st.sampled_from([0, 10, 60])),
        max_in_flight=draw(st.sampled_from([1, 2, 8])),
    )
    return Policy(pools=(pool,))


def names(moves: tuple[Move, ...]) -> list[str]:
    return [name for move in moves for name in move.nodes]


def executed(snapshot: Snapshot, planned: Plan) -> Snapshot:
    """The fleet right after the plan was committed: what moves is nobody's and closed."""
    source = {name: move.source for move in planned.moves for name in move.nodes}
    return replace(
        snapshot,
        places=tuple(
            replace(
                place,
                lease=replace(place.lease, owner=Owner.BRIDGE, owner_since=NOW),
                handoff=in_motion(place.name, source[place.name], Step.CLOSE),
            )
            if place.name in source
            else place
            for place in snapshot.places
        ),
    )


def heading(snapshot: Snapshot, side: Side) -> int:
    return sum(place.heading_for is side for place in snapshot.places)


def lacks_floor(snapshot: Snapshot, policy: Policy, side: Side) -> bool:
    return owned_usable(snapshot.places, side) < policy.pools[0].share(side).floor_nodes


class TestConservation:
    @given(fleets(), policies())
    def test_no_node_is_in_two_moves_and_each_leaves_its_owner(self, snapshot: Snapshot, policy: Policy) -> None:
        moves = plan(snapshot, policy, NOW).moves
        assert len(names(moves)) == len(set(names(moves)))
        for move in moves:
            assert move.nodes
            assert move.destination is move.source.other
            for name in move.nodes:
                place = snapshot.place(name)
                assert place is not None
                assert place.lease.owner is move.source.owner

    @given(fleets(), policies())
    def test_what_is_unknown_foreign_stray_or_in_motion_is_never_chosen(
        self, snapshot: Snapshot, policy: Policy
    ) -> None:
        for move in plan(snapshot, policy, NOW).moves:
            for name in move.nodes:
                place = snapshot.place(name)
                assert place is not None
                assert not obstacle(place, move.source)
                for side in Side:
                    facts = place.sight.side(side)
                    assert facts.known
                    assert facts.stray_mark is None
                    assert side is not move.source or not facts.foreign

    @given(fleets(), policies(), st.sampled_from([{"paused": "Friday"}, {"unknown": ("slurm: timeout",)}]))
    def test_paused_or_blind_nothing_moves(self, snapshot: Snapshot, policy: Policy, why: dict[str, object]) -> None:
        assert plan(replace(snapshot, **why), policy, NOW).moves == ()  # type: ignore[arg-type]


class TestLimits:
    @given(fleets(), policies())
    def test_no_plan_breaks_a_floor(self, snapshot: Snapshot, policy: Policy) -> None:
        """``FloorHolds``: a side that loses nodes keeps its floor of usable ones; one below its floor loses none."""
        after = executed(snapshot, plan(snapshot, policy, NOW))
        for side in Side:
            before_n, after_n = owned_usable(snapshot.places, side), owned_usable(after.places, side)
            assert after_n == before_n or after_n >= policy.pools[0].share(side).floor_nodes

    @given(fleets(), policies())
    def test_no_plan_lets_a_side_own_more_than_its_maximum(self, snapshot: Snapshot, policy: Policy) -> None:
        after = executed(snapshot, plan(snapshot, policy, NOW))
        for side in Side:
            most = policy.pools[0].share(side).max_nodes
            if most is not None and heading(after, side) > heading(snapshot, side):
                assert heading(after, side) <= most

    @given(fleets(), policies())
    def test_no_more_handoffs_than_allowed_but_for_one_gang_that_goes_alone(
        self, snapshot: Snapshot, policy: Policy
    ) -> None:
        moves = plan(snapshot, policy, NOW).moves
        flying = sum(place.handoff is not None for place in snapshot.places)
        alone = flying == 0 and len(moves) == 1
        assert not moves or alone or flying + len(names(moves)) <= policy.pools[0].max_in_flight

    @given(fleets(), policies())
    def test_the_minimum_hold_is_kept_unless_a_floor_is_broken(self, snapshot: Snapshot, policy: Policy) -> None:
        """``NoFlap``. What its owner cannot use goes home at once, too: nobody's work is disturbed by that."""
        for move in plan(snapshot, policy, NOW).moves:
            for name in move.nodes:
                place = snapshot.place(name)
                assert place is not None
                if lacks_floor(snapshot, policy, move.destination) or place.record.unusable:
                    continue
                assert NOW - place.lease.owner_since >= timedelta(seconds=policy.pools[0].min_hold_s)
                assert place.sight.side(move.source).idle

    @given(fleets(), policies())
    def test_a_gang_gets_all_it_lacks_or_nothing(self, snapshot: Snapshot, policy: Policy) -> None:
        """``WholeGang``: with the nodes of its one move, those under way and those idle there, it can start."""
        moves = plan(snapshot, policy, NOW).moves
        keys = {demand.key: demand for demand in snapshot.demands if demand.whole}
        for move in moves:
            gang = next((demand for key, demand in keys.items() if move.reason.startswith(f"{key} ")), None)
            if gang is None:
                continue
            coming = sum(len(other.nodes) for other in moves if other.destination is gang.side)
            idle = sum(p.usable(gang.side) and p.sight.side(gang.side).idle for p in snapshot.places)
            arriving = sum(p.handoff is not None and p.heading_for is gang.side for p in snapshot.places)
            assert coming + idle + arriving >= gang.nodes


class TestSteadiness:
    @given(fleets(), policies(), st.randoms(use_true_random=False))
    def test_the_order_of_nodes_and_demands_decides_nothing(
        self, snapshot: Snapshot, policy: Policy, rng: random.Random
    ) -> None:
        mixed = replace(
            snapshot,
            places=tuple(rng.sample(snapshot.places, len(snapshot.places))),
            demands=tuple(rng.sample(snapshot.demands, len(snapshot.demands))),
        )
        first, second = plan(snapshot, policy, NOW), plan(mixed, policy, NOW)
        assert set(first.moves) == set(second.moves)
        assert {why.subject for why in first.whys} == {why.subject for why in second.whys}
        assert plan(snapshot, policy, NOW) == first

    @given(fleets(), policies())
    def test_a_plan_that_was_begun_is_not_planned_again(self, snapshot: Snapshot, policy: Policy) -> None:
        """But for one that sends an unusable node home: that makes room under a maximum, which a floor may then use."""
        planned = plan(snapshot, policy, NOW)
        again = plan(executed(snapshot, planned), policy, NOW)
        assert again.moves == () or any(move.reason.startswith("of no use") for move in planned.moves)

    @given(fleets(), policies())
    def test_every_aged_demand_is_met_or_told_why(self, snapshot: Snapshot, policy: Policy) -> None:
        planned = plan(snapshot, policy, NOW)
        told = {why.subject for why in planned.whys}
        for demand in snapshot.demands:
            there = sum(
                (p.usable(demand.side) and p.sight.side(demand.side).idle)
                or (p.handoff is not None and p.heading_for is demand.side)
                for p in snapshot.places
            )
            coming = sum(len(move.nodes) for move in planned.moves if move.destination is demand.side)
            assert demand.key in told or there + coming >= demand.nodes

    @given(fleets(), policies(), demands(1), st.sampled_from(list(Side)))
    @settings(max_examples=200)
    def test_one_more_idle_node_never_harms_a_demand_that_waits_alone(
        self, snapshot: Snapshot, policy: Policy, demand: Demand, side: Side
    ) -> None:
        """(With several it may: a larger gang ahead can now be met, and takes what a later one would have got.)"""
        alone = replace(snapshot, demands=(demand,))
        node = Node("n9", "n9", "n9.k", POOL, 8)
        lease = Lease("lease0001", "n9", side.owner, 1, 1, NOW - timedelta(days=1))
        sight = Sight(OFFERED, SHUT) if side is Side.SLURM else Sight(SHUT, OFFERED)
        more = replace(
            alone, places=(*alone.places, Place(NodeRecord(node, NOW - timedelta(days=1)), lease, None, sight))
        )
        assert _gets(more, policy, demand) >= _gets(alone, policy, demand)


def _gets(snapshot: Snapshot, policy: Policy, demand: Demand) -> int:
    """How many whole nodes of those it needs are idle on its side, or on their way there, when the plan is begun."""
    after = executed(snapshot, plan(snapshot, policy, NOW))
    idle = sum(p.usable(demand.side) and p.sight.side(demand.side).idle for p in after.places)
    arriving = sum(p.handoff is not None and p.heading_for is demand.side for p in after.places)
    return min(demand.nodes, idle + arriving)
