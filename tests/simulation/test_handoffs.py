"""A node's way through both directions, on the simulated Slurm and Kubernetes with the production reconciler."""

from __future__ import annotations

import pytest

from bridge.model.handoff import Step
from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner, Side
from tests.simulation.fleet import Fleet


def test_the_first_day_everything_idle_goes_home() -> None:
    fleet = Fleet()
    fleet.settle()
    assert fleet.owned(Owner.SLURM) == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    assert not any(fleet.world.kube.open(f"{node}.testbed") for node in fleet.owned(Owner.SLURM))


def test_pending_pods_get_a_node_within_seconds() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.run_for(40)
    chat = fleet.deploy("chat", replicas=1)
    asked_s = fleet.world.clock.monotonic_s()
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "the pod is Ready")
    assert fleet.world.clock.monotonic_s() - asked_s < 10
    assert len(fleet.owned(Owner.KUBERNETES)) <= 1
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "the handoff is done")
    fleet.run_for(60)
    assert len(fleet.owned(Owner.KUBERNETES)) == 1, "one pod, one node: nothing more is lent"


def test_a_pod_reads_which_node_comes_for_it_or_why_none_does() -> None:
    fleet = Fleet(nodes=2, slurm={"floor_nodes": 1})
    fleet.settle()
    fleet.run_for(40)
    fleet.deploy("chat", replicas=2)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "one node is lent")
    fleet.run_for(30)
    comes, short = (
        "gpu-1 comes from Slurm for Deployment default/chat",
        "1 node short; slurm has 1 usable, keeps 1 of its floor 1",
    )
    told = [(note.name, note.reason, note.message[: len(short)]) for note in fleet.world.kube.told]
    assert told == [
        ("chat-1", "NodeComing", comes),
        ("chat-2", "NodeComing", comes),
        ("chat-2", "WaitingForNode", short),
    ]


def test_a_gang_gets_its_nodes_back_all_at_once() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.run_for(40)
    chat = fleet.deploy("chat", replicas=3)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 3, "three nodes are lent")
    fleet.run_for(40)
    fleet.world.kube.cluster.scale(chat, 0)
    job = fleet.sbatch(nodes=3)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the gang runs")
    assert len(fleet.world.slurm.job(job).nodes) == 3


def test_a_running_job_is_waited_for_and_never_killed() -> None:
    fleet = Fleet()
    fleet.settle()
    job = fleet.sbatch(nodes=4, runs_s=300)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")
    request = fleet.order(Side.KUBERNETES, "gpu-2")
    fleet.run_until(lambda: fleet.at_step("gpu-2", Step.EMPTY), "gpu-2 is closed and waits for the job")
    fleet.run_for(100)
    assert fleet.world.slurm.job(job).state == "RUNNING"
    assert "job" in fleet.handoff("gpu-2").blockers[0]
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-2"], "gpu-2 is lent", within_s=400)
    assert fleet.world.slurm.job(job).state == "COMPLETED"
    answered = fleet.ledger.request(request.id)
    assert answered is not None
    assert answered.state is RequestState.ACCEPTED


def test_a_slow_pod_delays_the_opening_towards_slurm() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.run_for(40)
    slow = fleet.deploy("slow", replicas=1, shutdown_s=25)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "a node is lent")
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(slow)), "the pod is Ready")
    node = fleet.owned(Owner.KUBERNETES)[0]
    fleet.world.kube.cluster.scale(slow, 0)
    fleet.order(Side.SLURM, node)
    fleet.run_until(lambda: fleet.at_step(node, Step.EMPTY), "the node is being emptied")
    fleet.run_for(15)
    assert fleet.at_step(node, Step.EMPTY)
    assert not fleet.world.slurm.open(node)
    fleet.run_until(lambda: fleet.owner(node) is Owner.SLURM, "the node is back")


def test_an_admins_drain_during_a_loan_is_still_there_after_the_return() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 is lent")
    fleet.world.slurm.admin_drain("gpu-1", "bad DIMM")
    fleet.run_for(5)
    fleet.order(Side.SLURM, "gpu-1")
    fleet.run_until(lambda: "gpu-1" in fleet.owned(Owner.SLURM), "gpu-1 is Slurm's again")
    node = fleet.world.slurm.node("gpu-1")
    assert "DRAIN" in node.states
    assert node.reason == "bad DIMM"


@pytest.mark.parametrize("side", ["slurm", "kubernetes"])
def test_while_a_side_is_unreadable_nothing_moves_and_afterwards_it_goes_on(side: str) -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.run_for(40)
    if side == "slurm":
        fleet.world.faults.away("slurm.")
    else:
        fleet.world.kube.cluster.stop_apiserver()
    fleet.run_for(1)
    if side == "slurm":
        fleet.deploy("chat", replicas=1)
    before = fleet.ledger.read().leases
    fleet.run_for(600)
    assert fleet.ledger.read().leases == before
    assert fleet.reconciler.pulse.unknown
    if side == "slurm":
        fleet.world.faults.back("slurm.")
    else:
        fleet.world.kube.cluster.start_apiserver()
        fleet.deploy("chat", replicas=1)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "a node is lent after all")


def test_an_orphan_process_keeps_the_node_closed_until_it_is_gone() -> None:
    fleet = Fleet()
    fleet.settle()
    job = fleet.sbatch(nodes=1, runs_s=1000, orphan_s=60)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")
    node = fleet.world.slurm.job(job).nodes[0]
    fleet.world.slurm.cancel(job)
    fleet.order(Side.KUBERNETES, node)
    fleet.run_until(lambda: fleet.at_step(node, Step.CLEAN), "the node is empty and inspected")
    fleet.run_for(20)
    assert fleet.at_step(node, Step.CLEAN)
    assert "holds" in fleet.handoff(node).blockers[0]
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == [node], "the node is lent once the orphan is gone")


def test_an_order_that_breaks_a_floor_is_refused_with_the_numbers() -> None:
    fleet = Fleet(slurm={"floor_nodes": 4})
    fleet.settle()
    request = fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_for(3)
    answered = fleet.ledger.request(request.id)
    assert answered is not None
    assert answered.state is RequestState.REFUSED
    assert "floor of 4" in answered.answer
