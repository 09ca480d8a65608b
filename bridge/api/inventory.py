"""From a policy document to the nodes it speaks of, with every mistake named by its place in the document."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from bridge.api.problems import InputError
from bridge.model import hostlists
from bridge.model.errors import Invalid
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Node, Side
from bridge.model.policy import Policy, PoolPolicy
from bridge.planning.timetable import floors_of_a_week
from bridge.store.inventory import why_it_stays

_DNS_LABELS = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_MAX_KUBE_NAME_CHARS = 253
_MAX_ERRORS_A_POOL = 20  # one wrong kube_name is wrong for each of its nodes


class InvalidPolicy(Invalid):
    """A document that is well-formed and still cannot be: `errors` say where, what, and what to do."""

    def __init__(self, errors: list[InputError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors


Members = Callable[[PoolPolicy], Sequence[str]]
"""The nodes of a pool that one of the schedulers knows: those of its partition or with its label, by Slurm name.

Raises `Unreadable` when that scheduler cannot be read, `Invalid` when the names cannot be translated.
"""


def inventory(policy: Policy, members: Members) -> tuple[Node, ...]:
    """The nodes of all pools, in the order of the document. Raises `InvalidPolicy` with everything that is wrong.

    A node belongs to one pool, has a name that Kubernetes accepts, and the two floors of a pool fit into it at all
    hours. `members` is asked only for pools that have no host lists.
    """
    nodes: list[Node] = []
    errors: list[InputError] = []
    for index, pool in enumerate(policy.pools):
        errors += _partition(index, pool, policy)
        errors += _switches(index, pool)
        field = _field(pool)
        try:
            found = _members(pool, members)
        except Invalid as error:
            errors.append(_error(index, field, str(error), _REMEDY_OF_FIELD[field]))
            continue
        if not found:
            errors.append(_error(index, field, f"pool {pool.name} has no node", _REMEDY_OF_FIELD[field]))
            continue
        errors += _floors(index, pool, len(found))
        errors += _names(index, found, nodes)
        nodes += found
    if errors:
        raise InvalidPolicy(errors)
    return tuple(nodes)


def uprooted(nodes: Sequence[Node], state: LedgerState) -> list[str]:
    """Why nodes of `state` that `nodes` drops, renames or puts into another pool have to stay as they are.

    The ledger refuses the same, by the same rule; this is for a dry run.
    """
    wanted = {node.name: node for node in nodes}
    kept = []
    for name, record in sorted(state.nodes.items()):
        # GPUs may change: no mark is written under them.
        after = wanted.get(name)
        if after is not None and replace(after, gpus=record.node.gpus) == record.node:
            continue
        why = why_it_stays(state.policy, record.node, state.leases.get(name), moving=name in state.handoffs)
        if why:
            kept.append(f"{name} {why}")
    return kept


_REMEDY_OF_FIELD = {
    "nodes": "write Slurm host lists such as gpu-[1-4]",
    "all_of_partition": "name a partition that has nodes: sinfo -N",
    "node_label": "name a label of shared nodes: kubectl get nodes --show-labels",
}


def _field(pool: PoolPolicy) -> str:
    if pool.nodes:
        return "nodes"
    return "all_of_partition" if pool.all_of_partition else "node_label"


def _members(pool: PoolPolicy, members: Members) -> list[Node]:
    return [
        Node(
            name=name, slurm_name=name, kube_name=pool.kube_name.replace("{node}", name), pool=pool.name, gpus=pool.gpus
        )
        for name in (hostlists.expand(pool.nodes) if pool.nodes else members(pool))
    ]


def _partition(index: int, pool: PoolPolicy, policy: Policy) -> list[InputError]:
    """A job waits in a partition: were it that of two pools, both would fetch nodes for it."""
    other = next((other.name for other in policy.pools[:index] if other.partition == pool.partition), None)
    if other is None:
        return []
    message = f"partition {pool.partition} is that of pool {other} already"
    return [_error(index, "partition", message, "give each pool a partition of its own, or make one pool of both")]


def _switches(index: int, pool: PoolPolicy) -> list[InputError]:
    errors = []
    switch_of: dict[str, str] = {}
    for switch, lists in pool.topology.switches.items():
        try:
            below = hostlists.expand(lists)
        except Invalid as error:
            errors.append(
                _error(index, "topology", str(error), _REMEDY_OF_FIELD["nodes"], "switches", switch),
            )
            continue
        twice = [name for name in below if name in switch_of]
        if twice:
            message = f"{twice[0]} is under {switch_of[twice[0]]} already"
            errors.append(_error(index, "topology", message, "list it under its leaf switch only", "switches", switch))
        switch_of |= dict.fromkeys(below, switch)
    return errors


def _floors(index: int, pool: PoolPolicy, nodes: int) -> list[InputError]:
    fixed = pool.slurm.floor_nodes + pool.kubernetes.floor_nodes
    if fixed > nodes:
        message = f"the floors of pool {pool.name} add up to {fixed} nodes and it has {nodes}"
        return [_error(index, "slurm", message, "lower a floor or add nodes")]
    for begin, floors in floors_of_a_week(pool).items():
        if sum(floors.values()) > nodes:
            message = (
                f"from {begin:%A %H:%M} the floors of pool {pool.name} add up to {sum(floors.values())} nodes "
                f"(slurm {floors[Side.SLURM]}, kubernetes {floors[Side.KUBERNETES]}) and it has {nodes}"
            )
            return [_error(index, "timetable", message, "lower a floor of the lines that hold then, or add nodes")]
    return []


def _names(index: int, members: list[Node], others: list[Node]) -> list[InputError]:
    errors = []
    pool_of = {node.name: node.pool for node in others}
    kube_names = {node.kube_name: node.name for node in others}
    for node in members:
        if node.name in pool_of:
            message = f"{node.name} is in pool {pool_of[node.name]} already"
            errors.append(_error(index, "nodes", message, "list it in one pool only"))
        elif kube_names.get(node.kube_name):
            message = f"{node.name} and {kube_names[node.kube_name]} would both be {node.kube_name} in Kubernetes"
            errors.append(_error(index, "kube_name", message, "make the Kubernetes names differ"))
        if not _DNS_LABELS.fullmatch(node.kube_name) or len(node.kube_name) > _MAX_KUBE_NAME_CHARS:
            message = f"{node.kube_name[:80]!r} cannot be the name of a Kubernetes node"
            errors.append(_error(index, "kube_name", message, "use small letters, digits, '-' and '.'"))
    return errors[:_MAX_ERRORS_A_POOL]


def _error(index: int, field: str, message: str, remedy: str, *below: str) -> InputError:
    return InputError(location=("body", "pools", index, field, *below), message=message, remedy=remedy)
