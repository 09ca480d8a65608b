"""The driver of the Slurm port: slurmrestd, and ``scontrol`` for reservations and requeues.

``FailClosed``: `observe` returns all that was asked, read now, or raises `Unreadable`. ``NotOurs``: only reservations
named ``bridge-…`` are ever written. Marks and drains are checked by the core, which reads back what it wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta

import httpx

from bridge.model import hostlists
from bridge.model.errors import CallFailed, Invalid, Unreadable
from bridge.model.ownership import Mark
from bridge.model.slurm import SlurmNode, SlurmObservation
from bridge.settings import SlurmSettings
from bridge.slurm import reading
from bridge.slurm.client import NotThere, RestClient, WriteRefused
from bridge.slurm.queue import JobQueue
from bridge.slurm.scontrol import Scontrol
from bridge.slurm.telling import JobCalls
from bridge.slurm.token import TokenFile

OURS = "bridge-"
"""Every reservation of the bridge starts with this, and no other is ever changed."""

LATCH_FLAGS = frozenset({"MAINT", "IGNORE_JOBS"})
RENEW_BELOW = timedelta(days=182)
"""Slurm's UNLIMITED is 365 days: a reservation with less than half of that left gets a new end."""

_MANY_NODES_SINCE = 42
_INVALID_NODE_STATE = 2028
_MAX_REASON_CHARS = 250


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
        self._user = settings.slurm_user
        self._now = now
        self._client = RestClient(
            settings.slurm_url, token, settings.slurm_timeout_s, transport=transport, monotonic_s=monotonic_s
        )
        self._queue = JobQueue(self._client, settings.slurm_timeout_s, monotonic_s)
        self._scontrol = Scontrol(settings.slurm_scontrol, token, settings.slurm_timeout_s)
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
        held = frozenset(
            name for found in self._reservations().values() if found.flags >= {"MAINT"} for name in found.nodes
        )
        jobs = self._queue.read()
        return SlurmObservation(read_at, nodes, jobs, held, self._controller_up_s())

    def _nodes(self) -> dict[str, SlurmNode]:
        return reading.nodes(self._client.read("nodes/"))

    def _reservations(self) -> dict[str, reading.Reservation]:
        return reading.reservations(self._client.read("reservations/"), OURS)

    def _controller_up_s(self) -> float | None:
        try:
            return reading.uptime_s(self._client.read("diag/"))
        except NotThere:
            return None

    # --- the first latch: DRAIN ---

    def drain(self, nodes: Collection[str], mark: Mark, why: str) -> None:
        reason = " ".join(f"{mark} {why}".split())[:_MAX_REASON_CHARS]
        self._update_nodes(nodes, {"state": ["DRAIN"], "reason": reason})

    def resume(self, nodes: Collection[str]) -> None:
        """RESUME. Slurm refuses it for a node that is not drained, after resuming the others: that is no failure."""
        try:
            self._update_nodes(nodes, {"state": ["RESUME"]})
        except WriteRefused as refusal:
            if _INVALID_NODE_STATE not in refusal.numbers or self._any_drained(nodes):
                raise

    def _any_drained(self, nodes: Collection[str]) -> bool:
        try:
            found = self._nodes()
        except Unreadable as error:
            raise CallFailed(f"RESUME was refused, and then {error}") from error
        return any(name not in found or "DRAIN" in found[name].states for name in nodes)

    def _update_nodes(self, nodes: Collection[str], change: dict[str, object]) -> None:
        """One call for many nodes where the version has it: each call stops slurmctld's scheduling for a moment."""
        names = _checked(nodes)
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
        self._jobs.signal(job, _checked(nodes), signal)

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        self._jobs.requeue(job, _checked(nodes))

    def hasten(self, job: int) -> None:
        self._jobs.hasten(job)

    # --- the second latch: the reservation ---

    def hold(self, nodes: Collection[str], reservation: str) -> None:
        names = _checked(nodes)
        found = self._our_reservation(reservation)
        if not names:
            return
        if found is None:
            # Users: a reservation must have some, and nobody submits jobs as the broker's.
            self._scontrol(
                *("create", "reservation", f"ReservationName={reservation}", f"Nodes={hostlists.join(names)}"),
                *(*self._latch(), "StartTime=now", "Duration=UNLIMITED"),
                says=f"Reservation created: {reservation}",
            )
        elif not found.nodes.issuperset(names) or not self._is_latch(found):
            self._update(reservation, f"Nodes+={hostlists.join(names)}", *self._latch())
        self._renew_if_due(found)

    def release(self, nodes: Collection[str], reservation: str) -> None:
        names = frozenset(_checked(nodes))
        found = self._our_reservation(reservation)
        if found is None or not found.nodes & names:
            return
        if found.nodes <= names:
            # Never an update to an empty list: it crashed slurmctld before 24.11.3, and is refused since.
            self._scontrol("delete", f"ReservationName={reservation}")
            return
        self._update(reservation, f"Nodes-={hostlists.join(sorted(found.nodes & names))}")
        self._renew_if_due(found)

    def renew_reservations(self) -> tuple[str, ...]:
        """Give every reservation of ours that is past half of its 365 days a new end; the names of those renewed.

        `hold` and `release` do it in passing; a pool whose nodes stay lent for half a year needs it from a timetable.
        """
        return tuple(name for name, found in self._read_reservations().items() if self._renew_if_due(found))

    def _our_reservation(self, name: str) -> reading.Reservation | None:
        if not name.startswith(OURS) or hostlists.NAME.fullmatch(name) is None:
            raise Invalid(f"reservation {name!r} is not the bridge's: its name must be {OURS} and a pool's name")
        return self._read_reservations().get(name)

    def _read_reservations(self) -> dict[str, reading.Reservation]:
        try:
            return self._reservations()
        except Unreadable as error:
            raise CallFailed(str(error)) from error

    def _latch(self) -> tuple[str, str]:
        return f"Flags={','.join(sorted(LATCH_FLAGS))}", f"Users={self._user}"

    def _is_latch(self, found: reading.Reservation) -> bool:
        return found.flags >= LATCH_FLAGS and found.users == {self._user}

    def _renew_if_due(self, found: reading.Reservation | None) -> bool:
        due = found is not None and found.ends_at is not None and found.ends_at - self._now() < RENEW_BELOW
        if due and found is not None:
            self._update(found.name, "EndTime=now+365days")
        return due

    def _update(self, reservation: str, *changes: str) -> None:
        self._scontrol("update", f"ReservationName={reservation}", *changes, says="Reservation updated")


def _checked(nodes: Collection[str]) -> list[str]:
    """The names, each once, none of which can be anything but a node name in a path or a host list."""
    names = sorted(set(nodes))
    hostlists.join(names)
    return names
