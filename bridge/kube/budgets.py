"""PodDisruptionBudgets: how many pods of which labels may be evicted now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bridge.kube.connection import Json
from bridge.kube.pods import Pod
from bridge.kube.selectors import Selector, selector


@dataclass(frozen=True, slots=True)
class Budget:
    """How many of `pods` in its namespace may be evicted now; a selector of nothing in particular covers them all."""

    namespace: str
    name: str
    allowed: int
    pods: Selector

    def covers(self, pod: Pod) -> bool:
        return pod.namespace == self.namespace and self.pods.covers(pod.labels)


def read_budget(body: Json) -> Budget | None:
    """A budget from the apiserver's JSON; None for one without a selector, which covers no pod (policy/v1).

    A status that does not answer the present spec, or none at all, allows nothing: so does the Eviction API.
    """
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    pods = selector(spec.get("selector"))
    if pods is None:
        return None
    fresh = int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0)
    allowed = max(0, int(status.get("disruptionsAllowed") or 0)) if fresh else 0
    return Budget(metadata["namespace"], metadata["name"], allowed, pods)


class Budgets:
    """All budgets, found by one of their labels: a namespace may hold hundreds of them."""

    def __init__(self, budgets: Iterable[Budget]) -> None:
        self._by_label: dict[tuple[str, str, str], list[Budget]] = {}
        self._by_namespace: dict[str, list[Budget]] = {}
        for budget in budgets:
            label = min(budget.pods.labels.items(), default=None)
            if label is None:
                self._by_namespace.setdefault(budget.namespace, []).append(budget)
            else:
                self._by_label.setdefault((budget.namespace, *label), []).append(budget)

    def of(self, pod: Pod) -> list[Budget]:
        return [budget for budget in self._candidates(pod) if budget.covers(pod)]

    def _candidates(self, pod: Pod) -> Iterator[Budget]:
        yield from self._by_namespace.get(pod.namespace, ())
        if self._by_label:
            for key, value in pod.labels.items():
                yield from self._by_label.get((pod.namespace, key, value), ())
