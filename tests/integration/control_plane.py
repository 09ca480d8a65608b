"""A real Kubernetes control plane (etcd, apiserver, controller manager, scheduler) on free ports of this host.

It needs only the binary that ``testbed/bin/kube-binary`` builds. There is no kubelet: Nodes are plain objects, and a
test that needs one plays it (marks a pod as running, or lets a terminating one go).
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.kube.connection import Connection
from bridge.kube.names import NAMESPACE

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "slurm-kube-bridge"
_MANIFESTS = Path(__file__).parents[2] / "k8s_manifests"
_TOKEN = "admin-token-of-a-test"


def kube_binary() -> Path | None:
    """The newest built binary, or None when none was ever built on this machine."""
    built = sorted(_CACHE.glob("kube-*/kube"), key=lambda path: path.stat().st_mtime)
    return built[-1] if built else None


def eventually(what: str, check: Callable[[], Any], timeout_s: float = 20) -> Any:
    """The first truthy result of `check`; fails with `what` was missing and the last result."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}; last seen: {result!r}")
        time.sleep(0.02)


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane. `kubeconfig` is that of an admin."""

    binary: Path
    kubeconfig: Path
    folder: Path

    def connect(self) -> Connection:
        return Connection.open(self.kubeconfig, timeout_s=10)

    def kubectl(self, *arguments: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.binary, "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments],
            input=given,
            text=True,
            capture_output=True,
            check=check,
        )

    def install(self) -> None:
        """Apply our own manifests, as a site would, and wait until the apiserver serves and enforces them."""
        self.kubectl("apply", "-k", str(_MANIFESTS / "overlays" / "testbed"))
        self.kubectl(
            *("wait", "--for=condition=Established", "--timeout=30s", "crd"),
            *(f"{plural}.bridge.slurm-kube.io" for plural in ("nodeloans", "nodeinspections", "nodefences")),
        )

    def kubeconfig_of(self, service_account: str, **bound_to: str) -> Path:
        """A kubeconfig with a token of one of our service accounts: its RBAC is under test as well."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{service_account}/token"
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if bound_to:
            spec["boundObjectRef"] = {"apiVersion": "v1", **bound_to}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = self.connect().call("POST", path, body=body)["status"]["token"]
        server = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        written = self.folder / f"{service_account}-{bound_to.get('name', '')}.kubeconfig"
        _write_kubeconfig(written, server, token)
        return written


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Start one in `folder`; all its processes are ended on the way out. Skips the test where none was ever built."""
    binary = kube_binary()
    if binary is None:
        pytest.skip("no Kubernetes on this machine: run testbed/bin/kube-binary")
    etcd_port, peer_port, port = _free_ports(3)
    server = f"https://127.0.0.1:{port}"
    kubeconfig = folder / "admin.kubeconfig"
    _write_kubeconfig(kubeconfig, server, _TOKEN)
    (folder / "tokens").write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
    key = folder / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)

    with ExitStack() as processes:

        def start(component: str, *flags: str) -> subprocess.Popen[bytes]:
            output = processes.enter_context((folder / f"{component}.log").open("wb"))
            process = subprocess.Popen([binary, component, *flags], stdout=output, stderr=output, cwd=folder)
            processes.callback(process.wait)
            processes.callback(process.kill)
            return process

        start(
            "etcd",
            "--data-dir=etcd",
            "--unsafe-no-fsync",
            "--log-level=error",
            f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
        )
        apiserver = start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            "--cert-dir=certificates",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=Node,RBAC",
            "--token-auth-file=tokens",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
        )
        eventually("apiserver is ready", lambda: _ready(server, apiserver), timeout_s=60)
        start(
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            f"--service-account-private-key-file={key}",
            "--use-service-account-credentials=false",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            # Nobody renews these Nodes' leases: a dead kubelet is played by a test, not by the passing of time. And
            # pods may name owners that do not exist.
            "--controllers=*,-node-lifecycle-controller,-garbage-collector-controller",
        )
        start(
            "kube-scheduler",
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )
        plane = ControlPlane(binary, kubeconfig, folder)
        api = plane.connect()
        eventually(
            "the default service account exists",
            lambda: api.call("GET", "/api/v1/namespaces/default/serviceaccounts").get("items"),
            timeout_s=60,
        )
        yield plane


def _free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        taken = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in taken]


def _ready(server: str, apiserver: subprocess.Popen[bytes]) -> bool:
    if apiserver.poll() is not None:
        raise AssertionError(f"kube-apiserver ended with {apiserver.returncode}: see its log")
    unverified = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(f"{server}/readyz", timeout=2, context=unverified) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _write_kubeconfig(path: Path, server: str, token: str) -> None:
    authority = path.parent / "certificates" / "apiserver.crt"  # made by the apiserver itself at its first start
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
