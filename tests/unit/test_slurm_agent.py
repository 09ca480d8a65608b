"""The agent: what the plugins read is always whole, and as old as it says."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridge.settings import AgentSettings
from bridge.slurm_agent import agent as agent_module
from bridge.slurm_agent import files
from bridge.slurm_agent.agent import LONGEST_POLL_S, SlurmAgent, run
from bridge.slurm_agent.files import FenceAnswer, PoolFacts, fence_text, policy_text

H100 = {"partition": "gpu", "nodes": 4, "max_nodes": 3, "gpus": 8}
ANSWER: dict[str, Any] = {
    "generation": 17,
    "policy_version": 2,
    "closed": ["gpu-2", "gpu-10"],
    "policy": {"h100": H100},
}


@dataclass
class Broker:
    """Answers like the REST API; `fault` replaces the answer of a method."""

    answer: dict[str, Any] = field(default_factory=lambda: dict(ANSWER))
    faults: dict[str, Callable[[httpx.Request], httpx.Response]] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.tokens.append(request.headers["Authorization"])
        if fault := self.faults.get(request.method):
            return fault(request)
        if (request.method, request.url.path) == ("GET", "/v1/slurm/fence"):
            self.asked.append(dict(request.url.params))
            return httpx.Response(200, json=self.answer)
        assert (request.method, request.url.path) == ("POST", "/v1/slurm/fence/ack")
        self.acknowledged.append(json.loads(request.content)["generation"])
        return httpx.Response(204)


@dataclass
class Bench:
    broker: Broker
    agent: SlurmAgent
    folder: Path
    token_file: Path
    wall_s: list[float]

    @property
    def fence(self) -> str:
        return (self.folder / "fence").read_text()

    @property
    def policy(self) -> str:
        return (self.folder / "policy").read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    token_file = tmp_path / "agent-token"
    token_file.write_text("s3cret\n")
    folder = tmp_path / "slurm-bridge"
    folder.mkdir()
    settings = AgentSettings(agent_url="http://broker:8080", agent_token_file=token_file, agent_dir=folder)
    broker, wall_s = Broker(), [1_796_201_113.7]
    agent = SlurmAgent(settings, wall_s=lambda: wall_s[0], transport=httpx.MockTransport(broker))
    yield Bench(broker, agent, folder, token_file, wall_s)
    agent.close()


FENCE = "1796201113\ngpu-10\ngpu-2\nend 3\n"
POLICY = "bridge-policy 2\npartition=gpu pool=h100 nodes=4 max_nodes=3 gpus_per_node=8\nend 2\n"


def test_a_turn_writes_both_files_then_acknowledges(bench: Bench) -> None:
    bench.agent.turn()
    assert (bench.fence, bench.policy) == (FENCE, POLICY)
    assert bench.broker.acknowledged == [17]
    assert bench.broker.tokens == ["Bearer s3cret"] * 2


def test_the_files_are_readable_by_slurm_and_nothing_else_is_left(bench: Bench) -> None:
    bench.agent.turn()
    assert sorted(path.name for path in bench.folder.iterdir()) == ["fence", "policy"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in bench.folder.iterdir()} == {0o644}


def test_a_file_is_replaced_and_never_rewritten_in_place(bench: Bench) -> None:
    bench.agent.turn()
    with (bench.folder / "fence").open() as reader:
        bench.broker.answer["closed"] = []
        bench.agent.turn()
        assert reader.read() == FENCE
    assert bench.fence == "1796201113\nend 1\n"


def test_the_first_question_is_answered_at_once_and_later_ones_wait_for_news(bench: Bench) -> None:
    bench.agent.turn()
    bench.agent.turn()
    assert bench.broker.asked == [{}, {"after": "17", "wait_s": str(LONGEST_POLL_S)}]


def test_every_answer_refreshes_the_stamp_and_the_acknowledgement(bench: Bench) -> None:
    bench.agent.turn()
    bench.wall_s[0] += 5
    bench.agent.turn()
    assert bench.fence.splitlines()[0] == "1796201118"
    assert bench.broker.acknowledged == [17, 17]


def test_a_lost_or_damaged_file_is_written_again(bench: Bench) -> None:
    bench.agent.turn()
    (bench.folder / "fence").unlink()
    (bench.folder / "policy").write_text("half")
    bench.agent.turn()
    assert (bench.fence, bench.policy) == (FENCE, POLICY)


def test_a_broker_restored_from_the_past_is_believed(bench: Bench) -> None:
    bench.agent.turn()
    bench.broker.answer.update(generation=3, closed=["gpu-1"])
    bench.agent.turn()
    assert "gpu-1\n" in bench.fence
    assert bench.broker.acknowledged == [17, 3]


def test_the_token_may_be_replaced_in_place(bench: Bench) -> None:
    bench.agent.turn()
    bench.token_file.write_text("n3w\n")
    bench.agent.turn()
    assert bench.broker.tokens[-1] == "Bearer n3w"


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def with_fields(**fields: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(200, json={**ANSWER, **fields})


NO_ANSWER = {
    "refused": refuse,
    "not allowed": lambda request: httpx.Response(401, json={"title": "Unauthorized"}),
    "server error": lambda request: httpx.Response(500, text="oops"),
    "another page": lambda request: httpx.Response(200, html="<html>login</html>"),
    "redirect": lambda request: httpx.Response(302, headers={"location": "/login"}),
    "half": lambda request: httpx.Response(200, content=json.dumps(ANSWER)[:-9]),
    "no generation": lambda request: httpx.Response(200, json={"closed": [], "policy": {}}),
    "no closed": lambda request: httpx.Response(200, json={"generation": 1, "policy": {}}),
    "null closed": with_fields(closed=None),
    "a text for a list": with_fields(closed="gpu-1"),
    "a line break in a name": with_fields(closed=["gpu-1\nend 2"]),
    "a space in a name": with_fields(closed=["gpu 1"]),
    "an empty name": with_fields(closed=[""]),
    "generation below 0": with_fields(generation=-1),
    "generation as text": with_fields(generation="17"),
    "a policy without GPUs": with_fields(policy={"h100": {"partition": "gpu", "nodes": 4, "max_nodes": 3}}),
    "a policy line that forges another": with_fields(policy={"h100": {**H100, "partition": "a nodes=9"}}),
    "a QoS that forges a field": with_fields(policy={"h100": {**H100, "borrow_qos": "a switches=9"}}),
    "too large": lambda request: httpx.Response(200, content=b" " * (agent_module.MAX_ANSWER_BYTES + 1)),
}


@pytest.mark.parametrize("fault", NO_ANSWER)
def test_without_a_whole_valid_answer_nothing_is_written_or_acknowledged(bench: Bench, fault: str) -> None:
    bench.agent.turn()
    bench.wall_s[0] += 60
    bench.broker.faults["GET"] = NO_ANSWER[fault]
    with pytest.raises((ValueError, httpx.HTTPError)):
        bench.agent.turn()
    assert (bench.fence, bench.policy) == (FENCE, POLICY)
    assert bench.broker.acknowledged == [17]


def test_a_refused_acknowledgement_leaves_the_fence_written(bench: Bench) -> None:
    bench.broker.faults["POST"] = lambda request: httpx.Response(409, json={"title": "Conflict"})
    with pytest.raises(ValueError, match="HTTP 409"):
        bench.agent.turn()
    assert bench.fence == FENCE


def test_a_folder_that_cannot_be_written_is_not_acknowledged(bench: Bench) -> None:
    (bench.folder / ".fence.new").mkdir()
    with pytest.raises(OSError, match="fence"):
        bench.agent.turn()
    assert bench.broker.acknowledged == []


def test_a_crash_while_writing_leaves_the_old_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.agent.turn()
    bench.broker.answer["closed"] = []

    def disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        bench.agent.turn()
    assert bench.fence == FENCE
    assert sorted(path.name for path in bench.folder.iterdir()) == ["fence", "policy"]


def test_pools_that_share_a_partition_are_one_line() -> None:
    small = PoolFacts(partition="gpu", nodes=2, max_nodes=2, gpus=4)
    large = PoolFacts(partition="gpu", nodes=8, max_nodes=6, gpus=8)
    other = PoolFacts(partition="debug", nodes=1, max_nodes=0, gpus=0)
    assert policy_text({"l": large, "s": small, "x": other}).splitlines()[1:3] == [
        "partition=debug pool=x nodes=1 max_nodes=0 gpus_per_node=0",
        "partition=gpu pool=l+s nodes=10 max_nodes=8 gpus_per_node=8",
    ]


def test_what_else_is_known_of_a_pool_stands_behind_its_sizes() -> None:
    more = {"owned": 2, "reclaim_s": 40, "warn": False, "borrow_qos": "cheap", "switches": 1, "switches_wait_s": 300}
    facts = PoolFacts.model_validate({**H100, **more, "segment_nodes": 2})
    assert policy_text({"h100": facts}).splitlines()[1] == (
        "partition=gpu pool=h100 nodes=4 max_nodes=3 gpus_per_node=8 owned=2 reclaim_s=40 warn=0 borrow_qos=cheap "
        "switches=1 switches_wait_s=300 segment_nodes=2"
    )


def test_of_pools_that_share_a_partition_the_first_ones_wishes_count() -> None:
    a = PoolFacts(partition="gpu", nodes=2, max_nodes=2, gpus=4, owned=1, reclaim_s=9, switches=1)
    b = PoolFacts(partition="gpu", nodes=8, max_nodes=6, gpus=8, owned=3, reclaim_s=70, switches=2, borrow_qos="cheap")
    line = policy_text({"a": a, "b": b}).splitlines()[1]
    assert line == "partition=gpu pool=a+b nodes=10 max_nodes=8 gpus_per_node=8 owned=4 reclaim_s=70 switches=1"
    unknown = policy_text({"a": a, "b": b.model_copy(update={"owned": None})})
    assert "owned" not in unknown


def test_texts_of_an_empty_answer_are_whole() -> None:
    assert fence_text([], 7) == "7\nend 1\n"
    assert policy_text({}) == "bridge-policy 2\nend 1\n"


def test_fields_of_a_newer_broker_are_ignored() -> None:
    assert FenceAnswer.model_validate({**ANSWER, "weather": "fine"}).generation == 17


def test_the_loop_goes_on_after_failures_ever_less_often_and_stops_when_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    stop = threading.Event()
    turns = iter([OSError("disk"), httpx.ConnectError("refused"), ValueError("half"), *[OSError("disk")] * 3, None])

    class Agent:
        def __init__(self, settings: AgentSettings) -> None:
            self.closed = False

        def turn(self) -> None:
            outcome = next(turns)
            if outcome is not None:
                raise outcome
            stop.set()

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(agent_module, "SlurmAgent", Agent)
    monkeypatch.setattr(stop, "wait", waits.append)
    run(AgentSettings(), stop=stop)
    assert waits == [1, 2, 4, 8, 10, 10]
