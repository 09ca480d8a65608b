"""The shape of an answer to "why": a verdict, a chain of links, what would help, and when.

The order of the layers is the one in which an operator would look: limits, quota, fit, nodes, device plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Number = float | int | str


class Kind(StrEnum):
    JOB = "job"
    POD = "pod"
    NODE = "node"
    TEAM = "team"
    POOL = "pool"


LIMITS = "limits"
QUOTA = "quota"
FIT = "fit"
NODES = "nodes"
DEVICE_PLUGIN = "device plugin"


@dataclass(frozen=True, slots=True)
class Link:
    """One thing that was looked at. `holds`: it is an obstacle. `command` shows the same to an operator."""

    layer: str
    holds: bool
    text: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would help. `displaces` says whose work would end for it, `displaces_gpu_s` what is lost by that."""

    text: str
    displaces: str = "nothing"
    displaces_gpu_s: float = 0.0
    command: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """In how many seconds the subject would have what it waits for; None: not known, for the reason in `basis`."""

    in_s: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Explanation:
    kind: Kind
    subject: str
    verdict: str
    chain: tuple[Link, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    estimate: Estimate = Estimate(None, "it does not wait for anything")

    @property
    def obstacle(self) -> Link | None:
        """The first link that holds."""
        return next((link for link in self.chain if link.holds), None)


def ranked(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """What displaces least first; of equals in the order in which they were found, each once."""
    return tuple(sorted(dict.fromkeys(remedies), key=lambda remedy: remedy.displaces_gpu_s))


def unknown(kind: Kind, subject: str, why: str) -> Explanation:
    """What is said of a subject whose side could not be read: no guess."""
    link = Link(LIMITS, True, f"UNKNOWN: {why}", command="bridgectl status")
    return Explanation(
        kind, subject, f"UNKNOWN: {why}", (link,), (), Estimate(None, "UNKNOWN until its side can be read again")
    )
