"""The work queue on a clock of its own."""

from __future__ import annotations

import threading

import pytest

from bridge.node_controller.queue import KeyQueue


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> KeyQueue:
    return KeyQueue(clock)


def taken(queue: KeyQueue) -> list[str]:
    """All keys that are due now, each left with its worker."""
    return [key for key in iter(lambda: queue.take() if queue.depth() else None, None) if key]


def test_a_key_stands_in_line_once(queue: KeyQueue) -> None:
    queue.add("a")
    queue.add("b")
    queue.add("a")
    assert taken(queue) == ["a", "b"]


def test_the_earliest_of_several_times_counts(queue: KeyQueue, clock: Clock) -> None:
    queue.add("a", after_s=5)
    queue.add("a", after_s=2)
    queue.add("a", after_s=9)
    clock.now_s += 1.9
    assert taken(queue) == []
    clock.now_s += 0.2
    assert taken(queue) == ["a"]
    queue.done("a")
    clock.now_s += 10
    assert taken(queue) == []


def test_a_key_that_rings_while_it_is_worked_on_comes_again_and_not_twice_at_once(queue: KeyQueue) -> None:
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    queue.add("b")
    assert queue.take() == "b"
    queue.done("a")
    assert queue.take() == "a"


def test_a_waiting_worker_wakes_for_a_new_key_and_for_the_end(queue: KeyQueue) -> None:
    got: list[str | None] = []

    def work() -> None:
        while got[-1:] != [None]:
            got.append(key := queue.take())
            if key:
                queue.done(key)

    worker = threading.Thread(target=work)
    worker.start()
    queue.add("a")
    queue.close()
    worker.join(5)
    assert not worker.is_alive()
    assert got in (["a", None], [None])


def test_work_that_goes_on_for_too_long_shows(queue: KeyQueue, clock: Clock) -> None:
    assert queue.longest_s() == 0
    queue.add("a")
    queue.add("later", after_s=1000)
    clock.now_s += 3
    assert queue.longest_s() == 3
    queue.take()
    clock.now_s += 2
    assert queue.longest_s() == 2
    queue.done("a")
    assert queue.longest_s() == 0
