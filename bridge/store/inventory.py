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
    is renamed is in `moving` (has a live handoff) or is lent: owned by the side that is not its pool's home in `old`.
    Its marks outside carry the old names, and would be orphaned.
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
        if (why := _why_not(name, old, records[name].node, leases.get(name), moving)) is not None
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


def _why_not(name: str, old: Policy, node: Node, lease: Lease | None, moving: Collection[str]) -> str | None:
    if name in moving:
        return "is in motion"
    pool = old.pool(node.pool)
    if pool is not None and lease is not None and lease.owner.side is pool.home.other:
        return f"is lent to {lease.owner}"
    return None
