"""Pools by partition or label: which nodes they have is what the scheduler says now, or nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bridge.model.errors import Invalid, Unreadable
from bridge.model.kube import KubeNode, KubeObservation
from bridge.model.policy import PoolPolicy
from bridge.model.slurm import SlurmNode, SlurmObservation
from bridge.reconciler.look import World
from bridge.reconciler.members import members

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
DOWN = Unreadable("slurm", "no answer"), Unreadable("kubernetes", "no answer")


def slurm(**partitions: str) -> SlurmObservation:
    return SlurmObservation(
        NOON,
        {
            name: SlurmNode(name, frozenset({"IDLE"}), 8, partitions=frozenset(listed.split()))
            for name, listed in partitions.items()
        },
    )


def kubernetes(**labels: dict[str, str]) -> KubeObservation:
    nodes = {
        name.replace("_", "-"): KubeNode(name, "uid", True, False, 8, labels=found) for name, found in labels.items()
    }
    return KubeObservation(NOON, nodes)


def test_all_nodes_of_the_partition_and_no_others() -> None:
    pool = PoolPolicy(name="p", partition="gpu", all_of_partition=True)
    world = World(slurm(g2="gpu debug", g1="gpu", c1="cpu", g3="gpu-long"), DOWN[1])
    assert members(pool, world) == ("g1", "g2")


LABELLED = kubernetes(
    k8s_a={"pool": "shared"}, k8s_b={"pool": "shared", "x": "y"}, k8s_c={"pool": "other"}, k8s_d={"x": "y"}
)


@pytest.mark.parametrize(
    ("label", "names"), [("pool=shared", ("a", "b")), ("pool", ("a", "b", "c")), ("pool=", ()), ("zone", ())]
)
def test_all_nodes_with_the_label_by_their_slurm_names(label: str, names: tuple[str, ...]) -> None:
    pool = PoolPolicy(name="p", partition="gpu", node_label=label, kube_name="k8s-{node}")
    assert members(pool, World(DOWN[0], LABELLED)) == names


def test_a_labelled_node_that_is_spelt_otherwise_is_named() -> None:
    pool = PoolPolicy(name="p", partition="gpu", node_label="pool=shared", kube_name="{node}.example")
    with pytest.raises(Invalid, match=r"k8s-a has the label pool=shared and is not spelt \{node\}\.example"):
        members(pool, World(DOWN[0], LABELLED))


@pytest.mark.parametrize(
    ("pool", "source"),
    [
        (PoolPolicy(name="p", partition="gpu", all_of_partition=True), "slurm"),
        (PoolPolicy(name="p", partition="gpu", node_label="pool=shared"), "kubernetes"),
    ],
)
def test_the_side_that_was_not_read_knows_nobody(pool: PoolPolicy, source: str) -> None:
    with pytest.raises(Unreadable, match=source):
        members(pool, World(*DOWN))
