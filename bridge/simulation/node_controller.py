"""The simulated node controller: makes ``NodeLoan.spec`` so and answers in ``NodeLoan.status``, as the real one does.

To close: the taint, then the fence, both read back; then evictions, if they are allowed; then, a moment after both
latches stood (a binding may still have been on its way), the proof of emptiness that quotes the nonce. To open: the
fence entry out, a moment for admission to see it, then the taint off. It never cordons and never takes away a mark of
somebody else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.model.errors import Fenced
from bridge.model.kube import LoanSpec, LoanStatus
from bridge.model.ownership import Owner
from bridge.simulation.clock import Latency, SimulatedClock, Timer
from bridge.simulation.cluster import Cluster, KubeletNode, KubeTimings

MOST_REPAIRS = 5
REPAIR_WINDOW_S = 600.0
"""How often in this time the controller puts its taint back when others take it off, before it only says so."""

A_HAIR_S = 0.001
"""Added to a wait for a moment, as a sum of floats may fall short of it."""


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
        node = self._cluster.nodes[name]
        status = self._open(node, loan) if loan.spec.owner is Owner.KUBERNETES else self._close(node, loan)
        if status != loan.status:
            loan.status = status
            self._on_change()

    # --- towards Kubernetes ---

    def _open(self, node: KubeletNode, loan: Loan) -> LoanStatus:
        loan.closed_at_s = None
        now_s = self._clock.monotonic_s()
        if node.name in self._cluster.fence:
            self._cluster.set_fence(node.name, "")
            loan.unfenced_at_s = now_s
        left_s = loan.unfenced_at_s + self._timings.fence_settle_s - now_s
        if node.taint and left_s > 0:
            self._look_in(node.name, left_s + A_HAIR_S)
            return self._answer(node, loan, phase="Opening")
        self._cluster.set_taint(node.name, "")
        blockers = _not_usable(node, loan.spec.gpus)
        return self._answer(node, loan, phase="Opening" if blockers else "Open", open=True, blockers=blockers)

    # --- away from Kubernetes ---

    def _close(self, node: KubeletNode, loan: Loan) -> LoanStatus:
        disturbed = self._set_latches(node, loan)
        if disturbed:
            return self._answer(node, loan, phase="Closing", blockers=(disturbed,))
        now_s = self._clock.monotonic_s()
        if loan.closed_at_s is None:
            loan.closed_at_s = now_s
        left = len(self._cluster.on(node.name))
        blockers = self._empty(node, loan)
        left_s = loan.closed_at_s + self._timings.late_bind_wait_s - now_s
        proven = not blockers and left_s <= 0
        if not proven:
            self._look_in(node.name, self._timings.controller_retry_s if blockers else left_s + A_HAIR_S)
        phase = "Draining" if left else "Empty" if proven else "Closed"
        nonce = loan.spec.nonce if proven else ""
        return self._answer(node, loan, phase=phase, closed=True, empty_nonce=nonce, blockers=blockers)

    def _set_latches(self, node: KubeletNode, loan: Loan) -> str:
        """Make both stand; why they do not, when others took the taint off too often."""
        now_s = self._clock.monotonic_s()
        mark = loan.spec.mark
        taken_off = not node.taint and node.name in self._cluster.fence
        if taken_off:
            loan.closed_at_s = None
            recent = [at_s for at_s in loan.repaired_at_s if at_s > now_s - REPAIR_WINDOW_S]
            if len(recent) >= MOST_REPAIRS:
                return f"somebody keeps taking the bridge's taint off {node.name}: not put back for a while"
            loan.repaired_at_s = [*recent, now_s]
        self._cluster.set_taint(node.name, mark.lease)
        if self._cluster.fence.get(node.name) != str(mark):
            loan.closed_at_s = None
            self._cluster.set_fence(node.name, str(mark))
        return ""

    def _empty(self, node: KubeletNode, loan: Loan) -> tuple[str, ...]:
        """Evict what may be evicted; what keeps the node from being empty."""
        if not node.ready:
            return (f"the kubelet of {node.name} does not answer: its pods are UNKNOWN until it is back",)
        blockers = []
        for pod in self._cluster.on(node.name):
            if pod.terminating:
                blockers.append(f"pod {pod.key} is terminating")
            elif not loan.spec.evict:
                blockers.append(f"pod {pod.key} runs")
            else:
                blockers.append(self._cluster.evict(pod) or f"pod {pod.key} is terminating")
        return tuple(blockers)

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
    ) -> LoanStatus:
        return LoanStatus(
            phase=phase,
            observed=loan.spec.mark,
            closed=closed,
            open=open,
            empty_nonce=empty_nonce,
            node_uid=node.uid,
            pods_left=len(self._cluster.on(node.name)),
            gpus_allocatable=node.gpus_allocatable,
            blockers=blockers,
        )


def _not_usable(node: KubeletNode, gpus: int) -> tuple[str, ...]:
    blockers = []
    if not node.ready:
        blockers.append(f"the kubelet of {node.name} does not answer")
    if node.gpus_allocatable < gpus:
        blockers.append(f"the kubelet offers {node.gpus_allocatable} of {gpus} GPUs")
    if node.cordoned:
        blockers.append(f"{node.name} is cordoned by a person")
    return tuple(blockers)
