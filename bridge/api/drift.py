"""What `GET /v1/drift` answers with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from pydantic import Field

from bridge.api.views import View
from bridge.model.ownership import Side
from bridge.planning.drift import DriftKind, Finding


class FindingView(View):
    """One thing in which the world and the ledger disagree."""

    kind: DriftKind
    side: Side
    node: str = Field(description="The bridge's name of the node; empty when it is in no pool", examples=["gpu-1"])
    name: str = Field(description="As the side calls it", examples=["gpu-1.testbed"])
    stands: str = Field(description="What the side shows", examples=["drained with bridge:k3v9q2m8:7:42"])
    known: str = Field(description="What the ledger says", examples=["slurm's, lease mark bridge:p1c5w7t2:7:57"])
    does: str = Field(description="What the bridge does about it by itself, or why it does nothing")
    command: str = Field(description="For a person; empty when none is needed")
    since: datetime | None = Field(description="Where the side tells it")

    @classmethod
    def of(cls, finding: Finding) -> FindingView:
        return cls.model_validate(finding, from_attributes=True)


class DriftView(View):
    """Where the world and the ledger disagree, from a fresh reading."""

    now: datetime
    unknown: list[str] = Field(description="The sides that could not be read, and why: nothing is known of their drift")
    items: list[FindingView]

    @classmethod
    def of(cls, findings: Iterable[Finding], unknown: Sequence[str], now: datetime) -> DriftView:
        return cls(now=now, unknown=list(unknown), items=[FindingView.of(finding) for finding in findings])
