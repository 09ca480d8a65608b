"""docs/bridgectl.md and docs/rest.md say what is: their commands are run, their routes and roles compared."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner
from tests.unit.api_world import TOKENS, World, bearer
from tests.unit.cli_world import Terminal

DOCS = Path(__file__).parents[2] / "docs"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "tokens")
    world.share()
    return world


def test_the_sessions_of_bridgectl_md(world: World, tmp_path: Path) -> None:
    for node, owner in {"gpu-1": Owner.SLURM, "gpu-3": Owner.KUBERNETES, "gpu-4": Owner.SLURM}.items():
        world.own(node, owner)
    world.begin("gpu-2", "h2", blockers=("job 17 runs until 12:40",))
    world.answer_all(RequestState.ACCEPTED, "handoffs h3")
    world.clock.pass_s(2)
    terminal = Terminal(world, tmp_path, "platform")
    blocks = CONSOLE.findall((DOCS / "bridgectl.md").read_text(encoding="utf-8"))
    assert len(blocks) == 3
    for block in blocks:
        for session in re.split(r"^\$ bridgectl ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = session.partition("\n")
            assert terminal.shown(*shlex.split(command)) == expected, command


def test_every_command_is_in_bridgectl_md(world: World, tmp_path: Path) -> None:
    terminal = Terminal(world, tmp_path, "platform")
    text = (DOCS / "bridgectl.md").read_text(encoding="utf-8")
    for group, words in ((), text), (("policy",), text):
        shown = terminal.shown(*group, "--help")
        commands = re.findall(r"^│ ([a-z][a-z-]+) ", shown, re.MULTILINE)
        assert len(commands) >= 4
        for command in commands:
            assert re.search(rf"\b{' '.join([*group, command])}\b", words), f"{command} is not described"


def test_the_routes_and_roles_of_rest_md(world: World) -> None:
    text = (DOCS / "rest.md").read_text(encoding="utf-8")
    told = {
        (method, path): role
        for method, path, role in re.findall(r"^\| `([A-Z]+) (/\S+)`\s*\| ([a-z, ]+?)\s*\|", text, re.MULTILINE)
    }
    client = TestClient(world.app())
    found = {
        (method.upper(), path)
        for path, operations in client.get("/openapi.json").json()["paths"].items()
        for method in operations
    }
    assert told.keys() == found
    for (method, path), role in told.items():
        url = path.replace("{name}", "gpu-1").replace("{id}", "x")
        let_in = {
            held
            for holder, (held, _) in TOKENS.items()
            if client.request(method, url, headers=bearer(holder), json=BODIES.get(path)).status_code != 403
        }
        assert let_in == MAY[role], f"{method} {path}"


# A request has to be well-formed to come as far as the question of who asks.
BODIES = {"/v1/policy": {"pools": []}}
MAY = {
    "none": {"reader", "operator", "admin", "agent"},
    "reader": {"reader", "operator", "admin"},
    "operator": {"operator", "admin"},
    "admin": {"admin"},
    "agent": {"agent"},
    "agent, reader": {"reader", "operator", "admin", "agent"},
}
