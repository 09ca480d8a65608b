"""Which nodes of several: by switch, by layout, by how long they are idle. Fleets are words as in `test_planner`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.planning.placement import choose, fewest_switches
from bridge.planning.snapshot import Place
from tests.unit.test_planner import NOW, place


def nodes(switches: str) -> list[Place]:
    """One idle node a letter, under the switch of that letter; ``-`` is under none. ``aab`` is n1 n2 n3."""
    return [
        replace(place(number, "S"), switch="" if letter == "-" else letter)
        for number, letter in enumerate(switches, start=1)
    ]


def chosen(
    candidates: list[Place], count: int, *, whole: str = "", anchored: str = "", together: bool = True, mig: str = ""
) -> str:
    picked = choose(candidates, count, whole=set(whole), anchored=set(anchored), together=together, mig=mig, now=NOW)
    return " ".join(found.name for found in picked)


@pytest.mark.parametrize(
    ("switches", "count", "more", "expected"),
    [
        # the switch that is just large enough
        ("aabbb", 2, {}, "n1 n2"),
        ("aabbb", 3, {}, "n3 n4 n5"),
        # the largest first, then the one just large enough for the rest
        ("abbcccc", 5, {}, "n4 n5 n6 n7 n1"),
        ("abbcccc", 6, {}, "n4 n5 n6 n7 n2 n3"),
        # where the gang has nodes already, however few
        ("abbb", 2, {"anchored": "a"}, "n1 n2"),
        # of two that are just large enough the one that is broken already
        ("aabb", 2, {"whole": "a"}, "n3 n4"),
        # nodes of no known switch are each alone
        ("--a", 1, {}, "n1"),
        ("--aa", 2, {}, "n3 n4"),
        ("---", 2, {}, "n1 n2"),
        ("aab", 9, {}, "n1 n2 n3"),
        ("aab", 0, {}, ""),
    ],
)
def test_a_gang(switches: str, count: int, more: dict[str, str], expected: str) -> None:
    assert chosen(nodes(switches), count, **more) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("switches", "count", "more", "expected"),
    [
        # a block that is broken already goes before a whole one
        ("aab", 1, {"whole": "a"}, "n3"),
        # of whole ones the smallest is broken, and wholly before the next one
        ("aabbb", 1, {"whole": "ab"}, "n1"),
        ("aabbb", 3, {"whole": "ab"}, "n1 n2 n3"),
        # nodes of no switch break nothing
        ("aa-", 1, {}, "n3"),
    ],
)
def test_single_nodes(switches: str, count: int, more: dict[str, str], expected: str) -> None:
    assert chosen(nodes(switches), count, together=False, **more) == expected  # type: ignore[arg-type]


def test_equal_nodes_differ_by_their_layout_then_by_how_long_they_are_idle() -> None:
    one, other = nodes("--")
    longer = replace(other, record=replace(other.record, idle_since=NOW - timedelta(hours=2)))
    assert chosen([one, longer], 1) == "n2"
    fitting = replace(one, mig="all-balanced")
    assert chosen([fitting, longer], 1, mig="all-balanced") == "n1"
    assert chosen([fitting, longer], 1, mig="") == "n2"


@given(st.text("abcd-", min_size=1, max_size=9), st.integers(1, 9), st.randoms())
def test_no_gang_is_under_more_switches_than_it_must_be(switches: str, count: int, random: object) -> None:
    candidates = nodes(switches)
    picked = choose(candidates, count, whole=(), anchored=(), together=True, mig="", now=NOW)

    def used(places: tuple[Place, ...] | list[Place]) -> int:
        return len({place.switch or place.name for place in places})

    assert len(picked) == min(count, len(candidates))
    fewest = min(used(each) for each in combinations(candidates, len(picked)))
    assert used(picked) == fewest
    assert fewest_switches([p.name for p in candidates], len(picked), {p.name: p.switch for p in candidates}) == fewest
    shuffled = list(candidates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose(shuffled, count, whole=(), anchored=(), together=True, mig="", now=NOW) == picked
