"""The two ledgers stay equal, and fail alike, after any history: what the simulator proves holds for Postgres too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.model.handoff import ADOPTER, Step
from bridge.model.ledger import (
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
    RequestState,
    Usage,
)
from bridge.model.ownership import Mark, Owner, Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Reach, Scope
from bridge.ports import Ledger
from bridge.store.memory import MemoryLedger
from bridge.store.postgres import PostgresLedger
from tests.contracts.ledger import (
    T0,
    TTL_S,
    a_closure,
    a_handoff,
    a_lease,
    a_node,
    a_policy,
    a_request,
    a_victim,
    outcome,
)
from tests.integration.conftest import PostgresServer

Call = Callable[[Ledger], Any]

NODES = ("gpu-1", "gpu-2", "gpu-3")
HANDOFFS = tuple(f"h{number}" for number in range(1, 10))
REQUESTS = ("r1", "r2")

nodes = st.sampled_from(NODES)
sides = st.sampled_from(Side)
steps = st.sampled_from(Step)
times = st.integers(0, 9).map(lambda minutes: T0 + timedelta(minutes=minutes))
words = st.text(max_size=8)
marks = st.builds(Mark, st.sampled_from(["lease0001", "lease0002"]), st.just(1), st.integers(1, 2))


amounts = st.floats(0, allow_nan=False, allow_infinity=False) | st.sampled_from([-1.0, float("nan"), float("inf")])


def mostly(right: Any, *wrong: Any) -> st.SearchStrategy[Any]:
    """Histories in which everything is refused would prove nothing."""
    return st.sampled_from([right] * 12 + list(wrong))


def weighted(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """`st.one_of` would count a strategy that is listed twice once."""
    return st.sampled_from([each for weight, each in choices for _ in range(weight)]).flatmap(lambda each: each)


@st.composite
def put_leases(draw: st.DrawFn, state: LedgerState) -> PutLease:
    node = draw(nodes)
    standing, moving = state.leases.get(node), state.handoffs.get(node)
    replaces = draw(mostly(standing and (standing.id, standing.generation), ("lease0001", 1), None))
    latest = standing.generation if standing else state.generation
    generation = draw(mostly(latest + 1, latest))
    same_right = standing is not None and generation == latest
    lease = a_lease(
        node,
        generation,
        owner=draw(mostly(standing.owner, *Owner) if same_right else st.sampled_from(Owner)),
        epoch=draw(mostly(1, 0, 2)),
        handoff=draw(mostly(moving and moving.id, None, *HANDOFFS)),
    )
    return PutLease(lease, replaces)


@st.composite
def put_handoffs(draw: st.DrawFn, state: LedgerState) -> PutHandoff:
    node = draw(nodes)
    standing = state.handoffs.get(node)
    id = draw(mostly(standing.id if standing else draw(st.sampled_from(HANDOFFS)), *HANDOFFS))
    replaces = draw(mostly(standing and standing.step, None, *Step))
    step = draw(steps)
    ended_at = draw(mostly(T0 if step.ended else None, None, T0))
    blockers = tuple(draw(st.lists(words, max_size=2)))
    handoff = a_handoff(
        id,
        node,
        step,
        evict=draw(st.booleans()),
        blockers=blockers,
        demand=draw(words),
        victims=tuple(draw(st.lists(st.builds(a_victim, words, side=sides, loss_gpu_s=amounts), max_size=2))),
        signalled_at=draw(st.none() | times),
        requested_by=draw(st.sampled_from(["planner", ADOPTER])),
    )
    return PutHandoff(replace(handoff, ended_at=ended_at and draw(times)), replaces)


def memory() -> st.SearchStrategy[Change]:
    """What a pass remembers; victims over more than a day, so that some are forgotten."""
    hours = st.integers(0, 50).map(lambda number: T0 + timedelta(hours=number))
    return st.one_of(
        st.builds(PutUsage, st.builds(Usage, words, amounts, times)),
        st.builds(PutBackoff, st.builds(Backoff, st.sampled_from(["job 1", "job 2"]), times, mostly(1, 0, 7))),
        st.builds(DropBackoff, st.sampled_from(["job 1", "job 2", "job 3"])),
        st.builds(PutPreempted, st.builds(Preempted, words, sides, hours, amounts)),
    )


def changes(state: LedgerState) -> st.SearchStrategy[Change]:
    json = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words, lambda inner: st.lists(inner, max_size=2)
    )
    data = st.dictionaries(words, json, max_size=2)
    records = st.builds(
        lambda name, idle, until, why: NodeRecord(a_node(name), idle, until, why),
        nodes,
        st.none() | times,
        st.none() | times,
        words,
    )
    closures = st.builds(
        lambda node, side, mark, by: PutClosure(replace(a_closure(node, side), mark=mark, set_by=by)),
        nodes,
        sides,
        marks,
        st.none() | words,
    )
    asked = [request.id for request in state.requests] or list(REQUESTS)
    answers = st.builds(AnswerRequest, st.sampled_from(asked), st.sampled_from(RequestState), words)
    notes = st.builds(Note, st.just("note"), words, times, data=data, handoff=st.none() | st.sampled_from(HANDOFFS))
    return weighted(
        (6, put_leases(state)),
        (6, put_handoffs(state)),
        (3, closures),
        (2, st.builds(DropClosure, nodes, sides, marks)),
        (2, st.builds(PutRecord, records)),
        (2, st.builds(PutSighting, nodes, sides, times, data, words)),
        (3 if state.requests else 1, answers),
        (2, notes),
        (4, memory()),
        (2, breakers(state)),
    )


def breakers(state: LedgerState) -> st.SearchStrategy[Change]:
    scope = Scope(Reach.POOL, "gpu")
    known = (*state.pauses, *state.releases)
    found = next((pause for pause in known if pause.kind is PauseKind.BREAKER), None)
    tripped = Pause(scope, "11 leases", "breaker", T0, PauseKind.BREAKER)
    put = st.builds(
        lambda calm, before: PutPause(replace(tripped, calm_since=calm), before),
        st.none() | times,
        mostly(found, tripped),
    )
    return st.one_of(put, st.builds(DropPause, mostly(found or tripped, tripped)))


def calls(state: LedgerState) -> st.SearchStrategy[Call]:
    commits = st.builds(
        lambda epoch, many: lambda ledger: ledger.commit(epoch, many),
        mostly(1, 2),
        st.lists(changes(state), min_size=1, max_size=3),
    )
    policies = st.builds(
        lambda names, pool, version: (
            lambda ledger: ledger.apply_policy(
                a_policy(pool), [a_node(name, pool) for name in names], replaces=version, author="ada", note="", at=T0
            )
        ),
        mostly(list(NODES), list(NODES[1:]), list(NODES[:1])),
        mostly("gpu", "big"),
        mostly(state.policy_version, 7),
    )
    submissions = st.builds(
        lambda id, reason: lambda ledger: ledger.submit(a_request(id, reason=reason)),
        st.sampled_from(REQUESTS),
        st.sampled_from(["why", "why not"]),
    )
    scopes = st.sampled_from([EVERYTHING, Scope(Reach.POOL, "gpu"), Scope(Reach.NODE, NODES[0])])
    pauses = st.builds(
        lambda why, scope, kind: (
            lambda ledger: (
                ledger.pause(why, actor="ada", at=T0, scope=scope, kind=kind)
                if why
                else ledger.resume(actor="ada", at=T0, scope=scope)
            )
        ),
        words,
        scopes,
        st.sampled_from([PauseKind.STOP, PauseKind.RECALL]),
    )
    acks = st.builds(
        lambda number, at: lambda ledger: ledger.acknowledge_fence(FenceAck(number, at)), st.integers(0, 9), times
    )
    draws = st.just(lambda ledger: ledger.next_generation())
    return weighted((14, commits), (2, policies), (1, submissions), (1, pauses), (1, acks), (1, draws))


def everything(ledger: Any) -> tuple[Any, ...]:
    return (
        ledger.read(),
        ledger.leader(),
        ledger.handoffs(limit=100),
        # Without ids, as a commit that fails leaves a gap in those of Postgres.
        [replace(event, id=0) for event in ledger.events(after=0, limit=1000)],
        ledger.policy_history(100),
        ledger.sightings(),
        [ledger.request(id) for id in REQUESTS],
    )


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_history_ends_alike(postgres: PostgresServer, data: st.DataObject) -> None:
    database = postgres.create()
    real = PostgresLedger(postgres.url(database))
    model = MemoryLedger(lambda: datetime.now(UTC))
    try:
        for ledger in (real, model):
            ledger.apply_policy(a_policy(), [a_node(name) for name in NODES], replaces=0, author="a", note="", at=T0)
            ledger.campaign("broker-a", TTL_S)
        for _ in range(data.draw(st.integers(1, 20), label="calls")):
            call = data.draw(calls(model.read()))
            assert outcome(lambda call=call: call(real)) == outcome(lambda call=call: call(model))
            assert real.read() == model.read()
        assert everything(real) == everything(model)
    finally:
        real.close()
        postgres.drop(database)
