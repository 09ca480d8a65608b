"""A pass in which everything is decided and nothing is done: what a broker in `dry_run` says and writes.

Nodes that nobody has taken in yet are planned for as if they had been, or a broker on its first day would have nothing
to say. No lease, handoff or closure is written: the Slurm agent, the node controller and the next active leader act on
those. Handoffs that an active broker left are neither moved on nor judged. Pure, like `bridge.reconciler.decide`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from bridge.lifecycle.progress import Sight
from bridge.model.errors import Unreadable
from bridge.model.kube import KubeObservation
from bridge.model.ledger import LedgerState, Note, RequestState
from bridge.model.ownership import Lease, Owner, Side
from bridge.planning.adoption import Adoption, adopt, assumed
from bridge.planning.orders import judge_order
from bridge.planning.planner import plan
from bridge.planning.snapshot import Move, Plan, Snapshot
from bridge.reconciler.decide import Decider
from bridge.reconciler.look import World

SAID_FOR = timedelta(minutes=10)
"""What would not be done for so long is news when it would be done again."""

MOST_NAMED = 10

_REMEDY = "start the broker with BRIDGE_MODE=active to have nodes moved"

Said = Mapping[tuple[object, ...], datetime]
"""When each thing that was said was last still so."""


@dataclass(frozen=True, slots=True)
class AsIf:
    """Ledger and world as if every node that can be taken in had been. `adoptions`: what would become of each node."""

    state: LedgerState
    world: World
    adoptions: dict[str, Adoption] = field(default_factory=dict)


def as_if_adopted(state: LedgerState, world: World, seen: Mapping[str, Sight]) -> AsIf:
    """A node that carries a mark of ours all the same is told of, and not planned for: its ledger is from the past."""
    adoptions, leases = {}, {}
    for name, record in state.nodes.items():
        pool = state.policy.pool(record.node.pool)
        if name in state.leases or pool is None:
            continue
        marks = [mark.token for side in Side if (mark := seen[name].side(side).stray_mark) is not None]
        found = adopt(seen[name], pool.home, newest=max(marks, default=(0, 0)))
        adoptions[name] = found
        if found.owner is not None and not marks:
            leases[name] = assumed(name, found.owner)
    if not leases:
        return AsIf(state, world, adoptions)
    opened = {state.nodes[name].node.kube_name: lease for name, lease in leases.items()}
    kubernetes = _as_if_opened(world.kubernetes, opened)
    return AsIf(replace(state, leases={**state.leases, **leases}), replace(world, kubernetes=kubernetes), adoptions)


def _as_if_opened(seen: KubeObservation | Unreadable, leases: Mapping[str, Lease]) -> KubeObservation | Unreadable:
    """With the node controller's word that those of `leases` (by Kubernetes name) that are Kubernetes's are open."""
    if isinstance(seen, Unreadable):
        return seen
    nodes = dict(seen.nodes)
    for name, lease in leases.items():
        if name in nodes and lease.owner is Owner.KUBERNETES:
            status = replace(nodes[name].status, observed=lease.mark, open=True)
            nodes[name] = replace(nodes[name], status=status)
    return replace(seen, nodes=nodes)


def first_words(holder: str, state: LedgerState, now: datetime) -> Note:
    """For the event log, when a leader begins that moves nothing."""
    left = f"; handoffs that stand still: {_list(sorted(state.handoffs))}" if state.handoffs else ""
    message = f"{holder} leads in dry_run: it says what it would do, begins no handoff and calls nothing outside{left}"
    return Note("mode", message, now)


@dataclass
class Rehearsal(Decider):
    """A `Decider` that says instead of doing. `state` is as if adopted; `said` is what earlier passes said."""

    adoptions: Mapping[str, Adoption] = field(default_factory=dict)
    said: Said = field(default_factory=dict)
    saying: dict[tuple[object, ...], datetime] = field(default_factory=dict)
    """What has been said after this pass, once its changes are committed."""

    def decide(self, snapshot: Snapshot) -> Plan:
        self.saying = {key: at for key, at in self.said.items() if self.now - at < SAID_FOR}
        self._say_adoptions()
        self._refuse_orders(snapshot)
        planned = plan(snapshot, self.state.policy, self.now)
        self._say_moves(planned)
        self._remember()
        self._remember_use(snapshot.works)
        return planned

    def _is_news(self, *key: object) -> bool:
        known = key in self.saying
        self.saying[key] = self.now
        return not known

    def _say_adoptions(self) -> None:
        """All nodes of which the same is to be said in one line. UNKNOWN says nothing about a node."""
        alike: dict[tuple[Owner | None, str], list[str]] = {}
        for name, found in self.adoptions.items():
            known = self.seen[name].slurm.known and self.seen[name].kubernetes.known
            if known and self._is_news("adoption", name, found.owner):
                alike.setdefault((found.owner, found.reason), []).append(name)
        for (owner, reason), names in alike.items():
            as_what = f"would be taken in as {owner}'s" if owner else "would not be taken in"
            data = {"nodes": names, "owner": str(owner) if owner else None}
            self.changes.append(_would(f"{_list(names)} {as_what}: {reason}", data, self.now))

    def _say_moves(self, planned: Plan) -> None:
        """A move for a demand is news once, whichever nodes are the best for it by now."""
        alike: Counter[tuple[object, ...]] = Counter()
        for move in planned.moves:
            whose = move.demand or (move.nodes, move.requested_by)
            key = ("move", whose, move.source, move.destination, len(move.nodes))
            alike[key] += 1
            if self._is_news(*key, alike[key]):
                self.changes.append(_would(_told(move), _numbers(move), self.now))

    def _refuse_orders(self, snapshot: Snapshot) -> None:
        for request in self.state.requests:
            judged = judge_order(request, snapshot, self.state.policy, self.now)
            otherwise = "it would be begun" if isinstance(judged, Move) else f"it would be refused too: {judged}"
            answer = f"this broker runs in dry_run and moves nothing (in active mode {otherwise}); {_REMEDY}"
            self._answer(request, RequestState.REFUSED, answer)


def _would(message: str, data: dict[str, Any], now: datetime) -> Note:
    nodes = data["nodes"]
    return Note("would", message, now, node=nodes[0] if len(nodes) == 1 else None, data=data)


def _told(move: Move) -> str:
    ending = "; ".join(f"{victim.key}, which loses {victim.loss_gpu_s:.0f} GPU-seconds" for victim in move.victims)
    return (
        f"{_list(move.nodes)} would go from {move.source} to {move.destination}: {move.reason}"
        f"{f' (may end {ending})' if ending else ''}"
    )


def _numbers(move: Move) -> dict[str, Any]:
    return {
        "nodes": list(move.nodes),
        "source": str(move.source),
        "destination": str(move.destination),
        "demand": move.demand,
        "victims": [victim.key for victim in move.victims],
        "loss_gpu_s": sum(victim.loss_gpu_s for victim in move.victims),
    }


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
