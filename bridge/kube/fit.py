"""Whether a waiting pod could run on a shared node if it were open and free: selectors, affinity, taints, size. Pure.

Deliberately less than the scheduler: it answers "could lending a node ever help?", so that no node is borrowed for a
pod that no lent node can run (K16). Spread, pod affinity and what else runs on a node are left to the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from bridge.kube.connection import Json
from bridge.kube.names import TAINT
from bridge.kube.pods import Pod

_COMES_AND_GOES = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints of a node that is down for the moment: no reason to call a pod's demand impossible."""


_NOT_OF_NODES = ("unbound immediate PersistentVolumeClaims", 'persistentvolumeclaim "')
"""Words of the scheduler about what no node can cure."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node offers to pods, apart from whose it is now. CPU and memory are 0 where it does not say."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    gpus: int
    cpu_m: int = 0
    memory_mib: int = 0


class Fleet:
    """All shared nodes, asked about one pod after the other. Pods that require the same are judged once."""

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._shapes = list(shapes)
        self._by_label: dict[tuple[str, str], list[Shape]] | None = None
        self._judged: dict[bytes, tuple[frozenset[str] | None, str]] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}

    def judge(self, pod: Pod) -> tuple[frozenset[str] | None, str]:
        """(the nodes on which it could run, None where on all of them; why on none, or empty)."""
        message = pod.unschedulable.message if pod.unschedulable else ""
        if any(words in message for words in _NOT_OF_NODES):
            return frozenset(), "waits for a volume claim: more nodes do not bind it"
        required = orjson.dumps(
            [pod.gpus, pod.cpu_m, pod.memory_mib, pod.node_selector, pod.affinity, pod.tolerations],
            option=orjson.OPT_SORT_KEYS,
        )
        if required not in self._judged:
            self._judged[required] = self._judge(pod)
        return self._judged[required]

    def _judge(self, pod: Pod) -> tuple[frozenset[str] | None, str]:
        helps = frozenset(shape.name for shape in self._selected(pod) if fits(pod, shape))
        if not helps:
            return helps, _obstacle(pod, self._shapes)
        if len(helps) == len(self._shapes):
            return None, ""
        return self._sets.setdefault(helps, helps), ""  # equal ones are one object: they are compared again and again

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
        and _selects(pod, shape)
        and _affinity(pod.affinity or {}, shape)
        and all(_tolerated(taint, pod.tolerations) for taint in shape.taints)
    )


def _offers(offered: int, asked: int) -> bool:
    return asked <= offered or offered == 0


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
    for key, value in (pod.node_selector or {}).items():
        if not any(shape.labels.get(key) == value for shape in shapes):
            return f"no shared node has label {key}={value}"
    if not any(_affinity(pod.affinity or {}, shape) for shape in shapes):
        return "no shared node matches its node affinity"
    hostile = [next((t for t in shape.taints if not _tolerated(t, pod.tolerations)), None) for shape in shapes]
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


def matches(expression: Json, values: Mapping[str, str]) -> bool:
    """Whether labels (or fields) meet one expression of a selector. One that this does not know is not met."""
    value = values.get(expression["key"])
    wanted = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(operator, value, wanted[0])
        case _:
            return False


def _compares(operator: str, value: str | None, bound: str) -> bool:
    try:
        number = int(value or "")
    except ValueError:
        return False
    return number > int(bound) if operator == "Gt" else number < int(bound)


def _tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    if taint["key"] == TAINT or taint["key"] in _COMES_AND_GOES or taint["effect"] == "PreferNoSchedule":
        return True
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Json, taint: Json) -> bool:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect and effect != taint["effect"]:
        return False
    if toleration.get("operator") == "Exists":
        return key in ("", taint["key"])
    return bool(key == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or ""))
