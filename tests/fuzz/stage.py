"""Plays a story: the production reconciler on a simulated fleet, one or two brokers of it, and what must hold.

While it plays, `World.check` and the `Auditor` judge every event, commit and call. When trouble is over:

- within `SETTLES_WITHIN_S` every handoff has ended, every node that nobody owns says why, and no mark of ours stands
  that the ledger does not know;
- then what can be served is served: a Deployment and an sbatch of one node each, if a node of theirs is usable.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from bridge.model.errors import BridgeError, InvariantViolation
from bridge.model.ownership import Owner, Side
from bridge.model.pause import PauseKind
from bridge.ports import KubePort, SlurmPort
from bridge.reconciler.loop import Reconciler
from bridge.simulation.agent import SimulatedAgent
from bridge.simulation.auditor import Auditor
from bridge.simulation.clock import Effect
from bridge.simulation.faults import Crash, faulty
from bridge.simulation.mishaps import MISHAPS
from tests.fuzz.shrink import shrunk
from tests.fuzz.story import (
    LENGTH_S,
    OUTSIDE,
    Breaks,
    Edits,
    Event,
    FailsOver,
    Freezes,
    Happens,
    Orders,
    Recalls,
    Story,
    Wishes,
)
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import LEDGER_READS, Fleet, LedgerOn, in_memory, without_log

SETTLES_WITHIN_S = 1200.0
"""The clean deadline, the longest but for emptying (whose jobs end within a minute and a half), and the way back."""

SERVED_WITHIN_S = 300.0
"""Backoffs, the minimum hold and the respite of the stories' policies, and a handoff."""

REBORN_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What broke: the name of an invariant, ``Settles``, ``Serves`` or of an exception; and the words."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Stage(Fleet):
    """A fleet with audited brokers that may crash and freeze."""

    def __init__(self, story: Story, ledger_on: LedgerOn = in_memory) -> None:
        self.story = story
        self._brokers: list[Reconciler] = []
        self._freezes: list[Freezes] = []
        self._frozen = False
        self._rests: bool | None = None
        super().__init__(story.seed, story.nodes, exact=False, ledger_on=ledger_on, **story.policy)
        self.ledger.watch(self._written)
        self._auditor = Auditor(self.world.clock)
        self.broker_ledger = faulty(self._auditor.ledger(self.ledger), "ledger", self.world.faults, reads=LEDGER_READS)
        self._be_born()
        if story.agent:
            SimulatedAgent(self.world.clock, self.ledger, self.world.slurm).start()

    # --- brokers ---

    def _be_born(self) -> None:
        freezable = _Freezable(self.world.slurm, self.world.kube, self._freeze_before)
        ledger, slurm, kube = self._auditor.broker(self.broker_ledger, freezable.slurm, freezable.kube)
        self._brokers.append(self.new_broker(slurm, kube, ledger))

    def _step(self) -> float:
        """One pass of every broker that lives and is not frozen."""
        waits_s = [REBORN_AFTER_S]
        for broker in list(self._brokers):
            try:
                waits_s.append(broker.tick())
            except Crash:
                self._brokers.remove(broker)
                self.world.clock.after(REBORN_AFTER_S, self._be_born)
        return min(waits_s[1:], default=REBORN_AFTER_S)

    def _freeze_before(self, call: str) -> None:
        """The broker whose pass this is stops here; the others, one at least, go on without it."""
        due = [freeze for freeze in self._freezes if freeze.call == call]
        if self._frozen or not due:
            return
        self._freezes.remove(due[0])
        self._frozen, stopped = True, self._brokers
        shown = self.world.slurm.shown
        self._brokers = []
        self._be_born()
        self._run(due[0].lasts_s)
        self._brokers, self._frozen = [*stopped, *self._brokers], False
        self.world.slurm.shown = shown

    # --- the play ---

    def play(self) -> None:
        """Raises at the first thing that breaks."""
        for event in self.story.events:
            self.world.at(event.at_s, self._effect(event))
        self._run(LENGTH_S)
        self._freezes.clear()
        self.world.faults.calm()
        self._resume()
        self._await(self._at_rest, SETTLES_WITHIN_S, "Settles", "every handoff ends")
        self._await(lambda: not unaccounted(self), SETTLES_WITHIN_S, "Settles", "every mark is the ledger's")
        self._serve()

    def _run(self, seconds: float, stop_when: Callable[[], bool] = lambda: False) -> bool:
        return self.world.run(self.world.clock.monotonic_s() + seconds, self._step, stop_when=stop_when)

    def _await(self, condition: Callable[[], bool], within_s: float, kind: str, what: str) -> None:
        if not self._run(within_s, condition):
            odd = "\n".join(unaccounted(self))
            raise InvariantViolation(kind, f"{what}: not within {within_s} s\n{odd}\n{self.describe()}")

    def _written(self, _: str) -> None:
        self._rests = None

    def _at_rest(self) -> bool:
        """Asked after every event, and answered from the ledger when that was written."""
        if self._rests is None:
            self._rests = at_rest(self)
        return self._rests

    def _serve(self) -> None:
        """When whoever still waits has given up, what can be served is served: first a pod, then a job."""
        cluster = self.world.kube.cluster
        self.world.slurm.cancel_all()
        self._resume()
        self._await(lambda: not self.world.slurm.live(), SERVED_WITHIN_S, "Serves", "all jobs are over")
        if self._could_serve(Side.KUBERNETES):
            probe = self.deploy("probe", replicas=1)
            self._await(
                lambda: any(pod.ready for pod in cluster.of(probe)), SERVED_WITHIN_S, "Serves", "a pod finds a node"
            )
            cluster.scale(probe, 0)
        if self._could_serve(Side.SLURM):
            job = self.sbatch(runs_s=5)
            self._await(
                lambda: self.world.slurm.job(job).state in ("RUNNING", "COMPLETED"),
                SERVED_WITHIN_S,
                "Serves",
                "a job finds a node",
            )

    def _could_serve(self, side: Side) -> bool:
        """More nodes are usable than the other side keeps of its floor, and ready for its pods to come."""
        state = self.ledger.read()
        pool = state.policy.pools[0]
        other = pool.share(side.other)
        kept = max(0, other.floor_nodes - other.lend_limit_nodes) + (pool.headroom.nodes if side is Side.SLURM else 0)
        usable = sum(
            not state.nodes[name].unusable and lease.owner is not Owner.BRIDGE for name, lease in state.leases.items()
        )
        return usable > kept

    def _fail_over(self, event: FailsOver) -> None:
        copy = self.ledger.backup()
        self.world.clock.after(event.lost_s, lambda: self.ledger.restore(copy))

    def _effect(self, event: Event) -> Effect:
        match event:
            case Happens():
                return partial(self._happen, event)
            case Breaks():
                return partial(self.world.faults.fail_next, event.call, when=event.when, delay_s=event.delay_s)
            case Freezes():
                return partial(self._freezes.append, event)
            case Orders():
                return partial(self._order, event)
            case Recalls():
                return partial(self._recall, event)
            case Edits():
                return partial(self._edit, event)
            case Wishes():
                return self.world.fulfil(event.wish)
            case FailsOver():
                return partial(self._fail_over, event)

    def _happen(self, event: Happens) -> None:
        rng = random.Random(event.seed)
        undo = MISHAPS[event.mishap](self.world, self.world.nodes[event.node], rng)
        self.world.clock.after(event.lasts_s, undo)

    def _order(self, event: Orders) -> None:
        self.order(event.side, self.world.nodes[event.node].name)

    def _recall(self, event: Recalls) -> None:
        now = self.world.clock.now
        self.ledger.pause("a power cut", actor="oncall", at=now(), kind=PauseKind.RECALL)
        self.world.clock.after(event.lasts_s, lambda: self.ledger.resume(actor="oncall", at=now()))

    def _resume(self) -> None:
        """A person looks: a failover may have lost the end of a recall, nodes that stay out keep a breaker tripped."""
        for scope in sorted({pause.scope for pause in self.ledger.read().pauses}, key=str):
            self.ledger.resume(actor="oncall", at=self.world.clock.now(), scope=scope)

    def _edit(self, event: Edits) -> None:
        state, now = self.ledger.read(), self.world.clock.now()
        self.ledger.apply_policy(
            self.world.policy(**event.policy),
            self.world.nodes,
            replaces=state.policy_version,
            author="admin",
            note="",
            at=now,
        )


class _Freezable:
    """The two outside ports of one broker; `before` is told of every call that writes before it goes out."""

    def __init__(self, slurm: SlurmPort, kube: KubePort, before: Callable[[str], None]) -> None:
        self.slurm = cast(SlurmPort, _Telling(slurm, "slurm", before))
        self.kube = cast(KubePort, _Telling(kube, "kube", before))


class _Telling:
    def __init__(self, port: object, name: str, before: Callable[[str], None]) -> None:
        self._port, self._name, self._before = port, name, before

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._port, attribute)
        if f"{self._name}.{attribute}" not in OUTSIDE:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._before(f"{self._name}.{attribute}")
            return found(*args, **kwargs)

        return call


def failure_of(story: Story, ledger_on: LedgerOn = in_memory) -> Failure | None:
    """Play a story; what broke, or None."""
    with without_log():
        try:
            Stage(story, ledger_on).play()
        except InvariantViolation as why:
            return Failure(why.invariant, str(why))
        except (BridgeError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AssertionError) as why:
            return Failure(type(why).__name__, "".join(traceback.format_exception(why)))
    return None


def shortest(story: Story, failure: Failure, *, most_tries: int = 1000) -> Story:
    """The story with only those events that the same kind of failure needs."""

    def fails(events: Sequence[Event]) -> bool:
        again = failure_of(replace(story, events=tuple(events)))
        return again is not None and again.kind == failure.kind

    return replace(story, events=shrunk(story.events, fails, most_tries=most_tries))
