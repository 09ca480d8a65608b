"""The policy document: what admins write, validated on the way in.

This is the first, small policy: a floor and a maximum a side, idle age, minimum hold, limits. Times are seconds.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bridge.model.ownership import Side

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Share(_Document):
    """What one side may count on (`floor_nodes`) and the most it may own (`max_nodes`, None: no limit)."""

    floor_nodes: int = Field(default=0, ge=0, le=100_000)
    max_nodes: int | None = Field(default=None, ge=0, le=100_000)

    @model_validator(mode="after")
    def _floor_below_max(self) -> Share:
        if self.max_nodes is not None and self.floor_nodes > self.max_nodes:
            raise ValueError(
                f"floor_nodes {self.floor_nodes} is above max_nodes {self.max_nodes}: "
                "lower the floor or raise the maximum"
            )
        return self


class PoolPolicy(_Document):
    """One pool of shared nodes: a Slurm partition on one side, a set of Kubernetes nodes on the other."""

    name: _Name
    nodes: tuple[str, ...] = Field(min_length=1, description="Slurm host lists, e.g. ['gpu-[1-4]']")
    kube_name: str = Field(default="{node}", description="How Kubernetes spells a node: '{node}' is the Slurm name")
    gpus: int = Field(default=8, ge=1, le=64, description="GPUs that each node must offer on either side")
    partition: _Name
    home: Side = Field(default=Side.SLURM, description="Who adopts a node on which nothing runs on the first day")
    slurm: Share = Share()
    kubernetes: Share = Share()
    demand_age_s: float = Field(default=2, ge=0, description="A demand is met only after waiting this long")
    idle_age_s: float = Field(default=2, ge=0, description="A node counts as idle only after being so for this long")
    min_hold_s: float = Field(
        default=60, ge=0, description="A node that changed hands stays at least this long, unless a floor is broken"
    )
    max_in_flight: int = Field(default=8, ge=1, description="Handoffs of this pool at the same time")
    empty_patience_s: float = Field(
        default=86_400, gt=0, description="How long a handoff waits for a node to become empty before it goes back"
    )
    failure_backoff_s: float = Field(
        default=300, ge=0, description="A node whose handoff failed is left alone for this long"
    )

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


class Policy(_Document):
    """The whole document. An empty one shares nothing and moves nothing."""

    pools: tuple[PoolPolicy, ...] = ()

    @model_validator(mode="after")
    def _pool_names_differ(self) -> Policy:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"pool name used twice: {', '.join(twice)}")
        return self

    def pool(self, name: str) -> PoolPolicy | None:
        return next((pool for pool in self.pools if pool.name == name), None)
