"""The simulated node controller comes to rest where the real one's decisions would leave it, whatever happened before.

The two may not share code (a simulation stands below the processes), so each story of levers is told to the simulated
cluster, and what stands there in the end is put before `bridge.node_controller.decisions`: nothing is left to write,
and the answer is word for word the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import hypothesis.strategies as st
from hypothesis import example, given, settings

from bridge.kube.names import TAINT
from bridge.kube.pods import Pod as RealPod
from bridge.model.kube import LoanSpec, LoanStatus
from bridge.model.ownership import Mark, Owner
from bridge.node_controller import decisions
from bridge.node_controller.decisions import FenceSeen, NodeSeen
from bridge.simulation.cluster import Cluster, Deployment, Pod
from bridge.simulation.node_controller import MOST_REPAIRS, REPAIR_WINDOW_S
from bridge.simulation.world import World

NODE = "gpu-1.testbed"
OWN = LoanSpec(NODE, Owner.BRIDGE, Mark("lease0001", 1, 1), gpus=8)
RESTS_WITHIN_S = 200.0

Lever = Callable[[World], object]


def _want(owner: Owner, evict: bool, world: World) -> None:
    """The next generation, as only newer wishes get past the resource's own rule."""
    before = world.kube.controller.loans.get(NODE)
    generation = before.spec.mark.generation + 1 if before else 1
    mark = Mark(f"lease{generation:04}", 1, generation)
    world.kube.want([replace(OWN, owner=owner, mark=mark, evict=evict, nonce=f"n{generation}")])


def _apply(deployment: Deployment, world: World) -> None:
    world.kube.cluster.apply(deployment)


def _if_there(act: Callable[[Cluster], object], world: World) -> None:
    if NODE in world.kube.cluster.nodes:
        act(world.kube.cluster)


def _return(world: World) -> None:
    if NODE in world.kube.cluster.removed:
        world.kube.cluster.return_node(NODE)


def _drop_finalizers(world: World) -> None:
    for pod in list(world.kube.cluster.pods.values()):
        world.kube.cluster.drop_finalizer(pod)


def _restart(world: World) -> None:
    world.kube.controller.stop()
    world.kube.controller.start()


CHAT = Deployment("chat", 2, gpus=1)
LEVERS: dict[str, Lever] = {
    "close": partial(_want, Owner.BRIDGE, False),
    "empty": partial(_want, Owner.BRIDGE, True),
    "open": partial(_want, Owner.KUBERNETES, False),
    "serve": partial(_apply, CHAT),
    "stop serving": partial(_apply, replace(CHAT, replicas=0)),
    "many": partial(_apply, Deployment("many", 14, gpus=0)),
    "budget": partial(_apply, Deployment("strict", 1, gpus=1, min_available=1)),
    "two budgets": partial(_apply, Deployment("strict", 1, gpus=1, min_available=1, budgets=2)),
    "crash loop": partial(_apply, Deployment("crashing", 1, gpus=1, min_available=1, startup_s=float("inf"))),
    "bare": partial(_apply, Deployment("bare", 1, gpus=1, kind="")),
    "bare but willing": partial(_apply, Deployment("willing", 1, gpus=1, kind="", evictable=True)),
    "undisruptable": partial(_apply, Deployment("shy", 1, gpus=1, evictable=False)),
    "daemon": partial(_apply, Deployment("daemon", 0, gpus=0, kind="DaemonSet", tolerates=True)),
    "plugin": partial(_apply, Deployment("plugin", 0, gpus=0, kind="DaemonSet", namespace="kube-system")),
    "critical": partial(_apply, Deployment("critical", 1, gpus=0, priority=2_000_000_000)),
    "unkillable": partial(_apply, Deployment("unkillable", 1, gpus=1, shutdown_s=float("inf"))),
    "finalizer": partial(_apply, Deployment("final", 1, gpus=1, finalizer=True)),
    "drop finalizers": _drop_finalizers,
    "volume": partial(_apply, Deployment("volume", 1, gpus=1, detach_s=float("inf"))),
    "cordon": partial(_if_there, lambda cluster: cluster.cordon(NODE)),
    "untaint": partial(_if_there, lambda cluster: cluster.set_taint(NODE, "")),
    "own taint": partial(_if_there, lambda cluster: cluster.set_taint(NODE, "mine")),
    "unfence": lambda world: world.kube.cluster.empty_fence(),
    "own fence": lambda world: world.kube.cluster.set_fence(NODE, "mine"),
    "future": lambda world: world.kube.cluster.set_fence(NODE, str(Mark("lease9999", 9, 9))),
    "lose kubelet": partial(_if_there, lambda cluster: cluster.lose_kubelet(NODE)),
    "return kubelet": partial(_if_there, lambda cluster: cluster.return_kubelet(NODE)),
    "stop plugin": partial(_if_there, lambda cluster: cluster.stop_device_plugin(NODE)),
    "remove node": partial(_if_there, lambda cluster: cluster.remove_node(NODE)),
    "return node": _return,
    "delete loan": lambda world: world.kube.delete_loan(NODE, annotated=True),
    "restart controller": _restart,
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(LEVERS)), st.sampled_from([0.05, 0.4, 3.0, 70.0])), min_size=1, max_size=9
    )
)
@example([("close", 3.0), *[("untaint", 3.0)] * 7])
@example([("many", 3.0), ("empty", 0.4)])
@example([("volume", 3.0), ("empty", 70.0)])
@example([("close", 3.0), ("own fence", 0.4), ("open", 3.0)])
@settings(max_examples=150, deadline=None)
def test_it_rests_where_the_real_one_would(story: list[tuple[str, float]]) -> None:
    world = World(seed=1, nodes=1, exact=True)
    world.slurm.admin_reserve("elsewhere", ["gpu-1"])
    world.kube.cluster.infrastructure.add("kube-system")
    for lever, wait_s in story:
        LEVERS[lever](world)
        world.run(world.clock.monotonic_s() + wait_s)
    world.run(world.clock.monotonic_s() + RESTS_WITHIN_S)
    loan = world.kube.controller.loans.get(NODE)
    if loan is not None:
        recent = sum(at_s > world.clock.monotonic_s() - REPAIR_WINDOW_S for at_s in loan.repaired_at_s)
        assert _said(loan.status) == _said(_real(world.kube.cluster, loan.spec, may_repair=recent < MOST_REPAIRS))


def _real(cluster: Cluster, spec: LoanSpec, *, may_repair: bool) -> LoanStatus:
    """What the real controller would answer in this state of the cluster, when it has nothing left to do."""
    node, fence = _node(cluster), FenceSeen(exists=True, entry=cluster.fence.get(NODE, ""))
    found = decisions.latches(spec, node, fence, may_repair=may_repair, fence_seen=True)
    assert found.act is None
    if spec.owner is Owner.KUBERNETES:
        return decisions.open_status(spec, node, found)
    if node is None or not found.closed:
        return decisions.closed_status(spec, node, found, None, ())
    pods = {pod.uid: pod for pod in cluster.on(NODE)}
    plan = decisions.emptying(
        spec,
        node,
        [_pod(cluster, pod) for pod in pods.values()],
        [f"volume {volume} is still attached" for volume in cluster.nodes[NODE].volumes],
        cluster.infrastructure,
        stood_s=RESTS_WITHIN_S,
        late_bind_wait_s=0.5,
    )
    refusals = {pod.uid: decisions.refused(pod, cluster.evict(pods[pod.uid])) for pod in plan.evict}
    return decisions.closed_status(spec, node, found, plan, plan.blockers(refusals))


def _node(cluster: Cluster) -> NodeSeen | None:
    node = cluster.nodes.get(NODE)
    if node is None:
        return None
    taint = {"key": TAINT, "value": node.taint, "effect": "NoSchedule"}
    return NodeSeen(
        name=node.name,
        uid=node.uid,
        version="1",
        ready=node.ready,
        ready_since=None,
        ready_reason="",
        cordoned=node.cordoned,
        gpus_allocatable=node.gpus_allocatable,
        taints=(taint,) if node.taint else (),
        mark=node.mark,
        last_writer="somebody",
    )


def _pod(cluster: Cluster, pod: Pod) -> RealPod:
    made_by = cluster.deployments[pod.deployment]
    return RealPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=pod.node,
        running=True,
        ready=pod.ready,
        gpus=pod.gpus,
        priority=made_by.priority,
        created_at=pod.created_at,
        controller=(made_by.kind, made_by.name) if made_by.kind else None,
        terminating_since=pod.terminating_since,
        finalizers=("example.com/slow",) if pod.finalizer else (),
        evictable=made_by.evictable,
    )


def _said(status: LoanStatus) -> LoanStatus:
    """Without since when and why a kubelet is silent, which is not simulated."""
    return replace(status, blockers=tuple(blocker.replace(" ()", "") for blocker in status.blockers))
