"""When the circuit breaker trips and when it ends, in pools of ten nodes unless a case says otherwise."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from bridge.lifecycle.facts import SideFacts
from bridge.model.handoff import ADOPTER, Step
from bridge.model.ledger import Ended, Request
from bridge.model.ownership import Side
from bridge.model.pause import Pause, PauseKind, Reach, Scope
from bridge.model.policy import PoolPolicy
from bridge.planning.breaker import judge
from bridge.planning.orders import judge_order
from bridge.planning.planner import PLANNER, plan
from bridge.planning.snapshot import Move, Place
from tests.unit.test_planner import NOW, fleet, place, policy, serving
from tests.unit.test_recall import RECALL

SCOPE = Scope(Reach.POOL, "shared")
TRIPPED = Pause(SCOPE, "why", "breaker", NOW - timedelta(seconds=100), PauseKind.BREAKER)


def ago(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def pool(**breaker: object) -> PoolPolicy:
    return policy(breaker=breaker).pools[0]


def places(words: str) -> tuple[Place, ...]:
    return tuple(place(number, word) for number, word in enumerate(words, 1))


def ended(
    count: int,
    *,
    ago_s: float = 60,
    late_in: Step | None = Step.OPEN,
    by: str = PLANNER,
    node: str = "n1",
    lease: str | None = None,
    began_ago_s: float = 5000,
) -> tuple[Ended, ...]:
    """Each of a lease of its own, unless `lease` is given."""
    return tuple(
        Ended(node, lease or f"lease{number:04}", by, NOW - ago(began_ago_s), NOW - ago(ago_s), late_in)
        for number in range(count)
    )


def reason(*past: Ended, words: str = "SSSSSSSSSS", before: Pause | None = None, **breaker: object) -> str:
    found = judge(pool(**breaker), places(words), past, before, NOW)
    return "" if found is None or found == before else found.reason


class TestEndings:
    def test_eleven_bad_leases_trip_it_and_ten_do_not(self) -> None:
        assert reason(*ended(10)) == ""
        assert reason(*ended(11)) == "11 leases ended badly within 600 s, at most 10; late in: open 11"

    def test_the_steps_are_told(self) -> None:
        eight = ended(8, late_in=Step.CLEAN)
        more = tuple(replace(each, lease=f"other{n}") for n, each in enumerate(ended(3, late_in=Step.PROVE)))
        assert reason(*eight, *more).endswith("; late in: clean 8, prove 3")

    @pytest.mark.parametrize(
        "past",
        [
            ended(50, lease="lease0001"),
            ended(50, late_in=None),
            ended(50, ago_s=601),
            ended(50, ago_s=-5),
            ended(50, by=ADOPTER),
            ended(50, node="elsewhere"),
        ],
        ids=["one gang", "well, or taken back", "before the window", "in the future", "adoption", "another pool"],
    )
    def test_what_does_not_count(self, past: tuple[Ended, ...]) -> None:
        assert reason(*past) == ""

    def test_those_of_people_count(self) -> None:
        assert reason(*ended(11, by="oncall"))


class TestNodesOut:
    @pytest.mark.parametrize(
        ("words", "trips"),
        [
            ("a" * 9 + "S" * 21, False),  # 9 of 30 are 30 %
            ("a" * 10 + "S" * 20, True),
            ("a" * 7 + "S", False),  # fewer than 8
            ("a" * 8 + "S", True),
            ("?" * 8 + "S", True),
            ("?" * 9, False),  # Slurm shows nothing at all
            ("?" * 9 + "K" * 9, False),
            ("?" * 9 + "a" * 1 + "K" * 9, True),
            (">" * 20, False),  # in motion
        ],
    )
    def test_more_than_three_in_ten_and_eight_at_least(self, words: str, trips: bool) -> None:
        assert bool(reason(words=words)) is trips

    def test_the_numbers_are_told(self) -> None:
        assert reason(words="a" * 10 + "S" * 10) == (
            "10 nodes of 20 are drained by people, quarantined, down or UNKNOWN, at most 30%"
        )

    def test_it_can_be_told_never_to_mind(self) -> None:
        assert reason(words="a" * 20, max_out_fraction=1) == ""


class TestMoves:
    def test_more_than_two_hundred_and_more_than_nodes(self) -> None:
        quick = ended(201, late_in=None, began_ago_s=70)
        assert reason(*quick) == "the policy began 201 moves within 600 s, at most 200"
        assert reason(*quick[1:]) == ""
        assert reason(*quick, words="S" * 201) == ""
        assert reason(*ended(300, late_in=None, began_ago_s=70, by="oncall")) == ""
        assert reason(*ended(300, late_in=None, began_ago_s=601)) == ""

    def test_those_that_run_count(self) -> None:
        running = [
            replace(each, handoff=replace(each.handoff, requested_by=PLANNER, began_at=NOW))
            for each in places(">>>")
            if each.handoff
        ]
        past = ended(2, late_in=None, began_ago_s=70)
        assert judge(pool(max_moves=4), (*running, *places("SS")[:1]), past, None, NOW) is not None
        assert judge(pool(max_moves=5), (*running, *places("SS")[:1]), past, None, NOW) is None


class TestEnding:
    def test_by_itself_after_the_cool_down_without_trouble(self) -> None:
        calm = judge(pool(), places("SS"), (), TRIPPED, NOW)
        assert calm == replace(TRIPPED, calm_since=NOW)
        assert judge(pool(), places("SS"), (), calm, NOW + ago(599)) == calm
        assert judge(pool(), places("SS"), (), calm, NOW + ago(600)) is None

    def test_trouble_begins_the_cool_down_anew(self) -> None:
        calm = replace(TRIPPED, calm_since=NOW - ago(500))
        assert judge(pool(), places("a" * 9), (), calm, NOW) == TRIPPED
        assert judge(pool(), places("SS"), ended(11), replace(calm), NOW) is not None

    def test_a_clock_set_back_makes_it_no_longer(self) -> None:
        calm = replace(TRIPPED, calm_since=NOW + ago(86_400))
        assert judge(pool(), places("SS"), (), calm, NOW) == replace(TRIPPED, calm_since=NOW)

    def test_after_a_persons_word_only_later_endings_and_moves_count(self) -> None:
        released = replace(TRIPPED, released_at=NOW - ago(60))
        before = (*ended(50, ago_s=61), *ended(250, ago_s=61, began_ago_s=61))
        assert judge(pool(), places("SS"), before, released, NOW) == released
        again = judge(pool(), places("SS"), ended(11, ago_s=59), released, NOW)
        assert again is not None
        assert (again.at, again.released_at) == (NOW, None)

    def test_after_a_persons_word_nodes_are_not_judged_before_they_were_fewer(self) -> None:
        released = replace(TRIPPED, released_at=NOW - ago(6000))
        assert judge(pool(), places("a" * 9), (), released, NOW) == released
        assert judge(pool(), places("S" * 9), (), released, NOW) is None

    def test_the_persons_word_is_kept_for_a_window(self) -> None:
        released = replace(TRIPPED, released_at=NOW - ago(599))
        assert judge(pool(), places("S"), (), released, NOW) == released
        assert judge(pool(), places("S"), (), released, NOW + ago(1)) is None


class TestWhatIsStopped:
    def test_the_policys_own_moves_are_floors_too(self) -> None:
        snapshot = fleet("SSSS", serving(1), pauses=(TRIPPED,))
        planned = plan(snapshot, policy(kubernetes={"floor_nodes": 1}), NOW)
        assert planned.moves == ()
        assert [why.reason for why in planned.whys] == ["paused: pool shared: circuit breaker: why"]

    def test_orders_and_recalls_are_not(self) -> None:
        order = Request("r1", ("n1",), Side.KUBERNETES, "ada", "x", NOW)
        assert isinstance(judge_order(order, fleet("SK", pauses=(TRIPPED,)), policy(), NOW), Move)
        assert len(plan(fleet("SK", pauses=(TRIPPED, RECALL)), policy(), NOW).moves) == 1


def test_unknown_facts_are_what_the_cases_say() -> None:
    """Or those of nodes that are UNKNOWN would prove nothing."""
    assert place(1, "?").sight.slurm == SideFacts(unknown="slurmctld does not list it")
