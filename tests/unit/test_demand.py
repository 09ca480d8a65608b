"""What counts as demand, and how much."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bridge.model.kube import KubeObservation, PendingPod
from bridge.model.policy import PoolPolicy
from bridge.model.slurm import SlurmJob, SlurmObservation
from bridge.planning.demand import kube_demands, nodes_for, slurm_demands

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
POOL = PoolPolicy(name="shared", nodes=("n[1-4]",), partition="shared")
JOB = SlurmJob(17, "PENDING", "alice", "research", "shared", node_count=3, gpus_per_node=8, waits_for="Resources")


def demanded(*jobs: SlurmJob) -> list[tuple[str, int]]:
    return [(d.key, d.nodes) for d in slurm_demands(POOL, SlurmObservation(NOW, {}, jobs), NOW)]


@pytest.mark.parametrize("reason", ["Resources", "Priority", "None", "ReqNodeNotAvail, UnavailableNodes:n[1-3]", ""])
def test_a_job_that_waits_for_nodes_is_demand(reason: str) -> None:
    assert demanded(replace(JOB, waits_for=reason)) == [("job 17 of alice", 3)]


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, state="RUNNING"),
        replace(JOB, held=True),
        replace(JOB, waits_for="Dependency"),
        replace(JOB, waits_for="AssocGrpGRES"),
        replace(JOB, waits_for="QOSMaxJobsPerUserLimit"),
        replace(JOB, waits_for="JobHeldUser"),
        replace(JOB, begins_at=NOW + timedelta(seconds=1)),
        replace(JOB, partition="cpu"),
    ],
)
def test_a_job_that_nodes_would_not_help_is_not(job: SlurmJob) -> None:
    assert demanded(job) == []


def test_a_het_job_is_one_gang() -> None:
    leader, second = replace(JOB, het_job=17), replace(JOB, id=18, het_job=17, node_count=2)
    assert demanded(leader, second) == [("job 17 of alice", 5)]


def test_a_job_may_name_several_partitions() -> None:
    assert demanded(replace(JOB, partition="cpu,shared")) == [("job 17 of alice", 3)]


@pytest.mark.parametrize(
    ("pods", "nodes"),
    [([], 0), ([8], 1), ([8, 8], 2), ([4, 4], 1), ([4, 4, 1], 2), ([6, 5, 3, 2], 2), ([1] * 9, 2), ([5, 5, 5], 3)],
)
def test_pods_are_packed_into_whole_nodes(pods: list[int], nodes: int) -> None:
    assert nodes_for(pods, 8) == nodes


def test_pods_are_grouped_by_their_controller_and_one_that_fits_no_node_is_no_demand() -> None:
    pod = PendingPod("default", "chat-1", "u1", 8, "Deployment default/chat", pending_since=NOW - timedelta(seconds=9))
    pods = (
        pod,
        replace(pod, uid="u2", name="chat-2"),
        replace(pod, namespace="ml", group="Deployment ml/chat", gpus=4),
        replace(pod, group="Pod default/big", gpus=9),
    )
    found = kube_demands(POOL, KubeObservation(NOW, {}, pods), NOW)
    assert [(d.key, d.nodes) for d in found] == [("Deployment default/chat", 2), ("Deployment ml/chat", 1)]
    assert found[0].since == NOW - timedelta(seconds=9)
