"""The simulated Kubernetes keeps the contract that the real one is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from bridge.model.errors import CallFailed
from bridge.simulation.cluster import Deployment, Pod
from bridge.simulation.world import World
from tests.contracts.kube import KubePortContract, KubeWorld
from tests.contracts.kube_facts import KubeFacts, KubeFactsWorld

_T = TypeVar("_T")


class SimulatedKubeWorld:
    """One node, on which Slurm is out of the way."""

    def __init__(self) -> None:
        self._world = World(seed=1, nodes=1, exact=True)
        self._world.slurm.admin_reserve("elsewhere", ["gpu-1"])
        self.kube = self._world.kube
        self._cluster = self._world.kube.cluster
        self.node = "gpu-1.testbed"

    # --- time ---

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        deadline_s = self._world.clock.monotonic_s() + 60
        assert self._world.run(deadline_s, stop_when=lambda: bool(check())), f"after 60 s still not: {what}"
        return check()

    def settle(self) -> None:
        self._world.run(self._world.clock.monotonic_s() + 30)

    # --- pods ---

    def start_pod(self, name: str, *, gpus: int = 1, stays: bool = False) -> str:
        return self._start(Deployment(name, replicas=1, gpus=gpus, finalizer=stays))

    def end_pod(self, key: str) -> None:
        self.hold_pod(key, False)

    def ask_for_gpus(self, name: str, gpus: int) -> None:
        self._cluster.apply(Deployment(name, replicas=1, gpus=gpus))

    def start_daemon(self, name: str, *, infrastructure: bool) -> str:
        namespace = "plugins" if infrastructure else "default"
        if infrastructure:
            self._cluster.infrastructure.add(namespace)
        return self._start(Deployment(name, replicas=0, gpus=0, namespace=namespace, kind="DaemonSet"))

    def run_to_its_end(self, name: str) -> str:
        key = self._start(Deployment(name, replicas=1, gpus=1, kind="Job"))
        self._cluster.finish(self._pod(key))
        return key

    def start_stubborn_pod(self, name: str, *, grace_s: int) -> str:
        return self._start(Deployment(name, replicas=1, gpus=1, shutdown_s=grace_s))

    def budget(self, name: str) -> str:
        self._change(name, min_available=1)
        return name

    def lift_budget(self, name: str) -> None:
        self._change(name, min_available=0)

    def hold_pod(self, key: str, on: bool) -> None:
        if on:
            self._pod(key).finalizer = True
        else:
            self._cluster.drop_finalizer(self._pod(key))

    def delete_pod(self, key: str) -> None:
        self._cluster.delete(self._pod(key))

    def pod_exists(self, key: str) -> bool:
        return key in self._cluster.pods

    def admits_pod(self) -> bool:
        return not self._cluster.fenced(self.node, "default")

    def _start(self, deployment: Deployment) -> str:
        self._cluster.apply(deployment)

        def ready() -> Pod | None:
            return next((pod for pod in self._cluster.of(deployment.key) if pod.ready), None)

        pod = self.until(f"a pod of {deployment.key} is ready", ready)
        assert pod is not None
        return pod.key

    def _change(self, name: str, **fields: int) -> None:
        self._cluster.apply(replace(self._cluster.deployments[f"default/{name}"], **fields))

    def _pod(self, key: str) -> Pod:
        return self._cluster.pods[key]

    # --- the node and what stands on it ---

    def untaint(self) -> None:
        self._cluster.set_taint(self.node, "")

    def cordon(self, on: bool) -> None:
        self._cluster.cordon(self.node, on)

    def fence_entry(self) -> str:
        return self._cluster.fence.get(self.node, "")

    def write_fence_entry(self, entry: str) -> None:
        self._cluster.set_fence(self.node, entry)

    def delete_fence(self) -> None:
        self._cluster.empty_fence()

    def delete_loan(self, *, annotated: bool) -> str:
        try:
            self.kube.delete_loan(self.node, annotated=annotated)
        except CallFailed as refusal:
            return str(refusal)
        return ""

    def delete_node(self) -> None:
        self._cluster.remove_node(self.node)

    def return_node(self) -> None:
        self._cluster.return_node(self.node)

    def lose_kubelet(self) -> None:
        self._cluster.lose_kubelet(self.node)

    def return_kubelet(self) -> None:
        self._cluster.return_kubelet(self.node)


class TestSimulatedKube(KubePortContract):
    @pytest.fixture
    def world(self) -> KubeWorld:
        return SimulatedKubeWorld()


class TestSimulatedKubeFacts(KubeFacts):
    @pytest.fixture
    def world(self) -> KubeFactsWorld:
        return SimulatedKubeWorld()
