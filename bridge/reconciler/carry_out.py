"""Outside calls, batched: many nodes in one call, closings before openings, one failure not hiding the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bridge.lifecycle.acts import Act, Drain, Hold, Inspect, Release, Resume, Want
from bridge.model.errors import CallFailed
from bridge.model.kube import LoanSpec
from bridge.model.ownership import Mark, Node, Owner
from bridge.ports import KubePort, SlurmPort


@dataclass
class Outcome:
    """`calls` made and the `failures` among them; a failed call is simply found necessary again in the next pass.

    `in_doubt`: nodes (by name) that a failed call opens to Slurm if it arrives after all. Slurm has no fencing token
    that would refuse it, so they must not be opened to anybody else while it can still arrive.
    """

    calls: int = 0
    failures: list[str] = field(default_factory=list)
    in_doubt: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Call:
    what: str
    make: Callable[[], None]
    opens_slurm: tuple[str, ...] = ()


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
