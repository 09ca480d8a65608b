"""The report of a soak, from records worked out by hand: who was where, what a handoff took, where the jobs went."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.soak.evidence import Double, Look, Taken, doubles, own_affairs, read_look, read_taken, unseen_s
from tests.soak.marks import Marks, left_behind, named, not_at_rest, read_marks
from tests.soak.people import read_record
from tests.soak.report import (
    Handoff,
    Record,
    Submission,
    Trouble,
    account,
    endings,
    handoffs,
    longest_without_leader,
    spread,
    text,
    timings,
    verdict,
)


def look(at_s: float, jobs: str = "", pods: str = "", node: str = "gpu-1") -> Look:
    return Look(node, at_s, frozenset(jobs.split()), frozenset(pods.split()))


class TestLooks:
    def test_a_process_is_a_jobs_or_a_pods_by_its_environment(self) -> None:
        found = [
            b"/proc/1/environ:HOSTNAME=gpu-1",
            b"/proc/7/environ:HOSTNAME=inspector-x",
            b"/proc/601/environ:HOSTNAME=gpu-1",
            b"/proc/601/environ:SLURM_JOB_ID=12",
            b"/proc/602/environ:SLURM_JOB_ID=12",
            b"/proc/700/environ:HOSTNAME=chat-1",
            b"/proc/700/environ:NVIDIA_VISIBLE_DEVICES=0,1",
            b"grep: a line of something else",
        ]
        assert read_look("gpu-1", 5.0, found) == look(5.0, "12", "chat-1")

    def test_a_job_that_sets_the_variable_of_pods_is_still_a_job(self) -> None:
        found = [b"/proc/601/environ:SLURM_JOB_ID=12", b"/proc/601/environ:NVIDIA_VISIBLE_DEVICES=0"]
        assert read_look("gpu-1", 5.0, found) == look(5.0, "12")


class TestDoubles:
    def test_neighbouring_looks_are_one_and_other_nodes_do_not_come_between(self) -> None:
        looks = [
            look(1.0, "12"),
            look(1.5, "12", "chat-1"),
            look(1.7, "13", node="gpu-2"),
            look(2.0, "12", "chat-2"),
            look(2.5, "", "chat-2"),
            look(3.0, "14", "chat-2"),
        ]
        seen = "processes of both were seen"
        assert doubles(looks, []) == [
            Double("gpu-1", 1.5, 2.0, ("12",), ("chat-1", "chat-2"), seen),
            Double("gpu-1", 3.0, 3.0, ("14",), ("chat-2",), seen),
        ]

    def test_one_side_after_the_other_is_none(self) -> None:
        assert doubles([look(1.0, "12"), look(1.5), look(2.0, "", "chat-1")], []) == []

    def test_a_lock_met_taken_counts_unless_only_the_own_side_was_there(self) -> None:
        looks = [look(10.0, "12"), look(20.0, "12"), look(21.0, "", "chat-1")]
        own, other, unseen = (Taken("gpu-1", at_s, "job/13") for at_s in (10.4, 20.5, 40.0))
        said = "job/13 met a GPU that was held"
        assert doubles(looks, [own, other, unseen]) == [
            Double("gpu-1", 20.5, 20.5, (), (), said),
            Double("gpu-1", 40.0, 40.0, (), (), said),
        ]
        assert own_affairs(looks, [own, other, unseen]) == [own]

    def test_lines_of_hold(self) -> None:
        line = "2026-01-02T00:00:01.500000123Z gpu-2 pod/chat-1 /dev/fakegpu3\n"
        assert read_taken(line) == [Taken("gpu-2", 1767312001.5, "pod/chat-1")]


def test_what_the_judge_did_not_see_but_for_what_is_excused() -> None:
    looks = [look(at_s) for at_s in (1.0, 2.0, 12.0, 13.0, 20.0)]
    assert unseen_s(looks, 0.0, 21.0, []) == pytest.approx(10 + 7)
    assert unseen_s(looks, 0.0, 21.0, [(3.0, 11.0)]) == pytest.approx(2 + 7)
    assert unseen_s(looks, 0.0, 21.0, [(3.0, 5.0), (4.0, 30.0)]) == pytest.approx(1)
    assert unseen_s([], 0.0, 21.0, []) == pytest.approx(21)


def event(
    id: int, second: float, step: str, came_from: str = "", message: str = "gpu-1: x", **data: str
) -> dict[str, Any]:
    data |= {"step": step} | ({"from": came_from} if came_from else {})
    at = f"1970-01-01T00:{int(second) // 60:02}:{second % 60:06.3f}+00:00"
    return {"id": id, "at": at, "kind": "step", "node": "gpu-1", "handoff": "h1", "message": message, "data": data}


class TestHandoffs:
    def test_one_that_was_done(self) -> None:
        events = [
            event(1, 10, "close", direction="to_kubernetes"),
            event(2, 10.5, "empty", "close"),
            event(3, 14.5, "clean", "empty"),
            event(4, 15, "open", "clean"),
            event(5, 15.5, "prove", "open"),
            event(6, 16, "done", "prove"),
        ]
        [found] = handoffs(events)
        assert found == Handoff("h1", "gpu-1", "kubernetes", 10, 14.5, 16, "done", "")
        assert found.took_s == 6

    def test_one_that_went_back_says_why_it_turned(self) -> None:
        events = [
            event(1, 10, "close", direction="to_slurm"),
            event(2, 11, "empty", "close"),
            event(3, 20, "reopen", "empty", "gpu-1: empty -> reopen: gpu-2 did not in 12.5 s"),
            event(4, 21, "reprove", "reopen"),
            event(5, 22, "returned", "reprove", "gpu-1: reprove -> returned: offered again"),
        ]
        [found] = handoffs(events)
        assert (found.ending, found.why) == ("returned", "empty -> reopen: NODE did not in N s")
        assert (found.source, found.emptied_s) == ("kubernetes", 20)

    def test_those_of_the_first_day_and_those_begun_before_are_left_out(self) -> None:
        assert handoffs([event(1, 10, "open", "admit"), event(2, 11, "done", "prove")]) == []

    def test_endings_are_counted_with_their_reasons(self) -> None:
        rows = [
            Handoff("a", "gpu-1", "slurm", 0, 1, 2, "done", ""),
            Handoff("b", "gpu-2", "slurm", 0, 1, 2, "returned", "late"),
            Handoff("c", "gpu-3", "slurm", 0, 1, 2, "returned", "late"),
            Handoff("d", "gpu-4", "slurm", 0, 1, 2, "", "still there"),
        ]
        assert endings(rows) == {
            "done": {"count": 1, "reasons": {}},
            "returned": {"count": 2, "reasons": {"late": 2}},
            "running": {"count": 1, "reasons": {"still there": 1}},
        }

    def test_times_of_idle_nodes_and_of_those_whose_work_was_waited_for(self) -> None:
        idle = Handoff("a", "gpu-1", "kubernetes", 100, 101, 102, "done", "")
        busy = Handoff("b", "gpu-1", "kubernetes", 200, 207, 209, "done", "")
        disturbed = Handoff("c", "gpu-1", "slurm", 300, 301, 304, "done", "")
        returned = Handoff("d", "gpu-1", "slurm", 400, 401, 404, "returned", "late")
        looks = [
            look(101.5, "", "chat-1"),  # the destination's own work is nothing to wait for
            look(203.0, "12"),
            look(300.5, "13"),  # the source is Kubernetes
            look(301.5, "", "chat-2"),  # after the proof that it was empty
        ]
        trouble = Trouble("kill broker", "broker", 270, 285)
        assert timings([idle, busy, disturbed, returned], looks, [trouble]) == {
            "to kubernetes, all": {"count": 2, "p50_s": 2, "p99_s": 9, "max_s": 9},
            "to kubernetes, idle node": {"count": 1, "p50_s": 2, "p99_s": 2, "max_s": 2},
            "to kubernetes, idle node, undisturbed": {"count": 1, "p50_s": 2, "p99_s": 2, "max_s": 2},
            "to kubernetes, waited for work": {"count": 1, "p50_s": 9, "p99_s": 9, "max_s": 9},
            "to slurm, all": {"count": 1, "p50_s": 4, "p99_s": 4, "max_s": 4},
            "to slurm, idle node": {"count": 1, "p50_s": 4, "p99_s": 4, "max_s": 4},
        }


@pytest.mark.parametrize(
    ("seconds", "p50", "p99", "longest"),
    [([3.0], 3, 3, 3), ([2.0, 1.0], 1, 2, 2), ([float(n) for n in range(1, 201)], 100, 198, 200)],
)
def test_spread_is_by_nearest_rank(seconds: list[float], p50: float, p99: float, longest: float) -> None:
    assert spread(seconds) == {"count": len(seconds), "p50_s": p50, "p99_s": p99, "max_s": longest}


class TestJobs:
    def placed(
        self,
        *records: Record,
        queue: dict[str, str] | None = None,
        cancelled: frozenset[str] = frozenset(),
        troubles: tuple[Trouble, ...] = (),
        acknowledged: bool = True,
    ) -> dict[str, Any]:
        """What is not zero of the account of one job `j` that was submitted at 100."""
        jobs = account([Submission("j", 100, acknowledged)], records, queue or {}, cancelled, troubles)
        return {key: value for key, value in vars(jobs).items() if value}

    def run(self, state: str, nodes: str = "gpu-1", began_s: float = 101, ended_s: float | None = 110) -> Record:
        return Record("j", state, frozenset(nodes.split()), began_s, ended_s)

    def test_completed_after_a_requeue(self) -> None:
        found = self.placed(self.run("REQUEUED"), self.run("COMPLETED", began_s=120, ended_s=130))
        assert found == {"submitted": 1, "completed": 1, "requeued": 1}

    def test_in_the_queue_whatever_accounting_says(self) -> None:
        assert self.placed(self.run("REQUEUED"), queue={"j": "PENDING"}) == {"submitted": 1, "alive": ["j (PENDING)"]}

    def test_cancelled_by_us_or_by_somebody(self) -> None:
        ended = self.run("CANCELLED by 0")
        assert self.placed(ended, cancelled=frozenset({"j"})) == {"submitted": 1, "cancelled_by_us": 1}
        assert self.placed(ended)["lost"] == ["j (CANCELLED by 0)"]
        near = Trouble("kill node", "gpu-1", 105, 108)
        assert self.placed(ended, troubles=(near,))["lost"] == ["j (CANCELLED by 0)"], "no mishap cancels a job"

    @pytest.mark.parametrize("target", ["gpu-1", "gpu-1/slurmd", "slurmctld/gpu-1", "slurmctld"])
    def test_failed_with_its_node(self, target: str) -> None:
        near = Trouble("kill node", target, 105, 108)
        assert self.placed(self.run("FAILED"), troubles=(near,))["failed_with_their_node"] == ["j (FAILED)"]

    @pytest.mark.parametrize(("target", "began_s"), [("gpu-2", 105), ("broker", 105), ("gpu-1", 111), ("gpu-1", 50)])
    def test_failed_while_another_thing_was_broken_or_at_another_time(self, target: str, began_s: float) -> None:
        other = Trouble("kill node", target, began_s, began_s + 3)
        assert self.placed(self.run("FAILED"), troubles=(other,))["lost"] == ["j (FAILED)"]

    def test_vanished(self) -> None:
        assert self.placed()["lost"] == ["j (unknown to accounting)"]
        assert self.placed(self.run("RUNNING", ended_s=None))["lost"] == ["j (RUNNING)"], "slurmctld has it no more"
        killed = Trouble("kill slurmctld", "slurmctld", 104, 120)
        assert self.placed(troubles=(killed,))["forgotten_by_slurmctld"] == ["j"]
        later = Trouble("kill slurmctld", "slurmctld", 111, 120)
        assert self.placed(troubles=(later,))["lost"] == ["j (unknown to accounting)"]

    def test_an_sbatch_without_an_answer_counts_when_there_is_a_job(self) -> None:
        assert self.placed(acknowledged=False) == {}
        assert self.placed(self.run("COMPLETED"), acknowledged=False) == {"submitted": 1, "completed": 1}

    def test_lines_of_accounting(self) -> None:
        assert read_record("soak-1|CANCELLED by 0|gpu-[1-2]|1767312001|1767312007") == Record(
            "soak-1", "CANCELLED by 0", frozenset({"gpu-1", "gpu-2"}), 1767312001.0, 1767312007.0
        )
        assert read_record("soak-2|PENDING|None assigned|Unknown|Unknown") == Record(
            "soak-2", "PENDING", frozenset(), None, None
        )


@pytest.mark.parametrize(
    ("looks", "longest_s"),
    [
        ([], 0),
        ([(0.0, "a"), (5.0, "a")], 0),
        ([(0.0, "a"), (1.0, None), (2.0, None), (4.0, "b"), (5.0, None), (6.0, "b")], 3),
        ([(0.0, "a"), (1.0, None), (9.0, None)], 8),
    ],
)
def test_longest_time_without_a_leader(looks: list[tuple[float, str | None]], longest_s: float) -> None:
    assert longest_without_leader(looks) == longest_s


def node(name: str, owner: str, *closed: str, **more: Any) -> dict[str, Any]:
    """A row of the ledger; a `closed` side carries the mark of lease ``l-NAME``."""
    closures = [{"side": side, "mark": f"bridge:l-{name}:1:2"} for side in closed]
    kube_name = f"{name}.testbed"
    lease = {"id": f"l-{name}"}
    row = {"name": name, "slurm_name": name, "kube_name": kube_name, "owner": owner, "closures": closures}
    return {**row, "lease": lease, "handoff": None, "unusable": "", **more}


class TestMarks:
    LENT = node("gpu-1", "kubernetes", "slurm")
    HOME = node("gpu-2", "slurm", "kubernetes")
    STANDING = Marks(
        drains={"gpu-1": "bridge:l-gpu-1:1:2"},
        reserved=frozenset({"gpu-1"}),
        taints={"gpu-2.testbed": "l-gpu-2"},
        fences={"gpu-2.testbed": "bridge:l-gpu-2:1:2"},
        loans={"gpu-1.testbed": "l-gpu-1", "gpu-2.testbed": "l-gpu-2"},
    )

    def test_all_marks_have_an_owner(self) -> None:
        assert left_behind(self.STANDING, [self.LENT, self.HOME]) == []

    def test_each_kind_is_told_when_it_has_none(self) -> None:
        nobodys = [node("gpu-1", "slurm"), node("gpu-2", "slurm", lease=None)]
        assert left_behind(self.STANDING, nobodys) == [
            "drain of gpu-1 (bridge:l-gpu-1:1:2): the ledger has no closure there",
            "place in the reservation of gpu-1 (ours): the ledger has no closure there",
            "taint of gpu-2.testbed (ours): the ledger has no closure there",
            "fence entry of gpu-2.testbed (bridge:l-gpu-2:1:2): the ledger has no closure there",
            "the NodeLoan of gpu-2.testbed is of lease l-gpu-2, the ledger has None",
        ]

    def test_each_kind_is_told_when_it_is_missing_or_another(self) -> None:
        bare = Marks({"gpu-1": "bridge:l-gpu-1:1:1"}, frozenset(), {}, {}, {})
        assert left_behind(bare, [self.LENT, self.HOME]) == [
            "drain of gpu-1 is bridge:l-gpu-1:1:1, the ledger has bridge:l-gpu-1:1:2",
            "place in the reservation of gpu-1 is missing: the ledger has bridge:l-gpu-1:1:2",
            "taint of gpu-2.testbed is missing: the ledger has bridge:l-gpu-2:1:2",
            "fence entry of gpu-2.testbed is missing: the ledger has bridge:l-gpu-2:1:2",
        ]

    def test_marks_are_read_from_what_the_schedulers_show(self) -> None:
        slurm_nodes = [
            {"name": "gpu-1", "state": ["IDLE", "DRAIN"], "reason": "bridge:l-gpu-1:1:2 lent : Not responding"},
            {"name": "gpu-2", "state": ["IDLE"], "reason": "bridge:l-gpu-2:1:1 a reason outlives its drain"},
            {"name": "gpu-3", "state": ["IDLE", "DRAIN"], "reason": "not a bridge: bad DIMM"},
        ]
        reservations = [{"name": "bridge-shared", "node_list": "gpu-1"}, {"name": "upgrade", "node_list": "gpu-[1-4]"}]
        taints = [{"key": "bridge.slurm-kube.io/lease", "value": "l-gpu-2"}, {"key": "theirs"}]
        kube_nodes = [{"metadata": {"name": "gpu-2.testbed"}, "spec": {"taints": taints}}]
        kube_nodes.append({"metadata": {"name": "gpu-1.testbed"}, "spec": {}})
        fences = [{"spec": {"closed": {"gpu-2.testbed": "bridge:l-gpu-2:1:2"}}}]
        loans = [{"metadata": {"name": f"gpu-{n}.testbed"}, "spec": {"lease": f"l-gpu-{n}"}} for n in (1, 2)]
        assert read_marks(slurm_nodes, reservations, kube_nodes, fences, loans) == self.STANDING

    def test_nodes_at_rest_in_motion_and_named(self) -> None:
        moving = node("gpu-3", "bridge", "slurm", handoff={"step": "empty", "blockers": ["job 1 runs"]})
        mute, said = node("gpu-4", "bridge"), node("gpu-5", "bridge", unusable="could not be opened")
        assert not_at_rest([self.LENT, self.HOME, moving, mute, said]) == [
            "gpu-3 is in step empty: job 1 runs",
            "gpu-4 is owned by bridge and does not say why",
        ]
        assert named([self.LENT, moving, said]) == ["gpu-5 (bridge): could not be opened"]


def report(**more: Any) -> dict[str, Any]:
    """That of a run with nothing wrong, but for `more`."""
    jobs = vars(account([], [], {}, frozenset(), []))
    usual = {
        "minutes": 30,
        "seed": 1,
        "interrupted": False,
        "handoffs": {"to slurm, all": spread([1.0])},
        "endings": {"done": {"count": 1, "reasons": {}}},
        "mishaps": {"kill broker": 2},
        "mishaps_not_done": [],
        "double_owners": [],
        "own_affairs": [],
        "jobs": jobs,
        "people": {"jobs submitted": 3},
        "leaders": 2,
        "longest_without_leader_s": 4.5,
        "quiet_after_s": 60.0,
        "seen_share": {"gpu-1": 0.99},
        "left_behind": [],
        "not_at_rest": [],
        "named": [],
        "faults_of_the_soak": [],
    }
    return {**usual, **more}


class TestVerdict:
    def test_a_pass(self) -> None:
        assert verdict(report()) == []
        assert text(report()).endswith("\nsoak: PASS\n")
        json.dumps(report())

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"double_owners": ["gpu-1"]}, "1 double owners"),
            ({"jobs": {**report()["jobs"], "lost": ["a", "b"]}}, "2 jobs lost"),
            ({"jobs": {**report()["jobs"], "alive": ["a"]}}, "1 jobs did not end in the quiet time"),
            ({"left_behind": ["drain"]}, "1 marks left behind or missing"),
            ({"not_at_rest": ["gpu-1"]}, "1 nodes not at rest, without a reason"),
            ({"seen_share": {"gpu-1": 0.5}}, "the judge saw too little of gpu-1"),
            ({"handoffs": {}}, "no handoff was done"),
            ({"faults_of_the_soak": ["kill node gpu-1 could not be mended"]}, "kill node gpu-1 could not be mended"),
        ],
    )
    def test_each_thing_fails_alone(self, more: dict[str, Any], words: str) -> None:
        assert verdict(report(**more)) == [words]
        assert text(report(**more)).endswith(f"\nsoak: FAIL {words}\n")

    def test_named_nodes_and_failed_handoffs_are_told_and_do_not_fail_it(self) -> None:
        told = report(named=["gpu-1 (bridge): quarantined"], endings={"quarantined": {"count": 1, "reasons": {"x": 1}}})
        assert verdict(told) == []
        assert "gpu-1 (bridge): quarantined" in text(told)
        assert "   1 x x" in text(told)
