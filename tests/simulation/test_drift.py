"""Where world and ledger come to disagree: said once, put right where that is safe, and said to be over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bridge.model.ownership import Mark, Owner, Side
from tests.simulation.fleet import Fleet

LENT = "gpu-1"
KUBE_LENT = "gpu-1.testbed"


def lent() -> Fleet:
    """Four nodes, the first of them lent to Kubernetes by order."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    fleet.order(Side.KUBERNETES, LENT)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == [LENT], "gpu-1 is lent")
    return fleet


def said(fleet: Fleet, kind: str = "drift") -> list[tuple[str, str]]:
    """What was said, as (kind of finding, name)."""
    events = fleet.ledger.events(after=0, limit=10_000)
    return [(event.data["kind"], event.data.get("name", "many")) for event in events if event.kind == kind]


def test_an_ordinary_day_has_no_drift() -> None:
    fleet = lent()
    fleet.order(Side.SLURM, LENT)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == [], "gpu-1 is back")
    chat = fleet.deploy("chat", replicas=3)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "all serve")
    assert said(fleet) == []


LIFTED: dict[str, Callable[[Fleet], None]] = {
    "the drain is resumed": lambda fleet: fleet.world.slurm.admin_resume(LENT),
    "the reservation is edited": lambda fleet: fleet.world.slurm.admin_takes_out(LENT),
}


@pytest.mark.parametrize("lift", LIFTED.values(), ids=LIFTED)
def test_a_latch_that_a_person_lifts_is_said_and_made_again(lift: Callable[[Fleet], None]) -> None:
    fleet = lent()
    lift(fleet)
    fleet.run_for(10)
    assert said(fleet) == [("mark_missing", LENT)]
    assert said(fleet, "drift_over") == [("mark_missing", LENT)]
    assert not fleet.world.slurm.open(LENT)
    assert {"DRAIN", "RESERVED"} <= fleet.world.slurm.node(LENT).states


def test_a_drain_of_an_earlier_lease_is_said_and_lifted() -> None:
    fleet = lent()
    mark = Mark.parse(fleet.world.slurm.node(LENT).reason)
    assert mark is not None
    fleet.order(Side.SLURM, LENT)
    fleet.run_until(lambda: LENT in fleet.owned(Owner.SLURM), "gpu-1 is back")
    fleet.world.slurm.drain([LENT], mark, "a call of long ago")
    fleet.run_for(10)
    assert said(fleet)[0] == ("unknown_drain", LENT)
    assert sorted(said(fleet)) == sorted(said(fleet, "drift_over")), "it is lifted behind our own reservation"
    assert fleet.world.slurm.open(LENT)


def test_a_taint_that_nobody_knows_is_said_and_nothing_else_stalls() -> None:
    fleet = lent()
    fleet.world.kube.cluster.set_taint("gpu-2.testbed", "lease0009")
    fleet.run_for(5)
    fleet.order(Side.KUBERNETES, "gpu-3")
    fleet.run_until(lambda: "gpu-3" in fleet.owned(Owner.KUBERNETES), "gpu-3 is lent all the same")


def test_while_a_side_is_unknown_none_of_its_findings_is_over() -> None:
    fleet = lent()
    fleet.world.slurm.restart_controller(away_s=60)
    fleet.world.slurm.admin_resume(LENT)
    fleet.run_for(30)
    assert said(fleet) == []
    fleet.run_for(60)
    assert said(fleet) == said(fleet, "drift_over") == [("mark_missing", LENT)]
