"""An apiserver of a few lines: answers what a test tells it to, and keeps what it was sent."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bridge.kube.connection import ApiError, Json, NoAnswer

END = "END"
CUT = "CUT"


class FakeApi:
    """`objects` are listed by path; `events` feeds the watch of a path: an event, an error to raise, `END` or `CUT`."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Json]] = {}
        self.events: dict[str, queue.Queue[Any]] = {}
        self.watched: list[tuple[str, Mapping[str, str]]] = []
        self.sent: list[tuple[str, str, Any]] = []
        self.answers: dict[tuple[str, str], Callable[[Any], Json]] = {}
        self.down = False

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        if self.down:
            raise NoAnswer(f"{method} {path}: refused")
        if method != "GET":
            self.sent.append((method, path, body))
        if (method, path) in self.answers:
            return self.answers[(method, path)](body)
        if path in self.objects:
            return {"metadata": {"resourceVersion": "100"}, "items": list(self.objects[path])}
        raise ApiError(404, {"reason": "NotFound", "message": f"{path} not found"})

    def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Iterator[Json]:
        self.watched.append((path, query))
        feed = self.events.setdefault(path, queue.Queue())
        while True:
            event = feed.get()
            if event == END:
                return
            if event == CUT:
                raise NoAnswer(f"watch {path}: cut")
            if isinstance(event, Exception):
                raise event
            yield event

    def feed(self, path: str, *events: Any) -> None:
        for event in events:
            self.events.setdefault(path, queue.Queue()).put(event)


def item(name: str, version: int, value: int = 0) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


def event(kind: str, name: str, version: int, value: int = 0) -> Json:
    return {"type": kind, "object": item(name, version, value)}


def eventually(what: str, check: Callable[[], Any], timeout_s: float = 5) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while not (result := check()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}; last seen {result!r}"
        time.sleep(0.005)
    return result
