"""What differs between two policies, value by value, with lists of named things compared by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bridge.api.views import PolicyDifference
from bridge.model.policy import Policy


def differences(old: Policy, new: Policy) -> list[PolicyDifference]:
    """In the order of the documents, values of `old` before those that only `new` has. Defaults count as written.

    Pools, teams and lines of a timetable are found again by their names. The order of pools and teams says nothing;
    of a timetable the last line counts, so another order is a difference of the ``names`` in order.
    """
    return list(_of_values("", old.model_dump(mode="json"), new.model_dump(mode="json")))


def _of_values(path: str, old: Any, new: Any) -> Iterator[PolicyDifference]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _of_values(f"{path}.{key}".lstrip("."), old.get(key), new.get(key))
    elif _are_named(old) and _are_named(new):
        yield from _of_named(path, {each["name"]: each for each in old}, {each["name"]: each for each in new})
    else:
        yield PolicyDifference(path=path, old=old, new=new)


def _of_named(path: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[PolicyDifference]:
    for name in dict.fromkeys([*old, *new]):
        yield from _of_values(f"{path}[{name}]", old.get(name), new.get(name))
    order = [[name for name in names if name in old and name in new] for names in (old, new)]
    if path.endswith("timetable") and order[0] != order[1]:
        yield PolicyDifference(path=f"{path}.names", old=order[0], new=order[1])


def _are_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) and "name" in each for each in value)
