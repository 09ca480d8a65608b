"""Which shared nodes help a pod that cares about other pods: worked out by hand, and as laws of spreading."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.kube.fit import Fleet, Shape
from bridge.kube.load import pending
from bridge.kube.names import GPU_RESOURCE, TAINT
from bridge.kube.neighbours import MOST_PLACED, Neighbours
from bridge.kube.pods import Pod, read_pod
from bridge.kube.selectors import selector
from bridge.model.kube import PendingPod

ZONE, HOST = "zone", "kubernetes.io/hostname"
CHAT = {"app": "chat"}
TRIED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]


def shape(name: str, zone: str = "", *, taint: str = "") -> Shape:
    labels = {HOST: name} | ({ZONE: zone} if zone else {})
    return Shape(name, labels, ({"key": taint, "value": "", "effect": "NoSchedule"},) if taint else (), 8)


SHARED = [shape(name, name[0]) for name in ("a1", "a2", "b1", "b2")]
C1 = shape("c1", "c")


def pod(name: str, node: str = "", labels: dict[str, str] | None = None, *, namespace: str = "lab", **more: Any) -> Pod:
    metadata = {"namespace": namespace, "name": name, "uid": name, "labels": CHAT if labels is None else labels}
    if more.pop("deleted", False):
        metadata["deletionTimestamp"] = "2026-05-04T12:00:00Z"
    status = {"phase": "Running"} if node else {"phase": "Pending", "conditions": TRIED}
    containers = [{"name": "c", "resources": {"limits": {GPU_RESOURCE: "1"}}}]
    return read_pod(
        {"metadata": metadata, "spec": {"nodeName": node, "containers": containers, **more}, "status": status}
    )


def spread(key: str = ZONE, **more: Any) -> dict[str, Any]:
    body = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **more}
    return {"topologySpreadConstraints": [{"labelSelector": {"matchLabels": CHAT}, **body}]}


def term(kind: str, key: str, labels: dict[str, str], **more: Any) -> dict[str, Any]:
    body = {"topologyKey": key, "labelSelector": {"matchLabels": labels}, **more}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [body]}}}


def asked(*pods: Pod, elsewhere: tuple[Shape, ...] = (), shared: list[Shape] = SHARED) -> list[PendingPod]:
    return list(pending(pods, Fleet(shared), Neighbours(pods, shared, elsewhere)))


def helped(*pods: Pod, **nodes: Any) -> list[str]:
    """The nodes that help each waiting pod, by name, or why none does."""
    return [one.obstacle or " ".join(sorted(one.helps or {"any"})) for one in asked(*pods, **nodes)]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([pod("p", **spread())], ["any"], id="one pod, zones alike"),
        pytest.param([pod("x", "a1"), pod("p", **spread())], ["b1 b2"], id="zone a is ahead"),
        pytest.param([pod("x", "a1", deleted=True), pod("p", **spread())], ["any"], id="one that goes is not counted"),
        pytest.param([pod("x", "a1", namespace="other"), pod("p", **spread())], ["any"], id="another namespace"),
        pytest.param([pod(n, **spread()) for n in "pqr"], ["a1 a2", "b1 b2", "a1 a2"], id="three by turns"),
        pytest.param([pod(n, **spread(maxSkew=3)) for n in "pqr"], ["any"] * 3, id="three within the skew"),
        pytest.param(
            [pod(n, **spread(whenUnsatisfiable="ScheduleAnyway")) for n in "pq"], ["any"] * 2, id="a mere wish"
        ),
        pytest.param(
            [pod("x", "a1"), pod("p", labels={"app": "web"}, **spread())], ["any"], id="itself not one of those counted"
        ),
        pytest.param(
            [pod("x", "a1", CHAT | {"v": "1"}), pod("p", labels=CHAT | {"v": "2"}, **spread(matchLabelKeys=["v"]))],
            ["any"],
            id="those of another rollout do not count",
        ),
        pytest.param(
            [pod(f"s-{i}", labels=CHAT | {"index": str(i)}, **spread()) for i in (0, 1)],
            ["a1 a2", "b1 b2"],
            id="pods of a StatefulSet, told apart by a label, are alike",
        ),
        pytest.param(
            [pod("x", "a1"), pod("p", **spread(), nodeSelector={ZONE: "a"})], ["a1 a2"], id="only its own zones count"
        ),
        pytest.param(
            [pod("x", "a1"), pod("p", **spread(nodeAffinityPolicy="Ignore"), nodeSelector={ZONE: "a"})],
            ["its pods are to be spread over zone: b has the fewest (0), and no shared node that it fits is there"],
            id="unless it says otherwise",
        ),
    ],
)
def test_spread_over_zones(pods: list[Pod], expected: list[str]) -> None:
    assert helped(*pods) == expected


def test_a_zone_that_no_shared_node_is_in_counts_as_well() -> None:
    pods = [pod("x", "a1"), pod("y", "b1"), pod("p", **spread())]
    why = "its pods are to be spread over zone: c has the fewest (0), and no shared node that it fits is there"
    assert helped(*pods) == ["any"]
    assert helped(*pods, elsewhere=(C1,)) == [why]
    honored = [*pods[:2], pod("p", **spread(nodeTaintsPolicy="Honor"))]
    assert helped(*honored, elsewhere=(shape("c1", "c", taint="cpu-only"),)) == ["any"]
    assert helped(*honored, elsewhere=(C1,)) == [why]


def test_closed_nodes_count_unless_taints_are_honored() -> None:
    """Zone b is closed by us, so that it counts as empty: zone a may not take a second pod, until b is opened."""
    shared = [shape("a1", "a"), shape("b1", "b", taint=TAINT)]
    assert helped(pod("x", "a1"), pod("p", **spread()), shared=shared) == ["b1"]
    assert helped(pod("x", "a1"), pod("p", **spread(nodeTaintsPolicy="Honor")), shared=shared) == ["any"]


def test_nodes_without_the_label_help_nobody_who_is_spread_by_it() -> None:
    bare = [shape("n1"), shape("n2")]
    why = "no shared node that it fits has label zone, over which its pods are to be spread"
    assert helped(pod("p", **spread()), shared=bare) == [why]
    assert helped(pod("p", **spread()), shared=[*bare, shape("a1", "a")]) == ["a1"]


BANK = {"app": "bank"}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([pod("x", "a1", BANK), pod("p", **term("podAntiAffinity", ZONE, BANK))], ["b1 b2"], id="apart"),
        pytest.param(
            [pod("x", "a1", BANK, deleted=True), pod("p", **term("podAntiAffinity", ZONE, BANK))],
            ["b1 b2"],
            id="apart, too, from one that goes",
        ),
        pytest.param(
            [pod("x", "a1", BANK), pod("y", "b2", BANK), pod("p", **term("podAntiAffinity", ZONE, BANK))],
            ["keeps away from pods app=bank by zone, and one is in each of the shared nodes that fit"],
            id="nowhere apart",
        ),
        pytest.param(
            [pod("x", "a1", BANK), pod("p", **term("podAntiAffinity", HOST, BANK))],
            ["any"],
            id="apart by node: an emptied one is as good as any",
        ),
        pytest.param(
            [pod("x", "a1", BANK, **term("podAntiAffinity", ZONE, CHAT)), pod("p")], ["b1 b2"], id="kept away"
        ),
        pytest.param(
            [pod("x", "a1", BANK, **term("podAntiAffinity", ZONE, CHAT)), pod("p", labels={})], ["any"], id="not it"
        ),
        pytest.param([pod("x", "a1", BANK), pod("p", **term("podAffinity", ZONE, BANK))], ["a1 a2"], id="beside"),
        pytest.param([pod("x", "a1", BANK), pod("p", **term("podAffinity", HOST, BANK))], ["a1"], id="on its node"),
        pytest.param([pod("p", **term("podAffinity", ZONE, CHAT))], ["any"], id="the first of its kind"),
        pytest.param(
            [pod("p", **term("podAffinity", ZONE, BANK))],
            ["must be beside pods app=bank by zone, and none is near a shared node that it fits"],
            id="beside nobody",
        ),
        pytest.param(
            [pod("p", **term("podAffinity", ZONE, BANK, namespaceSelector={"matchLabels": {"team": "x"}}))],
            ["UNKNOWN: its pod affinity asks for namespaces selected by label, which the bridge does not read"],
            id="what cannot be judged is said",
        ),
    ],
)
def test_beside_and_apart(pods: list[Pod], expected: list[str]) -> None:
    assert helped(*pods) == expected


@pytest.mark.parametrize(
    ("spec", "per_node"),
    [
        ({}, 0),
        (term("podAntiAffinity", HOST, CHAT), 1),
        (term("podAntiAffinity", HOST, BANK), 0),
        (spread(HOST), 1),
        (spread(HOST, maxSkew=3), 3),
        (spread(HOST) | term("podAntiAffinity", HOST, CHAT), 1),
    ],
    ids=["any number", "apart", "apart from others", "spread", "spread by three", "both"],
)
def test_how_many_of_a_kind_a_node_may_take(spec: dict[str, Any], per_node: int) -> None:
    assert [one.per_node for one in asked(pod("p", **spec), pod("q", **spec))] == [per_node] * 2


def test_a_node_may_take_more_when_all_nodes_hold_some() -> None:
    """Each node holds one: another on each, so two on a node, within a skew of one."""
    held = [pod(f"x{node.name}", node.name) for node in SHARED]
    assert [one.per_node for one in asked(*held, pod("p", **spread(HOST)))] == [2]


def test_beyond_many_pods_they_are_told_what_the_first_ones_are() -> None:
    pods = [pod(f"p{i:04}", **spread()) for i in range(MOST_PLACED + 3)]
    assert helped(*pods)[-3:] == ["a1 a2", "b1 b2", "a1 a2"]


def test_a_selector_reads_as_people_write_it() -> None:
    body = {
        "matchLabels": {"app": "chat"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]},
            {"key": "old", "operator": "DoesNotExist"},
            {"key": "gpu", "operator": "Exists"},
        ],
    }
    assert str(selector(body)) == "app=chat,tier in (a,b),!old,gpu"
    assert str(selector({})) == "anything"


# --- laws ---

HELD = st.lists(st.sampled_from(["a1", "a2", "b1", "b2", "c1"]), max_size=8)


@given(HELD, st.integers(1, 6), st.integers(1, 3), st.integers(0, 4))
def test_pods_that_go_where_they_are_told_never_break_the_skew(
    held: list[str], count: int, skew: int, min_domains: int
) -> None:
    more = {"minDomains": min_domains} if min_domains else {}
    waiting = [pod(f"p{i}", **spread(maxSkew=skew, **more)) for i in range(count)]
    placed = [pod(f"x{i}", node) for i, node in enumerate(held)]
    zones = Counter({"a": 0, "b": 0, "c": 0})
    zones.update(node[0] for node in held)
    for one in asked(*placed, *waiting, elsewhere=(C1,)):
        least = min(zones.values()) if min_domains <= 3 else 0
        if one.obstacle:
            assert all(zones[zone] + 1 - least > skew for zone in "ab"), "no zone of the shared nodes would do"
        else:
            # The worst that the scheduler may do is to put each into the fullest of its zones.
            zone = max({name[0] for name in one.helps or {"a1", "b1"}}, key=lambda zone: zones[zone])
            assert zones[zone] + 1 - least <= skew
            zones[zone] += 1


@given(HELD, st.integers(1, 6), st.randoms())
def test_the_order_in_which_pods_are_listed_changes_nothing(held: list[str], count: int, chance: Any) -> None:
    pods = [pod(f"x{i}", node) for i, node in enumerate(held)] + [pod(f"p{i}", **spread()) for i in range(count)]
    shuffled = list(pods)
    chance.shuffle(shuffled)
    assert asked(*pods) == asked(*shuffled)
