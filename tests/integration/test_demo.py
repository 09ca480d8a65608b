"""``bridgectl demo`` as a newcomer meets it: started in an empty folder, read through a pipe."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.demo.pace import LATEST_S, Pace

BRIDGECTL = Path(sys.executable).with_name("bridgectl")
FAST = ("--speed", "5000")
DEADLINE_S = 120
MOVE = re.compile(r"^\d\d:\d\d  move  (gpu[^:]*): (slurm|kubernetes) -> (slurm|kubernetes): (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not below pytest's own folder: as root Postgres runs as another user, who may not pass through that."""
    with tempfile.TemporaryDirectory(prefix="demo-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def said(folder: Path) -> str:
    return play(folder, *FAST)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def start(folder: Path, *options: str, port: int = 0) -> subprocess.Popen[str]:
    """Port 0 takes a free one, so that tests may run side by side."""
    environment = {"PATH": f"{BRIDGECTL.parent}:/usr/sbin:/usr/bin:/sbin:/bin", "BRIDGE_API_PORT": str(port)}
    return subprocess.Popen(
        [BRIDGECTL, "demo", *options],
        cwd=folder,
        env={**environment, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def play(folder: Path, *options: str, port: int = 0) -> str:
    demo = start(folder, *options, port=port)
    try:
        said, _ = demo.communicate(timeout=DEADLINE_S)
    finally:
        demo.kill()
    assert demo.returncode == 0, said
    return said


def read_until(demo: subprocess.Popen[str], last: str) -> str:
    """What the demo says up to the line that contains `last`. One that is too late is ended, and so fails."""
    assert demo.stdout is not None
    lines: list[str] = []
    too_late = threading.Timer(DEADLINE_S, demo.kill)
    too_late.start()
    try:
        while not (lines and last in lines[-1]):
            line = demo.stdout.readline()
            assert line, f"ended, or took longer than {DEADLINE_S} s, without '{last}':\n{''.join(lines)}"
            lines.append(line)
    finally:
        too_late.cancel()
    return "".join(lines)


def test_the_days_are_lively_and_the_summary_adds_up(said: str) -> None:
    assert "The ledger is on Postgres" in said
    moves = MOVE.findall(said)
    assert len(moves) >= 10
    assert {destination for _, _, destination, _ in moves} == {"slurm", "kubernetes"}
    assert any(names.count("gpu-") >= 2 and destination == "slurm" for names, _, destination, _ in moves)
    for side in ("slurm", "kubernetes"):
        nodes = sum(names.count("gpu-") for names, _, destination, _ in moves if destination == side)
        row = re.search(rf"^to {side} +(\d+) +\d+ +(\d+) +\d+ +[\d.]+ s +[\d.]+ s$", said, re.MULTILINE)
        assert row, said
        assert [int(number) for number in row.groups()] == [
            sum(destination == side for _, _, destination, _ in moves),
            nodes,
        ]
    starts = re.search(r"^double bookings: 0 \((\d+) starts", said, re.MULTILINE)
    assert starts, said
    assert int(starts[1]) > 40
    waits = re.findall(r"^(jobs|pods), to .+? +(\d+) +(\d+) +[\d.]+ s +[\d.]+ s$", said, re.MULTILINE)
    assert [(what, int(served) > 10) for what, _, served in waits] == [("jobs", True), ("pods", True)]


def test_the_excerpt_in_the_readme_is_what_it_says(said: str) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    excerpt = re.findall(r"^\d\d:\d\d  .+$", readme, re.MULTILINE)
    assert len(excerpt) >= 5
    assert [line for line in excerpt if line not in said.splitlines()] == []


def test_its_sentences_are_whole_and_its_grammar_holds(said: str) -> None:
    begins = re.compile(
        r"\d\d:\d\d  |\d small days|Slurm and|The ledger|API on|Minutes|to |handoffs|waits|jobs|pods|node|double"
    )
    assert [line for line in said.splitlines() if line and not begins.match(line)] == []
    assert re.findall(r"\b1 (?:nodes|jobs|pods|usable nodes)\b", said) == []
    assert "Deployment default/chat waits for 1 node" in said


def test_kept_up_the_commands_it_prints_work(folder: Path, taken_port: int) -> None:
    demo = start(folder, *FAST, "--keep", port=taken_port)
    try:
        said = read_until(demo, "handoffs --watch")
        assert f"Port {taken_port} is taken" in said
        commands = re.findall(r"^  (BRIDGE_URL=http://127\.0\.0\.1:\d+ bridgectl .+)$", said, re.MULTILINE)
        assert [command.split()[2] for command in commands][:2] == ["nodes", "plan"]
        answers = [_run(command, folder) for command in commands]
        assert re.findall(r"^gpu-\d", answers[0], re.MULTILINE) == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
        assert answers[2].startswith("accepted: handoffs ")
        read_until(demo, "(ordered by demo)")
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=DEADLINE_S) == 0
    finally:
        demo.kill()
        demo.communicate()


def _run(command: str, folder: Path) -> str:
    ran = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={"PATH": f"{BRIDGECTL.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
    return ran.stdout


def test_where_postgres_cannot_run_the_ledger_is_in_memory_and_the_same_seed_gives_the_same_days(
    folder: Path, said: str
) -> None:
    deep = folder / ("too-long-for-a-socket" * 5)
    deep.mkdir()
    in_memory = play(deep, *FAST)
    assert "Postgres cannot run here, so the ledger is kept in memory: " in in_memory
    assert "double bookings: 0 " in in_memory
    assert MOVE.findall(in_memory) == MOVE.findall(said)
    assert MOVE.findall(play(deep, *FAST, "--seed", "4")) != MOVE.findall(said)


def test_make_demo_calls_it_with_what_it_was_given() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    plan = subprocess.run(
        ["make", "--dry-run", "demo", "KEEP=1", "SEED=7"],
        cwd=Path(__file__).parents[2],
        env={"PATH": os.environ["PATH"]},  # without what an outer make says to inner ones
        capture_output=True,
        text=True,
        check=True,
    )
    assert plan.stdout.splitlines()[-1] == ".venv/bin/bridgectl demo --keep --seed 7"


# --- speed means speed ---


class Stopwatch:
    """A monotonic clock that sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds


def test_work_between_the_sleeps_does_not_make_simulated_time_lag() -> None:
    watch = Stopwatch()
    pace = Pace(watch.monotonic_s, watch.sleep)
    for work_s in (0.3, 0.0, 1.4, 0.1, 0.0):
        watch.now_s += work_s
        pace(1.0)
    assert watch.now_s == pytest.approx(55)


def test_a_suspended_machine_is_not_made_up_for() -> None:
    watch = Stopwatch()
    pace = Pace(watch.monotonic_s, watch.sleep)
    watch.now_s += 3600
    woken_s = watch.now_s
    for _ in range(10):
        pace(1.0)
    assert watch.now_s - woken_s == pytest.approx(10 - 1 - LATEST_S)
