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
