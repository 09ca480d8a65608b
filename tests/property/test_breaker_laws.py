"""The breaker of a pool, whatever happened in it: when it may trip, when it must, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from bridge.model.handoff import ADOPTER, Step
from bridge.model.ledger import Ended
from bridge.model.pause import Pause, PauseKind, Reach, Scope
from bridge.model.policy import Policy
from bridge.planning.breaker import judge
from bridge.planning.planner import PLANNER, plan
from bridge.planning.snapshot import Snapshot
from tests.property.fleets import POOL, fleets, policies
from tests.property.worlds import NOW

_AGES_S = st.sampled_from([-5, 0, 1, 60, 599, 600, 3000])
_moments = st.builds(lambda age_s: NOW - timedelta(seconds=age_s), _AGES_S)

endings = st.lists(
    st.builds(
        lambda lease, by, began_at, ended_at, late_in: Ended(
            "n1", lease, by, min(began_at, ended_at), ended_at, late_in
        ),
        st.sampled_from([f"lease{number:04}" for number in range(4)]),
        st.sampled_from([PLANNER, ADOPTER, "oncall"]),
        _moments,
        _moments,
        st.sampled_from([None, Step.EMPTY, Step.OPEN]),
    ),
    max_size=12,
).map(tuple)
breakers = st.builds(
    lambda late, moves, out: {"max_late_leases": late, "max_moves": moves, "min_out_nodes": out},
    st.integers(0, 4),
    st.integers(0, 8),
    st.integers(1, 4),
)
befores = st.none() | st.builds(
    lambda calm, released: Pause(
        Scope(Reach.POOL, POOL), "why", "breaker", NOW - timedelta(hours=1), PauseKind.BREAKER, calm, released
    ),
    st.none() | _moments,
    st.none() | _moments,
)


def with_breaker(policy: Policy, breaker: dict[str, int]) -> Policy:
    (pool,) = policy.model_dump(mode="json", by_alias=True)["pools"]
    return Policy.model_validate({"pools": [{**pool, "breaker": breaker}]})


@given(fleets(), policies(), breakers, endings)
def test_it_trips_when_leases_ended_badly_and_fewer_endings_never_trip_what_more_do_not(
    snapshot: Snapshot, policy: Policy, breaker: dict[str, int], past: tuple[Ended, ...]
) -> None:
    pool = with_breaker(policy, breaker).pools[0]
    inside = [each for each in past if NOW - timedelta(seconds=600) < each.ended_at <= NOW]
    bad = {each.lease for each in inside if each.late_in is not None and each.requested_by != ADOPTER}
    known = [place for place in snapshot.places if place.name == "n1"]
    found = judge(pool, snapshot.places, past, None, NOW)
    if known and len(bad) > breaker["max_late_leases"]:
        assert found is not None
    if found is None:
        assert judge(pool, snapshot.places, past[1:], None, NOW) is None


@given(fleets(), policies(), breakers, endings, befores)
def test_the_same_world_says_the_same_again_and_time_alone_ends_it(
    snapshot: Snapshot, policy: Policy, breaker: dict[str, int], past: tuple[Ended, ...], before: Pause | None
) -> None:
    pool = with_breaker(policy, breaker).pools[0]
    calm = replace(snapshot, places=())
    found = judge(pool, snapshot.places, past, before, NOW)
    if found is not None:
        assert judge(pool, snapshot.places, past, found, NOW) == found
    later = NOW + timedelta(hours=2)
    for _ in range(2):
        found = judge(pool, calm.places, past, found, later)
        later += timedelta(hours=1)
    assert found is None


@given(fleets(), policies())
def test_while_it_is_tripped_the_policy_begins_nothing(snapshot: Snapshot, policy: Policy) -> None:
    tripped = Pause(Scope(Reach.POOL, POOL), "why", "breaker", NOW, PauseKind.BREAKER)
    assert plan(replace(snapshot, pauses=(tripped,)), policy, NOW).moves == ()
