"""Broker's port, node controller, inspector and manifests together on a real control plane, under their own rights."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bridge.kube import names
from bridge.kube.connection import ApiError, Connection, Json
from bridge.model.kube import DeviceHolder, LoanSpec, PodNote
from bridge.model.ownership import Mark, Owner
from tests.contracts.kube import KubePortContract
from tests.contracts.kube_facts import KubeFacts
from tests.integration.control_plane import control_plane
from tests.integration.kube_world import Cluster, RealKubeWorld, pod_body, running_cluster, running_controller

LEASE = "lease0001"
OUR_TAINT = {"key": names.TAINT, "value": LEASE, "effect": "NoSchedule"}
THEIR_TAINT = {"key": "site.example/repair", "value": "yes", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with control_plane(tmp_path_factory.mktemp("kube")) as plane, running_cluster(plane) as running:
        yield running


@pytest.fixture
def world(cluster: Cluster) -> RealKubeWorld:
    return cluster.world()


class TestContract(KubePortContract):
    @pytest.fixture
    def world(self, cluster: Cluster) -> Iterator[RealKubeWorld]:
        world = cluster.world()
        with world.running_inspector():
            yield world


class TestFacts(KubeFacts):
    @pytest.fixture
    def world(self, cluster: Cluster) -> RealKubeWorld:
        return cluster.world()


def loan(
    world: RealKubeWorld, owner: Owner, generation: int, *, nonce: str = "", evict: bool = False, lease: str = LEASE
) -> LoanSpec:
    return LoanSpec(world.node, owner, Mark(lease, 2, generation), 8, evict=evict, nonce=nonce)


def close(world: RealKubeWorld, generation: int = 5, *, nonce: str = "", evict: bool = False) -> None:
    spec = loan(world, Owner.BRIDGE, generation, nonce=nonce, evict=evict)
    world.kube.want([spec])
    world.until("closed", lambda: world.seen().status.closed and world.seen().status.observed == spec.mark)


def reopen(world: RealKubeWorld, generation: int = 6, *, lease: str = LEASE) -> None:
    spec = loan(world, Owner.KUBERNETES, generation, lease=lease)
    world.kube.want([spec])
    world.until("open", lambda: world.seen().status.open and world.seen().status.observed == spec.mark)


def blocker(world: RealKubeWorld, *words: str) -> str:
    """The blocker that holds all of `words`, once there is one."""

    def found() -> str:
        return next((b for b in world.seen().status.blockers if all(word in b for word in words)), "")

    return world.until(f"blocker with {words}", found)


def proof(world: RealKubeWorld, nonce: str) -> None:
    world.until(f"proof {nonce}", lambda: world.seen().status.empty_nonce == nonce)


def fence_entry(world: RealKubeWorld) -> str | None:
    entry: str | None = world.admin.call("GET", f"{names.FENCES}/shared")["spec"]["closed"].get(world.node)
    return entry


# --- the two latches ---


def test_closing_and_opening_touch_only_what_is_ours(world: RealKubeWorld) -> None:
    world.patch_node({"metadata": {"annotations": {"site.example/note": "mine"}}, "spec": {"unschedulable": True}})
    world.patch_node({"spec": {"taints": [THEIR_TAINT]}})
    close(world)
    assert OUR_TAINT in world.taints()
    assert THEIR_TAINT in world.taints()
    assert fence_entry(world) == f"bridge:{LEASE}:2:5"
    reopen(world)
    node = world.raw_node()
    assert [t for t in world.taints() if t["key"] != "node.kubernetes.io/unschedulable"] == [THEIR_TAINT]
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"]["site.example/note"] == "mine"
    assert names.MARK not in node["metadata"]["annotations"]
    assert fence_entry(world) is None


def test_a_new_lease_takes_over_the_closure_of_an_old_one(world: RealKubeWorld) -> None:
    """Closed under the lease of the handoff to Slurm, opened under that of the handoff back."""
    close(world)
    reopen(world, generation=9, lease="lease0009")
    assert world.taints() == []


def test_a_taint_that_somebody_else_set_by_our_key_is_not_lifted(world: RealKubeWorld) -> None:
    theirs = {**OUR_TAINT, "value": "by-hand"}
    world.patch_node({"spec": {"taints": [theirs]}})
    world.kube.want([loan(world, Owner.KUBERNETES, 5)])
    blocker(world, "by-hand", "not set by the bridge")
    world.settle()
    assert world.taints() == [theirs]
    assert not world.seen().status.open


def test_a_taint_taken_off_is_put_back_and_who_did_it_is_said(world: RealKubeWorld) -> None:
    close(world)
    world.settle()  # Kubernetes notes who wrote a Node to the second
    upgrade = {"metadata": {"annotations": {"site.example/upgrade": "done"}}, "spec": {"taints": None}}
    world.patch_node(upgrade, manager="gpu-operator")
    world.until("taint is back", lambda: OUR_TAINT in world.taints())
    query = {"fieldSelector": f"regarding.name={world.node}"}
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    (event,) = world.until("event", lambda: world.admin.call("GET", path, query=query)["items"])
    assert event["reason"] == "TaintRemoved"
    assert "gpu-operator took the bridge's taint off" in event["note"]


def test_a_pod_is_told_once_by_the_broker(world: RealKubeWorld) -> None:
    note = PodNote(world.namespace, "chat-1", "uid-of-chat-1", "NodeComing", "gpu-3 comes from Slurm")
    world.kube.tell([note, note])
    world.kube.tell([note])
    path = names.EVENTS.format(world.namespace)
    (event,) = world.until("event", lambda: world.admin.call("GET", path)["items"])
    world.settle()
    assert len(world.admin.call("GET", path)["items"]) == 1
    assert (event["reason"], event["note"], event["type"]) == ("NodeComing", "gpu-3 comes from Slurm", "Normal")
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": note.namespace,
        "name": "chat-1",
        "uid": "uid-of-chat-1",
    }


def test_a_quarrel_over_the_taint_ends_and_the_fence_still_stands(world: RealKubeWorld) -> None:
    close(world)
    for _ in range(5):
        world.patch_node({"spec": {"taints": None}}, manager="uncordoner")
        world.until("taint is back", lambda: OUR_TAINT in world.taints())
    world.patch_node({"spec": {"taints": None}}, manager="uncordoner")
    blocker(world, "keeps taking the bridge's taint off", "not put back for a while")
    assert not world.seen().status.closed
    with pytest.raises(ApiError, match="not open to Kubernetes"):
        world.create_pod("sneaks-in")


def test_a_fence_deleted_by_a_careless_uninstall_is_made_again(world: RealKubeWorld) -> None:
    close(world)
    path = f"{names.FENCES}/shared"
    with pytest.raises(ApiError, match="allow-deletion") as refused:
        world.admin.call("DELETE", path)
    assert refused.value.status == 403
    allowed = {"metadata": {"annotations": {f"{names.GROUP}/allow-deletion": "true"}}}
    world.admin.call("PATCH", path, body=allowed, content_type="application/merge-patch+json")
    world.admin.call("DELETE", path)
    world.until("fence is back", lambda: _fence_or_none(world) == f"bridge:{LEASE}:2:5")


def _fence_or_none(world: RealKubeWorld) -> str | None:
    try:
        return fence_entry(world)
    except ApiError:
        return None


def test_a_node_that_was_replaced_is_closed_anew_and_proved_anew(world: RealKubeWorld) -> None:
    close(world, nonce="n1")
    proof(world, "n1")
    first = world.seen().uid
    world.delete_node()
    loan_path = f"{names.LOANS}/{world.node}"
    world.until("no longer closed", lambda: not world.admin.call("GET", loan_path)["status"]["closed"])
    assert world.admin.call("GET", loan_path)["status"]["emptyNonce"] == ""
    world.add_node()
    proof(world, "n1")
    seen = world.seen()
    assert seen.uid != first
    assert seen.status.node_uid == seen.uid
    assert OUR_TAINT in world.taints()


def test_no_loan_is_deleted_while_it_is_in_use(world: RealKubeWorld) -> None:
    close(world)
    with pytest.raises(ApiError, match="allow-deletion"):
        world.admin.call("DELETE", f"{names.LOANS}/{world.node}")
    with pytest.raises(ApiError, match="allow-deletion"):
        world.admin.call("DELETE", f"{names.LOANS}", query={"fieldSelector": f"metadata.name={world.node}"})


def test_our_definitions_are_not_deleted_while_they_are_in_use(world: RealKubeWorld) -> None:
    """Deleting a definition deletes its objects without asking admission for each."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeloans.bridge.slurm-kube.io"
    with pytest.raises(ApiError, match="allow-deletion"):
        world.admin.call("DELETE", path)


# --- what the fence refuses ---


def test_a_pod_that_tolerates_everything_is_not_bound_to_a_closed_node(world: RealKubeWorld) -> None:
    close(world)
    body = pod_body("stubborn", None)
    body["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": world.node}, "tolerations": [{"operator": "Exists"}]}
    path = f"/api/v1/namespaces/{world.namespace}/pods"
    world.admin.call("POST", path, body=body)

    def refusal() -> str:
        conditions = world.admin.call("GET", f"{path}/stubborn")["status"].get("conditions") or ()
        return next((c["message"] for c in conditions if "not open to Kubernetes" in c.get("message", "")), "")

    world.until("the scheduler is refused", refusal)
    reopen(world)
    world.until("bound", lambda: world.admin.call("GET", f"{path}/stubborn")["spec"].get("nodeName") == world.node)


def test_an_explicit_binding_is_refused(world: RealKubeWorld) -> None:
    close(world)
    path = f"/api/v1/namespaces/{world.namespace}/pods"
    body = pod_body("bound-by-hand", None)
    body["spec"]["schedulerName"] = "nobody"
    world.admin.call("POST", path, body=body)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "bound-by-hand"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": world.node},
    }
    for target in (f"{path}/bound-by-hand/binding", f"/api/v1/namespaces/{world.namespace}/bindings"):
        with pytest.raises(ApiError, match="not open to Kubernetes"):
            world.admin.call("POST", target, body=binding)


def test_a_daemon_of_the_infrastructure_may_start_and_does_not_keep_the_node_busy(world: RealKubeWorld) -> None:
    close(world, nonce="n1")
    infrastructure = world.make_namespace(f"plugins-{world.node.replace('.', '-')}", **{names.INFRASTRUCTURE: "true"})
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "plugin", "uid": "0-0", "controller": True}
    body = pod_body("plugin-x", world.node, ownerReferences=[owner])
    world.admin.call("POST", f"/api/v1/namespaces/{infrastructure}/pods", body=body)
    world.kube.want([loan(world, Owner.BRIDGE, 5, nonce="n2")])
    proof(world, "n2")
    assert world.seen().gpus_used == 1


# --- emptying ---


def test_a_daemon_of_anybody_else_keeps_the_node_busy(world: RealKubeWorld) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cache", "uid": "0-0", "controller": True}
    world.create_pod("cache-x", ownerReferences=[owner])
    close(world, nonce="n1")
    blocker(world, "cache-x", "runs", "DaemonSet")
    close(world, 6, nonce="n2", evict=True)
    proof(world, "n2")


def test_a_bare_pod_is_not_evicted_unless_its_owner_says_so(world: RealKubeWorld) -> None:
    key = world.create_pod("bare")
    close(world, nonce="n1", evict=True)
    blocker(world, key, "no controller")
    allowed = {"metadata": {"annotations": {names.EVICT: "true"}}}
    path = f"/api/v1/namespaces/{world.namespace}/pods/bare"
    world.admin.call("PATCH", path, body=allowed, content_type="application/merge-patch+json")
    proof(world, "n1")


def budget(world: RealKubeWorld, name: str) -> None:
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "chat"}}},
    }
    path = f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets"
    world.admin.call("POST", path, body=body)
    world.until(
        "the budget counts",
        lambda: world.admin.call("GET", f"{path}/{name}").get("status", {}).get("observedGeneration"),
    )


def test_a_budget_that_says_no_is_named_and_obeyed(world: RealKubeWorld) -> None:
    key = world.start_pod("chat")
    budget(world, "chat-budget")
    close(world, nonce="n1", evict=True)
    blocker(world, key, "PodDisruptionBudget allows no disruption", "chat-budget")
    world.settle()
    assert world.seen().work_pods == (key,)
    path = f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets/chat-budget"
    world.admin.call("DELETE", path)
    proof(world, "n1")


def test_two_budgets_over_one_pod_are_an_error_of_their_own(world: RealKubeWorld) -> None:
    key = world.start_pod("chat")
    budget(world, "one")
    budget(world, "two")
    close(world, evict=True)
    blocker(world, key, "more than one PodDisruptionBudget", "remove all but one")


def test_a_pod_held_by_a_finalizer_is_left_and_named(world: RealKubeWorld) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat", "uid": "0-0", "controller": True}
    key = world.create_pod("held", finalizers=["site.example/backup"], ownerReferences=[owner])
    close(world, nonce="n1", evict=True)
    text = blocker(world, key, "is terminating since", "site.example/backup")
    world.settle()
    assert text in world.seen().status.blockers, "the text must not change while nothing does"
    assert world.seen().status.empty_nonce == ""


def test_a_node_whose_kubelet_is_dead_is_unknown_and_not_empty(world: RealKubeWorld) -> None:
    world.set_ready("Unknown", reason="NodeStatusUnknown")
    close(world, nonce="n1", evict=True)
    blocker(world, "does not answer", "UNKNOWN")
    world.settle()
    assert world.seen().status.empty_nonce == ""
    world.set_ready("True", reason="KubeletReady")
    proof(world, "n1")


def test_nothing_is_evicted_from_a_node_whose_kubelet_is_dead(world: RealKubeWorld) -> None:
    """The pod object would stay Terminating for ever, and tell nobody whether its process lives."""
    key = world.start_pod("chat")
    world.set_ready("False", reason="KubeletNotReady")
    close(world, nonce="n1", evict=True)
    blocker(world, key, "last heard of")
    world.settle()
    pod = world.admin.call("GET", f"/api/v1/namespaces/{world.namespace}/pods/chat")
    assert "deletionTimestamp" not in pod["metadata"]


def test_an_attached_volume_keeps_the_node_busy(world: RealKubeWorld) -> None:
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": f"volume-{world.node}"},
        "spec": {"attacher": "x.example", "nodeName": world.node, "source": {"persistentVolumeName": "weights"}},
    }
    world.admin.call("POST", names.VOLUME_ATTACHMENTS, body=body)
    close(world, nonce="n1")
    blocker(world, "volume weights is still attached")
    world.admin.call("DELETE", f"{names.VOLUME_ATTACHMENTS}/volume-{world.node}")
    proof(world, "n1")


# --- being open ---


def test_an_open_node_without_its_gpus_says_so(world: RealKubeWorld) -> None:
    world.set_ready("True", reason="KubeletReady", gpus=0)
    reopen(world)
    blocker(world, "the kubelet offers 0 of 8 GPUs")
    assert world.seen().status.phase == "Opening"
    world.set_ready("True", reason="KubeletReady", gpus=8)
    world.until("open and usable", lambda: world.seen().status.phase == "Open")
    assert world.seen().status.gpus_allocatable == 8


# --- restarts and replicas ---


@pytest.mark.parametrize("half_done", ["taint", "fence"])
def test_what_a_dead_controller_left_half_done_is_finished(world: RealKubeWorld, half_done: str) -> None:
    mark = Mark(LEASE, 2, 5)
    world.cluster.stop_controller()
    try:
        world.kube.want([loan(world, Owner.BRIDGE, 5, nonce="n1")])
        if half_done == "taint":
            annotations = {names.MARK: str(mark)}
            world.patch_node({"metadata": {"annotations": annotations}, "spec": {"taints": [OUR_TAINT]}})
        else:
            patch = {"spec": {"closed": {world.node: str(mark)}}}
            world.admin.call("PATCH", f"{names.FENCES}/shared", body=patch, content_type="application/merge-patch+json")
        world.until("the broker sees that nobody answers", lambda: not world.kube.observe().controller_alive)
    finally:
        world.cluster.start_controller()
    proof(world, "n1")
    assert OUR_TAINT in world.taints()
    assert fence_entry(world) == str(mark)


def test_a_second_replica_takes_over_when_the_first_ends(world: RealKubeWorld) -> None:
    cluster = world.cluster
    api = Connection.open(cluster.plane.kubeconfig_of("node-controller"), timeout_s=10)
    with running_controller(api, "standby"):
        world.settle()
        assert holder(world) != "standby"
        cluster.stop_controller()
        world.until("the standby leads", lambda: holder(world) == "standby")
        close(world)
    cluster.start_controller()


def holder(world: RealKubeWorld) -> str:
    lease = world.admin.call("GET", names.lease_path(names.NAMESPACE, names.CONTROLLER_LEASE))
    return str(lease["spec"].get("holderIdentity"))


def test_a_wave_of_nodes_is_closed_and_proved_in_seconds(cluster: Cluster) -> None:
    """The bound is far above what is measured (4 s on two busy cores): it catches a node that waits for a re-list."""
    worlds = [cluster.world() for _ in range(30)]
    began_s = time.monotonic()
    cluster.kube.want([loan(world, Owner.BRIDGE, 5, nonce="n1") for world in worlds])
    for world in worlds:
        proof(world, "n1")
    assert time.monotonic() - began_s < 40


# --- who may do what ---


@pytest.mark.parametrize(
    ("patch", "refusal"),
    [
        ({"spec": {"unschedulable": True}}, "cordons belong to people"),
        ({"spec": {"taints": [THEIR_TAINT]}}, "its own taint only"),
        ({"metadata": {"labels": {"site.example/x": "y"}}}, "may not write labels"),
        ({"metadata": {"annotations": {"site.example/x": "y"}}}, "its own annotation only"),
    ],
    ids=["cordon", "taint", "label", "annotation"],
)
def test_the_node_controller_may_write_nothing_else_of_a_node(world: RealKubeWorld, patch: Json, refusal: str) -> None:
    controller = Connection.open(world.cluster.plane.kubeconfig_of("node-controller"), timeout_s=10)
    path = f"{names.NODES}/{world.node}"
    with pytest.raises(ApiError, match=refusal):
        controller.call("PATCH", path, body=patch, content_type="application/merge-patch+json")


def test_an_inspector_answers_for_its_own_node_only(world: RealKubeWorld, cluster: Cluster) -> None:
    other = cluster.world()
    for node in (world.node, other.node):
        world.kube.inspect(node, "n1")
    inspector = Connection.open(world.kubeconfig_of_inspector(), timeout_s=10)

    def answer(node: str) -> None:
        body = {"status": {"nonce": "n1", "holders": []}}
        path = f"{names.INSPECTIONS}/{node}/status"
        inspector.call("PATCH", path, body=body, content_type="application/merge-patch+json")

    answer(world.node)
    with pytest.raises(ApiError, match="for no other"):
        answer(other.node)


def test_the_inspectors_answer_stays_true_while_somebody_holds_a_device(world: RealKubeWorld) -> None:
    holder = DeviceHolder(17, "python train.py", "uid 1000", "/dev/nvidia0")
    world.scan = lambda: (holder,)
    with world.running_inspector():
        world.kube.inspect(world.node, "n1")
        world.until("holder", lambda: (i := world.seen().inspection) and i.holders == (holder,))
        world.scan = tuple
        world.until("clean", lambda: (i := world.seen().inspection) and not i.holders)
        inspection = world.seen().inspection
        assert inspection is not None
        assert (inspection.nonce, inspection.error) == ("n1", "")


# --- people ---


def test_kubectl_shows_a_loan_in_one_line(world: RealKubeWorld) -> None:
    key = world.start_pod("chat")
    close(world)
    blocker(world, key)
    lines = world.cluster.plane.kubectl("get", "nl", world.node).stdout.splitlines()
    assert lines[0].split() == ["NAME", "OWNER", "PHASE", "LEASE", "GPUS", "BLOCKER", "AGE"]
    assert lines[1].split()[:5] == [world.node, "bridge", "Draining", LEASE, "8"]
    assert f"pod {key} runs (Deployment {world.namespace}/chat)" in lines[1]


def test_conditions_are_kubernetes_own(world: RealKubeWorld) -> None:
    close(world, nonce="n1")
    proof(world, "n1")
    arguments = ("wait", f"nodeloan/{world.node}", "--for=condition=Empty", "--for=condition=Closed", "--timeout=5s")
    assert world.cluster.plane.kubectl(*arguments).returncode == 0
