"""The policy document: what admins write, validated on the way in.

Times are seconds, counts of nodes are whole nodes, and what is not written keeps a default that moves little. What the
fields mean together is said in docs/policy.md; the JSON Schema of this module is docs/policy.schema.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import time
from enum import StrEnum
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from bridge.model.ownership import Side

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]
_Nodes = Annotated[int, Field(ge=0, le=100_000, strict=True)]
_Count = Annotated[int, Field(ge=0, le=1_000_000, strict=True)]
_Seconds = Annotated[float, Field(ge=0, le=31_536_000)]
_SomeSeconds = Annotated[float, Field(gt=0, le=31_536_000)]
_Worth = Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000, strict=True)]
_Listed = Annotated[str, Field(min_length=1, max_length=253)]
_CLOCK_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_MAX_LINES = 50


def wrong(what: str, remedy: str, *at: str | int) -> PydanticCustomError:
    """What a validator raises. `at` leads from what it validates to the value that is to be changed.

    Whoever shows it finds `remedy` and `at` in the context of the error.
    """
    return PydanticCustomError("policy", "{what}", {"what": what, "remedy": remedy, "at": at})


def _clock(value: object) -> time:
    """``'22:00'``. Not a number: YAML reads a bare 22:00 as 1320, and that is no time of a day."""
    if isinstance(value, time):
        shown = value.isoformat()
        if value.tzinfo is None and not value.second and not value.microsecond:
            return value
    else:
        shown = repr(value)
        if isinstance(value, str) and re.fullmatch(_CLOCK_PATTERN, value):
            return time.fromisoformat(value)
    raise wrong(f"{shown} is not a time of the day", "write hours and minutes in quotes, '00:00' to '23:59'")


ClockTime = Annotated[
    time,
    BeforeValidator(_clock),
    PlainSerializer(lambda at: f"{at:%H:%M}", return_type=str),
    WithJsonSchema({"type": "string", "pattern": _CLOCK_PATTERN}),
]
"""Hours and minutes of the policy's time zone."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
            raise wrong(
                f"floor_nodes {self.floor_nodes} is above max_nodes {self.max_nodes}",
                "lower the floor or raise the maximum",
                "floor_nodes",
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

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )

    name: _Name
    days: tuple[Day, ...] = Field(default=tuple(Day), min_length=1, description="On which it begins; all when left out")
    from_: ClockTime = Field(default=time(0), alias="from", description="In the policy's time zone, e.g. '08:00'")
    until: ClockTime = Field(default=time(0), description="At or before `from`: on the next day")
    slurm_floor_nodes: _Nodes | None = Field(default=None, description="none: another line's, or that of the share")
    kubernetes_floor_nodes: _Nodes | None = Field(default=None, description="none: another line's, or the share's")

    @model_validator(mode="after")
    def _says_something(self) -> Hours:
        if self.slurm_floor_nodes is None and self.kubernetes_floor_nodes is None:
            raise wrong(
                f"line {self.name} of the timetable names no floor",
                "give it slurm_floor_nodes or kubernetes_floor_nodes, or take it out",
            )
        _unique("day", self.days, "days")
        return self

    def floor(self, side: Side) -> int | None:
        return self.slurm_floor_nodes if side is Side.SLURM else self.kubernetes_floor_nodes


class Headroom(_Document):
    """Idle nodes that Kubernetes keeps ready for a ramp of traffic.

    ``fixed``: `nodes`. ``auto``: ceil(`ramp_gpus_per_min` x measured reclaim time in minutes, p99 / GPUs a node), at
    most `max_nodes`; until enough handoffs were measured, `assumed_reclaim_s` counts.
    """

    mode: Literal["fixed", "auto"] = "fixed"
    nodes: _Nodes = 0
    ramp_gpus_per_min: float = Field(default=0, ge=0, le=1_000_000)
    assumed_reclaim_s: _Seconds = 600
    max_nodes: _Nodes = 100_000

    @model_validator(mode="after")
    def _one_way(self) -> Headroom:
        if self.mode == "auto" and not self.ramp_gpus_per_min:
            raise wrong(
                "automatic headroom without a ramp keeps nothing",
                "say how fast traffic may grow, or use mode fixed",
                "ramp_gpus_per_min",
            )
        if self.mode == "auto" and self.nodes:
            raise wrong("automatic headroom does not read nodes", "use max_nodes to limit it, or mode fixed", "nodes")
        return self


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

    accounts: tuple[_Listed, ...] = ()
    users: tuple[_Listed, ...] = ()
    qos: tuple[_Listed, ...] = ()
    namespaces: tuple[_Listed, ...] = ()
    priority_classes: tuple[_Listed, ...] = ()


Signal = Literal["", "ALRM", "CONT", "HUP", "INT", "QUIT", "TERM", "URG", "USR1", "USR2"]
"""None, or one of `bridge.model.slurm.SIGNALS`."""


class Preemption(_Document):
    mode: PreemptionMode = PreemptionMode.IDLE_ONLY
    signal: Signal = Field(
        default="",
        description="Sent to a job when its grace begins, for jobs that catch it: others die of it; empty: none",
    )
    grace_s: _Seconds = 120
    max_grace_s: _Seconds = Field(default=600, description="The most that a job gets which asks for a grace of its own")
    after_grace: Literal["requeue", "wait"] = Field(
        default="requeue", description="What becomes of a job that still runs then: requeued by Slurm, or waited for"
    )
    min_runtime_s: _Seconds = Field(default=600, description="Work that began later is no victim")
    checkpoint_interval_s: _SomeSeconds | None = Field(
        default=None, description="How often jobs that do not say so save their state; none: never, all would be lost"
    )
    restart_s: _Seconds = Field(default=120, description="From start to useful work again, counted as lost too")
    soon_s: _Seconds = Field(default=300, description="A node whose work ends within this time is about to be idle")
    never: Never = Never()
    max_victims_per_window: _Count = Field(default=8, description="Of the pool; none more within `window_s`")
    window_s: float = Field(default=600, gt=0, le=86_400)
    respite_s: _Seconds = Field(default=3600, description="The same work is not ended twice within this time")


class Breaker(_Document):
    """When the circuit breaker of a pool trips: the planner then begins nothing there until a person resumes it, or
    until none of this has held for `cool_down_s`."""

    window_s: float = Field(default=600, gt=0, le=3600, description="How far back endings and moves are counted")
    max_late_leases: _Count = Field(
        default=10, description="It trips when more leases ended badly, as a step was not done by its deadline"
    )
    max_out_fraction: float = Field(
        default=0.3, ge=0, le=1, description="It trips when more of the pool's nodes are out; with 1 never"
    )
    min_out_nodes: _Count = Field(default=8, description="Fewer nodes that are out never trip it")
    max_moves: _Count = Field(
        default=200, description="It trips when the policy began more moves, and more than the pool has nodes"
    )
    cool_down_s: _Seconds = Field(default=600, description="It ends by itself after so long without anything of this")


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


class Submission(_Document):
    """What job_submit does to jobs of the pool's partition, beside refusing those that can never run.

    ``borrow_qos`` is the price of borrowed capacity: a job that says ``bridge: borrow=yes`` in its comment and names no
    QoS gets this one, whose UsageFactor, Priority and place in `priorities` are the site's own.
    """

    warn: bool = Field(default=True, description="Tell a job that must wait for nodes to come back, and about how long")
    borrow_qos: str = Field(default="", pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")
    switches: int | None = Field(
        default=None, ge=1, le=1000, strict=True, description="--switches of jobs of several nodes that do not say"
    )
    switches_wait_s: int = Field(
        default=300, ge=0, le=604_800, strict=True, description="How long such a job waits for that many switches"
    )
    segment_nodes: int | None = Field(
        default=None, ge=2, le=100_000, strict=True, description="--segment of jobs of a multiple of so many nodes"
    )


_LABEL = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
    r"(=([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?)?"
)


class PoolPolicy(_Document):
    """One pool of shared nodes: a Slurm partition on one side, a set of Kubernetes nodes on the other.

    Which nodes: host lists in `nodes`, all nodes of the Slurm `partition`, or all Kubernetes nodes with the label
    `node_label`; exactly one of the three.
    """

    name: _Name
    nodes: tuple[str, ...] = Field(default=(), description="Slurm host lists, e.g. ['gpu-[1-4]']")
    all_of_partition: bool = Field(default=False, description="All nodes of the partition, as Slurm lists them")
    node_label: str = Field(
        default="", max_length=381, description="All Kubernetes nodes with this label, e.g. 'pool=shared'"
    )
    kube_name: str = Field(default="{node}", description="How Kubernetes spells a node: '{node}' is the Slurm name")
    gpus: int = Field(default=8, ge=1, le=64, strict=True, description="GPUs that each node must offer on either side")
    partition: _Name
    home: Side = Field(default=Side.SLURM, description="Who adopts a node on which nothing runs on the first day")
    slurm: Share = Share()
    kubernetes: Share = Share()
    timetable: tuple[Hours, ...] = Field(
        default=(), max_length=_MAX_LINES, description="Other floors at some hours; the last line that holds counts"
    )
    headroom: Headroom = Headroom()
    preemption: Preemption = Preemption()
    topology: Topology = Topology()
    submission: Submission = Submission()
    breaker: Breaker = Breaker()
    max_maintenance_nodes: _Nodes | None = Field(
        default=None,
        description="While more nodes than this are drained by people, quarantined or down, only floors move any",
    )
    demand_age_s: _Seconds = Field(default=2, description="A demand is met only after waiting this long")
    idle_age_s: _Seconds = Field(default=2, description="A node counts as idle only after being so for this long")
    min_hold_s: _Seconds = Field(
        default=60, description="A node that changed hands stays at least this long, unless a floor is broken"
    )
    batch_window_s: _Seconds = Field(
        default=0, description="After moves began, demand is gathered this long before the next ones begin"
    )
    max_in_flight: int = Field(
        default=8, ge=1, le=100_000, strict=True, description="Handoffs of this pool at the same time"
    )
    empty_patience_s: _SomeSeconds = Field(
        default=86_400, description="How long a handoff waits for a node to become empty before it goes back"
    )
    gang_deadline_s: _SomeSeconds = Field(
        default=1800, description="How long nodes are collected for a gang before they go back"
    )
    gang_backoff_s: _Seconds = Field(
        default=300, description="A gang that could not be collected is left alone this long, doubled at each failure"
    )
    failure_backoff_s: _Seconds = Field(
        default=300, description="A node whose handoff failed is left alone for this long"
    )

    @field_validator("node_label")
    @classmethod
    def _is_a_label(cls, value: str) -> str:
        if value and not _LABEL.fullmatch(value):
            raise wrong(f"{value!r} is not a label", "write key=value, or a key alone for any value")
        return value

    @field_validator("kube_name")
    @classmethod
    def _one_name_a_node(cls, value: str) -> str:
        if value.count("{node}") != 1:
            raise wrong(
                f"kube_name {value!r} must contain {{node}} once, or all nodes would share one Kubernetes name",
                "write it as '{node}' or '{node}.example.org'",
            )
        return value

    @model_validator(mode="after")
    def _which_nodes(self) -> PoolPolicy:
        ways = [way for way in ("nodes", "all_of_partition", "node_label") if getattr(self, way)]
        if len(ways) != 1:
            raise wrong(
                f"which nodes pool {self.name} has is said {'twice: by ' + ' and '.join(ways) if ways else 'nowhere'}",
                "use exactly one of nodes, all_of_partition and node_label",
                ways[-1] if ways else "nodes",
            )
        return self

    @model_validator(mode="after")
    def _timetable_fits(self) -> PoolPolicy:
        _unique("name of a line", [line.name for line in self.timetable], "timetable", key="name")
        for index, line in enumerate(self.timetable):
            for side in Side:
                floor, most = line.floor(side), self.share(side).max_nodes
                if floor is not None and most is not None and floor > most:
                    raise wrong(
                        f"the {side} floor of line {line.name}, {floor}, is above the side's max_nodes {most}",
                        "lower the floor or raise the maximum",
                        *("timetable", index, f"{side}_floor_nodes"),
                    )
        return self

    @model_validator(mode="after")
    def _lends_of_a_floor(self) -> PoolPolicy:
        for side in Side:
            share = self.share(side)
            highest = max([share.floor_nodes, *(line.floor(side) or 0 for line in self.timetable)])
            if share.lend_limit_nodes > highest:
                raise wrong(
                    f"lend_limit_nodes {share.lend_limit_nodes} is above the side's floor of {highest}",
                    "only nodes of the floor are lent: lower the limit",
                    *(side.value, "lend_limit_nodes"),
                )
        return self

    @property
    def reservation(self) -> str:
        """The pool's one Slurm reservation, the second latch."""
        return f"bridge-{self.name}"

    def share(self, side: Side) -> Share:
        return self.slurm if side is Side.SLURM else self.kubernetes


HALF_LIFE_S = 604_800.0
"""A week, as Slurm's own default: of teams that the policy does not name, too."""


class Team(_Document):
    """Slurm accounts and Kubernetes namespaces under one name, with what is theirs on both sides together."""

    name: _Name
    accounts: tuple[_Listed, ...] = ()
    namespaces: tuple[_Listed, ...] = ()
    guarantee_nodes: _Nodes = Field(default=0, description="No reclaim takes it below this")
    borrow_limit_nodes: _Nodes | None = Field(default=None, description="The most above its guarantee; none: no limit")
    weight: float = Field(default=1, ge=0, le=1000)
    half_life_s: _SomeSeconds = Field(default=HALF_LIFE_S, description="Use counts half after this time")


class Priorities(_Document):
    """What Slurm's QoS and Kubernetes' priority classes are worth on one scale; what is not listed is worth 0."""

    qos: dict[_Listed, _Worth] = {}
    priority_classes: dict[_Listed, _Worth] = {}


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
            raise wrong(f"no time zone is called {value!r}", "write one such as Europe/Berlin or UTC") from error
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> Policy:
        _unique("pool name", [pool.name for pool in self.pools], "pools", key="name")
        _unique("team name", [team.name for team in self.teams], "teams", key="name")
        for kind, listed in (
            ("accounts", [team.accounts for team in self.teams]),
            ("namespaces", [team.namespaces for team in self.teams]),
        ):
            _in_one_team(kind, listed)
        return self

    def pool(self, name: str) -> PoolPolicy | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    def team(self, name: str) -> Team | None:
        return next((team for team in self.teams if team.name == name), None)

    def half_life_s(self, name: str) -> float:
        found = self.team(name)
        return found.half_life_s if found else HALF_LIFE_S

    def team_of_account(self, account: str) -> str:
        """The team of a Slurm account; an account that nobody lists is a team of its own name."""
        return next((team.name for team in self.teams if account in team.accounts), account)


def _unique(what: str, names: Iterable[str], *at: str | int, key: str = "") -> None:
    """Raise at the second place at which a name stands in the list at `at`."""
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in seen:
            place = (*at, index, key) if key else (*at, index)
            raise wrong(f"{what} {name} is used twice, first as number {seen[name] + 1}", "keep one of them", *place)
        seen[name] = index


def _in_one_team(kind: str, listed: list[tuple[str, ...]]) -> None:
    """Raise when an account or namespace is listed twice: whose use would it be?"""
    owner: dict[str, int] = {}
    for team, names in enumerate(listed):
        for index, name in enumerate(names):
            if name in owner:
                raise wrong(
                    f"{name} of the {kind} is in team number {owner[name] + 1} already",
                    "list it in one team only",
                    *("teams", team, kind, index),
                )
            owner[name] = team
