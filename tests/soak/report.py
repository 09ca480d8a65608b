"""What a soak came to: handoffs by direction and ending, jobs, doubles, marks, leaders, and the verdict.

Everything here is a pure function of what was recorded, so that a report can be checked by hand. Times are seconds.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.soak.evidence import Look

Json = dict[str, Any]

AFTERMATH_S = 20.0
"""A handoff this soon after a mishap was mended still counts as disturbed by it: daemons start, views are read anew."""
FORGETFUL_S = 10.0
"""slurmctld writes its jobs down every 5 s; what it took on just before it was killed it may not know afterwards."""
SEEN_SHARE = 0.95
"""The judge must have seen each node for this part of the time in which the node's machine was on."""

_ENDINGS = ("done", "returned", "failed", "quarantined")
_ENDED_WELL = frozenset({"COMPLETED"})
_ALIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "COMPLETING", "CONFIGURING", "RESIZING"})


@dataclass(frozen=True, slots=True)
class Trouble:
    """A mishap as it was carried out. `failed`: why it could not be, or could not be mended; empty when it was."""

    kind: str
    target: str
    began_s: float
    ended_s: float
    failed: str = ""

    def near(self, began_s: float, ended_s: float, *, aftermath_s: float = AFTERMATH_S) -> bool:
        return self.began_s <= ended_s and began_s <= self.ended_s + aftermath_s


# --- handoffs ---


@dataclass(frozen=True, slots=True)
class Handoff:
    """One handoff by its events. `emptied_s`: when step `empty` was left; `ending` is empty while it runs."""

    id: str
    node: str
    destination: str
    began_s: float
    emptied_s: float
    ended_s: float
    ending: str
    why: str

    @property
    def source(self) -> str:
        return "kubernetes" if self.destination == "slurm" else "slurm"

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


def handoffs(events: Iterable[Json]) -> list[Handoff]:
    """All handoffs that began in `events` (rows of the event log), in the order in which they began."""
    steps: dict[str, list[Json]] = {}
    for event in events:
        if event["kind"] == "step" and event["handoff"]:
            steps.setdefault(event["handoff"], []).append(event)
    return [_handoff(id, of_one) for id, of_one in steps.items() if "direction" in of_one[0]["data"]]


def _handoff(id: str, events: Sequence[Json]) -> Handoff:
    first, last = events[0], events[-1]
    left_empty = [_seconds(event["at"]) for event in events if event["data"].get("from") == "empty"]
    step = last["data"]["step"]
    turned_back = next((event for event in events if event["data"]["step"] == "reopen"), last)
    return Handoff(
        id=id,
        node=first["node"],
        destination=first["data"]["direction"].removeprefix("to_"),
        began_s=_seconds(first["at"]),
        emptied_s=left_empty[-1] if left_empty else _seconds(last["at"]),
        ended_s=_seconds(last["at"]),
        ending=step if step in _ENDINGS else "",
        why="" if step == "done" else reason(turned_back["message"]),
    )


def reason(message: str) -> str:
    """The sentence of a step without the names and numbers that make each one different."""
    words = message.partition(": ")[2]
    return re.sub(r"\d+(\.\d+)?", "N", re.sub(r"\b(gpu|infra)-\d+(\.testbed)?", "NODE", words))


def waited(handoff: Handoff, looks: Sequence[Look]) -> bool:
    """Whether work of the source was seen on the node between the decision and the proof that it was empty."""
    return any(
        look.node == handoff.node
        and handoff.began_s - 1 <= look.at_s <= handoff.emptied_s
        and look.busy_with(handoff.source)
        for look in looks
    )


def timings(found: Sequence[Handoff], looks: Sequence[Look], troubles: Sequence[Trouble]) -> dict[str, Json]:
    """Decision to proof of the handoffs that were done: by direction, and by whether running work was waited for.

    ``undisturbed`` are those of idle nodes while nothing was broken: what the bridge itself takes.
    """
    rows: dict[str, list[float]] = {}
    for handoff in found:
        if handoff.ending != "done":
            continue
        busy = waited(handoff, looks)
        quiet = not any(trouble.near(handoff.began_s, handoff.ended_s) for trouble in troubles)
        groups = ["all", "waited for work" if busy else "idle node"]
        groups += ["idle node, undisturbed"] if quiet and not busy else []
        for group in groups:
            rows.setdefault(f"to {handoff.destination}, {group}", []).append(handoff.took_s)
    return {name: spread(rows[name]) for name in sorted(rows)}


def spread(seconds: Sequence[float]) -> Json:
    """Count, median, 99th percentile (nearest rank) and maximum."""
    ordered = sorted(seconds)

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 2)

    return {"count": len(ordered), "p50_s": rank(0.5), "p99_s": rank(0.99), "max_s": rank(1)}


def endings(found: Iterable[Handoff]) -> dict[str, Json]:
    """How many ended how, and why those that were not done."""
    counted: dict[str, Counter[str]] = {}
    for handoff in found:
        counted.setdefault(handoff.ending or "running", Counter())[handoff.why] += 1
    return {
        ending: {"count": whys.total(), "reasons": {why: count for why, count in whys.most_common() if why}}
        for ending, whys in sorted(counted.items())
    }


# --- jobs ---


@dataclass(frozen=True, slots=True)
class Submission:
    """An sbatch that was answered with a job (`acknowledged`), or whose answer was lost."""

    name: str
    at_s: float
    acknowledged: bool


@dataclass(frozen=True, slots=True)
class Record:
    """A row of accounting: one run of a job. Ends with `ended_s` None while it runs or waits."""

    name: str
    state: str
    nodes: frozenset[str]
    began_s: float | None
    ended_s: float | None


@dataclass
class Jobs:
    """Where the jobs went. Lost ones are those that nobody meant to end and that nothing of ours explains."""

    submitted: int = 0
    completed: int = 0
    requeued: int = 0
    cancelled_by_us: int = 0
    alive: list[str] = field(default_factory=list)
    failed_with_their_node: list[str] = field(default_factory=list)
    forgotten_by_slurmctld: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def account(
    submissions: Iterable[Submission],
    records: Iterable[Record],
    queue: Mapping[str, str],
    cancelled: frozenset[str],
    troubles: Sequence[Trouble],
) -> Jobs:
    """Every job once. `queue`: the state of those that slurmctld still has; `cancelled`: those that we ended."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record.name, []).append(record)
    jobs = Jobs()
    for submission in submissions:
        of_one = runs.get(submission.name, [])
        if submission.acknowledged or of_one or submission.name in queue:
            jobs.submitted += 1
            jobs.requeued += max(0, len(of_one) - 1)
            _place(jobs, submission, of_one, queue.get(submission.name), cancelled, troubles)
    return jobs


def _place(
    jobs: Jobs,
    submission: Submission,
    runs: Sequence[Record],
    queued: str | None,
    cancelled: frozenset[str],
    troubles: Sequence[Trouble],
) -> None:
    name, last = submission.name, runs[-1] if runs else None
    state = last.state.split()[0] if last else "unknown to accounting"
    if queued in _ALIVE:
        jobs.alive.append(f"{name} ({queued})")
    elif state in _ENDED_WELL:
        jobs.completed += 1
    elif name in cancelled and state == "CANCELLED":
        jobs.cancelled_by_us += 1
    elif last and state not in _ALIVE and state != "CANCELLED" and _its_node_broke(last, troubles):
        jobs.failed_with_their_node.append(f"{name} ({state})")
    elif (last is None or state in _ALIVE) and _was_forgotten(submission, troubles):
        jobs.forgotten_by_slurmctld.append(name)
    else:
        jobs.lost.append(f"{name} ({last.state if last else state})")


def _its_node_broke(run: Record, troubles: Sequence[Trouble]) -> bool:
    """Whether a node of the run, or Slurm itself, was disturbed while it ran."""
    if run.began_s is None or run.ended_s is None:
        return False
    return any(
        trouble.near(run.began_s, run.ended_s)
        for trouble in troubles
        if "slurmctld" in trouble.target or run.nodes & set(trouble.target.split("/"))
    )


def _was_forgotten(submission: Submission, troubles: Sequence[Trouble]) -> bool:
    return any(
        trouble.kind == "kill slurmctld" and submission.at_s <= trouble.began_s <= submission.at_s + FORGETFUL_S
        for trouble in troubles
    )


# --- leaders ---


def longest_without_leader(looks: Sequence[tuple[float, str | None]]) -> float:
    """Longest time in which no look at the ledger (time, holder) found a leader, from look to look."""
    longest, since = 0.0, None
    for at_s, holder in looks:
        if holder is None:
            since = at_s if since is None else since
        elif since is not None:
            longest, since = max(longest, at_s - since), None
    if since is not None:
        longest = max(longest, looks[-1][0] - since)
    return round(longest, 1)


# --- the verdict ---


def verdict(report: Json) -> list[str]:
    """Everything that makes the run a failure; empty for a pass."""
    wrong = []
    if report["double_owners"]:
        wrong.append(f"{len(report['double_owners'])} double owners")
    if report["jobs"]["lost"]:
        wrong.append(f"{len(report['jobs']['lost'])} jobs lost")
    if report["left_behind"]:
        wrong.append(f"{len(report['left_behind'])} marks left behind or missing")
    if report["not_at_rest"]:
        wrong.append(f"{len(report['not_at_rest'])} nodes not at rest, without a reason")
    if report["jobs"]["alive"]:
        wrong.append(f"{len(report['jobs']['alive'])} jobs did not end in the quiet time")
    blind = [node for node, share in report["seen_share"].items() if share < SEEN_SHARE]
    if blind:
        wrong.append(f"the judge saw too little of {', '.join(blind)}")
    if not any(row["count"] for name, row in report["handoffs"].items() if name.endswith(", all")):
        wrong.append("no handoff was done")
    return [*wrong, *report["faults_of_the_soak"]]


def text(report: Json) -> str:
    """The report for people; the last line is the verdict."""
    lines = [
        f"soak: {report['minutes']:g} minutes, seed {report['seed']}{', interrupted' if report['interrupted'] else ''}",
        "",
        f"{'handoffs done (decision to proof)':44} count    p50 s    p99 s    max s",
        *(_timing_line(name, row) for name, row in report["handoffs"].items()),
        "",
        "handoffs by ending",
    ]
    for ending, row in report["endings"].items():
        lines.append(f"  {ending:42} {row['count']:5}")
        lines += [f"    {count:4} x {why}" for why, count in row["reasons"].items()]
    lines += ["", "broken and mended"]
    lines += [f"  {kind:42} {count:5}" for kind, count in report["mishaps"].items()]
    lines += [f"  not done: {words}" for words in report["mishaps_not_done"]]
    jobs = report["jobs"]
    counts = ", ".join(f"{key.replace('_', ' ')} {_count(value)}" for key, value in jobs.items())
    lines += ["", f"jobs: {counts}"]
    for key in ("failed_with_their_node", "forgotten_by_slurmctld", "lost", "alive"):
        lines += [f"  {key.replace('_', ' ')}: {', '.join(jobs[key])}"] if jobs[key] else []
    lines.append("people: " + ", ".join(f"{what} {count}" for what, count in report["people"].items()))
    lines += _last_lines(report)
    wrong = verdict(report)
    return "\n".join([*lines, "", f"soak: FAIL {'; '.join(wrong)}" if wrong else "soak: PASS", ""])


def _last_lines(report: Json) -> list[str]:
    lines = [
        f"leaders (epochs): {report['leaders']}; longest time without one: {report['longest_without_leader_s']} s",
        f"quiet {report['quiet_after_s']} s after the last act",
        "seen by the judge: " + ", ".join(f"{node} {share:.1%}" for node, share in report["seen_share"].items()),
        f"locks met taken by their own side: {len(report['own_affairs'])}",
        f"double owners: {len(report['double_owners'])}",
    ]
    for title in ("double_owners", "left_behind", "not_at_rest", "named"):
        lines += [f"  {title.replace('_', ' ')}: {each}" for each in report[title]]
    return lines


def _count(value: int | list[str]) -> int:
    return value if isinstance(value, int) else len(value)


def _timing_line(name: str, row: Json) -> str:
    return f"  {name:42} {row['count']:5} {row['p50_s']:8.2f} {row['p99_s']:8.2f} {row['max_s']:8.2f}"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
