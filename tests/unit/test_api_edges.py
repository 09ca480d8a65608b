"""What hostile or clumsy clients send, what a bug answers, and the pages that need no token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from bridge.api.limits import MAX_BODY_BYTES
from bridge.model.ledger import PutRecord
from bridge.model.ownership import Owner
from tests.unit.api_world import TOKENS, World, bearer


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tokens")
    world.share()
    return world


@pytest.fixture
def client(world: World) -> TestClient:
    return TestClient(world.app(), headers=bearer("platform"), raise_server_exceptions=False)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("DELETE", "/v1/nodes", 405)])
def test_paths_and_methods_that_are_not_there(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert (answer.json()["status"], answer.json()["instance"]) == (status, path)
    assert (status == 405) == ("GET" in answer.headers.get("Allow", ""))


@pytest.mark.parametrize(
    "body", [b"{", b"", b"[]", b"null", b'"x"', b"\xff", b'{"reason": 1}', b'{"reason": ""}', b"{}"]
)
def test_bodies_that_are_no_order(world: World, client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/pause", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert world.ledger.read().paused == ""


def test_a_body_of_another_type_gets_told_which_type_to_send(client: TestClient) -> None:
    answer = client.post("/v1/pause", content=b"reason=x", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 422
    assert "application/json" in answer.json()["errors"][0]["remedy"]


def test_deep_nesting_is_an_error_and_not_a_crash(client: TestClient) -> None:
    body = b"[" * 100_000
    answer = client.put("/v1/policy", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)


def test_a_large_body_is_413_whether_announced_or_not(client: TestClient) -> None:
    def stream() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 1):
            yield b" " * 65536

    for content in (b" " * (MAX_BODY_BYTES + 1), stream()):
        answer = client.post("/v1/pause", content=content)
        assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


def test_a_body_at_the_limit_is_read(client: TestClient) -> None:
    body = b'{"reason": "x"}'.ljust(MAX_BODY_BYTES)
    assert client.post("/v1/pause", content=body, headers={"Content-Type": "application/json"}).status_code == 200


@pytest.mark.parametrize("name", ["%2e%2e%2fetc", "gpu%0a1", "%3Cscript%3E", "a" * 200, "gpu%00"])
def test_hostile_names(client: TestClient, name: str) -> None:
    answer = client.get(f"/v1/nodes/{name}")
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_every_answer_says_how_it_may_be_treated(client: TestClient) -> None:
    for path in ("/v1/nodes", "/v1/nothing", "/healthz", "/docs"):
        headers = client.get(path).headers
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_a_bug_is_500_and_keeps_its_secrets(world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(world.ledger, "read", broken)
    answer = client.get("/v1/nodes")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "hunter2" not in answer.text


def samples(client: TestClient) -> dict[tuple[str, ...], float]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_of_the_ledger(world: World, client: TestClient) -> None:
    assert samples(client)["bridge_nodes", "none", "h100"] == 4
    world.own("gpu-1", Owner.KUBERNETES)
    world.begin("gpu-2", "h2")
    record = world.ledger.read().nodes["gpu-1"]
    world.commit(PutRecord(replace(record, unusable="no GPU allocatable")))
    assert samples(client)["bridge_paused", "stop", "", "everything"] == 0
    client.post("/v1/pause", json={"reason": "x"})
    client.post("/v1/pause", json={"reason": "x", "node": "gpu-2"})
    found = samples(client)
    assert found["bridge_ledger_up",] == 1
    assert [found["bridge_nodes", owner, "h100"] for owner in ("slurm", "kubernetes", "bridge", "none")] == [0, 1, 1, 2]
    assert found["bridge_nodes_unusable", "h100"] == 1
    assert found["bridge_handoffs_live", "kubernetes", "empty"] == 1
    assert found["bridge_paused", "stop", "", "everything"] == found["bridge_paused", "stop", "gpu-2", "node"] == 1
    assert found["bridge_generation",] == 2
    # Counted from the first scrape on: the policy was there before it.
    assert found["bridge_events_total", "step"] == 2
    assert found["bridge_events_total", "paused"] == 2
    assert ("bridge_events_total", "policy") not in found


def test_metrics_while_the_ledger_is_away_are_absent_and_not_stale(world: World, client: TestClient) -> None:
    world.ledger.away = "connection refused"
    found = samples(client)
    assert found["bridge_ledger_up",] == 0
    assert not [name for name in found if name[0] == "bridge_nodes"]


def test_request_durations_are_labelled_by_route_and_never_by_what_a_client_made_up(client: TestClient) -> None:
    client.get("/v1/nodes/gpu-1")
    client.get("/v1/nodes/gpu-404")
    client.request("BREW", "/v1/made-up")
    count = "bridge_http_request_duration_seconds_count"
    found = {name: value for name, value in samples(client).items() if name[0] == count}
    assert found[count, "GET", "/v1/nodes/{name}", "200"] >= 1
    assert found[count, "GET", "/v1/nodes/{name}", "404"] >= 1
    assert not [name for name in found if "made-up" in str(name) or "BREW" in name]


def test_metrics_hold_no_secret_and_no_reason(world: World, client: TestClient) -> None:
    world.begin("gpu-2", "h2", blockers=("job 17 of user7",))
    text = client.get("/metrics").text
    assert not [token for _, token in TOKENS.values() if token in text]
    assert "user7" not in text
    assert "launch day" not in text


def test_the_reference_page_has_every_operation_and_no_script(client: TestClient) -> None:
    page = client.get("/docs").text
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            assert f"{method.upper()} {path}" in page
            assert f'id="{operation["operationId"]}"' in page
    assert "<script" not in page


def test_openapi_is_worth_reading(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    for operation in operations:
        assert operation["summary"]
        assert operation["description"]
        assert operation["tags"]
        assert set(operation["tags"]) <= {tag["name"] for tag in schema["tags"]}
    fields = schema["components"]["schemas"]["ProblemDocument"]["properties"]
    assert {"type", "title", "status", "detail", "instance", "errors"} == set(fields)
