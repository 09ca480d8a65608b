"""Small fleets for `explain`: both sides' observations and the snapshot that the planner would have of them.

A fleet is written as one letter a node, ``n1`` first: ``S`` Slurm idle, ``s`` Slurm busy, ``K`` Kubernetes idle, ``k``
Kubernetes busy, ``>`` and ``<`` in motion to Kubernetes and to Slurm, ``?`` Slurm's but not listed by it, ``a`` Slurm's
and drained by an admin, ``h`` Kubernetes' and handed over 20 s ago, ``d`` Kubernetes' with 0 of 8 GPUs allocatable,
``P`` Slurm's without work and planned by its backfill for the first in the queue, ``u`` nobody's
and unusable.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.errors import Unreadable
from bridge.model.handoff import Handoff, Step
from bridge.model.kube import KubeNode, KubeObservation, PendingPod, RunningPod
from bridge.model.ledger import NodeRecord
from bridge.model.ownership import Lease, Node, Owner, Side
from bridge.model.pause import Pause, Reach
from bridge.model.policy import Policy
from bridge.model.slurm import SlurmJob, SlurmNode, SlurmObservation
from bridge.planning.demand import slurm_queue, slurm_works
from bridge.planning.explain import Explanation, Kind, Seen, explain
from bridge.planning.planner import plan
from bridge.planning.serving import kube_queue, kube_works
from bridge.planning.snapshot import Place, Snapshot

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
LEASE = "k3v9q2m8"

_CLOSED = SideFacts(first_latch=True, second_latch=True, idle=True, answers=True, empty=True)
_IDLE = SideFacts(opened=True, ready=True, idle=True, answers=True)
_BUSY = SideFacts(opened=True, ready=True, answers=True)
_OWNERS = dict.fromkeys("Ss?aP", Owner.SLURM) | dict.fromkeys("Kkhd", Owner.KUBERNETES)
_ODD = {
    "?": SideFacts(unknown="slurmctld does not list it"),
    "a": SideFacts(foreign="drained by admin: bad DIMM", idle=True, answers=True),
    "d": replace(_IDLE, ready=False, not_ready="the kubelet offers 0 of 8 GPUs"),
    "s": _BUSY,
    "P": replace(_BUSY, planned=True),
    "k": _BUSY,
}


def job(id: int = 17, count: int = 1, **fields: object) -> SlurmJob:
    """A pending one of alice that asks for whole nodes and has waited for a minute."""
    waited = {"submitted_at": NOW - timedelta(seconds=60), "waits_for": "Resources"}
    asked = {"node_count": count, "gpus_per_node": 8, "exclusive": True, "priority": 100, "qos": "normal"}
    return SlurmJob(
        **{
            "id": id,
            "state": "PENDING",
            "user": "alice",
            "account": "vision",
            "partition": "gpu",
            **waited,
            **asked,
            **fields,
        }
    )  # type: ignore[arg-type]


def running(id: int, *nodes: str, left_s: float | None = 840, gpus: int = 8, **fields: object) -> SlurmJob:
    """One of bob on `nodes` for the last half an hour."""
    limit_s = None if left_s is None else 1800 + left_s
    times = {"started_at": NOW - timedelta(seconds=1800), "time_limit_s": limit_s}
    ends = {"ends_at": None if left_s is None else NOW + timedelta(seconds=left_s)}
    more = {"user": "bob", "account": "speech", "state": "RUNNING", "waits_for": "", "may_requeue": True}
    return job(id, len(nodes), nodes=nodes, gpus_per_node=gpus, **{**more, **times, **ends, **fields})


def pod(name: str = "chat-1", gpus: int = 8, **fields: object) -> PendingPod:
    since = {"pending_since": NOW - timedelta(seconds=60), "group": "Deployment web/chat"}
    return PendingPod(**{"namespace": "web", "name": name, "uid": name, "gpus": gpus, **since, **fields})  # type: ignore[arg-type]


def policy(**pool: object) -> Policy:
    fields = {"name": "h100", "nodes": ("n[1-9]",), "kube_name": "{node}.k", "partition": "gpu", **pool}
    teams = fields.pop("teams", ())
    return Policy.model_validate({"pools": [fields], "teams": teams})


@dataclass
class Fleet:
    """`letters` a node, what waits and runs, and what else the snapshot holds."""

    letters: str
    jobs: tuple[SlurmJob, ...] = ()
    pods: tuple[PendingPod, ...] = ()
    rules: Policy = field(default_factory=policy)
    slurm_unreadable: str = ""
    kube_unreadable: str = ""
    snapshot_fields: dict[str, object] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def explain(self, kind: str, name: str) -> Explanation | None:
        snapshot = self.snapshot()
        planned = plan(snapshot, self.rules, NOW)
        return explain(Kind(kind), name, self.seen(), snapshot, self.rules, planned, NOW)

    def told(self, kind: str, name: str) -> Explanation:
        found = self.explain(kind, name)
        assert found is not None
        return found

    def seen(self) -> Seen:
        places = self._places()
        slurm_nodes = {place.name: self._slurm_node(place) for place in places}
        kube_nodes = {place.record.node.kube_name: self._kube_node(place) for place in places}
        slurm = SlurmObservation(NOW, slurm_nodes, self.jobs)
        kubernetes = KubeObservation(NOW, kube_nodes, self.pods)
        return Seen(
            Unreadable("slurmrestd", self.slurm_unreadable) if self.slurm_unreadable else slurm,
            Unreadable("kube-apiserver", self.kube_unreadable) if self.kube_unreadable else kubernetes,
        )

    def snapshot(self) -> Snapshot:
        seen, pool, places = self.seen(), self.rules.pools[0], self._places()
        slurm = {place.record.node.slurm_name: place.name for place in places}
        kube = {place.record.node.kube_name: place.name for place in places}
        queues, works, unknown = [], [], []
        if isinstance(seen.slurm, Unreadable):
            unknown.append(str(seen.slurm))
        else:
            queues.append((Side.SLURM, slurm_queue(pool, self.rules, seen.slurm, NOW, nodes=len(places))))
            works += slurm_works(self.rules, pool.preemption, seen.slurm, slurm, NOW)
        if isinstance(seen.kubernetes, Unreadable):
            unknown.append(str(seen.kubernetes))
        else:
            queues.append((Side.KUBERNETES, kube_queue(pool, self.rules, seen.kubernetes, kube, NOW)))
            works += kube_works(self.rules, pool.preemption, seen.kubernetes, kube, NOW)
        return Snapshot(
            places=places,
            demands=tuple(demand for _, queue in queues for demand in queue.demands),
            works=tuple(works),
            waiting={side: queue.waiting for side, queue in queues},
            **{"unknown": tuple(unknown), **self.snapshot_fields},  # type: ignore[arg-type]
        )

    # --- one node ---

    def _places(self) -> tuple[Place, ...]:
        pauses: tuple[Pause, ...] = self.snapshot_fields.get("pauses", ())  # type: ignore[assignment]
        of_node = {pause.scope.name: pause.reason for pause in pauses if pause.scope.reach is Reach.NODE}
        found = (self._place(number, letter) for number, letter in enumerate(self.letters, 1))
        return tuple(replace(place, paused=of_node.get(place.name, "")) for place in found)

    def _place(self, number: int, letter: str) -> Place:
        node = Node(f"n{number}", f"n{number}", f"n{number}.k", "h100", 8)
        owner = _OWNERS.get(letter, Owner.BRIDGE)
        since = NOW - timedelta(seconds=20) if letter == "h" else LONG_AGO
        lease = Lease(LEASE, node.name, owner, 1, 1, since)
        facts = _ODD.get(letter, _IDLE)
        sight = Sight(_CLOSED, facts) if owner is Owner.KUBERNETES else Sight(facts, _CLOSED)
        idle_since = LONG_AGO if letter in "SKh" else None
        if letter not in "<>":
            unusable = "process 7 holds /dev/nvidia0" if letter == "u" else ""
            record = NodeRecord(node, idle_since, unusable=unusable)
            return Place(record, lease, None, sight, frozenset({f"node={node.name}"}))
        source = Side.SLURM if letter == ">" else Side.KUBERNETES
        began = NOW - timedelta(seconds=2)
        times = (began, began, NOW + timedelta(seconds=300))
        waits = {"blockers": ("job 9 of bob is COMPLETING",)}
        handoff = Handoff(
            "h1", LEASE, node.name, source, source.other, Step.EMPTY, "r", "policy", 1, "n", False, *times, **waits
        )
        return Place(NodeRecord(node), lease, handoff, Sight(_CLOSED, _CLOSED), frozenset({f"node={node.name}"}))

    def _letter(self, place: Place) -> str:
        return self.letters[int(place.name[1:]) - 1]

    def _slurm_node(self, place: Place) -> SlurmNode:
        used = sum(job.gpus_per_node for job in self.jobs if place.name in job.nodes)
        states = {"MIXED" if used else "IDLE"} | ({"PLANNED"} if self._letter(place) == "P" else set())
        return SlurmNode(place.name, frozenset(states), 8, used)

    def _kube_node(self, place: Place) -> KubeNode:
        letter = self._letter(place)
        busy = RunningPod(
            "web",
            f"on-{place.name}",
            place.name,
            8,
            "Deployment web/chat",
            "Deployment",
            started_at=LONG_AGO,
            warm_up_s=60,
        )
        return KubeNode(
            name=place.record.node.kube_name,
            uid=place.name,
            ready=True,
            cordoned=False,
            gpus_allocatable=0 if letter == "d" else 8,
            gpus_used=8 if letter == "k" else 0,
            running=(busy,) if letter == "k" else (),
            labels=self.labels,
        )
