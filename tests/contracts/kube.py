"""What every `KubePort` must do, whether simulated or real. Subclass `KubePortContract` and give it a `world`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import pytest

from bridge.model.errors import Fenced
from bridge.model.kube import KubeNode, LoanSpec
from bridge.model.ownership import Mark, Owner
from bridge.ports import KubePort

_T = TypeVar("_T")


class KubeWorld(Protocol):
    """A cluster with one fresh shared node of eight GPUs, a node controller and an inspector; and its levers."""

    kube: KubePort
    node: str

    def until(self, what: str, check: Callable[[], _T]) -> _T:
        """Let time pass until `check` gives something truthy; fail with `what` when it never does."""
        ...

    def settle(self) -> None:
        """Let so much time pass that all that is going to happen by itself has happened."""
        ...

    def start_pod(self, name: str, *, gpus: int = 1, stays: bool = False) -> str:
        """Run a pod of a Deployment `name` on the node; its key. One that `stays` hangs in termination."""
        ...

    def end_pod(self, key: str) -> None:
        """A pod that hangs in termination ends at last."""
        ...

    def ask_for_gpus(self, name: str, gpus: int) -> None:
        """A pod of a Deployment `name` that finds no room and waits."""
        ...


class KubePortContract:
    """The tests. `world` is to be overridden by the subclass."""

    @pytest.fixture
    def world(self) -> KubeWorld:
        raise NotImplementedError

    def test_a_wish_to_close_is_answered_when_both_latches_stand(self, world: KubeWorld) -> None:
        spec = _loan(world, Owner.BRIDGE, 5)
        world.kube.want([spec])
        node = world.until("closed", lambda: _answered(world, spec, closed=True))
        assert node.spec == spec
        assert not node.status.open
        assert node.status.node_uid == node.uid

    def test_a_wish_to_open_is_answered_when_no_latch_stands(self, world: KubeWorld) -> None:
        closed, opened = _loan(world, Owner.BRIDGE, 5), _loan(world, Owner.KUBERNETES, 6)
        world.kube.want([closed])
        world.until("closed", lambda: _answered(world, closed, closed=True))
        world.kube.want([opened])
        node = world.until("open", lambda: _answered(world, opened, closed=False))
        assert node.status.open
        assert node.status.gpus_allocatable == 8

    def test_a_node_never_closed_is_open_at_once(self, world: KubeWorld) -> None:
        spec = _loan(world, Owner.KUBERNETES, 5)
        world.kube.want([spec])
        node = world.until("answer", lambda: _answered(world, spec, closed=False))
        assert node.status.open

    @pytest.mark.parametrize("mark", [Mark("lease0001", 2, 4), Mark("lease0009", 1, 99)], ids=["generation", "epoch"])
    def test_an_older_mark_is_fenced_and_changes_nothing(self, world: KubeWorld, mark: Mark) -> None:
        spec = _loan(world, Owner.BRIDGE, 5)
        world.kube.want([spec])
        world.until("closed", lambda: _answered(world, spec, closed=True))
        with pytest.raises(Fenced):
            world.kube.want([replace(spec, owner=Owner.KUBERNETES, mark=mark)])
        world.settle()
        node = _node(world)
        assert node.spec == spec
        assert node.status.closed

    def test_the_same_wish_twice_changes_nothing(self, world: KubeWorld) -> None:
        spec = _loan(world, Owner.BRIDGE, 5, nonce="n1")
        world.kube.want([spec])
        world.until("proof", lambda: _node(world).status.empty_nonce == "n1")
        before = _node(world)
        world.kube.want([spec])
        world.settle()
        assert _node(world) == before

    def test_a_proof_of_emptiness_quotes_the_nonce_it_was_asked_with(self, world: KubeWorld) -> None:
        world.kube.want([_loan(world, Owner.BRIDGE, 5, nonce="n1")])
        world.until("first proof", lambda: _node(world).status.empty_nonce == "n1")
        world.kube.want([_loan(world, Owner.BRIDGE, 5, nonce="n2")])
        world.until("second proof", lambda: _node(world).status.empty_nonce == "n2")
        assert _node(world).status.pods_left == 0

    def test_no_proof_and_no_eviction_while_a_pod_runs(self, world: KubeWorld) -> None:
        pod = world.start_pod("chat")
        world.kube.want([_loan(world, Owner.BRIDGE, 5, nonce="n1")])
        world.until("blocker names the pod", lambda: any(pod in b for b in _node(world).status.blockers))
        world.settle()
        node = _node(world)
        assert node.status.closed
        assert node.status.empty_nonce == ""
        assert node.status.pods_left == 1
        assert node.work_pods == (pod,)

    def test_eviction_empties_the_node(self, world: KubeWorld) -> None:
        world.start_pod("chat")
        world.kube.want([_loan(world, Owner.BRIDGE, 5, nonce="n1", evict=True)])
        world.until("proof", lambda: _node(world).status.empty_nonce == "n1")
        assert _node(world).work_pods == ()

    def test_a_terminating_pod_is_not_gone(self, world: KubeWorld) -> None:
        pod = world.start_pod("chat", stays=True)
        world.kube.want([_loan(world, Owner.BRIDGE, 5, nonce="n1", evict=True)])
        world.until("terminating", lambda: any("terminating" in b for b in _node(world).status.blockers))
        world.settle()
        node = _node(world)
        assert node.status.empty_nonce == ""
        assert node.work_pods == (pod,)
        assert node.gpus_used == 1
        world.end_pod(pod)
        world.until("proof", lambda: _node(world).status.empty_nonce == "n1")

    def test_a_proof_does_not_outlive_the_closing(self, world: KubeWorld) -> None:
        world.kube.want([_loan(world, Owner.BRIDGE, 5, nonce="n1")])
        world.until("proof", lambda: _node(world).status.empty_nonce == "n1")
        opened = _loan(world, Owner.KUBERNETES, 6)
        world.kube.want([opened])
        node = world.until("open", lambda: _answered(world, opened, closed=False))
        assert node.status.empty_nonce == ""

    def test_an_inspection_is_answered_with_its_nonce(self, world: KubeWorld) -> None:
        world.kube.inspect(world.node, "look-1")
        world.until("answer", lambda: (i := _node(world).inspection) and i.nonce == "look-1")
        world.kube.inspect(world.node, "look-2")
        world.until("second answer", lambda: (i := _node(world).inspection) and i.nonce == "look-2")
        inspection = _node(world).inspection
        assert inspection is not None
        assert (inspection.holders, inspection.error) == ((), "")

    def test_waiting_pods_are_seen_with_their_owner(self, world: KubeWorld) -> None:
        world.kube.want([_loan(world, Owner.BRIDGE, 5)])
        world.until("closed", lambda: _node(world).status.closed)
        world.ask_for_gpus("train", 4)

        def waiting() -> list[tuple[str, int]]:
            return [(pod.group, pod.gpus) for pod in world.kube.observe().pending]

        world.until("the pod is seen to wait", lambda: ("Deployment default/train", 4) in waiting())

    def test_a_running_pod_is_shown_as_work_of_its_owner(self, world: KubeWorld) -> None:
        pod = world.start_pod("chat", gpus=2)
        (shown,) = world.until("the pod is shown", lambda: _node(world).running)
        assert f"{shown.namespace}/{shown.name}" == pod
        assert (shown.group, shown.owner) == (f"Deployment {shown.namespace}/chat", "Deployment")
        assert shown.gpus == 2
        assert (shown.disruptions_allowed, shown.protected) == (None, "")

    def test_a_pod_that_no_node_can_run_is_named(self, world: KubeWorld) -> None:
        world.ask_for_gpus("huge", 1000)

        def obstacles() -> list[str]:
            return [pod.obstacle for pod in world.kube.observe().pending if pod.group == "Deployment default/huge"]

        (obstacle,) = world.until("the pod is seen to wait", obstacles)
        assert "1000 GPUs" in obstacle

    def test_a_change_rings(self, world: KubeWorld) -> None:
        rung: list[str] = []
        world.kube.watch(rung.append)
        world.kube.want([_loan(world, Owner.BRIDGE, 5)])
        world.until("bell", lambda: rung)
        assert set(rung) == {"kubernetes"}


def _loan(world: KubeWorld, owner: Owner, generation: int, *, nonce: str = "", evict: bool = False) -> LoanSpec:
    return LoanSpec(world.node, owner, Mark("lease0001", 2, generation), 8, evict=evict, nonce=nonce)


def _node(world: KubeWorld) -> KubeNode:
    return world.kube.observe().nodes[world.node]


def _answered(world: KubeWorld, spec: LoanSpec, *, closed: bool) -> KubeNode | None:
    node = _node(world)
    answered = node.status.observed == spec.mark and (node.status.closed if closed else node.status.open)
    return node if answered else None
