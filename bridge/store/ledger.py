"""Reading the whole ledger as one view, and committing changes to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert

from bridge.model.handoff import ADOPTER, Handoff, Step
from bridge.model.ledger import RECLAIMS, Change, Ended, FenceAck, LedgerState, Preempted, PutSighting
from bridge.model.ownership import Lease, Side
from bridge.model.pause import released, standing
from bridge.model.policy import Policy
from bridge.store import events, pauses, policies, requests, rows
from bridge.store.changes import (
    Draft,
    Rows,
    Touched,
    breaker_window,
    by_key,
    forgotten_before,
    last_ended,
    newest_first,
    took_s,
    touched,
)
from bridge.store.tables import (
    backoffs,
    closures,
    fence_ack,
    generation,
    handoffs,
    leases,
    nodes,
    preempted,
    sightings,
    usage,
)
from bridge.store.tables import requests as request_rows


def read(connection: Connection) -> LedgerState:
    version, policy = policies.current(connection)
    records = {row.name: rows.record(row) for row in connection.execute(_INVENTORY).all()}
    marks = map(rows.closure, connection.execute(select(*rows.CLOSURE)).all())
    every_pause = pauses.all_of(connection)
    ack = connection.execute(select(fence_ack.c.generation, fence_ack.c.at)).one_or_none()
    return LedgerState(
        policy=policy,
        policy_version=version,
        pauses=standing(every_pause),
        releases=released(every_pause),
        # The largest one committed, not the sequence's last: the fence file can show only what is in this very view.
        generation=connection.execute(select(func.coalesce(func.max(leases.c.generation), 0))).scalar_one(),
        nodes=by_key(records),
        leases=by_key({row.node: rows.lease(row) for row in connection.execute(_LIVE_LEASES).all()}),
        handoffs=by_key({row.node: rows.handoff(row) for row in connection.execute(_LIVE_HANDOFFS).all()}),
        closures=by_key({(each.node, each.side): each for each in marks if each.node in records}),
        requests=requests.pending(connection),
        fence_ack=None if ack is None else FenceAck(ack.generation, ack.at),
        usage=by_key({row.team: rows.usage(row) for row in connection.execute(select(usage)).all()}),
        backoffs=by_key({row.demand: rows.backoff(row) for row in connection.execute(select(backoffs)).all()}),
        preempted=newest_first(map(rows.preempted, connection.execute(select(preempted)).all())),
        reclaim_s=_reclaims(connection),
        ended=_ended(connection, policy),
    )


def _ended(connection: Connection, policy: Policy) -> tuple[Ended, ...]:
    """Those of the last window; one that ended in the future, by a clock that was wrong, hides no others."""
    newest = func.least(select(func.max(handoffs.c.ended_at)).scalar_subquery(), func.clock_timestamp())
    lately = select(*_ENDED).where(handoffs.c.ended_at > newest - breaker_window(policy))
    return last_ended(map(rows.ended, connection.execute(lately).all()))


_ENDED = (
    handoffs.c.node,
    handoffs.c.lease,
    handoffs.c.requested_by,
    handoffs.c.began_at,
    handoffs.c.ended_at,
    handoffs.c.late_in,
)


def _reclaims(connection: Connection) -> dict[Side, tuple[float, ...]]:
    """Durations in seconds of the last handoffs to each side that are done, but for those of the first day.

    Those never emptied a node: they say nothing about how long it takes to get one back.
    """
    found: dict[Side, list[float]] = {}
    for destination, began_at, ended_at, _ in connection.execute(_LAST_RECLAIMS).all():
        found.setdefault(Side(destination), []).append(took_s(began_at, ended_at))
    return {side: tuple(found[side]) for side in sorted(found)}


def _last_reclaims(side: Side) -> Any:
    # Spelled as the condition of the index `ix_handoffs_reclaimed`, or the planner of Postgres would not see it.
    return (
        select(handoffs.c.destination, handoffs.c.began_at, handoffs.c.ended_at, handoffs.c.ordinal)
        .where(text(f"step = '{Step.DONE}' AND requested_by <> '{ADOPTER}'"), handoffs.c.destination == side.value)
        .order_by(handoffs.c.ordinal.desc())
        .limit(RECLAIMS)
    )


_LAST_RECLAIMS = union_all(*(_last_reclaims(side) for side in Side)).order_by(text("ordinal DESC"))


_INVENTORY = select(*rows.RECORD).where(nodes.c.removed_at.is_(None))
_LIVE_LEASES = select(*rows.LEASE).where(leases.c.ended_at.is_(None))
_LIVE_HANDOFFS = select(*rows.HANDOFF).where(handoffs.c.ended_at.is_(None))


def next_generation(connection: Connection) -> int:
    number: int = connection.execute(select(generation.next_value())).scalar_one()
    return number


def listed(connection: Connection, limit: int, node: str | None) -> list[Handoff]:
    """Handoffs, newest first."""
    query = select(*rows.HANDOFF).order_by(handoffs.c.ordinal.desc()).limit(limit)
    if node is not None:
        query = query.where(handoffs.c.node == node)
    return [rows.handoff(row) for row in connection.execute(query)]


def by_id(connection: Connection, id: str) -> Handoff | None:
    row = connection.execute(select(*rows.HANDOFF).where(handoffs.c.id == id)).one_or_none()
    return None if row is None else rows.handoff(row)


def seen(connection: Connection) -> dict[tuple[str, Side], PutSighting]:
    query = select(*rows.SIGHTING).join(nodes).where(nodes.c.removed_at.is_(None))
    return {(row.node, Side(row.side)): rows.sighting(row) for row in connection.execute(query).all()}


# --- commit: load what is touched, decide in memory, write it back in one batch a table ---


def commit(connection: Connection, changes: Sequence[Change]) -> None:
    """Apply `changes` within the caller's transaction, which has made sure of the epoch."""
    base = _load(connection, touched(changes))
    draft = Draft(base)
    draft.apply(changes)
    _write(connection, base, draft)


def _load(connection: Connection, keys: Touched) -> Rows:
    """The touched rows. Nodes are locked, and with them all that is kept per node, until the transaction ends."""
    base = Rows()
    if keys.nodes:
        named = {"names": sorted(keys.nodes)}
        locked = _INVENTORY.where(nodes.c.name == rows.any_of("names")).order_by(nodes.c.name)
        for row in connection.execute(locked.with_for_update(key_share=True), named):
            base.nodes[row.name] = rows.record(row)
        _load_of_nodes(connection, base, named)
    unseen = sorted(keys.sighted - keys.nodes)
    if unseen:
        for row in connection.execute(_INVENTORY.where(nodes.c.name == rows.any_of("names")), {"names": unseen}):
            base.nodes[row.name] = rows.record(row)
    if keys.handoffs:
        _load_handoffs(connection, base, keys)
    if keys.requests:
        asked = select(*rows.REQUEST).where(request_rows.c.id == rows.any_of("ids")).order_by(request_rows.c.id)
        for row in connection.execute(asked.with_for_update(), {"ids": sorted(keys.requests)}):
            base.requests[row.id] = rows.request(row)
    if keys.pauses:
        base.pauses.update({pause.key: pause for pause in pauses.locked(connection)})
    return base


def _load_of_nodes(connection: Connection, base: Rows, named: dict[str, list[str]]) -> None:
    of_named = rows.any_of("names")
    for row in connection.execute(_LIVE_LEASES.where(leases.c.node == of_named), named):
        base.leases[row.node] = rows.lease(row)
    latest = select(leases.c.node, func.max(leases.c.generation)).where(leases.c.node == of_named)
    for node, largest in connection.execute(latest.group_by(leases.c.node), named):
        base.generations[node] = largest
    for row in connection.execute(select(*rows.CLOSURE).where(closures.c.node == of_named), named):
        base.closures[row.node, Side(row.side)] = rows.closure(row)


def _load_handoffs(connection: Connection, base: Rows, keys: Touched) -> None:
    live_here = (handoffs.c.node == rows.any_of("names")) & handoffs.c.ended_at.is_(None)
    concerned = select(*rows.HANDOFF).where(or_(live_here, handoffs.c.id == rows.any_of("ids")))
    for row in connection.execute(concerned, {"names": sorted(keys.nodes), "ids": sorted(keys.handoffs)}):
        handoff = rows.handoff(row)
        base.handoffs[handoff.id] = handoff
        if not handoff.step.ended:
            base.moving[handoff.node] = handoff.id


def _write(connection: Connection, base: Rows, draft: Draft) -> None:
    written = draft.written
    _write_handoffs(connection, base, written.handoffs.values())
    _write_leases(connection, base, draft)
    put = [closure for closure in written.closures.values() if closure is not None]
    dropped = [key for key, closure in written.closures.items() if closure is None]
    _many(connection, _PUT_CLOSURE, [rows.of_closure(closure) for closure in put])
    if dropped:
        keys = [(node, side.value) for node, side in dropped]
        connection.execute(delete(closures).where(tuple_(closures.c.node, closures.c.side).in_(keys)))
    _many(connection, _PUT_RECORD, [rows.of_record(record) for record in written.nodes.values()])
    _many(connection, _PUT_SIGHTING, [rows.of_sighting(seen) for seen in written.sightings.values()])
    answers = [{"key": each.id, "state": each.state.value, "answer": each.answer} for each in written.requests.values()]
    _many(connection, _ANSWER, answers)
    _write_memory(connection, written)
    pauses.write(connection, written.pauses)
    events.append(connection, draft.notes)


def _write_memory(connection: Connection, written: Rows) -> None:
    """What is remembered of teams, demands and victims, in the order of their keys."""
    _many(connection, _PUT_USAGE, [rows.of_usage(each) for each in by_key(written.usage).values()])
    put = [rows.of_backoff(each) for each in by_key(written.backoffs).values() if each is not None]
    _many(connection, _PUT_BACKOFF, put)
    dropped = [demand for demand, backoff in written.backoffs.items() if backoff is None]
    if dropped:
        connection.execute(delete(backoffs).where(backoffs.c.demand == rows.any_of("gone")), {"gone": dropped})
    _write_preempted(connection, written.preempted.values())


def _write_preempted(connection: Connection, written: Collection[Preempted]) -> None:
    if written:
        _many(connection, _PUT_PREEMPTED, [rows.of_preempted(each) for each in written])
        connection.execute(delete(preempted).where(preempted.c.at < forgotten_before(written)))


def _write_handoffs(connection: Connection, base: Rows, written: Iterable[Handoff]) -> None:
    """Old ones first: one that ends makes room for the node's next."""
    old = [handoff for handoff in written if handoff.id in base.handoffs]
    new = [handoff for handoff in written if handoff.id not in base.handoffs]
    _many(connection, _PUT_HANDOFF, [{"key": handoff.id, **rows.of_handoff(handoff)} for handoff in old])
    _many(connection, insert(handoffs), [rows.of_handoff(handoff) for handoff in new])


def _write_leases(connection: Connection, base: Rows, draft: Draft) -> None:
    """History first: one that ends makes room for the node's next."""

    def stored(lease: Lease) -> bool:
        return lease.generation <= base.generations.get(lease.node, 0)

    ended = [(lease, True) for lease in draft.replaced]
    live = [(lease, False) for lease in draft.written.leases.values()]
    old = [rows.of_lease(lease, ended=is_ended) for lease, is_ended in ended + live if stored(lease)]
    new = [rows.of_lease(lease, ended=is_ended) for lease, is_ended in ended + live if not stored(lease)]
    _many(connection, _PUT_LEASE, [{**row, "key": row["node"], "version": row["generation"]} for row in old])
    _many(connection, _NEW_LEASE, new)


def _many(connection: Connection, statement: Any, parameters: list[dict[str, Any]]) -> None:
    if parameters:
        connection.execute(statement, parameters)


def _replacing(statement: Insert, *keys: str) -> Insert:
    columns = {column.name: column for column in statement.excluded if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=columns)


# An UPDATE sets whatever columns its parameters name.
_ENDED_AT = case((bindparam("ended"), func.now()))
_NEW_LEASE = insert(leases).values(ended_at=_ENDED_AT)
_PUT_LEASE = (
    update(leases)
    .where(leases.c.node == bindparam("key"), leases.c.generation == bindparam("version"))
    .values(ended_at=_ENDED_AT)
)
_PUT_HANDOFF = update(handoffs).where(handoffs.c.id == bindparam("key"))
_PUT_RECORD = update(nodes).where(nodes.c.name == bindparam("key"))
_PUT_CLOSURE = _replacing(upsert(closures), "node", "side")
_PUT_SIGHTING = _replacing(upsert(sightings), "node", "side")
_PUT_USAGE = _replacing(upsert(usage), "team")
_PUT_BACKOFF = _replacing(upsert(backoffs), "demand")
_PUT_PREEMPTED = _replacing(upsert(preempted), "at", "key", "side")
_ANSWER = update(request_rows).where(request_rows.c.id == bindparam("key"))
