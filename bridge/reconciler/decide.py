"""From facts to changes of the ledger: which handoffs move on, which begin, what is remembered.

What is remembered for the planner of later passes is made in `bridge.reconciler.bookkeeping`.

Pure but for `Fresh`, which hands out ids and generations. All changes of a pass are committed in one transaction before
any of them is acted on (``IntentFirst``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bridge.lifecycle.progress import Member, Sight, StepBounds, Verdict, enter, graces, judge, postpone
from bridge.lifecycle.table import Edge, Fact, allows, follow, owner_in
from bridge.model.demand import Work
from bridge.model.handoff import ADOPTER, Handoff, Step
from bridge.model.ledger import (
    AnswerRequest,
    Backoff,
    Change,
    DropClosure,
    LedgerState,
    NodeRecord,
    Note,
    PutBackoff,
    PutClosure,
    PutHandoff,
    PutLease,
    PutRecord,
    PutUsage,
    Request,
    RequestState,
)
from bridge.model.ownership import Closure, Lease, Mark, Owner, Side
from bridge.model.pause import Pause, PauseKind, standing
from bridge.model.policy import PoolPolicy
from bridge.planning import breaker
from bridge.planning.adoption import Adoption, adopt, is_overtaken, take_back, worker
from bridge.planning.orders import judge_order
from bridge.planning.planner import plan
from bridge.planning.snapshot import Move, Place, Plan, Snapshot
from bridge.planning.usage import due, sample
from bridge.reconciler.bookkeeping import backoff_change, breaker_changes, chosen_victims, outlived, victims_by_node


@dataclass(frozen=True, slots=True)
class Fresh:
    """Where new ids and generations come from. `epoch` is the leader's, stamped on every lease."""

    epoch: int
    new_id: Callable[[], str]
    next_generation: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The site's bounds on steps; the pool's patience for emptying is its own. All in seconds."""

    close_s: float
    clean_s: float
    open_s: float
    prove_s: float

    def of(self, pool: PoolPolicy | None) -> StepBounds:
        patience_s = pool.empty_patience_s if pool else 86_400.0
        return StepBounds(self.close_s, patience_s, self.clean_s, self.open_s, self.prove_s)

    def of_gang(self, pool: PoolPolicy, age_s: float, *, unknown: bool = False) -> StepBounds:
        """Bounds for nodes that are collected for a gang since `age_s`: its deadline counts from the beginning.

        A node that is clean waits for the others in step `clean`, and may do so until the deadline. Time in which a
        side is `unknown` does not count, but for no longer than the deadline itself: held nodes are of use to nobody.
        After that there is still the time of one closing, for a look at what has become of them.
        """
        deadline_s = pool.gang_deadline_s
        left_s = max(0.0, deadline_s - age_s)
        if unknown:
            left_s = max(min(deadline_s, 2 * deadline_s - age_s), self.close_s)
        alone = self.of(pool)
        return replace(alone, empty_s=min(alone.empty_s, left_s), clean_s=alone.clean_s + left_s)


@dataclass
class Decider:
    """Collects the changes of one pass."""

    state: LedgerState
    seen: dict[str, Sight]
    now: datetime
    fresh: Fresh
    bounds: Bounds
    skew: timedelta = timedelta(0)
    """How far the wall clock was set forward since the last pass: deadlines move with it (``Bounded``)."""
    new_leader: bool = False
    """Whether this is the first pass of a leader: time in which nobody led does not count for deadlines either."""
    in_doubt: frozenset[str] = frozenset()
    """Nodes for which a call that opens Slurm may still be on its way: not opened to anybody else meanwhile."""
    changes: list[Change] = field(default_factory=list)
    _generations: dict[str, int] = field(default_factory=dict)
    _records: dict[str, NodeRecord] = field(default_factory=dict)
    _begun: dict[str, tuple[Lease, Handoff | None]] = field(default_factory=dict)
    _gangs: frozenset[str] = frozenset()
    _overtaken: frozenset[str] = frozenset()
    """Nodes of which the ledger, restored from the past, knows less than stands outside."""
    _backoffs: dict[str, Backoff] = field(default_factory=dict)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Fill `changes`; returns what the planner said."""
        self._read_closures_back()
        self._remember_lifted_drains()
        self._find_overtaken()
        self._advance(snapshot)
        self._take_back()
        self._give_to_workers()
        self._adopt()
        snapshot = self._judge_breakers(snapshot)
        self._answer_orders(snapshot)
        planned = plan(self._as_begun(snapshot), self.state.policy, self.now)
        for move in planned.moves:
            self._begin(move, snapshot.works)
        self._remember()
        self._keep_records()
        self._remember_use(snapshot.works)
        return planned

    def decide_closings(self) -> None:
        """What a new leader decides while calls of the one before may still arrive: nothing that opens or moves.

        Nodes that the world is ahead about are taken back in this very pass, as the next one would not know them any
        more: what it closes meanwhile looks as if it had never been open.
        """
        self._read_closures_back()
        self._find_overtaken()
        self._take_back()
        self._keep_records()

    def _find_overtaken(self) -> None:
        self._overtaken = frozenset(
            name
            for name, lease in self.state.leases.items()
            if name in self.seen and is_overtaken(self.seen[name], lease, self.state.handoffs.get(name))
        )

    # --- handoffs that are under way ---

    def _read_closures_back(self) -> None:
        """Write down who set our drain and when, as Slurm reports it; forget that when the drain has to be set anew."""
        for (name, side), closure in self.state.closures.items():
            facts = self.seen[name].side(side) if name in self.seen else None
            if side is not Side.SLURM or facts is None or not facts.known:
                continue
            if facts.read_back:
                user, at = facts.read_back
                self._put_closure(closure, replace(closure, set_by=user, set_at=at))
            elif not facts.first_latch and not facts.foreign and facts.stray_mark is None:
                self._put_closure(closure, replace(closure, set_by=None, set_at=None))

    def _put_closure(self, before: Closure, after: Closure) -> None:
        if after != before:
            self.changes.append(PutClosure(after))

    def _advance(self, snapshot: Snapshot) -> None:
        live = Counter(handoff.lease for handoff in self.state.handoffs.values() if handoff.demand)
        whole = {demand.key for demand in snapshot.demands if demand.whole}
        self._gangs = frozenset(
            each.lease for each in self.state.handoffs.values() if live[each.lease] > 1 or each.demand in whole
        )
        gangs: dict[str, list[Member]] = {}
        for handoff in self.state.handoffs.values():
            moved = replace(handoff, step_deadline_at=handoff.step_deadline_at + self.skew)
            if self.new_leader:
                moved = postpone(moved, now=self.now, bounds=self._bounds_of(handoff, unknown=True))
            gangs.setdefault(handoff.lease, []).append(Member(moved, self.seen[handoff.node]))
        for members in gangs.values():
            gang = graces(members, now=self.now, skew=self.skew, new_leader=self.new_leader)
            steps = [self._judge(member, gang) for member in gang]
            self._remember_failure(gang[0].handoff, steps)

    def _judge(self, member: Member, gang: Sequence[Member]) -> Step:
        """Move `member` on or let it wait; the step in which it is then."""
        if member.handoff.node in self._overtaken:
            return member.handoff.step
        verdict = judge(member, gang, self.now)
        broken = any(other.handoff.node in self._overtaken for other in gang)
        if broken and verdict.fact is not Fact.TAKEN and allows(member.handoff.step, Fact.GANG_BROKEN):
            verdict = Verdict(Fact.GANG_BROKEN)
        opens = verdict.fact is not None and follow(member.handoff.step, verdict.fact).to is Step.OPEN
        if opens and any(other.handoff.node in self.in_doubt for other in gang):
            verdict = Verdict(blockers=("an earlier call that opens Slurm may still be on its way",))
        if verdict.fact is None:
            self._wait(member.handoff, verdict)
            return member.handoff.step
        edge = follow(member.handoff.step, verdict.fact)
        self._follow(member.handoff, edge, verdict)
        return edge.to

    def _wait(self, handoff: Handoff, verdict: Verdict) -> None:
        waiting = replace(handoff, blockers=verdict.blockers)
        if verdict.unknown:
            waiting = postpone(waiting, now=self.now, bounds=self._bounds_of(handoff, unknown=True))
        if waiting != self.state.handoffs[handoff.node]:
            self.changes.append(PutHandoff(waiting, replaces=handoff.step))

    def _follow(self, handoff: Handoff, edge: Edge, verdict: Verdict) -> None:
        lease = self.state.leases[handoff.node]
        owner = owner_in(edge.to, handoff, lease.owner)
        generation = self._generation(lease.id) if owner is not lease.owner else lease.generation
        entered = enter(
            handoff,
            edge.to,
            now=self.now,
            bounds=self._bounds_of(handoff),
            nonce=self.fresh.new_id(),
            generation=generation,
        )
        if edge.fact is Fact.LATE:
            entered = replace(entered, late_in=edge.step)
        if edge.to.ended:
            entered = replace(entered, outcome="; ".join((edge.why, *verdict.blockers)))
        self._give(lease, owner, generation, handoff=None if edge.to.ended else handoff.id)
        if edge.fact is Fact.OPENED:
            self._drop_closure(handoff, opened=owner)
        if edge.to is Step.QUARANTINED:
            opening = handoff.source if edge.step is Step.REOPEN else handoff.destination
            self.changes.append(PutClosure(Closure(handoff.node, opening, self._mark(lease, generation))))
        self._settle(handoff, edge, verdict)
        self.changes.append(PutHandoff(entered, replaces=handoff.step))
        self._note_step(entered, edge, verdict)

    def _give(self, lease: Lease, owner: Owner, generation: int, *, handoff: str | None) -> None:
        if owner is lease.owner and handoff == lease.handoff:
            return
        given = replace(lease, handoff=handoff)
        if owner is not lease.owner:
            given = replace(given, owner=owner, generation=generation, epoch=self.fresh.epoch, owner_since=self.now)
        self.changes.append(PutLease(given, replaces=(lease.id, lease.generation)))

    def _drop_closure(self, handoff: Handoff, *, opened: Owner) -> None:
        side = opened.side
        closure = self.state.closures.get((handoff.node, side)) if side else None
        if closure is not None:
            self.changes.append(DropClosure(handoff.node, closure.side, closure.mark))

    def _settle(self, handoff: Handoff, edge: Edge, verdict: Verdict) -> None:
        """What an ended handoff leaves behind on its node."""
        if not edge.to.ended:
            return
        record = self._record(handoff.node)
        if edge.to is Step.DONE:
            self._records[handoff.node] = replace(record, idle_since=None, unusable="", backoff_until=None)
            return
        pool = self._pool(handoff.node)
        backoff = timedelta(seconds=pool.failure_backoff_s if pool else 0)
        unusable = "" if edge.to is Step.RETURNED else "; ".join((edge.why, *verdict.blockers))
        self._records[handoff.node] = replace(
            record, idle_since=None, unusable=unusable, backoff_until=self.now + backoff
        )

    # --- handoffs that begin ---

    def _adopt(self) -> None:
        for name, record in self.state.nodes.items():
            pool = self.state.policy.pool(record.node.pool)
            if name in self.state.leases or pool is None:
                continue
            adoption = adopt(self.seen[name], pool.home, newest=self._newest)
            if adoption.owner is None:
                if record.unusable != adoption.reason:
                    self._records[name] = replace(record, unusable=adoption.reason)
                    self._note("adoption", f"{name} is not adopted: {adoption.reason}", node=name)
                continue
            self._take_in(record, adoption.owner, adoption)

    def _take_back(self) -> None:
        """Nodes that the world is ahead about: their handoffs are over, and both their sides are closed anew."""
        for name in sorted(self._overtaken):
            lease, handoff, record = self.state.leases[name], self.state.handoffs.get(name), self.state.nodes[name]
            pool = self._pool(name)
            last = lease.owner.side or (pool.home if pool else Side.SLURM)
            adoption = take_back(self.seen[name], last, newest=self._newest)
            known = lease.owner is Owner.BRIDGE and handoff is None and record.unusable == adoption.reason
            if adoption.owner is None or known:
                continue
            if handoff is not None:
                edge = follow(handoff.step, Fact.OVERTAKEN)
                ended = replace(handoff, step=edge.to, ended_at=self.now, outcome=f"{edge.why}; {adoption.reason}")
                self.changes.append(PutHandoff(ended, replaces=handoff.step))
                self._note_step(ended, edge, Verdict(blockers=(adoption.reason,)))
            self._take_in(record, adoption.owner, adoption, replaces=lease)

    def _give_to_workers(self) -> None:
        """Nodes that nobody owns and on which the work of one side runs: a restored ledger could not tell whose they
        are, and now that side alone is left."""
        for name, lease in self.state.leases.items():
            record = self.state.nodes.get(name)
            if record is None or lease.owner is not Owner.BRIDGE or name in self.state.handoffs or not record.unusable:
                continue
            side = worker(self.seen[name])
            waits = record.backoff_until is not None and record.backoff_until > self.now
            if side is None or waits or name in self._overtaken:
                continue
            reason = f"only {side}'s work runs on it, behind closed doors: it keeps the node"
            self._take_in(record, side.owner, Adoption(side.owner, reason), replaces=lease)

    @property
    def _newest(self) -> tuple[int, int]:
        """The newest token outside that a ledger of ours can have written: a leader leads above all that it believes
        (see `bridge.reconciler.ahead`)."""
        return (self.fresh.epoch, self.state.generation)

    def _take_in(self, record: NodeRecord, owner: Owner, adoption: Adoption, replaces: Lease | None = None) -> None:
        name, reason = record.node.name, adoption.reason
        lease_id, generation, side = self.fresh.new_id(), self.fresh.next_generation(), owner.side
        handoff = None
        if side is not None:
            step = Step.ADOPT if adoption.busy else Step.ADMIT
            handoff = self._handoff(name, lease_id, generation, side.other, step, reason, ADOPTER, evict=False)
        first = owner if adoption.busy else Owner.BRIDGE
        lease = Lease(lease_id, name, first, self.fresh.epoch, generation, self.now, handoff.id if handoff else None)
        self.changes.append(PutLease(lease, replaces=(replaces.id, replaces.generation) if replaces else None))
        for closed in [side.other] if side and adoption.busy else list(Side):
            self.changes.append(PutClosure(Closure(name, closed, lease.mark)))
        if handoff is not None:
            self.changes.append(PutHandoff(handoff, replaces=None))
        self._begun[name] = (lease, handoff)
        unusable = "" if handoff is not None else reason
        self._records[name] = replace(record, unusable=unusable)
        self._note("adoption", f"{name} is taken in as {owner}'s: {reason}", node=name, lease=lease_id)

    def _judge_breakers(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the breakers of all pools as they stand after this pass. Blind, nobody judges."""
        if snapshot.unknown:
            return snapshot
        known = (*self.state.pauses, *self.state.releases)
        found: dict[str, Pause | None] = {pause.scope.name: pause for pause in known if _of_breaker(pause)}
        for pool in self.state.policy.pools:
            before = found.get(pool.name)
            after = breaker.judge(pool, snapshot.of_pool(pool.name), self.state.ended, before, self.now)
            if after != before:
                self.changes.extend(breaker_changes(pool.name, before, after, self.now))
            found[pool.name] = after
        others = (pause for pause in self.state.pauses if not _of_breaker(pause))
        return replace(snapshot, pauses=standing((*others, *(each for each in found.values() if each is not None))))

    def _answer_orders(self, snapshot: Snapshot) -> None:
        """Begin or refuse what persons ordered."""
        for request in self.state.requests:
            if request.state is not RequestState.PENDING:
                continue
            judged = judge_order(request, self._as_begun(snapshot), self.state.policy, self.now)
            if isinstance(judged, Move):
                handoffs = self._begin(judged, snapshot.works)
                self._answer(request, RequestState.ACCEPTED, f"handoffs {', '.join(handoffs)}")
            else:
                self._answer(request, RequestState.REFUSED, judged)

    def _as_begun(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what this very pass did: its handoffs arrive and count for every limit, backoffs hold."""
        if self._backoffs:
            backoffs = {demand: backoff.until for demand, backoff in self._backoffs.items()}
            snapshot = replace(snapshot, backoffs={**snapshot.backoffs, **backoffs})
        if not self._begun:
            return snapshot
        return replace(snapshot, places=tuple(self._begun_place(place) for place in snapshot.places))

    def _begun_place(self, place: Place) -> Place:
        if place.name not in self._begun:
            return place
        lease, handoff = self._begun[place.name]
        return replace(place, lease=lease, handoff=handoff)

    def _answer(self, request: Request, state: RequestState, answer: str) -> None:
        self.changes.append(AnswerRequest(request.id, state, answer))
        message = f"{request.requested_by} asked for {', '.join(request.nodes)} to {request.destination}: {answer}"
        self.changes.append(Note("order", message, self.now, actor=request.requested_by))

    def _begin(self, move: Move, works: Sequence[Work]) -> list[str]:
        lease_id, generation = self.fresh.new_id(), self.fresh.next_generation()
        victims = victims_by_node(move, works)
        handoffs = []
        for name in move.nodes:
            handoff = self._handoff(
                name, lease_id, generation, move.source, Step.CLOSE, move.reason, move.requested_by, evict=move.evict
            )
            handoff = replace(handoff, demand=move.demand, victims=victims.get(name, ()))
            before = self.state.leases[name]
            lease = Lease(lease_id, name, Owner.BRIDGE, self.fresh.epoch, generation, self.now, handoff.id)
            self.changes.append(PutLease(lease, replaces=(before.id, before.generation)))
            self.changes.append(PutClosure(Closure(name, move.source, lease.mark)))
            self.changes.append(PutHandoff(handoff, replaces=None))
            message = f"{name}: {move.source} -> {move.destination} for {move.requested_by}: {move.reason}"
            data = {"step": str(Step.CLOSE), "direction": f"to_{move.destination}"}
            self._note("step", message, node=name, handoff=handoff.id, lease=lease_id, data=data)
            handoffs.append(handoff.id)
            self._begun[name] = (lease, handoff)
        self.changes.extend(chosen_victims(move, victims, lease=lease_id, now=self.now))
        return handoffs

    def _handoff(
        self,
        name: str,
        lease: str,
        generation: int,
        source: Side,
        step: Step,
        reason: str,
        requested_by: str,
        *,
        evict: bool,
    ) -> Handoff:
        return Handoff(
            id=self.fresh.new_id(),
            lease=lease,
            node=name,
            source=source,
            destination=source.other,
            step=step,
            reason=reason,
            requested_by=requested_by,
            generation=generation,
            nonce=self.fresh.new_id(),
            evict=evict,
            began_at=self.now,
            step_began_at=self.now,
            step_deadline_at=self.now + self.bounds.of(self._pool(name)).of(step),
        )

    # --- what is remembered ---

    def _remember(self) -> None:
        """Since when a node at rest is idle, and whether its owner can use it again."""
        for name, lease in self.state.leases.items():
            side = lease.owner.side
            if name not in self.state.nodes or name in self.state.handoffs or side is None or name in self._overtaken:
                continue
            record = self._record(name)
            facts = self.seen[name].side(side)
            idle_since = (record.idle_since or self.now) if facts.known and facts.idle else None
            unusable = "" if facts.ready else record.unusable
            self._records[name] = replace(record, idle_since=idle_since, unusable=unusable)

    def _keep_records(self) -> None:
        for name, record in self._records.items():
            if record != self.state.nodes[name]:
                self.changes.append(PutRecord(record))

    def _remember_lifted_drains(self) -> None:
        """Before a node is released: a drain that shows the same time from then on is not ours any more.

        Not where Slurm has to be closed: ours is set there again at once, maybe in the same second.
        """
        for name, record in self.state.nodes.items():
            lease = self.state.leases.get(name)
            at = self.seen[name].slurm.lifted_at if name in self.seen else None
            if at not in (None, record.lifted_drain_at) and lease is not None and lease.owner is Owner.SLURM:
                self._records[name] = replace(self._record(name), lifted_drain_at=at)

    def _remember_failure(self, handoff: Handoff, steps: Sequence[Step]) -> None:
        """Whether the demand of a lease, whose handoffs are now at `steps`, was met or is left alone for a while."""
        if not handoff.demand:
            return
        pool = self._pool(handoff.node)
        change = backoff_change(
            handoff.demand,
            steps,
            began_at=handoff.began_at,
            standing=self._backoffs.get(handoff.demand, self.state.backoffs.get(handoff.demand)),
            base_s=pool.gang_backoff_s if pool else 0.0,
            now=self.now,
        )
        if isinstance(change, PutBackoff) and handoff.lease not in self._gangs:
            return  # Pods that need no gang: the node that failed is left alone, others may help them at once.
        if isinstance(change, PutBackoff):
            self._backoffs[handoff.demand] = change.backoff
        self.changes.extend([change] if change else [])

    def _remember_use(self, works: Sequence[Work]) -> None:
        """What each team has used by now, once a minute; and forget demands that are gone."""
        if due(self.state.usage, self.now):
            used = sample(self.state.usage, works, self.state.policy.half_life_s, self.now)
            self.changes.extend(map(PutUsage, used))
        tried = {handoff.demand for handoff in self.state.handoffs.values()} | self._backoffs.keys()
        self.changes.extend(gone for gone in outlived(self.state.backoffs, self.now) if gone.demand not in tried)

    # --- small parts ---

    def _record(self, name: str) -> NodeRecord:
        return self._records.get(name, self.state.nodes[name])

    def _pool(self, name: str) -> PoolPolicy | None:
        return self.state.policy.pool(self.state.nodes[name].node.pool)

    def _bounds_of(self, handoff: Handoff, *, unknown: bool = False) -> StepBounds:
        pool = self._pool(handoff.node)
        if pool is None or handoff.lease not in self._gangs:
            return self.bounds.of(pool)
        return self.bounds.of_gang(pool, (self.now - handoff.began_at).total_seconds(), unknown=unknown)

    def _generation(self, lease: str) -> int:
        """One new generation for all nodes of a lease that change owner in this pass, so that they share one mark."""
        if lease not in self._generations:
            self._generations[lease] = self.fresh.next_generation()
        return self._generations[lease]

    def _mark(self, lease: Lease, generation: int) -> Mark:
        return Mark(lease.id, self.fresh.epoch, generation)

    def _note_step(self, entered: Handoff, edge: Edge, verdict: Verdict) -> None:
        details = f" ({'; '.join(verdict.blockers)})" if verdict.blockers else ""
        self._note(
            "step",
            f"{entered.node}: {edge.step} -> {edge.to}: {edge.why}{details}",
            node=entered.node,
            handoff=entered.id,
            lease=entered.lease,
            data={"from": str(edge.step), "step": str(edge.to), "fact": str(edge.fact)},
        )

    def _note(
        self,
        kind: str,
        message: str,
        *,
        node: str,
        handoff: str | None = None,
        lease: str | None = None,
        data: dict[str, str] | None = None,
    ) -> None:
        self.changes.append(Note(kind, message, self.now, node=node, handoff=handoff, lease=lease, data=data or {}))


def _of_breaker(pause: Pause) -> bool:
    return pause.kind is PauseKind.BREAKER
