"""How the inventory of shared nodes follows a policy: who joins, who changes, who leaves, and who may not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bridge.model.errors import Invalid
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Lease, Node
from bridge.model.policy import Policy


@dataclass(frozen=True, slots=True)
class InventoryChange:
    """What has to be written. `leaving` are names; their live leases end with them, their history stays."""

    joining: tuple[Node, ...]
    changing: tuple[Node, ...]
    leaving: tuple[str, ...]


def inventory_change(
    old: Policy,
    new: Policy,
    nodes: Sequence[Node],
    records: Mapping[str, NodeRecord],
    leases: Mapping[str, Lease],
    moving: Collection[str],
) -> InventoryChange:
    """The way from `records` to the inventory `nodes` of the pools of `new`.

    Raises `Invalid` when `nodes` contradict each other or the policy, or when a node that leaves, changes its pool or
    is renamed has to stay as it is (`why_it_stays`).
    """
    _consistent(new, nodes)
    wanted = {node.name: node for node in nodes}
    leaving = tuple(sorted(records.keys() - wanted.keys()))
    joining = tuple(node for node in nodes if node.name not in records)
    changing = tuple(node for node in nodes if node.name in records and records[node.name].node != node)
    uprooted = [*leaving, *(node.name for node in changing if _is_uprooted(records[node.name].node, node))]
    kept = [
        f"{name} {why}"
        for name in uprooted
        if (why := why_it_stays(old, records[name].node, leases.get(name), moving=name in moving))
    ]
    if kept:
        raise Invalid(
            f"these nodes cannot leave or be renamed now: {'; '.join(kept)}. Move them to their home side first"
        )
    return InventoryChange(joining, changing, leaving)


def _consistent(policy: Policy, nodes: Sequence[Node]) -> None:
    pools = {pool.name for pool in policy.pools}
    strangers = sorted({node.pool for node in nodes} - pools)
    if strangers:
        raise Invalid(f"nodes of a pool that the policy does not have: {', '.join(strangers)}")
    for what in ("name", "slurm_name", "kube_name"):
        twice = sorted(name for name, times in Counter(getattr(node, what) for node in nodes).items() if times > 1)
        if twice:
            raise Invalid(f"{what} used by more than one node: {', '.join(twice)}")
    nameless = [node for node in nodes if not (node.name and node.slurm_name and node.kube_name)]
    if nameless or any(node.gpus < 1 for node in nodes):
        raise Invalid("every node needs a name on both sides and at least one GPU")


def _is_uprooted(before: Node, after: Node) -> bool:
    return (before.pool, before.slurm_name, before.kube_name) != (after.pool, after.slurm_name, after.kube_name)


def why_it_stays(old: Policy, node: Node, lease: Lease | None, *, moving: bool) -> str:
    """Why `node` may not leave, change its pool or be renamed now; empty when it may. `moving`: a live handoff has it.

    Nobody would close a node again that is open to the side which is not its home in `old`, nor end a handoff of a node
    that is gone. One that is nobody's is closed on both sides and stays so, by marks that drift then tells of: a broken
    machine can go.
    """
    if moving:
        return "is in motion"
    pool = old.pool(node.pool)
    if pool is not None and lease is not None and lease.owner.side is pool.home.other:
        return f"is lent to {lease.owner}"
    return ""
