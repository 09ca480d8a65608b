"""Nodes that are held for a gang go back at its deadline, and its demand is left alone, longer at each failure."""

from __future__ import annotations

from datetime import datetime

import pytest

from bridge.model.handoff import Step
from bridge.model.ownership import Owner, Side
from bridge.model.policy import Policy
from bridge.planning.snapshot import Move, Plan, Snapshot
from bridge.reconciler import decide
from tests.simulation.fleet import Fleet

GANG = "job 30 of bob"
NODES = ("gpu-1", "gpu-2")


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Two nodes of four are Kubernetes', and a gang wants both as soon as it is not left alone."""
    fleet = Fleet(gang_deadline_s=60, gang_backoff_s=100, failure_backoff_s=0)
    fleet.settle()
    fleet.run_for(40)
    fleet.order(Side.KUBERNETES, *NODES)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == list(NODES), "two nodes are lent")

    def plan(snapshot: Snapshot, policy: Policy, now: datetime) -> Plan:
        backoff = fleet.ledger.read().backoffs.get(GANG)
        rested = [place.name for place in snapshot.places if place.usable(Side.KUBERNETES)]
        if (backoff is not None and now < backoff.until) or rested != list(NODES):
            return Plan()
        return Plan((Move(NODES, Side.KUBERNETES, Side.SLURM, "2 nodes wait", False, "policy", GANG),))

    monkeypatch.setattr(decide, "plan", plan)
    return fleet


def test_a_gang_that_cannot_be_collected_gives_back_what_it_holds(fleet: Fleet) -> None:
    fleet.deploy("chat", replicas=1)
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.CLEAN) or fleet.at_step("gpu-2", Step.CLEAN), "one is held")
    began_at = fleet.handoff("gpu-1").began_at
    fleet.run_until(lambda: len(fleet.ledger.read().backoffs) == 1, "the gang is given up")
    given_up_at = fleet.world.clock.now()
    assert 60 <= (given_up_at - began_at).total_seconds() < 65
    fleet.new_broker()  # It knows of the failure what the ledger says, and does not count it again.
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == list(NODES), "both are back")
    assert {fleet.handoff(node).step for node in NODES} == {Step.RETURNED}
    backoff = fleet.ledger.read().backoffs[GANG]
    assert backoff.failures == 1
    assert (backoff.until - given_up_at).total_seconds() == pytest.approx(100, abs=1)


def test_each_failure_doubles_the_wait_until_the_gang_is_had(fleet: Fleet) -> None:
    chat = fleet.deploy("chat", replicas=1)
    waits_s = []
    for failures in (1, 2, 3):

        def failed(failures: int = failures) -> bool:
            backoff = fleet.ledger.read().backoffs.get(GANG)
            return backoff is not None and backoff.failures == failures

        fleet.run_until(failed, f"failure {failures}", within_s=700)
        waits_s.append((fleet.ledger.read().backoffs[GANG].until - fleet.world.clock.now()).total_seconds())
    assert waits_s == [pytest.approx(100, abs=1), pytest.approx(200, abs=1), pytest.approx(400, abs=1)]
    fleet.world.kube.cluster.scale(chat, 0)
    fleet.run_until(lambda: set(NODES) <= set(fleet.owned(Owner.SLURM)), "the gang has its nodes", within_s=700)
    assert fleet.ledger.read().backoffs == {}
