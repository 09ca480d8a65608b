"""Where the world and the ledger disagree: what stands, what the ledger knows, who puts it right. Pure.

`bridge.lifecycle.acts` puts right what the bridge may put right by itself: a mark of ours that is missing is made
again, one that is provably stale is lifted or overwritten. Here it is only said, so that nobody wonders, together with
what is left to people. Provably stale is a mark of ours outside of which all of this holds:

- it is on a node of the inventory with a live lease, and its token ``(epoch, generation)`` is older than the lease's:
  the sequence only grows, so whoever wrote it had been overtaken when the lease was given;
- both sides were read wholly in the same pass, and the side that does not own the node was read back as closed;
- it is lifted behind our own second latch, which the present lease opens as every other opening.

A mark that is newer than all that the ledger knows (a ledger restored from the past) is not lifted: the node is taken
back under a new lease, see `bridge.planning.adoption`. One on a node without a lease or outside the inventory (nothing
says who owns it) is never touched (``NotOurs``, ``FailClosed``). No GPU at all is not a changed shape: slurmd or the
device plugin has not registered yet, and the node counts as not usable meanwhile.

The broker does not read the NodeFence: the node controller, which does, says in ``NodeLoan.status`` when its entry is
wrong, and that is shown here as it says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.handoff import Handoff, Step
from bridge.model.kube import KubeNode, KubeObservation, LoanSpec
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Closure, Lease, Mark, Node, Owner, Side
from bridge.model.policy import PoolPolicy
from bridge.model.slurm import SlurmNode, SlurmObservation

SHARED_LABEL = "bridge.slurm-kube.io/shared=true"
"""Kubernetes nodes without it are not seen at all."""
LEASE_TAINT = "bridge.slurm-kube.io/lease:NoSchedule"
_ALLOW_DELETION = "bridge.slurm-kube.io/allow-deletion=true"
_APPLY = "bridgectl policy apply FILE"
_MOST_CANDIDATES = 3


class DriftKind(StrEnum):
    MARK_MISSING = "mark_missing"
    """A latch that the ledger holds closed is not there."""
    UNKNOWN_DRAIN = "unknown_drain"
    """A drain with a mark of ours that the ledger does not know."""
    UNKNOWN_HOLD = "unknown_hold"
    """A node inside a reservation of ours that the ledger does not hold there."""
    UNKNOWN_LOAN = "unknown_loan"
    """A NodeLoan that the ledger does not know."""
    UNKNOWN_TAINT = "unknown_taint"
    """Our taint with a lease that the ledger does not know."""
    VANISHED = "vanished"
    """A node of the inventory that a side does not list."""
    MISNAMED = "misnamed"
    """The same, and the side lists another one that could be meant."""
    APPEARED = "appeared"
    """A node in the partition of a pool and on both sides, and in no pool."""
    CHANGED_SHAPE = "changed_shape"
    """A side offers another number of GPUs than the inventory has."""
    REMADE = "remade"
    """The Kubernetes Node was deleted and made anew, and the node controller has not answered for the new one yet."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One disagreement. `node` is the bridge's name of it (empty outside the inventory), `name` the side's own.

    `stands` is what the side shows, `known` what the ledger says. `does` is what the bridge does about it by itself, or
    why it does nothing; `command` is for a person, empty where none is needed. `since`: where the side tells it.
    """

    kind: DriftKind
    side: Side
    node: str
    name: str
    stands: str
    known: str
    does: str
    command: str = ""
    since: datetime | None = None

    @property
    def key(self) -> tuple[str, Side, str]:
        """The same from pass to pass while it lasts."""
        return (self.kind, self.side, self.name)


def drift(
    state: LedgerState,
    seen: Mapping[str, Sight],
    slurm: SlurmObservation | None,
    kubernetes: KubeObservation | None,
) -> tuple[Finding, ...]:
    """All findings of one reading, by name. A side that could not be read (None) has none: nothing is known of it.

    `seen` are the facts of the same reading about every node of `state`.
    """
    found: list[Finding] = []
    if slurm is not None:
        found += _slurm(state, seen, slurm)
    if kubernetes is not None:
        found += _kubernetes(state, seen, kubernetes)
    if slurm is not None and kubernetes is not None:
        found += _appeared(state, slurm, kubernetes)
    return tuple(sorted(found, key=lambda each: (each.node or each.name, each.side, each.kind)))


# --- Slurm ---


def _slurm(state: LedgerState, seen: Mapping[str, Sight], slurm: SlurmObservation) -> Iterator[Finding]:
    ours = {record.node.slurm_name for record in state.nodes.values()}
    strays = _Strays(name for name in slurm.nodes if name not in ours)
    for name, record in state.nodes.items():
        found = slurm.nodes.get(record.node.slurm_name)
        if found is None:
            yield _not_listed(state, record.node, Side.SLURM, strays)
            continue
        yield from _slurm_marks(_Of(state, record.node), seen[name].slurm, found)
        yield from _shape(record.node, Side.SLURM, found.gpus)
    for name in sorted(slurm.held - ours):
        yield _hold_outside(state, name, slurm.nodes.get(name))
    for name in strays.names:
        mark = _drained_by_us(slurm.nodes[name])
        if mark is not None:
            yield _drain_outside(slurm.nodes[name], mark)


@dataclass(frozen=True, slots=True)
class _Of:
    """What the ledger holds of one node."""

    state: LedgerState
    node: Node

    @property
    def lease(self) -> Lease | None:
        return self.state.leases.get(self.node.name)

    @property
    def handoff(self) -> Handoff | None:
        return self.state.handoffs.get(self.node.name)

    def standing(self, side: Side) -> Closure | None:
        """The closure whose latches must stand by now; None where `side` is open, being closed or being opened."""
        closure, lease, handoff = self.state.closures.get((self.node.name, side)), self.lease, self.handoff
        if closure is None or lease is None or lease.owner is side.owner:
            return None
        closing = handoff is not None and (
            handoff.step is Step.ADMIT or (handoff.source is side and handoff.step in (Step.CLOSE, Step.ADOPT))
        )
        return None if closing else closure

    def known(self) -> str:
        lease, handoff = self.lease, self.handoff
        if lease is None:
            return "in the inventory, no lease yet"
        moving = f", in motion to {handoff.destination} (step {handoff.step})" if handoff else ""
        return f"{_owned(lease)}{moving}, lease mark {lease.mark}"


def _owned(lease: Lease) -> str:
    return "nobody's, closed on both sides" if lease.owner is Owner.BRIDGE else f"{lease.owner}'s"


def _slurm_marks(of: _Of, facts: SideFacts, found: SlurmNode) -> Iterator[Finding]:
    node, lease = of.node, of.lease
    if not facts.known:
        return
    if facts.stray_mark is not None:
        yield _stray_drain(of, facts.stray_mark, found)
    if facts.second_latch and lease is not None and lease.owner is Owner.SLURM and of.handoff is None:
        does = "takes it out as soon as Kubernetes is read back as closed"
        yield Finding(
            DriftKind.UNKNOWN_HOLD, Side.SLURM, node.name, found.name, "inside our reservation", of.known(), does
        )
    closure = of.standing(Side.SLURM)
    if closure is None:
        return
    drained = facts.first_latch or facts.foreign or facts.stray_mark is not None or facts.read_back is not None
    missing = [text for text, there in (("drain", drained), ("reservation", facts.second_latch)) if not there]
    if missing:
        stands = f"our {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there"
        known = f"closed to Slurm with {closure.mark}"
        yield Finding(DriftKind.MARK_MISSING, Side.SLURM, node.name, found.name, stands, known, "sets it again at once")


def _stray_drain(of: _Of, mark: Mark, found: SlurmNode) -> Finding:
    does, command = _about(of.lease, mark)
    if command:
        command = f"scontrol update NodeName={found.name} State=RESUME"
    stands, since = f"drained with {mark}", found.reason_set_at
    return Finding(
        DriftKind.UNKNOWN_DRAIN, Side.SLURM, of.node.name, found.name, stands, of.known(), does, command, since
    )


def _about(lease: Lease | None, mark: Mark) -> tuple[str, str]:
    """What the bridge does about a mark of ours on a node of the inventory that the ledger does not know.

    The second part is not empty where a person has to decide.
    """
    if lease is None:
        return "takes the node in as nobody's: closed on both sides until a person or a proof says otherwise", ""
    if mark.token >= lease.mark.token:
        return (
            "nothing: it is not older than all that the ledger knows (was the ledger restored from the past?). "
            "See who really has the node before the mark is lifted",
            "by hand",
        )
    if lease.owner is Owner.SLURM:
        return "lifts it, as it is older than the live lease, as soon as Kubernetes is read back as closed", ""
    return "writes the present mark over it, as it is older than the live lease", ""


def _drained_by_us(found: SlurmNode) -> Mark | None:
    return Mark.parse(found.reason) if "DRAIN" in found.states else None


def _drain_outside(found: SlurmNode, mark: Mark) -> Finding:
    return Finding(
        DriftKind.UNKNOWN_DRAIN,
        Side.SLURM,
        "",
        found.name,
        f"drained with {mark}",
        _OUTSIDE,
        _NOT_TOUCHED,
        f"scontrol update NodeName={found.name} State=RESUME",
        found.reason_set_at,
    )


def _hold_outside(state: LedgerState, name: str, found: SlurmNode | None) -> Finding:
    partitions = found.partitions if found else frozenset()
    pool = next((pool for pool in state.policy.pools if pool.partition in partitions), None)
    reservation = pool.reservation if pool else "bridge-POOL"
    return Finding(
        DriftKind.UNKNOWN_HOLD,
        Side.SLURM,
        "",
        name,
        "inside a reservation of ours",
        _OUTSIDE,
        _NOT_TOUCHED,
        f"scontrol update ReservationName={reservation} Nodes-={name}",
    )


_OUTSIDE = "in no pool of the policy"
_NOT_TOUCHED = "nothing: who owns a node outside the inventory is for a person to say"


# --- Kubernetes ---


def _kubernetes(state: LedgerState, seen: Mapping[str, Sight], kube: KubeObservation) -> Iterator[Finding]:
    ours = {record.node.kube_name for record in state.nodes.values()}
    strays = _Strays(name for name in kube.nodes if name not in ours)
    for name, record in state.nodes.items():
        found = kube.nodes.get(record.node.kube_name)
        if found is None:
            yield _not_listed(state, record.node, Side.KUBERNETES, strays)
            continue
        yield from _kube_marks(_Of(state, record.node), seen[name].kubernetes, found)
        if found.ready:
            yield from _shape(record.node, Side.KUBERNETES, found.gpus_allocatable)
    for name in strays.names:
        yield from _kube_outside(kube.nodes[name])
    for name, spec in sorted(kube.loans_elsewhere.items()):
        if name not in ours:
            yield _loan_outside(name, spec, there=False)


def _kube_marks(of: _Of, facts: SideFacts, found: KubeNode) -> Iterator[Finding]:
    node, status = of.node, found.status
    if facts.known and facts.stray_mark is not None:
        does, command = _about(of.lease, facts.stray_mark)
        yield Finding(
            DriftKind.UNKNOWN_LOAN,
            Side.KUBERNETES,
            node.name,
            found.name,
            f"its NodeLoan carries {facts.stray_mark}",
            of.known(),
            does,
            _delete_loan(found.name) if command else "",
        )
    elif facts.known:
        yield from _kube_missing(of, found)
    yield from _strange_taint(of, found)
    if status.node_uid and status.node_uid != found.uid:
        yield Finding(
            DriftKind.REMADE,
            Side.KUBERNETES,
            node.name,
            found.name,
            f"the Node was made anew, its UID is {found.uid}",
            f"answered for UID {status.node_uid} last",
            "closes it again if it is to be closed, and believes no proof that was given for the old one",
        )


def _kube_missing(of: _Of, found: KubeNode) -> Iterator[Finding]:
    lease, spec, status = of.lease, found.spec, found.status
    closure = of.standing(Side.KUBERNETES)
    if closure is not None:
        wanted, known, does = closure.mark, f"closed to Kubernetes with {closure.mark}", "sets it again at once"
    elif lease is not None and lease.owner is Owner.KUBERNETES and of.handoff is None:
        wanted, known, does = lease.mark, of.known(), "writes it again once Slurm is read back as closed"
    else:
        return
    opens = closure is None
    if spec is None:
        stands = "its NodeLoan is not there"
    elif spec.mark.token < wanted.token:
        stands = f"its NodeLoan carries the older {spec.mark}"
    elif (spec.owner is Owner.KUBERNETES) is not opens:
        stands = f"its NodeLoan says that it is {spec.owner}'s"
    elif not opens and status.observed == wanted and not status.closed:
        stands = "our taint or fence entry is not there" + "".join(f"; {why}" for why in status.blockers)
    else:
        return
    yield Finding(DriftKind.MARK_MISSING, Side.KUBERNETES, of.node.name, found.name, stands, known, does)


def _strange_taint(of: _Of, found: KubeNode) -> Iterator[Finding]:
    closure = of.state.closures.get((of.node.name, Side.KUBERNETES))
    if found.taint and found.taint not in {each.mark.lease for each in (of.lease, closure, found.spec) if each}:
        yield _taint(of.node.name, found, of.known(), "nothing: the node controller acts on taints of its own only")


def _taint(node: str, found: KubeNode, known: str, does: str) -> Finding:
    return Finding(
        DriftKind.UNKNOWN_TAINT,
        Side.KUBERNETES,
        node,
        found.name,
        f"tainted with lease {found.taint}",
        known,
        does,
        f"kubectl taint node {found.name} {LEASE_TAINT}-",
    )


def _kube_outside(found: KubeNode) -> Iterator[Finding]:
    if found.spec is not None:
        yield _loan_outside(found.name, found.spec, there=True)
    if found.taint and (found.spec is None or found.taint != found.spec.mark.lease):
        yield _taint("", found, _OUTSIDE, _NOT_TOUCHED)


def _loan_outside(name: str, spec: LoanSpec, *, there: bool) -> Finding:
    """A node that left the inventory keeps its NodeLoan: closed to Kubernetes, which is right while Slurm has it."""
    closed = spec.owner is not Owner.KUBERNETES
    stands = f"a NodeLoan with {spec.mark} keeps it {'closed to' if closed else 'open for'} Kubernetes"
    does, command = _NOT_TOUCHED, _delete_loan(name)
    if closed and there:
        does = f"{_NOT_TOUCHED}. The command opens it to pods: take it out of Slurm first"
        command = f'kubectl patch nodeloan {name} --type merge -p \'{{"spec":{{"owner":"kubernetes"}}}}\''
    elif not there:
        stands = f"a NodeLoan with {spec.mark} for a Node that is not there or not labelled {SHARED_LABEL}"
    return Finding(DriftKind.UNKNOWN_LOAN, Side.KUBERNETES, "", name, stands, _OUTSIDE, does, command)


def _delete_loan(name: str) -> str:
    return f"kubectl annotate nodeloan {name} {_ALLOW_DELETION} && kubectl delete nodeloan {name}"


# --- nodes that come, go and change ---


class _Strays:
    """The nodes that a side lists and the inventory does not have, to be found by what their name means."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(names))
        self._by_meaning: dict[str, list[str]] | None = None

    def like(self, *names: str) -> tuple[str, ...]:
        if self._by_meaning is None:
            self._by_meaning = {}
            for name in self.names:
                self._by_meaning.setdefault(meaning(name), []).append(name)
        found = (stray for name in names for stray in self._by_meaning.get(meaning(name), ()))
        return tuple(dict.fromkeys(found))[:_MOST_CANDIDATES]


def meaning(name: str) -> str:
    """What people mean by a node's name: ``GPU_01.example.org`` and ``gpu-0001`` are both ``gpu1``."""
    host = re.sub(r"0*(\d+)", r"\1", name.partition(".")[0].lower())
    return re.sub(r"[^a-z0-9]", "", host)


def _not_listed(state: LedgerState, node: Node, side: Side, strays: _Strays) -> Finding:
    name = node.slurm_name if side is Side.SLURM else node.kube_name
    who = "slurmctld" if side is Side.SLURM else "Kubernetes"
    handoff = state.handoffs.get(node.name)
    waits = f", and its handoff waits in step {handoff.step}" if handoff else ""
    does = f"nothing: what is not listed is UNKNOWN, so it does not move{waits}"
    known = f"{_Of(state, node).known()}, in pool {node.pool}"
    candidates = strays.like(name, node.slurm_name)
    if candidates:
        stands = f"{who} does not list {name}, but {', '.join(candidates)}, which no pool has"
        command = _rename(state.policy.pool(node.pool), node, side, candidates[0])
        return Finding(DriftKind.MISNAMED, side, node.name, name, stands, known, does, command)
    stands = f"{who} does not list {name}" if side is Side.SLURM else f"{who} lists no {name} labelled {SHARED_LABEL}"
    look = f"scontrol show node {name}" if side is Side.SLURM else f"kubectl get node {name} --show-labels"
    return Finding(DriftKind.VANISHED, side, node.name, name, stands, known, does, look)


def _rename(pool: PoolPolicy | None, node: Node, side: Side, candidate: str) -> str:
    """How the policy comes to say what the side says."""
    of_pool = f"of pool {pool.name if pool else node.pool}, then: {_APPLY}"
    if side is Side.KUBERNETES and node.slurm_name in candidate:
        return f"set kube_name: '{candidate.replace(node.slurm_name, '{node}', 1)}' {of_pool}"
    if side is Side.KUBERNETES:
        return f"rename one of both, or set kube_name {of_pool}"
    return f"write {candidate} for {node.slurm_name} in nodes {of_pool}"


def _shape(node: Node, side: Side, gpus: int) -> Iterator[Finding]:
    if gpus in (0, node.gpus):
        return
    name = node.slurm_name if side is Side.SLURM else node.kube_name
    fewer = gpus < node.gpus
    does = "does not count it as usable" if fewer else f"counts it with {node.gpus}"
    command = f"{'repair it, or ' if fewer else ''}set gpus: {gpus} of pool {node.pool}, then: {_APPLY}"
    yield Finding(
        DriftKind.CHANGED_SHAPE,
        side,
        node.name,
        name,
        f"offers {gpus} GPUs",
        f"{node.gpus} GPUs in pool {node.pool}",
        does,
        command,
    )


def _appeared(state: LedgerState, slurm: SlurmObservation, kube: KubeObservation) -> Iterator[Finding]:
    ours = {record.node.slurm_name for record in state.nodes.values()}
    theirs = {record.node.kube_name for record in state.nodes.values()}
    pools = {pool.partition: pool for pool in state.policy.pools}
    for name, found in slurm.nodes.items():
        if name in ours:
            continue
        for partition in found.partitions & pools.keys():
            pool = pools[partition]
            kube_name = pool.kube_name.replace("{node}", name)
            if kube_name in kube.nodes and kube_name not in theirs:
                yield Finding(
                    DriftKind.APPEARED,
                    Side.SLURM,
                    "",
                    name,
                    f"in partition {partition}, and in Kubernetes as {kube_name}",
                    _OUTSIDE,
                    "nothing: a node is shared only when somebody says so",
                    f"add {name} to pool {pool.name}, then: {_APPLY}" if pool.nodes else _APPLY,
                )
