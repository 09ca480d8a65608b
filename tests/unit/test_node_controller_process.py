"""The controller as a process: when it may call itself alive, and what its probes say."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from bridge.kube import names
from bridge.model.errors import Fenced
from bridge.node_controller.controller import Controller
from bridge.node_controller.probes import Probes
from bridge.settings import NodeControllerSettings
from tests.unit.kube_api import END, FakeApi, eventually
from tests.unit.test_kube_heartbeat import LeaseApi

LISTS = (names.LOANS, names.NODES, names.PODS, names.FENCES)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Setup:
    """A controller whose Lease is real enough and whose cluster is empty."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.api = FakeApi()
        self.lease = LeaseApi()
        self.api.objects = {path: [] for path in LISTS}
        lease_path = names.lease_path(names.NAMESPACE)
        one = f"{lease_path}/{names.CONTROLLER_LEASE}"
        self.api.answers = {
            ("GET", one): lambda _body: self.lease.call("GET", one),
            ("PUT", one): lambda body: self.lease.call("PUT", one, body=body),
            ("POST", lease_path): lambda body: self.lease.call("POST", lease_path, body=body),
        }
        self.controller = Controller(
            self.api,
            NodeControllerSettings(),
            holder="one",
            monotonic_s=self.clock,
            now=lambda: datetime(2026, 5, 4, tzinfo=UTC),
        )
        self.controller.start()
        eventually("all views are read", lambda: len(self.api.watched) == len(LISTS))

    def holder(self) -> str:
        return "" if self.lease.lease is None else str(self.lease.lease["spec"]["holderIdentity"])

    def hear(self, *paths: str) -> None:
        """Let the watches of `paths` end in good order: they are fresh again."""
        before = len(self.api.watched)
        for path in paths:
            self.api.feed(path, END)
        eventually("new watches", lambda: len(self.api.watched) == before + len(paths))

    def end(self) -> None:
        self.controller.close()
        for path in LISTS:
            self.api.feed(path, END)


@pytest.fixture
def setup() -> Iterator[Setup]:
    setup = Setup()
    yield setup
    setup.end()


def test_the_heartbeat_is_renewed_while_all_watches_are_heard(setup: Setup) -> None:
    setup.controller.tick()
    assert setup.holder() == "one"
    for _ in range(10):
        setup.clock.now_s += 5
        setup.hear(*LISTS)
        setup.controller.tick()
    assert setup.controller.problem() == ""


def test_one_silent_watch_withholds_the_heartbeat_until_leadership_is_over(setup: Setup) -> None:
    setup.controller.tick()
    setup.clock.now_s += 8.5
    setup.hear(*LISTS[1:])
    assert names.LOANS in setup.controller.problem()
    setup.controller.tick()
    setup.clock.now_s += 1
    with pytest.raises(Fenced, match="lost its Lease"):
        setup.controller.tick()


def test_a_controller_that_hears_nothing_never_takes_the_lease() -> None:
    setup = Setup()
    setup.clock.now_s += 9
    setup.controller.tick()
    assert setup.holder() == ""
    setup.end()


def test_the_lease_is_given_back_at_the_end() -> None:
    setup = Setup()
    setup.controller.tick()
    setup.end()
    assert setup.holder() == ""


def test_who_does_not_tick_any_more_is_stuck(setup: Setup) -> None:
    assert setup.controller.stuck() == ""
    setup.clock.now_s += 61
    assert "no tick for 61 s" in setup.controller.stuck()


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes() -> None:
    problems = {"ready": ""}
    probes = Probes(0, {"/healthz": lambda: "", "/readyz": lambda: problems["ready"]}, host="127.0.0.1")
    try:
        assert fetch(probes.port, "/healthz") == (200, "ok")
        problems["ready"] = "nothing heard of nodes"
        assert fetch(probes.port, "/readyz") == (503, "nothing heard of nodes")
        assert fetch(probes.port, "/other")[0] == 404
        status, text = fetch(probes.port, "/metrics")
        assert status == 200
        assert "slurm_kube_bridge_node_controller_leads" in text
    finally:
        probes.close()
