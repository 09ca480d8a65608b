"""Which edge of the table a handoff takes now, judged from fresh facts.

``WholeGang``
    Handoffs of one lease enter `open` together: none does before all are clean, and while one goes back all others that
    were not opened yet go back too.
``Bounded``
    Every step has a deadline and an edge for when it passes. Time in which a side is UNKNOWN does not count: the
    deadline is moved on, for waking up after an outage is not a reason to quarantine a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bridge.lifecycle.facts import DeviceFacts, SideFacts
from bridge.lifecycle.preemption import signal_due, signalled, signalled_again, waits_for
from bridge.lifecycle.table import Fact, allows
from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Side

_BEFORE_OPENING = frozenset({Step.CLOSE, Step.EMPTY, Step.CLEAN})
_GOING_BACK = frozenset({Step.REOPEN, Step.REPROVE})


@dataclass(frozen=True, slots=True)
class StepBounds:
    """How long each step may take, in seconds, before its deadline edge is taken."""

    close_s: float
    empty_s: float
    clean_s: float
    open_s: float
    prove_s: float

    def of(self, step: Step) -> timedelta:
        seconds = {
            Step.ADMIT: self.close_s,
            Step.ADOPT: self.close_s,
            Step.CLOSE: self.close_s,
            Step.EMPTY: self.empty_s,
            Step.CLEAN: self.clean_s,
            Step.OPEN: self.open_s,
            Step.REOPEN: self.open_s,
        }.get(step, self.prove_s)
        return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Sight:
    """All that was seen of one node in one pass."""

    slurm: SideFacts
    kubernetes: SideFacts
    devices: DeviceFacts = field(default_factory=DeviceFacts)

    def side(self, side: Side) -> SideFacts:
        return self.slurm if side is Side.SLURM else self.kubernetes


@dataclass(frozen=True, slots=True)
class Member:
    """A handoff of a gang together with the sight of its node."""

    handoff: Handoff
    sight: Sight


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fact` moves the handoff on; without one it waits, for `blockers`. `unknown`: a side that matters is UNKNOWN."""

    fact: Fact | None = None
    blockers: tuple[str, ...] = ()
    unknown: bool = False


def graces(gang: Sequence[Member], *, now: datetime, skew: timedelta, new_leader: bool) -> list[Member]:
    """The gang with the graces of its victims as they stand now: begun where that is due, moved with the clock (`skew`
    is how far it was set forward), begun anew under a new leader. To be committed before anything is signalled."""
    fellows = [(member.handoff, member.sight.side(member.handoff.source)) for member in gang]
    found = []
    for member, (handoff, source) in zip(gang, fellows, strict=True):
        kept = signalled_again(handoff, now=now, skew=skew, new_leader=new_leader)
        due = signal_due(handoff, source, fellows)
        found.append(replace(member, handoff=signalled(handoff, now) if due else kept))
    return found


def judge(member: Member, gang: Sequence[Member], now: datetime) -> Verdict:
    """What the facts say about `member` at `now`. `gang` are all live handoffs of its lease, itself included."""
    verdict = _judge_step(member, gang)
    if verdict.fact is not None:
        return verdict
    handoff = member.handoff
    broken = any(other.handoff.step in _GOING_BACK for other in gang)
    if broken and handoff.step in _BEFORE_OPENING:
        return Verdict(Fact.GANG_BROKEN)
    late = now >= handoff.step_deadline_at and not verdict.unknown
    if late and allows(handoff.step, Fact.LATE):
        return Verdict(Fact.LATE, verdict.blockers)
    return verdict


def _judge_step(member: Member, gang: Sequence[Member]) -> Verdict:
    step = member.handoff.step
    source = member.sight.side(member.handoff.source)
    destination = member.sight.side(member.handoff.destination)
    if step in (Step.OPEN, Step.PROVE):
        return _judge_opening(step, destination, source)
    if step in _GOING_BACK:
        return _judge_opening(step, source, destination)
    if not source.known:
        return Verdict(blockers=(source.unknown,), unknown=True)
    if step in (Step.ADMIT, Step.ADOPT):
        return _judge_first_day(step, source, destination, member.sight.devices)
    if source.foreign:
        return Verdict(Fact.TAKEN, (source.foreign,))
    if step is Step.CLOSE:
        return Verdict(Fact.CLOSED) if source.closed else Verdict(blockers=("the source is not closed yet",))
    if not source.closed:
        return Verdict(Fact.DISTURBED)
    if step is Step.EMPTY:
        return Verdict(Fact.EMPTY) if source.empty else Verdict(blockers=waits_for(member.handoff, source))
    return _judge_clean(member, gang, destination)


def _judge_first_day(step: Step, source: SideFacts, destination: SideFacts, devices: DeviceFacts) -> Verdict:
    """Where work of the destination runs, processes are its own and prove nothing; else none may hold a GPU device. An
    inspector that is not up yet, on the first day, is waited for."""
    if step is Step.ADMIT and not destination.closed:
        return Verdict(blockers=(destination.unknown or "not closed on both sides yet",), unknown=not destination.known)
    if not source.closed:
        return Verdict(blockers=("not closed yet",))
    if source.empty and step is Step.ADMIT and not destination.works and not devices.clean:
        return Verdict(blockers=devices.blockers, unknown=not devices.answered)
    if source.empty:
        return Verdict(Fact.EMPTY)
    if step is Step.ADOPT and not source.idle:
        return Verdict(Fact.DISTURBED, source.blockers)
    return Verdict(blockers=source.blockers)


def _judge_clean(member: Member, gang: Sequence[Member], destination: SideFacts) -> Verdict:
    if not member.sight.devices.clean:
        return Verdict(blockers=member.sight.devices.blockers)
    if not destination.known:
        return Verdict(blockers=(destination.unknown,), unknown=True)
    waiting = sorted(other.handoff.node for other in gang if not _may_open(other))
    if waiting:
        return Verdict(blockers=(f"the gang waits for {', '.join(waiting)}",))
    return Verdict(Fact.CLEAN)


def _may_open(member: Member) -> bool:
    """Opened already, or nothing of its own stands against it: the other members count on this very pass."""
    if member.handoff.step in (Step.OPEN, Step.PROVE):
        return True
    source = member.sight.side(member.handoff.source)
    destination = member.sight.side(member.handoff.destination)
    closed = source.known and source.closed and not source.foreign
    return member.handoff.step is Step.CLEAN and closed and destination.known and member.sight.devices.clean


def _judge_opening(step: Step, opening: SideFacts, closed: SideFacts) -> Verdict:
    if not opening.known:
        return Verdict(blockers=(opening.unknown,), unknown=True)
    if step in (Step.OPEN, Step.REOPEN):
        if opening.opened:
            return Verdict(Fact.OPENED)
        if not closed.known:
            return Verdict(blockers=(closed.unknown,), unknown=True)
        if not closed.closed:
            return Verdict(blockers=("the other side is not closed: nothing is opened before it is",))
        if closed.works:
            return Verdict(blockers=("work runs on the other side: nothing is opened before it ends",))
        return Verdict(blockers=("being opened",))
    if opening.ready:
        return Verdict(Fact.PROVEN)
    if opening.foreign:
        # Ours is lifted; the person's own mark stays, with their reason. The node is theirs to give back.
        return Verdict(Fact.PROVEN, (opening.foreign,))
    return Verdict(blockers=(opening.not_ready,))


def enter(handoff: Handoff, step: Step, *, now: datetime, bounds: StepBounds, nonce: str, generation: int) -> Handoff:
    """`handoff` at the start of `step`: fresh deadline and nonce, no blockers; ended when the step is an end."""
    return replace(
        handoff,
        step=step,
        nonce=nonce,
        generation=generation,
        step_began_at=now,
        step_deadline_at=now + bounds.of(step),
        blockers=(),
        ended_at=now if step.ended else None,
    )


def postpone(handoff: Handoff, *, now: datetime, bounds: StepBounds) -> Handoff:
    """Move the deadline on while a side is UNKNOWN; unchanged as long as half the step's time is left."""
    bound = bounds.of(handoff.step)
    if handoff.step_deadline_at - now > bound / 2:
        return handoff
    return replace(handoff, step_deadline_at=now + bound)
