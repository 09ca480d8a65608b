"""The hands of the e2e tests: what a training user, an inference team, an admin and a fault do to the testbed.

Every GPU job and pod runs `hold`, which takes an exclusive lock on its node's fake GPU devices for as long as it lives
and leaves evidence when it cannot: any overlap of the two worlds, however short, fails the test by construction.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

REPOSITORY = Path(__file__).parents[2]
STATE = REPOSITORY / "build" / "testbed"
BRIDGECTL = str(REPOSITORY / ".venv" / "bin" / "bridgectl")
NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
HOLD = "/var/lib/fakegpu/hold"
EVIDENCE = "/var/lib/fakegpu/double-booked"

Json = dict[str, Any]
Seen = TypeVar("Seen")


class NotYet(Exception):
    """What a condition that is waited for says is still missing."""


def kube_name(node: str) -> str:
    return f"{node}.testbed"


def container(service: str) -> str:
    """Compose's own name of a service's container. (Compose itself would wait for whatever the service depends on.)"""
    return f"skb-{service}-1"


def run(*command: str, stdin: str = "", check: bool = True, timeout_s: float = 60) -> str:
    """Standard output of a command; what it said on failure is in the error."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=REPOSITORY
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def eventually(look: Callable[[], Seen], what: str, *, within_s: float = 60, every_s: float = 0.2) -> Seen:
    """What `look` returns when it no longer raises `NotYet`; at the deadline, says what was waited for and missing."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return look()
        except NotYet as missing:
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {within_s:.0f} s for: {what}; still missing: {missing}") from None
        time.sleep(every_s)


class Kubernetes:
    """kubectl as an inference team or a cluster admin has it."""

    def __call__(self, *arguments: str, stdin: str = "", check: bool = True, timeout_s: float = 60) -> str:
        kubectl = ("--kubeconfig", str(STATE / "admin.kubeconfig"), "--request-timeout", "20s")
        return run(str(STATE / "kubectl"), *kubectl, *arguments, stdin=stdin, check=check, timeout_s=timeout_s)

    def json(self, *arguments: str) -> Json:
        found: Json = json.loads(self(*arguments, "-o", "json"))
        return found

    def deploy(self, name: str, replicas: int, *, gpus: int = 8, command: str = "sleep 1000000", **pod: Any) -> None:
        """A Deployment whose pods lock the GPUs that they got. `pod` adds to the pod spec."""
        container = {
            "name": "model",
            "image": "testbed/busybox:1",
            "imagePullPolicy": "Never",
            "command": [HOLD, "sh", "-c", command],
            "resources": {"limits": {"nvidia.com/gpu": gpus}},
        }
        spec = {"terminationGracePeriodSeconds": 2, **pod, "containers": [container]}
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": spec}
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
        }
        self("apply", "-f", "-", stdin=json.dumps(body))

    def scale(self, name: str, replicas: int) -> None:
        self("scale", "deployment", name, f"--replicas={replicas}")

    def pods(self, name: str = "") -> list[Json]:
        selector = ("-l", f"app={name}") if name else ()
        return list(self.json("get", "pods", *selector)["items"])

    def ready(self, name: str, replicas: int) -> list[str]:
        """The nodes of the Deployment's pods once `replicas` of them are Ready, in the bridge's names."""
        pods = [pod for pod in self.pods(name) if _is_ready(pod)]
        if len(pods) != replicas:
            raise NotYet(f"{len(pods)} of {replicas} pods of {name} Ready: {[_story(p) for p in self.pods(name)]}")
        return [pod["spec"]["nodeName"].removesuffix(".testbed") for pod in pods]

    def none_left(self, name: str) -> None:
        left = [pod["metadata"]["name"] for pod in self.pods(name)]
        if left:
            raise NotYet(f"pods {left} are still there")

    def loan(self, node: str) -> Json:
        return self.json("get", "nodeloan", kube_name(node))

    def delete_all(self) -> None:
        self("delete", "deployments,pods,poddisruptionbudgets", "--all", "--wait=false")


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _story(pod: Json) -> str:
    conditions = {c["type"]: c.get("message", c["status"]) for c in pod["status"].get("conditions", [])}
    return f"{pod['metadata']['name']} {pod['status'].get('phase')} {conditions.get('PodScheduled', '')}"


class Slurm:
    """sbatch, squeue and scontrol, as people have them on a login node."""

    def __call__(self, *command: str, user: str = "root", check: bool = True) -> str:
        return run("docker", "compose", "exec", "-T", "--user", user, "slurmctld", *command, check=check)

    def sbatch(self, *options: str, script: str = "sleep 1000000", user: str = "alice", catches: str = "") -> int:
        """Submits a job of whole nodes, each task of which locks its node's 8 GPUs; the job's id.

        `catches`: a signal that its batch script survives; what the tasks do about it is up to `script`.
        """
        caught = f"trap : {catches}; " if catches else ""
        wrap = f"{caught}srun --ntasks-per-node=1 {HOLD} sh -c '{script}'"
        standard = ("--parsable", "--exclusive", "--gpus-per-node=8", "--ntasks-per-node=1", "--output=/tmp/job-%j.out")
        return int(self("sbatch", "--chdir=/tmp", *standard, *options, f"--wrap={wrap}", user=user))

    def job(self, job: int) -> Json:
        shown = self("scontrol", "show", "job", str(job), "--json", check=False)
        jobs = json.loads(shown)["jobs"] if shown.strip().startswith("{") else []
        if not jobs:
            raise NotYet(f"slurmctld does not know job {job}")
        found: Json = jobs[0]
        return found

    def running(self, job: int) -> Json:
        found = self.job(job)
        if found["job_state"] != ["RUNNING"]:
            raise NotYet(f"job {job} is {found['job_state']}: {found.get('state_reason')}")
        return found

    def cancel_all(self) -> None:
        self("sh", "-c", "squeue --noheader --format=%A | xargs --no-run-if-empty scancel")

    def node(self, node: str) -> Json:
        found: Json = json.loads(self("scontrol", "show", "node", node, "--json"))["nodes"][0]
        return found

    def idle(self, nodes: Iterable[str] = NODES) -> None:
        for node in nodes:
            states = set(self.node(node)["state"])
            if states != {"IDLE"}:
                raise NotYet(f"{node} is {'+'.join(sorted(states))}")


@dataclass
class Bridge:
    """The broker's REST API, as an admin has it."""

    url: str = "http://127.0.0.1:18080"

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {(STATE / 'tokens' / 'admin').read_text().strip()}"}
        headers |= more.pop("headers", {})
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=15, **more)

    def ctl(self, *arguments: str, stdin: str = "") -> str:
        """What `bridgectl` prints, for an admin."""
        target = ("--url", self.url, "--token-file", str(STATE / "tokens" / "admin"))
        return run(BRIDGECTL, *target, *arguments, stdin=stdin)

    def get(self, path: str) -> Json:
        try:
            answer = self.call("GET", path)
        except httpx.TransportError as why:
            raise NotYet(f"the broker does not answer: {why}") from None
        if answer.status_code >= 500:
            raise NotYet(f"{path}: {answer.status_code} {answer.text}")
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        found: Json = answer.json()
        return found

    @staticmethod
    def policy(**pool: Any) -> Json:
        """One pool of all four nodes with quick hysteresis; `pool` overrides its fields."""
        fields = {
            "name": "shared",
            "nodes": ["gpu-[1-4]"],
            "kube_name": "{node}.testbed",
            "gpus": 8,
            "partition": "shared",
            "demand_age_s": 0.5,
            "idle_age_s": 0.5,
            "min_hold_s": 1,
            "failure_backoff_s": 2,
        }
        return {"pools": [{**fields, **pool}]}

    def apply_policy(self, **pool: Any) -> None:
        version = self.call("GET", "/v1/policy").headers["ETag"]
        answer = self.call("PUT", "/v1/policy", json=self.policy(**pool), headers={"If-Match": version})
        assert answer.status_code in (200, 201), f"policy refused: {answer.status_code} {answer.text}"

    def nodes(self) -> dict[str, Json]:
        return {item["name"]: item for item in self.get("/v1/nodes")["items"]}

    def owner(self, node: str) -> str:
        return str(self.nodes()[node]["owner"])

    def order(self, destination: str, *nodes: str, reason: str = "e2e") -> Json:
        body = {"nodes": list(nodes), "destination": destination, "reason": reason}
        answer = self.call("POST", "/v1/handoffs", json=body)
        assert answer.status_code in (201, 202), f"order refused: {answer.status_code} {answer.text}"
        found: Json = answer.json()
        return found

    def order_once_sighted(self, destination: str, *nodes: str) -> None:
        body = {"nodes": list(nodes), "destination": destination, "reason": "e2e"}
        answer = self.call("POST", "/v1/handoffs", json=body)
        if answer.status_code not in (201, 202):
            raise NotYet(answer.text)

    def handoffs(self, **query: Any) -> list[Json]:
        return list(self.get("/v1/handoffs?" + "&".join(f"{k}={v}" for k, v in query.items()))["items"])

    def handoff(self, node: str) -> Json:
        """The newest handoff of a node."""
        found = self.handoffs(node=node, limit=1)
        if not found:
            raise NotYet(f"{node} was never handed over")
        return found[0]

    def at_step(self, node: str, *steps: str) -> Json:
        found = self.handoff(node)
        if found["step"] not in steps:
            raise NotYet(
                f"{node} is at {found['step']}, waiting for {found.get('blockers')}, outcome {found['outcome']}"
            )
        return found

    def at_rest(self, owner: str, nodes: Iterable[str] = NODES) -> None:
        """Every one of `nodes` is owned by `owner` and not in motion."""
        seen = self.nodes()
        for node in nodes:
            item = seen.get(node)
            if item is None or item["owner"] != owner or item["handoff"] is not None:
                state = item and {k: item.get(k) for k in ("owner", "handoff", "unusable")}
                raise NotYet(f"{node} is not at rest with {owner}: {state}")


class Testbed:
    """All of it, and the faults."""

    __test__ = False

    def __init__(self) -> None:
        self.kube, self.slurm, self.bridge = Kubernetes(), Slurm(), Bridge()

    def on_node(self, node: str, *command: str, check: bool = True) -> str:
        return run("docker", "compose", "exec", "-T", node, *command, check=check)

    def kill(self, service: str) -> None:
        """SIGKILL to a whole container, as a power cut would."""
        run("docker", "kill", "--signal", "KILL", container(service))

    def start(self, service: str) -> None:
        run("docker", "start", container(service))

    def stop(self, service: str) -> None:
        run("docker", "stop", container(service))

    def pause(self, service: str) -> None:
        run("docker", "pause", container(service))

    def unpause(self, service: str) -> None:
        run("docker", "unpause", container(service), check=False)

    def evidence(self) -> str:
        """Every case of two holders of one GPU since the last `forget_evidence`."""
        return "".join(self.on_node(node, "sh", "-c", f"cat {EVIDENCE} 2>/dev/null || true") for node in NODES)

    def forget_evidence(self) -> None:
        for node in NODES:
            self.on_node(node, "rm", "-f", EVIDENCE)

    def holders(self, node: str) -> str:
        """The processes on a node that hold a fake GPU, one a line."""
        script = (
            "for p in /proc/[0-9]*; do "
            "ls -l $p/fd 2>/dev/null | grep -q fakegpu && tr '\\0' ' ' <$p/cmdline && echo; "
            "done; true"
        )
        return self.on_node(node, "sh", "-c", script)

    def reset(self) -> None:
        """All work ended, all marks of people lifted, every node at rest with Slurm and idle."""
        self.kube.delete_all()
        self.slurm.cancel_all()
        for node in NODES:
            self.kube("uncordon", kube_name(node))
            if "DRAIN" in self.slurm.node(node)["state"] and not self.slurm.node(node)["reason"].startswith("bridge:"):
                self.slurm("scontrol", "update", f"nodename={node}", "state=resume")
        self.bridge.apply_policy()
        eventually(self._all_home, "all nodes at rest with Slurm before the test", within_s=120)
        self.forget_evidence()

    def _all_home(self) -> None:
        self.kube.none_left("")
        for node, item in self.bridge.nodes().items():
            if item["handoff"] is None and item["owner"] != "slurm":
                body = {"nodes": [node], "destination": "slurm", "reason": "reset between tests"}
                self.bridge.call("POST", "/v1/handoffs", json=body)
        self.bridge.at_rest("slurm")
        self.slurm.idle()
