"""The command that a training job runs itself, with its user's rights and no broker: it has saved its state."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from typing import Annotated

import typer

from bridge.cli.failures import REFUSED, USAGE, CliError
from bridge.cli.output import print_line
from bridge.planning.wishes import reported

TIMEOUT_S = 60


def checkpoint(
    job: Annotated[
        str | None, typer.Option(help="The job, or a task as 17_3; the one it runs in when left out")
    ] = None,
    every_s: Annotated[
        float | None, typer.Option(min=1, max=999_999_999, help="How often it will save its state from now on")
    ] = None,
) -> None:
    """Report from within a Slurm job that it has saved its state, so that ending it now loses little.

    Writes `saved=SECONDS` into the job's comment, as its user may; nothing else of the comment changes.
    """
    address = job or _own_address()
    if not address or not address.replace("_", "", 1).isdigit():
        raise CliError(USAGE, "this is no Slurm job", remedy="run it in a job, or name one with --job")
    comment = _slurm("squeue", "--noheader", f"--jobs={address}", "--states=all", "--format=%k").split("\n")[0].strip()
    said = reported("" if comment == "(null)" else comment, datetime.now(UTC), every_s)
    _slurm("scontrol", "update", f"JobId={address}", f"Comment={said}")
    print_line(f"job {address}: {said}")


def _own_address() -> str:
    """By its bare id a task of an array may mean all tasks: the last one to start bears the array's own id."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def _slurm(*command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - a list, no shell
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CliError(REFUSED, f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        raise CliError(REFUSED, f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
