"""Lines that the ledger itself adds to the event log, for what people change without the leader."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bridge.model.ledger import Note, Request
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Reach, Scope
from bridge.store.inventory import InventoryChange


def policy_note(version: int, *, author: str, note: str, at: datetime, change: InventoryChange) -> Note:
    return Note(
        kind="policy",
        message=f"policy version {version}: {note}" if note else f"policy version {version}",
        at=at,
        actor=author,
        data={
            "version": version,
            "joining": [node.name for node in change.joining],
            "changing": [node.name for node in change.changing],
            "leaving": list(change.leaving),
        },
    )


def pause_note(pause: Pause) -> Note:
    kind = "recalled" if pause.kind is PauseKind.RECALL else "paused"
    return _of_scope(kind, str(pause), pause.scope, actor=pause.actor, at=pause.at)


def resume_note(ended: Sequence[Pause], *, actor: str, at: datetime) -> Note:
    """`ended` are of one scope, and not empty."""
    scope, message = ended[0].scope, "handoffs may start again"
    told = message if scope == EVERYTHING else f"{scope}: {message}"
    return _of_scope("unpaused", told, scope, actor=actor, at=at, ended=[pause.why for pause in ended])


def _of_scope(kind: str, message: str, scope: Scope, *, actor: str, at: datetime, **more: list[str]) -> Note:
    node = scope.name if scope.reach is Reach.NODE else None
    data = {"scope": scope.reach.value, "name": scope.name, **more}
    return Note(kind, message, at, actor=actor, node=node, data=data)


def request_note(request: Request) -> Note:
    return Note(
        kind="request",
        message=f"move {', '.join(request.nodes)} to {request.destination}: {request.reason}",
        at=request.requested_at,
        actor=request.requested_by,
        data={"request": request.id, "nodes": list(request.nodes), "destination": request.destination.value},
    )
