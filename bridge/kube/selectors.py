"""Kubernetes' label selectors: one grammar for nodes, pods and budgets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bridge.kube.connection import Json


@dataclass(frozen=True, slots=True)
class Selector:
    """`labels` and `expressions` must all be met; with neither it selects everything."""

    labels: Mapping[str, str] = field(default_factory=dict)
    expressions: tuple[Json, ...] = ()

    def covers(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.labels.items()) and all(
            matches(expression, labels) for expression in self.expressions
        )

    def __str__(self) -> str:
        """As people write it: ``app=chat,tier in (a,b)``."""
        return ",".join((*(f"{k}={v}" for k, v in self.labels.items()), *map(_words, self.expressions))) or "anything"


def selector(body: Json | None, also: Iterable[tuple[str, str]] = ()) -> Selector | None:
    """From the apiserver's JSON with more labels that must be met; None for none, which selects nothing."""
    if body is None:
        return None
    labels = {**(body.get("matchLabels") or {}), **dict(also)}
    return Selector(labels, tuple(body.get("matchExpressions") or ()))


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


def _words(expression: Json) -> str:
    match expression["operator"]:
        case "Exists":
            return str(expression["key"])
        case "DoesNotExist":
            return f"!{expression['key']}"
        case operator:
            return f"{expression['key']} {operator.lower()} ({','.join(expression.get('values') or ())})"
