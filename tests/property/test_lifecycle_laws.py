"""What holds of marks, verdicts and acts whatever the facts are, contradictory ones included."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.lifecycle.acts import (
    Drain,
    Hold,
    Inspect,
    Release,
    Requeue,
    Resume,
    Signal,
    Standing,
    Want,
    acts,
    closes,
    loan_wanted,
)
from bridge.lifecycle.facts import DeviceFacts, SideFacts
from bridge.lifecycle.progress import Member, Sight, enter, graces, judge, postpone
from bridge.lifecycle.table import Fact, allows, follow, owner_in
from bridge.model.handoff import Handoff, Step
from bridge.model.kube import Inspection, KubeNode, LoanSpec
from bridge.model.ownership import Mark, Owner, Side
from tests.property.worlds import (
    BOUNDS,
    LEASE,
    NOW,
    closure,
    device_facts,
    gangs,
    handoffs,
    jobs_here,
    lease,
    marks,
    moments,
    near_the_end,
    node,
    side_facts,
    sights,
)


class TestMarks:
    @given(marks)
    def test_what_was_written_is_read_back(self, mark: Mark) -> None:
        assert Mark.parse(str(mark)) == mark

    @given(marks, st.text())
    def test_slurm_may_append_behind_a_space(self, mark: Mark, words: str) -> None:
        assert Mark.parse(f"{mark} {words}") == mark

    @given(marks, st.characters(exclude_characters=" 0123456789"), st.text())
    def test_anything_else_behind_it_is_not_ours(self, mark: Mark, character: str, words: str) -> None:
        assert Mark.parse(f"{mark}{character}{words}") is None

    @given(marks, st.text(min_size=1))
    def test_a_mark_inside_a_persons_words_is_theirs(self, mark: Mark, words: str) -> None:
        assert Mark.parse(f"{words}{mark}") is None

    @given(st.text() | st.from_regex(r"bridge:[^ ]*( .*)?", fullmatch=True))
    @example("bridge:lease0001:1:٣")
    @example("bridge:lease0001:01:2")
    @example("bridge:lease0001:1:2\n")
    @example("bridge:lease0001:-1:2")
    @example("BRIDGE:lease0001:1:2")
    def test_a_text_is_ours_only_if_we_could_have_written_it(self, text: str) -> None:
        mark = Mark.parse(text)
        if mark is not None:
            assert text == str(mark) or text.startswith(f"{mark} ")

    @given(marks, marks)
    def test_of_two_marks_the_later_one_is_the_larger(self, one: Mark, other: Mark) -> None:
        later = replace(one, epoch=one.epoch, generation=one.generation + 1)
        assert later.token > one.token
        assert (one.token < other.token) is ((one.epoch, one.generation) < (other.epoch, other.generation))


class TestVerdicts:
    @given(gangs(), moments)
    def test_only_facts_that_the_table_has(self, gang: list[Member], now: datetime) -> None:
        for member in gang:
            fact = judge(member, gang, now).fact
            assert fact is None or allows(member.handoff.step, fact)

    @given(handoffs(), side_facts, device_facts, moments)
    def test_an_unknown_source_proves_nothing_before_the_opening(
        self, handoff: Handoff, facts: SideFacts, devices: DeviceFacts, now: datetime
    ) -> None:
        blind = SideFacts(unknown="unreadable: timeout")
        sight = Sight(blind, facts, devices) if handoff.source is Side.SLURM else Sight(facts, blind, devices)
        member = Member(handoff, sight)
        assert judge(member, [member], now).fact not in (Fact.CLOSED, Fact.EMPTY, Fact.CLEAN, Fact.TAKEN)

    @given(gangs(), moments)
    def test_only_closed_and_proved_is_empty_and_only_clean_is_opened(self, gang: list[Member], now: datetime) -> None:
        for member in gang:
            verdict, source = judge(member, gang, now), member.sight.side(member.handoff.source)
            if verdict.fact is Fact.EMPTY:
                assert source.known
                assert source.closed
                assert source.empty
            if verdict.fact is Fact.CLEAN:
                assert source.known
                assert source.closed
                assert member.sight.devices.clean

    @given(gangs((Step.CLEAN, Step.CLEAN, Step.EMPTY)), moments)
    @settings(max_examples=500)
    def test_a_gang_opens_whole_or_not_at_all(self, gang: list[Member], now: datetime) -> None:
        """``WholeGang``: judged from one sight, none goes to `open` while another does not."""
        facts = [judge(member, gang, now).fact for member in gang]
        assert Fact.CLEAN not in facts or set(facts) == {Fact.CLEAN}

    @given(gangs(), moments)
    def test_a_gang_is_judged_alike_in_any_order(self, gang: list[Member], now: datetime) -> None:
        assert [judge(m, gang, now) for m in gang] == [judge(m, gang[::-1], now) for m in gang]

    @given(handoffs(), st.sampled_from([fact for fact in Fact if fact not in (Fact.CLEAN, Fact.EMPTY)]))
    def test_only_proofs_make_the_destination_the_owner(self, handoff: Handoff, fact: Fact) -> None:
        """``OneOwner``: neither a deadline nor a person nor the gang ever gives a node to the side it was going to."""
        if allows(handoff.step, fact):
            before = owner_in(handoff.step, handoff, Owner.BRIDGE)
            after = owner_in(follow(handoff.step, fact).to, handoff, before)
            assert after is not handoff.destination.owner or before is after

    @given(gangs(), moments)
    @settings(max_examples=300)
    def test_a_grace_begins_only_when_the_whole_gang_is_closed(self, gang: list[Member], now: datetime) -> None:
        """``NothingForNothing``; and one that has begun neither ends nor begins again by itself."""
        for before, after in zip(gang, graces(gang, now=now, skew=timedelta(0), new_leader=False), strict=True):
            if before.handoff.signalled_at is not None or after.handoff.signalled_at is None:
                assert after == before
                continue
            assert after.handoff.signalled_at == now
            for each in gang:
                source = each.sight.side(each.handoff.source)
                assert each.handoff.step in (Step.EMPTY, Step.CLEAN)
                assert source.known
                assert source.closed
                assert all(job.state in ("RUNNING", "COMPLETING") for job in source.jobs)

    @given(handoffs(), moments)
    def test_postponing_never_shortens(self, handoff: Handoff, now: datetime) -> None:
        later = postpone(handoff, now=now, bounds=BOUNDS)
        assert later.step_deadline_at >= handoff.step_deadline_at
        assert postpone(later, now=now, bounds=BOUNDS) == later

    @given(handoffs(), st.sampled_from(list(Step)))
    def test_a_new_step_forgets_the_old_proof(self, handoff: Handoff, step: Step) -> None:
        entered = enter(handoff, step, now=NOW, bounds=BOUNDS, nonce="nonce0002", generation=8)
        assert entered.nonce != handoff.nonce
        assert entered.blockers == ()
        assert (entered.ended_at is not None) is step.ended


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    """A node as the ledger could hold it, in a world that may say anything of it."""
    handoff = draw(st.none() | handoffs())
    owners = list(Owner) if handoff is None else [owner_in(handoff.step, handoff, Owner.BRIDGE)]
    held = lease(draw(st.sampled_from(owners)), Mark(LEASE, 1, draw(st.integers(1, 9))))
    closures = {side: closure(side, Mark(LEASE, 1, draw(st.integers(1, 9)))) for side in Side if draw(st.booleans())}
    owner = draw(st.sampled_from(list(Owner)))
    spec = draw(
        st.none()
        | st.builds(
            LoanSpec,
            node=st.just("gpu-1.testbed"),
            owner=st.just(owner),
            mark=st.builds(Mark, st.just(LEASE), st.just(1), st.integers(1, 9)),
            gpus=st.just(8),
            evict=st.booleans(),
            nonce=st.sampled_from(["", "nonce0001"]),
        )
    )
    inspection = draw(st.none() | st.sampled_from([Inspection("nonce0001"), Inspection("old")]))
    kube = KubeNode("gpu-1.testbed", "uid", True, False, 8, spec=spec, inspection=inspection)
    return Standing(node(), held, handoff, closures, draw(sights), draw(st.none() | st.just(kube)))


@st.composite
def nearly_emptied(draw: st.DrawFn) -> Standing:
    """A node of Slurm that is being emptied, or is nearly so: what wild standings rarely are."""
    standing, handoff = draw(standings()), draw(handoffs(source=Side.SLURM))
    handoff = replace(handoff, step=draw(st.sampled_from([Step.EMPTY, Step.EMPTY, Step.EMPTY, Step.CLOSE, Step.CLEAN])))
    slurm = replace(draw(near_the_end), jobs=tuple(draw(st.lists(jobs_here, max_size=3))))
    return replace(standing, handoff=handoff, sight=replace(standing.sight, slurm=slurm))


def opening_of(act: object) -> Side | None:
    """The side that an act may open, by itself or as a part of an opening."""
    if isinstance(act, Resume | Release):
        return Side.SLURM
    if isinstance(act, Want) and act.loan.owner is Owner.KUBERNETES:
        return Side.KUBERNETES
    return None


class TestActs:
    @given(standings(), st.booleans())
    def test_a_side_is_opened_only_for_its_owner_and_only_while_the_other_is_closed(
        self, standing: Standing, fence_shows: bool
    ) -> None:
        """``OneOwner``, at the very call. While a node is adopted with work on it, its own side was never closed."""
        for act in acts(standing, [standing], now=NOW, fence_shows_lease=fence_shows):
            side = opening_of(act)
            if side is None:
                continue
            assert standing.lease.owner is side.owner
            adopting = standing.handoff is not None and standing.handoff.step is Step.ADOPT
            spec = standing.kube.spec if standing.kube else None
            stands_open = spec is not None and spec.owner is Owner.KUBERNETES
            other = standing.sight.side(side.other)
            assert (other.known and other.closed) or (side is Side.KUBERNETES and (adopting or stands_open))

    @given(standings(), st.booleans())
    def test_one_pass_never_opens_both_sides(self, standing: Standing, fence_shows: bool) -> None:
        found = acts(standing, [standing], now=NOW, fence_shows_lease=fence_shows)
        assert len({opening_of(act) for act in found} - {None}) <= 1

    @given(standings(), st.booleans())
    def test_what_a_new_leader_does_first_opens_nothing(self, standing: Standing, fence_shows: bool) -> None:
        for act in acts(standing, [standing], now=NOW, fence_shows_lease=fence_shows):
            assert closes(act) is (opening_of(act) is None and not isinstance(act, Signal | Requeue))

    @given(standings())
    def test_nothing_is_released_before_the_fence_shows_it(self, standing: Standing) -> None:
        assert not [
            act for act in acts(standing, [standing], now=NOW, fence_shows_lease=False) if isinstance(act, Release)
        ]

    @given(standings(), st.booleans())
    def test_a_persons_drain_is_neither_overwritten_nor_lifted(self, standing: Standing, fence_shows: bool) -> None:
        """``NotOurs``. Facts that call one drain both ours and a person's do not come from the same reading."""
        slurm = standing.sight.slurm
        if slurm.foreign and not slurm.first_latch and slurm.stray_mark is None:
            found = acts(standing, [standing], now=NOW, fence_shows_lease=fence_shows)
            assert not [act for act in found if isinstance(act, Drain | Resume)]

    @given(standings(), st.booleans())
    def test_unknown_is_left_alone(self, standing: Standing, fence_shows: bool) -> None:
        """``FailClosed``: Slurm unread is not called, and what is not known to be closed opens nothing."""
        blind = replace(standing, sight=replace(standing.sight, slurm=SideFacts(unknown="timeout")))
        found = acts(blind, [blind], now=NOW, fence_shows_lease=fence_shows)
        assert not [act for act in found if isinstance(act, Drain | Hold | Resume | Release | Signal | Requeue)]

    @given(nearly_emptied(), moments)
    @settings(max_examples=300)
    def test_nobody_is_ended_but_a_named_victim_behind_closed_doors(self, standing: Standing, now: datetime) -> None:
        """``OnlyVictims``: and never before a grace, which is in the ledger already."""
        slurm, handoff = standing.sight.slurm, standing.handoff
        for act in acts(standing, [standing], now=now, fence_shows_lease=True):
            if not isinstance(act, Signal | Requeue):
                continue
            assert handoff is not None
            assert handoff.step is Step.EMPTY
            assert slurm.closed
            assert not slurm.foreign
            here = [job for job in slurm.jobs if act.job in (job.id, job.het_job)]
            assert any(job.state == "RUNNING" and job.may_requeue for job in here)
            graces = [victim.grace_s for victim in handoff.victims if victim.job == act.job]
            assert graces
            assert handoff.signalled_at is not None
            waited_s = (now - handoff.signalled_at).total_seconds()
            assert isinstance(act, Signal) or waited_s >= min(graces)

    @given(standings(), st.booleans())
    def test_each_act_follows_from_the_ledger(self, standing: Standing, fence_shows: bool) -> None:
        """``IntentFirst``: closings carry the mark of a committed closure, loans the ledger's, asking its nonce."""
        for act in acts(standing, [standing], now=NOW, fence_shows_lease=fence_shows):
            match act:
                case Drain(mark=mark):
                    assert standing.lease.owner is not Owner.SLURM
                    assert mark == standing.closures[Side.SLURM].mark
                case Hold():
                    assert standing.lease.owner is Owner.SLURM or Side.SLURM in standing.closures
                case Want(loan=loan):
                    assert loan == loan_wanted(standing)
                    assert loan.owner is standing.lease.owner
                case Inspect(nonce=nonce):
                    assert standing.handoff is not None
                    assert nonce == standing.handoff.nonce

    @given(standings())
    def test_pods_are_evicted_only_to_empty_their_own_side(self, standing: Standing) -> None:
        wanted = loan_wanted(standing)
        if wanted is not None and wanted.evict:
            assert standing.handoff is not None
            assert standing.handoff.evict
            assert standing.handoff.source is Side.KUBERNETES
            assert standing.handoff.step in (Step.ADMIT, Step.ADOPT, Step.EMPTY)

    @given(st.sampled_from(list(Owner)), st.integers(1, 9), st.integers(1, 9))
    def test_a_settled_node_is_left_alone(self, owner: Owner, slurm: int, kube: int) -> None:
        shut = SideFacts(first_latch=True, second_latch=True, idle=True, answers=True)
        offered = SideFacts(opened=True, ready=True, idle=True, answers=True)
        numbers = {Side.SLURM: slurm, Side.KUBERNETES: kube}
        closures = {side: closure(side, Mark(LEASE, 1, numbers[side])) for side in Side if side.owner is not owner}
        facts = {side: offered if side.owner is owner else shut for side in Side}
        sight = Sight(facts[Side.SLURM], facts[Side.KUBERNETES])
        standing = Standing(node(), lease(owner, Mark(LEASE, 1, 9)), None, closures, sight, None)
        loan = loan_wanted(standing)
        standing = replace(standing, kube=KubeNode("gpu-1.testbed", "uid", True, False, 8, spec=loan))
        assert acts(standing, [], now=NOW, fence_shows_lease=True) == ()
