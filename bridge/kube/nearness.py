"""What a pod asks of its place among other pods: spread, beside, apart. Reading only; judged in `neighbours`. Pure.

Only what forbids is read (``DoNotSchedule``, ``requiredDuringScheduling…``): a preference keeps no pod waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from bridge.kube.connection import Json
from bridge.kube.selectors import Selector, selector

HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint. `min_domains` is 0 where none is asked for.

    `honor_affinity`, `honor_taints`: only nodes count that the pod selects, and whose taints it tolerates.
    """

    key: str
    most_skew: int
    pods: Selector | None
    min_domains: int = 0
    honor_affinity: bool = True
    honor_taints: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """Pods to be beside or apart from, within one value of node label `key`. `namespaces` None: those of all.

    `unread` says what of the term the bridge cannot judge, or is empty.
    """

    key: str
    pods: Selector | None
    namespaces: frozenset[str] | None
    unread: str = ""

    def covers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        in_reach = self.namespaces is None or namespace in self.namespaces
        return in_reach and self.pods is not None and self.pods.covers(labels)


@dataclass(frozen=True, slots=True)
class Near:
    """`alike` is the same for pods whose constraints are."""

    spread: tuple[Spread, ...] = ()
    beside: tuple[Term, ...] = ()
    apart: tuple[Term, ...] = ()
    alike: bytes = b""

    def labels(self) -> Iterator[str]:
        """The node labels that it is about."""
        yield from (one.key for part in (self.spread, self.beside, self.apart) for one in part)


def near_of(namespace: str, labels: Mapping[str, str], spec: Json) -> Near | None:
    """What the pod's spec asks, None for nothing."""
    affinity = spec.get("affinity") or {}
    spread = [
        body for body in spec.get("topologySpreadConstraints") or () if body.get("whenUnsatisfiable") == "DoNotSchedule"
    ]
    beside = (affinity.get("podAffinity") or {}).get(_REQUIRED) or []
    apart = (affinity.get("podAntiAffinity") or {}).get(_REQUIRED) or []
    if not (spread or beside or apart):
        return None
    own = [_own(body, labels) for body in (*spread, *beside, *apart)]
    return Near(
        spread=tuple(_spread(body, labels) for body in spread),
        beside=tuple(_term(body, namespace, labels) for body in beside),
        apart=tuple(_term(body, namespace, labels) for body in apart),
        alike=orjson.dumps([namespace, spread, beside, apart, own], option=orjson.OPT_SORT_KEYS),
    )


def kept_apart(near: Near | None) -> Near | None:
    """What of a placed pod still matters to others: whom it keeps away from more than its own node."""
    apart = tuple(term for term in near.apart if term.key != HOSTNAME) if near else ()
    return Near(apart=apart, alike=near.alike) if near and apart else None


def _spread(body: Json, labels: Mapping[str, str]) -> Spread:
    return Spread(
        key=str(body["topologyKey"]),
        most_skew=int(body["maxSkew"]),
        pods=selector(body.get("labelSelector"), _own(body, labels)),
        min_domains=int(body.get("minDomains") or 0),
        honor_affinity=body.get("nodeAffinityPolicy") != "Ignore",
        honor_taints=body.get("nodeTaintsPolicy") == "Honor",
    )


def _term(body: Json, namespace: str, labels: Mapping[str, str]) -> Term:
    by_label = body.get("namespaceSelector")
    named = frozenset(body.get("namespaces") or (() if by_label is not None else (namespace,)))
    return Term(
        key=str(body["topologyKey"]),
        pods=selector(body.get("labelSelector"), _own(body, labels)),
        namespaces=None if by_label == {} else named,
        unread="namespaces selected by label" if by_label else "",
    )


def _own(body: Json, labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """Of ``matchLabelKeys`` those that the pod has, with its own values."""
    return [(key, labels[key]) for key in body.get("matchLabelKeys") or () if key in labels]
