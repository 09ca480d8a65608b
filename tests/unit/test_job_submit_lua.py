"""job_submit.lua in real Luas (Slurm has 5.1 to 5.4): who is refused, in which words, and that all else passes.

Users read these sentences at their prompt, so they are compared whole.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bridge.slurm_agent.files import PoolFacts, policy_text

PLUGIN = Path(__file__).parents[2] / "slurm_plugins" / "job_submit.lua"
LUAS = ("lua51", "lua52", "lua53", "lua54", "luajit21")

SUCCESS, ERROR, UNAVAILABLE = 0, -1, 2014
NO_VAL, NO_VAL16 = 0xFFFFFFFE, 0xFFFE
POLICY = policy_text({"h100": PoolFacts(partition="shared", nodes=4, max_nodes=3, gpus=8)})


def job(**asked: Any) -> dict[str, Any]:
    """A job_desc as slurmctld hands it over: texts that were not given are nil, numbers are NO_VAL."""
    unset = {"min_nodes": NO_VAL, "max_nodes": NO_VAL, "num_tasks": NO_VAL, "ntasks_per_node": NO_VAL16}
    return {**unset, "sockets_per_node": NO_VAL16, **asked}


@dataclass
class Plugin:
    """The plugin loaded as slurmctld loads it, with the functions of Slurm that it may call."""

    lua: Any
    file: Path
    clock_s: list[int]
    told: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    def parts(self, **total_nodes: int) -> Any:
        known = {"shared": 4, "cpu": 9} | total_nodes
        return self.lua.table_from(
            {
                name: self.lua.table_from({"flag_default": int(name == "shared"), "total_nodes": count})
                for name, count in known.items()
            }
        )

    def submit(self, asked: dict[str, Any], **total_nodes: int) -> tuple[int, Any]:
        desc = self.lua.table_from(asked)
        return self.lua.globals().slurm_job_submit(desc, self.parts(**total_nodes), 2001), desc

    def modify(self, change: dict[str, Any], standing: dict[str, Any]) -> tuple[int, Any]:
        desc, record = self.lua.table_from(change), self.lua.table_from(standing)
        return self.lua.globals().slurm_job_modify(desc, record, self.parts(), 2001), desc


@pytest.fixture(params=LUAS)
def plugin(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    try:
        runtime = importlib.import_module(f"lupa.{request.param}")
    except ImportError:
        pytest.skip(f"this lupa has no {request.param}")
    lua = runtime.LuaRuntime(unpack_returned_tuples=True)
    file = tmp_path / "policy"
    file.write_text(POLICY)
    monkeypatch.setitem(os.environ, "BRIDGE_POLICY_FILE", str(file))
    found = Plugin(lua, file, [1_796_201_113])

    def into(lines: list[str]) -> Callable[..., None]:
        return lambda form, *values: lines.append(form % values)

    slurm = {"SUCCESS": SUCCESS, "ERROR": ERROR, "ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE": UNAVAILABLE}
    slurm |= {"log_user": into(found.told), "log_error": into(found.logged)}
    lua.globals().slurm = lua.table_from(slurm)
    lua.globals().os.time = lambda: found.clock_s[0]
    assert lua.execute(PLUGIN.read_text()) == SUCCESS
    return found


SIZE = (
    "This job needs {} nodes, and Slurm can get at most 3 of the 4 in partition shared, as it shares pool h100 with "
    "Kubernetes: ask for at most --nodes=3."
)
GPUS = (
    "This job asks for {} GPUs on a node, and the nodes of partition shared have 8 each: ask for at most "
    "--gpus-per-node=8, and for more nodes."
)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"min_nodes": 4, "max_nodes": 4}, SIZE.format(4)),
        ({"min_nodes": 9}, SIZE.format(9)),
        ({"tres_per_job": "gres/gpu:32"}, SIZE.format(4)),
        ({"tres_per_job": "gres/gpu:h100:25"}, SIZE.format(4)),
        ({"num_tasks": 40, "ntasks_per_node": 8}, SIZE.format(5)),
        ({"tres_per_task": "gres/gpu=2", "num_tasks": 13}, SIZE.format(4)),
        ({"min_nodes": 4, "partition": "shared"}, SIZE.format(4)),
        ({"tres_per_node": "gres/gpu:9"}, GPUS.format(9)),
        ({"tres_per_node": "gres/gpu:h100:16"}, GPUS.format(16)),
        ({"tres_per_node": "gres:gpu:16"}, GPUS.format(16)),
        ({"tres_per_node": "gpu:16"}, GPUS.format(16)),
        ({"tres_per_node": "gres/gpu:h100:5,gres/gpu:a100:4"}, GPUS.format(9)),
        ({"tres_per_socket": "gres/gpu:5", "sockets_per_node": 2}, GPUS.format(10)),
        ({"tres_per_task": "gres/gpu=9"}, GPUS.format(9)),
        ({"min_nodes": 1, "max_nodes": 1, "tres_per_job": "gres/gpu:16"}, GPUS.format(16)),
        ({"min_nodes": 1, "max_nodes": 2, "tres_per_job": "gres/gpu:17"}, GPUS.format(9)),
    ],
)
def test_a_job_that_can_never_run_is_told_why_and_what_can(plugin: Plugin, asked: dict[str, Any], words: str) -> None:
    answer, desc = plugin.submit(job(**asked))
    assert (answer, plugin.told, plugin.logged) == (UNAVAILABLE, [words], [])
    assert desc.admin_comment is None


@pytest.mark.parametrize(
    ("asked", "nodes", "gpus"),
    [
        ({}, 1, 0),
        ({"min_nodes": 3, "max_nodes": 3}, 3, 0),
        ({"min_nodes": 1, "max_nodes": 9}, 1, 0),
        ({"min_nodes": 0}, 1, 0),
        ({"tres_per_job": "gres/gpu:24"}, 3, 8),
        ({"tres_per_job": "gres/gpu:16", "min_nodes": 2, "max_nodes": 2}, 2, 8),
        ({"tres_per_job": "gres/gpu:9"}, 2, 5),
        ({"tres_per_node": "gres/gpu:8", "min_nodes": 2}, 2, 8),
        ({"tres_per_node": "gres/gpu"}, 1, 1),
        ({"tres_per_node": "gres/gpu:h100"}, 1, 1),
        ({"tres_per_node": "gres/nvme:90,gres/gpumem:99,gres/gpu:2"}, 1, 2),
        ({"tres_per_task": "cpu=90,gres/gpu=1", "num_tasks": 8}, 1, 8),
        ({"num_tasks": 24, "ntasks_per_node": 8}, 3, 0),
        ({"num_tasks": 5000}, 1, 0),
    ],
)
def test_a_job_that_could_run_is_tagged_with_what_it_needs(
    plugin: Plugin, asked: dict[str, Any], nodes: int, gpus: int
) -> None:
    answer, desc = plugin.submit(job(**asked))
    assert (answer, plugin.told, plugin.logged) == (SUCCESS, [], [])
    assert json.loads(desc.admin_comment) == {"bridge": {"pool": "h100", "nodes": nodes, "gpus_per_node": gpus}}


def test_the_whole_partition_is_the_bound_where_slurm_may_have_it_all(plugin: Plugin) -> None:
    plugin.file.write_text(policy_text({"h100": PoolFacts(partition="shared", nodes=4, max_nodes=4, gpus=8)}))
    assert plugin.submit(job(min_nodes=4))[0] == SUCCESS
    assert plugin.submit(job(min_nodes=5))[0] == UNAVAILABLE
    assert plugin.told == ["This job needs 5 nodes, and partition shared has 4: ask for at most --nodes=4."]


def test_nodes_of_the_partition_that_are_not_shared_count_in_full(plugin: Plugin) -> None:
    assert plugin.submit(job(min_nodes=9), shared=10)[0] == SUCCESS
    assert plugin.submit(job(min_nodes=10), shared=10)[0] == UNAVAILABLE
    assert "at most 9 of the 10" in plugin.told[0]


def test_other_partitions_are_never_looked_at(plugin: Plugin) -> None:
    answer, desc = plugin.submit(job(min_nodes=999, partition="cpu"))
    assert (answer, desc.admin_comment, plugin.told) == (SUCCESS, None, [])


def test_one_possible_partition_of_several_is_enough(plugin: Plugin) -> None:
    assert plugin.submit(job(min_nodes=9, partition="shared,cpu"))[0] == SUCCESS
    assert plugin.submit(job(min_nodes=9, partition="cpu,shared"))[0] == SUCCESS
    assert plugin.submit(job(min_nodes=9, partition="shared,shared"))[0] == UNAVAILABLE


@pytest.mark.parametrize("comment", ["nightly run", '{"site":1}', ' {"bridge":{}}', '{"bridge":{}} and more'])
def test_a_comment_of_somebody_else_stays(plugin: Plugin, comment: str) -> None:
    answer, desc = plugin.submit(job(admin_comment=comment))
    assert (answer, desc.admin_comment) == (SUCCESS, comment)


@pytest.mark.parametrize("comment", ["", '{"bridge":{"pool":"old","nodes":1,"gpus_per_node":0}}'])
def test_an_empty_or_own_comment_is_renewed(plugin: Plugin, comment: str) -> None:
    _, desc = plugin.submit(job(admin_comment=comment, min_nodes=2))
    assert json.loads(desc.admin_comment)["bridge"]["nodes"] == 2


BROKEN = {
    "missing": None,
    "empty": "",
    "half": POLICY[: len(POLICY) // 2],
    "without its last line": POLICY.replace("end 2\n", ""),
    "without its last newline": POLICY.rstrip("\n"),
    "of another format": POLICY.replace("bridge-policy 1", "bridge-policy 2"),
    "JSON": '{"shared": {"nodes": 4}}\n',
    "with a line too many": POLICY.replace("end 2", "partition=x\nend 3"),
    "with a negative number": POLICY.replace("nodes=4", "nodes=-4"),
    "with code": POLICY.replace("pool=h100", 'pool="..os.exit().."'),
    "binary": "\x00\x01\x02\n",
    "huge": "bridge-policy 1\n" + POLICY.splitlines()[1] * 2_000 + "\nend 2\n",
    "huge without a line": "x" * 1_000_000,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_is_not_one_lets_everything_through_and_is_logged_once(plugin: Plugin, what: str) -> None:
    content = BROKEN[what]
    plugin.file.unlink()
    if content is not None:
        plugin.file.write_text(content)
    for _ in range(3):
        answer, desc = plugin.submit(job(min_nodes=999))
        assert (answer, desc.admin_comment, plugin.told) == (SUCCESS, None, [])
        plugin.clock_s[0] += 2
    assert len(plugin.logged) == 1
    assert plugin.logged[0].startswith(f"bridge: {plugin.file} ")
    assert plugin.logged[0].endswith("; jobs are not checked")


def test_a_folder_in_the_place_of_the_file_lets_everything_through(plugin: Plugin) -> None:
    plugin.file.unlink()
    plugin.file.mkdir()
    assert plugin.submit(job(min_nodes=999))[0] == SUCCESS
    assert "cannot be read" in plugin.logged[0]


def test_a_problem_that_stays_is_logged_again_after_a_minute(plugin: Plugin) -> None:
    plugin.file.unlink()
    for _ in range(130):
        plugin.submit(job())
        plugin.clock_s[0] += 1
    assert len(plugin.logged) == 3


def test_a_new_file_counts_within_a_second_and_a_burst_reads_it_once(plugin: Plugin) -> None:
    assert plugin.submit(job(min_nodes=4))[0] == UNAVAILABLE
    plugin.file.write_text(policy_text({"h100": PoolFacts(partition="shared", nodes=4, max_nodes=4, gpus=8)}))
    assert plugin.submit(job(min_nodes=4))[0] == UNAVAILABLE
    plugin.clock_s[0] += 1
    assert plugin.submit(job(min_nodes=4))[0] == SUCCESS


def test_no_policy_left_from_before_is_used_when_the_file_is_gone(plugin: Plugin) -> None:
    assert plugin.submit(job(min_nodes=4))[0] == UNAVAILABLE
    plugin.file.unlink()
    plugin.clock_s[0] += 1
    assert plugin.submit(job(min_nodes=4))[0] == SUCCESS


@pytest.mark.parametrize(
    "broken",
    [
        "job_desc = setmetatable({}, {__index = function() error('no such field') end})",
        "job_desc = nil",
        "job_desc = {partition = 7}",
        "job_desc = {partition = {}}",
        "job_desc = setmetatable({}, {__newindex = function() error('read only') end})",
        "slurm.log_user = nil; job_desc = {min_nodes = 999}",
        "slurm.log_user = nil; slurm.log_error = nil; job_desc = {min_nodes = 999}",
    ],
)
def test_any_error_inside_lets_the_job_through(plugin: Plugin, broken: str) -> None:
    parts = plugin.parts()
    call = plugin.lua.eval("function(parts, code) return code, slurm_job_submit(job_desc, parts, 1) end")
    plugin.lua.execute(broken)
    assert call(parts, 0)[1] == SUCCESS
    modify = plugin.lua.eval("function(parts) return slurm_job_modify(job_desc, {}, parts, 1) end")
    assert modify(parts) == SUCCESS


def test_without_a_partition_list_a_job_passes(plugin: Plugin) -> None:
    submit = plugin.lua.eval("function() return slurm_job_submit({min_nodes = 999}, nil, 1) end")
    assert submit() == SUCCESS
    assert plugin.logged == []


# --- changes of a job that is in the queue ---

STANDING = job(partition="shared", min_nodes=2, max_nodes=2, tres_per_node="gres/gpu:8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"min_nodes": 4, "max_nodes": 4}, SIZE.format(4)),
        ({"tres_per_node": "gres/gpu:9"}, GPUS.format(9)),
        ({"min_nodes": 3, "max_nodes": 3}, None),
        ({"partition": "cpu", "min_nodes": 9}, None),
        ({"comment": "x"}, None),
        ({"admin_comment": "y"}, None),
    ],
)
def test_a_change_is_held_to_the_same_measure(plugin: Plugin, change: dict[str, Any], words: str | None) -> None:
    asked = job(**change)
    answer, desc = plugin.modify(asked, STANDING)
    assert (answer, plugin.told) == ((SUCCESS, []) if words is None else (UNAVAILABLE, [words]))
    assert desc.admin_comment == change.get("admin_comment")


def test_moving_a_job_that_is_too_large_into_the_shared_partition_is_refused(plugin: Plugin) -> None:
    large = job(partition="cpu", min_nodes=9)
    assert plugin.modify(job(partition="shared"), large)[0] == UNAVAILABLE


def test_a_job_from_before_a_smaller_policy_can_still_be_changed_otherwise(plugin: Plugin) -> None:
    large = job(partition="shared", min_nodes=9)
    assert plugin.modify(job(name="renamed"), large)[0] == SUCCESS
