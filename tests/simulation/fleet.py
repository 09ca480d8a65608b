"""A simulated fleet with the production reconciler on a ledger in memory: the stage of all simulation tests."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import Request
from bridge.model.mode import Mode
from bridge.model.ownership import Owner, Side
from bridge.ports import KubePort, Ledger, SlurmPort
from bridge.reconciler.bell import Bell
from bridge.reconciler.decide import Bounds
from bridge.reconciler.loop import Reconciler, Timing
from bridge.simulation.clock import SimulatedClock
from bridge.simulation.cluster import Deployment
from bridge.simulation.faults import faulty
from bridge.simulation.slurm import JobRequest
from bridge.simulation.world import World
from bridge.store.memory import MemoryLedger

TIMING = Timing(leader_ttl_s=15, call_timeout_s=5, idle_tick_s=2, busy_tick_s=0.25, settle_s=5, fence_stale_s=15)
BOUNDS = Bounds(close_s=60, clean_s=900, open_s=120, prove_s=120)

LEDGER_READS = frozenset({"read", "leader", "request", "handoffs", "handoff", "events", "last_event_id"})


LedgerOn = Callable[[SimulatedClock], MemoryLedger]
"""Makes the ledger of a fleet, on its clock."""


def in_memory(clock: SimulatedClock) -> MemoryLedger:
    return MemoryLedger(clock.now)


@contextmanager
def without_log() -> Iterator[None]:
    """Without the loop's log: it would be most of the time that many stories take."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


class Fleet:
    """`world` is the truth, `ledger` the broker's memory, `reconciler` the broker that runs now."""

    def __init__(
        self,
        seed: int = 1,
        nodes: int = 4,
        *,
        exact: bool = True,
        mode: Mode = Mode.ACTIVE,
        ledger_on: LedgerOn = in_memory,
        **policy: object,
    ) -> None:
        """`ledger_on` makes the ledger: another one where a test wants that, with the methods that it calls."""
        self.mode = mode
        """Of the next broker."""
        self.world = World(seed, nodes, exact=exact)
        self.ledger = ledger_on(self.world.clock)
        self.ledger.watch(self.world.ring)
        self.world.oracle.handoffs = lambda: self.ledger.read().handoffs.values()
        self.broker_ledger: Ledger = self.ledger
        """The ledger as brokers reach it: a test may put faults around it (`break_ledger`)."""
        self._ids = itertools.count(1)
        self._lives = itertools.count(1)
        defaults: dict[str, object] = {"demand_age_s": 1, "idle_age_s": 1, "min_hold_s": 30}
        self.ledger.apply_policy(
            self.world.policy(**{**defaults, **policy}),
            self.world.nodes,
            replaces=0,
            author="test",
            note="",
            at=self.world.clock.now(),
        )
        self.reconciler = self.new_broker()

    def new_broker(
        self, slurm: SlurmPort | None = None, kubernetes: KubePort | None = None, ledger: Ledger | None = None
    ) -> Reconciler:
        """A broker that knows nothing but what the ledger and the world say, be it through ports of a test's own."""
        self.reconciler = Reconciler(
            ledger=ledger or self.broker_ledger,
            slurm=slurm or self.world.slurm,
            kubernetes=kubernetes or self.world.kube,
            clock=self.world.clock,
            new_id=self._new_id,
            holder=f"broker-{next(self._lives)}",
            bounds=BOUNDS,
            timing=TIMING,
            mode=self.mode,
        )
        return self.reconciler

    def break_ledger(self) -> None:
        """From the next broker on, calls to the ledger break like those to the schedulers do: ``ledger.commit``…"""
        self.broker_ledger = faulty(self.ledger, "ledger", self.world.faults, reads=LEDGER_READS)
        self.new_broker()

    def restart(self, mode: Mode) -> None:
        """The broker ends as on SIGTERM and another one is started, in that mode."""
        stop = threading.Event()
        stop.set()
        self.reconciler.run(Bell(), stop)
        self.mode = mode
        self.new_broker()

    def _new_id(self) -> str:
        return f"id{next(self._ids):08d}"

    # --- time ---

    def run_until(self, condition: Callable[[], bool], what: str, *, within_s: float = 120) -> None:
        """Let the world go on until `condition` holds; fails naming `what` and where the fleet stands."""
        deadline_s = self.world.clock.monotonic_s() + within_s
        met = self.world.run(
            deadline_s, self.reconciler.tick, restart=lambda: self.new_broker().tick, stop_when=condition
        )
        assert met, f"after {within_s} s still not: {what}\n{self.describe()}"

    def run_for(self, seconds: float) -> None:
        end_s = self.world.clock.monotonic_s() + seconds
        self.world.run(end_s, self.reconciler.tick, restart=lambda: self.new_broker().tick)

    def settle(self) -> None:
        """Until all nodes are adopted and at rest."""
        self.run_until(
            lambda: len(self.ledger.read().leases) == len(self.world.nodes) and not self.ledger.read().handoffs,
            "every node adopted",
        )

    # --- wishes ---

    def deploy(self, name: str, replicas: int, **more: object) -> str:
        deployment = Deployment(name, replicas, **more)  # type: ignore[arg-type]
        self.world.kube.cluster.apply(deployment)
        return deployment.key

    def sbatch(self, nodes: int = 1, *, runs_s: float = 600, priority: int = 1000, **more: object) -> int:
        return self.world.slurm.submit(JobRequest(nodes=nodes, duration_s=runs_s, priority=priority, **more))  # type: ignore[arg-type]

    def order(self, destination: Side, *nodes: str) -> Request:
        request = Request(self._new_id(), nodes, destination, "oncall", "by hand", self.world.clock.now())
        self.ledger.submit(request)
        return request

    # --- what is ---

    def owner(self, node: str) -> Owner:
        return self.ledger.read().leases[node].owner

    def owned(self, owner: Owner) -> list[str]:
        """Nodes at rest with `owner`."""
        state = self.ledger.read()
        return sorted(n for n, lease in state.leases.items() if lease.owner is owner and n not in state.handoffs)

    def handoff(self, node: str) -> Handoff:
        """The newest handoff of a node."""
        return self.ledger.handoffs(limit=1, node=node)[0]

    def at_step(self, node: str, step: Step) -> bool:
        handoffs = self.ledger.handoffs(limit=1, node=node)
        return bool(handoffs) and handoffs[0].step is step

    def describe(self) -> str:
        state = self.ledger.read()
        lines = [f"t={self.world.clock.monotonic_s():.2f} s, pulse {self.reconciler.pulse}"]
        for name, lease in sorted(state.leases.items()):
            handoff = state.handoffs.get(name)
            lines.append(f"{name}: {lease.owner} {handoff and (handoff.step, handoff.blockers)} {state.nodes[name]}")
        lines += [f"{event.kind}: {event.message}" for event in self.ledger.events(after=0, limit=1000)[-30:]]
        return "\n".join(lines)
