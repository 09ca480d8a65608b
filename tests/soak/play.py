"""Plays a story on the testbed, waits for the quiet afterwards, and records all of it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from tests.e2e.testbed import NODES, Json, NotYet, Testbed, eventually
from tests.soak.evidence import Look, Taken, doubles, own_affairs, read_taken, unseen_s
from tests.soak.marks import Marks, left_behind, named, not_at_rest, read_marks
from tests.soak.mishaps import carry_out
from tests.soak.people import BROKEN, DirectSlurm, People
from tests.soak.report import Record, Trouble, account, endings, handoffs, longest_without_leader, timings
from tests.soak.story import AT_ONCE, Act, Mishap, Story
from tests.soak.watch import EVENTS_EVERY_S, EventEyes, LeaderEyes, NodeWatch, Poll

LATE_S = 10.0
"""An act that could not be begun for this long, as those before it hang, is left out."""
LOOK_AFTER_EVERY_S = 15.0
PROGRESS_EVERY_S = 60.0
WORK_ENDS_S = 600.0
"""For the queue to run empty after the last act. A killed slurmctld may think for 5 minutes that a job runs which it
never started; a job that was requeued waits for two more."""
REST_S = 180.0
"""For every handoff to end once nothing runs any more: the longest step deadline is that of a proof, 120 s."""
MARKS_S = 30.0
BOOT_S = 30.0
"""How long the judge may be blind on a node that was switched on again or thawed."""


@dataclass
class Recorded:
    """What was seen and done; times are seconds since the epoch."""

    story: Story
    began_s: float
    ended_s: float = 0.0
    interrupted: bool = False
    looks: list[Look] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    leaders: list[tuple[float, str | None]] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    people: People | None = None
    records: list[Record] = field(default_factory=list)
    queue: dict[str, str] = field(default_factory=dict)
    nodes: list[Json] = field(default_factory=list)
    marks: Marks | None = None
    quiet_after_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def report(self) -> Json:
        """All that `tests.soak.report.text` shows and judges, as plain data."""
        people = self.people
        submissions, cancelled = (people.submissions, people.cancelled) if people else ([], frozenset[str]())
        jobs = account(submissions, self.records, self.queue, cancelled, self.troubles)
        found = handoffs(self.events)
        return {
            "minutes": self.story.minutes,
            "seed": self.story.seed,
            "interrupted": self.interrupted,
            "handoffs": timings(found, self.looks, self.troubles),
            "endings": endings(found),
            "mishaps": dict(sorted(Counter(each.kind for each in self.troubles if not each.failed).items())),
            "mishaps_not_done": [f"{each.kind} {each.target}: {each.failed}" for each in self.troubles if each.failed],
            "double_owners": [str(double) for double in doubles(self.looks, self.taken)],
            "own_affairs": [str(taken) for taken in own_affairs(self.looks, self.taken)],
            "jobs": vars(jobs),
            "people": dict(sorted(people.counts.items())) if people else {},
            "leaders": len({holder for _, holder in self.leaders if holder}),
            "longest_without_leader_s": longest_without_leader(self.leaders),
            "quiet_after_s": round(self.quiet_after_s, 1),
            "seen_share": {node: self._seen_share(node) for node in NODES},
            "left_behind": left_behind(self.marks, self.nodes) if self.marks else [],
            "not_at_rest": not_at_rest(self.nodes),
            "named": named(self.nodes),
            "faults_of_the_soak": self.faults,
        }

    def _seen_share(self, node: str) -> float:
        """Part of the time in which the node was on and the judge saw it."""
        off = [
            (trouble.began_s, trouble.ended_s + BOOT_S)
            for trouble in self.troubles
            if trouble.kind in ("kill node", "pause node") and trouble.target == node
        ]
        looks = [look for look in self.looks if look.node == node]
        blind_s = unseen_s(looks, self.began_s, self.ended_s, off)
        return round(1 - blind_s / (self.ended_s - self.began_s), 4)


def say(recorded: Recorded, words: str) -> None:
    """A line for whoever watches."""
    sys.stdout.write(f"{time.time() - recorded.began_s:7.1f} s  {words}\n")
    sys.stdout.flush()


def play(story: Story, testbed: Testbed, stop: threading.Event) -> Recorded:
    """The story from a testbed at rest to a testbed at rest. Sooner to the end when `stop` is set."""
    sys.stdout.write("soak: the testbed comes to rest first\n")
    testbed.reset()
    recorded = Recorded(story, began_s=time.time(), people=People(testbed))
    people, over = recorded.people, threading.Event()
    assert people
    people.usual_policy()
    people.deploy()
    with _watched(recorded, testbed, over):
        _acts(recorded, testbed, people, stop)
        recorded.interrupted = stop.is_set()
        _come_to_rest(recorded, testbed, people)
        recorded.ended_s = time.time()
    _take_stock(recorded, testbed, people)
    return recorded


# --- while things break ---


@contextmanager
def _watched(recorded: Recorded, testbed: Testbed, over: threading.Event) -> Iterator[None]:
    """Runs all eyes; what they saw is in `recorded` afterwards."""
    nodes = [NodeWatch(node, over) for node in NODES]
    leader, events = LeaderEyes(), EventEyes(testbed)
    others = [Poll(leader.look, 0.5, over), Poll(events.look, EVENTS_EVERY_S, over)]
    for thread in (*nodes, *others):
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in (*nodes, *others):
            thread.join(timeout=20)
        events.look()
        recorded.looks = sorted(chain.from_iterable(watch.looks for watch in nodes), key=lambda look: look.at_s)
        recorded.leaders, recorded.events = leader.looks, events.events


def _acts(recorded: Recorded, testbed: Testbed, people: People, stop: threading.Event) -> None:
    """Begins each act at its time, each kind of person in a thread of their own; ends when all mishaps are mended."""
    began = time.monotonic()
    persons = {name: ThreadPoolExecutor(1) for name in ("Job", "Scale", "Order", "Edit", "carer")}
    breakers = ThreadPoolExecutor(2 * AT_ONCE)
    mending: list[Future[None]] = []
    chores = sorted(
        [
            *((act.at_s, _Begin(act)) for act in recorded.story.acts),
            *_every(LOOK_AFTER_EVERY_S, recorded.story, "carer"),
            *_every(PROGRESS_EVERY_S, recorded.story, "progress"),
        ],
        key=lambda chore: chore[0],
    )
    for at_s, chore in chores:
        if stop.wait(max(0.0, began + at_s - time.monotonic())):
            break
        act = chore.act
        if isinstance(act, Mishap):
            mending.append(breakers.submit(_mishap, act, recorded, testbed, stop))
        elif act is not None:
            persons[type(act).__name__].submit(_unless_late, people.do, act, began, people)
        elif chore.what == "carer":
            persons["carer"].submit(people.look_after)
        else:
            say(recorded, f"acts so far: {dict(people.counts)}")
    for future in mending:
        future.result()
    for pool in (*persons.values(), breakers):
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Begin:
    """Something to be done at a time: an act, or a chore of the soak's own."""

    act: Act | None
    what: str = ""


def _every(seconds: float, story: Story, what: str) -> Iterator[tuple[float, _Begin]]:
    for number in range(1, int(story.minutes * 60 / seconds)):
        yield number * seconds, _Begin(None, what)


def _unless_late(do: Callable[[Act], None], act: Act, began: float, people: People) -> None:
    if time.monotonic() - began - act.at_s > LATE_S:
        people.counts[f"{type(act).__name__.lower()}s left out"] += 1
    else:
        do(act)


def _mishap(mishap: Mishap, recorded: Recorded, testbed: Testbed, stop: threading.Event) -> None:
    say(recorded, f"{mishap.kind}: {mishap.target}, for {mishap.lasts_s:.0f} s")
    trouble = carry_out(mishap, testbed, stop)
    recorded.troubles.append(trouble)
    if trouble.failed:
        say(recorded, f"{mishap.kind}: {mishap.target}: {trouble.failed.splitlines()[0]}")
    if "not mended" in trouble.failed:
        recorded.faults.append(f"{mishap.kind} {mishap.target} could not be mended")


# --- afterwards ---


def _come_to_rest(recorded: Recorded, testbed: Testbed, people: People) -> None:
    """No new work: what is queued runs, then every handoff ends. What does not is recorded, not raised."""
    began_s = time.time()
    say(recorded, "no more mishaps; the queue runs empty")
    _surely(recorded, "the usual policy", people.usual_policy)
    _surely(recorded, "all Deployments to nothing", people.scale_to_nothing)
    _within(recorded, 60 if recorded.interrupted else WORK_ENDS_S, "the queue is empty", lambda: _no_jobs(people))
    if recorded.interrupted:
        _surely(recorded, "cancel the rest", people.cancel_the_rest)
    _within(recorded, REST_S, "every node is at rest", lambda: _at_rest(testbed))
    recorded.quiet_after_s = time.time() - began_s
    _within(recorded, MARKS_S, "no mark is without an owner", lambda: _no_strange_marks(testbed))
    say(recorded, "at rest")


def _surely(recorded: Recorded, what: str, do: Callable[[], None]) -> None:
    """Once more until it is done: the parts it needs are starting up."""

    def tried() -> None:
        try:
            do()
        except BROKEN as why:
            raise NotYet(str(why)) from None

    try:
        eventually(tried, what, within_s=120, every_s=2)
    except AssertionError as why:
        recorded.faults.append(str(why).splitlines()[0])


def _within(recorded: Recorded, seconds: float, what: str, look: Callable[[], None]) -> None:
    """Waits; that it did not come to be shows in what is recorded later."""

    def looked() -> None:
        try:
            look()
        except BROKEN as why:
            raise NotYet(str(why)) from None

    try:
        eventually(looked, what, within_s=seconds, every_s=2)
    except AssertionError as why:
        say(recorded, str(why))


def _no_jobs(people: People) -> None:
    people.look_after()
    queue = people.queue()
    if queue:
        raise NotYet(f"jobs {queue}")


_OVER = ("Failed", "Succeeded")
"""Phases of pods that Kubernetes keeps for people to look at; nothing of them runs."""


def _at_rest(testbed: Testbed) -> None:
    serving = [pod["metadata"]["name"] for pod in testbed.kube.pods() if pod["status"]["phase"] not in _OVER]
    if serving:
        raise NotYet(f"pods {serving} are still there")
    moving = not_at_rest(testbed.bridge.nodes().values())
    if moving:
        raise NotYet("; ".join(moving))


def _no_strange_marks(testbed: Testbed) -> None:
    strange = left_behind(_read_marks(testbed), list(testbed.bridge.nodes().values()))
    if strange:
        raise NotYet("; ".join(strange))


def _read_marks(testbed: Testbed) -> Marks:
    slurm = DirectSlurm()
    return read_marks(
        json.loads(slurm("scontrol", "show", "node", "--json"))["nodes"],
        json.loads(slurm("scontrol", "show", "reservation", "--json"))["reservations"],
        testbed.kube.json("get", "nodes")["items"],
        testbed.kube.json("get", "nodefences")["items"],
        testbed.kube.json("get", "nodeloans")["items"],
    )


def _take_stock(recorded: Recorded, testbed: Testbed, people: People) -> None:
    """The last reading of everything; what cannot be read is a fault."""

    def jobs() -> None:
        recorded.queue, recorded.records = people.queue(), people.records(recorded.began_s - 60)

    def marks() -> None:
        recorded.nodes = list(testbed.bridge.nodes().values())
        recorded.marks = _read_marks(testbed)

    def taken() -> None:
        recorded.taken = read_taken(testbed.evidence())

    for what, look in (("the jobs", jobs), ("the marks", marks), ("the locks met taken", taken)):
        _surely(recorded, what, look)
