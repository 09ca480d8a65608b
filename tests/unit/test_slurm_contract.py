"""The simulated Slurm passes the suite that the real one passes (see tests/integration/test_slurmrestd.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from bridge.ports import SlurmPort
from bridge.simulation.slurm import JobRequest
from bridge.simulation.world import World
from tests.contracts.slurm import SlurmPortContract, SlurmWorld

_T = TypeVar("_T")


class _Simulated:
    reservation = "bridge-shared"

    def __init__(self) -> None:
        self._world = World(seed=1, exact=True, strict=False)
        self.slurm: SlurmPort = self._world.slurm
        self.nodes = tuple(node.slurm_name for node in self._world.nodes)

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        for _ in range(600):
            if found := check():
                return found
            self._world.clock.advance(0.1)
        raise AssertionError(f"not within a minute: {what}")

    def settle(self) -> None:
        self._world.clock.advance(10)

    def submit(self, nodes: int) -> int:
        return self._world.slurm.submit(JobRequest(nodes=nodes, duration_s=86_400))

    def cancel(self, job: int) -> None:
        self._world.slurm.cancel(job)

    def admin_drain(self, node: str, reason: str) -> None:
        self._world.slurm.admin_drain(node, reason)

    def admin_resume(self, node: str) -> None:
        self._world.slurm.admin_resume(node)


class TestSimulatedSlurm(SlurmPortContract):
    @pytest.fixture
    def world(self) -> SlurmWorld:
        return _Simulated()
