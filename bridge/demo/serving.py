"""The demo's API on a port that is free, its tokens, and the commands that reach it."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from bridge.settings import ApiSettings, ClientSettings

TOKEN_FILE = Path("build/tokens-admin")
"""Where ``bridgectl`` looks for a token when it is told nothing else."""


@contextmanager
def served(app: FastAPI, listener: socket.socket) -> Iterator[None]:
    """The API answers on `listener` meanwhile."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="api", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(timeout=5)


def listen(api: ApiSettings) -> socket.socket:
    """A socket on the configured port or, where that is taken, on a free one."""
    family = socket.AF_INET6 if ":" in api.api_host else socket.AF_INET
    try:
        return socket.create_server((api.api_host, api.api_port), family=family)
    except OSError:
        return socket.create_server((api.api_host, 0), family=family)


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_tokens(token_file: Path, token: str) -> None:
    """The same token for the API and for ``bridgectl``, readable by nobody else."""
    for path, text in ((token_file, f"demo admin {token}\n"), (TOKEN_FILE, f"{token}\n")):
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(text)


def command(url: str) -> str:
    """How ``bridgectl`` is called from this folder so that it reaches the demo: only what it would not find itself."""
    found = ClientSettings()
    words = [] if found.url == url else [f"BRIDGE_URL={url}"]
    if found.client_token_file != TOKEN_FILE:
        words.append(f"BRIDGE_CLIENT_TOKEN_FILE={TOKEN_FILE}")
    return " ".join([*words, "bridgectl" if shutil.which("bridgectl") else ".venv/bin/bridgectl"])
