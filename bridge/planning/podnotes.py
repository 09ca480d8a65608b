"""What a waiting pod's people read under ``kubectl describe pod``: which nodes come for it, or why none does. Pure.

Only what is news is told: other nodes than before, or another reason. Numbers in a reason change all the time and are
no news; neither is what is left of a wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from bridge.model.handoff import Handoff
from bridge.model.kube import PendingPod, PodNote
from bridge.model.ownership import Side
from bridge.planning.serving import group_of
from bridge.planning.snapshot import Plan

COMING, WAITING = "NodeComing", "WaitingForNode"

MOST_TOLD = 20
"""In one pass, the longest waiting first: what thousands of pods wait for is the same few sentences."""

WAITED_S = 10.0
"""Below that most pods find a node in the ordinary way, and a reason would say no more than that."""

AGAIN_AFTER_S = 60.0
"""A reason that comes and goes is told no more often than this. That nodes come is told at once."""

Told = Mapping[str, tuple[str, datetime]]
"""By a pod's uid, the gist of the last note and when it was given."""


def pod_notes(
    pending: Iterable[PendingPod], handoffs: Iterable[Handoff], plan: Plan, handover_s: float | None, now: datetime
) -> Iterator[tuple[PodNote, str]]:
    """A note for each waiting pod of which something is known, and its gist. `handover_s`: how long a handoff to
    Kubernetes usually takes, None: not measured.
    """
    coming: dict[str, list[Handoff]] = {}
    for handoff in handoffs:
        if handoff.destination is Side.KUBERNETES and handoff.demand:
            coming.setdefault(group_of(handoff.demand), []).append(handoff)
    whys = {**plan.paused, **{why.subject: why.reason for why in plan.whys}}
    for pod in pending:
        demand = pod.gang or pod.group
        alone = not pod.gang and bool(pod.obstacle)  # no node helps it, whatever comes for others of its group
        why = pod.obstacle if alone else whys.get(demand, "")
        if demand in coming and not alone:
            names = ", ".join(sorted(handoff.node for handoff in coming[demand]))
            comes = "comes" if len(coming[demand]) == 1 else "come"
            text = f"{names} {comes} from Slurm for {demand}{_when(coming[demand], handover_s, now)}"
            yield PodNote(pod.namespace, pod.name, pod.uid, COMING, text), names
        elif why and _long_enough(pod, now):
            yield PodNote(pod.namespace, pod.name, pod.uid, WAITING, why), re.sub(r"\d+", "#", why)


def _long_enough(pod: PendingPod, now: datetime) -> bool:
    return pod.pending_since is None or (now - pod.pending_since).total_seconds() >= WAITED_S


def _when(handoffs: list[Handoff], handover_s: float | None, now: datetime) -> str:
    waits = next((handoff.blockers[0] for handoff in handoffs if handoff.blockers), "")
    if waits:
        return f"; waiting there for: {waits}"
    if handover_s is None:
        return ""
    left_s = max(handover_s - (now - handoff.began_at).total_seconds() for handoff in handoffs)
    return f", expected in {max(1.0, left_s):.0f} s"


def news(notes: Iterable[tuple[PodNote, str]], told: Told, now: datetime) -> tuple[list[PodNote], Told]:
    """Of `notes` what has to be told now, and what has then been told. Pods that wait no more are forgotten."""
    after: dict[str, tuple[str, datetime]] = {}
    fresh: list[PodNote] = []
    for note, gist in notes:
        before = told.get(note.uid)
        gist = f"{note.reason} {gist}"
        if before is not None and (before[0] == gist or _too_soon(note, before, now)):
            after[note.uid] = before
        elif len(fresh) < MOST_TOLD:
            after[note.uid] = (gist, now)
            fresh.append(note)
        elif before is not None:
            after[note.uid] = before
    return fresh, after


def _too_soon(note: PodNote, before: tuple[str, datetime], now: datetime) -> bool:
    return note.reason == WAITING and (now - before[1]).total_seconds() < AGAIN_AFTER_S
