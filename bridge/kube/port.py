"""The broker's `KubePort` on a real cluster: live views to read from, server-side apply to say what is wanted.

`FailClosed`: an observation is given only when every view is complete and young, and a quorum read of the heartbeat
answered lately (a cut-off apiserver serves its cache on as if nothing had happened). Else it is `Unreadable`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any

import structlog

from bridge.kube import names, resources
from bridge.kube.budgets import Budgets, read_budget
from bridge.kube.connection import APPLY_PATCH, Api, ApiError, Connection, Json, NoAnswer
from bridge.kube.fit import Fleet, Shape
from bridge.kube.heartbeat import Heartbeat
from bridge.kube.load import pending, running
from bridge.kube.neighbours import Neighbours
from bridge.kube.pods import Pod, gpus_used, keeps_busy, read_pod
from bridge.kube.quantities import offered_cpu_m, offered_mib, whole
from bridge.kube.view import View
from bridge.model.errors import CallFailed, Fenced, Unreadable
from bridge.model.kube import Inspection, KubeNode, KubeObservation, LoanSpec, LoanStatus, PodNote
from bridge.ports import Clock, OnChange
from bridge.settings import KubeSettings

FIELD_MANAGER = "slurm-kube-bridge"
_WRITERS = 8
_SOURCE = "kubernetes"
_SAID_OR_GONE = (404, 409)
"""Answers to an Event whose namespace is gone, or that is there already."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Node:
    uid: str
    ready: bool
    cordoned: bool
    gpus_allocatable: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class _Loan:
    spec: LoanSpec
    status: LoanStatus


class KubeApi:
    """`bridge.ports.KubePort` over one apiserver. Owns a few threads from construction until `close`."""

    def __init__(
        self, api: Api, clock: Clock, *, max_age_s: float, namespace: str = names.NAMESPACE, close: Callable[[], None]
    ) -> None:
        self._api = api
        self._clock = clock
        self._max_age_s = max_age_s
        self._close = close
        self._listeners: list[OnChange] = []
        self._closed = threading.Event()

        def changed(_key: str, _before: object, _after: object) -> None:
            for listener in self._listeners:
                listener(_SOURCE)

        now_s = clock.monotonic_s
        labelled = {"labelSelector": f"{names.INFRASTRUCTURE}=true"}
        self._loans = View(api, names.LOANS, _loan, monotonic_s=now_s, on_change=changed)
        self._inspections = View(api, names.INSPECTIONS, resources.inspection, monotonic_s=now_s, on_change=changed)
        self._nodes = View(api, names.NODES, _node, monotonic_s=now_s, on_change=changed)
        self._pods = View(api, names.PODS, _relevant_pod, monotonic_s=now_s, on_change=changed)
        self._infrastructure = View(
            api, names.NAMESPACES, lambda _body: True, monotonic_s=now_s, on_change=changed, query=labelled
        )
        self._budgets = View(api, names.BUDGETS, read_budget, monotonic_s=now_s, on_change=changed)
        self._views: tuple[View[Any], ...] = (
            self._loans,
            self._inspections,
            self._nodes,
            self._pods,
            self._infrastructure,
            self._budgets,
        )
        self._heartbeat = Heartbeat(
            api,
            names.lease_path(namespace, names.CONTROLLER_LEASE),
            monotonic_s=now_s,
            every_s=max_age_s / 4,
            on_change=lambda: changed("", None, None),
        )
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="kube write")
        for view in self._views:
            view.start()
        self._heartbeat.start()

    @classmethod
    def connect(cls, settings: KubeSettings, clock: Clock) -> KubeApi:
        """The port as the settings say. Does not wait for a first answer: until then it is `Unreadable`."""
        connection = Connection.open(settings.kubeconfig, timeout_s=settings.kube_timeout_s)
        return cls(
            connection,
            clock,
            max_age_s=settings.kube_max_age_s,
            namespace=settings.kube_namespace,
            close=connection.close,
        )

    def observe(self) -> KubeObservation:
        age_s = self._age_s()
        infrastructure = self._infrastructure.items().keys()
        every, pods, loans = self._nodes.items(), self._pods.items(), self._loans.items()
        nodes = {name: node for name, node in every.items() if isinstance(node, _Node)}
        shapes = [node.shape for node in nodes.values()]
        elsewhere = [node for node in every.values() if isinstance(node, Shape)]
        inspections, budgets = self._inspections.items(), Budgets(self._budgets.items().values())
        on_node: dict[str, list[Pod]] = {}
        for pod in pods.values():
            on_node.setdefault(pod.node, []).append(pod)
        return KubeObservation(
            read_at=self._clock.now() - timedelta(seconds=age_s),
            nodes={
                name: _kube_node(
                    node, on_node.get(name, []), infrastructure, budgets, loans.get(name), inspections.get(name)
                )
                for name, node in nodes.items()
            },
            pending=pending(pods.values(), Fleet(shapes), Neighbours(pods.values(), shapes, elsewhere)),
            controller_alive=self._heartbeat.alive(),
            loans_elsewhere={name: loan.spec for name, loan in loans.items() if name not in nodes},
        )

    def want(self, loans: Sequence[LoanSpec]) -> None:
        self._all([partial(self._apply_loan, loan) for loan in loans])

    def inspect(self, node: str, nonce: str) -> None:
        self._apply(names.INSPECTIONS, resources.inspection_object(node, nonce))

    def tell(self, notes: Sequence[PodNote]) -> None:
        for note in notes:
            self._writers.submit(self._write_event, note)

    def _write_event(self, note: PodNote) -> None:
        body = resources.pod_event(note, self._clock.now(), FIELD_MANAGER)
        try:
            self._api.call("POST", names.EVENTS.format(note.namespace), body=body)
        except (ApiError, NoAnswer) as why:
            if not (isinstance(why, ApiError) and why.status in _SAID_OR_GONE):
                log.warning("event not written", pod=f"{note.namespace}/{note.name}", reason=note.reason, why=str(why))

    def watch(self, on_change: OnChange) -> None:
        self._listeners.append(on_change)

    def close(self) -> None:
        for view in self._views:
            view.close()
        self._heartbeat.close()
        self._writers.shutdown(wait=True, cancel_futures=True)
        self._close()

    def _age_s(self) -> float:
        """Age of the oldest part of the picture; `Unreadable` when that is more than allowed."""
        parts = [(view.path, view.age_s(), view.problem) for view in self._views]
        parts.append((self._heartbeat.path, self._heartbeat.age_s(), self._heartbeat.problem))
        path, age_s, problem = max(parts, key=lambda part: part[1])
        if age_s > self._max_age_s:
            since = "was never read" if age_s == float("inf") else f"was last read {age_s:.1f} s ago"
            raise Unreadable(_SOURCE, f"{path} {since}" + (f" ({problem})" if problem else ""))
        return age_s

    def _all(self, writes: Sequence[Callable[[], None]]) -> None:
        """Run all writes side by side; a fencing among their failures outweighs all others."""
        failures = [f.exception() for f in [self._writers.submit(write) for write in writes]]
        for kind in (Fenced, CallFailed, Exception):
            for failure in failures:
                if isinstance(failure, kind):
                    raise failure

    def _apply_loan(self, loan: LoanSpec) -> None:
        try:
            self._apply(names.LOANS, resources.loan_object(loan))
        except ApiError as error:
            if error.status == 422 and names.FENCING_RULE in error.message:
                raise Fenced(f"NodeLoan {loan.node} carries a newer mark than {loan.mark}") from error
            raise

    def _apply(self, path: str, body: Json) -> None:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        self._api.call("PATCH", f"{path}/{body['metadata']['name']}", query=query, body=body, content_type=APPLY_PATCH)


def _kube_node(
    node: _Node,
    pods: Sequence[Pod],
    infrastructure: Collection[str],
    budgets: Budgets,
    loan: _Loan | None,
    inspection: Inspection | None,
) -> KubeNode:
    busy = sorted((pod for pod in pods if keeps_busy(pod, infrastructure)), key=attrgetter("key"))
    return KubeNode(
        name=node.shape.name,
        uid=node.uid,
        ready=node.ready,
        cordoned=node.cordoned,
        gpus_allocatable=node.gpus_allocatable,
        gpus_used=gpus_used(pods),
        work_pods=tuple(pod.key for pod in busy),
        spec=loan.spec if loan else None,
        status=loan.status if loan else LoanStatus(),
        inspection=inspection,
        running=tuple(running(pod, budgets) for pod in busy),
        labels=node.shape.labels,
        cpu_allocatable_m=node.shape.cpu_m,
        memory_allocatable_mib=node.shape.memory_mib,
        taint=next((t["value"] for t in node.shape.taints if t["key"] == names.TAINT), ""),
    )


def _relevant_pod(body: Json) -> Pod | None:
    """Pods on a node that still run, and waiting ones that ask for GPUs. The rest of the cluster is not kept."""
    pod = read_pod(body)
    if pod.node:
        return pod if pod.running else None
    return pod if pod.asks_for_devices and (pod.unschedulable or pod.gates or pod.gang) else None


def _loan(body: Json) -> _Loan:
    return _Loan(resources.loan_spec(body), resources.loan_status(body))


def _node(body: Json) -> _Node | Shape:
    """A shared node; of any other only where it is and what keeps pods off, as pods may have to be spread over it."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels = metadata.get("labels") or {}
    taints = tuple({k: t.get(k) or "" for k in ("key", "value", "effect")} for t in spec.get("taints") or ())
    if labels.get(names.SHARED) != "true":
        return Shape(metadata["name"], labels, taints, 0)
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    allocatable: Mapping[str, str] = status.get("allocatable") or {}
    capacity: Mapping[str, str] = status.get("capacity") or {}
    gpus = whole(allocatable.get(names.GPU_RESOURCE, "0"))
    return _Node(
        uid=metadata["uid"],
        ready=conditions.get("Ready") == "True",
        cordoned=bool(spec.get("unschedulable")),
        gpus_allocatable=gpus,
        shape=Shape(
            name=metadata["name"],
            labels=labels,
            taints=taints,
            gpus=max(gpus, whole(capacity.get(names.GPU_RESOURCE, "0"))),
            cpu_m=offered_cpu_m(allocatable.get("cpu", "0")),
            memory_mib=offered_mib(allocatable.get("memory", "0")),
            others=_others(allocatable, capacity),
        ),
    )


def _others(allocatable: Mapping[str, str], capacity: Mapping[str, str]) -> dict[str, int]:
    """Further resources. A device plugin that is away, or behind, shows less allocatable than there is."""
    devices = {name: whole(amount) for name, amount in capacity.items() if "/" in name}
    rest = {name: whole(amount) for name, amount in allocatable.items() if name not in ("cpu", "memory", "pods")}
    return {name: max(devices.get(name, 0), rest.get(name, 0)) for name in devices | rest}
