"""What goes wrong in the field with Slurm's queue and whole fleets: S7 to S9, S11, S12, S15 and S16, each as a kind.

What is about one node is in ``test_cases_slurm.py``. The driver's side of S11 (every way in which a token fails) and of
S16 (a long queue is never read whole) is in ``tests/unit/test_slurm_rest.py``, that of S15 in
``tests/unit/test_slurm_reading.py``. On the real thing S9 is a test of ``tests/e2e/test_planner.py``,
``test_a_gang_at_the_top_gets_all_nodes_at_once_before_a_stream_of_small_jobs``; S15 is
``test_arrays_het_jobs_and_holds_as_slurm_shows_them`` of ``tests/integration/test_slurmrestd.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime

import pytest
from prometheus_client import REGISTRY

from bridge.model.handoff import Step
from bridge.model.ownership import Owner, Side
from bridge.model.policy import Policy
from bridge.model.slurm import SlurmJob, SlurmObservation
from bridge.planning.demand import REACH, Queue, slurm_queue
from bridge.planning.explain import Kind
from bridge.planning.snapshot import Plan, Snapshot
from bridge.reconciler import decide
from bridge.simulation.slurm import JobRequest, SimulatedSlurm
from tests.simulation.accounts import unaccounted
from tests.simulation.fleet import BOUNDS, Fleet

ALL = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")


def rested(nodes: int = 4, **policy: object) -> Fleet:
    """Nodes at rest with Slurm, long enough for any to be moved."""
    fleet = Fleet(nodes=nodes, **{"failure_backoff_s": 30, "gang_backoff_s": 30, **policy})
    fleet.settle()
    fleet.run_for(40)
    return fleet


def lend(fleet: Fleet, *nodes: str) -> None:
    """To Kubernetes, long enough for them to be moved again."""
    fleet.order(Side.KUBERNETES, *nodes)
    fleet.run_until(lambda: set(nodes) <= set(fleet.owned(Owner.KUBERNETES)), f"{nodes} are lent", within_s=300)
    fleet.run_for(40)


def runs(fleet: Fleet, job: int) -> Callable[[], bool]:
    return lambda: fleet.world.slurm.job(job).state == "RUNNING"


def whys(fleet: Fleet, subject: str) -> str:
    return "; ".join(why.reason for why in fleet.reconciler.pulse.plan.whys if why.subject == subject)


def told(fleet: Fleet, job: int) -> str:
    found = fleet.reconciler.explain(Kind.JOB, str(job))
    assert found is not None
    return found.verdict


# --- S7: slurmctld restarts under a gang ---


@pytest.mark.parametrize("removed", [False, True])
def test_s7_a_restart_fails_no_loan_though_all_loans_share_one_reservation(removed: bool) -> None:
    """One object names every node; one node leaves slurm.conf, slurmctld restarts, and all that hangs on it fails."""
    fleet = rested()
    lend(fleet, *ALL)
    chat = fleet.deploy("chat", replicas=4)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "all pods are Ready")
    pods = {pod.name for pod in fleet.world.kube.cluster.of(chat)}
    if removed:
        fleet.world.slurm.remove_node("gpu-2")
    else:
        fleet.world.slurm.restart_controller()
    fleet.run_for(120)
    assert fleet.owned(Owner.KUBERNETES) == list(ALL)
    assert {pod.name for pod in fleet.world.kube.cluster.of(chat) if pod.ready} == pods
    assert fleet.world.slurm.held() == set(ALL) - ({"gpu-2"} if removed else set())


@pytest.mark.parametrize("step", [Step.CLOSE, Step.EMPTY, Step.CLEAN, Step.OPEN])
def test_s7_a_restart_while_a_gang_is_collected_costs_a_moment(step: Step) -> None:
    """What was said of its nodes is lost with the old slurmctld, and the gang waits for good."""
    fleet = rested()
    lend(fleet, *ALL[:3])
    gang = fleet.sbatch(nodes=3)
    fleet.run_until(lambda: fleet.at_step("gpu-1", step), f"the gang's nodes are in step {step}")
    fleet.world.slurm.restart_controller()
    fleet.run_until(runs(fleet, gang), "the gang runs", within_s=60)
    fleet.run_for(10)
    assert unaccounted(fleet) == []


@pytest.mark.parametrize("step", [Step.CLOSE, Step.EMPTY, Step.CLEAN])
def test_s7_a_gang_of_which_a_node_is_removed_is_collected_from_the_others(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of the gang is gone after the restart, and the others are kept for it for ever; or all of them fail."""
    monkeypatch.setattr("tests.simulation.fleet.BOUNDS", replace(BOUNDS, clean_s=30))
    fleet = rested(gang_deadline_s=60)
    lend(fleet, *ALL[:3])
    gang = fleet.sbatch(nodes=3)
    fleet.run_until(lambda: fleet.at_step("gpu-1", step), f"the gang's nodes are in step {step}")
    fleet.world.slurm.remove_node("gpu-2")
    fleet.run_until(runs(fleet, gang), "the gang runs", within_s=600)
    assert set(fleet.world.slurm.job(gang).nodes) == {"gpu-1", "gpu-3", "gpu-4"}
    assert not fleet.world.slurm.held()


# --- S8: a gang that can never be had ---


def test_s8_a_gang_larger_than_the_pool_is_named_and_takes_nothing() -> None:
    """A job that no number of lent nodes can start stays pending for good, without a word."""
    fleet = rested()
    lend(fleet, "gpu-1")
    large, fat = fleet.sbatch(nodes=5, priority=9000), fleet.sbatch(gpus_per_node=9, priority=9000)
    het = fleet.world.slurm.submit_het(JobRequest(nodes=2), JobRequest(nodes=3))
    fleet.run_for(120)
    assert fleet.owned(Owner.KUBERNETES) == ["gpu-1"]
    for job in (large, het):
        assert "more nodes would not start it" in told(fleet, job)
        assert "PartitionNodeLimit" in told(fleet, job)
    assert "it asks for 9 GPUs a node, and a node of pool shared has 8" in told(fleet, fat)
    assert "it asks for 9 GPUs a node" in whys(fleet, f"job {fat} of alice")
    small = fleet.sbatch(nodes=4, priority=1)
    fleet.run_until(runs(fleet, small), "the next in the queue is served all the same")


@pytest.mark.parametrize(
    ("limit", "named", "why"),
    [
        pytest.param(
            {"slurm": {"max_nodes": 3}}, "slurm owns 3 of at most 3 nodes", "slurm may own 3", id="its own maximum"
        ),
        pytest.param(
            {"kubernetes": {"floor_nodes": 1}},
            "keeps 1 of its floor 1: it may give 0, 1 needed",
            "keeps 1 of its floor 1",
            id="the other's floor",
        ),
    ],
)
def test_s8_a_gang_larger_than_what_can_be_lent_is_named_with_the_numbers(
    limit: dict[str, object], named: str, why: str
) -> None:
    """The pool has the nodes, but a limit of the policy keeps one away for ever."""
    fleet = rested(**limit)
    if "slurm" in limit:
        lend(fleet, "gpu-1")
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "one node is Kubernetes'")
    gang = fleet.sbatch(nodes=4)
    fleet.run_for(300)
    assert fleet.world.slurm.job(gang).state == "PENDING"
    assert len(fleet.owned(Owner.KUBERNETES)) == 1
    assert not fleet.ledger.read().handoffs
    assert named in told(fleet, gang)
    assert why in whys(fleet, f"job {gang} of alice")


# --- S9: a gang and the small jobs below it ---


@pytest.mark.parametrize("limit_s", [20, 300, None])
@pytest.mark.parametrize("nodes", [2, 4])
def test_s9_a_gang_gets_its_nodes_at_once_before_a_stream_of_small_jobs(nodes: int, limit_s: float | None) -> None:
    """Its nodes come one by one, and each is taken by a smaller job as soon as it is there."""
    fleet = rested()
    lend(fleet, *ALL)
    gang = fleet.sbatch(nodes=nodes, priority=5000)

    def small() -> None:
        if not runs(fleet, gang)():
            fleet.sbatch(runs_s=15, priority=10, time_limit_s=limit_s)
            fleet.world.clock.after(2, small)

    small()
    fleet.run_until(runs(fleet, gang), "the gang runs", within_s=60)
    collected = [each for each in fleet.ledger.handoffs(limit=100) if each.demand == f"job {gang} of alice"]
    assert len(collected) == nodes
    assert len({each.lease for each in collected}) == 1
    assert {each.node for each in collected} == set(fleet.world.slurm.job(gang).nodes)


# --- S11: the token ends in the night ---


def _metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize(("port", "side"), [("slurm.", "slurm"), ("kube.", "kubernetes")])
def test_s11_a_token_that_ends_is_said_aloud(port: str, side: str) -> None:
    """The token expires in the night, and nothing fails loudly."""
    fleet = rested()
    assert _metric("bridge_side_unknown", side=side) == 0
    fleet.world.faults.away(port)
    fleet.run_for(10)
    assert [why.split(".")[0] for why in fleet.reconciler.pulse.unknown] == [port.rstrip(".")]
    assert _metric("bridge_side_unknown", side=side) == 1
    sightings = fleet.ledger.sightings()
    assert all(sightings[node, Side(side)].unknown for node in ALL)
    fleet.world.faults.back(port)
    fleet.run_for(10)
    assert fleet.reconciler.pulse.unknown == ()
    assert _metric("bridge_side_unknown", side=side) == 0


@pytest.mark.parametrize("call", ["slurm.drain", "slurm.hold", "kube.want"])
def test_s11_a_token_that_may_only_read_is_said_aloud(call: str) -> None:
    """Reads go on with an old token while each write is refused: all looks well, and nothing moves."""
    fleet = rested()
    before = _metric("bridge_outside_call_failures_total")
    fleet.world.faults.away(call)
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_for(30)
    assert any(call in failure for failure in fleet.reconciler.pulse.failures)
    assert _metric("bridge_outside_call_failures_total") - before >= 5
    assert fleet.owned(Owner.KUBERNETES) == []
    fleet.world.faults.back(call)
    fleet.run_for(200)
    assert fleet.reconciler.pulse.failures == ()
    assert unaccounted(fleet) == []


# --- S12: half the fleet is bad at once ---


def _drained_by_a_check(fleet: Fleet, node: str) -> None:
    fleet.world.slurm.admin_drain(node, "health check: no GPU found", "root")


def _slurmd_gone(fleet: Fleet, node: str) -> None:
    fleet.world.slurm.lose_slurmd(node)


def _flagged(fleet: Fleet, node: str) -> None:
    fleet.world.slurm.set_flags(node, {"FAIL"})


def _without_gpus(fleet: Fleet, node: str) -> None:
    fleet.world.slurm.forget_gres(node, for_s=10_000)


HALF = tuple(f"gpu-{number}" for number in range(1, 5))


@pytest.mark.parametrize("breaks", [_drained_by_a_check, _slurmd_gone, _flagged, _without_gpus])
def test_s12_when_half_the_fleet_is_bad_nothing_is_ended_and_moves_stay_few(
    breaks: Callable[[Fleet, str], None],
) -> None:
    """A broken check takes half the fleet at once, and automation does the rest: evicts, requeues, moves everything."""
    fleet = rested(8, max_in_flight=2, preemption={"min_runtime_s": 0}, kubernetes={"floor_nodes": 2})
    jobs = [fleet.sbatch(runs_s=5000) for _ in fleet.owned(Owner.SLURM)]
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 2, "the floor of Kubernetes is met")
    chat = fleet.deploy("chat", replicas=2)
    fleet.run_for(60)
    running = [job for job in jobs if runs(fleet, job)()]
    pods = {pod.name for pod in fleet.world.kube.cluster.of(chat) if pod.ready}
    assert (len(running), len(pods)) == (6, 2)
    for node in HALF:
        breaks(fleet, node)
    fleet.deploy("more", replicas=6)
    fleet.sbatch(nodes=3, priority=9000)
    in_flight: list[int] = []

    def watched() -> bool:
        in_flight.append(len(fleet.ledger.read().handoffs))
        return fleet.world.clock.monotonic_s() >= ends_s

    ends_s = fleet.world.clock.monotonic_s() + 250
    fleet.run_until(watched, "250 s", within_s=251)
    assert max(in_flight) <= 3, "at most two, or the gang of three alone"
    assert [job for job in running if not runs(fleet, job)()] == []
    assert all(fleet.world.slurm.signals(job) == () for job in running)
    if breaks is _drained_by_a_check:
        reasons = {
            fleet.world.slurm.node(node).reason for node in HALF if "DRAIN" in fleet.world.slurm.node(node).states
        }
        assert reasons == {"health check: no GPU found"}


@pytest.mark.parametrize("breaks", [_drained_by_a_check, _slurmd_gone, _flagged, _without_gpus])
def test_s12_a_bound_on_nodes_out_stops_all_moves_but_those_for_floors(breaks: Callable[[Fleet, str], None]) -> None:
    """With half the fleet out for an unknown reason the other half is lent away."""
    fleet = rested(8, max_maintenance_nodes=3)
    for node in HALF:
        breaks(fleet, node)
    fleet.run_for(40)
    chat = fleet.deploy("chat", replicas=4)
    fleet.run_for(100)
    assert fleet.owned(Owner.KUBERNETES) == []
    assert not fleet.world.kube.cluster.of(chat)[0].ready
    assert "4 nodes drained by people, quarantined, down or UNKNOWN" in whys(fleet, "demand in pool shared")


# --- S15: how many is an array, a het job ---


def queue_of(fleet: Fleet) -> Queue:
    policy = fleet.ledger.read().policy
    seen = fleet.world.slurm.observe()
    return slurm_queue(policy.pools[0], policy, seen, fleet.world.clock.now(), nodes=len(fleet.world.nodes))


@pytest.mark.parametrize(
    ("wish", "waiting", "demands"),
    [
        pytest.param([JobRequest(tasks=1000)], 1000, [1, 1, 1, 1], id="array"),
        pytest.param([JobRequest(tasks=1000, tasks_at_once=2)], 2, [1, 1], id="throttled array"),
        pytest.param([JobRequest(tasks=1000, nodes=2)], 1000, [2, 2], id="array of gangs"),
        pytest.param([JobRequest(), JobRequest(nodes=2, gpus_per_node=4)], 1, [3], id="het job"),
        pytest.param([JobRequest()] * 3, 1, [3], id="het job of three"),
        pytest.param([JobRequest(), JobRequest(held=True)], 0, [], id="het job held in part"),
    ],
)
def test_s15_an_array_and_a_het_job_count_as_what_they_would_start(
    wish: list[JobRequest], waiting: int, demands: list[int]
) -> None:
    """An array of 1,000 tasks counts as one job, or as 1,000 polls; the components of a het job as separate gangs."""
    fleet = rested()
    lend(fleet, *ALL)
    looks = fleet.world.faults.calls.count("slurm.observe")
    if len(wish) == 1:
        fleet.world.slurm.submit(wish[0])
    else:
        fleet.world.slurm.submit_het(*wish)
    found = queue_of(fleet)
    assert (found.waiting, [demand.nodes for demand in found.demands]) == (waiting, demands)
    assert fleet.world.faults.calls.count("slurm.observe") == looks + 1
    fleet.run_for(60)
    assert len(fleet.owned(Owner.SLURM)) == sum(demands), "so many nodes come back"
    busy = {node for job in fleet.world.slurm.observe().jobs for node in job.nodes}
    assert len(busy) == sum(demands)


# --- S16: 100,000 jobs ---

JOBS = 100_000


class Crowded:
    """A Slurm with `JOBS` more jobs in its queue, none of which starts."""

    def __init__(self, slurm: SimulatedSlurm, crowd: tuple[SlurmJob, ...]) -> None:
        self._slurm, self._crowd = slurm, crowd

    def observe(self) -> SlurmObservation:
        seen = self._slurm.observe()
        return replace(seen, jobs=(*seen.jobs, *self._crowd))

    def __getattr__(self, name: str) -> object:
        return getattr(self._slurm, name)


def crowd(waits_for: Collection[str]) -> tuple[SlurmJob, ...]:
    """Of 20 accounts, gangs of one to four nodes, waiting for each of the reasons in turn."""
    reasons = tuple(waits_for)
    job = SlurmJob(0, "PENDING", "alice", "research", "shared", gpus_per_node=8, exclusive=True, priority=1)
    return tuple(
        replace(
            job, id=id, account=f"team-{id % 20}", node_count=1 + id // 20 % 4, waits_for=reasons[id % len(reasons)]
        )
        for id in range(1_000_000, 1_000_000 + JOBS)
    )


@pytest.mark.parametrize(
    ("waits_for", "waiting"),
    [(("Resources", "Priority"), JOBS), (("Dependency", "JobHeldUser", "QOSMaxJobsPerUserLimit"), 0)],
)
def test_s16_a_pass_over_100_000_jobs_asks_once_and_lists_only_the_heads(
    monkeypatch: pytest.MonkeyPatch, waits_for: tuple[str, ...], waiting: int
) -> None:
    """Each cycle fetches and plans for all of a long queue, and the controller slows down. Counted, not timed."""
    planned: list[Snapshot] = []

    def plan(snapshot: Snapshot, policy: Policy, now: datetime) -> Plan:
        planned.append(snapshot)
        return Plan()

    fleet = rested()
    fleet.new_broker(slurm=Crowded(fleet.world.slurm, crowd(waits_for)))  # type: ignore[arg-type]
    monkeypatch.setattr(decide, "plan", plan)
    before = len(fleet.world.faults.calls)
    fleet.run_for(30)
    made = fleet.world.faults.calls[before:]
    assert len(planned) >= 2
    assert {call for call in made if call.startswith("slurm.")} == {"slurm.observe"}
    assert made.count("slurm.observe") <= len(planned) + 5, "one look a pass; in the first ones nothing is planned yet"
    most = REACH * len(fleet.world.nodes) + 1
    assert all(len(snapshot.demands) <= most for snapshot in planned)
    assert {snapshot.waiting[Side.SLURM] for snapshot in planned} == {waiting}
    assert bool(planned[-1].demands) is bool(waiting)
