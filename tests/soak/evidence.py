"""Who was seen at work on which node, and whether both schedulers' work ever stood on one at the same time.

The judge looks at processes, by what the kernel says of them; nothing here knows the bridge. Times are seconds since
the epoch, on the one clock that all containers share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

NEAR_S = 2.0
"""A look is taken twice a second; one that is further away says nothing about a moment."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the processes of a node: the Slurm jobs and the pods with GPUs that have any."""

    node: str
    at_s: float
    jobs: frozenset[str]
    pods: frozenset[str]

    @property
    def double(self) -> bool:
        return bool(self.jobs and self.pods)

    def busy_with(self, side: str) -> bool:
        return bool(self.jobs if side == "slurm" else self.pods)


@dataclass(frozen=True, slots=True)
class Double:
    """Both sides at work on one node from `began_s` to `ended_s`, by all looks between."""

    node: str
    began_s: float
    ended_s: float
    jobs: tuple[str, ...]
    pods: tuple[str, ...]
    how: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A line of the testbed's `hold`: `who` (``job/…``, ``pod/…``) met a GPU that somebody else held."""

    node: str
    at_s: float
    who: str


_SCANNED = re.compile(rb"^/proc/(\d+)/environ:(SLURM_JOB_ID|NVIDIA_VISIBLE_DEVICES|HOSTNAME)=(.*)$", re.DOTALL)


def read_look(node: str, at_s: float, found: Iterable[bytes]) -> Look:
    """A look from lines ``/proc/PID/environ:NAME=VALUE``.

    What runs for a job has its SLURM_JOB_ID; what runs in a pod that was given GPUs has NVIDIA_VISIBLE_DEVICES, and the
    pod's name as HOSTNAME. Children inherit both, also those that left their session or their parent.
    """
    processes: dict[bytes, dict[bytes, str]] = {}
    for line in found:
        parts = _SCANNED.match(line)
        if parts:
            processes.setdefault(parts[1], {})[parts[2]] = parts[3].decode(errors="replace")
    jobs = {values[b"SLURM_JOB_ID"] for values in processes.values() if b"SLURM_JOB_ID" in values}
    pods = {
        values.get(b"HOSTNAME", "?")
        for values in processes.values()
        if b"NVIDIA_VISIBLE_DEVICES" in values and b"SLURM_JOB_ID" not in values
    }
    return Look(node, at_s, frozenset(jobs), frozenset(pods))


def read_taken(text: str) -> list[Taken]:
    """Lines ``TIME NODE WHO DEVICE``, those of one refusal (a GPU each) as one."""
    found = []
    for line in text.splitlines():
        at, node, who, _ = line.split()
        found.append(Taken(node, datetime.fromisoformat(_microseconds(at)).timestamp(), who))
    return found


def doubles(looks: Sequence[Look], taken: Iterable[Taken]) -> list[Double]:
    """Every time both sides were at work on a node: by the looks, and by locks that were met taken.

    A taken lock is not double when the looks around it show only work of the accuser's own side: a job that Slurm
    started anew beside what was left of another one is Slurm's affair. Without looks it counts.
    """
    by_node: dict[str, list[Look]] = {}
    for look in sorted(looks, key=lambda look: look.at_s):
        by_node.setdefault(look.node, []).append(look)
    seen = [double for of_node in by_node.values() for double in _runs(of_node)]
    locked = [
        Double(each.node, each.at_s, each.at_s, (), (), f"{each.who} met a GPU that was held")
        for each in taken
        if not _own_affair(each, by_node.get(each.node, []))
    ]
    return sorted([*seen, *locked], key=lambda double: double.began_s)


def own_affairs(looks: Sequence[Look], taken: Sequence[Taken]) -> list[Taken]:
    """Taken locks that were one side's own."""
    return [each for each in taken if _own_affair(each, [look for look in looks if look.node == each.node])]


def unseen_s(looks: Iterable[Look], began_s: float, ended_s: float, excused: Sequence[tuple[float, float]]) -> float:
    """Seconds of a node between `began_s` and `ended_s` without a look within `NEAR_S`, but for the `excused` spans."""
    times = [began_s, *sorted(look.at_s for look in looks), ended_s]
    gaps = [(a, b) for a, b in pairwise(times) if b - a > NEAR_S]
    return sum(_without(gap, excused) for gap in gaps)


def _without(gap: tuple[float, float], excused: Sequence[tuple[float, float]]) -> float:
    """How much of `gap` no excuse covers."""
    left, at = 0.0, gap[0]
    for began, ended in sorted(excused):
        left += max(0.0, min(began, gap[1]) - at)
        at = max(at, ended)
    return left + max(0.0, gap[1] - at)


def _runs(looks: list[Look]) -> Iterable[Double]:
    """Neighbouring double looks of one node as one."""
    run: list[Look] = []
    for look in [*looks, None]:
        if look is not None and look.double:
            run.append(look)
        elif run:
            jobs = tuple(sorted(frozenset[str]().union(*(each.jobs for each in run))))
            pods = tuple(sorted(frozenset[str]().union(*(each.pods for each in run))))
            yield Double(run[0].node, run[0].at_s, run[-1].at_s, jobs, pods, "processes of both were seen")
            run = []


def _own_affair(taken: Taken, looks: Iterable[Look]) -> bool:
    near = [look for look in looks if abs(look.at_s - taken.at_s) <= NEAR_S]
    other = "kubernetes" if taken.who.startswith("job/") else "slurm"
    return bool(near) and not any(look.busy_with(other) for look in near)


def _microseconds(text: str) -> str:
    """RFC 3339 with up to nine digits of a second, as Python 3.11 reads it."""
    return re.sub(r"(\.\d{6})\d*", r"\1", text).replace("Z", "+00:00")
