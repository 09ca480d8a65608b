"""Which marks outside a leader must lead above."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.errors import Unreadable
from bridge.model.kube import KubeNode, KubeObservation, LoanSpec
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Lease, Mark, Owner
from bridge.model.slurm import SlurmNode, SlurmObservation
from bridge.reconciler.ahead import MOST_AHEAD, ahead
from bridge.reconciler.look import World

NOW = datetime(2030, 1, 7, tzinfo=UTC)
EPOCH, DRAWN = 3, 20
"""The leader's epoch, and the largest generation that the ledger holds."""
AWAY = Unreadable("slurm", "timeout")


def world(*reasons: str, loans: tuple[Mark, ...] = ()) -> World:
    nodes = [SlurmNode(f"gpu-{n}", frozenset({"IDLE"}), 8, reason=reason) for n, reason in enumerate(reasons)]
    kube = [
        KubeNode(f"k{n}", "uid", True, False, 8, spec=LoanSpec(f"k{n}", Owner.BRIDGE, mark, 8))
        for n, mark in enumerate(loans)
    ]
    return World(
        SlurmObservation(NOW, {node.name: node for node in nodes}),
        KubeObservation(NOW, {node.name: node for node in kube}),
    )


def mark(epoch: int, generation: int) -> Mark:
    return Mark("lease0009", epoch, generation)


@pytest.mark.parametrize(
    ("seen", "above"),
    [
        (world(), None),
        (world("fan broken", "", str(mark(3, 20))), None),
        (world(loans=(mark(2, 20), mark(3, 1))), None),
        (world(f"{mark(3, 21)} lent"), (3, 21)),
        (world(f"{mark(4, 2)} lent"), (4, 2)),
        (world(loans=(mark(2, 25),)), (2, 25)),
        # Each number by itself, over both sides.
        (world(str(mark(2, 90)), str(mark(7, 4)), loans=(mark(5, 30),)), (7, 90)),
        # What no ledger of ours can have written is not followed, and hides nothing that one has.
        (world(loans=(mark(2**62, 1), mark(1, 2**62), mark(2**62, 2**62))), None),
        (world(loans=(mark(2**62, 1), mark(3, 21))), (3, 21)),
        (world(loans=(mark(EPOCH + MOST_AHEAD, DRAWN + MOST_AHEAD),)), (EPOCH + MOST_AHEAD, DRAWN + MOST_AHEAD)),
        (world(loans=(mark(EPOCH + MOST_AHEAD + 1, 1), mark(1, DRAWN + MOST_AHEAD + 1))), None),
        # A side that cannot be read is asked again in the next pass.
        (World(AWAY, world(loans=(mark(3, 21),)).kubernetes), (3, 21)),
        (World(AWAY, AWAY), None),
    ],
)
def test_above_what_a_leader_must_lead(seen: World, above: tuple[int, int] | None) -> None:
    assert ahead(LedgerState(generation=DRAWN), seen, {}, epoch=EPOCH, generation=0) == above


def test_what_was_led_above_already_is_not_ahead_any_more() -> None:
    """Until the first lease is written, the ledger's own largest generation is still that of the past."""
    assert ahead(LedgerState(generation=DRAWN), world(loans=(mark(3, 50),)), {}, epoch=4, generation=50) is None


@pytest.mark.parametrize(("epoch", "above"), [(3, (3, 15)), (4, None)])
def test_a_leader_that_goes_on_after_a_failover_may_have_written_a_lost_mark_itself(
    epoch: int, above: tuple[int, int] | None
) -> None:
    """Its generations are all drawn anew by now; the lease of its node tells. A new epoch ends that."""
    lease = Lease("lease0001", "gpu-1", Owner.SLURM, 3, 9, NOW)
    sight = Sight(SideFacts(stray_mark=mark(3, 15)), SideFacts(stray_mark=mark(3, 8)))
    state = LedgerState(generation=DRAWN, leases={"gpu-1": lease})
    assert ahead(state, world(), {"gpu-1": sight}, epoch=epoch, generation=0) == above
