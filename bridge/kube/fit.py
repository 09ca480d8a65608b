"""Whether a waiting pod could run on a shared node if it were open and free: selectors, affinity, taints, size. Pure.

Deliberately less than the scheduler: it answers "could lending a node ever help?", so that no node is borrowed for a
pod that no lent node can run (K16). What other pods forbid is judged in `neighbours`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.kube.connection import Json
from bridge.kube.names import TAINT
from bridge.kube.pods import Pod
from bridge.kube.selectors import matches

_COMES_AND_GOES = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints of a node that is down for the moment: no reason to call a pod's demand impossible."""


_NOT_OF_NODES = ("unbound immediate PersistentVolumeClaims", 'persistentvolumeclaim "')
"""Words of the scheduler about what no node can cure."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node offers to pods, apart from whose it is now. CPU and memory are 0 where it does not say.

    `others`: further resources by name, such as ``nvidia.com/mig-1g.10gb``, ``rdma/hca``, ``ephemeral-storage``.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    gpus: int
    cpu_m: int = 0
    memory_mib: int = 0
    others: Mapping[str, int] = field(default_factory=dict)


class Verdict(NamedTuple):
    """`helps` are the nodes on which a pod could run, None where on all of them; `obstacle` why on none, or empty.

    `share_ppm` is the largest share of a node that it takes of any device beside GPUs, in millionths.
    """

    helps: frozenset[str] | None
    obstacle: str = ""
    share_ppm: int = 0


class Fleet:
    """All shared nodes, asked about one pod after the other. Pods that require the same are judged once."""

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._shapes = list(shapes)
        self._by_label: dict[tuple[str, str], list[Shape]] | None = None
        self._judged: dict[bytes, Verdict] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}

    def judge(self, pod: Pod) -> Verdict:
        message = pod.unschedulable.message if pod.unschedulable else ""
        if any(words in message for words in _NOT_OF_NODES):
            return Verdict(frozenset(), "waits for a volume claim: more nodes do not bind it")
        if pod.requires not in self._judged:
            self._judged[pod.requires] = self._judge(pod)
        return self._judged[pod.requires]

    def same(self, names: frozenset[str]) -> frozenset[str]:
        """Equal ones are one object: they are compared again and again."""
        return self._sets.setdefault(names, names)

    def _judge(self, pod: Pod) -> Verdict:
        found = [shape for shape in self._selected(pod) if fits(pod, shape)]
        if not found:
            return Verdict(frozenset(), _obstacle(pod, self._shapes))
        share_ppm = max((_share_ppm(asked, name, found) for name, asked in pod.devices), default=0)
        if len(found) == len(self._shapes):
            return Verdict(None, "", share_ppm)
        return Verdict(self.same(frozenset(shape.name for shape in found)), "", share_ppm)

    def _selected(self, pod: Pod) -> Sequence[Shape]:
        """Those with the rarest label that it selects: a pod of one host must not look at thousands."""
        if not pod.node_selector:
            return self._shapes
        if self._by_label is None:
            self._by_label = {}
            for shape in self._shapes:
                for label in shape.labels.items():
                    self._by_label.setdefault(label, []).append(shape)
        return min((self._by_label.get(label, []) for label in pod.node_selector.items()), key=len)


def fits(pod: Pod, shape: Shape) -> bool:
    """Whether `pod` could run on a node of `shape`, were it open and free."""
    return (
        pod.gpus <= shape.gpus
        and _offers(shape.cpu_m, pod.cpu_m)
        and _offers(shape.memory_mib, pod.memory_mib)
        and all(_offers_other(shape, name, asked) for name, asked in pod.others.items())
        and selected(pod, shape)
        and tolerates_all(pod, shape)
    )


def selected(pod: Pod, shape: Shape) -> bool:
    """Whether the pod's node selector and node affinity allow the node."""
    return _selects(pod, shape) and _affinity(pod.affinity or {}, shape)


def tolerates_all(pod: Pod, shape: Shape, *, ours: bool = True) -> bool:
    """Whether the pod tolerates what taints the node for good; with `ours`, our own taint counts as tolerated."""
    return all(_tolerated(taint, pod, ours=ours) for taint in shape.taints)


def _offers(offered: int, asked: int) -> bool:
    return asked <= offered or offered == 0


def _offers_other(shape: Shape, name: str, asked: int) -> bool:
    """A node that says nothing of its disk has enough; of a device it does not name it has none."""
    return asked <= shape.others.get(name, asked if name == "ephemeral-storage" else 0)


def _share_ppm(asked: int, name: str, shapes: Sequence[Shape]) -> int:
    """Rounded down, so that as many pods fit a node as devices do."""
    return max(1, min(1_000_000 * asked // shape.others[name] for shape in shapes))


def _selects(pod: Pod, shape: Shape) -> bool:
    return all(shape.labels.get(key) == value for key, value in (pod.node_selector or {}).items())


def _obstacle(pod: Pod, shapes: Sequence[Shape]) -> str:
    """The first single thing for which no node will do, in words for people."""
    if not shapes:
        return "there is no shared node"
    gpus = max(shape.gpus for shape in shapes)
    if pod.gpus > gpus:
        return f"asks for {pod.gpus} GPUs, a node has {gpus}"
    if not any(_offers(shape.cpu_m, pod.cpu_m) for shape in shapes):
        return f"asks for {pod.cpu_m / 1000:g} CPUs, a node has {max(shape.cpu_m for shape in shapes) / 1000:g}"
    if not any(_offers(shape.memory_mib, pod.memory_mib) for shape in shapes):
        most_mib = max(shape.memory_mib for shape in shapes)
        return f"asks for {pod.memory_mib / 1024:.0f} GiB of memory, a node has {most_mib / 1024:.0f}"
    for name, asked in sorted(pod.others.items()):
        if not any(_offers_other(shape, name, asked) for shape in shapes):
            return f"asks for {asked} of {name}, a node has {max(shape.others.get(name, 0) for shape in shapes)}"
    for key, value in (pod.node_selector or {}).items():
        if not any(shape.labels.get(key) == value for shape in shapes):
            return f"no shared node has label {key}={value}"
    if not any(_affinity(pod.affinity or {}, shape) for shape in shapes):
        return "no shared node matches its node affinity"
    hostile = [next((t for t in shape.taints if not _tolerated(t, pod)), None) for shape in shapes]
    if all(hostile):
        keys = sorted({str(taint["key"]) for taint in hostile if taint})
        return f"does not tolerate taint {', '.join(keys[:3])} of the shared nodes"
    return "no shared node has all at once that it asks for"


def _affinity(affinity: Json, shape: Shape) -> bool:
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(_term(term, shape) for term in required.get("nodeSelectorTerms") or ())


def _term(term: Json, shape: Shape) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term matches nothing
    return all(matches(e, shape.labels) for e in expressions) and all(
        matches(e, {"metadata.name": shape.name}) for e in fields
    )


def _tolerated(taint: Json, pod: Pod, *, ours: bool = True) -> bool:
    """So is, whatever the pod says, our own taint if `ours`, that of a node that is down, and a mere preference."""
    for_now = taint["key"] in _COMES_AND_GOES or taint["effect"] == "PreferNoSchedule"
    passes = ours if taint["key"] == TAINT else for_now
    return passes or any(_tolerates(toleration, taint) for toleration in pod.tolerations)


def _tolerates(toleration: Json, taint: Json) -> bool:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect and effect != taint["effect"]:
        return False
    if toleration.get("operator") == "Exists":
        return key in ("", taint["key"])
    return bool(key == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or ""))
