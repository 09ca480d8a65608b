"""What goes wrong in the field on Slurm's side of a node: S1 to S6, S10, S13 and S14, each as a kind.

S7 to S9, S11, S12, S15 and S16, about queues and whole fleets, are in ``test_cases_slurm_queue.py``. What only the
driver can tell apart is in ``tests/unit/test_slurm_rest.py``: for S2
``test_whatever_cannot_be_read_makes_all_of_it_unknown``, every fault on every path. On the real thing: S1 and S10 are
``test_c`` and ``test_i``, S2 is ``test_g`` and S3 is ``test_e`` of ``tests/e2e/test_scenarios.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bridge.model.handoff import Step
from bridge.model.ledger import RequestState
from bridge.model.ownership import Mark, Owner, Side
from bridge.model.slurm import SlurmObservation
from bridge.planning.explain import Kind
from bridge.simulation.faults import When
from bridge.simulation.slurm import SimulatedSlurm
from tests.simulation.accounts import unaccounted
from tests.simulation.fleet import TIMING, Fleet

NODE = "gpu-1"


@pytest.fixture
def fleet() -> Fleet:
    """Four nodes at rest with Slurm, long enough for any to be moved."""
    fleet = Fleet(failure_backoff_s=30)
    fleet.settle()
    fleet.run_for(40)
    return fleet


def states(fleet: Fleet, node: str = NODE) -> frozenset[str]:
    return fleet.world.slurm.node(node).states


def told(fleet: Fleet, kind: Kind, name: str) -> str:
    """The verdict and all that it rests on, in one text."""
    found = fleet.reconciler.explain(kind, name)
    assert found is not None
    return "\n".join((found.verdict, *(link.text for link in found.chain)))


def calls(fleet: Fleet, name: str) -> int:
    return fleet.world.faults.calls.count(f"slurm.{name}")


def fill(fleet: Fleet, **job: object) -> list[int]:
    """A job of one node on each node."""
    jobs = [fleet.sbatch(**job) for _ in fleet.world.nodes]  # type: ignore[arg-type]
    fleet.run_until(lambda: all(fleet.world.slurm.job(job).state == "RUNNING" for job in jobs), "a job on every node")
    return jobs


def job_on(fleet: Fleet, node: str) -> int:
    return next(job.id for job in fleet.world.slurm.observe().jobs if node in job.nodes)


def lend(fleet: Fleet, *nodes: str) -> None:
    fleet.order(Side.KUBERNETES, *nodes)
    fleet.run_until(lambda: set(nodes) <= set(fleet.owned(Owner.KUBERNETES)), f"{nodes} are lent", within_s=300)


def take_back(fleet: Fleet, *nodes: str) -> None:
    fleet.order(Side.SLURM, *nodes)
    fleet.run_until(lambda: set(nodes) <= set(fleet.owned(Owner.SLURM)), f"{nodes} are back", within_s=300)


# --- S1: drained is not empty ---


def _suspend(fleet: Fleet) -> None:
    fleet.world.slurm.suspend(job_on(fleet, NODE))


def _end(fleet: Fleet) -> None:
    fleet.world.slurm.cancel(job_on(fleet, NODE))


def _let_it_run(_: Fleet) -> None:
    pass


@pytest.mark.parametrize(
    ("job", "happens", "shown"),
    [
        pytest.param({}, _let_it_run, {"ALLOCATED", "DRAIN"}, id="allocated"),
        pytest.param({"gpus_per_node": 2}, _let_it_run, {"MIXED", "DRAIN"}, id="mixed"),
        pytest.param({"dying_s": 400}, _end, {"IDLE", "DRAIN", "COMPLETING"}, id="completing"),
        pytest.param({"epilog_s": 400}, _end, {"IDLE", "DRAIN", "COMPLETING"}, id="epilog"),
        pytest.param({}, _suspend, {"IDLE", "DRAIN"}, id="suspended"),
    ],
)
def test_s1_a_drained_node_with_work_is_not_empty(
    fleet: Fleet, job: dict[str, object], happens: Callable[[Fleet], None], shown: set[str]
) -> None:
    """DRAIN beside any sign of work is taken as drained, and the work is killed."""
    its_job = fleet.sbatch(runs_s=3000, **job)  # type: ignore[arg-type]
    fleet.run_until(lambda: fleet.world.slurm.job(its_job).nodes == (NODE,), "its job runs")
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_until(lambda: fleet.at_step(NODE, Step.EMPTY), "it is closed and waits for its job")
    happens(fleet)
    fleet.run_for(200)
    assert shown <= states(fleet)
    assert fleet.at_step(NODE, Step.EMPTY)
    assert fleet.handoff(NODE).blockers[0].startswith(f"job {its_job} of alice is ")
    assert fleet.world.slurm.signals(its_job) == ()
    assert fleet.world.kube.open(f"{NODE}.testbed") is False
    fleet.world.slurm.cancel_all()
    fleet.run_until(lambda: NODE in fleet.owned(Owner.KUBERNETES), "it goes when its job has", within_s=500)


@pytest.mark.parametrize("flag", ["BLOCKED", "FAIL", "POWERING_DOWN", "REBOOT_ISSUED", "A_FLAG_OF_NEXT_YEAR"])
def test_s1_a_drained_node_with_a_flag_that_we_do_not_know_is_not_empty(fleet: Fleet, flag: str) -> None:
    """A state that came with a newer Slurm is taken as harmless."""
    fill(fleet, runs_s=100)
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_until(lambda: fleet.at_step(NODE, Step.EMPTY), "it is closed and waits for its job")
    fleet.world.slurm.set_flags(NODE, {flag})
    fleet.run_for(200)
    assert states(fleet) == {"IDLE", "DRAIN", "MAINTENANCE", "RESERVED", flag}
    assert fleet.at_step(NODE, Step.EMPTY)
    assert flag in fleet.handoff(NODE).blockers[0]
    fleet.world.slurm.set_flags(NODE, ())
    fleet.run_until(lambda: NODE in fleet.owned(Owner.KUBERNETES), "it goes when the flag is gone")


# --- S2: a failed read is no answer ---


def _slurmrestd_is_away(fleet: Fleet, for_s: float) -> None:
    fleet.world.faults.away("slurm.observe")
    fleet.world.clock.after(for_s, lambda: fleet.world.faults.back("slurm.observe"))


def _slurmctld_is_away(fleet: Fleet, for_s: float) -> None:
    fleet.world.slurm.restart_controller(for_s)


@pytest.mark.parametrize("unreadable", [_slurmrestd_is_away, _slurmctld_is_away])
@pytest.mark.parametrize("step", [Step.CLOSE, Step.EMPTY, Step.CLEAN, Step.OPEN, Step.PROVE])
@pytest.mark.parametrize("to", list(Side))
def test_s2_a_failed_read_in_the_middle_of_a_move_is_no_answer(
    fleet: Fleet, to: Side, step: Step, unreadable: Callable[[Fleet, float], None]
) -> None:
    """A time-out, a 404, a 200 with errors, an expired token is taken as "gone" or "drained". Longer than the step."""
    if to is Side.SLURM:
        lend(fleet, NODE)
        fleet.run_for(40)
    fleet.order(to, NODE)
    fleet.run_until(lambda: fleet.at_step(NODE, step), f"{NODE} is in step {step}")
    before, latches = fleet.owner(NODE), (states(fleet) & {"DRAIN"}, fleet.world.slurm.held())
    away_s = 1000.0 if step is Step.CLEAN else 150.0
    unreadable(fleet, away_s)
    fleet.run_for(away_s - 10)
    assert fleet.reconciler.pulse.unknown[0].startswith("slurm.observe is unreadable: ")
    assert (states(fleet) & {"DRAIN"}, fleet.world.slurm.held()) == latches
    assert fleet.owner(NODE) is before or fleet.at_step(NODE, Step.DONE)
    assert not fleet.handoff(NODE).step.ended or fleet.at_step(NODE, Step.DONE)
    fleet.run_until(lambda: NODE in fleet.owned(to.owner), "it goes on where it was")
    assert unaccounted(fleet) == []


def test_s2_while_slurm_is_unreadable_nothing_begins_and_orders_are_refused(fleet: Fleet) -> None:
    """A node that cannot be read is taken as gone, and its pods or jobs with it."""
    fleet.world.faults.away("slurm.observe")
    fleet.deploy("chat", replicas=2)
    request = fleet.order(Side.KUBERNETES, NODE)
    fleet.run_for(300)
    answered = fleet.ledger.request(request.id)
    assert answered is not None
    assert (answered.state, "UNKNOWN moves nothing" in answered.answer) == (RequestState.REFUSED, True)
    assert fleet.owned(Owner.KUBERNETES) == []
    assert not fleet.ledger.read().handoffs


# --- S3, S4: whose drain it is ---

THEIRS = [
    pytest.param("fan 3 broken", "admin", id="plain"),
    pytest.param("Kill task failed", "root", id="slurm"),
    pytest.param("not a bridge: problem", "admin", id="our-word"),
    pytest.param("see bridge:k3f9q2m8:1:7", "admin", id="a-mark-inside"),
    pytest.param("bridge:k3f9q2m8:1", "admin", id="half-a-mark"),
    pytest.param("bridge:k3f9q2m8:1:7:9", "admin", id="too-long-a-mark"),
    pytest.param("bridge: is down : Not responding", "admin", id="appended"),
    pytest.param(" ", "admin", id="blank"),
]


@pytest.mark.parametrize(("reason", "user"), THEIRS)
def test_s3_s4_a_drain_by_others_is_never_lifted_nor_overwritten(fleet: Fleet, reason: str, user: str) -> None:
    """Automation lifts an admin's drain because its reason is empty, or has our word in it."""
    fleet.world.slurm.admin_drain(NODE, reason, user)
    fleet.deploy("chat", replicas=4)
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 3, "all others are lent")
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_for(60)
    assert (states(fleet), fleet.world.slurm.node(NODE).reason) == ({"IDLE", "DRAIN"}, reason)
    assert fleet.owned(Owner.SLURM) == [NODE]
    assert "drained by" in told(fleet, Kind.NODE, NODE)


@pytest.mark.parametrize(("reason", "user"), THEIRS)
def test_s3_s4_a_drain_by_others_over_ours_is_still_there_after_the_loan(fleet: Fleet, reason: str, user: str) -> None:
    """The return of a lent node lifts the drain that somebody set meanwhile."""
    lend(fleet, NODE)
    fleet.world.slurm.admin_drain(NODE, reason, user)
    fleet.run_for(5)
    take_back(fleet, NODE)
    fleet.run_for(30)
    assert ("DRAIN" in states(fleet), fleet.world.slurm.node(NODE).reason) == (True, reason)
    assert NODE not in fleet.world.slurm.held()


def test_s3_a_drain_without_a_reason_is_theirs(fleet: Fleet) -> None:
    """An empty reason is taken as ours."""
    job = fleet.sbatch(runs_s=10)
    fleet.run_until(lambda: fleet.world.slurm.job(job).state == "COMPLETED", "a job ran on it")
    fleet.world.slurm.admin_drain(NODE, "")
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_for(60)
    assert (states(fleet), fleet.world.slurm.node(NODE).reason) == ({"IDLE", "DRAIN"}, "")
    assert NODE in fleet.owned(Owner.SLURM)


def test_s3_a_drain_without_a_reason_where_our_old_one_still_stands_is_theirs(fleet: Fleet) -> None:
    """Over the API a node can be drained without one: Slurm then shows ours of an earlier loan."""
    lend(fleet, NODE)
    fleet.run_for(40)
    take_back(fleet, NODE)
    assert Mark.parse(fleet.world.slurm.node(NODE).reason) is not None
    fleet.world.slurm.admin_drain(NODE, "")
    fleet.run_for(60)
    assert "DRAIN" in states(fleet)
    assert "without a reason" in told(fleet, Kind.NODE, NODE)
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_for(60)
    assert "DRAIN" in states(fleet)
    assert NODE in fleet.owned(Owner.SLURM)
    assert unaccounted(fleet) == []


def test_s3_a_drain_without_a_reason_is_theirs_for_the_next_broker_too(fleet: Fleet) -> None:
    """What was seen lifted is in the ledger, not in the memory of the broker that saw it."""
    lend(fleet, NODE)
    take_back(fleet, NODE)
    fleet.world.slurm.admin_drain(NODE, "")
    fleet.new_broker()
    fleet.run_for(90)
    assert "DRAIN" in states(fleet)


def test_s3_a_drain_without_a_reason_during_a_loan_is_lifted_with_ours_and_nothing_else(fleet: Fleet) -> None:
    """It changes nothing that Slurm shows: the node comes home as if nobody had touched it."""
    lend(fleet, NODE)
    fleet.run_for(40)
    before = fleet.world.slurm.node(NODE)
    fleet.world.slurm.admin_drain(NODE, "")
    assert fleet.world.slurm.node(NODE) == before
    take_back(fleet, NODE)
    assert unaccounted(fleet) == []


def test_s3_our_own_text_set_again_by_a_person_is_theirs(fleet: Fleet) -> None:
    """An admin copies the reason that stands there (``scontrol update … reason="$(old)"``) and means it."""
    lend(fleet, NODE)
    fleet.world.slurm.admin_resume(NODE)
    fleet.world.slurm.admin_drain(NODE, fleet.world.slurm.node(NODE).reason, "admin")
    fleet.run_for(30)
    assert fleet.world.slurm.node(NODE).reason_user == "admin"
    assert NODE in fleet.world.slurm.held()


@pytest.mark.parametrize("times", [1, 2])
def test_s4_what_slurm_appends_to_our_reason_leaves_it_ours(fleet: Fleet, times: int) -> None:
    """``bridge:… : Not responding`` is not recognised, and the node stays drained for good."""
    lend(fleet, NODE)
    mark = Mark.parse(fleet.world.slurm.node(NODE).reason)
    for _ in range(times):
        fleet.world.slurm.lose_slurmd(NODE)
        fleet.run_for(310)
        fleet.world.slurm.return_slurmd(NODE)
        fleet.run_for(5)
    reason = fleet.world.slurm.node(NODE).reason
    assert reason.endswith(" : Not responding")
    assert Mark.parse(reason) == mark
    take_back(fleet, NODE)
    fleet.run_for(5)
    assert states(fleet) == {"IDLE"}
    assert unaccounted(fleet) == []


# --- S5: observations that disagree ---


class TwoFaced:
    """A Slurm of which every second reading is `behind` readings old, as from a replica that lags."""

    def __init__(self, slurm: SimulatedSlurm, behind: int) -> None:
        self._slurm, self._behind = slurm, behind
        self._answers: list[SlurmObservation] = []
        self.per_pass: list[set[tuple[str, str]]] = []
        """The nodes that were drained and resumed after each reading."""

    def observe(self) -> SlurmObservation:
        self._answers.append(self._slurm.observe())
        self.per_pass.append(set())
        lags = len(self._answers) % 2 == 0 and len(self._answers) > self._behind
        return self._answers[-1 - self._behind] if lags else self._answers[-1]

    def __getattr__(self, name: str) -> object:
        call = getattr(self._slurm, name)
        if name not in ("drain", "resume"):
            return call

        def noted(nodes: list[str], *more: object) -> object:
            self.per_pass[-1].update((name, node) for node in nodes)
            return call(nodes, *more)

        return noted


@pytest.mark.parametrize("behind", [1, 3, 9])
def test_s5_two_observations_that_disagree_do_not_drain_and_undrain_a_node(behind: int) -> None:
    """A node is drained and undrained in one pass, again and again, as two readings of it disagree."""
    fleet = Fleet()
    fleet.settle()
    slurm = TwoFaced(fleet.world.slurm, behind)
    fleet.new_broker(slurm=slurm)  # type: ignore[arg-type]
    fleet.run_for(40)
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == [NODE], "it is lent")
    fleet.run_for(60)
    fleet.order(Side.SLURM, NODE)
    fleet.run_until(lambda: NODE in fleet.owned(Owner.SLURM), "it is back")
    fleet.run_for(120)
    for made in slurm.per_pass:
        assert len({node for _, node in made}) == len(made), f"drained and resumed in one pass: {made}"
    done = [call for made in slurm.per_pass for call in made]
    assert {node for _, node in done} == {NODE}
    most = 1 + behind
    assert 1 <= done.count(("drain", NODE)) <= most
    assert 1 <= done.count(("resume", NODE)) <= most
    assert states(fleet) == {"IDLE"}
    assert unaccounted(fleet) == []


def test_s5_demand_that_comes_and_goes_with_each_look_moves_no_node_to_and_fro() -> None:
    """Two sides that want a node in turn wear it out. ``NoFlap``: held for 300 s, so 4 moves in 1,000 s."""
    fleet = Fleet(nodes=1, min_hold_s=300)
    fleet.settle()
    chat = fleet.deploy("chat", replicas=0)
    for _ in range(50):
        fleet.world.kube.cluster.scale(chat, 1)
        job = fleet.sbatch(runs_s=1)
        fleet.run_for(10)
        fleet.world.kube.cluster.scale(chat, 0)
        if fleet.world.slurm.job(job).state == "PENDING":
            fleet.world.slurm.cancel(job)
        fleet.run_for(10)
    assert len(fleet.ledger.handoffs(limit=100, node=NODE)) <= 1 + 4


# --- S6: the reason outlives the cause ---


def _machine_is_replaced(fleet: Fleet) -> None:
    fleet.world.power_off(NODE)
    fleet.run_for(400)
    fleet.world.kube.cluster.replace_node(f"{NODE}.testbed")
    fleet.world.power_on(NODE)


def _slurm_conf_without_it_for_a_while(fleet: Fleet) -> None:
    """Both latches go with the node's record: the Prolog's fence alone stands until they are there again."""
    fleet.world.slurm.fence = frozenset({NODE})
    fleet.world.slurm.remove_node(NODE)
    fleet.run_for(200)
    fleet.world.slurm.put_node_back(NODE)


def _slurmctld_is_updated(fleet: Fleet) -> None:
    fleet.world.slurm.restart_controller(away_s=60)


def _a_flag_for_the_update(fleet: Fleet) -> None:
    fleet.world.slurm.set_flags(NODE, {"REBOOT_ISSUED"})
    fleet.run_for(200)
    fleet.world.slurm.set_flags(NODE, ())


UPDATES = [_machine_is_replaced, _slurm_conf_without_it_for_a_while, _slurmctld_is_updated, _a_flag_for_the_update]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("step", [None, Step.CLOSE, Step.OPEN])
def test_s6_after_a_rolling_update_no_drain_of_ours_outlives_its_loan(
    fleet: Fleet, update: Callable[[Fleet], None], step: Step | None
) -> None:
    """The replaced, healthy node stays drained until someone looks. `step`: where its return was when it began."""
    lend(fleet, NODE)
    fleet.run_for(40)
    if step is not None:
        fleet.order(Side.SLURM, NODE)
        fleet.run_until(lambda: fleet.at_step(NODE, step), f"its return is in step {step}")
    update(fleet)
    fleet.run_for(60)
    if NODE not in fleet.owned(Owner.SLURM):
        fleet.order(Side.SLURM, NODE)
    fleet.run_until(
        lambda: NODE in fleet.owned(Owner.SLURM) and states(fleet) == {"IDLE"}, "it is Slurm's, open", within_s=1500
    )
    assert unaccounted(fleet) == []


def test_s6_a_drain_that_comes_late_goes_without_anybody_looking(fleet: Fleet) -> None:
    """The drain of a move that was over before it arrived."""
    fleet.world.faults.fail_next("slurm.drain", when=When.LATE, delay_s=TIMING.call_timeout_s - 0.1)
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_for(2)
    fleet.world.slurm.admin_drain(NODE, "fan 3 broken")
    fleet.run_for(2)
    fleet.world.slurm.admin_resume(NODE)
    fleet.run_for(60)
    take_back(fleet, *fleet.owned(Owner.KUBERNETES))
    fleet.run_until(lambda: states(fleet) == {"IDLE"}, "it is open", within_s=300)
    assert unaccounted(fleet) == []


# --- S10: the epilog hangs ---


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("hangs", [{"epilog_s": 600}, {"dying_s": 600}, {"dying_s": 300, "orphan_s": 300}])
def test_s10_while_an_epilog_hangs_no_pod_comes_near_its_processes(
    fleet: Fleet, hangs: dict[str, object], restarts: bool
) -> None:
    """A job in COMPLETING is not counted, and the node is opened to pods with its processes alive."""
    fill(fleet, runs_s=30, **hangs)
    fleet.deploy("chat", replicas=4)
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_for(60)
    if restarts:
        fleet.world.slurm.restart_controller(away_s=2)  # Old news for a while: the flag and the job are not shown.
    fleet.run_for(400)
    assert fleet.owned(Owner.KUBERNETES) == []
    assert not fleet.world.oracle.starts(Side.KUBERNETES)
    fleet.run_until(lambda: NODE in fleet.owned(Owner.KUBERNETES), "it is lent once all is gone", within_s=900)


def test_s10_a_kill_that_fails_under_our_drain_is_not_forgotten(fleet: Fleet) -> None:
    """``Kill task failed`` is lost under our drain; that process is seen by the inspector alone."""
    fill(fleet, runs_s=3000, orphan_s=600)
    fleet.order(Side.KUBERNETES, NODE)
    fleet.run_until(lambda: fleet.at_step(NODE, Step.EMPTY), "it is closed and waits for its job")
    fleet.world.slurm.cancel_all()
    fleet.world.slurm.slurm_drains(NODE, "Kill task failed")
    fleet.run_until(lambda: fleet.at_step(NODE, Step.CLEAN), "Slurm calls it empty")
    fleet.run_for(300)
    assert fleet.at_step(NODE, Step.CLEAN)
    assert "holds" in fleet.handoff(NODE).blockers[0]


# --- S13, S14: nodes that are not what they seem ---


@pytest.mark.parametrize(
    "flags",
    [
        {"POWERED_DOWN", "NOT_RESPONDING"},
        {"POWERED_DOWN"},
        {"POWERING_DOWN"},
        {"POWERING_UP"},
        {"POWER_DOWN"},
        {"INVALID_REG"},
    ],
    ids=lambda flags: "+".join(sorted(flags)),
)
def test_s13_a_node_that_sleeps_is_not_lent_and_said(fleet: Fleet, flags: set[str]) -> None:
    """IDLE+POWERED_DOWN nodes, absent from ``sinfo -R``, are counted as lendable; so is a floor that rests on them."""
    for node in ("gpu-1", "gpu-2"):
        fleet.world.slurm.set_flags(node, flags)
    fleet.deploy("chat", replicas=4)
    request = fleet.order(Side.KUBERNETES, NODE)
    fleet.run_until(lambda: fleet.owned(Owner.KUBERNETES) == ["gpu-3", "gpu-4"], "those that are awake are lent")
    fleet.run_for(120)
    assert fleet.owned(Owner.SLURM) == ["gpu-1", "gpu-2"]
    assert states(fleet) == {"IDLE", *flags}
    answered = fleet.ledger.request(request.id)
    assert answered is not None
    assert answered.state is RequestState.REFUSED
    assert "does not answer on the slurm side" in answered.answer
    assert "does not answer on the slurm side" in told(fleet, Kind.NODE, NODE)


def test_s13_a_floor_does_not_rest_on_nodes_that_sleep() -> None:
    """A floor of two is met on paper by two nodes that are powered down, and the others are lent away."""
    fleet = Fleet(slurm={"floor_nodes": 2})
    fleet.settle()
    fleet.run_for(40)
    for node in ("gpu-1", "gpu-2"):
        fleet.world.slurm.set_flags(node, {"POWERED_DOWN", "NOT_RESPONDING"})
    fleet.deploy("chat", replicas=4)
    fleet.run_for(120)
    assert fleet.owned(Owner.KUBERNETES) == []


def test_s14_a_node_whose_gres_is_not_known_yet_counts_for_nothing() -> None:
    """``Gres=(null)`` at first registration: the node looks CPU-only for a minute, and counts for the floor."""
    fleet = Fleet(slurm={"floor_nodes": 3})
    fleet.settle()
    fleet.run_for(40)
    fleet.world.slurm.forget_gres("gpu-2", for_s=200)
    fleet.deploy("chat", replicas=1)
    fleet.run_for(100)
    assert fleet.owned(Owner.KUBERNETES) == [], "three others are usable, and the floor is three"
    assert "stays: not ready for slurm: slurmctld offers 0 of 8 GPUs" in told(fleet, Kind.NODE, "gpu-2")
    fleet.run_until(lambda: len(fleet.owned(Owner.KUBERNETES)) == 1, "one is lent when all have their GPUs")


@pytest.mark.parametrize("for_s", [60, 400])
def test_s14_a_node_that_comes_back_without_its_gpus_is_proved_only_with_them(fleet: Fleet, for_s: float) -> None:
    """The return is called done while no GPU job could start. Too late (400 s > 120 s) is said, and mends itself."""
    lend(fleet, NODE)
    fleet.run_for(40)
    fleet.world.slurm.forget_gres(NODE, for_s=for_s)
    fleet.order(Side.SLURM, NODE)
    fleet.run_until(lambda: fleet.at_step(NODE, Step.PROVE), "it is open again")
    fleet.run_for(20)
    assert fleet.at_step(NODE, Step.PROVE)
    assert fleet.handoff(NODE).blockers == ("slurmctld offers 0 of 8 GPUs",)
    fleet.run_until(lambda: NODE in fleet.owned(Owner.SLURM), "the handoff has ended", within_s=200)
    assert fleet.handoff(NODE).step is (Step.DONE if for_s == 60 else Step.FAILED)
    assert (fleet.ledger.read().nodes[NODE].unusable == "") is (for_s == 60)
    fleet.run_for(400)
    assert fleet.ledger.read().nodes[NODE].unusable == ""
    assert unaccounted(fleet) == []
