"""What Kubernetes' waiting pods make of demand, and its running pods of work: packed, grouped and priced by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model.demand import Demand, Work
from bridge.model.kube import KubeNode, KubeObservation, PendingPod, RunningPod, ServingPool
from bridge.model.ownership import Side
from bridge.model.policy import Never, Policy, PoolPolicy, Preemption, Priorities, Team
from bridge.planning.serving import LOWEST_PRIORITY, Packing, kube_queue, kube_works

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
POOL = PoolPolicy(name="shared", nodes=("n[1-4]",), partition="shared")
OTHER = PoolPolicy(name="second", nodes=("m[1-2]",), partition="second")
POLICY = Policy(
    pools=(POOL, OTHER),
    teams=(Team(name="search", namespaces=("chat", "rank")),),
    priorities=Priorities(priority_classes={"production": 50}),
)
NAMES = {f"n{i}.example": f"n{i}" for i in range(1, 5)}
NODES = {name: KubeNode(name, f"uid-{name}", ready=True, cordoned=False, gpus_allocatable=8) for name in NAMES}
POD = PendingPod("chat", "p", "u", 8, "Deployment chat/api", pending_since=NOW - timedelta(seconds=9))
GB = 1024


# --- packing ---


@pytest.mark.parametrize(
    ("pods", "nodes"),
    [([], 0), ([8], 1), ([8, 8], 2), ([4, 4], 1), ([4, 4, 1], 2), ([6, 5, 3, 2], 2), ([1] * 9, 2), ([5, 5, 5], 3)],
)
def test_pods_are_packed_into_whole_nodes_by_gpus(pods: list[int], nodes: int) -> None:
    assert Packing((8, 1, 1, 1)).add((gpus, 0, 0, 0) for gpus in pods) == nodes


@pytest.mark.parametrize(
    ("pods", "nodes"),
    [
        pytest.param([(1, 10_000, 0)] * 8, 2, id="8 GPUs fit one node, 80 CPUs of 64 do not"),
        pytest.param([(1, 16_000, 0)] * 8, 2, id="4 pods of 16 CPUs fill 64"),
        pytest.param([(2, 0, 300 * GB)] * 4, 4, id="two pods of 300 GiB do not fit 512"),
        pytest.param([(4, 1_000, 400 * GB), (4, 60_000, 100 * GB)], 1, id="one needs memory, the other CPU"),
        pytest.param([(1, 1_000, 500 * GB), (7, 1_000, 8 * GB), (7, 1_000, 8 * GB)], 2, id="by the scarcest first"),
        pytest.param([(9, 1_000, 0)], 1, id="larger than a node: one by itself"),
    ],
)
def test_pods_are_packed_by_gpus_cpu_and_memory_together(pods: list[tuple[int, int, int]], nodes: int) -> None:
    assert Packing((8, 64_000, 512 * GB, 1)).add((*pod, 0) for pod in pods) == nodes


def test_what_comes_later_goes_into_the_room_that_is_left() -> None:
    packing = Packing((8, 64_000, 512 * GB, 1))
    assert [packing.add([(5, 0, 0, 0)]), packing.add([(3, 0, 0, 0)]), packing.add([(1, 0, 0, 0)])] == [1, 0, 1]


def test_many_equal_pods_are_packed_as_one() -> None:
    assert Packing((8, 1, 1, 1)).add([(3, 0, 0, 0)] * 1_000_001) == 500_001


@pytest.mark.parametrize(
    ("pods", "per_node", "nodes"),
    [
        pytest.param([(1, 0, 0, 0)] * 4, 0, 1, id="any number on a node"),
        pytest.param([(1, 0, 0, 0)] * 4, 1, 4, id="one on a node"),
        pytest.param([(1, 0, 0, 0)] * 5, 2, 3, id="two on a node"),
        pytest.param([(5, 0, 0, 0)] * 2, 2, 2, id="room for one alone"),
        pytest.param([(0, 0, 0, 142_857)] * 8, 0, 2, id="seven slices of a node, eight wanted"),
        pytest.param([(0, 0, 0, 500_000), (4, 0, 0, 0)], 0, 1, id="slices and GPUs"),
    ],
)
def test_what_may_not_share_a_node_opens_another(
    pods: list[tuple[int, int, int, int]], per_node: int, nodes: int
) -> None:
    assert Packing((8, 1, 1, 1_000_000)).add(pods, per_node) == nodes


def test_the_room_beside_one_a_node_is_for_others() -> None:
    packing = Packing((8, 1, 1, 1))
    assert [packing.add([(2, 0, 0, 0)] * 3, 1), packing.add([(6, 0, 0, 0)] * 3), packing.add([(1, 0, 0, 0)])] == [
        3,
        0,
        1,
    ]


def first_fit(sizes: list[int]) -> int:
    free: list[int] = []
    for size in sorted(sizes, reverse=True):
        at = next((i for i, room in enumerate(free) if room >= size), None)
        if at is None:
            free.append(8 - size)
        else:
            free[at] -= size
    return len(free)


@given(st.lists(st.integers(1, 8), max_size=40))
def test_counting_equal_nodes_changes_nothing_about_first_fit(sizes: list[int]) -> None:
    nodes = Packing((8, 1, 1, 1)).add((size, 0, 0, 0) for size in sizes)
    assert nodes == first_fit(sizes)
    assert ceil(sum(sizes) / 8) <= nodes <= ceil(11 / 9 * ceil(sum(sizes) / 4)) + 1


# --- demand ---


def queue(*pods: PendingPod, pool: PoolPolicy = POOL, nodes: dict[str, KubeNode] | None = None) -> list[Demand]:
    nodes = NODES if nodes is None else nodes
    names = {name: name.partition(".")[0] for name in nodes}
    return list(kube_queue(pool, POLICY, KubeObservation(NOW, nodes, pods), names, NOW).demands)


def brief(demands: list[Demand]) -> list[tuple[str, int]]:
    return [(demand.key, demand.nodes) for demand in demands if not demand.impossible]


def other(group: str, gpus: int, namespace: str = "chat") -> PendingPod:
    return replace(POD, gpus=gpus, group=f"Deployment {namespace}/{group}", namespace=namespace)


def test_what_a_demand_says() -> None:
    (found,) = queue(POD, replace(POD, name="q", priority=7, priority_class="production", pending_since=NOW))
    assert found == Demand(
        key="Deployment chat/api",
        side=Side.KUBERNETES,
        pool="shared",
        nodes=2,
        whole=False,
        priority=7,
        since=NOW - timedelta(seconds=9),
        team="search",
        rank=50,
        gpus_per_node=8,
    )


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([other("a", 8), other("b", 8)], [("Deployment chat/a", 1), ("Deployment chat/b", 1)], id="two"),
        pytest.param([other("a", 4), other("b", 4)], [("Deployment chat/a", 1)], id="one team's share a node"),
        pytest.param(
            [other("a", 4), other("b", 4, "rank")], [("Deployment chat/a", 1)], id="also in two of its namespaces"
        ),
        pytest.param(
            [other("a", 4), other("b", 4, "lab")],
            [("Deployment chat/a", 1), ("Deployment lab/b", 1)],
            id="two teams' do not",
        ),
        pytest.param(
            [other("a", 4), replace(other("b", 8), priority=9)],
            [("Deployment chat/b", 1), ("Deployment chat/a", 1)],
            id="larger priority first",
        ),
        pytest.param(
            [other("a", 8), replace(other("b", 8), pending_since=NOW - timedelta(seconds=99))],
            [("Deployment chat/b", 1), ("Deployment chat/a", 1)],
            id="then the longer wait",
        ),
        pytest.param([replace(POD, pending_since=None)], [("Deployment chat/api", 1)], id="a wait of unknown length"),
    ],
)
def test_pods_are_grouped_by_what_makes_them_again(pods: list[PendingPod], expected: list[tuple[str, int]]) -> None:
    assert brief(queue(*pods)) == expected


def test_no_more_is_listed_than_a_plan_could_use() -> None:
    """Four nodes: demands for up to 16 of them, and the one that goes beyond."""
    pods = tuple(other(f"d{i:02}", 8) for i in range(30))
    found = kube_queue(POOL, POLICY, KubeObservation(NOW, NODES, pods), NAMES, NOW)
    assert (len(found.demands), found.waiting) == (17, 30)


NINE = "asks for 9 GPUs, a node has 8"


def test_what_no_node_can_help_is_named_once_and_not_counted() -> None:
    """K16. Of a group the pods with one reason are one entry; other pools do not repeat it."""
    big = replace(POD, gpus=9, obstacle=NINE, helps=frozenset())
    pods = (POD, big, replace(big, name="q"), replace(big, group="Job chat/x", obstacle="no shared node has label x=y"))
    seen = KubeObservation(NOW, NODES, pods)
    found = kube_queue(POOL, POLICY, seen, NAMES, NOW)
    assert [(d.key, d.impossible, d.alike) for d in found.demands] == [
        ("Deployment chat/api", "", 1),
        ("Deployment chat/api", NINE, 2),
        ("Job chat/x", "no shared node has label x=y", 1),
    ]
    assert found.waiting == 1
    assert brief(list(kube_queue(OTHER, POLICY, seen, {}, NOW).demands)) == [("Deployment chat/api", 1)]
    assert not any(demand.impossible for demand in kube_queue(OTHER, POLICY, seen, {}, NOW).demands)


def test_a_pod_larger_than_the_pools_nodes_is_named_where_nothing_else_is_known() -> None:
    (found,) = queue(replace(POD, gpus=9))
    assert found.impossible == "asks for 9 GPUs, a node of pool shared has 8"


# --- nodes that help ---


def labelled(**labels: dict[str, str]) -> dict[str, KubeNode]:
    return {f"{n}.example": replace(NODES[f"{n}.example"], labels=of) for n, of in labels.items()}


A100, H100 = {"gpu": "a100"}, {"gpu": "h100"}
MIXED = labelled(n1=A100, n2=A100 | {"rack": "r1"}, n3=H100 | {"rack": "r1", "nic": "8"}, n4=H100)


@pytest.mark.parametrize(
    ("helps", "features"),
    [
        pytest.param(("n1", "n2", "n3", "n4"), (), id="all: no wish"),
        pytest.param(("n1", "n2"), ({"gpu=a100"},), id="a label tells them apart"),
        pytest.param(("n3",), ({"nic=8"},), id="of two labels the one that tells"),
        pytest.param(("n2",), ({"gpu=a100", "rack=r1"},), id="two labels together"),
        pytest.param(("n4",), ({"node=n4"},), id="no label tells: by name"),
        pytest.param(("n1", "n4"), ({"node=n1"}, {"node=n4"}), id="by several names"),
    ],
)
def test_where_only_some_nodes_help(helps: tuple[str, ...], features: tuple[set[str], ...]) -> None:
    (found,) = queue(replace(POD, helps=frozenset(f"{n}.example" for n in helps)), nodes=MIXED)
    assert found.features == features


def test_many_nodes_that_no_label_tells_apart_are_no_wish() -> None:
    nodes = {f"x{i}.example": replace(NODES["n1.example"], name=f"x{i}.example") for i in range(20)}
    for count, features in ((16, 16), (17, 0)):
        (found,) = queue(replace(POD, helps=frozenset(sorted(nodes)[:count])), nodes=nodes)
        assert len(found.features) == features


def test_pods_of_one_group_that_want_different_nodes_are_told_apart() -> None:
    a100 = replace(POD, helps=frozenset({"n1.example", "n2.example"}))
    h100 = replace(POD, helps=frozenset({"n3.example", "n4.example"}))
    found = queue(a100, h100, a100, nodes=MIXED)
    assert [(d.key, d.nodes, set(d.features[0])) for d in found] == [
        ("Deployment chat/api", 2, {"gpu=a100"}),
        ("Deployment chat/api (2)", 1, {"gpu=h100"}),
    ]


def test_a_pod_whom_another_pools_nodes_help_is_no_demand_of_this_one() -> None:
    assert queue(replace(POD, helps=frozenset({"m1.example"}))) == []


# --- gangs ---

MEMBER = replace(POD, group="Job chat/train", gang="JobSet chat/train", gang_pods=4, gpus=4)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([MEMBER] * 4, [("JobSet chat/train", 2)], id="4 x 4 GPUs are two nodes"),
        pytest.param([MEMBER], [("JobSet chat/train", 2)], id="pods not created yet count like the one that is"),
        pytest.param([replace(MEMBER, gpus=8), MEMBER], [("JobSet chat/train", 4)], id="like the largest: 8, 4, 8, 8"),
        pytest.param([replace(MEMBER, gang_pods=0)], [("JobSet chat/train", 1)], id="a gang of unknown size"),
        pytest.param(
            [MEMBER, other("a", 4)], [("JobSet chat/train", 2), ("Deployment chat/a", 1)], id="it shares no node"
        ),
        pytest.param([replace(MEMBER, gang_pods=1)], [("JobSet chat/train", 1)], id="the other three run"),
    ],
)
def test_a_gang_is_one_demand(pods: list[PendingPod], expected: list[tuple[str, int]]) -> None:
    found = queue(*pods)
    assert sorted(brief(found)) == sorted(expected)
    assert all(demand.whole for demand in found if demand.key == "JobSet chat/train")


def test_pods_that_must_be_on_nodes_of_their_own() -> None:
    alone = replace(POD, gpus=1, per_node=1)
    assert brief(queue(*[alone] * 3)) == [("Deployment chat/api", 3)]
    gang = [replace(MEMBER, gpus=1, gang_pods=3, per_node=1), replace(MEMBER, gpus=1, gang_pods=3)]
    assert brief(queue(*gang)) == [("JobSet chat/train", 2)], "1 + 1 missing apart, the third beside one of them"


def test_slices_of_a_gpu_are_demand_too() -> None:
    """Two of seven on a node: three such pods and no more fit one."""
    slices = replace(POD, gpus=0, share_ppm=285_714, asks="2 of nvidia.com/mig-1g.10gb")
    (found,) = queue(*[slices] * 4)
    assert (found.nodes, found.gpus_per_node) == (2, 0)
    assert brief(queue(replace(slices, share_ppm=0))) == [], "asks for nothing that a shared node is for"


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ([MEMBER, replace(MEMBER, obstacle=NINE)], f"a pod of the gang {NINE}"),
        ([replace(MEMBER, gpus=8, gang_pods=5)], "needs 5 nodes, and pool shared has 4"),
        (
            [MEMBER, replace(MEMBER, helps=frozenset({"m1.example"}))],
            "1 of its 2 pods cannot run in pool shared",
        ),
    ],
)
def test_a_gang_that_cannot_be_had_whole_is_named(pods: list[PendingPod], why: str) -> None:
    (found,) = queue(*pods)
    assert (found.key, found.impossible, found.alike) == ("JobSet chat/train", why, len(pods))


def test_a_gang_that_cannot_be_had_is_named_under_the_first_pool_alone() -> None:
    seen = KubeObservation(NOW, NODES, (MEMBER, replace(MEMBER, obstacle=NINE)))
    assert len(kube_queue(POOL, POLICY, seen, NAMES, NOW).demands) == 1
    assert kube_queue(OTHER, POLICY, seen, NAMES, NOW).demands == ()


def test_helpful_nodes_of_a_gang_are_those_of_all_its_pods() -> None:
    pods = [replace(MEMBER, helps=frozenset({f"n{i}.example"})) for i in (1, 4)]
    (found,) = queue(*pods, nodes=MIXED)
    assert found.features == ({"node=n1"}, {"node=n4"})


WAITING = st.builds(
    lambda gpus, group, gang, helps, obstacle, priority: replace(
        POD,
        gpus=gpus,
        group=group,
        gang=gang,
        gang_pods=3 if gang else 0,
        helps=helps,
        obstacle=obstacle,
        priority=priority,
    ),
    st.integers(1, 8),
    st.sampled_from(["Deployment chat/a", "Deployment chat/b", "Job chat/c"]),
    st.sampled_from(["", "", "JobSet chat/t"]),
    st.sampled_from([None, frozenset({"n1.example"}), frozenset({"n3.example", "n4.example"})]),
    st.sampled_from(["", "", "", NINE, "no shared node has label x=y"]),
    st.integers(0, 2),
)


@given(st.lists(WAITING, max_size=12), st.randoms())
def test_the_order_in_which_pods_are_read_changes_nothing(pods: list[PendingPod], chance: Random) -> None:
    shuffled = list(pods)
    chance.shuffle(shuffled)
    assert queue(*pods, nodes=MIXED) == queue(*shuffled, nodes=MIXED)


@given(st.lists(WAITING, max_size=12))
def test_keys_of_what_is_counted_are_unique_and_nodes_suffice(pods: list[PendingPod]) -> None:
    demands = [demand for demand in queue(*pods, nodes=MIXED) if not demand.impossible]
    assert len({demand.key for demand in demands}) == len(demands)
    counted = sum(pod.gpus for pod in pods if not pod.obstacle and not pod.gang)
    assert sum(demand.nodes for demand in demands) * 8 >= min(counted, 16 * 8)


# --- ServingPools ---

SERVING = ServingPool("api", ("chat",), headroom_nodes=2)


@pytest.mark.parametrize(
    ("serving", "nodes"),
    [
        pytest.param(SERVING, 2, id="headroom"),
        pytest.param(replace(SERVING, floor_nodes=4), 3, id="floor 4, one node in use"),
        pytest.param(replace(SERVING, max_nodes=2), 1, id="maximum 2, one node in use"),
        pytest.param(replace(SERVING, max_nodes=1), 0, id="at its maximum"),
        pytest.param(replace(SERVING, headroom_nodes=0), 0, id="none wanted"),
    ],
)
def test_headroom_of_a_serving_pool(serving: ServingPool, nodes: int) -> None:
    node = replace(NODES["n1.example"], running=(RUNNING,))
    seen = KubeObservation(NOW, {**NODES, "n1.example": node}, (POD,), (serving,))
    first, *rest = kube_queue(POOL, POLICY, seen, NAMES, NOW).demands
    assert first.key == "Deployment chat/api"
    assert [demand.nodes for demand in rest] == ([nodes] if nodes else [])
    for demand in rest:
        assert (demand.key, demand.priority, demand.team) == ("ServingPool api", LOWEST_PRIORITY, "search")
        assert (NOW - demand.since).total_seconds() == POOL.demand_age_s
    assert not any("ServingPool" in d.key for d in kube_queue(OTHER, POLICY, seen, {}, NOW).demands)


# --- work ---

RUNNING = RunningPod(
    "chat",
    "api-1",
    "u1",
    gpus=4,
    group="Deployment chat/api",
    owner="Deployment",
    priority=3,
    priority_class="production",
    started_at=NOW - timedelta(hours=1),
    warm_up_s=90,
)
PREEMPTION = Preemption(min_runtime_s=600, checkpoint_interval_s=1000, restart_s=100)


def works(*pods: RunningPod, preemption: Preemption = PREEMPTION) -> list[Work]:
    """Each pod on a node of its own, the first on n1."""
    nodes = {f"n{i}.example": replace(NODES[f"n{i}.example"], running=(pod,)) for i, pod in enumerate(pods, 1)}
    return list(kube_works(POLICY, preemption, KubeObservation(NOW, nodes), NAMES, NOW))


def test_a_running_pod_is_work() -> None:
    assert works(RUNNING) == [
        Work(
            key="pod chat/api-1",
            side=Side.KUBERNETES,
            team="search",
            nodes=("n1",),
            gpus=4,
            priority=3,
            rank=50,
            runs_for_s=3600,
            ends_in_s=None,
            loss_gpu_s=360,
        )
    ]


WORKER = replace(RUNNING, owner="RayCluster", role="ray-worker", idle=True)


@pytest.mark.parametrize(
    ("pod", "loss_gpu_s"),
    [
        pytest.param(RUNNING, 4 * 90, id="serving: 4 GPUs x 90 s of warm-up"),
        pytest.param(replace(RUNNING, gpus=0), 90, id="without GPUs it counts as one"),
        pytest.param(replace(RUNNING, owner="Job"), 4 * (600 + 100), id="3600 s, checkpoint each 1000 s: 600 + 100 s"),
        pytest.param(WORKER, 0, id="an idle Ray worker"),
        pytest.param(replace(WORKER, idle=False), 4 * 700, id="a busy one"),
    ],
)
def test_what_ending_a_pod_loses(pod: RunningPod, loss_gpu_s: float) -> None:
    (work,) = works(pod)
    assert (work.loss_gpu_s, work.idle_worker) == (loss_gpu_s, pod.idle)


def test_without_checkpoints_all_is_lost() -> None:
    (work,) = works(replace(RUNNING, owner="Job"), preemption=Preemption(restart_s=100))
    assert work.loss_gpu_s == 4 * 3700


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (replace(RUNNING, owner=""), "no controller would make it again"),
        (replace(RUNNING, protected="says do-not-disrupt"), "says do-not-disrupt"),
        (replace(RUNNING, role="ray-head", owner="RayCluster"), "a Ray head: its cluster would end"),
        (replace(RUNNING, disruptions_allowed=0), "its disruption budget has no room"),
        (replace(RUNNING, started_at=NOW - timedelta(seconds=5)), "it has run for 5 s of at least 600 s"),
        (replace(RUNNING, started_at=None), "it has run for 0 s of at least 600 s"),
        (replace(RUNNING, namespace="bank"), "its namespace bank is never a victim"),
        (replace(RUNNING, priority_class="gold"), "its priority class gold is never a victim"),
        (replace(RUNNING, disruptions_allowed=1), ""),
    ],
)
def test_who_is_never_a_victim(pod: RunningPod, why: str) -> None:
    never = Never(namespaces=("bank",), priority_classes=("gold",))
    (work,) = works(pod, preemption=PREEMPTION.model_copy(update={"never": never}))
    assert work.protected == why


def test_a_budgets_room_is_shared_by_its_pods() -> None:
    """K3. Warm-ups of 30, 90 and 60 s, room for one: the one of 30 s may go. A protected one takes no room."""
    pods = [
        replace(RUNNING, name=f"api-{i}", uid=f"u{i}", warm_up_s=warm_up_s, disruptions_allowed=1)
        for i, warm_up_s in enumerate((30, 90, 60))
    ]
    crowded = "its disruption budget allows 1 more, and cheaper ones go first"
    assert [work.protected for work in works(*pods)] == ["", crowded, crowded]
    young = replace(pods[0], started_at=NOW)
    assert [work.protected == crowded for work in works(young, *pods[1:])] == [False, True, False]


def test_room_counts_for_pods_on_nodes_of_all_pools() -> None:
    pods = [replace(RUNNING, uid=f"u{i}", warm_up_s=i, disruptions_allowed=1) for i in range(2)]
    nodes = {f"n{i}.example": replace(NODES[f"n{i}.example"], running=(pod,)) for i, pod in enumerate(pods, 1)}
    (work,) = kube_works(POLICY, PREEMPTION, KubeObservation(NOW, nodes), {"n2.example": "n2"}, NOW)
    assert work.protected == "its disruption budget allows 1 more, and cheaper ones go first"


def test_a_gang_is_one_work_on_all_its_nodes_and_lost_whole() -> None:
    members = [replace(RUNNING, name=f"t{i}", uid=f"t{i}", owner="Job", gang="JobSet chat/t") for i in range(3)]
    (work,) = works(*members)
    assert (work.key, work.nodes, work.gpus) == ("JobSet chat/t", ("n1", "n2", "n3"), 12)
    assert work.loss_gpu_s == 3 * 4 * 700
    (guarded,) = works(members[0], replace(members[1], protected="says do-not-disrupt"))
    assert guarded.protected == "says do-not-disrupt"
