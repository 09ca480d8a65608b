"""What the bridge itself may not do: every commit of a ledger and every outside call, judged when it happens.

`Oracle` asks the machines whether both sides run on one; the auditor reads over a broker's shoulder. Checked:

- `IntentFirst`: a call marks, opens or ends only what the ledger, as the broker read it last, says.
- `FailClosed`: in a pass in which a side was not read, nothing is opened and nobody is signalled or requeued.
- `WholeGang`: while one node of a lease is opened towards its destination, no other is still on the way or goes back;
  one call releases all of them.
- `FloorHolds`: the policy takes no usable node from a side that then has less than what it keeps of its floor.
- `NoFlap`: the policy moves no usable node within its minimum hold, but for a floor.
- `Bounded`: the policy begins nothing beyond its limit of moves in flight, nor in a pool whose circuit breaker has
  tripped; every step has a deadline ahead of it.
- `NothingForNothing`: a grace begins only when every node of the lease was read as closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

from bridge.model.errors import InvariantViolation
from bridge.model.handoff import Handoff, Step
from bridge.model.kube import KubeObservation, LoanSpec
from bridge.model.ledger import Change, LedgerState, PutHandoff
from bridge.model.ownership import Mark, Owner, Side
from bridge.model.pause import PauseKind
from bridge.model.slurm import SlurmObservation
from bridge.ports import Clock, KubePort, Ledger, SlurmPort

Port = TypeVar("Port")

POLICY = "policy"
"""Who asks for the handoffs that no person ordered."""

_ON_THE_WAY = frozenset({Step.CLOSE, Step.EMPTY, Step.CLEAN, Step.REOPEN, Step.REPROVE})
_OPENED = frozenset({Step.OPEN, Step.PROVE})
_SHUT = frozenset({Step.EMPTY, Step.CLEAN})


class Auditor:
    """Wraps the ledger that all brokers share, and the ports of each of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def ledger(self, ledger: Ledger) -> Ledger:
        """The ledger with every commit judged that really happens; to be put below any faults."""
        return cast(Ledger, _AuditedLedger(ledger, self))

    def broker(self, ledger: Ledger, slurm: SlurmPort, kubernetes: KubePort) -> tuple[Ledger, SlurmPort, KubePort]:
        """The ports of one broker, with every outside call judged by what this broker has read."""
        reader = _Reader(self)
        return (
            cast(Ledger, _Remembering(ledger, reader)),
            cast(SlurmPort, _AuditedSlurm(slurm, reader)),
            cast(KubePort, _AuditedKube(kubernetes, reader)),
        )

    def committed(self, before: LedgerState, changes: Sequence[Change], after: LedgerState) -> None:
        now = self._clock.now()
        puts = [change for change in changes if isinstance(change, PutHandoff)]
        begun = [put.handoff for put in puts if put.replaces is None and put.handoff.requested_by == POLICY]
        self._gangs_are_whole(after)
        self._graces_are_due(before, puts, after)
        for put in puts:
            entered = put.replaces is not put.handoff.step and not put.handoff.step.ended
            if entered and put.handoff.step_deadline_at < now:
                self.broken("Bounded", f"{put.handoff.node} enters {put.handoff.step} after its deadline")
        for handoff in begun:
            self._held_long_enough(before, handoff, now)
        for pool in {before.nodes[handoff.node].node.pool for handoff in begun}:
            self._breaker_is_not_tripped(before, after, pool)
            self._within_limits(after, pool, begun)
            for side in Side:
                self._floor_stands(before, after, pool, side, [each for each in begun if each.source is side])

    def _gangs_are_whole(self, state: LedgerState) -> None:
        gangs: dict[str, list[Handoff]] = {}
        for handoff in state.handoffs.values():
            gangs.setdefault(handoff.lease, []).append(handoff)
        for lease, handoffs in gangs.items():
            steps = {handoff.step for handoff in handoffs}
            if steps & _OPENED and steps & _ON_THE_WAY:
                self.broken("WholeGang", f"nodes of lease {lease} are in {', '.join(sorted(steps))} at once")

    def _graces_are_due(self, before: LedgerState, puts: Iterable[PutHandoff], after: LedgerState) -> None:
        for handoff in (put.handoff for put in puts):
            old = before.handoffs.get(handoff.node)
            if handoff.signalled_at is None or (old is not None and old.signalled_at is not None):
                continue
            gang = [each for each in after.handoffs.values() if each.lease == handoff.lease]
            odd = [f"{each.node} is in {each.step}" for each in gang if each.step not in _SHUT]
            if odd:
                self.broken("NothingForNothing", f"the grace on {handoff.node} begins while {'; '.join(odd)}")

    def _held_long_enough(self, before: LedgerState, handoff: Handoff, now: datetime) -> None:
        record, lease = before.nodes[handoff.node], before.leases[handoff.node]
        pool = before.policy.pool(record.node.pool)
        held_s = (now - lease.owner_since).total_seconds()
        if pool is None or record.unusable or held_s < 0 or held_s >= pool.min_hold_s:
            return
        if handoff.demand and not pool.share(handoff.destination).floor_nodes:
            self.broken("NoFlap", f"{handoff.node} changed hands {held_s:.1f} s ago and is moved: {handoff.reason}")

    def _breaker_is_not_tripped(self, before: LedgerState, after: LedgerState, pool: str) -> None:
        """Neither before a commit that begins something nor by it: only the leader sets and ends it, but for people."""
        tripped = [
            pause
            for pause in after.pauses
            if pause.kind is PauseKind.BREAKER and pause.scope.name == pool and pause in before.pauses
        ]
        if tripped:
            self.broken("Bounded", f"the policy begins moves in pool {pool} while its breaker is tripped: {tripped[0]}")

    def _within_limits(self, after: LedgerState, pool: str, begun: Sequence[Handoff]) -> None:
        """A gang that is larger than the limit goes alone."""
        policy = after.policy.pool(pool)
        moving = [each for each in after.handoffs.values() if after.nodes[each.node].node.pool == pool]
        alone = len({each.lease for each in moving}) == 1
        if policy is not None and begun and len(moving) > policy.max_in_flight and not alone:
            self.broken("Bounded", f"{len(moving)} handoffs of pool {pool}, at most {policy.max_in_flight}")

    def _floor_stands(
        self, before: LedgerState, after: LedgerState, pool: str, side: Side, begun: Sequence[Handoff]
    ) -> None:
        policy = before.policy.pool(pool)
        usable = [each for each in begun if not before.nodes[each.node].unusable]
        if policy is None or not usable:
            return
        share = policy.share(side)
        kept = max(0, share.floor_nodes - share.lend_limit_nodes)
        left = _owned(after, pool, side)
        if left < kept:
            self.broken("FloorHolds", f"{side} is left {left} nodes of {pool} and keeps {kept}: {usable[0].reason}")

    def broken(self, invariant: str, detail: str) -> None:
        raise InvariantViolation(invariant, f"at {self._clock.monotonic_s():.3f} s {detail}")


def _owned(state: LedgerState, pool: str, side: Side) -> int:
    """Nodes of the pool that are the side's, or on their way to it."""
    count = 0
    for name, lease in state.leases.items():
        record, handoff = state.nodes.get(name), state.handoffs.get(name)
        if record is None or record.node.pool != pool:
            continue
        comes = handoff is not None and _comes_to(handoff) is side
        count += comes or (handoff is None and lease.owner is side.owner and not record.unusable)
    return count


def _comes_to(handoff: Handoff) -> Side:
    return handoff.source if handoff.step in (Step.REOPEN, Step.REPROVE) else handoff.destination


class _Reader:
    """What one broker has read: the ledger last of all, and both sides in its present pass."""

    def __init__(self, auditor: Auditor) -> None:
        self.auditor = auditor
        self.state = LedgerState()
        self.slurm: SlurmObservation | None = None
        self.kube: KubeObservation | None = None

    def owned(self, slurm_names: Collection[str]) -> dict[str, Owner]:
        """By node name, of those that the ledger has."""
        return {
            name: lease.owner
            for name, lease in self.state.leases.items()
            if name in self.state.nodes and self.state.nodes[name].node.slurm_name in slurm_names
        }

    def must(self, holds: bool, invariant: str, detail: str) -> None:
        if not holds:
            self.auditor.broken(invariant, detail)


@dataclass(frozen=True)
class _Passing:
    """Hands every attribute through that a subclass does not have itself."""

    _port: Any
    _reader: Any

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._port, attribute)


class _AuditedLedger(_Passing):
    def commit(self, epoch: int, changes: Sequence[Change]) -> None:
        before = self._port.read()
        self._port.commit(epoch, changes)
        self._reader.committed(before, changes, self._port.read())


class _Remembering(_Passing):
    def read(self) -> LedgerState:
        state: LedgerState = self._port.read()
        self._reader.state = state
        return state


class _AuditedSlurm(_Passing):
    """`SlurmPort` of one broker."""

    def observe(self) -> SlurmObservation:
        self._reader.slurm = self._reader.kube = None
        found: SlurmObservation = self._port.observe()
        self._reader.slurm = found
        return found

    def drain(self, nodes: Collection[str], mark: Mark, why: str) -> None:
        known = {closure.mark for closure in self._reader.state.closures.values() if closure.side is Side.SLURM}
        self._reader.must(mark in known, "IntentFirst", f"drain of {', '.join(nodes)} with {mark}, not in the ledger")
        self._port.drain(nodes, mark, why)

    def hold(self, nodes: Collection[str], reservation: str) -> None:
        seen = self._reader.slurm.nodes if self._reader.slurm is not None else {}
        mine = [
            name
            for name, owner in self._reader.owned(nodes).items()
            if owner is Owner.SLURM and "DRAIN" not in seen[self._reader.state.nodes[name].node.slurm_name].states
        ]
        self._reader.must(not mine, "IntentFirst", f"hold of {', '.join(mine)}, open and Slurm's by the ledger")
        self._port.hold(nodes, reservation)

    def resume(self, nodes: Collection[str]) -> None:
        self._opens("resume", nodes)
        self._port.resume(nodes)

    def release(self, nodes: Collection[str], reservation: str) -> None:
        self._opens("release", nodes)
        state = self._reader.state
        here = {name for name in state.nodes if state.nodes[name].node.slurm_name in nodes}
        gangs = {state.handoffs[name].lease for name in here if name in state.handoffs}
        left = [
            name
            for name, each in state.handoffs.items()
            if each.lease in gangs and each.step is Step.OPEN and each.destination is Side.SLURM and name not in here
        ]
        self._reader.must(not left, "WholeGang", f"release of {', '.join(nodes)} without {', '.join(left)}")
        self._port.release(nodes, reservation)

    def signal(self, job: int, nodes: Collection[str], signal: str) -> None:
        self._reader.must(self._reader.slurm is not None, "FailClosed", f"signal of job {job}, Slurm was not read")
        self._port.signal(job, nodes, signal)

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        self._reader.must(self._reader.slurm is not None, "FailClosed", f"requeue of job {job}, Slurm was not read")
        self._port.requeue(job, nodes)

    def hasten(self, job: int) -> None:
        self._reader.must(self._reader.slurm is not None, "FailClosed", f"hasten of job {job}, Slurm was not read")
        self._port.hasten(job)

    def _opens(self, call: str, nodes: Collection[str]) -> None:
        names = ", ".join(nodes)
        wrong = [name for name, owner in self._reader.owned(nodes).items() if owner is not Owner.SLURM]
        self._reader.must(
            not wrong, "IntentFirst", f"{call} of {', '.join(wrong)}, which the ledger does not give away"
        )
        both = self._reader.slurm is not None and self._reader.kube is not None
        self._reader.must(both, "FailClosed", f"{call} of {names} in a pass that did not read both sides")


class _AuditedKube(_Passing):
    """`KubePort` of one broker."""

    def observe(self) -> KubeObservation:
        found: KubeObservation = self._port.observe()
        self._reader.kube = found
        return found

    def want(self, loans: Sequence[LoanSpec]) -> None:
        for loan in loans:
            self._judge(loan)
        self._port.want(loans)

    def _judge(self, loan: LoanSpec) -> None:
        state = self._reader.state
        names = [name for name, record in state.nodes.items() if record.node.kube_name == loan.node]
        known = {
            *(state.leases[name].mark for name in names if name in state.leases),
            *(closure.mark for (name, _), closure in state.closures.items() if name in names),
        }
        self._reader.must(
            loan.mark in known, "IntentFirst", f"NodeLoan {loan.node} with {loan.mark}, not in the ledger"
        )
        if loan.owner is Owner.KUBERNETES:
            wrong = [name for name in names if state.leases[name].owner is not Owner.KUBERNETES]
            self._reader.must(not wrong, "IntentFirst", f"NodeLoan {loan.node} opens what is not Kubernetes' own")
            self._reader.must(
                self._reader.slurm is not None, "FailClosed", f"NodeLoan {loan.node} opens, Slurm was not read"
            )
