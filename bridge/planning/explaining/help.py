"""What would help a demand, ranked by what it displaces."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.model.demand import Work
from bridge.model.ownership import Side
from bridge.planning.explaining.answer import Estimate, Link, Remedy, ranked
from bridge.planning.explaining.waiting import Waiting
from bridge.planning.refusals import lasting_refusal
from bridge.planning.snapshot import Place, count_nodes
from bridge.planning.stock import offers, requirement

MOST_BROKEN = 3
APPLY = "bridgectl policy show > policy.yaml; bridgectl policy apply policy.yaml"


def remedies(waiting: Waiting, chain: tuple[Link, ...], when: Estimate) -> tuple[Remedy, ...]:
    """Cheapest first. None for a demand that lacks nothing."""
    if waiting.demand.impossible or not any(link.holds for link in chain):
        return ()
    found = [*_mended(waiting), *_policy(waiting, chain)]
    if waiting.lacking > 0:
        found += [*_defragmented(waiting), *_ended(waiting)]
    if when.in_s is not None:
        found.append(Remedy(f"wait: {when.in_s:.0f} s by the estimate", command="bridgectl plan"))
    return ranked(found)


def _mended(waiting: Waiting) -> Iterator[Remedy]:
    """Nodes that people drained or cordoned, or that do not offer all their GPUs."""
    count = 0
    for place in waiting.places:
        if not offers(place, requirement(waiting.demand)) or place.handoff is not None:
            continue
        for side in Side:
            facts, node = place.sight.side(side), place.record.node
            if not facts.foreign or count == MOST_BROKEN:
                continue
            count += 1
            command = (
                f"scontrol update nodename={node.slurm_name} state=resume"
                if side is Side.SLURM
                else f"kubectl uncordon {node.kube_name}"
            )
            yield Remedy(f"give {place.name} back to service once it is mended ({facts.foreign})", command=command)


def _policy(waiting: Waiting, chain: tuple[Link, ...]) -> Iterator[Remedy]:
    holding = [link.numbers for link in chain if link.holds]
    pool, lacking = waiting.pool, waiting.lacking
    if any("kept_nodes" in numbers for numbers in holding):
        yield from _lower_floor(waiting)
    if any("ceiling_nodes" in numbers and "owned_nodes" in numbers for numbers in holding):
        need = lacking - waiting.room
        yield Remedy(
            f"raise max_nodes or borrow_limit_nodes of {waiting.side} in pool {pool.name} by {need}",
            command=APPLY,
        )
    if any("guarantee_nodes" in numbers for numbers in holding):
        yield Remedy(f"raise the borrow_limit_nodes of team {waiting.demand.team}", command=APPLY)
    if any("max_in_flight" in numbers for numbers in holding):
        yield Remedy(f"raise max_in_flight of pool {pool.name} above {pool.max_in_flight}", command=APPLY)


def _lower_floor(waiting: Waiting) -> Iterator[Remedy]:
    other = waiting.side.other
    share = waiting.shares[other]
    to = max(0, share.floor_nodes - (waiting.lacking - waiting.may_give - waiting.spare))
    text = f"lower floor_nodes of {other} in pool {waiting.pool.name} from {share.floor_nodes} to {to}"
    idle = [place for place in waiting.places if place.usable(other) and place.sight.side(other).idle]
    at_work = share.floor_nodes - to + waiting.may_give - len(idle)
    if at_work <= 0:
        yield Remedy(text, command=APPLY)
        return
    busy = [place for place in waiting.places if place.usable(other) and not place.sight.side(other).idle]
    losses = sorted(_loss(_works(waiting, place)) for place in busy)
    yield Remedy(text, f"work on {count_nodes(at_work)} of {other}", sum(losses[:at_work]), APPLY)


# --- work that could be moved or ended ---


def _loss(works: list[Work]) -> float:
    return sum(work.loss_gpu_s for work in works)


def _defragmented(waiting: Waiting) -> Iterator[Remedy]:
    """The cheapest partly used node of its own side whose work has room on other partly used ones."""
    side = waiting.side
    partly = {
        place: free
        for place in waiting.places
        if place.usable(side)
        and (free := waiting.scene.free_gpus(place, side))
        and free < place.record.node.gpus
        and waiting.scene.works_on.get(place.name)
    }
    for place, free in sorted(partly.items(), key=lambda item: (_loss(_works(waiting, item[0])), item[0].name)):
        works = _works(waiting, place)
        used, room = place.record.node.gpus - free, sum(partly.values()) - free
        if used > room or any(len(work.nodes) > 1 or work.protected for work in works):
            continue
        names = ", ".join(work.key for work in works)
        yield Remedy(
            f"free {place.name} by moving {names} ({used} GPUs) to the {room} free GPUs of other partly used nodes",
            f"{names}, started anew there",
            _loss(works),
            _end_command(works[0]),
        )
        return


def _works(waiting: Waiting, place: Place) -> list[Work]:
    return waiting.scene.works_on.get(place.name, [])


def _ended(waiting: Waiting) -> Iterator[Remedy]:
    """The busy nodes whose work is cheapest to end, one after the other until there are enough: a person's way out."""
    candidates = []
    for place in waiting.places:
        side = place.lease.owner.side
        works = _works(waiting, place)
        if side is None or not works or not offers(place, requirement(waiting.demand)) or place.handoff is not None:
            continue
        if any(work.protected for work in works) or lasting_refusal(place, side, waiting.scene.now):
            continue
        candidates.append(place)
    candidates.sort(key=lambda place: (_loss(_works(waiting, place)), place.name))
    needed = waiting.lacking - len(waiting.takeable)
    chosen = candidates[: max(1, needed)]
    works = list(dict.fromkeys(work for place in chosen for work in _works(waiting, place)))
    if not works:
        return
    names = ", ".join(work.key for work in works[:3]) + (f" and {len(works) - 3} more" if len(works) > 3 else "")
    freed = ", ".join(place.name for place in chosen)
    yield Remedy(f"end {names}: frees {freed}", names, _loss(works), _end_command(works[0]))


def _end_command(work: Work) -> str:
    if work.job is not None:
        return f"scontrol requeue {work.job}"
    namespace, _, name = work.key.removeprefix("pod ").partition("/")
    return f"kubectl -n {namespace} delete pod {name}"
