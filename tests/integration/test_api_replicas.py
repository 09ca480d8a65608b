"""Two brokers on one Postgres, over real sockets: a commit at one wakes who waits at the other."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from bridge.api.app import ApiDependencies, create_app
from bridge.api.auth import TokenFile
from bridge.api.changes import Changes
from bridge.api.drift import DriftView
from bridge.model.ledger import AnswerRequest, FenceAck, PutLease, RequestState
from bridge.model.ownership import Lease, Owner
from bridge.store.postgres import PostgresLedger
from tests.unit.api_world import FRESH, PLAN, TOKENS, bearer, unread

DEADLINE_S = 20

POLICY = """
pools:
  - name: h100
    nodes: ["gpu-[1-4]"]
    partition: gpu
"""


class WallClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


@dataclass
class Replica:
    ledger: PostgresLedger
    url: str
    app: FastAPI

    @property
    def waiting(self) -> int:
        changes: Changes = self.app.state.changes
        return changes.waiting


@contextmanager
def replica(database_url: str, tokens: Path) -> Iterator[Replica]:
    ledger, ids = PostgresLedger(database_url), iter(f"req-{number}" for number in range(100))
    deps = ApiDependencies(
        ledger,
        WallClock(),
        lambda: next(ids),
        TokenFile(tokens),
        plan=lambda policy, nodes: PLAN,
        members=unread,
        explain=lambda kind, name: None,
        drift=lambda: DriftView.of((), (), WallClock().now()),
        status=lambda: FRESH,
    )
    app = create_app(deps)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "uvicorn did not start")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Replica(ledger, f"http://127.0.0.1:{port}", app)
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        ledger.close()


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture
def pair(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    tokens = tmp_path / "tokens"
    tokens.write_text("\n".join(f"{name} {role} {token}" for name, (role, token) in TOKENS.items()))
    with replica(postgres_url, tokens) as leader, replica(postgres_url, tokens) as standby:
        yield leader, standby


def bridgectl(url: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    token = folder / "my-token"
    token.write_text(TOKENS["platform"][1])
    code = "from bridge.cli.main import app; app()"
    return subprocess.run(
        [sys.executable, "-c", code, "--url", url, "--token-file", str(token), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_bridgectl_on_one_replica_and_the_leader_on_another(pair: tuple[Replica, Replica], tmp_path: Path) -> None:
    leader, standby = pair
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    applied = bridgectl(standby.url, tmp_path, "policy", "apply", str(file))
    said = "version 1 is in force: 4 nodes\njoining: gpu-1, gpu-2, gpu-3, gpu-4\nleaving: none\n"
    assert applied.stdout.startswith(said), applied.stderr
    epoch = leader.ledger.campaign("leader", ttl_s=60)
    assert epoch is not None

    def answer(what: str) -> None:
        for request in leader.ledger.read().requests:
            leader.ledger.commit(epoch, [AnswerRequest(request.id, RequestState.ACCEPTED, "handoffs h1")])

    leader.ledger.watch(answer)
    lent = bridgectl(standby.url, tmp_path, "lend", "gpu-[1-2]", "--wait-s", "10")
    assert (lent.returncode, lent.stdout.splitlines()[0]) == (0, "accepted: handoffs h1"), lent.stderr
    shown = bridgectl(leader.url, tmp_path, "nodes")
    assert [line.split()[:2] for line in shown.stdout.splitlines()[1:]] == [
        [f"gpu-{number}", "not"] for number in (1, 2, 3, 4)
    ]


def test_a_lease_that_the_leader_commits_wakes_the_agent_at_a_standby(
    pair: tuple[Replica, Replica], tmp_path: Path
) -> None:
    leader, standby = pair
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    assert bridgectl(leader.url, tmp_path, "policy", "apply", str(file)).returncode == 0
    epoch = leader.ledger.campaign("leader", ttl_s=60)
    assert epoch is not None
    headers = bearer("slurmctl")
    answers: list[httpx.Response] = []

    def poll() -> None:
        answers.append(
            httpx.get(f"{standby.url}/v1/slurm/fence?after=0&wait_s=30", headers=headers, timeout=DEADLINE_S + 20)
        )

    agent = threading.Thread(target=poll)
    agent.start()
    wait_for(lambda: standby.waiting == 1, "the agent's request did not come to wait")
    generation = leader.ledger.next_generation()
    lease = Lease("k3v9q2m8", "gpu-2", Owner.KUBERNETES, epoch, generation, datetime.now(UTC))
    leader.ledger.commit(epoch, [PutLease(lease, replaces=None)])
    agent.join(DEADLINE_S)
    assert answers, "the commit of the leader did not wake the agent's request"
    assert (answers[0].json()["generation"], answers[0].json()["closed"]) == (generation, ["gpu-2"])
    acknowledged = httpx.post(f"{standby.url}/v1/slurm/fence/ack", json={"generation": generation}, headers=headers)
    assert acknowledged.status_code == 204
    found = leader.ledger.read().fence_ack
    assert isinstance(found, FenceAck)
    assert found.generation == generation
