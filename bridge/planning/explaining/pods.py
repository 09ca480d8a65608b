"""Why a pod is not scheduled: what Kubernetes itself says, then what every demand is asked."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from bridge.model.demand import Demand
from bridge.model.errors import Unreadable
from bridge.model.kube import KubeObservation, PendingPod, RunningPod
from bridge.model.policy import PoolPolicy
from bridge.planning.explaining.answer import FIT, LIMITS, Estimate, Explanation, Kind, Link, unknown
from bridge.planning.explaining.help import remedies
from bridge.planning.explaining.layers import chain
from bridge.planning.explaining.scene import Scene
from bridge.planning.explaining.verdict import verdict
from bridge.planning.explaining.waiting import Waiting
from bridge.planning.explaining.when import estimate
from bridge.planning.serving import group_of, kube_queue


def explain_pod(scene: Scene, name: str) -> Explanation | None:
    """`name` is namespace/name of a pod that asks for GPUs; None: no such pod waits or runs on a shared node."""
    seen = scene.seen.kubernetes
    subject = f"pod {name}"
    if isinstance(seen, Unreadable):
        return unknown(Kind.POD, subject, str(seen))
    pod = next((pod for pod in seen.pending if f"{pod.namespace}/{pod.name}" == name), None)
    if pod is None:
        return _running(seen, subject, name)
    found = _demand(scene, seen, pod)
    if found is None:
        return _no_pool(subject, pod)
    demand, pool = found
    waiting = Waiting(scene, demand, pool, pod_gpus=pod.gpus)
    links = chain(waiting, (_said(pod), *_gang(pod, demand)))
    when = estimate(waiting, links)
    return Explanation(Kind.POD, subject, verdict(waiting, subject, links), links, remedies(waiting, links, when), when)


def _demand(scene: Scene, seen: KubeObservation, pod: PendingPod) -> tuple[Demand, PoolPolicy] | None:
    """What the planner makes of the pod's gang or group, and the pool that it is for; None: no pool has a node for it.

    Of a group only the pods that the same nodes help, or none for the same reason. One that needs no node of its own
    beside those in front of it is taken alone, as if it were the only one.
    """
    alike = tuple(each for each in seen.pending if _together(pod) == _together(each))
    alone = replace(seen, pending=alike, serving_pools=())
    for pool in scene.policy.pools:
        names = {p.record.node.kube_name: p.name for p in scene.snapshot.of_pool(pool.name)}
        made = kube_queue(pool, scene.policy, alone, names, scene.now).demands
        if made:
            listed = (demand for demand in scene.snapshot.demands if _same(demand, made[0]))
            return next(listed, made[0]), pool
    return None


def _together(pod: PendingPod) -> Hashable:
    return pod.gang or (pod.group, pod.helps, pod.obstacle)


def _same(listed: Demand, made: Demand) -> bool:
    """A part of a group is numbered in a longer list."""
    return (listed.pool, group_of(listed.key), listed.features, listed.impossible) == (
        made.pool,
        made.key,
        made.features,
        made.impossible,
    )


def _said(pod: PendingPod) -> Link:
    said = pod.message or "it has not said anything yet"
    text = f"{pod.asks or f'{pod.gpus} GPUs'} asked; Kubernetes' scheduler says: {said}"
    command = f"kubectl -n {pod.namespace} describe pod {pod.name}"
    return Link(LIMITS, False, text, {"gpus": pod.gpus, "cpu_m": pod.cpu_m, "memory_mib": pod.memory_mib}, command)


def _gang(pod: PendingPod, demand: Demand) -> tuple[Link, ...]:
    if not pod.gang and demand.nodes == 1:
        return ()
    with_whom = f"gang {pod.gang} of {pod.gang_pods} pods" if pod.gang else pod.group
    text = f"it waits with {with_whom}, which fills {demand.nodes} nodes" + (" together" if demand.whole else "")
    return (Link(LIMITS, False, text, {"nodes": demand.nodes, "gang_pods": pod.gang_pods}, "bridgectl plan"),)


def _running(seen: KubeObservation, subject: str, name: str) -> Explanation | None:
    node = next((node for node in seen.nodes.values() if _runs_on(name, node.work_pods, node.running)), None)
    if node is None:
        return None
    namespace, _, pod = name.partition("/")
    link = Link(LIMITS, False, f"it is on {node.name}", {}, f"kubectl -n {namespace} get pod {pod} -o wide")
    return Explanation(
        Kind.POD,
        subject,
        f"{subject} is on {node.name}: it does not wait.",
        (link,),
        (),
        Estimate(None, "it does not wait"),
    )


def _runs_on(name: str, work_pods: tuple[str, ...], running: tuple[RunningPod, ...]) -> bool:
    return name in work_pods or any(f"{pod.namespace}/{pod.name}" == name for pod in running)


def _no_pool(subject: str, pod: PendingPod) -> Explanation:
    text = "no pool of the policy has a node for it"
    return Explanation(
        Kind.POD,
        subject,
        f"{subject} waits outside the bridge: {text}.",
        (_said(pod), Link(FIT, True, text, {}, "bridgectl policy show")),
        (),
        Estimate(None, "not known: Kubernetes alone decides it"),
    )
