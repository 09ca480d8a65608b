"""The cheapest set of running work whose end frees enough nodes.

A node is free when everything on it has ended; a gang ends everywhere and is charged once. What ending a work loses is
its `loss_gpu_s`: GPUs x (time since its last checkpoint + restart), for serving pods GPUs x warm-up.

Nodes that are tied by common works form a *block*. Where each block is one gang, or one node with what is on it, its
works are ended all or not at all, and the cheapest set is a minimum knapsack cover, solved exactly by dynamic
programming. Where gangs share nodes with other works, and where limits forbid the exact answer, works are taken by the
smallest loss for each node that they free, and a reverse pass then gives back what was not needed.

Rank goes before loss: nothing of a higher rank is ended if the lower ranks can free the nodes. Where they cannot, loss
decides among all works up to the lowest rank that can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from bridge.model.demand import Victim, Work
from bridge.model.ledger import Preempted
from bridge.model.policy import Preemption
from bridge.planning.entitlement import held_nodes

_ROUNDING = 1e-9
"""Parts of nodes are sums of fractions."""


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


def spared(work: Work, preempted: Iterable[Preempted], asked: Preemption, now: datetime) -> Work:
    """`work`, protected when it was a victim a short while ago."""
    respite = timedelta(seconds=asked.respite_s)
    if work.protected or not any(past.key == work.key and now - past.at < respite for past in preempted):
        return work
    return replace(work, protected=f"was a victim in the last {asked.respite_s:g} s")


def left_in_window(preempted: Iterable[Preempted], asked: Preemption, now: datetime) -> int:
    """How many more works may be ended before the window of the policy has moved on."""
    window = timedelta(seconds=asked.window_s)
    return max(0, asked.max_victims_per_window - sum(now - past.at < window for past in preempted))


def named(work: Work, asked: Preemption) -> Victim:
    """`work` as a victim; a job with the signal and the grace that it wants, or the policy gives."""
    if work.job is None:
        return Victim(work.key, work.side, None, work.loss_gpu_s)
    signal = work.signal or asked.signal
    wanted_s = asked.grace_s if work.grace_s is None else min(work.grace_s, asked.max_grace_s)
    # A grace is time to act on the signal; without one there is nothing to wait for.
    grace_s = wanted_s if signal else 0.0
    forced = not signal or asked.after_grace == "requeue"
    return Victim(work.key, work.side, work.job, work.loss_gpu_s, signal, grace_s, forced)


def cheapest(works: Iterable[Work], nodes: Collection[str], count: int, limits: Limits) -> Choice | None:
    """The cheapest works whose end frees at least `count` of `nodes` within `limits`; None when none are found.

    None may also mean that limits bind so tightly that the search by smallest loss ran into them: nobody is ended then.

    `works` must hold everything that runs on `nodes`. A node with a protected work, or with none, is not freed.
    """
    if count <= 0:
        return None
    on_node = _on_node(sorted(works, key=_cheap_first), nodes, limits)
    rank_of = {name: max(work.rank for work in on_it) for name, on_it in on_node.items()}
    # Below the count-th smallest rank there are not enough nodes.
    ranks = sorted(set(sorted(rank_of.values())[count - 1 :]))

    def up_to(rank: int) -> Choice | None:
        able = {name: on_it for name, on_it in on_node.items() if rank_of[name] <= rank}
        return _exact(able, count, limits) or _greedy(able, count, limits)

    if not ranks or not _enough(on_node, count, limits):
        return None
    return _lowest(ranks, up_to)


def _lowest(ranks: Sequence[int], up_to: Callable[[int], Choice | None]) -> Choice | None:
    """The choice with the lowest rank that has one, by halving: what a rank can free a higher one can, too."""
    found = up_to(ranks[0])
    if found is not None or len(ranks) == 1:
        return found
    found = up_to(ranks[-1])
    low, high = 1, len(ranks) - 1
    while found is not None and low < high:
        middle = (low + high) // 2
        better = up_to(ranks[middle])
        if better is None:
            low = middle + 1
        else:
            found, high = better, middle
    return found


def _enough(on_node: Mapping[str, Sequence[Work]], count: int, limits: Limits) -> bool:
    """Whether as many works as may be ended could free `count` nodes, if each were alone on all of its nodes."""
    sizes: dict[str, int] = {}
    for on_it in on_node.values():
        for work in on_it:
            sizes[work.key] = sizes.get(work.key, 0) + 1
    return sum(sorted(sizes.values(), reverse=True)[: limits.most]) >= count


def _cheap_first(work: Work) -> tuple[int, float, int, float, str]:
    return (work.rank, work.loss_gpu_s, work.priority, work.runs_for_s, work.key)


def _on_node(works: Sequence[Work], nodes: Collection[str], limits: Limits) -> dict[str, list[Work]]:
    """What runs on each node that could be freed at all: nothing protected, nothing that alone is over the limits."""
    found: dict[str, list[Work]] = {name: [] for name in sorted(nodes)}
    never: set[str] = set()
    for work in works:
        spare = limits.spare_nodes.get(work.team, float("inf"))
        if work.protected or held_nodes(work, limits.gpus_of) > spare + _ROUNDING:
            never.update(work.nodes)
            continue
        for name in work.nodes:
            if name in found:
                found[name].append(work)
    return {name: on_it for name, on_it in found.items() if name not in never and 0 < len(on_it) <= limits.most}


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
    useful = _useful(blocks, count)
    chosen = _cover(useful, count, sum(len(block.works) for block in useful))
    if sum(len(block.works) for block in chosen) > limits.most:
        chosen = _cover(useful, count, limits.most)
    works = tuple(work for block in chosen for work in block.works)
    if not works or not _within(works, limits):
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
    return sorted(blocks.values(), key=_cheap_block_first)


def _cheap_block_first(block: _Block) -> tuple[float, int, float, str]:
    first = block.works[0]
    return (block.loss_gpu_s, max(work.priority for work in block.works), first.runs_for_s, first.key)


def _useful(blocks: Iterable[_Block], count: int) -> list[_Block]:
    """Of blocks with as many nodes and works only the cheapest can be in a cheapest cover: as many as do alone."""
    seen: dict[tuple[int, int], int] = {}
    found = []
    for block in blocks:
        size = min(len(block.nodes), count)
        kind = (size, len(block.works))
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= -(-count // size):
            found.append(block)
    return found


def _cover(blocks: Sequence[_Block], count: int, most: int) -> list[_Block]:
    """Minimum knapsack cover: ``best[v, j]`` is the least loss that frees at least j nodes by ending at most v works.

    With room for all works the number of them is no constraint, and one row does. A block is taken only where the rest
    without it loses more, so none is superfluous, not even one that loses nothing.
    """
    bounded = most < sum(len(block.works) for block in blocks)
    best = np.full(((most if bounded else 0) + 1, count + 1), np.inf)
    best[:, 0] = 0.0
    took = np.zeros((len(blocks), *best.shape), dtype=bool)
    for row, block in enumerate(blocks):
        size, cost = min(len(block.nodes), count), len(block.works) if bounded else 0
        if cost >= len(best):
            continue
        before = best[: len(best) - cost]
        shifted = np.concatenate((np.repeat(before[:, :1], size, axis=1), before[:, :-size]), axis=1)
        with_it = shifted + block.loss_gpu_s
        took[row, cost:] = with_it < best[cost:]
        best[cost:] = np.minimum(best[cost:], with_it)
    chosen: list[_Block] = []
    works, nodes = len(best) - 1, count
    if not np.isfinite(best[works, nodes]):
        return chosen
    for row in range(len(blocks) - 1, -1, -1):
        if nodes > 0 and took[row, works, nodes]:
            chosen.append(blocks[row])
            nodes = max(0, nodes - len(blocks[row].nodes))
            works -= len(blocks[row].works) if bounded else 0
    return chosen


# --- by smallest loss for a node, with a reverse pass ---


def _greedy(on_node: Mapping[str, Sequence[Work]], count: int, limits: Limits) -> Choice | None:
    ended: dict[str, Work] = {}
    steps = {name: _step(name, on_node, ended) for name in on_node}
    while len(on_node) - len(steps) < count:
        missing = count - (len(on_node) - len(steps))
        in_order = sorted(steps, key=lambda name: (steps[name].loss_gpu_s / min(steps[name].frees, missing), name))
        best = next((s for name in in_order if _within((*ended.values(), *(s := steps[name]).works), limits)), None)
        if best is None:
            return None
        ended.update((work.key, work) for work in best.works)
        touched = {name for work in best.works for name in work.nodes if name in steps}
        # A step changes with the works on its node, and with those that share a gang with them.
        near = {name for node in touched for work in on_node[node] for name in work.nodes if name in steps}
        for name in touched | near:
            steps[name] = _step(name, on_node, ended)
            if not steps[name].works:
                del steps[name]
    ended = _needed(ended, on_node, count)
    return _choice(tuple(ended.values()), on_node, exact=False)


def _needed(ended: dict[str, Work], on_node: Mapping[str, Sequence[Work]], count: int) -> dict[str, Work]:
    """The reverse pass: what is dear is given back first where the rest frees enough."""
    spare = sum(_is_free(on_it, ended) for on_it in on_node.values()) - count
    for work in sorted(ended.values(), key=_cheap_first, reverse=True):
        lost = sum(_is_free(on_node[name], ended) for name in work.nodes if name in on_node)
        if lost <= spare:
            spare -= lost
            ended = {key: other for key, other in ended.items() if key != work.key}
    return ended


@dataclass(frozen=True, slots=True)
class _Step:
    """The works whose end frees one more node, what that loses, and how many nodes become free by it."""

    works: tuple[Work, ...]
    loss_gpu_s: float
    frees: int


def _step(name: str, on_node: Mapping[str, Sequence[Work]], ended: Mapping[str, Work]) -> _Step:
    works = tuple(work for work in on_node[name] if work.key not in ended)
    after = {*ended, *(work.key for work in works)}
    touched = {node for work in works for node in work.nodes if node in on_node}
    frees = sum(all(work.key in after for work in on_node[node]) for node in touched)
    return _Step(works, sum(work.loss_gpu_s for work in works), frees)


def _is_free(on_it: Iterable[Work], ended: Mapping[str, Work]) -> bool:
    return all(work.key in ended for work in on_it)


def _within(works: Sequence[Work], limits: Limits) -> bool:
    if len(works) > limits.most:
        return False
    lost: dict[str, float] = {}
    for work in works:
        lost[work.team] = lost.get(work.team, 0.0) + held_nodes(work, limits.gpus_of)
    return all(nodes <= limits.spare_nodes.get(team, float("inf")) + _ROUNDING for team, nodes in lost.items())


def _choice(works: tuple[Work, ...], on_node: Mapping[str, Sequence[Work]], *, exact: bool) -> Choice:
    ended = {work.key: work for work in works}
    touched = sorted({name for work in works for name in work.nodes if name in on_node})
    freed = tuple(name for name in touched if _is_free(on_node[name], ended))
    in_order = tuple(sorted(works, key=_cheap_first))
    return Choice(in_order, freed, sum(work.loss_gpu_s for work in works), exact)
