"""The cheapest victims, worked out by hand. A work is written ``key: loss @ nodes``."""

from __future__ import annotations

import pytest

from bridge.model.demand import Work
from bridge.model.ownership import Side
from bridge.planning.victims import Limits, cheapest


def work(text: str, **more: object) -> Work:
    """``"a: 5 @ n1 n2"`` is work a on two nodes that would lose 5 GPU-seconds."""
    key, _, rest = text.partition(": ")
    loss, _, nodes = rest.partition(" @ ")
    fields: dict[str, object] = {"gpus": 8, "priority": 0, "rank": 0, "runs_for_s": 60.0, "team": "ml"}
    names = tuple(nodes.split())
    return Work(key=key, side=Side.SLURM, nodes=names, ends_in_s=None, loss_gpu_s=float(loss), **{**fields, **more})  # type: ignore[arg-type]


def ended(works: list[str | Work], count: int, *, most: int = 99, spare: dict[str, float] | None = None) -> str | None:
    all_works = [each if isinstance(each, Work) else work(each) for each in works]
    nodes = sorted({name for each in all_works for name in each.nodes})
    gpus_of = dict.fromkeys(nodes, 8)
    choice = cheapest(all_works, nodes, count, Limits(most, spare or {}, gpus_of))
    return None if choice is None else " ".join(sorted(each.key for each in choice.works))


@pytest.mark.parametrize(
    ("works", "count", "expected"),
    [
        (["a: 5 @ n1", "b: 3 @ n2", "c: 4 @ n3"], 1, "b"),
        (["a: 5 @ n1", "b: 3 @ n2", "c: 4 @ n3"], 2, "b c"),
        # a gang is charged once: 7 for three nodes beats 5 + 3 for two
        (["a: 5 @ n1", "b: 3 @ n2", "g: 7 @ n3 n4 n5"], 2, "g"),
        (["a: 5 @ n1", "b: 3 @ n2", "g: 9 @ n3 n4 n5"], 2, "a b"),
        # the cheapest for a node is not the cheapest set: g costs 2 a node, but 3 nodes are one too many
        (["a: 3 @ n1", "g: 6 @ n2 n3 n4", "h: 2.5 @ n5"], 2, "a h"),
        # everything on a node must end: 1 + 1 + 1 on n1 against 2.5 on n2
        (["a: 1 @ n1", "b: 1 @ n1", "c: 1 @ n1", "d: 2.5 @ n2"], 1, "d"),
        (["a: 1 @ n1", "b: 1 @ n1", "d: 2.5 @ n2"], 1, "a b"),
        # a gang that shares a node with others frees the other one alone
        (["g: 4 @ n1 n2", "a: 9 @ n2", "b: 5 @ n3"], 1, "g"),
        (["g: 4 @ n1 n2", "a: 1 @ n2", "b: 9 @ n3"], 2, "a g"),
        # what loses nothing is still not ended without need
        (["a: 0 @ n1", "b: 0 @ n2"], 1, "a"),
        # more than there is
        (["a: 5 @ n1"], 2, None),
        (["a: 5 @ n1"], 0, None),
        ([], 1, None),
    ],
)
def test_the_cheapest_set(works: list[str | Work], count: int, expected: str | None) -> None:
    assert ended(works, count) == expected


def test_a_protected_work_keeps_its_nodes() -> None:
    works = [work("a: 1 @ n1", protected="not requeueable"), work("b: 2 @ n1"), work("c: 9 @ n2")]
    assert ended([*works], 1) == "c"
    assert ended([*works], 2) is None


def test_a_gang_with_a_protected_neighbour_still_frees_its_other_node() -> None:
    works = [work("p: 1 @ n1", protected="its account is never a victim"), work("g: 2 @ n1 n2"), work("c: 9 @ n3")]
    assert ended([*works], 1) == "g"


def test_a_higher_rank_is_ended_only_if_the_lower_ones_cannot_free_the_nodes() -> None:
    works = [work("low: 100 @ n1"), work("high: 1 @ n2", rank=5)]
    assert ended([*works], 1) == "low"
    assert ended([*works], 2) == "high low"


def test_of_equal_losses_the_lower_priority_then_the_shorter_run_goes() -> None:
    assert ended([work("a: 5 @ n1", priority=9), work("b: 5 @ n2", priority=1)], 1) == "b"
    assert ended([work("a: 5 @ n1", runs_for_s=9.0), work("b: 5 @ n2", runs_for_s=1.0)], 1) == "b"


def test_no_more_victims_than_allowed_even_if_more_would_be_cheaper() -> None:
    works: list[str | Work] = ["a: 1 @ n1", "b: 1 @ n2", "g: 9 @ n3 n4"]
    assert ended(works, 2) == "a b"
    assert ended(works, 2, most=1) == "g"
    assert ended(works, 3, most=1) is None


def test_no_team_loses_more_than_it_has_to_spare() -> None:
    works = [work("a: 1 @ n1", team="poor"), work("b: 1 @ n2", team="poor"), work("c: 9 @ n3", team="rich")]
    assert ended([*works], 2, spare={"poor": 2}) == "a b"
    assert ended([*works], 2, spare={"poor": 1}) == "a c"
    assert ended([*works], 2, spare={"poor": 0.5}) is None


def test_parts_of_nodes_count_as_parts() -> None:
    works = [work("a: 1 @ n1", gpus=2), work("b: 1 @ n1", gpus=2), work("c: 9 @ n2", team="rich")]
    assert ended([*works], 1, spare={"ml": 0.5}) == "a b"
    assert ended([*works], 1, spare={"ml": 0.4}) == "c"
