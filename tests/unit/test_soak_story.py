"""The story of a soak is one of its seed, and breaks things in an order that can be mended."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from bridge.model.policy import Policy
from tests.e2e.testbed import Bridge
from tests.soak.mishaps import addresses
from tests.soak.story import AT_ONCE, CALM_S, EDITS, KIND, KINDS, USUAL, Job, tell

SEEDS = range(1, 31)


def test_a_seed_is_a_story() -> None:
    assert tell(7, 30) == tell(7, 30)
    assert tell(7, 30) != tell(8, 30)


def test_a_shorter_run_of_a_seed_is_the_beginning_of_a_longer_one() -> None:
    short, long = tell(3, 5), tell(3, 30)
    assert [act for act in long.acts if isinstance(act, Job)][:20] == [a for a in short.acts if isinstance(a, Job)][:20]


@pytest.mark.parametrize("seed", SEEDS)
def test_acts_come_in_order_and_end_before_the_calm(seed: int) -> None:
    story = tell(seed, 10)
    assert all(before.at_s <= after.at_s for before, after in pairwise(story.acts))
    assert all(0 < act.at_s < 600 - CALM_S for act in story.acts)
    assert all(mishap.until_s < 600 - CALM_S for mishap in story.mishaps)


@pytest.mark.parametrize("seed", SEEDS)
def test_never_two_mishaps_of_a_family_at_once_and_few_of_any(seed: int) -> None:
    mishaps = tell(seed, 30).mishaps
    together = [(a, b) for a, b in combinations(mishaps, 2) if a.at_s <= b.until_s and b.at_s <= a.until_s]
    assert [(a, b) for a, b in together if a.family == b.family] == []
    for mishap in mishaps:
        assert sum(each.at_s <= mishap.at_s <= each.until_s for each in mishaps) <= AT_ONCE


@pytest.mark.parametrize("seed", SEEDS)
def test_half_an_hour_breaks_everything_at_least_once(seed: int) -> None:
    mishaps = tell(seed, 30).mishaps
    assert {mishap.kind for mishap in mishaps} == {kind.name for kind in KINDS}
    for mishap in mishaps:
        kind = KIND[mishap.kind]
        assert mishap.target in kind.targets
        assert kind.shortest_s <= mishap.lasts_s <= kind.longest_s


def test_both_ends_of_every_cut_have_an_address() -> None:
    ends = {end for kind in KINDS if kind.verb == "cut" for pair in kind.targets for end in pair.split("/")}
    assert ends <= addresses().keys()


@pytest.mark.parametrize("name", EDITS)
def test_every_policy_is_one(name: str) -> None:
    Policy.model_validate(Bridge.policy(**{**USUAL, **EDITS[name]}))
