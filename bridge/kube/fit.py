"""Whether a waiting pod could run on a shared node if it were open: selectors, affinity, taints, GPUs. Pure.

Deliberately less than the scheduler: it answers "could lending a node ever help?", so that no node is borrowed for a
pod that no lent node can run. CPU, memory and spread are left to the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge.kube.connection import Json
from bridge.kube.names import TAINT
from bridge.kube.pods import Pod

_COMES_AND_GOES = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints of a node that is down for the moment: no reason to call a pod's demand impossible."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node offers to pods, apart from whose it is now."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    gpus: int


def fits(pod: Pod, shape: Shape) -> bool:
    """Whether `pod` could run on a node of `shape`, were it open and free."""
    return (
        pod.gpus <= shape.gpus
        and all(shape.labels.get(key) == value for key, value in (pod.node_selector or {}).items())
        and _affinity(pod.affinity or {}, shape)
        and all(_tolerated(taint, pod.tolerations) for taint in shape.taints)
    )


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
    return all(_matches(e, shape.labels) for e in expressions) and all(
        _matches(e, {"metadata.name": shape.name}) for e in fields
    )


def _matches(expression: Json, values: Mapping[str, str]) -> bool:
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
