"""job_submit.lua and the Prolog's fence in the real slurmctld."""

from __future__ import annotations

import json

import pytest

from tests.e2e.testbed import NotYet, Testbed, eventually


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--nodes=5",), "at most --nodes=4"), (("--nodes=1", "--gpus-per-node=9"), "at most --gpus-per-node=8")],
)
def test_a_job_that_can_never_run_is_refused_with_the_largest_that_can(
    testbed: Testbed, options: tuple[str, ...], words: str
) -> None:
    with pytest.raises(AssertionError) as refusal:
        testbed.slurm.sbatch(*options)
    assert words in str(refusal.value)


def test_a_job_in_the_shared_partition_is_tagged_for_the_bridge(testbed: Testbed) -> None:
    job = testbed.slurm.sbatch("--nodes=2")
    tag = json.loads(testbed.slurm.job(job)["admin_comment"])["bridge"]
    assert tag == {"pool": "shared", "nodes": 2, "gpus_per_node": 8}


def test_the_fence_alone_keeps_a_job_off_a_lent_node(testbed: Testbed) -> None:
    """The broker is dead and an admin has lifted both latches by mistake: DRAIN and the reservation."""
    testbed.kube.deploy("chat", replicas=1)
    [node] = eventually(lambda: testbed.kube.ready("chat", 1), "a pod holds the GPUs of a lent node")
    eventually(lambda: testbed.bridge.at_rest("kubernetes", [node]), "the handoff ends")
    eventually(lambda: _fenced(testbed, node), "the fence file names the node")
    testbed.kill("broker")
    testbed.slurm("scontrol", "delete", "reservationname=bridge-shared", user="admin")
    testbed.slurm("scontrol", "update", f"nodename={node}", "state=resume", user="admin")

    job = testbed.slurm.sbatch(f"--nodelist={node}")
    refused = eventually(lambda: _sent_back(testbed, job), "the job was started, refused and sent back to the queue")
    assert refused["job_state"] == ["PENDING"]
    assert testbed.evidence() == ""
    testbed.slurm("scancel", str(job))

    testbed.start("broker")
    eventually(lambda: _latched(testbed, node), "the bridge has closed the node again")


def _fenced(testbed: Testbed, node: str) -> None:
    fence = testbed.slurm("cat", "/var/lib/slurm-bridge/fence")
    if node not in fence.split():
        raise NotYet(f"the fence file holds {fence!r}")


def _sent_back(testbed: Testbed, job: int) -> dict[str, object]:
    shown = testbed.slurm.job(job)
    if shown["restart_cnt"] < 1 and shown["state_reason"] != "BeginTime":
        raise NotYet(f"job {job} is {shown['job_state']} because of {shown['state_reason']}")
    return shown


def _latched(testbed: Testbed, node: str) -> None:
    shown = testbed.slurm.node(node)
    reservation = testbed.slurm("scontrol", "show", "reservation", "bridge-shared", check=False)
    if "DRAIN" not in shown["state"] or not shown["reason"].startswith("bridge:") or node not in reservation:
        raise NotYet(f"{node} is {shown['state']} ({shown['reason']}), the reservation: {reservation}")
