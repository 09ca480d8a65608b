"""What one observation proves about one side of a node.

``FailClosed``
    A side that was not read wholly and freshly is UNKNOWN: every fact about it is False and `unknown` says why, so that
    nothing moves and nothing is killed on it. A node state that we do not know counts as not empty and not ready.
``NotOurs``
    A drain is ours only if its reason starts with the exact mark of the ledger's closure and the user and time of
    setting are those that we read back when we set it. Any other drain is a person's (`foreign`). Slurm keeps the
    reason of a drain that was lifted, with its user and time, and shows it again when somebody drains the node over
    the API without a reason: such a drain is a person's too, known by the time that was seen while nothing was drained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bridge.model.errors import Unreadable
from bridge.model.handoff import Handoff
from bridge.model.kube import KubeNode, KubeObservation
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Closure, Lease, Mark, Node
from bridge.model.slurm import SlurmJob, SlurmNode, SlurmObservation

EMPTY_STATES = frozenset({"IDLE", "DRAIN", "MAINTENANCE", "RESERVED"})
"""The flags that a Slurm node may carry while it counts as empty; any other flag means work, or not knowing."""

READY_STATES = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED", "RESERVED", "CLOUD", "DYNAMIC_NORM"})
"""The flags that a Slurm node may carry while it counts as offered to jobs."""

INERT_JOB_STATES = frozenset(
    {
        "PENDING",
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        "REVOKED",
    }
)
"""Jobs in these states hold no node. Every other state, known to us or not, does."""


@dataclass(frozen=True, slots=True)
class SideFacts:
    """What is known of a node on one side. With `unknown` set, everything else is False or empty.

    `first_latch` / `second_latch`: our drain and our reservation, or our taint and our fence entry. `foreign`: a
    person's drain or cordon, in their words. `empty` is a proof, not a guess; `blockers` say why it is missing. `idle`
    is the weaker "no work here now", good enough to choose a node, never to open one. `planned`: nothing runs, and its
    own scheduler keeps the node for the head of its queue (Slurm's PLANNED). `answers`: the node itself is up. `works`:
    work of this side is seen on it, and so it is not opened to the other one, closed or not; a silent node neither
    works nor is idle. `opened`: neither latch of ours stands. `ready`: work can start here on all GPUs; `not_ready`
    says why not. `lifted_at`: nothing is drained, and the reason that still stands is that of a drain of ours which was
    set then. `jobs` are Slurm's jobs that hold the node, whatever their state.
    """

    unknown: str = ""
    first_latch: bool = False
    second_latch: bool = False
    foreign: str = ""
    empty: bool = False
    idle: bool = False
    planned: bool = False
    answers: bool = False
    works: bool = False
    blockers: tuple[str, ...] = ()
    opened: bool = False
    ready: bool = False
    not_ready: str = ""
    read_back: tuple[str, datetime | None] | None = None
    stray_mark: Mark | None = None
    lifted_at: datetime | None = None
    jobs: tuple[SlurmJob, ...] = ()

    @property
    def known(self) -> bool:
        return not self.unknown

    @property
    def free(self) -> bool:
        """No work here now: idle, or kept for the head of the side's own queue."""
        return self.idle or self.planned

    @property
    def closed(self) -> bool:
        """Nothing can start here: both latches stand (a person's drain is as good a first latch as ours)."""
        return self.second_latch and (self.first_latch or bool(self.foreign))


def jobs_by_node(seen: SlurmObservation) -> dict[str, list[SlurmJob]]:
    """The jobs that hold each node, by Slurm's name for it: made once a reading, as a queue is long."""
    found: dict[str, list[SlurmJob]] = {}
    for job in seen.jobs:
        if job.nodes and job.state not in INERT_JOB_STATES:
            for name in job.nodes:
                found.setdefault(name, []).append(job)
    return found


def slurm_facts(
    record: NodeRecord,
    lease: Lease | None,
    closure: Closure | None,
    seen: SlurmObservation | Unreadable,
    jobs: Sequence[SlurmJob],
    *,
    settle_s: float,
) -> SideFacts:
    """Facts of the Slurm side. `jobs` hold the node (`jobs_by_node`); `settle_s` is how long a restarted slurmctld is
    not believed about emptiness."""
    node = record.node
    if isinstance(seen, Unreadable):
        return SideFacts(unknown=str(seen))
    found = seen.nodes.get(node.slurm_name)
    if found is None:
        return SideFacts(unknown=f"slurmctld does not list node {node.slurm_name}")
    drained = "DRAIN" in found.states
    left = Mark.parse(found.reason)
    nameless = drained and left is not None and _is_nameless(found, left, record, lease, closure)
    mark = left if drained and not nameless else None
    ours = mark is not None and closure is not None and _is_our_drain(found, mark, closure)
    restamped = mark is not None and closure is not None and not ours and _is_restamped(found, mark, closure)
    stray = mark if mark is not None and not ours and not restamped else None
    foreign = _foreign_drain(found, nameless=nameless) if drained and mark is None else ""
    held = node.slurm_name in seen.held
    blockers = _slurm_blockers(found, jobs, seen, settle_s)
    not_ready = _slurm_not_ready(found, node)
    return SideFacts(
        first_latch=ours,
        second_latch=held,
        foreign=foreign,
        empty=held and drained and not blockers,
        idle=not jobs and found.states <= EMPTY_STATES,
        planned=not jobs and "PLANNED" in found.states and found.states - {"PLANNED"} <= EMPTY_STATES,
        answers=bool(found.states) and found.states <= EMPTY_STATES | READY_STATES,
        works=bool(jobs),
        blockers=blockers,
        opened=not ours and not restamped and not stray and not held,
        ready=not not_ready and not held,
        not_ready=not_ready or ("in the bridge's reservation" if held else ""),
        read_back=(found.reason_user, found.reason_set_at) if restamped or (ours and not _is_appended(found)) else None,
        stray_mark=stray,
        lifted_at=found.reason_set_at if left is not None and not drained else None,
        jobs=tuple(jobs),
    )


def _is_nameless(
    found: SlurmNode, left: Mark, record: NodeRecord, lease: Lease | None, closure: Closure | None
) -> bool:
    """Somebody drained the node without a reason, and Slurm shows that of a drain of ours (`left`) which was lifted.

    A drain of ours that arrives late has a time of its own. Where Slurm has appended its words, and with them a new
    time, to what stands on an open node, it must have stood there before: a late drain is lifted as soon as it is seen.
    """
    if record.lifted_drain_at is None or lease is None:
        return False
    if closure is None and left.token < lease.mark.token and _is_appended(found):
        return True
    return found.reason_set_at == record.lifted_drain_at


def _foreign_drain(found: SlurmNode, *, nameless: bool) -> str:
    if nameless:
        return "drained by somebody without a reason (Slurm still shows that of an earlier loan)"
    return f"drained by {found.reason_user or 'somebody'}: {found.reason}"


def _is_our_drain(found: SlurmNode, mark: Mark, closure: Closure) -> bool:
    if mark != closure.mark:
        return False
    if closure.set_at is None:
        return True
    return _is_appended(found) or (found.reason_user, found.reason_set_at) == (closure.set_by, closure.set_at)


def _is_appended(found: SlurmNode) -> bool:
    """Slurm itself appends " : Not responding" and stamps user and time anew: the text before it is still ours."""
    return " : " in found.reason


def _is_restamped(found: SlurmNode, mark: Mark, closure: Closure) -> bool:
    """Our own mark by our own user at another time: a drain of ours that was sent twice, to be read back anew."""
    return mark == closure.mark and found.reason_user == closure.set_by


def _slurm_blockers(
    found: SlurmNode, jobs: Sequence[SlurmJob], seen: SlurmObservation, settle_s: float
) -> tuple[str, ...]:
    blockers = [job_blocker(job) for job in jobs]
    odd = sorted(found.states - EMPTY_STATES)
    if odd and not jobs:
        blockers.append(f"slurmctld shows {'+'.join(odd)}")
    if "IDLE" not in found.states and not odd:
        blockers.append(f"slurmctld shows {'+'.join(sorted(found.states)) or 'no state'}")
    if seen.controller_up_s is not None and seen.controller_up_s < settle_s:
        blockers.append("slurmctld has just restarted")
    return tuple(blockers)


def job_blocker(job: SlurmJob) -> str:
    """How a job that holds a node is named to people."""
    return f"job {job.id} of {job.user} is {job.state}"


def _slurm_not_ready(found: SlurmNode, node: Node) -> str:
    odd = sorted(found.states - READY_STATES)
    if odd or not found.states:
        return f"slurmctld shows {'+'.join(sorted(found.states)) or 'no state'}"
    if found.gpus < node.gpus:
        return f"slurmctld offers {found.gpus} of {node.gpus} GPUs"
    return ""


def kube_facts(
    node: Node,
    lease: Lease | None,
    closure: Closure | None,
    handoff: Handoff | None,
    seen: KubeObservation | Unreadable,
) -> SideFacts:
    """Facts of the Kubernetes side, from the node controller's answers about exactly the mark that the ledger holds."""
    if isinstance(seen, Unreadable):
        return SideFacts(unknown=str(seen))
    found = seen.nodes.get(node.kube_name)
    if found is None:
        return SideFacts(unknown=f"Kubernetes has no shared node {node.kube_name}")
    if not seen.controller_alive:
        return SideFacts(unknown="the node controller's heartbeat is stale")
    status = found.status
    answered_closing = closure is not None and status.observed == closure.mark
    closed = answered_closing and status.closed
    opened = lease is not None and status.observed == lease.mark and status.open
    empty = (
        closed
        and handoff is not None
        and status.empty_nonce == handoff.nonce
        and status.node_uid == found.uid
        and found.ready
    )
    not_ready = _kube_not_ready(found, node)
    return SideFacts(
        first_latch=closed,
        second_latch=closed,
        foreign="cordoned" if found.cordoned else "",
        empty=empty,
        idle=found.ready and found.gpus_used == 0,
        answers=found.ready,
        works=bool(found.work_pods),
        blockers=() if empty else _kube_blockers(found, answered=answered_closing),
        opened=opened,
        ready=opened and not not_ready,
        not_ready=not_ready or ("" if opened else "our taint or fence entry still stands"),
        stray_mark=_stray_loan(found, lease, closure),
    )


def _kube_blockers(found: KubeNode, *, answered: bool) -> tuple[str, ...]:
    if not found.ready:
        return (f"the kubelet of {found.name} does not answer: its pods are UNKNOWN",)
    if not answered:
        return ("the node controller has not answered yet",)
    return found.status.blockers or ("the node controller has not proved the node empty yet",)


def _kube_not_ready(found: KubeNode, node: Node) -> str:
    if not found.ready:
        return "the kubelet does not answer"
    if found.cordoned:
        return "cordoned by a person"
    if found.gpus_allocatable < node.gpus:
        return f"the kubelet offers {found.gpus_allocatable} of {node.gpus} GPUs"
    return ""


def _stray_loan(found: KubeNode, lease: Lease | None, closure: Closure | None) -> Mark | None:
    """The mark of a NodeLoan that is newer than all the ledger knows: a sign of a ledger restored from the past."""
    if found.spec is None:
        return None
    known = [holder.mark.token for holder in (lease, closure) if holder is not None]
    return found.spec.mark if not known or found.spec.mark.token > max(known) else None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Whether the node's own inspector proved, for this step's nonce, that no process holds a GPU device."""

    clean: bool = False
    blockers: tuple[str, ...] = ()
    answered: bool = True
    """Whether it has answered at all, be it that it could not look."""


def device_facts(node: Node, handoff: Handoff, seen: KubeObservation | Unreadable) -> DeviceFacts:
    found = None if isinstance(seen, Unreadable) else seen.nodes.get(node.kube_name)
    answer = found.inspection if found else None
    if answer is None or answer.nonce != handoff.nonce:
        return DeviceFacts(blockers=("the inspector has not answered yet",), answered=False)
    if answer.error:
        return DeviceFacts(blockers=(f"the inspector could not look: {answer.error}",))
    if answer.holders:
        return DeviceFacts(blockers=tuple(str(holder) for holder in answer.holders))
    return DeviceFacts(clean=True)
