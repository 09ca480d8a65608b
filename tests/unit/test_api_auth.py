"""Who gets in: tokens, roles, and a token file that changes or breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bridge.api.auth import Principal, Role, TokenFile
from bridge.model.errors import Unreadable
from tests.unit.api_world import TOKENS, World, bearer

OPEN = {"/healthz", "/readyz", "/metrics"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tokens")
    world.share()
    return world


@pytest.fixture
def client(world: World) -> TestClient:
    return TestClient(world.app())


def test_every_route_but_the_probes_needs_a_token(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    guarded = 0
    for path, operations in paths.items():
        for method in operations:
            url = path.replace("{name}", "gpu-1").replace("{id}", "x")
            status = client.request(method, url).status_code
            assert (status == 401) == (path not in OPEN), f"{method} {path} answered {status}"
            guarded += status == 401
    assert guarded >= 15


def test_401_says_what_to_send(client: TestClient) -> None:
    answer = client.get("/v1/nodes")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": "urn:slurm-kube-bridge:problem:unauthorized",
        "title": "Unauthorized",
        "status": 401,
        "detail": "send a header 'Authorization: Bearer <token>'",
        "instance": "/v1/nodes",
    }


@pytest.mark.parametrize("scheme", ["Basic", "Token"])
def test_only_bearer_is_a_scheme(client: TestClient, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {TOKENS['platform'][1]}"}
    assert client.get("/v1/nodes", headers=headers).status_code == 401


def test_a_wrong_token_is_not_echoed(client: TestClient) -> None:
    answer = client.get("/v1/nodes", headers={"Authorization": "Bearer almost-a-real-token-123"})
    assert answer.status_code == 401
    assert "almost" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "body", "allowed"),
    [
        ("GET", "/v1/nodes", None, {"viewer", "oncall", "platform"}),
        ("GET", "/v1/slurm/fence", None, {"viewer", "oncall", "platform", "slurmctl"}),
        ("POST", "/v1/slurm/fence/ack", {"generation": 0}, {"slurmctl"}),
        ("POST", "/v1/pause", {"reason": "storage"}, {"oncall", "platform"}),
        ("POST", "/v1/resume", None, {"oncall", "platform"}),
        (
            "POST",
            "/v1/handoffs?wait_s=0",
            {"nodes": ["gpu-1"], "destination": "slurm", "reason": "x"},
            {"oncall", "platform"},
        ),
        ("PUT", "/v1/policy?dry_run=true", {"pools": []}, {"viewer", "oncall", "platform"}),
        ("PUT", "/v1/policy", {"pools": []}, {"platform"}),
    ],
)
def test_roles(client: TestClient, method: str, path: str, body: object, allowed: set[str]) -> None:
    # Without If-Match nobody replaces the policy, but an admin is told that and the others that they may not.
    let_in = {
        name for name in TOKENS if client.request(method, path, json=body, headers=bearer(name)).status_code != 403
    }
    assert let_in == allowed


def test_a_403_names_the_caller_and_the_role_it_needs(client: TestClient) -> None:
    answer = client.post("/v1/pause", json={"reason": "x"}, headers=bearer("viewer"))
    assert answer.json()["detail"] == "viewer has role reader; this needs operator"


def test_a_revoked_token_stops_working_without_a_restart(world: World, client: TestClient) -> None:
    assert client.get("/v1/nodes", headers=bearer("viewer")).status_code == 200
    kept = [line for line in world.tokens_path.read_text().splitlines() if not line.startswith("viewer ")]
    world.tokens_path.write_text("\n".join(kept))
    assert client.get("/v1/nodes", headers=bearer("viewer")).status_code == 401
    assert client.get("/v1/nodes", headers=bearer("oncall")).status_code == 200


def test_a_missing_token_file_lets_nobody_in(world: World, client: TestClient) -> None:
    assert client.get("/v1/nodes", headers=bearer("platform")).status_code == 200
    world.tokens_path.unlink()
    answer = client.get("/v1/nodes", headers=bearer("platform"))
    assert answer.status_code == 503
    assert answer.json()["detail"] == "the token file is unreadable: FileNotFoundError"


def tokens(tmp_path: Path, text: str) -> TokenFile:
    path = tmp_path / "some-tokens"
    path.write_text(text)
    return TokenFile(path)


def test_lines_of_a_token_file(tmp_path: Path) -> None:
    found = tokens(tmp_path, "# people\n\n viewer   reader\tsixteen-chars-ok \n")
    assert found.authenticate("sixteen-chars-ok") == Principal("viewer", Role.READER)
    assert found.authenticate("sixteen-chars-o") is None
    assert found.authenticate("") is None


@pytest.mark.parametrize(
    "line",
    [
        "viewer sixteen-chars-ok",
        "viewer reader sixteen-chars-ok more",
        "viewer root sixteen-chars-ok",
        "viewer Reader sixteen-chars-ok",
        "<b>viewer</b> reader sixteen-chars-ok",
    ],
)
def test_a_line_that_cannot_be_understood_grants_nothing_and_harms_no_other(tmp_path: Path, line: str) -> None:
    found = tokens(tmp_path, f"{line}\noncall operator another-token-ok!\n")
    assert found.authenticate("sixteen-chars-ok") is None
    assert found.authenticate("another-token-ok!") == Principal("oncall", Role.OPERATOR)


def test_short_tokens_can_be_guessed_and_are_refused(tmp_path: Path) -> None:
    assert tokens(tmp_path, "viewer reader fifteen-chars-x").authenticate("fifteen-chars-x") is None


def test_one_token_for_two_holders_belongs_to_neither(tmp_path: Path) -> None:
    found = tokens(tmp_path, "viewer reader sixteen-chars-ok\nplatform admin sixteen-chars-ok\n")
    assert found.authenticate("sixteen-chars-ok") is None


def test_two_tokens_of_one_holder_both_work_while_they_are_rotated(tmp_path: Path) -> None:
    found = tokens(tmp_path, "viewer reader the-older-token-1\nviewer reader the-newer-token-2\n")
    assert found.authenticate("the-older-token-1") == found.authenticate("the-newer-token-2") != None  # noqa: E711


def test_a_token_file_that_is_not_text_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Unreadable, match="token file"):
        TokenFile(path).authenticate("sixteen-chars-ok")


@pytest.mark.parametrize("role", list(Role))
def test_agent_stands_outside_the_order(role: Role) -> None:
    assert Role.AGENT.covers(role) == (role is Role.AGENT)
    assert role.covers(Role.AGENT) == (role is Role.AGENT)
