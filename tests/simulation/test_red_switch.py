"""The big red switches.

A recall brings every lent node home, politely, and nothing is lent until it is ended. The circuit breaker stops what
the policy begins when too much goes wrong at once.
"""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from bridge.model.handoff import Step
from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner, Side
from bridge.model.pause import EVERYTHING, PauseKind, Reach, Scope
from bridge.planning.planner import PLANNER
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import Fleet

POOL = Scope(Reach.POOL, "shared")
TRIPS = "bridge_breaker_trips_total"
BUDGET = "PodDisruptionBudget allows no disruption"


def recall(fleet: Fleet, scope: Scope = EVERYTHING) -> None:
    now = fleet.world.clock.now()
    fleet.ledger.pause("power cut", actor="oncall", at=now, scope=scope, kind=PauseKind.RECALL)


def resume(fleet: Fleet, scope: Scope = EVERYTHING) -> None:
    fleet.ledger.resume(actor="oncall", at=fleet.world.clock.now(), scope=scope)


def serving(replicas: int, *, policy: dict[str, object] | None = None, **pods: object) -> Fleet:
    """A fleet in which each of `replicas` pods of the Deployment ``chat`` has a lent node to itself."""
    fleet = Fleet(**{"min_hold_s": 3600, **(policy or {})})
    fleet.settle()
    fleet.run_for(40)
    fleet.deploy("chat", replicas, **pods)
    fleet.run_until(lambda: len(lent(fleet)) == replicas and at_rest(fleet), "every pod has a node", within_s=4000)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of("default/chat")), "all are ready")
    return fleet


def lent(fleet: Fleet) -> list[str]:
    return fleet.owned(Owner.KUBERNETES)


@pytest.mark.parametrize("scope", [EVERYTHING, POOL])
def test_all_come_home_and_none_is_lent_before_it_is_ended(scope: Scope) -> None:
    """Within their minimum hold, below the floor of Kubernetes, more than may move at once; pods are evicted."""
    fleet = serving(3, policy={"max_in_flight": 3, "kubernetes": {"floor_nodes": 3}}, shutdown_s=20)
    recall(fleet, scope)
    refused = fleet.order(Side.KUBERNETES, "gpu-4")
    fleet.run_until(lambda: len(fleet.owned(Owner.SLURM)) == 4, "all are Slurm's")
    assert {each.requested_by for each in fleet.ledger.handoffs(limit=3)} == {"oncall"}
    fleet.run_for(120)
    assert lent(fleet) == []
    assert at_rest(fleet)
    answered = fleet.ledger.request(refused.id)
    assert answered is not None
    assert (answered.state, f"`{scope.ended_by}` first" in answered.answer) == (RequestState.REFUSED, True)
    job = fleet.sbatch(nodes=4, runs_s=20)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "Slurm uses them")
    resume(fleet, scope)
    fleet.run_until(lambda: len(lent(fleet)) == 3, "the pods that wait get nodes again")
    assert unaccounted(fleet) == []


def test_a_budget_is_obeyed_however_long_it_takes() -> None:
    """Each attempt that runs out of patience goes back, and is made again after its backoff."""
    fleet = serving(1, policy={"empty_patience_s": 60, "failure_backoff_s": 30}, min_available=1)
    (node,) = lent(fleet)
    recall(fleet)
    fleet.run_until(lambda: fleet.at_step(node, Step.RETURNED), "the first attempt goes back", within_s=200)
    fleet.run_until(lambda: fleet.at_step(node, Step.EMPTY), "it is called again", within_s=200)
    fleet.run_until(lambda: BUDGET in "; ".join(fleet.handoff(node).blockers), "the budget is named")
    assert all(pod.ready for pod in fleet.world.kube.cluster.of("default/chat"))
    fleet.world.kube.cluster.scale("default/chat", 0)
    fleet.run_until(lambda: lent(fleet) == [] and at_rest(fleet), "it is home")


def test_a_persons_cordon_keeps_its_node_out_of_it() -> None:
    """Until the person is done with it; the others do not wait for that."""
    fleet = serving(2)
    node, other = lent(fleet)
    kube_name = f"{node}.testbed"
    fleet.world.kube.cluster.cordon(kube_name)
    recall(fleet)
    fleet.run_until(lambda: other in fleet.owned(Owner.SLURM), "the other one is home")
    fleet.run_for(120)
    assert lent(fleet) == [node]
    assert fleet.world.kube.cluster.nodes[kube_name].cordoned
    fleet.world.kube.cluster.cordon(kube_name, False)
    fleet.run_until(lambda: lent(fleet) == [], "it follows")


def test_the_pause_of_a_node_holds_it_and_wider_pauses_do_not() -> None:
    fleet = serving(2)
    node, other = lent(fleet)
    for scope in (EVERYTHING, POOL, Scope(Reach.NODE, node)):
        fleet.ledger.pause("bad fan", actor="mia", at=fleet.world.clock.now(), scope=scope)
    recall(fleet, POOL)
    fleet.run_until(lambda: other in fleet.owned(Owner.SLURM), "the other one is home")
    fleet.run_for(120)
    assert lent(fleet) == [node]
    resume(fleet, Scope(Reach.NODE, node))
    fleet.run_until(lambda: lent(fleet) == [], "it follows")


@pytest.mark.parametrize("step", [Step.CLOSE, Step.CLEAN, Step.OPEN, Step.PROVE])
def test_what_is_on_its_way_out_arrives_and_comes_home(step: Step) -> None:
    fleet = Fleet(min_hold_s=3600)
    fleet.settle()
    fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", step), f"gpu-1 is at {step}")
    recall(fleet)
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.DONE), "it arrives all the same")
    assert fleet.handoff("gpu-1").destination is Side.KUBERNETES
    fleet.run_until(lambda: len(fleet.owned(Owner.SLURM)) == 4, "and comes home")


def test_the_next_leader_goes_on_with_it() -> None:
    """Also with what was begun: no node is called twice."""
    fleet = serving(2, shutdown_s=30)
    recall(fleet)
    fleet.run_until(lambda: all(fleet.at_step(node, Step.EMPTY) for node in ("gpu-1", "gpu-2")), "both are emptied")
    fleet.reconciler = fleet.new_broker()
    fleet.run_until(lambda: lent(fleet) == [] and at_rest(fleet), "both are home", within_s=300)
    assert len([each for each in fleet.ledger.handoffs(limit=20) if each.requested_by == "oncall"]) == 2
    fleet.reconciler = fleet.new_broker()
    fleet.run_for(120)
    assert lent(fleet) == [], "a state, not an order: it holds for the leader after that one too"


@pytest.mark.parametrize(("mode", "state"), [("requeue", "PENDING"), ("none", "RUNNING")])
def test_jobs_on_lent_nodes_get_what_the_policy_gives_victims(mode: str, state: str) -> None:
    """Where Kubernetes is home and Slurm the borrower."""
    preemption = {"mode": mode, "signal": "USR1", "grace_s": 20, "min_runtime_s": 0}
    fleet = Fleet(nodes=2, home="kubernetes", preemption=preemption)
    fleet.settle()
    job = fleet.sbatch(nodes=1, runs_s=400, time_limit_s=500)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "it has a node")
    recall(fleet)
    fleet.run_for(90)
    assert fleet.world.slurm.job(job).state == state
    fleet.run_until(lambda: len(lent(fleet)) == 2 and at_rest(fleet), "both are home", within_s=600)
    fleet.run_for(60)
    assert len(lent(fleet)) == 2


# --- the circuit breaker ---


def tripped(fleet: Fleet) -> str:
    """Why the breaker stands, or empty."""
    return "; ".join(pause.reason for pause in fleet.ledger.read().pauses if pause.kind is PauseKind.BREAKER)


def moves_of_the_policy(fleet: Fleet) -> int:
    return sum(each.requested_by == PLANNER for each in fleet.ledger.handoffs(limit=200))


def half_is_bad() -> Fleet:
    """Of twenty nodes two are on their way to Kubernetes when a broken check drains nine others."""
    fleet = Fleet(nodes=20, max_in_flight=2, min_hold_s=0)
    fleet.settle()
    fleet.run_for(40)
    fleet.deploy("chat", replicas=6)
    fleet.run_until(lambda: len(fleet.ledger.read().handoffs) == 2, "two are on their way")
    for number in range(12, 21):
        fleet.world.slurm.admin_drain(f"gpu-{number}", "health check: no GPU found", "root")
    fleet.run_until(lambda: bool(tripped(fleet)), "the breaker trips")
    return fleet


def test_s12_a_broken_check_trips_the_breaker_and_what_runs_finishes() -> None:
    """A person releases it and the rest goes on, though the nodes are still out: who released it knows of them."""
    trips = REGISTRY.get_sample_value(TRIPS, {"pool": "shared"}) or 0
    fleet = half_is_bad()
    assert tripped(fleet).startswith("9 nodes of 20 are drained by people")
    assert (REGISTRY.get_sample_value(TRIPS, {"pool": "shared"}) or 0) == trips + 1
    begun, moving = moves_of_the_policy(fleet), sorted(fleet.ledger.read().handoffs)
    assert moving
    told = "paused: pool shared: circuit breaker: 9 nodes of 20 are drained by people"
    fleet.run_until(
        lambda: any(note.message.startswith(told) for note in fleet.world.kube.told), "kubectl describe pod says so"
    )
    fleet.run_until(lambda: at_rest(fleet), "what runs finishes")
    assert set(moving) <= set(lent(fleet))
    fleet.run_for(900)
    assert moves_of_the_policy(fleet) == begun
    ordered = fleet.order(Side.KUBERNETES, "gpu-5")
    fleet.run_until(lambda: "gpu-5" in lent(fleet), "what a person orders is done")
    assert fleet.ledger.request(ordered.id) is not None
    resume(fleet, POOL)
    fleet.run_until(lambda: len(lent(fleet)) == 6, "the others follow", within_s=300)
    fleet.run_for(120)
    assert tripped(fleet) == ""
    told = [
        event.actor for event in fleet.ledger.events(after=0, limit=10_000) if event.kind in ("breaker", "unpaused")
    ]
    assert told == ["broker", "oncall"]


def test_s12_the_breaker_ends_by_itself_when_all_is_calm() -> None:
    """Under the next leader too; and a node that is out again trips nothing alone."""
    fleet = half_is_bad()
    begun = moves_of_the_policy(fleet)
    fleet.reconciler = fleet.new_broker()
    fleet.run_for(300)
    for number in range(12, 21):
        fleet.world.slurm.admin_resume(f"gpu-{number}")
    fleet.run_for(590)
    assert tripped(fleet), "it cools down for ten minutes"
    assert moves_of_the_policy(fleet) == begun
    fleet.run_until(lambda: len(lent(fleet)) == 6, "moves begin again", within_s=300)
    assert tripped(fleet) == ""


def test_s12_a_recall_passes_a_tripped_breaker() -> None:
    fleet = half_is_bad()
    fleet.run_until(lambda: at_rest(fleet), "what runs finishes")
    assert lent(fleet)
    recall(fleet)
    fleet.run_until(lambda: lent(fleet) == [], "all lent nodes are home")
    assert tripped(fleet)


def test_s12_a_bad_image_trips_the_breaker_before_it_has_taken_every_node() -> None:
    """No device plugin starts on it: each opening is late, and each next node would be lost alike."""
    fleet = Fleet(nodes=16, max_in_flight=4, breaker={"max_late_leases": 5, "max_out_fraction": 1})
    fleet.settle()
    fleet.run_for(40)
    for node in fleet.world.nodes:
        fleet.world.kube.cluster.stop_device_plugin(node.kube_name)
    fleet.deploy("chat", replicas=12)
    fleet.run_until(lambda: bool(tripped(fleet)), "the breaker trips", within_s=900)
    assert tripped(fleet) == "8 leases ended badly within 600 s, at most 5; late in: prove 8"
    begun = moves_of_the_policy(fleet)
    fleet.run_for(300)
    assert moves_of_the_policy(fleet) == begun < 16
