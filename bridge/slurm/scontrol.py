"""``scontrol`` as a function call, for what slurmrestd and pyslurm lack.

It authenticates with the broker's JWT where there is one, which is handed over in the environment: never in the
arguments, which everyone on the machine can read, and never in a message. Without one it acts, as pyslurm does, as the
user that the broker runs as.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Protocol

from bridge.model.errors import CallFailed


class RunsScontrol(Protocol):
    """`Scontrol`, or what stands in for it."""

    def __call__(self, *arguments: str, says: str = "") -> str: ...


class Scontrol:
    """Runs `command` (``("scontrol",)`` or what wraps it) with the token of the moment; at most `timeout_s` each."""

    def __init__(self, command: Sequence[str], token: Callable[[], str] | None, timeout_s: float) -> None:
        self._command = tuple(command)
        self._token = token
        self._timeout_s = timeout_s

    def __call__(self, *arguments: str, says: str = "") -> str:
        """What it printed. `CallFailed` with scontrol's own words unless it exits with 0 and prints `says`.

        Standard error alone proves nothing: scontrol grumbles there about plugstack.conf while all went well.
        """
        wanted = " ".join(arguments[:2])
        try:
            done = subprocess.run(  # noqa: S603 - a list, no shell; every value was checked by the caller
                [*self._command, *arguments],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            raise CallFailed(f"scontrol {wanted} did not end within {self._timeout_s:g} s: outcome unknown") from error
        except (OSError, ValueError) as error:
            raise CallFailed(f"scontrol could not be run ({' '.join(self._command)}): {error}") from error
        if done.returncode != 0 or says not in done.stdout:
            words = " ".join((done.stderr or done.stdout).split()) or "it said nothing"
            raise CallFailed(f"scontrol {wanted} failed with exit code {done.returncode}: {words[:500]}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        if self._token is None:
            return dict(os.environ)
        # A key of auth/slurm in the environment would win over the token, and act as somebody else.
        inherited = {name: value for name, value in os.environ.items() if name != "SLURM_SACK_KEY"}
        return {**inherited, "SLURM_JWT": self._token()}
