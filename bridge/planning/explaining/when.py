"""When a demand would have its nodes: the time of the k-th soonest node, k being how many it needs.

A node in motion comes by the measured median of handoffs (else by the deadline of its step), a busy one when the time
limits of its work have ended it, a held one when its minimum hold is over; nodes of the other side a median later.
Nothing is guessed: where too few nodes have a known end there is no estimate, and the basis says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from bridge.model.ownership import Owner
from bridge.planning.explaining.answer import FIT, LIMITS, Estimate, Link
from bridge.planning.explaining.waiting import Waiting
from bridge.planning.refusals import BUSY, hold_refusal
from bridge.planning.snapshot import Place, count_nodes, obstacle
from bridge.planning.stock import offers, requirement


@dataclass(frozen=True, slots=True, order=True)
class _Arrival:
    """A node that will be there in `in_s`; `how` has a form for one node and a form for many."""

    in_s: float
    how: tuple[str, str]
    from_other_side: bool = False
    needs_room: bool = False


_FREE = ("is free already", "are free already")
_COMES = ("comes by a handoff under way", "come by handoffs under way")
_DEADLINE = ("comes by the deadline of its handoff's step", "come by the deadlines of their handoffs' steps")
_ENDS = ("ends by its time limits", "end by their time limits")
_NOBODY = ("is nobody's", "are nobody's")
_IDLE = ("is idle on the other side", "are idle on the other side")
_HELD = ("is free of hold, idle age and backoff", "are free of hold, idle age and backoff")


def estimate(waiting: Waiting, chain: tuple[Link, ...], *, not_before_s: float = 0.0) -> Estimate:
    """`not_before_s`: its own begin time. What only a person or another job can lift has no estimate."""
    lasting = next((link for link in chain if link.holds and _is_lasting(link)), None)
    if lasting is not None:
        return Estimate(None, f"not known: {lasting.text}")
    free = sum(place.handoff is None for place in waiting.had)
    arrivals = _within_quota(waiting, [_Arrival(0.0, _FREE)] * free + sorted(_arrivals(waiting)))
    needed = waiting.demand.nodes + sum(demand.nodes for demand in waiting.ahead)
    needed = max(1, min(needed, len(waiting.places)))
    after = f", after {waiting.ahead[0].key}" if waiting.ahead else ""
    if len(arrivals) < needed:
        known = f" ({_counts(arrivals)})" if arrivals else ""
        return Estimate(None, f"not known: {len(arrivals)} of {count_nodes(needed)}{after} have a known time{known}")
    used = arrivals[:needed]
    wait_s = max(not_before_s, waiting.scene.backs_off_s(waiting.demand.key))
    basis = f"{_counts(used)}{after}"
    if any(arrival.needs_room for arrival in used):
        handover_s = waiting.scene.handover_s(waiting.side)
        basis += "; " + (
            "hand-over not measured" if handover_s is None else f"hand-over measured p50 {handover_s:.1f} s"
        )
    if wait_s > used[-1].in_s:
        basis += f"; not before {wait_s:.0f} s"
    return Estimate(max(wait_s, used[-1].in_s), basis)


def _is_lasting(link: Link) -> bool:
    """Neither time nor nodes lift it: Slurm's limits, what cannot fit, a team's limit, UNKNOWN, a pause."""
    if link.layer == LIMITS:
        return "begins_in_s" not in link.numbers
    if link.layer == FIT:
        return "free_gpus" not in link.numbers
    return "guarantee_nodes" in link.numbers or link.command == "bridgectl status"


def _within_quota(waiting: Waiting, arrivals: list[_Arrival]) -> list[_Arrival]:
    """The soonest arrivals, no more from the other side than it may give, and no more than its own side may own."""
    gives, room = waiting.may_give, waiting.room
    found = []
    for arrival in arrivals:
        if (arrival.from_other_side and gives == 0) or (arrival.needs_room and room == 0):
            continue
        gives -= arrival.from_other_side
        room -= arrival.needs_room
        found.append(arrival)
    return found


def _counts(arrivals: list[_Arrival]) -> str:
    """``2 nodes end by their time limits within 840 s, 1 node is free already``"""
    latest: dict[tuple[str, str], float] = {}
    for arrival in arrivals:
        latest[arrival.how] = max(arrival.in_s, latest.get(arrival.how, 0.0))
    return ", ".join(
        f"{count_nodes(count)} {how[count > 1]}" + (f" within {latest[how]:.0f} s" if latest[how] else "")
        for how, count in Counter(arrival.how for arrival in arrivals).items()
    )


def _arrivals(waiting: Waiting) -> Iterator[_Arrival]:
    for place in waiting.places:
        if offers(place, requirement(waiting.demand)):
            arrival = _arrival(waiting, place)
            if arrival is not None:
                yield arrival


def _arrival(waiting: Waiting, place: Place) -> _Arrival | None:
    """When `place` is the demand's. None: not known, or it is free on its side already."""
    if place.handoff is not None:
        return _in_motion(waiting, place)
    if place.lease.owner is waiting.side.owner:
        return _ended(waiting, place) if waiting.refused.get(place.name, "").startswith(BUSY) else None
    handover_s = waiting.scene.handover_s(waiting.side) or 0.0
    if place.lease.owner is Owner.BRIDGE:
        return _Arrival(handover_s, _NOBODY, needs_room=True) if place in waiting.takeable else None
    return _from_other_side(waiting, place, handover_s)


def _in_motion(waiting: Waiting, place: Place) -> _Arrival | None:
    handoff = place.handoff
    if handoff is None or place.heading_for is not waiting.side:
        return None
    measured_s, now = waiting.scene.handover_s(waiting.side), waiting.scene.now
    gone_s = (now - handoff.began_at).total_seconds()
    if measured_s is not None and gone_s < measured_s:
        return _Arrival(measured_s - gone_s, _COMES)
    return _Arrival(max(0.0, (handoff.step_deadline_at - now).total_seconds()), _DEADLINE)


def _ended(waiting: Waiting, place: Place) -> _Arrival | None:
    """None where any work on the node has no time limit, or is not known."""
    ends = [work.ends_in_s for work in waiting.scene.works_on.get(place.name, ())]
    known = [end for end in ends if end is not None]
    return _Arrival(max(known), _ENDS) if ends and len(known) == len(ends) else None


def _from_other_side(waiting: Waiting, place: Place, handover_s: float) -> _Arrival | None:
    side, now, pool = waiting.side.other, waiting.scene.now, waiting.pool
    if obstacle(place, side) or place.sight.side(waiting.side).foreign:
        return None
    waits_s = 0.0
    if place.record.backoff_until is not None:
        waits_s = max(waits_s, (place.record.backoff_until - now).total_seconds())
    if hold_refusal(place, pool, now):
        waits_s = max(waits_s, pool.min_hold_s - (now - place.lease.owner_since).total_seconds())
    idle_s = place.idle_for_s(now)
    if idle_s < 0:
        ended = _ended(waiting, place)
        at_s = 0.0 if ended is None else max(waits_s, ended.in_s) + handover_s
        return None if ended is None else _Arrival(at_s, _ENDS, from_other_side=True, needs_room=True)
    waits_s = max(waits_s, pool.idle_age_s - idle_s)
    return _Arrival(waits_s + handover_s, _HELD if waits_s else _IDLE, from_other_side=True, needs_room=True)
