"""bridgectl run in-process against the real API. For the tests of the CLI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from bridge.cli.main import app
from tests.unit.api_world import TOKENS, World

Before = Callable[[httpx.Request], None]


class Wire(httpx.BaseTransport):
    """To the application in this process. `before` sees every request first and may change the world, or raise."""

    def __init__(self, world: World) -> None:
        self._inner: httpx.BaseTransport = TestClient(world.app(), raise_server_exceptions=False)._transport
        self.before: Before = lambda request: None
        self.sent: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        self.before(request)
        return self._inner.handle_request(request)


class Terminal:
    """Runs `bridgectl` as the holder of a token of `world`."""

    def __init__(self, world: World, folder: Path, holder: str) -> None:
        self.wire = Wire(world)
        self.token_file = folder / f"token-of-{holder}"
        self.token_file.write_text(TOKENS[holder][1] + "\n")

    def run(self, *arguments: str, input: str | None = None) -> Result:
        environment = {"BRIDGE_URL": "http://broker", "BRIDGE_CLIENT_TOKEN_FILE": str(self.token_file)}
        return CliRunner().invoke(app, list(arguments), obj=self.wire, env=environment, input=input)

    def shown(self, *arguments: str, input: str | None = None) -> str:
        """What a command that succeeds prints."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout
