"""What an observation proves: every rule of `bridge.lifecycle.facts`, by hand-made observations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bridge.lifecycle.facts import SideFacts, device_facts, jobs_by_node, kube_facts, slurm_facts
from bridge.model.errors import Unreadable
from bridge.model.handoff import Handoff, Step
from bridge.model.kube import DeviceHolder, Inspection, KubeNode, KubeObservation, LoanSpec, LoanStatus
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Closure, Lease, Mark, Node, Owner, Side
from bridge.model.slurm import SlurmJob, SlurmNode, SlurmObservation

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
SET_AT = NOW - timedelta(minutes=5)
NODE = Node("gpu-1", "gpu-1", "gpu-1.testbed", "shared", 8)
MARK = Mark("lease0001", 3, 17)
CLOSURE = Closure("gpu-1", Side.SLURM, MARK, set_by="bridge", set_at=SET_AT)
OURS = SlurmNode(
    "gpu-1",
    frozenset({"IDLE", "DRAIN"}),
    8,
    reason=f"{MARK} lent to kubernetes",
    reason_user="bridge",
    reason_set_at=SET_AT,
)


def slurm(
    node: SlurmNode | None = OURS,
    *jobs: SlurmJob,
    held: bool = True,
    closure: Closure | None = CLOSURE,
    restarted_s: float | None = None,
    lifted_drain_at: datetime | None = None,
    lease: Lease | None = None,
) -> SideFacts:
    seen = SlurmObservation(
        NOW,
        {node.name: node} if node else {},
        jobs,
        frozenset({"gpu-1"} if held else ()),
        controller_up_s=restarted_s,
    )
    record = NodeRecord(NODE, lifted_drain_at=lifted_drain_at)
    return slurm_facts(record, lease, closure, seen, jobs_by_node(seen).get(NODE.slurm_name, ()), settle_s=5)


def job(state: str, *nodes: str) -> SlurmJob:
    return SlurmJob(17, state, "alice", "research", "shared", nodes=nodes or ("gpu-1",))


class TestSlurmEmptiness:
    def test_drained_held_idle_and_without_jobs_is_empty(self) -> None:
        facts = slurm()
        assert facts.closed
        assert facts.empty
        assert not facts.blockers

    @pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "A_NEW_ONE"])
    def test_any_job_state_that_may_hold_the_node_blocks(self, state: str) -> None:
        facts = slurm(OURS, job(state))
        assert not facts.empty
        assert facts.blockers == (f"job 17 of alice is {state}",)

    @pytest.mark.parametrize("state", ["PENDING", "COMPLETED", "CANCELLED", "TIMEOUT", "NODE_FAIL"])
    def test_a_job_that_has_ended_does_not(self, state: str) -> None:
        assert slurm(OURS, job(state)).empty

    def test_a_job_elsewhere_does_not(self) -> None:
        assert slurm(OURS, job("RUNNING", "gpu-2")).empty

    @pytest.mark.parametrize(
        "states",
        [
            {"ALLOCATED", "DRAIN"},  # S1
            {"MIXED", "DRAIN"},
            {"IDLE", "DRAIN", "COMPLETING"},  # S10
            {"IDLE", "DRAIN", "NOT_RESPONDING"},  # S13
            {"DOWN", "DRAIN"},
            {"IDLE", "DRAIN", "POWERED_DOWN"},
            {"IDLE", "DRAIN", "REBOOT_ISSUED"},
            {"IDLE", "DRAIN", "A_FLAG_OF_TOMORROW"},
            {"DRAIN"},
        ],
    )
    def test_any_other_state_is_not_empty(self, states: set[str]) -> None:
        facts = slurm(replace(OURS, states=frozenset(states)))
        assert not facts.empty
        assert facts.blockers

    def test_a_slurmctld_that_just_restarted_is_not_believed(self) -> None:
        assert not slurm(restarted_s=4).empty
        assert slurm(restarted_s=6).empty

    def test_without_the_reservation_it_is_neither_closed_nor_empty(self) -> None:
        facts = slurm(held=False)
        assert not facts.closed
        assert not facts.empty


class TestWhoseDrain:
    def test_ours_needs_the_exact_mark(self) -> None:
        other = replace(OURS, reason="bridge:lease0001:3:18 lent")
        facts = slurm(other)
        assert not facts.first_latch
        assert facts.stray_mark == Mark("lease0001", 3, 18)
        assert not facts.closed

    @pytest.mark.parametrize(
        "reason", ["bad DIMM", "", "not a bridge: problem", "bridge: fan", f"see {MARK}", f"{MARK}x"]
    )
    def test_a_persons_reason_is_theirs(self, reason: str) -> None:
        facts = slurm(replace(OURS, reason=reason, reason_user="admin"))
        assert not facts.first_latch
        assert facts.foreign == f"drained by admin: {reason}"

    def test_the_same_text_set_again_by_another_user_is_not_ours(self) -> None:
        assert not slurm(replace(OURS, reason_user="admin")).first_latch

    def test_the_same_text_set_at_another_time_is_not_ours(self) -> None:
        assert not slurm(replace(OURS, reason_set_at=NOW)).first_latch

    def test_what_slurm_itself_appends_leaves_it_ours(self) -> None:
        appended = replace(OURS, reason=f"{OURS.reason} : Not responding", reason_user="slurm", reason_set_at=NOW)
        assert slurm(appended).first_latch

    def test_before_it_was_read_back_user_and_time_are_learned(self) -> None:
        facts = slurm(closure=Closure("gpu-1", Side.SLURM, MARK))
        assert facts.read_back == ("bridge", SET_AT)

    @pytest.mark.parametrize(
        ("lifted_drain_at", "appended", "theirs"),
        [
            (SET_AT, False, True),
            (SET_AT, True, True),  # " : Not responding", with a time of its own
            (SET_AT - timedelta(seconds=1), False, False),  # a late drain of ours, set after the one that was lifted
            (None, False, False),  # none was ever seen lifted: it must be a late one
            (None, True, False),
        ],
    )
    @pytest.mark.parametrize("held", [False, True])
    def test_a_drain_with_the_time_of_one_that_was_lifted_is_a_persons(
        self, lifted_drain_at: datetime | None, *, appended: bool, theirs: bool, held: bool
    ) -> None:
        found = OURS
        if appended:
            found = replace(OURS, reason=f"{OURS.reason} : Not responding", reason_user="slurm", reason_set_at=NOW)
        lease = Lease(MARK.lease, "gpu-1", Owner.SLURM, MARK.epoch, MARK.generation + 1, NOW)
        facts = slurm(found, closure=None, held=held, lifted_drain_at=lifted_drain_at, lease=lease)
        assert (bool(facts.foreign), facts.stray_mark is None) == (theirs, theirs)
        assert not facts.first_latch

    def test_our_own_drain_is_ours_whatever_was_lifted_before(self) -> None:
        lease = Lease(MARK.lease, "gpu-1", Owner.BRIDGE, MARK.epoch, MARK.generation, NOW)
        facts = slurm(lifted_drain_at=SET_AT - timedelta(hours=1), lease=lease)
        assert facts.first_latch
        assert not facts.foreign

    def test_a_mark_from_after_the_ledgers_restore_is_not_taken_for_a_persons(self) -> None:
        """The ledger is from the past: what it knows to be lifted says nothing about a drain that it never made."""
        ahead = f"{Mark('lease0009', 4, 99)} lent : Not responding"
        lease = Lease(MARK.lease, "gpu-1", Owner.SLURM, MARK.epoch, MARK.generation, NOW)
        found = replace(OURS, reason=ahead, reason_user="slurm", reason_set_at=NOW)
        facts = slurm(found, closure=None, lifted_drain_at=SET_AT, lease=lease)
        assert (facts.foreign, facts.stray_mark) == ("", Mark("lease0009", 4, 99))

    def test_what_is_lifted_says_when_it_had_been_set(self) -> None:
        assert slurm(replace(OURS, states=frozenset({"IDLE"}))).lifted_at == SET_AT
        assert slurm().lifted_at is None
        assert slurm(replace(OURS, states=frozenset({"IDLE"}), reason="bad DIMM")).lifted_at is None

    def test_a_reason_without_a_drain_is_history(self) -> None:
        facts = slurm(replace(OURS, states=frozenset({"IDLE"})), held=False, closure=None)
        assert facts.opened
        assert facts.ready
        assert not facts.foreign


class TestSlurmUnknown:
    def test_unreadable(self) -> None:
        facts = slurm_facts(NodeRecord(NODE), None, CLOSURE, Unreadable("slurm", "timeout"), (), settle_s=5)
        assert facts.unknown == "slurm is unreadable: timeout"
        assert not any((facts.closed, facts.empty, facts.opened, facts.idle, facts.ready))

    def test_absent_from_the_answer(self) -> None:
        assert slurm(None).unknown == "slurmctld does not list node gpu-1"


class TestSlurmReady:
    def ready(self, *states: str, gpus: int = 8, held: bool = False) -> SideFacts:
        return slurm(SlurmNode("gpu-1", frozenset(states), gpus), held=held, closure=None)

    @pytest.mark.parametrize("states", [("IDLE",), ("ALLOCATED",), ("MIXED",), ("IDLE", "PLANNED")])
    def test_up_and_open(self, states: tuple[str, ...]) -> None:
        assert self.ready(*states).ready

    @pytest.mark.parametrize("states", [("DOWN",), ("IDLE", "NOT_RESPONDING"), ("IDLE", "DRAIN"), ("UNKNOWN",), ()])
    def test_not_up(self, states: tuple[str, ...]) -> None:
        facts = self.ready(*states)
        assert not facts.ready
        assert facts.not_ready

    def test_without_its_gpus(self) -> None:
        assert self.ready("IDLE", gpus=0).not_ready == "slurmctld offers 0 of 8 GPUs"

    def test_inside_the_reservation(self) -> None:
        assert not self.ready("IDLE", held=True).ready


LEASE = Lease("lease0001", "gpu-1", Owner.KUBERNETES, 3, 17, NOW)
KUBE_CLOSURE = Closure("gpu-1", Side.KUBERNETES, MARK)
HANDOFF = Handoff(
    "h1", "lease0001", "gpu-1", Side.KUBERNETES, Side.SLURM, Step.EMPTY, "", "", 17, "nonce", True, NOW, NOW, NOW
)
CLOSED = KubeNode(
    "gpu-1.testbed",
    "uid-1",
    ready=True,
    cordoned=False,
    gpus_allocatable=8,
    spec=LoanSpec("gpu-1.testbed", Owner.BRIDGE, MARK, 8),
    status=LoanStatus(observed=MARK, closed=True, empty_nonce="nonce", node_uid="uid-1"),
)


def kube(node: KubeNode, *, closure: Closure | None = KUBE_CLOSURE, alive: bool = True) -> SideFacts:
    seen = KubeObservation(NOW, {node.name: node}, controller_alive=alive)
    return kube_facts(NODE, LEASE, closure, HANDOFF, seen)


class TestKubernetes:
    def test_closed_and_proved_empty(self) -> None:
        facts = kube(CLOSED)
        assert facts.closed
        assert facts.empty

    @pytest.mark.parametrize(
        "changed",
        [
            replace(CLOSED, status=replace(CLOSED.status, empty_nonce="an older one")),
            replace(CLOSED, status=replace(CLOSED.status, node_uid="of another Node")),
            replace(CLOSED, status=replace(CLOSED.status, observed=Mark("lease0001", 3, 16))),
            replace(CLOSED, status=replace(CLOSED.status, closed=False)),
            replace(CLOSED, ready=False),  # K2
        ],
    )
    def test_a_proof_is_for_this_nonce_this_node_this_mark_and_a_live_kubelet(self, changed: KubeNode) -> None:
        facts = kube(changed)
        assert not facts.empty
        assert facts.blockers

    def test_a_stale_controller_makes_it_unknown(self) -> None:
        assert kube(CLOSED, alive=False).unknown

    def test_open_and_ready(self) -> None:
        node = replace(
            CLOSED, status=LoanStatus(observed=MARK, open=True), spec=replace(CLOSED.spec, owner=Owner.KUBERNETES)
        )  # type: ignore[type-var]
        facts = kube(node, closure=None)
        assert facts.opened
        assert facts.ready
        assert (
            kube(replace(node, gpus_allocatable=0), closure=None).not_ready == "the kubelet offers 0 of 8 GPUs"
        )  # K10
        assert kube(replace(node, cordoned=True), closure=None).foreign == "cordoned"

    def test_a_loan_newer_than_the_ledger_is_a_stray_mark(self) -> None:
        newer = replace(CLOSED, spec=LoanSpec("gpu-1.testbed", Owner.KUBERNETES, Mark("other0001", 4, 99), 8))
        assert kube(newer).stray_mark == Mark("other0001", 4, 99)


class TestDevices:
    def facts(self, inspection: Inspection | None) -> tuple[bool, tuple[str, ...]]:
        seen = KubeObservation(NOW, {CLOSED.name: replace(CLOSED, inspection=inspection)})
        found = device_facts(NODE, HANDOFF, seen)
        return found.clean, found.blockers

    def test_clean_only_for_this_nonce(self) -> None:
        assert self.facts(Inspection("nonce")) == (True, ())
        assert self.facts(Inspection("older"))[0] is False
        assert self.facts(None)[0] is False

    def test_a_holder_is_named(self) -> None:
        holder = DeviceHolder(4711, "python", "alice", "/dev/nvidia0")
        assert self.facts(Inspection("nonce", (holder,))) == (
            False,
            ("process 4711 (python, alice) holds /dev/nvidia0",),
        )

    def test_an_inspector_that_could_not_look_proves_nothing(self) -> None:
        assert self.facts(Inspection("nonce", error="permission denied"))[0] is False
