"""The simulated Slurm agent: the third latch, which survives the loss of the other two and never is the outage."""

from __future__ import annotations

import pytest

from bridge.model.ledger import PutLease
from bridge.model.ownership import Lease, Owner
from bridge.simulation.agent import SimulatedAgent
from bridge.simulation.slurm import JobRequest
from bridge.simulation.world import World
from bridge.store.memory import MemoryLedger


class Stage:
    """A world whose node gpu-1 is leased to Kubernetes, and the agent that knows it."""

    def __init__(self) -> None:
        self.world = World(seed=1, nodes=2, exact=True)
        self.ledger = MemoryLedger(self.world.clock.now)
        now = self.world.clock.now()
        self.ledger.apply_policy(self.world.policy(), self.world.nodes, replaces=0, author="test", note="", at=now)
        self.epoch = self.ledger.campaign("broker", ttl_s=3600) or 0
        self.lease("gpu-1", Owner.KUBERNETES)
        self.agent = SimulatedAgent(self.world.clock, self.ledger, self.world.slurm)

    def lease(self, node: str, owner: Owner) -> None:
        before = self.ledger.read().leases.get(node)
        generation = self.ledger.next_generation()
        lease = Lease(f"lease{generation:05d}", node, owner, self.epoch, generation, self.world.clock.now())
        self.ledger.commit(self.epoch, [PutLease(lease, (before.id, before.generation) if before else None)])

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.clock.monotonic_s() + seconds)


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.agent.start()
    stage.wait(0.1)
    return stage


def test_the_fence_names_the_nodes_that_are_not_slurms_and_is_acknowledged(stage: Stage) -> None:
    assert stage.world.slurm.fence == {"gpu-1"}
    ack = stage.ledger.read().fence_ack
    assert ack is not None
    assert ack.generation == stage.ledger.read().generation


def test_a_new_owner_is_seen_at_the_next_turn(stage: Stage) -> None:
    stage.lease("gpu-1", Owner.SLURM)
    stage.lease("gpu-2", Owner.BRIDGE)
    stage.wait(1.5)
    assert stage.world.slurm.fence == {"gpu-2"}


def test_the_fence_alone_stands_when_slurm_lost_its_state(stage: Stage) -> None:
    job = stage.world.slurm.submit(JobRequest(nodes=2))
    stage.world.lose_slurm_state()
    stage.wait(30)
    assert stage.world.slurm.job(job).state == "PENDING"
    assert stage.world.oracle.evidence == []


def test_the_fence_of_a_silent_agent_is_believed_for_a_while_and_then_no_more(stage: Stage) -> None:
    stage.agent.stop()
    stage.wait(50)
    assert stage.world.slurm.fence == {"gpu-1"}
    stage.wait(20)
    assert stage.world.slurm.fence == frozenset()
    stage.agent.start()
    stage.wait(0.1)
    assert stage.world.slurm.fence == {"gpu-1"}


def test_an_agent_that_cannot_reach_the_broker_leaves_the_fence_as_it_is(stage: Stage) -> None:
    stage.ledger.away = "the database is away"
    stage.wait(30)
    assert stage.world.slurm.fence == {"gpu-1"}
    stage.ledger.away = ""
    stage.lease("gpu-1", Owner.SLURM)
    stage.wait(2)
    assert stage.world.slurm.fence == frozenset()
