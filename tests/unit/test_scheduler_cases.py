"""What other schedulers were once reported to get wrong, as fleets that can be worked out by hand.

Each class is one kind of report, as gang schedulers of both worlds have met it, told in the bridge's words. Fleets are
words as in `test_planner`: ``S`` and ``K`` idle, ``s`` and ``k`` busy, ``<`` and ``>`` in motion. With equal
weights and no floors, each side's fair share is half of the nodes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from bridge.model.demand import Demand, Work
from bridge.model.ledger import Preempted
from bridge.model.ownership import Side
from bridge.model.policy import Policy
from bridge.planning.entitlement import team_standings
from bridge.planning.planner import plan
from bridge.planning.snapshot import Place, Plan, Snapshot
from tests.unit.test_planner import NOW, fleet, gang, moved, place, policy, serving
from tests.unit.test_planner_rules import job, pod, requeue, victims, why, with_teams


def kube_gang(nodes: int, key: str = "Workload train") -> Demand:
    return replace(serving(nodes), key=key, whole=True)


def ended_by(snapshot: Snapshot, used: Policy) -> list[tuple[tuple[str, ...], list[str]]]:
    """(nodes, victims) of each move."""
    return [(move.nodes, [victim.key for victim in move.victims]) for move in plan(snapshot, used, NOW).moves]


def arrived(snapshot: Snapshot, planned: Plan, *requeued: Demand, word: str) -> Snapshot:
    """The plan carried out: its nodes are those of `word` (``k``, ``S``…), its victims gone or among `requeued`."""
    ended = {victim.key for move in planned.moves for victim in move.victims}
    gone = {name for move in planned.moves for name in move.nodes}
    left = tuple(work for work in snapshot.works if work.key not in ended)
    freed = {name for work in snapshot.works if work.key in ended for name in work.nodes} - gone
    places = []
    for found in snapshot.places:
        if found.name in gone:
            places.append(place(int(found.name[1:]), word))
        elif found.name in freed:
            places.append(place(int(found.name[1:]), "S" if found.lease.owner is Side.SLURM.owner else "K"))
        else:
            places.append(found)
    return replace(snapshot, places=tuple(places), works=left, demands=(*snapshot.demands, *requeued))


class TestAPreemptorThatEndsWithLessThanItTook:
    """Victims were ended, and then the one they were ended for did not fit, or somebody else took their room."""

    PODS = (pod("a", "n1", loss=10), pod("b", "n2", loss=20), pod("c", "n3", loss=30), pod("d", "n4", loss=40))

    def test_a_gang_that_could_have_two_of_its_three_nodes_ends_nobody(self) -> None:
        # fair share of Slurm: 2 of 4
        assert ended_by(fleet("kkkk", gang(3), works=self.PODS), requeue()) == []

    def test_a_gang_for_which_only_one_node_can_be_emptied_ends_nobody(self) -> None:
        guarded = tuple(replace(work, protected="a bare pod") for work in self.PODS[1:])
        assert ended_by(fleet("kkkk", gang(2), works=(self.PODS[0], *guarded)), requeue()) == []

    def test_a_gang_that_needs_more_victims_than_the_window_has_left_ends_nobody(self) -> None:
        one = requeue(preemption={"mode": "requeue", "max_victims_per_window": 1})
        assert ended_by(fleet("kkkk", gang(2), works=self.PODS), one) == []
        assert ended_by(fleet("kkkk", gang(1), works=self.PODS), one) == [(("n1",), ["Pod a"])]

    def test_a_gang_whose_team_may_hold_one_more_node_ends_nobody(self) -> None:
        team = {"name": "vision", "accounts": ["vision"], "guarantee_nodes": 0, "borrow_limit_nodes": 1}
        wanting = replace(gang(2), team="vision")
        assert ended_by(fleet("kkkk", wanting, works=self.PODS), with_teams(requeue(), team)) == []

    def test_a_node_with_two_pods_of_which_one_must_stay_costs_the_other_one_nothing(self) -> None:
        halves = (pod("a", "n1", gpus=4, loss=1), pod("b", "n1", gpus=4, loss=1, protected="no budget left"))
        assert ended_by(fleet("kk", gang(1), works=(*halves, pod("c", "n2", loss=99))), requeue()) == [
            (("n2",), ["Pod c"])
        ]


class TestALenderWhoseOwnDemandBlocksItsBorrowers:
    """The owner of idle nodes has something in its queue that it cannot start on them; they stood idle for it."""

    @pytest.mark.parametrize(
        "own",
        [
            pytest.param(kube_gang(5), id="larger than the pool"),
            pytest.param(replace(kube_gang(2), impossible="asks for 9 GPUs, a node has 8"), id="impossible"),
            pytest.param(replace(kube_gang(2), features=(frozenset({"h200"}),)), id="needs what these nodes lack"),
            pytest.param(replace(kube_gang(2), team="full"), id="over its team's quota"),
            pytest.param(replace(kube_gang(3), since=NOW - timedelta(hours=2)), id="not to be had by its deadline"),
        ],
    )
    def test_idle_nodes_are_lent(self, own: Demand) -> None:
        full = {"name": "full", "namespaces": ["full"], "borrow_limit_nodes": 0}
        snapshot = fleet("ssKK", gang(2), own, works=(job(1, "n1", "n2"),))
        assert moved(snapshot, with_teams(policy(), full)) == {"slurm": ("n3", "n4")}

    def test_those_it_can_start_on_are_not_lent(self) -> None:
        snapshot = fleet("ssKK", gang(2), kube_gang(2), works=(job(1, "n1", "n2"),))
        assert moved(snapshot) == {}

    @pytest.mark.parametrize("own", [kube_gang(9), replace(kube_gang(3), impossible="no such GPU type")])
    def test_a_floor_is_not_kept_for_what_can_never_run(self, own: Demand) -> None:
        """Its floor of 3 is lent as a whole while nobody wants it; who can never run wants nothing."""
        lending = policy(kubernetes={"floor_nodes": 3, "lend_limit_nodes": 3})
        assert moved(fleet("sKKK", gang(3), own), lending) == {"slurm": ("n2", "n3", "n4")}

    def test_the_head_of_a_queue_that_can_never_run_does_not_stop_those_behind_it(self) -> None:
        # the reclaim for `second` must not wait for `first`, which asks for 5 of 4 nodes
        first, second = gang(5, key="first", priority=9), gang(2, key="second")
        pods = (pod("a", "n1"), pod("b", "n2"), pod("c", "n3", loss=1), pod("d", "n4", loss=2))
        snapshot = fleet("kkkk", first, second, works=pods)
        assert ended_by(snapshot, requeue()) == [(("n3", "n4"), ["Pod c", "Pod d"])]
        assert why(snapshot, requeue(), "first") == "needs 5 nodes, the whole pool has 4: it can never run"


class TestTwoQueuesThatReclaimFromEachOtherForEver:
    """Each side, once it was taken from, found itself below its share and took back."""

    def snapshot(self) -> Snapshot:
        works = (job(1, "n1", "n2", loss=100), job(2, "n3", "n4", loss=200), job(3, "n5", loss=500))
        return fleet("sssss", serving(3), works=works)

    def test_of_five_nodes_each_may_reclaim_two_and_the_odd_one_stays(self) -> None:
        # fair share: 2.5 each. Kubernetes is owed int(2.5) = 2; Slurm keeps ceil(2.5) = 3
        first = plan(self.snapshot(), requeue(), NOW)
        assert [(move.nodes, [v.key for v in move.victims]) for move in first.moves] == [
            (("n1",), ["job 1"]),
            (("n2",), ["job 1"]),
        ]
        back = replace(gang(2), key="job 1 again")
        after = arrived(self.snapshot(), first, back, word="k")
        wanting = tuple(replace(d, nodes=1) if d.key == serving(1).key else d for d in after.demands)
        after = replace(after, demands=wanting, works=(*after.works, pod("x", "n1", loss=0), pod("y", "n2", loss=0)))
        assert ended_by(after, requeue()) == [], "neither the third pod nor job 1 is under its share"

    @pytest.mark.parametrize("weights", [(1, 1), (1, 2), (2, 1), (1, 3)])
    @pytest.mark.parametrize("nodes", [3, 4, 5, 6, 7])
    def test_whatever_the_weights_nothing_is_ended_in_the_second_round(
        self, nodes: int, weights: tuple[int, int]
    ) -> None:
        used = requeue(slurm={"weight": weights[0]}, kubernetes={"weight": weights[1]})
        jobs = tuple(job(n, f"n{n}", loss=n) for n in range(1, nodes + 1))
        snapshot = fleet("s" * nodes, serving(nodes), works=jobs)
        first = plan(snapshot, used, NOW)
        taken = sum(len(move.nodes) for move in first.moves)
        assert taken == nodes * weights[1] // sum(weights)
        again = tuple(replace(gang(1), key=f"job {n} again") for n in range(1, taken + 1))
        after = arrived(snapshot, first, *again, word="k")
        pods = tuple(pod(name, name, loss=0) for move in first.moves for name in move.nodes)
        after = replace(after, works=(*after.works, *pods), demands=(serving(nodes - taken), *again))
        assert ended_by(after, used) == []

    def test_whoever_has_nothing_of_its_own_ends_nobody_even_where_the_other_side_wants_less_than_it_has(self) -> None:
        # two idle nodes, which changed hands just now; without a weight Kubernetes' fair share is 0
        snapshot = fleet("ssSS", serving(1), works=(job(1, "n1", loss=0), job(2, "n2", loss=0)))
        young = [replace(p, lease=replace(p.lease, owner_since=_ago(1))) for p in snapshot.places[2:]]
        snapshot = replace(snapshot, places=(*snapshot.places[:2], *young))
        assert victims(snapshot, requeue(kubernetes={"weight": 0})) == []
        assert victims(snapshot, requeue()) == ["job 1"]

    def test_who_was_reclaimed_from_does_not_go_first_for_having_nothing_now(self) -> None:
        """Its team's use of the past week counts, not that it holds nothing since a minute ago."""
        requeued = replace(gang(1, key="job 1 again"), team="ml")
        taker = replace(serving(1), team="web")
        snapshot = fleet("ks", requeued, taker, usage={"ml": 900.0, "web": 100.0})
        spare = replace(snapshot, places=(*snapshot.places, _spare(3)))
        assert [move.demand for move in plan(spare, policy(), NOW).moves] == [taker.key]


def _spare(number: int) -> Place:
    """Nobody's, at rest, closed on both sides."""
    return replace(place(number, ">"), handoff=None)


class TestAVictimSetThatIsLargerThanNeeded:
    """Works were taken cheapest first until there was room; the first ones were not needed any more."""

    def test_the_small_job_taken_first_is_given_back(self) -> None:
        # two nodes: job 2 alone loses 10, jobs 1 and 2 lose 11, jobs 1 and 3 lose 13
        works = (
            job(1, "n1", loss=1),
            job(2, "n2", "n3", loss=10),
            job(3, "n4", loss=12),
            job(4, "n5", "n6", loss=99),
        )
        snapshot = fleet("ssssss", serving(2), works=works)
        assert victims(snapshot, requeue()) == ["job 2"]

    def test_two_small_jobs_go_before_one_large_job_that_loses_more(self) -> None:
        works = (job(1, "n1", loss=4), job(2, "n2", loss=5), job(3, "n3", "n4", loss=10))
        assert victims(fleet("ssss", serving(2), works=works), requeue()) == ["job 1", "job 2"]

    def test_a_large_gang_is_not_ended_for_one_node_if_a_small_job_loses_less_in_all(self) -> None:
        # a node of job 1 loses 3, but ending it loses 9
        works = (job(1, "n1", "n2", "n3", loss=9), job(2, "n4", loss=5))
        assert victims(fleet("ssss", serving(1), works=works), requeue()) == ["job 2"]

    def test_nobody_is_ended_while_idle_nodes_do(self) -> None:
        works = (job(1, "n1", loss=0), job(2, "n2", loss=0))
        assert ended_by(fleet("ssSS", serving(2), works=works), requeue()) == [(("n3",), []), (("n4",), [])]

    def test_with_one_idle_node_only_the_missing_one_is_freed(self) -> None:
        works = (job(1, "n1", loss=7), job(2, "n2", loss=5), job(3, "n3", loss=6))
        assert ended_by(fleet("sssS", serving(2), works=works), requeue()) == [(("n4",), []), (("n2",), ["job 2"])]

    def test_a_node_that_is_on_its_way_already_is_not_freed_once_more(self) -> None:
        works = (job(1, "n1", loss=1), job(2, "n2", loss=2), job(3, "n3", loss=3))
        assert ended_by(fleet("sss>", serving(1), works=works), requeue()) == []


class TestAJobThatIsEvictedTwiceInAMinute:
    """It was requeued, started again at once as the cheapest victim there is, and was ended again."""

    WORKS = (job(1, "n1", loss=0), job(2, "n2", loss=500), job(3, "n3", loss=900), job(4, "n4", loss=900))

    def plan_after(self, seconds: float, *works: Work) -> list[str]:
        past = Preempted("job 1", Side.SLURM, NOW - timedelta(seconds=seconds), 100)
        return victims(fleet("ssss", serving(1), works=works, preempted=(past,)), requeue())

    def test_the_next_cheapest_is_ended_instead(self) -> None:
        assert self.plan_after(60, *self.WORKS) == ["job 2"]

    def test_until_its_respite_of_an_hour_is_over(self) -> None:
        assert self.plan_after(3599, *self.WORKS) == ["job 2"]
        assert self.plan_after(3600, *self.WORKS) == ["job 1"]

    def test_and_nobody_if_it_is_alone(self) -> None:
        assert (
            self.plan_after(60, *(replace(w, protected="an account never to be ended") for w in self.WORKS[1:])) == []
        )
        assert self.plan_after(60, self.WORKS[0]) == []

    def test_not_even_for_a_broken_floor(self) -> None:
        past = Preempted("job 1", Side.SLURM, NOW - timedelta(seconds=60), 100)
        snapshot = fleet("ssss", works=self.WORKS, preempted=(past,))
        assert victims(snapshot, requeue(kubernetes={"floor_nodes": 1})) == ["job 2"]

    def test_a_victim_of_this_pass_is_not_counted_twice(self) -> None:
        """A gang on two nodes that go for two reasons is ended once, and counts once in the window."""
        works = (job(1, "n1", "n2", loss=1), job(2, "n3", "n4", loss=900))
        one = requeue(preemption={"mode": "requeue", "max_victims_per_window": 1})
        assert ended_by(fleet("ssss", serving(2), works=works), one) == [(("n1",), ["job 1"]), (("n2",), ["job 1"])]


class TestAShareOfWhatWasNeverAdmitted:
    """A long queue counted as use or as a claim, so who asked for most stood first, or last, for ever."""

    def test_only_what_runs_is_held_and_only_what_ran_is_used(self) -> None:
        snapshot = fleet(
            "skSS", *(replace(gang(3, key=f"g{n}"), team="big") for n in range(100)), works=(job(1, "n1"),)
        )
        standings = team_standings(policy(), snapshot.works, {"ml": 100.0}, {f"n{n}": 8 for n in range(1, 5)})
        assert standings["ml"].holds_nodes == 1
        assert "big" not in standings

    def test_a_team_with_many_waiting_demands_that_ran_nothing_goes_first(self) -> None:
        asking = [replace(gang(1, key=f"job {n}"), team="big") for n in range(5)]
        snapshot = fleet("ks", *asking, replace(serving(1), team="web"), usage={"web": 100.0})
        spare = replace(snapshot, places=(*snapshot.places, _spare(3)))
        assert [move.demand for move in plan(spare, policy(), NOW).moves] == ["job 0"]

    @pytest.mark.parametrize("winner", ["default/chat", "job 17 of alice"])
    def test_rank_goes_before_what_was_used(self, winner: str) -> None:
        waiting = (replace(gang(1), team="ml"), replace(serving(1), team="web"))
        asking = tuple(replace(demand, rank=int(demand.key == winner)) for demand in waiting)
        for usage in ({"ml": 900.0, "web": 100.0}, {"ml": 100.0, "web": 900.0}):
            snapshot = fleet("ks", *asking, usage=usage)
            spare = replace(snapshot, places=(*snapshot.places, _spare(3)))
            assert [move.demand for move in plan(spare, policy(), NOW).moves] == [winner]

    def test_a_long_queue_makes_the_fair_share_of_its_side_no_larger(self) -> None:
        # 4 nodes, half each: nothing of the two that Slurm runs is ended for 100 waiting pods' nodes
        works = (job(1, "n1"), job(2, "n2"), pod("a", "n3"), pod("b", "n4"))
        assert ended_by(fleet("sskk", serving(100), works=works), requeue()) == []

    def test_what_waits_does_not_count_against_the_quota_of_its_team(self) -> None:
        team = {"name": "chat", "namespaces": ["chat"], "guarantee_nodes": 1, "borrow_limit_nodes": 1}
        asking = tuple(replace(serving(1), key=f"d{n}", team="chat", since=_ago(60 - n)) for n in range(5))
        snapshot = fleet("kSSS", *asking, works=(pod("a", "n1", team="chat"),))
        assert [m.demand for m in plan(snapshot, with_teams(policy(), team), NOW).moves] == ["d0"], (
            "2 less the 1 it holds"
        )

    def test_a_gang_that_can_never_run_claims_no_part_of_the_fleet(self) -> None:
        """Kubernetes wants one node really: what it does not want of its half, Slurm may keep."""
        works = tuple(job(n, f"n{n}", loss=n) for n in range(1, 5))
        never = replace(kube_gang(3), impossible="no such GPU type")
        assert victims(fleet("ssss", serving(1), never, works=works), requeue()) == ["job 1"]


def _ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


class TestTwoGangsThatHoldHalfEach:
    """Two gangs of 48 GPUs on 64: each had some of its nodes, and neither ever started."""

    FIRST = gang(6, key="first", priority=2)
    SECOND = gang(6, key="second", priority=1)

    def test_on_eight_nodes_the_first_gets_six_and_the_second_none(self) -> None:
        snapshot = fleet("KKKKKKKK", self.FIRST, self.SECOND)
        assert [(m.demand, len(m.nodes)) for m in plan(snapshot, policy(), NOW).moves] == [("first", 6)]
        assert "lacks 6 nodes" in why(snapshot, policy(), "second")

    def test_four_that_are_there_count_for_the_first_alone(self) -> None:
        snapshot = fleet("SSSSKKKK", self.FIRST, self.SECOND)
        assert [(m.demand, len(m.nodes)) for m in plan(snapshot, policy(), NOW).moves] == [("first", 2)]

    def test_of_two_schedulers_only_one_collects(self) -> None:
        # six of eight for the job; the Workload would need six of the two that are left
        other = kube_gang(6)
        snapshot = fleet("SSSSSSSS", gang(6, key="first"), other)
        assert moved(snapshot) == {}
        assert "lacks 6 nodes" in why(snapshot, policy(), other.key)

    def test_a_gang_that_cannot_be_had_whole_collects_nothing(self) -> None:
        assert moved(fleet("KKKKKkkk", self.FIRST)) == {}

    def test_nodes_of_a_gang_move_under_one_lease(self) -> None:
        assert len(plan(fleet("KKKKKKKK", self.FIRST), policy(), NOW).moves) == 1


class TestALoneNodeForAGang:
    """Nodes came one by one, and each was taken by a smaller job before the gang was whole."""

    def test_a_gang_waits_until_all_can_be_had(self) -> None:
        assert moved(fleet("Kkkk", gang(2))) == {}
        assert moved(fleet("KKkk", gang(2))) == {"slurm": ("n1", "n2")}

    def test_a_smaller_gang_behind_it_takes_nothing_meanwhile(self) -> None:
        assert moved(fleet("Kkkk", gang(2, key="first", priority=1), gang(1, key="small"))) == {}

    def test_idle_nodes_that_it_waits_with_are_not_lent(self) -> None:
        assert moved(fleet("Skkk", gang(2), serving(1))) == {}


class TestAGangLargerThanWhatCanEverBeLent:
    """It stayed pending for good, and nobody was told."""

    def test_larger_than_the_pool(self) -> None:
        snapshot = fleet("KKKK", gang(5))
        assert moved(snapshot) == {}
        assert "it can never run" in why(snapshot, policy(), gang(5).key)

    def test_larger_than_what_its_team_may_hold(self) -> None:
        team = {"name": "vision", "accounts": ["vision"], "guarantee_nodes": 1, "borrow_limit_nodes": 1}
        wanting, used = replace(gang(3), team="vision"), with_teams(policy(), team)
        snapshot = fleet("KKKK", wanting)
        assert moved(snapshot, used) == {}
        assert why(snapshot, used, wanting.key) == "needs 3 nodes, team vision may hold 2: it can never run"

    def test_larger_than_what_its_side_may_own_is_told_the_limit(self) -> None:
        limited = policy(slurm={"max_nodes": 2})
        snapshot = fleet("KKKK", gang(3))
        assert moved(snapshot, limited) == {}
        assert why(snapshot, limited, gang(3).key) != ""

    def test_larger_than_what_the_other_side_lends_is_told_the_floor(self) -> None:
        kept = policy(kubernetes={"floor_nodes": 2})
        snapshot = fleet("KKKK", gang(3))
        assert moved(snapshot, kept) == {}
        assert "keeps 2 of its floor 2" in why(snapshot, kept, gang(3).key)


class TestDemandThatPassesBeforeTheNodeArrives:
    """The pods were gone when the node came: it was handed over for nobody and went straight back."""

    def test_a_spike_shorter_than_the_demand_age_moves_nothing(self) -> None:
        assert moved(fleet("SSSS", serving(1, waited_s=29)), policy(demand_age_s=30)) == {}
        assert moved(fleet("SSSS", serving(1, waited_s=30)), policy(demand_age_s=30)) == {"kubernetes": ("n1",)}

    def test_a_node_that_came_for_nobody_stays_for_the_minimum_hold(self) -> None:
        just_came = fleet("KSss", gang(2))
        young = replace(just_came.places[0], lease=replace(just_came.places[0].lease, owner_since=_ago(59)))
        snapshot = replace(just_came, places=(young, *just_came.places[1:]))
        assert moved(snapshot, policy(min_hold_s=60)) == {}
        assert moved(snapshot, policy(min_hold_s=59)) == {"slurm": ("n1",)}

    def test_and_longer_while_nobody_else_wants_it(self) -> None:
        assert moved(fleet("KKss")) == {}


class TestPodsThatNoLentNodeCanHelp:
    """Node after node was borrowed for pods that could run on none of them."""

    @pytest.mark.parametrize(
        "asked",
        [
            pytest.param({"gpus_per_node": 9}, id="9 GPUs"),
            pytest.param({"features": (frozenset({"zone=a"}),)}, id="a label that none has"),
            pytest.param({"impossible": "untolerated taint other=yes"}, id="another taint"),
        ],
    )
    def test_nothing_is_borrowed_or_ended_and_they_are_told(self, asked: dict[str, object]) -> None:
        wanting = replace(serving(2), **asked)  # type: ignore[arg-type]
        snapshot = fleet("SSss", wanting, works=(job(1, "n3", loss=0), job(2, "n4", loss=0)))
        assert moved(snapshot, requeue()) == {}
        assert why(snapshot, requeue(), wanting.key) != ""

    def test_others_of_their_queue_are_helped(self) -> None:
        never = replace(serving(2), key="never", priority=9, gpus_per_node=9)
        assert moved(fleet("SSss", never, serving(1))) == {"kubernetes": ("n1",)}
