"""Every rule beyond idle nodes and floors, each as a case that a scheduler person can work out by hand.

Fleets are words as in `test_planner`; works are put on busy nodes by name. Losses are GPU-seconds.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.demand import Demand, Work
from bridge.model.handoff import Handoff
from bridge.model.ledger import Preempted
from bridge.model.ownership import Side
from bridge.model.policy import Policy
from bridge.planning.planner import plan
from bridge.planning.snapshot import Plan, Snapshot
from tests.unit.test_planner import CLOSED, NOW, fleet, gang, moved, policy, serving


def job(
    number: int, *nodes: str, loss: float = 1000, team: str = "ml", ends_in_s: float | None = None, **more: object
) -> Work:
    fields: dict[str, object] = {"gpus": 8 * len(nodes), "priority": 0, "rank": 0, "runs_for_s": 7200.0, "job": number}
    return Work(
        key=f"job {number}",
        side=Side.SLURM,
        team=team,
        nodes=nodes,
        ends_in_s=ends_in_s,
        loss_gpu_s=loss,
        **{**fields, **more},  # type: ignore[arg-type]
    )


def pod(name: str, node: str, *, loss: float = 1000, team: str = "web", **more: object) -> Work:
    fields: dict[str, object] = {"gpus": 8, "priority": 0, "rank": 0, "runs_for_s": 7200.0}
    return Work(
        key=f"Pod {name}",
        side=Side.KUBERNETES,
        team=team,
        nodes=(node,),
        ends_in_s=None,
        loss_gpu_s=loss,
        **{**fields, **more},  # type: ignore[arg-type]
    )


def requeue(**pool: object) -> Policy:
    return policy(**{"preemption": {"mode": "requeue"}, **pool})


def with_teams(used: Policy, *teams: dict[str, object]) -> Policy:
    return Policy.model_validate({**used.model_dump(by_alias=True), "teams": teams})


def planned(snapshot: Snapshot, used: Policy) -> Plan:
    return plan(snapshot, used, NOW)


def victims(snapshot: Snapshot, used: Policy) -> list[str]:
    return sorted({victim.key for move in planned(snapshot, used).moves for victim in move.victims})


def why(snapshot: Snapshot, used: Policy, subject: str) -> str:
    return "; ".join(found.reason for found in planned(snapshot, used).whys if found.subject == subject)


class TestVictims:
    """Four nodes, equal weights: each side's fair share is two."""

    BUSY = "ssss"

    def snapshot(self, *works: Work, demands: tuple[Demand, ...] = (serving(1),), **more: object) -> Snapshot:
        return fleet(self.BUSY, *demands, works=works, **more)

    def works(self) -> tuple[Work, ...]:
        return (job(1, "n1", loss=500), job(2, "n2", loss=100), job(3, "n3", "n4", loss=150))

    def test_the_cheapest_job_is_requeued_for_a_side_under_its_fair_share(self) -> None:
        snapshot = self.snapshot(*self.works())
        assert moved(snapshot, requeue()) == {"kubernetes": ("n2",)}
        assert victims(snapshot, requeue()) == ["job 2"]

    def test_a_gang_is_charged_once_and_beats_two_single_jobs(self) -> None:
        snapshot = self.snapshot(*self.works(), demands=(serving(2),))
        assert moved(snapshot, requeue()) == {"kubernetes": ("n3",), "kubernetes'": ("n4",)}
        assert victims(snapshot, requeue()) == ["job 3"]

    @pytest.mark.parametrize("mode", ["none", "idle_only"])
    def test_nothing_is_ended_unless_the_policy_says_so(self, mode: str) -> None:
        assert moved(self.snapshot(*self.works()), policy(preemption={"mode": mode})) == {}

    def test_nobody_reclaims_beyond_their_fair_share(self) -> None:
        snapshot = fleet("sskk", serving(1), works=(job(1, "n1"), job(2, "n2"), pod("a", "n3"), pod("b", "n4")))
        assert moved(snapshot, requeue()) == {}

    def test_a_borrower_with_nothing_of_its_own_reclaims_nothing(self) -> None:
        assert moved(self.snapshot(*self.works()), requeue(kubernetes={"weight": 0})) == {}

    def test_a_protected_job_is_spared_and_another_one_ended(self) -> None:
        works = (job(1, "n1", loss=500), job(2, "n2", loss=100, protected="its account is never a victim"))
        assert victims(self.snapshot(*works), requeue()) == ["job 1"]

    def test_what_was_a_victim_lately_is_spared(self) -> None:
        lately = Preempted("job 2", Side.SLURM, NOW - timedelta(minutes=59), 100)
        works = (job(1, "n1", loss=500), job(2, "n2", loss=100))
        assert victims(self.snapshot(*works, preempted=(lately,)), requeue()) == ["job 1"]
        long_ago = replace(lately, at=NOW - timedelta(minutes=60))
        assert victims(self.snapshot(*works, preempted=(long_ago,)), requeue()) == ["job 2"]

    def test_no_more_victims_than_the_window_allows(self) -> None:
        limited = requeue(preemption={"mode": "requeue", "max_victims_per_window": 1, "window_s": 600})
        others = (Preempted("job 9", Side.SLURM, NOW - timedelta(seconds=599), 1),)
        assert moved(self.snapshot(*self.works(), preempted=others), limited) == {}
        others = (replace(others[0], at=NOW - timedelta(seconds=600)),)
        assert victims(self.snapshot(*self.works(), preempted=others), limited) == ["job 2"]

    def test_no_team_falls_below_its_guarantee(self) -> None:
        works = (job(1, "n1", loss=500, team="vision"), job(2, "n2", loss=100, team="ml"))
        used = with_teams(requeue(), {"name": "ml", "accounts": ["ml"], "guarantee_nodes": 1})
        assert victims(self.snapshot(*works), used) == ["job 1"]

    def test_a_team_under_its_guarantee_reclaims_beyond_the_fair_share_of_its_side_but_not_below_a_floor(self) -> None:
        works = (job(1, "n1"), job(2, "n2"), pod("a", "n3"), pod("b", "n4"))
        wanting = replace(serving(1), team="chat")
        snapshot = fleet("sskk", wanting, works=works)
        guaranteed = {"name": "chat", "namespaces": ["chat"], "guarantee_nodes": 1}
        assert victims(snapshot, with_teams(requeue(), guaranteed)) == ["job 1"]
        assert victims(snapshot, with_teams(requeue(slurm={"floor_nodes": 2}), guaranteed)) == []

    def test_a_gang_of_slurm_takes_the_nodes_of_serving_pods_whole_or_not_at_all(self) -> None:
        pods = (pod("a", "n1", loss=10), pod("b", "n2", loss=20), pod("c", "n3", loss=30), pod("d", "n4", loss=40))
        assert moved(fleet("kkkk", gang(2), works=pods), requeue()) == {"slurm": ("n1", "n2")}
        assert moved(fleet("kkkk", gang(3), works=pods), requeue()) == {}, "its fair share is 2"

    def test_a_broken_floor_ends_the_cheapest_works_too(self) -> None:
        snapshot = self.snapshot(*self.works(), demands=())
        assert moved(snapshot, requeue(kubernetes={"floor_nodes": 1})) == {"kubernetes": ("n2",)}

    def test_a_victim_is_asked_as_the_policy_says(self) -> None:
        used = requeue(preemption={"mode": "requeue", "signal": "USR1", "grace_s": 30})
        move = planned(self.snapshot(*self.works()), used).moves[0]
        assert [(v.key, v.job, v.signal, v.grace_s, v.loss_gpu_s) for v in move.victims] == [
            ("job 2", 2, "USR1", 30, 100)
        ]
        assert "ends job 2, 0.03 GPU-hours lost" in move.reason

    @pytest.mark.parametrize(
        ("wish", "asked", "told"),
        [
            ({}, {}, ("", 0, True)),
            ({"grace_s": 60}, {}, ("", 0, True)),
            ({"signal": "B:USR1"}, {}, ("B:USR1", 120, True)),
            ({"signal": "B:USR1", "grace_s": 300}, {}, ("B:USR1", 300, True)),
            ({"signal": "B:USR1", "grace_s": 9000}, {}, ("B:USR1", 600, True)),
            ({"grace_s": 5}, {"signal": "TERM"}, ("TERM", 5, True)),
            ({"signal": "HUP"}, {"signal": "TERM", "after_grace": "wait"}, ("HUP", 120, False)),
            ({}, {"signal": "TERM", "max_grace_s": 7}, ("TERM", 120, True)),
            ({}, {"after_grace": "wait"}, ("", 0, True)),
        ],
    )
    def test_a_victim_is_asked_as_it_likes_in_the_limits_of_the_policy(
        self, wish: dict[str, object], asked: dict[str, object], told: tuple[str, float, bool]
    ) -> None:
        used = requeue(preemption={"mode": "requeue", **asked})
        works = [replace(work, **wish) for work in self.works()]  # type: ignore[arg-type]
        move = planned(self.snapshot(*works), used).moves[0]
        assert [(v.signal, v.grace_s, v.forced) for v in move.victims] == [told]

    def test_idle_ray_workers_may_be_evicted_without_asking_for_more(self) -> None:
        pods = (pod("head", "n1"), pod("worker", "n2", loss=0, idle_worker=True), pod("c", "n3"), pod("d", "n4"))
        assert moved(fleet("kkkk", gang(1), works=pods), policy()) == {"slurm": ("n2",)}


class TestAboutToBeIdle:
    def test_a_node_whose_job_ends_soon_is_drained_before_anybody_is_a_victim(self) -> None:
        works = (job(1, "n1", loss=1), job(2, "n2", loss=999, ends_in_s=299), job(3, "n3"), job(4, "n4"))
        snapshot = fleet("ssss", serving(1), works=works)
        assert (moved(snapshot, requeue()), victims(snapshot, requeue())) == ({"kubernetes": ("n2",)}, [])
        assert moved(snapshot, policy(preemption={"mode": "none"})) == {}

    def test_but_not_from_a_side_that_is_at_its_fair_share_and_wants_it(self) -> None:
        works = (job(1, "n1", ends_in_s=10), job(2, "n2", ends_in_s=10))
        assert moved(fleet("sskk", serving(1), works=works), policy()) == {}


class TestFloorsThatLend:
    LENDING = policy(slurm={"floor_nodes": 3, "lend_limit_nodes": 2})

    def test_idle_nodes_of_a_floor_are_lent_up_to_the_limit(self) -> None:
        assert len(moved(fleet("SSS", serving(3)), self.LENDING)) == 2

    def test_and_wanted_back_they_come_even_from_under_pods(self) -> None:
        assert moved(fleet("Skk", gang(2)), self.LENDING) == {"slurm": ("n2",)}

    def test_but_not_for_nobody(self) -> None:
        assert moved(fleet("Skk"), self.LENDING) == {}

    def test_a_borrow_limit_counts_from_the_floor(self) -> None:
        limited = policy(kubernetes={"floor_nodes": 1, "borrow_limit_nodes": 1})
        assert moved(fleet("kSSS", serving(3)), limited) == {"kubernetes": ("n2",)}


class TestQuota:
    TEAM = {"name": "chat", "namespaces": ["chat"], "guarantee_nodes": 1, "borrow_limit_nodes": 1}  # noqa: RUF012

    def test_a_team_at_its_limit_is_told_its_numbers(self) -> None:
        wanting = replace(serving(1), team="chat")
        snapshot = fleet("kkSS", wanting, works=(pod("a", "n1", team="chat"), pod("b", "n2", team="chat")))
        used = with_teams(policy(), self.TEAM)
        assert moved(snapshot, used) == {}
        assert why(snapshot, used, wanting.key).startswith("quota: team chat holds 2 nodes")

    def test_many_small_demands_of_one_team_count_together(self) -> None:
        first, second, third = (replace(serving(1), key=f"d{n}", team="chat") for n in (1, 2, 3))
        used = with_teams(policy(), self.TEAM)
        assert len(moved(fleet("SSSS", first, second, third), used)) == 2

    def test_who_used_less_than_its_share_goes_first(self) -> None:
        one, other = (replace(serving(1), key=f"d-{team}", team=team) for team in ("heavy", "light"))
        snapshot = fleet("S", replace(one, side=Side.KUBERNETES), replace(gang(1), team="x"), other)
        snapshot = replace(snapshot, usage={"heavy": 900.0, "light": 100.0})
        assert planned(snapshot, policy()).moves == (), "the one idle node serves Slurm's own job"
        two_sides = fleet(
            "ks", one, replace(gang(1, key="job of light"), team="light"), usage={"heavy": 9.0, "light": 1.0}
        )
        spare = replace(two_sides, places=(*two_sides.places, *spare_places("n3")))
        assert [move.demand for move in planned(spare, policy()).moves] == ["job of light"]

    def test_a_demand_of_higher_rank_goes_first_across_both_sides(self) -> None:
        ranked = replace(serving(1), rank=5)
        snapshot = fleet("ks", ranked, gang(1))
        spare = replace(snapshot, places=(*snapshot.places, *spare_places("n3")))
        assert [move.demand for move in planned(spare, policy()).moves] == [ranked.key]


def spare_places(name: str):  # type: ignore[no-untyped-def]
    """A node that nobody owns: closed on both sides, at rest, nothing wrong with it."""
    at_rest = fleet(">").places[0]
    node = replace(at_rest.record.node, name=name, slurm_name=name, kube_name=f"{name}.k")
    return (
        replace(
            at_rest,
            record=replace(at_rest.record, node=node),
            lease=replace(at_rest.lease, node=name),
            handoff=None,
            sight=Sight(CLOSED, CLOSED),
        ),
    )


class TestSpare:
    def test_a_node_that_nobody_owns_goes_before_one_of_the_other_side(self) -> None:
        snapshot = fleet("S", serving(1))
        snapshot = replace(snapshot, places=(*snapshot.places, *spare_places("n2")))
        assert moved(snapshot) == {"kubernetes": ("n2",)}

    def test_but_not_one_in_quarantine(self) -> None:
        (spare,) = spare_places("n2")
        broken = replace(spare, record=replace(spare.record, unusable="never proved open"))
        snapshot = fleet("S", serving(1))
        assert moved(replace(snapshot, places=(*snapshot.places, broken))) == {"kubernetes": ("n1",)}


class TestWhatANodeMustOffer:
    def test_only_nodes_with_the_feature_count(self) -> None:
        wanting = replace(serving(1), features=(frozenset({"h100"}),))
        snapshot = fleet("SS", wanting)
        assert moved(snapshot) == {}
        able = replace(snapshot.places[1], features=frozenset({"h100", "ib"}))
        assert moved(replace(snapshot, places=(snapshot.places[0], able))) == {"kubernetes": ("n2",)}

    def test_an_idle_node_of_its_own_without_the_feature_does_not_meet_a_demand(self) -> None:
        wanting = replace(serving(1), features=(frozenset({"h100"}),))
        snapshot = fleet("KS", wanting)
        able = replace(snapshot.places[1], features=frozenset({"h100"}))
        assert moved(replace(snapshot, places=(snapshot.places[0], able))) == {"kubernetes": ("n2",)}

    def test_what_no_node_can_ever_give_is_named_and_not_counted(self) -> None:
        never = replace(serving(2), impossible="asks for 9 GPUs, a node has 8", alike=7)
        assert moved(fleet("SS", never)) == {}
        assert why(fleet("SS", never), policy(), never.key) == "asks for 9 GPUs, a node has 8 (7 alike)"


class TestGangs:
    def test_two_gangs_get_their_nodes_in_one_plan_when_there_are_enough(self) -> None:
        snapshot = fleet("KKKKK", gang(2, key="first", priority=9), gang(3, key="second"))
        assert moved(snapshot) == {"slurm": ("n1", "n2"), "slurm'": ("n3", "n4", "n5")}

    def test_two_gangs_never_hold_half_each(self) -> None:
        snapshot = fleet("KKKK", gang(3, key="first", priority=9), gang(3, key="second"))
        assert moved(snapshot) == {"slurm": ("n1", "n2", "n3")}
        assert "one gang at a time" not in why(snapshot, policy(), "second")
        assert "lacks 3 nodes" in why(snapshot, policy(), "second")

    def test_a_gang_behind_one_that_waits_does_not_pass_it(self) -> None:
        snapshot = fleet("KKkk", gang(3, key="first", priority=9), gang(1, key="second"))
        assert moved(snapshot) == {}
        assert why(snapshot, policy(), "second") == "one gang at a time: first comes first"

    def test_a_gang_that_was_not_collected_in_time_lets_others_pass_and_lends_its_nodes(self) -> None:
        waiting = gang(3, key="first", priority=9)
        snapshot = fleet("SSss", waiting, serving(1))
        backing_off = replace(snapshot, backoffs={"first": NOW + timedelta(seconds=1)})
        assert moved(snapshot) == {}
        assert moved(backing_off) == {"kubernetes": ("n1",)}
        assert "left alone for 1 s more" in why(backing_off, policy(), "first")

    def test_idle_nodes_are_not_kept_for_a_gang_for_ever(self) -> None:
        def long_waiting(waited_s: float) -> Snapshot:
            return fleet("SSss", gang(3, waited_s=waited_s), serving(1))

        assert moved(long_waiting(1800), policy(gang_deadline_s=1800)) == {}
        assert moved(long_waiting(1801), policy(gang_deadline_s=1800)) == {"kubernetes": ("n1",)}

    def test_nodes_collected_for_a_gang_are_not_counted_for_another_demand(self) -> None:
        snapshot = fleet("<KK", gang(1, key="other", priority=9), gang(1, key="first"))
        collected: Handoff = replace(snapshot.places[0].handoff, demand="first")  # type: ignore[type-var]
        snapshot = replace(snapshot, places=(replace(snapshot.places[0], handoff=collected), *snapshot.places[1:]))
        assert [move.demand for move in planned(snapshot, policy()).moves] == ["other"]

    def test_a_node_that_goes_back_from_a_gang_does_not_count_for_it(self) -> None:
        snapshot = fleet(">K", gang(1, key="first"))
        going_back: Handoff = replace(snapshot.places[0].handoff, demand="first")  # type: ignore[type-var]
        snapshot = replace(snapshot, places=(replace(snapshot.places[0], handoff=going_back), snapshot.places[1]))
        assert [move.demand for move in planned(snapshot, policy()).moves] == ["first"]


class TestHeadroom:
    def test_idle_nodes_are_kept_ready_beyond_demand(self) -> None:
        ready = policy(headroom={"nodes": 2})
        assert moved(fleet("KSSS"), ready) == {"kubernetes": ("n2",)}
        assert moved(fleet("KSSS", serving(1)), ready) == {"kubernetes": ("n2",), "kubernetes'": ("n3",)}

    def test_and_not_lent_away(self) -> None:
        assert moved(fleet("KKK", gang(2)), policy(headroom={"nodes": 2})) == {}
        assert moved(fleet("KKK", gang(1)), policy(headroom={"nodes": 2})) == {"slurm": ("n1",)}

    def test_automatic_headroom_is_ramp_times_measured_reclaim_time(self) -> None:
        auto = policy(headroom={"mode": "auto", "ramp_gpus_per_min": 8, "assumed_reclaim_s": 120})
        # 8 GPUs a minute for 2 minutes = 16 GPUs = 2 nodes; measured 20 times at 60 s = 1 node
        assert len(moved(fleet("SSSS"), auto)) == 2
        measured = fleet("SSSS", reclaim_s={Side.KUBERNETES: (60.0,) * 20})
        assert len(moved(measured, auto)) == 1


class TestLimits:
    def test_demand_is_gathered_after_moves_began(self) -> None:
        snapshot = fleet(">SS", serving(2))
        begun = replace(snapshot.places[0].handoff, began_at=NOW - timedelta(seconds=9), requested_by="policy")  # type: ignore[type-var]
        snapshot = replace(snapshot, places=(replace(snapshot.places[0], handoff=begun), *snapshot.places[1:]))
        assert moved(snapshot, policy(batch_window_s=10)) == {}
        assert moved(snapshot, policy(batch_window_s=9)) == {"kubernetes": ("n2",)}

    def test_while_too_many_nodes_are_out_only_floors_move_nodes(self) -> None:
        snapshot = fleet("aaSS", serving(1))
        assert moved(snapshot, policy(max_maintenance_nodes=1)) == {}
        assert moved(snapshot, policy(max_maintenance_nodes=2)) == {"kubernetes": ("n3",)}
        owed = policy(max_maintenance_nodes=1, kubernetes={"floor_nodes": 1})
        assert moved(snapshot, owed) == {"kubernetes": ("n3",)}

    def test_a_timetable_moves_a_floor_with_the_clock(self) -> None:
        # NOW is a Thursday, noon UTC
        day = [{"name": "day", "days": ["thu"], "from": "08:00", "until": "18:00", "kubernetes_floor_nodes": 1}]
        night = [{"name": "night", "days": ["thu"], "from": "18:00", "until": "08:00", "kubernetes_floor_nodes": 1}]
        assert moved(fleet("SS"), policy(timetable=day)) == {"kubernetes": ("n1",)}
        assert moved(fleet("SS"), policy(timetable=night)) == {}


def test_lent_nodes_are_taken_where_they_break_the_fewest_whole_blocks() -> None:
    snapshot = fleet("SSSSk", serving(1))
    switches = {"n1": "a", "n2": "a", "n3": "b", "n4": "b", "n5": "b"}
    placed = replace(snapshot, places=tuple(replace(p, switch=switches[p.name]) for p in snapshot.places))
    assert moved(placed) == {"kubernetes": ("n3",)}, "switch b is broken already"


def test_a_gang_is_put_under_as_few_switches_as_can_be() -> None:
    snapshot = fleet("KKKKK", gang(3))
    switches = {"n1": "a", "n2": "a", "n3": "b", "n4": "b", "n5": "b"}
    placed = replace(snapshot, places=tuple(replace(p, switch=switches[p.name]) for p in snapshot.places))
    assert moved(placed) == {"slurm": ("n3", "n4", "n5")}
    assert planned(placed, policy()).moves[0].reason == "job 17 of alice waits for 3 nodes, under 1 switch"
    wider = replace(placed, demands=(replace(gang(4), switches=1),))
    assert planned(wider, policy()).moves[0].reason.endswith("under 2 switches, it asked for at most 1")


def test_of_a_long_queue_only_the_first_are_told_each_why() -> None:
    snapshot = fleet("k" * 4, *(gang(1, key=f"job {n}", priority=-n) for n in range(30)))
    whys = planned(snapshot, policy()).whys
    assert len(whys) == 21
    assert whys[-1].reason == "10 more demands wait behind those listed"


def test_an_unknown_side_is_no_source_even_of_victims() -> None:
    blind = SideFacts(unknown="slurmctld does not list it")
    snapshot = fleet("ssss", serving(1), works=(job(1, "n1"),))
    first = replace(snapshot.places[0], sight=Sight(blind, CLOSED))
    assert moved(replace(snapshot, places=(first, *snapshot.places[1:])), requeue()) == {}


def test_what_slurm_plans_for_the_head_of_its_queue_is_neither_fetched_again_nor_lent() -> None:
    snapshot = fleet("KKSS", gang(4))
    planned_facts = replace(snapshot.places[2].sight.slurm, idle=False, planned=True)
    kept = tuple(
        replace(p, sight=Sight(planned_facts, CLOSED), record=replace(p.record, idle_since=None))
        for p in snapshot.places[2:]
    )
    snapshot = replace(snapshot, places=(*snapshot.places[:2], *kept))
    assert moved(snapshot) == {"slurm": ("n1", "n2")}
    assert moved(replace(snapshot, demands=(serving(3),))) == {}


class TestWhatIsLentAndWantedBack:
    """A floor of 3 that lends 3: a gang fetches it under one lease, a floor that is never lent comes by itself."""

    LENDING = policy(slurm={"floor_nodes": 3, "lend_limit_nodes": 3})

    def test_a_gang_fetches_its_floor_whole_from_under_pods(self) -> None:
        assert moved(fleet("kkkk", gang(3)), self.LENDING) == {"slurm": ("n1", "n2", "n3")}
        assert moved(fleet("kkkk", gang(4)), self.LENDING) == {}, "the fourth is beyond the floor"

    def test_serving_pods_are_not_ended_for_what_a_side_does_not_want(self) -> None:
        assert moved(fleet("kkkk"), self.LENDING) == {}

    def test_a_node_that_comes_for_a_floor_and_is_too_small_for_a_gang_does_not_meet_it(self) -> None:
        found = plan(fleet("kKKK", replace(gang(1), gpus_per_node=9)), policy(slurm={"floor_nodes": 1}), NOW)
        assert [move.nodes for move in found.moves] == [("n2",)]
        assert any(why.reason.startswith("lacks 1 node") for why in found.whys)

    def test_nodes_that_come_for_a_floor_are_not_fetched_for_a_gang_once_more(self) -> None:
        assert moved(fleet("kKKK", gang(2)), policy(slurm={"floor_nodes": 2})) == {"slurm": ("n2",), "slurm'": ("n3",)}
        assert moved(fleet("kKKK", gang(3)), policy(slurm={"floor_nodes": 2})) == {
            "slurm": ("n2",),
            "slurm'": ("n3",),
            "slurm''": ("n4",),
        }
