"""pyslurm in a process of its own.

Its calls hold the interpreter for as long as slurmctld is silent, importing it ends the process where slurm.conf is
missing, and it changes how libraries are loaded. A broker that lives with that would stop to answer and lose its lease;
so what is asked has a time-out, and who does not answer in time is killed and started anew for the next call.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Protocol

START_S = 10
"""How much longer the first call to a new process may take: a busy machine needs seconds to load it."""


class Refused(Exception):
    """slurmctld said no. `number` is its own for it; below 1000 it is the C library's."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(f"{words} ({number})" if number > 0 else words)
        self.number = number


class Silent(Exception):
    """There was no answer, and so no knowing what happened."""


class AsksPyslurm(Protocol):
    """One of `pyslurm_calls.CALLS` by name. Raises `Refused` or `Silent`."""

    def __call__(self, name: str, *arguments: object) -> bytes: ...

    def close(self) -> None: ...


def outcome(kind: str, value: object) -> bytes:
    """What `pyslurm_calls.answer` gave, or the error that it stands for."""
    if kind == "refused" and isinstance(value, tuple):
        raise Refused(*value)
    if kind != "done" or not isinstance(value, bytes | None):
        raise Silent(str(value))
    return value or b""


class PyslurmProcess:
    """Each call is answered within `timeout_s`, one that starts the process within `START_S` more, or is `Silent`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def __call__(self, name: str, *arguments: object) -> bytes:
        with self._lock:
            try:
                timeout_s = self._timeout_s if self._pipe else self._timeout_s + START_S
                pipe = self._connected()
                pipe.send((name, arguments))
                if not pipe.poll(timeout_s):
                    raise TimeoutError(f"pyslurm did not answer within {timeout_s:g} s")
                kind, value = pipe.recv()
            except (EOFError, OSError) as why:
                raise Silent(self._stopped(why)) from why
        return outcome(kind, value)

    def close(self) -> None:
        with self._lock:
            self._stopped(EOFError())

    def _connected(self) -> Connection:
        if self._pipe is None:
            self._pipe, theirs = multiprocessing.Pipe()
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                    [sys.executable, "-P", "-m", "bridge.slurm.pyslurm_calls", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
        return self._pipe

    def _stopped(self, why: Exception) -> str:
        """End the process, if it has not ended by itself, and say what became of it."""
        words, process = str(why), self._process
        if isinstance(why, EOFError | ConnectionError) and process is not None:
            words = f"the process of pyslurm ended with exit code {_exit_code(process)}"
        if process is not None:
            process.kill()
            process.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None
        return words


def _exit_code(process: subprocess.Popen[bytes]) -> int | str:
    try:
        return process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return "unknown"
