"""The simulated Kubernetes keeps the contract that the real one is held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from bridge.simulation.cluster import Deployment
from bridge.simulation.world import World
from tests.contracts.kube import KubePortContract, KubeWorld

_T = TypeVar("_T")


class SimulatedKubeWorld:
    """One node, on which Slurm is out of the way."""

    def __init__(self) -> None:
        self._world = World(seed=1, nodes=1, exact=True)
        self._world.slurm.admin_reserve("elsewhere", ["gpu-1"])
        self.kube = self._world.kube
        self.node = "gpu-1.testbed"

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        deadline_s = self._world.clock.monotonic_s() + 60
        assert self._world.run(deadline_s, stop_when=lambda: bool(check())), f"after 60 s still not: {what}"
        return check()

    def settle(self) -> None:
        self._world.run(self._world.clock.monotonic_s() + 30)

    def start_pod(self, name: str, *, gpus: int = 1, stays: bool = False) -> str:
        self.kube.cluster.apply(Deployment(name, replicas=1, gpus=gpus))
        (pod,) = self.until("the pod runs", lambda: self.kube.cluster.on(self.node))
        pod.finalizer = stays
        return pod.key

    def end_pod(self, key: str) -> None:
        self.kube.cluster.drop_finalizer(self.kube.cluster.pods[key])

    def ask_for_gpus(self, name: str, gpus: int) -> None:
        self.kube.cluster.apply(Deployment(name, replicas=1, gpus=gpus))


class TestSimulatedKube(KubePortContract):
    @pytest.fixture
    def world(self) -> KubeWorld:
        return SimulatedKubeWorld()
