"""Lines that the ledger itself adds to the event log, for what people change without the leader."""

from __future__ import annotations

from datetime import datetime

from bridge.model.ledger import Note, Request
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


def pause_note(reason: str, *, actor: str, at: datetime) -> Note:
    if reason:
        return Note(kind="paused", message=reason, at=at, actor=actor)
    return Note(kind="unpaused", message="handoffs may start again", at=at, actor=actor)


def request_note(request: Request) -> Note:
    return Note(
        kind="request",
        message=f"move {', '.join(request.nodes)} to {request.destination}: {request.reason}",
        at=request.requested_at,
        actor=request.requested_by,
        data={"request": request.id, "nodes": list(request.nodes), "destination": request.destination.value},
    )
