"""A simulated Slurm behind `SlurmPort`: a `Slurmctld` whose calls may break and whose foreign marks are watched over.

The bridge destroys a foreign drain if it drains or resumes a node whose drain it was shown and that is not its own
(``NotOurs``, reported to the oracle). One that came after its last look it could not heed: Slurm has no
compare-and-set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from bridge.model.errors import CallFailed, Unreadable
from bridge.model.ownership import Mark, Node
from bridge.model.slurm import SlurmObservation, is_signal
from bridge.simulation.clock import Latency, SimulatedClock
from bridge.simulation.faults import Faults
from bridge.simulation.machines import Machines
from bridge.simulation.oracle import Oracle
from bridge.simulation.slurmctld import Job, JobRequest, Slurmctld, SlurmdNode, SlurmTimings

__all__ = ["JobRequest", "SimulatedSlurm", "SlurmTimings"]

OURS = "bridge-"
"""Reservations of the bridge begin with this; every other one is somebody else's."""

Shown = dict[str, str]
"""The reasons of the foreign drains that an observation showed, by node."""


class SimulatedSlurm(Slurmctld):
    """See the module. `user` is whom the bridge's token belongs to."""

    def __init__(
        self,
        clock: SimulatedClock,
        nodes: Collection[Node],
        machines: Machines,
        oracle: Oracle,
        faults: Faults,
        *,
        partition: str = "shared",
        user: str = "bridge",
        timings: SlurmTimings | None = None,
        latency: Latency | None = None,
    ) -> None:
        super().__init__(
            clock,
            nodes,
            machines,
            partition=partition,
            timings=timings or SlurmTimings(),
            latency=latency or Latency(),
        )
        self._oracle = oracle
        self._faults = faults
        self._user = user
        self._seen_lifted: set[str] = set()
        """Nodes that were shown without a drain since they had one with a reason: what is drained without one from then
        on can be told from what stood before."""
        self.shown: Shown = {}
        """What the last observation showed. A test that lets another broker look meanwhile puts it back."""

    # --- SlurmPort ---

    def observe(self) -> SlurmObservation:
        return self._faults.read("slurm.observe", self._look)

    def drain(self, nodes: Collection[str], mark: Mark, why: str) -> None:
        reason = f"{mark} {why}"
        self._write("drain", nodes, lambda node: self._drain(node, reason, self._user))

    def resume(self, nodes: Collection[str]) -> None:
        self._write("resume", nodes, self._resume)

    def hold(self, nodes: Collection[str], reservation: str) -> None:
        self._write_whole("hold", reservation, nodes, self._reserve)

    def release(self, nodes: Collection[str], reservation: str) -> None:
        self._write_whole("release", reservation, nodes, self._unreserve)

    def signal(self, job: int, nodes: Collection[str], signal: str) -> None:
        if not is_signal(signal):
            raise CallFailed(f"no signal for a job: {signal}")
        self._tell("signal", job, nodes, lambda found: self._signal(found, signal))

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        self._tell("requeue", job, nodes, self._requeue)

    def hasten(self, job: int) -> None:
        found = self._jobs.get(job)
        self._faults.write("slurm.hasten", [partial(self._reach, partial(self._hasten, found))] if found else [])

    def renew_reservations(self) -> tuple[str, ...]:
        """Simulated reservations do not end."""
        return ()

    def closed_by_bridge(self, name: str) -> bool:
        """A latch of the bridge's own stands; a person's drain or reservation is none."""
        node = self._nodes.get(name)
        return node is not None and (name in self.held() or (node.drained and not self._foreign(node)))

    # --- reading ---

    def _look(self) -> SlurmObservation:
        if not self._controller_up:
            raise Unreadable("slurm.observe", "slurmctld does not answer")
        self._seen_lifted |= {node.name for node in self._nodes.values() if not node.drained}
        self._seen_lifted -= {node.name for node in self._nodes.values() if node.drained and not node.nameless}
        self.shown = {node.name: node.reason for node in self._nodes.values() if self._foreign(node)}
        return SlurmObservation(
            read_at=self._clock.now(),
            nodes={name: self._show_node(node) for name, node in self._nodes.items()},
            jobs=tuple(self._show_job(job) for job in self._live.values() if self._visible(job)),
            held=self.held(),
            controller_up_s=self._clock.monotonic_s() - self._controller_started_s,
        )

    def held(self) -> frozenset[str]:
        """The nodes inside reservations of the bridge, beside any fault of the port."""
        ours = (nodes for name, nodes in self._reservations.items() if name.startswith(OURS))
        return frozenset(name for nodes in ours for name in nodes)

    # --- writing ---

    def _write(self, call: str, nodes: Collection[str], effect: Callable[[SlurmdNode], None]) -> None:
        """One effect a node. What the bridge was shown is taken now, not when a late effect lands."""
        found = [self._node(name) for name in nodes]
        shown = self.shown
        self._faults.write(
            f"slurm.{call}", [partial(self._reach, partial(self._judged, call, shown, effect, node)) for node in found]
        )

    def _write_whole(
        self, call: str, reservation: str, nodes: Collection[str], effect: Callable[[str, Collection[str]], None]
    ) -> None:
        """One effect for all nodes: an update of a reservation happens wholly or not at all."""
        for name in nodes:
            self._node(name)
        if not reservation.startswith(OURS):
            self._oracle.destroyed(", ".join(nodes), f"reservation {reservation}", f"the bridge's {call}")
        self._faults.write(f"slurm.{call}", [partial(self._reach, partial(effect, reservation, nodes))])

    def _tell(self, call: str, job: int, nodes: Collection[str], effect: Callable[[Job], None]) -> None:
        """Where the job runs is looked up now, not when a late effect lands."""
        found = self._jobs.get(job)
        runs_there = found is not None and found.state == "RUNNING" and not set(nodes).isdisjoint(found.nodes)
        told = [partial(self._reach, partial(self._watched, call, effect, found))] if found and runs_there else []
        self._faults.write(f"slurm.{call}", told)

    def _watched(self, call: str, effect: Callable[[Job], None], job: Job) -> None:
        if job.state in ("RUNNING", "SUSPENDED"):
            self._oracle.told(job.id, [self._nodes[name].machine for name in job.nodes if name in self._nodes], call)
        effect(job)

    def _reach(self, effect: Callable[[], None]) -> None:
        if not self._controller_up:
            raise CallFailed("slurmctld does not answer")
        effect()

    def _judged(self, call: str, shown: Shown, effect: Callable[[SlurmdNode], None], node: SlurmdNode) -> None:
        before = node.reason
        was_shown = self._foreign(node) and shown.get(node.name) == before
        effect(node)
        if was_shown and not (node.drained and node.reason == before):
            self._oracle.destroyed(node.machine, before, f"the bridge's {call}")

    def _foreign(self, node: SlurmdNode) -> bool:
        nameless = node.nameless and node.name in self._seen_lifted
        return node.drained and (nameless or node.reason_user != self._user or Mark.parse(node.reason) is None)

    def drained_by_others(self, name: str) -> bool:
        return self._foreign(self._node(name))
