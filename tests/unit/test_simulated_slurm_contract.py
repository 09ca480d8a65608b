"""The simulated Slurm keeps the contract that the real one is held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from bridge.simulation.slurm import JobRequest
from bridge.simulation.world import World
from tests.contracts.slurm import SlurmPortContract, SlurmWorld

_T = TypeVar("_T")


class SimulatedSlurmWorld:
    """Four nodes, on which Kubernetes is out of the way."""

    def __init__(self) -> None:
        self._world = World(seed=1, nodes=4, exact=True)
        for node in self._world.nodes:
            self._world.kube.cluster.set_taint(node.kube_name, "elsewhere")
        self.slurm = self._world.slurm
        self.nodes = tuple(node.slurm_name for node in self._world.nodes)
        self.reservation = "bridge-contract"

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        deadline_s = self._world.clock.monotonic_s() + 60
        assert self._world.run(deadline_s, stop_when=lambda: bool(check())), f"after 60 s still not: {what}"
        return check()

    def settle(self) -> None:
        self._world.run(self._world.clock.monotonic_s() + 10)

    def submit(self, nodes: int, *, requeue: bool = True, exits_on_signal: bool = False) -> int:
        return self.slurm.submit(
            JobRequest(nodes=nodes, duration_s=1_000_000, may_requeue=requeue, exits_on_signal=exits_on_signal)
        )

    def cancel(self, job: int) -> None:
        self.slurm.cancel(job)

    def admin_drain(self, node: str, reason: str) -> None:
        self.slurm.admin_drain(node, reason)

    def admin_resume(self, node: str) -> None:
        self.slurm.admin_resume(node)


class TestSimulatedSlurm(SlurmPortContract):
    @pytest.fixture
    def world(self) -> SlurmWorld:
        return SimulatedSlurmWorld()
