"""Which pods only start together, as their labels and annotations tell. Pure.

Only pods are read: no custom resource of Kueue, JobSet or anyone need be installed, and none can break the reading. So
a gang is known once one of its pods exists; a Job that Kueue holds back by ``suspend`` has none, and is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.kube.connection import Json


@dataclass(frozen=True, slots=True)
class Gang:
    """`name` as people see it. `pods` is how many there are in all, 0 where the pods do not say."""

    name: str
    pods: int = 0


@dataclass(frozen=True, slots=True)
class _Kind:
    """A framework's key of the gang's name, and the key of its size, each a label or an annotation."""

    title: str
    name: str
    size: str = ""


_KINDS = (
    _Kind("pod group", "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"),
    # Of Jobs, and each has at least one pod: a lower bound until the Jobs have made theirs.
    _Kind("JobSet", "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/global-replicas"),
    _Kind("PodGroup", "scheduling.x-k8s.io/pod-group"),
    _Kind("PodGroup", "pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/min-available"),
    _Kind("PodGroup", "pod-group.scheduling.sigs.k8s.io/name", "pod-group.scheduling.sigs.k8s.io/min-available"),
    _Kind("PodGroup", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-min-member"),
)
_NAMES = frozenset(kind.name for kind in _KINDS)

_LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"
_LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"

_MADE_BY_VOLCANO = "podgroup-"
"""Volcano puts every plain pod into a group of its controller's uid, which need not start together."""


def gang_of(metadata: Json) -> Gang | None:
    """The gang of a pod, by its metadata. A Ray cluster alone is none: its workers start one by one."""
    labels: Mapping[str, str] = metadata.get("labels") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    namespace = metadata["namespace"]
    if _LEADER_WORKER_SET in labels and _LWS_GROUP in labels:
        title = f"LeaderWorkerSet {namespace}/{labels[_LEADER_WORKER_SET]} group {labels[_LWS_GROUP]}"
        return Gang(title, _count(annotations.get(_LWS_SIZE)))
    if _NAMES.isdisjoint(labels) and _NAMES.isdisjoint(annotations):
        return None
    told = {**annotations, **labels}
    for kind in _KINDS:
        name = told.get(kind.name)
        size = _count(told.get(kind.size))
        if name and (size > 1 or not name.startswith(_MADE_BY_VOLCANO)):
            return Gang(f"{kind.title} {namespace}/{name}", size)
    return None


def _count(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
