"""Pauses of everything, of a pool and of a node: what runs goes on, nothing new begins where one covers it."""

from __future__ import annotations

import pytest

from bridge.model.handoff import Step
from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner, Side
from bridge.model.pause import EVERYTHING, Reach, Scope
from tests.simulation.fleet import Fleet

POOL = Scope(Reach.POOL, "shared")


def pause(fleet: Fleet, scope: Scope) -> None:
    fleet.ledger.pause("bad switch", actor="oncall", at=fleet.world.clock.now(), scope=scope)


def resume(fleet: Fleet, scope: Scope) -> None:
    fleet.ledger.resume(actor="oncall", at=fleet.world.clock.now(), scope=scope)


@pytest.mark.parametrize("scope", [EVERYTHING, POOL])
def test_nothing_begins_until_the_pause_ends_and_what_runs_goes_on(scope: Scope) -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.CLEAN), "gpu-1 is under way")
    pause(fleet, scope)
    fleet.deploy("chat", replicas=2)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 arrives all the same")
    refused = fleet.order(Side.KUBERNETES, "gpu-2")
    fleet.run_for(60)
    assert fleet.owned(Owner.KUBERNETES) == ["gpu-1"]
    answered = fleet.ledger.request(refused.id)
    assert answered is not None
    assert (answered.state, answered.answer.partition(": `")[2]) == (RequestState.REFUSED, f"{scope.ended_by}` first")
    resume(fleet, scope)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 2, "a second node follows")


def test_another_node_goes_instead_of_a_paused_one() -> None:
    """Its pause also outlives its broker, and one of another pool stops nothing."""
    fleet = Fleet()
    fleet.settle()
    pause(fleet, Scope(Reach.NODE, "gpu-1"))
    pause(fleet, Scope(Reach.POOL, "another"))
    fleet.reconciler = fleet.new_broker()
    fleet.deploy("chat", replicas=3)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 3, "three nodes are lent")
    assert fleet.owned(Owner.SLURM) == ["gpu-1"]
    fleet.deploy("more", replicas=1)
    fleet.run_for(60)
    assert fleet.owned(Owner.SLURM) == ["gpu-1"]
    resume(fleet, Scope(Reach.NODE, "gpu-1"))
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 4, "the last one follows")
