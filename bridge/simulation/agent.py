"""The simulated Slurm agent: keeps the Prolog's fence fresh from the ledger, and acknowledges what it shows.

Once it is silent for `stale_s`, the Prolog believes the fence no more: a fence must not be the outage.
"""

from __future__ import annotations

from bridge.model.errors import BridgeError
from bridge.model.ledger import FenceAck, LedgerState
from bridge.model.ownership import Owner
from bridge.ports import Ledger
from bridge.simulation.clock import SimulatedClock, Timer
from bridge.simulation.slurmctld import Slurmctld


class SimulatedAgent:
    """Takes a turn every `poll_s`, from `start` until `stop`."""

    def __init__(
        self, clock: SimulatedClock, ledger: Ledger, slurm: Slurmctld, *, poll_s: float = 1, stale_s: float = 60
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._slurm = slurm
        self._poll_s = poll_s
        self._stale_s = stale_s
        self._next: Timer | None = None
        self._stale: Timer | None = None

    def start(self) -> None:
        self.stop()
        self._next = self._clock.after(0, self._turn)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _turn(self) -> None:
        self._next = self._clock.after(self._poll_s, self._turn)
        try:
            state = self._ledger.read()
            self._write(fence(state))
            self._ledger.acknowledge_fence(FenceAck(state.generation, self._clock.now()))
        except BridgeError:
            return  # the fence stays as it is, and grows stale

    def _write(self, closed: frozenset[str]) -> None:
        self._slurm.fence = closed
        if self._stale is not None:
            self._stale.cancel()
        self._stale = self._clock.after(self._stale_s, self._grow_stale)

    def _grow_stale(self) -> None:
        self._slurm.fence = frozenset()


def fence(state: LedgerState) -> frozenset[str]:
    """Slurm names of the nodes whose lease is not Slurm's."""
    return frozenset(
        state.nodes[name].node.slurm_name
        for name, lease in state.leases.items()
        if lease.owner is not Owner.SLURM and name in state.nodes
    )
