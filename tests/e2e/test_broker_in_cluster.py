"""The broker as a site with no host for it runs it: a Deployment of two on the cluster whose nodes it lends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.testbed import REPOSITORY, STATE, Bridge, NotYet, Testbed, eventually

NAMESPACE = ("-n", "slurm-kube-bridge")
OVERLAY = str(REPOSITORY / "k8s_manifests" / "overlays" / "testbed-broker")


@pytest.fixture
def in_cluster(testbed: Testbed) -> Iterator[Testbed]:
    """Two brokers in the cluster, on the ledger of the one in Compose, which stops once they are ready."""
    token = testbed.slurm("cat", "/run/slurm-bridge-token/token")
    files = {
        "database-password": (STATE / "postgres.password").read_text(),
        "api-tokens": (STATE / "tokens" / "all").read_text(),
        "slurm-token": token,
    }
    for name, content in files.items():
        (STATE / name).write_text(content)
    given = [f"--from-file={STATE / name}" for name in files]
    made = testbed.kube(
        *NAMESPACE, "create", "secret", "generic", "broker-secrets", *given, "--dry-run=client", "-oyaml"
    )
    try:
        testbed.kube("apply", "-f", "-", stdin=made)
        testbed.kube("apply", "--server-side", "--kustomize", OVERLAY)
        waits = ("rollout", "status", "deployment/broker", "--timeout=90s")
        testbed.kube(*NAMESPACE, *waits, timeout_s=100)
        testbed.stop("broker")
        yield testbed
    finally:
        testbed.start("broker")
        for one in (
            "deployment/broker",
            "service/broker",
            "pdb/broker",
            "networkpolicy/broker",
            "secret/broker-secrets",
        ):
            testbed.kube(*NAMESPACE, "delete", one, "--ignore-not-found")
        for name in files:
            (STATE / name).unlink()


def test_one_of_two_brokers_in_the_cluster_leads_and_the_other_takes_over(in_cluster: Testbed) -> None:
    with _reached(in_cluster) as bridge:
        first = eventually(lambda: _leading_pod(in_cluster, bridge), "a broker in the cluster leads", within_s=30)
        bridge.order("kubernetes", "gpu-1")
        eventually(lambda: bridge.at_rest("kubernetes", ["gpu-1"]), "gpu-1 is lent", within_s=120)
    in_cluster.kube(*NAMESPACE, "delete", "pod", first, "--wait=false")
    with _reached(in_cluster) as bridge:
        second = eventually(lambda: _leading_pod(in_cluster, bridge, first), "another broker leads", within_s=30)
        bridge.order("slurm", "gpu-1")
        eventually(lambda: bridge.at_rest("slurm", ["gpu-1"]), "gpu-1 is back", within_s=120)
    assert second != first


def _leading_pod(testbed: Testbed, bridge: Bridge, other_than: str = "") -> str:
    leader = bridge.get("/v1/status")["leader"] or ""
    pods = testbed.kube(*NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/name=broker", "-o", "name").split()
    if f"pod/{leader}" not in pods or leader == other_than:
        raise NotYet(f"the leader is {leader or 'nobody'}")
    return str(leader)


@contextmanager
def _reached(testbed: Testbed) -> Iterator[Bridge]:
    """The Service, by kubectl's port-forward: to one of its pods, for as long as that one lives."""
    command = [str(STATE / "kubectl"), "--kubeconfig", str(STATE / "admin.kubeconfig"), *NAMESPACE, "port-forward"]
    with subprocess.Popen([*command, "service/broker", ":80"], stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout
        said = forwarding.stdout.readline()  # "Forwarding from 127.0.0.1:43211 -> 8080"
        try:
            assert "127.0.0.1:" in said, f"kubectl port-forward: {said or 'ended'}"
            yield Bridge(f"http://{said.split()[2]}")
        finally:
            forwarding.terminate()
