"""What differs between two policies, value by value, with lists of named things compared by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from bridge.api.views import PolicyDifference
from bridge.model.policy import Policy


def differences(old: Policy, new: Policy) -> list[PolicyDifference]:
    """In the order of the fields. Defaults count as if they were written.

    Pools, teams and lines of a timetable are found again by their names; one that only one document has is shown with
    what is not a default in it. Of a timetable the order counts too, as its last line wins.
    """
    return list(_of_models("", old, new))


def _of_models(path: str, old: BaseModel, new: BaseModel) -> Iterator[PolicyDifference]:
    shown_old, shown_new = old.model_dump(mode="json"), new.model_dump(mode="json")
    for name, field in type(old).model_fields.items():
        key = field.alias or name
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if isinstance(before, BaseModel):
            yield from _of_models(f"{path}{key}.", before, after)
        elif isinstance(before, tuple) and all(hasattr(each, "name") for each in before + after):
            yield from _of_named(f"{path}{key}", before, after)
        elif isinstance(before, dict):
            yield from _of_entries(f"{path}{key}", shown_old[key], shown_new[key])
        else:
            yield PolicyDifference(path=f"{path}{key}", old=shown_old[key], new=shown_new[key])


def _of_named(path: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> Iterator[PolicyDifference]:
    before, after = {each.name: each for each in old}, {each.name: each for each in new}
    for name in dict.fromkeys([*before, *after]):
        if name in before and name in after:
            yield from _of_models(f"{path}[{name}].", before[name], after[name])
        else:
            place = f"{path}[{name}]"
            yield PolicyDifference(path=place, old=_brief(before.get(name)), new=_brief(after.get(name)))
    orders = [[each.name for each in lines if each.name in before and each.name in after] for lines in (old, new)]
    if path.endswith(".timetable") and orders[0] != orders[1]:
        yield PolicyDifference(path=f"{path} in this order", old=orders[0], new=orders[1])


def _of_entries(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PolicyDifference]:
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield PolicyDifference(path=f"{path}[{key}]", old=old.get(key), new=new.get(key))


def _brief(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_defaults=True)
