"""Where world and ledger disagree: every kind of finding, by hand-made observations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bridge.model.errors import Unreadable
from bridge.model.handoff import Handoff, Step
from bridge.model.kube import KubeNode, KubeObservation, LoanSpec, LoanStatus
from bridge.model.ledger import LedgerState, NodeRecord
from bridge.model.ownership import Closure, Lease, Mark, Node, Owner, Side
from bridge.model.policy import Policy
from bridge.model.slurm import SlurmNode, SlurmObservation
from bridge.planning.drift import DriftKind, Finding, drift, meaning
from bridge.reconciler.look import World, sights

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
SET_AT = NOW - timedelta(minutes=5)
POLICY = Policy.model_validate(
    {"pools": [{"name": "h100", "nodes": ["gpu-[1-2]"], "kube_name": "{node}.testbed", "partition": "gpu"}]}
)
LENT = Mark("lease0001", 3, 17)
HOME = Mark("lease0002", 3, 18)
OLD, NEW = Mark("lease0000", 3, 4), Mark("lease0009", 4, 1)


def drained(name: str, mark: Mark | str, *, gpus: int = 8) -> SlurmNode:
    return SlurmNode(
        name,
        frozenset({"IDLE", "DRAIN"}),
        gpus,
        reason=f"{mark} lent",
        reason_user="bridge",
        reason_set_at=SET_AT,
        partitions=frozenset({"gpu"}),
    )


def idle(name: str, *, gpus: int = 8) -> SlurmNode:
    return SlurmNode(name, frozenset({"IDLE"}), gpus, partitions=frozenset({"gpu"}))


def kube(name: str, owner: Owner, mark: Mark, *, uid: str = "uid-1") -> KubeNode:
    opened = owner is Owner.KUBERNETES
    status = LoanStatus(observed=mark, closed=not opened, open=opened, node_uid=uid)
    taint = "" if opened else mark.lease
    return KubeNode(name, uid, True, False, 8, spec=LoanSpec(name, owner, mark, 8), status=status, taint=taint)


class Site:
    """gpu-1 is lent to Kubernetes, gpu-2 is Slurm's, and all agree: a test changes what it is about."""

    def __init__(self) -> None:
        self.state = LedgerState(
            policy=POLICY,
            nodes={name: NodeRecord(Node(name, name, f"{name}.testbed", "h100", 8)) for name in ("gpu-1", "gpu-2")},
            leases={
                "gpu-1": Lease(LENT.lease, "gpu-1", Owner.KUBERNETES, LENT.epoch, LENT.generation, SET_AT),
                "gpu-2": Lease(HOME.lease, "gpu-2", Owner.SLURM, HOME.epoch, HOME.generation, SET_AT),
            },
            closures={
                ("gpu-1", Side.SLURM): Closure("gpu-1", Side.SLURM, LENT, "bridge", SET_AT),
                ("gpu-2", Side.KUBERNETES): Closure("gpu-2", Side.KUBERNETES, HOME),
            },
        )
        self.slurm: SlurmObservation | Unreadable = SlurmObservation(
            NOW, {"gpu-1": drained("gpu-1", LENT), "gpu-2": idle("gpu-2")}, held=frozenset({"gpu-1"})
        )
        self.kube: KubeObservation | Unreadable = KubeObservation(
            NOW,
            {
                "gpu-1.testbed": kube("gpu-1.testbed", Owner.KUBERNETES, LENT),
                "gpu-2.testbed": kube("gpu-2.testbed", Owner.SLURM, HOME),
            },
        )

    def in_slurm(self, *nodes: SlurmNode, held: tuple[str, ...] = ("gpu-1",), gone: tuple[str, ...] = ()) -> Site:
        assert isinstance(self.slurm, SlurmObservation)
        shown = {**self.slurm.nodes, **{node.name: node for node in nodes}}
        kept = {name: node for name, node in shown.items() if name not in gone}
        self.slurm = replace(self.slurm, nodes=kept, held=frozenset(held))
        return self

    def in_kube(self, *nodes: KubeNode, gone: tuple[str, ...] = (), **more: object) -> Site:
        assert isinstance(self.kube, KubeObservation)
        shown = {**self.kube.nodes, **{node.name: node for node in nodes}}
        kept = {name: node for name, node in shown.items() if name not in gone}
        self.kube = replace(self.kube, nodes=kept, **more)  # type: ignore[arg-type]
        return self

    def moving(self, node: str, source: Side, step: Step) -> Site:
        lease = replace(self.state.leases[node], owner=Owner.BRIDGE, handoff="h1")
        handoff = Handoff(
            "h1", lease.id, node, source, source.other, step, "", "x", 1, "n", False, NOW, NOW, NOW + timedelta(hours=1)
        )
        self.state = replace(
            self.state, leases={**self.state.leases, node: lease}, handoffs={**self.state.handoffs, node: handoff}
        )
        return self

    def without_lease(self, node: str) -> Site:
        leases = {name: lease for name, lease in self.state.leases.items() if name != node}
        closures = {key: closure for key, closure in self.state.closures.items() if key[0] != node}
        self.state = replace(self.state, leases=leases, closures=closures)
        return self

    def findings(self) -> tuple[Finding, ...]:
        seen = sights(self.state, World(self.slurm, self.kube), settle_s=5)
        read_slurm = None if isinstance(self.slurm, Unreadable) else self.slurm
        read_kube = None if isinstance(self.kube, Unreadable) else self.kube
        return drift(self.state, seen, read_slurm, read_kube)

    def the_finding(self) -> Finding:
        (found,) = self.findings()
        return found


GPU_1, GPU_2 = "gpu-1.testbed", "gpu-2.testbed"


def test_nothing_is_found_where_all_agree() -> None:
    assert Site().findings() == ()


# --- marks that are missing ---


@pytest.mark.parametrize(
    ("node", "held", "stands"),
    [
        (idle("gpu-1"), ("gpu-1",), "our drain is not there"),
        (drained("gpu-1", LENT), (), "our reservation is not there"),
        (idle("gpu-1"), (), "our drain and reservation are not there"),
    ],
)
def test_a_missing_latch_of_slurm(node: SlurmNode, held: tuple[str, ...], stands: str) -> None:
    found = Site().in_slurm(node, held=held).the_finding()
    assert found == Finding(
        DriftKind.MARK_MISSING,
        Side.SLURM,
        "gpu-1",
        "gpu-1",
        stands,
        f"closed to Slurm with {LENT}",
        "sets it again at once",
    )


def test_a_persons_drain_is_as_good_as_ours() -> None:
    assert Site().in_slurm(drained("gpu-1", "fan broken")).findings() == ()


@pytest.mark.parametrize("step", [Step.CLOSE, Step.EMPTY])
def test_a_latch_that_is_only_being_set_is_not_missing(step: Step) -> None:
    site = Site().in_slurm(idle("gpu-1"), held=()).moving("gpu-1", Side.SLURM, step)
    assert [found.kind for found in site.findings() if found.side is Side.SLURM] == (
        [] if step is Step.CLOSE else [DriftKind.MARK_MISSING]
    )


@pytest.mark.parametrize(
    ("change", "stands"),
    [
        ({"spec": None, "status": LoanStatus(), "taint": ""}, "its NodeLoan is not there"),
        ({"spec": LoanSpec(GPU_2, Owner.SLURM, OLD, 8)}, f"its NodeLoan carries the older {OLD}"),
        ({"spec": LoanSpec(GPU_2, Owner.KUBERNETES, HOME, 8)}, "its NodeLoan says that it is kubernetes's"),
        (
            {"status": LoanStatus(observed=HOME, blockers=("the cloud keeps taking it off",))},
            "our taint or fence entry is not there; the cloud keeps taking it off",
        ),
    ],
)
def test_a_missing_latch_of_kubernetes(change: dict[str, object], stands: str) -> None:
    node = replace(kube(GPU_2, Owner.SLURM, HOME), **change)  # type: ignore[arg-type]
    found = Site().in_kube(node).the_finding()
    assert (found.kind, found.node, found.name, found.stands) == (DriftKind.MARK_MISSING, "gpu-2", GPU_2, stands)
    assert (found.does, found.command) == ("sets it again at once", "")


def test_a_loan_that_is_not_answered_yet_is_not_missing() -> None:
    node = replace(kube(GPU_2, Owner.SLURM, HOME), status=LoanStatus(observed=OLD, closed=True))
    assert Site().in_kube(node).findings() == ()


def test_a_missing_loan_of_a_lent_node_is_written_again_behind_a_closed_slurm() -> None:
    node = replace(kube(GPU_1, Owner.KUBERNETES, LENT), spec=None, status=LoanStatus())
    found = Site().in_kube(node).the_finding()
    assert (found.kind, found.does) == (
        DriftKind.MARK_MISSING,
        "writes it again once Slurm is read back as closed",
    )


# --- marks of ours that the ledger does not know ---


def test_an_older_drain_on_slurms_own_node_is_lifted() -> None:
    found = Site().in_slurm(drained("gpu-2", OLD)).the_finding()
    assert (found.kind, found.stands, found.since) == (DriftKind.UNKNOWN_DRAIN, f"drained with {OLD}", SET_AT)
    assert found.does.startswith("lifts it, as it is older than the live lease")
    assert found.command == ""


def test_an_older_drain_on_a_lent_node_is_overwritten() -> None:
    found = Site().in_slurm(drained("gpu-1", OLD)).the_finding()
    assert (found.kind, found.does) == (
        DriftKind.UNKNOWN_DRAIN,
        "writes the present mark over it, as it is older than the live lease",
    )


@pytest.mark.parametrize("node", ["gpu-1", "gpu-2"])
def test_a_newer_drain_is_left_to_a_person(node: str) -> None:
    found = Site().in_slurm(drained(node, NEW)).the_finding()
    assert found.does.startswith("nothing: it is not older than all that the ledger knows")
    assert found.command == f"scontrol update NodeName={node} State=RESUME"


def test_a_drain_on_a_node_that_is_not_adopted_yet() -> None:
    found = Site().in_slurm(drained("gpu-1", NEW)).without_lease("gpu-1").findings()
    assert [each.kind for each in found] == [DriftKind.UNKNOWN_LOAN, DriftKind.UNKNOWN_DRAIN]
    assert {each.does for each in found} == {
        "takes the node in as nobody's: closed on both sides until a person or a proof says otherwise"
    }


def test_a_drain_and_a_hold_outside_the_inventory_are_never_touched() -> None:
    drain, hold = Site().in_slurm(drained("gpu-9", OLD), held=("gpu-1", "gpu-9")).findings()
    assert (drain.kind, drain.node, drain.name) == (DriftKind.UNKNOWN_DRAIN, "", "gpu-9")
    assert (hold.kind, hold.command) == (
        DriftKind.UNKNOWN_HOLD,
        "scontrol update ReservationName=bridge-h100 Nodes-=gpu-9",
    )
    assert drain.does == hold.does == "nothing: who owns a node outside the inventory is for a person to say"


def test_a_persons_drain_outside_the_inventory_is_no_drift() -> None:
    assert Site().in_slurm(drained("gpu-9", "not a bridge: problem")).findings() == ()


def test_a_node_of_slurm_inside_our_reservation() -> None:
    found = Site().in_slurm(held=("gpu-1", "gpu-2")).the_finding()
    assert (found.kind, found.node, found.command) == (DriftKind.UNKNOWN_HOLD, "gpu-2", "")


def test_a_newer_loan_is_left_to_a_person() -> None:
    found = Site().in_kube(kube(GPU_2, Owner.BRIDGE, NEW)).the_finding()
    assert (found.kind, found.stands) == (DriftKind.UNKNOWN_LOAN, f"its NodeLoan carries {NEW}")
    assert found.command.endswith(f"kubectl delete nodeloan {GPU_2}")


@pytest.mark.parametrize(
    ("owner", "says", "command"),
    [
        (Owner.SLURM, "closed to", "kubectl patch nodeloan gpu-9.testbed"),
        (Owner.KUBERNETES, "open for", "kubectl annotate nodeloan gpu-9.testbed"),
    ],
)
def test_a_loan_of_a_node_that_left_the_inventory(owner: Owner, says: str, command: str) -> None:
    found = Site().in_kube(kube("gpu-9.testbed", owner, OLD)).the_finding()
    assert (found.kind, found.stands) == (
        DriftKind.UNKNOWN_LOAN,
        f"a NodeLoan with {OLD} keeps it {says} Kubernetes",
    )
    assert found.command.startswith(command)


def test_a_loan_of_a_node_that_is_not_there() -> None:
    loans = {"gpu-9.testbed": LoanSpec("gpu-9.testbed", Owner.SLURM, OLD, 8)}
    found = Site().in_kube(loans_elsewhere=loans).the_finding()
    assert "not there" in found.stands
    assert found.command.endswith("kubectl delete nodeloan gpu-9.testbed")


def test_taints_of_ours_that_nobody_knows() -> None:
    inside = replace(kube(GPU_1, Owner.KUBERNETES, LENT), taint="lease0777")
    outside = KubeNode("gpu-9.testbed", "uid-9", True, False, 8, taint="lease0888")
    found = Site().in_kube(inside, outside).findings()
    assert [(each.kind, each.name, each.stands) for each in found] == [
        (DriftKind.UNKNOWN_TAINT, GPU_1, "tainted with lease lease0777"),
        (DriftKind.UNKNOWN_TAINT, "gpu-9.testbed", "tainted with lease lease0888"),
    ]
    assert {each.command.split()[-1] for each in found} == {"bridge.slurm-kube.io/lease:NoSchedule-"}


# --- nodes that come, go and change ---


def test_a_node_that_a_side_does_not_list() -> None:
    site = Site().in_slurm(gone=("gpu-2",)).in_kube(gone=(GPU_2,)).moving("gpu-2", Side.KUBERNETES, Step.EMPTY)
    found = site.findings()
    assert [(each.kind, each.side, each.name) for each in found] == [
        (DriftKind.VANISHED, Side.KUBERNETES, GPU_2),
        (DriftKind.VANISHED, Side.SLURM, "gpu-2"),
    ]
    assert {each.does for each in found} == {
        "nothing: what is not listed is UNKNOWN, so it does not move, and its handoff waits in step empty"
    }


def test_a_node_whose_other_name_is_longer() -> None:
    """B7: the inventory maps gpu-1 to gpu-1.testbed, and Kubernetes calls it gpu-1.example.internal."""
    stranger = KubeNode("gpu-1.example.internal", "uid-1", True, False, 8)
    found = Site().in_kube(stranger, gone=(GPU_1,)).the_finding()
    assert (found.kind, found.node, found.name) == (DriftKind.MISNAMED, "gpu-1", GPU_1)
    assert found.stands == "Kubernetes does not list gpu-1.testbed, but gpu-1.example.internal, which no pool has"
    assert found.command == "set kube_name: '{node}.example.internal' of pool h100, then: bridgectl policy apply FILE"


@pytest.mark.parametrize("spelt", ["gpu-0001", "GPU_1", "gpu1"])
def test_a_node_that_slurm_spells_otherwise(spelt: str) -> None:
    found = Site().in_slurm(idle(spelt), held=(), gone=("gpu-1",)).the_finding()
    assert (found.kind, found.command) == (
        DriftKind.MISNAMED,
        f"write {spelt} for gpu-1 in nodes of pool h100, then: bridgectl policy apply FILE",
    )


def test_what_names_mean() -> None:
    alike = ["gpu-1", "gpu-0001", "GPU_01.example.org", "gpu1"]
    assert {meaning(name) for name in alike} == {"gpu1"}
    assert meaning("gpu-10") == "gpu10"
    assert meaning("gpu-100") != meaning("gpu-10")


def test_a_node_that_appeared_on_both_sides() -> None:
    found = Site().in_slurm(idle("gpu-3")).in_kube(KubeNode("gpu-3.testbed", "u", True, False, 8)).the_finding()
    assert (found.kind, found.node, found.name) == (DriftKind.APPEARED, "", "gpu-3")
    assert found.command == "add gpu-3 to pool h100, then: bridgectl policy apply FILE"


def test_a_node_on_one_side_only_is_nobodys_business() -> None:
    assert Site().in_slurm(idle("gpu-3")).findings() == ()
    assert Site().in_kube(KubeNode("gpu-3.testbed", "u", True, False, 8)).findings() == ()


@pytest.mark.parametrize(
    ("gpus", "does"), [(4, "does not count it as usable"), (16, "counts it with 8"), (0, None), (8, None)]
)
def test_a_changed_shape_on_either_side(gpus: int, does: str | None) -> None:
    in_slurm = Site().in_slurm(idle("gpu-2", gpus=gpus)).findings()
    in_kube = Site().in_kube(replace(kube(GPU_1, Owner.KUBERNETES, LENT), gpus_allocatable=gpus)).findings()
    for found, side in ((in_slurm, Side.SLURM), (in_kube, Side.KUBERNETES)):
        assert [(each.kind, each.side, each.does) for each in found] == (
            [(DriftKind.CHANGED_SHAPE, side, does)] if does else []
        )


def test_a_node_that_was_made_anew() -> None:
    found = Site().in_kube(replace(kube(GPU_2, Owner.SLURM, HOME), uid="uid-2")).the_finding()
    assert (found.kind, found.stands, found.known) == (
        DriftKind.REMADE,
        "the Node was made anew, its UID is uid-2",
        "answered for UID uid-1 last",
    )


# --- what cannot be read ---


@pytest.mark.parametrize("side", list(Side))
def test_a_side_that_is_unknown_has_no_findings_and_hides_none_of_the_other(side: Side) -> None:
    site = Site().in_slurm(gone=("gpu-2",)).in_kube(gone=(GPU_2,))
    if side is Side.SLURM:
        site.slurm = Unreadable("slurm", "refused")
    else:
        site.kube = Unreadable("kubernetes", "refused")
    assert [(each.kind, each.side) for each in site.findings()] == [(DriftKind.VANISHED, side.other)]


def test_a_stale_heartbeat_proves_no_mark_missing() -> None:
    node = replace(kube(GPU_2, Owner.SLURM, HOME), status=LoanStatus(observed=HOME))
    assert Site().in_kube(node, controller_alive=False).findings() == ()
