"""What the leader's status says while a side cannot be read."""

from __future__ import annotations

from typing import NoReturn

import pytest

from bridge.api.views import Freshness
from bridge.model.errors import Unreadable
from bridge.wiring import status_view
from tests.simulation.fleet import Fleet


@pytest.mark.parametrize("source", ["slurmrestd nodes/", "Slurm nodes", "Slurm queue", "Slurm job 7", "Slurm diag"])
def test_s11_the_status_is_loud_in_whatever_words_the_driver_says_it(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token expires; the driver names the list that it could not read, and the status calls Slurm fresh."""
    fleet = Fleet()
    fleet.settle()

    def unreadable() -> NoReturn:
        raise Unreadable(source, "Protocol authentication error")

    monkeypatch.setattr(fleet.world.slurm, "observe", unreadable)
    fleet.run_for(10)
    status = status_view(fleet.ledger, fleet.reconciler, fleet.world.clock)
    assert status.slurm.state is Freshness.UNKNOWN
    assert status.slurm.reason == f"{source} is unreadable: Protocol authentication error"
    assert status.kubernetes.state is Freshness.FRESH


def test_a_standby_answers_with_the_leaders_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind one address people reach any replica, and none may look blind because it does not lead."""
    fleet = Fleet()
    fleet.settle()
    leader = fleet.reconciler
    standby, fleet.reconciler = fleet.new_broker(), leader
    standby.tick()
    status = status_view(fleet.ledger, standby, fleet.world.clock)
    assert (status.slurm.state, status.kubernetes.state) == (Freshness.FRESH, Freshness.FRESH)
    assert status.slurm.read_at == fleet.ledger.leaders_sight().at  # type: ignore[union-attr]

    fleet.world.faults.away("slurm.")
    fleet.run_for(10)
    standby.tick()
    blind = status_view(fleet.ledger, standby, fleet.world.clock)
    assert blind.slurm == status_view(fleet.ledger, leader, fleet.world.clock).slurm
    assert blind.slurm.state is Freshness.UNKNOWN
    assert blind.kubernetes.state is Freshness.FRESH


def test_a_standby_says_that_nobody_leads_or_that_the_leader_has_not_looked_yet() -> None:
    fleet = Fleet()
    fleet.settle()
    standby = fleet.new_broker()
    standby.tick()
    leader = fleet.ledger.leader()
    assert leader is not None
    fleet.ledger.resign(*leader)
    nobody = status_view(fleet.ledger, standby, fleet.world.clock)
    assert nobody.slurm.reason == "nobody leads, and only the leader looks"
    fleet.ledger.campaign("broker-9", 15)
    fresh = status_view(fleet.ledger, standby, fleet.world.clock)
    assert fresh.kubernetes.reason == "the leader broker-9 has not finished a pass yet"
