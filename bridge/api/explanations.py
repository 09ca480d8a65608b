"""What `GET /v1/explain` answers with."""

from __future__ import annotations

import math
from datetime import datetime

from pydantic import Field

from bridge.api.views import View
from bridge.planning.explain import Explanation, Kind, Link, Remedy


class LinkView(View):
    """One thing that was looked at."""

    layer: str = Field(description="For jobs and pods in this order: limits, quota, fit, nodes, device plugin")
    holds: bool = Field(description="It is an obstacle")
    text: str = Field(examples=["kubernetes has 4 usable nodes and keeps 2 of its floor 2: it may give 2, 3 needed"])
    numbers: dict[str, int | float | str] = Field(examples=[{"usable_nodes": 4, "floor_nodes": 2}])
    command: str = Field(description="Shows the same to an operator", examples=["scontrol show job 17"])

    @classmethod
    def of(cls, link: Link) -> LinkView:
        numbers = {name: number if _is_finite(number) else str(number) for name, number in link.numbers.items()}
        return cls(layer=link.layer, holds=link.holds, text=link.text, numbers=numbers, command=link.command)


def _is_finite(number: float | int | str) -> bool:
    return not isinstance(number, float) or math.isfinite(number)


class RemedyView(View):
    """What would help, what displaces least first."""

    text: str
    displaces: str = Field(description="Whose work would end for it", examples=["nothing", "job 12 of bob"])
    displaces_gpu_s: float = Field(description="GPU-seconds of work that would be lost")
    command: str

    @classmethod
    def of(cls, remedy: Remedy) -> RemedyView:
        return cls(
            text=remedy.text,
            displaces=remedy.displaces,
            displaces_gpu_s=remedy.displaces_gpu_s,
            command=remedy.command,
        )


class EstimateView(View):
    """When it would have what it waits for."""

    in_s: float | None = Field(description="None: not known")
    basis: str = Field(examples=["2 nodes end by their time limits within 840 s; hand-over measured p50 1.8 s"])


class ExplanationView(View):
    """Why something waits, or stays where it is."""

    now: datetime
    kind: Kind
    subject: str = Field(examples=["job 17 of alice"])
    verdict: str = Field(description="One sentence")
    chain: list[LinkView] = Field(description="From the first thing to look at to the last")
    remedies: list[RemedyView]
    estimate: EstimateView

    @classmethod
    def of(cls, explanation: Explanation, now: datetime) -> ExplanationView:
        return cls(
            now=now,
            kind=explanation.kind,
            subject=explanation.subject,
            verdict=explanation.verdict,
            chain=[LinkView.of(link) for link in explanation.chain],
            remedies=[RemedyView.of(remedy) for remedy in explanation.remedies],
            estimate=EstimateView(in_s=explanation.estimate.in_s, basis=explanation.estimate.basis),
        )
