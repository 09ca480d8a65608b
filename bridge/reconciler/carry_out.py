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
    """`calls` made and the `failures` among them; a failed call is simply found necessary again in the next pass."""

    calls: int = 0
    failures: list[str] = field(default_factory=list)


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
    for what, call in _calls(acts, slurm, kubernetes, reservation_of):
        if not still_leader():
            outcome.failures.append("stopped: the leader lease is about to end")
            break
        outcome.calls += 1
        try:
            call()
        except CallFailed as why:
            outcome.failures.append(f"{what}: {why}")
    return outcome


_Call = tuple[str, Callable[[], None]]


def _calls(
    acts: Sequence[Act], slurm: SlurmPort, kubernetes: KubePort, reservation_of: Callable[[Node], str]
) -> Iterable[_Call]:
    wants = [act.loan for act in acts if isinstance(act, Want)]
    yield from _drains([act for act in acts if isinstance(act, Drain)], slurm)
    for pool, names in _by_reservation((act.node for act in acts if isinstance(act, Hold)), reservation_of).items():
        yield f"hold {', '.join(names)}", partial(slurm.hold, names, pool)
    yield from _wants([loan for loan in wants if loan.owner is not Owner.KUBERNETES], kubernetes)
    for act in acts:
        if isinstance(act, Inspect):
            yield f"inspect {act.node.kube_name}", partial(kubernetes.inspect, act.node.kube_name, act.nonce)
    resumed = [act.node.slurm_name for act in acts if isinstance(act, Resume)]
    if resumed:
        yield f"resume {', '.join(resumed)}", partial(slurm.resume, resumed)
    for pool, names in _by_reservation((act.node for act in acts if isinstance(act, Release)), reservation_of).items():
        yield f"release {', '.join(names)}", partial(slurm.release, names, pool)
    yield from _wants([loan for loan in wants if loan.owner is Owner.KUBERNETES], kubernetes)


def _drains(drains: list[Drain], slurm: SlurmPort) -> Iterable[_Call]:
    """One call a mark: all nodes of a lease carry the same one."""
    batches: dict[tuple[Mark, str], list[str]] = {}
    for act in drains:
        batches.setdefault((act.mark, act.why), []).append(act.node.slurm_name)
    for (mark, why), names in batches.items():
        yield f"drain {', '.join(names)}", partial(slurm.drain, names, mark, why)


def _wants(loans: list[LoanSpec], kubernetes: KubePort) -> Iterable[_Call]:
    if loans:
        yield f"want {', '.join(loan.node for loan in loans)}", partial(kubernetes.want, loans)


def _by_reservation(nodes: Iterable[Node], reservation_of: Callable[[Node], str]) -> dict[str, list[str]]:
    pools: dict[str, list[str]] = {}
    for node in nodes:
        pools.setdefault(reservation_of(node), []).append(node.slurm_name)
    return pools
