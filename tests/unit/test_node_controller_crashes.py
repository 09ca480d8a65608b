"""The node controller dies before and after every call of a story, one case each, and the next one goes on.

A story is first played without a death, which numbers its calls to the apiserver. Then it is played once for each of
them: the controller ends right before it, or right after its effect and before it has heard of it. Each time the story
must reach the same end. Meanwhile `Stage` judges every write: the order of the two latches, what the status says, who
is evicted, and that what people set stays.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.node_stories import (
    BUDGET,
    BUDGET_PATH,
    FENCE_PATH,
    LEASE,
    LOAN_PATH,
    NODE_PATH,
    PLUGIN_PATH,
    POD_PATH,
    THEIR_TAINT,
    Stage,
    loan,
)


def closing(stage: Stage) -> None:
    """A wish to close without evicting: the pod is waited for, and goes by itself."""
    stage.api.put(LOAN_PATH, loan("bridge", 5, nonce="n1"))
    stage.run_until(lambda: stage.answered("Draining"), "the pod is named")
    stage.api.remove(POD_PATH)
    empty(stage)


def draining(stage: Stage) -> None:
    stage.api.put(LOAN_PATH, loan("bridge", 5, evict=True, nonce="n1"))
    empty(stage)
    assert stage.api.evicted == ["chat-1"], "once"


def blocked(stage: Stage) -> None:
    """A budget says no, until its owner makes room."""
    stage.api.put(BUDGET_PATH, BUDGET)
    stage.api.put(LOAN_PATH, loan("bridge", 5, evict=True, nonce="n1"))
    stage.run_until(lambda: "keep" in str(stage.status.get("blockers")), "the budget is named")
    assert stage.api.evicted == []
    stage.api.remove(BUDGET_PATH)
    empty(stage)


def opening(stage: Stage) -> None:
    draining(stage)
    stage.api.put(LOAN_PATH, loan("kubernetes", 6))
    stage.api.change(NODE_PATH, {"spec": {"unschedulable": None}})
    opened(stage)


def change_of_mind(stage: Stage) -> None:
    """Given back before it was empty: no proof of the first wish is left behind."""
    stage.api.put(LOAN_PATH, loan("bridge", 5, nonce="n1"))
    stage.run_until(lambda: stage.answered("Draining"), "closed, and the pod runs")
    stage.api.change(NODE_PATH, {"spec": {"unschedulable": None}})
    stage.api.put(LOAN_PATH, loan("kubernetes", 6))
    opened(stage)
    assert POD_PATH in stage.api.objects
    assert "emptyNonce" not in stage.status or not stage.status["emptyNonce"]


def taken_over(stage: Stage) -> None:
    """The next wish of the broker comes with a newer mark: both latches carry it."""
    draining(stage)
    stage.api.put(LOAN_PATH, loan("slurm", 6))
    stage.run_until(lambda: stage.answered("Empty"), "closed under the newer mark")
    assert (stage.lease, stage.entry) == (LEASE, f"bridge:{LEASE}:2:6")


def foreign_untaint(stage: Stage) -> None:
    draining(stage)
    stage.api.change(NODE_PATH, {"spec": {"taints": [THEIR_TAINT]}})
    stage.run_until(lambda: stage.lease == LEASE, "the taint is back")
    empty(stage)
    told = [event["reason"] for event in stage.api.events]
    assert set(told) <= {"TaintRemoved"}
    assert len(told) <= 1, "it is said once"


def deleted_fence(stage: Stage) -> None:
    draining(stage)
    stage.api.remove(FENCE_PATH)
    stage.run_until(lambda: stage.entry is not None, "the fence is made anew with its entry")
    empty(stage)


def foreign_entry_gone(stage: Stage) -> None:
    draining(stage)
    stage.api.change(FENCE_PATH, {"spec": {"closed": {stage.api.objects[LOAN_PATH]["metadata"]["name"]: None}}})
    stage.run_until(lambda: stage.entry is not None, "the entry is back")
    empty(stage)


def deleted_loan(stage: Stage) -> None:
    """By hand, past admission: nothing is opened; the broker says again what it wants, and all is as it was."""
    draining(stage)
    spec = stage.api.objects[LOAN_PATH]["spec"]
    stage.api.remove(LOAN_PATH)
    stage.clock.advance(stage.one_pass())
    assert (stage.lease, stage.entry) == (LEASE, f"bridge:{LEASE}:2:5")
    stage.api.put(LOAN_PATH, {**loan("bridge", 5), "spec": spec})
    empty(stage)


def node_made_anew(stage: Stage) -> None:
    """A Node deleted and registered again has no taint, and another UID: proved anew."""
    draining(stage)
    before = stage.api.objects[NODE_PATH]
    stage.api.remove(NODE_PATH)
    stage.run_until(lambda: not stage.status.get("closed"), "not called closed without a node")
    metadata = {"name": before["metadata"]["name"], "labels": before["metadata"]["labels"]}
    spec = {"taints": [THEIR_TAINT], "unschedulable": True}
    anew = stage.api.put(NODE_PATH, {**before, "metadata": metadata, "spec": spec})
    stage.run_until(lambda: stage.status.get("nodeUID") == anew["metadata"]["uid"], "the new Node is meant")
    empty(stage)


def empty(stage: Stage) -> None:
    stage.run_until(lambda: stage.answered("Empty") and stage.status["emptyNonce"] == "n1", "closed and proved empty")
    assert (stage.lease, stage.mark, stage.entry) == (LEASE, f"bridge:{LEASE}:2:5", f"bridge:{LEASE}:2:5")
    assert PLUGIN_PATH in stage.api.objects, "the device plugin belongs on every node"


def opened(stage: Stage) -> None:
    stage.run_until(lambda: stage.answered("Open"), "open")
    assert (stage.lease, stage.mark, stage.entry) == (None, "", None)
    assert stage.api.objects[NODE_PATH]["spec"]["taints"] == [THEIR_TAINT]


STORIES: tuple[Callable[[Stage], None], ...] = (
    closing,
    draining,
    blocked,
    opening,
    change_of_mind,
    taken_over,
    foreign_untaint,
    deleted_fence,
    foreign_entry_gone,
    deleted_loan,
    node_made_anew,
)


def points(story: Callable[[Stage], None]) -> list[tuple[int, bool]]:
    """Where a controller can die in the story: before each call, and after each that has an effect."""
    stage = Stage()
    story(stage)
    calls = enumerate(stage.mortal.calls)
    return [(number, after) for number, call in calls for after in (False, True) if not after or "GET " not in call]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_wherever_the_controller_dies_the_next_one_reaches_the_same_end(story: Callable[[Stage], None]) -> None:
    where = points(story)
    assert len(where) > 10
    for point in where:
        stage = Stage(point)
        story(stage)
        assert stage.deaths == 1, f"nobody died at {point}"
