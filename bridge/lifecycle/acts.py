"""What must be done outside so that the world agrees with the ledger. Pure and level-triggered.

The ledger's owner is the wish, the sight is the world, an act is the difference. Acts are computed anew in each pass,
so one that was lost is simply found again. A side is opened only when the same pass read the other side back as closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.preemption import grace_ends_at, running_victims
from bridge.lifecycle.progress import Sight
from bridge.model.handoff import Handoff, Step
from bridge.model.kube import KubeNode, LoanSpec
from bridge.model.ownership import Closure, Lease, Mark, Node, Owner, Side


@dataclass(frozen=True, slots=True)
class Drain:
    node: Node
    mark: Mark
    why: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Add to the pool's reservation."""

    node: Node


@dataclass(frozen=True, slots=True)
class Resume:
    """Lift our drain, behind the reservation."""

    node: Node


@dataclass(frozen=True, slots=True)
class Release:
    """Take out of the reservation: the opening. All releases of one pass are one call a pool."""

    node: Node


@dataclass(frozen=True, slots=True)
class Want:
    loan: LoanSpec


@dataclass(frozen=True, slots=True)
class Inspect:
    node: Node
    nonce: str


@dataclass(frozen=True, slots=True)
class Signal:
    """Ask a victim that runs on `node` to go. `since` is when its grace began: with `job` it names this one request."""

    node: Node
    job: int
    signal: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Requeue:
    """End a victim that still runs on `node` after its grace, and put it back into the queue."""

    node: Node
    job: int


@dataclass(frozen=True, slots=True)
class Hasten:
    """Let a job that was requeued start as soon as there is room."""

    job: int


_NEEDS_PROOF = frozenset({Step.ADMIT, Step.ADOPT, Step.EMPTY})
"""Steps in which the node controller is asked for a proof that its side is empty."""

Act = Drain | Hold | Resume | Release | Want | Inspect | Signal | Requeue | Hasten


def closes(act: Act) -> bool:
    """Whether an act can only close or ask, never open: what a new leader may do before the old one's calls ended."""
    if isinstance(act, Want):
        return act.loan.owner is not Owner.KUBERNETES
    return isinstance(act, (Drain, Hold, Inspect))


@dataclass(frozen=True, slots=True)
class Standing:
    """A node as the ledger holds it, with what was seen of it. `loan_seen` is the NodeLoan as it stands outside."""

    node: Node
    lease: Lease
    handoff: Handoff | None
    closures: dict[Side, Closure]
    sight: Sight
    kube: KubeNode | None


def acts(standing: Standing, gang: Sequence[Standing], *, now: datetime, fence_shows_lease: bool) -> tuple[Act, ...]:
    """The acts for one node. `gang`: all nodes of its lease that are in motion; `fence_shows_lease`: the controller
    host's fence file no longer names this node (or nobody keeps that file)."""
    found: list[Act] = []
    if standing.lease.owner is Owner.SLURM:
        found += _open_slurm(standing, gang, fence_shows_lease=fence_shows_lease)
    else:
        found += _close_slurm(standing)
    found += _loan(standing)
    found += _inspection(standing)
    found += _endings(standing, gang, now)
    return tuple(found)


def _close_slurm(standing: Standing) -> list[Act]:
    facts = standing.sight.slurm
    closure = standing.closures.get(Side.SLURM)
    if not facts.known or closure is None:
        return []
    found: list[Act] = []
    if not facts.first_latch and not facts.foreign and _may_overwrite(facts, closure):
        found.append(Drain(standing.node, closure.mark, _why_closed(standing)))
    if not facts.second_latch and not _is_theirs(standing, facts):
        found.append(Hold(standing.node))
    return found


def _is_theirs(standing: Standing, facts: SideFacts) -> bool:
    """A person drained the node just before we did: it is not taken, so not put into our reservation either."""
    handoff = standing.handoff
    return bool(facts.foreign) and handoff is not None and handoff.source is Side.SLURM and handoff.step is Step.CLOSE


def _may_overwrite(facts: SideFacts, closure: Closure) -> bool:
    """A mark of ours that is older than the ledger's may be replaced; a newer one means the ledger is from the past."""
    return facts.stray_mark is None or facts.stray_mark.token < closure.mark.token


def _why_closed(standing: Standing) -> str:
    handoff = standing.handoff
    if handoff is None:
        return "owned by kubernetes"
    # " : " is what Slurm puts before words that it appends itself; ours must not look like that.
    return f"lent to {handoff.destination}: {handoff.reason}".replace(" : ", ": ")


def _open_slurm(standing: Standing, gang: Sequence[Standing], *, fence_shows_lease: bool) -> list[Act]:
    facts = standing.sight.slurm
    if not facts.known or facts.opened or not _shut(standing.sight.kubernetes) or _is_ahead(facts, standing.lease):
        return []
    if facts.first_latch or _is_obsolete(facts, standing.lease):
        return [Resume(standing.node)] if facts.second_latch else [Hold(standing.node)]
    if not facts.second_latch or not fence_shows_lease:
        return []
    if all(_resumed(other) for other in gang):
        return [Release(standing.node)]
    return []


def _is_obsolete(facts: SideFacts, lease: Lease) -> bool:
    """A drain of an earlier lease of ours that arrived late: the ledger has moved on, so nobody needs it any more."""
    return facts.stray_mark is not None and facts.stray_mark.token < lease.mark.token


def _is_ahead(facts: SideFacts, lease: Lease) -> bool:
    """A drain of ours that the ledger is yet to make: it was restored from the past, and this node waits to be taken
    back."""
    return facts.stray_mark is not None and facts.stray_mark.token > lease.mark.token


def _shut(facts: SideFacts) -> bool:
    """Nothing runs here and nothing can start. A ledger from the past may not know of what has started since."""
    return facts.known and facts.closed and not facts.works


def _resumed(standing: Standing) -> bool:
    """Ready to be released: our drain is gone and slurmd answers, or the drain left there is a person's."""
    if standing.handoff is not None and standing.handoff.step not in (Step.OPEN, Step.REOPEN):
        return True
    facts = standing.sight.slurm
    if not facts.known or facts.first_latch:
        return False
    return bool(facts.foreign) or facts.answers


def _loan(standing: Standing) -> list[Act]:
    wanted = loan_wanted(standing)
    if wanted is None or standing.kube is None or standing.sight.kubernetes.stray_mark is not None:
        return []
    present = standing.kube.spec
    if present == wanted:
        return []
    opens = wanted.owner is Owner.KUBERNETES and (present is None or present.owner is not Owner.KUBERNETES)
    adopting = standing.handoff is not None and standing.handoff.step is Step.ADOPT
    if opens and not adopting and not _shut(standing.sight.slurm):
        return []
    return [Want(wanted)]


def loan_wanted(standing: Standing) -> LoanSpec | None:
    """The NodeLoan that the ledger wants, or None while it has no word on the Kubernetes side."""
    handoff = standing.handoff
    if standing.lease.owner is Owner.KUBERNETES:
        return LoanSpec(standing.node.kube_name, Owner.KUBERNETES, standing.lease.mark, standing.node.gpus)
    closure = standing.closures.get(Side.KUBERNETES)
    if closure is None:
        return None
    emptying = handoff is not None and handoff.source is Side.KUBERNETES and handoff.step in _NEEDS_PROOF
    return LoanSpec(
        node=standing.node.kube_name,
        owner=standing.lease.owner,
        mark=closure.mark,
        gpus=standing.node.gpus,
        evict=emptying and handoff is not None and handoff.evict,
        nonce=handoff.nonce if emptying and handoff is not None else "",
        reason=handoff.reason if handoff is not None else "",
    )


def _inspection(standing: Standing) -> list[Act]:
    handoff = standing.handoff
    if handoff is None or standing.kube is None or not (handoff.step is Step.CLEAN or _is_admitted(standing, handoff)):
        return []
    answer = standing.kube.inspection
    return [] if answer is not None and answer.nonce == handoff.nonce else [Inspect(standing.node, handoff.nonce)]


def _is_admitted(standing: Standing, handoff: Handoff) -> bool:
    """All but clean: what an inspector says of a node before both sides are closed and one is empty is soon old."""
    source, destination = standing.sight.side(handoff.source), standing.sight.side(handoff.destination)
    return handoff.step is Step.ADMIT and source.empty and destination.closed and not destination.works


def _endings(standing: Standing, gang: Sequence[Standing], now: datetime) -> list[Act]:
    """What victims are told: the signal all through their grace, for the caller to send once; then the requeue."""
    handoff = standing.handoff
    if handoff is None or handoff.signalled_at is None or any(_goes_back(other) for other in gang):
        return []
    found: list[Act] = []
    for victim, job in running_victims(handoff, standing.sight.slurm):
        ends_at, target = grace_ends_at(handoff, victim), victim.job or job.id
        if ends_at is not None and now >= ends_at:
            found.append(Requeue(standing.node, target))
        elif victim.signal:
            found.append(Signal(standing.node, target, victim.signal, handoff.signalled_at))
    return found


def _goes_back(standing: Standing) -> bool:
    return standing.handoff is not None and standing.handoff.step in (Step.REOPEN, Step.REPROVE)
