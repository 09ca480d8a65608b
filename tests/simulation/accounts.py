"""Does the world agree with the ledger, once all is quiet?"""

from __future__ import annotations

from bridge.lifecycle.acts import Standing, loan_wanted
from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Mark, Node, Owner, Side
from bridge.simulation.world import World
from tests.simulation.fleet import Fleet


def at_rest(fleet: Fleet) -> bool:
    """No handoff is under way; a node that nobody owns is named with the reason."""
    state = fleet.ledger.read()
    return not state.handoffs and not nameless(state)


def nameless(state: LedgerState) -> list[str]:
    """Nodes that neither side has, without a word why."""
    return [
        name
        for name, record in state.nodes.items()
        if (name not in state.leases or state.leases[name].owner is Owner.BRIDGE) and not record.unusable
    ]


def unaccounted(fleet: Fleet) -> list[str]:
    """What stands outside and is not what the ledger says, of nodes at rest."""
    state = fleet.ledger.read()
    return [
        problem
        for node in fleet.world.nodes
        if node.name in state.leases and node.name not in state.handoffs
        for problem in (*_slurm_odd(fleet.world, state, node), *_kube_odd(fleet.world, state, node))
    ]


def _slurm_odd(world: World, state: LedgerState, node: Node) -> list[str]:
    owner, closure = state.leases[node.name].owner, state.closures.get((node.name, Side.SLURM))
    shown = world.slurm.node(node.slurm_name)
    drained_by_us = "DRAIN" in shown.states and not world.slurm.drained_by_others(node.slurm_name)
    mark = Mark.parse(shown.reason) if drained_by_us else None
    held = node.slurm_name in world.slurm.held()
    odd = []
    if mark is not None and (closure is None or closure.mark != mark):
        odd.append(f"{node.name} is drained with {mark}, the ledger knows {closure and closure.mark}")
    if held is (owner is Owner.SLURM):
        odd.append(f"{node.name} is {owner}'s and {'held' if held else 'not held'} in the reservation")
    if owner is not Owner.SLURM and "DRAIN" not in shown.states:
        odd.append(f"{node.name} is {owner}'s and not drained")
    if owner is Owner.SLURM and mark is not None:
        odd.append(f"{node.name} is Slurm's and still drained by us with {mark}")
    return odd


def _kube_odd(world: World, state: LedgerState, node: Node) -> list[str]:
    lease = state.leases[node.name]
    closures = {side: state.closures[(node.name, side)] for side in Side if (node.name, side) in state.closures}
    unseen = Sight(SideFacts(), SideFacts())
    wanted = loan_wanted(Standing(node, lease, None, closures, unseen, None))
    loan = world.kube.controller.loans.get(node.kube_name)
    odd = []
    if (loan and loan.spec) != wanted:
        odd.append(f"{node.name}: the NodeLoan is {loan and loan.spec}, the ledger wants {wanted}")
    if world.kube.open(node.kube_name) is not (lease.owner is Owner.KUBERNETES):
        odd.append(
            f"{node.name} is {lease.owner}'s and {'open' if world.kube.open(node.kube_name) else 'closed'} to pods"
        )
    return odd
