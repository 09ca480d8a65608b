"""What holds of every plan, whatever the fleet, the queues, the works and the policy are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bridge.model.demand import Demand, Work
from bridge.model.handoff import Step
from bridge.model.ownership import Mark, Owner, Side
from bridge.model.pause import EVERYTHING, Pause
from bridge.model.policy import Policy, PreemptionMode
from bridge.planning.entitlement import ceiling, held_nodes
from bridge.planning.planner import plan
from bridge.planning.snapshot import Move, Place, Plan, Snapshot, obstacle, owned_usable
from tests.property.fleets import (
    GPUS,
    begun,
    carried_out,
    demands,
    fleets,
    idle_node,
    in_motion,
    policies,
    standing,
)
from tests.property.worlds import NOW


def names(moves: tuple[Move, ...]) -> list[str]:
    return [name for move in moves for name in move.nodes]


def moved_places(snapshot: Snapshot, move: Move) -> list[Place]:
    found = [snapshot.place(name) for name in move.nodes]
    assert None not in found, "a node that is not in the fleet"
    return [place for place in found if place is not None]


def heading(snapshot: Snapshot, side: Side) -> int:
    return sum(place.heading_for is side for place in snapshot.places)


def floors(policy: Policy) -> dict[Side, int]:
    return {side: policy.pools[0].share(side).floor_nodes for side in Side}


def busy(snapshot: Snapshot, side: Side) -> int:
    return sum(place.usable(side) and not place.sight.side(side).idle for place in snapshot.places)


def kept(snapshot: Snapshot, policy: Policy, side: Side) -> int:
    """How far down a side may be taken at least: of its floor what it does not lend, or all that it uses."""
    share = policy.pools[0].share(side)
    return max(share.floor_nodes - share.lend_limit_nodes, min(share.floor_nodes, busy(snapshot, side)))


def offers(place: Place, demand: Demand) -> bool:
    able = not demand.features or any(wish <= place.features for wish in demand.features)
    return able and place.record.node.gpus >= demand.gpus_per_node


def there_or_coming(snapshot: Snapshot, demand: Demand) -> int:
    """Nodes that offer what `demand` asks for and are idle on its side, or on their way there."""
    return sum(
        offers(place, demand)
        and (
            (place.usable(demand.side) and place.sight.side(demand.side).idle)
            or (place.handoff is not None and place.heading_for is demand.side)
        )
        for place in snapshot.places
    )


def ended_works(snapshot: Snapshot, planned: Plan) -> list[Work]:
    keys = {victim.key for move in planned.moves for victim in move.victims}
    return [work for work in snapshot.works if work.key in keys]


def said(planned: Plan) -> set[tuple[object, ...]]:
    """The moves without the order of anything in them."""
    return {
        (frozenset(m.nodes), m.destination, m.demand, m.evict, frozenset(v.key for v in m.victims))
        for m in planned.moves
    }


def seen_as(place: Place, side: Side, **facts: object) -> Place:
    wrong = replace(place.sight.side(side), **facts)  # type: ignore[arg-type]
    return replace(place, sight=replace(place.sight, **{str(side): wrong}))


STRAY = Mark("lease0009", 9, 9)
SPOILED: dict[str, Callable[[Place, Side], Place]] = {
    "UNKNOWN where it is": lambda place, source: seen_as(place, source, unknown="timeout"),
    "UNKNOWN where it goes": lambda place, source: seen_as(place, source.other, unknown="timeout"),
    "drained where it is": lambda place, source: seen_as(place, source, foreign="drained by admin: bad DIMM"),
    "cordoned where it goes": lambda place, source: seen_as(place, source.other, foreign="cordoned"),
    "a mark where it is": lambda place, source: seen_as(place, source, stray_mark=STRAY),
    "a mark where it goes": lambda place, source: seen_as(place, source.other, stray_mark=STRAY),
    "dead where it is": lambda place, source: seen_as(place, source, answers=False),
    "dead where it goes": lambda place, source: seen_as(place, source.other, answers=False),
    "in motion": lambda place, source: replace(place, handoff=in_motion(place.name, source, Step.EMPTY)),
    "backing off": lambda place, _: replace(
        place, record=replace(place.record, backoff_until=NOW + timedelta(seconds=1))
    ),
}
"""What forbids a move whatever it is for. The node's side is the second argument."""


some_or_crowded = fleets() | fleets(crowded=True)
"""Works are ended in hardly any arbitrary fleet."""


PAUSED = Pause(EVERYTHING, "Friday", "oncall", NOW)


class TestConservation:
    @given(fleets(), policies())
    def test_no_node_is_in_two_moves_and_each_leaves_its_owner(self, snapshot: Snapshot, policy: Policy) -> None:
        moves = plan(snapshot, policy, NOW).moves
        assert len(names(moves)) == len(set(names(moves)))
        for move in moves:
            assert move.nodes
            assert move.destination is move.source.other
            assert all(p.lease.owner in (move.source.owner, Owner.BRIDGE) for p in moved_places(snapshot, move))

    @given(fleets(), policies())
    def test_what_is_unknown_foreign_stray_or_in_motion_is_never_chosen(
        self, snapshot: Snapshot, policy: Policy
    ) -> None:
        for move in plan(snapshot, policy, NOW).moves:
            for place in moved_places(snapshot, move):
                assert not obstacle(place, move.source)
                assert place.handoff is None
                for side in Side:
                    facts = place.sight.side(side)
                    assert facts.known
                    assert facts.stray_mark is None
                    assert side is not move.source or not facts.foreign

    @given(fleets(calm=True), policies(), st.sampled_from(sorted(SPOILED)), st.randoms(use_true_random=False))
    def test_a_node_that_would_have_moved_stays_when_something_is_wrong_with_it(
        self, snapshot: Snapshot, policy: Policy, wrong: str, rng: random.Random
    ) -> None:
        moves = plan(snapshot, policy, NOW).moves
        assume(moves)
        move = rng.choice(moves)
        name = rng.choice(move.nodes)
        spoiled = replace(
            snapshot,
            places=tuple(SPOILED[wrong](p, move.source) if p.name == name else p for p in snapshot.places),
        )
        assert name not in names(plan(spoiled, policy, NOW).moves)

    @given(fleets(), policies())
    def test_no_node_is_sent_to_where_it_is_of_no_use(self, snapshot: Snapshot, policy: Policy) -> None:
        for move in plan(snapshot, policy, NOW).moves:
            for place in moved_places(snapshot, move):
                home = place.record.unusable and move.destination is policy.pools[0].home
                assert home or not place.sight.side(move.destination).foreign
                assert home or place.record.backoff_until is None or place.record.backoff_until <= NOW

    @given(
        fleets(),
        policies(),
        st.sampled_from([{"pauses": (PAUSED,)}, {"unknown": ("slurm: timeout",)}]),
    )
    def test_paused_or_blind_nothing_moves(self, snapshot: Snapshot, policy: Policy, why: dict[str, object]) -> None:
        assert plan(replace(snapshot, **why), policy, NOW).moves == ()  # type: ignore[arg-type]


class TestLimits:
    @given(some_or_crowded, policies())
    def test_no_plan_breaks_a_floor(self, snapshot: Snapshot, policy: Policy) -> None:
        """``FloorHolds``: a side that loses usable nodes keeps what it does not lend; one below that loses none."""
        after = begun(snapshot, plan(snapshot, policy, NOW))
        for side in Side:
            before_n, after_n = owned_usable(snapshot.places, side), owned_usable(after.places, side)
            assert after_n >= min(before_n, kept(snapshot, policy, side))

    @given(fleets(), policies())
    def test_no_plan_lets_a_side_own_more_than_its_maximum_or_borrow_limit(
        self, snapshot: Snapshot, policy: Policy
    ) -> None:
        planned = plan(snapshot, policy, NOW)
        after = begun(snapshot, planned)
        for side in {move.destination for move in planned.moves}:
            assert heading(after, side) <= ceiling(policy.pools[0], side, floors(policy), len(snapshot.places))

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
            owed = owned_usable(snapshot.places, move.destination) < floors(policy)[move.destination]
            if owed or not move.demand:
                continue
            for place in moved_places(snapshot, move):
                if place.lease.owner is not Owner.BRIDGE:
                    assert NOW - place.lease.owner_since >= timedelta(seconds=policy.pools[0].min_hold_s)

    @given(fleets(), policies())
    def test_what_moves_for_neither_demand_nor_headroom_moves_for_a_floor_or_is_of_no_use(
        self, snapshot: Snapshot, policy: Policy
    ) -> None:
        for move in plan(snapshot, policy, NOW).moves:
            floor = owned_usable(snapshot.places, move.destination) < floors(policy)[move.destination]
            assert move.demand or floor or all(p.record.unusable for p in moved_places(snapshot, move))

    @given(fleets(), policies())
    def test_no_team_is_given_more_than_it_may_hold(self, snapshot: Snapshot, policy: Policy) -> None:
        """A team may hold its guarantee and what it may borrow; what it holds already is not taken by this."""
        moves = plan(snapshot, policy, NOW).moves
        team_of = {demand.key: demand.team for demand in snapshot.demands}
        for team in policy.teams:
            gets = sum(len(move.nodes) for move in moves if team_of.get(move.demand) == team.name)
            if gets and team.borrow_limit_nodes is not None:
                assert _holds(snapshot, team.name) + gets <= team.guarantee_nodes + team.borrow_limit_nodes


class TestVictims:
    @given(some_or_crowded, policies())
    def test_nobody_is_a_victim_who_is_protected_or_was_one_lately(self, snapshot: Snapshot, policy: Policy) -> None:
        respite = timedelta(seconds=policy.pools[0].preemption.respite_s)
        lately = {past.key for past in snapshot.preempted if NOW - past.at < respite}
        for work in ended_works(snapshot, plan(snapshot, policy, NOW)):
            assert not work.protected
            assert work.key not in lately

    @given(some_or_crowded, policies())
    def test_works_are_ended_only_where_the_policy_says_so(self, snapshot: Snapshot, policy: Policy) -> None:
        mode = policy.pools[0].preemption.mode
        for work in ended_works(snapshot, plan(snapshot, policy, NOW)):
            assert mode is PreemptionMode.REQUEUE or (mode is PreemptionMode.IDLE_ONLY and work.idle_worker)

    @given(some_or_crowded, policies())
    def test_a_victim_runs_on_a_node_that_moves_and_all_that_runs_there_is_a_victim(
        self, snapshot: Snapshot, policy: Policy
    ) -> None:
        """Nobody is ended for nothing: not beside the nodes that move, and not where somebody else stays."""
        for move in plan(snapshot, policy, NOW).moves:
            keys = {victim.key for victim in move.victims}
            for work in snapshot.works:
                if work.key in keys:
                    assert work.side is move.source
                    assert set(work.nodes) & set(move.nodes)
            for place in moved_places(snapshot, move):
                on_it = {work.key for work in snapshot.works if place.name in work.nodes}
                assert on_it <= keys or not on_it & keys

    @given(some_or_crowded, policies())
    def test_no_more_victims_than_the_window_allows(self, snapshot: Snapshot, policy: Policy) -> None:
        asked = policy.pools[0].preemption
        lately = sum(NOW - past.at < timedelta(seconds=asked.window_s) for past in snapshot.preempted)
        ended = ended_works(snapshot, plan(snapshot, policy, NOW))
        assert not ended or lately + len(ended) <= asked.max_victims_per_window

    @given(some_or_crowded, policies(modes=("requeue",)))
    def test_no_team_is_taken_below_its_guarantee(self, snapshot: Snapshot, policy: Policy) -> None:
        ended = ended_works(snapshot, plan(snapshot, policy, NOW))
        for team in policy.teams:
            lost = sum(_nodes(work) for work in ended if work.team == team.name)
            assert lost == 0 or _holds(snapshot, team.name) - lost >= team.guarantee_nodes - 1e-9

    @given(some_or_crowded, policies(modes=("requeue",)))
    def test_a_borrower_with_nothing_of_its_own_ends_nobody(self, snapshot: Snapshot, policy: Policy) -> None:
        """A side without floor and weight, asking for teams without a guarantee."""
        for move in plan(snapshot, policy, NOW).moves:
            share = policy.pools[0].share(move.destination)
            team = next((d.team for d in snapshot.demands if d.key == move.demand), "")
            guarantee = next((t.guarantee_nodes for t in policy.teams if t.name == team), 0)
            if share.floor_nodes == 0 and share.weight == 0 and guarantee == 0:
                assert not move.victims


def _nodes(work: Work) -> float:
    return held_nodes(work, dict.fromkeys(work.nodes, GPUS))


def _holds(snapshot: Snapshot, team: str) -> float:
    return sum(_nodes(work) for work in snapshot.works if work.team == team)


class TestDemand:
    @given(some_or_crowded, policies())
    def test_a_gang_gets_all_it_lacks_under_one_lease_or_nothing(self, snapshot: Snapshot, policy: Policy) -> None:
        """``WholeGang``: with the nodes of its one move, those under way and those idle there, it can start."""
        moves = plan(snapshot, policy, NOW).moves
        for demand in snapshot.demands:
            its = [move for move in moves if move.demand == demand.key]
            if demand.whole and its:
                assert len(its) == 1
                assert len(its[0].nodes) + there_or_coming(snapshot, demand) >= demand.nodes

    @given(fleets(), policies())
    def test_no_demand_gets_more_than_it_asked_for_nor_what_does_not_help_it(
        self, snapshot: Snapshot, policy: Policy
    ) -> None:
        moves = plan(snapshot, policy, NOW).moves
        gets = Counter(name for move in moves if move.demand for name in [move.demand] * len(move.nodes))
        for demand in snapshot.demands:
            assert gets[demand.key] <= demand.nodes
            for move in moves:
                if move.demand == demand.key:
                    assert move.destination is demand.side
                    assert not demand.impossible
                    assert all(offers(place, demand) for place in moved_places(snapshot, move))

    @given(fleets(), policies())
    def test_a_demand_that_is_young_or_backs_off_moves_nothing(self, snapshot: Snapshot, policy: Policy) -> None:
        moves = plan(snapshot, policy, NOW).moves
        age = timedelta(seconds=policy.pools[0].demand_age_s)
        for demand in snapshot.demands:
            if NOW - demand.since < age or demand.key in snapshot.backoffs:
                assert demand.key not in {move.demand for move in moves}

    @given(fleets(), policies())
    def test_two_gangs_of_one_queue_never_pass_each_other(self, snapshot: Snapshot, policy: Policy) -> None:
        """Where nothing but nodes is lacking, a gang gets none while one before it waits."""
        plain = replace(snapshot, demands=tuple(_plain(demand) for demand in snapshot.demands), backoffs={})
        used = policy.model_copy(update={"teams": ()})
        planned = plan(plain, used, NOW)
        waiting = {why.subject for why in planned.whys}
        for side in Side:
            gangs = sorted((d for d in plain.demands if d.whole and d.side is side), key=_in_line)
            for first, second in pairwise(gangs):
                if first.key in waiting and first.nodes <= len(plain.places):
                    assert second.key not in {move.demand for move in planned.moves}

    @given(fleets(), policies())
    def test_every_aged_demand_is_met_or_told_why(self, snapshot: Snapshot, policy: Policy) -> None:
        planned = plan(snapshot, policy, NOW)
        told = {why.subject for why in planned.whys}
        after = begun(snapshot, planned)
        if f"demand in pool {policy.pools[0].name}" in told:
            return
        for demand in snapshot.demands:
            assert demand.key in told or there_or_coming(after, demand) >= demand.nodes


def _plain(demand: Demand) -> Demand:
    """Asking for any nodes, long ago."""
    return replace(
        demand, features=(), gpus_per_node=0, impossible="", team="grey", since=NOW - timedelta(seconds=1000)
    )


def _in_line(demand: Demand) -> tuple[int, str]:
    return (-demand.priority, demand.key)


class TestSteadiness:
    @given(some_or_crowded, policies(), st.randoms(use_true_random=False))
    def test_the_order_of_nodes_demands_and_works_decides_nothing(
        self, snapshot: Snapshot, policy: Policy, rng: random.Random
    ) -> None:
        mixed = replace(
            snapshot,
            places=tuple(rng.sample(snapshot.places, len(snapshot.places))),
            demands=tuple(rng.sample(snapshot.demands, len(snapshot.demands))),
            works=tuple(rng.sample(snapshot.works, len(snapshot.works))),
        )
        first, second = plan(snapshot, policy, NOW), plan(mixed, policy, NOW)
        assert said(first) == said(second)
        assert {why.subject for why in first.whys} == {why.subject for why in second.whys}

    @given(fleets(), policies())
    def test_the_same_snapshot_gives_the_same_plan(self, snapshot: Snapshot, policy: Policy) -> None:
        assert plan(snapshot, policy, NOW) == plan(snapshot, policy, NOW)

    @given(some_or_crowded, policies())
    def test_a_plan_that_was_begun_is_not_planned_again(self, snapshot: Snapshot, policy: Policy) -> None:
        """But for one that sends an unusable node home: that makes room under a maximum, which a floor may then use."""
        planned = plan(snapshot, policy, NOW)
        again = plan(begun(snapshot, planned), policy, NOW)
        assert again.moves == () or any(move.reason.startswith("of no use") for move in planned.moves)

    @given(fleets(calm=True) | fleets(crowded=True), policies())
    @settings(max_examples=200)
    def test_no_node_comes_back_while_nothing_else_changes(self, snapshot: Snapshot, policy: Policy) -> None:
        """No circle: six plans, each carried out at once and the nodes old enough to be taken again."""
        went: dict[str, Side] = {}
        for _ in range(6):
            planned = plan(snapshot, policy, NOW)
            for move in planned.moves:
                for name in move.nodes:
                    assert name not in went, f"{name} went to {went[name]} and comes back: {move.reason}"
                    went[name] = move.destination
            snapshot = carried_out(snapshot, planned)

    @given(fleets(crowded=True, wishes=2), policies(modes=("requeue",)))
    @settings(max_examples=200)
    def test_victims_that_ask_for_nodes_again_do_not_start_a_circle(self, snapshot: Snapshot, policy: Policy) -> None:
        """Whoever got nodes runs on them, as cheap to end as can be; who was ended waits again. All come to rest."""
        for _ in range(12):
            planned = plan(snapshot, policy, NOW)
            if not planned.moves:
                return
            snapshot = _started(_waiting_again(snapshot, planned))
        pytest.fail(f"still moving after 12 plans: {planned.moves}")


def _waiting_again(snapshot: Snapshot, planned: Plan) -> Snapshot:
    """The plan carried out; its victims wait in their own queue, at its end."""
    ended = ended_works(snapshot, planned)
    requeued = tuple(
        Demand(
            key=f"{work.key}'",
            side=work.side,
            pool=snapshot.places[0].record.node.pool,
            nodes=len(work.nodes),
            whole=work.side is Side.SLURM,
            priority=-1,
            since=NOW - timedelta(seconds=100),
            team=work.team,
        )
        for work in ended
    )
    after = carried_out(snapshot, planned)
    return replace(after, demands=(*after.demands, *requeued))


def _started(snapshot: Snapshot) -> Snapshot:
    """What finds enough idle nodes on its side runs, in the order of its queue; nothing passes a gang that waits."""
    for side in Side:
        for demand in sorted((d for d in snapshot.demands if d.side is side), key=_in_line):
            idle = [p for p in snapshot.places if p.usable(side) and p.sight.side(side).idle and offers(p, demand)]
            if demand.impossible or (demand.whole and len(idle) < demand.nodes):
                if demand.whole and not demand.impossible:
                    break
                continue
            snapshot = _run(snapshot, demand, idle[: demand.nodes])
    return snapshot


def _run(snapshot: Snapshot, demand: Demand, on: list[Place]) -> Snapshot:
    if not on:
        return snapshot
    taken = {place.name for place in on}
    groups = [tuple(sorted(taken))] if demand.whole else [(name,) for name in sorted(taken)]
    running = tuple(
        Work(
            key=f"{demand.key}@{'+'.join(nodes)}",
            side=demand.side,
            team=demand.team,
            nodes=nodes,
            gpus=GPUS * len(nodes),
            priority=0,
            rank=demand.rank,
            runs_for_s=7200,
            ends_in_s=None,
            loss_gpu_s=0,
            job=len(snapshot.works) + 1 if demand.side is Side.SLURM else None,
        )
        for nodes in groups
    )
    left = () if len(on) == demand.nodes else (replace(demand, nodes=demand.nodes - len(on)),)
    return replace(
        snapshot,
        places=tuple(standing(p, demand.side, idle=False) if p.name in taken else p for p in snapshot.places),
        works=(*snapshot.works, *running),
        demands=(*(d for d in snapshot.demands if d.key != demand.key), *left),
    )


class TestMonotonicity:
    @given(fleets(), policies(), demands(1), st.sampled_from(list(Side)))
    @settings(max_examples=200)
    def test_one_more_idle_node_never_harms_a_demand_that_waits_alone(
        self, snapshot: Snapshot, policy: Policy, demand: Demand, side: Side
    ) -> None:
        alone = replace(snapshot, demands=(demand,))
        more = replace(alone, places=(*alone.places, idle_node("n9", side)))
        assert _gets(more, policy, demand) >= _gets(alone, policy, demand)

    @given(fleets(wishes=0), policies(), st.lists(demands(1, Side.SLURM), max_size=4), st.sampled_from(list(Side)))
    def test_one_more_idle_node_leaves_no_gang_of_a_queue_unmet_that_was_met(
        self, snapshot: Snapshot, policy: Policy, gangs: list[Demand], side: Side
    ) -> None:
        """Of one queue, of which no gang passes another. (Between two queues it may: what one can now have whole, the
        other one does not get.)"""
        queue = tuple(replace(gang, key=f"g{n}", team="grey") for n, gang in enumerate(gangs, 1))
        few = replace(snapshot, demands=queue)
        more = replace(few, places=(*few.places, idle_node("n9", side)))
        assert _met(few, policy) <= _met(more, policy)


def _gets(snapshot: Snapshot, policy: Policy, demand: Demand) -> int:
    """How many whole nodes of those it needs are idle on its side, or on their way there, when the plan is begun."""
    after = begun(snapshot, plan(snapshot, policy, NOW))
    return min(demand.nodes, there_or_coming(after, demand))


def _met(snapshot: Snapshot, policy: Policy) -> set[str]:
    """Gangs that have all their nodes by the plan's own word."""
    planned = plan(snapshot, policy, NOW)
    waiting = {why.subject for why in planned.whys}
    return {demand.key for demand in snapshot.demands if demand.key not in waiting}
