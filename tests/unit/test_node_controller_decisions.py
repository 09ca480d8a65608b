"""The node controller's decisions, as tables: what was read, and what follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from bridge.kube.names import EVICT, TAINT
from bridge.kube.pods import Pod
from bridge.model.kube import LoanSpec, LoanStatus
from bridge.model.ownership import Mark, Owner
from bridge.node_controller import decisions
from bridge.node_controller.decisions import (
    Act,
    Emptying,
    FenceSeen,
    Latches,
    LiftFence,
    LiftTaint,
    MakeFence,
    NodeSeen,
    PutFence,
    PutTaint,
    emptying,
    latches,
    taints_with,
)

AT = datetime(2026, 5, 4, 12, 1, 3, tzinfo=UTC)
MARK = Mark("lease0002", 3, 20)
OLDER = Mark("lease0001", 3, 19)
NEWER = Mark("lease0003", 4, 1)
THEIRS = {"key": "site.example/repair", "value": "yes", "effect": "NoSchedule"}

CLOSE = LoanSpec("gpu-1", Owner.BRIDGE, MARK, 8)
OPEN = replace(CLOSE, owner=Owner.KUBERNETES)
NODE = NodeSeen(
    name="gpu-1",
    uid="uid-1",
    version="7",
    ready=True,
    ready_since=AT,
    ready_reason="KubeletReady",
    cordoned=False,
    gpus_allocatable=8,
    taints=(),
    mark="",
    last_writer="somebody",
)
NO_FENCE = FenceSeen(exists=False)
NO_ENTRY = FenceSeen(exists=True)


def tainted(mark: Mark, **changes: Any) -> NodeSeen:
    taints = ({"key": TAINT, "value": mark.lease, "effect": "NoSchedule"},)
    return replace(NODE, **{"taints": taints, "mark": str(mark), **changes})


def fenced(mark: Mark | str) -> FenceSeen:
    return FenceSeen(exists=True, entry=str(mark))


def decide(
    spec: LoanSpec, node: NodeSeen | None, fence: FenceSeen, *, may_repair: bool = True, fence_seen: bool = True
) -> Latches:
    return latches(spec, node, fence, may_repair=may_repair, fence_seen=fence_seen)


@pytest.mark.parametrize(
    ("node", "fence", "act"),
    [
        pytest.param(NODE, NO_ENTRY, PutTaint(MARK), id="the taint comes first"),
        pytest.param(tainted(MARK), NO_FENCE, MakeFence(), id="a missing fence is made"),
        pytest.param(tainted(MARK), NO_ENTRY, PutFence("", MARK), id="then the fence entry"),
        pytest.param(tainted(OLDER), fenced(OLDER), PutTaint(MARK), id="the taint of an older mark is renewed"),
        pytest.param(tainted(MARK), fenced(OLDER), PutFence(str(OLDER), MARK), id="so is an older entry"),
        pytest.param(tainted(MARK), fenced("by hand"), PutFence("by hand", MARK), id="and a strange one"),
        pytest.param(
            replace(NODE, mark=str(MARK), last_writer="operator"),
            fenced(MARK),
            PutTaint(MARK, taken_off_by="operator"),
            id="our annotation without our taint: somebody took it off",
        ),
        pytest.param(None, NO_ENTRY, PutFence("", MARK), id="a node that is not there is fenced"),
    ],
)
def test_closing(node: NodeSeen | None, fence: FenceSeen, act: Act) -> None:
    found = decide(CLOSE, node, fence)
    assert found.act == act
    assert not found.closed


def test_closed_is_what_reads_back_with_exactly_our_mark() -> None:
    assert decide(CLOSE, tainted(MARK), fenced(MARK)) == Latches(closed=True)


@pytest.mark.parametrize(
    ("node", "fence", "act"),
    [
        pytest.param(tainted(MARK), fenced(MARK), LiftFence(str(MARK)), id="the fence goes first"),
        pytest.param(tainted(MARK), NO_ENTRY, LiftTaint(), id="then the taint"),
        pytest.param(tainted(OLDER), fenced(OLDER), LiftFence(str(OLDER)), id="an older lease's closure is ours too"),
        pytest.param(tainted(OLDER), NO_ENTRY, LiftTaint(), id="known by its annotation"),
        pytest.param(replace(NODE, mark=str(OLDER)), NO_ENTRY, LiftTaint(), id="an annotation alone is tidied up"),
    ],
)
def test_opening(node: NodeSeen, fence: FenceSeen, act: Act) -> None:
    found = decide(OPEN, node, fence)
    assert found.act == act
    assert not found.open


@pytest.mark.parametrize("fence", [NO_ENTRY, NO_FENCE])
def test_open_is_when_neither_latch_reads_back(fence: FenceSeen) -> None:
    assert decide(OPEN, replace(NODE, taints=(THEIRS,)), fence) == Latches(open=True)


def test_the_taint_stays_until_admission_has_seen_the_fence_go() -> None:
    assert decide(OPEN, tainted(MARK), NO_ENTRY, fence_seen=False) == Latches()


@pytest.mark.parametrize("spec", [CLOSE, OPEN], ids=["closing", "opening"])
@pytest.mark.parametrize(("node", "fence"), [(tainted(NEWER), NO_ENTRY), (NODE, fenced(NEWER)), (None, fenced(NEWER))])
def test_a_newer_mark_outside_stops_a_late_loan(spec: LoanSpec, node: NodeSeen | None, fence: FenceSeen) -> None:
    found = decide(spec, node, fence)
    assert found.act is None
    assert not found.closed
    assert not found.open
    assert "newer than this NodeLoan" in found.blockers[0]


@pytest.mark.parametrize("spec", [CLOSE, OPEN], ids=["closing", "opening"])
def test_a_taint_of_our_key_that_we_did_not_set_is_left(spec: LoanSpec) -> None:
    node = replace(tainted(MARK), mark="", taints=({"key": TAINT, "value": "by-hand", "effect": "NoSchedule"},))
    found = decide(spec, node, fenced(MARK) if spec is CLOSE else NO_ENTRY)
    assert found.act is None
    assert not found.closed
    assert not found.open
    assert "not set by the bridge" in found.blockers[0]


def test_a_fence_entry_that_a_person_made_keeps_the_node_closed() -> None:
    found = decide(OPEN, NODE, fenced("hands off"))
    assert (found.act, found.open) == (None, False)
    assert "remove it by hand" in found.blockers[0]


def test_a_taint_taken_off_too_often_is_left_off_but_the_fence_is_kept() -> None:
    node = replace(NODE, mark=str(MARK), last_writer="operator")
    found = decide(CLOSE, node, NO_ENTRY, may_repair=False)
    assert found.act == PutFence("", MARK)
    assert "operator keeps taking" in found.blockers[0]
    assert not decide(CLOSE, node, fenced(MARK), may_repair=False).closed


STATES_OF_NODE = [NODE, tainted(MARK), tainted(OLDER), replace(NODE, mark=str(OLDER)), replace(NODE, mark=str(MARK))]
STATES_OF_FENCE = [NO_FENCE, NO_ENTRY, fenced(MARK), fenced(OLDER)]


def carry_out(act: Act, node: NodeSeen, fence: FenceSeen) -> tuple[NodeSeen, FenceSeen]:
    match act:
        case MakeFence():
            return node, NO_ENTRY
        case PutFence(replaces, mark):
            assert replaces == fence.entry
            return node, fenced(mark)
        case LiftFence(entry):
            assert entry == fence.entry
            return node, NO_ENTRY
        case PutTaint(mark, _):
            return replace(node, taints=tuple(taints_with(node, mark.lease)), mark=str(mark)), fence
        case LiftTaint():
            return replace(node, taints=tuple(taints_with(node, None)), mark=""), fence


@pytest.mark.parametrize("spec", [CLOSE, OPEN], ids=["closing", "opening"])
@pytest.mark.parametrize(("node", "fence"), list(product(STATES_OF_NODE, STATES_OF_FENCE)))
def test_from_every_state_that_a_crash_may_leave_the_goal_is_reached(
    spec: LoanSpec, node: NodeSeen, fence: FenceSeen
) -> None:
    """`OneOwner` on the way: a latch that stands is not taken away while closing, nor set while opening."""
    for _ in range(4):
        found = decide(spec, node, fence)
        if found.act is None:
            break
        before = (node.lease is not None, bool(fence.entry))
        node, fence = carry_out(found.act, node, fence)
        after = (node.lease is not None, bool(fence.entry))
        assert after >= before if spec is CLOSE else after <= before
    assert found == (Latches(closed=True) if spec is CLOSE else Latches(open=True))


def test_the_taints_of_others_stay_in_their_order() -> None:
    other_effect = {"key": TAINT, "value": "x", "effect": "NoExecute"}
    ours = {"key": TAINT, "value": "lease0001", "effect": "NoSchedule"}
    node = replace(NODE, taints=(THEIRS, ours, other_effect))
    assert taints_with(node, None) == [THEIRS, other_effect]
    assert taints_with(node, "lease0002") == [THEIRS, other_effect, {**ours, "value": "lease0002"}]


# --- emptying ---

POD = Pod(
    namespace="default",
    name="chat-1",
    uid="pod-1",
    node="gpu-1",
    running=True,
    ready=True,
    gpus=8,
    priority=0,
    created_at=AT,
    controller=("Deployment", "chat"),
)
EVICT_IT = replace(CLOSE, evict=True)


def named(name: str, **changes: Any) -> Pod:
    return replace(POD, **{"name": name, "uid": name, **changes})


def empty(
    *pods: Pod,
    spec: LoanSpec = CLOSE,
    node: NodeSeen = NODE,
    attachments: tuple[str, ...] = (),
    stood_s: float = 0.5,
) -> Emptying:
    return emptying(spec, node, pods, attachments, {"kube-system"}, stood_s=stood_s, late_bind_wait_s=0.5)


def test_empty_is_proved_only_after_the_wait_for_late_binds() -> None:
    assert empty(stood_s=0.5) == Emptying(empty=True)
    assert empty(stood_s=0.2) == Emptying(look_again_s=pytest.approx(0.3))


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(named("done", running=False), id="ended"),
        pytest.param(named("static", mirror=True), id="mirror"),
        pytest.param(named("cni", namespace="kube-system", controller=("DaemonSet", "cni")), id="allow-listed daemon"),
    ],
)
def test_what_does_not_keep_a_node_busy(pod: Pod) -> None:
    assert empty(pod).empty
    assert empty(pod, spec=EVICT_IT).evict == ()


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param(POD, "pod default/chat-1 runs (Deployment default/chat)", id="running"),
        pytest.param(named("p", controller=("DaemonSet", "cache")), "runs (DaemonSet default/cache)", id="any daemon"),
        pytest.param(named("p", namespace="kube-system"), "pod kube-system/p runs", id="infrastructure, no daemon"),
        pytest.param(
            named("p", terminating_since=AT),
            "pod default/p is terminating since 2026-05-04T12:01:03Z",
            id="terminating is not gone",
        ),
        pytest.param(
            named("p", terminating_since=AT, finalizers=("a/b",)),
            "12:01:03Z (finalizers: a/b)",
            id="held by a finalizer",
        ),
    ],
)
def test_what_keeps_a_node_busy(pod: Pod, words: str) -> None:
    found = empty(pod)
    assert (found.empty, found.evict) == (False, ())
    (blocker,) = found.blockers({})
    assert words in blocker


def test_eviction_goes_tier_by_tier() -> None:
    daemon, critical = named("daemon", controller=("DaemonSet", "d")), named("critical", priority=2_000_001_000)
    last = named("last", priority=2_000_001_000, controller=("DaemonSet", "d"))
    left = [last, critical, daemon, POD]
    for expected in (POD, daemon, critical, last):
        assert empty(*left, spec=EVICT_IT).evict == (expected,)
        left.remove(expected)


def test_a_tier_waits_for_the_terminating_pods_of_the_one_before() -> None:
    going, daemon = named("going", terminating_since=AT), named("daemon", controller=("DaemonSet", "d"))
    found = empty(going, daemon, spec=EVICT_IT)
    assert found.evict == ()
    assert "pod default/daemon is evicted after the others" in found.blockers({})


@pytest.mark.parametrize(
    ("pod", "evicted", "words"),
    [
        pytest.param(POD, True, "is being evicted", id="with a controller"),
        pytest.param(named("bare", controller=None), False, f"annotate it {EVICT}=true", id="bare"),
        pytest.param(named("bare", controller=None, evictable=True), True, "is being evicted", id="bare but allowed"),
        pytest.param(named("long", evictable=False), False, "asks not to be disrupted", id="do not disrupt"),
    ],
)
def test_who_is_evicted(pod: Pod, evicted: bool, words: str) -> None:
    found = empty(pod, spec=EVICT_IT)
    assert (pod in found.evict) is evicted
    assert words in found.blockers({})[0]


def test_evictions_of_one_pass_are_bounded() -> None:
    pods = [named(f"chat-{i}") for i in range(decisions.EVICTIONS_PER_PASS + 5)]
    found = empty(*pods, spec=EVICT_IT)
    assert len(found.evict) == decisions.EVICTIONS_PER_PASS
    assert len(found.left) == len(pods)


def test_a_refused_eviction_says_by_what() -> None:
    crashing = named("crashing", ready=False)
    found = empty(crashing, POD, spec=EVICT_IT)
    refusals = {crashing.uid: decisions.refused(crashing, "PodDisruptionBudget allows no disruption: chat needs 2")}
    going, blocked = found.blockers(refusals)
    assert going == "pod default/chat-1 is being evicted"
    assert "chat needs 2" in blocked
    assert "unhealthyPodEvictionPolicy" in blocked


@pytest.mark.parametrize("pods", [(), (POD,)], ids=["no pods", "pods"])
def test_a_dead_kubelet_makes_the_node_unknown(pods: tuple[Pod, ...]) -> None:
    dead = replace(NODE, ready=False, ready_reason="NodeStatusUnknown")
    found = empty(*pods, spec=EVICT_IT, node=dead)
    assert (found.empty, found.evict) == (False, ())
    assert "does not answer since 2026-05-04T12:01:03Z (NodeStatusUnknown)" in found.blockers({})[0]
    assert len(found.left) == len(pods)


def test_a_volume_of_a_gone_pod_keeps_the_node_busy() -> None:
    found = empty(attachments=("volume weights is still attached",))
    assert not found.empty
    assert found.blockers({}) == ("volume weights is still attached",)


# --- the answer ---


@pytest.mark.parametrize(
    ("found", "plan", "phase", "nonce"),
    [
        (Latches(PutTaint(MARK)), None, "Closing", ""),
        (Latches(closed=True), Emptying(look_again_s=0.3), "Closed", ""),
        (Latches(closed=True), Emptying(left=((POD, "runs"),)), "Draining", ""),
        (Latches(closed=True), Emptying(empty=True), "Empty", "n1"),
    ],
)
def test_phases_of_a_closed_node(found: Latches, plan: Emptying | None, phase: str, nonce: str) -> None:
    status = decisions.closed_status(replace(CLOSE, nonce="n1"), NODE, found, plan, ())
    assert (status.phase, status.empty_nonce, status.closed) == (phase, nonce, found.closed)
    assert status.observed == MARK
    assert status.node_uid == "uid-1"


@pytest.mark.parametrize(
    ("node", "phase", "words"),
    [
        (NODE, "Open", None),
        (replace(NODE, gpus_allocatable=0), "Opening", "the kubelet offers 0 of 8 GPUs"),
        (replace(NODE, ready=False, ready_reason="KubeletNotReady"), "Opening", "is not ready"),
        (replace(NODE, cordoned=True), "Opening", "cordoned by a person"),
    ],
)
def test_phases_of_an_open_node(node: NodeSeen, phase: str, words: str | None) -> None:
    status = decisions.open_status(OPEN, node, Latches(open=True))
    assert (status.phase, status.open) == (phase, True)
    assert status.blockers == () if words is None else words in status.blockers[0]


def test_a_condition_keeps_its_time_while_it_does_not_change() -> None:
    status = LoanStatus(phase="Closed", closed=True)
    first = decisions.conditions(status, (), unknown=False, generation=1, now="t1")
    emptied = replace(status, phase="Empty")
    second = decisions.conditions(emptied, first, unknown=False, generation=2, now="t2")
    times = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in second}
    assert times == {"Closed": ("True", "t1"), "Empty": ("True", "t2"), "Open": ("False", "t1")}


def test_emptiness_of_a_silent_node_is_unknown() -> None:
    status = LoanStatus(phase="Closed", closed=True)
    conditions = decisions.conditions(status, (), unknown=True, generation=1, now="t1")
    assert {c["type"]: c["status"] for c in conditions}["Empty"] == "Unknown"
