"""The cheapest set of running work whose end frees enough nodes.

A node is free when everything on it has ended; a gang ends everywhere and is charged once. What ending a work loses is
its `loss_gpu_s`: GPUs x (time since its last checkpoint + restart), for serving pods GPUs x warm-up.

Nodes that are tied by common works form a *block*. Where each block is one gang, or one node with what is on it, its
works are ended all or not at all, and the cheapest set is a minimum knapsack cover, solved exactly by dynamic
programming. Where gangs share nodes with other works, and where limits forbid the exact answer, works are taken by the
smallest loss for each node that they free, and a reverse pass then gives back what was not needed.

Rank goes before loss: work of a higher rank is ended only if all of the lower ranks cannot free the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bridge.model.demand import Work
from bridge.planning.entitlement import held_nodes


@dataclass(frozen=True, slots=True)
class Limits:
    """At most `most` works are ended, and each team loses at most so many nodes (one that is not listed: any number).

    `gpus_of`: GPUs by node name, for what a work holds of a node (`held_nodes`).
    """

    most: int
    spare_nodes: Mapping[str, float]
    gpus_of: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """`works` to end, the nodes that this frees (`count` or more), and whether no cheaper set exists (`exact`)."""

    works: tuple[Work, ...]
    freed: tuple[str, ...]
    loss_gpu_s: float
    exact: bool


def cheapest(works: Iterable[Work], nodes: Collection[str], count: int, limits: Limits) -> Choice | None:
    """The cheapest works whose end frees at least `count` of `nodes`; None when that cannot be, within `limits`.

    `works` must hold everything that runs on `nodes`. A node with a protected work, or with none, is not freed.
    """
    if count <= 0:
        return None
    in_order = sorted(works, key=_cheap_first)
    on_node = _on_node(in_order, nodes)
    for rank in sorted({work.rank for work in in_order}):
        able = {name: on_it for name, on_it in on_node.items() if all(work.rank <= rank for work in on_it)}
        if len(able) < count:
            continue
        chosen = _exact(able, count, limits) or _greedy(able, count, limits)
        if chosen is not None:
            return chosen
    return None


def _cheap_first(work: Work) -> tuple[int, float, int, float, str]:
    return (work.rank, work.loss_gpu_s, work.priority, work.runs_for_s, work.key)


def _on_node(works: Sequence[Work], nodes: Collection[str]) -> dict[str, list[Work]]:
    """What runs on each node that could be freed at all."""
    found: dict[str, list[Work]] = {name: [] for name in sorted(nodes)}
    for work in works:
        for name in work.nodes:
            if name in found:
                found[name].append(work)
    return {name: on_it for name, on_it in found.items() if on_it and not any(work.protected for work in on_it)}


# --- exactly, where works are ended block by block ---


@dataclass(frozen=True, slots=True)
class _Block:
    works: tuple[Work, ...]
    nodes: tuple[str, ...]
    loss_gpu_s: float


def _exact(on_node: Mapping[str, Sequence[Work]], count: int, limits: Limits) -> Choice | None:
    blocks = _blocks(on_node)
    if blocks is None:
        return None
    chosen = _without_excess(_cover(_useful(blocks, count), count), count)
    works = tuple(work for block in chosen for work in block.works)
    if not chosen or not _within(works, limits):
        return None
    return _choice(works, on_node, exact=True)


def _blocks(on_node: Mapping[str, Sequence[Work]]) -> list[_Block] | None:
    """The blocks, cheapest first, or None when some block could be ended in part."""
    nodes_of: dict[str, list[str]] = {}
    for name, on_it in on_node.items():
        for work in on_it:
            nodes_of.setdefault(work.key, []).append(name)
    blocks: dict[str, _Block] = {}
    for on_it in on_node.values():
        if len(on_it) > 1 and any(len(nodes_of[work.key]) > 1 for work in on_it):
            return None
        nodes = tuple(nodes_of[on_it[0].key])
        blocks.setdefault(on_it[0].key, _Block(tuple(on_it), nodes, sum(work.loss_gpu_s for work in on_it)))
    return sorted(blocks.values(), key=lambda block: (block.loss_gpu_s, block.works[0].key))


def _useful(blocks: Iterable[_Block], count: int) -> list[_Block]:
    """Of blocks with as many nodes only the cheapest ones can be in a cheapest cover: as many as would do alone."""
    seen: dict[int, int] = {}
    found = []
    for block in blocks:
        size = min(len(block.nodes), count)
        seen[size] = seen.get(size, 0) + 1
        if seen[size] <= -(-count // size):
            found.append(block)
    return found


def _cover(blocks: Sequence[_Block], count: int) -> list[_Block]:
    """Minimum knapsack cover: ``best[j]`` is the least loss that frees at least j nodes with the blocks so far."""
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    took = np.zeros((len(blocks), count + 1), dtype=bool)
    for row, block in enumerate(blocks):
        size = min(len(block.nodes), count)
        before = np.concatenate((np.full(size, best[0]), best[:-size]))
        with_it = before + block.loss_gpu_s
        took[row] = with_it < best
        best = np.minimum(best, with_it)
    if not np.isfinite(best[count]):
        return []
    chosen, left = [], count
    for row in range(len(blocks) - 1, -1, -1):
        if left > 0 and took[row, left]:
            chosen.append(blocks[row])
            left = max(0, left - len(blocks[row].nodes))
    return chosen


def _without_excess(chosen: list[_Block], count: int) -> list[_Block]:
    """The reverse pass for blocks that lose nothing, which a least loss alone does not leave out."""
    kept = list(chosen)
    for block in sorted(chosen, key=lambda block: (-block.loss_gpu_s, block.works[0].key)):
        if sum(len(other.nodes) for other in kept) - len(block.nodes) >= count:
            kept.remove(block)
    return kept


# --- by smallest loss for a node, with a reverse pass ---


def _greedy(on_node: Mapping[str, Sequence[Work]], count: int, limits: Limits) -> Choice | None:
    ended: dict[str, Work] = {}
    left = dict(on_node)
    while len(on_node) - len(left) < count:
        missing = count - (len(on_node) - len(left))
        best = _best_step(left, on_node, ended, missing, limits)
        if best is None:
            return None
        ended.update((work.key, work) for work in best)
        left = {name: on_it for name, on_it in left.items() if not _is_free(on_it, ended)}
    for work in sorted(ended.values(), key=_cheap_first, reverse=True):
        without = {key: other for key, other in ended.items() if key != work.key}
        if sum(_is_free(on_it, without) for on_it in on_node.values()) >= count:
            ended = without
    return _choice(tuple(sorted(ended.values(), key=_cheap_first)), on_node, exact=False)


def _best_step(
    left: Mapping[str, Sequence[Work]],
    on_node: Mapping[str, Sequence[Work]],
    ended: Mapping[str, Work],
    missing: int,
    limits: Limits,
) -> tuple[Work, ...] | None:
    """The works that free one more node at the smallest loss for each node that becomes free by them."""
    best, best_price = None, (float("inf"), "")
    for name, on_it in left.items():
        step = tuple(work for work in on_it if work.key not in ended)
        if not _within((*ended.values(), *step), limits):
            continue
        after = {*ended, *(work.key for work in step)}
        touched = {node for work in step for node in work.nodes if node in left}
        freed = sum(all(work.key in after for work in on_node[node]) for node in touched)
        price = (sum(work.loss_gpu_s for work in step) / min(freed, missing), name)
        if price < best_price:
            best, best_price = step, price
    return best


def _is_free(on_it: Iterable[Work], ended: Mapping[str, Work]) -> bool:
    return all(work.key in ended for work in on_it)


def _within(works: Sequence[Work], limits: Limits) -> bool:
    if len(works) > limits.most:
        return False
    lost: dict[str, float] = {}
    for work in works:
        lost[work.team] = lost.get(work.team, 0.0) + held_nodes(work, limits.gpus_of)
    return all(nodes <= limits.spare_nodes.get(team, float("inf")) + 1e-9 for team, nodes in lost.items())


def _choice(works: tuple[Work, ...], on_node: Mapping[str, Sequence[Work]], *, exact: bool) -> Choice:
    ended = {work.key: work for work in works}
    freed = tuple(name for name, on_it in on_node.items() if _is_free(on_it, ended))
    in_order = tuple(sorted(works, key=_cheap_first))
    return Choice(in_order, freed, sum(work.loss_gpu_s for work in works), exact)
