"""Which of equally cheap nodes: a gang under the fewest switches, single nodes where they break the fewest blocks.

A block is all nodes of the pool under one switch; it is whole while one owner has all of it. A node whose switch is not
known is a block of its own, and never whole. The fewest switches that hold `count` nodes are found by taking the ones
with the most candidates first: swapping a switch of any cover for a larger one never loses nodes, so none is smaller.
The last one is the one that is just large enough, so that large free blocks stay for large gangs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from bridge.planning.snapshot import Place

_Rank = tuple[bool, float, str]


@dataclass(frozen=True, slots=True)
class _Block:
    """Candidates under one switch, the best first. `known`: the switch has a name; `anchored`: the gang is there."""

    nodes: tuple[Place, ...]
    rank: _Rank
    known: bool
    anchored: bool
    whole: bool


def choose(
    candidates: Sequence[Place],
    count: int,
    *,
    whole: Collection[str],
    anchored: Collection[str],
    together: bool,
    mig: str,
    now: datetime,
) -> tuple[Place, ...]:
    """At most `count` of `candidates`, in the order in which they are taken.

    `whole` are the switches whose nodes all belong to one owner, `anchored` those under which the same gang has nodes
    already. `together`: the nodes are for one gang. `mig` is the layout that the destination wants, empty for any: of
    two nodes that are equal otherwise the one that needs no new layout is taken, then the longest idle one.
    """
    if count <= 0:
        return ()
    blocks = _blocks(candidates, whole, anchored, mig, now)
    in_order = _for_gang(blocks, count) if together else sorted(blocks, key=_least_broken)
    return tuple([place for block in in_order for place in block.nodes][:count])


def fewest_switches(names: Collection[str], count: int, switch_of: Mapping[str, str]) -> int:
    """Under how few switches `count` of the nodes `names` can be; one of no known switch counts for itself."""
    sizes: dict[str, int] = {}
    for name in names:
        switch = switch_of.get(name) or f"node {name}"
        sizes[switch] = sizes.get(switch, 0) + 1
    found = used = 0
    for size in sorted(sizes.values(), reverse=True):
        if found >= count:
            break
        found, used = found + size, used + 1
    return used


def _blocks(
    candidates: Sequence[Place], whole: Collection[str], anchored: Collection[str], mig: str, now: datetime
) -> list[_Block]:
    by_switch: dict[str, list[tuple[_Rank, Place]]] = {}
    for place in candidates:
        rank = (bool(mig) and place.mig != mig, -place.idle_for_s(now), place.name)
        by_switch.setdefault(place.switch or f"node {place.name}", []).append((rank, place))
    blocks = []
    for switch, ranked in by_switch.items():
        ranked.sort(key=_by_rank)
        known = bool(ranked[0][1].switch)
        blocks.append(
            _Block(
                nodes=tuple(place for _, place in ranked),
                rank=ranked[0][0],
                known=known,
                anchored=known and switch in anchored,
                whole=known and switch in whole,
            )
        )
    return blocks


def _by_rank(ranked: tuple[_Rank, Place]) -> _Rank:
    return ranked[0]


def _least_broken(block: _Block) -> tuple[bool, int, _Rank]:
    """Blocks that are broken already, then the smallest rest; nodes of no switch break nothing."""
    return (block.whole, len(block.nodes) if block.known else 0, block.rank)


def _for_gang(blocks: Sequence[_Block], count: int) -> list[_Block]:
    """Where the gang is already, then the largest blocks, then the one that is just large enough for the rest."""
    rest = sorted(blocks, key=_largest)
    found: list[_Block] = []
    left = count
    while rest and left > 0:
        fitting = [block for block in rest if len(block.nodes) >= left and not rest[0].anchored]
        block = min(fitting, key=_just_large_enough) if fitting else rest[0]
        if len(block.nodes) == 1 and not block.anchored and not fitting:
            return found + rest  # single nodes only from here on: their order is that of their ranks
        rest.remove(block)
        found.append(block)
        left -= len(block.nodes)
    return found


def _largest(block: _Block) -> tuple[bool, int, bool, _Rank]:
    return (not block.anchored, -len(block.nodes), block.whole, block.rank)


def _just_large_enough(block: _Block) -> tuple[int, bool, _Rank]:
    return (len(block.nodes), block.whole, block.rank)
