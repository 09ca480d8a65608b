"""The policy over REST: no change without the version it replaces, no mistake without its place and its remedy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from bridge.model.errors import Conflict, Unreadable
from bridge.model.ownership import Owner
from bridge.model.policy import Policy
from tests.unit.api_world import PLAN, POLICY, World, bearer


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tokens")


@pytest.fixture
def client(world: World) -> TestClient:
    return TestClient(world.app(), headers=bearer("platform"))


def changed(**pool: Any) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(POLICY)
    document["pools"][0].update(pool)
    return document


def test_the_first_policy_replaces_version_0(world: World, client: TestClient) -> None:
    read = client.get("/v1/policy")
    assert (read.headers["ETag"], read.json()) == ('"0"', Policy().model_dump(mode="json"))
    written = client.put("/v1/policy", json=POLICY, headers={"If-Match": '"0"'}, params={"note": "first pool"})
    assert (written.status_code, written.headers["ETag"]) == (200, '"1"')
    change = written.json()
    assert {name: change[name] for name in ("version", "dry_run", "nodes", "joining", "leaving")} == {
        "version": 1,
        "dry_run": False,
        "nodes": 4,
        "joining": ["gpu-1", "gpu-2", "gpu-3", "gpu-4"],
        "leaving": [],
    }
    assert [(each["path"], each["old"], each["new"]["nodes"]) for each in change["differences"]] == [
        ("pools[h100]", None, ["gpu-[1-4]"])
    ]
    assert world.ledger.read().nodes["gpu-3"].node.kube_name == "gpu-3.testbed"


def test_what_is_read_can_be_written_back(world: World, client: TestClient) -> None:
    world.share()
    read = client.get("/v1/policy")
    again = client.put("/v1/policy", json=read.json(), headers={"If-Match": read.headers["ETag"]})
    assert (again.status_code, again.json()["joining"], again.json()["leaving"]) == (200, [], [])


def test_history_says_who_when_and_why(world: World, client: TestClient) -> None:
    world.share()
    world.clock.pass_s(60)
    client.put("/v1/policy", json={"pools": []}, headers={"If-Match": '"1"'}, params={"note": "over"})
    versions = client.get("/v1/policy/history").json()["items"]
    assert [(each["version"], each["author"], each["note"], each["at"]) for each in versions] == [
        (2, "platform", "over", "2026-03-02T12:01:00Z"),
        (1, "platform", "first", "2026-03-02T12:00:00Z"),
    ]
    assert versions[1]["policy"]["pools"][0]["name"] == "h100"


def test_428_without_a_version(world: World, client: TestClient) -> None:
    answer = client.put("/v1/policy", json=POLICY)
    assert (answer.status_code, "If-Match" in answer.json()["detail"]) == (428, True)
    assert world.ledger.read().policy_version == 0


@pytest.mark.parametrize("stale", ['"1"', '"3"', '"02"', 'W/"2"', "2", "*", '"2", "3"'])
def test_412_for_any_but_the_current_version(world: World, client: TestClient, stale: str) -> None:
    world.share()
    client.put("/v1/policy", json=changed(gpus=4), headers={"If-Match": '"1"'})
    answer = client.put("/v1/policy", json=POLICY, headers={"If-Match": stale})
    assert (answer.status_code, answer.headers["ETag"]) == (412, '"2"')
    assert world.ledger.read().policy_version == 2


def test_412_when_another_admin_wins_between_the_check_and_the_write(
    world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*args: object, **kwargs: object) -> int:
        raise Conflict("policy: expected version 0, found 1")

    monkeypatch.setattr(world.ledger, "apply_policy", lost)
    answer = client.put("/v1/policy", json=POLICY, headers={"If-Match": '"0"'})
    assert (answer.status_code, answer.json()["detail"]) == (412, "policy: expected version 0, found 1")


def test_a_dry_run_says_what_would_change_and_changes_nothing(world: World, client: TestClient) -> None:
    world.share()
    answer = client.put("/v1/policy?dry_run=true", json=changed(nodes=["gpu-[3-6]"]))
    assert answer.json() == {
        "version": 1,
        "dry_run": True,
        "nodes": 4,
        "joining": ["gpu-5", "gpu-6"],
        "leaving": ["gpu-1", "gpu-2"],
        "differences": [{"path": "pools[h100].nodes", "old": ["gpu-[1-4]"], "new": ["gpu-[3-6]"]}],
        "floors": [],
        **PLAN.model_dump(mode="json"),
    }
    asked, nodes = world.planned_for
    assert asked is not None
    assert (asked.pools[0].nodes, nodes) == (("gpu-[3-6]",), ("gpu-3", "gpu-4", "gpu-5", "gpu-6"))
    assert world.ledger.read().policy_version == 1


def errors_of(client: TestClient, document: object) -> list[tuple[list[str | int], str, str]]:
    answer = client.put("/v1/policy?dry_run=true", json=document)
    assert answer.status_code == 422, answer.text
    return [(error["location"], error["message"], error["remedy"]) for error in answer.json()["errors"]]


@pytest.mark.parametrize(
    ("pool", "location", "message", "remedy"),
    [
        ({"flor_nodes": 1}, ["flor_nodes"], "Extra inputs", "did you mean 'floor_nodes'?"),
        ({"xyzzy": 1}, ["xyzzy"], "Extra inputs", "remove it: there is no such field"),
        ({"gpus": 0}, ["gpus"], "greater than or equal to 1", "use a value of at least 1"),
        ({"gpus": "eight"}, ["gpus"], "valid integer", "use a whole number"),
        ({"empty_patience_s": 0}, ["empty_patience_s"], "greater than 0", "use a value above 0"),
        ({"home": "spare"}, ["home"], "'slurm' or 'kubernetes'", "use one of 'slurm' or 'kubernetes'"),
        (
            {"nodes": []},
            ["nodes"],
            "which nodes pool h100 has is said nowhere",
            "use exactly one of nodes, all_of_partition and node_label",
        ),
        (
            {"all_of_partition": True},
            ["all_of_partition"],
            "is said twice: by nodes and all_of_partition",
            "use exactly one of nodes, all_of_partition and node_label",
        ),
        (
            {"node_label": "a b"},
            ["node_label"],
            "'a b' is not a label",
            "write key=value, or a key alone for any value",
        ),
        ({"nodes": ["gpu-[1-"]}, ["nodes"], "a bracket is not closed", "write Slurm host lists such as gpu-[1-4]"),
        ({"nodes": ["gpu-[1-999999999]"]}, ["nodes"], "at most 100000", "write Slurm host lists such as gpu-[1-4]"),
        ({"nodes": ["@racks"]}, ["nodes"], "@racks", "write Slurm host lists such as gpu-[1-4]"),
        (
            {"kube_name": "{node}_x"},
            ["kube_name"],
            "'gpu-1_x' cannot be the name of a Kubernetes node",
            "use small letters, digits, '-' and '.'",
        ),
        (
            {"kube_name": "shared"},
            ["kube_name"],
            "kube_name 'shared' must contain {node} once",
            "write it as '{node}' or '{node}.example.org'",
        ),
        ({"gpus": True}, ["gpus"], "valid integer", "use a whole number"),
        ({"min_hold_s": 1e300}, ["min_hold_s"], "less than or equal to 31536000", "use a value of at most 31536000"),
        ({"min_hold_s": "inf"}, ["min_hold_s"], "finite number", "use a number that is not infinite"),
        ({"timetable": [{"name": "n"}]}, ["timetable", 0], "line n of the timetable names no floor", "give it slurm"),
        (
            {"timetable": [{"name": "n", "from": 1320, "slurm_floor_nodes": 1}]},
            ["timetable", 0, "from"],
            "1320 is not a time of the day",
            "write hours and minutes in quotes, '00:00' to '23:59'",
        ),
        (
            {"timetable": [{"name": "n", "until": "24:00", "slurm_floor_nodes": 1}]},
            ["timetable", 0, "until"],
            "'24:00' is not a time of the day",
            "write hours and minutes in quotes, '00:00' to '23:59'",
        ),
        (
            {"timetable": [{"name": "n", "until": "08:00Z", "slurm_floor_nodes": 1}]},
            ["timetable", 0, "until"],
            "'08:00Z' is not a time of the day",
            "write hours and minutes in quotes, '00:00' to '23:59'",
        ),
        (
            {"timetable": [{"name": "n", "days": ["mon", "mon"], "slurm_floor_nodes": 1}]},
            ["timetable", 0, "days", 1],
            "day mon is used twice, first as number 1",
            "keep one of them",
        ),
        (
            {"timetable": [{"name": "n", "slurm_floor_nodes": 1}, {"name": "n", "slurm_floor_nodes": 2}]},
            ["timetable", 1, "name"],
            "name of a line n is used twice, first as number 1",
            "keep one of them",
        ),
        (
            {"timetable": [{"name": "n", "slurm_floor_nodes": 5}]},
            ["timetable", 0, "slurm_floor_nodes"],
            "the slurm floor of line n, 5, is above the side's max_nodes 4",
            "lower the floor or raise the maximum",
        ),
        (
            {
                "timetable": [
                    {"name": "day", "from": "08:00", "until": "20:00", "kubernetes_floor_nodes": 3},
                    {"name": "eve", "days": ["fri"], "from": "18:00", "until": "23:00", "slurm_floor_nodes": 2},
                ]
            },
            ["timetable"],
            "from Friday 18:00 the floors of pool h100 add up to 5 nodes (slurm 2, kubernetes 3) and it has 4",
            "lower a floor of the lines that hold then, or add nodes",
        ),
        (
            {"slurm": {"floor_nodes": 1, "lend_limit_nodes": 2}},
            ["slurm", "lend_limit_nodes"],
            "lend_limit_nodes 2 is above the side's floor of 1",
            "only nodes of the floor are lent: lower the limit",
        ),
        (
            {"headroom": {"mode": "auto"}},
            ["headroom", "ramp_gpus_per_min"],
            "automatic headroom without a ramp keeps nothing",
            "say how fast traffic may grow, or use mode fixed",
        ),
        (
            {"topology": {"switches": {"leaf1": ["gpu-[1-2]"], "leaf2": ["gpu-2"]}}},
            ["topology", "switches", "leaf2"],
            "gpu-2 is under leaf1 already",
            "list it under its leaf switch only",
        ),
        (
            {"topology": {"switches": {"leaf1": ["gpu-[1-"]}}},
            ["topology", "switches", "leaf1"],
            "a bracket is not closed",
            "write Slurm host lists such as gpu-[1-4]",
        ),
        (
            {"preemption": {"signal": "term"}},
            ["preemption", "signal"],
            "Input should be '', 'ALRM'",
            "use one of '', 'ALRM', 'CONT'",
        ),
        ({"partition": "a b"}, ["partition"], "pattern", "use only the characters that the pattern allows"),
        (
            {"slurm": {"floor_nodes": 3}, "kubernetes": {"floor_nodes": 2}},
            ["slurm"],
            "the floors of pool h100 add up to 5 nodes and it has 4",
            "lower a floor or add nodes",
        ),
        (
            {"slurm": {"floor_nodes": 3, "max_nodes": 2}},
            ["slurm", "floor_nodes"],
            "floor_nodes 3 is above max_nodes 2",
            "lower the floor or raise the maximum",
        ),
    ],
)
def test_mistakes_have_a_place_and_a_remedy(
    client: TestClient, pool: dict[str, Any], location: list[str], message: str, remedy: str
) -> None:
    found = errors_of(client, changed(**pool))
    assert found[0][0] == ["body", "pools", 0, *location]
    assert message in found[0][1]
    assert found[0][2].startswith(remedy)


def test_all_mistakes_are_told_at_once(client: TestClient) -> None:
    document = changed(gpus=0, slurm={"floor_nodes": -1})
    document["pools"].append({"name": "a100", "nodes": ["cpu-1"]})
    assert [location for location, _, _ in errors_of(client, document)] == [
        ["body", "pools", 0, "gpus"],
        ["body", "pools", 0, "slurm", "floor_nodes"],
        ["body", "pools", 1, "partition"],
    ]


def test_a_node_belongs_to_one_pool(client: TestClient) -> None:
    document = changed()
    document["pools"].append({**document["pools"][0], "name": "a100", "partition": "a100", "nodes": ["gpu-[4-5]"]})
    assert errors_of(client, document) == [
        (["body", "pools", 1, "nodes"], "gpu-4 is in pool h100 already", "list it in one pool only")
    ]


def test_two_nodes_cannot_share_a_kubernetes_name(client: TestClient) -> None:
    document = changed(nodes=["a-1"], kube_name="n-{node}", slurm={})
    other = {**document["pools"][0], "name": "a100", "partition": "a100", "nodes": ["n-a-1"], "kube_name": "{node}"}
    document["pools"].append(other)
    document["pools"][0]["kubernetes"] = other["kubernetes"] = {}
    assert errors_of(client, document) == [
        (
            ["body", "pools", 1, "kube_name"],
            "n-a-1 and a-1 would both be n-a-1 in Kubernetes",
            "make the Kubernetes names differ",
        )
    ]


def test_a_partition_belongs_to_one_pool(client: TestClient) -> None:
    document = changed()
    document["pools"].append({**document["pools"][0], "name": "a100", "nodes": ["a-[1-4]"]})
    assert errors_of(client, document) == [
        (
            ["body", "pools", 1, "partition"],
            "partition gpu is that of pool h100 already",
            "give each pool a partition of its own, or make one pool of both",
        )
    ]


@pytest.mark.parametrize(
    ("document", "location", "message"),
    [
        ({"timezone": "Mars/Olympus"}, ["timezone"], "no time zone is called 'Mars/Olympus'"),
        (
            {"teams": [{"name": "vision"}, {"name": "vision"}]},
            ["teams", 1, "name"],
            "team name vision is used twice, first as number 1",
        ),
        (
            {"teams": [{"name": "a", "accounts": ["x", "y"]}, {"name": "b", "accounts": ["z", "y"]}]},
            ["teams", 1, "accounts", 1],
            "y of the accounts is in team number 1 already",
        ),
        (
            {"teams": [{"name": "a", "namespaces": ["x", "x"]}]},
            ["teams", 0, "namespaces", 1],
            "x of the namespaces is in team number 1 already",
        ),
        ({"teams": [{"name": "a", "half_life_s": 0}]}, ["teams", 0, "half_life_s"], "greater than 0"),
        ({"priorities": {"qos": {"high": 1.5}}}, ["priorities", "qos", "high"], "valid integer"),
    ],
)
def test_mistakes_outside_pools_have_a_place_too(
    client: TestClient, document: dict[str, Any], location: list[str | int], message: str
) -> None:
    found = errors_of(client, document)
    assert found[0][0] == ["body", *location]
    assert message in found[0][1]


# --- pools that a scheduler knows ---


def by_partition(**pool: Any) -> dict[str, Any]:
    return changed(nodes=[], all_of_partition=True, **pool)


def test_a_pool_by_partition_has_the_nodes_of_this_moment(world: World, client: TestClient) -> None:
    world.members = ("gpu-1", "gpu-2", "gpu-3")
    applied = client.put("/v1/policy", json=by_partition(), headers={"If-Match": '"0"'})
    assert (applied.status_code, applied.json()["joining"]) == (200, ["gpu-1", "gpu-2", "gpu-3"])
    world.members = ("gpu-1", "gpu-2", "gpu-3", "gpu-9")
    assert sorted(world.ledger.read().nodes) == ["gpu-1", "gpu-2", "gpu-3"]
    again = client.put("/v1/policy", json=by_partition(), headers={"If-Match": '"1"'})
    assert (again.json()["joining"], again.json()["differences"]) == (["gpu-9"], [])


@pytest.mark.parametrize("dry_run", ["true", "false"])
def test_503_when_the_scheduler_that_knows_the_nodes_cannot_be_read(
    world: World, client: TestClient, dry_run: str
) -> None:
    answer = client.put("/v1/policy", json=by_partition(), headers={"If-Match": '"0"'}, params={"dry_run": dry_run})
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "which nodes are in a pool by partition or label cannot be asked: "
        "slurm is unreadable: nobody answers for pool h100",
    )
    assert world.ledger.read().policy_version == 0


@pytest.mark.parametrize(
    ("document", "field"),
    [(by_partition(), "all_of_partition"), (changed(nodes=[], node_label="pool=shared"), "node_label")],
)
def test_a_pool_without_a_node_is_a_mistake(
    world: World, client: TestClient, document: dict[str, Any], field: str
) -> None:
    world.members = ()
    (error,) = errors_of(client, document)
    assert error[:2] == (["body", "pools", 0, field], "pool h100 has no node")


def test_floors_are_held_against_the_nodes_that_the_scheduler_knows(world: World, client: TestClient) -> None:
    world.members = ("gpu-1",)
    assert errors_of(client, by_partition())[0][1] == "the floors of pool h100 add up to 2 nodes and it has 1"


# --- what would move ---


def test_a_dry_run_is_valid_while_a_source_is_unknown_and_says_so(world: World, client: TestClient) -> None:
    world.plan_fails = Unreadable("ledger", "no answer in 5 s")
    answer = client.put("/v1/policy?dry_run=true", json=POLICY)
    assert (answer.status_code, answer.json()["moves"], answer.json()["whys"]) == (
        200,
        [],
        [{"subject": "everything", "reason": "UNKNOWN moves nothing: ledger is unreadable: no answer in 5 s"}],
    )


def test_a_pool_with_a_timetable_says_when_its_floors_change(client: TestClient) -> None:
    """It is Monday, 12:00 UTC: 13:00 in Berlin."""
    lines = [{"name": "day", "from": "08:00", "until": "18:00", "slurm_floor_nodes": 3}]
    answer = client.put("/v1/policy?dry_run=true", json={**changed(timetable=lines), "timezone": "Europe/Berlin"})
    assert answer.json()["floors"] == [
        {
            "pool": "h100",
            "now": {"slurm": 3, "kubernetes": 1},
            "next": {"slurm": 1, "kubernetes": 1},
            "next_at": "2026-03-02T17:00:00Z",
        }
    ]


# --- versions ---


def test_versions_can_be_read_compared_and_put_again(world: World, client: TestClient) -> None:
    world.share()
    client.put(
        "/v1/policy",
        json=changed(gpus=4, timetable=[{"name": "night", "from": "22:00", "until": "06:00", "slurm_floor_nodes": 3}]),
        headers={"If-Match": '"1"'},
    )
    old = client.get("/v1/policy", params={"version": 1})
    assert (old.headers["ETag"], old.json()["pools"][0]["gpus"]) == ('"1"', 8)
    assert client.get("/v1/policy").json()["pools"][0]["timetable"][0]["from"] == "22:00"
    diff = client.get("/v1/policy/diff", params={"old": 1}).json()
    assert (diff["old_version"], diff["new_version"]) == (1, 2)
    assert [(each["path"], each["old"]) for each in diff["differences"]] == [
        ("pools[h100].gpus", 8),
        ("pools[h100].timetable[night]", None),
    ]
    back = client.get("/v1/policy/diff", params={"old": 2, "new": 1}).json()["differences"]
    assert (back[0]["old"], back[0]["new"], back[1]["new"]) == (4, 8, None)
    assert client.get("/v1/policy/diff", params={"old": 0, "new": 1}).json()["differences"][0]["path"] == "pools[h100]"
    put = client.put("/v1/policy", json=old.json(), headers={"If-Match": '"2"'}, params={"note": "back to 1"})
    assert put.json()["version"] == 3
    assert client.get("/v1/policy/diff", params={"old": 1}).json()["differences"] == []


@pytest.mark.parametrize("path", ["/v1/policy?version=2", "/v1/policy/diff?old=2", "/v1/policy/diff?old=1&new=7"])
def test_404_for_a_version_that_is_not_there(world: World, client: TestClient, path: str) -> None:
    world.share()
    answer = client.get(path)
    assert (answer.status_code, "the newest is 1" in answer.json()["detail"]) == (404, True)


def test_the_schema_knows_what_the_document_may_say(client: TestClient) -> None:
    schema = client.get("/v1/policy/schema").json()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert {"pools", "teams", "priorities", "timezone"} == schema["properties"].keys()
    assert schema["$defs"]["Hours"]["properties"].keys() >= {"from", "until"}
    assert schema["additionalProperties"] is False


# --- nodes in use ---


@pytest.mark.parametrize("dry_run", ["true", "false"])
def test_a_node_that_is_lent_or_in_motion_cannot_leave_nor_be_renamed(
    world: World, client: TestClient, dry_run: str
) -> None:
    world.share()
    world.own("gpu-1", Owner.KUBERNETES)
    world.begin("gpu-2", "h2")
    world.own("gpu-3", Owner.SLURM)
    params, headers = {"dry_run": dry_run}, {"If-Match": '"1"'}
    for document in (changed(nodes=["gpu-4"], slurm={}), changed(kube_name="{node}.other")):
        answer = client.put("/v1/policy", params=params, headers=headers, json=document)
        message = answer.json()["errors"][0]["message"]
        assert answer.status_code == 422
        assert "gpu-1 is lent to kubernetes; gpu-2 is in motion" in message
        assert "gpu-3" not in message
    kept = client.put("/v1/policy", params=params, headers=headers, json=changed(nodes=["gpu-[1-2]"], gpus=4))
    assert kept.status_code == 200


@pytest.mark.parametrize("dry_run", ["true", "false"])
@pytest.mark.parametrize("owner", [Owner.BRIDGE, Owner.SLURM])
def test_a_node_that_is_nobodys_may_leave_as_one_at_home_may(
    world: World, client: TestClient, owner: Owner, dry_run: str
) -> None:
    """It is closed on both sides: a broken machine in quarantine need not come home first. The ledger says the same."""
    world.share()
    world.own("gpu-1", owner)
    params, headers = {"dry_run": dry_run}, {"If-Match": '"1"'}
    answer = client.put("/v1/policy", params=params, headers=headers, json=changed(nodes=["gpu-[2-4]"]))
    assert answer.status_code == 200, answer.text
    assert ("gpu-1" in world.ledger.read().nodes) is (dry_run == "true")


def test_the_ledgers_own_refusal_is_told_too(world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    world.share()
    world.own("gpu-1", Owner.KUBERNETES)
    # As if the node had been lent between our check and the write.
    monkeypatch.setattr("bridge.api.routes.policy.uprooted", lambda nodes, state: [])
    answer = client.put("/v1/policy", headers={"If-Match": '"1"'}, json=changed(nodes=["gpu-[2-4]"]))
    assert answer.status_code == 422
    assert "gpu-1" in answer.json()["errors"][0]["message"]
