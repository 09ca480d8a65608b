"""A recall calls home every node that nothing stands against, whatever the fleet, its queues and its policy."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from bridge.model.pause import EVERYTHING, Pause, PauseKind
from bridge.model.policy import Policy
from bridge.planning.planner import plan
from bridge.planning.snapshot import Snapshot, obstacle
from tests.property.fleets import begun, carried_out, fleets, policies
from tests.property.worlds import NOW

RECALL = Pause(EVERYTHING, "power cut", "oncall", NOW, PauseKind.RECALL)


@given(fleets() | fleets(crowded=True), policies())
def test_every_node_that_is_away_is_called_or_named(snapshot: Snapshot, policy: Policy) -> None:
    snapshot, away = replace(snapshot, pauses=(RECALL,)), policy.pools[0].home.other
    planned = plan(snapshot, policy, NOW)
    called = [name for move in planned.moves for name in move.nodes]
    named = {why.subject for why in planned.whys}
    assert len(called) == len(set(called))
    assert sorted([*called, *(named - {"pool shared"})]) == sorted(
        place.name for place in snapshot.places if place.heading_for is away
    )
    for name in called:
        place = snapshot.place(name)
        assert place is not None
        assert not obstacle(place, away)


@given(fleets(calm=True), policies())
def test_with_nothing_wrong_one_pass_calls_all_that_have_no_jobs(snapshot: Snapshot, policy: Policy) -> None:
    """And the next pass calls nobody twice; once all are home there is nothing left to say."""
    snapshot, away = replace(snapshot, pauses=(RECALL,)), policy.pools[0].home.other
    planned = plan(snapshot, policy, NOW)
    called = {name for move in planned.moves for name in move.nodes}
    assert called >= {p.name for p in snapshot.places if p.heading_for is away and p.sight.side(away).idle}
    assert plan(begun(snapshot, planned), policy, NOW).moves == ()
    left = {why.subject for why in plan(carried_out(snapshot, planned), policy, NOW).whys}
    assert left.isdisjoint(called)


@given(fleets() | fleets(crowded=True), policies())
def test_each_move_is_a_single_node_for_who_asked_and_names_no_protected_victim(
    snapshot: Snapshot, policy: Policy
) -> None:
    protected = {work.key for work in snapshot.works if work.protected}
    for move in plan(replace(snapshot, pauses=(RECALL,)), policy, NOW).moves:
        assert len(move.nodes) == 1
        assert (move.requested_by, move.evict, move.demand) == ("oncall", True, "")
        assert move.destination is policy.pools[0].home
        assert protected.isdisjoint(victim.key for victim in move.victims)
