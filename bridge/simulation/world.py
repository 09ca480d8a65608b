"""All of it together: a world made from a seed, and the loop that runs a broker in it.

The broker is a callable that makes one pass of the production reconciler and says in how many seconds it wants to be
called again. Between passes, the world's own events happen. After every event and every pass the invariants are
checked:

- `OneOwner`: no machine runs work of both sides (`Oracle`); and once a node was closed on one side by the bridge, at no
  moment are both its sides open again.
- `NotOurs`: see `Oracle`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

from bridge.model.errors import BridgeError, InvariantViolation
from bridge.model.ownership import Node
from bridge.model.policy import Policy, PoolPolicy
from bridge.simulation.clock import Effect, Latency, SimulatedClock
from bridge.simulation.cluster import KubeTimings
from bridge.simulation.faults import Crash, Faults
from bridge.simulation.kube import SimulatedKube
from bridge.simulation.machines import Machines
from bridge.simulation.oracle import Oracle
from bridge.simulation.slurm import SimulatedSlurm, SlurmTimings
from bridge.simulation.workload import Deploy, Scale, Submit, Wish

Step = Callable[[], float | None]
"""One pass of a broker: in how many seconds it wants to be called again; None: only when something changed."""

Sleeper = Callable[[float], None]
"""Lets real seconds pass: `time.sleep` in the demo."""

WAKE_S = 0.01
"""From a port's ring to the pass that it wakes. Not zero, or a broker that rings its own bell would stop time."""


class World:
    """Clock, machines, both schedulers, faults and oracle, over `nodes` nodes ``gpu-1``… of one pool.

    `seed` decides everything that is random; `exact` takes the spread out of all latencies, for tests that count
    seconds. Not `strict`, broken invariants are kept by the oracle rather than raised (to show what happens without a
    bridge).
    """

    def __init__(
        self,
        seed: int,
        nodes: int = 4,
        *,
        pool: str = "shared",
        gpus: int = 8,
        exact: bool = False,
        strict: bool = True,
        slurm_timings: SlurmTimings | None = None,
        kube_timings: KubeTimings | None = None,
    ) -> None:
        self.seed = seed
        self.pool = pool
        self.rng = random.Random(seed)  # noqa: S311 a simulation must be repeatable
        names = [f"gpu-{number}" for number in range(1, nodes + 1)]
        self.nodes = tuple(Node(name, name, f"{name}.testbed", pool, gpus) for name in names)
        latency = Latency() if exact else Latency(random.Random(seed + 1))  # noqa: S311 as above
        self.clock = SimulatedClock()
        self.machines = Machines(self.nodes)
        self.oracle = Oracle(self.clock, self.machines, strict=strict)
        self.faults = Faults(self.clock)
        self.slurm = SimulatedSlurm(
            self.clock,
            self.nodes,
            self.machines,
            self.oracle,
            self.faults,
            partition=pool,
            timings=slurm_timings,
            latency=latency,
        )
        self.kube = SimulatedKube(
            self.clock, self.nodes, self.machines, self.faults, timings=kube_timings, latency=latency
        )
        self.excused: set[str] = set()
        """Nodes whose latches a story took away by force (a lost StateSaveLocation): only `double_booked` is asked."""
        self._strict = strict
        self.adopted: set[str] = set()
        """Nodes that were once closed on a side: from then on never open to both."""
        self._rung = True
        self.kube.watch(self.ring)

    def policy(self, **pool: object) -> Policy:
        """A policy for this world's one pool; the fields of `PoolPolicy` as keywords."""
        names = tuple(node.slurm_name for node in self.nodes)
        fields = {"name": self.pool, "nodes": names, "kube_name": "{node}.testbed", "partition": self.pool}
        return Policy(pools=(PoolPolicy.model_validate({**fields, "gpus": self.nodes[0].gpus, **pool}),))

    def ring(self, what: str = "") -> None:
        """An `OnChange` for the ports of the broker: wakes its next pass."""
        del what
        self._rung = True

    # --- stories ---

    def at(self, moment_s: float, effect: Effect) -> None:
        """Let something happen at a moment of the simulation that is still to come."""
        self.clock.after(moment_s - self.clock.monotonic_s(), effect)

    def play(self, wishes: Iterable[Wish]) -> None:
        for wish in wishes:
            self.at(wish.at_s, self.fulfil(wish))

    def power_off(self, node: str) -> None:
        """The machine is dead: its processes too, and neither scheduler has noticed yet."""
        found = self._named(node)
        self.machines.power_off(node)
        self.slurm.lose_slurmd(found.slurm_name)
        self.kube.cluster.lose_kubelet(found.kube_name)

    def power_on(self, node: str) -> None:
        found = self._named(node)
        self.slurm.return_slurmd(found.slurm_name)
        self.kube.cluster.return_kubelet(found.kube_name)

    def lose_slurm_state(self, away_s: float = 2) -> None:
        """slurmctld comes back without its StateSaveLocation: both latches are gone, only the Prolog's fence stands."""
        self.excused.update(node.name for node in self.nodes)
        self.slurm.restart_controller(away_s, state_lost=True)

    # --- the loop ---

    def run(
        self,
        until_s: float,
        step: Step | None = None,
        *,
        restart: Callable[[], Step] | None = None,
        restart_s: float = 1.0,
        stop_when: Callable[[], bool] = lambda: False,
        speed: float = 0.0,
        sleeper: Sleeper | None = None,
    ) -> bool:
        """Run to the simulated moment `until_s`, or until `stop_when` holds; whether it does then.

        `restart` makes the broker's next life when one dies by a `Crash`, `restart_s` later. With a `sleeper`, `speed`
        simulated seconds take one real second.
        """
        due_s = reborn_s = self.clock.monotonic_s()
        while not stop_when():
            now_s = self.clock.monotonic_s()
            if self._rung:
                due_s = max(reborn_s, min(due_s, now_s + WAKE_S))
            moment_s = max(now_s, min(due_s if step else math.inf, self._next_event_s(), until_s))
            self._pass_time(moment_s, speed, sleeper)
            if moment_s >= until_s:
                return stop_when()
            if step is None or moment_s < due_s:
                continue
            try:
                due_s = self._pass(step)
            except Crash:
                if restart is None:
                    raise
                step = restart()
                due_s = reborn_s = moment_s + restart_s
        return True

    def _pass(self, step: Step) -> float:
        """One pass of the broker; the moment at which it wants the next."""
        self._rung = False
        wait_s = step()
        self.check()
        return math.inf if wait_s is None else self.clock.monotonic_s() + max(wait_s, WAKE_S)

    def _next_event_s(self) -> float:
        due_s = self.clock.next_s()
        return math.inf if due_s is None else due_s

    def _pass_time(self, moment_s: float, speed: float, sleeper: Sleeper | None) -> None:
        if sleeper is not None and speed > 0:
            sleeper((moment_s - self.clock.monotonic_s()) / speed)
        self.clock.advance_to(moment_s)
        self.check()

    # --- the checks ---

    def open_to_both(self) -> tuple[str, ...]:
        """Nodes that were once closed on a side and on which, at this moment, both sides could start work."""
        found = []
        for node in self.nodes:
            if self.slurm.closed_by_bridge(node.slurm_name) or not self.kube.open(node.kube_name):
                self.adopted.add(node.name)
            elif (
                node.name in self.adopted - self.excused
                and self.slurm.open(node.slurm_name)
                and node.slurm_name not in self.slurm.fence
            ):
                found.append(node.name)
        return tuple(found)

    def check(self) -> None:
        """Raise `InvariantViolation` when an invariant does not hold at this moment (if strict)."""
        open_to_both = self.open_to_both()
        if not self._strict:
            return
        self.oracle.check()
        if open_to_both:
            moment = f"at {self.clock.monotonic_s():.3f} s with seed {self.seed}"
            raise InvariantViolation("OneOwner", f"{moment} both sides are open on {', '.join(open_to_both)}")

    def _named(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise BridgeError(f"this world has no node '{name}'")

    def fulfil(self, wish: Wish) -> Effect:
        """What makes a wish come true, whenever it is called."""
        match wish:
            case Submit(job=job):
                return lambda: _discard(self.slurm.submit(job))
            case Deploy(deployment=deployment):
                return lambda: self.kube.cluster.apply(deployment)
            case Scale(deployment=key, replicas=replicas):
                return lambda: self.kube.cluster.scale(key, replicas)


def _discard(_: object) -> None:
    """An effect has no result."""
