"""What a pass writes down for later ones: victims, backoffs, use; and how long nodes are collected for a gang."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bridge.lifecycle.facts import SideFacts
from bridge.lifecycle.progress import Sight
from bridge.model.demand import Demand, Victim, Work
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import (
    Backoff,
    Change,
    DropBackoff,
    LedgerState,
    NodeRecord,
    Note,
    Preempted,
    PutBackoff,
    PutHandoff,
    PutPreempted,
    PutUsage,
    Usage,
)
from bridge.model.ownership import Closure, Lease, Node, Owner, Side
from bridge.model.policy import Policy, PoolPolicy, Team
from bridge.planning.snapshot import Move, Plan, Snapshot
from bridge.reconciler import decide as module
from bridge.reconciler.bookkeeping import backoff_s, victims_by_node
from bridge.reconciler.decide import Bounds, Decider, Fresh

BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GANG = "job 30 of bob"
BOUNDS = Bounds(close_s=60, clean_s=900, open_s=120, prove_s=120)
POOL = PoolPolicy(name="gpu", nodes=("gpu-[1-4]",), partition="gpu", gang_deadline_s=1800, gang_backoff_s=300)

SHUT = SideFacts(first_latch=True, second_latch=True, answers=True)
EMPTY = replace(SHUT, empty=True, idle=True)
OPEN = SideFacts(opened=True, answers=True)
READY = replace(OPEN, ready=True, idle=True)
UNKNOWN = SideFacts(unknown="slurm is unreadable: timeout")
THEIRS = replace(SHUT, foreign="drained by root: bad DIMM")

BUSY = Sight(SHUT, SHUT)
"""Slurm is closed and has work left."""
PROVEN = Sight(EMPTY, READY)
"""Kubernetes offers the node."""


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def handoff(node: str, step: Step, **fields: object) -> Handoff:
    given: dict[str, object] = {
        "id": f"h-{node}",
        "lease": "lease0001",
        "source": Side.SLURM,
        "destination": Side.KUBERNETES,
        "reason": "a gang waits",
        "requested_by": "policy",
        "generation": 1,
        "nonce": "nonce",
        "evict": False,
        "began_at": BEGAN,
        "step_began_at": BEGAN,
        "step_deadline_at": after(1800),
        "demand": GANG,
    }
    return Handoff(node=node, step=step, **(given | fields))  # type: ignore[arg-type]


def state(*handoffs: Handoff, pool: PoolPolicy = POOL, **fields: object) -> LedgerState:
    """gpu-1 to gpu-4, Slurm's but for those that move."""
    moving = {each.node: each for each in handoffs}
    opened = (Step.OPEN, Step.PROVE)
    nodes, leases = {}, {}
    for name in (f"gpu-{number}" for number in range(1, 5)):
        nodes[name] = NodeRecord(Node(name, name, name, "gpu", 8))
        each = moving.get(name)
        owner = Owner.SLURM if each is None else Owner.KUBERNETES if each.step in opened else Owner.BRIDGE
        leases[name] = Lease(each.lease if each else "lease0000", name, owner, 1, 1, BEGAN, each.id if each else None)
    given: dict[str, object] = {"policy": Policy(pools=(pool,)), "nodes": nodes, "leases": leases, "handoffs": moving}
    return LedgerState(**(given | fields))  # type: ignore[arg-type]


def decided(
    known: LedgerState,
    now: datetime,
    sights: dict[str, Sight] | None = None,
    snapshot: Snapshot | None = None,
    **fields: object,
) -> list[Change]:
    seen = {name: Sight(READY, SHUT) for name in known.nodes} | (sights or {})
    ids, generations = itertools.count(1), itertools.count(100)
    fresh = Fresh(2, lambda: f"id{next(ids):08}", lambda: next(generations))
    decider = Decider(known, seen, now, fresh, BOUNDS, **fields)  # type: ignore[arg-type]
    decider.decide(snapshot or Snapshot((), ()))
    return decider.changes


def of_kind(changes: Sequence[Change], *kinds: type) -> list[Change]:
    return [change for change in changes if isinstance(change, kinds)]


def step_of(changes: Sequence[Change], node: str) -> Handoff:
    (found,) = [change.handoff for change in changes if isinstance(change, PutHandoff) and change.handoff.node == node]
    return found


@pytest.fixture(autouse=True)
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Move]:
    """The moves that the planner returns: none, unless a test puts some here."""
    moves: list[Move] = []
    monkeypatch.setattr(module, "plan", lambda snapshot, policy, now: Plan(moves=tuple(moves)))
    return moves


# --- victims ---

ALICE = Victim("job 17 of alice", Side.SLURM, 17, 9600.0, "USR1", 120.0)
CAROL = Victim("job 18 of carol", Side.SLURM, 18, 400.0)
GONE = Victim("job 19 of dave", Side.SLURM, 19, 0.0)
ELSEWHERE = Victim("job 20 of erin", Side.SLURM, 20, 0.0)


def job(victim: Victim, *nodes: str) -> Work:
    return Work(victim.key, victim.side, "a", nodes, 8, 0, 0, 1000.0, None, victim.loss_gpu_s, job=victim.job)


WORKS = (job(ALICE, "gpu-1", "gpu-2"), job(CAROL, "gpu-2"), job(ELSEWHERE, "gpu-4"))


def gang_move(*victims: Victim) -> Move:
    nodes = ("gpu-1", "gpu-2", "gpu-3")
    return Move(nodes, Side.SLURM, Side.KUBERNETES, "3 nodes wait", False, "policy", GANG, victims)


@pytest.mark.parametrize(
    ("what", "victims", "expected"),
    [
        ("nobody", (), {}),
        ("a gang of two nodes", (ALICE,), {"gpu-1": (ALICE,), "gpu-2": (ALICE,), "gpu-3": ()}),
        ("two on one node", (ALICE, CAROL), {"gpu-1": (ALICE,), "gpu-2": (ALICE, CAROL), "gpu-3": ()}),
        ("not seen where", (GONE,), {"gpu-1": (GONE,), "gpu-2": (GONE,), "gpu-3": (GONE,)}),
        ("in nobody's way", (ELSEWHERE,), {"gpu-1": (), "gpu-2": (), "gpu-3": ()}),
    ],
)
def test_a_victim_goes_to_the_nodes_it_runs_on(
    what: str, victims: tuple[Victim, ...], expected: dict[str, tuple[Victim, ...]]
) -> None:
    assert victims_by_node(gang_move(*victims), WORKS) == expected


def test_a_move_begins_with_its_demand_and_its_victims_who_count_once(planned: list[Move]) -> None:
    planned.append(gang_move(ALICE, CAROL, ELSEWHERE))
    changes = decided(state(), BEGAN, snapshot=Snapshot((), (), works=WORKS))
    begun = [change.handoff for change in changes if isinstance(change, PutHandoff)]
    assert [(each.node, each.demand, each.victims) for each in begun] == [
        ("gpu-1", GANG, (ALICE,)),
        ("gpu-2", GANG, (ALICE, CAROL)),
        ("gpu-3", GANG, ()),
    ]
    assert of_kind(changes, PutPreempted) == [
        PutPreempted(Preempted(ALICE.key, Side.SLURM, BEGAN, 9600.0)),
        PutPreempted(Preempted(CAROL.key, Side.SLURM, BEGAN, 400.0)),
    ]
    notes = [change for change in changes if isinstance(change, Note) and change.kind == "preempt"]
    assert [(note.message, note.node) for note in notes] == [
        ("job 17 of alice may be ended on gpu-1, gpu-2, which loses 9600 GPU-seconds: for job 30 of bob", None),
        ("job 18 of carol may be ended on gpu-2, which loses 400 GPU-seconds: for job 30 of bob", "gpu-2"),
    ]
    assert {note.lease for note in notes} == {begun[0].lease}


# --- how long nodes are collected for a gang ---

WHOLE = Demand(GANG, Side.KUBERNETES, "gpu", 2, True, 0, BEGAN)


@pytest.mark.parametrize(
    ("what", "handoffs", "demands", "deadline_s"),
    [
        ("two nodes of a gang: the gang's deadline since it began", 2, (), 1800),
        ("one node, for a demand that is whole", 1, (WHOLE,), 1800),
        ("one node, for pods that need no gang: patience, from now", 1, (replace(WHOLE, whole=False),), 20 + 86_400),
        ("one node, for a demand that is gone: patience", 1, (), 20 + 86_400),
    ],
)
def test_emptying_for_a_gang_ends_at_the_gangs_deadline(
    what: str, handoffs: int, demands: tuple[Demand, ...], deadline_s: float
) -> None:
    gang = [handoff(f"gpu-{number}", Step.CLOSE) for number in range(1, handoffs + 1)]
    changes = decided(state(*gang), after(20), {each.node: BUSY for each in gang}, Snapshot((), demands))
    for each in gang:
        entered = step_of(changes, each.node)
        assert (entered.step, entered.step_deadline_at) == (Step.EMPTY, after(deadline_s)), what


def test_an_order_of_two_nodes_keeps_the_patience_of_the_pool() -> None:
    gang = [handoff(node, Step.CLOSE, demand="") for node in ("gpu-1", "gpu-2")]
    changes = decided(state(*gang), after(20), {each.node: BUSY for each in gang})
    assert step_of(changes, "gpu-1").step_deadline_at == after(20 + 86_400)


def test_a_shorter_patience_counts_for_a_gang_too() -> None:
    impatient = POOL.model_copy(update={"empty_patience_s": 600})
    gang = [handoff(node, Step.CLOSE) for node in ("gpu-1", "gpu-2")]
    changes = decided(state(*gang, pool=impatient), after(20), {each.node: BUSY for each in gang})
    assert step_of(changes, "gpu-1").step_deadline_at == after(20 + 600)


def test_a_clean_node_may_wait_for_its_gang_until_the_deadline() -> None:
    gang = [handoff("gpu-1", Step.EMPTY), handoff("gpu-2", Step.EMPTY)]
    changes = decided(state(*gang), after(100), {"gpu-1": Sight(EMPTY, SHUT), "gpu-2": BUSY})
    entered = step_of(changes, "gpu-1")
    assert (entered.step, entered.step_deadline_at) == (Step.CLEAN, after(1800 + 900))


@pytest.mark.parametrize(
    ("age_s", "left_s"),
    [
        (0, 1800),
        (1800, 1800),  # nothing of the time in which it was UNKNOWN counts
        (3000, 600),  # but no more than the deadline once again
        (3590, 60),  # and a minute for a look when it is known again
        (90_000, 60),
    ],
)
def test_time_unknown_does_not_count_up_to_the_deadline_once_again(age_s: float, left_s: float) -> None:
    bounds = BOUNDS.of_gang(POOL, age_s, unknown=True)
    assert (bounds.empty_s, bounds.clean_s) == (left_s, 900 + left_s)


def test_an_unknown_gang_is_postponed_and_not_late() -> None:
    gang = [handoff(node, Step.EMPTY) for node in ("gpu-1", "gpu-2")]
    changes = decided(state(*gang), after(1801), {each.node: Sight(UNKNOWN, SHUT) for each in gang})
    waiting = step_of(changes, "gpu-1")
    assert (waiting.step, waiting.step_deadline_at) == (Step.EMPTY, after(1801 + 1799))
    assert of_kind(changes, PutBackoff) == []


# --- backoffs ---


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(1, 300), (2, 600), (3, 1200), (7, 19_200), (8, 21_600), (9, 21_600), (1000, 21_600)],
)
def test_a_backoff_doubles_up_to_six_hours(failures: int, seconds: float) -> None:
    assert backoff_s(300, failures) == seconds


@pytest.mark.parametrize(("base_s", "failures", "seconds"), [(10, 9, 2560), (10, 50, 2560), (0, 3, 0), (1e5, 3, 1e5)])
def test_a_backoff_doubles_eight_times_and_is_never_shorter_than_said(
    base_s: float, failures: int, seconds: float
) -> None:
    assert backoff_s(base_s, failures) == seconds


OLD = Backoff(GANG, BEGAN, 2)
"""Of an earlier try, over when the present one began."""


@pytest.mark.parametrize(
    ("what", "steps", "sights", "standing", "expected"),
    [
        (
            "late: the first failure",
            (Step.EMPTY, Step.EMPTY),
            (BUSY, BUSY),
            None,
            PutBackoff(Backoff(GANG, after(2100), 1)),
        ),
        (
            "late: the third failure",
            (Step.EMPTY, Step.EMPTY),
            (BUSY, BUSY),
            OLD,
            PutBackoff(Backoff(GANG, after(3000), 3)),
        ),
        ("counted already", (Step.EMPTY, Step.REOPEN), (BUSY, BUSY), Backoff(GANG, after(2000), 1), None),
        ("counted, now returned", (Step.REPROVE,), (Sight(READY, SHUT),), Backoff(GANG, after(1), 1), None),
        (
            "taken by a person",
            (Step.EMPTY, Step.CLEAN),
            (Sight(THEIRS, SHUT), BUSY),
            None,
            PutBackoff(Backoff(GANG, after(2100), 1)),
        ),
        (
            "opened but not proved: one is late",
            (Step.PROVE, Step.PROVE),
            (PROVEN, Sight(EMPTY, OPEN)),
            OLD,
            PutBackoff(Backoff(GANG, after(3000), 3)),
        ),
        ("all done: forgotten", (Step.PROVE, Step.PROVE), (PROVEN, PROVEN), OLD, DropBackoff(GANG)),
        ("all done, nothing to forget", (Step.PROVE, Step.PROVE), (PROVEN, PROVEN), None, None),
        ("one done, one on its way", (Step.PROVE, Step.OPEN), (PROVEN, Sight(EMPTY, SHUT)), OLD, None),
        ("the last one done after another failed", (Step.PROVE,), (PROVEN,), Backoff(GANG, after(1), 3), None),
    ],
)
def test_a_demand_backs_off_once_for_each_try_that_failed(
    what: str,
    steps: tuple[Step, ...],
    sights: tuple[Sight, ...],
    standing: Backoff | None,
    expected: Change | None,
) -> None:
    """Looked at 1,800 s after the try began, which is the deadline of all steps but `open`; the base is 300 s."""
    gang = []
    for number, step in enumerate(steps, start=1):
        deadline = after(9999) if step is Step.OPEN else after(1800)
        gang.append(handoff(f"gpu-{number}", step, step_deadline_at=deadline))
    closures = {
        (each.node, Side.SLURM): Closure(
            each.node, Side.SLURM, Lease("lease0001", each.node, Owner.BRIDGE, 1, 1, BEGAN).mark
        )
        for each in gang
    }
    known = state(*gang, closures=closures, backoffs={GANG: standing} if standing else {})
    seen = {each.node: sight for each, sight in zip(gang, sights, strict=True)}
    changes = decided(known, after(1800), seen)
    assert of_kind(changes, PutBackoff, DropBackoff) == ([expected] if expected else []), what


@pytest.mark.parametrize(("whole", "expected"), [(True, [PutBackoff(Backoff(GANG, after(2100), 1))]), (False, [])])
def test_of_single_nodes_only_those_for_a_whole_demand_make_it_back_off(whole: bool, expected: list[Change]) -> None:
    """Two leases of a node each that fail in one pass are one failure; pods go on with the nodes that do not fail."""
    alone = [handoff(f"gpu-{number}", Step.EMPTY, lease=f"lease000{number}") for number in (1, 2)]
    snapshot = Snapshot((), (replace(WHOLE, whole=whole),))
    changes = decided(state(*alone), after(1800), {each.node: BUSY for each in alone}, snapshot)
    assert [step_of(changes, each.node).step for each in alone] == [Step.REOPEN, Step.REOPEN]
    assert of_kind(changes, PutBackoff) == expected


def test_without_a_demand_nothing_backs_off() -> None:
    alone = handoff("gpu-1", Step.EMPTY, demand="")
    changes = decided(state(alone), after(1800), {"gpu-1": BUSY})
    assert step_of(changes, "gpu-1").step is Step.REOPEN
    assert of_kind(changes, PutBackoff) == []


def test_the_planner_of_the_same_pass_knows_that_a_demand_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Snapshot] = []

    def plan(snapshot: Snapshot, policy: Policy, now: datetime) -> Plan:
        seen.append(snapshot)
        return Plan()

    monkeypatch.setattr(module, "plan", plan)
    gang = [handoff(node, Step.EMPTY) for node in ("gpu-1", "gpu-2")]
    decided(state(*gang), after(1800), {each.node: BUSY for each in gang})
    assert seen[0].backoffs == {GANG: after(2100)}


def test_a_backoff_is_forgotten_a_day_after_its_end_unless_it_is_tried_again() -> None:
    day_s = 86_400
    tried = handoff("gpu-1", Step.EMPTY, step_deadline_at=after(2 * day_s))
    backoffs = {GANG: OLD, "gone": Backoff("gone", BEGAN, 1), "fresh": Backoff("fresh", after(1), 1)}
    changes = decided(state(tried, backoffs=backoffs), after(day_s), {"gpu-1": BUSY})
    assert of_kind(changes, PutBackoff, DropBackoff) == [DropBackoff("gone")]


# --- use of teams ---


def test_use_is_written_once_a_minute_with_each_teams_half_life() -> None:
    policy = Policy(pools=(POOL,), teams=(Team(name="a", half_life_s=60), Team(name="b", half_life_s=120)))
    usage = {"a": Usage("a", 800.0, BEGAN), "b": Usage("b", 800.0, BEGAN)}
    known = state(policy=policy, usage=usage)
    assert of_kind(decided(known, after(59)), PutUsage) == []
    halved, less = [change.usage for change in decided(known, after(60)) if isinstance(change, PutUsage)]
    assert (halved.team, halved.at, halved.gpu_s) == ("a", after(60), pytest.approx(400.0))
    assert (less.team, less.gpu_s) == ("b", pytest.approx(565.685424949238))  # 800 / sqrt(2)


def test_the_first_look_at_a_team_that_works_begins_its_count() -> None:
    changes = decided(state(), BEGAN, snapshot=Snapshot((), (), works=WORKS))
    assert of_kind(changes, PutUsage) == [PutUsage(Usage("a", 0.0, BEGAN))]


def test_a_fleet_at_rest_writes_nothing() -> None:
    known = state()
    rested = {name: replace(record, idle_since=BEGAN) for name, record in known.nodes.items()}
    assert decided(replace(known, nodes=rested), after(3600)) == []
