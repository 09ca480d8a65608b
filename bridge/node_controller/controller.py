"""A replica: views that ring, a queue of nodes, workers that reconcile, an election that says whether they may."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import structlog

from bridge.kube import names
from bridge.kube.connection import Api, Json
from bridge.kube.pods import read_pod
from bridge.kube.view import View
from bridge.model.errors import CallFailed, Conflict, Fenced
from bridge.node_controller import metrics
from bridge.node_controller.cluster import Cluster, read_node
from bridge.node_controller.election import Election
from bridge.node_controller.queue import KeyQueue
from bridge.node_controller.reconcile import Reconciler
from bridge.settings import NodeControllerSettings

LEASE_DURATION_S = 10
RENEW_EVERY_S = 1.5
_WORKERS = 4
_RETRY_S = 1.0
_AUDIT_EVERY_S = 60.0
_AUDIT_PER_NODE_S = 0.05
"""A look at every node each minute, should all watches have missed something; slower when there are thousands."""
_MOST_SILENCE_S = 8.0
_MOST_WORK_S = 60.0

log = structlog.get_logger(__name__)


class Controller:
    """One replica. `start` it, call `tick` every `RENEW_EVERY_S`, `close` it."""

    def __init__(
        self,
        api: Api,
        settings: NodeControllerSettings,
        *,
        holder: str,
        monotonic_s: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._monotonic_s = monotonic_s
        self._queue = KeyQueue(monotonic_s)
        self._election = Election(
            api,
            namespace=settings.node_controller_namespace,
            name=names.CONTROLLER_LEASE,
            holder=holder,
            duration_s=LEASE_DURATION_S,
            monotonic_s=monotonic_s,
            now=now,
        )
        self._reconciler = Reconciler(
            Cluster(api, fence=settings.fence_name, leads=self._election.leads),
            monotonic_s=monotonic_s,
            now=now,
            late_bind_wait_s=settings.late_bind_wait_s,
            eviction_grace_s=settings.eviction_grace_s,
        )
        self._loans = View(api, names.LOANS, _loan, monotonic_s=monotonic_s, on_change=self._ring_key)
        self._views: tuple[View[Any], ...] = (
            self._loans,
            View(
                api,
                names.NODES,
                _node,
                monotonic_s=monotonic_s,
                on_change=self._ring_key,
                query={"labelSelector": f"{names.SHARED}=true"},
            ),
            View(
                api,
                names.PODS,
                _pod,
                monotonic_s=monotonic_s,
                on_change=self._ring_pod,
                query={"fieldSelector": "spec.nodeName!="},
            ),
            View(api, names.FENCES, _fence, monotonic_s=monotonic_s, on_change=self._ring_fence),
        )
        self._workers = [threading.Thread(target=self._work, name=f"worker {i}", daemon=True) for i in range(_WORKERS)]
        self._led = False
        self._audited_at_s = monotonic_s()
        self._ticked_at_s = monotonic_s()

    def start(self) -> None:
        for view in self._views:
            view.start()

    def tick(self) -> None:
        """Renew the heartbeat if all is well. Raises `Fenced` when this replica led and does not any more."""
        self._ticked_at_s = self._monotonic_s()
        problem = self.problem()
        if problem:
            log.warning("heartbeat withheld", problem=problem)
        else:
            self._election.step()
        leads = self._election.leads()
        if self._led and not leads:
            raise Fenced("this node controller has lost its Lease")
        if leads and not self._led:
            self._take_office()
        elif leads and self._monotonic_s() - self._audited_at_s > self._audit_every_s():
            self._audit()
        self._measure(leads)

    def close(self) -> None:
        """Finish what is being worked on, then give the Lease back; it runs out instead while a call may linger."""
        for view in self._views:
            view.close()
        self._queue.close()
        deadline_s = self._monotonic_s() + LEASE_DURATION_S
        for worker in self._workers:
            if worker.is_alive():
                worker.join(max(0.0, deadline_s - self._monotonic_s()))
        if not any(worker.is_alive() for worker in self._workers):
            self._election.resign()

    # --- health ---

    def problem(self) -> str:
        """What keeps this replica from being trusted with the heartbeat, or empty."""
        view = max(self._views, key=lambda view: view.age_s())
        if view.age_s() > _MOST_SILENCE_S:
            return f"nothing heard of {view.path} for {view.age_s():.1f} s {view.problem}"
        if self._led and self._queue.longest_s() > _MOST_WORK_S:
            return f"a node has waited for its pass for {self._queue.longest_s():.0f} s"
        return ""

    def stuck(self) -> str:
        """What only a restart can cure, or empty: the liveness probe."""
        silent_s = self._monotonic_s() - self._ticked_at_s
        return f"no tick for {silent_s:.0f} s" if silent_s > _MOST_WORK_S else ""

    # --- work ---

    def _take_office(self) -> None:
        log.info("leads")
        self._led = True
        self._audit()
        for worker in self._workers:
            worker.start()

    def _work(self) -> None:
        while (node := self._queue.take()) is not None:
            try:
                self._pass(node)
            finally:
                self._queue.done(node)

    def _pass(self, node: str) -> None:
        with metrics.PASS_SECONDS.time():
            try:
                look_again_s = self._reconciler.reconcile(node)
                result = "ok"
            except Conflict as error:
                log.info("pass repeated", node=node, conflict=str(error))
                look_again_s, result = 0.02, "conflict"
            except Fenced as error:
                log.warning("pass stopped", node=node, problem=str(error))
                look_again_s, result = None, "fenced"
            except CallFailed as error:
                log.warning("pass failed", node=node, problem=str(error))
                look_again_s, result = _RETRY_S, "failed"
            except Exception:
                log.exception("pass failed", node=node)
                look_again_s, result = 10 * _RETRY_S, "broken"
        metrics.PASSES.labels(result).inc()
        if look_again_s is not None:
            self._queue.add(node, look_again_s)

    def _audit_every_s(self) -> float:
        return max(_AUDIT_EVERY_S, _AUDIT_PER_NODE_S * len(self._loans.items()))

    def _audit(self) -> None:
        self._audited_at_s = self._monotonic_s()
        for node in self._loans.items():
            self._queue.add(node)

    # --- bells ---

    def _ring_key(self, key: str, _before: object, _after: object) -> None:
        self._ring(key)

    def _ring_pod(self, _key: str, before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> None:
        for pod in (before, after):
            if pod is not None:
                self._ring(pod[0])

    def _ring_fence(self, _key: str, before: Json | None, after: Json | None) -> None:
        old, new = before or {}, after or {}
        for node in old.keys() | new.keys():
            if old.get(node) != new.get(node):
                self._ring(node)

    def _ring(self, node: str) -> None:
        if self._led and node in self._loans.items():
            self._queue.add(node)

    def _measure(self, leads: bool) -> None:
        metrics.LEADS.set(leads)
        metrics.QUEUE_DEPTH.set(self._queue.depth())
        metrics.VIEW_AGE_SECONDS.set(max(view.age_s() for view in self._views))


# What a view keeps is what must ring when it changes, and no more.


def _loan(body: Json) -> tuple[Any, ...]:
    return (body["metadata"]["uid"], body["metadata"]["generation"])


def _node(body: Json) -> tuple[Any, ...]:
    node = read_node(body)
    return (node.uid, node.ready, node.cordoned, node.gpus_allocatable, node.lease, node.mark)


def _pod(body: Json) -> tuple[Any, ...]:
    pod = read_pod(body)
    return (pod.node, pod.uid, pod.running, pod.terminating_since, pod.evictable)


def _fence(body: Json) -> Json:
    return dict((body.get("spec") or {}).get("closed") or {})
