"""The apiserver that tests of the node controller play, held to what the real one does."""

from __future__ import annotations

import pytest

from bridge.simulation.clock import SimulatedClock
from tests.contracts.apiserver import ApiserverContract, Place
from tests.unit.kube_store import StoredApi
from tests.unit.node_stories import BUDGET, BUDGET_PATH, LOAN_PATH, NODE, POD_PATH, loan, stock


class TestStoredApi(ApiserverContract):
    @pytest.fixture
    def api(self) -> StoredApi:
        clock = SimulatedClock()
        api = StoredApi(now=clock.now, after=clock.after)
        stock(api)
        api.put(LOAN_PATH, loan("slurm", 5))
        return api

    @pytest.fixture
    def place(self, api: StoredApi) -> Place:
        return Place(api, NODE, POD_PATH)

    @pytest.fixture
    def forbid(self, api: StoredApi) -> None:
        api.put(BUDGET_PATH, BUDGET)
