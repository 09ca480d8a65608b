"""What training users, inference teams and admins do in a soak, on parts that may be broken at that moment.

Nobody here waits for an effect: a person whose command fails goes away, and what became of it is found out at the end.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterable

import httpx

from bridge.model import hostlists
from tests.e2e.testbed import NotYet, Slurm, Testbed, container, run
from tests.soak.report import Record, Submission
from tests.soak.story import DEPLOYMENTS, USUAL, Act, Edit, Job, Manner, Order, Scale

MOST_JOBS = 10
"""With more of ours in the queue than this, users wait: what is left at the end must be able to run in minutes."""
PATIENCE_S = 40.0
BROKEN = (AssertionError, NotYet, httpx.HTTPError, subprocess.TimeoutExpired)
"""What the hands of the e2e tests raise when a part of the testbed does not answer, or says no."""

_SAVES = "trap : USR1; i=0; while [ $i -lt {seconds} ]; do sleep 1; i=$((i+1)); done"
_AS = {
    Manner.SAVES: (("--requeue", "--comment=bridge: checkpoint=1"), _SAVES, "USR1"),
    Manner.IGNORES: (("--requeue",), 'trap "" USR1; sleep {seconds}', "USR1"),
    Manner.STAYS: (("--no-requeue",), "sleep {seconds}", ""),
}
"""Options, script of the tasks, and the signal that its batch script survives."""
_SLURMS_OWN = "Duplicate jobid"
"""Why Slurm itself drains a node. Nobody else in a soak does but the bridge."""
_RECORD = "JobName,State,NodeList,Start,End"


class DirectSlurm(Slurm):
    """Without Compose, whose start-up costs more than the command."""

    def __call__(self, *command: str, user: str = "root", check: bool = True) -> str:
        return run(
            "docker", "exec", "--user", user, container("slurmctld"), *command, check=check, timeout_s=PATIENCE_S
        )


class People:
    """Carries out acts and remembers what came of them. Each kind of act has one thread that calls it."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._slurm = DirectSlurm()
        self.submissions: list[Submission] = []
        self.cancelled: frozenset[str] = frozenset()
        self.counts: Counter[str] = Counter()
        self.failures: list[dict[str, str]] = []

    def do(self, act: Act) -> None:
        """One act of a person; counts how it went."""
        what = type(act).__name__.lower()
        try:
            self.counts[f"{what}s {self._do(act)}"] += 1
        except BROKEN as why:
            self.counts[f"{what}s failed"] += 1
            self.failures.append({"act": str(act), "why": str(why)})

    def _do(self, act: Act) -> str:
        match act:
            case Job():
                return self._submit(act)
            case Scale():
                self._testbed.kube.scale(act.deployment, act.replicas)
                return "done"
            case Order():
                return self._order(act.destination, act.nodes)
            case Edit():
                self._testbed.bridge.apply_policy(**act.pool)
                return "done"
        raise TypeError(f"a person cannot do {act}")

    # --- training users ---

    def _submit(self, job: Job) -> str:
        if len(self.queue()) >= MOST_JOBS:
            return "put off"
        at_s = time.time()
        options, script, catches = _AS[job.manner]
        common = (f"--nodes={job.nodes}", f"--job-name={job.name}", "--time=3")
        script = script.format(seconds=job.seconds)
        acknowledged = False
        try:
            self._slurm.sbatch(*common, *options, script=script, user=job.user, catches=catches)
            acknowledged = True
        finally:
            self.submissions.append(Submission(job.name, at_s, acknowledged))
        return "submitted"

    def queue(self) -> dict[str, str]:
        """State by name of the jobs that slurmctld has."""
        shown = self._slurm("squeue", "--noheader", "--states=all", "--format=%j %T")
        found = dict(line.split() for line in shown.splitlines())
        ended = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "PREEMPTED")
        return {name: state for name, state in found.items() if state not in ended}

    def records(self, since_s: float) -> list[Record]:
        """Accounting of all jobs since then, a row for each run, in their order."""
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since_s))
        options = ("--allocations", "--noheader", "--parsable2", "--duplicates", "--allusers", f"--starttime={since}")
        shown = self._slurm("env", "TZ=UTC", "SLURM_TIME_FORMAT=%s", "sacct", *options, f"--format={_RECORD}")
        return [read_record(line) for line in shown.splitlines()]

    def cancel_the_rest(self) -> None:
        """End what is still queued; remembered as ended by us."""
        self.cancelled = frozenset(self.queue())
        if self.cancelled:
            self._slurm("scancel", *(f"--name={name}" for name in sorted(self.cancelled)))

    # --- inference teams ---

    def deploy(self) -> None:
        for name in DEPLOYMENTS:
            self._testbed.kube.deploy(name, 0)

    def scale_to_nothing(self) -> None:
        for name in DEPLOYMENTS:
            self._testbed.kube.scale(name, 0)

    # --- admins ---

    def usual_policy(self) -> None:
        self._testbed.bridge.apply_policy(**USUAL)

    def look_after(self) -> None:
        """As an admin who looks at what stands still, and finds it well: quarantined nodes, and what Slurm set aside.

        A slurmctld that was killed may start a job a second time where it runs already; it then holds the job and
        drains the node until somebody has looked.
        """
        for look in (self._after_quarantines, self._after_held_jobs, self._after_drains_of_slurm):
            try:
                look()
            except BROKEN:
                self.counts["looks after things failed"] += 1

    def _after_quarantines(self) -> None:
        for name, node in self._testbed.bridge.nodes().items():
            if node["owner"] == "bridge" and node["handoff"] is None:
                self.counts[f"quarantines ordered to Slurm {self._order('slurm', (name,))}"] += 1

    def _after_held_jobs(self) -> None:
        for line in self._slurm("squeue", "--noheader", "--states=PENDING", "--format=%A %r").splitlines():
            job, _, why = line.partition(" ")
            if "held" in why:
                self._slurm("scontrol", "release", job)
                self.counts[f"jobs released ({why})"] += 1

    def _after_drains_of_slurm(self) -> None:
        for node in json.loads(self._slurm("scontrol", "show", "node", "--json"))["nodes"]:
            if "DRAIN" in node["state"] and node["reason"].startswith(_SLURMS_OWN):
                self._slurm("scontrol", "update", f"nodename={node['name']}", "state=resume")
                self.counts[f"drains lifted ({node['reason']})"] += 1

    def _order(self, destination: str, nodes: Iterable[str]) -> str:
        body = {"nodes": list(nodes), "destination": destination, "reason": "a person's order"}
        answer = self._testbed.bridge.call("POST", "/v1/handoffs", json=body)
        return {201: "accepted", 202: "unanswered", 409: "refused"}.get(answer.status_code, "failed")


def read_record(line: str) -> Record:
    """A line of sacct: name, state, nodes (a host list), and two times in seconds or a word."""
    name, state, nodes, began, ended = line.split("|")
    return Record(name, state, _nodes(nodes), _time(began), _time(ended))


def _nodes(text: str) -> frozenset[str]:
    return frozenset(hostlists.expand([text])) if text.startswith("gpu-") else frozenset()


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() else None
