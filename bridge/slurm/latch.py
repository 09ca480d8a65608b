"""The latches, as far as every driver sets them alike: the drain's words, what a refused RESUME means, and the second
latch: one MAINT,IGNORE_JOBS reservation a pool, written with ``scontrol``.

slurmrestd writes reservations from 25.05 on only, and pyslurm has no ``Nodes+=``: to write the whole list anew would
drop what another call added since it was read. ``NotOurs``: only reservations named ``bridge-…`` are ever written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta

from bridge.model import hostlists
from bridge.model.errors import CallFailed, Invalid, Unreadable
from bridge.model.ownership import Mark
from bridge.model.slurm import SlurmNode
from bridge.slurm import reading
from bridge.slurm.scontrol import RunsScontrol

OURS = "bridge-"
"""Every reservation of the bridge starts with this, and no other is ever changed."""

LATCH_FLAGS = frozenset({"MAINT", "IGNORE_JOBS"})
RENEW_BELOW = timedelta(days=182)
"""Slurm's UNLIMITED is 365 days: a reservation with less than half of that left gets a new end."""


INVALID_NODE_STATE = 2028
"""Slurm's answer to RESUME where one of the nodes is not drained, after it has resumed the others."""

_MAX_REASON_CHARS = 250


def drain_reason(mark: Mark, why: str) -> str:
    """The reason of our drain, on one line of a length that Slurm keeps: the mark first, then words for people."""
    return " ".join(f"{mark} {why}".split())[:_MAX_REASON_CHARS]


def any_drained(read: Callable[[], Mapping[str, SlurmNode]], nodes: Collection[str]) -> bool:
    """Whether one of `nodes` is still drained, or gone, after a RESUME was refused. `CallFailed`: not readable."""
    try:
        found = read()
    except Unreadable as error:
        raise CallFailed(f"RESUME was refused, and then {error}") from error
    return any(name not in found or "DRAIN" in found[name].states for name in nodes)


def held(found: Mapping[str, reading.Reservation]) -> frozenset[str]:
    """The nodes on which the latch stands."""
    return frozenset(
        name for reservation in found.values() if reservation.flags >= {"MAINT"} for name in reservation.nodes
    )


def checked(nodes: Collection[str]) -> list[str]:
    """The names, each once, none of which can be anything but a node name in a path or a host list."""
    names = sorted(set(nodes))
    hostlists.join(names)
    return names


class Latch:
    """`read` gives the bridge's reservations of now by name, or raises `Unreadable`; `user` is the one they are for."""

    def __init__(
        self,
        read: Callable[[], dict[str, reading.Reservation]],
        scontrol: RunsScontrol,
        user: str,
        now: Callable[[], datetime],
    ) -> None:
        self._read = read
        self._scontrol = scontrol
        self._user = user
        self._now = now

    def hold(self, nodes: Collection[str], reservation: str) -> None:
        names = checked(nodes)
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
        names = frozenset(checked(nodes))
        found = self._our_reservation(reservation)
        if found is None or not found.nodes & names:
            return
        if found.nodes <= names:
            # Never an update to an empty list: it crashed slurmctld before 24.11.3, and is refused since.
            self._scontrol("delete", f"ReservationName={reservation}")
            return
        self._update(reservation, f"Nodes-={hostlists.join(sorted(found.nodes & names))}")
        self._renew_if_due(found)

    def renew(self) -> tuple[str, ...]:
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
            return self._read()
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
