"""Where a call breaks, as seen from its effect, and that a seed breaks the same calls again."""

from __future__ import annotations

import random

import pytest

from bridge.model.errors import CallFailed, Conflict, Unreadable
from bridge.model.ownership import Mark
from bridge.simulation.clock import SimulatedClock
from bridge.simulation.faults import SURVIVABLE, Crash, Faults, When, faulty
from bridge.simulation.world import World

MARK = Mark("lease0001", 1, 7)


@pytest.fixture
def world() -> World:
    return World(seed=1, exact=True)


def drained(world: World) -> set[str]:
    return {node.name for node in world.nodes if "DRAIN" in world.slurm.node(node.slurm_name).states}


@pytest.mark.parametrize(
    ("when", "at_once", "later"),
    [
        (When.BEFORE, set(), set()),
        (When.PARTWAY, {"gpu-1"}, {"gpu-1"}),
        (When.AFTER, {"gpu-1", "gpu-2"}, {"gpu-1", "gpu-2"}),
        (When.LATE, set(), {"gpu-1", "gpu-2"}),
    ],
)
def test_the_caller_of_a_broken_write_cannot_tell_what_happened(
    world: World, when: When, at_once: set[str], later: set[str]
) -> None:
    world.faults.fail_next("drain", when=when, delay_s=3)
    with pytest.raises(CallFailed, match=r"slurm\.drain: no answer in time"):
        world.slurm.drain(["gpu-1", "gpu-2"], MARK, "x")
    assert drained(world) == at_once
    world.clock.advance(4)
    assert drained(world) == later


@pytest.mark.parametrize(("when", "effect"), [("crash_before", set()), ("crash_after", {"gpu-1"})])
def test_a_crash_is_no_error_that_a_broker_could_catch(world: World, when: str, effect: set[str]) -> None:
    world.faults.fail_next("slurm.drain", when=when)
    with pytest.raises(Crash):
        world.slurm.drain(["gpu-1"], MARK, "x")
    assert drained(world) == effect
    assert not issubclass(Crash, Exception)


def test_a_broken_read_tells_nothing_however_it_broke(world: World) -> None:
    for when in SURVIVABLE:
        world.faults.fail_next("slurm.observe", when=when)
        with pytest.raises(Unreadable):
            world.slurm.observe()
    assert world.slurm.observe().nodes


def test_fail_next_breaks_that_many_calls_and_no_other(world: World) -> None:
    world.faults.fail_next("kube.observe", times=2)
    world.slurm.observe()
    for _ in range(2):
        with pytest.raises(Unreadable):
            world.kube.observe()
    assert world.kube.observe().nodes
    assert [injected.call for injected in world.faults.journal] == ["kube.observe", "kube.observe"]


def test_a_service_is_away_until_it_is_back(world: World) -> None:
    world.faults.away("slurm.")
    with pytest.raises(Unreadable):
        world.slurm.observe()
    with pytest.raises(CallFailed):
        world.slurm.hold(["gpu-1"], "bridge-shared")
    assert world.kube.observe().nodes
    world.faults.back("slurm.")
    assert world.slurm.observe().held == frozenset()


def test_the_nth_call_of_a_story_can_be_broken(world: World) -> None:
    world.faults.fail_number(2, when="crash_after")
    world.slurm.observe()
    world.slurm.hold(["gpu-1"], "bridge-shared")
    with pytest.raises(Crash):
        world.slurm.drain(["gpu-1"], MARK, "x")
    assert world.faults.calls == ["slurm.observe", "slurm.hold", "slurm.drain"]


def test_a_late_call_that_is_refused_then_is_told_to_nobody(world: World) -> None:
    world.faults.fail_next("drain", when="late", delay_s=1)
    with pytest.raises(CallFailed):
        world.slurm.drain(["gpu-1"], MARK, "x")
    world.slurm.restart_controller(away_s=10)
    world.clock.advance(2)
    assert drained(world) == set()


def test_chaos_is_a_function_of_its_seed() -> None:
    def story(seed: int) -> list[tuple[int, str]]:
        world = World(seed=1, exact=True)
        world.faults.chaos(random.Random(seed), rate=0.3)
        for _ in range(100):
            try:
                world.slurm.observe()
            except Unreadable:
                continue
        return [(injected.number, injected.when) for injected in world.faults.journal]

    assert story(5) == story(5)
    assert story(5) != story(6)
    assert 10 < len(story(5)) < 50


def test_calm_ends_all_that_was_planned(world: World) -> None:
    world.faults.fail_next("observe", times=5)
    world.faults.away("slurm.")
    world.faults.chaos(random.Random(1), rate=1.0)
    world.faults.calm()
    assert world.slurm.observe().nodes


class _Shelf:
    """A port of any kind: one write with an answer, one read, one attribute."""

    height = 3

    def __init__(self) -> None:
        self.books: list[str] = []

    def put(self, book: str) -> int:
        if book in self.books:
            raise Conflict(book)
        self.books.append(book)
        return len(self.books)

    def look(self) -> list[str]:
        return list(self.books)


def test_any_port_can_be_made_faulty() -> None:
    faults, shelf = Faults(SimulatedClock()), _Shelf()
    broken = faulty(shelf, "shelf", faults, reads={"look"})
    assert (broken.put("a"), broken.look(), broken.height) == (1, ["a"], 3)
    faults.fail_next("put", when="after")
    with pytest.raises(CallFailed):
        broken.put("b")
    assert shelf.books == ["a", "b"]
    faults.fail_next("shelf.look")
    with pytest.raises(Unreadable):
        broken.look()
    with pytest.raises(Conflict):
        broken.put("b")
