"""What counts as a mark of the bridge, what removes it, and in which order."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bridge.kube import names
from bridge.model.ownership import Side
from bridge.model.slurm import SlurmJob, SlurmNode
from bridge.planning import leftovers as core
from bridge.planning.leftovers import KubeMarks, KubeObject, Leftover, LeftoverKind, SlurmMarks, commands, leftovers
from bridge.slurm import rest

MARK = "bridge:k3f9q2m8x1:4:17"
SET_AT = datetime(2026, 12, 2, 9, tzinfo=UTC)


def node(name: str, *states: str, reason: str = "") -> SlurmNode:
    return SlurmNode(name, frozenset(states or ("IDLE",)), 8, reason=reason, reason_user="bridge", reason_set_at=SET_AT)


def job(id: int, admin_comment: str) -> SlurmJob:
    return SlurmJob(id, "PENDING", "alice", "research", "shared", admin_comment=admin_comment)


def slurm(*nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = (), **more: object) -> list[tuple[str, str, str]]:
    """(kind, name, command) of all that remains in a Slurm with these nodes."""
    marks = SlurmMarks(nodes={each.name: each for each in nodes}, jobs=jobs, **more)  # type: ignore[arg-type]
    return shown(leftovers(marks, KubeMarks()))


def kubernetes(*objects: KubeObject) -> list[tuple[str, str, str]]:
    return shown(leftovers(SlurmMarks(), KubeMarks(objects)))


def shown(found: tuple[Leftover, ...]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.name, each.command) for each in found]


def test_the_names_are_those_of_the_drivers() -> None:
    assert (core.GROUP, core.NAMESPACE) == (names.GROUP, names.NAMESPACE)
    assert core.RESERVATION_PREFIX == rest.OURS
    assert core.LEASE_TAINT.removesuffix(":NoSchedule") == names.TAINT


# --- Slurm ---


def test_our_drain_remains_and_a_persons_does_not() -> None:
    found = slurm(
        node("gpu-1", "IDLE", "DRAIN", reason=f"{MARK} lent to kubernetes: chat waits : Not responding"),
        node("gpu-2", "IDLE", "DRAIN", reason="bad fan"),
        node("gpu-3", "IDLE", "DRAIN", reason=f"not a {MARK}"),
        node("gpu-4"),
    )
    assert found == [("drain", "gpu-1", "scontrol update NodeName=gpu-1 State=RESUME")]


def test_a_reason_that_outlived_its_drain_is_words_and_is_said_to_be() -> None:
    (found,) = leftovers(SlurmMarks(nodes={"gpu-1": node("gpu-1", reason=f"{MARK} lent")}), KubeMarks())
    assert found.kind is LeftoverKind.REASON
    assert found.stands == f"reason of a drain that is over: {MARK} lent (by bridge)"
    assert found.command == "scontrol update NodeName=gpu-1 Reason="
    assert found.first == ""


def test_a_reservation_is_deleted_whole() -> None:
    (found,) = leftovers(SlurmMarks(reservations={"bridge-h100": frozenset({"gpu-2", "gpu-1"})}), KubeMarks())
    assert (found.name, found.stands) == ("bridge-h100", "keeps jobs off gpu-1, gpu-2")
    assert found.command == "scontrol delete ReservationName=bridge-h100"


TAGS = {
    '{"bridge":{"pool":"h100","nodes":4,"gpus_per_node":8}}': True,
    '{"bridge": {"checkpoint_s": 600}, "of_the_site": 1}': True,
    '{"of_the_site": "bridge"}': False,
    "bridge: by hand": False,
    '{"bridge"': False,
    "[1]": False,
    "": False,
}


@pytest.mark.parametrize(("comment", "ours"), TAGS.items(), ids=list(TAGS))
def test_a_tag_is_ours_by_its_key(comment: str, ours: bool) -> None:
    assert slurm(jobs=(job(17, comment),)) == (
        [("job_tag", "job 17", "scontrol update JobId=17 AdminComment=")] if ours else []
    )


def test_many_tags_are_few_commands() -> None:
    found = slurm(jobs=tuple(job(id, '{"bridge":{}}') for id in range(250, 0, -1)))
    assert [command.count(",") + 1 for _, _, command in found] == [100, 100, 50]
    assert found[0][2].startswith("scontrol update JobId=1,2,3,")


CALLS = {
    "/usr/lib/slurm-bridge/prolog_slurmctld_fence": True,
    "prolog_slurmctld_fence": True,
    "/etc/slurm/prolog_of_the_site": False,
    "(null)": False,
}


@pytest.mark.parametrize(("value", "ours"), CALLS.items(), ids=list(CALLS))
@pytest.mark.parametrize("setting", ["PrologSlurmctld", "PrologSlurmctld[1]"])
def test_our_prolog_is_known_by_its_file(setting: str, value: str, ours: bool) -> None:
    found = slurm(configuration={"Epilog": "prolog_slurmctld_fence", setting: value})
    assert [(kind, name) for kind, name, _ in found] == ([("prolog", setting)] if ours else [])


# --- Kubernetes ---

GROUP = names.GROUP
OURS = {
    "namespace": (
        KubeObject("namespaces", "slurm-kube-bridge", labels=frozenset({names.INFRASTRUCTURE})),
        ("namespace", "namespaces slurm-kube-bridge", "kubectl delete namespace slurm-kube-bridge"),
    ),
    "lease": (
        KubeObject("leases.coordination.k8s.io", "node-controller", "slurm-kube-bridge"),
        ("namespace", "leases slurm-kube-bridge/node-controller", "kubectl delete namespace slurm-kube-bridge"),
    ),
    "policy": (
        KubeObject("validatingadmissionpolicies.admissionregistration.k8s.io", "slurm-kube-bridge-fence-bind"),
        (
            "admission",
            "validatingadmissionpolicies slurm-kube-bridge-fence-bind",
            "kubectl delete validatingadmissionpolicies.admissionregistration.k8s.io slurm-kube-bridge-fence-bind",
        ),
    ),
    "loan": (
        KubeObject(f"nodeloans.{GROUP}", "gpu-1.testbed"),
        (
            "resource",
            "nodeloans gpu-1.testbed",
            f"kubectl annotate nodeloans.{GROUP} --all {GROUP}/allow-deletion=true && "
            f"kubectl delete nodeloans.{GROUP} --all",
        ),
    ),
    "inspection": (
        KubeObject(f"nodeinspections.{GROUP}", "gpu-1.testbed"),
        ("resource", "nodeinspections gpu-1.testbed", f"kubectl delete nodeinspections.{GROUP} --all"),
    ),
    "definition": (
        KubeObject("customresourcedefinitions.apiextensions.k8s.io", f"nodeloans.{GROUP}"),
        (
            "definition",
            f"customresourcedefinitions nodeloans.{GROUP}",
            f"kubectl annotate crd nodeloans.{GROUP} {GROUP}/allow-deletion=true && "
            f"kubectl delete crd nodeloans.{GROUP}",
        ),
    ),
    "role": (
        KubeObject("clusterroles.rbac.authorization.k8s.io", "slurm-kube-bridge-broker"),
        (
            "rights",
            "clusterroles slurm-kube-bridge-broker",
            "kubectl delete clusterroles.rbac.authorization.k8s.io slurm-kube-bridge-broker",
        ),
    ),
    "priority class": (
        KubeObject("priorityclasses.scheduling.k8s.io", "slurm-kube-bridge"),
        (
            "rights",
            "priorityclasses slurm-kube-bridge",
            "kubectl delete priorityclasses.scheduling.k8s.io slurm-kube-bridge",
        ),
    ),
    "finalizer": (
        KubeObject("pods", "model-0", "web", finalizers=(f"{GROUP}/wait", "example.org/other")),
        (
            "finalizer",
            "pods web/model-0",
            'kubectl patch -n web pods model-0 --type merge -p \'{"metadata":{"finalizers":null}}\'',
        ),
    ),
    "taint": (
        KubeObject("nodes", "gpu-1.testbed", taint="k3f9q2m8x1"),
        ("taint", "nodes gpu-1.testbed", f"kubectl taint node gpu-1.testbed {GROUP}/lease:NoSchedule-"),
    ),
    "annotation": (
        KubeObject("nodes", "gpu-1.testbed", annotations=frozenset({names.MARK, "example.org/mark"})),
        ("annotation", "nodes gpu-1.testbed", f"kubectl annotate nodes gpu-1.testbed {GROUP}/mark-"),
    ),
    "annotation of a pod": (
        KubeObject("pods", "model-0", "web", annotations=frozenset({names.EVICT})),
        ("annotation", "pods web/model-0", f"kubectl annotate -n web pods model-0 {GROUP}/evict-"),
    ),
    "label": (
        KubeObject("namespaces", "kube-system", labels=frozenset({names.INFRASTRUCTURE, "team"})),
        ("label", "namespaces kube-system", f"kubectl label namespaces kube-system {GROUP}/infrastructure-"),
    ),
}


@pytest.mark.parametrize(("standing", "found"), OURS.values(), ids=list(OURS))
def test_what_is_ours(standing: KubeObject, found: tuple[str, str, str]) -> None:
    assert kubernetes(standing) == [found]


THEIRS = (
    KubeObject("nodes", "gpu-1.testbed", labels=frozenset({"pool"}), annotations=frozenset({f"x.{GROUP}/mark"})),
    KubeObject("namespaces", "web"),
    KubeObject("customresourcedefinitions.apiextensions.k8s.io", "queues.kueue.x-k8s.io"),
    KubeObject("clusterroles.rbac.authorization.k8s.io", "slurm-kube-bridges-of-others"),
    KubeObject("clusterroles.rbac.authorization.k8s.io", "admin", finalizers=("example.org/other",)),
    KubeObject("pods", "slurm-kube-bridge-test", "web"),
)


@pytest.mark.parametrize("standing", THEIRS, ids=lambda each: f"{each.resource.partition('.')[0]} {each.name}")
def test_what_is_not(standing: KubeObject) -> None:
    assert kubernetes(standing) == []


# --- both ---


def test_the_order_is_one_in_which_nothing_comes_back_or_blocks() -> None:
    """Who puts marks back goes before the marks, objects go before their definition."""
    kinds = [kind for kind, _, _ in kubernetes(*(standing for standing, _ in reversed(OURS.values())))]
    assert kinds == [found[0] for _, found in OURS.values()]


def test_each_command_is_said_once_with_what_to_see_to_first() -> None:
    found = leftovers(
        SlurmMarks(nodes={"gpu-1": node("gpu-1", "IDLE", "DRAIN", reason=MARK)}),
        KubeMarks((*(KubeObject(f"nodeinspections.{GROUP}", f"gpu-{i}") for i in range(9)), OURS["taint"][0])),
    )
    assert len(found) == 11
    assert [(command.split()[0:2], bool(first)) for command, first in commands(found).items()] == [
        (["scontrol", "update"], True),
        (["kubectl", "delete"], False),
        (["kubectl", "taint"], True),
    ]


def test_what_opens_a_side_says_which() -> None:
    found = leftovers(
        SlurmMarks(
            nodes={"gpu-1": node("gpu-1", "IDLE", "DRAIN", reason=MARK)},
            reservations={"bridge-h100": frozenset({"gpu-1"})},
        ),
        KubeMarks((OURS["taint"][0],)),
    )
    assert {(each.side, "pod runs" in each.first, "Slurm job runs" in each.first) for each in found} == {
        (Side.SLURM, True, False),
        (Side.KUBERNETES, False, True),
    }
