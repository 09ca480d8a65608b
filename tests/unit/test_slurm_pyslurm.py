"""The pyslurm driver: what it makes of pyslurm's records and refusals, and what becomes of one that does not answer.

The contract of the port is in `test_pyslurm_contract`. Where the real module can be imported, the API that is used is
looked up in it.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.model.errors import CallFailed, Invalid, Unreadable
from bridge.model.ownership import Mark
from bridge.settings import SlurmDriver, SlurmSettings
from bridge.slurm import pyslurm_calls
from bridge.slurm.pyslurm import PyslurmDriver
from bridge.slurm.pyslurm_process import PyslurmProcess, Silent
from bridge.slurm.rest import SlurmRestDriver
from bridge.wiring import SystemClock, make_slurm
from tests.unit import pyslurm_standin
from tests.unit.pyslurm_standin import InProcess, Record, ReservationFlags, RPCError

NOW = datetime(2026, 12, 2, 9, 0, tzinfo=UTC)
NOW_S = 1_796_202_000
MARK = Mark("k3f9q2m8x1", 4, 17)

# --- the API that is used ---


def looked_up(module: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        module = getattr(module, name)
    return module


@pytest.fixture
def real() -> Any:
    return pytest.importorskip(
        "pyslurm", reason="pyslurm is not installed here: it needs Slurm 25.11 (extra [pyslurm])"
    )


def missing(module: Any) -> list[str]:
    return [f"{of}.{name}" for of, names in pyslurm_calls.API.items() for name in names
            if not hasattr(looked_up(module, of), name)]  # fmt: skip


def test_the_stand_in_has_the_api_that_is_used_and_its_signatures() -> None:
    module = pyslurm_standin.make(SimpleNamespace())
    assert missing(module) == []
    assert {
        path: re.sub(r"\b0x\w+", "", str(inspect.signature(looked_up(module, path))))
        for path in pyslurm_standin.SIGNATURES
    } == pyslurm_standin.SIGNATURES
    asked = {f"{of}.{name}" for of, names in pyslurm_calls.API.items() if of for name in names}
    assert {path for path in pyslurm_standin.SIGNATURES if "__init__" not in path} == {
        path for path in asked if not path.startswith(("ReservationFlags.", "slurmctld.Statistics"))
    } - {"slurmctld.Statistics"} | {"slurmctld.Statistics.load"}


def test_the_real_module_has_the_api_that_is_used(real: Any) -> None:
    assert missing(real) == []
    for of, names in (
        ("Node", pyslurm_calls.NODE),
        ("Job", pyslurm_calls.JOB),
        ("Reservation", pyslurm_calls.RESERVATION),
        ("slurmctld.Statistics", pyslurm_calls.STATISTICS),
    ):
        assert [name for name in names if not hasattr(looked_up(real, of), name)] == []


# --- its records ---


def node(name: str = "gpu-1", **fields: Any) -> Record:
    fields = {"state": "IDLE", "configured_gres": {"gpu": 8}, **fields}
    return Record(pyslurm_calls.NODE, name=name, **fields)


def job(id: int = 7, **fields: Any) -> Record:
    fields = {"state": "PENDING", "user_name": "alice", "partition": "shared", "num_nodes": 1, **fields}
    return Record(pyslurm_calls.JOB, id=id, **fields)


def running(id: int = 7, **fields: Any) -> Record:
    fields = {"allocated_nodes": "gpu-[1-2]", "is_requeueable": True, "is_batch_job": True, **fields}
    return job(id, state="RUNNING", **fields)


def reservation(name: str, nodes: str, **fields: Any) -> Record:
    flags = ReservationFlags.MAINTENANCE | ReservationFlags.IGNORE_RUNNING_JOBS | ReservationFlags.SPECIFIC_NODES
    fields = {"flags": flags, "users": ["bridge"], "end_time": NOW_S + 365 * 86400, **fields}
    return Record(pyslurm_calls.RESERVATION, name=name, nodes=nodes, **fields)


class Unparsable:
    """A record of which one attribute cannot be had."""

    def __init__(self, record: Record, name: str, error: Exception) -> None:
        self._record, self._name, self._error = record, name, error

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise self._error
        return getattr(self._record, name)


@dataclass
class Module:
    """pyslurm with these records; `fails` are raised in the place of an answer, by call."""

    nodes: list[Any] = field(default_factory=lambda: [node("gpu-1"), node("gpu-2"), node("gpu-3")])
    jobs: list[Any] = field(default_factory=list)
    reservations: list[Any] = field(default_factory=list)
    statistics: Any = field(
        default_factory=lambda: Record(pyslurm_calls.STATISTICS, request_time=NOW_S, data_since=NOW_S - 3600)
    )
    fails: dict[str, Exception] = field(default_factory=dict)
    told: list[tuple[object, ...]] = field(default_factory=list)
    ReservationFlags = ReservationFlags
    RPCError = RPCError

    def _done(self, call: str, value: object = None) -> Any:
        if call in self.fails:
            raise self.fails[call]
        return SimpleNamespace(values=lambda: iter(value)) if isinstance(value, list) else value

    @property
    def Nodes(self) -> Any:
        def nodes(names: list[str]) -> Any:
            def modify(change: Any) -> None:
                self.told.append(("modify", names, vars(change)))
                self._done("Nodes.modify")

            return SimpleNamespace(modify=modify)

        nodes.load = lambda: self._done("Nodes.load", self.nodes)  # type: ignore[attr-defined]
        return nodes

    @property
    def Node(self) -> Any:
        return SimpleNamespace

    @property
    def Jobs(self) -> Any:
        return SimpleNamespace(load=lambda: self._done("Jobs.load", self.jobs))

    @property
    def Reservations(self) -> Any:
        return SimpleNamespace(load=lambda: self._done("Reservations.load", self.reservations))

    @property
    def slurmctld(self) -> Any:
        return SimpleNamespace(Statistics=SimpleNamespace(load=lambda: self._done("Statistics.load", self.statistics)))

    def Job(self, id: int) -> Any:
        def send_signal(signal: str, steps: str) -> None:
            self.told.append(("signal", id, signal, steps))
            self._done("Job.send_signal")

        def requeue() -> None:
            self.told.append(("requeue", id))
            self._done("Job.requeue")

        return SimpleNamespace(send_signal=send_signal, requeue=requeue)


@dataclass
class Scontrol:
    """Remembers what it was asked, prints `out`, and fails for the words in `fails`."""

    out: str = ""
    fails: tuple[str, ...] = ()
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, *arguments: str, says: str = "") -> str:
        self.calls.append(arguments)
        if set(arguments) & set(self.fails):
            raise CallFailed(f"scontrol {' '.join(arguments[:2])} failed")
        return self.out


@dataclass
class Bench:
    module: Module
    scontrol: Scontrol
    driver: PyslurmDriver
    clock_s: list[float]

    def writes(self) -> list[tuple[str, ...]]:
        return [call for call in self.scontrol.calls if "show" not in call]


@pytest.fixture
def bench() -> Bench:
    module, scontrol, clock_s = Module(), Scontrol(), [0.0]
    driver = PyslurmDriver(
        SlurmSettings(),
        now=lambda: NOW,
        monotonic_s=lambda: clock_s[0],
        pyslurm=InProcess(module),
        scontrol=scontrol,
    )
    return Bench(module, scontrol, driver, clock_s)


def test_one_observation_holds_nodes_jobs_reservations_and_the_age_of_slurmctld(bench: Bench) -> None:
    bench.module.nodes[1] = node("gpu-2", state="IDLE+DRAIN", reason=f"{MARK} lent", reason_user="bridge",
                                 reason_time=NOW_S, slurmd_start_time=NOW_S, partitions=["shared"])  # fmt: skip
    bench.module.reservations = [reservation("bridge-h100", "gpu-[2-3]"), reservation("patch-day", "gpu-1")]
    bench.module.jobs = [job(7), running(8), job(9, state="COMPLETED", allocated_nodes="gpu-1")]
    seen = bench.driver.observe()
    assert set(seen.nodes) == {"gpu-1", "gpu-2", "gpu-3"}
    closed = seen.nodes["gpu-2"]
    assert (closed.states, closed.reason) == ({"IDLE", "DRAIN"}, "bridge:k3f9q2m8x1:4:17 lent")
    assert (closed.reason_user, closed.reason_set_at, closed.slurmd_started_at) == ("bridge", NOW, NOW)
    assert closed.partitions == {"shared"}
    assert seen.held == {"gpu-2", "gpu-3"}
    assert [(job.id, job.state, job.nodes) for job in seen.jobs] == [
        (7, "PENDING", ()),
        (8, "RUNNING", ("gpu-1", "gpu-2")),
    ]
    assert (seen.controller_up_s, seen.read_at) == (3600, NOW)


@pytest.mark.parametrize(
    ("fields", "read", "value"),
    [
        ({"configured_gres": {"gpu:h100": 8}}, "gpus", 8),
        ({"configured_gres": {"gpu:h100": 4, "gpu:a100": 2, "nic": 4}}, "gpus", 6),
        ({"configured_gres": {"gpu": {"count": 4, "indexes": "0-3"}}}, "gpus", 4),
        ({"configured_gres": {}}, "gpus", 0),
        ({"configured_gres": {"gpu:h100": 8}, "active_features": ["ib"]}, "features", {"ib", "gpu:h100"}),
        ({"active_features": [], "available_features": ["ib"]}, "features", {"ib"}),
        ({"allocated_tres": {"cpu": 9, "mem": "80G", "gres/gpu": 2, "gres/gpu:v100": 2}}, "gpus_used", 2),
        ({"allocated_tres": {}}, "gpus_used", 0),
        ({"state": "MIXED+DRAIN+NOT_RESPONDING"}, "states", {"MIXED", "DRAIN", "NOT_RESPONDING"}),
        ({"state": "IDLE+A_FLAG_OF_2031"}, "states", {"IDLE", "A_FLAG_OF_2031"}),
        ({"reason_user": "1007"}, "reason_user", "1007"),
    ],
)
def test_what_a_node_says(bench: Bench, fields: dict[str, Any], read: str, value: object) -> None:
    bench.module.nodes = [node(**fields)]
    assert getattr(bench.driver.observe().nodes["gpu-1"], read) == value


def tres(**counts: int) -> Any:
    return SimpleNamespace(
        gres={name.replace("_", ":"): SimpleNamespace(count=count) for name, count in counts.items()}
    )


@pytest.mark.parametrize(
    ("record", "read", "value"),
    [
        (job(num_nodes=4, gres_per_node={"gres/gpu:h100": 8}), "gpus_per_node", 8),
        (job(num_nodes=4, gres_per_node={"gres/gpu:h100": 8}), "gpu_type", "h100"),
        (job(num_nodes=2, ntasks=16, tres_per_task=tres(gpu=1)), "gpus_per_node", 8),
        (job(num_nodes=2, tres_per_job=tres(gpu=16)), "gpus_per_node", 8),
        (job(num_nodes=3, requested_tres=tres(gpu=16, gpu_h100=16)), "gpus_per_node", 6),
        (job(requested_tres=tres(license=1)), "gpus_per_node", 0),
        (Unparsable(job(requested_tres=tres(gpu=8)), "gres_per_node", ValueError("32G")), "gpus_per_node", 8),
        (job(constraints=["[rack1*4&rack2*4]"]), "features", "[rack1*4&rack2*4]"),
        (job(constraints=["a", "b"]), "features", "a,b"),
        (job(resource_sharing="NO"), "exclusive", True),
        (job(resource_sharing="OK"), "exclusive", False),
        (job(resource_sharing="USER"), "exclusive", False),
        (job(priority=0), "held", True),
        (job(priority=None), "held", False),
        (job(priority="UNLIMITED"), "held", False),
        (job(priority=7, state_reason="JobHeldUser"), "held", True),
        (job(state_reason="Dependency"), "waits_for", "Dependency"),
        (job(state_reason="Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
                          "partitions"), "waits_for", "Resources"),
        (job(state_reason="ReqNodeNotAvail, UnavailableNodes:n[1-2]"), "waits_for",
         "ReqNodeNotAvail, UnavailableNodes:n[1-2]"),
        (job(eligible_time=NOW_S), "begins_at", NOW),
        (job(submit_time=NOW_S), "submitted_at", NOW),
        (job(start_time=NOW_S), "started_at", None),
        (running(start_time=NOW_S), "started_at", NOW),
        (running(end_time=NOW_S), "ends_at", NOW),
        (running(time_limit=90), "time_limit_s", 5400),
        (running(time_limit=None), "time_limit_s", None),
        (running(), "may_requeue", True),
        (running(is_batch_job=False), "may_requeue", False),
        (running(requeue_count=2), "restarts", 2),
        (job(array_id=7, array_tasks_waiting="0-99"), "task_count", 100),
        (job(array_id=7, array_tasks_waiting="0-99", array_tasks_parallel=4), "task_count", 4),
        (job(array_id=7), "array", 7),
        (job(heterogeneous_id=6), "het_job", 6),
        (job(required_switches=1), "switches", 1),
        (job(reservation="exam-week"), "reservation", "exam-week"),
        (job(comment="bridge: checkpoint=600"), "comment", "bridge: checkpoint=600"),
        (job(admin_comment="{}"), "admin_comment", "{}"),
        (job(qos="urgent"), "qos", "urgent"),
        (job(account="research"), "account", "research"),
    ],
)  # fmt: skip
def test_what_a_job_says(bench: Bench, record: Any, read: str, value: object) -> None:
    bench.module.jobs = [record]
    (found,) = bench.driver.observe().jobs
    assert getattr(found, read) == value


NO_TEXT = UnicodeDecodeError("utf-8", b"caf\xe9", 3, 4, "unexpected end of data")


@pytest.mark.parametrize(
    ("field", "read"),
    [("name", "name"), ("comment", "comment"), ("admin_comment", "admin_comment"), ("state_reason", "waits_for")],
)
def test_bytes_that_are_no_text_blind_nobody(bench: Bench, field: str, read: str) -> None:
    bench.module.jobs = [Unparsable(job(7), field, NO_TEXT), job(8)]
    found = bench.driver.observe().jobs
    assert [job.id for job in found] == [7, 8]
    assert getattr(found[0], read) == "\ufffd"


def test_a_reason_that_is_no_text_is_somebody_elses(bench: Bench) -> None:
    bench.module.nodes = [Unparsable(node(state="IDLE+DRAIN"), "reason", NO_TEXT)]
    found = bench.driver.observe().nodes["gpu-1"]
    assert (found.reason, Mark.parse(found.reason)) == ("\ufffd", None)


@pytest.mark.parametrize(
    ("record", "state"),
    [
        (job(state="REQUEUE_HOLD"), "PENDING"),
        (job(state="SPECIAL_EXIT"), "PENDING"),
        (job(state="RESV_DEL_HOLD"), "PENDING"),
        (job(state="LAUNCH_FAILED"), "PENDING"),
        (job(state="LAUNCH_FAILED", allocated_nodes="gpu-1"), "LAUNCH_FAILED+UNKNOWN"),
        (job(state="COMPLETING", allocated_nodes="gpu-1"), "COMPLETING"),
        (job(state="SUSPENDED", allocated_nodes="gpu-1"), "SUSPENDED"),
        (job(state="CONFIGURING", allocated_nodes="gpu-1"), "RUNNING"),
        (job(state="A_STATE_OF_2031", allocated_nodes="gpu-1"), "A_STATE_OF_2031"),
        (job(state="CANCELLED", allocated_nodes="gpu-1"), None),
        (job(state="NODE_FAIL", allocated_nodes="gpu-1"), None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_jobs_one_word_for_its_state(bench: Bench, record: Any, state: str | None) -> None:
    bench.module.jobs = [record]
    assert [job.state for job in bench.driver.observe().jobs] == ([state] if state else [])


def test_gpus_in_use_are_what_jobs_asked_for_where_slurm_does_not_track_them(bench: Bench) -> None:
    bench.module.jobs = [
        running(8, gres_per_node={"gres/gpu": 3}),
        running(9, allocated_nodes="gpu-2", gres_per_node={"gres/gpu": 2}),
        job(10, gres_per_node={"gres/gpu": 8}),
    ]
    bench.module.nodes[2] = node("gpu-3", allocated_tres={"gres/gpu": 1})
    assert {name: found.gpus_used for name, found in bench.driver.observe().nodes.items()} == {
        "gpu-1": 3,
        "gpu-2": 5,
        "gpu-3": 1,
    }


@pytest.mark.parametrize("lost", [ReservationFlags.SPECIFIC_NODES, ReservationFlags.IGNORE_RUNNING_JOBS])
def test_a_reservation_that_lost_its_maint_flag_holds_nothing(bench: Bench, lost: ReservationFlags) -> None:
    bench.module.reservations = [reservation("bridge-h100", "gpu-2", flags=lost)]
    assert bench.driver.observe().held == frozenset()


def test_only_the_bridges_reservations_are_looked_at(bench: Bench) -> None:
    """pyslurm raises on flags that it does not know."""
    theirs = Unparsable(reservation("exam", "gpu-2"), "flags", ValueError("invalid Flags value"))
    bench.module.reservations = [theirs]
    assert bench.driver.observe().held == frozenset()
    bench.module.reservations = [
        Unparsable(reservation("bridge-h100", "gpu-2"), "flags", ValueError("invalid Flags value"))
    ]
    with pytest.raises(Unreadable, match="invalid Flags value"):
        bench.driver.observe()


# --- what scontrol tells ---

SHOWN = """NodeName=gpu-1 Arch=x86_64 CoresPerSocket=1
   ActiveFeatures=ib,{features}
   Gres=gpu:h100:8(S:0-1),min-vram:no_consume:32G
   OS=Linux 6.1 Gres=gpu:9
   State=IDLE ThreadsPerCore=1
   Topology=core:leaf1
   Reason=see Gres=gpu:99 and NodeName=gpu-7 [root@2026-01-01T00:00:00]

NodeName=gpu-2 Gres=(null) State=DOWN Topology=core:leaf2
"""


def test_topology_is_scontrols_and_read_rarely(bench: Bench) -> None:
    bench.scontrol.out = SHOWN
    for _ in range(3):
        seen = bench.driver.observe()
    assert [seen.nodes[name].topology for name in ("gpu-1", "gpu-2", "gpu-3")] == ["core:leaf1", "core:leaf2", ""]
    assert bench.scontrol.calls == [("--all", "show", "nodes")]
    bench.clock_s[0] += 301
    bench.driver.observe()
    assert len(bench.scontrol.calls) == 2


def test_without_scontrols_word_topology_is_what_it_was(bench: Bench) -> None:
    bench.scontrol.fails = ("show",)
    assert bench.driver.observe().nodes["gpu-1"].topology == ""
    bench.scontrol.out, bench.scontrol.fails = SHOWN, ()
    bench.clock_s[0] += 301
    assert bench.driver.observe().nodes["gpu-1"].topology == "core:leaf1"
    bench.scontrol.fails = ("show",)
    bench.clock_s[0] += 301
    assert bench.driver.observe().nodes["gpu-1"].topology == "core:leaf1"


def test_a_gres_that_pyslurm_cannot_read_is_scontrols(bench: Bench) -> None:
    bench.scontrol.out = SHOWN
    bench.module.nodes[0] = Unparsable(node("gpu-1"), "configured_gres", ValueError("invalid literal: '32G'"))
    seen = bench.driver.observe()
    assert (seen.nodes["gpu-1"].gpus, seen.nodes["gpu-2"].gpus) == (8, 8)
    assert "gpu:h100" in seen.nodes["gpu-1"].features


@pytest.mark.parametrize(("out", "fails"), [("", ()), (SHOWN, ("show",)), ("NodeName=gpu-2 State=IDLE", ())])
def test_a_gres_that_nobody_tells_is_unknown(bench: Bench, out: str, fails: tuple[str, ...]) -> None:
    bench.scontrol.out, bench.scontrol.fails = out, fails
    bench.module.nodes[0] = Unparsable(node("gpu-1"), "configured_gres", ValueError("invalid literal: '32G'"))
    with pytest.raises(Unreadable, match=r"Gres of gpu-1|scontrol show nodes"):
        bench.driver.observe()


# --- what cannot be read or written ---

ERRORS = {
    "slurmctld does not answer": RPCError(1800, "Unable to contact slurm controller (connect failure)"),
    "authentication": RPCError(1007, "Protocol authentication error"),
    "words only": RPCError(msg="bf_exit_cnt has an unexpected size"),
    "an attribute that is gone": AttributeError("no attribute 'state'"),
    "memory": MemoryError("xmalloc failed for char*"),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
}
READS = ("Nodes.load", "Reservations.load", "Jobs.load", "Statistics.load")


@pytest.mark.parametrize("call", READS)
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_cannot_be_read_makes_all_of_it_unknown(bench: Bench, error: str, call: str) -> None:
    bench.module.fails[call] = ERRORS[error]
    with pytest.raises(Unreadable, match=re.escape(str(ERRORS[error]))):
        bench.driver.observe()
    del bench.module.fails[call]
    assert set(bench.driver.observe().nodes) == {"gpu-1", "gpu-2", "gpu-3"}


@pytest.mark.parametrize(
    ("nodes", "jobs", "why"),
    [
        ([node(state=None)], [], "gpu-1 in nodes makes no sense"),
        ([node(name="")], [], "it has no name"),
        ([], [running(allocated_nodes="n[1-99999999]")], "99999999 nodes"),
        ([], [job(state=None)], "7 in jobs makes no sense"),
    ],
)
def test_a_record_without_sense_is_named(bench: Bench, nodes: list[Any], jobs: list[Any], why: str) -> None:
    bench.module.nodes, bench.module.jobs = nodes, jobs
    with pytest.raises(Unreadable, match=why):
        bench.driver.observe()


def calls(driver: PyslurmDriver) -> dict[str, Callable[[], None]]:
    return {
        "Nodes.modify": lambda: driver.drain(["gpu-1"], MARK, "why"),
        "Job.send_signal": lambda: driver.signal(7, ["gpu-1"], "TERM"),
        "Job.requeue": lambda: driver.requeue(7, ["gpu-1"]),
        "Reservations.load": lambda: driver.hold(["gpu-1"], "bridge-h100"),
        "Jobs.load": lambda: driver.requeue(7, ["gpu-1"]),
    }


@pytest.mark.parametrize("call", calls(None))  # type: ignore[arg-type]
@pytest.mark.parametrize("error", ERRORS)
def test_a_failed_write_says_so_and_is_not_repeated(bench: Bench, error: str, call: str) -> None:
    bench.module.jobs = [running()]
    bench.module.fails[call] = ERRORS[error]
    with pytest.raises(CallFailed, match=re.escape(str(ERRORS[error]))):
        calls(bench.driver)[call]()
    assert len(bench.module.told) == (0 if call.endswith(".load") else 1)
    assert bench.writes() == []


def test_many_nodes_are_drained_in_one_call(bench: Bench) -> None:
    bench.driver.drain(["gpu-2", "gpu-1", "gpu-2"], MARK, "lent,\n  see x=y")
    change = {"state": "DRAIN", "reason": "bridge:k3f9q2m8x1:4:17 lent, see x=y"}
    assert bench.module.told == [("modify", ["gpu-1", "gpu-2"], change)]


def test_a_resume_has_no_reason(bench: Bench) -> None:
    bench.driver.resume(["gpu-1"])
    assert bench.module.told == [("modify", ["gpu-1"], {"state": "RESUME"})]


@pytest.mark.parametrize(
    ("number", "after", "fails"),
    [(2028, "IDLE", False), (2028, "IDLE+DRAIN", True), (2018, "IDLE", True)],
)
def test_resuming_what_is_not_drained_is_no_failure(bench: Bench, number: int, after: str, fails: bool) -> None:
    bench.module.fails["Nodes.modify"] = RPCError(number, "no")
    bench.module.nodes = [node(state=after)]
    if not fails:
        bench.driver.resume(["gpu-1"])
        return
    with pytest.raises(CallFailed, match=f"no \\({number}\\)"):
        bench.driver.resume(["gpu-1"])


@pytest.mark.parametrize("name", ["gpu-1,gpu-2", "gpu-[1-9]", "@all'; id; '", "", "--help", "gpu 1"])
def test_nothing_but_a_node_name_leaves_the_driver(bench: Bench, name: str) -> None:
    for call in (
        lambda: bench.driver.drain([name], MARK, "why"),
        lambda: bench.driver.resume([name]),
        lambda: bench.driver.hold([name], "bridge-h100"),
        lambda: bench.driver.release([name], "bridge-h100"),
        lambda: bench.driver.signal(7, [name], "TERM"),
    ):
        with pytest.raises(Invalid, match="not a node name"):
            call()
    assert (bench.module.told, bench.scontrol.calls) == ([], [])


def test_no_nodes_means_no_call(bench: Bench) -> None:
    bench.driver.drain([], MARK, "why")
    bench.driver.resume([])
    assert bench.module.told == []


def test_the_reservation_is_scontrols(bench: Bench) -> None:
    bench.driver.hold(["gpu-2", "gpu-1"], "bridge-h100")
    bench.module.reservations = [reservation("bridge-h100", "gpu-[1-2]", end_time=NOW_S + 100 * 86400)]
    assert bench.driver.renew_reservations() == ("bridge-h100",)
    bench.driver.release(["gpu-1", "gpu-2"], "bridge-h100")
    assert bench.writes() == [
        ("create", "reservation", "ReservationName=bridge-h100", "Nodes=gpu-1,gpu-2", "Flags=IGNORE_JOBS,MAINT",
         "Users=bridge", "StartTime=now", "Duration=UNLIMITED"),
        ("update", "ReservationName=bridge-h100", "EndTime=now+365days"),
        ("delete", "ReservationName=bridge-h100"),
    ]  # fmt: skip


# --- what running jobs are told ---


def test_a_signal_is_for_the_batch_script_and_all_steps(bench: Bench) -> None:
    bench.module.jobs = [running(17)]
    bench.driver.signal(17, ["gpu-2"], "USR1")
    assert bench.module.told == [("signal", 17, "SIGUSR1", "all")]


@pytest.mark.parametrize(("signal", "steps"), [("B:USR1", "batch"), ("S:USR1", "children")])
def test_a_signal_may_be_for_the_script_alone_or_for_the_steps_alone(bench: Bench, signal: str, steps: str) -> None:
    bench.module.jobs = [running(17)]
    bench.driver.signal(17, ["gpu-2"], signal)
    assert bench.module.told == [("signal", 17, "SIGUSR1", steps)]


def test_a_requeue_is_one_call(bench: Bench) -> None:
    bench.module.jobs = [running(17)]
    bench.driver.requeue(17, ["gpu-2"])
    assert (bench.module.told, bench.writes()) == ([("requeue", 17)], [])


def test_a_requeued_job_that_waits_may_start_at_once(bench: Bench) -> None:
    bench.module.jobs = [job(17)]
    bench.driver.hasten(17)
    assert bench.writes() == [("update", "JobId=17", "StartTime=now")]


def test_a_het_job_is_hastened_once_all_of_it_waits(bench: Bench) -> None:
    leader = job(17, heterogeneous_id=17)
    for component, calls_made in ((running(18, heterogeneous_id=17), 0), (job(18, heterogeneous_id=17), 1)):
        bench.module.jobs = [leader, component]
        bench.driver.hasten(17)
        assert len(bench.writes()) == calls_made


@pytest.mark.parametrize(
    "there",
    [[], [running(17)], [job(17, state="COMPLETING", allocated_nodes="gpu-1")], [job(18)]],
    ids=["gone", "runs", "completing", "another"],
)
def test_a_job_that_does_not_wait_is_not_hastened(bench: Bench, there: list[Any]) -> None:
    bench.module.jobs = there
    bench.driver.hasten(17)
    assert bench.writes() == []


@pytest.mark.parametrize(
    "there",
    [
        [],
        [job(17)],
        [running(17, allocated_nodes="gpu-[7-8]")],
        [job(17, state="COMPLETING", allocated_nodes="gpu-1")],
        [job(17, state="COMPLETED", allocated_nodes="gpu-1")],
        [running(18)],
    ],
    ids=["gone", "pending", "elsewhere", "completing", "over", "another"],
)
def test_a_job_that_does_not_run_there_is_told_nothing(bench: Bench, there: list[Any]) -> None:
    bench.module.jobs = there
    bench.driver.signal(17, ["gpu-1", "gpu-2"], "TERM")
    bench.driver.requeue(17, ["gpu-1", "gpu-2"])
    assert (bench.module.told, bench.writes()) == ([], [])


@pytest.mark.parametrize("task", [None, 3])  # pyslurm has no id for task 0
def test_the_task_that_bears_its_arrays_id_is_told_alone_or_nothing(bench: Bench, task: int | None) -> None:
    """By the bare number Slurm would understand all tasks of the array."""
    bears_it = running(17, array_id=17, array_task_id=task)
    bench.module.jobs = [bears_it, running(18, array_id=17, array_task_id=1, allocated_nodes="gpu-3")]
    address = f"17_{task or 0}"
    with pytest.raises(CallFailed, match=f"cannot signal task {address} without all others"):
        bench.driver.signal(17, ["gpu-1"], "TERM")
    bench.driver.requeue(17, ["gpu-1"])
    assert bench.module.told == []
    assert bench.writes() == [("requeue", address)]
    bench.module.jobs = [bears_it]
    bench.driver.signal(17, ["gpu-1"], "TERM")
    assert bench.module.told == [("signal", 17, "SIGTERM", "all")]


def test_any_other_task_goes_by_its_own_number(bench: Bench) -> None:
    bench.module.jobs = [job(17, array_id=17, array_tasks_waiting="2-9"), running(18, array_id=17, array_task_id=1)]
    bench.driver.signal(18, ["gpu-1"], "TERM")
    bench.driver.requeue(18, ["gpu-1"])
    assert bench.module.told == [("signal", 18, "SIGTERM", "all"), ("requeue", 18)]


def test_a_het_job_goes_by_its_leader_wherever_its_components_run(bench: Bench) -> None:
    bench.module.jobs = [
        running(17, allocated_nodes="gpu-7", heterogeneous_id=17),
        running(18, allocated_nodes="gpu-1", heterogeneous_id=17),
    ]
    bench.driver.requeue(17, ["gpu-1"])
    assert bench.module.told == [("requeue", 17)]


@pytest.mark.parametrize("number", [2017, 2020, 2021, 11, 115])
def test_a_signal_for_a_job_that_has_gone_or_an_errno_of_nobodys_is_no_failure(bench: Bench, number: int) -> None:
    bench.module.jobs = [running(17)]
    bench.module.fails["Job.send_signal"] = RPCError(number)
    bench.driver.signal(17, ["gpu-1"], "TERM")


def test_a_job_that_may_not_be_requeued_is_not(bench: Bench) -> None:
    bench.module.jobs = [running(17, is_requeueable=False)]
    with pytest.raises(CallFailed, match="may not be requeued"):
        bench.driver.requeue(17, ["gpu-1"])
    assert bench.module.told == []


@pytest.mark.parametrize("signal", ["NOSUCH", "KILL", "term", "", "B:KILL", "X:USR1", "B:S:HUP"])
def test_an_unknown_signal_never_leaves_the_driver(bench: Bench, signal: str) -> None:
    bench.module.jobs = [running(17)]
    with pytest.raises(CallFailed, match="is no signal for a job"):
        bench.driver.signal(17, ["gpu-1"], signal)
    assert bench.module.told == []


@pytest.mark.parametrize("id", [0, -1, True, "17"])
def test_nothing_but_a_job_id_leaves_the_driver(bench: Bench, id: Any) -> None:
    with pytest.raises(Invalid):
        bench.driver.signal(id, ["gpu-1"], "TERM")


# --- the process ---

A_PYSLURM = """
import os, signal
from types import SimpleNamespace
print("pyslurm prints what it likes")
class RPCError(Exception):
    errno = 1007
class slurmctld:
    class Statistics:
        @staticmethod
        def load():
            print("and whenever it likes", flush=True)
            return SimpleNamespace(request_time=os.getpid(), data_since=1)
class Nodes:
    load = staticmethod(lambda: signal.pause())
class Jobs:
    load = staticmethod(lambda: os._exit(3))
class Reservations:
    @staticmethod
    def load():
        raise RPCError("Protocol authentication error")
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PyslurmProcess]:
    """The real process, with a module in the place of pyslurm that this test writes."""
    (tmp_path / "pyslurm.py").write_text(A_PYSLURM)
    monkeypatch.syspath_prepend(tmp_path)
    started = PyslurmProcess(timeout_s=60)
    yield started
    started.close()


def pid_of(process: PyslurmProcess) -> int:
    return int(re.search(rb'"req_time":(\d+)', process("diag"))[1])  # type: ignore[index]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_go_to_one_process_which_ends_when_it_is_closed(process: PyslurmProcess) -> None:
    pid = pid_of(process)
    assert pid != os.getpid()
    assert pid_of(process) == pid
    process.close()
    assert not is_there(pid)


def test_a_call_without_an_answer_is_over_in_time_and_the_next_one_has_a_new_process(process: PyslurmProcess) -> None:
    pid = pid_of(process)
    process._timeout_s = 0.05
    with pytest.raises(Silent, match=r"did not answer within 0\.05 s"):
        process("nodes")
    assert not is_there(pid)
    process._timeout_s = 60
    assert pid_of(process) != pid


def test_a_process_that_ends_is_unknown_and_started_anew(process: PyslurmProcess) -> None:
    pid = pid_of(process)
    driver = PyslurmDriver(SlurmSettings(), now=lambda: NOW, pyslurm=process, scontrol=Scontrol())
    with pytest.raises(Silent, match="ended with exit code 3"):
        process("jobs")
    with pytest.raises(CallFailed, match="ended with exit code 3"):
        driver.requeue(7, ["gpu-1"])
    with pytest.raises(CallFailed, match=r"Protocol authentication error \(1007\)"):
        driver.hold(["gpu-1"], "bridge-h100")
    assert pid_of(process) != pid


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import nothing_of_this_name", "could not be imported: ModuleNotFoundError"),
        ("raise OSError('libslurm.so.43: cannot open')", "could not be imported: OSError: libslurm"),
        ("import os; os._exit(1)", "ended with exit code 1"),  # what libslurm does without a slurm.conf
    ],
)
def test_a_pyslurm_that_cannot_be_imported_is_unknown(
    tmp_path: Path, process: PyslurmProcess, code: str, why: str
) -> None:
    (tmp_path / "pyslurm.py").write_text(code)
    driver = PyslurmDriver(SlurmSettings(), now=lambda: NOW, pyslurm=process, scontrol=Scontrol())
    for _ in range(2):
        with pytest.raises(Unreadable, match=why):
            driver.observe()
    with pytest.raises(CallFailed, match=why):
        driver.drain(["gpu-1"], MARK, "why")


# --- settings ---


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, SlurmRestDriver), ("slurmrestd", SlurmRestDriver), ("pyslurm", PyslurmDriver)],
)
def test_the_settings_name_the_driver(monkeypatch: pytest.MonkeyPatch, value: str | None, kind: type) -> None:
    monkeypatch.delenv("BRIDGE_SLURM_DRIVER", raising=False)
    if value:
        monkeypatch.setenv("BRIDGE_SLURM_DRIVER", value)
    driver = make_slurm(SlurmSettings(), SystemClock())
    assert type(driver) is kind
    driver.close()


def test_no_other_driver_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_SLURM_DRIVER", "rest")
    with pytest.raises(ValueError, match="slurm_driver"):
        SlurmSettings()
    assert [str(driver) for driver in SlurmDriver] == ["slurmrestd", "pyslurm"]


def test_nothing_imports_pyslurm_into_the_broker() -> None:
    """It is GPL, ends processes, and changes how libraries are loaded."""
    for path in (Path(pyslurm_calls.__file__).parents[1]).rglob("*.py"):
        assert not re.search(r"^\s*(import pyslurm|from pyslurm)\b", path.read_text(), re.MULTILINE), path
