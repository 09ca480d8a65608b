"""The driver of the Slurm port: slurmrestd, and ``scontrol`` for reservations and requeues.

``FailClosed``: `observe` returns all that was asked, read now, or raises `Unreadable`. Marks and drains are checked by
the core, which reads back what it wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime

import httpx

from bridge.model.errors import CallFailed, Unreadable
from bridge.model.ownership import Mark
from bridge.model.slurm import SlurmNode, SlurmObservation
from bridge.settings import SlurmSettings
from bridge.slurm import reading
from bridge.slurm.client import NotThere, RestClient, WriteRefused
from bridge.slurm.latch import INVALID_NODE_STATE, OURS, Latch, any_drained, checked, drain_reason, held
from bridge.slurm.queue import JobQueue
from bridge.slurm.scontrol import Scontrol
from bridge.slurm.telling import JobCalls
from bridge.slurm.token import TokenFile

_MANY_NODES_SINCE = 42
_RESTART_S = 2
"""slurmctld tells its age in whole seconds: as much later it must have begun than before to have begun anew."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class SlurmRestDriver:
    """`bridge.ports.SlurmPort` on slurmrestd (data versions v0.0.40 to v0.0.45) and scontrol. Not thread-safe."""

    def __init__(
        self,
        settings: SlurmSettings,
        *,
        now: Callable[[], datetime] = _utc_now,
        monotonic_s: Callable[[], float] = time.monotonic,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        token = TokenFile(settings.slurm_token_file, now)
        self._now = now
        self._monotonic_s = monotonic_s
        self._controller_began_s: float | None = None
        self._client = RestClient(
            settings.slurm_url, token, settings.slurm_timeout_s, transport=transport, monotonic_s=monotonic_s
        )
        self._queue = JobQueue(self._client, settings.slurm_timeout_s, monotonic_s)
        self._scontrol = Scontrol(settings.slurm_scontrol, token, settings.slurm_timeout_s)
        self._latch = Latch(self._reservations, self._scontrol, settings.slurm_user, now)
        self._jobs = JobCalls(self._client, self._scontrol)

    def close(self) -> None:
        self._client.close()

    # --- reading ---

    def observe(self) -> SlurmObservation:
        """See the port. All nodes of the cluster are in it; a node that Slurm does not know is absent.

        slurmctld's age is read last, so that a restart between two of the reads shows.
        """
        read_at = self._now()
        nodes = self._nodes()
        latched = held(self._reservations())
        jobs = self._queue.read()
        up_s = self._controller_up_s()
        self._notice_restart(up_s)
        return SlurmObservation(read_at, nodes, jobs, latched, up_s)

    def _nodes(self) -> dict[str, SlurmNode]:
        return reading.nodes(self._client.read("nodes/"))

    def _reservations(self) -> dict[str, reading.Reservation]:
        return reading.reservations(self._client.read("reservations/"), OURS)

    def _controller_up_s(self) -> float | None:
        try:
            return reading.uptime_s(self._client.read("diag/"))
        except NotThere:
            return None

    def _notice_restart(self, up_s: float | None) -> None:
        """A slurmctld that crashed goes back to what it had saved, and starts jobs anew, elsewhere."""
        if up_s is None:
            return
        began_s, before_s = self._monotonic_s() - up_s, self._controller_began_s
        if before_s is not None and began_s > before_s + _RESTART_S:
            self._queue.doubt()
        self._controller_began_s = began_s

    # --- the first latch: DRAIN ---

    def drain(self, nodes: Collection[str], mark: Mark, why: str) -> None:
        reason = drain_reason(mark, why)
        self._update_nodes(nodes, {"state": ["DRAIN"], "reason": reason})

    def resume(self, nodes: Collection[str]) -> None:
        """RESUME. Slurm refuses it for a node that is not drained, after resuming the others: that is no failure."""
        try:
            self._update_nodes(nodes, {"state": ["RESUME"]})
        except WriteRefused as refusal:
            if INVALID_NODE_STATE not in refusal.numbers or any_drained(self._nodes, nodes):
                raise

    def _update_nodes(self, nodes: Collection[str], change: dict[str, object]) -> None:
        """One call for many nodes where the version has it: each call stops slurmctld's scheduling for a moment."""
        names = checked(nodes)
        if not names:
            return
        if self._version() < _MANY_NODES_SINCE:
            for name in names:
                self._client.write("POST", f"node/{name}", change)
            return
        self._client.write("POST", "nodes/", {"name": names, **change})

    def _version(self) -> int:
        try:
            return self._client.version()
        except Unreadable as error:
            raise CallFailed(str(error)) from error

    # --- what running jobs are told ---

    def signal(self, job: int, nodes: Collection[str], signal: str) -> None:
        self._jobs.signal(job, checked(nodes), signal)

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        self._jobs.requeue(job, checked(nodes))

    def hasten(self, job: int) -> None:
        self._jobs.hasten(job)

    # --- the second latch: the reservation ---

    def hold(self, nodes: Collection[str], reservation: str) -> None:
        self._latch.hold(nodes, reservation)

    def release(self, nodes: Collection[str], reservation: str) -> None:
        self._latch.release(nodes, reservation)

    def renew_reservations(self) -> tuple[str, ...]:
        return self._latch.renew()
