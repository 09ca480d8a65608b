"""What is told under ``kubectl describe pod``, and how seldom."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bridge.model.handoff import Handoff, Step
from bridge.model.kube import PendingPod, PodNote
from bridge.model.ownership import Side
from bridge.planning.podnotes import AGAIN_AFTER_S, COMING, MOST_TOLD, WAITED_S, WAITING, Told, news, pod_notes
from bridge.planning.snapshot import Plan, Why

T0 = datetime(2026, 3, 6, 17, 30, tzinfo=UTC)
CHAT = PendingPod("default", "chat-1", "u1", gpus=8, group="Deployment default/chat")
COMES = Handoff(
    id="h1",
    lease="lease0001",
    node="gpu-3",
    source=Side.SLURM,
    destination=Side.KUBERNETES,
    step=Step.CLOSE,
    reason="",
    requested_by="planner",
    generation=1,
    nonce="n",
    evict=False,
    began_at=T0,
    step_began_at=T0,
    step_deadline_at=T0 + timedelta(seconds=60),
    demand="Deployment default/chat",
)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def told(
    *pods: PendingPod, handoffs: tuple[Handoff, ...] = (), plan: Plan | None = None, usual_s: float | None = None
) -> list[tuple[str, str]]:
    notes = pod_notes(pods, handoffs, plan or Plan(), usual_s, after(1))
    return [(note.reason, note.message) for note, _ in notes]


def test_a_pod_is_told_which_node_comes_and_when() -> None:
    """The usual 3.4 s, of which one is gone."""
    assert told(CHAT, handoffs=(COMES,), usual_s=3.4) == [
        (COMING, "gpu-3 comes from Slurm for Deployment default/chat, expected in 2 s")
    ]


def test_a_pod_of_a_paused_pool_is_told_so() -> None:
    paused = Plan(whys=(Why("pool h100", "paused: x"),), paused={"Deployment default/chat": "paused: x"})
    waits = replace(CHAT, pending_since=T0 - timedelta(seconds=WAITED_S))
    assert told(waits, plan=paused) == [(WAITING, "paused: x")]


def test_nothing_is_promised_that_was_not_measured() -> None:
    assert told(CHAT, handoffs=(COMES,)) == [(COMING, "gpu-3 comes from Slurm for Deployment default/chat")]


def test_what_keeps_a_node_is_said_instead_of_a_time() -> None:
    waits = replace(COMES, step=Step.EMPTY, blockers=("job 17 of alice is RUNNING",))
    other = replace(COMES, id="h2", node="gpu-1")
    assert told(CHAT, handoffs=(waits, other), usual_s=3.4) == [
        (
            COMING,
            "gpu-1, gpu-3 come from Slurm for Deployment default/chat; waiting there for: job 17 of alice is RUNNING",
        )
    ]


def test_a_pod_for_which_none_comes_is_told_why() -> None:
    plan = Plan(whys=(Why("Deployment default/chat", "slurm keeps its floor of 2 nodes"), Why("job 9 of bob", "x")))
    assert told(CHAT, plan=plan) == [(WAITING, "slurm keeps its floor of 2 nodes")]


def test_a_pod_that_no_node_helps_is_told_why_though_others_of_its_group_are_helped() -> None:
    why = "asks for 9 GPUs, a node has 8"
    large = replace(CHAT, name="chat-2", uid="u2", gpus=9, obstacle=why)
    assert told(CHAT, large, handoffs=(COMES,)) == [
        (COMING, "gpu-3 comes from Slurm for Deployment default/chat"),
        (WAITING, why),
    ]


def test_a_part_of_a_group_is_told_of_its_nodes() -> None:
    """Pods that are spread over two zones are two demands."""
    part = replace(COMES, demand="Deployment default/chat (2)")
    assert told(CHAT, handoffs=(part,)) == [(COMING, "gpu-3 comes from Slurm for Deployment default/chat")]


def test_a_pod_that_has_hardly_waited_is_not_told_why() -> None:
    plan = Plan(whys=(Why("Deployment default/chat", "waits for 0 s, counted from 1 s on"),))
    assert told(replace(CHAT, pending_since=after(1 - WAITED_S + 0.1)), plan=plan) == []
    assert told(replace(CHAT, pending_since=after(1 - WAITED_S)), plan=plan) != []


def test_a_gangs_pods_are_told_of_the_gang() -> None:
    member = replace(CHAT, gang="JobSet default/train")
    plan = Plan(whys=(Why("JobSet default/train", "lacks 3 nodes"), Why("Deployment default/chat", "x")))
    assert told(member, plan=plan) == [(WAITING, "lacks 3 nodes")]


def test_nothing_is_told_of_what_nobody_planned() -> None:
    back = replace(COMES, source=Side.KUBERNETES, destination=Side.SLURM)
    assert told(CHAT, handoffs=(back, replace(COMES, demand=""))) == []


def passes(*notes_at: tuple[float, list[tuple[PodNote, str]]]) -> list[list[str]]:
    known: Told = {}
    said = []
    for at_s, notes in notes_at:
        fresh, known = news(notes, known, after(at_s))
        said.append([note.message for note in fresh])
    return said


def note(reason: str, message: str, gist: str, uid: str = "u1") -> tuple[PodNote, str]:
    return PodNote("default", f"pod-{uid}", uid, reason, message), gist


def test_only_what_is_new_is_told() -> None:
    waits = [note(WAITING, "held for 3 s of 60", "held for # s of #")]
    still = [note(WAITING, "held for 4 s of 60", "held for # s of #")]
    comes = [note(COMING, "gpu-3 comes", "gpu-3")]
    assert passes((0, waits), (1, still), (2, comes), (3, comes)) == [["held for 3 s of 60"], [], ["gpu-3 comes"], []]


def test_another_reason_has_to_wait_for_its_turn_and_nodes_that_come_do_not() -> None:
    one, other = [note(WAITING, "one", "one")], [note(WAITING, "other", "other")]
    again = [note(COMING, "gpu-4 comes", "gpu-4")]
    assert passes((0, one), (AGAIN_AFTER_S - 1, other), (AGAIN_AFTER_S, other), (AGAIN_AFTER_S + 1, again)) == [
        ["one"],
        [],
        ["other"],
        ["gpu-4 comes"],
    ]


def test_who_waits_no_more_is_forgotten_and_told_anew_when_it_comes_back() -> None:
    waits = [note(WAITING, "one", "one")]
    assert passes((0, waits), (1, []), (2, waits)) == [["one"], [], ["one"]]


def test_thousands_of_pods_are_told_a_few_in_a_pass() -> None:
    many = [note(WAITING, "one", "one", uid=f"u{number}") for number in range(2 * MOST_TOLD + 5)]
    assert [len(said) for said in passes((0, many), (1, many), (2, many), (3, many))] == [MOST_TOLD, MOST_TOLD, 5, 0]
