"""What stops new handoffs: a small set of pauses, each with its reach, its reason and who set it.

A pause never touches a handoff that runs: half of one is worse than either end. Pauses of different kinds and scopes
stand beside each other; a node may begin to move only while none covers it, but for those that a recall calls home, and
for what people order while only the circuit breaker has tripped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from bridge.model.errors import Invalid


class Reach(StrEnum):
    EVERYTHING = "everything"
    POOL = "pool"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a pause is about. `name` is that of the pool or the node, empty for everything."""

    reach: Reach = Reach.EVERYTHING
    name: str = ""

    def __post_init__(self) -> None:
        if (self.reach is Reach.EVERYTHING) == bool(self.name):
            raise Invalid(f"a pause of {self.reach} with the name {self.name!r}")

    def covers_pool(self, pool: str) -> bool:
        """Whether it reaches all of `pool`."""
        return self.reach is Reach.EVERYTHING or (self.reach is Reach.POOL and self.name == pool)

    def covers(self, pool: str, node: str) -> bool:
        """Whether it reaches `node` of `pool`."""
        return self.covers_pool(pool) or (self.reach is Reach.NODE and self.name == node)

    @property
    def ended_by(self) -> str:
        """The command that ends its pause."""
        option = "" if self.reach is Reach.EVERYTHING else f" --{self.reach} {self.name}"
        return f"bridgectl resume{option}"

    def __str__(self) -> str:
        return f"{self.reach} {self.name}".rstrip()


EVERYTHING = Scope()


class PauseKind(StrEnum):
    """``stop``: nothing begins. ``recall``: nothing begins but that every lent node comes home. ``breaker``: the
    planner begins nothing of its own; orders and recalls go on."""

    STOP = "stop"
    RECALL = "recall"
    BREAKER = "breaker"


PauseKey = tuple[Scope, PauseKind]


@dataclass(frozen=True, slots=True)
class Pause:
    """One of each kind and scope at most. Raises `Invalid` without a reason, and for the recall of one node.

    Only of the breaker's: since `calm_since` nothing of what trips it holds any more; a person lifted it at
    `released_at`: it stops nothing, and is kept so that what was there before does not trip it again.
    """

    scope: Scope
    reason: str
    actor: str
    at: datetime
    kind: PauseKind = PauseKind.STOP
    calm_since: datetime | None = None
    released_at: datetime | None = None

    def __post_init__(self) -> None:
        if not self.reason:
            raise Invalid("a pause needs a reason: end one with resume")
        if self.kind is PauseKind.RECALL and self.scope.reach is Reach.NODE:
            raise Invalid("a recall is of pools: one node is brought home by an order")

    @property
    def key(self) -> PauseKey:
        return (self.scope, self.kind)

    @property
    def why(self) -> str:
        """The reason, with what it is where that is more than a stop."""
        before = {PauseKind.RECALL: f"recalled by {self.actor}: ", PauseKind.BREAKER: "circuit breaker: "}
        return f"{before.get(self.kind, '')}{self.reason}"

    def lifted(self, at: datetime) -> Pause | None:
        """What is left of it when a person lifts it: nothing, but for the breaker's."""
        return replace(self, released_at=at) if self.kind is PauseKind.BREAKER else None

    def __str__(self) -> str:
        return self.why if self.scope == EVERYTHING else f"{self.scope}: {self.why}"


def in_order(pauses: Iterable[Pause]) -> tuple[Pause, ...]:
    """Those that reach farthest first, then by name and kind."""
    rank = list(Reach)
    return tuple(sorted(pauses, key=lambda each: (rank.index(each.scope.reach), each.scope.name, each.kind)))


def standing(pauses: Iterable[Pause]) -> tuple[Pause, ...]:
    """Those that stop something, in order."""
    return in_order(pause for pause in pauses if pause.released_at is None)


def released(pauses: Iterable[Pause]) -> tuple[Pause, ...]:
    """Those of the breaker that a person lifted, in order."""
    return in_order(pause for pause in pauses if pause.released_at is not None)


def joined(pauses: Iterable[Pause]) -> str:
    """All of them in one text, empty when there is none."""
    return "; ".join(map(str, pauses))
