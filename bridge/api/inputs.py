"""The shapes of what clients send: every text has a length and an alphabet, every wait and every list a bound."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from bridge.model.ownership import Side

_NODE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
_TEXT_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]*$"
_MAX_ID = 2**63 - 1

NodeName = Annotated[str, Path(pattern=_NODE_PATTERN, description="The node's name", examples=["gpu-1"])]
HandoffId = Annotated[str, Path(pattern=_ID_PATTERN, description="The handoff's id")]
RequestId = Annotated[str, Path(pattern=_ID_PATTERN, description="The request's id")]
NodeFilter = Annotated[str | None, Query(pattern=_NODE_PATTERN, description="Only this node")]
SubjectName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+/-]{0,380}$",
        description="A job's id, namespace/name of a pod, or the name of a node, a team or a pool",
        examples=["17"],
    ),
]
Limit = Annotated[int, Query(ge=1, le=500, description="At most this many")]
After = Annotated[int, Query(ge=0, le=_MAX_ID)]
PollWait = Annotated[float, Query(ge=0, le=30, description="Wait this many seconds for something new")]
AnswerWait = Annotated[float, Query(ge=0, le=10, description="Wait this many seconds for the leader's answer")]
OnlySay = Annotated[bool, Query(description="Only say what it would do")]
Remark = Annotated[
    str, Query(max_length=200, pattern=_TEXT_PATTERN, description="Why the policy changes, for its history")
]

OnlyPool = Annotated[
    str | None,
    Field(min_length=1, max_length=128, pattern=_TEXT_PATTERN, description="Only this pool", examples=["h100"]),
]
Reason = Annotated[
    str,
    Field(min_length=1, max_length=200, pattern=_TEXT_PATTERN, description="For the event log and for people"),
]
HostList = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,\[\]-]{0,255}$",
        description="A node's name or a Slurm host list",
        examples=["gpu-1", "gpu-[3-6]"],
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HandoffOrder(_Body):
    """An order to move nodes. They are one gang: all open together, or all go back."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"nodes": ["gpu-[1-2]"], "destination": "kubernetes", "reason": "launch day"}]}
    )

    nodes: list[HostList] = Field(min_length=1, max_length=256)
    destination: Side
    reason: Reason


class ScopedOrder(_Body):
    """Of one pool or one node, or without both of everything."""

    pool: OnlyPool = None
    node: str | None = Field(default=None, pattern=_NODE_PATTERN, description="Only this node", examples=["gpu-1"])


class PauseOrder(ScopedOrder):
    """Start no new handoff; running ones finish. Of one pool or one node, or without both of everything."""

    reason: Annotated[Reason, Field(examples=["switch maintenance until 18:00"])]


class RecallOrder(_Body):
    """Every lent node comes home: of one pool, or with `all` of every pool. Exactly one of the two must be given."""

    pool: OnlyPool = None
    all: bool = Field(default=False, description="Every pool")
    reason: Annotated[Reason, Field(examples=["power cut at 18:00"])]


class FenceAckOrder(_Body):
    """The agent's word that its fence file shows all leases up to `generation`."""

    generation: int = Field(ge=0, le=_MAX_ID, examples=[42])
