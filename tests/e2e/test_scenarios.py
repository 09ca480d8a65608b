"""Nine stories of nodes between a real Slurm and a real Kubernetes. Each waits for conditions, not for time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.e2e.testbed import HOLD, NODES, NotYet, Testbed, eventually, kube_name


def test_a_pending_pods_get_an_idle_slurm_node(testbed: Testbed) -> None:
    testbed.kube.deploy("chat", replicas=1)
    [node] = eventually(lambda: testbed.kube.ready("chat", 1), "the pod is Running with its 8 GPUs", within_s=30)

    assert testbed.holders(node), "the pod's process holds the GPUs"
    eventually(lambda: testbed.bridge.at_rest("kubernetes", [node]), "the handoff ends")
    shown = testbed.kube("get", "nodeloans").splitlines()
    line = next(line for line in shown if line.startswith(kube_name(node)))
    assert "kubernetes" in line
    assert "Open" in line

    job = testbed.slurm.sbatch(f"--nodelist={node}")
    state = testbed.slurm.node(node)["state"]
    assert "DRAIN" in state
    assert testbed.slurm.job(job)["job_state"] == ["PENDING"]


def test_b_a_gang_of_three_gets_its_nodes_back_and_starts_at_once(testbed: Testbed) -> None:
    testbed.kube.deploy("chat", replicas=3)
    lent = eventually(lambda: testbed.kube.ready("chat", 3), "three pods on three lent nodes", within_s=60)
    eventually(lambda: testbed.bridge.at_rest("kubernetes", lent), "the three handoffs end")

    testbed.kube.scale("chat", 0)
    job = testbed.slurm.sbatch("--nodes=4")
    running = eventually(lambda: testbed.slurm.running(job), "the gang runs on all nodes", within_s=60)
    assert running["node_count"]["number"] == 4
    eventually(lambda: _locked_everywhere(testbed, NODES), "the job holds the GPUs of every node")


def test_c_a_running_job_is_never_killed_by_a_handover(testbed: Testbed) -> None:
    job = testbed.slurm.sbatch("--nodelist=gpu-2", script="sleep 12")
    eventually(lambda: testbed.slurm.running(job), "the job runs")
    testbed.bridge.order("kubernetes", "gpu-2")
    waiting = eventually(lambda: testbed.bridge.at_step("gpu-2", "empty"), "gpu-2 is closed and waits")
    eventually(lambda: _blocked_by(testbed, "gpu-2", f"job {job} of alice is RUNNING"), "it says what it waits for")

    eventually(lambda: testbed.bridge.at_rest("kubernetes", ["gpu-2"]), "gpu-2 is lent after the job", within_s=60)
    ended = testbed.slurm.job(job)
    assert ended["job_state"] == ["COMPLETED"], "the job ended by itself"
    assert waiting["id"] == testbed.bridge.handoff("gpu-2")["id"]


def test_d_a_slow_pod_delays_the_opening_until_its_process_is_gone(testbed: Testbed) -> None:
    command = 'trap "sleep 8; exit 0" TERM; while true; do sleep 0.2; done'
    testbed.kube.deploy("slow", replicas=1, command=command, terminationGracePeriodSeconds=30)
    [node] = eventually(lambda: testbed.kube.ready("slow", 1), "the slow pod runs on a lent node")
    eventually(lambda: testbed.bridge.at_rest("kubernetes", [node]), "the handoff ends")

    testbed.kube.scale("slow", 0)
    testbed.bridge.order("slurm", node)
    process_seen_s, opened_s = time.monotonic(), None
    deadline = time.monotonic() + 60
    while opened_s is None and time.monotonic() < deadline:
        held = testbed.holders(node)
        states = testbed.slurm.node(node)["state"]
        if held:
            process_seen_s = time.monotonic()
            assert "DRAIN" in states or "MAINTENANCE" in states, f"opened to Slurm ({states}) beside {held}"
        elif states == ["IDLE"]:
            opened_s = time.monotonic()
    assert opened_s is not None, "the node did not come back to Slurm"
    assert opened_s > process_seen_s


def test_e_an_admins_drain_during_a_loan_is_there_after_the_return(testbed: Testbed) -> None:
    testbed.bridge.order("kubernetes", "gpu-3")
    eventually(lambda: testbed.bridge.at_rest("kubernetes", ["gpu-3"]), "gpu-3 is lent")
    testbed.slurm("scontrol", "update", "nodename=gpu-3", "state=drain", "reason=bad DIMM", user="admin")

    answer = testbed.bridge.call(
        "POST", "/v1/handoffs", json={"nodes": ["gpu-3"], "destination": "slurm", "reason": "back"}
    )
    assert answer.status_code == 201, answer.text
    eventually(lambda: testbed.bridge.at_rest("slurm", ["gpu-3"]), "gpu-3 is Slurm's again")
    node = testbed.slurm.node("gpu-3")
    assert "DRAIN" in node["state"]
    assert node["reason"] == "bad DIMM"
    assert node["reason_set_by_user"] == "admin"
    assert "MAINTENANCE" not in node["state"], "our own latch is off"


@pytest.mark.parametrize("process", ["broker", "node-controller"])
@pytest.mark.parametrize("destination", ["kubernetes", "slurm"])
def test_f_a_killed_broker_or_controller_goes_on_in_the_middle(
    testbed: Testbed, process: str, destination: str
) -> None:
    if destination == "slurm":
        testbed.bridge.order("kubernetes", "gpu-1")
        eventually(lambda: testbed.bridge.at_rest("kubernetes", ["gpu-1"]), "gpu-1 is lent first")
    testbed.bridge.order(destination, "gpu-1")
    if process == "broker":
        testbed.kill("broker")
        testbed.start("broker")
    else:
        _kill_node_controller(testbed)
    eventually(lambda: testbed.bridge.at_rest(destination, ["gpu-1"]), f"gpu-1 arrives at {destination}", within_s=90)


@pytest.mark.parametrize("service", ["slurmrestd", "kube"])
def test_g_while_a_side_is_away_nothing_moves_and_afterwards_it_goes_on(testbed: Testbed, service: str) -> None:
    job = testbed.slurm.sbatch("--nodelist=gpu-4")
    eventually(lambda: testbed.slurm.running(job), "a job runs")
    testbed.bridge.order("kubernetes", "gpu-1")
    eventually(lambda: testbed.bridge.at_rest("kubernetes", ["gpu-1"]), "a node is lent")
    before = {name: (item["owner"], item["lease"]) for name, item in testbed.bridge.nodes().items()}

    testbed.pause(service)
    try:
        eventually(lambda: _unknown(testbed, service), "the broker says that it is blind on that side")
        answer = testbed.bridge.call(
            "POST", "/v1/handoffs", json={"nodes": ["gpu-2"], "destination": "kubernetes", "reason": "e2e"}
        )
        eventually(lambda: _refused_as_unknown(testbed, answer.headers["Location"]), "an order is refused meanwhile")
        blind_until = time.monotonic() + 30
        while time.monotonic() < blind_until:
            assert {n: (i["owner"], i["lease"]) for n, i in testbed.bridge.nodes().items()} == before
            time.sleep(1)
    finally:
        testbed.unpause(service)
    eventually(lambda: _sighted(testbed), "the broker sees both sides again", within_s=60)
    assert testbed.slurm.running(job)
    eventually(lambda: testbed.bridge.order_once_sighted("kubernetes", "gpu-2"), "the same order is taken now")
    eventually(lambda: testbed.bridge.at_rest("kubernetes", ["gpu-2"]), "all goes on")


def test_i_a_child_that_left_its_session_keeps_the_node_closed(testbed: Testbed) -> None:
    script = f"setsid --fork {HOLD} sleep 1000000 >/dev/null 2>&1; sleep 1000000"
    options = ("--parsable", "--exclusive", "--gpus-per-node=8", "--nodelist=gpu-2", "--output=/dev/null")
    job = int(testbed.slurm("sbatch", "--chdir=/tmp", *options, f"--wrap={script}", user="alice"))
    eventually(lambda: testbed.slurm.running(job), "the job runs")
    eventually(lambda: _locked_everywhere(testbed, ["gpu-2"]), "its child holds the GPUs")
    testbed.slurm("scancel", str(job))
    eventually(lambda: _ended(testbed, job), "the job is cancelled")
    try:
        testbed.bridge.order("kubernetes", "gpu-2")
        found = eventually(lambda: testbed.bridge.at_step("gpu-2", "clean"), "the node is empty and inspected")
        eventually(lambda: _blocked_by(testbed, "gpu-2", "holds /dev/fakegpu"), "it says which process")
        testbed.kube.deploy("chat", replicas=4)
        eventually(lambda: testbed.kube.ready("chat", 3), "pods come up on the three other nodes", within_s=60)
        assert testbed.bridge.at_step("gpu-2", "clean")["id"] == found["id"]
    finally:
        testbed.on_node("gpu-2", "pkill", "-KILL", "-u", "alice", check=False)
    eventually(lambda: testbed.kube.ready("chat", 4), "once it is gone, the node serves pods", within_s=60)


class TestH:
    """The hazard itself, and its absence."""

    @pytest.fixture
    def unbridged(self, testbed: Testbed) -> Iterator[Testbed]:
        """gpu-4 taken out of the bridge's hands: the broker stopped, its marks lifted as a careless person would."""
        testbed.stop("broker")
        node = kube_name("gpu-4")
        testbed.kube("scale", "-n", "slurm-kube-bridge", "deployment", "node-controller", "--replicas=0")
        testbed.kube("taint", "node", node, "bridge.slurm-kube.io/lease-", check=False)
        testbed.kube(
            "patch",
            "nodefence",
            "shared",
            "--type=json",
            "-p",
            '[{"op":"remove","path":"/spec/closed/gpu-4.testbed"}]',
            check=False,
        )
        yield testbed
        testbed.kube.delete_all()
        testbed.slurm.cancel_all()
        testbed.kube("scale", "-n", "slurm-kube-bridge", "deployment", "node-controller", "--replicas=1")
        testbed.start("broker")
        eventually(lambda: _no_holders(testbed, "gpu-4"), "the control's work is gone")
        testbed.forget_evidence()

    def test_h_without_the_bridge_one_node_is_booked_twice(self, unbridged: Testbed) -> None:
        testbed = unbridged
        job = testbed.slurm.sbatch("--nodelist=gpu-4")
        eventually(lambda: testbed.slurm.running(job), "a job with 8 GPUs runs on gpu-4")
        eventually(lambda: _locked_everywhere(testbed, ["gpu-4"]), "it holds them")
        testbed.kube.deploy("greedy", replicas=1, nodeSelector={"kubernetes.io/hostname": kube_name("gpu-4")})
        eventually(lambda: _evidence(testbed), "a pod with 8 GPUs was started beside it")

    def test_h_with_the_bridge_never_while_both_sides_want_everything(self, testbed: Testbed) -> None:
        for round_ in range(3):
            testbed.kube.deploy("chat", replicas=4)
            eventually(lambda: testbed.kube.ready("chat", 4), f"round {round_}: four pods", within_s=90)
            jobs = [testbed.slurm.sbatch("--nodes=2", script="sleep 3") for _ in range(2)]
            testbed.kube.scale("chat", 0)
            for job in jobs:
                eventually(lambda job=job: _ended(testbed, job), f"round {round_}: job {job} has run", within_s=120)
            assert all(testbed.slurm.job(job)["job_state"] == ["COMPLETED"] for job in jobs)


def test_handoffs_of_idle_nodes_take_seconds(testbed: Testbed, measured: dict[str, list[float]]) -> None:
    """Not a limit but a measurement: the figures are in build/e2e/handoffs.json."""
    for round_ in range(5):
        testbed.kube.deploy("chat", replicas=1)
        [node] = eventually(lambda: testbed.kube.ready("chat", 1), f"round {round_}: the pod is Ready", every_s=0.05)
        ready_at = datetime.now(UTC)
        lent = eventually(lambda node=node: testbed.bridge.at_step(node, "done"), "the handoff ends")
        measured["to_kubernetes"].append((ready_at - _time(lent["began_at"])).total_seconds())
        testbed.kube.scale("chat", 0)
        eventually(lambda: testbed.kube.none_left("chat"), "the pod is gone")
        testbed.bridge.order("slurm", node)
        back = eventually(lambda node=node: testbed.bridge.at_step(node, "done"), "the node is back")
        assert back["destination"] == "slurm"
        measured["to_slurm"].append((_time(back["ended_at"]) - _time(back["began_at"])).total_seconds())
        testbed.slurm.idle([node])


# --- what is waited for ---


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _locked_everywhere(testbed: Testbed, nodes: tuple[str, ...] | list[str]) -> None:
    missing = [node for node in nodes if not testbed.holders(node)]
    if missing:
        raise NotYet(f"nobody holds the GPUs of {', '.join(missing)}")


def _no_holders(testbed: Testbed, node: str) -> None:
    held = testbed.holders(node)
    if held:
        raise NotYet(f"still there: {held}")


def _blocked_by(testbed: Testbed, node: str, words: str) -> None:
    blockers = testbed.bridge.handoff(node)["blockers"]
    if not any(words in blocker for blocker in blockers):
        raise NotYet(f"blockers of {node} are {blockers}")


def _ended(testbed: Testbed, job: int) -> None:
    state = testbed.slurm.job(job)["job_state"]
    if state not in (["COMPLETED"], ["CANCELLED"], ["FAILED"], ["TIMEOUT"], ["NODE_FAIL"]):
        raise NotYet(f"job {job} is {state}")


def _evidence(testbed: Testbed) -> None:
    if not testbed.evidence():
        raise NotYet(f"no GPU was held twice; on gpu-4: {testbed.holders('gpu-4')}, pods {testbed.kube('get', 'pods')}")


def _unknown(testbed: Testbed, service: str) -> None:
    side = "slurm" if service == "slurmrestd" else "kubernetes"
    seen = testbed.bridge.get("/v1/status")[side]
    if seen["state"] != "unknown":
        raise NotYet(f"{side} is {seen}")


def _refused_as_unknown(testbed: Testbed, request: str) -> None:
    answered = testbed.bridge.get(request)
    if answered["state"] != "refused" or "UNKNOWN" not in answered["answer"]:
        raise NotYet(f"the order is {answered['state']}: {answered['answer']}")


def _sighted(testbed: Testbed) -> None:
    status = testbed.bridge.get("/v1/status")
    blind = {side: status[side] for side in ("slurm", "kubernetes") if status[side]["state"] != "fresh"}
    if blind:
        raise NotYet(str(blind))


def _kill_node_controller(testbed: Testbed) -> None:
    """SIGKILL to the process; then its pod goes too, or the kubelet's growing back-off would be what is tested."""
    testbed.on_node("infra-1", "pkill", "-KILL", "-f", "bridgectl node-controller")
    pods = ("-n", "slurm-kube-bridge", "delete", "pods", "-l", "app.kubernetes.io/name=node-controller")
    testbed.kube(*pods, "--force", "--grace-period=0")
