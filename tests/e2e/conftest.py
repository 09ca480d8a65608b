"""The testbed, reset before each test and searched for double booking after it; the report on handoffs at the end."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.testbed import REPOSITORY, STATE, Json, Testbed

REPORT = REPOSITORY / "build" / "e2e" / "handoffs.json"
MEASURED: dict[str, list[float]] = {"to_kubernetes": [], "to_slurm": [], "to_kubernetes_by_requeue": []}
"""Seconds from the decision to a Ready pod, and from the decision to Slurm IDLE, for idle nodes; the last one to a
Ready pod where a job was signalled and requeued after a grace of 3 s."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def _testbed() -> Iterator[Testbed]:
    assert (STATE / "admin.kubeconfig").exists(), "the testbed is not up: run `make testbed-up BRIDGE=1`"
    testbed = Testbed()
    yield testbed
    _write_report(testbed)


@pytest.fixture
def testbed(_testbed: Testbed) -> Iterator[Testbed]:
    """Everything home and idle; afterwards, no GPU was held twice."""
    for service in ("slurmrestd", "kube", "broker"):
        _testbed.unpause(service)
    for service in ("broker", "slurm-agent"):
        _testbed.start(service)
    _testbed.reset()
    yield _testbed
    assert _testbed.evidence() == "", "a GPU was held by two at once"


@pytest.fixture
def measured() -> dict[str, list[float]]:
    return MEASURED


def _write_report(testbed: Testbed) -> None:
    ids = [item["id"] for item in testbed.bridge.handoffs(limit=500)]
    details = [testbed.bridge.get(f"/v1/handoffs/{id}") for id in ids]
    report = {
        "handoffs": [_row(detail) for detail in details],
        "summary": {k: _summary(v) for k, v in MEASURED.items()},
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")


def _row(detail: Json) -> Json:
    return {
        "node": detail["node"],
        "direction": f"to_{detail['destination']}",
        "reason": detail["reason"],
        "outcome": detail["step"],
        "steps": [{"step": step["step"], "duration_s": step["duration_s"]} for step in detail["steps"]],
    }


def _summary(seconds: list[float]) -> Json:
    return {
        "count": len(seconds),
        "p50_s": round(statistics.median(seconds), 3) if seconds else None,
        "max_s": round(max(seconds), 3) if seconds else None,
    }
