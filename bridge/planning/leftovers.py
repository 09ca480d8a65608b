"""What remains of the bridge on both sides, for somebody who takes it out, and how each mark is removed. Pure.

There may be no broker and no ledger any more, so nothing here asks them: a mark is ours by its own words. That is a
drain reason or annotation that begins with a mark, a reservation, an admission rule or a role with our name, a label or
taint of our group. Two consequences, both on the side of saying too much:

- a mark does not tell any more who has the node. What closes a side is listed with what to see to first (`first`), as
  its removal may open the node to both schedulers;
- words that close nothing, such as the reason that Slurm keeps after a RESUME, are listed as well.

A part of a side that could not be read is UNKNOWN (``FailClosed``): it is in `unread`, and "nothing remains" is never
said of it. What no scheduler shows is in `ELSEWHERE`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bridge.model.ownership import Mark, Side
from bridge.model.slurm import SlurmJob, SlurmNode
from bridge.planning.drift import LEASE_TAINT

GROUP = "bridge.slurm-kube.io"
NAMESPACE = "slurm-kube-bridge"
RESERVATION_PREFIX = "bridge-"
PROLOG = "prolog_slurmctld_fence"
"""File name of our PrologSlurmctld."""

ELSEWHERE = (
    "brokers and Slurm agents that still run, on whatever host: stop them first, or what is removed comes back",
    "on slurmctld's host: job_submit.lua, the Prolog script, /etc/slurm-bridge, the Slurm agent's service and folder",
    "in Slurm's accounting: the broker's user (sacctmgr show user bridge)",
    "the ledger: its Postgres database, or the folder BRIDGE_DATA_DIR",
    "files with tokens: the broker's, the agent's, its Slurm token; the kubeconfig of a broker outside the cluster",
)
"""Where no side can be asked."""

_ALLOW = f"{GROUP}/allow-deletion=true"
_IDS_A_COMMAND = 100
_FIRST_SLURM = "this opens the node to Slurm's jobs: see first that no pod runs there and none can start"
_FIRST_KUBERNETES = "this opens the node to pods: see first that no Slurm job runs there and none can start"


class LeftoverKind(StrEnum):
    """In the order in which they are best removed, Slurm's first."""

    PROLOG = "prolog"
    """slurm.conf calls our PrologSlurmctld."""
    FILE = "file"
    """A file of the Slurm agent, on this host."""
    JOB_TAG = "job_tag"
    """Jobs with our ``admin_comment``. It goes with them."""
    REASON = "reason"
    """A drain reason of ours that outlived its drain: words, no more."""
    DRAIN = "drain"
    RESERVATION = "reservation"
    NAMESPACE = "namespace"
    """Our namespace with all that is in it; first of Kubernetes', as the node controller there puts marks back."""
    ADMISSION = "admission"
    RESOURCE = "resource"
    """An object of one of our custom resources."""
    DEFINITION = "definition"
    """A custom resource definition."""
    RIGHTS = "rights"
    """A cluster role or its binding, a priority class."""
    FINALIZER = "finalizer"
    TAINT = "taint"
    ANNOTATION = "annotation"
    LABEL = "label"


_ORDER = {kind: place for place, kind in enumerate(LeftoverKind)}


@dataclass(frozen=True, slots=True)
class Leftover:
    """One mark. `name` is the side's own, `stands` what is there, `command` what removes it.

    `first` is what to see to before, empty where the removal opens nothing.
    """

    side: Side
    kind: LeftoverKind
    name: str
    stands: str
    command: str
    first: str = ""


@dataclass(frozen=True, slots=True)
class SlurmMarks:
    """What was read of Slurm: `reservations` with our prefix and their nodes, `configuration` as slurmctld has it.

    `files` are those of the Slurm agent on this host. `unread`: the parts that are UNKNOWN, each with its reason.
    """

    nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    reservations: Mapping[str, frozenset[str]] = field(default_factory=dict)
    jobs: tuple[SlurmJob, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KubeObject:
    """One object as far as it can carry a mark. `resource` is its plural as kubectl takes it.

    `taint` is the value of our taint, None without. `says` is a word about what is in it.
    """

    resource: str
    name: str
    namespace: str = ""
    labels: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()
    finalizers: tuple[str, ...] = ()
    taint: str | None = None
    says: str = ""


@dataclass(frozen=True, slots=True)
class KubeMarks:
    """What was read of Kubernetes. `unread`: the parts that are UNKNOWN, each with its reason."""

    objects: tuple[KubeObject, ...] = ()
    unread: tuple[str, ...] = ()


def leftovers(slurm: SlurmMarks, kubernetes: KubeMarks) -> tuple[Leftover, ...]:
    """All marks that were read, in the order in which they are best removed."""
    found = [*_slurm(slurm), *(each for one in kubernetes.objects for each in _kubernetes(one))]
    return tuple(sorted(found, key=lambda each: (_ORDER[each.kind], each.name)))


def commands(found: Iterable[Leftover]) -> dict[str, str]:
    """Each command once, in order, with what to see to first (or empty): many marks go by one of them."""
    once: dict[str, str] = {}
    for each in found:
        once.setdefault(each.command, each.first)
    return once


# --- Slurm ---


def _slurm(marks: SlurmMarks) -> Iterator[Leftover]:
    for name, value in marks.configuration.items():
        if name.startswith("PrologSlurmctld") and value.rpartition("/")[2] == PROLOG:
            take_out = f"take PrologSlurmctld={value} out of slurm.conf, then: scontrol reconfigure"
            yield Leftover(Side.SLURM, LeftoverKind.PROLOG, name, value, take_out)
    for path in marks.files:
        yield Leftover(Side.SLURM, LeftoverKind.FILE, path, "kept fresh by the Slurm agent", f"rm {path}")
    tagged = sorted(job.id for job in marks.jobs if is_tagged(job.admin_comment))
    for start in range(0, len(tagged), _IDS_A_COMMAND):
        ids = ",".join(map(str, tagged[start : start + _IDS_A_COMMAND]))
        command = f"scontrol update JobId={ids} AdminComment="
        yield Leftover(Side.SLURM, LeftoverKind.JOB_TAG, f"job {ids}", "our admin_comment, until it ends", command)
    for node in marks.nodes.values():
        if Mark.parse(node.reason) is not None:
            yield _reason(node)
    for name, nodes in marks.reservations.items():
        stands = f"keeps jobs off {', '.join(sorted(nodes)) or 'no node'}"
        delete = f"scontrol delete ReservationName={name}"
        yield Leftover(Side.SLURM, LeftoverKind.RESERVATION, name, stands, delete, _FIRST_SLURM if nodes else "")


def _reason(node: SlurmNode) -> Leftover:
    by = f" (by {node.reason_user})" if node.reason_user else ""
    if "DRAIN" in node.states:
        resume = f"scontrol update NodeName={node.name} State=RESUME"
        return Leftover(Side.SLURM, LeftoverKind.DRAIN, node.name, f"{node.reason}{by}", resume, _FIRST_SLURM)
    stands = f"reason of a drain that is over: {node.reason}{by}"
    return Leftover(Side.SLURM, LeftoverKind.REASON, node.name, stands, f"scontrol update NodeName={node.name} Reason=")


def is_tagged(admin_comment: str) -> bool:
    """Whether our job_submit.lua wrote it: a JSON object with a key of ours."""
    if not admin_comment.startswith("{"):
        return False
    try:
        said = json.loads(admin_comment)
    except ValueError:
        return False
    return isinstance(said, dict) and "bridge" in said


# --- Kubernetes ---

_DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
_ADMISSION = frozenset(
    f"{plural}.admissionregistration.k8s.io"
    for plural in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
)
_RIGHTS = frozenset(
    (
        "clusterroles.rbac.authorization.k8s.io",
        "clusterrolebindings.rbac.authorization.k8s.io",
        "priorityclasses.scheduling.k8s.io",
    )
)
_PROTECTED = frozenset((f"nodeloans.{GROUP}", f"nodefences.{GROUP}", f"servingpools.{GROUP}"))
"""Admission refuses their deletion without the annotation."""


def _kubernetes(found: KubeObject) -> Iterator[Leftover]:
    whole = _whole(found)
    if whole is not None:
        yield whole
    if found.taint is not None:
        untaint = f"kubectl taint node {found.name} {LEASE_TAINT}-"
        yield _about(found, LeftoverKind.TAINT, f"tainted with lease {found.taint}", untaint, _FIRST_KUBERNETES)
    for finalizer in found.finalizers:
        if _is_ours(finalizer):
            patch = f'kubectl patch {_named(found)} --type merge -p \'{{"metadata":{{"finalizers":null}}}}\''
            yield _about(found, LeftoverKind.FINALIZER, finalizer, patch)
    if whole is not None:
        return  # its labels and annotations go with it
    for kind, verb, keys in (
        (LeftoverKind.ANNOTATION, "annotate", found.annotations),
        (LeftoverKind.LABEL, "label", found.labels),
    ):
        for key in sorted(filter(_is_ours, keys)):
            yield _about(found, kind, key, f"kubectl {verb} {_named(found)} {key}-")


def _whole(found: KubeObject) -> Leftover | None:
    """The object itself, when it is one of the bridge's own."""
    resource, name = found.resource, found.name
    if NAMESPACE in (found.namespace, name if resource == "namespaces" else ""):
        return _about(found, LeftoverKind.NAMESPACE, found.says, f"kubectl delete namespace {NAMESPACE}")
    if resource.endswith(f".{GROUP}"):
        allow = f"kubectl annotate {resource} --all {_ALLOW} && " if resource in _PROTECTED else ""
        return _about(found, LeftoverKind.RESOURCE, found.says, f"{allow}kubectl delete {resource} --all")
    if resource == _DEFINITIONS and name.endswith(f".{GROUP}"):
        delete = f"kubectl annotate crd {name} {_ALLOW} && kubectl delete crd {name}"
        return _about(found, LeftoverKind.DEFINITION, found.says, delete)
    if resource not in _ADMISSION | _RIGHTS or not (name == NAMESPACE or name.startswith(f"{NAMESPACE}-")):
        return None
    kind = LeftoverKind.ADMISSION if resource in _ADMISSION else LeftoverKind.RIGHTS
    return _about(found, kind, found.says, f"kubectl delete {resource} {name}")


def _about(found: KubeObject, kind: LeftoverKind, stands: str, command: str, first: str = "") -> Leftover:
    plural = found.resource.partition(".")[0]
    place = f"{found.namespace}/{found.name}" if found.namespace else found.name
    return Leftover(Side.KUBERNETES, kind, f"{plural} {place}", stands, command, first)


def _named(found: KubeObject) -> str:
    namespace = f"-n {found.namespace} " if found.namespace else ""
    return f"{namespace}{found.resource} {found.name}"


def _is_ours(key: str) -> bool:
    return key.partition("/")[0] == GROUP
