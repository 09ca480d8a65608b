"""What the leader of a simulated cluster answers to "why", and that it comes true."""

from __future__ import annotations

import pytest

from bridge.model.errors import Unreadable
from bridge.model.ownership import Owner
from bridge.planning.explain import Explanation, Kind
from tests.simulation.fleet import Fleet


def told(fleet: Fleet, kind: Kind, name: str) -> Explanation:
    found = fleet.reconciler.explain(kind, name)
    assert found is not None
    return found


def test_a_gang_waits_for_busy_nodes_as_long_as_the_estimate_says() -> None:
    """Two of four nodes run a job of 300 s, the gang wants four."""
    fleet = Fleet(home="slurm")
    fleet.settle()
    fleet.sbatch(2, runs_s=300, time_limit_s=300)
    fleet.run_for(10)
    gang = fleet.sbatch(4)
    fleet.run_for(10)
    found = told(fleet, Kind.JOB, str(gang))
    assert found.obstacle is not None
    assert found.obstacle.layer == "nodes"
    assert found.obstacle.text.startswith("4 needed: 2 free on the slurm side, 0 arriving")
    assert found.estimate.basis.startswith("2 nodes are free already, 2 nodes end by their time limits within 28")
    assert not any("requeue" in remedy.command for remedy in found.remedies), "it began too short a time ago"
    fleet.run_for(found.estimate.in_s or 0)
    fleet.run_for(30)
    assert "RUNNING" in told(fleet, Kind.JOB, str(gang)).verdict


def test_a_pod_gets_a_node_and_the_node_says_where_it_is() -> None:
    fleet = Fleet(home="slurm")
    fleet.settle()
    fleet.run_for(90)
    fleet.deploy("chat", 1)
    fleet.run_until(lambda: bool(fleet.ledger.read().handoffs), "a handoff")
    (handoff,) = fleet.ledger.read().handoffs.values()
    found = told(fleet, Kind.NODE, handoff.node)
    assert found.verdict.startswith(f"node {handoff.node} belongs to nobody and stays: in motion to kubernetes")
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "the node lent")
    (pool,) = fleet.ledger.read().policy.pools
    assert "slurm owns 3, kubernetes owns 1" in told(fleet, Kind.POOL, pool.name).verdict


def test_what_waits_on_a_side_that_is_unknown_is_unknown_too() -> None:
    fleet = Fleet(home="slurm")
    fleet.settle()
    job = fleet.sbatch(4)
    fleet.world.faults.away("slurm.observe")
    with pytest.raises(Unreadable):
        fleet.reconciler.explain(Kind.JOB, str(job))
    found = told(fleet, Kind.NODE, fleet.world.nodes[0].name)
    assert "UNKNOWN on the slurm side" in found.verdict
