"""The inspector against real processes that hold a real device: /dev/full, which nothing else uses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.inspector.scan import devices, holders
from bridge.model.errors import Unreadable
from bridge.model.kube import DeviceHolder

FULL = {os.stat("/dev/full").st_rdev: "/dev/full"}


@contextmanager
def process(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child that runs `script`, which prints a line when it has got where it is going."""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline(), "the child ended before it was ready"
        yield child
    finally:
        child.kill()
        child.communicate()


HOLDS = "import sys; device = open('/dev/full'); print('ready', flush=True); sys.stdin.read()"
HOLDS_NOTHING = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process table that shows the processes of a test and no others: not each machine lets its root see all."""
    return tmp_path


def show(proc: Path, *pids_shown: int) -> Path:
    for pid in pids_shown:
        (proc / str(pid)).symlink_to(f"/proc/{pid}")
    return proc


def pids(found: tuple[DeviceHolder, ...]) -> list[int]:
    return [holder.pid for holder in found]


def test_a_process_in_a_session_of_its_own_is_found(proc: Path) -> None:
    with process(HOLDS) as child:
        (found,) = holders(show(proc, child.pid), FULL)
        assert found.pid == child.pid
        assert found.device == "/dev/full"
        assert found.user == f"uid {os.getuid()}"
        assert found.command.startswith(sys.executable)


def test_a_process_that_holds_other_files_is_not(proc: Path) -> None:
    with process(HOLDS_NOTHING) as child:
        assert pids(holders(show(proc, child.pid), FULL)) == []


def test_a_holder_that_ended_is_not(proc: Path) -> None:
    with process(HOLDS) as child:
        assert pids(holders(show(proc, child.pid), FULL)) == [child.pid]
    assert pids(holders(proc, FULL)) == []


def test_the_inspector_itself_is_not(proc: Path) -> None:
    with open("/dev/full"):
        assert pids(holders(show(proc, os.getpid()), FULL)) == []


def test_an_ignored_program_is_not(proc: Path) -> None:
    with process(HOLDS) as child:
        program = os.readlink(f"/proc/{child.pid}/exe")
        assert pids(holders(show(proc, child.pid), FULL, ignored=[program])) == []


def test_a_device_is_known_by_its_number_and_shown_by_our_name(proc: Path) -> None:
    """A container makes its own device nodes: the path under which a process opened one says nothing."""
    with process(HOLDS) as child:
        (found,) = holders(show(proc, child.pid), dict.fromkeys(FULL, "/dev/nvidia0"))
        assert found.device == "/dev/nvidia0"


def test_a_process_whose_first_thread_has_ended_is_found(proc: Path) -> None:
    """Its table of files is then only to be read by way of its other threads."""
    script = """
import ctypes, sys, threading
device = open('/dev/full')
def tell():
    with open('/proc/self/task/%d/stat' % main) as state:
        while ') Z ' not in state.read():
            state.seek(0)
    print('ready', flush=True)
    sys.stdin.read()
main = threading.get_native_id()
threading.Thread(target=tell).start()
ctypes.CDLL(None).syscall(60, 0)  # exit this thread alone
"""
    with process(script) as child:
        assert pids(holders(show(proc, child.pid), FULL)) == [child.pid]


def test_processes_that_come_and_go_while_it_looks_do_no_harm(proc: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            child = subprocess.Popen([sys.executable, "-S", "-c", "open('/dev/full')"])
            show(proc, child.pid)
            child.wait()

    with process(HOLDS) as child:
        show(proc, child.pid)
        churning = threading.Thread(target=churn)
        churning.start()
        try:
            while len(os.listdir(proc)) < 20:
                assert child.pid in pids(holders(proc, FULL))
        finally:
            stop.set()
            churning.join()


def fake_process(proc: Path, pid: int, target: str) -> Path:
    files = proc / str(pid) / "fd"
    files.mkdir(parents=True)
    (files / "3").symlink_to(target)
    (proc / str(pid) / "task").mkdir()
    (proc / str(pid) / "cmdline").write_bytes(b"python\0train.py\0")
    (proc / str(pid) / "exe").symlink_to("/usr/bin/python3")
    return files


def test_one_process_with_one_device_is_one_line(tmp_path: Path) -> None:
    files = fake_process(tmp_path, 7, "/dev/full")
    (files / "4").symlink_to("/dev/full")
    assert holders(tmp_path, FULL) == (DeviceHolder(7, "python train.py", f"uid {os.getuid()}", "/dev/full"),)


@pytest.mark.parametrize("denied", ["list the files", "follow a file"])
def test_a_process_that_may_not_be_looked_at_makes_all_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    """Root may look at everything, so the refusal of a kernel to a lesser process is played."""
    files = fake_process(tmp_path, 7, "/dev/full")

    def refuse(real: Callable[..., object], refused: Path) -> Callable[..., object]:
        def call(path: Path, *args: object, **kwargs: object) -> object:
            if Path(path) == refused:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return real(path, *args, **kwargs)

        return call

    if denied == "list the files":
        monkeypatch.setattr(os, "listdir", refuse(os.listdir, files))
    else:
        monkeypatch.setattr(os, "stat", refuse(os.stat, files / "3"))
        monkeypatch.setattr(os, "readlink", refuse(os.readlink, files / "3"))
    with pytest.raises(Unreadable, match="process 7: Permission denied"):
        holders(tmp_path, FULL)


def test_a_file_system_that_refuses_is_no_reason_to_know_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's FUSE mount refuses even root; the process itself may be looked at."""
    files = fake_process(tmp_path, 7, "/home/user/remote/data")
    (files / "4").symlink_to("/dev/full")
    real = os.stat

    def stat(path: Path, *args: object, **kwargs: object) -> object:
        if Path(path) == files / "3":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "stat", stat)
    assert pids(holders(tmp_path, FULL)) == [7]


def test_devices_are_known_by_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").symlink_to("/dev/full")
    (tmp_path / "nvidia-notes.txt").write_text("no device")
    assert devices([f"{tmp_path}/nvidia*"], root=str(tmp_path)) == dict.fromkeys(FULL, "/nvidia0")


def test_globs_that_match_no_device_are_a_mistake_and_not_a_clean_node(tmp_path: Path) -> None:
    (tmp_path / "nvidia-notes.txt").write_text("no device")
    with pytest.raises(Unreadable, match="no device file matches"):
        devices([f"{tmp_path}/nvidia*", f"{tmp_path}/other*"])
