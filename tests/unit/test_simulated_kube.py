"""What the simulated Kubernetes and its node controller do, fact by fact as the real ones were seen to do it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bridge.model.errors import CallFailed, Fenced, Unreadable
from bridge.model.kube import KubeNode, LoanSpec, LoanStatus
from bridge.model.ownership import Mark, Owner, Side
from bridge.simulation.cluster import Cluster, Deployment, KubeTimings
from bridge.simulation.kube import SimulatedKube
from bridge.simulation.world import World

NODE = "gpu-1.testbed"
CLOSED = LoanSpec(NODE, Owner.BRIDGE, Mark("lease0001", 1, 7), gpus=8)
OPEN = LoanSpec(NODE, Owner.KUBERNETES, Mark("lease0002", 1, 9), gpus=8)
CHAT = Deployment("chat", replicas=1, startup_s=2, shutdown_s=1)


@pytest.fixture
def world() -> World:
    """One node, and no Slurm on it: its side is closed."""
    world = World(seed=1, nodes=1, exact=True)
    world.slurm.admin_reserve("elsewhere", ["gpu-1"])
    return world


@pytest.fixture
def kube(world: World) -> SimulatedKube:
    return world.kube


@pytest.fixture
def cluster(world: World) -> Cluster:
    return world.kube.cluster


def node(kube: SimulatedKube) -> KubeNode:
    return kube.observe().nodes[NODE]


def status(kube: SimulatedKube) -> LoanStatus:
    return node(kube).status


def wait(world: World, seconds: float) -> None:
    world.run(world.clock.monotonic_s() + seconds)


def serve(world: World, deployment: Deployment = CHAT) -> None:
    world.kube.cluster.apply(deployment)
    wait(world, 5)
    assert len(node(world.kube).work_pods) == deployment.replicas


# --- pods ---


def test_a_pod_is_bound_runs_and_becomes_ready(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    cluster.apply(CHAT)
    wait(world, 0.2)
    assert node(kube).work_pods == ("default/chat-1",)
    assert not cluster.of(CHAT.key)[0].ready
    wait(world, 2)
    assert cluster.of(CHAT.key)[0].ready
    assert [start.work for start in world.oracle.starts(Side.KUBERNETES)] == ["pod default/chat-1"]
    assert node(kube).gpus_used == 8


def test_a_pod_without_room_is_pending_with_its_group_and_the_schedulers_words(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    cluster.apply(replace(CHAT, replicas=2))
    wait(world, 3)
    (pending,) = kube.observe().pending
    assert (pending.group, pending.gpus) == ("Deployment default/chat", 8)
    assert pending.message == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_a_running_pod_shows_its_warm_up_and_the_room_of_its_budget(world: World, kube: SimulatedKube) -> None:
    cluster = kube.cluster
    cluster.apply(replace(CHAT, replicas=3, gpus=2, min_available=2))
    wait(world, 1)
    assert [(pod.warm_up_s, pod.disruptions_allowed) for pod in node(kube).running] == [(0, 0)] * 3
    wait(world, 5)
    running = node(kube).running
    assert [(pod.warm_up_s, pod.disruptions_allowed) for pod in running] == [(2, 1)] * 3
    cluster.delete(cluster.of(CHAT.key)[0])
    assert [pod.protected for pod in node(kube).running] == ["it is terminating already", "", ""]


def test_a_clock_set_back_while_a_pod_warms_up_makes_no_negative_warm_up(world: World, kube: SimulatedKube) -> None:
    kube.cluster.apply(replace(CHAT, replicas=1))
    wait(world, 1)
    world.clock.step_wall(-600)
    wait(world, 5)
    assert [pod.warm_up_s for pod in node(kube).running] == [0]


def test_a_pod_waits_for_the_nodes_that_could_take_it(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    cluster.apply(replace(CHAT, replicas=2))
    wait(world, 3)
    assert [(pod.helps, pod.obstacle) for pod in kube.observe().pending] == [(None, "")]
    cluster.set_others_taint(NODE, True)
    assert [pod.obstacle for pod in kube.observe().pending] == ["does not tolerate a taint of the shared nodes"]


def test_small_pods_share_a_node(world: World, kube: SimulatedKube) -> None:
    serve(world, replace(CHAT, replicas=4, gpus=2))
    assert node(kube).gpus_used == 8


def test_scaling_down_takes_the_pods_that_serve_least_first(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    cluster.apply(replace(CHAT, replicas=2))
    wait(world, 5)
    cluster.scale(CHAT.key, 1)
    wait(world, 5)
    assert kube.observe().pending == ()
    assert node(kube).work_pods == ("default/chat-1",)


# --- closing ---


def test_closing_taints_and_fences_and_is_read_back(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    kube.want([CLOSED])
    assert status(kube) == LoanStatus()
    wait(world, 1)
    answer = status(kube)
    assert answer.closed
    assert not answer.open
    assert answer.observed == CLOSED.mark
    assert cluster.nodes[NODE].taint == "lease0001"
    assert cluster.fence == {NODE: str(CLOSED.mark)}


def test_a_closed_node_is_not_cordoned(world: World, kube: SimulatedKube) -> None:
    """`spec.unschedulable` belongs to people."""
    kube.want([CLOSED])
    wait(world, 1)
    assert not node(kube).cordoned


def test_no_pod_comes_to_a_closed_node(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    kube.want([CLOSED])
    wait(world, 1)
    cluster.apply(CHAT)
    wait(world, 60)
    assert node(kube).work_pods == ()
    assert kube.observe().pending[0].message == "0/1 nodes are available: 1 had untolerated taint."


def test_a_pod_binds_after_the_taint_because_the_scheduler_had_already_picked_the_node() -> None:
    """K8: so the proof waits a moment after the latches stood, and then finds the pod."""
    timings = KubeTimings(controller_s=0.1, scheduling_s=0.06, bind_s=0.1)
    world = World(seed=1, nodes=1, exact=True, strict=False, kube_timings=timings)
    kube = world.kube
    kube.want([replace(CLOSED, nonce="n1")])
    kube.cluster.apply(CHAT)
    wait(world, 0.12)
    assert kube.cluster.nodes[NODE].taint
    assert node(kube).work_pods == ()
    wait(world, 3)
    assert node(kube).work_pods == ("default/chat-1",)
    assert status(kube).empty_nonce == ""


def test_the_fence_refuses_a_binding_once_admission_sees_it(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    """The second latch holds when the first one is taken away."""
    kube.want([CLOSED])
    wait(world, 2)
    kube.controller.stop()
    cluster.set_taint(NODE, "")
    cluster.apply(CHAT)
    wait(world, 30)
    assert node(kube).work_pods == ()


def test_emptiness_is_proved_only_a_moment_after_both_latches_stood(world: World, kube: SimulatedKube) -> None:
    kube.want([replace(CLOSED, nonce="n1")])
    wait(world, 0.3)
    assert status(kube).closed
    assert status(kube).empty_nonce == ""
    wait(world, 0.5)
    assert status(kube).empty_nonce == "n1"
    assert status(kube).node_uid == node(kube).uid


def test_every_proof_quotes_the_nonce_it_was_asked_with(world: World, kube: SimulatedKube) -> None:
    kube.want([replace(CLOSED, nonce="n1")])
    wait(world, 2)
    kube.want([replace(CLOSED, nonce="n2")])
    assert status(kube).empty_nonce == "n1"
    wait(world, 1)
    assert status(kube).empty_nonce == "n2"


def test_pods_are_evicted_only_when_allowed(world: World, kube: SimulatedKube) -> None:
    serve(world)
    kube.want([replace(CLOSED, nonce="n1")])
    wait(world, 60)
    assert status(kube).pods_left == 1
    assert status(kube).blockers == ("pod default/chat-1 runs (Deployment default/chat)",)
    kube.want([replace(CLOSED, nonce="n1", evict=True)])
    wait(world, 5)
    assert status(kube).pods_left == 0
    assert status(kube).empty_nonce == "n1"


def test_a_terminating_pod_is_not_gone(world: World, kube: SimulatedKube) -> None:
    """K1: its process runs until its grace is over."""
    serve(world, replace(CHAT, shutdown_s=30))
    kube.want([replace(CLOSED, nonce="n1", evict=True)])
    wait(world, 20)
    assert node(kube).work_pods == ("default/chat-1",)
    assert status(kube).blockers[0].startswith("pod default/chat-1 is terminating since 2030-01-07T")
    assert status(kube).empty_nonce == ""
    assert len(world.machines.running("gpu-1")) == 1
    wait(world, 15)
    assert status(kube).empty_nonce == "n1"
    assert world.machines.running("gpu-1") == ()


def test_an_evicted_pod_is_made_anew_and_waits(world: World, kube: SimulatedKube) -> None:
    serve(world)
    kube.want([replace(CLOSED, evict=True)])
    wait(world, 5)
    assert [pod.name for pod in kube.observe().pending] == ["chat-2"]


def test_a_disruption_budget_blocks_an_eviction_and_is_named(world: World, kube: SimulatedKube) -> None:
    """K3: nobody falls back to deleting."""
    serve(world, replace(CHAT, min_available=1))
    kube.want([replace(CLOSED, evict=True, nonce="n1")])
    wait(world, 120)
    assert status(kube).blockers == (
        "pod default/chat-1: PodDisruptionBudget allows no disruption: The disruption budget chat needs 1 healthy pods "
        "and has 1 currently",
    )
    assert len(world.machines.running("gpu-1")) == 1


def test_a_budget_over_pods_that_never_get_ready_blocks_too(world: World, kube: SimulatedKube) -> None:
    """K5, the API's default policy; the other one lets them go."""
    crashing = replace(CHAT, min_available=1, startup_s=math.inf)
    serve(world, crashing)
    kube.want([replace(CLOSED, evict=True)])
    wait(world, 60)
    assert "has 0 currently; the pod is not ready: unhealthyPodEvictionPolicy" in status(kube).blockers[0]
    kube.cluster.apply(replace(crashing, evicts_unready=True))
    wait(world, 5)
    assert node(kube).work_pods == ()


def test_two_budgets_over_one_pod_are_an_error_of_their_own_whatever_room_they_have(
    world: World, kube: SimulatedKube
) -> None:
    """K4: a 500, not a 429."""
    serve(world, replace(CHAT, replicas=4, gpus=2, min_available=1, budgets=2))
    kube.want([replace(CLOSED, evict=True)])
    wait(world, 60)
    assert len(status(kube).blockers) == 4
    assert all("more than one PodDisruptionBudget covers it" in why for why in status(kube).blockers)
    assert [pod.protected for pod in node(kube).running] == [
        "2 disruption budgets cover it, and the Eviction API refuses such a pod"
    ] * 4


def test_a_pod_without_a_node_is_evicted_whatever_its_budget_says(world: World, cluster: Cluster) -> None:
    cluster.apply(replace(CHAT, replicas=2, min_available=2))
    wait(world, 3)
    (waiting,) = (pod for pod in cluster.of(CHAT.key) if not pod.node)
    assert cluster.evict(waiting) == ""


@pytest.mark.parametrize(
    ("evictable", "words"),
    [
        (None, "has no controller that would make it again: delete it, or annotate it"),
        (False, "asks not to be disrupted"),
        (True, ""),
    ],
)
def test_a_bare_pod_is_evicted_only_if_its_owner_says_so_and_never_comes_back(
    world: World, kube: SimulatedKube, cluster: Cluster, evictable: bool | None, words: str
) -> None:
    """K9."""
    serve(world, replace(CHAT, kind="", evictable=evictable))
    assert [(pod.owner, pod.group) for pod in node(kube).running] == [
        ("Pod" if evictable else "", "Pod default/chat-1")
    ]
    kube.want([replace(CLOSED, evict=True, nonce="n1")])
    wait(world, 60)
    if words:
        assert words in status(kube).blockers[0]
        cluster.delete(cluster.on(NODE)[0])
        wait(world, 5)
    assert status(kube).empty_nonce == "n1"
    assert cluster.pods == {}


def test_eviction_goes_tier_by_tier(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    cluster.apply(replace(CHAT, gpus=2, shutdown_s=3))
    cluster.apply(Deployment("agent", 0, gpus=1, kind="DaemonSet"))
    cluster.apply(Deployment("system", 1, gpus=1, priority=2_000_000_000))
    wait(world, 5)
    kube.want([replace(CLOSED, evict=True)])
    order = ["default/agent-2", "default/chat-1", "default/system-3"]
    assert list(node(kube).work_pods) == order
    wait(world, 1)
    assert [pod.key for pod in cluster.on(NODE) if pod.terminating] == ["default/chat-1"]
    assert status(kube).blockers[1:] == tuple(f"pod {key} is evicted after the others" for key in (order[0], order[2]))
    wait(world, 15)
    assert cluster.on(NODE) == []


@pytest.mark.parametrize("tolerates", [False, True])
def test_a_daemon_of_the_infrastructure_does_not_keep_a_node_busy_and_is_made_again_where_it_tolerates_the_taint(
    world: World, kube: SimulatedKube, cluster: Cluster, tolerates: bool
) -> None:
    """K11."""
    cluster.infrastructure.add("kube-system")
    plugin = Deployment("plugin", 0, gpus=0, namespace="kube-system", kind="DaemonSet", tolerates=tolerates)
    cluster.apply(plugin)
    wait(world, 5)
    kube.want([replace(CLOSED, evict=True, nonce="n1")])
    wait(world, 5)
    assert status(kube).empty_nonce == "n1"
    (pod,) = cluster.on(NODE)
    cluster.delete(pod)
    wait(world, 5)
    assert [pod.name for pod in cluster.on(NODE)] == (["plugin-2"] if tolerates else [])
    kube.want([OPEN])
    wait(world, 5)
    assert [pod.name for pod in cluster.on(NODE)] == ["plugin-2"]


def test_a_daemon_of_anybody_else_keeps_the_node_busy_until_it_is_evicted_and_is_no_demand(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    """K11: the fence refuses the next one, though it tolerates the taint."""
    cluster.apply(Deployment("miner", 0, gpus=8, kind="DaemonSet", tolerates=True))
    wait(world, 5)
    kube.want([replace(CLOSED, nonce="n1")])
    wait(world, 5)
    assert status(kube).blockers == ("pod default/miner-1 runs (DaemonSet default/miner)",)
    kube.want([replace(CLOSED, nonce="n1", evict=True)])
    wait(world, 30)
    assert status(kube).empty_nonce == "n1"
    assert [pod.node for pod in cluster.of("default/miner")] == [""]
    assert kube.observe().pending == ()


def test_a_volume_stays_attached_longer_than_its_pod(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    """K12."""
    serve(world, replace(CHAT, detach_s=20))
    kube.want([replace(CLOSED, evict=True, nonce="n1")])
    wait(world, 10)
    assert (status(kube).phase, status(kube).pods_left) == ("Closed", 0)
    assert status(kube).blockers == ("volume pvc-pod-1 is still attached",)
    wait(world, 15)
    assert status(kube).empty_nonce == "n1"


def test_pods_that_no_node_can_take_say_why(kube: SimulatedKube, world: World, cluster: Cluster) -> None:
    """K16."""
    cluster.apply(replace(CHAT, name="huge", gpus=9))
    cluster.apply(replace(CHAT, name="picky", only_on=frozenset()))
    wait(world, 3)
    assert [(pod.name, pod.obstacle) for pod in kube.observe().pending] == [
        ("huge-1", "asks for 9 GPUs, a node has 8"),
        ("picky-2", "no shared node matches its node affinity"),
    ]


def test_a_pod_stuck_by_a_finalizer_keeps_the_node_from_being_empty(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    """K12: its process is gone, its object is not."""
    serve(world)
    (pod,) = cluster.on(NODE)
    pod.finalizer = True
    kube.want([replace(CLOSED, evict=True, nonce="n1")])
    wait(world, 60)
    assert world.machines.running("gpu-1") == ()
    assert status(kube).empty_nonce == ""
    cluster.drop_finalizer(pod)
    wait(world, 2)
    assert status(kube).empty_nonce == "n1"


def test_a_taint_taken_away_by_others_is_put_back_a_bounded_number_of_times(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    """K7."""
    kube.want([CLOSED])
    wait(world, 1)
    for _ in range(5):
        cluster.set_taint(NODE, "")
        wait(world, 1)
        assert cluster.nodes[NODE].taint == "lease0001"
    cluster.set_taint(NODE, "")
    wait(world, 1)
    assert not status(kube).closed
    assert "not put back" in status(kube).blockers[0]


def test_a_persons_cordon_and_others_taints_stay(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    cluster.cordon(NODE)
    cluster.set_others_taint(NODE, True)
    kube.want([CLOSED])
    wait(world, 2)
    kube.want([OPEN])
    wait(world, 2)
    assert cluster.nodes[NODE].cordoned
    assert cluster.nodes[NODE].others_taint


# --- opening ---


def test_opening_takes_both_latches_away_and_pods_come(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    kube.want([CLOSED])
    wait(world, 2)
    cluster.apply(CHAT)
    kube.want([OPEN])
    wait(world, 2)
    assert status(kube).open
    assert not status(kube).closed
    assert status(kube).observed == OPEN.mark
    assert cluster.fence == {}
    assert node(kube).work_pods == ("default/chat-1",)


def test_an_open_node_whose_device_plugin_lags_offers_no_gpu(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    """K10: Ready, and of no help yet."""
    kube.want([CLOSED])
    wait(world, 2)
    cluster.apply(CHAT)
    cluster.restart_device_plugin(NODE)
    kube.want([OPEN])
    wait(world, 1)
    assert status(kube).open
    assert node(kube).ready
    assert status(kube).gpus_allocatable == 0
    assert status(kube).blockers == ("the kubelet offers 0 of 8 GPUs",)
    assert len(kube.observe().pending) == 1
    wait(world, 5)
    assert status(kube).gpus_allocatable == 8
    assert kube.observe().pending == ()


def test_a_node_whose_fence_entry_or_taint_a_person_made_is_not_opened(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    cluster.set_fence(NODE, "mine")
    kube.want([OPEN])
    wait(world, 2)
    assert status(kube).blockers == ("the NodeFence's entry 'mine' is not the bridge's: remove it by hand",)
    cluster.set_fence(NODE, "")
    cluster.set_taint(NODE, "my-own")
    wait(world, 2)
    assert "was not set by the bridge" in status(kube).blockers[0]
    assert cluster.nodes[NODE].taint == "my-own"


# --- tokens ---


def test_a_newer_mark_outside_stops_a_late_loan(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    kube.want([OPEN])
    wait(world, 1)
    cluster.set_fence(NODE, str(Mark("lease0009", 2, 1)))
    wait(world, 2)
    assert not status(kube).open
    assert "newer than this NodeLoan's" in status(kube).blockers[0]


def test_an_older_mark_is_fenced(world: World, kube: SimulatedKube) -> None:
    kube.want([OPEN])
    with pytest.raises(Fenced):
        kube.want([CLOSED])
    later_epoch = replace(CLOSED, mark=Mark("lease0003", 2, 1))
    kube.want([later_epoch])
    with pytest.raises(Fenced):
        kube.want([OPEN])
    assert node(kube).spec == later_epoch


def test_the_same_wish_again_rings_no_bell_and_changes_nothing(world: World, kube: SimulatedKube) -> None:
    kube.want([CLOSED])
    wait(world, 2)
    before = node(kube)
    rung: list[str] = []
    kube.watch(rung.append)
    kube.want([CLOSED])
    wait(world, 2)
    assert node(kube) == before
    assert rung == []


def test_watchers_hear_of_a_change_at_once(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    rung: list[str] = []
    kube.watch(rung.append)
    cluster.cordon(NODE)
    assert rung == ["kubernetes"]


# --- the inspector ---


def test_the_inspector_names_who_holds_a_gpu_whichever_side_it_is_from(world: World, kube: SimulatedKube) -> None:
    process = world.machines.start("gpu-1", Side.SLURM, "job 7", "alice")
    kube.inspect(NODE, "n1")
    assert node(kube).inspection is None
    wait(world, 1)
    answer = node(kube).inspection
    assert answer is not None
    assert answer.nonce == "n1"
    assert [str(holder) for holder in answer.holders] == [f"process {process.pid} (job 7, alice) holds /dev/nvidia0"]
    world.machines.stop(process)
    wait(world, 1)
    assert node(kube).inspection == replace(answer, holders=())


def test_a_clean_answer_stands_until_the_inspector_is_asked_anew(world: World, kube: SimulatedKube) -> None:
    kube.inspect(NODE, "n1")
    wait(world, 1)
    process = world.machines.start("gpu-1", Side.SLURM, "job 7", "alice")
    wait(world, 5)
    answer = node(kube).inspection
    assert answer is not None
    assert (answer.nonce, answer.holders) == ("n1", ())
    kube.inspect(NODE, "n2")
    wait(world, 1)
    answer = node(kube).inspection
    assert answer is not None
    assert (answer.nonce, [holder.pid for holder in answer.holders]) == ("n2", [process.pid])


def test_an_inspector_that_cannot_look_says_so_and_a_silent_one_says_nothing(world: World, kube: SimulatedKube) -> None:
    kube.blind_inspector(NODE, "no access to /proc")
    kube.inspect(NODE, "n1")
    wait(world, 1)
    answer = node(kube).inspection
    assert answer is not None
    assert answer.error == "no access to /proc"
    kube.silence_inspector(NODE)
    kube.inspect(NODE, "n2")
    wait(world, 10)
    assert node(kube).inspection == answer


# --- what breaks ---


def test_with_a_dead_kubelet_a_pod_terminates_for_ever(world: World, kube: SimulatedKube, cluster: Cluster) -> None:
    """K2: NotReady comes late, gone never, and no proof is given."""
    serve(world)
    cluster.lose_kubelet(NODE)
    kube.want([replace(CLOSED, evict=True, nonce="n1")])
    wait(world, 30)
    assert node(kube).ready
    assert status(kube).blockers[0].startswith("pod default/chat-1 is terminating since 2030-01-07T")
    wait(world, 30)
    assert not node(kube).ready
    wait(world, 600)
    assert status(kube).empty_nonce == ""
    assert "UNKNOWN" in status(kube).blockers[0]
    assert len(world.machines.running("gpu-1")) == 1
    cluster.return_kubelet(NODE)
    wait(world, 5)
    assert status(kube).empty_nonce == "n1"
    assert world.machines.running("gpu-1") == ()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_kubelet_that_is_lost_again_while_it_is_lost_comes_back_for_good(
    world: World, kube: SimulatedKube, cluster: Cluster, times: int
) -> None:
    """Troubles that overlap end with the first return; no notice of an older one is left on its way."""
    for _ in range(times):
        cluster.lose_kubelet(NODE)
        wait(world, 1)
    cluster.return_kubelet(NODE)
    wait(world, 60)
    assert node(kube).ready


def test_a_stopped_controller_freezes_the_status_and_its_heartbeat_turns_stale(
    world: World, kube: SimulatedKube
) -> None:
    kube.controller.stop()
    kube.want([CLOSED])
    wait(world, 5)
    assert status(kube) == LoanStatus()
    assert kube.observe().controller_alive
    wait(world, 6)
    assert not kube.observe().controller_alive
    kube.controller.start()
    wait(world, 1)
    assert status(kube).closed


def test_an_absent_apiserver_is_unreadable_and_refuses_writes(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    cluster.stop_apiserver()
    with pytest.raises(Unreadable):
        kube.observe()
    with pytest.raises(CallFailed):
        kube.want([CLOSED])
    with pytest.raises(CallFailed):
        kube.inspect(NODE, "n1")
    cluster.apply(CHAT)
    wait(world, 5)
    cluster.start_apiserver()
    wait(world, 5)
    assert node(kube).work_pods == ("default/chat-1",)


def test_a_node_made_anew_has_another_uid_and_lost_its_taint_but_not_the_fence(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    """B7: a proof for the old node does not count for the new one."""
    kube.want([replace(CLOSED, nonce="n1")])
    wait(world, 2)
    kube.controller.stop()
    cluster.replace_node(NODE)
    assert status(kube).empty_nonce == "n1"
    assert status(kube).node_uid != node(kube).uid
    assert cluster.nodes[NODE].taint == ""
    assert cluster.fence == {NODE: str(CLOSED.mark)}


def test_a_node_that_is_not_there_is_fenced_all_the_same_and_not_proved_empty(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    cluster.remove_node(NODE)
    kube.want([replace(CLOSED, nonce="n1")])
    kube.inspect(NODE, "n1")
    wait(world, 5)
    assert NODE not in kube.observe().nodes
    assert cluster.fence == {NODE: str(CLOSED.mark)}
    cluster.return_node(NODE)
    wait(world, 5)
    assert status(kube).empty_nonce == "n1"
    assert status(kube).node_uid == "uid-gpu-1.testbed-2"
    assert node(kube).inspection is not None


def test_a_loan_is_deleted_only_when_annotated_and_its_marks_stay(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    kube.want([replace(CLOSED, nonce="n1")])
    wait(world, 2)
    with pytest.raises(CallFailed, match="Forbidden"):
        kube.delete_loan(NODE)
    kube.delete_loan(NODE, annotated=True)
    cluster.set_taint(NODE, "")
    wait(world, 5)
    assert node(kube).spec is None
    assert (cluster.nodes[NODE].taint, cluster.fence) == ("", {NODE: str(CLOSED.mark)})
    kube.want([replace(CLOSED, nonce="n2")])
    wait(world, 2)
    assert cluster.nodes[NODE].taint == "lease0001"
    assert status(kube).empty_nonce == "n2"


def test_a_fence_deleted_by_a_careless_uninstall_is_made_again(
    world: World, kube: SimulatedKube, cluster: Cluster
) -> None:
    kube.want([CLOSED])
    wait(world, 2)
    cluster.empty_fence()
    wait(world, 2)
    assert cluster.fence == {NODE: str(CLOSED.mark)}
    assert status(kube).closed


def test_an_unknown_node_is_refused(kube: SimulatedKube) -> None:
    with pytest.raises(CallFailed, match="gpu-9"):
        kube.want([replace(CLOSED, node="gpu-9.testbed")])
