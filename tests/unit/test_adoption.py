"""Who gets a node that the ledger does not know, or knows from the past only."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Lease, Mark, Owner, Side
from bridge.planning.adoption import adopt, is_overtaken, take_back

NOW = datetime(2030, 1, 7, tzinfo=UTC)
NEWEST = (5, 40)
IDLE = SideFacts(idle=True, answers=True)
OPENED = SideFacts(idle=True, opened=True)
BUSY = SideFacts(works=True, answers=True)
SILENT = SideFacts(not_ready="not responding")
UNKNOWN = SideFacts(unknown="timeout")


def carries(facts: SideFacts, epoch: int = 4, generation: int = 30) -> SideFacts:
    return replace(facts, stray_mark=Mark("lease0009", epoch, generation))


@pytest.mark.parametrize(
    ("sight", "last", "owner", "why"),
    [
        (Sight(carries(IDLE), IDLE), Side.SLURM, Owner.SLURM, "nothing runs on it, slurm had it last"),
        (Sight(carries(IDLE), IDLE), Side.KUBERNETES, Owner.KUBERNETES, "nothing runs on it, kubernetes had it last"),
        (Sight(IDLE, carries(BUSY)), Side.SLURM, Owner.KUBERNETES, "work runs on the kubernetes side"),
        (Sight(carries(BUSY), IDLE), Side.KUBERNETES, Owner.SLURM, "work runs on the slurm side"),
        (Sight(carries(SILENT), BUSY), Side.SLURM, Owner.KUBERNETES, "work runs on the kubernetes side"),
        (Sight(carries(SILENT), SILENT), Side.SLURM, Owner.SLURM, "nothing runs on it, slurm had it last"),
        (Sight(carries(BUSY), BUSY), Side.SLURM, Owner.BRIDGE, "work runs on both sides"),
        (Sight(carries(IDLE), UNKNOWN), Side.SLURM, None, "UNKNOWN on the kubernetes side: timeout"),
        (Sight(UNKNOWN, carries(BUSY)), Side.SLURM, None, "UNKNOWN on the slurm side: timeout"),
        (Sight(carries(IDLE, 6, 1), IDLE), Side.SLURM, Owner.BRIDGE, "resume it in Slurm"),
        (Sight(IDLE, carries(IDLE, 5, 41)), Side.SLURM, Owner.BRIDGE, "delete its NodeLoan"),
        (Sight(IDLE, carries(IDLE, 5, 40)), Side.SLURM, Owner.SLURM, "nothing runs on it"),
    ],
)
def test_a_node_with_unknown_marks(sight: Sight, last: Side, owner: Owner | None, why: str) -> None:
    found = take_back(sight, last, newest=NEWEST)
    assert found.owner is owner
    assert why in found.reason
    assert not found.busy, "both sides are closed first"
    assert adopt(sight, last, newest=NEWEST) == found, "on its first day too"


@pytest.mark.parametrize(("works", "owner"), [(False, Owner.KUBERNETES), (True, Owner.SLURM)])
def test_that_slurm_was_open_is_taken_at_once_as_closing_it_hides_that(works: bool, owner: Owner) -> None:
    found = take_back(Sight(replace(OPENED, works=works), UNKNOWN), Side.KUBERNETES, newest=NEWEST)
    assert found.owner is owner
    assert not found.busy, "both sides are closed first"


def handoff(source: Side, step: Step) -> Handoff:
    return Handoff(
        id="h1",
        lease="lease0001",
        node="gpu-1",
        source=source,
        destination=source.other,
        step=step,
        reason="test",
        requested_by="test",
        generation=30,
        nonce="nonce",
        evict=False,
        began_at=NOW,
        step_began_at=NOW,
        step_deadline_at=NOW + timedelta(hours=1),
    )


LEASE = Lease("lease0001", "gpu-1", Owner.BRIDGE, 4, 30, NOW)


@pytest.mark.parametrize(
    ("sight", "moving", "overtaken"),
    [
        (Sight(IDLE, IDLE), None, False),
        (Sight(carries(IDLE, 4, 29), IDLE), None, False),
        (Sight(carries(IDLE, 4, 31), IDLE), None, True),
        (Sight(IDLE, carries(IDLE, 5, 1)), None, True),
        # An opening of Slurm leaves no mark. Jobs tell of it, on a node that is not there yet.
        (Sight(BUSY, IDLE), handoff(Side.KUBERNETES, Step.CLOSE), True),
        (Sight(BUSY, IDLE), handoff(Side.KUBERNETES, Step.EMPTY), True),
        (Sight(BUSY, IDLE), handoff(Side.KUBERNETES, Step.CLEAN), True),
        (Sight(BUSY, IDLE), handoff(Side.KUBERNETES, Step.OPEN), False),
        (Sight(BUSY, IDLE), handoff(Side.SLURM, Step.EMPTY), False),
        (Sight(BUSY, IDLE), handoff(Side.KUBERNETES, Step.ADMIT), False),
        (Sight(IDLE, BUSY), handoff(Side.KUBERNETES, Step.EMPTY), False),
        # Jobs that it let in may be over, and their processes not.
        (Sight(OPENED, IDLE), handoff(Side.KUBERNETES, Step.CLOSE), True),
        (Sight(OPENED, IDLE), handoff(Side.KUBERNETES, Step.OPEN), False),
        (Sight(OPENED, IDLE), handoff(Side.SLURM, Step.CLOSE), False),
        (Sight(IDLE, OPENED), handoff(Side.KUBERNETES, Step.CLOSE), False),
    ],
)
def test_what_shows_that_the_ledger_is_from_the_past(sight: Sight, moving: Handoff | None, overtaken: bool) -> None:
    assert is_overtaken(sight, LEASE, moving) is overtaken
