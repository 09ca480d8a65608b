"""Rows to words and back: the columns of each word, and the word of each row."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ARRAY, BindParameter, CollectionAggregate, Row, Text, any_, bindparam

from bridge.model.demand import Victim
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import Backoff, Ended, NodeRecord, Preempted, PutSighting, Request, RequestState, Usage
from bridge.model.ownership import Closure, Lease, Mark, Node, Owner, Side
from bridge.model.pause import Pause, PauseKind, Reach, Scope
from bridge.store.tables import closures, handoffs, leases, nodes, requests, sightings

RECORD = (
    nodes.c.name,
    nodes.c.slurm_name,
    nodes.c.kube_name,
    nodes.c.pool,
    nodes.c.gpus,
    nodes.c.idle_since,
    nodes.c.backoff_until,
    nodes.c.unusable,
    nodes.c.lifted_drain_at,
)
LEASE = (
    leases.c.id,
    leases.c.node,
    leases.c.owner,
    leases.c.epoch,
    leases.c.generation,
    leases.c.owner_since,
    leases.c.handoff,
)
HANDOFF = tuple(column for column in handoffs.c if column.name != "ordinal")
CLOSURE = tuple(closures.c)
SIGHTING = tuple(sightings.c)
REQUEST = tuple(column for column in requests.c if column.name != "ordinal")

AnyRow = Row[*tuple[Any, ...]]


def any_of(name: str) -> CollectionAggregate[Any]:
    """``column == any_of("names")``: one array parameter, however many names."""
    names: BindParameter[Any] = bindparam(name, type_=ARRAY(Text))
    return any_(names)


def record(row: AnyRow) -> NodeRecord:
    name, slurm_name, kube_name, pool, gpus, idle_since, backoff_until, unusable, lifted_drain_at = row
    node = Node(name, slurm_name, kube_name, pool, gpus)
    return NodeRecord(node, idle_since, backoff_until, unusable, lifted_drain_at)


def lease(row: AnyRow) -> Lease:
    id, node, owner, epoch, generation, owner_since, handoff = row
    return Lease(id, node, Owner(owner), epoch, generation, owner_since, handoff)


def handoff(row: AnyRow) -> Handoff:
    fields = dict(row._mapping)
    fields["source"] = Side(fields["source"])
    fields["destination"] = Side(fields["destination"])
    fields["step"] = Step(fields["step"])
    fields["blockers"] = tuple(fields["blockers"])
    fields["victims"] = tuple(map(_victim, fields["victims"]))
    fields["late_in"] = None if fields["late_in"] is None else Step(fields["late_in"])
    return Handoff(**fields)


def _victim(stored: dict[str, Any]) -> Victim:
    # JSON has one kind of number: a large one without a fraction comes back as an int.
    loss_gpu_s, grace_s = float(stored["loss_gpu_s"]), float(stored["grace_s"])
    return Victim(**{**stored, "side": Side(stored["side"]), "loss_gpu_s": loss_gpu_s, "grace_s": grace_s})


def closure(row: AnyRow) -> Closure:
    node, side, lease, epoch, generation, set_by, set_at = row
    return Closure(node, Side(side), Mark(lease, epoch, generation), set_by, set_at)


def sighting(row: AnyRow) -> PutSighting:
    node, side, at, summary, unknown = row
    return PutSighting(node, Side(side), at, summary, unknown)


def request(row: AnyRow) -> Request:
    fields = dict(row._mapping)
    fields["nodes"] = tuple(fields["nodes"])
    fields["destination"] = Side(fields["destination"])
    fields["state"] = RequestState(fields["state"])
    return Request(**fields)


def usage(row: AnyRow) -> Usage:
    return Usage(row.team, row.gpu_s, row.at)


def backoff(row: AnyRow) -> Backoff:
    return Backoff(row.demand, row.until, row.failures)


def preempted(row: AnyRow) -> Preempted:
    return Preempted(row.key, Side(row.side), row.at, row.loss_gpu_s)


def pause(row: AnyRow) -> Pause:
    fields = dict(row._mapping)
    scope = Scope(Reach(fields.pop("reach")), fields.pop("name"))
    return Pause(**{**fields, "scope": scope, "kind": PauseKind(fields["kind"])})


def ended(row: AnyRow) -> Ended:
    late_in = None if row.late_in is None else Step(row.late_in)
    return Ended(row.node, row.lease, row.requested_by, row.began_at, row.ended_at, late_in)


def of_pause(pause: Pause) -> dict[str, Any]:
    return {
        "reach": pause.scope.reach.value,
        "name": pause.scope.name,
        "kind": pause.kind.value,
        "reason": pause.reason,
        "actor": pause.actor,
        "at": pause.at,
        "calm_since": pause.calm_since,
        "released_at": pause.released_at,
    }


def of_node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "slurm_name": node.slurm_name,
        "kube_name": node.kube_name,
        "pool": node.pool,
        "gpus": node.gpus,
    }


def of_record(record: NodeRecord) -> dict[str, Any]:
    return {
        "key": record.node.name,
        "idle_since": record.idle_since,
        "backoff_until": record.backoff_until,
        "unusable": record.unusable,
        "lifted_drain_at": record.lifted_drain_at,
    }


def of_lease(lease: Lease, *, ended: bool = False) -> dict[str, Any]:
    return {
        "id": lease.id,
        "node": lease.node,
        "owner": lease.owner.value,
        "epoch": lease.epoch,
        "generation": lease.generation,
        "owner_since": lease.owner_since,
        "handoff": lease.handoff,
        "ended": ended,
    }


def of_handoff(handoff: Handoff) -> dict[str, Any]:
    return {
        "id": handoff.id,
        "lease": handoff.lease,
        "node": handoff.node,
        "source": handoff.source.value,
        "destination": handoff.destination.value,
        "step": handoff.step.value,
        "reason": handoff.reason,
        "requested_by": handoff.requested_by,
        "generation": handoff.generation,
        "nonce": handoff.nonce,
        "evict": handoff.evict,
        "began_at": handoff.began_at,
        "step_began_at": handoff.step_began_at,
        "step_deadline_at": handoff.step_deadline_at,
        "blockers": list(handoff.blockers),
        "ended_at": handoff.ended_at,
        "outcome": handoff.outcome,
        "demand": handoff.demand,
        "victims": [_of_victim(victim) for victim in handoff.victims],
        "signalled_at": handoff.signalled_at,
        "late_in": None if handoff.late_in is None else handoff.late_in.value,
    }


def _of_victim(victim: Victim) -> dict[str, Any]:
    return {
        "key": victim.key,
        "side": victim.side.value,
        "job": victim.job,
        "loss_gpu_s": victim.loss_gpu_s,
        "signal": victim.signal,
        "grace_s": victim.grace_s,
        "forced": victim.forced,
    }


def of_request(request: Request) -> dict[str, Any]:
    return {
        "id": request.id,
        "nodes": list(request.nodes),
        "destination": request.destination.value,
        "requested_by": request.requested_by,
        "reason": request.reason,
        "requested_at": request.requested_at,
        "state": request.state.value,
        "answer": request.answer,
    }


def of_closure(closure: Closure) -> dict[str, Any]:
    return {
        "node": closure.node,
        "side": closure.side.value,
        "lease": closure.mark.lease,
        "epoch": closure.mark.epoch,
        "generation": closure.mark.generation,
        "set_by": closure.set_by,
        "set_at": closure.set_at,
    }


def of_sighting(seen: PutSighting) -> dict[str, Any]:
    return {
        "node": seen.node,
        "side": seen.side.value,
        "at": seen.at,
        "summary": seen.summary,
        "unknown": seen.unknown,
    }


def of_usage(usage: Usage) -> dict[str, Any]:
    return {"team": usage.team, "gpu_s": usage.gpu_s, "at": usage.at}


def of_backoff(backoff: Backoff) -> dict[str, Any]:
    return {"demand": backoff.demand, "until": backoff.until, "failures": backoff.failures}


def of_preempted(preempted: Preempted) -> dict[str, Any]:
    return {
        "at": preempted.at,
        "key": preempted.key,
        "side": preempted.side.value,
        "loss_gpu_s": preempted.loss_gpu_s,
    }
