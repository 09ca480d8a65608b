"""Arbitrary fleets, queues and policies for the planner's laws, and what becomes of a fleet when a plan is carried out.

Names are short so that a failing example can be read: nodes ``n1``…, gangs ``g1``…, serving needs ``s1``…, jobs ``j1``…
and pods ``p1``….
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from hypothesis import strategies as st

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.demand import Demand, Work
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import NodeRecord, Preempted
from bridge.model.ownership import Lease, Mark, Node, Owner, Side
from bridge.model.policy import Policy
from bridge.planning.planner import PLANNER
from bridge.planning.snapshot import Place, Plan, Snapshot
from tests.property.worlds import NOW, OFFERED, SHUT

POOL = "shared"
GPUS = 8
AGES_S = st.sampled_from([0, 1, 5, 30, 60, 3600])
FEATURES = (frozenset[str](), frozenset({"h100"}), frozenset({"h100", "ib"}))
TEAMS = ("red", "blue", "grey")
"""`grey` is never named in a policy."""

_BUSY = replace(OFFERED, idle=False)
_HERE = st.sampled_from(
    [OFFERED] * 4
    + [_BUSY] * 6
    + [
        SideFacts(unknown="slurmctld does not list it"),
        replace(OFFERED, ready=False, foreign="drained by admin: bad DIMM"),
        replace(OFFERED, ready=False, answers=False, not_ready="slurmctld shows DOWN"),
        replace(OFFERED, ready=False, not_ready="slurmctld offers 4 of 8 GPUs"),
        replace(OFFERED, opened=False, stray_mark=Mark("lease0009", 9, 9)),
    ]
)
_AWAY = st.sampled_from(
    [SHUT] * 8
    + [
        SideFacts(unknown="the node controller's heartbeat is stale"),
        replace(SHUT, foreign="cordoned"),
        replace(SHUT, answers=False, not_ready="the kubelet does not answer"),
    ]
)
_OWNERS = st.sampled_from([Owner.SLURM] * 4 + [Owner.KUBERNETES] * 4 + [Owner.BRIDGE])
_MOTIONS = st.sampled_from([None] * 6 + [Step.CLOSE, Step.EMPTY, Step.OPEN, Step.REPROVE])


@st.composite
def places(draw: st.DrawFn, number: int, *, calm: bool = False, crowd: Side | None = None) -> Place:
    """With `calm`, at rest and with nothing wrong, and owned by a side; with `crowd`, mostly busy with that side."""
    name = f"n{number}"
    motion = None if calm else draw(_MOTIONS)
    source = draw(st.sampled_from(list(Side)))
    owner = source.owner if calm else draw(_OWNERS)
    if crowd is not None:
        owner = draw(st.sampled_from([crowd.owner] * 4 + [crowd.other.owner]))
    handoff = None
    if motion is not None:
        owner = {Step.OPEN: source.other.owner, Step.REPROVE: source.owner}.get(motion, Owner.BRIDGE)
        handoff = in_motion(name, source, motion, demand=draw(st.sampled_from(["", "", "g1", "s1"])))
    here = draw(st.sampled_from([OFFERED, OFFERED, _BUSY])) if calm else draw(_HERE)
    if crowd is not None:
        here = draw(st.sampled_from([_BUSY] * 5 + [OFFERED]))
    other = SHUT if calm else draw(_AWAY)
    age_s = 3600 if calm else draw(AGES_S)
    return Place(
        record=NodeRecord(
            Node(name, name, f"{name}.k", POOL, GPUS),
            NOW - timedelta(seconds=3600 if calm else draw(AGES_S)) if here.idle and handoff is None else None,
            None if calm else draw(st.sampled_from([None, None, None, NOW + timedelta(seconds=5), NOW])),
            "" if calm else draw(st.sampled_from(["", "", "", "the kubelet offers 0 of 8 GPUs"])),
        ),
        lease=Lease("lease0001", name, owner, 1, 1, NOW - timedelta(seconds=age_s)),
        handoff=handoff,
        sight=_sight(owner, here, other),
        features=draw(st.sampled_from(FEATURES)),
        switch=draw(st.sampled_from(["a", "b"])),
    )


def _sight(owner: Owner, here: SideFacts, other: SideFacts) -> Sight:
    if owner is Owner.BRIDGE:
        return Sight(SHUT, SHUT) if other is SHUT else Sight(SHUT, other)
    return Sight(other, here) if owner is Owner.KUBERNETES else Sight(here, other)


def in_motion(name: str, source: Side, step: Step, *, demand: str = "", requested_by: str = "alice") -> Handoff:
    long_ago, later = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
    return Handoff(
        id=f"h-{name}",
        lease="lease0002",
        node=name,
        source=source,
        destination=source.other,
        step=step,
        reason="",
        requested_by=requested_by,
        generation=1,
        nonce="",
        evict=True,
        began_at=long_ago,
        step_began_at=long_ago,
        step_deadline_at=later,
        demand=demand,
    )


@st.composite
def demands(draw: st.DrawFn, number: int, side: Side | None = None) -> Demand:
    """A gang of Slurm, or on Kubernetes a gang or a serving need."""
    wanting = side or draw(st.sampled_from(list(Side)))
    whole = wanting is Side.SLURM or draw(st.integers(0, 3)) == 0
    return Demand(
        key=f"{'g' if whole else 's'}{number}",
        side=wanting,
        pool=POOL,
        nodes=draw(st.integers(1, 5)),
        whole=whole,
        priority=draw(st.integers(0, 2)),
        since=NOW - timedelta(seconds=draw(st.sampled_from([0, 1, 5, 30, 60, 1000, 3600]))),
        team=draw(st.sampled_from(TEAMS)),
        rank=draw(st.sampled_from([0, 0, 1])),
        gpus_per_node=draw(st.sampled_from([0] * 3 + [8] * 6 + [9])),
        features=draw(
            st.sampled_from([(), (), (), (), (frozenset({"h100"}),), (frozenset({"ib"}), frozenset({"h100"}))])
        ),
        switches=draw(st.sampled_from([0, 0, 1])),
        impossible=draw(st.sampled_from([""] * 9 + ["no node is large enough"])),
    )


@st.composite
def works(draw: st.DrawFn, fleet: tuple[Place, ...]) -> tuple[Work, ...]:
    """On every busy node something that could be ended: jobs over several nodes, or one or two pods a node."""
    found: list[Work] = []
    training = [place.name for place in fleet if _runs(place, Side.SLURM)]
    while training:
        size = draw(st.integers(1, min(3, len(training))))
        found.append(draw(_work(f"j{len(found) + 1}", Side.SLURM, tuple(training[:size]), GPUS * size)))
        training = training[size:]
    for place in fleet:
        if _runs(place, Side.KUBERNETES):
            pods = draw(st.integers(1, 2))
            for _ in range(pods):
                found.append(draw(_work(f"p{len(found) + 1}", Side.KUBERNETES, (place.name,), GPUS // pods)))
    return tuple(found)


def _runs(place: Place, side: Side) -> bool:
    facts = place.sight.side(side)
    return place.lease.owner is side.owner and place.handoff is None and facts.known and facts.ready and not facts.idle


@st.composite
def _work(draw: st.DrawFn, key: str, side: Side, nodes: tuple[str, ...], gpus: int) -> Work:
    return Work(
        key=key,
        side=side,
        team=draw(st.sampled_from(TEAMS)),
        nodes=nodes,
        gpus=gpus,
        priority=0,
        rank=draw(st.sampled_from([0, 0, 1])),
        runs_for_s=7200,
        ends_in_s=draw(st.sampled_from([None, None, 100, 1000])) if side is Side.SLURM else None,
        loss_gpu_s=draw(st.integers(0, 5)) * 100,
        protected=draw(st.sampled_from(["", "", "", "its account is never a victim"])),
        job=int(key[1:]) if side is Side.SLURM else None,
        idle_worker=side is Side.KUBERNETES and draw(st.booleans()),
    )


@st.composite
def fleets(draw: st.DrawFn, *, calm: bool = False, crowded: bool = False, wishes: int = 4) -> Snapshot:
    """With `crowded`, one side has nearly all nodes, with works on them, and only the other side wants any."""
    size, wanting = draw(st.integers(2 if crowded else 1, 7)), draw(st.integers(min(1, wishes), wishes))
    crowd = draw(st.sampled_from(list(Side))) if crowded else None
    asking = crowd.other if crowd else None
    standing = tuple(draw(places(number, calm=calm or crowded, crowd=crowd)) for number in range(1, size + 1))
    running = draw(works(standing))
    lately = st.builds(
        Preempted,
        st.sampled_from([work.key for work in running] or ["j9"]),
        st.sampled_from(list(Side)),
        st.sampled_from([NOW - timedelta(seconds=age_s) for age_s in (1, 700, 5000)]),
        st.just(1.0),
    )
    queue = tuple(draw(demands(number, asking)) for number in range(1, wanting + 1))
    return Snapshot(
        places=standing,
        demands=queue,
        works=running,
        usage={team: draw(st.sampled_from([0.0, 100.0, 900.0])) for team in TEAMS},
        backoffs={} if calm else draw(st.dictionaries(st.just("g1"), st.just(NOW + timedelta(seconds=9)), max_size=1)),
        preempted=() if calm else tuple(draw(st.lists(lately, max_size=2))),
    )


def _share(draw: st.DrawFn) -> dict[str, object]:
    floor = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    return {
        "floor_nodes": floor,
        "max_nodes": draw(st.sampled_from([None] * 7 + [floor, floor + 1, floor + 3])),
        "lend_limit_nodes": draw(st.integers(0, floor)),
        "borrow_limit_nodes": draw(st.sampled_from([None] * 7 + [0, 1, 3])),
        "weight": draw(st.sampled_from([0, 1, 1, 2])),
    }


@st.composite
def policies(draw: st.DrawFn, *, modes: tuple[str, ...] = ("none", "idle_only", "requeue", "requeue")) -> Policy:
    pool = {
        "name": POOL,
        "nodes": ("n[1-9]",),
        "partition": POOL,
        "home": draw(st.sampled_from(list(Side))),
        "slurm": _share(draw),
        "kubernetes": _share(draw),
        "headroom": {"nodes": draw(st.sampled_from([0, 0, 0, 1, 2]))},
        "preemption": {
            "mode": draw(st.sampled_from(modes)),
            "max_victims_per_window": draw(st.sampled_from([0, 1, 2, 8, 8])),
            "window_s": 600,
            "respite_s": draw(st.sampled_from([0, 3600])),
        },
        "demand_age_s": draw(st.sampled_from([0, 2])),
        "idle_age_s": draw(st.sampled_from([0, 2])),
        "min_hold_s": draw(st.sampled_from([0, 10, 60])),
        "batch_window_s": 0,
        "max_in_flight": draw(st.sampled_from([1, 2, 8, 8])),
        "max_maintenance_nodes": draw(st.sampled_from([None] * 7 + [0, 2])),
    }
    teams = [
        {
            "name": team,
            "guarantee_nodes": draw(st.sampled_from([0, 0, 1, 2])),
            "borrow_limit_nodes": draw(st.sampled_from([None, None, None, None, 0, 2])),
            "weight": draw(st.sampled_from([0, 1, 2])),
        }
        for team in TEAMS[:2]
    ]
    return Policy.model_validate({"pools": [pool], "teams": teams})


# --- what becomes of a fleet ---


def begun(snapshot: Snapshot, planned: Plan) -> Snapshot:
    """The fleet right after the plan was committed: what moves is nobody's and closed, and its victims are written."""
    moves = {name: move for move in planned.moves for name in move.nodes}

    def started(place: Place) -> Place:
        move = moves.get(place.name)
        if move is None:
            return place
        handoff = in_motion(place.name, move.source, Step.CLOSE, demand=move.demand, requested_by=PLANNER)
        return replace(
            place,
            record=replace(place.record, idle_since=None),
            lease=replace(place.lease, owner=Owner.BRIDGE, owner_since=NOW),
            handoff=handoff,
        )

    victims = {victim.key: victim for move in planned.moves for victim in move.victims}
    return replace(
        snapshot,
        places=tuple(started(place) for place in snapshot.places),
        preempted=(*(Preempted(v.key, v.side, NOW, v.loss_gpu_s) for v in victims.values()), *snapshot.preempted),
    )


def carried_out(snapshot: Snapshot, planned: Plan) -> Snapshot:
    """All moves have ended well, an hour ago: the nodes are idle on the other side and old enough to be taken again."""
    moves = {name: move for move in planned.moves for name in move.nodes}
    ended = {victim.key for move in planned.moves for victim in move.victims}
    left = tuple(_without(work, moves) for work in snapshot.works if work.key not in ended)
    busy = {name for work in left for name in work.nodes}

    def after(place: Place) -> Place:
        move = moves.get(place.name)
        if move is not None:
            return standing(place, move.destination)
        ended_here = any(place.name in work.nodes for work in snapshot.works if work.key in ended)
        side = place.lease.owner.side
        return standing(place, side) if ended_here and side is not None and place.name not in busy else place

    return replace(
        snapshot,
        places=tuple(after(place) for place in snapshot.places),
        works=tuple(work for work in left if work.nodes),
    )


def _without(work: Work, gone: Iterable[str]) -> Work:
    """What waited for its end on a node that was drained has ended there."""
    return replace(work, nodes=tuple(name for name in work.nodes if name not in gone))


def standing(place: Place, side: Side, *, idle: bool = True) -> Place:
    """The node at rest with `side`, since an hour."""
    facts = OFFERED if idle else _BUSY
    since = NOW - timedelta(hours=1)
    return replace(
        place,
        record=replace(place.record, idle_since=since if idle else None, unusable=""),
        lease=replace(place.lease, owner=side.owner, owner_since=since),
        handoff=None,
        sight=_sight(side.owner, facts, SHUT),
    )


def idle_node(name: str, side: Side) -> Place:
    """One that anybody could use."""
    lease = Lease("lease0001", name, side.owner, 1, 1, NOW)
    record = NodeRecord(Node(name, name, f"{name}.k", POOL, GPUS))
    return standing(Place(record, lease, None, Sight(SHUT, SHUT), FEATURES[-1], "a"), side)
