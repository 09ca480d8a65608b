"""The planner on the real thing: victims, gangs, a timetable, headroom, and the words in which it explains itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.testbed import NODES, Json, NotYet, Testbed, eventually

REQUEUE = {
    "mode": "requeue",
    "signal": "USR1",
    "grace_s": 3,
    "min_runtime_s": 0,
    "respite_s": 0,
    "restart_s": 0,
    "never": {"accounts": ["vision"]},
}
SAVES = 'trap "touch /tmp/saved-$SLURM_JOB_ID" USR1; while true; do sleep 0.2; done'
SAVES_EACH_SECOND = "--comment=bridge: checkpoint=1"


class TestRequeue:
    """Slurm is full, a pod waits: the cheapest job is told, given its grace, and put back into the queue whole."""

    def test_a_gang_is_requeued_whole_and_the_protected_stay(
        self, testbed: Testbed, measured: dict[str, list[float]]
    ) -> None:
        testbed.bridge.apply_policy(preemption=REQUEUE)
        gang = testbed.slurm.sbatch("--nodes=2", SAVES_EACH_SECOND, "--requeue", script=SAVES, catches="USR1")
        stubborn = testbed.slurm.sbatch("--no-requeue")
        listed = testbed.slurm.sbatch(user="bob")
        for job in (gang, stubborn, listed):
            eventually(lambda job=job: testbed.slurm.running(job), f"job {job} runs")
        nodes = _nodes_of(testbed, gang)
        eventually(lambda: _locked(testbed, nodes), "the gang's tasks hold its GPUs, and so have set their trap")

        testbed.kube.deploy("chat", replicas=1)
        [node] = eventually(lambda: testbed.kube.ready("chat", 1), "a pod runs where the gang ran", every_s=0.05)
        ready_at = datetime.now(UTC)
        assert node in nodes, f"the cheapest was job {gang} on {nodes}"
        handoff = eventually(lambda: testbed.bridge.at_step(node, "done"), "the handoff ends")
        measured["to_kubernetes_by_requeue"].append((ready_at - _time(handoff["began_at"])).total_seconds())
        assert [victim["job"] for victim in handoff["victims"]] == [gang]
        for each in nodes:
            assert testbed.on_node(each, "ls", f"/tmp/saved-{gang}"), f"{each} was told before"

        waiting = testbed.slurm.job(gang)
        assert waiting["job_state"] == ["PENDING"], "it is requeued whole, and needs two nodes again"
        assert waiting["restart_cnt"] == 1
        for job in (stubborn, listed):
            assert testbed.slurm.running(job)["restart_cnt"] == 0

        testbed.kube.scale("chat", 0)
        # Slurm lets a requeued job wait for two minutes, which are not waited for here.
        testbed.slurm("scontrol", "update", f"JobId={gang}", "StartTime=now")
        again = eventually(lambda: testbed.slurm.running(gang), "when the pod is gone the gang runs again")
        assert again["node_count"]["number"] == 2

    def test_of_four_jobs_only_the_one_that_loses_least_is_ended(
        self, testbed: Testbed, measured: dict[str, list[float]]
    ) -> None:
        testbed.bridge.apply_policy(preemption=REQUEUE)
        dear = [testbed.slurm.sbatch("--requeue", script=SAVES, catches="USR1") for _ in range(3)]
        cheap = testbed.slurm.sbatch("--requeue", SAVES_EACH_SECOND, script=SAVES, catches="USR1")
        for job in (*dear, cheap):
            eventually(lambda job=job: _runs_for(testbed, job, 2), f"job {job} has more to lose than a second's work")
        [node] = _nodes_of(testbed, cheap)
        eventually(lambda: _locked(testbed, [node]), "its task has set its trap")

        testbed.kube.deploy("chat", replicas=1)
        found = eventually(
            lambda: testbed.kube.ready("chat", 1), "a pod runs on the node of the cheap job", every_s=0.05
        )
        ready_at = datetime.now(UTC)
        assert found == [node]
        handoff = eventually(lambda: testbed.bridge.at_step(node, "done"), "the handoff ends")
        measured["to_kubernetes_by_requeue"].append((ready_at - _time(handoff["began_at"])).total_seconds())
        assert testbed.slurm.job(cheap)["job_state"] == ["PENDING"]
        for job in dear:
            assert testbed.slurm.running(job)["restart_cnt"] == 0


def test_a_gang_at_the_top_gets_all_nodes_at_once_before_a_stream_of_small_jobs(testbed: Testbed) -> None:
    for node in NODES:
        testbed.bridge.order_once_sighted("kubernetes", node)
    eventually(lambda: testbed.bridge.at_rest("kubernetes"), "all four nodes are lent, and idle")

    gang = testbed.slurm.sbatch("--nodes=4", "--qos=urgent", script="sleep 3")
    small = [testbed.slurm.sbatch("--time=1", script="sleep 1") for _ in range(6)]
    eventually(lambda: _began(testbed, gang), "the gang runs on all four nodes", within_s=90)
    shown = testbed.slurm.job(gang)
    assert shown["node_count"]["number"] == 4
    leases = {testbed.bridge.handoff(node)["lease"] for node in NODES}
    assert len(leases) == 1, "the nodes came back together"
    began_s = shown["start_time"]["number"]
    for job in small:
        eventually(lambda job=job: _began(testbed, job), f"small job {job} has its turn", within_s=90)
        assert testbed.slurm.job(job)["start_time"]["number"] >= began_s, "none slipped in before the gang"


class TestExplain:
    """The first obstacle is the true one, on the command line, where the truth is known because we made it so."""

    def test_a_job_above_the_ceiling(self, testbed: Testbed) -> None:
        testbed.bridge.apply_policy(demand_age_s=3600)
        lent = ["gpu-2", "gpu-3", "gpu-4"]
        testbed.bridge.order("kubernetes", *lent)
        eventually(lambda: testbed.bridge.at_rest("kubernetes", lent), "three nodes are lent")
        job = testbed.slurm.sbatch("--nodes=3")
        testbed.bridge.apply_policy(slurm={"max_nodes": 2})
        obstacle = eventually(lambda: _obstacle(testbed, "job", str(job), "at most 2 nodes"), "the ceiling is named")
        assert obstacle["layer"] == "quota"
        assert "slurm owns 1 of at most 2 nodes of pool shared, 2 more are needed" in obstacle["text"]

    def test_a_pod_with_more_gpus_than_a_node_has(self, testbed: Testbed) -> None:
        testbed.kube.deploy("huge", replicas=1, gpus=9)
        pod = eventually(lambda: _only_pod(testbed, "huge"), "the pod is there")
        obstacle = eventually(lambda: _obstacle(testbed, "pod", f"default/{pod}", "9"), "its GPUs are named")
        assert obstacle["layer"] == "fit"
        assert all(owner == "slurm" for owner in _owners(testbed)), "nothing moves for it"

    def test_a_lent_node_a_pool_and_a_team(self, testbed: Testbed) -> None:
        testbed.bridge.order("kubernetes", "gpu-2")
        eventually(lambda: testbed.bridge.at_rest("kubernetes", ["gpu-2"]), "gpu-2 is lent")
        said = testbed.bridge.ctl("explain", "node", "gpu-2")
        assert "kubernetes" in said.splitlines()[0]
        for kind, name in (("pool", "shared"), ("team", "research")):
            said = testbed.bridge.ctl("explain", kind, name)
            assert said.splitlines()[0].startswith(f"{kind} {name}")


class TestPolicy:
    """A change is shown before it is made, made, seen in the difference, and taken back."""

    def test_a_line_of_the_timetable_that_holds_now(self, testbed: Testbed, tmp_path: Path) -> None:
        nothing_borrowed = {"borrow_limit_nodes": 0}
        testbed.bridge.apply_policy(kubernetes=nothing_borrowed)
        version = _version(testbed)
        testbed.kube.deploy("chat", replicas=1)
        eventually(lambda: _told(testbed, "chat"), "the planner says why the pod's need is not met")

        always = {"name": "always", "kubernetes_floor_nodes": 1}
        file = tmp_path / "policy.yaml"
        file.write_text(json.dumps(testbed.bridge.policy(kubernetes=nothing_borrowed, timetable=[always])))
        said = testbed.bridge.ctl("policy", "check", str(file))
        moves = said.partition("would move now:")[2]
        assert "slurm to kubernetes" in moves
        assert "kubernetes 1" in said, "the floors that hold now"
        assert all(owner == "slurm" for owner in _owners(testbed)), "a check moves nothing"

        testbed.bridge.ctl("policy", "apply", str(file), "--note", "one node for serving, at all hours")
        [node] = eventually(lambda: testbed.kube.ready("chat", 1), "the floor of the timetable moves a node")
        assert "timetable" in testbed.bridge.ctl("policy", "diff")
        assert "one node for serving" in testbed.bridge.ctl("policy", "history")
        eventually(lambda: testbed.bridge.at_rest("kubernetes", [node]), "the handoff ends")

        testbed.bridge.ctl("policy", "rollback", str(version), "--yes")
        assert testbed.bridge.get("/v1/policy")["pools"] == testbed.bridge.get(f"/v1/policy?version={version}")["pools"]


def test_headroom_takes_an_idle_node_before_any_pod_asks(testbed: Testbed) -> None:
    testbed.bridge.apply_policy(headroom={"mode": "fixed", "nodes": 1})
    eventually(lambda: _lent(testbed, 1), "one node is ready for pods that may come")
    assert not testbed.kube.pods()


# --- what is waited for ---


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _nodes_of(testbed: Testbed, job: int) -> list[str]:
    allocated = testbed.slurm.job(job)["job_resources"]["nodes"]["allocation"]
    return [node["name"] for node in allocated]


def _locked(testbed: Testbed, nodes: list[str]) -> None:
    missing = [node for node in nodes if not testbed.holders(node)]
    if missing:
        raise NotYet(f"nobody holds the GPUs of {', '.join(missing)}")


def _runs_for(testbed: Testbed, job: int, seconds: float) -> None:
    began_s = testbed.slurm.running(job)["start_time"]["number"]
    runs_for_s = datetime.now(UTC).timestamp() - began_s
    if runs_for_s <= seconds:
        raise NotYet(f"job {job} runs for {runs_for_s:.1f} s")


def _began(testbed: Testbed, job: int) -> None:
    shown = testbed.slurm.job(job)
    if shown["job_state"] == ["PENDING"]:
        raise NotYet(f"job {job} is pending: {shown['state_reason']}; nodes {testbed.bridge.nodes()}")


def _obstacle(testbed: Testbed, kind: str, name: str, words: str) -> Json:
    """The first obstacle as a program reads it, once it has `words`; people read the same one behind the arrow."""
    found = json.loads(testbed.bridge.ctl("explain", kind, name, "-o", "json"))
    first: Json | None = next((link for link in found["chain"] if link["holds"]), None)
    if first is None or words not in first["text"]:
        raise NotYet(f"the first obstacle is {first}; the verdict is {found['verdict']}")
    arrow = next(line for line in testbed.bridge.ctl("explain", kind, name).splitlines() if line.startswith("  =>"))
    assert arrow.split()[1] == first["layer"].split()[0]
    return first


def _only_pod(testbed: Testbed, name: str) -> str:
    pods = testbed.kube.pods(name)
    if len(pods) != 1:
        raise NotYet(f"{len(pods)} pods of {name}")
    return str(pods[0]["metadata"]["name"])


def _owners(testbed: Testbed) -> list[str]:
    return [item["owner"] for item in testbed.bridge.nodes().values()]


def _lent(testbed: Testbed, count: int) -> None:
    at_rest = [i for i in testbed.bridge.nodes().values() if i["owner"] == "kubernetes" and i["handoff"] is None]
    if len(at_rest) != count:
        raise NotYet(f"{len(at_rest)} of {count} nodes are lent: {_owners(testbed)}")


def _told(testbed: Testbed, words: str) -> None:
    said = testbed.bridge.ctl("plan")
    if words not in said:
        raise NotYet(f"the plan says {said}")


def _version(testbed: Testbed) -> int:
    return int(testbed.bridge.call("GET", "/v1/policy").headers["ETag"].strip('"'))
