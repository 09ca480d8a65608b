"""Commands that order something: lend, reclaim, pause, resume."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.client import connect
from bridge.cli.failures import UNKNOWN, CliError
from bridge.cli.output import Format, Output, print_json, print_line

Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names or Slurm host lists such as gpu-[1-4]")]
Reason = Annotated[str, typer.Option(help="For the event log and for people")]
Wait = Annotated[float, typer.Option(min=0, max=10, help="Seconds to wait for the leader's answer")]


def lend(
    context: typer.Context,
    nodes: Nodes,
    reason: Reason = "ordered with bridgectl",
    wait_s: Wait = 3,
    output: Output = Format.TABLE,
) -> None:
    """Move nodes to Kubernetes: all of them or none."""
    _order(context, nodes, "kubernetes", reason, wait_s, output)


def reclaim(
    context: typer.Context,
    nodes: Nodes,
    reason: Reason = "ordered with bridgectl",
    wait_s: Wait = 3,
    output: Output = Format.TABLE,
) -> None:
    """Move nodes to Slurm: all of them or none. Pods are evicted politely, never killed."""
    _order(context, nodes, "slurm", reason, wait_s, output)


def _order(
    context: typer.Context, nodes: list[str], destination: str, reason: str, wait_s: float, output: Format
) -> None:
    body = {"nodes": nodes, "destination": destination, "reason": reason}
    request = connect(context).call("POST", "/v1/handoffs", query={"wait_s": wait_s}, body=body).json()
    if output is Format.JSON:
        print_json(request)
    elif request["state"] == "accepted":
        print_line(f"accepted: {request['answer']}")
        print_line("follow with: bridgectl handoffs --watch")
    if request["state"] == "pending":
        raise CliError(
            UNKNOWN,
            f"order {request['id']} is written, but no leader answered within {wait_s:g} s",
            remedy="it is answered as soon as one leads: look at `bridgectl status` and `bridgectl events`",
        )


def pause(
    context: typer.Context,
    reason: Annotated[str, typer.Argument(help="Why, for everybody who asks")],
    output: Output = Format.TABLE,
) -> None:
    """Start no new handoff; running ones finish."""
    answer = connect(context).call("POST", "/v1/pause", body={"reason": reason}).json()
    if output is Format.JSON:
        print_json(answer)
    else:
        print_line(f"paused: {answer['paused']}. Running handoffs finish; `bridgectl resume` ends the pause.")


def resume(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Let handoffs start again."""
    answer = connect(context).call("POST", "/v1/resume").json()
    if output is Format.JSON:
        print_json(answer)
    else:
        print_line("handoffs may start again")
