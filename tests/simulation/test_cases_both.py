"""What goes wrong in the field between the two sides: stores, leaders, crashes, policies, clocks, names, circles.

The names are those of the cases. Each is told in full elsewhere, too: late calls in tests/simulation/test_late_calls.py
and test_leaders.py, whole stories with crashes at every call in test_fuzz.py. What only the real thing shows: B2 and
B6 on a server, tests/integration/test_store_postgres.py `test_a_lead_runs_out_on_the_databases_clock`,
`test_a_database_that_is_away_is_unreadable_and_comes_back`; B3 with killed processes, tests/e2e/test_scenarios.py
`test_f_a_killed_broker_or_controller_goes_on_in_the_middle`; B7 with a real Node object,
tests/integration/test_node_controller.py `test_a_node_that_was_replaced_is_closed_anew_and_proved_anew`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from bridge.model.errors import Invalid
from bridge.model.handoff import ADOPTER, Step
from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner, Side
from bridge.model.policy import Policy
from bridge.ports import Clock
from bridge.reconciler.loop import Reconciler
from bridge.simulation.agent import SimulatedAgent
from bridge.simulation.faults import When
from tests.simulation.accounts import at_rest, unaccounted
from tests.simulation.fleet import BOUNDS, TIMING, Fleet

STEPS = (Step.CLOSE, Step.EMPTY, Step.CLEAN, Step.OPEN, Step.PROVE)
WRITES = frozenset({"slurm.drain", "slurm.hold", "slurm.resume", "slurm.release", "kube.want", "kube.inspect"})


def moved(fleet: Fleet, to: Side, node: str = "gpu-1") -> None:
    fleet.order(to, node)
    fleet.run_until(lambda: node in fleet.owned(to.owner), f"{node} is {to}'s", within_s=300)


def settles(fleet: Fleet) -> None:
    fleet.run_until(lambda: at_rest(fleet) and not unaccounted(fleet), "all is at rest", within_s=300)
    assert not fleet.owned(Owner.BRIDGE), fleet.describe()


def halfway(fleet: Fleet, to: Side, step: Step) -> None:
    """gpu-1 is on its way and has just come to this step."""
    if to is Side.SLURM:
        moved(fleet, Side.KUBERNETES)
    fleet.order(to, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", step), f"step {step}")


# --- B1: two state stores ---

Tampers = Callable[[Fleet], None]

TAMPERED: dict[str, Tampers] = {
    "the taint and its annotation are gone": lambda fleet: fleet.world.kube.cluster.set_taint("gpu-2.testbed", "", ""),
    "the annotation says another lease": lambda fleet: fleet.world.kube.cluster.set_taint(
        "gpu-2.testbed", fleet.world.kube.cluster.nodes["gpu-2.testbed"].taint, "bridge:lease0666:1:1"
    ),
    "the fence entry is gone": lambda fleet: fleet.world.kube.cluster.set_fence("gpu-2.testbed", ""),
    "the whole NodeFence is gone": lambda fleet: fleet.world.kube.cluster.empty_fence(),
    "the NodeLoan is gone": lambda fleet: fleet.world.kube.delete_loan("gpu-2.testbed", annotated=True),
    "the drain is gone": lambda fleet: fleet.world.slurm.admin_resume("gpu-1"),
    "the reservation is gone": lambda fleet: fleet.world.slurm.admin_takes_out("gpu-1"),
    "the fence file is empty": lambda fleet: setattr(fleet.world.slurm, "fence", frozenset()),
    "the fence file names all": lambda fleet: setattr(
        fleet.world.slurm, "fence", frozenset({"gpu-1", "gpu-2", "gpu-3", "gpu-4"})
    ),
}


@pytest.mark.parametrize("tampered", TAMPERED)
def test_b1_what_stands_outside_never_decides_who_owns_a_node(tampered: str) -> None:
    """A file, a label and a database each say something else, and each is believed by somebody."""
    fleet = Fleet()
    SimulatedAgent(fleet.world.clock, fleet.ledger, fleet.world.slurm).start()
    fleet.settle()
    moved(fleet, Side.KUBERNETES)
    fleet.deploy("chat", 1)
    fleet.run_for(10)
    leases, handoffs = fleet.ledger.read().leases, len(fleet.ledger.handoffs(limit=100))
    TAMPERED[tampered](fleet)
    job = fleet.sbatch(nodes=3, runs_s=1e6)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "Slurm's nodes are Slurm's", within_s=300)
    fleet.run_until(lambda: not unaccounted(fleet), "the world is as the ledger says again")
    assert (fleet.ledger.read().leases, len(fleet.ledger.handoffs(limit=100))) == (leases, handoffs)
    assert fleet.world.kube.cluster.of("default/chat")[0].ready


# --- B2: two brokers ---


@pytest.mark.parametrize("delay_s", [12, 18, 25, 40])
@pytest.mark.parametrize(
    ("call", "to"),
    [
        ("slurm.drain", Side.KUBERNETES),
        ("slurm.hold", Side.KUBERNETES),
        ("kube.want", Side.KUBERNETES),
        ("kube.want", Side.SLURM),
        ("slurm.resume", Side.SLURM),
        ("slurm.release", Side.SLURM),
    ],
)
def test_b2_a_call_of_the_old_leader_arrives_when_the_new_one_has_moved_on(call: str, to: Side, delay_s: float) -> None:
    """It opens what its successor has just closed, and both sides start work on one node."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    if to is Side.SLURM:
        moved(fleet, Side.KUBERNETES)
    fleet.world.faults.fail_next(call, when=When.LATE, delay_s=delay_s)
    fleet.order(to, "gpu-1")
    fleet.run_until(lambda: bool(fleet.world.faults.journal), "the call is on its way")
    fleet.new_broker()
    fleet.run_until(lambda: "gpu-1" in fleet.owned(to.owner), "the successor finishes the move")
    moved(fleet, to.other)
    fleet.run_for(delay_s)
    settles(fleet)
    assert "gpu-1" in fleet.owned(to.other.owner)


def test_b2_of_two_brokers_that_run_all_the_time_one_acts() -> None:
    """Both find the same node to move and each moves another one: more is handed over than anybody wants."""
    fleet = Fleet(min_hold_s=0)
    pair = (fleet.reconciler, fleet.new_broker())

    def both() -> float:
        return min(broker.tick() for broker in pair)

    fleet.world.run(60, both)
    fleet.deploy("chat", 2)
    fleet.world.run(200, both)
    leader = fleet.ledger.leader()
    assert leader is not None
    assert leader[1] == 1
    assert [broker.pulse.epoch for broker in pair] == [1, None]
    assert len(fleet.owned(Owner.KUBERNETES)) == 2


# --- B3: between a call and its record ---


def there_and_back(fleet: Fleet) -> None:
    for to in (Side.KUBERNETES, Side.SLURM):
        moved(fleet, to)


def writes_there_and_back() -> list[int]:
    """The numbers of the calls that write, commits among them, of the story that is told below."""
    fleet = Fleet(nodes=2, min_hold_s=0)
    fleet.break_ledger()
    fleet.settle()
    first = len(fleet.world.faults.calls)
    there_and_back(fleet)
    calls = enumerate(fleet.world.faults.calls)
    return [number for number, call in calls if number >= first and call in {*WRITES, "ledger.commit"}]


@pytest.mark.parametrize("when", [When.CRASH_BEFORE, When.CRASH_AFTER])
def test_b3_a_broker_that_dies_around_any_call_leaves_a_state_that_goes_on(when: When) -> None:
    """The call was made and nobody wrote it down, or the other way round: a node closed for ever, or moved twice."""
    numbers = writes_there_and_back()
    assert len(numbers) > 15
    for number in numbers:
        fleet = Fleet(nodes=2, min_hold_s=0)
        fleet.break_ledger()
        fleet.settle()
        fleet.world.faults.fail_number(number, when=when)
        there_and_back(fleet)
        settles(fleet)
        assert [fault.number for fault in fleet.world.faults.journal] == [number]
        steps = [handoff.step for handoff in fleet.ledger.handoffs(limit=100, node="gpu-1")]
        assert steps == [Step.DONE] * 3, "taken in, lent, given back: nothing twice"


# --- B4: a policy edit halfway ---


def apply(fleet: Fleet, **pool: object) -> None:
    edit(fleet, fleet.world.policy(**{"demand_age_s": 1, "idle_age_s": 1, "min_hold_s": 5, **pool}))


def edit(fleet: Fleet, policy: Policy, *, leaving: str = "") -> None:
    state = fleet.ledger.read()
    nodes = [node for node in fleet.world.nodes if node.name != leaving]
    fleet.ledger.apply_policy(
        policy, nodes, replaces=state.policy_version, author="admin", note="", at=fleet.world.clock.now()
    )


def own_moves(fleet: Fleet) -> int:
    """How many handoffs there were beyond the first day's."""
    return sum(handoff.requested_by != ADOPTER for handoff in fleet.ledger.handoffs(limit=1000))


@pytest.mark.parametrize("step", STEPS)
def test_b4_a_policy_edit_in_the_middle_of_a_handoff_is_kept_by_the_next_one(step: Step) -> None:
    """The handoff is judged half by the old policy and half by the new one, and is torn, or the floor is not kept."""
    fleet = Fleet(min_hold_s=5)
    fleet.settle()
    fleet.run_for(10)
    fleet.deploy("chat", 1)
    fleet.run_until(lambda: bool(fleet.ledger.read().handoffs), "a node is on its way")
    (node,) = fleet.ledger.read().handoffs
    fleet.run_until(lambda: fleet.at_step(node, step), f"step {step}")
    apply(fleet, slurm={"floor_nodes": 4})
    fleet.run_until(lambda: len(fleet.owned(Owner.SLURM)) == 4 and at_rest(fleet), "Slurm has its floor of 4")
    fleet.run_for(120)
    assert own_moves(fleet) == 2, "to and back, then no more"
    assert unaccounted(fleet) == []


@pytest.mark.parametrize(
    ("slurm", "kubernetes", "kept"), [(4, 1, 1), (10, 0, 0), (10, 2, 2), (3, 3, 2)], ids=lambda each: str(each)
)
def test_b4_a_floor_above_what_is_reachable_takes_what_there_is_and_says_what_it_lacks(
    slurm: int, kubernetes: int, kept: int
) -> None:
    """Four nodes and floors of more together: one side is bled for what can never be reached, or all moves for ever."""
    fleet = Fleet(min_hold_s=5)
    fleet.settle()
    fleet.run_for(10)
    fleet.deploy("chat", 2)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 2 and at_rest(fleet), "two nodes are lent")
    fleet.run_for(30)
    apply(fleet, slurm={"floor_nodes": slurm}, kubernetes={"floor_nodes": kubernetes})
    fleet.run_for(120)
    moves = own_moves(fleet)
    fleet.run_for(300)
    assert own_moves(fleet) == moves, "it is at rest"
    assert len(fleet.owned(Owner.KUBERNETES)) == kept
    short = [why.subject for why in fleet.reconciler.pulse.plan.whys if why.subject.startswith("floor of")]
    assert "floor of slurm" in short or kubernetes == 3


# --- B5: clocks ---


class Wrong:
    """A host's clock that is minutes off; a second is as long as everywhere."""

    def __init__(self, clock: Clock, off_s: float) -> None:
        self._clock, self._off = clock, timedelta(seconds=off_s)

    def now(self) -> datetime:
        return self._clock.now() + self._off

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


def broker_with_clock(fleet: Fleet, name: str, off_s: float) -> Reconciler:
    fleet.reconciler = Reconciler(
        ledger=fleet.broker_ledger,
        slurm=fleet.world.slurm,
        kubernetes=fleet.world.kube,
        clock=Wrong(fleet.world.clock, off_s),
        new_id=fleet._new_id,
        holder=name,
        bounds=BOUNDS,
        timing=TIMING,
    )
    return fleet.reconciler


def stalled(fleet: Fleet, to: Side, step: Step) -> Callable[[], None]:
    """Something keeps gpu-1 in this step of its way; returns what ends that."""
    faults, kube = fleet.world.faults, fleet.world.kube
    calls = {
        (Step.CLOSE, Side.KUBERNETES): "slurm.hold",
        (Step.CLOSE, Side.SLURM): "kube.want",
        (Step.OPEN, Side.KUBERNETES): "kube.want",
        (Step.OPEN, Side.SLURM): "slurm.release",
    }
    if (step, to) in calls:
        faults.away(calls[step, to])
        return lambda: faults.back(calls[step, to])
    if step is Step.CLEAN:
        kube.silence_inspector("gpu-1.testbed")
        return lambda: kube.restore_inspector("gpu-1.testbed")
    if to is Side.KUBERNETES:
        kube.cluster.stop_device_plugin("gpu-1.testbed")
        return lambda: kube.cluster.restart_device_plugin("gpu-1.testbed")
    fleet.world.slurm.forget_gres("gpu-1", for_s=40)
    return lambda: None


@pytest.mark.parametrize("off_s", [-1000, 1000])
@pytest.mark.parametrize("step", [Step.CLOSE, Step.CLEAN, Step.OPEN, Step.PROVE])
@pytest.mark.parametrize("to", Side)
def test_b5_a_successor_whose_clock_is_minutes_off_gives_the_step_its_time(to: Side, step: Step, off_s: float) -> None:
    """Every deadline has passed, or none ever does: nodes are quarantined for a clock."""
    fleet = Fleet(min_hold_s=0)
    broker_with_clock(fleet, "early", -off_s)
    fleet.settle()
    if to is Side.SLURM:
        moved(fleet, Side.KUBERNETES)
    ends = stalled(fleet, to, step)
    fleet.order(to, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", step), f"step {step}")
    broker_with_clock(fleet, "late", off_s)
    fleet.run_for(35)
    assert fleet.at_step("gpu-1", step), fleet.describe()
    ends()
    fleet.run_until(lambda: "gpu-1" in fleet.owned(to.owner), "it is finished")
    moved(fleet, to.other)
    settles(fleet)


@pytest.mark.parametrize("off_s", [-1000, 1000])
def test_b5_a_standby_whose_clock_is_minutes_off_takes_no_lead_from_a_leader_that_lives(off_s: float) -> None:
    """By its own clock the lease has run out long ago."""
    fleet = Fleet()
    pair = (fleet.reconciler, broker_with_clock(fleet, "off", off_s))
    fleet.world.run(300, lambda: min(broker.tick() for broker in pair))
    assert [broker.pulse.epoch for broker in pair] == [1, None]
    fleet.world.run(330, pair[1].tick)
    assert pair[1].pulse.epoch == 2, "it leads when the other one is gone"


@pytest.mark.parametrize("off_s", [-1000, 1000])
def test_b5_a_victims_grace_is_whole_whatever_the_successors_clock_says(off_s: float) -> None:
    """A job is ended in the middle of its checkpoint."""
    fleet = Fleet(min_hold_s=0)
    broker_with_clock(fleet, "early", -off_s)
    fleet.settle()
    jobs = [fleet.sbatch(nodes=2, runs_s=1e6) for _ in range(2)]
    fleet.run_until(lambda: all(fleet.world.slurm.job(job).state == "RUNNING" for job in jobs), "both jobs run")
    requeue = {"mode": "requeue", "signal": "USR1", "grace_s": 30, "min_runtime_s": 0}
    apply(fleet, preemption=requeue, kubernetes={"floor_nodes": 2})
    fleet.run_until(lambda: any(map(fleet.world.slurm.signals, jobs)), "one is signalled", within_s=700)
    broker_with_clock(fleet, "late", off_s)
    (victim,) = (job for job in jobs if fleet.world.slurm.signals(job))
    fleet.run_until(lambda: len(fleet.world.slurm.signals(victim)) == 2, "the successor signals again")
    fleet.run_for(28)
    assert fleet.world.slurm.job(victim).restarts == 0
    fleet.run_until(lambda: fleet.world.slurm.job(victim).restarts == 1, "requeued after a whole grace")


# --- B6: the database is away ---


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("to", Side)
def test_b6_two_minutes_without_the_database_stop_all_moves_and_lose_nothing(to: Side, step: Step) -> None:
    """Moves go on by what the broker remembers, or marks stand afterwards that nobody owns."""
    fleet = Fleet(min_hold_s=0)
    fleet.break_ledger()
    fleet.settle()
    halfway(fleet, to, step)
    fleet.world.faults.away("ledger.")
    before, calls = fleet.ledger.read(), len(fleet.world.faults.calls)
    fleet.run_for(120)
    assert fleet.ledger.read() == before
    assert not WRITES.intersection(fleet.world.faults.calls[calls:])
    fleet.world.faults.back("ledger.")
    fleet.run_until(lambda: "gpu-1" in fleet.owned(to.owner), "it goes on")
    assert fleet.handoff("gpu-1").step is Step.DONE
    settles(fleet)


def test_b6_what_was_asked_meanwhile_is_served_afterwards() -> None:
    """Pods and jobs that came in those minutes are forgotten."""
    fleet = Fleet(min_hold_s=0)
    fleet.break_ledger()
    fleet.settle()
    fleet.world.faults.away("ledger.")
    chat = fleet.deploy("chat", 1)
    job = fleet.sbatch(nodes=3)
    fleet.run_for(120)
    assert fleet.world.slurm.job(job).state == "RUNNING", "Slurm works on what it has"
    fleet.world.faults.back("ledger.")
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "the pod serves")


# --- B7: names ---


@pytest.mark.parametrize("gone_s", [0, 60])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("to", Side)
def test_b7_a_node_object_that_is_removed_and_made_again_is_proved_anew(to: Side, step: Step, gone_s: float) -> None:
    """Same name, another machine for all anybody knows: what was proved of the old one is believed of the new one."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    halfway(fleet, to, step)
    fleet.world.kube.cluster.remove_node("gpu-1.testbed")
    fleet.run_for(gone_s)
    fleet.world.kube.cluster.return_node("gpu-1.testbed")
    fleet.run_until(lambda: "gpu-1" in fleet.owned(to.owner), f"gpu-1 is {to}'s", within_s=300)
    settles(fleet)


def test_b7_a_proof_about_the_node_object_that_was_removed_is_not_taken_for_the_new_one() -> None:
    """The controller proved it empty, then it was made anew: what runs there now nobody has looked at."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    moved(fleet, Side.KUBERNETES)
    kube = fleet.world.kube
    fleet.order(Side.SLURM, "gpu-1")
    fleet.run_until(lambda: fleet.at_step("gpu-1", Step.EMPTY), "it is being emptied")
    nonce = fleet.handoff("gpu-1").nonce
    fleet.world.faults.away("kube.observe")
    fleet.run_until(lambda: kube.controller.loans["gpu-1.testbed"].status.empty_nonce == nonce, "proved, not yet seen")
    kube.controller.stop()
    kube.cluster.replace_node("gpu-1.testbed")
    fleet.run_for(5)
    fleet.world.faults.back("kube.observe")
    fleet.run_for(3)
    assert kube.observe().controller_alive, "for all the broker knows"
    assert fleet.at_step("gpu-1", Step.EMPTY)
    kube.controller.start()
    fleet.run_until(lambda: "gpu-1" in fleet.owned(Owner.SLURM), "it is proved anew")
    settles(fleet)


def renamed(fleet: Fleet, domain: str) -> None:
    """A policy by which Kubernetes spells each node ``gpu-1.<domain>``."""
    nodes = [replace(node, kube_name=f"{node.name}.{domain}") for node in fleet.world.nodes]
    state, now = fleet.ledger.read(), fleet.world.clock.now()
    policy = fleet.world.policy(kube_name=f"{{node}}.{domain}")
    fleet.ledger.apply_policy(policy, nodes, replaces=state.policy_version, author="admin", note="", at=now)


def test_b7_a_name_that_kubernetes_does_not_have_moves_nothing() -> None:
    """Slurm says gpu-1, Kubernetes gpu-1.testbed: by a slip in the policy another node is opened, or taken as gone."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    owners = {name: lease.owner for name, lease in fleet.ledger.read().leases.items()}
    renamed(fleet, "example.internal")
    calls = len(fleet.world.faults.calls)
    fleet.deploy("chat", 2)
    fleet.run_for(120)
    refused = fleet.order(Side.KUBERNETES, "gpu-1")
    fleet.run_for(5)
    assert not WRITES.intersection(fleet.world.faults.calls[calls:])
    answered = fleet.ledger.request(refused.id)
    assert answered is not None
    assert answered.state is RequestState.REFUSED
    assert "Kubernetes has no shared node gpu-1.example.internal" in answered.answer
    renamed(fleet, "testbed")
    assert {name: lease.owner for name, lease in fleet.ledger.read().leases.items()} == owners
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 2, "the pods are served by the right names")
    settles(fleet)


@pytest.mark.parametrize("how", ["renamed", "left out"])
@pytest.mark.parametrize("step", [None, *STEPS])
def test_b7_a_node_that_is_lent_or_on_its_way_is_neither_renamed_nor_left_out(step: Step | None, how: str) -> None:
    """The policy forgets it, and what stands on it is nobody's: its pods run where a job may start."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    if step is None:
        moved(fleet, Side.KUBERNETES)
    else:
        halfway(fleet, Side.KUBERNETES, step)
    with pytest.raises(Invalid, match="cannot leave or be renamed now: gpu-1"):
        renamed(fleet, "example.internal") if how == "renamed" else edit(fleet, fleet.world.policy(), leaving="gpu-1")
    fleet.run_until(lambda: "gpu-1" in fleet.owned(Owner.KUBERNETES), "it goes on as it was")
    settles(fleet)


@pytest.mark.parametrize("name", ["gpu-1.testbed", "GPU-1", "gpu-01", "gpu-1 "])
def test_b7_an_order_by_another_spelling_is_refused_and_touches_nothing(name: str) -> None:
    """A name that is nearly one is guessed."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    order = fleet.order(Side.KUBERNETES, name)
    fleet.run_for(5)
    answered = fleet.ledger.request(order.id)
    assert answered is not None
    assert answered.state is RequestState.REFUSED
    assert answered.answer.startswith(f"node {name} is not in the inventory")
    assert own_moves(fleet) == 0


def test_b7_a_node_that_leaves_the_policy_and_joins_again_keeps_its_job() -> None:
    """It is taken for a new one, and its work is ended or met by pods."""
    fleet = Fleet(min_hold_s=0)
    fleet.settle()
    job = fleet.sbatch(nodes=4, runs_s=1e6)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "RUNNING", "the job runs")
    fleet.deploy("chat", 2)
    policy = fleet.world.policy(min_hold_s=0)
    edit(fleet, policy, leaving="gpu-1")
    fleet.run_for(60)
    assert "gpu-1" not in fleet.ledger.read().leases
    edit(fleet, policy)
    fleet.settle()
    settles(fleet)
    assert fleet.owned(Owner.SLURM) == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    assert (fleet.world.slurm.job(job).state, fleet.world.slurm.job(job).restarts) == ("RUNNING", 0)
    assert fleet.world.oracle.starts(Side.KUBERNETES) == []


# --- B8: lenders and circles ---


@pytest.mark.parametrize("gang_nodes", [3, 4, 9])
def test_b8_a_lender_that_waits_for_what_it_cannot_get_does_not_keep_its_idle_nodes_for_ever(gang_nodes: int) -> None:
    """Its gang holds every idle node and never starts; the borrowers wait for nodes that nobody uses."""
    fleet = Fleet(min_hold_s=5, gang_deadline_s=120, kubernetes={"floor_nodes": 2})
    fleet.settle()
    chat = fleet.deploy("chat", 2)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 2 and at_rest(fleet), "Kubernetes uses its floor")
    fleet.run_for(30)
    gang = fleet.sbatch(nodes=gang_nodes, runs_s=1e6)
    asked_s = fleet.world.clock.monotonic_s()
    fleet.run_for(10)
    fleet.world.kube.cluster.scale(chat, 4)
    fleet.run_until(lambda: all(pod.ready for pod in fleet.world.kube.cluster.of(chat)), "idle nodes are borrowed")
    assert fleet.world.slurm.job(gang).state == "PENDING"
    waited_s = fleet.world.clock.monotonic_s() - asked_s
    assert (waited_s < 60) is (gang_nodes == 9), "what can never run keeps nothing, another gang until its deadline"


@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("floors", [(0, 0), (2, 2), (1, 2)])
def test_b8_two_sides_that_both_want_everything_come_to_rest(floors: tuple[int, int], weights: tuple[int, int]) -> None:
    """Each reclaims from the other what the other has just reclaimed: work is ended and begun for ever."""
    shares = [{"floor_nodes": floor, "weight": weight} for floor, weight in zip(floors, weights, strict=True)]
    requeue = {"mode": "requeue", "min_runtime_s": 0, "respite_s": 5, "window_s": 10}
    fleet = Fleet(min_hold_s=5, preemption=requeue, slurm=shares[0], kubernetes=shares[1])
    fleet.settle()
    for _ in range(8):
        fleet.sbatch(nodes=1, runs_s=1e6)
    fleet.deploy("chat", 8)
    fleet.run_for(300)
    moves = own_moves(fleet)
    fleet.run_for(300)
    assert own_moves(fleet) == moves
    assert at_rest(fleet)
    assert len(fleet.owned(Owner.SLURM)) >= floors[0]
    assert len(fleet.owned(Owner.KUBERNETES)) >= floors[1]
