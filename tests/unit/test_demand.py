"""What counts as demand and how much, in what order, and what running jobs would lose. All numbers by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model.demand import Work
from bridge.model.policy import Never, Policy, PoolPolicy, Preemption, Priorities, Team
from bridge.model.slurm import SlurmJob, SlurmNode, SlurmObservation
from bridge.planning.constraints import alternatives
from bridge.planning.demand import (
    Queue,
    slurm_queue,
    slurm_works,
    why_not_demand,
)

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
POOL = PoolPolicy(name="shared", nodes=("n[1-4]",), partition="shared")
POLICY = Policy(
    pools=(POOL,),
    teams=(Team(name="vision", accounts=("cv", "research")),),
    priorities=Priorities(qos={"urgent": 50}),
)
JOB = SlurmJob(17, "PENDING", "alice", "research", "shared", node_count=3, gpus_per_node=8, waits_for="Resources")
SMALL = replace(JOB, node_count=1, gpus_per_node=2)


def queue(*jobs: SlurmJob, nodes: int = 4) -> Queue:
    return slurm_queue(POOL, POLICY, SlurmObservation(NOW, {}, jobs), NOW, nodes=nodes)


def demanded(*jobs: SlurmJob, nodes: int = 4) -> list[tuple[str, int]]:
    return [(demand.key, demand.nodes) for demand in queue(*jobs, nodes=nodes).demands]


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


# --- what is demand ---


@pytest.mark.parametrize("reason", ["Resources", "Priority", "None", "ReqNodeNotAvail, UnavailableNodes:n[1-3]", ""])
def test_a_job_that_waits_for_nodes_is_demand(reason: str) -> None:
    assert demanded(replace(JOB, waits_for=reason)) == [("job 17 of alice", 3)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "RUNNING"}, "it is RUNNING"),
        ({"held": True, "waits_for": "JobHeldAdmin"}, "it is held (JobHeldAdmin)"),
        ({"waits_for": "JobHeldUser"}, "more nodes do not cure what it waits for (JobHeldUser)"),
        ({"waits_for": "Dependency"}, "it waits for other jobs (Dependency)"),
        ({"waits_for": "DependencyNeverSatisfied"}, "it waits for other jobs (DependencyNeverSatisfied)"),
        ({"waits_for": "AssocGrpGRES"}, "a limit of its association or QoS is reached (AssocGrpGRES)"),
        (
            {"waits_for": "QOSMaxJobsPerUserLimit"},
            "a limit of its association or QoS is reached (QOSMaxJobsPerUserLimit)",
        ),
        ({"waits_for": "Licenses"}, "more nodes do not cure what it waits for (Licenses)"),
        ({"waits_for": "PartitionDown"}, "more nodes do not cure what it waits for (PartitionDown)"),
        ({"waits_for": "BeginTime"}, "it waits for its begin time, which Slurm does not tell"),
        ({"begins_at": NOW + timedelta(seconds=1)}, "it may not begin before 2026-01-01 12:00:01 UTC"),
        ({"reservation": "exam-week"}, "it waits for reservation exam-week"),
        ({"partition": "cpu"}, "it waits in partition cpu, the pool's is shared"),
        ({"partition": "cpu,shared2"}, "it waits in partition cpu,shared2, the pool's is shared"),
        ({"task_count": 0}, "its array already runs as many tasks as its limit allows"),
    ],
)
def test_a_job_that_nodes_would_not_help_is_none(change: dict[str, object], why: str) -> None:
    job = replace(JOB, **change)  # type: ignore[arg-type]
    assert why_not_demand(job, POOL, NOW) == why
    assert demanded(job) == []


@pytest.mark.parametrize(
    ("restarts", "wait_s", "counts"),
    [(1, 120, True), (1, 151, False), (0, 120, False), (0, 0, True), (1, -5, True)],
)
def test_the_hold_after_a_requeue_is_no_begin_time(restarts: int, wait_s: float, counts: bool) -> None:
    job = replace(JOB, restarts=restarts, waits_for="BeginTime", begins_at=NOW + timedelta(seconds=wait_s))
    assert bool(demanded(job)) is counts


def test_a_job_may_name_several_partitions() -> None:
    assert demanded(replace(JOB, partition="cpu,shared")) == [("job 17 of alice", 3)]


def test_team_rank_and_wishes_come_from_the_job_and_the_policy() -> None:
    (demand,) = queue(replace(JOB, qos="urgent", priority=900, features="h100&ib", switches=1)).demands
    assert (demand.team, demand.rank, demand.priority) == ("vision", 50, 900)
    assert (demand.gpus_per_node, demand.features, demand.switches) == (8, (frozenset({"h100", "ib"}),), 1)
    (other,) = queue(replace(JOB, account="physics", qos="normal")).demands
    assert (other.team, other.rank, other.features) == ("physics", 0, ())


@pytest.mark.parametrize(
    ("node_features", "job", "expected"),
    [
        ({"gpu:h100"}, {"gpu_type": "a100"}, [{"gpu:a100"}]),
        ({"gpu:h100"}, {"gpu_type": "a100", "features": "ib|eth"}, [{"eth", "gpu:a100"}, {"gpu:a100", "ib"}]),
        ({"gpu:h100"}, {}, []),
        ({"ib"}, {"gpu_type": "a100"}, []),
    ],
)
def test_a_gpu_type_is_a_wish_where_nodes_tell_theirs(
    node_features: set[str], job: dict[str, str], expected: list[set[str]]
) -> None:
    nodes = {"n1": SlurmNode("n1", frozenset({"IDLE"}), 8, features=frozenset(node_features))}
    seen = SlurmObservation(NOW, nodes, (replace(JOB, **job),))  # type: ignore[arg-type]
    (demand,) = slurm_queue(POOL, POLICY, seen, NOW, nodes=4).demands
    assert list(demand.features) == expected


# --- how much ---


def test_a_het_job_is_one_gang() -> None:
    leader, second = replace(JOB, het_job=17, node_count=1), replace(JOB, id=18, het_job=17, node_count=2)
    assert demanded(leader, second) == [("job 17 of alice", 3)]
    assert queue(leader, second).waiting == 1


def test_a_het_job_of_which_a_part_waits_for_something_else_is_none() -> None:
    leader, second = replace(JOB, het_job=17), replace(JOB, id=18, het_job=17, waits_for="Dependency")
    assert queue(leader, second) == Queue()


def test_the_wishes_of_het_components_are_alternatives_for_a_node() -> None:
    leader = replace(JOB, het_job=17, node_count=1, features="h100")
    second = replace(leader, id=18, features="a100&ib")
    (demand,) = queue(leader, second).demands
    assert demand.features == (frozenset({"a100", "ib"}), frozenset({"h100"}))
    (demand,) = queue(leader, replace(second, features="")).demands
    assert demand.features == ()


def test_each_task_of_an_array_is_a_demand_of_its_own() -> None:
    array = replace(JOB, node_count=2, task_count=3, array=17)
    found = queue(array, nodes=10)
    assert [(d.key, d.nodes) for d in found.demands] == [
        ("job 17_* of alice", 2),
        ("job 17_* of alice (2)", 2),
        ("job 17_* of alice (3)", 2),
    ]
    assert found.waiting == 3


def test_an_array_of_a_million_tasks_is_listed_only_as_far_as_the_pool_reaches() -> None:
    found = queue(replace(JOB, node_count=1, task_count=1_000_000, array=17), nodes=4)
    assert (len(found.demands), found.waiting) == (4, 1_000_000)


@pytest.mark.parametrize(
    ("gpus", "jobs", "keys"),
    [
        (8, 2, ["job 17 of alice", "job 18 of alice"]),
        (4, 2, ["job 17 of alice"]),
        (4, 3, ["job 17 of alice", "job 19 of alice"]),
        (3, 3, ["job 17 of alice", "job 19 of alice"]),
        (1, 8, ["job 17 of alice"]),
        (1, 9, ["job 17 of alice", "job 25 of alice"]),
        (0, 8, ["job 17 of alice"]),
        (5, 2, ["job 17 of alice", "job 18 of alice"]),
    ],
)
def test_small_jobs_of_a_shape_share_a_node(gpus: int, jobs: int, keys: list[str]) -> None:
    waiting = [replace(SMALL, id=17 + i, gpus_per_node=gpus) for i in range(jobs)]
    assert demanded(*waiting) == [(key, 1) for key in keys]


def test_jobs_that_want_a_node_alone_or_differ_do_not_share() -> None:
    other = replace(SMALL, id=18)
    assert len(demanded(replace(SMALL, exclusive=True), replace(other, exclusive=True))) == 2
    assert len(demanded(SMALL, replace(other, account="physics"))) == 2
    assert len(demanded(SMALL, replace(other, features="ib"))) == 2


def test_tasks_of_a_small_array_share_nodes_too() -> None:
    array = replace(SMALL, task_count=9, array=17)
    assert demanded(array) == [(f"job 17_* of alice{n}", 1) for n in ("", " (2)", " (3)")]


# --- in what order, and how far ---


def test_the_order_is_slurms() -> None:
    first = replace(JOB, id=40, node_count=1, priority=9, submitted_at=ago(1))
    second = replace(JOB, id=30, node_count=1, priority=5, submitted_at=ago(90))
    third = replace(JOB, id=20, node_count=1, priority=5, submitted_at=ago(80))
    fourth = replace(JOB, id=21, node_count=1, priority=5, submitted_at=ago(80))
    assert [key for key, _ in demanded(fourth, third, second, first)] == [
        f"job {id} of alice" for id in (40, 30, 20, 21)
    ]


def test_what_the_pool_can_never_reach_is_only_counted() -> None:
    jobs = [replace(JOB, id=id, node_count=1, priority=-id) for id in range(100)]
    found = queue(*jobs)
    assert [demand.key for demand in found.demands] == [f"job {id} of alice" for id in range(4)]
    assert found.waiting == 100


def test_gangs_at_the_head_do_not_hide_the_small_jobs_behind_them() -> None:
    gangs = [replace(JOB, id=id, node_count=4, priority=900) for id in range(1, 50)]
    small = [replace(JOB, id=id, node_count=1, priority=1) for id in range(50, 60)]
    assert demanded(*gangs, *small) == [("job 1 of alice", 4), *((f"job {id} of alice", 1) for id in range(50, 54))]


def test_all_shapes_together_reach_four_times_the_pool() -> None:
    jobs = [replace(JOB, id=id, node_count=4, account=f"team-{id}", priority=-id) for id in range(100)]
    found = queue(*jobs)
    assert [demand.nodes for demand in found.demands] == [4] * 5
    assert found.waiting == 100


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"node_count": 5}, "it asks for 5 nodes, and pool shared has 4"),
        ({"gpus_per_node": 9}, "it asks for 9 GPUs a node, and a node of pool shared has 8"),
    ],
)
def test_the_impossible_is_named_once_and_not_counted(change: dict[str, int], why: str) -> None:
    never = [replace(JOB, id=id, **change) for id in range(1, 1001)]  # type: ignore[arg-type]
    array = replace(never[0], id=2000, task_count=50, account="physics")
    found = queue(*never, array, replace(JOB, id=5000))
    assert [(d.key, d.impossible, d.alike) for d in found.demands] == [
        ("job 5000 of alice", "", 1),
        ("job 1 of alice", why, 1050),
    ]
    assert found.waiting == 1


_JOBS = st.lists(
    st.builds(
        replace,
        st.just(JOB),
        priority=st.integers(0, 3),
        node_count=st.integers(1, 5),
        gpus_per_node=st.integers(0, 9),
        task_count=st.integers(1, 3),
        account=st.sampled_from(["a", "b"]),
        submitted_at=st.sampled_from([None, ago(5), ago(9)]),
        het_job=st.sampled_from([None, None, 900]),
    ),
    max_size=20,
).map(lambda jobs: [replace(job, id=id) for id, job in enumerate(jobs, 1)])


@given(_JOBS, st.randoms(use_true_random=False))
def test_the_order_in_which_slurm_lists_its_jobs_changes_nothing(jobs: list[SlurmJob], chance: random.Random) -> None:
    expected = queue(*jobs)
    chance.shuffle(jobs)
    assert queue(*jobs) == expected


@given(_JOBS)
def test_keys_differ_and_nothing_possible_is_larger_than_the_pool(jobs: list[SlurmJob]) -> None:
    found = queue(*jobs).demands
    assert len({demand.key for demand in found}) == len(found)
    assert all(demand.impossible or demand.nodes <= 4 for demand in found)
    assert sum(demand.nodes for demand in found if not demand.impossible) <= 4 * 4 + 4


# --- constraints ---


@pytest.mark.parametrize(
    ("expression", "nodes", "expected"),
    [
        ("", 1, []),
        ("h100", 1, ["h100"]),
        ("h100&ib", 1, ["h100 ib"]),
        ("h100,ib", 1, ["h100 ib"]),
        ("a|b", 1, ["a", "b"]),
        ("[rack1|rack2]", 4, ["rack1", "rack2"]),
        ("[(knl&flat)|haswell]", 1, ["flat knl", "haswell"]),
        ("(a|b)&c", 1, ["a c", "b c"]),
        ("a|b&c", 1, ["a c", "b c"]),
        ("a&b|c", 1, ["a b", "c"]),
        ("a|a&b", 1, ["a b"]),
        ("a|(a&b)", 1, ["a"]),
        ("a*2&b*2", 4, ["a", "b"]),
        ("[rack1*2&rack2*4]", 6, ["rack1", "rack2"]),
        ("graphics*2", 4, []),
        ("graphics*4", 4, ["graphics"]),
        ("thp_never&nvidia_vboost_enabled", 1, ["nvidia_vboost_enabled thp_never"]),
        ("a&", 1, []),
        ("(a", 1, []),
        ("a b", 1, []),
        ("a;b", 1, []),
        ("]a[", 1, []),
        ("&".join(f"(a{i}|b{i})" for i in range(40)), 1, []),
        ("(" * 5000 + "a", 1, []),
    ],
)
def test_a_constraint_as_alternatives(expression: str, nodes: int, expected: list[str]) -> None:
    assert [" ".join(sorted(one)) for one in alternatives(expression, nodes)] == expected


@given(st.text(alphabet="ab&|,()[]*2 ", max_size=12))
def test_no_constraint_hides_a_job(expression: str) -> None:
    assert demanded(replace(JOB, features=expression)) == [("job 17 of alice", 3)]


# --- what runs ---

RUNNING = replace(
    JOB,
    state="RUNNING",
    node_count=2,
    nodes=("gpu-1", "gpu-2"),
    waits_for="None",
    started_at=ago(4000),
    ends_at=NOW + timedelta(seconds=3200),
    time_limit_s=7200,
    may_requeue=True,
    qos="urgent",
    priority=7,
)
NAMES = {"gpu-1": "n1", "gpu-2": "n2"}
PREEMPTION = Preemption(restart_s=100)


def works(*jobs: SlurmJob, preemption: Preemption = PREEMPTION) -> tuple[Work, ...]:
    nodes = {name: SlurmNode(name, frozenset({"ALLOCATED"}), 8) for name in NAMES}
    return slurm_works(POLICY, preemption, SlurmObservation(NOW, nodes, jobs), NAMES, NOW)


def test_a_running_job_as_work() -> None:
    (work,) = works(RUNNING, JOB)
    assert (work.key, work.team, work.nodes, work.gpus, work.job) == (
        "job 17 of alice", "vision", ("n1", "n2"), 16, 17,
    )  # fmt: skip
    assert (work.priority, work.rank, work.runs_for_s, work.ends_in_s, work.protected) == (7, 50, 4000, 3200, "")


@pytest.mark.parametrize(
    ("change", "policy_interval_s", "loss_gpu_s"),
    [
        ({}, None, 16 * (4000 + 100)),
        ({}, 600, 16 * (400 + 100)),  # saved at 3600 s
        ({"admin_comment": '{"checkpoint_s": 1500}'}, 600, 16 * (1000 + 100)),  # saved at 3000 s
        ({"admin_comment": '{"bridge": {"pool": "h100", "checkpoint_s": 1000}}'}, 600, 16 * (0 + 100)),
        ({"comment": "bridge: checkpoint=1900 grace=120"}, 600, 16 * (200 + 100)),
        ({"comment": "bridge: checkpoint=soon"}, 600, 16 * (400 + 100)),
        ({"gpus_per_node": 2}, None, 4 * (4000 + 100)),
        ({"gpus_per_node": 2, "exclusive": True}, None, 16 * (4000 + 100)),
        ({"gpus_per_node": 0}, None, 2 * (4000 + 100)),
        ({"started_at": None}, None, 16 * (0 + 100)),
    ],
)
def test_loss_is_gpus_times_time_since_the_last_checkpoint_and_restart(
    change: dict[str, object], policy_interval_s: float | None, loss_gpu_s: float
) -> None:
    preemption = PREEMPTION.model_copy(update={"checkpoint_interval_s": policy_interval_s})
    (work,) = works(replace(RUNNING, **change), preemption=preemption)  # type: ignore[arg-type]
    assert work.loss_gpu_s == loss_gpu_s


@pytest.mark.parametrize(
    ("saved_s_ago", "loss_gpu_s", "saves"),
    [
        (250, 16 * (250 + 100), "it reported a checkpoint 250 s ago"),
        (4000, 16 * (4000 + 100), "it reported a checkpoint 4000 s ago"),
        (4001, 16 * (400 + 100), "it says that it saves every 600 s"),  # of an earlier run
        (-90, 16 * (0 + 100), "it reported a checkpoint 0 s ago"),  # its clock is ahead
    ],
)
def test_a_report_of_the_job_counts_before_what_it_promised(saved_s_ago: int, loss_gpu_s: float, saves: str) -> None:
    comment = f"bridge: checkpoint=600 saved={ago(saved_s_ago).timestamp():.0f}"
    (work,) = works(replace(RUNNING, comment=comment))
    assert (work.loss_gpu_s, work.saves) == (loss_gpu_s, saves)


def test_what_a_loss_rests_on_is_said() -> None:
    (work,) = works(RUNNING)
    assert work.saves == "it says nothing of checkpoints"
    (work,) = works(RUNNING, preemption=PREEMPTION.model_copy(update={"checkpoint_interval_s": 1800}))
    assert work.saves == "the policy takes it to save every 1800 s"


def test_the_leaders_wishes_are_those_of_a_het_job() -> None:
    said = f"bridge: grace=30 signal=B:USR1 saved={ago(50).timestamp():.0f}"
    leader = replace(RUNNING, nodes=("gpu-1",), node_count=1, het_job=17, comment=said)
    (work,) = works(leader, replace(leader, id=18, nodes=("gpu-2",), comment=""))
    assert (work.loss_gpu_s, work.grace_s, work.signal) == (2 * 8 * (50 + 100), 30, "B:USR1")


@pytest.mark.parametrize(
    ("change", "never", "why"),
    [
        ({"may_requeue": False}, Never(), "it may not be requeued (not a batch job, or sbatch --no-requeue)"),
        ({"state": "COMPLETING"}, Never(), "it is COMPLETING"),
        ({"state": "SUSPENDED"}, Never(), "it is SUSPENDED"),
        ({"started_at": ago(30)}, Never(), "it has run for 30 s of at least 600 s"),
        ({"started_at": None}, Never(), "it has run for 0 s of at least 600 s"),
        ({}, Never(accounts=("research",)), "its account research is never a victim"),
        ({}, Never(users=("alice",)), "its user alice is never a victim"),
        ({}, Never(qos=("urgent",)), "its QoS urgent is never a victim"),
        ({}, Never(users=("bob",), namespaces=("alice",)), ""),
    ],
)
def test_who_is_never_a_victim(change: dict[str, object], never: Never, why: str) -> None:
    preemption = PREEMPTION.model_copy(update={"never": never})
    (work,) = works(replace(RUNNING, **change), preemption=preemption)  # type: ignore[arg-type]
    assert work.protected == why


@pytest.mark.parametrize(
    ("change", "ends_in_s"),
    [
        ({}, 3200),
        ({"ends_at": None}, 3200),
        ({"time_limit_s": None, "ends_at": NOW + timedelta(days=365)}, None),
        ({"ends_at": ago(9)}, 0),
        ({"state": "COMPLETING", "time_limit_s": None}, 0),
        ({"ends_at": None, "started_at": None}, None),
    ],
)
def test_when_a_job_ends_at_the_latest(change: dict[str, object], ends_in_s: float | None) -> None:
    (work,) = works(replace(RUNNING, **change))  # type: ignore[arg-type]
    assert work.ends_in_s == ends_in_s


def test_het_components_are_one_work() -> None:
    leader = replace(RUNNING, het_job=17, nodes=("gpu-1",), node_count=1)
    second = replace(leader, id=18, nodes=("gpu-2",), gpus_per_node=4, may_requeue=False, time_limit_s=None)
    (work,) = works(second, leader)
    assert (work.key, work.job, work.nodes, work.gpus) == ("job 17 of alice", 17, ("n1", "n2"), 12)
    assert work.loss_gpu_s == 12 * 4100
    assert work.protected.startswith("it may not be requeued")
    assert work.ends_in_s is None


def test_work_is_on_shared_nodes_only_and_its_loss_is_all_of_it() -> None:
    (work,) = works(replace(RUNNING, nodes=("login", "gpu-2")), replace(RUNNING, id=18, nodes=("login",)))
    assert (work.nodes, work.gpus, work.loss_gpu_s) == (("n2",), 16, 16 * 4100)


def test_a_running_array_task_is_named_by_its_own_id() -> None:
    (work,) = works(replace(RUNNING, id=19, array=17))
    assert (work.key, work.job) == ("job 19 of alice", 19)
