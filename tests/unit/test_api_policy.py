"""The policy over REST: no change without the version it replaces, no mistake without its place and its remedy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from bridge.model.errors import Conflict
from bridge.model.ownership import Owner
from tests.unit.api_world import POLICY, World, bearer


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
    assert (read.headers["ETag"], read.json()) == ('"0"', {"pools": []})
    written = client.put("/v1/policy", json=POLICY, headers={"If-Match": '"0"'}, params={"note": "first pool"})
    assert (written.status_code, written.headers["ETag"]) == (200, '"1"')
    assert written.json() == {
        "version": 1,
        "dry_run": False,
        "nodes": 4,
        "joining": ["gpu-1", "gpu-2", "gpu-3", "gpu-4"],
        "leaving": [],
    }
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
    }
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
        ({"nodes": []}, ["nodes"], "at least 1 item", "add at least one entry"),
        ({"nodes": ["gpu-[1-"]}, ["nodes"], "a bracket is not closed", "write Slurm host lists such as gpu-[1-4]"),
        ({"nodes": ["gpu-[1-999999999]"]}, ["nodes"], "at most 100000", "write Slurm host lists such as gpu-[1-4]"),
        ({"nodes": ["@racks"]}, ["nodes"], "@racks", "write Slurm host lists such as gpu-[1-4]"),
        (
            {"kube_name": "{node}_x"},
            ["kube_name"],
            "'gpu-1_x' cannot be the name of a Kubernetes node",
            "use small letters, digits, '-' and '.'",
        ),
        ({"kube_name": "shared"}, [], "kube_name must contain '{node}'", "change the value as the message says"),
        ({"partition": "a b"}, ["partition"], "pattern", "use only the characters that the pattern allows"),
        (
            {"slurm": {"floor_nodes": 3}, "kubernetes": {"floor_nodes": 2}},
            ["slurm"],
            "the floors of pool h100 add up to 5 nodes and it has 4",
            "lower a floor or add nodes",
        ),
        (
            {"slurm": {"floor_nodes": 3, "max_nodes": 2}},
            ["slurm"],
            "floor_nodes 3 is above max_nodes 2",
            "change the value as the message says",
        ),
    ],
)
def test_mistakes_have_a_place_and_a_remedy(
    client: TestClient, pool: dict[str, Any], location: list[str], message: str, remedy: str
) -> None:
    found = errors_of(client, changed(**pool))
    assert found[0][0] == ["body", "pools", 0, *location]
    assert message in found[0][1]
    assert found[0][2] == remedy


def test_all_mistakes_are_told_at_once(client: TestClient) -> None:
    document = changed(gpus=0, nodes=[])
    document["pools"].append({"name": "a100", "nodes": ["cpu-1"]})
    assert [location for location, _, _ in errors_of(client, document)] == [
        ["body", "pools", 0, "nodes"],
        ["body", "pools", 0, "gpus"],
        ["body", "pools", 1, "partition"],
    ]


def test_a_node_belongs_to_one_pool(client: TestClient) -> None:
    document = changed()
    document["pools"].append({**document["pools"][0], "name": "a100", "nodes": ["gpu-[4-5]"]})
    assert errors_of(client, document) == [
        (["body", "pools", 1, "nodes"], "gpu-4 is in pool h100 already", "list it in one pool only")
    ]


def test_two_nodes_cannot_share_a_kubernetes_name(client: TestClient) -> None:
    document = changed(nodes=["a-1"], kube_name="n-{node}", slurm={})
    other = {**document["pools"][0], "name": "a100", "nodes": ["n-a-1"], "kube_name": "{node}"}
    document["pools"].append(other)
    document["pools"][0]["kubernetes"] = other["kubernetes"] = {}
    assert errors_of(client, document) == [
        (
            ["body", "pools", 1, "kube_name"],
            "n-a-1 and a-1 would both be n-a-1 in Kubernetes",
            "make the Kubernetes names differ",
        )
    ]


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
        assert "gpu-1 is owned by kubernetes; gpu-2 is in motion" in message
        assert "gpu-3" not in message
    kept = client.put("/v1/policy", params=params, headers=headers, json=changed(nodes=["gpu-[1-2]"], gpus=4))
    assert kept.status_code == 200


def test_the_ledgers_own_refusal_is_told_too(world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    world.share()
    world.own("gpu-1", Owner.KUBERNETES)
    # As if the node had been lent between our check and the write.
    monkeypatch.setattr("bridge.api.routes.policy.uprooted", lambda nodes, state: [])
    answer = client.put("/v1/policy", headers={"If-Match": '"1"'}, json=changed(nodes=["gpu-[2-4]"]))
    assert answer.status_code == 422
    assert "gpu-1" in answer.json()["errors"][0]["message"]
