"""The embedded Postgres: found again after a crash, stopped with its last user, private, and clear in its refusals."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bridge.model.errors import Invalid
from bridge.store import embedded

USE = """
import sys
from pathlib import Path
from bridge.store import embedded, migrate
from bridge.store.postgres import PostgresLedger
url = embedded.start(Path(sys.argv[1]))
migrate.upgrade(url)
ledger = PostgresLedger(url)
print(ledger.campaign("broker", 0.000001), flush=True)
ledger.close()
sys.stdin.read()
"""
WAIT_S = 60


class Process:
    """A process that uses the server until it is told to end."""

    def __init__(self, data_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", USE, str(data_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def epoch(self) -> int:
        """The epoch it led in, once it has."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate(timeout=WAIT_S)
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=WAIT_S)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="bridge-"))
    folder.chmod(0o755)
    yield folder / "pg"
    shutil.rmtree(folder)


def answers(data_dir: Path) -> bool:
    try:
        psycopg.connect(host=str(data_dir), user="postgres", dbname="bridge", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def test_the_server_outlives_a_kill_and_stops_with_its_last_user(data_dir: Path) -> None:
    killed = Process(data_dir)
    assert killed.epoch() == 1
    killed.kill()
    assert answers(data_dir)

    first, second = Process(data_dir), Process(data_dir)
    assert sorted([first.epoch(), second.epoch()]) == [2, 3]
    first.end()
    assert answers(data_dir)
    second.end()
    assert not answers(data_dir)

    again = Process(data_dir)
    assert again.epoch() == 4
    again.end()
    assert not answers(data_dir)


def test_only_its_owner_comes_near_it(data_dir: Path) -> None:
    process = Process(data_dir)
    assert process.epoch() == 1
    try:
        assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
        with psycopg.connect(host=str(data_dir), user="postgres", dbname="bridge") as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            methods = connection.execute("SELECT DISTINCT type, auth_method FROM pg_hba_file_rules").fetchall()
        assert methods == [("local", "peer")]
    finally:
        process.end()


def test_a_path_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="shorter"):
        embedded.start(tmp_path / ("x" * 100))


def test_data_of_another_version_is_left_alone(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "PG_VERSION").write_text("12\n")
    with pytest.raises(Invalid, match="made by Postgres 12"):
        embedded.start(data_dir)
    assert [path.name for path in data_dir.iterdir()] == ["PG_VERSION"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_a_folder_that_the_servers_user_cannot_reach_is_said_and_not_opened(data_dir: Path) -> None:
    data_dir.parent.chmod(0o700)
    with pytest.raises(Invalid, match=f"chmod o\\+x {data_dir.parent}"):
        embedded.start(data_dir)
    assert stat.S_IMODE(data_dir.parent.stat().st_mode) == 0o700
