"""Arbitrary facts, handoffs and fleets for the laws: as wild as the types allow, where a law holds for all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from bridge.lifecycle.facts import DeviceFacts, SideFacts
from bridge.lifecycle.progress import Member, Sight, StepBounds
from bridge.model.demand import Victim
from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Closure, Lease, Mark, Node, Owner, Side
from bridge.model.slurm import SlurmJob

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
LEASE = "lease0001"
BOUNDS = StepBounds(close_s=60, empty_s=3600, clean_s=900, open_s=120, prove_s=120)

sides = st.sampled_from(list(Side))
live_steps = st.sampled_from([step for step in Step if not step.ended])
lease_ids = st.from_regex(r"[a-z0-9]{8,40}", fullmatch=True)
marks = st.builds(Mark, lease_ids, st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1))
moments = st.integers(-7200, 7200).map(lambda seconds: NOW + timedelta(seconds=seconds))

jobs_here = st.builds(
    SlurmJob,
    id=st.sampled_from([17, 17, 18]),
    state=st.sampled_from(["RUNNING", "RUNNING", "SUSPENDED", "COMPLETING"]),
    user=st.just("alice"),
    account=st.just("research"),
    partition=st.just("shared"),
    may_requeue=st.booleans(),
    het_job=st.sampled_from([None, None, 17]),
)
victims = st.builds(
    Victim,
    key=st.just("job 17 of alice"),
    side=sides,
    job=st.sampled_from([17, 17, 18, None]),
    loss_gpu_s=st.just(1000.0),
    signal=st.sampled_from(["TERM", "TERM", ""]),
    grace_s=st.sampled_from([0.0, 90.0]),
)

known_facts = st.builds(
    SideFacts,
    first_latch=st.booleans(),
    second_latch=st.booleans(),
    foreign=st.sampled_from(["", "", "drained by admin: bad DIMM"]),
    empty=st.booleans(),
    idle=st.booleans(),
    answers=st.booleans(),
    blockers=st.sampled_from([(), ("job 17 of alice is RUNNING",)]),
    opened=st.booleans(),
    ready=st.booleans(),
    not_ready=st.sampled_from(["", "slurmctld shows DOWN"]),
    stray_mark=st.none() | st.just(Mark(LEASE, 1, 5)),
    jobs=st.lists(jobs_here, max_size=3).map(tuple),
)
unknown_facts = st.just(SideFacts(unknown="unreadable: timeout"))
side_facts = known_facts | unknown_facts
device_facts = st.sampled_from([DeviceFacts(), DeviceFacts(clean=True), DeviceFacts(blockers=("process 7 holds it",))])
sights = st.builds(Sight, side_facts, side_facts, device_facts)

SHUT = SideFacts(first_latch=True, second_latch=True, idle=True, answers=True)
EMPTY = replace(SHUT, empty=True)
OFFERED = SideFacts(opened=True, ready=True, idle=True, answers=True)
near_the_end = st.sampled_from(
    [
        EMPTY,
        EMPTY,
        EMPTY,
        SHUT,
        replace(SHUT, second_latch=False),
        replace(SHUT, first_latch=False, foreign="drained by admin: bad DIMM"),
        SideFacts(unknown="not listed"),
    ]
)
"""Facts of nodes that are on their way as planned, but for one thing: what wild facts rarely are."""


def node(name: str = "gpu-1") -> Node:
    return Node(name, name, f"{name}.testbed", "shared", 8)


@st.composite
def handoffs(draw: st.DrawFn, name: str = "gpu-1", source: Side | None = None) -> Handoff:
    leaving = source or draw(sides)
    return Handoff(
        id=f"h-{name}",
        lease=LEASE,
        node=name,
        source=leaving,
        destination=leaving.other,
        step=draw(live_steps),
        reason="job 17 waits",
        requested_by="policy",
        generation=7,
        nonce="nonce0001",
        evict=draw(st.booleans()),
        began_at=NOW - timedelta(hours=2),
        step_began_at=NOW - timedelta(hours=2),
        step_deadline_at=draw(moments),
        victims=tuple(draw(st.lists(victims, max_size=2))),
        signalled_at=draw(st.none() | moments),
    )


@st.composite
def gangs(draw: st.DrawFn, steps: tuple[Step, ...] = ()) -> list[Member]:
    """Live handoffs of one lease, as many as a gang may have left: all from one side. With `steps`, nearly there."""
    source, size = draw(sides), draw(st.integers(1, 4))
    members = []
    for number in range(1, size + 1):
        handoff = draw(handoffs(f"gpu-{number}", source))
        if not steps:
            members.append(Member(handoff, draw(sights)))
            continue
        handoff = replace(handoff, step=draw(st.sampled_from(steps)))
        facts = {source: draw(near_the_end), source.other: draw(near_the_end)}
        members.append(Member(handoff, Sight(facts[Side.SLURM], facts[Side.KUBERNETES], draw(device_facts))))
    return members


def closure(side: Side, mark: Mark, name: str = "gpu-1") -> Closure:
    return Closure(name, side, mark)


def lease(owner: Owner, mark: Mark, name: str = "gpu-1") -> Lease:
    return Lease(mark.lease, name, owner, mark.epoch, mark.generation, NOW - timedelta(hours=2))
