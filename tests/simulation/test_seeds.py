"""Whole days by seed, with faults: every invariant is checked after every event, and afterwards everything settles."""

from __future__ import annotations

import random

import pytest

from bridge.simulation.workload import Day, small_day
from tests.simulation.fleet import Fleet

DAY = Day(nodes=4, length_s=3600, jobs=20, scalings=24)


def quiet(fleet: Fleet) -> bool:
    state = fleet.ledger.read()
    return not state.handoffs and len(state.leases) == len(fleet.world.nodes)


@pytest.mark.parametrize("seed", range(20))
def test_a_day_with_failing_calls(seed: int) -> None:
    fleet = Fleet(seed, exact=False)
    fleet.world.play(small_day(random.Random(seed), DAY))
    fleet.world.faults.chaos(random.Random(seed + 1), rate=0.1)
    fleet.run_for(DAY.length_s)
    fleet.world.faults.calm()
    fleet.run_until(lambda: quiet(fleet), "every handoff has ended", within_s=3600)
    assert not fleet.world.oracle.double_booked()
