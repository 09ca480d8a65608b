"""One pass's reading of the world through the ports, and the facts it proves about each node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

from bridge.lifecycle.facts import DeviceFacts, device_facts, jobs_by_node, kube_facts, slurm_facts
from bridge.lifecycle.progress import Sight
from bridge.model.demand import Work
from bridge.model.errors import Unreadable
from bridge.model.hostlists import expand
from bridge.model.kube import KubeNode, KubeObservation
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Lease, Side
from bridge.model.pause import Reach
from bridge.model.policy import PoolPolicy
from bridge.model.slurm import SlurmJob, SlurmObservation
from bridge.planning.demand import Queue, slurm_queue, slurm_works
from bridge.planning.serving import kube_queue, kube_works
from bridge.planning.snapshot import Place, Snapshot
from bridge.planning.usage import decayed
from bridge.ports import KubePort, SlurmPort

Seen = TypeVar("Seen")

MIG_LAYOUT = "nvidia.com/mig.config"
"""The label by which a node's MIG layout is asked for and shown."""


@dataclass(frozen=True, slots=True)
class World:
    """What both sides answered, or why they did not."""

    slurm: SlurmObservation | Unreadable
    kubernetes: KubeObservation | Unreadable

    @property
    def unread(self) -> dict[Side, str]:
        """The sides that could not be read, and why."""
        answers = {Side.SLURM: self.slurm, Side.KUBERNETES: self.kubernetes}
        return {side: str(answer) for side, answer in answers.items() if isinstance(answer, Unreadable)}

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(self.unread.values())

    def kube_node(self, name: str) -> KubeNode | None:
        return None if isinstance(self.kubernetes, Unreadable) else self.kubernetes.nodes.get(name)


def observe(slurm: SlurmPort, kubernetes: KubePort) -> World:
    """Read both sides; one that cannot be read does not hide the other."""
    return World(_read(slurm.observe), _read(kubernetes.observe))


def _read(read: Callable[[], Seen]) -> Seen | Unreadable:
    try:
        return read()
    except Unreadable as why:
        return why


def sights(state: LedgerState, world: World, *, settle_s: float) -> dict[str, Sight]:
    """The facts about every node of the inventory, by node name."""
    jobs = {} if isinstance(world.slurm, Unreadable) else jobs_by_node(world.slurm)
    return {
        name: _sight(name, state, world, jobs.get(record.node.slurm_name, ()), settle_s)
        for name, record in state.nodes.items()
    }


def _sight(name: str, state: LedgerState, world: World, jobs: Sequence[SlurmJob], settle_s: float) -> Sight:
    record, lease, handoff = state.nodes[name], state.leases.get(name), state.handoffs.get(name)
    node = record.node
    slurm_closure = state.closures.get((name, Side.SLURM))
    kube_closure = state.closures.get((name, Side.KUBERNETES))
    return Sight(
        slurm=slurm_facts(record, lease, slurm_closure, world.slurm, jobs, settle_s=settle_s),
        kubernetes=kube_facts(node, lease, kube_closure, handoff, world.kubernetes),
        devices=device_facts(node, handoff, world.kubernetes) if handoff else DeviceFacts(),
    )


def snapshot(state: LedgerState, world: World, seen: dict[str, Sight], now: datetime) -> Snapshot:
    """The planner's view. Nodes without a lease are not adopted yet and are not in it."""
    reading = _Reading(state, world, now)
    places = tuple(
        reading.place(name, lease, seen[name]) for name, lease in sorted(state.leases.items()) if name in state.nodes
    )
    queues = [queue for pool in state.policy.pools for queue in reading.queues(pool)]
    return Snapshot(
        places=places,
        demands=tuple(demand for _, queue in queues for demand in queue.demands),
        unknown=world.unknown,
        pauses=state.pauses,
        works=tuple(work for pool in state.policy.pools for work in reading.works(pool)),
        usage={team: decayed(used, state.policy.half_life_s(team), now) for team, used in state.usage.items()},
        backoffs={key: backoff.until for key, backoff in state.backoffs.items()},
        preempted=state.preempted,
        reclaim_s=state.reclaim_s,
        waiting={side: sum(queue.waiting for of, queue in queues if of is side) for side in Side},
    )


class _Reading:
    """What both sides said, by the bridge's own node names."""

    def __init__(self, state: LedgerState, world: World, now: datetime) -> None:
        self._state, self._now = state, now
        self._slurm = None if isinstance(world.slurm, Unreadable) else world.slurm
        self._kube = None if isinstance(world.kubernetes, Unreadable) else world.kubernetes
        self._paused = {pause.scope.name: pause.reason for pause in state.pauses if pause.scope.reach is Reach.NODE}
        self._switch_of = {
            node: switch
            for pool in state.policy.pools
            for switch, nodes in pool.topology.switches.items()
            for node in _expanded(nodes)
        }
        # The schedulers' names of each pool's nodes -> the bridge's.
        self._names: dict[tuple[str, Side], dict[str, str]] = {
            (pool.name, side): {} for pool in state.policy.pools for side in Side
        }
        for node in (record.node for record in state.nodes.values()):
            self._names.setdefault((node.pool, Side.SLURM), {})[node.slurm_name] = node.name
            self._names.setdefault((node.pool, Side.KUBERNETES), {})[node.kube_name] = node.name

    def place(self, name: str, lease: Lease, sight: Sight) -> Place:
        record = self._state.nodes[name]
        slurm = self._slurm.nodes.get(record.node.slurm_name) if self._slurm else None
        kube = self._kube.nodes.get(record.node.kube_name) if self._kube else None
        labels = kube.labels if kube else {}
        features = {f"{key}={value}" for key, value in labels.items()}
        return Place(
            record=record,
            lease=lease,
            handoff=self._state.handoffs.get(name),
            sight=sight,
            features=frozenset({f"node={name}", *features, *(slurm.features if slurm else ())}),
            switch=self._switch_of.get(name) or (slurm.topology.rpartition(":")[2] if slurm else ""),
            mig=labels.get(MIG_LAYOUT, ""),
            paused=self._paused.get(name, ""),
        )

    def queues(self, pool: PoolPolicy) -> Iterator[tuple[Side, Queue]]:
        policy = self._state.policy
        names = self._names[pool.name, Side.KUBERNETES]
        if self._slurm is not None:
            yield Side.SLURM, slurm_queue(pool, policy, self._slurm, self._now, nodes=len(names))
        if self._kube is not None:
            yield Side.KUBERNETES, kube_queue(pool, policy, self._kube, names, self._now)

    def works(self, pool: PoolPolicy) -> Iterator[Work]:
        policy = self._state.policy
        if self._slurm is not None:
            yield from slurm_works(policy, pool.preemption, self._slurm, self._names[pool.name, Side.SLURM], self._now)
        if self._kube is not None:
            yield from kube_works(
                policy, pool.preemption, self._kube, self._names[pool.name, Side.KUBERNETES], self._now
            )


@lru_cache(maxsize=1024)
def _expanded(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """A policy's host lists are the same in every pass."""
    return expand(nodes)
