"""The planner's view of the fleet: one `Place` a node, with everything that speaks for or against moving it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from bridge.lifecycle.progress import Sight
from bridge.model.demand import Demand, Victim, Work
from bridge.model.handoff import Handoff
from bridge.model.ledger import NodeRecord, Preempted
from bridge.model.ownership import Lease, Owner, Side
from bridge.model.pause import Pause


@dataclass(frozen=True, slots=True)
class Place:
    """A node of the inventory, its lease, what is remembered of it and what was just seen."""

    record: NodeRecord
    lease: Lease
    handoff: Handoff | None
    sight: Sight
    features: frozenset[str] = frozenset()
    """Slurm's features and Kubernetes' labels as ``key=value``: what a demand may ask for."""
    switch: str = ""
    """The leaf switch it is under, or empty."""
    mig: str = ""
    """Its present MIG layout, or empty."""
    paused: str = ""
    """Why this very node is paused, or empty. Pauses of its pool and of everything are the snapshot's."""
    name: str = field(init=False, compare=False)
    """The node's: kept here, as a plan over thousands of nodes asks for it hundreds of thousands of times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.record.node.name)

    @property
    def heading_for(self) -> Side | None:
        """The side that owns the node, or will when its handoff ends well."""
        if self.handoff is None:
            return self.lease.owner.side
        owner = self.lease.owner.side
        return owner if owner is not None else self.handoff.destination

    def usable(self, side: Side) -> bool:
        """Counts for the floor of `side`: owned by it at rest, known, and offered with all its GPUs."""
        facts = self.sight.side(side)
        return self.handoff is None and self.lease.owner is side.owner and facts.known and facts.ready

    def idle_for_s(self, now: datetime) -> float:
        """Seconds since it was first seen idle on its owner's side; negative when it is busy or unknown."""
        since = self.record.idle_since
        return -1.0 if since is None else (now - since).total_seconds()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One pass's reading of everything. `unknown` lists the sides that could not be read, with the reason.

    `demands` are the heads of both queues in the order in which their schedulers would serve them, as far as the nodes
    of their pool could ever reach; `waiting` counts all jobs and pods that wait for nodes, those behind the heads too,
    by side. `works` is what runs on the places.
    `usage` is in GPU-seconds by team, decayed to now. `backoffs` says until when a demand is left alone. `reclaim_s`
    are measured durations of handoffs by destination.
    """

    places: tuple[Place, ...]
    demands: tuple[Demand, ...]
    unknown: tuple[str, ...] = ()
    pauses: tuple[Pause, ...] = ()
    works: tuple[Work, ...] = ()
    usage: Mapping[str, float] = field(default_factory=dict)
    backoffs: Mapping[str, datetime] = field(default_factory=dict)
    preempted: tuple[Preempted, ...] = ()
    reclaim_s: Mapping[Side, tuple[float, ...]] = field(default_factory=dict)
    waiting: Mapping[Side, int] = field(default_factory=dict)

    def of_pool(self, pool: str) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place.record.node.pool == pool)

    def halting(self, pool: str) -> tuple[Pause, ...]:
        """The pauses that cover all of `pool`."""
        return tuple(pause for pause in self.pauses if pause.scope.covers_pool(pool))

    def place(self, name: str) -> Place | None:
        return next((place for place in self.places if place.name == name), None)


@dataclass(frozen=True, slots=True)
class Move:
    """Nodes to hand over under one lease: all of a gang, or a single one. `reason` holds the numbers it rests on.

    `demand` is the key of the demand it serves, empty for a floor or a person. `victims` is what may be ended for it.
    """

    nodes: tuple[str, ...]
    source: Side
    destination: Side
    reason: str
    evict: bool
    requested_by: str
    demand: str = ""
    victims: tuple[Victim, ...] = ()


@dataclass(frozen=True, slots=True)
class Why:
    """Why `subject` (a demand, a node, a pool) did not lead to a move."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`paused`: why the demands of a paused pool wait, by their key; in `whys` that is said once, of the pool."""

    moves: tuple[Move, ...] = ()
    whys: tuple[Why, ...] = ()
    paused: Mapping[str, str] = field(default_factory=dict)


def owned_usable(places: tuple[Place, ...], side: Side) -> int:
    return sum(place.usable(side) for place in places)


def obstacle(place: Place, source: Side) -> str:
    """Why a node may not be taken from `source` at all, by anybody; empty when it may.

    A person's mark on the side that it goes to is no obstacle: the node goes back to whoever made it, still marked.
    """
    if place.handoff is not None:
        return f"in motion to {place.handoff.destination} ({place.handoff.step})"
    if place.lease.owner not in (source.owner, Owner.BRIDGE):
        return f"owned by {place.lease.owner}"
    if place.paused:
        return f"paused: {place.paused}"
    leaving, entering = place.sight.side(source), place.sight.side(source.other)
    for side, facts in ((source, leaving), (source.other, entering)):
        if not facts.known:
            return f"UNKNOWN on the {side} side: {facts.unknown}"
        if facts.foreign and side is source:
            return f"{facts.foreign} on the {side} side"
        if facts.stray_mark is not None:
            return f"carries {facts.stray_mark} on the {side} side, which the ledger does not know"
        if not facts.answers:
            return f"does not answer on the {side} side: {facts.not_ready or 'not responding'}"
    return ""


def in_line(demand: Demand) -> tuple[int, datetime, str]:
    """The place of a demand in its own scheduler's order: larger priority, then the longer wait."""
    return (-demand.priority, demand.since, demand.key)


def works_by_node(works: Iterable[Work]) -> dict[str, list[Work]]:
    """What runs on each node, by name."""
    found: dict[str, list[Work]] = {}
    for work in works:
        for name in work.nodes:
            found.setdefault(name, []).append(work)
    return found


def count_nodes(count: int, kind: str = "") -> str:
    """``1 node``, ``3 usable nodes``."""
    return " ".join(word for word in (str(count), kind, "node" if count == 1 else "nodes") if word)
