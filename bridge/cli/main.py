"""``bridgectl``, put together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import httpx
import typer

from bridge.cli import orders, processes, reading
from bridge.cli.checkpoint import checkpoint
from bridge.cli.client import Target
from bridge.cli.drift import drift
from bridge.cli.explain import explain
from bridge.cli.failures import Commands
from bridge.cli.policies import policy
from bridge.cli.uninstall import uninstall
from bridge.settings import ClientSettings

_EPILOG = "Exit codes: 0 done, 1 refused, 2 wrong usage, 3 the broker is unreachable or something is UNKNOWN."

app = typer.Typer(
    cls=Commands,
    name="bridgectl",
    help="Lends GPU nodes between a Slurm partition and a Kubernetes pool.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(help="The broker; BRIDGE_URL when not given")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with your token; BRIDGE_CLIENT_TOKEN_FILE when not given")
    ] = None,
) -> None:
    """Options of all commands that talk to a broker. A token is never an argument: others on the machine see those."""
    settings = ClientSettings()
    transport = context.obj if isinstance(context.obj, httpx.BaseTransport) else None
    context.obj = Target(url or settings.url, token_file or settings.client_token_file, transport)


_LOOK: tuple[Callable[..., None], ...] = (
    reading.status,
    reading.nodes,
    reading.handoffs,
    reading.plan,
    explain,
    drift,
    reading.events,
    uninstall,
)
_ORDER: tuple[Callable[..., None], ...] = (
    orders.lend,
    orders.reclaim,
    orders.pause,
    orders.recall,
    orders.resume,
)
_RUN: tuple[Callable[..., None], ...] = (
    processes.serve,
    processes.node_controller,
    processes.inspector,
    processes.slurm_agent,
    processes.migrate,
    processes.demo,
)
_IN_A_JOB: tuple[Callable[..., None], ...] = (checkpoint,)
for _panel, _commands in {"Look": _LOOK, "Order": _ORDER, "In a job": _IN_A_JOB, "Run": _RUN}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(policy, name="policy", rich_help_panel="Order")
