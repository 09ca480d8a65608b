"""The simulated node controller: makes ``NodeLoan.spec`` so and answers in ``NodeLoan.status``, as the real one does.

Taint and fence first, both read back; then evictions, if they are allowed; then, a moment after both latches stood (a
binding may still have been on its way), the proof of emptiness that quotes the nonce. It never cordons and never takes
away a mark of somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.model.errors import Fenced
from bridge.model.kube import LoanSpec, LoanStatus
from bridge.model.ownership import Owner
from bridge.simulation.clock import Latency, SimulatedClock, Timer
from bridge.simulation.cluster import Cluster, KubeletNode, KubeTimings

MOST_REPAIRS = 5
"""How often the controller puts its taint back when somebody takes it away, before it only says so."""


@dataclass(slots=True)
class Loan:
    """A NodeLoan object, and what the controller keeps in mind about it between two looks."""

    spec: LoanSpec
    status: LoanStatus = field(default_factory=LoanStatus)
    closed_at_s: float | None = None
    repairs: int = 0
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
            loan.closed_at_s, loan.repairs = None, 0
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
        loan.closed_at_s, loan.repairs = None, 0
        self._cluster.set_fence(node.name, "")
        self._cluster.set_taint(node.name, "")
        blockers = _not_usable(node, loan.spec.gpus)
        return self._answer(node, loan, phase="Opening" if blockers else "Open", open=True, blockers=blockers)

    # --- away from Kubernetes ---

    def _close(self, node: KubeletNode, loan: Loan) -> LoanStatus:
        lease = loan.spec.mark.lease
        self._cluster.set_fence(node.name, lease)
        disturbed = self._taint(node, loan)
        if disturbed:
            return self._answer(node, loan, phase="Closing", blockers=(disturbed,))
        now_s = self._clock.monotonic_s()
        if loan.closed_at_s is None:
            loan.closed_at_s = now_s
        left = len(self._cluster.on(node.name))
        blockers = self._empty(node, loan)
        proven = False
        if not blockers:
            stood_s = now_s - loan.closed_at_s
            proven = stood_s >= self._timings.late_bind_wait_s
            if not proven:
                # Nudged beyond the moment itself: a sum of floats may fall short of it by a hair.
                self._look_in(node.name, self._timings.late_bind_wait_s - stood_s + 0.001)
        elif loan.spec.evict:
            self._look_in(node.name, self._timings.controller_retry_s)
        phase = "Draining" if left else "Empty" if proven else "Closed"
        nonce = loan.spec.nonce if proven else ""
        return self._answer(node, loan, phase=phase, closed=True, empty_nonce=nonce, blockers=blockers)

    def _taint(self, node: KubeletNode, loan: Loan) -> str:
        """Put the taint there; why it does not stand, when others took it away too often."""
        lease = loan.spec.mark.lease
        taken_away = loan.closed_at_s is not None and not node.taint
        if taken_away:
            loan.closed_at_s = None
            loan.repairs += 1
            if loan.repairs > MOST_REPAIRS:
                return f"somebody takes the bridge's taint off {node.name} again and again"
        self._cluster.set_taint(node.name, lease)
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
    return tuple(blockers)
