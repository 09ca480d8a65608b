"""Slurm's JSON, in the spellings of its releases, and every way in which an answer may not be one."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.model.errors import Unreadable
from bridge.slurm import reading
from bridge.slurm.states import LiveStates

SAMPLES = Path(os.environ.get("BRIDGE_SAMPLES", Path(__file__).parents[3] / "shared/data/samples"))
needs_samples = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason=f"recorded Slurm answers are not at {SAMPLES} (set BRIDGE_SAMPLES to their folder)"
)


UNTIMED = settings(deadline=None)
"""Laws do not depend on how busy the machine is."""


def sample(name: str) -> reading.Record:
    return reading.answer((SAMPLES / name).read_bytes(), name)


# --- recorded answers of real clusters ---


def recorded() -> list[str]:
    return sorted(str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*.json"))


@needs_samples
@pytest.mark.parametrize("name", recorded())
def test_every_recorded_answer_is_read_or_refused_for_its_own_error(name: str) -> None:
    if name.endswith("unfound.json"):
        with pytest.raises(Unreadable, match="Failure to query node unexisting-node"):
            sample(name)
        return
    answer = sample(name)
    counts = {
        "nodes": lambda: len(reading.nodes(answer)),
        "jobs": lambda: len(reading.jobs(answer)),
        "reservations": lambda: len(reading.reservations(answer, "")),
        "partitions": lambda: len(reading.records(answer, "partitions", name)),
    }
    kind = next(kind for kind in counts if kind in answer)
    assert 0 < counts[kind]() <= len(answer[kind])


@needs_samples
def test_jobs_in_the_plain_shape_of_2021() -> None:
    running, waiting = reading.jobs(sample("rivos/squeue_out.json"))
    assert (running.id, running.state, running.nodes) == (26515966, "RUNNING", ("cs75",))
    assert (running.features, running.may_requeue) == ("a100-80gb&preemptible&gpu-1", True)
    assert running.time_limit_s == 21 * 86400
    assert (waiting.state, waiting.waits_for, waiting.task_count) == ("PENDING", "Dependency", 10)
    assert (waiting.begins_at, waiting.array) == (None, 58948420)


@needs_samples
def test_jobs_of_the_accounting_in_the_plain_shape_of_2021() -> None:
    (job,) = reading.jobs(sample("clockwork/sacct_1.json"))  # the other one is over
    assert (job.id, job.state, job.nodes, job.array) == (20, "REQUEUED", ("cdr2",), 2)
    assert (job.features, job.time_limit_s, job.reservation) == ("[p100|p100l|v100l]", 86400, "")


@needs_samples
def test_a_recorded_cluster_of_eight_nodes() -> None:
    nodes = reading.nodes(sample("slurmrestd/25.11_0.0.44/slurm-nodes.json"))
    assert nodes["cn1"].states == {"IDLE", "DRAIN"}
    assert nodes["cn1"].reason == "ECC memory error"
    assert nodes["cn1"].reason_user == "slurm"
    assert nodes["cn1"].reason_set_at == datetime(2025, 11, 16, 19, 36, 9, tzinfo=UTC)
    assert nodes["cn3"].states == {"ALLOCATED"}
    assert (nodes["gpu1"].gpus, nodes["gpu1"].gpus_used) == (4, 0)
    assert nodes["gpu3"].partitions == {"gpu"}
    assert nodes["gpu3"].reason_set_at is None


@needs_samples
@pytest.mark.parametrize(
    ("name", "gpus_per_node", "node_count", "nodes"),
    [
        ("24.05_0.0.41/slurm-job-gpus-multi-nodes.json", 4, 2, ("gpu1", "gpu2")),
        ("25.11_0.0.44/slurm-job-gpus-multi-nodes.json", 4, 2, ("gpu1", "gpu2")),
        ("25.11_0.0.44/slurm-job-gpus-multi-types.json", 1, 1, ("gpu1",)),
        ("25.11_0.0.44/slurm-job-gpus-per-socket.json", 4, 1, ("gpu1",)),
        ("25.11_0.0.44/slurm-job-gpus-per-task.json", 4, 1, ("gpu1",)),
        ("25.11_0.0.44/slurm-job-gpus-pending.json", 4, 1, ()),
    ],
)
def test_gpus_by_every_option_of_sbatch(name: str, gpus_per_node: int, node_count: int, nodes: tuple[str]) -> None:
    (job,) = reading.jobs(sample(f"slurmrestd/{name}"))
    assert (job.gpus_per_node, job.node_count, job.nodes) == (gpus_per_node, node_count, nodes)


@needs_samples
def test_a_reservation_of_512_nodes_and_one_that_is_not_ours() -> None:
    answer = sample("slurmrestd/24.05_0.0.41/slurm-reservations.json")
    training = reading.reservations(answer, "training")["training"]
    assert len(training.nodes) == 512
    assert {"cn001", "cn080", "cn101", "cn532"} <= training.nodes
    assert "IGNORE_JOBS" in training.flags
    assert reading.reservations(answer, "bridge-") == {}


@needs_samples
@pytest.mark.parametrize("name", ["clockwork/sinfo_1.json", "rivos/sinfo_out.json"])
def test_nodes_in_the_plain_shape_of_2021(name: str) -> None:
    nodes = reading.nodes(sample(name))
    assert nodes
    assert all(node.states == {state.upper() for state in node.states} for node in nodes.values())


@needs_samples
def test_flags_in_the_plain_shape_of_2021() -> None:
    node = reading.nodes(sample("clockwork/sinfo_1.json"))["test-node-1"]
    assert node.states == {"DOWN", "NOT_RESPONDING"}
    assert (node.gpus, node.gpus_used, node.slurmd_started_at) == (1, 0, None)


# --- spellings ---


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:h100", 1),
        ("gpu:h100:4(S:0-1)", 4),
        ("gpu:4(S:0,1)", 4),
        ("gpu:h100:0(IDX:N/A)", 0),
        ("gpu:h100:4(IDX:0,2-3),gpu:a100:2(IDX:1)", 6),
        ("gpu:v100:4(S:0-1),min-vram:no_consume:32G", 4),
        ("gpu:tesla_v100-pcie-32gb:2", 2),
        ("gpu:a100_1g.5gb:7", 7),
        ("gpu:0,tpu:8", 0),
        ("gres/gpu:2", 2),
        ("gres/gpu=2", 2),
        ("gres:gpu:2", 2),
        ("cpu=9,gres/gpu=8,gres/gpu:h100=8", 8),
        ("gres/gpu:h100=8,gres/gpu=8", 8),
        ("gres/gpu:h100=3", 3),
        ("(null)", 0),
        ("N/A", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_gpus_in_gres_and_tres(text: str | None, gpus: int) -> None:
    assert reading.gpus(text) == gpus


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        ({"set": True, "infinite": False, "number": 7}, 7),
        ({"set": True, "infinite": False, "number": 0}, 0),
        ({"set": False, "infinite": False, "number": 7}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
        ({"set": True}, None),
        (None, None),
        (True, None),
        ("7", None),
        (4294967294, None),
        (4294967295, None),
        (18446744073709551614, None),
        (-2, None),
    ],
)
def test_numbers_and_their_absence(value: object, number: float | None) -> None:
    assert reading.number(value) == number


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ((["IDLE", "DRAIN"],), {"IDLE", "DRAIN"}),
        (("MIXED+DRAIN",), {"MIXED", "DRAIN"}),
        (("DOWN*+RESERVED",), {"DOWN", "NOT_RESPONDING", "RESERVED"}),
        (("idle", ["DRAIN"]), {"IDLE", "DRAIN"}),
        ((["IDLE", "A_FLAG_OF_2031"],), {"IDLE", "A_FLAG_OF_2031"}),
        ((None, None), set()),
    ],
)
def test_state_flags(values: tuple[object, ...], flags: set[str]) -> None:
    assert reading.flags(*values) == flags


def node(**fields: Any) -> dict[str, Any]:
    return {"name": "gpu-1", "state": ["IDLE"], "gres": "gpu:8", **fields}


def job(**fields: Any) -> dict[str, Any]:
    return {"job_id": 7, "job_state": ["PENDING"], "user_name": "alice", "partition": "shared", "nodes": "", **fields}


def one_job(**fields: Any) -> Any:
    found = reading.jobs({"jobs": [job(**fields)]})
    return found[0] if found else None


def test_an_unknown_flag_is_kept_and_an_unknown_field_ignored() -> None:
    found = reading.nodes({"nodes": [node(state=["IDLE", "HAUNTED"], from_the_future={"x": [1]})]})
    assert found["gpu-1"].states == {"IDLE", "HAUNTED"}


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["PENDING"], "PENDING"),
        (["RUNNING"], "RUNNING"),
        (["RUNNING", "CONFIGURING"], "RUNNING"),
        (["CONFIGURING"], "RUNNING"),
        (["SUSPENDED"], "SUSPENDED"),
        (["COMPLETED", "COMPLETING"], "COMPLETING"),
        (["CANCELLED", "COMPLETING"], "COMPLETING"),
        (["PENDING", "COMPLETING"], "COMPLETING"),
        (["BEWITCHED"], "BEWITCHED"),
        ("RUNNING", "RUNNING"),
        (["COMPLETED"], None),
        (["CANCELLED"], None),
        (["NODE_FAIL"], None),
    ],
)
def test_a_job_is_over_only_when_nothing_of_it_completes(states: object, state: str | None) -> None:
    found = one_job(job_state=states)
    assert (found and found.state) == state


@pytest.mark.parametrize(
    ("text", "tasks"), [("0-99", 100), ("1,3,5-7", 5), ("0-20:4", 6), ("0-9,20", 11), ("1-3,...", 3), ("", 1)]
)
def test_a_pending_array_is_one_record_of_many_tasks(text: str, tasks: int) -> None:
    assert one_job(array_task_string=text).task_count == tasks


def test_a_throttled_array_wants_its_limit_less_what_runs() -> None:
    pending = job(job_id=3, array_job_id=3, array_max_tasks=4, array_task_string="3-99%4")
    running = [job(job_id=id, array_job_id=3, array_max_tasks=4, job_state=["RUNNING"], nodes="n1") for id in (4, 5, 6)]
    assert [found.task_count for found in reading.jobs({"jobs": [pending]})] == [4]
    assert [found.task_count for found in reading.jobs({"jobs": [pending, *running]})] == [1, 1, 1, 1]


def test_held_exclusive_requeue_and_het() -> None:
    found = one_job(hold=True, state_reason="JobHeldUser", shared=["none"], requeue=True, batch_flag=True, het_job_id=6)
    assert (found.held, found.exclusive, found.may_requeue, found.het_job) == (True, True, True, 6)
    found = one_job(shared=[], requeue=True, batch_flag=False, het_job_id={"set": True, "number": 0})
    assert (found.held, found.exclusive, found.may_requeue, found.het_job) == (False, False, False, None)


def test_an_estimated_start_of_a_pending_job_is_not_its_start() -> None:
    found = one_job(start_time=1_796_204_632, end_time=1_796_208_232, eligible_time=1_796_204_632)
    assert (found.started_at, found.ends_at) == (None, None)
    assert found.begins_at == datetime(2026, 12, 2, 9, 43, 52, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "gpus_per_node"),
    [
        ({"tres_per_node": "gres/gpu:8", "node_count": 4}, 8),
        ({"tres_per_job": "gres/gpu:17", "node_count": 4}, 5),
        ({"tres_per_task": "gres/gpu=2", "tasks": 6, "node_count": 2}, 6),
        ({"tres_per_task": "gres/gpu=1", "tasks": 8, "tasks_per_node": 4, "node_count": 2}, 4),
        ({"tres_per_socket": "gres/gpu:2", "sockets_per_node": 2}, 4),
        ({"tres_req_str": "cpu=4,gres/gpu=32", "node_count": 4}, 8),
        ({"tres_req_str": "cpu=4,mem=5G"}, 0),
    ],
)
def test_gpus_per_node(fields: dict[str, Any], gpus_per_node: int) -> None:
    assert one_job(**fields).gpus_per_node == gpus_per_node


def rows(*states: tuple[str, str]) -> bytes:
    return orjson.dumps({"jobs": [{"job_id": id, "state": [state]} for id, state in states], "errors": []})


QUEUE = [
    *(("1", "RUNNING"), ("4_0", "RUNNING"), ("3_1", "PENDING"), ("3_2", "PENDING"), ("10+0", "PENDING")),
    *(("11+1", "PENDING"), ("2", "CANCELLED"), ("3_*", "CANCELLED")),
]
SHOWN = {
    1: {"1 RUNNING"},
    3: {"3_1 PENDING", "3_2 PENDING"},
    4: {"4_0 RUNNING"},
    10: {"10+0 PENDING"},
    11: {"11+1 PENDING"},
}


def test_states_of_the_queue_by_the_id_that_can_be_asked_for() -> None:
    states = LiveStates()
    assert states.update(rows(*QUEUE)) == {1, 3, 4, 10, 11}
    assert states.live == SHOWN
    assert states.records == 7


@pytest.mark.parametrize(
    ("gone", "new", "changed"),
    [
        ([], [], set()),
        ([("1", "RUNNING")], [], {1}),
        ([("1", "RUNNING")], [("1", "COMPLETED")], {1}),
        ([], [("5", "PENDING")], {5}),
        ([("3_1", "PENDING")], [("5_1", "RUNNING")], {3, 5}),
        ([("3_2", "PENDING")], [("3_2", "CANCELLED")], {3}),
        ([("2", "CANCELLED")], [], set()),
        ([], [("6", "FAILED")], set()),
        ([("10+0", "PENDING"), ("11+1", "PENDING")], [("10+0", "RUNNING"), ("11+1", "RUNNING")], {10, 11}),
    ],
)
def test_a_later_answer_tells_what_changed(
    gone: list[tuple[str, str]], new: list[tuple[str, str]], changed: set[int]
) -> None:
    states, anew = LiveStates(), LiveStates()
    states.update(rows(*QUEUE))
    later = [row for row in QUEUE if row not in gone] + new
    assert states.update(rows(*later)) == changed
    anew.update(rows(*later))
    assert (states.live, states.records) == (anew.live, anew.records)


_ROW = st.tuples(st.sampled_from(["1", "2", "3_1", "3_2", "3_*"]), st.sampled_from(["PENDING", "RUNNING", "FAILED"]))


@UNTIMED
@given(st.lists(st.lists(_ROW, max_size=6, unique_by=lambda row: row[0]), max_size=5))
def test_after_any_answers_the_last_one_counts(answers: list[list[tuple[str, str]]]) -> None:
    states = LiveStates()
    for answer in answers:
        before = dict(states.live)
        changed = states.update(rows(*answer))
        anew = LiveStates()
        anew.update(rows(*answer))
        assert states.live == anew.live
        assert changed == {id for id in before.keys() | anew.live.keys() if before.get(id) != anew.live.get(id)}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not whole JSON"),
        (b'{"jobs": [{"job_id": "7", "sta', "not whole JSON"),
        (b'{"jobs": [{"job_id": "7", "state": []}]}', "7 in jobs makes no sense"),
        (b'{"jobs": [{"job_id": "x", "state": ["PENDING"]}]}', "makes no sense"),
        (b'{"jobs": [{"job_id": "7\xff", "state": ["PENDING"]}]}', "makes no sense"),
        (b'{"jobs": [3]}', "no list of jobs"),
        (b'{"jobs": null}', "no list of jobs"),
        (b'{"jobs": [], "errors": [{"error": "Protocol error", "error_number": 1005}]}', "Protocol error"),
        (b'{"jobs": [], "errors": "broken"}', "broken"),
    ],
)
def test_states_that_make_no_sense_change_nothing(body: bytes, why: str) -> None:
    states = LiveStates()
    states.update(rows(*QUEUE))
    with pytest.raises(Unreadable, match=why):
        states.update(body)
    assert states.live == SHOWN
    assert states.update(rows(*QUEUE)) == set()


@pytest.mark.parametrize(
    ("statistics", "uptime_s"),
    [
        ({"req_time": 1_000_060, "req_time_start": 1_000_000}, 60),
        ({"req_time": {"set": True, "number": 9}, "req_time_start": 10}, 0),
        ({"req_time": 1_000_060, "req_time_start": {"set": True, "infinite": False, "number": 0}}, 0),
        ({"req_time": None, "req_time_start": 1_000_000}, 0),
        ({"req_time": 1_000_060}, None),
    ],
)
def test_the_age_of_slurmctld_is_on_its_own_clock_and_young_in_doubt(
    statistics: dict[str, Any], uptime_s: float | None
) -> None:
    assert reading.uptime_s({"statistics": statistics}) == uptime_s


def test_a_diag_without_statistics_is_none() -> None:
    with pytest.raises(Unreadable, match="no statistics"):
        reading.uptime_s({"jobs": []})


@pytest.mark.parametrize(
    ("fields", "read", "value"),
    [
        ({"comment": "bridge: checkpoint=600"}, "comment", "bridge: checkpoint=600"),
        ({"qos": "urgent"}, "qos", "urgent"),
        ({"resv_name": "exam-week"}, "reservation", "exam-week"),
        ({"required_switches": 1}, "switches", 1),
        ({"required_switches": {"set": True, "infinite": False, "number": 2}}, "switches", 2),
        ({"required_switches": 4294967294}, "switches", 0),
        ({"array_job_id": {"set": True, "infinite": False, "number": 3}}, "array", 3),
        ({"array_job_id": 0}, "array", None),
        ({"restart_cnt": 2}, "restarts", 2),
        ({"features": "[a|b]"}, "features", "[a|b]"),
        ({"tres_per_node": "gres/gpu:h100:8"}, "gpu_type", "h100"),
        ({"tres_per_job": "gres/gpu:a100=4"}, "gpu_type", "a100"),
        ({"tres_per_node": "gres/gpu:8"}, "gpu_type", ""),
        ({"tres_per_node": "gres/gpu:h100:4,gres/gpu:a100:4"}, "gpu_type", ""),
    ],
)
def test_what_else_a_job_says(fields: dict[str, Any], read: str, value: object) -> None:
    assert getattr(one_job(**fields), read) == value


def test_the_switches_above_a_node() -> None:
    assert reading.nodes({"nodes": [node(topology="core:leaf1")]})["gpu-1"].topology == "core:leaf1"


@pytest.mark.parametrize(
    ("gres", "features"),
    [
        ("gpu:h100:8(S:0-1)", {"ib", "gpu:h100"}),
        ("gpu:h100:4,gpu:a100:4", {"ib", "gpu:h100", "gpu:a100"}),
        ("gpu:8", {"ib"}),
        (None, {"ib"}),
    ],
)
def test_a_node_tells_its_gpu_types_as_features(gres: str | None, features: set[str]) -> None:
    assert reading.nodes({"nodes": [node(gres=gres, features=["ib"])]})["gpu-1"].features == features


# --- the fast way ---


@needs_samples
@pytest.mark.parametrize("name", [name for name in recorded() if "/slurm-job" in name])
def test_recorded_jobs_are_read_the_fast_way_and_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reading.jobs(sample(name))

    def slow(*_: object) -> None:
        raise AssertionError("read the slow way")

    monkeypatch.setattr(reading, "jobs", slow)
    assert reading.decode_jobs((SAMPLES / name).read_bytes()) == expected


@pytest.mark.parametrize(
    "record",
    [
        job(),
        job(job_state="RUNNING", nodes="n[1-2]"),
        job(job_state=["RUNNING"], nodes="n[1-2]", start_time=1_796_204_632.5),
        job(job_id="7"),
        job(priority=4294967295, time_limit={"set": True, "infinite": True, "number": 0}),
        job(user_name=None, user_id=1000),
        job(shared="none"),
        job(shared=["none"]),
        job(requeue=1, batch_flag=True),
        job(array_job_id=7, array_max_tasks=2, array_task_string="0-9%2"),
        job(job_state=["COMPLETED"]),
        job(account=["x"], tres_per_node={"gpu": 8}),
    ],
)
def test_other_shapes_are_read_as_before(record: dict[str, Any]) -> None:
    body = orjson.dumps({"jobs": [record]})
    assert reading.decode_jobs(body) == reading.jobs(reading.answer(body, "Slurm jobs"))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not whole JSON"),
        (b'{"jobs": [{"job_id": 7, "job_st', "not whole JSON"),
        (b'{"jobs": []} and more', "not whole JSON"),
        (b'{"jobs": null}', "no list of jobs"),
        (b'{"items": []}', "no list of jobs"),
        (b'{"jobs": [], "errors": [{"error": "Protocol error", "error_number": 1005}]}', r"Protocol error \(1005\)"),
        (b'{"jobs": [{"job_id": 7, "job_state": []}]}', "7 in jobs makes no sense"),
        (b'{"jobs": [{"job_id": 7}]}', "7 in jobs makes no sense"),
        (b'{"jobs": [{"job_state": ["PENDING"]}]}', "a record in jobs makes no sense"),
    ],
)
def test_the_fast_way_refuses_what_the_slow_one_does_in_the_same_words(body: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        reading.decode_jobs(body)


# --- what is not an answer ---


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not whole JSON"),
        (b'{"nodes": [{"name": "gpu-1", "st', "not whole JSON"),
        (b"Authentication failure", "not whole JSON"),
        (b"[]", "not a JSON object"),
        (b'{"nodes": [], "errors": [{"description": "no", "error_number": 0, "error": "No error"}]}', "no"),
        (b'{"nodes": [], "errors": [{"error": "Protocol error", "error_number": 1005}]}', r"Protocol error \(1005\)"),
        (b'{"nodes": [], "errors": [{}]}', "unnamed error"),
        (b'{"nodes": [], "errors": "broken"}', "broken"),
    ],
)
def test_half_an_answer_is_none(body: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        reading.answer(body, "Slurm nodes")


@pytest.mark.parametrize(
    ("read", "answer", "why"),
    [
        (reading.nodes, {}, "no list of nodes"),
        (reading.nodes, {"nodes": None}, "no list of nodes"),
        (reading.nodes, {"nodes": [node(), 3]}, "no list of nodes"),
        (reading.nodes, {"nodes": [node(), node(state=[])]}, "gpu-1 in nodes makes no sense"),
        (reading.nodes, {"nodes": [{"state": ["IDLE"]}]}, "it has no name"),
        (reading.nodes, {"nodes": [node(name=["gpu-1"])]}, "name is .*, not a text"),
        (reading.nodes, {"nodes": [node(gres=["gpu:8"])]}, "gpu-1 in nodes makes no sense: .*gres is .*, not a text"),
        (reading.nodes, {"nodes": [node(reason={"text": "x"})]}, "gpu-1 in nodes .*reason is .*, not a text"),
        (reading.nodes, {"nodes": [node(reason_changed_at=10**30)]}, "makes no sense"),
        (reading.jobs, {"nodes": []}, "no list of jobs"),
        (reading.jobs, {"jobs": [job(job_state=None)]}, "7 in jobs makes no sense"),
        (reading.jobs, {"jobs": [job(job_id="x")]}, "job_id is 'x', not a number"),
        (reading.jobs, {"jobs": [job(job_id=True)]}, "job_id is True, not a number"),
        (reading.jobs, {"jobs": [job(job_state=["RUNNING"], nodes=["n1"])]}, "7 in jobs .*nodes is .*, not a text"),
        (reading.jobs, {"jobs": [job(job_state=["RUNNING"], nodes=None)]}, "it is RUNNING, and yet has no nodes"),
        (reading.jobs, {"jobs": [job(job_state=["BEWITCHED"], nodes=None)]}, "it is BEWITCHED, and yet has no nodes"),
        (reading.jobs, {"jobs": [job(submit_time=2**63)]}, "7 in jobs .*9223372036854775808 is no time"),
        (reading.jobs, {"jobs": [job(job_state=["RUNNING"], nodes="n[1-99999999]")]}, "99999999 nodes"),
        (reading.jobs, {"jobs": [job(job_state=["RUNNING"], nodes="@x'; id; '")]}, "makes no sense"),
        (reading.states, {"jobs": [{"job_id": "7", "state": []}]}, "makes no sense"),
    ],
)
def test_a_record_without_sense_makes_the_whole_answer_unreadable(read: Any, answer: Any, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read(answer)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@UNTIMED
@given(
    st.dictionaries(
        st.sampled_from(
            sorted(
                {
                    *node(),
                    *job(),
                    "reason_changed_at",
                    "nodes",
                    "tres_per_node",
                    "node_count",
                    "tasks",
                    "array_task_string",
                    "het_job_id",
                    "partitions",
                    "time",
                    "array",
                    "shared",
                    "eligible_time",
                }
            )
        ),
        _JSON,
    )
)
def test_a_record_of_any_shape_is_read_or_unreadable(record: dict[str, Any]) -> None:
    for read, kind in ((reading.nodes, "nodes"), (reading.jobs, "jobs"), (reading.states, "jobs")):
        try:
            read(orjson.loads(orjson.dumps({kind: [record]}, option=orjson.OPT_PASSTHROUGH_SUBCLASS)))  # type: ignore
        except Unreadable:
            continue
        except (orjson.JSONEncodeError, TypeError):
            return


_NUMBERS_OF_64_BITS = st.integers(-(2**63), 2**64 - 1)
_VALUES = (
    st.none() | st.booleans() | _NUMBERS_OF_64_BITS | st.text(max_size=8) | st.lists(st.text(max_size=8), max_size=2)
)
_TRIPLES = st.fixed_dictionaries({"set": st.booleans(), "infinite": st.booleans(), "number": _VALUES})


@UNTIMED
@example({"job_id": -1})
@given(st.dictionaries(st.sampled_from([*job(), *reading._Raw.__struct_fields__]), _VALUES | _TRIPLES))
def test_both_ways_of_reading_a_job_agree(fields: dict[str, Any]) -> None:
    body = json.dumps({"jobs": [{**job(), **fields}]}).encode()
    outcomes = []
    for read in (reading.decode_jobs, lambda body: reading.jobs(reading.answer(body, "Slurm jobs"))):
        try:
            outcomes.append(read(body))
        except Unreadable as why:
            outcomes.append(str(why))
    assert outcomes[0] == outcomes[1]


@UNTIMED
@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_unreadable(body: bytes) -> None:
    try:
        reading.answer(body, "anything")
    except Unreadable:
        return
    assert orjson.loads(body) is not None
