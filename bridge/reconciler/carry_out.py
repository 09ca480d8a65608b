"""Outside calls, batched: many nodes in one call, one failure not hiding the next.

Closings come first, then what running jobs are told, openings last. A job that spans many nodes is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from bridge.lifecycle.acts import Act, Drain, Hasten, Hold, Inspect, Release, Requeue, Resume, Signal, Want
from bridge.model.errors import CallFailed
from bridge.model.kube import LoanSpec
from bridge.model.ownership import Mark, Node, Owner
from bridge.ports import KubePort, SlurmPort


@dataclass
class Outcome:
    """`calls` made and the `failures` among them; a failed call is simply found necessary again in the next pass.

    `in_doubt`: nodes (by name) that a failed call opens to Slurm if it arrives after all. Slurm has no fencing token
    that would refuse it, so they must not be opened to anybody else while it can still arrive. `signalled`: jobs that
    got their signal, each with the beginning of its grace. `jobs_in_doubt`: what a failed call tells them may still
    arrive. `requeued`: jobs that were put back into the queue.
    """

    calls: int = 0
    failures: list[str] = field(default_factory=list)
    in_doubt: set[str] = field(default_factory=set)
    signalled: set[tuple[int, datetime]] = field(default_factory=set)
    jobs_in_doubt: set[int] = field(default_factory=set)
    requeued: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Call:
    what: str
    make: Callable[[], None]
    opens_slurm: tuple[str, ...] = ()
    tells: tuple[Signal | Requeue | Hasten, ...] = ()


def carry_out(
    acts: Sequence[Act],
    slurm: SlurmPort,
    kubernetes: KubePort,
    *,
    reservation_of: Callable[[Node], str],
    still_leader: Callable[[], bool],
) -> Outcome:
    """Make the calls. `still_leader` is asked before each; `Fenced` comes through: the world knows a newer leader."""
    outcome = Outcome()
    for call in _calls(acts, slurm, kubernetes, reservation_of):
        if not still_leader():
            outcome.failures.append("stopped: the leader lease is about to end")
            break
        outcome.calls += 1
        try:
            call.make()
        except CallFailed as why:
            outcome.failures.append(f"{call.what}: {why}")
            outcome.in_doubt.update(call.opens_slurm)
            outcome.jobs_in_doubt.update(act.job for act in call.tells)
        else:
            outcome.signalled.update((act.job, act.since) for act in call.tells if isinstance(act, Signal))
            outcome.requeued.update(act.job for act in call.tells if isinstance(act, Requeue))
    return outcome


def _calls(
    acts: Sequence[Act], slurm: SlurmPort, kubernetes: KubePort, reservation_of: Callable[[Node], str]
) -> Iterable[_Call]:
    wants = [act.loan for act in acts if isinstance(act, Want)]
    yield from _drains([act for act in acts if isinstance(act, Drain)], slurm)
    for pool, held in _by_reservation((act.node for act in acts if isinstance(act, Hold)), reservation_of).items():
        yield _Call(f"hold {_list(held)}", partial(slurm.hold, _slurm_names(held), pool))
    yield from _wants([loan for loan in wants if loan.owner is not Owner.KUBERNETES], kubernetes)
    for act in acts:
        if isinstance(act, Inspect):
            yield _Call(f"inspect {act.node.name}", partial(kubernetes.inspect, act.node.kube_name, act.nonce))
    yield from _endings([act for act in acts if isinstance(act, (Signal, Requeue))], slurm)
    for act in acts:
        if isinstance(act, Hasten):
            yield _Call(f"hasten job {act.job}", partial(slurm.hasten, act.job), tells=(act,))
    resumed = [act.node for act in acts if isinstance(act, Resume)]
    if resumed:
        yield _Call(f"resume {_list(resumed)}", partial(slurm.resume, _slurm_names(resumed)), _names(resumed))
    for pool, freed in _by_reservation((act.node for act in acts if isinstance(act, Release)), reservation_of).items():
        yield _Call(f"release {_list(freed)}", partial(slurm.release, _slurm_names(freed), pool), _names(freed))
    yield from _wants([loan for loan in wants if loan.owner is Owner.KUBERNETES], kubernetes)


def _drains(drains: list[Drain], slurm: SlurmPort) -> Iterable[_Call]:
    """One call a mark: all nodes of a lease carry the same one."""
    batches: dict[tuple[Mark, str], list[Node]] = {}
    for act in drains:
        batches.setdefault((act.mark, act.why), []).append(act.node)
    for (mark, why), nodes in batches.items():
        yield _Call(f"drain {_list(nodes)}", partial(slurm.drain, _slurm_names(nodes), mark, why))


def _endings(acts: list[Signal | Requeue], slurm: SlurmPort) -> Iterable[_Call]:
    """One call a job, on whichever of the gang's nodes it was seen; signals before requeues."""
    jobs: dict[tuple[bool, int, str], list[Signal | Requeue]] = {}
    for act in acts:
        key = (False, act.job, act.signal) if isinstance(act, Signal) else (True, act.job, "")
        jobs.setdefault(key, []).append(act)
    for (_, job, signal), told in sorted(jobs.items(), key=lambda item: item[0]):
        nodes = _slurm_names(act.node for act in told)
        if signal:
            yield _Call(f"signal job {job}", partial(slurm.signal, job, nodes, signal), tells=tuple(told))
        else:
            yield _Call(f"requeue job {job}", partial(slurm.requeue, job, nodes), tells=tuple(told))


def _wants(loans: list[LoanSpec], kubernetes: KubePort) -> Iterable[_Call]:
    if loans:
        yield _Call(f"want {', '.join(loan.node for loan in loans)}", partial(kubernetes.want, loans))


def _by_reservation(nodes: Iterable[Node], reservation_of: Callable[[Node], str]) -> dict[str, list[Node]]:
    pools: dict[str, list[Node]] = {}
    for node in nodes:
        pools.setdefault(reservation_of(node), []).append(node)
    return pools


def _slurm_names(nodes: Iterable[Node]) -> list[str]:
    return [node.slurm_name for node in nodes]


def _names(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _list(nodes: Iterable[Node]) -> str:
    return ", ".join(_names(nodes))
