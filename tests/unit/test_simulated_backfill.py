"""One round of the simulated scheduler: strict priority, and backfill that does not delay the first who waits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bridge.simulation.backfill import Host, Round, Waiting, schedule


def host(number: int, *, free: int = 8, free_in_s: float = 0) -> Host:
    return Host(f"gpu-{number}", free, free_in_s)


def job(id: int, nodes: int, *, limit_s: float = math.inf, gpus: int = 8) -> Waiting:
    return Waiting(id, nodes, gpus, limit_s)


def play(queue: Sequence[Waiting], hosts: Sequence[Host], *, reserved: int = 0) -> Round:
    return schedule(queue, hosts, nodes=len(hosts) + reserved, reserved=reserved)


def test_jobs_start_in_the_order_of_the_queue_while_nodes_are_free() -> None:
    found = play([job(1, 1), job(2, 2), job(3, 1)], [host(1), host(2), host(3)])
    assert found.starts == {1: ("gpu-1",), 2: ("gpu-2", "gpu-3")}
    assert found.waits_for == {3: "Resources"}


def test_jobs_share_a_node_by_its_gpus() -> None:
    found = play([job(1, 1, gpus=6), job(2, 1, gpus=4), job(3, 1, gpus=2)], [host(1)])
    assert found.starts == {1: ("gpu-1",), 3: ("gpu-1",)}


def test_the_first_who_waits_gets_the_nodes_that_are_free_soonest() -> None:
    hosts = [host(1, free=0, free_in_s=100), host(2), host(3, free=0, free_in_s=50)]
    found = play([job(1, 2)], hosts)
    assert found.planned == {"gpu-2", "gpu-3"}


def test_a_later_job_uses_a_planned_node_only_if_it_ends_before() -> None:
    hosts = [host(1, free=0, free_in_s=100), host(2)]
    gang = job(1, 2)
    assert play([gang, job(2, 1, limit_s=100)], hosts).starts == {2: ("gpu-2",)}
    assert play([gang, job(2, 1, limit_s=101)], hosts).starts == {}
    assert play([gang, job(2, 1)], hosts).waits_for == {1: "Resources", 2: "Priority"}


def test_a_node_that_is_not_planned_is_free_for_anybody() -> None:
    hosts = [host(1, free=0, free_in_s=10), host(2, free=0, free_in_s=20), host(3, free_in_s=0, free=4)]
    found = play([job(1, 1), job(2, 1, gpus=4)], hosts)
    assert found.planned == {"gpu-3"}
    assert found.starts == {}
    found = play([job(1, 2), job(2, 1, gpus=4)], [*hosts, host(4)])
    assert found.planned == {"gpu-3", "gpu-4"}


def test_a_gang_that_the_usable_nodes_cannot_hold_is_passed_by_smaller_jobs() -> None:
    found = play([job(1, 3), job(2, 1)], [host(1), host(2)], reserved=2)
    assert found.planned == frozenset()
    assert found.starts == {2: ("gpu-1",)}
    assert found.waits_for == {1: "ReqNodeNotAvail"}


def test_a_gang_larger_than_the_partition_never_starts_and_says_so() -> None:
    assert play([job(1, 3)], [host(1), host(2)]).waits_for == {1: "PartitionNodeLimit"}
