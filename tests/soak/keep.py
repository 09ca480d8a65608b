"""What stays of a soak in ``build/soak``: the report, and of a failed one everything that helps to find out why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.e2e.testbed import REPOSITORY, STATE, container, run
from tests.soak.play import Recorded

OUT = REPOSITORY / "build" / "soak"
LINES = 20_000
"""Of a container's log, from its end."""
CONTAINERS = (
    *("broker", "slurm-agent", "slurmctld", "slurmrestd", "postgres", "kube", "infra-1"),
    *("gpu-1", "gpu-2", "gpu-3", "gpu-4"),
)


def remember(report: Mapping[str, Any], recorded: Recorded) -> None:
    """The report, what happened when, and who was seen where."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    (OUT / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    _lines("mishaps.jsonl", map(asdict, recorded.troubles))
    _lines("failures.jsonl", recorded.people.failures if recorded.people else ())
    _lines("events.jsonl", recorded.events)
    _lines("looks.jsonl", ([look.at_s, look.node, sorted(look.jobs), sorted(look.pods)] for look in recorded.looks))


def keep(recorded: Recorded) -> None:
    """Leaders, nodes, jobs, and the logs of all parts."""
    _lines("leaders.jsonl", recorded.leaders)
    _lines("nodes.jsonl", recorded.nodes)
    _lines("jobs.jsonl", ({**asdict(record), "nodes": sorted(record.nodes)} for record in recorded.records))
    for service in CONTAINERS:
        said = run("sh", "-c", f"docker logs --timestamps --tail {LINES} {container(service)} 2>&1", check=False)
        (OUT / f"{service}.log").write_text(said)
    kubectl = (str(STATE / "kubectl"), "--kubeconfig", str(STATE / "admin.kubeconfig"), "-n", "slurm-kube-bridge")
    for workload in ("node-controller", "inspector"):
        pods = ("-l", f"app.kubernetes.io/name={workload}", "--prefix", f"--tail={LINES}", "--timestamps")
        (OUT / f"{workload}.log").write_text(run(*kubectl, "logs", *pods, check=False))


def _lines(name: str, rows: Iterable[object]) -> None:
    Path(OUT / name).write_text("".join(f"{json.dumps(row, default=str)}\n" for row in rows))
