"""job_submit.lua in real Luas (Slurm has 5.1 to 5.4): who is refused, in which words, and that all else passes.

Users read these sentences at their prompt, so they are compared whole.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bridge.model.slurm import SlurmJob
from bridge.planning.wishes import wishes
from bridge.slurm_agent.files import PoolFacts, policy_text
from tests.bench import submission

PLUGIN = Path(__file__).parents[2] / "slurm_plugins" / "job_submit.lua"
LUAS = ("lua51", "lua52", "lua53", "lua54", "luajit21")

SUCCESS, ERROR, UNAVAILABLE = 0, -1, 2014
NO_VAL, NO_VAL16 = 0xFFFFFFFE, 0xFFFE
H100 = PoolFacts(partition="shared", nodes=4, max_nodes=3, gpus=8)
POLICY = policy_text({"h100": H100})


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

    def rule(self, **facts: Any) -> None:
        """The policy file says this of pool h100 from now on."""
        self.file.write_text(policy_text({"h100": H100.model_copy(update=facts)}))
        self.clock_s[0] += 1

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
    plugin.rule(max_nodes=4)
    assert plugin.submit(job(min_nodes=4))[0] == SUCCESS
    assert plugin.submit(job(min_nodes=5))[0] == UNAVAILABLE
    assert plugin.told == ["This job needs 5 nodes, and partition shared has 4: ask for at most --nodes=4."]


def test_nodes_of_the_partition_that_are_not_shared_count_in_full(plugin: Plugin) -> None:
    assert plugin.submit(job(min_nodes=9), shared=10)[0] == SUCCESS
    assert plugin.submit(job(min_nodes=10), shared=10)[0] == UNAVAILABLE
    assert "at most 9 of the 10" in plugin.told[0]


def test_what_a_newer_agent_says_is_passed_over(plugin: Plugin) -> None:
    plugin.file.write_text(POLICY.replace("nodes=4", "nodes=4 weather=fine storms=2"))
    assert plugin.submit(job(min_nodes=4))[0] == UNAVAILABLE
    assert plugin.logged == []


# --- nodes that must come back ---

WAITS = (
    "This job needs {} nodes, and Slurm has {} of the {} in partition shared now, as the others are lent to "
    "Kubernetes: it waits until {} back. {}"
)
UNMEASURED = "How long that takes was not measured yet."
MEASURED = "Lately that took about {} once they were asked for."


@pytest.mark.parametrize(
    ("facts", "nodes", "words"),
    [
        ({"owned": 1}, 3, WAITS.format(3, 1, 4, "2 more are", UNMEASURED)),
        ({"owned": 2, "reclaim_s": 40}, 3, WAITS.format(3, 2, 4, "1 more is", MEASURED.format("40 s"))),
        ({"owned": 0, "reclaim_s": 1}, 1, WAITS.format(1, 0, 4, "1 more is", MEASURED.format("1 s"))),
        ({"owned": 0, "reclaim_s": 95}, 3, WAITS.format(3, 0, 4, "3 more are", MEASURED.format("2 min"))),
        ({"owned": 0, "reclaim_s": 7000}, 3, WAITS.format(3, 0, 4, "3 more are", MEASURED.format("2 h"))),
        ({"owned": 3}, 3, None),
        ({"owned": 4}, 3, None),
        ({}, 3, None),
        ({"owned": 1, "warn": False}, 3, None),
    ],
)
def test_a_job_that_waits_for_nodes_is_told_for_how_many_and_about_how_long(
    plugin: Plugin, facts: dict[str, Any], nodes: int, words: str | None
) -> None:
    plugin.rule(**facts)
    answer, desc = plugin.submit(job(min_nodes=nodes))
    assert (answer, plugin.told, plugin.logged) == (SUCCESS, [words] if words else [], [])
    assert json.loads(desc.admin_comment)["bridge"]["nodes"] == nodes


def test_nodes_that_are_always_slurms_need_not_come_back(plugin: Plugin) -> None:
    plugin.rule(owned=1)
    plugin.submit(job(min_nodes=3), shared=6)
    assert plugin.told == []
    plugin.submit(job(min_nodes=4), shared=6)
    assert plugin.told == [WAITS.format(4, 3, 6, "1 more is", UNMEASURED)]


def test_a_job_that_may_start_in_another_partition_is_not_told_to_wait(plugin: Plugin) -> None:
    plugin.rule(owned=0)
    assert plugin.submit(job(min_nodes=2, partition="cpu,shared"))[0] == SUCCESS
    assert plugin.told == []


# --- what a job says of itself ---

TAG = {"pool": "h100", "nodes": 1, "gpus_per_node": 0}
ODD = (
    "The bridge does not understand {} in the comment of this job: it knows checkpoint=SECONDS, grace=SECONDS, "
    "signal=NAME, borrow=yes and borrow=no."
)


def script(*options: str) -> str:
    return "\n".join(["#!/bin/bash", *options, "srun train", "#SBATCH --signal=HUP@9", ""])


@pytest.mark.parametrize(
    ("asked", "tagged"),
    [
        ({"comment": "bridge: checkpoint=600 grace=120"}, {"checkpoint_s": 600, "grace_s": 120}),
        ({"comment": "my run, bridge: grace=90 and more"}, {"grace_s": 90}),
        ({"comment": "bridge:checkpoint=1"}, {"checkpoint_s": 1}),
        ({"comment": "bridge: signal=sigusr1"}, {"signal": "USR1"}),
        ({"comment": "bridge: signal=B:TERM"}, {"signal": "B:TERM"}),
        ({"comment": "bridge: signal=S:10"}, {"signal": "S:USR1"}),
        ({"comment": "bridge: saved=1796201113 checkpoint=60"}, {"checkpoint_s": 60}),
        ({"comment": "bridge: saved=1796201113.25"}, {}),
        ({"comment": "cambridge: grace=90"}, {}),
        ({"comment": "nothing"}, {}),
        ({"comment": ""}, {}),
        ({"script": script("#SBATCH --signal=B:USR1@300")}, {"signal": "B:USR1", "grace_s": 300}),
        ({"script": script("#SBATCH -N 2 --signal USR2 -t 5")}, {"signal": "S:USR2", "grace_s": 60}),
        ({"script": script("#SBATCH --signal=RB:12@90")}, {"signal": "B:USR2", "grace_s": 90}),
        ({"script": script("#SBATCH --signal=R:15@1")}, {"signal": "S:TERM", "grace_s": 1}),
        ({"script": script("#SBATCH --signal=INT@5", "", "#SBATCH --signal=QUIT@6")},
         {"signal": "S:QUIT", "grace_s": 6}),
        ({"script": script("##SBATCH --signal=USR1@300")}, {}),
        ({"script": script("#SBATCH --signal=KILL@300")}, {}),
        ({"script": script()}, {}),
        ({"script": "#" * 70_000 + "\n#SBATCH --signal=USR1@300\n"}, {}),
        ({"script": script("#SBATCH --signal=USR1@300"), "comment": "bridge: grace=20"},
         {"signal": "S:USR1", "grace_s": 20}),
        ({"script": script("#SBATCH --signal=USR1@300"), "comment": "bridge: signal=TERM"}, {"signal": "TERM"}),
        ({"comment": "bridge: borrow=yes"}, {"requeue": True}),
        ({"comment": "bridge: borrow=no", "requeue": 1}, {"requeue": False}),
        ({"requeue": 1}, {"requeue": True}),
        ({"requeue": 0}, {"requeue": False}),
        ({"requeue": NO_VAL16}, {}),
    ],
)  # fmt: skip
def test_the_wishes_of_a_job_are_written_down_for_the_bridge(
    plugin: Plugin, asked: dict[str, Any], tagged: dict[str, Any]
) -> None:
    answer, desc = plugin.submit(job(**asked))
    assert (answer, plugin.told, plugin.logged) == (SUCCESS, [], [])
    assert json.loads(desc.admin_comment) == {"bridge": {**TAG, **tagged}}


@pytest.mark.parametrize(
    "word", ["chekpoint=600", "grace=soon", "grace=-5", "signal=KILL", "signal=", "borrow=maybe", "grace=99999999", "x"]
)
def test_a_word_that_makes_no_sense_is_told_and_the_job_goes_through(plugin: Plugin, word: str) -> None:
    answer, desc = plugin.submit(job(comment=f"bridge: {word}"))
    assert (answer, plugin.told) == (SUCCESS, [ODD.format(word)])
    assert json.loads(desc.admin_comment) == {"bridge": TAG}


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "bridge: checkpoint=600 grace=120 signal=B:USR1",
        "a run; bridge: signal=sigterm grace=0",
        "bridge:checkpoint=1 signal=S:USR2 borrow=yes",
        "bridge: saved=1796201113 grace=7 later",
        "mybridge: grace=7",
        "my_bridge: grace=7",
        "bridge: my own",
    ],
)
def test_the_bridge_reads_the_same_in_the_tag_as_in_the_comment(plugin: Plugin, comment: str) -> None:
    _, desc = plugin.submit(job(comment=comment))
    found = {"tag": wishes(_queued(desc.admin_comment, "")), "comment": wishes(_queued("", comment))}
    assert found["tag"] == replace(found["comment"], saved_at=None)


def _queued(admin_comment: str, comment: str) -> SlurmJob:
    return SlurmJob(17, "PENDING", "alice", "vision", "shared", admin_comment=admin_comment, comment=comment)


def test_a_comment_is_data_and_never_breaks_the_tag(plugin: Plugin) -> None:
    for value in ('"', "\\", "%d%s", "{}", "\n", "é", "\x00"):
        _, desc = plugin.submit(job(comment=f"bridge: signal=US{value}R1 checkpoint=60"))
        assert json.loads(desc.admin_comment)["bridge"]["pool"] == "h100"


def test_a_job_that_may_be_borrowed_against_can_be_put_back_and_has_its_price(plugin: Plugin) -> None:
    plugin.rule(borrow_qos="cheap")
    _, desc = plugin.submit(job(comment="bridge: borrow=yes", requeue=0))
    assert (desc.requeue, desc.qos) == (1, "cheap")
    _, desc = plugin.submit(job(comment="bridge: borrow=yes", qos="urgent"))
    assert (desc.requeue, desc.qos) == (1, "urgent")
    _, desc = plugin.submit(job(comment="bridge: borrow=no", requeue=1))
    assert (desc.requeue, desc.qos) == (0, None)
    _, desc = plugin.submit(job(comment="bridge: grace=5", requeue=NO_VAL16))
    assert (desc.requeue, desc.qos) == (NO_VAL16, None)
    _, desc = plugin.submit(job(comment="bridge: borrow=yes", partition="cpu", requeue=0))
    assert (desc.requeue, desc.qos) == (0, None)


TOPOLOGY = {"req_switch": NO_VAL, "wait4switch": NO_VAL, "segment_size": NO_VAL16}


@pytest.mark.parametrize(
    ("asked", "switches", "wait_s", "segment"),
    [
        ({"min_nodes": 2}, 1, 300, 2),
        ({"min_nodes": 3}, 1, 300, NO_VAL16),
        ({"min_nodes": 1}, NO_VAL, NO_VAL, NO_VAL16),
        ({"min_nodes": 2, "req_switch": 2}, 2, NO_VAL, 2),
        ({"min_nodes": 2, "req_switch": 2, "wait4switch": 9}, 2, 9, 2),
        ({"min_nodes": 2, "req_switch": 0}, 1, 300, 2),
        ({"min_nodes": 2, "segment_size": 1}, 1, 300, 1),
        ({"tres_per_job": "gres/gpu:16"}, 1, 300, 2),
        ({"min_nodes": 2, "req_switch": None, "wait4switch": None, "segment_size": None}, None, None, None),
    ],
)
def test_gangs_that_do_not_say_get_the_topology_of_the_policy(
    plugin: Plugin, asked: dict[str, Any], switches: int | None, wait_s: int | None, segment: int | None
) -> None:
    plugin.rule(switches=1, switches_wait_s=300, segment_nodes=2)
    _, desc = plugin.submit(job(**{**TOPOLOGY, **asked}))
    assert (desc.req_switch, desc.wait4switch, desc.segment_size) == (switches, wait_s, segment)
    assert plugin.logged == []


def test_without_a_policy_of_topology_nothing_is_set(plugin: Plugin) -> None:
    _, desc = plugin.submit(job(min_nodes=2, **TOPOLOGY))
    assert (desc.req_switch, desc.wait4switch, desc.segment_size) == (NO_VAL, NO_VAL, NO_VAL16)


# --- beside others ---


def test_no_field_is_read_whose_reading_can_crash_slurmctld(plugin: Plugin) -> None:
    plugin.lua.execute("""
        asked = {}
        function watched(fields)
          return setmetatable({}, {
            __index = function(_, name) asked[name] = true; return fields[name] end,
            __newindex = function(_, name, value) fields[name] = value end,
          })
        end
    """)
    watched = plugin.lua.globals().watched
    plugin.rule(owned=0, borrow_qos="cheap", switches=1, switches_wait_s=1, segment_nodes=2)
    fields = job(min_nodes=2, comment="bridge: borrow=yes", script=script("#SBATCH --signal=USR1"), **TOPOLOGY)
    desc = watched(plugin.lua.table_from(fields))
    assert plugin.lua.globals().slurm_job_submit(desc, plugin.parts(), 2001) == SUCCESS
    standing = watched(plugin.lua.table_from({**fields, "partition": "shared"}))
    change = watched(plugin.lua.table_from(job(min_nodes=3, comment="bridge: borrow=no")))
    assert plugin.lua.globals().slurm_job_modify(change, standing, plugin.parts(), 2001) == SUCCESS
    asked = set(plugin.lua.globals().asked)
    assert {"comment", "script", "qos"} <= asked
    assert not {name for name in asked if name.startswith(("assoc", "default_"))}


def test_a_sites_own_script_loads_this_one_and_goes_on(plugin: Plugin) -> None:
    """The one in docs/policy.md: one job_submit.lua a cluster, so a site's calls ours."""
    page = (PLUGIN.parents[1] / "docs" / "policy.md").read_text(encoding="utf-8")
    site = page.partition("```lua\n")[2].partition("```")[0]
    assert "/usr/share/slurm-kube-bridge/job_submit.lua" in site
    assert plugin.lua.execute(site.replace("/usr/share/slurm-kube-bridge/job_submit.lua", str(PLUGIN))) == SUCCESS
    answer, desc = plugin.submit(job(min_nodes=3))
    assert (answer, desc.wckey, json.loads(desc.admin_comment)["bridge"]["nodes"]) == (SUCCESS, "of the site", 3)
    answer, desc = plugin.submit(job(min_nodes=4))
    assert (answer, desc.wckey) == (UNAVAILABLE, None)
    assert plugin.modify(job(min_nodes=4), STANDING)[0] == UNAVAILABLE


def test_the_script_leaves_no_globals_but_its_two_functions(plugin: Plugin) -> None:
    names = plugin.lua.eval("function() local n = {} for k in pairs(_G) do n[#n + 1] = k end return n end")
    fresh = importlib.import_module(plugin.lua.__class__.__module__).LuaRuntime()
    before = set(
        fresh.eval("(function() local n = {} for k in pairs(_G) do n[#n + 1] = k end return n end)()").values()
    )
    assert set(names().values()) - before == {"slurm", "slurm_job_submit", "slurm_job_modify"}


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
    "of another format": POLICY.replace("bridge-policy 2", "bridge-policy 1"),
    "JSON": '{"shared": {"nodes": 4}}\n',
    "with a line too many": POLICY.replace("end 2", "partition=x\nend 3"),
    "with a negative number": POLICY.replace("nodes=4", "nodes=-4"),
    "with a word that is no field": POLICY.replace("nodes=4", "nodes=4 x"),
    "with code": POLICY.replace("pool=h100", 'pool="..os.exit().."'),
    "binary": "\x00\x01\x02\n",
    "huge": "bridge-policy 2\n" + POLICY.splitlines()[1] * 2_000 + "\nend 2\n",
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
    plugin.file.write_text(policy_text({"h100": H100.model_copy(update={"max_nodes": 4})}))
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


def test_a_refusal_has_the_same_number_in_a_slurm_that_does_not_name_it(plugin: Plugin) -> None:
    plugin.lua.execute("slurm.ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE = nil")
    assert plugin.submit(job(min_nodes=9))[0] == UNAVAILABLE


def test_what_it_adds_to_a_submission_can_be_measured() -> None:
    found = submission.rows(("lua54",), submissions=2)
    assert [row["submission"] for row in found] == list(submission.KINDS)


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


@pytest.mark.parametrize(
    ("before", "after", "requeue"),
    [
        (None, "bridge: borrow=yes", 1),
        ("bridge: borrow=yes", "bridge: borrow=no", 0),
        ("bridge: borrow=yes", "bridge: borrow=yes saved=1796201113", NO_VAL16),
        ("bridge: borrow=yes", "bridge: saved=1796201113", NO_VAL16),
    ],
)
def test_a_changed_word_on_borrowing_counts_and_a_report_changes_nothing(
    plugin: Plugin, before: str | None, after: str, requeue: int
) -> None:
    answer, desc = plugin.modify(job(comment=after, requeue=NO_VAL16), {**STANDING, "comment": before})
    assert (answer, desc.requeue, desc.admin_comment, plugin.told) == (SUCCESS, requeue, None, [])


def test_a_changed_comment_elsewhere_is_not_looked_at(plugin: Plugin) -> None:
    change = job(comment="bridge: borrow=yes nonsense=1", requeue=NO_VAL16)
    answer, desc = plugin.modify(change, {**STANDING, "partition": "cpu"})
    assert (answer, desc.requeue, plugin.told) == (SUCCESS, NO_VAL16, [])


def test_a_word_that_makes_no_sense_is_told_at_a_change_too(plugin: Plugin) -> None:
    plugin.modify(job(comment="bridge: chekpoint=600"), STANDING)
    assert plugin.told == [ODD.format("chekpoint=600")]


def test_moving_a_job_that_is_too_large_into_the_shared_partition_is_refused(plugin: Plugin) -> None:
    large = job(partition="cpu", min_nodes=9)
    assert plugin.modify(job(partition="shared"), large)[0] == UNAVAILABLE


def test_a_job_from_before_a_smaller_policy_can_still_be_changed_otherwise(plugin: Plugin) -> None:
    large = job(partition="shared", min_nodes=9)
    assert plugin.modify(job(name="renamed"), large)[0] == SUCCESS
