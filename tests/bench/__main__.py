"""``python -m tests.bench`` measures planning, reading and submitting, and writes ``build/bench/*.json``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bridge.wiring import collect_rarely
from tests.bench import observation_kube, observation_slurm, planning, submission

OUT = Path(__file__).parents[2] / "build" / "bench"


def main() -> None:
    """One core, and the garbage collector as it is in production."""
    collect_rarely()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = planning.rows()
    write("plan.json", found)
    sys.stdout.write(planning.growth(found) + "\n")
    seen = [*observation_slurm.rows(), *observation_kube.rows()]
    write("observation.json", seen)
    sys.stdout.writelines(f"{row}\n" for row in seen)
    submitted = submission.rows()
    write("submission.json", submitted)
    sys.stdout.writelines(f"{row}\n" for row in submitted)


def write(name: str, rows: Sequence[Mapping[str, object]]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
