"""A live view: what it keeps, what it reports, and how it knows its own age."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.kube.connection import ApiError, Json
from bridge.kube.view import View
from tests.unit.kube_api import CUT, END, FakeApi, event, eventually, item

PATH = "/things"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A view of `FakeApi`'s things by their value, with all that it reported."""

    def __init__(self, **options: Any) -> None:
        self.api = FakeApi()
        self.api.objects[PATH] = [item("a", 1, value=1), item("b", 2, value=2)]
        self.clock = Clock()
        self.reported: list[tuple[str, int | None, int | None]] = []

        def translate(body: Json) -> int | None:
            return int(body["value"]) or None

        self.view = View(
            self.api,
            PATH,
            translate,
            monotonic_s=self.clock,
            on_change=lambda key, before, after: self.reported.append((key, before, after)),
            **options,
        )

    def start(self) -> None:
        self.view.start()
        eventually("a watch", lambda: self.api.watched)

    def end(self) -> None:
        self.view.close()
        self.api.feed(PATH, END)
        name = f"view {PATH}"
        eventually("its thread has ended", lambda: name not in {thread.name for thread in threading.enumerate()})

    def watches(self) -> int:
        return len(self.api.watched)


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.end()


def test_nothing_is_known_before_the_first_list(watched: Watched) -> None:
    assert watched.view.age_s() == float("inf")
    watched.api.down = True
    watched.view.start()
    eventually("a problem", lambda: "refused" in watched.view.problem)
    assert watched.view.age_s() == float("inf")


def test_a_list_fills_it_and_a_watch_resumes_from_there(watched: Watched) -> None:
    watched.start()
    assert watched.view.items() == {"a": 1, "b": 2}
    assert sorted(watched.reported) == [("a", None, 1), ("b", None, 2)]
    assert watched.api.watched[0][1]["resourceVersion"] == "100"


def test_events_change_it_and_only_changes_of_what_is_kept_are_reported(watched: Watched) -> None:
    watched.start()
    watched.reported.clear()
    watched.api.feed(
        PATH,
        event("MODIFIED", "a", 101, value=1),
        event("MODIFIED", "a", 102, value=5),
        event("ADDED", "c", 103, value=3),
        event("MODIFIED", "c", 104, value=0),
        event("DELETED", "b", 105, value=2),
        event("BOOKMARK", "", 110),
        END,
    )
    eventually("the next watch", lambda: watched.watches() == 2)
    assert watched.view.items() == {"a": 5}
    assert watched.reported == [("a", 1, 5), ("c", None, 3), ("c", 3, None), ("b", 2, None)]
    assert watched.api.watched[1][1]["resourceVersion"] == "110"


def test_a_watch_that_ends_in_good_order_proves_that_nothing_was_missed(watched: Watched) -> None:
    watched.start()
    watched.clock.now_s += 4
    assert watched.view.age_s() == 4
    watched.api.feed(PATH, END)
    eventually("the next watch", lambda: watched.watches() == 2)
    assert watched.view.age_s() == 0


def test_a_watch_that_is_cut_proves_nothing(watched: Watched) -> None:
    watched.start()
    watched.clock.now_s += 4
    watched.api.feed(PATH, CUT)
    eventually("the next watch", lambda: watched.watches() == 2)
    assert watched.view.age_s() == 4
    assert "cut" in watched.view.problem
    watched.api.feed(PATH, event("ADDED", "c", 101, value=3))
    eventually("the event", lambda: "c" in watched.view.items())
    assert (watched.view.age_s(), watched.view.problem) == (0, "")


def test_a_version_that_is_gone_is_listed_anew_and_losses_are_found(watched: Watched) -> None:
    watched.start()
    watched.reported.clear()
    watched.api.objects[PATH] = [item("a", 1, value=1), item("d", 2, value=4)]
    watched.api.feed(PATH, ApiError(410, {"reason": "Expired"}))
    eventually("the next watch", lambda: watched.watches() == 2)
    assert watched.view.items() == {"a": 1, "d": 4}
    assert sorted(watched.reported, key=str) == [("b", 2, None), ("d", None, 4)]


def test_once_in_a_while_everything_is_listed_anew() -> None:
    watched = Watched(relist_s=60)
    watched.start()
    watched.api.objects[PATH] = [item("a", 1, value=9)]
    watched.clock.now_s += 61
    watched.api.feed(PATH, END)
    eventually("the list", lambda: watched.view.items() == {"a": 9})
    watched.end()


def test_a_list_is_as_old_as_its_question(watched: Watched) -> None:
    """What changed while the answer was on its way may be missing from it."""
    watched.api.answers[("GET", PATH)] = lambda _body: (
        setattr(watched.clock, "now_s", watched.clock.now_s + 3)
        or {"metadata": {"resourceVersion": "100"}, "items": []}
    )
    watched.start()
    assert watched.view.age_s() == 3


def test_a_long_list_comes_in_pages_and_counts_only_whole(watched: Watched) -> None:
    pages = iter(
        [
            {"metadata": {"resourceVersion": "100", "continue": "more"}, "items": [item("a", 1, value=1)]},
            {"metadata": {"resourceVersion": "100"}, "items": [item("b", 1, value=2)]},
        ]
    )
    watched.api.answers[("GET", PATH)] = lambda _body: next(pages)
    watched.start()
    assert watched.view.items() == {"a": 1, "b": 2}


def test_nothing_is_reported_after_the_end(watched: Watched) -> None:
    watched.start()
    watched.reported.clear()
    watched.view.close()
    watched.api.feed(PATH, event("ADDED", "c", 101, value=3))
    watched.end()
    assert watched.reported == []
