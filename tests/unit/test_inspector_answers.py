"""When the inspector looks, and what it writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.inspector.inspector import MOST_HOLDERS, Inspector
from bridge.kube import names, resources
from bridge.kube.connection import Json, NoAnswer
from bridge.model.errors import Unreadable
from bridge.model.kube import DeviceHolder, Inspection
from tests.unit.kube_api import END, FakeApi, eventually

NODE = "gpu-1"
HOLDER = DeviceHolder(17, "python train.py", "uid 1000", "/dev/nvidia0")
STATUS = f"{names.INSPECTIONS}/{NODE}/status"


class Setup:
    """An inspector on a fake apiserver that tells the writer of its own writes, as a real one does."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.api.objects[names.INSPECTIONS] = []
        self.api.answers[("PATCH", STATUS)] = self._store
        self.found: tuple[DeviceHolder, ...] | Exception = ()
        self.looks = 0
        self._version = 100
        self._body: Json = {}
        self.inspector = Inspector(self.api, NODE, self._scan, recheck_s=0.01, monotonic_s=time.monotonic)
        self._thread = threading.Thread(target=self.inspector.run, daemon=True)
        self._thread.start()

    def ask(self, nonce: str) -> None:
        self._tell(resources.inspection_object(NODE, nonce)["spec"], self._body.get("status"))

    def answers(self) -> list[Inspection]:
        found = [resources.inspection(body) for _, path, body in self.api.sent if path == STATUS]
        return [answer for answer in found if answer is not None]

    def end(self) -> None:
        self.inspector.stop()
        self._thread.join(5)
        self.api.feed(names.INSPECTIONS, END)
        assert not self._thread.is_alive()

    def _scan(self) -> tuple[DeviceHolder, ...]:
        self.looks += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def _store(self, body: Any) -> Json:
        self._tell(self._body["spec"], body["status"])
        return {}

    def _tell(self, spec: Json, status: Json | None) -> None:
        self._version += 1
        self._body = {"metadata": {"name": NODE, "resourceVersion": str(self._version)}, "spec": spec, "status": status}
        self.api.feed(names.INSPECTIONS, {"type": "MODIFIED", "object": dict(self._body)})


@pytest.fixture
def setup() -> Iterator[Setup]:
    setup = Setup()
    yield setup
    setup.end()


def test_a_clean_node_is_looked_at_once_a_question(setup: Setup) -> None:
    setup.ask("n1")
    eventually("answer", lambda: setup.answers() == [Inspection("n1")])
    setup.ask("n2")
    eventually("answer", lambda: setup.answers()[1:] == [Inspection("n2")])
    assert setup.looks == 2


def test_a_holder_is_watched_until_it_goes_and_only_news_are_written(setup: Setup) -> None:
    setup.found = (HOLDER,)
    setup.ask("n1")
    eventually("several looks", lambda: setup.looks > 5)
    assert setup.answers() == [Inspection("n1", (HOLDER,))]
    setup.found = ()
    eventually("clean", lambda: setup.answers()[1:] == [Inspection("n1")])


def test_what_cannot_be_looked_at_is_an_error_and_is_tried_again(setup: Setup) -> None:
    setup.found = Unreadable("inspector", "process 7: Permission denied")
    setup.ask("n1")
    eventually("error", lambda: setup.answers() == [Inspection("n1", error="process 7: Permission denied")])
    setup.found = ()
    eventually("clean", lambda: setup.answers()[1:] == [Inspection("n1")])


def test_an_answer_that_was_not_written_is_written_later(setup: Setup) -> None:
    store = setup.api.answers[("PATCH", STATUS)]
    failures = iter([NoAnswer("timed out")])

    def flaky(body: Any) -> Json:
        for failure in failures:
            raise failure
        return store(body)

    setup.api.answers[("PATCH", STATUS)] = flaky
    setup.ask("n1")
    eventually("two attempts", lambda: setup.answers() == [Inspection("n1"), Inspection("n1")])


def test_a_crowd_is_cut_to_what_the_schema_allows(setup: Setup) -> None:
    setup.found = (HOLDER,) * (MOST_HOLDERS + 10)
    setup.ask("n1")
    eventually("answer", lambda: setup.answers() and len(setup.answers()[0].holders) == MOST_HOLDERS)
