"""The truth check: is an invariant broken at this very moment, whatever the two schedulers and the bridge believe?

Invariants, checked at every start of a process and after every event of a simulation:

- `OneOwner`: no machine runs a process of a Slurm job and a process of a Kubernetes pod at the same time.
- `NotOurs`: the bridge never destroyed a mark that a person or another system made and that it could have seen.
- `OnlyVictims`: the bridge signals and requeues no job that no live handoff of a node on which it runs names as its
  victim, and requeues none a second time for the same handoff.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from bridge.model.errors import InvariantViolation
from bridge.model.handoff import Handoff
from bridge.model.ownership import Side
from bridge.ports import Clock
from bridge.simulation.machines import Machines, Process


@dataclass(frozen=True, slots=True)
class Start:
    """Evidence: what began where, and what the other side had running there at that moment."""

    at_s: float
    node: str
    side: Side
    work: str
    others: tuple[str, ...]

    def __str__(self) -> str:
        met = f", where {', '.join(self.others)} still ran" if self.others else ""
        return f"{self.at_s:.3f} s: {self.side} started {self.work} on {self.node}{met}"


class Oracle:
    """Watches the machines. With `strict` a broken invariant raises at once; else it is only kept in `violations`.

    (Not strict is for showing the hazard: without the bridge, both sides do start on one node.)
    """

    def __init__(self, clock: Clock, machines: Machines, *, strict: bool = True) -> None:
        self._clock = clock
        self._machines = machines
        self._strict = strict
        self.evidence: list[Start] = []
        self.violations: list[InvariantViolation] = []
        self.handoffs: Callable[[], Iterable[Handoff]] | None = None
        """The live handoffs of the ledger, where there is one: without it nothing is known of victims."""
        self._requeued: dict[int, frozenset[str]] = {}
        machines.on_start(self._started)

    def double_booked(self) -> tuple[str, ...]:
        """The nodes on which, at this moment, processes of both sides run."""
        return tuple(
            node
            for node in self._machines.names()
            if len({process.side for process in self._machines.running(node)}) == len(Side)
        )

    def starts(self, side: Side, node: str | None = None) -> list[Start]:
        return [start for start in self.evidence if start.side is side and node in (None, start.node)]

    def check(self) -> None:
        """Raise `InvariantViolation` when `OneOwner` does not hold now (strict or not)."""
        for node in self.double_booked():
            running = ", ".join(map(str, self._machines.running(node)))
            raise InvariantViolation("OneOwner", f"at {self._clock.monotonic_s():.3f} s {node} runs {running}")

    def destroyed(self, node: str, mark: str, by: str) -> None:
        """A scheduler reports that a foreign mark, which the bridge had been shown before, is gone through its call."""
        self._broken("NotOurs", f"at {self._clock.monotonic_s():.3f} s {by} destroyed the mark '{mark}' on {node}")

    def told(self, job: int, nodes: Collection[str], call: str) -> None:
        """Slurm reports that a job that runs on these machines is signalled or requeued (`call`) by the bridge."""
        if self.handoffs is None:
            return
        at = f"at {self._clock.monotonic_s():.3f} s"
        there = (each for each in self.handoffs() if each.node in nodes)
        named = frozenset(each.id for each in there if any(victim.job == job for victim in each.victims))
        if not named:
            self._broken("OnlyVictims", f"{at} {call} of job {job}, which no handoff of its nodes names")
        if call != "requeue":
            return
        before = self._requeued.get(job, frozenset())
        if named & before:
            self._broken("OnlyVictims", f"{at} job {job} is requeued again for {', '.join(sorted(named & before))}")
        self._requeued[job] = named | before

    def _started(self, process: Process, already: tuple[Process, ...]) -> None:
        others = tuple(str(other) for other in already if other.side is not process.side)
        start = Start(self._clock.monotonic_s(), process.node, process.side, process.work, others)
        self.evidence.append(start)
        if others:
            self._broken("OneOwner", str(start))

    def _broken(self, invariant: str, detail: str) -> None:
        violation = InvariantViolation(invariant, detail)
        self.violations.append(violation)
        if self._strict:
            raise violation
