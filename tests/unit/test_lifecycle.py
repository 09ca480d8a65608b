"""The state table and what moves a handoff along it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bridge.lifecycle import diagram
from bridge.lifecycle.facts import DeviceFacts, SideFacts
from bridge.lifecycle.progress import Member, Sight, StepBounds, enter, judge, postpone
from bridge.lifecycle.table import OWNER_IN, TABLE, Fact, follow, owner_in
from bridge.model.errors import InvariantViolation
from bridge.model.handoff import Handoff, Step
from bridge.model.ownership import Owner, Side

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
BOUNDS = StepBounds(close_s=60, empty_s=3600, clean_s=900, open_s=120, prove_s=120)

CLOSED = SideFacts(first_latch=True, second_latch=True)
EMPTY = replace(CLOSED, empty=True, idle=True, answers=True)
OPEN = SideFacts(opened=True, answers=True)
READY = replace(OPEN, ready=True, idle=True)
UNKNOWN = SideFacts(unknown="slurm is unreadable: timeout")
CLEAN = DeviceFacts(clean=True)


def handoff(step: Step, node: str = "gpu-1", *, late: bool = False) -> Handoff:
    return Handoff(
        id=f"h-{node}",
        lease="lease0001",
        node=node,
        source=Side.SLURM,
        destination=Side.KUBERNETES,
        step=step,
        reason="test",
        requested_by="test",
        generation=1,
        nonce="nonce",
        evict=False,
        began_at=NOW,
        step_began_at=NOW,
        step_deadline_at=NOW if late else NOW + timedelta(hours=1),
    )


def member(
    step: Step, slurm: SideFacts, kubernetes: SideFacts, devices: DeviceFacts | None = None, **more: object
) -> Member:
    return Member(handoff(step, **more), Sight(slurm, kubernetes, devices or DeviceFacts()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "slurm", "kubernetes", "devices", "fact"),
    [
        (Step.CLOSE, SideFacts(), CLOSED, None, None),
        (Step.CLOSE, CLOSED, CLOSED, None, Fact.CLOSED),
        (Step.CLOSE, replace(SideFacts(), foreign="drained by admin: bad DIMM"), CLOSED, None, Fact.TAKEN),
        (Step.EMPTY, CLOSED, CLOSED, None, None),
        (Step.EMPTY, EMPTY, CLOSED, None, Fact.EMPTY),
        (Step.EMPTY, replace(EMPTY, second_latch=False), CLOSED, None, Fact.DISTURBED),
        (Step.EMPTY, replace(EMPTY, first_latch=False), CLOSED, None, Fact.DISTURBED),
        (Step.EMPTY, UNKNOWN, CLOSED, None, None),
        (Step.CLEAN, EMPTY, CLOSED, None, None),
        (Step.CLEAN, EMPTY, CLOSED, CLEAN, Fact.CLEAN),
        (Step.CLEAN, EMPTY, UNKNOWN, CLEAN, None),
        (Step.CLEAN, SideFacts(), CLOSED, CLEAN, Fact.DISTURBED),
        (Step.OPEN, EMPTY, CLOSED, None, None),
        (Step.OPEN, EMPTY, OPEN, None, Fact.OPENED),
        (Step.OPEN, EMPTY, UNKNOWN, None, None),
        (Step.PROVE, EMPTY, OPEN, None, None),
        (Step.PROVE, EMPTY, READY, None, Fact.PROVEN),
        (Step.PROVE, EMPTY, replace(OPEN, foreign="cordoned"), None, Fact.PROVEN),
        (Step.REOPEN, CLOSED, CLOSED, None, None),
        (Step.REOPEN, OPEN, CLOSED, None, Fact.OPENED),
        (Step.REPROVE, READY, CLOSED, None, Fact.PROVEN),
        (Step.ADMIT, EMPTY, OPEN, None, None),
        (Step.ADMIT, CLOSED, CLOSED, None, None),
        (Step.ADMIT, EMPTY, CLOSED, None, None),
        (Step.ADMIT, EMPTY, CLOSED, CLEAN, Fact.EMPTY),
        (Step.ADMIT, EMPTY, replace(CLOSED, works=True), None, Fact.EMPTY),
        (Step.ADOPT, SideFacts(), READY, None, None),
        (Step.ADOPT, replace(CLOSED, idle=True), READY, None, None),
        (Step.ADOPT, CLOSED, READY, None, Fact.DISTURBED),
        (Step.ADOPT, EMPTY, READY, None, Fact.EMPTY),
    ],
)
def test_what_the_facts_say(
    step: Step, slurm: SideFacts, kubernetes: SideFacts, devices: DeviceFacts | None, fact: Fact | None
) -> None:
    one = member(step, slurm, kubernetes, devices)
    assert judge(one, [one], NOW).fact is fact


@pytest.mark.parametrize("step", [step for step in Step if not step.ended])
def test_every_step_that_can_wait_has_a_way_out_at_its_deadline(step: Step) -> None:
    """``Bounded``: with nothing else to go by, the deadline decides."""
    stuck = member(step, CLOSED, CLOSED, late=True)
    if step in (Step.ADOPT, Step.CLOSE):
        stuck = member(step, SideFacts(), CLOSED, late=True)
    assert judge(stuck, [stuck], NOW).fact is Fact.LATE
    assert follow(step, Fact.LATE).to is not step


@pytest.mark.parametrize("step", [step for step in Step if not step.ended])
def test_unknown_moves_nothing_however_late_it_is(step: Step) -> None:
    blind = member(step, UNKNOWN, UNKNOWN, CLEAN, late=True)
    verdict = judge(blind, [blind], NOW)
    assert verdict.fact is None
    assert verdict.unknown
    assert verdict.blockers


def test_a_deadline_moves_on_while_a_side_is_unknown() -> None:
    waiting = replace(handoff(Step.OPEN), step_deadline_at=NOW + timedelta(seconds=59))
    assert postpone(waiting, now=NOW, bounds=BOUNDS).step_deadline_at == NOW + timedelta(seconds=120)
    fresh = replace(waiting, step_deadline_at=NOW + timedelta(seconds=61))
    assert postpone(fresh, now=NOW, bounds=BOUNDS) == fresh


class TestWholeGang:
    def test_none_opens_before_all_are_clean(self) -> None:
        ready = member(Step.CLEAN, EMPTY, CLOSED, CLEAN)
        other = member(Step.EMPTY, CLOSED, CLOSED, node="gpu-2")
        verdict = judge(ready, [ready, other], NOW)
        assert verdict.fact is None
        assert verdict.blockers == ("the gang waits for gpu-2",)

    def test_all_clean_open_in_the_same_pass(self) -> None:
        gang = [member(Step.CLEAN, EMPTY, CLOSED, CLEAN, node=f"gpu-{n}") for n in (1, 2, 3)]
        assert [judge(one, gang, NOW).fact for one in gang] == [Fact.CLEAN] * 3

    @pytest.mark.parametrize("step", [Step.CLOSE, Step.EMPTY, Step.CLEAN])
    @pytest.mark.parametrize("gone", [Step.REOPEN, Step.REPROVE])
    def test_when_one_goes_back_all_do(self, step: Step, gone: Step) -> None:
        one = member(step, SideFacts() if step is Step.CLOSE else CLOSED, CLOSED)
        other = member(gone, CLOSED, CLOSED, node="gpu-2")
        assert judge(one, [one, other], NOW).fact is Fact.GANG_BROKEN


def test_an_edge_that_is_not_in_the_table_is_an_invariant_violation() -> None:
    with pytest.raises(InvariantViolation, match="StateTable"):
        follow(Step.DONE, Fact.OPENED)


def test_the_table_leads_every_handoff_to_an_end() -> None:
    reach = {edge.step: {e.to for e in TABLE if e.step is edge.step} for edge in TABLE}
    assert set(reach) == {step for step in Step if not step.ended}
    for start in reach:
        seen, front = {start}, {start}
        while front:
            front = {to for step in front for to in reach.get(step, ())} - seen
            seen |= front
        assert any(step.ended for step in seen), f"{start} never ends"


def test_a_side_is_owner_only_when_the_other_was_proved_empty_or_never_opened() -> None:
    """``OneOwner`` in the table: the destination becomes owner by way of `clean` alone, or by adoption."""
    moved = handoff(Step.CLOSE)
    for edge in TABLE:
        if edge.step not in (Step.ADMIT, Step.ADOPT) and owner_in(edge.to, moved, Owner.BRIDGE) is Owner.KUBERNETES:
            assert edge.step in (Step.CLEAN, Step.OPEN, Step.PROVE)
    assert set(OWNER_IN) == set(Step)


def test_entering_a_step_renews_nonce_and_deadline_and_an_end_is_an_end() -> None:
    entered = enter(handoff(Step.CLOSE), Step.EMPTY, now=NOW, bounds=BOUNDS, nonce="new", generation=7)
    assert (entered.nonce, entered.generation, entered.ended_at) == ("new", 7, None)
    assert entered.step_deadline_at == NOW + timedelta(hours=1)
    assert enter(entered, Step.DONE, now=NOW, bounds=BOUNDS, nonce="x", generation=7).ended_at == NOW


def test_the_page_in_docs_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "lifecycle.md"
    assert page.read_text() == diagram.page(), "run `make docs`"
