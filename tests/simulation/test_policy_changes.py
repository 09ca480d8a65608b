"""A dry run of a policy against the simulated world: what it lists is what then moves, and nothing before."""

from __future__ import annotations

from bridge.model.ownership import Owner, Side
from bridge.model.policy import Policy
from tests.simulation.fleet import Fleet

LENDING = {"demand_age_s": 1, "idle_age_s": 1, "min_hold_s": 30, "kubernetes": {"floor_nodes": 2}}


def apply(fleet: Fleet, policy: Policy, *, leaving: str = "") -> None:
    state = fleet.ledger.read()
    nodes = [record.node for name, record in state.nodes.items() if name != leaving]
    fleet.ledger.apply_policy(
        policy, nodes, replaces=state.policy_version, author="test", note="", at=fleet.world.clock.now()
    )


def test_what_the_dry_run_lists_is_what_moves_when_it_is_applied() -> None:
    fleet = Fleet(home="slurm")
    fleet.settle()
    fleet.run_for(35)
    policy = fleet.world.policy(**LENDING)
    assert fleet.reconciler.preview().moves == ()
    moves = fleet.reconciler.preview(policy, fleet.world.nodes).moves
    assert [(len(move.nodes), move.destination) for move in moves] == [(1, Side.KUBERNETES)] * 2
    fleet.run_for(10)
    assert fleet.owned(Owner.SLURM) == [node.name for node in fleet.world.nodes]
    apply(fleet, policy)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 2, "two nodes lent")
    assert fleet.owned(Owner.KUBERNETES) == sorted(name for move in moves for name in move.nodes)


def test_nothing_is_planned_for_a_node_that_leaves_by_the_same_policy() -> None:
    fleet = Fleet(home="slurm")
    fleet.settle()
    fleet.run_for(35)
    policy = fleet.world.policy(**{**LENDING, "kubernetes": {"floor_nodes": 4}})
    staying = fleet.world.nodes[1:]
    moves = fleet.reconciler.preview(policy, staying).moves
    assert sorted(name for move in moves for name in move.nodes) == [node.name for node in staying]


def test_a_side_that_is_unknown_is_said_and_nothing_is_planned() -> None:
    fleet = Fleet(home="slurm")
    fleet.settle()
    fleet.run_for(35)
    fleet.world.faults.away("slurm.observe")
    found = fleet.reconciler.preview(fleet.world.policy(**LENDING), fleet.world.nodes)
    assert found.moves == ()
    assert [(why.subject, "slurm" in why.reason) for why in found.whys] == [("everything", True)]


def test_a_pool_by_partition_has_the_nodes_that_slurm_says() -> None:
    fleet = Fleet()
    (pool,) = fleet.world.policy(nodes=(), all_of_partition=True).pools
    assert fleet.reconciler.members(pool) == tuple(node.slurm_name for node in fleet.world.nodes)


def test_a_timetable_moves_nodes_by_itself() -> None:
    """Simulations begin on a Monday at midnight, UTC."""
    timetable = [{"name": "early", "from": "00:10", "until": "00:20", "kubernetes_floor_nodes": 1}]
    fleet = Fleet(home="slurm", timetable=timetable)
    fleet.settle()
    fleet.run_for(590 - fleet.world.clock.monotonic_s())
    assert fleet.owned(Owner.KUBERNETES) == []
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "the floor of the timetable", within_s=60)
