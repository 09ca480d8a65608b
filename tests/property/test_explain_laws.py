"""What holds of every explanation, whatever the fleet, the queues and the policy are."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from bridge.model.demand import Demand
from bridge.model.errors import Unreadable
from bridge.model.kube import KubeNode, KubeObservation, PendingPod
from bridge.model.ownership import Side
from bridge.model.pause import EVERYTHING, Pause
from bridge.model.policy import Policy
from bridge.model.slurm import SlurmJob, SlurmNode, SlurmObservation
from bridge.planning.explain import Explanation, Kind, Seen, explain
from bridge.planning.explaining.layers import chain
from bridge.planning.explaining.scene import Scene
from bridge.planning.explaining.waiting import Waiting
from bridge.planning.planner import plan
from bridge.planning.refusals import refusal
from bridge.planning.snapshot import Plan, Snapshot
from tests.property.fleets import GPUS, POOL, TEAMS, fleets, policies
from tests.property.worlds import NOW


def in_both_queues(snapshot: Snapshot) -> tuple[Snapshot, Seen]:
    """`snapshot` with its demands named as those of jobs and pods, and these as the schedulers show them."""
    demands = tuple(_named(number, demand) for number, demand in enumerate(snapshot.demands, 1))
    jobs = tuple(_job(number, d) for number, d in enumerate(demands, 1) if d.side is Side.SLURM)
    pods = tuple(pod for d in demands if d.side is Side.KUBERNETES for pod in _pods(d))
    nodes = [place.record.node for place in snapshot.places]
    slurm = SlurmObservation(
        NOW, {n.slurm_name: SlurmNode(n.slurm_name, frozenset({"IDLE"}), GPUS) for n in nodes}, jobs
    )
    kube_nodes = {n.kube_name: KubeNode(n.kube_name, n.name, True, False, GPUS if n.name != "n1" else 0) for n in nodes}
    return replace(snapshot, demands=demands), Seen(slurm, KubeObservation(NOW, kube_nodes, pods))


def _named(number: int, demand: Demand) -> Demand:
    key = f"job {number} of alice" if demand.side is Side.SLURM else f"Deployment web/d{number}"
    return replace(demand, key=key, impossible="", whole=demand.side is Side.SLURM)


def _job(number: int, demand: Demand) -> SlurmJob:
    return SlurmJob(
        id=number,
        state="PENDING",
        user="alice",
        account=demand.team,
        partition=POOL,
        priority=demand.priority,
        node_count=demand.nodes,
        gpus_per_node=demand.gpus_per_node,
        waits_for="Resources",
        submitted_at=demand.since,
        exclusive=True,
    )


def _pods(demand: Demand) -> list[PendingPod]:
    name = demand.key.rpartition("/")[2]
    return [
        PendingPod("web", f"{name}-{n}", f"{name}-{n}", 8, demand.key, pending_since=demand.since) for n in range(1, 3)
    ]


def subjects(snapshot: Snapshot, seen: Seen) -> list[tuple[Kind, str]]:
    assert not isinstance(seen.slurm, Unreadable)
    assert not isinstance(seen.kubernetes, Unreadable)
    return [
        *((Kind.JOB, str(job.id)) for job in seen.slurm.jobs),
        *((Kind.POD, f"{pod.namespace}/{pod.name}") for pod in seen.kubernetes.pending),
        *((Kind.NODE, place.name) for place in snapshot.places),
        *((Kind.TEAM, team) for team in TEAMS),
        (Kind.POOL, POOL),
    ]


def well_formed(found: Explanation) -> None:
    assert found.verdict.startswith((found.subject, "UNKNOWN"))
    assert all(link.text and link.command for link in found.chain)
    assert [r.displaces_gpu_s for r in found.remedies] == sorted(r.displaces_gpu_s for r in found.remedies)
    in_s = found.estimate.in_s
    assert in_s is None or (in_s >= 0 and math.isfinite(in_s))
    assert found.estimate.basis


@given(fleets(), policies())
def test_everything_can_be_explained(snapshot: Snapshot, policy: Policy) -> None:
    snapshot, seen = in_both_queues(snapshot)
    planned = plan(snapshot, policy, NOW)
    for kind, name in subjects(snapshot, seen):
        found = explain(kind, name, seen, snapshot, policy, planned, NOW)
        assert found is not None
        well_formed(found)


@given(fleets(), policies(), st.sampled_from(["slurm", "kubernetes", "both"]))
def test_what_cannot_be_read_is_unknown_and_no_estimate(snapshot: Snapshot, policy: Policy, which: str) -> None:
    snapshot, seen = in_both_queues(snapshot)
    names = subjects(snapshot, seen)
    gone = Unreadable("it", "time-out")
    hidden = Seen(
        gone if which in ("slurm", "both") else seen.slurm, gone if which in ("kubernetes", "both") else seen.kubernetes
    )
    left = tuple(d for d in snapshot.demands if not hidden.unreadable(d.side))
    snapshot = replace(snapshot, demands=left, unknown=("it is unreadable: time-out",))
    planned = plan(snapshot, policy, NOW)
    for kind, name in names:
        found = explain(kind, name, hidden, snapshot, policy, planned, NOW)
        if found is None:
            assert kind is Kind.TEAM
            continue
        well_formed(found)
        if kind in (Kind.JOB, Kind.POD):
            assert "UNKNOWN" in (found.obstacle.text if found.obstacle else "") or _is_earlier(found)
            assert found.estimate.in_s is None


def _is_earlier(found: Explanation) -> bool:
    """Whether the first obstacle stands before the one that a side is UNKNOWN, which is then in the chain too."""
    return any("UNKNOWN" in link.text for link in found.chain if link.holds)


@given(fleets(wishes=6), policies())
def test_a_demand_that_is_not_met_has_an_obstacle(snapshot: Snapshot, policy: Policy) -> None:
    planned = plan(snapshot, policy, NOW)
    seen = Seen(SlurmObservation(NOW, {}), KubeObservation(NOW, {}))
    scene = Scene(seen, snapshot, policy, planned, NOW)
    told = {why.subject for why in planned.whys}
    for demand in snapshot.demands:
        if demand.key in told and not scene.gets(demand):
            links = chain(Waiting(scene, demand, policy.pools[0]), ())
            assert any(link.holds for link in links), demand


@given(fleets(), policies())
def test_a_paused_bridge_says_so_of_everything_that_lacks_nodes(snapshot: Snapshot, policy: Policy) -> None:
    snapshot, seen = in_both_queues(replace(snapshot, pauses=(Pause(EVERYTHING, "switch maintenance", "oncall", NOW),)))
    for kind, name in subjects(snapshot, seen):
        if kind is Kind.JOB:
            found = explain(kind, name, seen, snapshot, policy, Plan(), NOW + timedelta(hours=2))
            assert found is not None
            assert any("paused: switch maintenance" in link.text for link in found.chain if link.holds)


@given(fleets(), policies())
def test_what_is_said_of_a_node_is_the_plan_or_the_first_obstacle(snapshot: Snapshot, policy: Policy) -> None:
    """The verdict contradicts neither the chain nor the planner: who "could move" is refused by nothing."""
    snapshot, seen = in_both_queues(snapshot)
    planned = plan(snapshot, policy, NOW)
    moving = {name: move for move in planned.moves for name in move.nodes}
    for place in snapshot.places:
        found = explain(Kind.NODE, place.name, seen, snapshot, policy, planned, NOW)
        assert found is not None
        if place.name in moving:
            assert f"moves to {moving[place.name].destination} with the plan" in found.verdict
        elif found.obstacle is not None:
            assert found.verdict.endswith(f"stays: {found.obstacle.text}.")
        else:
            side = place.lease.owner.side
            assert "could move" in found.verdict
            assert side is None or (place.usable(side) and not refusal(place, side, policy.pools[0], NOW))
            assert not any(demand.side is not side and not demand.impossible for demand in snapshot.demands)
