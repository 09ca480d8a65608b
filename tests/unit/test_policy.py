"""The policy document: docs/policy.md and its schema say what it is, and what is written is read back as the same."""

from __future__ import annotations

import json
import re
from datetime import time
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from bridge.api import policy_schema
from bridge.api.differences import differences
from bridge.api.inventory import inventory
from bridge.cli.documents import load
from bridge.model import policy as model
from bridge.model.policy import Day, Hours, Policy, PoolPolicy
from bridge.model.slurm import SIGNALS
from tests.unit.api_world import unread

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "policy.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]

SECTIONS: dict[str, type[BaseModel]] = {
    "The document": model.Policy,
    "A pool": model.PoolPolicy,
    "The share of a side": model.Share,
    "A line of the timetable": model.Hours,
    "Headroom": model.Headroom,
    "Preemption": model.Preemption,
    "Topology": model.Topology,
    "A team": model.Team,
    "Priorities": model.Priorities,
}


# --- the pages ---


def test_the_schema_of_the_docs_is_that_of_the_model() -> None:
    assert (DOCS / "policy.schema.json").read_text(encoding="utf-8") == policy_schema.page(), "run `make docs`"


def example() -> Policy:
    return Policy.model_validate(load(EXAMPLE, "docs/policy.md").data)


def test_the_example_is_a_policy_that_can_be() -> None:
    assert len(inventory(example(), unread)) == 16


def test_the_example_is_the_same_for_a_reader_that_knows_yaml_only() -> None:
    assert Policy.model_validate(yaml.safe_load(EXAMPLE)) == example()


@pytest.mark.parametrize("kind", SECTIONS.values(), ids=SECTIONS.keys())
def test_the_example_shows_most_of_it(kind: type[BaseModel]) -> None:
    """At least one field of each part is not at its default."""

    def parts(value: Any) -> list[BaseModel]:
        if isinstance(value, BaseModel):
            return [value, *(part for name in type(value).model_fields for part in parts(getattr(value, name)))]
        return [part for each in value for part in parts(each)] if isinstance(value, tuple) else []

    found = [part for part in parts(example()) if type(part) is kind]
    assert any(part.model_dump(exclude_defaults=True) for part in found)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_described_with_its_default(section: str) -> None:
    text = PAGE.partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    told = {
        name: default.strip("`")
        for names, default in re.findall(r"^\| (`[^|]+`) \|\s*([^|]*?)\s*\|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    fields = {field.alias or name: field.default for name, field in SECTIONS[section].model_fields.items()}
    assert told.keys() == fields.keys()
    for name, default in fields.items():
        assert told[name] == _written(default), name


def _written(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, BaseModel | dict):
        return ""
    if default == tuple(Day):
        return "all"
    if isinstance(default, time):
        return f"{default:%H:%M}"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:.15g}"
    return {"": "''", (): "[]"}.get(default, str(default))


def test_the_lists_of_never_are_described() -> None:
    (row,) = re.findall(r"^\| `never` .*$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {"never", *model.Never.model_fields}


# --- reading and writing ---


def test_what_is_written_is_read_back() -> None:
    policy = example()
    assert Policy.model_validate(policy.model_dump(mode="json")) == policy
    assert Policy.model_validate_json(policy.model_dump_json()) == policy
    brief = policy.model_dump(mode="json", exclude_defaults=True)
    assert Policy.model_validate(load(yaml.safe_dump(brief), "x").data) == policy
    assert policy.model_dump(mode="json")["pools"][0]["timetable"][0]["from"] == "08:00"


_clock = st.times().map(lambda at: at.replace(second=0, microsecond=0))


@given(_clock, _clock)
def test_any_time_of_the_day_is_read_back(from_: time, until: time) -> None:
    line = Hours(name="line", from_=from_, until=until, slurm_floor_nodes=1)
    document = json.loads(line.model_dump_json())
    assert Hours.model_validate(document) == line
    bare = f"from: {document['from']}\nuntil: {document['until']}\n"
    assert load(bare, "x").data == {"from": document["from"], "until": document["until"]}


@pytest.mark.parametrize("value", ["8:00", "24:00", "08:60", "08:00:30", "08:00Z", "", 0, 480, 8.5, True, None, "noon"])
def test_what_is_no_time_of_the_day(value: object) -> None:
    with pytest.raises(ValidationError, match="is not a time of the day") as raised:
        Hours.model_validate({"name": "line", "from": value, "slurm_floor_nodes": 1})
    (error,) = raised.value.errors()
    assert error["loc"] == ("from",)
    assert error["ctx"]["remedy"] == "write hours and minutes in quotes, '00:00' to '23:59'"


@pytest.mark.parametrize(
    ("label", "is_one"),
    [
        ("pool=shared", True),
        ("example.org/pool=shared", True),
        ("example.org/pool", True),
        ("pool=", True),
        ("a" * 63 + "=" + "b" * 63, True),
        ("a" * 64, False),
        ("pool==shared", False),
        ("Example.org/pool", False),
        ("a/b/c", False),
        ("pool=a,b=c", False),
        ("-pool", False),
        ("pool=shared\n", False),
    ],
)
def test_labels(label: str, is_one: bool) -> None:
    def read() -> PoolPolicy:
        return PoolPolicy(name="p", partition="gpu", node_label=label)

    if is_one:
        assert read().node_label == label
    else:
        with pytest.raises(ValidationError, match="is not a label"):
            read()


def test_the_signals_are_those_that_ever_leave_the_bridge() -> None:
    assert set(get_args(model.Signal)) == {"", *SIGNALS}


# --- differences ---


def _pool(**fields: Any) -> dict[str, Any]:
    return {"name": "h100", "nodes": ["gpu-[1-4]"], "partition": "gpu", **fields}


DAY = {"name": "day", "from": "08:00", "slurm_floor_nodes": 1}
NIGHT = {"name": "night", "from": "22:00", "slurm_floor_nodes": 2}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {}, []),
        ({}, {"timezone": "Europe/Berlin"}, [("timezone", "UTC", "Europe/Berlin")]),
        ({"pools": [_pool()]}, {"pools": [_pool(gpus=8)]}, []),  # a default that is written down
        ({"pools": [_pool()]}, {"pools": [_pool(gpus=4)]}, [("pools[h100].gpus", 8, 4)]),
        ({"pools": [_pool()]}, {}, [("pools[h100]", _pool(), None)]),
        (
            {"pools": [_pool(timetable=[DAY, NIGHT])]},
            {"pools": [_pool(timetable=[NIGHT, DAY])]},
            [("pools[h100].timetable in this order", ["day", "night"], ["night", "day"])],
        ),
        (
            {"pools": [_pool(timetable=[DAY])]},
            {"pools": [_pool(timetable=[{**DAY, "from": "09:00"}, NIGHT])]},
            [
                ("pools[h100].timetable[day].from", "08:00", "09:00"),
                ("pools[h100].timetable[night]", None, NIGHT),
            ],
        ),
        (
            {"priorities": {"qos": {"high": 1, "low": -1}}},
            {"priorities": {"qos": {"high": 2, "mid": 0}}},
            [
                ("priorities.qos[high]", 1, 2),
                ("priorities.qos[low]", -1, None),
                ("priorities.qos[mid]", None, 0),
            ],
        ),
        (  # the order of teams says nothing
            {"teams": [{"name": "a"}, {"name": "b"}]},
            {"teams": [{"name": "b"}, {"name": "a", "weight": 2}]},
            [("teams[a].weight", 1.0, 2.0)],
        ),
    ],
)
def test_differences(old: dict[str, Any], new: dict[str, Any], expected: list[tuple[str, Any, Any]]) -> None:
    found = differences(Policy.model_validate(old), Policy.model_validate(new))
    assert [(each.path, each.old, each.new) for each in found] == expected
