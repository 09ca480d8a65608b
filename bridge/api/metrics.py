"""Prometheus metrics: how long requests take, and what the ledger holds when it is scraped.

The reconciler's own metrics are in the same default registry and appear on the same page.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.model.errors import BridgeError
from bridge.model.ledger import LedgerState
from bridge.model.pause import EVERYTHING, PauseKind
from bridge.ports import Ledger

_DURATION_S = Histogram(
    "bridge_http_request_duration_seconds",
    "Time from request to the last byte of the answer; long polls include their wait",
    ("method", "route", "status"),
    buckets=(0.005, 0.02, 0.1, 0.5, 1, 3, 10, 30),
)
_PAGE = 1000
_PAGES_A_SCRAPE = 10


class RequestDurations:
    """ASGI middleware that observes every request under its route's template, so that labels stay few."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = "500"
        began_s = time.perf_counter()

        async def send_watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        finally:
            # An unknown path or method comes from the client: as a label it would let anyone grow our memory.
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if route != "none" else "none"
            _DURATION_S.labels(method, route, status).observe(time.perf_counter() - began_s)


class LedgerCollector(Collector):
    """Reads the ledger at each scrape. When it cannot, ``bridge_ledger_up`` is 0 and the rest is absent, not stale."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._seen_event: int | None = None
        self._events_by_kind: Counter[str] = Counter()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            try:
                state = self._ledger.read()
                self._count_events()
            except BridgeError:
                yield GaugeMetricFamily("bridge_ledger_up", "Whether the ledger could be read", value=0)
                return
            yield GaugeMetricFamily("bridge_ledger_up", "Whether the ledger could be read", value=1)
            events = CounterMetricFamily(
                "bridge_events", "Lines added to the event log since this start", labels=["kind"]
            )
            for kind, count in sorted(self._events_by_kind.items()):
                events.add_metric([kind], count)
            yield events
        yield from _of_nodes(state)
        yield from _of_ledger(state)

    def _count_events(self) -> None:
        if self._seen_event is None:
            self._seen_event = self._ledger.last_event_id()
        for _ in range(_PAGES_A_SCRAPE):
            page = self._ledger.events(after=self._seen_event, limit=_PAGE)
            self._events_by_kind.update(event.kind for event in page)
            self._seen_event = page[-1].id if page else self._seen_event
            if len(page) < _PAGE:
                return


def _of_nodes(state: LedgerState) -> Iterator[Metric]:
    nodes = GaugeMetricFamily("bridge_nodes", "Shared nodes by owner", labels=["pool", "owner"])
    unusable = GaugeMetricFamily("bridge_nodes_unusable", "Nodes that their owner cannot use", labels=["pool"])
    pools = {record.node.pool: 0 for record in state.nodes.values()}
    owned: Counter[tuple[str, str]] = Counter()
    for name, record in state.nodes.items():
        lease = state.leases.get(name)
        owned[record.node.pool, lease.owner.value if lease else "none"] += 1
        pools[record.node.pool] += bool(record.unusable)
    for pool, count in sorted(pools.items()):
        unusable.add_metric([pool], count)
        for owner in ("slurm", "kubernetes", "bridge", "none"):
            nodes.add_metric([pool, owner], owned[pool, owner])
    yield nodes
    yield unusable


def _of_ledger(state: LedgerState) -> Iterator[Metric]:
    handoffs = GaugeMetricFamily("bridge_handoffs_live", "Handoffs by step", labels=["step", "destination"])
    steps = Counter((handoff.step.value, handoff.destination.value) for handoff in state.handoffs.values())
    for labels, count in sorted(steps.items()):
        handoffs.add_metric(labels, count)
    yield handoffs
    yield _of_pauses(state)
    yield GaugeMetricFamily("bridge_policy_version", "Version of the policy", value=state.policy_version)
    yield GaugeMetricFamily("bridge_requests_pending", "Orders without an answer", value=len(state.requests))
    yield GaugeMetricFamily("bridge_generation", "Highest committed generation", value=state.generation)
    if state.fence_ack is not None:
        acknowledged = state.fence_ack.generation
        yield GaugeMetricFamily("bridge_fence_generation", "Generation the Slurm fence shows", value=acknowledged)


def _of_pauses(state: LedgerState) -> Metric:
    """Everything is always there, so that an alert needs no word about a series that is not."""
    pauses = GaugeMetricFamily(
        "bridge_paused", "1 while no new handoff may start there", labels=["scope", "name", "kind"]
    )
    standing = [pause.key for pause in state.pauses]
    always = (EVERYTHING, PauseKind.STOP)
    for scope, kind in (always, *(key for key in standing if key != always)):
        pauses.add_metric([scope.reach.value, scope.name, kind.value], (scope, kind) in standing)
    return pauses


def exposition(ledger_registry: CollectorRegistry) -> bytes:
    """The whole page: the process's registry, then what the ledger holds."""
    return generate_latest(REGISTRY) + generate_latest(ledger_registry)
