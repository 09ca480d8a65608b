"""The commands of ``bridgectl uninstall --check`` on a real control plane: taken as they are said, nothing is left."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.kube import names
from bridge.kube.marks import connect_and_read
from bridge.model.kube import LoanSpec
from bridge.model.ownership import Mark, Owner
from bridge.planning.leftovers import Leftover, LeftoverKind, SlurmMarks, commands, leftovers
from bridge.settings import KubeSettings
from tests.integration.control_plane import ControlPlane, control_plane
from tests.integration.kube_world import pod_body, running_cluster

MARK = Mark("lease0001", 2, 5)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("kube")) as plane:
        yield plane


def standing(plane: ControlPlane) -> tuple[Leftover, ...]:
    found = connect_and_read(KubeSettings(kubeconfig=plane.kubeconfig))
    assert found.unread == ()
    return leftovers(SlurmMarks(), found)


def kinds(found: tuple[Leftover, ...]) -> set[LeftoverKind]:
    return {each.kind for each in found}


def run_as_said(plane: ControlPlane, command: str) -> str:
    """The command in a shell whose ``kubectl`` is this control plane's; what it said when it failed."""
    tool = plane.folder / "kubectl"
    tool.write_text(f'#!/bin/sh\nexec {plane.binary} kubectl --kubeconfig={plane.kubeconfig} "$@"\n')
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{plane.folder}:{os.environ['PATH']}"}
    deadline_s = time.monotonic() + 60
    with subprocess.Popen(["sh", "-c", command], env=environment, stderr=subprocess.PIPE, text=True) as process:
        while not _ended(process):
            assert time.monotonic() < deadline_s, f"does not end: {command}"
            play_kubelet(plane)
        assert process.stderr is not None
        return "" if process.returncode == 0 else f"{command}: {process.stderr.read()}"


def _ended(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        return False
    return True


def play_kubelet(plane: ControlPlane) -> None:
    """Pods of the bridge that are told to end do so, which takes a kubelet."""
    api = plane.connect()
    path = f"/api/v1/namespaces/{names.NAMESPACE}/pods"
    for pod in api.call("GET", path)["items"]:
        if pod["metadata"].get("deletionTimestamp"):
            api.call("DELETE", f"{path}/{pod['metadata']['name']}", query={"gracePeriodSeconds": "0"})
    api.close()


def test_a_cluster_that_never_had_the_bridge_has_nothing_of_it(plane: ControlPlane) -> None:
    assert standing(plane) == ()


def test_what_is_said_removes_it_all(plane: ControlPlane) -> None:
    with running_cluster(plane) as cluster:
        world = cluster.world()
        pod = pod_body("model", world.node, annotations={names.EVICT: "true"})
        cluster.admin.call("POST", f"/api/v1/namespaces/{world.namespace}/pods", body=pod)
        world.kube.want([LoanSpec(world.node, Owner.BRIDGE, MARK, 8)])
        world.until("closed", lambda: world.seen().status.closed)
        world.kube.inspect(world.node, "nonce0001")
    assert kinds(found := standing(plane)) == {
        *(LeftoverKind.NAMESPACE, LeftoverKind.ADMISSION, LeftoverKind.RESOURCE, LeftoverKind.DEFINITION),
        *(LeftoverKind.RIGHTS, LeftoverKind.TAINT, LeftoverKind.ANNOTATION, LeftoverKind.LABEL),
    }
    assert [run_as_said(plane, command) for command in commands(found)] == [""] * len(commands(found))
    assert standing(plane) == ()
    # Not only by our own eyes; what remembers are fields' owners, and what kubectl keeps of the last `apply`.
    everything = plane.kubectl(
        *("get", "-A", "-o", "yaml", "nodes,pods,namespaces,crd,clusterroles,clusterrolebindings,priorityclasses"),
    ).stdout
    lines = (line.strip() for line in everything.splitlines() if "slurm-kube" in line)
    assert [line for line in lines if not line.startswith(("f:", '{"apiVersion"'))] == []


def test_without_the_rights_of_an_admin_it_is_unknown(plane: ControlPlane) -> None:
    """As a service account that may list nothing."""
    found = connect_and_read(KubeSettings(kubeconfig=nobody(plane)))
    assert found.objects == ()
    assert len(found.unread) > 10
    assert all("403 Forbidden" in why for why in found.unread)


def nobody(plane: ControlPlane) -> Path:
    token = plane.kubectl("create", "token", "default").stdout.strip()
    admin = plane.kubeconfig.read_text()
    written = plane.folder / "nobody.kubeconfig"
    written.write_text(admin.replace("admin-token-of-a-test", token))
    return written
