"""The policy document: what admins write, validated on the way in.

Times are seconds, counts of nodes are whole nodes, and what is not written keeps a default that moves little. What the
fields mean together is said in docs/policy.md; the JSON Schema of this module is docs/policy.schema.json.
"""

from __future__ import annotations

from datetime import time
from enum import StrEnum
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bridge.model.ownership import Side

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]
_Nodes = Annotated[int, Field(ge=0, le=100_000)]
_Seconds = Annotated[float, Field(ge=0, le=31_536_000)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Share(_Document):
    """What one side may count on, lend and own.

    The other side may have the idle nodes of this one down to `floor_nodes` - `lend_limit_nodes`; as soon as this side
    wants them again, up to its floor, they come back. What all floors leave is shared by `weight`.
    """

    floor_nodes: _Nodes = 0
    max_nodes: _Nodes | None = Field(default=None, description="The most nodes it may own; none: no limit")
    lend_limit_nodes: _Nodes = Field(default=0, description="How many nodes of its floor it lends while they are idle")
    borrow_limit_nodes: _Nodes | None = Field(
        default=None, description="How many nodes above its floor it may own; none: no limit"
    )
    weight: float = Field(default=1, ge=0, le=1000, description="Its part of the nodes above all floors")

    @model_validator(mode="after")
    def _consistent(self) -> Share:
        if self.max_nodes is not None and self.floor_nodes > self.max_nodes:
            raise ValueError(
                f"floor_nodes {self.floor_nodes} is above max_nodes {self.max_nodes}: "
                "lower the floor or raise the maximum"
            )
        if self.lend_limit_nodes > self.floor_nodes:
            raise ValueError(
                f"lend_limit_nodes {self.lend_limit_nodes} is above floor_nodes {self.floor_nodes}: "
                "only nodes of the floor are lent, lower the limit"
            )
        return self


class Day(StrEnum):
    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


class Hours(_Document):
    """A line of a timetable: other floors on some days between two times of the policy's time zone.

    `until` at or before `from` means the next day. Of lines that hold at the same time the last one in the document
    counts, side by side.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    name: _Name
    days: tuple[Day, ...] = Field(default=tuple(Day), min_length=1)
    from_: time = Field(default=time(0), alias="from", description="In the policy's time zone, e.g. '08:00'")
    until: time = time(0)
    slurm_floor_nodes: _Nodes | None = None
    kubernetes_floor_nodes: _Nodes | None = None

    def floor(self, side: Side) -> int | None:
        return self.slurm_floor_nodes if side is Side.SLURM else self.kubernetes_floor_nodes


class Headroom(_Document):
    """Idle nodes that Kubernetes keeps ready for a ramp of traffic.

    ``fixed``: `nodes`. ``auto``: ceil(`ramp_gpus_per_min` x measured reclaim time in minutes, p99 / GPUs a node), at most
    `max_nodes`; until enough handoffs were measured, `assumed_reclaim_s` counts.
    """

    mode: Literal["fixed", "auto"] = "fixed"
    nodes: _Nodes = 0
    ramp_gpus_per_min: float = Field(default=0, ge=0)
    assumed_reclaim_s: _Seconds = 600
    max_nodes: _Nodes = 100_000


class PreemptionMode(StrEnum):
    """What may be ended so that its node goes to the other side.

    ``none``: nothing is ended; a side below its floor gets nodes as they become idle. ``idle_only``: idle Ray workers
    may be evicted, nodes whose jobs end soon are drained early, and for a broken floor busy nodes are drained and
    waited for (their pods are evicted politely). ``requeue``: also jobs and serving pods, the cheapest ones.
    """

    NONE = "none"
    IDLE_ONLY = "idle_only"
    REQUEUE = "requeue"


class Never(_Document):
    """Who is never a victim. A name in any of the lists is enough."""

    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    priority_classes: tuple[str, ...] = ()


class Preemption(_Document):
    mode: PreemptionMode = PreemptionMode.IDLE_ONLY
    signal: Annotated[str, Field(pattern=r"^(|[A-Z][A-Z0-9+]{1,15})$")] = Field(
        default="TERM", description="Sent to a job before its grace begins, e.g. USR1; empty: none"
    )
    grace_s: _Seconds = 120
    min_runtime_s: _Seconds = Field(default=600, description="Work that began later is no victim")
    checkpoint_interval_s: _Seconds | None = Field(
        default=None, description="How often jobs that do not say so save their state; none: never, all would be lost"
    )
    restart_s: _Seconds = Field(default=120, description="From start to useful work again, counted as lost too")
    soon_s: _Seconds = Field(default=300, description="A node whose work ends within this time is about to be idle")
    never: Never = Never()
    max_victims_per_window: int = Field(default=8, ge=0)
    window_s: float = Field(default=600, gt=0, le=86_400)
    respite_s: _Seconds = Field(default=3600, description="The same work is not ended twice within this time")


class Topology(_Document):
    """Which nodes are under one leaf switch (or NVLink domain), and the MIG layout that each side wants.

    Without `switches` the ones that Slurm reports count. `mig` values are those of ``nvidia.com/mig.config``.
    """

    switches: dict[_Name, tuple[str, ...]] = Field(
        default={}, description="Slurm host lists by switch, e.g. {leaf1: ['gpu-[1-8]']}"
    )
    slurm_mig: str = Field(default="", max_length=63)
    kubernetes_mig: str = Field(default="", max_length=63)

    def mig(self, side: Side) -> str:
        return self.slurm_mig if side is Side.SLURM else self.kubernetes_mig


class PoolPolicy(_Document):
    """One pool of shared nodes: a Slurm partition on one side, a set of Kubernetes nodes on the other.

    Which nodes: host lists in `nodes`, all nodes of the Slurm `partition`, or all Kubernetes nodes with the label
    `node_label`; exactly one of the three.
    """

    name: _Name
    nodes: tuple[str, ...] = Field(default=(), description="Slurm host lists, e.g. ['gpu-[1-4]']")
    all_of_partition: bool = Field(default=False, description="All nodes of the partition, as Slurm lists them")
    node_label: str = Field(
        default="", max_length=317, description="All Kubernetes nodes with this label, e.g. 'pool=shared'"
    )
    kube_name: str = Field(default="{node}", description="How Kubernetes spells a node: '{node}' is the Slurm name")
    gpus: int = Field(default=8, ge=1, le=64, description="GPUs that each node must offer on either side")
    partition: _Name
    home: Side = Field(default=Side.SLURM, description="Who adopts a node on which nothing runs on the first day")
    slurm: Share = Share()
    kubernetes: Share = Share()
    timetable: tuple[Hours, ...] = ()
    headroom: Headroom = Headroom()
    preemption: Preemption = Preemption()
    topology: Topology = Topology()
    max_maintenance_nodes: _Nodes | None = Field(
        default=None,
        description="While more nodes than this are drained by people, quarantined or down, none is moved but for a floor",
    )
    demand_age_s: float = Field(default=2, ge=0, description="A demand is met only after waiting this long")
    idle_age_s: float = Field(default=2, ge=0, description="A node counts as idle only after being so for this long")
    min_hold_s: float = Field(
        default=60, ge=0, description="A node that changed hands stays at least this long, unless a floor is broken"
    )
    batch_window_s: _Seconds = Field(
        default=0, description="After moves began, demand is gathered this long before the next ones begin"
    )
    max_in_flight: int = Field(default=8, ge=1, description="Handoffs of this pool at the same time")
    empty_patience_s: float = Field(
        default=86_400, gt=0, description="How long a handoff waits for a node to become empty before it goes back"
    )
    gang_deadline_s: float = Field(
        default=1800, gt=0, description="How long nodes are collected for a gang before they go back"
    )
    gang_backoff_s: _Seconds = Field(
        default=300, description="A gang that could not be collected is left alone this long, doubled at each failure"
    )
    failure_backoff_s: float = Field(
        default=300, ge=0, description="A node whose handoff failed is left alone for this long"
    )

    @model_validator(mode="after")
    def _which_nodes(self) -> PoolPolicy:
        if sum((bool(self.nodes), self.all_of_partition, bool(self.node_label))) != 1:
            raise ValueError("say which nodes by exactly one of nodes, all_of_partition and node_label")
        return self

    @model_validator(mode="after")
    def _kube_name_has_node(self) -> PoolPolicy:
        if "{node}" not in self.kube_name:
            raise ValueError("kube_name must contain '{node}', or all nodes would share one Kubernetes name")
        return self

    @property
    def reservation(self) -> str:
        """The pool's one Slurm reservation, the second latch."""
        return f"bridge-{self.name}"

    def share(self, side: Side) -> Share:
        return self.slurm if side is Side.SLURM else self.kubernetes


class Team(_Document):
    """Slurm accounts and Kubernetes namespaces under one name, with what is theirs on both sides together."""

    name: _Name
    accounts: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    guarantee_nodes: _Nodes = Field(default=0, description="No reclaim takes it below this")
    borrow_limit_nodes: _Nodes | None = Field(default=None, description="The most above its guarantee; none: no limit")
    weight: float = Field(default=1, ge=0, le=1000)
    half_life_s: float = Field(default=604_800, gt=0, description="Use counts half after this time")


class Priorities(_Document):
    """What Slurm's QoS and Kubernetes' priority classes are worth on one scale; what is not listed is worth 0."""

    qos: dict[str, int] = {}
    priority_classes: dict[str, int] = {}


class Policy(_Document):
    """The whole document. An empty one shares nothing and moves nothing."""

    pools: tuple[PoolPolicy, ...] = ()
    teams: tuple[Team, ...] = ()
    priorities: Priorities = Priorities()
    timezone: str = Field(default="UTC", description="Of all timetables, e.g. 'Europe/Berlin'")

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"no time zone is called {value!r}: write one such as Europe/Berlin or UTC") from error
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> Policy:
        _unique("pool name", [pool.name for pool in self.pools])
        _unique("team name", [team.name for team in self.teams])
        _unique("account", [account for team in self.teams for account in team.accounts])
        _unique("namespace", [namespace for team in self.teams for namespace in team.namespaces])
        return self

    def pool(self, name: str) -> PoolPolicy | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    def team(self, name: str) -> Team | None:
        return next((team for team in self.teams if team.name == name), None)

    def team_of_account(self, account: str) -> str:
        """The team of a Slurm account; an account that nobody lists is a team of its own name."""
        return next((team.name for team in self.teams if account in team.accounts), account)

    def team_of_namespace(self, namespace: str) -> str:
        return next((team.name for team in self.teams if namespace in team.namespaces), namespace)


def _unique(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} used twice: {', '.join(twice)}")
