"""Marks of ours outside that the ledger has never written: signs of a ledger that was restored from the past. Pure.

A leader whose epoch and generations are not above all of them leads anew, above them: else what it writes would be
refused as old, or be taken for what was written before. A mark without measure was not made by any ledger of ours (a
person with kubectl can write any number): it is never followed, as numbers end somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bridge.lifecycle.progress import Sight
from bridge.model.errors import Unreadable
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Mark, Side
from bridge.reconciler.look import World

MOST_AHEAD = 10**9
"""A mark that is further ahead than this is nobody's: ten changes of owner a second make less in three years."""


def ahead(
    state: LedgerState, world: World, seen: Mapping[str, Sight], *, epoch: int, generation: int
) -> tuple[int, int] | None:
    """The largest epoch and the largest generation, each by itself, of the marks that a leader with `epoch` and
    generations above `generation` must lead above; None when there are none."""
    drawn = max(state.generation, generation)
    found = [mark for mark in marks_outside(world) if mark.epoch > epoch or mark.generation > drawn]
    found += [mark for mark in _lost(state, seen) if mark.epoch == epoch]
    found = [mark for mark in found if mark.epoch <= epoch + MOST_AHEAD and mark.generation <= drawn + MOST_AHEAD]
    if not found:
        return None
    return max(mark.epoch for mark in found), max(mark.generation for mark in found)


def marks_outside(world: World) -> Iterator[Mark]:
    """All marks of ours that can be read, of nodes that the ledger does not know too; a reason outlives its drain."""
    if not isinstance(world.slurm, Unreadable):
        for node in world.slurm.nodes.values():
            mark = Mark.parse(node.reason)
            if mark is not None:
                yield mark
    if not isinstance(world.kubernetes, Unreadable):
        for kube_node in world.kubernetes.nodes.values():
            if kube_node.spec is not None:
                yield kube_node.spec.mark


def _lost(state: LedgerState, seen: Mapping[str, Sight]) -> Iterator[Mark]:
    """Marks of a node that are newer than its lease: this very leader may have written them, and not know it."""
    for name, lease in state.leases.items():
        for side in Side:
            mark = seen[name].side(side).stray_mark if name in seen else None
            if mark is not None and mark.token > lease.mark.token:
                yield mark
