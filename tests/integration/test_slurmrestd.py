"""The driver against a real slurmctld and slurmrestd: the testbed's (``make testbed-up``), while no bridge is at work.

BRIDGE_TESTBED_SLURM_URL and BRIDGE_TESTBED_SLURMCTLD (a container's name) point these tests at another Slurm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from bridge.model.errors import CallFailed, Unreadable
from bridge.model.slurm import SlurmObservation
from bridge.settings import SlurmSettings
from bridge.slurm.rest import SlurmRestDriver
from tests.contracts.slurm import MARK, SlurmPortContract

_T = TypeVar("_T")

pytestmark = pytest.mark.e2e

URL = os.environ.get("BRIDGE_TESTBED_SLURM_URL", "http://127.0.0.1:16820")
SLURMCTLD = os.environ.get("BRIDGE_TESTBED_SLURMCTLD", "skb-slurmctld-1")
BROKER = "skb-broker-1"
DEADLINE_S = 60


def in_slurmctld(user: str, *command: str) -> str:
    """Runs a command on the controller host as one of the testbed's users; what it printed."""
    done = subprocess.run(
        ["docker", "exec", "-u", user, "-w", "/tmp", SLURMCTLD, *command], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, f"{' '.join(command)} as {user}: {done.stdout} {done.stderr}"
    return done.stdout.strip()


class _Real:
    """Slurm in containers. The broker's token comes from the controller host, as in production."""

    reservation = "bridge-contract"

    def __init__(self, token_file: Path) -> None:
        # The container's own key would win over the token, so it is taken out of scontrol's sight.
        scontrol = (
            *("docker", "exec", "-i", "-e", "SLURM_JWT", "-u", "bridge", SLURMCTLD),
            *("env", "-u", "SLURM_SACK_KEY", "scontrol"),
        )
        self.settings = SlurmSettings(slurm_url=URL, slurm_token_file=token_file, slurm_scontrol=scontrol)
        self.slurm = SlurmRestDriver(self.settings)
        self.nodes = tuple(sorted(self.slurm.observe().nodes))

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
        while time.monotonic() < deadline:
            if found := check():
                return found
            pause.wait(0.1)
        raise AssertionError(f"not within {DEADLINE_S} s: {what}\n{in_slurmctld('slurm', 'scontrol', 'show', 'node')}")

    def settle(self) -> None:
        """Two whole passes of the scheduler from now."""
        before = self._passes()
        self.until("three more passes of the scheduler", lambda: self._passes() >= before + 3)

    @staticmethod
    def _passes() -> int:
        lines = in_slurmctld("slurm", "sdiag").splitlines()
        return int(next(line.split(":")[1] for line in lines if "Total cycles:" in line))

    def submit(self, nodes: int, *, requeue: bool = True, exits_on_signal: bool = False) -> int:
        asks = (f"--nodes={nodes}", "--gpus-per-node=8", "--exclusive", "--requeue" if requeue else "--no-requeue")
        script = "trap 'exit 0' USR1; sleep 600 & wait" if exits_on_signal else "sleep 600"
        return int(in_slurmctld("alice", "sbatch", "--parsable", *asks, "--wrap", script))

    def cancel(self, job: int) -> None:
        in_slurmctld("alice", "scancel", str(job))

    def admin_drain(self, node: str, reason: str) -> None:
        in_slurmctld("admin", "scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def admin_resume(self, node: str) -> None:
        in_slurmctld("admin", "scontrol", "update", f"NodeName={node}", "State=RESUME")

    def clear(self) -> None:
        """Everything idle, open and undrained again."""
        in_slurmctld("slurm", "scancel", "--user=alice")
        for name in self.slurm.observe().nodes:
            if "DRAIN" in self.slurm.observe().nodes[name].states:
                self.admin_resume(name)
        self.slurm.release(self.nodes, self.reservation)
        self.until("all nodes idle", self._is_clear)

    def _is_clear(self) -> bool:
        seen = self.slurm.observe()
        return all(node.states == {"IDLE"} for node in seen.nodes.values()) and not seen.jobs


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Real]:
    running = _running_containers()
    if SLURMCTLD not in running:
        pytest.skip(f"no container {SLURMCTLD}: start the testbed with make testbed-up")
    if SLURMCTLD.startswith("skb-") and BROKER in running:
        pytest.skip(f"{BROKER} is at work on these nodes and would move them: docker compose stop broker")
    token_file = tmp_path_factory.mktemp("token") / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(in_slurmctld("slurm", "cat", "/run/slurm-bridge-token/token"))
    real = _Real(token_file)
    yield real
    real.clear()
    real.slurm.close()


def _running_containers() -> set[str]:
    if shutil.which("docker") is None:
        return set()
    listed = subprocess.run(["docker", "ps", "--format", "{{.Names}}"], capture_output=True, text=True, timeout=30)
    return set(listed.stdout.split())


class TestSlurmrestd(SlurmPortContract):
    @pytest.fixture
    def world(self, slurm: _Real) -> _Real:
        slurm.clear()
        return slurm


# --- what only a real one can show ---


def driver(real: _Real, token_file: Path) -> SlurmRestDriver:
    return SlurmRestDriver(real.settings.model_copy(update={"slurm_token_file": token_file}))


@pytest.mark.parametrize("token", ["nonsense", "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjEsInN1biI6ImJyaWRnZSJ9.AAAA"])
def test_a_bad_token_reads_nothing_and_writes_nothing(slurm: _Real, tmp_path: Path, token: str) -> None:
    slurm.clear()
    (tmp_path / "token").write_text(token)
    other = driver(slurm, tmp_path / "token")
    with pytest.raises(Unreadable, match="511"):
        other.observe()
    with pytest.raises(CallFailed):
        other.drain(slurm.nodes[:1], MARK, "test")
    with pytest.raises(CallFailed):
        other.hold(slurm.nodes[:1], slurm.reservation)
    seen = slurm.slurm.observe()
    assert ("DRAIN" in seen.nodes[slurm.nodes[0]].states, seen.held) == (False, frozenset())


def test_scontrol_acts_by_the_token_alone(slurm: _Real, tmp_path: Path) -> None:
    slurm.clear()
    (tmp_path / "token").write_text("nonsense")
    other = driver(slurm, tmp_path / "token")
    with pytest.raises(CallFailed, match=r"Protocol authentication error|authentication"):
        other._scontrol("create", "reservation", f"ReservationName={slurm.reservation}", f"Nodes={slurm.nodes[0]}",
                        "Flags=MAINT,IGNORE_JOBS", "Users=bridge", "StartTime=now", "Duration=UNLIMITED")  # fmt: skip
    assert slurm.slurm.observe().held == frozenset()


def test_a_reservation_ends_in_a_year_and_is_renewed_from_half_of_it(slurm: _Real) -> None:
    slurm.clear()
    slurm.slurm.hold(slurm.nodes[:1], slurm.reservation)
    assert slurm.slurm.renew_reservations() == ()
    in_slurmctld("admin", "scontrol", "update", f"ReservationName={slurm.reservation}", "EndTime=now+100days")
    assert slurm.slurm.renew_reservations() == (slurm.reservation,)
    assert slurm.slurm.renew_reservations() == ()
    assert slurm.slurm.observe().held == {slurm.nodes[0]}


def test_a_reservation_of_somebody_else_is_neither_held_nor_touched(slurm: _Real) -> None:
    slurm.clear()
    name = "patch-day"
    in_slurmctld("admin", "scontrol", "create", "reservation", f"ReservationName={name}", f"Nodes={slurm.nodes[0]}",
                 "Flags=MAINT,IGNORE_JOBS", "Users=admin", "StartTime=now", "Duration=60")  # fmt: skip
    try:
        assert slurm.slurm.observe().held == frozenset()
        slurm.slurm.hold(slurm.nodes[:1], slurm.reservation)
        slurm.slurm.release(slurm.nodes[:1], slurm.reservation)
        assert f"ReservationName={name}" in in_slurmctld("admin", "scontrol", "show", "reservation")
    finally:
        in_slurmctld("admin", "scontrol", "delete", f"ReservationName={name}")


def test_a_reconfigured_slurmctld_is_young_again(slurm: _Real) -> None:
    slurm.clear()
    before_s = time.monotonic()
    in_slurmctld("admin", "scontrol", "reconfigure")
    seen = slurm.until("slurmctld answers again", lambda: _observation(slurm))
    assert seen.controller_up_s is not None
    assert seen.controller_up_s < time.monotonic() - before_s + 5
    slurm.until("all nodes have registered", slurm._is_clear)


def _observation(slurm: _Real) -> SlurmObservation | None:
    try:
        return slurm.slurm.observe()
    except Unreadable:
        return None


def test_arrays_het_jobs_and_holds_as_slurm_shows_them(slurm: _Real) -> None:
    slurm.clear()
    slurm.slurm.drain(slurm.nodes, MARK, "test")
    sbatch = ("sbatch", "--parsable", "--wrap", "sleep 60")
    array = int(in_slurmctld("alice", *sbatch, "--array=0-99%4", "--gpus-per-node=8"))
    held = int(in_slurmctld("alice", *sbatch, "--hold", "--gpus=16", "--nodes=2"))
    later = int(in_slurmctld("alice", *sbatch, "--begin=now+1hour"))
    alone = int(in_slurmctld("alice", *sbatch, "--no-requeue", "--exclusive", "--time=30", "--constraint=h100"))
    jobs = {job.id: job for job in slurm.slurm.observe().jobs}
    assert (jobs[array].task_count, jobs[array].node_count, jobs[array].gpus_per_node) == (4, 1, 8)
    assert (jobs[held].held, jobs[held].node_count, jobs[held].gpus_per_node) == (True, 2, 8)
    assert jobs[later].begins_at is not None
    assert jobs[later].begins_at > datetime.now(UTC) + timedelta(minutes=50)
    assert (jobs[alone].exclusive, jobs[alone].may_requeue, jobs[alone].time_limit_s) == (True, False, 1800)
    assert (jobs[alone].user, jobs[alone].account, jobs[alone].features) == ("alice", "research", "h100")
    assert jobs[array].may_requeue


def test_a_long_queue_shows_the_same_as_a_short_one(slurm: _Real, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of reading the queue, on jobs in every state that can be made at once."""
    slurm.clear()
    sbatch = ("sbatch", "--parsable", "--wrap", "sleep 600", "--gpus-per-node=8", "--exclusive")
    in_slurmctld("alice", *sbatch, "--array=0-9%2")
    suspended = in_slurmctld("alice", *sbatch)
    in_slurmctld("alice", *sbatch, f"--nodes={len(slurm.nodes)}")
    slurm.until("three run", lambda: sum(job.state == "RUNNING" for job in slurm.slurm.observe().jobs) == 3)
    in_slurmctld("admin", "scontrol", "suspend", suspended)
    whole = slurm.until("suspended", lambda: _with_state(slurm, "SUSPENDED"))
    monkeypatch.setattr("bridge.slurm.queue.WHOLE_QUEUE_JOBS", 0)
    in_parts = slurm.slurm.observe().jobs
    assert {job.id: (job.state, job.nodes, job.task_count) for job in in_parts} == {
        job.id: (job.state, job.nodes, job.task_count) for job in whole
    }
    in_slurmctld("admin", "scontrol", "resume", suspended)


def _with_state(slurm: _Real, state: str) -> tuple[object, ...]:
    jobs = slurm.slurm.observe().jobs
    return jobs if any(job.state == state for job in jobs) else ()
