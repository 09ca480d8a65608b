"""What the API answers with. Times are UTC; lists carry `now`, the broker's clock, so that ages need no other one."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from bridge.model.demand import Victim
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import Event, LedgerState, PutSighting, Request, RequestState
from bridge.model.mode import Mode
from bridge.model.ownership import Closure, Lease, Owner, Side
from bridge.model.pause import Pause, PauseKind, Reach, joined
from bridge.model.policy import Policy

_T = TypeVar("_T")


class View(BaseModel):
    model_config = ConfigDict(frozen=True)


class Listing(View, Generic[_T]):
    """A list, and the broker's time when it was read."""

    now: datetime
    items: list[_T]


# --- how well the broker sees and whether it acts ---


class Freshness(StrEnum):
    """`UNKNOWN` means that nothing may be concluded, and that nothing moves because of it."""

    FRESH = "fresh"
    UNKNOWN = "unknown"


class SourceView(View):
    """How fresh the broker's reading of one source is."""

    state: Freshness
    read_at: datetime | None = Field(default=None, description="When it was last read wholly")
    reason: str = Field(default="", description="Why it is unknown", examples=["connection refused"])


class StatusView(View):
    """What the process itself knows: given to the API by whoever wires it."""

    mode: Mode = Field(default=Mode.ACTIVE, description="Of this replica: dry_run moves nothing, read_only never leads")
    would_move_nodes: int | None = Field(
        default=None, description="Nodes that would move now: of a leader in mode dry_run, none of any other replica"
    )
    slurm: SourceView
    kubernetes: SourceView
    ledger: SourceView
    leader: str | None = Field(default=None, description="The replica that leads now", examples=["broker-0"])
    epoch: int | None = Field(default=None, description="The epoch of that leader", examples=[7])
    last_tick_age_s: float | None = Field(
        default=None, description="Seconds since this replica finished a pass of its loop"
    )


class PauseEntry(View):
    """A pause that stands: no handoff begins in its scope, but for those of a recall, or people's under a breaker."""

    kind: PauseKind = Field(
        default=PauseKind.STOP,
        description="recall: every lent node of its scope comes home; breaker: only the policy's own moves are stopped",
    )
    scope: Reach
    name: str = Field(description="Of the pool or the node; empty for everything", examples=["h100"])
    reason: str = Field(examples=["switch maintenance until 18:00"])
    by: str = Field(description="The token's name", examples=["oncall"])
    at: datetime

    @classmethod
    def of(cls, pause: Pause) -> PauseEntry:
        scope = pause.scope
        return cls(
            kind=pause.kind, scope=scope.reach, name=scope.name, reason=pause.reason, by=pause.actor, at=pause.at
        )


class StatusReport(StatusView):
    """The status of the broker."""

    now: datetime
    paused: str | None = Field(
        default=None, description="Why no handoff starts at all; empty when not paused, none: unknown"
    )
    pauses: list[PauseEntry] = Field(default=[], description="All pauses that stand, those of pools and nodes too")
    policy_version: int | None = None
    nodes_by_owner: dict[Owner, int] = {}
    victims_last_day: int = Field(default=0, description="Jobs and pods that were chosen to be ended, in 24 hours")
    lost_gpu_s_last_day: float = Field(
        default=0, description="What these lost in GPU-seconds: measured for requeued jobs, and else as it was guessed"
    )
    handoffs_live: int | None = Field(default=None, description="Running ones; in mode dry_run they stand still")


# --- nodes ---


class LeaseView(View):
    """The live lease of a node."""

    id: str = Field(examples=["k3v9q2m8"])
    epoch: int
    generation: int = Field(description="Grows with every change of owner", examples=[42])

    @classmethod
    def of(cls, lease: Lease) -> LeaseView:
        return cls(id=lease.id, epoch=lease.epoch, generation=lease.generation)


class ClosureView(View):
    """A side that the bridge holds closed, and who the scheduler says set the mark."""

    side: Side
    mark: str = Field(examples=["bridge:k3v9q2m8:7:42"])
    set_by: str | None = None
    set_at: datetime | None = None

    @classmethod
    def of(cls, closure: Closure) -> ClosureView:
        return cls(side=closure.side, mark=str(closure.mark), set_by=closure.set_by, set_at=closure.set_at)


class HandoffBrief(View):
    """The handoff that a node is in."""

    id: str
    step: Step
    source: Side
    destination: Side
    reason: str
    step_began_at: datetime
    step_deadline_at: datetime
    blockers: list[str] = Field(description="What the step waits for", examples=[["job 17 runs until 12:40"]])

    @classmethod
    def of(cls, handoff: Handoff) -> HandoffBrief:
        return cls(
            id=handoff.id,
            step=handoff.step,
            source=handoff.source,
            destination=handoff.destination,
            reason=handoff.reason,
            step_began_at=handoff.step_began_at,
            step_deadline_at=handoff.step_deadline_at,
            blockers=list(handoff.blockers),
        )


class NodeView(View):
    """One shared node."""

    name: str = Field(examples=["gpu-1"])
    slurm_name: str
    kube_name: str = Field(examples=["gpu-1.testbed"])
    pool: str
    gpus: int
    owner: Owner | None = Field(description="Who may start work on it; none: not adopted yet, both sides are open")
    owner_since: datetime | None = None
    lease: LeaseView | None = None
    handoff: HandoffBrief | None = None
    closures: list[ClosureView] = []
    idle_since: datetime | None = None
    backoff_until: datetime | None = Field(default=None, description="Left alone until then after a failed handoff")
    unusable: str = Field(default="", description="Why its owner cannot use it")
    paused: str = Field(default="", description="Why it begins no handoff: pauses of it, of its pool, of everything")

    @classmethod
    def of(cls, name: str, state: LedgerState) -> NodeView:
        """The node `name` of `state`; KeyError when it is not in the inventory."""
        record = state.nodes[name]
        lease = state.leases.get(name)
        handoff = state.handoffs.get(name)
        closures = (state.closures.get((name, side)) for side in Side)
        return cls(
            name=name,
            slurm_name=record.node.slurm_name,
            kube_name=record.node.kube_name,
            pool=record.node.pool,
            gpus=record.node.gpus,
            owner=lease.owner if lease else None,
            owner_since=lease.owner_since if lease else None,
            lease=LeaseView.of(lease) if lease else None,
            handoff=HandoffBrief.of(handoff) if handoff else None,
            closures=[ClosureView.of(closure) for closure in closures if closure],
            idle_since=record.idle_since,
            backoff_until=record.backoff_until,
            unusable=record.unusable,
            paused=joined(pause for pause in state.pauses if pause.scope.covers(record.node.pool, name)),
        )


class SightingView(View):
    """What was last seen of a node on one side; with `unknown` set, nothing was."""

    side: Side
    at: datetime
    unknown: str = Field(description="Why nothing is known of it; empty when something is")
    facts: dict[str, Any] = Field(examples=[{"closed": False, "idle": True, "ready": True}])

    @classmethod
    def of(cls, sighting: PutSighting) -> SightingView:
        return cls(side=sighting.side, at=sighting.at, unknown=sighting.unknown, facts=sighting.summary)


class NodeDetail(NodeView):
    """One shared node, what was last seen of it, and the broker's time when it was read."""

    now: datetime
    seen: list[SightingView]


# --- handoffs, requests, events ---


class EventView(View):
    """A line of the append-only log."""

    id: int
    at: datetime
    kind: str
    message: str
    actor: str = Field(description="A token's name, or broker")
    node: str | None = None
    handoff: str | None = None
    lease: str | None = None
    data: dict[str, Any] = {}

    @classmethod
    def of(cls, event: Event) -> EventView:
        return cls(
            id=event.id,
            at=event.at,
            kind=event.kind,
            message=event.message,
            actor=event.actor,
            node=event.node,
            handoff=event.handoff,
            lease=event.lease,
            data=event.data,
        )


class VictimView(View):
    """Work that a handoff may end to empty its node."""

    key: str = Field(examples=["job 12 of bob"])
    side: Side
    job: int | None = Field(description="The Slurm job that is requeued; none: a pod, which is evicted", examples=[12])
    loss_gpu_s: float = Field(description="GPU-seconds lost: since its last checkpoint, and to start again")
    signal: str = Field(
        description="Sent to a Slurm job when its grace begins; B: to its batch script alone, S: to its steps alone; "
        "empty: none"
    )
    grace_s: float
    forced: bool = Field(description="Whether a Slurm job that still runs after its grace is requeued, or waited for")

    @classmethod
    def of(cls, victim: Victim) -> VictimView:
        return cls(
            key=victim.key,
            side=victim.side,
            job=victim.job,
            loss_gpu_s=victim.loss_gpu_s,
            signal=victim.signal,
            grace_s=victim.grace_s,
            forced=victim.forced,
        )


class HandoffView(HandoffBrief):
    """One node on its way, or arrived, or gone back."""

    node: str
    lease: str = Field(description="Handoffs with the same lease open together or go back")
    requested_by: str
    generation: int
    evict: bool = Field(description="Whether pods on the source may be evicted")
    began_at: datetime
    ended_at: datetime | None
    outcome: str | None
    demand: str = Field(description="The demand that the node is collected for; empty for a floor or a person")
    victims: list[VictimView]
    signalled_at: datetime | None = Field(description="When the victims were signalled; their grace counts from then")

    @classmethod
    def of(cls, handoff: Handoff) -> HandoffView:
        return cls(
            **HandoffBrief.of(handoff).__dict__,
            node=handoff.node,
            lease=handoff.lease,
            requested_by=handoff.requested_by,
            generation=handoff.generation,
            evict=handoff.evict,
            began_at=handoff.began_at,
            ended_at=handoff.ended_at,
            outcome=handoff.outcome,
            demand=handoff.demand,
            victims=[VictimView.of(victim) for victim in handoff.victims],
            signalled_at=handoff.signalled_at,
        )


class StepView(View):
    """How long a handoff was in one step."""

    step: Step
    began_at: datetime
    duration_s: float = Field(description="Until the next step, or until now for the one it is in")


class HandoffDetail(HandoffView):
    """A handoff with its history."""

    now: datetime
    steps: list[StepView]
    events: list[EventView]


class RequestView(View):
    """A person's order, and what the leader answered."""

    id: str
    nodes: list[str]
    destination: Side
    reason: str
    requested_by: str
    requested_at: datetime
    state: RequestState
    answer: str = Field(description="Empty while pending", examples=["2 handoffs begin under lease k3v9q2m8"])

    @classmethod
    def of(cls, request: Request) -> RequestView:
        return cls(
            id=request.id,
            nodes=list(request.nodes),
            destination=request.destination,
            reason=request.reason,
            requested_by=request.requested_by,
            requested_at=request.requested_at,
            state=request.state,
            answer=request.answer,
        )


# --- plan and policy ---


class MoveView(View):
    """A handoff that the leader would begin now. All `nodes` of one move open together."""

    nodes: list[str]
    source: Side
    destination: Side
    reason: str = Field(examples=["job 17 waits for 2 nodes since 40 s"])
    demand: str = Field(default="", description="The demand it serves; empty for a floor", examples=["job 17 of alice"])
    victims: list[VictimView] = Field(default=[], description="What may be ended for it")


class WhyView(View):
    """Why a node or a demand does not move."""

    subject: str = Field(examples=["gpu-3", "job 17"])
    reason: str = Field(examples=["changed hands 12 s ago, minimum hold is 60 s"])


class PlanView(View):
    """A dry run of the planner on what is known now."""

    moves: list[MoveView]
    whys: list[WhyView]
    mode: Mode = Field(default=Mode.ACTIVE, description="Of the replica that answers: in dry_run none of it is done")


class PolicyVersionView(View):
    """One version of the policy."""

    version: int
    at: datetime
    author: str
    note: str
    policy: Policy


class PolicyDifference(View):
    """One value that differs between two versions. A side without the value has null."""

    path: str = Field(examples=["pools[h100].slurm.floor_nodes"])
    old: Any
    new: Any


class PolicyDiffView(View):
    """What differs between two versions, defaults included, in the order of the documents."""

    old_version: int
    new_version: int
    differences: list[PolicyDifference]


class FloorsView(View):
    """The floors of a pool with a timetable: those that hold now, and the next ones within a week."""

    pool: str
    now: dict[Side, int] = Field(examples=[{"slurm": 6, "kubernetes": 2}])
    next: dict[Side, int] | None = Field(description="None when they stay for a week")
    next_at: datetime | None = None


class PolicyChangeView(View):
    """What a policy document did, or with a dry run would do: to the inventory, and what moves at once by it."""

    version: int = Field(description="The version that is current after the call")
    dry_run: bool
    nodes: int = Field(description="Nodes in all pools of the document")
    joining: list[str] = Field(description="Nodes that come under the bridge")
    leaving: list[str] = Field(description="Nodes that leave it")
    differences: list[PolicyDifference] = Field(description="From the version in force before")
    floors: list[FloorsView] = Field(description="Of the pools that have a timetable")
    moves: list[MoveView] = Field(description="Handoffs that would begin now under it; not of nodes that only join")
    whys: list[WhyView] = Field(
        description="Why not more, for each node and demand; `everything` when a source is UNKNOWN"
    )
    mode: Mode = Field(default=Mode.ACTIVE, description="Of the replica that answers: in dry_run nothing moves at all")


class PauseView(View):
    """Whether new handoffs may start in the scope that was asked for."""

    paused: str = Field(description="The reason; empty when that scope is not paused")
    pauses: list[PauseEntry] = Field(description="All pauses that stand after the call")


class RecallView(View):
    """A recall, and what it is about."""

    lent: list[str] = Field(
        description="Nodes that it calls home: lent now, or on their way out", examples=[["gpu-1", "gpu-2"]]
    )
    pauses: list[PauseEntry] = Field(description="All pauses that stand after the call")


# --- the Slurm agent's fence ---


class PoolFenceView(View):
    """What job_submit needs to know of a pool to tell a job that it can never run, or has to wait."""

    partition: str
    nodes: int = Field(description="Nodes of the pool, whoever owns them")
    max_nodes: int = Field(description="The most of them that Slurm can ever own under the present policy")
    gpus: int = Field(description="GPUs a node")
    owned: int = Field(description="Nodes of the pool that Slurm owns now")
    reclaim_s: int | None = Field(description="How long handoffs to Slurm lately took, p90; none: not measured")
    warn: bool = Field(description="Whether a job that must wait for nodes is told so")
    borrow_qos: str | None = Field(description="The QoS of jobs that say borrow=yes and name none; none: their own")
    switches: int | None = Field(description="--switches of gangs that do not say; none: as Slurm likes")
    switches_wait_s: int | None
    segment_nodes: int | None = Field(description="--segment of gangs that do not say; none: as Slurm likes")


class FenceView(View):
    """Which nodes slurmctld must not start a job on."""

    generation: int = Field(
        description="Highest generation in the ledger; the file written from this shows all up to it"
    )
    policy_version: int
    closed: list[str] = Field(description="Slurm names of the nodes whose lease is not Slurm's")
    policy: dict[str, PoolFenceView] = Field(description="By pool name")
