"""Floors, limits, fair shares and teams, worked out by hand. Fleets are words as in `test_planner`."""

from __future__ import annotations

import pytest

from bridge.model.demand import Demand, Work
from bridge.model.ownership import Side
from bridge.model.policy import Headroom, Policy
from bridge.planning.entitlement import SideShare, held_nodes, side_shares, team_standings
from bridge.planning.headroom import headroom_nodes, reclaim_p99_s
from tests.unit.test_planner import fleet, gang, policy, serving


def shares(words: str, *demands: Demand, **pool: object) -> dict[Side, SideShare]:
    used = policy(**pool).pools[0]
    floors = {side: used.share(side).floor_nodes for side in Side}
    return side_shares(used, fleet(words).places, demands, floors)


@pytest.mark.parametrize(
    ("words", "demands", "pool", "fair"),
    [
        # equal weights, both want everything: half each
        ("ssss", [serving(4)], {}, (2, 2)),
        # what one side does not want the other one may have
        ("ssss", [serving(1)], {}, (3, 1)),
        ("ssss", [], {}, (4, 0)),
        # weights: 3 to 1
        ("ssssssss", [serving(8)], {"slurm": {"weight": 3}}, (6, 2)),
        # only what floors leave is shared: 8 - 2 - 2 = 4, two each
        ("ssssssss", [serving(8)], {"slurm": {"floor_nodes": 2}, "kubernetes": {"floor_nodes": 2}}, (4, 4)),
        # a side without weight has its floor
        ("ssss", [serving(4)], {"kubernetes": {"weight": 0, "floor_nodes": 1}}, (3, 1)),
        # floors larger than what is usable leave nothing to share, and nothing negative
        ("?sss", [serving(4)], {"slurm": {"floor_nodes": 4}}, (4, 0)),
    ],
)
def test_fair_shares(words: str, demands: list[Demand], pool: dict[str, object], fair: tuple[float, float]) -> None:
    found = shares(words, *demands, **pool)
    assert (found[Side.SLURM].fair_nodes, found[Side.KUBERNETES].fair_nodes) == fair


def test_owned_counts_usable_and_arriving_nodes_and_no_others() -> None:
    found = shares("Ss?a><kK")
    slurm, kubernetes = found[Side.SLURM], found[Side.KUBERNETES]
    assert (slurm.owned_nodes, slurm.busy_nodes) == (3, 1), "n1, n2 and n6 on its way"
    assert (kubernetes.owned_nodes, kubernetes.busy_nodes) == (3, 1), "n7, n8 and n5 on its way"


@pytest.mark.parametrize(
    ("words", "demands", "share", "kept", "owed"),
    [
        ("SSk", [], {"floor_nodes": 3}, 3, 1),
        ("SSk", [], {"floor_nodes": 3, "lend_limit_nodes": 2}, 1, 0),
        ("SSk", [gang(2)], {"floor_nodes": 3, "lend_limit_nodes": 2}, 2, 0),
        ("ssk", [gang(2)], {"floor_nodes": 3, "lend_limit_nodes": 2}, 3, 1),
        ("skk", [gang(9)], {"floor_nodes": 3, "lend_limit_nodes": 3}, 3, 2),
    ],
)
def test_a_floor_keeps_what_it_does_not_lend_and_what_its_side_wants(
    words: str, demands: list[Demand], share: dict[str, object], kept: int, owed: int
) -> None:
    slurm = shares(words, *demands, slurm=share)[Side.SLURM]
    assert (slurm.kept_nodes, slurm.owed_nodes) == (kept, owed)


def test_a_ceiling_is_the_smaller_of_maximum_and_floor_plus_borrow_limit() -> None:
    def most(**share: object) -> int:
        return shares("SSSSSSSS", kubernetes=share)[Side.KUBERNETES].ceiling_nodes

    assert most() == 8
    assert most(max_nodes=5) == 5
    assert most(floor_nodes=2, borrow_limit_nodes=1) == 3
    assert most(floor_nodes=2, borrow_limit_nodes=9, max_nodes=4) == 4


def work(key: str, team: str, nodes: tuple[str, ...], gpus: int) -> Work:
    return Work(key, Side.SLURM, team, nodes, gpus, 0, 0, 60, None, 0)


TEAMS = Policy.model_validate(
    {
        "teams": [
            {"name": "ml", "accounts": ["ml-a", "ml-b"], "guarantee_nodes": 1, "borrow_limit_nodes": 2, "weight": 3},
            {"name": "web", "namespaces": ["chat"]},
        ]
    }
)


def test_a_team_holds_whole_nodes_of_gangs_and_parts_of_shared_ones() -> None:
    works = (work("a", "ml", ("n1", "n2"), 4), work("b", "ml", ("n3",), 2), work("c", "web", ("n3",), 4))
    found = team_standings(TEAMS, works, {}, {"n1": 8, "n2": 8, "n3": 8})
    assert (found["ml"].holds_nodes, found["web"].holds_nodes) == (2.25, 0.5)
    assert (found["ml"].guarantee_nodes, found["ml"].ceiling_nodes, found["ml"].spare_nodes) == (1, 3, 1.25)
    assert found["web"].ceiling_nodes is None


def test_a_work_without_gpus_takes_its_node_whole() -> None:
    assert held_nodes(work("a", "ml", ("n1",), 0), {"n1": 8}) == 1


def test_the_ratio_compares_used_parts_with_weights() -> None:
    # used 3/4 and 1/4, weights 3 and 1: both have exactly their part
    found = team_standings(TEAMS, (), {"ml": 300.0, "web": 100.0}, {})
    assert (found["ml"].ratio, found["web"].ratio) == (1, 1)
    # used half each: web, with a quarter of the weights, has twice its part
    found = team_standings(TEAMS, (), {"ml": 100.0, "web": 100.0}, {})
    assert (found["ml"].ratio, found["web"].ratio) == (pytest.approx(2 / 3), 2)


def test_an_account_that_no_team_lists_stands_for_itself_with_weight_one() -> None:
    # many small accounts do not help: each has used its part of what all used
    found = team_standings(TEAMS, (), {"stray": 100.0}, {})
    assert found["stray"].ratio == 5, "all use, one fifth of the weights"
    assert TEAMS.team_of_account("ml-b") == "ml"
    assert TEAMS.team_of_account("stray") == "stray"


@pytest.mark.parametrize(
    ("headroom", "measured", "nodes"),
    [
        ({"nodes": 3}, (), 3),
        # 20 GPUs/min x 90 s = 30 GPUs, in nodes of 8: 4
        ({"mode": "auto", "ramp_gpus_per_min": 20, "assumed_reclaim_s": 90}, (), 4),
        ({"mode": "auto", "ramp_gpus_per_min": 20, "assumed_reclaim_s": 90, "max_nodes": 2}, (), 2),
        # measured often enough, the assumption does not count any more: 20 x 24/60 = 8 GPUs
        ({"mode": "auto", "ramp_gpus_per_min": 20, "assumed_reclaim_s": 90}, (24.0,) * 20, 1),
        ({"mode": "auto", "ramp_gpus_per_min": 20, "assumed_reclaim_s": 90}, (24.0,) * 19, 4),
    ],
)
def test_headroom(headroom: dict[str, object], measured: tuple[float, ...], nodes: int) -> None:
    assert headroom_nodes(Headroom.model_validate(headroom), measured, 8) == nodes


def test_p99_is_the_nearest_rank() -> None:
    assert reclaim_p99_s([float(n) for n in range(1, 101)], 0) == 99
    assert reclaim_p99_s([float(n) for n in range(1, 21)], 0) == 20
