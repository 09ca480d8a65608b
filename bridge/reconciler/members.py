"""The nodes of a pool that is not written as host lists: asked of the scheduler that the policy names.

They are asked when a policy is applied and stay what they were then: a node that joins the partition or gets the label
later comes under the bridge with the next apply, as nothing should be shared without anybody having said so.
"""

from __future__ import annotations

from bridge.model.errors import Invalid, Unreadable
from bridge.model.kube import KubeObservation
from bridge.model.policy import PoolPolicy
from bridge.model.slurm import SlurmObservation
from bridge.reconciler.look import World


def members(pool: PoolPolicy, world: World) -> tuple[str, ...]:
    """Slurm names of the pool's nodes, sorted. Raises `Unreadable` when the side that knows them was not read.

    `Invalid` when a labelled Kubernetes node has a name that `kube_name` does not make of any Slurm name.
    """
    if pool.all_of_partition:
        if isinstance(world.slurm, Unreadable):
            raise world.slurm
        return _of_partition(pool, world.slurm)
    if isinstance(world.kubernetes, Unreadable):
        raise world.kubernetes
    return _of_label(pool, world.kubernetes)


def _of_partition(pool: PoolPolicy, slurm: SlurmObservation) -> tuple[str, ...]:
    return tuple(sorted(name for name, node in slurm.nodes.items() if pool.partition in node.partitions))


def _of_label(pool: PoolPolicy, kubernetes: KubeObservation) -> tuple[str, ...]:
    key, with_value, value = pool.node_label.partition("=")
    before, _, after = pool.kube_name.partition("{node}")
    found = []
    for name, node in kubernetes.nodes.items():
        if key not in node.labels or (with_value and node.labels[key] != value):
            continue
        bare = name.removeprefix(before).removesuffix(after)
        if not bare or before + bare + after != name:
            raise Invalid(f"Kubernetes node {name} has the label {pool.node_label} and is not spelt {pool.kube_name}")
        found.append(bare)
    return tuple(sorted(found))
