"""What a mode takes away from a broker: ports through which nothing can be changed.

This is the one place where it is decided. Of a port only what is listed here as reading is let through; everything
else, also a method that the port gets some day, fails with `CallFailed` and never reaches it. So no leader, however
stale, and no line of the loop, however mistaken, changes anything that its mode leaves alone.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NoReturn, TypeVar, cast

from bridge.model.errors import CallFailed
from bridge.model.mode import Mode
from bridge.ports import KubePort, Ledger, SlurmPort

Port = TypeVar("Port")

SLURM_READS = frozenset({"observe"})
KUBE_READS = frozenset({"observe", "watch", "close"})
LEDGER_READS = frozenset(
    {
        "leader",
        "leaders_sight",
        "read",
        "sightings",
        "policy_history",
        "request",
        "handoffs",
        "handoff",
        "handoff_events",
        "events",
        "last_event_id",
        "watch",
        "close",
    }
)


def slurm_in(mode: Mode, slurm: SlurmPort) -> SlurmPort:
    return slurm if mode is Mode.ACTIVE else _looking(slurm, SLURM_READS, mode)


def kube_in(mode: Mode, kubernetes: KubePort) -> KubePort:
    return kubernetes if mode is Mode.ACTIVE else _looking(kubernetes, KUBE_READS, mode)


def ledger_in(mode: Mode, ledger: Ledger) -> Ledger:
    return _looking(ledger, LEDGER_READS, mode) if mode is Mode.READ_ONLY else ledger


def _looking(port: Port, reads: Set[str], mode: Mode) -> Port:
    return cast(Port, _Onlooker(port, reads, mode))


class _Onlooker:
    __slots__ = ("_mode", "_port", "_reads")

    def __init__(self, port: object, reads: Set[str], mode: Mode) -> None:
        self._port, self._reads, self._mode = port, reads, mode

    def __getattr__(self, name: str) -> Any:
        if name in self._reads:
            return getattr(self._port, name)
        mode = self._mode

        def refused(*_: object, **__: object) -> NoReturn:
            raise CallFailed(f"{name} is not called: this broker runs in {mode}")

        return refused
