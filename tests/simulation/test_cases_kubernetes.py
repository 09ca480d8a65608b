"""What goes wrong in the field on the Kubernetes side, one kind of fault a test, on the whole bridge.

The names are those of the cases. What only a real cluster can show is in tests/integration/test_node_controller.py:

- K2: `test_nothing_is_evicted_from_a_node_whose_kubelet_is_dead`.
- K3: `test_a_budget_that_says_no_is_named_and_obeyed`.
- K4, the apiserver's own error 500: `test_two_budgets_over_one_pod_are_an_error_of_their_own`.
- K6, K11: `test_a_daemon_of_the_infrastructure_may_start_and_does_not_keep_the_node_busy`.
- K7: `test_a_taint_taken_off_is_put_back_and_who_did_it_is_said`.
- K9: `test_a_bare_pod_is_not_evicted_unless_its_owner_says_so`.
- K10: `test_an_open_node_without_its_gpus_says_so`.
- K12: `test_a_pod_held_by_a_finalizer_is_left_and_named`, `test_an_attached_volume_keeps_the_node_busy`.
- K14: `test_what_a_dead_controller_left_half_done_is_finished`.

With GPU processes: tests/e2e/test_scenarios.py, K1 `test_d_a_slow_pod_delays_the_opening_until_its_process_is_gone`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from bridge.model.handoff import Step
from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner, Side
from bridge.simulation.cluster import Cluster, Deployment, Pod
from bridge.simulation.faults import When
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import Fleet

LONG_S = 120.0


def lent(replicas: int = 1, *, nodes: int = 4, policy: dict[str, object] | None = None, **pods: object) -> Fleet:
    """A fleet in which each of `replicas` pods of the Deployment ``chat`` has a node to itself."""
    fleet = Fleet(nodes=nodes, **(policy or {}))
    fleet.settle()
    fleet.run_for(40)
    fleet.deploy("chat", replicas, **pods)
    fleet.run_until(lambda: len(placed(fleet)) == replicas and at_rest(fleet), "every pod has a node")
    fleet.run_for(40)
    return fleet


def cluster(fleet: Fleet) -> Cluster:
    return fleet.world.kube.cluster


def placed(fleet: Fleet) -> list[Pod]:
    return [pod for pod in cluster(fleet).of("default/chat") if pod.node]


def home_of(pod: Pod) -> str:
    """The bridge's name of the node that it is on."""
    return pod.node.removesuffix(".testbed")


def is_slurms(fleet: Fleet, node: str) -> Callable[[], bool]:
    return lambda: node in fleet.owned(Owner.SLURM)


def blockers(fleet: Fleet, node: str) -> str:
    return "; ".join(fleet.handoff(node).blockers)


def called_back(fleet: Fleet) -> tuple[Pod, str]:
    """The first pod, whose node a person now orders to Slurm and which is being emptied; and that node."""
    pod = placed(fleet)[0]
    node = home_of(pod)
    fleet.order(Side.SLURM, node)
    fleet.run_until(lambda: fleet.at_step(node, Step.EMPTY), f"{node} is closed and being emptied")
    return pod, node


def stays_closed(fleet: Fleet, pod: Pod, node: str, words: str, seconds: float = LONG_S) -> None:
    """For so long the node is emptied, for this reason, while the pod's process runs and nothing of Slurm starts."""
    fleet.run_for(seconds)
    assert fleet.at_step(node, Step.EMPTY), fleet.describe()
    assert words in blockers(fleet, node)
    assert cluster(fleet).pods[pod.key] is pod
    assert not fleet.world.slurm.open(node)


@pytest.mark.parametrize("shutdown_s", [5, 30, 300])
def test_k1_a_pod_that_terminates_is_not_gone(shutdown_s: float) -> None:
    """Its API object says deleted, its process computes on: a job that starts beside it shares the GPUs."""
    fleet = lent(shutdown_s=shutdown_s)
    job = fleet.sbatch(nodes=4)
    pod, node = called_back(fleet)
    fleet.run_until(lambda: pod.terminating, "the pod is told to go")
    told_s = fleet.world.clock.monotonic_s()
    stays_closed(fleet, pod, node, "is terminating since", shutdown_s - 3)
    assert [process.work for process in fleet.world.machines.running(node)] == [f"pod {pod.key}"]
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job that wants all nodes runs")
    assert fleet.world.clock.monotonic_s() - told_s >= shutdown_s


@pytest.mark.parametrize("lost", ["before the order", "while it is emptied"])
def test_k2_a_dead_kubelet_leaves_its_pods_terminating_for_ever_and_the_node_closed(lost: str) -> None:
    """Terminating never ends and the containers run on: the loan must not go through, nor wait without a word."""
    fleet = lent(shutdown_s=20)
    kube_name = placed(fleet)[0].node
    if lost == "before the order":
        cluster(fleet).lose_kubelet(kube_name)
    pod, node = called_back(fleet)
    if lost != "before the order":
        cluster(fleet).lose_kubelet(kube_name)
    stays_closed(fleet, pod, node, "its pods are UNKNOWN")
    assert fleet.world.machines.running(node), "nobody could end it"
    cluster(fleet).return_kubelet(kube_name)
    fleet.run_until(is_slurms(fleet, node), "the node is Slurm's")
    assert not fleet.world.machines.running(node)


def test_k2_a_loan_whose_kubelet_stays_dead_is_given_up_with_the_reason() -> None:
    """Not for ever: when the patience is over the node is its old owner's, named as unusable, and counts for nobody."""
    fleet = lent(policy={"empty_patience_s": 120}, shutdown_s=20)
    cluster(fleet).lose_kubelet(placed(fleet)[0].node)
    _, node = called_back(fleet)
    fleet.run_until(lambda: at_rest(fleet), "the handoff is over", within_s=600)
    assert fleet.handoff(node).step is Step.FAILED
    assert fleet.owner(node) is Owner.KUBERNETES
    assert "kubelet" in fleet.ledger.read().nodes[node].unusable
    assert not fleet.world.slurm.open(node)


def test_k3_a_disruption_budget_is_obeyed_until_it_has_room() -> None:
    """A drain that falls back to delete takes the last replica of a service down."""
    fleet = lent(min_available=1)
    served: list[bool] = []
    cluster(fleet).on_change(lambda _: served.append(any(each.ready for each in placed(fleet))))
    pod, node = called_back(fleet)
    stays_closed(fleet, pod, node, "PodDisruptionBudget allows no disruption")
    cluster(fleet).scale("default/chat", 2)
    fleet.run_until(is_slurms(fleet, node), "the second replica makes room")
    assert served
    assert all(served), "at every moment"


def test_k3_a_budget_without_room_sends_the_node_back_when_the_patience_is_over() -> None:
    """The service has served all the while, and the node is open to it again."""
    fleet = lent(policy={"empty_patience_s": 120}, min_available=1)
    pod, node = called_back(fleet)
    fleet.run_until(lambda: fleet.at_step(node, Step.RETURNED), "the node goes back", within_s=300)
    assert pod.ready
    assert any("disruption budget chat needs 1 healthy pods" in message for message in said(fleet))
    assert fleet.world.kube.open(pod.node)


def said(fleet: Fleet) -> list[str]:
    return [event.message for event in fleet.ledger.events(after=0, limit=1000)]


def test_k4_two_budgets_over_one_pod_are_named_and_never_worked_around() -> None:
    """The eviction API answers 500 and not 429: taken as a failure to be repeated in a hot loop, or as a yes."""
    fleet = lent(min_available=0, budgets=2)
    cluster(fleet).apply(Deployment("chat", 1, min_available=1, budgets=2))
    pod, node = called_back(fleet)
    stays_closed(fleet, pod, node, "more than one PodDisruptionBudget covers it")
    assert pod.ready
    cluster(fleet).apply(Deployment("chat", 1))
    fleet.run_until(is_slurms(fleet, node), "without the budgets it goes")


def test_k5_a_budget_over_pods_that_never_get_ready_says_what_would_help() -> None:
    """A crash-looping service serves nobody, and its budget holds the node for ever: nobody knows why."""
    fleet = lent(startup_s=math.inf, min_available=1)
    pod, node = called_back(fleet)
    stays_closed(fleet, pod, node, "unhealthyPodEvictionPolicy AlwaysAllow would let it go")
    cluster(fleet).apply(Deployment("chat", 1, startup_s=math.inf, min_available=1, evicts_unready=True))
    fleet.run_until(is_slurms(fleet, node), "what the words say helps")


@pytest.mark.parametrize("tolerates", [False, True])
def test_k6_infrastructure_pods_stay_through_a_whole_loan(tolerates: bool) -> None:
    """A NoExecute taint removes CNI, device plugin and metrics: the node that comes back cannot run a pod."""
    fleet = Fleet()
    cluster(fleet).infrastructure.add("kube-system")
    plugin = fleet.deploy("plugin", 0, namespace="kube-system", kind="DaemonSet", gpus=0, tolerates=tolerates)
    fleet.run_until(lambda: len(cluster(fleet).of(plugin)) == 4, "a pod of it is on every node")
    fleet.run_for(5)
    before = [pod.uid for pod in cluster(fleet).of(plugin)]
    fleet.settle()
    for side in (Side.KUBERNETES, Side.SLURM, Side.KUBERNETES):
        fleet.order(side, "gpu-1")
        fleet.run_until(lambda side=side: "gpu-1" in fleet.owned(side.owner), f"gpu-1 is {side}'s")  # type: ignore[misc]
    assert [pod.uid for pod in cluster(fleet).of(plugin)] == before


LATCHES: dict[str, Callable[[Cluster, str], None]] = {
    "uncordons": lambda kube, node: kube.cordon(node, False),
    "takes our taint off": lambda kube, node: kube.set_taint(node, ""),
    "removes the fence entry": lambda kube, node: kube.set_fence(node, ""),
}


@pytest.mark.parametrize("does", LATCHES)
@pytest.mark.parametrize("times", [1, 3])
def test_k7_another_controller_opens_the_node_in_the_middle_of_a_drain(does: str, times: int) -> None:
    """An autoscaler or a repair loop takes the mark off, waiting pods come in, and the node is never empty."""
    fleet = lent(shutdown_s=30)
    pod, node = called_back(fleet)
    fleet.deploy("hungry", 8)
    for _ in range(times):
        LATCHES[does](cluster(fleet), pod.node)
        fleet.run_for(5)
        assert cluster(fleet).on(pod.node) == [pod], "the other latch holds"
    fleet.run_until(is_slurms(fleet, node), "it gets empty and moves")
    assert unaccounted(fleet) == []


def test_k7_a_quarrel_over_the_taint_is_named_and_neither_side_starts_anything() -> None:
    """Two controllers that undo each other for ever: the bridge stops, says so, and the fence still stands."""
    fleet = lent(shutdown_s=1)
    node = home_of(placed(fleet)[0])
    kube_name = placed(fleet)[0].node
    fleet.deploy("hungry", 8)

    def undo() -> None:
        cluster(fleet).set_taint(kube_name, "")
        fleet.world.clock.after(0.3, undo)

    undo()
    started = len(fleet.world.oracle.starts(Side.KUBERNETES, node))
    fleet.order(Side.SLURM, node)
    fleet.run_for(50)
    assert "somebody keeps taking the bridge's taint off" in blockers(fleet, node) + str(
        fleet.world.kube.controller.loans[kube_name].status.blockers
    )
    assert len(fleet.world.oracle.starts(Side.KUBERNETES, node)) == started
    assert not fleet.world.slurm.open(node)


def test_k8_a_pod_that_binds_after_the_latches_stood_is_seen_before_anything_opens() -> None:
    """The scheduler had picked the node before the taint: an empty node by the last look is not a moment later."""
    came_late = 0
    for hundredths in range(0, 40, 2):
        fleet = lent(nodes=1)
        cluster(fleet).scale("default/chat", 0)
        fleet.run_until(lambda fleet=fleet: not cluster(fleet).pods, "no pod is left")  # type: ignore[misc]
        job = fleet.sbatch(runs_s=20)
        fleet.order(Side.SLURM, "gpu-1")
        fleet.run_for(hundredths / 100)
        fleet.deploy("late", 1, shutdown_s=3)
        closed = bool(cluster(fleet).nodes["gpu-1.testbed"].taint)
        fleet.run_for(0.5)
        node = cluster(fleet).nodes["gpu-1.testbed"]
        came_late += bool(not closed and node.taint and cluster(fleet).on("gpu-1.testbed"))
        fleet.run_until(lambda fleet=fleet, job=job: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")  # type: ignore[misc]
        assert cluster(fleet).on("gpu-1.testbed") == []
    assert came_late, "none of the moments was the one that this is about"


@pytest.mark.parametrize(
    ("evictable", "words"),
    [(None, "has no controller that would make it again"), (False, "asks not to be disrupted"), (True, "")],
)
def test_k9_a_pod_that_would_never_come_back_is_not_ended_unless_its_owner_says_so(
    evictable: bool | None, words: str
) -> None:
    """A bare pod, or one with local data, is evicted and gone for good with a week of somebody's work."""
    fleet = lent(kind="", evictable=evictable)
    pod = placed(fleet)[0]
    node = home_of(pod)
    fleet.order(Side.SLURM, node)
    if words:
        fleet.run_until(lambda: fleet.at_step(node, Step.EMPTY), "closed")
        stays_closed(fleet, pod, node, words)
        cluster(fleet).delete(pod)
    fleet.run_until(is_slurms(fleet, node), "the node is Slurm's")
    assert cluster(fleet).pods == {}


@pytest.mark.parametrize(("lag_s", "end"), [(10, Step.DONE), (60, Step.DONE), (400, Step.FAILED)])
def test_k10_a_device_plugin_that_lags_is_no_help_yet(lag_s: float, end: Step) -> None:
    """The node is Ready with 0 GPUs: the pods stay Pending, and the bridge counts them as served."""
    fleet = Fleet()
    fleet.settle()
    fleet.run_for(40)
    fleet.deploy("chat", 1)
    fleet.run_until(lambda: bool(fleet.ledger.read().handoffs), "a node is on its way")
    (first,) = fleet.ledger.read().handoffs.values()
    cluster(fleet).stop_device_plugin(f"{first.node}.testbed")
    fleet.run_for(lag_s)
    if end is Step.FAILED:
        ended = fleet.ledger.handoff(first.id)
        assert ended is not None
        assert (ended.step, "the kubelet offers 0 of 8 GPUs" in str(ended.outcome)) == (Step.FAILED, True)
    else:
        assert fleet.at_step(first.node, Step.PROVE)
        assert blockers(fleet, first.node) == "the kubelet offers 0 of 8 GPUs"
        cluster(fleet).restart_device_plugin(f"{first.node}.testbed")
    fleet.run_until(lambda: [pod.ready for pod in placed(fleet)] == [True], "the pod serves")
    (pod,) = placed(fleet)
    assert (home_of(pod) == first.node) is (end is Step.DONE), "else another node was lent"


def test_k11_a_daemon_of_the_infrastructure_is_made_again_on_a_closed_node_and_not_counted() -> None:
    """A device plugin that is not made again behind our taint leaves the node without GPUs when it comes back."""
    fleet = Fleet()
    cluster(fleet).infrastructure.add("kube-system")
    plugin = fleet.deploy("plugin", 0, namespace="kube-system", kind="DaemonSet", gpus=0, tolerates=True)
    fleet.settle()
    (old,) = cluster(fleet).on("gpu-1.testbed")
    cluster(fleet).delete(old)
    fleet.run_for(10)
    (new,) = cluster(fleet).on("gpu-1.testbed")
    assert (new.deployment, new.ready, new is not old) == (plugin, True, True)
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-1"], "gpu-1 is lent")
    fleet.order(Side.SLURM, "gpu-1")
    fleet.run_until(is_slurms(fleet, "gpu-1"), "its pod keeps nobody waiting")


def test_k11_a_daemon_of_anybody_else_is_evicted_once_and_kept_out() -> None:
    """A DaemonSet that tolerates everything is made again at once: the drain evicts it for ever and is never done."""
    fleet = lent()
    cluster(fleet).scale("default/chat", 0)
    fleet.run_for(5)
    node = fleet.owned(Owner.KUBERNETES)[0]
    fleet.deploy("miner", 0, kind="DaemonSet", tolerates=True, gpus=1, only_on=frozenset({f"{node}.testbed"}))
    fleet.run_for(10)
    assert len(cluster(fleet).on(f"{node}.testbed")) == 1
    fleet.order(Side.SLURM, node)
    fleet.run_until(is_slurms(fleet, node), "the node is Slurm's")
    fleet.run_for(60)
    assert cluster(fleet).on(f"{node}.testbed") == []
    assert len(fleet.world.oracle.starts(Side.KUBERNETES, node)) == 2, "chat and the miner, once each"


@pytest.mark.parametrize("held_by", ["finalizer", "volume"])
def test_k12_what_a_dead_pod_leaves_behind_keeps_the_node_and_is_named(held_by: str) -> None:
    """A finalizer that nobody drops, a volume that stays attached: two sides write, or all wait in vain."""
    pods: dict[str, object] = {"finalizer": True} if held_by == "finalizer" else {"detach_s": 1e6}
    fleet = lent(**pods)  # type: ignore[arg-type]
    pod, node = called_back(fleet)
    fleet.run_for(LONG_S)
    assert not fleet.world.machines.running(node), "the process is gone, what is left is not"
    assert fleet.at_step(node, Step.EMPTY)
    words = "finalizers: example.com/slow" if held_by == "finalizer" else f"volume pvc-{pod.uid} is still attached"
    assert words in blockers(fleet, node)
    if held_by == "finalizer":
        cluster(fleet).drop_finalizer(pod)
    else:
        cluster(fleet).detach(pod.node)
    fleet.run_until(is_slurms(fleet, node), "the node is Slurm's")


def moves(fleet: Fleet) -> int:
    """How many handoffs there were, those of the first day left out."""
    return sum(handoff.requested_by != "adoption" for handoff in fleet.ledger.handoffs(limit=1000))


@pytest.mark.parametrize(("demand_age_s", "spikes", "most"), [(10, 5, 0), (1, 1, 1), (1, 8, 4)])
def test_k13_a_scale_up_that_passes_makes_no_node_go_to_and_fro(demand_age_s: int, spikes: int, most: int) -> None:
    """The autoscaler is gone before the node is there: it is handed over for nobody, goes back at once, and again."""
    fleet = Fleet(demand_age_s=demand_age_s, min_hold_s=120)
    fleet.settle()
    fleet.run_for(130)
    chat = fleet.deploy("chat", 0)
    fleet.sbatch(nodes=3, runs_s=10_000)
    fleet.run_for(10)
    for _ in range(spikes):
        cluster(fleet).scale(chat, 1)
        fleet.run_for(4)
        cluster(fleet).scale(chat, 0)
        fleet.run_for(4)
        fleet.sbatch(nodes=1, runs_s=5)
    assert moves(fleet) <= most
    fleet.run_until(
        lambda: len(fleet.world.slurm.live()) == 1, "Slurm gets it back when the hold is over", within_s=300
    )


STEPS = (Step.CLOSE, Step.EMPTY, Step.CLEAN, Step.OPEN, Step.PROVE)


@pytest.mark.parametrize("to", Side)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("away_s", [1, 90])
def test_k14_a_controller_that_restarts_finishes_what_it_left_half_done(to: Side, step: Step, away_s: float) -> None:
    """It forgets what it had begun, and the node stays cordoned until somebody looks."""
    fleet = lent(shutdown_s=2)
    if to is Side.KUBERNETES:
        cluster(fleet).scale("default/chat", 0)
        fleet.sbatch(nodes=3, runs_s=1)
        node = fleet.owned(Owner.SLURM)[0]
        fleet.order(to, node)
    else:
        node = home_of(placed(fleet)[0])
        fleet.order(to, node)
    fleet.run_until(lambda: fleet.at_step(node, step), f"step {step}")
    fleet.world.kube.controller.stop()
    fleet.world.faults.fail_next("ledger.commit", when=When.CRASH_BEFORE)
    fleet.new_broker()
    fleet.run_for(away_s)
    fleet.world.kube.controller.start()
    fleet.run_until(lambda: node in fleet.owned(to.owner), f"{node} is {to}'s", within_s=300)
    fleet.run_until(lambda: at_rest(fleet) and not unaccounted(fleet), "no mark is left that nobody owns")


@pytest.mark.parametrize(("guarantee_nodes", "taken"), [(0, "the shared node"), (1, "the other node")])
def test_k15_a_reclaim_from_one_team_spares_the_pods_of_another_on_the_same_node(
    guarantee_nodes: int, taken: str
) -> None:
    """Two teams' pods share a node: ending the cheap ones of one takes the other's too, whatever was promised."""
    fleet = Fleet(nodes=2, min_hold_s=5, home="kubernetes", preemption={"mode": "requeue", "min_runtime_s": 0})
    fleet.settle()
    fleet.deploy("cheap", 1, gpus=4, namespace="team-a", startup_s=1, only_on=frozenset({"gpu-1.testbed"}))
    fleet.deploy("promised", 1, gpus=4, namespace="team-b", startup_s=1, only_on=frozenset({"gpu-1.testbed"}))
    fleet.deploy("dear", 1, gpus=8, namespace="team-a", startup_s=60, only_on=frozenset({"gpu-2.testbed"}))
    fleet.run_for(120)
    policy = fleet.world.policy(
        min_hold_s=5,
        demand_age_s=1,
        home="kubernetes",
        slurm={"floor_nodes": 1},
        preemption={"mode": "requeue", "min_runtime_s": 0},
    )
    teams = ({"name": "b", "namespaces": ["team-b"], "guarantee_nodes": guarantee_nodes},)
    policy = type(policy).model_validate({**policy.model_dump(by_alias=True), "teams": teams})
    now = fleet.world.clock.now()
    fleet.ledger.apply_policy(policy, fleet.world.nodes, replaces=1, author="test", note="", at=now)
    fleet.run_until(lambda: bool(fleet.owned(Owner.SLURM)), "Slurm has its floor")
    assert fleet.owned(Owner.SLURM) == (["gpu-1"] if taken == "the shared node" else ["gpu-2"])
    if guarantee_nodes:
        assert [pod.ready for pod in cluster(fleet).of("team-b/promised")] == [True]


IN_VAIN: dict[str, tuple[dict[str, object], str]] = {
    "9 GPUs": ({"gpus": 9}, "asks for 9 GPUs, a node has 8"),
    "a missing label": ({"only_on": frozenset()}, "no shared node matches its node affinity"),
    "another taint": ({}, "does not tolerate a taint of the shared nodes"),
}


@pytest.mark.parametrize("ask", IN_VAIN)
def test_k16_pods_that_no_lent_node_can_take_borrow_nothing(ask: str) -> None:
    """Node after node is lent and none helps: the pods wait on, and Slurm has nothing left."""
    more, words = IN_VAIN[ask]
    fleet = Fleet()
    fleet.settle()
    fleet.run_for(40)
    for node in fleet.world.nodes if ask == "another taint" else ():
        cluster(fleet).set_others_taint(node.kube_name, True)
    fleet.deploy("chat", 3, **more)
    fleet.run_for(LONG_S)
    assert moves(fleet) == 0
    assert any("default/chat" in why.subject and words in why.reason for why in fleet.reconciler.pulse.plan.whys)
    order = fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_for(60)
    answered = fleet.ledger.request(order.id)
    assert answered is not None
    assert answered.state is RequestState.ACCEPTED, "a person may all the same"
