"""The heartbeat: one `tick` observes, commits what follows, and acts; `run` repeats it.

Leadership is a row with an epoch on the database's clock. Every commit checks the epoch in its transaction; outside
calls are made only while this process, on its own monotonic clock, is sure that its lease has not ended. A leader
renews by finishing a tick, so a hung one resigns by itself. A new leader begins nothing until the calls of the old
one, each bounded by `call_timeout_s`, must have ended; until then it only closes what the ledger wants closed. One that
finds marks outside which are ahead of the ledger leads anew, above them (`bridge.reconciler.ahead`).

In mode `dry_run` a leader decides and says (`bridge.reconciler.rehearsal`) and does nothing; in `read_only` a process
looks on and never leads. What it then cannot do is decided in `bridge.reconciler.onlooker`, whatever is written here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from bridge.lifecycle.acts import Act, Hasten, Standing, acts, closes
from bridge.lifecycle.preemption import held_back
from bridge.lifecycle.progress import Sight
from bridge.model.errors import BridgeError, CallFailed, Conflict, Fenced, Unreadable
from bridge.model.ledger import Change, LedgerState, Note, PutHandoff, PutPause, PutSighting
from bridge.model.mode import Mode
from bridge.model.ownership import Node, Side
from bridge.model.policy import Policy, PoolPolicy
from bridge.planning import podnotes
from bridge.planning.drift import DriftKind, Finding, drift
from bridge.planning.explain import Explanation, Kind, Seen, explain
from bridge.planning.headroom import handover_p50_s
from bridge.planning.planner import plan
from bridge.planning.snapshot import Plan, Snapshot
from bridge.ports import Clock, KubePort, Ledger, SlurmPort
from bridge.reconciler import metrics, onlooker
from bridge.reconciler.ahead import ahead
from bridge.reconciler.bell import Bell
from bridge.reconciler.bookkeeping import loss_changes, losses, trips
from bridge.reconciler.carry_out import carry_out
from bridge.reconciler.decide import Bounds, Decider, Fresh
from bridge.reconciler.drifting import Told, drift_notes, still_told
from bridge.reconciler.endings import Endings
from bridge.reconciler.look import World, observe, sights, snapshot
from bridge.reconciler.members import members
from bridge.reconciler.rehearsal import Rehearsal, Said, as_if_adopted, first_words

log = structlog.get_logger()

SIGHTING_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Timing:
    """The loop's own times, in seconds."""

    leader_ttl_s: float
    call_timeout_s: float
    idle_tick_s: float
    busy_tick_s: float
    settle_s: float
    fence_stale_s: float


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the last tick was, for `/v1/status` and the tests. `unread`: sides that could not be read, and why."""

    epoch: int | None = None
    finished_monotonic_s: float | None = None
    unread: Mapping[Side, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    plan: Plan = field(default_factory=Plan)

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(self.unread.values())


@dataclass
class _Leading:
    """Leadership as this process may believe in it. Times are monotonic seconds."""

    epoch: int
    valid_until_s: float
    moves_from_s: float
    has_not_moved: bool = True
    drift_told: Told = field(default_factory=dict)
    pods_told: podnotes.Told = field(default_factory=dict)
    endings: Endings = field(default_factory=Endings)


class Reconciler:
    """One replica's loop. Not thread-safe: one thread calls `tick`; any thread may read `pulse` or call `preview`."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        slurm: SlurmPort,
        kubernetes: KubePort,
        clock: Clock,
        new_id: Callable[[], str],
        holder: str,
        bounds: Bounds,
        timing: Timing,
        mode: Mode = Mode.ACTIVE,
    ) -> None:
        self.mode = mode
        self._ledger = onlooker.ledger_in(mode, ledger)
        self._slurm, self._kubernetes = onlooker.slurm_in(mode, slurm), onlooker.kube_in(mode, kubernetes)
        self._clock, self._new_id, self._holder = clock, new_id, holder
        self._bounds, self._timing = bounds, timing
        self._leading: _Leading | None = None
        self._sighted_at_s: dict[tuple[str, Side], tuple[float, str]] = {}
        self._upkeep_due = threading.Event()
        self._clocks_read: tuple[datetime, float] | None = None
        self._acted: frozenset[Act] = frozenset()
        self._acted_anew = False
        """Whether the last pass did what the one before had not done: only then is another look at once worth it."""
        self._above = (0, 0)
        """The largest epoch and generation seen outside that the ledger did not have, as after a restore."""
        self._in_doubt: dict[str, float] = {}
        """Until when (monotonic seconds) a call of ours that opens a node to Slurm may still arrive, by node name."""
        self._looking = threading.Lock()
        """Drivers keep connections and caches and are read by one thread at a time: the loop's or a `preview`."""
        self._said: Said = {}
        self.pulse = Pulse()
        for each in Mode:
            metrics.MODE.labels(str(each)).set(each is mode)

    # --- the loop ---

    def run(self, bell: Bell, stop: threading.Event) -> None:
        """Tick until `stop` is set, then resign so that a standby need not wait for the lease to expire."""
        while not stop.is_set():
            bell.wait(self.tick())
        if self._leading is not None:
            try:
                self._ledger.resign(self._holder, self._leading.epoch)
            except BridgeError as why:
                log.warning("could not resign", why=str(why))

    def tick(self) -> float:
        """One pass; returns in how many seconds the next one is due if nothing rings before."""
        try:
            with metrics.TICK_SECONDS.time():
                wait_s = self._tick()
            metrics.TICKS.labels("done").inc()
        except Fenced as why:
            self._step_down(str(why))
            return self._timing.idle_tick_s
        except (Unreadable, CallFailed, Conflict) as why:
            # Nothing is decided on a ledger that cannot be read or written, or that changed under our hands.
            metrics.TICKS.labels("given_up").inc()
            log.warning("pass given up", why=str(why))
            return self._timing.busy_tick_s
        return wait_s

    def _tick(self) -> float:
        if self.mode is Mode.READ_ONLY:
            return self._look_on()
        leading = self._leadership()
        if leading is None:
            return self._timing.idle_tick_s
        state = self._ledger.read()
        world = self._observe()
        if self.mode is Mode.DRY_RUN:
            return self._rehearse(leading, state, world)
        seen = self._sights(state, world)
        if self._lead_above(leading, state, world, seen):
            return 0.0
        may_move = self._clock.monotonic_s() >= leading.moves_from_s
        planned, changed = self._commit(leading, state, world, seen, may_move=may_move)
        if changed:
            state = self._ledger.read()
            seen = self._sights(state, world)
        calls, failures = self._act(leading, state, world, seen, may_move=may_move)
        self._keep_up(failures)
        self._renew(leading, world)
        self._tell_pods(leading, state, world, planned)
        self._report(leading, world, failures, planned)
        if calls and not failures and self._acted_anew:
            return 0.0
        return self._timing.busy_tick_s if state.handoffs or changed else self._timing.idle_tick_s

    def _observe(self) -> World:
        with self._looking:
            return observe(self._slurm, self._kubernetes)

    def _sights(self, state: LedgerState, world: World) -> dict[str, Sight]:
        return sights(state, world, settle_s=self._timing.settle_s)

    def _commit(
        self, leading: _Leading, state: LedgerState, world: World, seen: dict[str, Sight], *, may_move: bool
    ) -> tuple[Plan, bool]:
        now = self._clock.now()
        fresh = Fresh(leading.epoch, self._new_id, self._ledger.next_generation)
        decider = Decider(
            state,
            seen,
            now,
            fresh,
            self._bounds,
            skew=self._skew(),
            new_leader=leading.has_not_moved,
            in_doubt=self._in_doubt_now(),
        )
        planned = Plan()
        if may_move:
            planned = decider.decide(snapshot(state, world, seen, now))
        else:
            decider.decide_closings()
        told = still_told(leading.drift_told, _drift(state, seen, world), tuple(world.unread))
        changes = [*decider.changes, *self._sightings(state, seen), *drift_notes(leading.drift_told, told, now)]
        if changes:
            self._ledger.commit(leading.epoch, changes)
            _count(changes)
        leading.drift_told = told
        if may_move:
            leading.has_not_moved = False
            self._clocks_read = (now, self._clock.monotonic_s())
        return planned, bool(decider.changes)

    def _tell_pods(self, leading: _Leading, state: LedgerState, world: World, planned: Plan) -> None:
        """Which nodes come for the pods that wait, or why none does, for those who look at the pods."""
        if isinstance(world.kubernetes, Unreadable):
            return
        now, usual_s = self._clock.now(), handover_p50_s(state.reclaim_s.get(Side.KUBERNETES, ()))
        found = podnotes.pod_notes(world.kubernetes.pending, state.handoffs.values(), planned, usual_s, now)
        fresh, leading.pods_told = podnotes.news(found, leading.pods_told, now)
        self._kubernetes.tell(fresh)

    # --- passes of a broker that does nothing ---

    def _look_on(self) -> float:
        """A pass in mode `read_only`: only for the freshness of this process's own sight."""
        world = self._observe()
        self._tell_unknown(world)
        self.pulse = Pulse(finished_monotonic_s=self._clock.monotonic_s(), unread=world.unread)
        return self._timing.idle_tick_s

    def _rehearse(self, leading: _Leading, state: LedgerState, world: World) -> float:
        """A pass in mode `dry_run`: of all that is committed, nothing is anybody's reason to act."""
        now = self._clock.now()
        as_if = as_if_adopted(state, world, self._sights(state, world))
        seen = self._sights(as_if.state, as_if.world)
        fresh = Fresh(leading.epoch, self._new_id, self._ledger.next_generation)
        rehearsal = Rehearsal(as_if.state, seen, now, fresh, self._bounds, adoptions=as_if.adoptions, said=self._said)
        planned = rehearsal.decide(snapshot(as_if.state, as_if.world, seen, now))
        notes = [first_words(self._holder, state, now)] if leading.has_not_moved else []
        changes: list[Change] = [*notes, *rehearsal.changes, *self._sightings(as_if.state, seen)]
        if changes:
            self._ledger.commit(leading.epoch, changes)
        leading.has_not_moved, self._said = False, rehearsal.saying
        for note in changes:
            if isinstance(note, Note):
                log.info(note.kind, message=note.message, **note.data)
        for side in Side:
            moving = (len(move.nodes) for move in planned.moves if move.destination is side)
            metrics.WOULD_MOVE.labels(str(side)).set(sum(moving))
        self._renew(leading, world)
        self._report(leading, world, [], planned)
        return self._timing.idle_tick_s

    def _in_doubt_now(self) -> frozenset[str]:
        now_s = self._clock.monotonic_s()
        self._in_doubt = {name: until_s for name, until_s in self._in_doubt.items() if until_s > now_s}
        return frozenset(self._in_doubt)

    def _act(
        self, leading: _Leading, state: LedgerState, world: World, seen: dict[str, Sight], *, may_move: bool
    ) -> tuple[int, list[str]]:
        found = self._acts(state, world, seen)
        if not may_move:
            found = [act for act in found if closes(act)]
        graces = {handoff.signalled_at for handoff in state.handoffs.values()}
        if may_move:
            found += self._hastened(leading, state, world)
        found = leading.endings.still_due(found, graces, self._clock.monotonic_s())
        self._acted_anew, self._acted = bool(set(found) - self._acted), frozenset(found)
        outcome = carry_out(
            found,
            self._slurm,
            self._kubernetes,
            reservation_of=lambda node: _reservation(state, node),
            still_leader=lambda: self._clock.monotonic_s() < leading.valid_until_s - self._timing.call_timeout_s,
        )
        now_s = self._clock.monotonic_s()
        doubt_until_s = now_s + self._timing.call_timeout_s
        self._in_doubt.update(dict.fromkeys(outcome.in_doubt, doubt_until_s))
        leading.endings.note(outcome, now_s=now_s, doubt_until_s=doubt_until_s)
        self._tell_losses(leading, state, world, outcome.requeued)
        metrics.CALLS.inc(outcome.calls)
        metrics.CALL_FAILURES.inc(len(outcome.failures))
        for failure in outcome.failures:
            log.warning("outside call failed", failure=failure)
        return outcome.calls, outcome.failures

    def _acts(self, state: LedgerState, world: World, seen: dict[str, Sight]) -> list[Act]:
        standings = [_standing(name, state, world, seen[name]) for name in state.leases if name in state.nodes]
        gangs: dict[str, list[Standing]] = {}
        for standing in standings:
            if standing.handoff is not None:
                gangs.setdefault(standing.lease.id, []).append(standing)
        found: list[Act] = []
        now = self._clock.now()
        for standing in standings:
            gang = gangs.get(standing.lease.id, [])
            found += acts(standing, gang, now=now, fence_shows_lease=self._fence_shows(state, standing))
        return found

    def _hastened(self, leading: _Leading, state: LedgerState, world: World) -> list[Act]:
        if isinstance(world.slurm, Unreadable):
            return []
        ours = leading.endings.requeued(self._clock.monotonic_s())
        return [Hasten(job) for job in held_back(state.handoffs.values(), ours, world.slurm.jobs, self._clock.now())]

    def _tell_losses(self, leading: _Leading, state: LedgerState, world: World, requeued: Collection[int]) -> None:
        """Write down what ending these jobs has lost, measured at their end: when they were chosen it was a guess."""
        if not requeued or isinstance(world.slurm, Unreadable):
            return
        now = self._clock.now()
        lost = losses(state, world.slurm, requeued, now)
        metrics.REQUEUES.inc(len(requeued))
        metrics.LOST_GPU_SECONDS.inc(sum(work.loss_gpu_s for work in lost.values()))
        if lost:
            self._ledger.commit(leading.epoch, list(loss_changes(state, lost, now)))

    def _fence_shows(self, state: LedgerState, standing: Standing) -> bool:
        """The controller host's fence file is up to this lease, or its agent is silent and the file goes stale."""
        ack = state.fence_ack
        if ack is None or ack.generation >= standing.lease.generation:
            return True
        return (self._clock.now() - ack.at).total_seconds() > self._timing.fence_stale_s

    def _skew(self) -> timedelta:
        """How far the wall clock was set since the last commit, by the monotonic one; less than a second is none."""
        if self._clocks_read is None:
            return timedelta(0)
        then, then_s = self._clocks_read
        skew = (self._clock.now() - then) - timedelta(seconds=self._clock.monotonic_s() - then_s)
        return skew if abs(skew) >= timedelta(seconds=1) else timedelta(0)

    # --- upkeep ---

    def order_upkeep(self) -> None:
        """Have the next pass renew what would end by itself. Called by the timetable, from any thread."""
        self._upkeep_due.set()

    def _keep_up(self, failures: list[str]) -> None:
        if not self._upkeep_due.is_set():
            return
        try:
            renewed = self._slurm.renew_reservations()
        except CallFailed as why:
            failures.append(f"renew reservations: {why}")
            return
        self._upkeep_due.clear()
        if renewed:
            log.info("reservations renewed", reservations=list(renewed))

    # --- leadership ---

    def _leadership(self) -> _Leading | None:
        if self._leading is not None and self._clock.monotonic_s() < self._leading.valid_until_s:
            return self._leading
        asked_s = self._clock.monotonic_s()
        before = self._ledger.leader()
        epoch = self._ledger.campaign(self._holder, self._timing.leader_ttl_s, self._above)
        if epoch is None:
            self._leading = None
            metrics.LEADER.set(0)
            metrics.DRIFT.clear()
            self.pulse = Pulse(finished_monotonic_s=asked_s)
            return None
        log.info("leading", epoch=epoch, holder=self._holder)
        metrics.LEADER.set(epoch)
        first_ever = epoch == 1 and before is None
        grace_s = 0.0 if first_ever else self._timing.call_timeout_s
        self._leading = _Leading(epoch, asked_s + self._timing.leader_ttl_s, asked_s + grace_s)
        return self._leading

    def _lead_above(self, leading: _Leading, state: LedgerState, world: World, seen: dict[str, Sight]) -> bool:
        """Whether leadership was given up, to win it anew above marks outside that are ahead of the ledger.

        A side that cannot be read now is asked in later passes: until then nothing is written over a newer mark there.
        """
        above = ahead(state, world, seen, epoch=leading.epoch, generation=self._above[1])
        if above is None:
            return False
        log.error(
            "the ledger is from the past: leading anew above the marks outside", epoch=above[0], generation=above[1]
        )
        self._above = above
        self._ledger.resign(self._holder, leading.epoch)
        self._leading = None
        return True

    def _renew(self, leading: _Leading, world: World) -> None:
        asked_s = self._clock.monotonic_s()
        if not self._ledger.renew(self._holder, leading.epoch, self._timing.leader_ttl_s, world.unread):
            raise Fenced(f"epoch {leading.epoch} is over")
        leading.valid_until_s = asked_s + self._timing.leader_ttl_s

    def _step_down(self, why: str) -> None:
        metrics.TICKS.labels("fenced").inc()
        log.error("not the leader any more", why=why)
        self._leading = None

    # --- what others may see ---

    def preview(self, policy: Policy | None = None, nodes: Sequence[Node] = ()) -> Plan:
        """What would be planned now, from a fresh reading; commits nothing. Any replica, any thread.

        With `policy` as if it were in force with `nodes` as its inventory; nodes that join by it are not adopted yet,
        and so nothing is planned for them. A broker that takes no nodes in plans as if all were.
        """
        state = self._ledger.read()
        if policy is not None:
            state = _as_if(state, policy, nodes)
        _, planned, _ = self._planned(state, self._observe())
        return planned

    def _planned(self, state: LedgerState, world: World) -> tuple[Snapshot, Plan, datetime]:
        now = self._clock.now()
        if self.mode is not Mode.ACTIVE:
            as_if = as_if_adopted(state, world, self._sights(state, world))
            state, world = as_if.state, as_if.world
        known = snapshot(state, world, self._sights(state, world), now)
        return known, plan(known, state.policy, now), now

    def explain(self, kind: Kind, name: str) -> Explanation | None:
        """Why `name` waits or stays, from a fresh reading like `preview`; None: there is no such subject.

        Raises `Unreadable` where the side on which it waits is: whether it exists is then not known.
        """
        state = self._ledger.read()
        world = self._observe()
        waits_on = {Kind.JOB: world.slurm, Kind.POD: world.kubernetes}.get(kind)
        if isinstance(waits_on, Unreadable):
            raise waits_on
        known, planned, now = self._planned(state, world)
        return explain(kind, name, Seen(world.slurm, world.kubernetes), known, state.policy, planned, now)

    def drift(self) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
        """Where ledger and world disagree, from a fresh reading like `preview`; and why a side was not read."""
        state, world = self._ledger.read(), self._observe()
        return _drift(state, self._sights(state, world), world), world.unknown

    def members(self, pool: PoolPolicy) -> tuple[str, ...]:
        """The nodes of a pool without host lists, from a fresh reading: see `bridge.reconciler.members`."""
        return members(pool, self._observe())

    def _report(self, leading: _Leading, world: World, failures: list[str], planned: Plan) -> None:
        self._tell_unknown(world)
        drifted = Counter(finding.kind for finding in leading.drift_told.values())
        for kind in DriftKind:
            metrics.DRIFT.labels(str(kind)).set(drifted[kind])
        self.pulse = Pulse(leading.epoch, self._clock.monotonic_s(), world.unread, tuple(failures), planned)

    def _tell_unknown(self, world: World) -> None:
        for side in Side:
            metrics.UNKNOWN.labels(str(side)).set(side in world.unread)

    def _sightings(self, state: LedgerState, seen: dict[str, Sight]) -> list[Change]:
        """What was seen of each node, written when it changed and once a minute, not in every pass."""
        found: list[Change] = []
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        for name in state.leases.keys() & seen.keys():
            for side in Side:
                facts = seen[name].side(side)
                summary = {
                    "closed": facts.closed,
                    "idle": facts.idle,
                    "ready": facts.ready,
                    "foreign": facts.foreign,
                    "not_ready": facts.not_ready,
                    "blockers": list(facts.blockers),
                }
                text = facts.unknown or repr(summary)
                at_s, before = self._sighted_at_s.get((name, side), (-SIGHTING_EVERY_S, ""))
                if text != before or now_s - at_s >= SIGHTING_EVERY_S:
                    self._sighted_at_s[(name, side)] = (now_s, text)
                    found.append(PutSighting(name, side, now, summary, unknown=facts.unknown))
        return found


def _drift(state: LedgerState, seen: dict[str, Sight], world: World) -> tuple[Finding, ...]:
    slurm = None if isinstance(world.slurm, Unreadable) else world.slurm
    kubernetes = None if isinstance(world.kubernetes, Unreadable) else world.kubernetes
    return drift(state, seen, slurm, kubernetes)


def _as_if(state: LedgerState, policy: Policy, nodes: Sequence[Node]) -> LedgerState:
    known = {node.name: replace(state.nodes[node.name], node=node) for node in nodes if node.name in state.nodes}
    return replace(state, policy=policy, nodes=known)


def _standing(name: str, state: LedgerState, world: World, sight: Sight) -> Standing:
    node = state.nodes[name].node
    closures = {side: state.closures[(name, side)] for side in Side if (name, side) in state.closures}
    return Standing(
        node, state.leases[name], state.handoffs.get(name), closures, sight, world.kube_node(node.kube_name)
    )


def _reservation(state: LedgerState, node: Node) -> str:
    pool = state.policy.pool(node.pool)
    return pool.reservation if pool else f"bridge-{node.pool}"


def _count(changes: list[Change]) -> None:
    for change in changes:
        if isinstance(change, PutPause) and trips(change.replaces, change.pause):
            metrics.BREAKER_TRIPS.labels(change.pause.scope.name).inc()
            log.error("circuit breaker", pool=change.pause.scope.name, reason=change.pause.reason)
        if isinstance(change, PutHandoff) and change.handoff.ended_at is not None:
            handoff = change.handoff
            seconds = (change.handoff.ended_at - handoff.began_at).total_seconds()
            metrics.HANDOFF_SECONDS.labels(f"to_{handoff.destination}", str(handoff.step)).observe(seconds)
