"""The pyslurm driver keeps the contract of the Slurm port: on a stand-in with the simulated Slurm behind it."""

from __future__ import annotations

import pytest

from bridge.settings import SlurmSettings
from bridge.slurm.pyslurm import PyslurmDriver
from tests.contracts.slurm import SlurmPortContract, SlurmWorld
from tests.unit import pyslurm_standin
from tests.unit.test_simulated_slurm_contract import SimulatedSlurmWorld


class PyslurmWorld:
    """The simulated Slurm's levers, and another port to it."""

    def __init__(self) -> None:
        simulated = SimulatedSlurmWorld()
        self.nodes, self.reservation = simulated.nodes, simulated.reservation
        self.until, self.settle, self.submit, self.cancel = (
            *(simulated.until, simulated.settle),
            *(simulated.submit, simulated.cancel),
        )
        self.admin_drain, self.admin_resume = simulated.admin_drain, simulated.admin_resume
        clock = simulated._world.clock
        self.slurm = PyslurmDriver(
            SlurmSettings(),
            now=clock.now,
            monotonic_s=clock.monotonic_s,
            pyslurm=pyslurm_standin.InProcess(pyslurm_standin.make(simulated.slurm)),
            scontrol=pyslurm_standin.StandInScontrol(simulated.slurm),
        )


class TestPyslurm(SlurmPortContract):
    @pytest.fixture
    def world(self) -> SlurmWorld:
        return PyslurmWorld()
