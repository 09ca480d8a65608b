"""The simulated node controller: makes ``NodeLoan.spec`` so and answers in ``NodeLoan.status``, as the real one does.

To close: the taint, then the fence, both read back; then evictions, if they are allowed; then, a moment after both
latches stood (a binding may still have been on its way), the proof of emptiness that quotes the nonce. To open: the
fence entry out, a moment for admission to see it, then the taint off. It never cordons and never takes away a mark of
somebody else. It decides as `bridge.node_controller.decisions` does, which this layer may not import: the unit tests
hold the two against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from bridge.kube.names import EVICT, TAINT
from bridge.model.errors import Fenced
from bridge.model.kube import LoanSpec, LoanStatus
from bridge.model.ownership import Mark, Owner
from bridge.simulation.clock import Latency, SimulatedClock, Timer
from bridge.simulation.cluster import Cluster, Deployment, KubeletNode, KubeTimings, Pod

MOST_REPAIRS = 5
REPAIR_WINDOW_S = 600.0
"""How often in this time the controller puts its taint back when others take it off, before it only says so."""

EVICTIONS_PER_PASS = 10

RESTART_S = 2.0
"""How long a process that died is away."""

A_HAIR_S = 0.001
"""Added to a wait for a moment, as a sum of floats may fall short of it."""


T = TypeVar("T")


class _Died(Exception):
    """The process is gone in the middle of a look."""


@dataclass(slots=True)
class Loan:
    """A NodeLoan object, and what the controller keeps in mind about it between two looks."""

    spec: LoanSpec
    status: LoanStatus = field(default_factory=LoanStatus)
    closed_at_s: float | None = None
    unfenced_at_s: float = -math.inf
    repaired_at_s: list[float] = field(default_factory=list)
    waiting: Timer | None = None


class NodeController:
    """Carries out the loans of one cluster. Its heartbeat stops when it is stopped."""

    def __init__(self, clock: SimulatedClock, cluster: Cluster, timings: KubeTimings, latency: Latency) -> None:
        self._clock = clock
        self._cluster = cluster
        self._timings = timings
        self._latency = latency
        self.loans: dict[str, Loan] = {}
        self._stopped_at_s: float | None = None
        self._dies_at: tuple[int, bool] | None = None
        self.writes: list[str] = []
        """Every write to the apiserver, in words: the points at which a process can die."""
        self._on_change: Callable[[], None] = lambda: None
        cluster.on_change(self._look_soon)

    def on_change(self, observer: Callable[[], None]) -> None:
        """Tell `observer` whenever a spec or a status is different from before."""
        self._on_change = observer

    def stop(self) -> None:
        """From now on every status is frozen; that the heartbeat is stale shows only later."""
        self._stopped_at_s = self._clock.monotonic_s()

    def start(self) -> None:
        """A new process: it remembers nothing but what stands in the objects."""
        self._stopped_at_s = None
        for name, loan in self.loans.items():
            self.loans[name] = Loan(loan.spec, loan.status)
            self._look_soon(name)

    def die_at(self, number: int, *, after: bool) -> None:
        """The process dies right before its `number`-th write (from 0), or right after it, and is started again."""
        self._dies_at = (number, after)

    @property
    def alive(self) -> bool:
        """As its heartbeat shows it."""
        if self._stopped_at_s is None:
            return True
        return self._clock.monotonic_s() - self._stopped_at_s < self._timings.heartbeat_stale_s

    def want(self, spec: LoanSpec) -> None:
        """The apiserver's side of writing ``NodeLoan.spec``: the resource's own rule refuses an older mark."""
        loan = self.loans.get(spec.node)
        if loan is None:
            self.loans[spec.node] = Loan(spec)
        elif loan.spec.mark.token > spec.mark.token:
            raise Fenced(f"NodeLoan {spec.node} carries {loan.spec.mark}, newer than {spec.mark}")
        elif loan.spec == spec:
            return
        else:
            loan.spec = spec
        self._on_change()
        self._look_soon(spec.node)

    def forget(self, node: str) -> None:
        """The NodeLoan is deleted: its marks stay outside, and nobody looks after them until it is made again."""
        loan = self.loans.pop(node, None)
        if loan is not None and loan.waiting is not None:
            loan.waiting.cancel()
        self._on_change()

    def _look_soon(self, node: str) -> None:
        if node in self.loans:
            self._look_in(node, self._latency(self._timings.controller_s))

    def _look_in(self, node: str, delay_s: float) -> None:
        """One look is enough for all that happens until then; the earliest of those asked for is kept."""
        loan = self.loans[node]
        if loan.waiting is not None:
            if loan.waiting.due_s <= self._clock.monotonic_s() + delay_s:
                return
            loan.waiting.cancel()
        loan.waiting = self._clock.after(delay_s, lambda: self._look(node, loan))

    def _look(self, name: str, loan: Loan) -> None:
        loan.waiting = None
        if self._stopped_at_s is not None or not self._cluster.apiserver_up:
            return
        try:
            status = self._reconcile(name, loan)
            if status != loan.status:
                self._write(f"status of {name}", partial(self._put_status, loan, status))
        except _Died:
            self.stop()
            self._clock.after(RESTART_S, self.start)

    def _put_status(self, loan: Loan, status: LoanStatus) -> None:
        loan.status = status
        self._on_change()

    def _write(self, what: str, effect: Callable[[], T]) -> T:
        number = len(self.writes)
        self.writes.append(what)
        if self._dies_at == (number, False):
            raise _Died
        answer = effect()
        if self._dies_at == (number, True):
            raise _Died
        return answer

    def _put_fence(self, name: str, entry: str) -> None:
        self._write(f"fence of {name}", partial(self._cluster.set_fence, name, entry))

    def _put_taint(self, name: str, lease: str, mark: str) -> None:
        self._write(f"taint of {name}", partial(self._cluster.set_taint, name, lease, mark))

    def _reconcile(self, name: str, loan: Loan) -> LoanStatus:
        node, opens = self._cluster.nodes.get(name), loan.spec.owner is Owner.KUBERNETES
        if node is not None:
            return self._open(node, loan) if opens else self._close(node, loan)
        loan.closed_at_s = None
        if not opens:
            self._put_fence(name, str(loan.spec.mark))
        phase = "Opening" if opens else "Closing"
        return LoanStatus(phase, loan.spec.mark, blockers=(f"Kubernetes has no node {name}",))

    # --- towards Kubernetes ---

    def _open(self, node: KubeletNode, loan: Loan) -> LoanStatus:
        loan.closed_at_s = None
        unusable = _unusable(node, loan.spec.gpus)
        strange = self._newer(node, loan) or self._strange_fence(node) or self._strange_taint(node, loan)
        if strange:
            return self._answer(node, loan, phase="Opening", blockers=(strange, *unusable))
        now_s = self._clock.monotonic_s()
        if node.name in self._cluster.fence:
            self._put_fence(node.name, "")
            loan.unfenced_at_s = now_s
        left_s = loan.unfenced_at_s + self._timings.fence_settle_s - now_s
        if (node.taint or node.mark) and left_s > 0:
            self._look_in(node.name, left_s + A_HAIR_S)
            return self._answer(node, loan, phase="Opening", blockers=unusable)
        self._put_taint(node.name, "", "")
        return self._answer(node, loan, phase="Opening" if unusable else "Open", open=True, blockers=unusable)

    # --- away from Kubernetes ---

    def _close(self, node: KubeletNode, loan: Loan) -> LoanStatus:
        disturbed = self._set_latches(node, loan)
        if disturbed:
            return self._answer(node, loan, phase="Closing", blockers=(disturbed,))
        now_s = self._clock.monotonic_s()
        if loan.closed_at_s is None:
            loan.closed_at_s = now_s
        busy, blockers = self._empty(node, loan)
        left_s = loan.closed_at_s + self._timings.late_bind_wait_s - now_s
        proven = not blockers and left_s <= 0
        if not proven:
            self._look_in(node.name, self._timings.controller_retry_s if blockers else left_s + A_HAIR_S)
        phase = "Draining" if busy else "Empty" if proven else "Closed"
        nonce = loan.spec.nonce if proven else ""
        return self._answer(
            node, loan, phase=phase, closed=True, empty_nonce=nonce, blockers=blockers, pods_left=len(busy)
        )

    def _set_latches(self, node: KubeletNode, loan: Loan) -> str:
        """Make both stand; why they do not. What keeps the taint away does not keep the fence away."""
        mark = loan.spec.mark
        if newer := self._newer(node, loan):
            loan.closed_at_s = None
            return newer
        disturbed = self._strange_taint(node, loan) or self._quarrel(node, loan)
        if not disturbed and (node.taint, node.mark) != (mark.lease, str(mark)):
            loan.closed_at_s = None
            self._put_taint(node.name, mark.lease, str(mark))
        if disturbed or self._cluster.fence.get(node.name) != str(mark):
            loan.closed_at_s = None
            self._put_fence(node.name, str(mark))
        return disturbed

    def _quarrel(self, node: KubeletNode, loan: Loan) -> str:
        """Empty when a taint that others took off may be put back: not more often than is sensible."""
        if node.taint or Mark.parse(node.mark) is None:
            return ""
        now_s = self._clock.monotonic_s()
        recent = [at_s for at_s in loan.repaired_at_s if at_s > now_s - REPAIR_WINDOW_S]
        if len(recent) >= MOST_REPAIRS:
            self._look_in(node.name, self._timings.controller_retry_s)
            return f"somebody keeps taking the bridge's taint off {node.name}: not put back for a while"
        loan.repaired_at_s = [*recent, now_s]
        return ""

    def _newer(self, node: KubeletNode, loan: Loan) -> str:
        """A mark outside that is newer than the NodeLoan: what was read is late, and not acted on."""
        for mark in self._marks(node):
            if mark.token > loan.spec.mark.token:
                return f"{mark} stands outside, newer than this NodeLoan's {loan.spec.mark}: not acted on"
        return ""

    def _strange_taint(self, node: KubeletNode, loan: Loan) -> str:
        """The bridge's key with a lease that is in none of the marks set along with it: a person's."""
        known = {loan.spec.mark.lease, *(mark.lease for mark in self._marks(node))}
        if not node.taint or node.taint in known:
            return ""
        return f"the taint {TAINT}={node.taint} was not set by the bridge: remove it by hand"

    def _strange_fence(self, node: KubeletNode) -> str:
        entry = self._cluster.fence.get(node.name, "")
        if not entry or Mark.parse(entry) is not None:
            return ""
        return f"the NodeFence's entry '{entry}' is not the bridge's: remove it by hand"

    def _marks(self, node: KubeletNode) -> list[Mark]:
        texts = (self._cluster.fence.get(node.name, ""), node.mark)
        return [mark for mark in map(Mark.parse, texts) if mark is not None]

    # --- emptying ---

    def _empty(self, node: KubeletNode, loan: Loan) -> tuple[list[Pod], tuple[str, ...]]:
        """Evict what may be evicted; the pods that are left, and what keeps the node from being empty."""
        busy = sorted(self._cluster.work_on(node.name), key=lambda pod: (self._by(pod).tier, pod.key))
        if not node.ready:
            heard = (f"pod {pod.key} was there when it was last heard of" for pod in busy)
            return busy, (f"the kubelet of {node.name} does not answer: its pods are UNKNOWN", *heard)
        if not busy:
            return busy, tuple(f"volume {volume} is still attached" for volume in node.volumes)
        evicted = self._to_evict(busy) if loan.spec.evict else []
        found = {pod.uid: self._why_left(pod, loan, evicted) for pod in busy}
        for pod in evicted:
            if why := self._write(f"eviction of {pod.key}", partial(self._cluster.evict, pod)):
                found[pod.uid] = f"pod {pod.key}: {why}{_hint(pod)}"
        return busy, tuple(found.values())

    def _to_evict(self, busy: list[Pod]) -> list[Pod]:
        """The lowest tier that is left; the next one follows when it is gone."""
        first = [pod for pod in busy if self._by(pod).tier == self._by(busy[0]).tier]
        return [pod for pod in first if not pod.terminating and not self._spared(pod)][:EVICTIONS_PER_PASS]

    def _spared(self, pod: Pod) -> str:
        made_by = self._by(pod)
        if made_by.evictable is False:
            return "asks not to be disrupted"
        if not made_by.kind and made_by.evictable is None:
            return f"has no controller that would make it again: delete it, or annotate it {EVICT}=true"
        return ""

    def _why_left(self, pod: Pod, loan: Loan, evicted: Collection[Pod]) -> str:
        if pod.terminating_since is not None:
            held = " (finalizers: example.com/slow)" if pod.finalizer else ""
            return f"pod {pod.key} is terminating since {pod.terminating_since:%Y-%m-%dT%H:%M:%SZ}{held}"
        if not loan.spec.evict:
            return f"pod {pod.key} runs ({self._cluster.group(pod)})"
        if spared := self._spared(pod):
            return f"pod {pod.key} {spared}"
        return f"pod {pod.key} is being evicted" if pod in evicted else f"pod {pod.key} is evicted after the others"

    def _by(self, pod: Pod) -> Deployment:
        return self._cluster.deployments[pod.deployment]

    # --- the answer ---

    def _answer(
        self,
        node: KubeletNode,
        loan: Loan,
        *,
        phase: str,
        closed: bool = False,
        open: bool = False,
        empty_nonce: str = "",
        blockers: tuple[str, ...] = (),
        pods_left: int = 0,
    ) -> LoanStatus:
        return LoanStatus(
            phase=phase,
            observed=loan.spec.mark,
            closed=closed,
            open=open,
            empty_nonce=empty_nonce,
            node_uid=node.uid,
            pods_left=pods_left,
            gpus_allocatable=node.gpus_allocatable,
            blockers=blockers,
        )


def _hint(pod: Pod) -> str:
    return "" if pod.ready else "; the pod is not ready: unhealthyPodEvictionPolicy AlwaysAllow would let it go"


def _unusable(node: KubeletNode, gpus: int) -> tuple[str, ...]:
    blockers = []
    if not node.ready:
        blockers.append(f"the kubelet of {node.name} is not ready")
    if node.gpus_allocatable < gpus:
        blockers.append(f"the kubelet offers {node.gpus_allocatable} of {gpus} GPUs")
    if node.cordoned:
        blockers.append(f"{node.name} is cordoned by a person")
    return tuple(blockers)
