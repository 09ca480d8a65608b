"""One pass over one node: read, set the latches, read back, evict, prove, answer. May be cut off anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from bridge.kube import resources
from bridge.kube.connection import ApiError, Json
from bridge.kube.pods import Pod
from bridge.model.errors import CallFailed
from bridge.model.kube import LoanSpec, LoanStatus
from bridge.model.ownership import Owner
from bridge.node_controller import decisions
from bridge.node_controller.cluster import Cluster
from bridge.node_controller.decisions import Act, FenceSeen, Latches, NodeSeen
from bridge.node_controller.metrics import EVICTIONS, TAINT_REPAIRS

MOST_REPAIRS = 5
REPAIR_WINDOW_S = 600.0
"""How often in this time a taint that others take off is put back: a quarrel of controllers must not go on for ever."""
FENCE_SETTLE_S = 0.3
"""How long admission may still act on a fence entry after it was lifted (0.2 s were measured)."""
_MOST_WRITES = 6

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Memory:
    """What is remembered of a node between passes. Losing it costs a little time and nothing else."""

    closed_since_s: float | None = None
    fence_lifted_at_s: float | None = None
    repaired_at_s: list[float] = field(default_factory=list)


class Reconciler:
    """Reconciles nodes by name; each name by one thread at a time (see `KeyQueue`)."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        monotonic_s: Callable[[], float],
        now: Callable[[], datetime],
        late_bind_wait_s: float,
        eviction_grace_s: int | None,
    ) -> None:
        self._cluster = cluster
        self._monotonic_s = monotonic_s
        self._now = now
        self._late_bind_wait_s = late_bind_wait_s
        self._eviction_grace_s = eviction_grace_s
        self._lock = threading.Lock()
        self._memories: dict[str, _Memory] = {}

    def reconcile(self, name: str) -> float | None:
        """One pass. Returns the seconds after which to look again even if nothing rings, or None.

        `Conflict`: something changed meanwhile, pass again at once. `CallFailed`: pass again later. `Fenced`: we do not
        lead any more.
        """
        loan = self._cluster.loan(name)
        if loan is None:
            self._forget(name)
            return None
        spec = resources.loan_spec(loan)
        memory = self._remember(name)
        node, found, look_again_s = self._set_latches(spec, memory)
        if spec.owner is Owner.KUBERNETES:
            status = decisions.open_status(spec, node, found)
            if status.phase != "Open":
                look_again_s = look_again_s or decisions.LOOK_AGAIN_S
        else:
            status, wait_s = self._empty(spec, node, found, memory)
            look_again_s = look_again_s or wait_s
        self._answer(loan, status, unknown=node is None or not node.ready)
        return look_again_s

    # --- latches ---

    def _set_latches(self, spec: LoanSpec, memory: _Memory) -> tuple[NodeSeen | None, Latches, float | None]:
        """Write until nothing is left to write. What stands is what the apiserver returned, not what we sent."""
        node, fence = self._cluster.node(spec.node), self._cluster.fence(spec.node)
        for _ in range(_MOST_WRITES):
            settling_s = self._settling_s(memory)
            found = decisions.latches(
                spec, node, fence, may_repair=self._may_repair(memory), fence_seen=settling_s is None
            )
            if not found.closed:
                memory.closed_since_s = None
            elif memory.closed_since_s is None:
                memory.closed_since_s = self._monotonic_s()
            if found.act is None:
                return node, found, settling_s
            node, fence = self._carry_out(found.act, spec, node, fence, memory)
        raise CallFailed(f"the latches of {spec.node} do not hold still: {found.act}")

    def _carry_out(
        self, act: Act, spec: LoanSpec, node: NodeSeen | None, fence: FenceSeen, memory: _Memory
    ) -> tuple[NodeSeen | None, FenceSeen]:
        log.info("latch", node=spec.node, act=repr(act), mark=str(spec.mark))
        match act, node:
            case decisions.MakeFence(), _:
                return node, self._cluster.make_fence(spec.node)
            case decisions.PutFence(replaces, mark), _:
                return node, self._cluster.put_fence(spec.node, replaces, mark)
            case decisions.LiftFence(entry), _:
                memory.fence_lifted_at_s = self._monotonic_s()
                return node, self._cluster.lift_fence(spec.node, entry)
            case decisions.PutTaint(mark, taken_off_by), NodeSeen():
                after = self._cluster.put_taint(node, mark)
                if taken_off_by:
                    self._note_repair(node, taken_off_by, memory)
                return after, fence
            case decisions.LiftTaint(), NodeSeen():
                return self._cluster.lift_taint(node), fence
            case _:
                raise CallFailed(f"{act} needs a node, and there is no {spec.node}")

    def _settling_s(self, memory: _Memory) -> float | None:
        """For how long admission may not have seen yet that the fence entry is gone."""
        if memory.fence_lifted_at_s is None:
            return None
        left_s = memory.fence_lifted_at_s + FENCE_SETTLE_S - self._monotonic_s()
        return left_s if left_s > 0 else None

    def _may_repair(self, memory: _Memory) -> bool:
        since_s = self._monotonic_s() - REPAIR_WINDOW_S
        memory.repaired_at_s = [at_s for at_s in memory.repaired_at_s if at_s > since_s]
        return len(memory.repaired_at_s) < MOST_REPAIRS

    def _note_repair(self, node: NodeSeen, who: str, memory: _Memory) -> None:
        memory.repaired_at_s.append(self._monotonic_s())
        TAINT_REPAIRS.inc()
        note = f"{who} took the bridge's taint off; it was put back ({len(memory.repaired_at_s)} of {MOST_REPAIRS})"
        log.warning("taint repaired", node=node.name, by=who)
        try:
            self._cluster.tell(node, "TaintRemoved", note, now=self._now())
        except ApiError as error:
            log.warning("event not written", node=node.name, problem=str(error))

    # --- emptying ---

    def _empty(
        self, spec: LoanSpec, node: NodeSeen | None, found: Latches, memory: _Memory
    ) -> tuple[LoanStatus, float | None]:
        if node is None or not found.closed or memory.closed_since_s is None:
            return decisions.closed_status(spec, node, found, None, ()), decisions.LOOK_AGAIN_S
        stood_s = self._monotonic_s() - memory.closed_since_s  # counted before the pods are read
        infrastructure = self._cluster.infrastructure()
        plan = decisions.emptying(
            spec,
            node,
            self._cluster.pods(spec.node),
            self._cluster.attachments(spec.node, infrastructure),
            infrastructure,
            stood_s=stood_s,
            late_bind_wait_s=self._late_bind_wait_s,
        )
        refusals = {pod.uid: why for pod in plan.evict if (why := self._evict(pod))}
        return decisions.closed_status(spec, node, found, plan, plan.blockers(refusals)), plan.look_again_s

    def _evict(self, pod: Pod) -> str:
        why = self._cluster.evict(pod, self._eviction_grace_s)
        EVICTIONS.labels("refused" if why else "accepted").inc()
        log.info("evict", pod=pod.key, node=pod.node, refused=why)
        return decisions.refused(pod, why) if why else ""

    # --- the answer ---

    def _answer(self, loan: Json, status: LoanStatus, *, unknown: bool) -> None:
        """Write the status if it says anything new."""
        before = loan.get("status") or {}
        generation = int(loan["metadata"]["generation"])
        now = decisions.clock_time(self._now())
        after = {
            **resources.status_object(status),
            "observedGeneration": generation,
            "conditions": decisions.conditions(
                status, before.get("conditions") or (), unknown=unknown, generation=generation, now=now
            ),
        }
        if after != before:
            self._cluster.write_status(loan, after)

    def _remember(self, name: str) -> _Memory:
        with self._lock:
            return self._memories.setdefault(name, _Memory())

    def _forget(self, name: str) -> None:
        with self._lock:
            self._memories.pop(name, None)
