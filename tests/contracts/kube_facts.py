"""What the bridge relies on in Kubernetes and in its own half there: pods, nodes, people, dead kubelets.

The simulator is built on these facts, and every story that is told on it believes them. So each stands here once, with
what is expected worked out by hand, and is asked of the simulated and of the real Kubernetes alike: where the two
differ, the simulator lies. Subclass `KubeFacts` and give it a `world`, as for `KubePortContract`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from bridge.model.kube import KubeNode, LoanSpec
from bridge.model.ownership import Mark, Owner
from tests.contracts.kube import KubeWorld

FINALIZER = "example.com/slow"


class KubeFactsWorld(KubeWorld, Protocol):
    """A `KubeWorld` with the levers of people, of other controllers and of faults."""

    def start_daemon(self, name: str, *, infrastructure: bool) -> str:
        """A DaemonSet `name` whose one pod runs on the node, in an allow-listed namespace or not; the pod's key."""
        ...

    def run_to_its_end(self, name: str) -> str:
        """A pod of a Job `name` that has run on the node and ended well, its object still there; its key."""
        ...

    def start_stubborn_pod(self, name: str, *, grace_s: int) -> str:
        """A pod of a Deployment `name` that ignores TERM; its key."""
        ...

    def budget(self, name: str) -> str:
        """A PodDisruptionBudget that lets none of the one pod of Deployment `name` go; the budget's name."""
        ...

    def lift_budget(self, name: str) -> None: ...

    def hold_pod(self, key: str, on: bool) -> None:
        """Put `FINALIZER` on a pod, or take it off."""
        ...

    def delete_pod(self, key: str) -> None:
        """By its owner, who asks no budget."""
        ...

    def pod_exists(self, key: str) -> bool: ...

    def admits_pod(self) -> bool:
        """Whether admission lets a pod through that names the node itself, as a dry run tells."""
        ...

    def untaint(self) -> None:
        """Another controller takes all taints off the node."""
        ...

    def cordon(self, on: bool) -> None:
        """A person cordons or uncordons the node."""
        ...

    def fence_entry(self) -> str:
        """The NodeFence's entry of the node, or nothing."""
        ...

    def write_fence_entry(self, entry: str) -> None:
        """Put another entry into the NodeFence by hand; empty: take it out."""
        ...

    def delete_fence(self) -> None:
        """Delete the NodeFence, with the annotation that allows it."""
        ...

    def delete_loan(self, *, annotated: bool) -> str:
        """kubectl delete nodeloan, with or without the annotation that allows it; the words of a refusal."""
        ...

    def delete_node(self) -> None:
        """kubectl delete node. The machine and its pods know nothing of it."""
        ...

    def return_node(self) -> None:
        """The kubelet registers anew."""
        ...

    def lose_kubelet(self) -> None: ...

    def return_kubelet(self) -> None: ...


class KubeFacts:
    """The tests. `world` is to be overridden by the subclass."""

    @pytest.fixture
    def world(self) -> KubeFactsWorld:
        raise NotImplementedError

    # --- pods and their eviction ---

    def test_a_budget_that_refuses_is_named_and_shown_to_the_broker(self, world: KubeFactsWorld) -> None:
        pod = world.start_pod("chat")
        budget = world.budget("chat")
        world.until("no room", lambda: [p.disruptions_allowed for p in _node(world).running] == [0])
        _close(world, nonce="n1", evict=True)
        text = _blocker(world, pod, "PodDisruptionBudget allows no disruption", budget)
        assert "needs 1 healthy pods and has 1 currently" in text
        world.settle()
        node = _node(world)
        assert (node.status.phase, node.status.pods_left, node.status.empty_nonce) == ("Draining", 1, "")
        assert node.work_pods == (pod,)
        world.lift_budget("chat")
        _proof(world, "n1")

    def test_a_pod_that_a_budget_keeps_may_be_deleted_by_its_owner(self, world: KubeFactsWorld) -> None:
        """What is gone needs no eviction, and is no error."""
        pod = world.start_pod("chat")
        world.budget("chat")
        _close(world, nonce="n1", evict=True)
        _blocker(world, pod, "PodDisruptionBudget")
        world.delete_pod(pod)
        _proof(world, "n1")
        assert _node(world).status.pods_left == 0

    def test_a_finished_pod_keeps_no_node_busy_and_is_left_where_it_is(self, world: KubeFactsWorld) -> None:
        pod = world.run_to_its_end("batch")
        world.until("it holds nothing", lambda: (_node(world).work_pods, _node(world).gpus_used) == ((), 0))
        _close(world, nonce="n1", evict=True)
        _proof(world, "n1")
        assert world.pod_exists(pod)

    def test_a_daemon_of_the_infrastructure_stays_and_keeps_no_node_busy(self, world: KubeFactsWorld) -> None:
        pod = world.start_daemon("exporter", infrastructure=True)
        _close(world, nonce="n1", evict=True)
        _proof(world, "n1")
        assert world.pod_exists(pod)

    def test_a_daemon_of_anybody_else_is_evicted_and_does_not_come_back(self, world: KubeFactsWorld) -> None:
        """Its controller makes no pod for a node whose taint it does not tolerate."""
        pod = world.start_daemon("cache", infrastructure=False)
        _close(world)
        _blocker(world, pod, "runs (DaemonSet")
        _want(world, Owner.BRIDGE, 6, nonce="n1", evict=True)
        _proof(world, "n1")
        world.settle()
        assert _node(world).work_pods == ()

    def test_a_pod_that_ignores_term_is_killed_after_its_grace_and_not_gone_before(self, world: KubeFactsWorld) -> None:
        pod = world.start_stubborn_pod("chat", grace_s=4)
        _close(world, nonce="n1", evict=True)
        _blocker(world, pod, "is terminating since")
        assert _node(world).status.empty_nonce == ""
        assert _node(world).gpus_used == 1
        _proof(world, "n1")

    def test_a_pod_held_by_a_finalizer_is_named_with_it(self, world: KubeFactsWorld) -> None:
        pod = world.start_pod("chat")
        world.hold_pod(pod, True)
        _close(world, nonce="n1", evict=True)
        _blocker(world, pod, "is terminating since", FINALIZER)
        world.settle()
        assert _node(world).work_pods == (pod,)
        assert _node(world).status.empty_nonce == ""
        world.hold_pod(pod, False)
        _proof(world, "n1")

    # --- the fence ---

    def test_a_pod_that_names_the_node_itself_is_refused_once_it_is_proved_empty(self, world: KubeFactsWorld) -> None:
        """No taint stops such a pod. Admission sees the fence a moment after it was written, and before the proof."""
        assert world.admits_pod()
        _close(world, nonce="n1")
        _proof(world, "n1")
        assert not world.admits_pod()
        _want(world, Owner.KUBERNETES, 6)
        world.until("open", lambda: _node(world).status.open)
        assert world.admits_pod()

    def test_a_fence_that_is_deleted_is_made_again(self, world: KubeFactsWorld) -> None:
        _close(world)
        world.delete_fence()
        world.until("the entry is back", lambda: world.fence_entry() == str(Mark("lease0001", 2, 5)))
        world.until("it is enforced", lambda: not world.admits_pod())

    def test_an_entry_that_is_taken_out_is_put_back(self, world: KubeFactsWorld) -> None:
        _close(world)
        world.write_fence_entry("")
        world.until("the entry is back", lambda: world.fence_entry() == str(Mark("lease0001", 2, 5)))

    def test_an_entry_newer_than_the_loan_is_never_overwritten(self, world: KubeFactsWorld) -> None:
        newer = str(Mark("lease0009", 2, 7))
        world.write_fence_entry(newer)
        _want(world, Owner.KUBERNETES, 5)
        _blocker(world, newer, "newer than this NodeLoan's")
        world.settle()
        assert world.fence_entry() == newer
        assert not _node(world).status.open
        _want(world, Owner.KUBERNETES, 8)
        world.until("open", lambda: _node(world).status.open)
        assert world.fence_entry() == ""

    # --- whose write counts ---

    def test_an_epoch_outweighs_every_generation(self, world: KubeFactsWorld) -> None:
        _close(world)
        spec = replace(_loan(world, Owner.KUBERNETES, 1), mark=Mark("lease0002", 3, 1))
        world.kube.want([spec])
        world.until("open", lambda: _node(world).status.open and _node(world).status.observed == spec.mark)

    def test_the_same_mark_may_wish_for_more(self, world: KubeFactsWorld) -> None:
        pod = world.start_pod("chat")
        _close(world, nonce="n1")
        _blocker(world, pod, "runs")
        _want(world, Owner.BRIDGE, 5, nonce="n1", evict=True)
        _proof(world, "n1")

    def test_a_loan_is_deleted_only_by_who_says_so_and_its_marks_stay(self, world: KubeFactsWorld) -> None:
        _close(world)
        assert "the bridge" in world.delete_loan(annotated=False)
        assert _node(world).spec is not None
        assert world.delete_loan(annotated=True) == ""
        world.until("no loan", lambda: _node(world).spec is None)
        world.settle()
        assert _node(world).taint == "lease0001"
        assert not world.admits_pod()

    def test_a_loan_made_again_is_answered_again(self, world: KubeFactsWorld) -> None:
        """Also by an older generation than it had: with the object goes its rule. The marks outside still refuse it."""
        _close(world)
        assert world.delete_loan(annotated=True) == ""
        world.until("no loan", lambda: _node(world).spec is None)
        _want(world, Owner.KUBERNETES, 4)
        _blocker(world, "newer than this NodeLoan's")
        assert not _node(world).status.open
        _want(world, Owner.BRIDGE, 6, nonce="n2")
        _proof(world, "n2")

    # --- people and other controllers at the node ---

    def test_a_taint_that_others_take_off_is_put_back(self, world: KubeFactsWorld) -> None:
        _close(world)
        world.untaint()
        world.until("the taint is back", lambda: _node(world).taint == "lease0001")
        world.until("closed", lambda: _node(world).status.closed)

    def test_nothing_is_proved_while_a_latch_is_missing(self, world: KubeFactsWorld) -> None:
        """In a quarrel over the taint the controller gives in, and says so; the fence stands all the while."""
        _close(world, nonce="n1")
        _proof(world, "n1")

        def gives_in() -> bool:
            """What is seen may be a moment old: the taint is taken off until it is said to be left off."""
            if _node(world).taint:
                world.untaint()
            return any("keeps taking the bridge's taint off" in why for why in _node(world).status.blockers)

        world.until("the controller gives in", gives_in)
        _want(world, Owner.BRIDGE, 6, nonce="n2")
        world.settle()
        node = _node(world)
        assert (node.status.closed, node.status.empty_nonce, node.taint) == (False, "", "")
        assert not world.admits_pod()

    def test_closing_cordons_nothing_and_an_uncordon_opens_nothing(self, world: KubeFactsWorld) -> None:
        _close(world)
        assert not _node(world).cordoned
        world.cordon(True)
        world.until("cordoned", lambda: _node(world).cordoned)
        world.cordon(False)
        world.until("not cordoned", lambda: not _node(world).cordoned)
        world.settle()
        assert _node(world).status.closed
        assert _node(world).taint == "lease0001"

    def test_a_cordon_of_a_person_is_said_and_never_lifted(self, world: KubeFactsWorld) -> None:
        world.cordon(True)
        _close(world)
        _want(world, Owner.KUBERNETES, 6)
        _blocker(world, "is cordoned by a person")
        world.settle()
        node = _node(world)
        assert (node.cordoned, node.status.open, node.status.phase) == (True, True, "Opening")
        world.cordon(False)
        world.until("open", lambda: _node(world).status.phase == "Open")

    # --- nodes that go, and come back ---

    def test_a_node_that_is_deleted_takes_its_proof_with_it_and_comes_back_closed(self, world: KubeFactsWorld) -> None:
        _close(world, nonce="n1")
        _proof(world, "n1")
        first = _node(world).uid
        world.delete_node()
        gone = world.until("it is gone", lambda: _elsewhere(world))
        assert gone.mark == Mark("lease0001", 2, 5)
        assert world.fence_entry() == str(Mark("lease0001", 2, 5))
        world.return_node()
        world.until("it is back", lambda: world.node in world.kube.observe().nodes)
        world.until("the taint is back", lambda: _node(world).taint == "lease0001")
        _proof(world, "n1")
        node = _node(world)
        assert node.uid != first
        assert node.status.node_uid == node.uid

    def test_a_node_that_is_deleted_while_it_is_open_comes_back_open(self, world: KubeFactsWorld) -> None:
        _want(world, Owner.KUBERNETES, 5)
        world.until("open", lambda: _node(world).status.phase == "Open")
        world.delete_node()
        world.until("it is gone", lambda: _elsewhere(world))
        world.return_node()
        world.until("it is back", lambda: world.node in world.kube.observe().nodes)
        world.until("open with its GPUs", lambda: _opened(world, gpus=8))
        assert _node(world).status.node_uid == _node(world).uid

    def test_a_pod_outlives_the_node_object_under_it(self, world: KubeFactsWorld) -> None:
        """Only the garbage collector ends it, a minute later, where the node does not come back before."""
        pod = world.start_pod("chat")
        _close(world, nonce="n1")
        world.delete_node()
        world.until("it is gone", lambda: _elsewhere(world))
        world.return_node()
        world.until("it is back", lambda: world.node in world.kube.observe().nodes)
        _blocker(world, pod, "runs")
        node = _node(world)
        assert node.work_pods == (pod,)
        assert node.status.empty_nonce == ""

    # --- dead kubelets ---

    def test_a_silent_kubelet_makes_its_node_unknown(self, world: KubeFactsWorld) -> None:
        """Nothing is evicted and nothing proved; its pods are shown as they were."""
        pod = world.start_pod("chat")
        world.lose_kubelet()
        world.until("not ready", lambda: not _node(world).ready)
        _want(world, Owner.BRIDGE, 5, nonce="n1", evict=True)
        _blocker(world, "does not answer", "UNKNOWN")
        _blocker(world, pod, "last heard of")
        world.settle()
        node = _node(world)
        assert (node.status.empty_nonce, node.work_pods) == ("", (pod,))
        assert [p.protected for p in node.running] == [""]
        world.return_kubelet()
        _proof(world, "n1")

    def test_a_silent_kubelet_lets_no_terminating_pod_go(self, world: KubeFactsWorld) -> None:
        pod = world.start_pod("chat")
        _close(world)
        world.lose_kubelet()
        world.delete_pod(pod)
        world.until("not ready", lambda: not _node(world).ready)
        _want(world, Owner.BRIDGE, 6, nonce="n1", evict=True)
        _blocker(world, pod, "last heard of")
        world.settle()
        assert _node(world).work_pods == (pod,)
        world.return_kubelet()
        _proof(world, "n1")

    def test_a_kubelet_that_is_back_offers_its_gpus_again(self, world: KubeFactsWorld) -> None:
        _want(world, Owner.KUBERNETES, 5)
        world.until("open", lambda: _node(world).status.phase == "Open")
        world.lose_kubelet()
        world.until("not ready", lambda: not _node(world).ready)
        _blocker(world, "is not ready")
        assert _node(world).status.open
        world.return_kubelet()
        world.until("ready with its GPUs", lambda: _opened(world, gpus=8))


def _loan(world: KubeWorld, owner: Owner, generation: int, *, nonce: str = "", evict: bool = False) -> LoanSpec:
    return LoanSpec(world.node, owner, Mark("lease0001", 2, generation), 8, evict=evict, nonce=nonce)


def _want(world: KubeWorld, owner: Owner, generation: int, *, nonce: str = "", evict: bool = False) -> None:
    spec = _loan(world, owner, generation, nonce=nonce, evict=evict)
    world.kube.want([spec])
    world.until("the wish is answered", lambda: _node(world).status.observed == spec.mark)


def _close(world: KubeWorld, *, nonce: str = "", evict: bool = False) -> None:
    _want(world, Owner.BRIDGE, 5, nonce=nonce, evict=evict)
    world.until("closed", lambda: _node(world).status.closed)


def _node(world: KubeWorld) -> KubeNode:
    return world.kube.observe().nodes[world.node]


def _elsewhere(world: KubeWorld) -> LoanSpec | None:
    seen = world.kube.observe()
    return None if world.node in seen.nodes else seen.loans_elsewhere.get(world.node)


def _opened(world: KubeWorld, *, gpus: int) -> bool:
    node = _node(world)
    return (node.ready, node.status.phase, node.gpus_allocatable, node.status.gpus_allocatable) == (
        True,
        "Open",
        gpus,
        gpus,
    )


def _blocker(world: KubeWorld, *words: str) -> str:
    """The blocker that holds all of `words`, once there is one."""

    def found() -> str:
        return next((text for text in _node(world).status.blockers if all(word in text for word in words)), "")

    return world.until(f"a blocker with {words}", found)


def _proof(world: KubeWorld, nonce: str) -> None:
    world.until(f"proof {nonce}", lambda: _node(world).status.empty_nonce == nonce)
