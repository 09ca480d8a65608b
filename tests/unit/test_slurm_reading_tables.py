"""Each fact about nodes and jobs that the bridge takes from Slurm, in the spellings of its data versions, by hand."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.lifecycle.facts import jobs_by_node, slurm_facts
from bridge.model.errors import Unreadable
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Node
from bridge.model.slurm import SlurmJob, SlurmObservation
from bridge.slurm import reading

NOW = datetime(2026, 12, 2, 9, 0, tzinfo=UTC)
NOW_S = 1_796_202_000
MINE = Node("gpu-1", "gpu-1", "gpu-1.testbed", "h100", 8)


def node(**fields: Any) -> dict[str, Any]:
    return {"name": "gpu-1", "state": ["IDLE"], "gres": "gpu:8", **fields}


def job(**fields: Any) -> dict[str, Any]:
    return {"job_id": 7, "job_state": ["PENDING"], "user_name": "alice", "partition": "shared", "nodes": "", **fields}


def running(**fields: Any) -> dict[str, Any]:
    return job(**{"job_state": ["RUNNING"], "nodes": "gpu-[1-2]", "node_count": 2, **fields})


def one(record: dict[str, Any]) -> SlurmJob:
    """Read both ways, which must agree."""
    (fast,) = reading.decode_jobs(json.dumps({"jobs": [record]}).encode())
    assert reading.jobs({"jobs": [record]}) == (fast,)
    return fast


def triple(number: float) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}


UNSET = {"set": False, "infinite": False, "number": 0}
INFINITE = {"set": True, "infinite": True, "number": 0}


# --- nodes ---

FREE, BUSY, NEITHER = (True, True), (False, True), (False, False)
CLOSED = (True, False)


@pytest.mark.parametrize(
    ("spelled", "idle_and_ready"),
    [
        ("IDLE", FREE),
        ("IDLE+RESERVED", FREE),
        ("IDLE+DRAIN", CLOSED),
        ("IDLE+DRAIN+MAINTENANCE+RESERVED", CLOSED),
        ("IDLE+DRAIN+RESERVED", CLOSED),
        ("IDLE+MAINTENANCE", CLOSED),
        ("ALLOCATED", BUSY),
        ("MIXED", BUSY),
        ("MIXED+RESERVED", BUSY),
        ("MIXED+RESERVED+PLANNED", BUSY),
        ("MIXED+CLOUD", BUSY),
        ("IDLE+PLANNED", BUSY),
        ("IDLE+COMPLETING", BUSY),
        ("IDLE+CLOUD+COMPLETING", BUSY),
        ("ALLOCATED+COMPLETING", BUSY),
        ("IDLE+DYNAMIC_NORM", BUSY),
        ("ALLOCATED+DRAIN", NEITHER),
        ("MIXED+DRAIN", NEITHER),
        ("IDLE+DRAIN+COMPLETING", NEITHER),
        ("IDLE+DRAIN+NOT_RESPONDING", NEITHER),
        ("MIXED+DRAIN+MAINTENANCE+RESERVED", NEITHER),
        ("MIXED+DRAIN+REBOOT_REQUESTED", NEITHER),
        ("ALLOCATED+DRAIN+REBOOT_REQUESTED", NEITHER),
        ("ALLOCATED+MAINTENANCE+RESERVED", NEITHER),
        ("DOWN", NEITHER),
        ("DOWN*", NEITHER),
        ("DOWN*+RESERVED", NEITHER),
        ("DOWN+DRAIN+RESERVED", NEITHER),
        ("DOWN+NOT_RESPONDING", NEITHER),
        ("IDLE*", NEITHER),
        ("IDLE+NOT_RESPONDING", NEITHER),
        ("IDLE+DRAIN+FAIL", NEITHER),
        ("IDLE+POWER_DOWN", NEITHER),
        ("IDLE+POWER_UP", NEITHER),
        ("IDLE+POWER_DRAIN", NEITHER),
        ("IDLE+CLOUD+POWER", NEITHER),
        ("IDLE+CLOUD+POWERED_DOWN", NEITHER),
        ("IDLE+CLOUD+POWERING_DOWN", NEITHER),
        ("IDLE+CLOUD+DYNAMIC_NORM+NOT_RESPONDING+POWERING_UP", NEITHER),
        ("IDLE+DYNAMIC_NORM+POWERED_DOWN", NEITHER),
        ("IDLE+REBOOT_REQUESTED", NEITHER),
        ("IDLE+REBOOT_CANCELED", NEITHER),
        ("DOWN+CLOUD+REBOOT_ISSUED", NEITHER),
        ("IDLE+INVALID_REG", NEITHER),
        ("IDLE+BLOCKED", NEITHER),
        ("IDLE+DRAIN+UNDRAIN", NEITHER),
        ("FUTURE", NEITHER),
        ("FUTURE+DYNAMIC_FUTURE", NEITHER),
        ("UNKNOWN", NEITHER),
        ("ERROR", NEITHER),
        ("INVALID", NEITHER),
        ("IDLE+A_FLAG_OF_2031", NEITHER),
        ("A_STATE_OF_2031", NEITHER),
    ],
)
def test_what_the_bridge_makes_of_each_state(spelled: str, idle_and_ready: tuple[bool, bool]) -> None:
    """In Slurm's three spellings: a list, a text, and a word with a list of flags beside it."""
    base, *flags = spelled.split("+")
    for record in (
        node(state=spelled.split("+")),
        node(state=spelled),
        node(state=base.lower(), state_flags=flags),
    ):
        found = reading.nodes({"nodes": [record]})
        facts = slurm_facts(NodeRecord(MINE), None, None, SlurmObservation(NOW, found), (), settle_s=5)
        assert (facts.idle, facts.ready) == idle_and_ready
        assert facts.known


@pytest.mark.parametrize(
    ("fields", "read", "value"),
    [
        ({"gres": "gpu:h100:8(S:0-1)"}, "gpus", 8),
        ({"gres": "gpu:h100:4(S:0),gpu:h100:4(S:1)"}, "gpus", 8),
        ({"gres": "gpu:h100:7,gpu:h100_1g.10gb:7,shard:28"}, "gpus", 14),
        ({"gres": "gpu:nvidia_h100_80gb_hbm3:8(S:0-1),nic:4"}, "gpus", 8),
        ({"gres": "license:9,fpga:2"}, "gpus", 0),
        ({"gres": "(null)"}, "gpus", 0),
        ({"gres": ""}, "gpus", 0),
        ({"gres": None}, "gpus", 0),
        ({"gres_used": "gpu:h100:4(IDX:0-3)"}, "gpus_used", 4),
        ({"gres_used": "gpu:h100:0(IDX:N/A)"}, "gpus_used", 0),
        ({"tres_used": "cpu=13,mem=194G,gres/gpu=4"}, "gpus_used", 4),
        ({"tres_used": "cpu=9,gres/gpu=2,gres/gpu:v100=2", "gres_used": "gpu:v100:0"}, "gpus_used", 2),
        ({"active_features": ["h100", "ib"], "features": ["h100", "ib", "off"]}, "features", {"h100", "ib"}),
        ({"active_features": "GPU_SKU:H200,h200"}, "features", {"GPU_SKU:H200", "h200"}),
        ({"active_features": [], "features": ["h100"]}, "features", {"h100"}),
        ({"gres": "gpu:h100:8", "active_features": ["ib"]}, "features", {"ib", "gpu:h100"}),
        ({"partitions": ["shared", "debug"]}, "partitions", {"shared", "debug"}),
        ({"partitions": "shared,debug"}, "partitions", {"shared", "debug"}),
        ({"topology": "core:leaf1"}, "topology", "core:leaf1"),
        ({"topology": ""}, "topology", ""),
        ({"reason": "ECC memory error"}, "reason", "ECC memory error"),
        ({"reason": None}, "reason", ""),
        ({"reason_set_by_user": "root"}, "reason_user", "root"),
        ({"reason_changed_at": triple(NOW_S)}, "reason_set_at", NOW),
        ({"reason_changed_at": NOW_S}, "reason_set_at", NOW),
        ({"reason_changed_at": triple(0)}, "reason_set_at", None),
        ({"reason_changed_at": UNSET}, "reason_set_at", None),
        ({"slurmd_start_time": triple(NOW_S)}, "slurmd_started_at", NOW),
        ({"comment": "rack 7, see ticket", "extra": '{"a": 1}', "resume_after": UNSET}, "states", {"IDLE"}),
    ],
)
def test_what_a_node_says(fields: dict[str, Any], read: str, value: object) -> None:
    assert getattr(reading.nodes({"nodes": [node(**fields)]})["gpu-1"], read) == value


# --- jobs ---


@pytest.mark.parametrize(
    ("asked", "record", "nodes", "gpus_per_node", "gpu_type"),
    [
        ("-N4 --gpus-per-node=8", job(node_count=triple(4), tres_per_node="gres/gpu:8"), 4, 8, ""),
        ("-N2-4 --gres=gpu:h100:8", job(node_count=2, max_nodes=4, tres_per_node="gres/gpu:h100:8"), 2, 8, "h100"),
        ("-N2 --gpus=16", job(node_count=2, tres_per_job="gres/gpu:16"), 2, 8, ""),
        ("-N3 --gpus=a100:16", job(node_count=3, tres_per_job="gres/gpu:a100:16"), 3, 6, "a100"),
        ("-n16 -N2 --gpus-per-task=1", job(node_count=2, tasks=16, tres_per_task="gres/gpu=1"), 2, 8, ""),
        (
            "-N2 --ntasks-per-node=4 --gpus-per-task=2",
            job(node_count=2, tasks=8, tasks_per_node=triple(4), tres_per_task="cpu=12,gres/gpu=2"),
            2,
            8,
            "",
        ),
        (
            "--gpus-per-socket=4 --sockets-per-node=2",
            job(node_count=1, tres_per_socket="gres/gpu:4", sockets_per_node=triple(2)),
            1,
            8,
            "",
        ),
        ("-N2 --exclusive", job(node_count=2, shared=["none"], tres_req_str="cpu=384,node=2"), 2, 0, ""),
        (
            "--gpus=h100:2,a100:2 -N1",
            job(node_count=1, tres_per_job="gres/gpu:h100:2,gres/gpu:a100:2", tres_req_str="gres/gpu=4"),
            1,
            4,
            "",
        ),
        ("-c 8", job(node_count=1, tres_req_str="cpu=8,mem=8G,node=1,billing=8"), 1, 0, ""),
        ("-N0", job(node_count=triple(0)), 1, 0, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_gang_asks(asked: str, record: dict[str, Any], nodes: int, gpus_per_node: int, gpu_type: str) -> None:
    found = one(record)
    assert (found.node_count, found.gpus_per_node, found.gpu_type) == (nodes, gpus_per_node, gpu_type)


@pytest.mark.parametrize(
    ("record", "read", "value"),
    [
        # exclusive
        (job(shared=["none"]), "exclusive", True),
        (job(shared=[], exclusive=["true"]), "exclusive", True),
        (job(shared=["user"], exclusive=["user"]), "exclusive", False),
        (job(shared=["mcs"]), "exclusive", False),
        (job(shared=["oversubscribe"]), "exclusive", False),
        (job(shared=[]), "exclusive", False),
        # features
        (job(features="h100&ib"), "features", "h100&ib"),
        (job(features="h100|h200"), "features", "h100|h200"),
        (job(features="[rack1*4&rack2*4]"), "features", "[rack1*4&rack2*4]"),
        (job(features="(h100|h200)&ib"), "features", "(h100|h200)&ib"),
        # held: by the user, an admin, Slurm itself
        (job(hold=True), "held", True),
        (job(state_reason="JobHeldUser"), "held", True),
        (job(state_reason="JobHeldAdmin", priority=triple(0)), "held", True),
        (job(state_reason="JobHoldMaxRequeue", priority=triple(0)), "held", True),
        (job(state_reason="launch_failed_requeued_held", priority=0), "held", True),
        (job(priority=triple(1)), "held", False),
        (job(priority=UNSET), "held", False),
        (job(priority=4294967294), "held", False),
        (running(priority=triple(0)), "held", False),
        # what it waits for
        (job(state_reason="Dependency", dependency="afterok:5_*(unfulfilled)"), "waits_for", "Dependency"),
        (job(state_reason="DependencyNeverSatisfied"), "waits_for", "DependencyNeverSatisfied"),
        (job(state_reason="QOSMaxGRESPerUser"), "waits_for", "QOSMaxGRESPerUser"),
        (job(state_reason="AssocGrpGRES"), "waits_for", "AssocGrpGRES"),
        (job(state_reason="A_REASON_OF_2031"), "waits_for", "A_REASON_OF_2031"),
        (job(eligible_time=triple(NOW_S + 3600)), "begins_at", NOW + timedelta(hours=1)),
        (job(eligible_time=triple(0)), "begins_at", None),
        (job(resv_name="exam-week"), "reservation", "exam-week"),
        (job(qos="urgent"), "qos", "urgent"),
        # what may be done to it
        (running(requeue=True, batch_flag=True), "may_requeue", True),
        (running(requeue=True, batch_flag=False), "may_requeue", False),
        (running(requeue=False, batch_flag=True), "may_requeue", False),
        (running(), "may_requeue", False),
        (job(restart_cnt=3), "restarts", 3),
        # arrays and het jobs
        (job(array_job_id=triple(7), array_task_string="0-99"), "task_count", 100),
        (job(array_job_id=triple(7), array_task_string="0-99%4", array_max_tasks=triple(4)), "task_count", 4),
        (job(array_job_id=triple(7), array_task_string="0-99:10,200", array_max_tasks=triple(0)), "task_count", 11),
        (job(array_job_id=triple(7)), "array", 7),
        (job(array_job_id=triple(0)), "array", None),
        (job(het_job_id=triple(6)), "het_job", 6),
        (job(het_job_id=UNSET), "het_job", None),
        # time left
        (running(time_limit=triple(90)), "time_limit_s", 5400),
        (running(time_limit=INFINITE), "time_limit_s", None),
        (running(time_limit=UNSET), "time_limit_s", None),
        (running(start_time=triple(NOW_S)), "started_at", NOW),
        (running(end_time=triple(NOW_S + 60)), "ends_at", NOW + timedelta(minutes=1)),
        (job(start_time=triple(NOW_S), end_time=triple(NOW_S + 60)), "started_at", None),
        (running(nodes="gpu-[1-2],cpu-1"), "nodes", ("gpu-1", "gpu-2", "cpu-1")),
        (running(nodes="gpu-[08-11]"), "nodes", ("gpu-08", "gpu-09", "gpu-10", "gpu-11")),
        (running(nodes="(null)"), "nodes", ()),
    ],
)
def test_what_a_job_says(record: dict[str, Any], read: str, value: object) -> None:
    found = getattr(one(record), read)
    assert (tuple(sorted(found)) if read == "nodes" else found) == (
        tuple(sorted(value)) if read == "nodes" and isinstance(value, tuple) else value
    )


@pytest.mark.parametrize("after", [1, 60 * 60 * 24 * 365 * 9000])
def test_a_time_limit_of_8166_years_has_no_end_and_blinds_nobody(after: int) -> None:
    """``--time`` takes any number of minutes below 2^32; its end is after every calendar's."""
    longest_min = 2**32 - 3
    found = one(running(time_limit=triple(longest_min), end_time=triple(NOW_S + longest_min * 60 + after)))
    assert (found.time_limit_s, found.ends_at) == (longest_min * 60, None)


@pytest.mark.parametrize("field", ["name", "comment", "admin_comment", "account", "features"])
def test_bytes_that_are_no_text_blind_nobody(field: str) -> None:
    """slurmrestd passes on what a user typed in another encoding."""
    body = json.dumps({"jobs": [job(**{field: "caf@"}), job(job_id=8)]}).encode().replace(b"@", b"\xe9")
    found = reading.decode_jobs(body)
    assert [job.id for job in found] == [7, 8]
    assert getattr(found[0], field) == "caf\ufffd"


# --- one fact, all data versions ---

VERSIONS = {
    "0.0.37, 0.0.38": {"state": "text", "number": "plain"},
    "0.0.39": {"state": "text", "number": "triple"},
    "0.0.40": {"state": "list", "number": "triple"},
    "0.0.41": {"state": "list", "number": "triple", "shared": "list"},
    "0.0.42": {"state": "list", "number": "triple", "shared": "list"},
    "0.0.43": {"state": "list", "number": "triple", "shared": "list"},
    "0.0.44": {"state": "list", "number": "triple", "shared": "list"},
    "0.0.45": {"state": "list", "number": "triple", "shared": "list"},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_is_the_same_in_every_data_version(version: str) -> None:
    shape = VERSIONS[version]

    def number(value: int) -> object:
        return triple(value) if shape["number"] == "triple" else value

    states = ["RUNNING"] if shape["state"] == "list" else "RUNNING"
    found = one(
        job(
            job_state=states,
            nodes="gpu-[1-2]",
            node_count=number(2),
            tres_per_node="gres/gpu:8",
            start_time=number(NOW_S),
            end_time=number(NOW_S + 7200),
            time_limit=number(120),
            priority=number(1013),
            array_job_id=number(0),
            het_job_id=number(0),
            shared=["none"] if "shared" in shape else "none",
            requeue=True,
            batch_flag=True,
        )
    )
    assert found == SlurmJob(
        id=7,
        state="RUNNING",
        user="alice",
        account="",
        partition="shared",
        priority=1013,
        node_count=2,
        gpus_per_node=8,
        nodes=("gpu-1", "gpu-2"),
        started_at=NOW,
        ends_at=NOW + timedelta(hours=2),
        time_limit_s=7200,
        exclusive=True,
        may_requeue=True,
    )


@pytest.mark.parametrize(
    ("fields", "read", "value"),
    [
        ({"flags": ["MAINT", "IGNORE_JOBS", "SPEC_NODES"]}, "flags", {"MAINT", "IGNORE_JOBS", "SPEC_NODES"}),
        ({"flags": ["maint", "A_FLAG_OF_2031"]}, "flags", {"MAINT", "A_FLAG_OF_2031"}),
        ({"users": "bridge"}, "users", {"bridge"}),
        ({"users": "bridge,root"}, "users", {"bridge", "root"}),
        ({"users": ["bridge"]}, "users", {"bridge"}),
        ({"node_list": "gpu-[1-2]"}, "nodes", {"gpu-1", "gpu-2"}),
        ({"node_list": ""}, "nodes", frozenset()),
        ({"node_list": None}, "nodes", frozenset()),
        ({"end_time": triple(NOW_S)}, "ends_at", NOW),
        ({"end_time": NOW_S}, "ends_at", NOW),
        ({"end_time": INFINITE}, "ends_at", None),
    ],
)
def test_what_a_reservation_says(fields: dict[str, Any], read: str, value: object) -> None:
    found = reading.reservations({"reservations": [{"name": "bridge-h100", **fields}]}, "bridge-")
    assert getattr(found["bridge-h100"], read) == value


def test_what_others_write_into_their_reservations_is_not_even_read() -> None:
    theirs = {"name": "exam-week", "node_list": ["no", "text"], "end_time": "soon"}
    assert reading.reservations({"reservations": [theirs]}, "bridge-") == {}


# --- laws ---

UNTIMED = settings(deadline=None)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FULL_NODE = node(
    gres_used="gpu:2(IDX:0-1)", tres_used="gres/gpu=2", reason="x", reason_set_by_user="root", topology="a:b",
    reason_changed_at=triple(NOW_S), partitions=["shared"], active_features=["ib"], features=["ib"], state_flags=[],
    slurmd_start_time=triple(NOW_S),
)  # fmt: skip
FULL_JOB = {
    **dict.fromkeys(reading._Raw.__struct_fields__),
    **running(requeue=True, batch_flag=True, priority=triple(5), account="a", tres_per_node="gres/gpu:8"),
}
KNOWN = {*FULL_NODE, *FULL_JOB, "time", "array", "het", "comment", "reservation", "user", "constraints"}
STRANGE_FIELDS = st.dictionaries(st.text(min_size=1, max_size=12).filter(lambda name: name not in KNOWN), JSON)
FLAGS = st.lists(st.text(st.characters(categories=("Lu",), codec="ascii"), min_size=3, max_size=12), max_size=3)


@UNTIMED
@given(STRANGE_FIELDS)
def test_unknown_fields_change_nothing(strange: dict[str, Any]) -> None:
    assert reading.nodes({"nodes": [{**FULL_NODE, **strange}]}) == reading.nodes({"nodes": [FULL_NODE]})
    assert one({**FULL_JOB, **strange}) == one(FULL_JOB)


@UNTIMED
@given(FLAGS)
def test_unknown_flags_are_kept_and_never_make_a_node_free(flags: list[str]) -> None:
    found = reading.nodes({"nodes": [node(state=["IDLE", *flags])]})
    assert found["gpu-1"].states == {"IDLE", *flags}
    facts = slurm_facts(NodeRecord(MINE), None, None, SlurmObservation(NOW, found), (), settle_s=5)
    assert not facts.idle or set(flags) <= {"IDLE", "DRAIN", "MAINTENANCE", "RESERVED"}


@UNTIMED
@given(FLAGS, st.sampled_from(["X_OF_2031", "RUNNING", "SUSPENDED", "COMPLETING"]))
@example(["COMPLETED"], "X_OF_2031")
@example(["TIMEOUT", "REQUEUED"], "COMPLETING")
def test_whatever_else_is_said_an_unknown_or_busy_state_of_a_job_holds_its_nodes(flags: list[str], state: str) -> None:
    found = one({**FULL_JOB, "job_state": [state, *flags]})
    seen = SlurmObservation(NOW, reading.nodes({"nodes": [node()]}), (found,))
    held = slurm_facts(NodeRecord(MINE), None, None, seen, jobs_by_node(seen).get("gpu-1", []), settle_s=5)
    assert not held.idle or (state, "PENDING") == ("X_OF_2031", found.state)


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PREEMPTED", "DEADLINE", "REVOKED"])
@pytest.mark.parametrize("beside", [[], ["REQUEUED"], ["SPECIAL_EXIT"], ["LAUNCH_FAILED"], ["UPDATE_DB"]])
def test_a_job_that_is_over_is_not_shown(state: str, beside: list[str]) -> None:
    assert reading.jobs({"jobs": [{**FULL_JOB, "job_state": [state, *beside]}]}) == ()


@pytest.mark.parametrize(
    ("kind", "read", "full", "needed"),
    [
        ("nodes", reading.nodes, FULL_NODE, {"name", "state"}),
        ("jobs", reading.jobs, FULL_JOB, {"job_id", "job_state", "nodes"}),
        ("reservations", lambda answer: reading.reservations(answer, ""), {"name": "bridge-h100"}, {"name"}),
    ],
)
def test_of_all_fields_only_those_that_prove_something_may_not_be_missing(
    kind: str, read: Any, full: dict[str, Any], needed: set[str]
) -> None:
    """Each one and each two of them are left out."""
    for missing in itertools.chain(itertools.combinations(full, 1), itertools.combinations(full, 2)):
        record = {name: value for name, value in full.items() if name not in missing}
        if needed.isdisjoint(missing):
            assert len(read({kind: [record]})) == 1
            continue
        with pytest.raises(Unreadable, match=f"in {kind} makes no sense"):
            read({kind: [record]})


def refused(read: Any, kind: str, record: dict[str, Any]) -> str:
    """Why the record is refused, empty when it is read."""
    try:
        read({kind: [record]})
    except Unreadable as why:
        return str(why)
    return ""


@UNTIMED
@given(st.sampled_from(sorted(FULL_NODE)), JSON)
def test_a_node_with_a_field_of_any_type_is_read_or_named(field: str, value: object) -> None:
    why = refused(reading.nodes, "nodes", {**FULL_NODE, field: value})
    assert not why or "in nodes makes no sense" in why
    assert not why or field == "name" or "gpu-1" in why


@UNTIMED
@given(st.sampled_from(sorted(FULL_JOB)), JSON)
def test_a_job_with_a_field_of_any_type_is_read_or_named_and_keeps_its_nodes(field: str, value: object) -> None:
    why = refused(reading.jobs, "jobs", {**FULL_JOB, field: value})
    assert not why or "in jobs makes no sense" in why
    assert not why or field == "job_id" or "7 in jobs" in why
    if not why and field not in ("job_state", "nodes"):
        assert one({**FULL_JOB, field: value}).nodes == ("gpu-1", "gpu-2")
