"""Commands that order something: lend, reclaim, pause, resume."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.client import connect
from bridge.cli.failures import UNKNOWN, CliError
from bridge.cli.output import Format, Output, print_json, print_line
from bridge.cli.text import paused_text

Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names or Slurm host lists such as gpu-[1-4]")]
Reason = Annotated[str, typer.Option(help="For the event log and for people")]
Pool = Annotated[str | None, typer.Option(help="Only this pool")]
Node = Annotated[str | None, typer.Option(help="Only this node")]
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
    pool: Pool = None,
    node: Node = None,
    output: Output = Format.TABLE,
) -> None:
    """Start no new handoff; running ones finish. Of everything, or of one pool or node."""
    answer = connect(context).call("POST", "/v1/pause", body={"reason": reason, **_scope(pool, node)}).json()
    if output is Format.JSON:
        print_json(answer)
    else:
        where = "".join(f" --{option} {name}" for option, name in _scope(pool, node).items())
        print_line(f"paused: {answer['paused']}. Running handoffs finish; `bridgectl resume{where}` ends the pause.")


def resume(context: typer.Context, pool: Pool = None, node: Node = None, output: Output = Format.TABLE) -> None:
    """Let handoffs start again. Ends the pause of just what is named: pauses of pools and nodes each have their own."""
    answer = connect(context).call("POST", "/v1/resume", body=_scope(pool, node)).json()
    if output is Format.JSON:
        print_json(answer)
        return
    print_line("handoffs may start again")
    for pause in answer["pauses"]:
        print_line(f"still paused: {paused_text(pause)}")


def _scope(pool: str | None, node: str | None) -> dict[str, str]:
    return {option: name for option, name in (("pool", pool), ("node", node)) if name is not None}
