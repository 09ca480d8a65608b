"""The simulated Kubernetes keeps the contract of the port."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from bridge.simulation.cluster import Deployment
from bridge.simulation.kube import SimulatedKube
from bridge.simulation.world import World
from tests.contracts.kube import KubePortContract

_T = TypeVar("_T")


class SimulatedKubeWorld:
    """`tests.contracts.kube.KubeWorld` on simulated time."""

    node = "gpu-1.testbed"

    def __init__(self) -> None:
        self._world = World(seed=1, nodes=1, exact=True)
        self._world.slurm.admin_reserve("elsewhere", ["gpu-1"])
        self.kube: SimulatedKube = self._world.kube

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        for _ in range(600):
            if result := check():
                return result
            self._pass(0.1)
        raise AssertionError(f"not within a simulated minute: {what}; last seen: {check()!r}")

    def settle(self) -> None:
        self._pass(5)

    def start_pod(self, name: str, *, gpus: int = 1, stays: bool = False) -> str:
        cluster = self.kube.cluster
        before = set(self.kube.observe().nodes[self.node].work_pods)
        cluster.apply(Deployment(name, replicas=1, gpus=gpus))
        (key,) = self.until(f"pod of {name}", lambda: set(self.kube.observe().nodes[self.node].work_pods) - before)
        cluster.pods[key].finalizer = stays
        return key

    def end_pod(self, key: str) -> None:
        self.kube.cluster.drop_finalizer(self.kube.cluster.pods[key])

    def ask_for_gpus(self, name: str, gpus: int) -> None:
        self.kube.cluster.apply(Deployment(name, replicas=1, gpus=gpus))

    def _pass(self, seconds: float) -> None:
        self._world.run(self._world.clock.monotonic_s() + seconds)


class TestSimulatedKube(KubePortContract):
    @pytest.fixture
    def world(self) -> SimulatedKubeWorld:
        return SimulatedKubeWorld()
