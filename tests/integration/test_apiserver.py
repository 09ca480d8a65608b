"""What the node controller's writes rely on, of a real apiserver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from bridge.kube import names
from bridge.kube.connection import Connection
from tests.contracts.apiserver import ApiserverContract, Place
from tests.integration.control_plane import control_plane, eventually
from tests.integration.kube_world import our_object, pod_body


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """Of a control plane with our resources and without a node controller."""
    with control_plane(tmp_path_factory.mktemp("kube")) as plane:
        plane.install()
        # Long: the apiserver tries an eviction of another UID again and again for 10 s before it says so.
        api = Connection.open(plane.kubeconfig, timeout_s=30)
        api.call("POST", names.FENCES, body=our_object("NodeFence", "shared", {"closed": {}}))
        yield api
        api.close()


_numbers = itertools.count(1)


class TestRealApiserver(ApiserverContract):
    @pytest.fixture
    def place(self, admin: Connection) -> Place:
        node = f"gpu-{next(_numbers)}.test"
        admin.call("POST", names.NODES, body={"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        spec = {"owner": "slurm", "lease": "lease0001", "epoch": 2, "generation": 5, "gpus": 8}
        admin.call("POST", names.LOANS, body=our_object("NodeLoan", node, spec))
        pods = "/api/v1/namespaces/default/pods"
        name = f"chat-{node.removesuffix('.test')}"
        admin.call("POST", pods, body=pod_body(name, node, labels={"app": name}))
        return Place(admin, node, f"{pods}/{name}")

    @pytest.fixture
    def forbid(self, admin: Connection, place: Place) -> None:
        name = place.pod.rsplit("/", 1)[-1]
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        merge_patch = "application/merge-patch+json"
        admin.call("PATCH", f"{place.pod}/status", body={"status": status}, content_type=merge_patch)
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"keep-{name}"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
        }
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        admin.call("POST", path, body=budget)
        one = f"{path}/keep-{name}"
        eventually("the budget counts", lambda: admin.call("GET", one).get("status", {}).get("observedGeneration"))
