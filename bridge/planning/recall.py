"""A recall: for as long as it stands, every lent node of a pool comes home and nothing else is planned there.

It is a state, not an order, so nothing has to be remembered of it: each plan names what still is lent. A node that
cannot be taken now is named with the obstacle and asked again in the next pass; one whose handoff went back, after its
backoff; one that was on its way out, once it has arrived.

Floors, borrow limits, minimum holds and the limit of moves in flight are not asked: somebody wants the nodes, whatever
the policy says. The work on them is asked politely all the same. Pods go by evictions within their budgets, as for any
order of a person; jobs are ended where the policy lets work be requeued, with its signal, grace and limits, and waited
for where it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from bridge.model.demand import Work
from bridge.model.ownership import Side
from bridge.model.pause import Pause, PauseKind
from bridge.model.policy import PoolPolicy, PreemptionMode
from bridge.planning import victims
from bridge.planning.refusals import backoff_refusal
from bridge.planning.snapshot import Move, Place, Plan, Snapshot, Why, obstacle, works_by_node


def recalling(pauses: Iterable[Pause]) -> Pause | None:
    """The recall among `pauses`, the first of them."""
    return next((pause for pause in pauses if pause.kind is PauseKind.RECALL), None)


def recall(pool: PoolPolicy, snapshot: Snapshot, by: Pause, now: datetime) -> Plan:
    """One move home for each lent node at rest, for who set `by`; why the others do not come yet."""
    away, asked = pool.home.other, pool.preemption
    on_node = _endable(pool, snapshot, now)
    most = victims.left_in_window(snapshot.preempted, asked, now)
    moves: list[Move] = []
    whys: list[Why] = []
    ended: set[str] = set()
    for place in sorted(snapshot.of_pool(pool.name), key=lambda place: place.name):
        if place.heading_for is not away:
            continue
        ends = on_node.get(place.name, ())
        fresh = {work.key for work in ends} - ended
        stays = _stays(place, away, now)
        if not stays and fresh and len(ended) >= most:
            stays = f"its work is asked to go later: at most {asked.max_victims_per_window} in {asked.window_s:g} s"
        if stays:
            whys.append(Why(place.name, f"is recalled and stays for now: {stays}"))
            continue
        ended |= fresh
        moves.append(
            Move(
                nodes=(place.name,),
                source=away,
                destination=pool.home,
                reason=f"recalled: {by.reason}",
                evict=True,
                requested_by=by.actor,
                victims=tuple(victims.named(work, asked) for work in ends),
            )
        )
    return Plan(tuple(moves), tuple(whys))


def _stays(place: Place, away: Side, now: datetime) -> str:
    return obstacle(place, away) or backoff_refusal(place, now)


def _endable(pool: PoolPolicy, snapshot: Snapshot, now: datetime) -> Mapping[str, Sequence[Work]]:
    """The jobs that may be ended, by node."""
    asked = pool.preemption
    if pool.home is Side.SLURM or asked.mode is not PreemptionMode.REQUEUE or not asked.max_victims_per_window:
        return {}
    works = (victims.spared(work, snapshot.preempted, asked, now) for work in snapshot.works)
    return works_by_node(work for work in works if work.side is Side.SLURM and not work.protected)
