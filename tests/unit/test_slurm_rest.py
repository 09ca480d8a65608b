"""The slurmrestd driver against a server that fails in every way seen: what is not wholly read is UNKNOWN."""

from __future__ import annotations

import base64
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridge.lifecycle.facts import SideFacts, slurm_facts
from bridge.model.errors import CallFailed, Invalid, Unreadable
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Closure, Mark, Node, Side
from bridge.settings import SlurmSettings
from bridge.slurm import token
from bridge.slurm.rest import SlurmRestDriver

NOW = datetime(2026, 12, 2, 9, 0, tzinfo=UTC)
MARK = Mark("k3f9q2m8x1", 4, 17)
TOKEN = "first.secret.token"


def node(name: str, *states: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "state": list(states or ("IDLE",)), "gres": "gpu:8", "partitions": ["shared"], **fields}


def reservation(name: str, nodes: str, **fields: Any) -> dict[str, Any]:
    year = {"set": True, "infinite": False, "number": int((NOW + timedelta(days=365)).timestamp())}
    latch = {"flags": ["MAINT", "IGNORE_JOBS", "SPEC_NODES"], "users": "bridge", "end_time": year}
    return {"name": name, "node_list": nodes, **latch, **fields}


def job(id: int, state: str = "PENDING", **fields: Any) -> dict[str, Any]:
    return {"job_id": id, "job_state": [state], "user_name": "alice", "partition": "shared", **fields}


@dataclass
class Slurmrestd:
    """A slurmrestd in memory. `faults` replace the answer of a path; `calls`, `writes` and `signals` reached it.

    `uptime_s` is slurmctld's age when the clock was at 0.
    """

    version: int = 42
    nodes: list[dict[str, Any]] = field(default_factory=lambda: [node("gpu-1"), node("gpu-2"), node("gpu-3")])
    reservations: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    uptime_s: int = 3600
    clock_s: list[float] = field(default_factory=lambda: [0.0])
    faults: dict[str, Callable[[httpx.Request], httpx.Response]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    writes: list[tuple[str, Any]] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.calls.append(f"{request.method} {path}")
        if not path.startswith(f"/slurm/v0.0.{self.version}/"):
            return httpx.Response(404, text="Unable find requested URL. Please view /openapi/v3 for API reference.")
        path = path.removeprefix(f"/slurm/v0.0.{self.version}/")
        if request.method == "DELETE":
            self.signals.append(f"{path}?{request.url.query.decode()}")
        elif request.method != "GET":
            self.writes.append((path, json.loads(request.content)))
        if fault := self.faults.get(f"{request.method} {path}"):
            return fault(request)
        if request.method != "GET":
            return self.answer()
        return self.read(path)

    def read(self, path: str) -> httpx.Response:
        if path == "ping/":
            return self.answer(pings=[{"hostname": "ctl", "pinged": "UP"}])
        if path == "jobs/state/":
            return self.answer(jobs=[{"job_id": str(job["job_id"]), "state": job["job_state"]} for job in self.jobs])
        if path.startswith("job/"):
            return self.answer(jobs=[found for found in self.jobs if found["job_id"] == int(path[4:])])
        if path == "diag/":
            began_s = 5_000_000 - self.uptime_s
            return self.answer(statistics={"req_time": 5_000_000 + int(self.clock_s[0]), "req_time_start": began_s})
        kind = path.rstrip("/")
        return self.answer(**{kind: getattr(self, kind)})

    @staticmethod
    def answer(status: int = 200, errors: tuple[Any, ...] = (), **body: Any) -> httpx.Response:
        return httpx.Response(status, json={**body, "errors": list(errors), "warnings": []})


@dataclass
class Bench:
    """A driver, its slurmrestd, and a real little program in the place of scontrol."""

    server: Slurmrestd
    driver: SlurmRestDriver
    token_file: Path
    folder: Path
    clock_s: list[float]

    def scontrol_calls(self) -> list[list[str]]:
        log = self.folder / "calls"
        return [json.loads(line)["argv"] for line in log.read_text().splitlines()] if log.exists() else []

    def scontrol_environments(self) -> list[dict[str, str]]:
        return [json.loads(line)["env"] for line in (self.folder / "calls").read_text().splitlines()]

    def scontrol_says(self, *, exit_code: int = 0, out: str = "", err: str = "") -> None:
        (self.folder / "answer").write_text(json.dumps({"exit": exit_code, "out": out, "err": err}))


SCONTROL = """
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
kept = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
with (here / "calls").open("a") as log:
    log.write(json.dumps({"argv": sys.argv[1:], "env": kept}) + "\\n")
if (here / "answer").exists():
    said = json.loads((here / "answer").read_text())
    sys.stdout.write(said["out"]); sys.stderr.write(said["err"]); sys.exit(said["exit"])
if not any(word.startswith("ReservationName=") for word in sys.argv):
    sys.exit(0)
name = [word.split("=", 1)[1] for word in sys.argv if word.startswith("ReservationName=")][0]
print({"create": f"Reservation created: {name}", "update": "Reservation updated.", "delete": ""}[sys.argv[1]])
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    program = tmp_path / "scontrol.py"
    program.write_text(SCONTROL)
    clock_s = [0.0]
    server = Slurmrestd(clock_s=clock_s)
    settings = SlurmSettings(
        slurm_url="http://slurmrestd:6820",
        slurm_token_file=token_file,
        slurm_scontrol=(sys.executable, str(program)),
        slurm_timeout_s=5,
    )
    driver = SlurmRestDriver(
        settings, now=lambda: NOW, monotonic_s=lambda: clock_s[0], transport=httpx.MockTransport(server)
    )
    yield Bench(server, driver, token_file, tmp_path, clock_s)
    driver.close()


# --- reading ---


def test_one_observation_holds_nodes_jobs_reservations_and_the_age_of_slurmctld(bench: Bench) -> None:
    bench.server.nodes[1] = node("gpu-2", "IDLE", "DRAIN", reason=f"{MARK} lent", reason_set_by_user="bridge")
    bench.server.reservations = [reservation("bridge-h100", "gpu-[2-3]"), reservation("patch-day", "gpu-1")]
    bench.server.jobs = [job(7), job(8, "RUNNING", nodes="gpu-1"), job(9, "COMPLETED", nodes="gpu-1")]
    seen = bench.driver.observe()
    assert set(seen.nodes) == {"gpu-1", "gpu-2", "gpu-3"}
    assert seen.nodes["gpu-2"].reason == "bridge:k3f9q2m8x1:4:17 lent"
    assert seen.held == {"gpu-2", "gpu-3"}
    assert [(job.id, job.state, job.nodes) for job in seen.jobs] == [(7, "PENDING", ()), (8, "RUNNING", ("gpu-1",))]
    assert seen.controller_up_s == 3600
    assert seen.read_at == NOW


def test_a_reservation_that_lost_its_maint_flag_holds_nothing(bench: Bench) -> None:
    bench.server.reservations = [reservation("bridge-h100", "gpu-2", flags=["IGNORE_JOBS", "SPEC_NODES"])]
    assert bench.driver.observe().held == frozenset()


def test_the_age_of_slurmctld_is_read_last(bench: Bench) -> None:
    bench.driver.observe()
    assert bench.server.calls[-1].endswith("/diag/")


def timeout(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("timed out", request=request)


def lost(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def error(number: int, words: str, status: int = 200) -> Callable[[httpx.Request], httpx.Response]:
    wrong = {"description": f"Failure to {words}", "error_number": number, "error": words}
    return lambda request: Slurmrestd.answer(status, errors=(wrong,), nodes=[], jobs=[], reservations=[])


FAULTS = {
    "time-out": timeout,
    "connection refused": lost,
    "bad token": error(1007, "Protocol authentication error", 511),
    "no token": lambda request: httpx.Response(401, text="Authentication failure"),
    "unknown path": lambda request: httpx.Response(404, text="Unable find requested URL."),
    "200 with errors": error(0, "query"),
    "server error": error(1800, "Unable to contact slurm controller", 500),
    "half JSON": lambda request: httpx.Response(200, content=b'{"nodes": [{"name": "gpu-1", "sta'),
    "empty body": lambda request: httpx.Response(200, content=b""),
    "a proxy's page": lambda request: httpx.Response(200, html="<html>Bad Gateway</html>"),
    "bad gateway": lambda request: httpx.Response(502, text="Bad Gateway"),
    "redirect": lambda request: httpx.Response(302, headers={"location": "http://elsewhere/"}),
    "another shape": lambda request: httpx.Response(200, json={"items": [], "errors": []}),
    "null list": lambda request: httpx.Response(
        200, json={"nodes": None, "jobs": None, "reservations": None, "errors": []}
    ),
}


PATHS = ("nodes/", "reservations/", "jobs/state/", "jobs/", "diag/")
OPTIONAL = {("unknown path", "jobs/state/"), ("unknown path", "diag/")}
"""A server without these is read without them: see the next test."""


@pytest.mark.parametrize(("fault", "path"), [pair for pair in itertools.product(FAULTS, PATHS) if pair not in OPTIONAL])
def test_whatever_cannot_be_read_makes_all_of_it_unknown(bench: Bench, fault: str, path: str) -> None:
    bench.server.faults[f"GET {path}"] = FAULTS[fault]
    with pytest.raises(Unreadable) as caught:
        bench.driver.observe()
    assert TOKEN not in str(caught.value)
    del bench.server.faults[f"GET {path}"]
    assert set(bench.driver.observe().nodes) == {"gpu-1", "gpu-2", "gpu-3"}


def test_a_server_without_job_states_or_diag_is_read_without_them(bench: Bench) -> None:
    bench.server.jobs = [job(7)]
    bench.server.faults["GET jobs/state/"] = FAULTS["unknown path"]
    bench.server.faults["GET diag/"] = FAULTS["unknown path"]
    seen = bench.driver.observe()
    assert [job.id for job in seen.jobs] == [7]
    assert seen.controller_up_s is None


@pytest.mark.parametrize(("fault", "reads"), [("connection refused", 2), ("bad gateway", 2), ("time-out", 1)])
def test_a_read_is_repeated_once_at_most(bench: Bench, fault: str, reads: int) -> None:
    bench.server.faults["GET nodes/"] = FAULTS[fault]
    with pytest.raises(Unreadable):
        bench.driver.observe()
    assert bench.server.calls.count("GET /slurm/v0.0.42/nodes/") == reads


def test_an_answer_that_drips_is_late(bench: Bench) -> None:
    def drip(request: httpx.Request) -> httpx.Response:
        def body() -> Iterator[bytes]:
            for _ in range(10):
                bench.clock_s[0] += 1
                yield b" "

        return httpx.Response(200, content=body())

    bench.server.faults["GET nodes/"] = drip
    with pytest.raises(Unreadable, match="not whole after 5 s"):
        bench.driver.observe()


def test_a_token_that_was_just_replaced_is_read_again(bench: Bench) -> None:
    def expired(request: httpx.Request) -> httpx.Response:
        del bench.server.faults["GET nodes/"]
        bench.token_file.write_text("second.secret.token\n")
        return FAULTS["bad token"](request)

    bench.server.faults["GET nodes/"] = expired
    used: list[str] = []
    bench.server.faults["GET reservations/"] = lambda request: (
        used.append(request.headers["X-SLURM-USER-TOKEN"]) or bench.server.read("reservations/")
    )
    assert bench.driver.observe().nodes
    assert used == ["second.secret.token"]


@pytest.mark.parametrize("content", [None, "", "two words", "line\nline"])
def test_no_token_is_unknown_not_a_crash(bench: Bench, content: str | None) -> None:
    bench.token_file.unlink()
    if content is not None:
        bench.token_file.write_text(content)
    with pytest.raises(Unreadable, match="token"):
        bench.driver.observe()
    with pytest.raises(CallFailed, match="token"):
        bench.driver.drain(["gpu-1"], MARK, "why")


def test_a_token_that_nobody_renews_is_said_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Log:
        def error(self, event: str, **fields: object) -> None:
            said.append(f"{event} {fields}")

    monkeypatch.setattr(token, "_log", Log())
    claims = base64.urlsafe_b64encode(json.dumps({"exp": NOW.timestamp() + 60, "sun": "bridge"}).encode())
    bench.token_file.write_text(f"head.{claims.decode().rstrip('=')}.signature")
    bench.driver.observe()
    bench.driver.observe()
    assert len(said) == 1
    assert "slurm_token_not_renewed" in said[0]
    assert "'left_s': 60" in said[0]
    assert "signature" not in said[0]


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "a.!!.c", "a.bnVsbA.c", "a.e30.c", "a.eyJleHAiOiAieCJ9.c"])
def test_what_is_no_jwt_has_no_expiry(text: str) -> None:
    assert token.expiry(text) is None


# --- data versions ---


def test_the_newest_version_that_both_know_is_spoken_and_asked_for_once(bench: Bench) -> None:
    bench.driver.observe()
    bench.driver.observe()
    pings = [call for call in bench.server.calls if "ping" in call]
    assert pings == [f"GET /slurm/v0.0.{version}/ping/" for version in (45, 44, 43, 42)]


def test_a_server_with_no_version_of_ours_is_unknown(bench: Bench) -> None:
    bench.server.version = 39
    with pytest.raises(Unreadable, match=r"v0\.0\.40 to v0\.0\.45"):
        bench.driver.observe()


def test_after_an_upgrade_of_slurmrestd_the_version_is_asked_for_again(bench: Bench) -> None:
    bench.driver.observe()
    bench.server.version = 45
    with pytest.raises(Unreadable):
        bench.driver.observe()
    assert bench.driver.observe().nodes


# --- drain and resume ---


def test_many_nodes_are_drained_in_one_call(bench: Bench) -> None:
    bench.driver.drain(["gpu-2", "gpu-1", "gpu-2"], MARK, "lent,\n  see x=y")
    reason = "bridge:k3f9q2m8x1:4:17 lent, see x=y"
    assert bench.server.writes == [("nodes/", {"name": ["gpu-1", "gpu-2"], "state": ["DRAIN"], "reason": reason})]
    assert Mark.parse(reason) == MARK


def test_before_v42_nodes_are_drained_one_by_one(bench: Bench) -> None:
    bench.server.version = 41
    bench.driver.drain(["gpu-1", "gpu-2"], MARK, "lent")
    assert [path for path, _ in bench.server.writes] == ["node/gpu-1", "node/gpu-2"]


def test_no_nodes_means_no_call(bench: Bench) -> None:
    bench.driver.drain([], MARK, "why")
    bench.driver.resume([])
    bench.driver.hold([], "bridge-h100")
    bench.driver.release([], "bridge-h100")
    assert (bench.server.writes, bench.scontrol_calls()) == ([], [])


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in {"another shape", "null list"}])
def test_a_failed_write_says_so_and_is_not_repeated(bench: Bench, fault: str) -> None:
    bench.driver.observe()
    bench.server.faults["POST nodes/"] = FAULTS[fault]
    with pytest.raises(CallFailed) as caught:
        bench.driver.drain(["gpu-1"], MARK, "why")
    assert len(bench.server.writes) == 1
    assert TOKEN not in str(caught.value)


def test_a_refused_write_has_slurms_words(bench: Bench) -> None:
    bench.server.faults["POST nodes/"] = error(2018, "Invalid node name specified", 500)
    with pytest.raises(CallFailed, match=r"Invalid node name specified \(2018\)"):
        bench.driver.drain(["gpu-9"], MARK, "why")


NOT_DRAINED = error(2028, "Invalid node state specified", 500)


def test_resuming_what_is_not_drained_is_no_failure(bench: Bench) -> None:
    bench.server.faults["POST nodes/"] = NOT_DRAINED
    bench.driver.resume(["gpu-1", "gpu-2"])
    assert bench.server.writes == [("nodes/", {"name": ["gpu-1", "gpu-2"], "state": ["RESUME"]})]


@pytest.mark.parametrize(
    ("fault", "after"),
    [
        (NOT_DRAINED, node("gpu-1", "IDLE", "DRAIN")),
        (NOT_DRAINED, node("gpu-8")),
        (error(2018, "Invalid node name specified", 500), node("gpu-1")),
    ],
)
def test_a_resume_that_left_a_node_drained_is_a_failure(bench: Bench, fault: Any, after: dict[str, Any]) -> None:
    bench.server.faults["POST nodes/"] = fault
    bench.server.nodes = [after]
    with pytest.raises(CallFailed):
        bench.driver.resume(["gpu-1"])


HOSTILE = ["gpu-1,gpu-2", "gpu-[1-9]", "../job/7", "gpu-1?x", "@all'; id; '", "ALL ", "", "--help", "gpu 1"]


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_but_a_node_name_leaves_the_driver(bench: Bench, name: str) -> None:
    driver = bench.driver
    for call in (
        lambda: driver.drain([name], MARK, "why"),
        lambda: driver.resume([name]),
        lambda: driver.hold([name], "bridge-h100"),
        lambda: driver.release([name], "bridge-h100"),
    ):
        with pytest.raises(Invalid, match="not a node name"):
            call()
    assert (bench.server.calls, bench.scontrol_calls()) == ([], [])


# --- the reservation ---


def test_the_first_hold_creates_the_reservation(bench: Bench) -> None:
    bench.driver.hold(["gpu-2", "gpu-1"], "bridge-h100")
    assert bench.scontrol_calls() == [
        ["create", "reservation", "ReservationName=bridge-h100", "Nodes=gpu-1,gpu-2", "Flags=IGNORE_JOBS,MAINT",
         "Users=bridge", "StartTime=now", "Duration=UNLIMITED"]
    ]  # fmt: skip


def test_later_ones_add_to_it_and_standing_ones_do_nothing(bench: Bench) -> None:
    bench.server.reservations = [reservation("bridge-h100", "gpu-1")]
    bench.driver.hold(["gpu-1"], "bridge-h100")
    assert bench.scontrol_calls() == []
    bench.driver.hold(["gpu-1", "gpu-2"], "bridge-h100")
    assert bench.scontrol_calls() == [
        ["update", "ReservationName=bridge-h100", "Nodes+=gpu-1,gpu-2", "Flags=IGNORE_JOBS,MAINT", "Users=bridge"]
    ]


@pytest.mark.parametrize("damage", [{"flags": ["SPEC_NODES"]}, {"users": "bridge,mallory"}])
def test_a_damaged_latch_is_repaired(bench: Bench, damage: dict[str, Any]) -> None:
    bench.server.reservations = [reservation("bridge-h100", "gpu-1", **damage)]
    bench.driver.hold(["gpu-1"], "bridge-h100")
    assert bench.scontrol_calls()[0][3:] == ["Flags=IGNORE_JOBS,MAINT", "Users=bridge"]


def test_release_of_many_is_one_call(bench: Bench) -> None:
    bench.server.reservations = [reservation("bridge-h100", "gpu-[1-4]")]
    bench.driver.release(["gpu-1", "gpu-3", "gpu-9"], "bridge-h100")
    assert bench.scontrol_calls() == [["update", "ReservationName=bridge-h100", "Nodes-=gpu-1,gpu-3"]]


def test_the_last_release_deletes_the_reservation_and_never_empties_it(bench: Bench) -> None:
    bench.server.reservations = [reservation("bridge-h100", "gpu-[1-2]")]
    bench.driver.release(["gpu-1", "gpu-2", "gpu-3"], "bridge-h100")
    assert bench.scontrol_calls() == [["delete", "ReservationName=bridge-h100"]]


def test_release_of_what_is_not_held_does_nothing(bench: Bench) -> None:
    bench.driver.release(["gpu-1"], "bridge-h100")
    bench.server.reservations = [reservation("bridge-h100", "gpu-2"), reservation("patch-day", "gpu-1")]
    bench.driver.release(["gpu-1"], "bridge-h100")
    assert bench.scontrol_calls() == []


@pytest.mark.parametrize("name", ["patch-day", "bridge", "", "xbridge-h100", "bridge-h100 Nodes=ALL", "bridge-a,b"])
def test_only_reservations_of_the_bridge_are_touched(bench: Bench, name: str) -> None:
    bench.server.reservations = [reservation("patch-day", "gpu-[1-3]")]
    for call in (bench.driver.hold, bench.driver.release):
        with pytest.raises(Invalid, match="not the bridge's"):
            call(["gpu-1"], name)
    assert bench.scontrol_calls() == []


@pytest.mark.parametrize(("days_left", "renewed"), [(300, False), (100, True)])
def test_a_reservation_past_half_of_its_year_gets_a_new_end(bench: Bench, days_left: int, renewed: bool) -> None:
    end = {"set": True, "infinite": False, "number": int((NOW + timedelta(days=days_left)).timestamp())}
    bench.server.reservations = [reservation("bridge-h100", "gpu-1", end_time=end), reservation("other", "gpu-2")]
    bench.driver.hold(["gpu-1"], "bridge-h100")
    expected = [["update", "ReservationName=bridge-h100", "EndTime=now+365days"]] if renewed else []
    assert bench.scontrol_calls() == expected
    assert bench.driver.renew_reservations() == (("bridge-h100",) if renewed else ())
    assert bench.scontrol_calls() == expected * 2


# --- what running jobs are told ---


def running(id: int, nodes: str = "gpu-1,gpu-2", **fields: Any) -> dict[str, Any]:
    return job(id, "RUNNING", nodes=nodes, requeue=True, batch_flag=True, node_count=2, **fields)


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


REQUEUED = [["requeue", "17"]]
HASTENED = [["update", "JobId=17", "StartTime=now"]]


def test_a_signal_is_for_the_batch_script_and_all_steps(bench: Bench) -> None:
    bench.server.jobs = [running(17)]
    bench.driver.signal(17, ["gpu-2"], "USR1")
    assert bench.server.signals == ["job/17?signal=USR1&flags=FULL_JOB"]
    assert bench.scontrol_calls() == []


@pytest.mark.parametrize(
    ("signal", "call"),
    [("B:USR1", "job/17?signal=USR1&flags=BATCH_JOB"), ("S:TERM", "job/17?signal=TERM")],
)
def test_a_signal_may_be_for_the_script_alone_or_for_the_steps_alone(bench: Bench, signal: str, call: str) -> None:
    bench.server.jobs = [running(17)]
    bench.driver.signal(17, ["gpu-2"], signal)
    assert bench.server.signals == [call]


def test_a_requeue_is_one_call(bench: Bench) -> None:
    """StartTime=now right behind it would be forgotten, as the job is COMPLETING."""
    bench.server.jobs = [running(17)]
    bench.driver.requeue(17, ["gpu-2"])
    assert (bench.scontrol_calls(), bench.server.signals) == (REQUEUED, [])


def test_a_requeued_job_that_waits_may_start_at_once(bench: Bench) -> None:
    bench.server.jobs = [job(17, "PENDING", requeue=True, batch_flag=True)]
    bench.driver.hasten(17)
    assert bench.scontrol_calls() == HASTENED


@pytest.mark.parametrize(
    "there",
    [[], [running(17)], [{**running(17), "job_state": ["PENDING", "COMPLETING"]}], [job(18, "PENDING")]],
    ids=["gone", "runs", "completing", "another"],
)
def test_a_job_that_does_not_wait_is_not_hastened(bench: Bench, there: list[dict[str, Any]]) -> None:
    bench.server.jobs = there
    bench.driver.hasten(17)
    assert bench.scontrol_calls() == []


def test_a_het_job_is_hastened_once_all_of_it_waits(bench: Bench) -> None:
    het = {"het_job_id": number(17)}
    leader, component = job(17, "PENDING", **het), running(18, nodes="gpu-1", **het)
    bench.server.faults["GET job/17"] = lambda _: bench.server.answer(jobs=[leader, component])
    bench.driver.hasten(17)
    assert bench.scontrol_calls() == []
    bench.server.faults["GET job/17"] = lambda _: bench.server.answer(jobs=[leader, job(18, "PENDING", **het)])
    bench.driver.hasten(17)
    assert bench.scontrol_calls() == HASTENED


@pytest.mark.parametrize(
    "there",
    [
        [],
        [job(17, "PENDING", requeue=True, batch_flag=True)],
        [running(17, nodes="gpu-7,gpu-8")],
        [{**running(17), "job_state": ["RUNNING", "COMPLETING"]}],
        [{**running(17), "job_state": ["SUSPENDED"]}],
        [{**running(17), "job_state": ["COMPLETED"]}],
        [running(18)],
    ],
    ids=["gone", "pending", "elsewhere", "completing", "suspended", "over", "another"],
)
def test_a_job_that_does_not_run_there_is_told_nothing(bench: Bench, there: list[dict[str, Any]]) -> None:
    """A requeue would revive one that is over, and end one that started again elsewhere."""
    bench.server.jobs = there
    bench.driver.signal(17, ["gpu-1", "gpu-2"], "TERM")
    bench.driver.requeue(17, ["gpu-1", "gpu-2"])
    assert (bench.server.signals, bench.scontrol_calls()) == ([], [])


@pytest.mark.parametrize("status", [404, 200])
def test_a_job_that_slurm_does_not_know_is_gone(bench: Bench, status: int) -> None:
    unknown = ({"description": "Unable to query JobId=17", "error_number": 2017, "error": "Invalid job id specified"},)
    bench.server.faults["GET job/17"] = lambda _: bench.server.answer(status, errors=unknown, jobs=[])
    bench.driver.signal(17, ["gpu-1"], "TERM")
    bench.driver.requeue(17, ["gpu-1"])
    assert (bench.server.signals, bench.scontrol_calls()) == ([], [])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_that_cannot_be_read_is_told_nothing_and_that_is_a_failure(bench: Bench, fault: str) -> None:
    bench.server.jobs = [running(17)]
    bench.server.faults["GET job/17"] = FAULTS[fault]
    for call in (lambda: bench.driver.signal(17, ["gpu-1"], "TERM"), lambda: bench.driver.requeue(17, ["gpu-1"])):
        with pytest.raises(CallFailed):
            call()
    assert (bench.server.signals, bench.scontrol_calls()) == ([], [])


@pytest.mark.parametrize("forbids", [{"requeue": False}, {"batch_flag": False}])
def test_a_job_that_may_not_be_requeued_is_not(bench: Bench, forbids: dict[str, Any]) -> None:
    bench.server.jobs = [{**running(17), **forbids}]
    with pytest.raises(CallFailed, match="may not be requeued"):
        bench.driver.requeue(17, ["gpu-1"])
    assert bench.scontrol_calls() == []


def test_the_task_that_bears_its_arrays_id_is_told_alone(bench: Bench) -> None:
    """By the bare id Slurm would understand all tasks of the array."""
    bench.server.jobs = [running(17, array_job_id=number(17), array_task_id=number(0))]
    bench.driver.signal(17, ["gpu-1"], "TERM")
    bench.driver.requeue(17, ["gpu-1"])
    assert bench.server.signals == ["job/17_0?signal=TERM&flags=FULL_JOB"]
    assert bench.scontrol_calls()[0] == ["requeue", "17_0"]


def test_a_het_job_goes_by_its_leader_wherever_its_components_run(bench: Bench) -> None:
    het = {"het_job_id": number(17)}
    leader, component = running(17, nodes="gpu-7", **het), running(18, nodes="gpu-1", **het)
    bench.server.faults["GET job/17"] = lambda _: bench.server.answer(jobs=[leader, component])
    bench.driver.requeue(17, ["gpu-1"])
    assert bench.scontrol_calls() == REQUEUED


@pytest.mark.parametrize(("code", "fails"), [(0, False), (2017, False), (2020, False), (2021, False), (2002, True)])
def test_a_refused_signal_stands_beside_an_empty_list_of_errors(bench: Bench, code: int, fails: bool) -> None:
    bench.server.jobs = [running(17)]
    refused = [{"step_id": "17", "error": {"string": "Access/permission denied", "code": code}}]
    bench.server.faults["DELETE job/17"] = lambda _: httpx.Response(200, json={"status": refused, "errors": []})
    if not fails:
        bench.driver.signal(17, ["gpu-1"], "TERM")
        return
    with pytest.raises(CallFailed, match=r"Access/permission denied \(2002\)"):
        bench.driver.signal(17, ["gpu-1"], "TERM")


@pytest.mark.parametrize(
    "signal",
    ["NOSUCH", "KILL", "RTMIN+1", "term", "USR1&flags=HURRY", "TERM/../18", "", "B:KILL", "X:USR1", "B:S:HUP"],
)
def test_an_unknown_signal_never_leaves_the_driver(bench: Bench, signal: str) -> None:
    """slurmrestd says no to a signal that it does not know, and cancels the job."""
    bench.server.jobs = [running(17)]
    with pytest.raises(CallFailed, match="is no signal for a job"):
        bench.driver.signal(17, ["gpu-1"], signal)
    assert bench.server.signals == []


@pytest.mark.parametrize("id", [0, -1, True, "17", "17;x", 17.0])
def test_nothing_but_a_job_id_leaves_the_driver(bench: Bench, id: Any) -> None:
    with pytest.raises(Invalid):
        bench.driver.requeue(id, ["gpu-1"])
    with pytest.raises(Invalid):
        bench.driver.signal(id, ["gpu-1"], "TERM")
    with pytest.raises(Invalid):
        bench.driver.hasten(id)
    assert bench.server.calls == []


def test_a_refused_requeue_is_a_failure_and_hurries_nothing(bench: Bench) -> None:
    bench.server.jobs = [running(17)]
    bench.scontrol_says(exit_code=1, err="Job is pending execution for job 17\n")
    with pytest.raises(CallFailed, match="Job is pending execution"):
        bench.driver.requeue(17, ["gpu-1"])
    assert bench.scontrol_calls() == [["requeue", "17"]]


# --- scontrol ---


def test_the_token_is_in_the_environment_and_nowhere_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_SACK_KEY", "/etc/slurm/slurm.key")
    bench.scontrol_says(exit_code=1, err="Error creating the reservation: Requested nodes are busy\n")
    with pytest.raises(CallFailed, match="Requested nodes are busy") as caught:
        bench.driver.hold(["gpu-1"], "bridge-h100")
    (environment,) = bench.scontrol_environments()
    assert environment["SLURM_JWT"] == TOKEN
    assert "SLURM_SACK_KEY" not in environment
    assert TOKEN not in str(bench.scontrol_calls())
    assert TOKEN not in str(caught.value)
    assert TOKEN not in "".join(capsys.readouterr())


@pytest.mark.parametrize("out", ["", "slurm_update: something else\n"])
def test_an_exit_code_of_zero_alone_is_not_believed(bench: Bench, out: str) -> None:
    bench.scontrol_says(exit_code=0, out=out)
    with pytest.raises(CallFailed, match="exit code 0"):
        bench.driver.hold(["gpu-1"], "bridge-h100")


def test_scontrols_grumbling_about_its_configuration_is_no_failure(bench: Bench) -> None:
    bench.scontrol_says(out="Reservation created: bridge-h100\n", err='scontrol: error: "Include" failed in file\n')
    bench.driver.hold(["gpu-1"], "bridge-h100")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/nonexistent/scontrol",), "could not be run"),
        (("sh", "-c", "exec sleep 9"), r"did not end within 0\.2 s: outcome unknown"),
    ],
)
def test_a_scontrol_that_cannot_run_or_never_ends(tmp_path: Path, command: tuple[str, ...], words: str) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    settings = SlurmSettings(slurm_token_file=token_file, slurm_scontrol=command, slurm_timeout_s=0.2)
    driver = SlurmRestDriver(settings, now=lambda: NOW, transport=httpx.MockTransport(Slurmrestd()))
    with pytest.raises(CallFailed, match=words):
        driver.hold(["gpu-1"], "bridge-h100")


def test_an_unreadable_reservation_is_never_written(bench: Bench) -> None:
    bench.server.faults["GET reservations/"] = FAULTS["200 with errors"]
    for call in (bench.driver.hold, bench.driver.release):
        with pytest.raises(CallFailed):
            call(["gpu-1"], "bridge-h100")
    assert bench.scontrol_calls() == []


# --- a long queue ---


def detail_reads(bench: Bench) -> list[int]:
    return sorted(int(call.rsplit("/", 1)[1]) for call in bench.server.calls if "/job/" in call)


@pytest.fixture
def long_queue(bench: Bench) -> Bench:
    pending = [job(id, tres_per_node="gres/gpu:8") for id in range(1000, 1450)]
    running = [job(id, "RUNNING", nodes=f"gpu-{id}") for id in (1, 2, 3)]
    bench.server.jobs = [*running, *pending]
    return bench


def settle(bench: Bench) -> None:
    for _ in range(5):
        bench.driver.observe()
    bench.server.calls.clear()


def test_a_long_queue_is_never_read_whole(long_queue: Bench) -> None:
    seen = long_queue.driver.observe()
    assert "GET /slurm/v0.0.42/jobs/" not in long_queue.server.calls
    assert {job.id for job in seen.jobs if job.nodes} == {1, 2, 3}
    assert len(detail_reads(long_queue)) == 103
    for _ in range(4):
        seen = long_queue.driver.observe()
    assert len(seen.jobs) == 453


def test_only_what_changed_is_read_again(long_queue: Bench) -> None:
    settle(long_queue)
    long_queue.driver.observe()
    assert detail_reads(long_queue) == []
    long_queue.server.jobs[3].update(job_state=["RUNNING"], nodes="gpu-9")
    long_queue.server.jobs.append(job(5000))
    del long_queue.server.jobs[0]
    seen = {job.id: job for job in long_queue.driver.observe().jobs}
    assert detail_reads(long_queue) == [1000, 5000]
    assert seen[1000].nodes == ("gpu-9",)
    assert 1 not in seen


def test_what_a_pending_job_waits_for_is_half_a_minute_old_at_most(long_queue: Bench) -> None:
    settle(long_queue)
    for pending in long_queue.server.jobs:
        pending["state_reason"] = "Resources"
    long_queue.clock_s[0] += 31
    for _ in range(5):
        seen = long_queue.driver.observe()
    assert {job.waits_for for job in seen.jobs if job.state == "PENDING"} == {"Resources"}


def test_what_the_user_of_a_running_job_changes_is_a_minute_old_at_most(long_queue: Bench) -> None:
    """A report of a checkpoint changes no state."""
    settle(long_queue)
    long_queue.server.jobs[1].update(comment="bridge: saved=1796201113", requeue=True, batch_flag=True)
    long_queue.driver.observe()
    assert detail_reads(long_queue) == []
    long_queue.clock_s[0] += 61
    seen = {job.id: job for job in long_queue.driver.observe().jobs}
    assert (seen[2].comment, seen[2].may_requeue) == ("bridge: saved=1796201113", True)
    assert set(detail_reads(long_queue)) >= {1, 2, 3}
    long_queue.server.calls.clear()
    long_queue.driver.observe()
    assert not {1, 2, 3}.intersection(detail_reads(long_queue))


def test_running_jobs_are_read_again_a_few_at_a_time(long_queue: Bench) -> None:
    long_queue.server.jobs += [job(id, "RUNNING", nodes="gpu-9") for id in range(100, 197)]
    settle(long_queue)
    long_queue.clock_s[0] += 61
    reads = []
    for _ in range(5):
        long_queue.driver.observe()
        reads.append({id for id in detail_reads(long_queue) if id < 1000})
        long_queue.server.calls.clear()
    assert [len(each) for each in reads] == [25, 25, 25, 25, 0]
    assert len(set[int]().union(*reads)) == 100


@pytest.mark.parametrize("state", ["SUSPENDED", "COMPLETING", "BEWITCHED"])
def test_a_job_in_any_odd_state_is_read_every_time(long_queue: Bench, state: str) -> None:
    long_queue.server.jobs[1].update(job_state=[state], nodes="gpu-7")
    settle(long_queue)
    long_queue.server.jobs[1].update(nodes="gpu-8")
    seen = {job.id: job for job in long_queue.driver.observe().jobs}
    assert detail_reads(long_queue) == [2]
    assert (seen[2].state, seen[2].nodes) == (state, ("gpu-8",))


@pytest.mark.parametrize(("before_s", "passed_s", "up_s"), [(3600, 1, 0), (5, 50, 40)], ids=["at once", "unseen"])
def test_after_a_restart_of_slurmctld_all_that_runs_is_read_anew(
    long_queue: Bench, before_s: int, passed_s: int, up_s: int
) -> None:
    """It lost the last seconds before a crash, and has started the job again, on another node."""
    long_queue.server.uptime_s = before_s
    settle(long_queue)
    long_queue.clock_s[0] += passed_s
    long_queue.server.uptime_s = up_s - passed_s
    long_queue.server.jobs[1].update(nodes="gpu-8")
    long_queue.driver.observe()  # slurmctld is not believed yet
    seen = {job.id: job for job in long_queue.driver.observe().jobs}
    assert seen[2].nodes == ("gpu-8",)
    long_queue.server.calls.clear()
    long_queue.driver.observe()
    assert not {1, 2, 3}.intersection(detail_reads(long_queue)), "once"


def test_a_requeued_job_no_longer_holds_its_nodes(long_queue: Bench) -> None:
    settle(long_queue)
    long_queue.server.jobs[0].update(job_state=["PENDING"], nodes="")
    seen = {job.id: job for job in long_queue.driver.observe().jobs}
    assert (seen[1].state, seen[1].nodes) == ("PENDING", ())


def test_busy_jobs_that_take_too_long_are_unknown_and_the_next_reading_goes_on(long_queue: Bench) -> None:
    for waiting in long_queue.server.jobs[3:]:
        waiting.update(job_state=["RUNNING"], nodes="gpu-1")

    def slowly(request: httpx.Request) -> httpx.Response:
        long_queue.clock_s[0] += 0.02
        return long_queue.server.read(request.url.path.removeprefix("/slurm/v0.0.42/"))

    for busy in long_queue.server.jobs:
        long_queue.server.faults[f"GET job/{busy['job_id']}"] = slowly
    with pytest.raises(Unreadable, match="of 453 busy jobs are still to be read"):
        long_queue.driver.observe()
    assert len(long_queue.driver.observe().jobs) == 453


@pytest.mark.parametrize("kin", [{"het_job_id": 600}, {"array_job_id": 600}])
def test_het_components_and_array_tasks_are_counted_once(long_queue: Bench, kin: dict[str, int]) -> None:
    parts = [job(id, "RUNNING", nodes=f"gpu-{id}", **kin) for id in (600, 601)]
    long_queue.server.jobs += parts
    long_queue.server.faults["GET job/600"] = lambda request: Slurmrestd.answer(jobs=parts)
    for _ in range(5):
        seen = long_queue.driver.observe()
    assert [(job.id, job.nodes) for job in seen.jobs if job.id in (600, 601)] == [
        (600, ("gpu-600",)),
        (601, ("gpu-601",)),
    ]


def test_a_throttle_counts_running_siblings_in_a_long_queue_too(long_queue: Bench) -> None:
    array = {"array_job_id": 600, "array_max_tasks": 4}
    tasks = [job(id, "RUNNING", nodes="gpu-9", **array) for id in (601, 602, 603)]
    tasks.append(job(600, array_task_string="3-9%4", **array))
    long_queue.server.jobs[3:3] = tasks
    long_queue.server.faults["GET job/600"] = lambda request: Slurmrestd.answer(jobs=tasks)
    seen = {job.id: job for job in long_queue.driver.observe().jobs}
    assert seen[600].task_count == 1


def test_a_busy_job_without_a_record_is_unknown(long_queue: Bench) -> None:
    long_queue.server.faults["GET job/2"] = lambda request: Slurmrestd.answer(jobs=[])
    with pytest.raises(Unreadable, match="no record of it"):
        long_queue.driver.observe()


def test_a_busy_job_that_ended_between_two_reads_is_gone(long_queue: Bench) -> None:
    over = job(2, "COMPLETED", nodes="gpu-2")
    long_queue.server.faults["GET job/2"] = lambda request: Slurmrestd.answer(jobs=[over])
    assert {job.id for job in long_queue.driver.observe().jobs if job.nodes} == {1, 3}


# --- the field's cases, as far as only the driver can tell ---


@pytest.mark.parametrize("fault", ["time-out", "unknown path", "200 with errors", "bad token", "no token", "half JSON"])
def test_s2_a_failed_read_of_nodes_proves_nothing_about_any_node(bench: Bench, fault: str) -> None:
    """A failed node read is taken as "gone" or "drained"."""
    bench.server.nodes[0] = node("gpu-1", "IDLE", "DRAIN", reason=f"{MARK} lent", reason_set_by_user="bridge")
    bench.server.faults["GET nodes/"] = FAULTS[fault]
    with pytest.raises(Unreadable) as caught:
        bench.driver.observe()
    mine = Node("gpu-1", "gpu-1", "gpu-1.testbed", "h100", 8)
    facts = slurm_facts(NodeRecord(mine), None, Closure("gpu-1", Side.SLURM, MARK), caught.value, (), settle_s=5)
    assert facts == SideFacts(unknown=str(caught.value))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fault", ["bad token", "no token"])
def test_s11_an_expired_token_fails_every_read_and_write_aloud(bench: Bench, fault: str, path: str) -> None:
    """The token expires in the night; nothing fails loudly."""
    bench.driver.observe()
    bench.server.faults[f"GET {path}"] = bench.server.faults["POST nodes/"] = FAULTS[fault]
    with pytest.raises(Unreadable, match=r"token|authentication"):
        bench.driver.observe()
    with pytest.raises(CallFailed, match=r"token|authentication"):
        bench.driver.drain(["gpu-1"], MARK, "why")


def test_s15_an_array_of_1000_tasks_is_one_read_and_1000_tasks(long_queue: Bench) -> None:
    """A job array of 1,000 tasks counts as one job, or as 1,000 separate polls."""
    tasks = {"array_job_id": 9000, "array_task_string": "0-999"}
    long_queue.server.jobs.append(job(9000, tres_per_node="gres/gpu:8", **tasks))
    settle(long_queue)
    seen = {job.id: job for job in long_queue.driver.observe().jobs}
    assert seen[9000].task_count == 1000
    assert len(seen) == 454
    assert detail_reads(long_queue) == []


def test_s16_of_100_000_jobs_a_pass_reads_what_may_hold_a_node_and_a_hundred_more(bench: Bench) -> None:
    """The queue holds 100,000 jobs; each cycle fetches all of it and the controller slows down. Counted, not timed."""
    running = [job(id, "RUNNING", nodes=f"gpu-{id}") for id in (1, 2, 3)]
    bench.server.jobs = [*running, *(job(id) for id in range(1000, 101_000))]
    by_id = {found["job_id"]: found for found in bench.server.jobs}
    whole = bench.server.read
    bench.server.read = (
        lambda path: (  # type: ignore[method-assign]
            bench.server.answer(jobs=[by_id[int(path[4:])]]) if path.startswith("job/") else whole(path)
        )
    )
    for reads in (103, 100, 100):
        bench.server.calls.clear()
        bench.driver.observe()
        assert len(detail_reads(bench)) == reads
        assert "GET /slurm/v0.0.42/jobs/" not in bench.server.calls
        assert len(bench.server.calls) <= reads + 4 + 4
