"""Between the bridge's types and the JSON of its custom resources. Pure; the one place that knows the field names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from bridge.kube.connection import Json
from bridge.kube.names import GROUP, VERSION
from bridge.model.kube import DeviceHolder, Inspection, LoanSpec, LoanStatus, PodNote
from bridge.model.ownership import Mark, Owner

API_VERSION = f"{GROUP}/{VERSION}"
MAX_BLOCKERS = 20
_MAX_TEXT = 1000
_MAX_NAME = 250


def time_of(text: str | None) -> datetime | None:
    """Kubernetes' RFC 3339 time, or None when there is none."""
    return None if not text else datetime.fromisoformat(text)


def time_text(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds, as Lease wants it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def event_object(regarding: Json, reason: str, note: str, now: datetime, *, by: str, action: str, kind: str) -> Json:
    """An Event on the object `regarding`, without a name; `kind` is ``Normal`` or ``Warning``, `by` who writes it."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": time_text(now),
        "reportingController": GROUP,
        "reportingInstance": by,
        "action": action,
        "reason": reason,
        "type": kind,
        "note": note[:_MAX_TEXT],
        "regarding": {"apiVersion": "v1", **regarding},
    }


def pod_event(note: PodNote, now: datetime, by: str) -> Json:
    """The Event on a pod that `note` asks for. Its name is a function of what it says, so that what was said already
    by an earlier leader is not said again: the apiserver answers 409.
    """
    said = f"{note.uid}\n{note.reason}\n{note.message}".encode()
    pod = {"kind": "Pod", "namespace": note.namespace, "name": note.name, "uid": note.uid}
    return {
        **event_object(pod, note.reason, note.message, now, by=by, action="Lend", kind="Normal"),
        "metadata": {"name": f"bridge.{hashlib.sha256(said).hexdigest()[:24]}", "namespace": note.namespace},
    }


def loan_object(spec: LoanSpec) -> Json:
    """The NodeLoan to apply, every field of the spec included: a field left out would be given up by its owner."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeLoan",
        "metadata": {"name": spec.node},
        "spec": {
            "owner": spec.owner.value,
            **_mark_fields(spec.mark),
            "gpus": spec.gpus,
            "evict": spec.evict,
            "nonce": spec.nonce,
            "reason": spec.reason[:_MAX_TEXT],
        },
    }


def loan_spec(body: Json) -> LoanSpec:
    spec = body["spec"]
    return LoanSpec(
        node=body["metadata"]["name"],
        owner=Owner(spec["owner"]),
        mark=_mark(spec),
        gpus=int(spec["gpus"]),
        evict=bool(spec.get("evict")),
        nonce=str(spec.get("nonce") or ""),
        reason=str(spec.get("reason") or ""),
    )


def loan_status(body: Json) -> LoanStatus:
    status = body.get("status") or {}
    observed = status.get("observed")
    return LoanStatus(
        phase=str(status.get("phase") or ""),
        observed=_mark(observed) if observed else None,
        closed=bool(status.get("closed")),
        open=bool(status.get("open")),
        empty_nonce=str(status.get("emptyNonce") or ""),
        node_uid=str(status.get("nodeUID") or ""),
        pods_left=int(status.get("podsLeft") or 0),
        gpus_allocatable=int(status.get("gpusAllocatable") or 0),
        blockers=tuple(status.get("blockers") or ()),
    )


def status_object(status: LoanStatus) -> Json:
    """``NodeLoan.status`` but for what only the apiserver's object tells (observedGeneration, conditions)."""
    observed = status.observed
    return {
        "phase": status.phase,
        "observed": None if observed is None else _mark_fields(observed),
        "closed": status.closed,
        "open": status.open,
        "emptyNonce": status.empty_nonce,
        "nodeUID": status.node_uid,
        "podsLeft": status.pods_left,
        "gpusAllocatable": status.gpus_allocatable,
        "blockers": list(shortened(status.blockers)),
    }


def shortened(blockers: Sequence[str]) -> tuple[str, ...]:
    """At most `MAX_BLOCKERS` of them, the last saying how many more there are, none longer than the schema allows."""
    texts = tuple(text[:_MAX_TEXT] for text in blockers)
    if len(texts) <= MAX_BLOCKERS:
        return texts
    return (*texts[: MAX_BLOCKERS - 1], f"and {len(texts) - MAX_BLOCKERS + 1} more")


def inspection_object(node: str, nonce: str) -> Json:
    """The NodeInspection to apply: the question."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeInspection",
        "metadata": {"name": node},
        "spec": {"nonce": nonce},
    }


def inspection_nonce(body: Json) -> str:
    return str(body["spec"]["nonce"])


def inspection(body: Json) -> Inspection | None:
    """The answer, or None while there has been none."""
    status = body.get("status")
    if not status:
        return None
    return Inspection(
        nonce=str(status["nonce"]),
        holders=tuple(
            DeviceHolder(int(h["pid"]), str(h["command"]), str(h["user"]), str(h["device"]))
            for h in status.get("holders") or ()
        ),
        error=str(status.get("error") or ""),
    )


def inspection_status(answer: Inspection) -> Json:
    """``NodeInspection.status``: the answer."""
    return {
        "nonce": answer.nonce,
        "holders": [
            {"pid": h.pid, "command": h.command[:_MAX_NAME], "user": h.user[:_MAX_NAME], "device": h.device[:_MAX_NAME]}
            for h in answer.holders
        ],
        "error": answer.error[:_MAX_TEXT],
    }


def _mark(fields: Json) -> Mark:
    return Mark(str(fields["lease"]), int(fields["epoch"]), int(fields["generation"]))


def _mark_fields(mark: Mark) -> Json:
    return {"lease": mark.lease, "epoch": mark.epoch, "generation": mark.generation}
