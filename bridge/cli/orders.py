"""Commands that order something: lend, reclaim, pause, recall, resume."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.client import connect, document
from bridge.cli.failures import REFUSED, UNKNOWN, USAGE, CliError
from bridge.cli.output import Format, Output, print_json, print_line
from bridge.cli.text import joined, paused_text

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
    request = document(connect(context).call("POST", "/v1/handoffs", query={"wait_s": wait_s}, body=body))
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
    answer = document(connect(context).call("POST", "/v1/pause", body={"reason": reason, **_scope(pool, node)}))
    if output is Format.JSON:
        print_json(answer)
    else:
        where = "".join(f" --{option} {name}" for option, name in _scope(pool, node).items())
        print_line(f"paused: {answer['paused']}. Running handoffs finish; `bridgectl resume{where}` ends the pause.")


def recall(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Of every pool")] = False,
    pool: Pool = None,
    reason: Reason = "ordered with bridgectl",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Call every lent node home and lend none until `resume`. Pods are evicted politely, jobs get their grace."""
    if everything == (pool is not None):
        raise CliError(USAGE, "say --all, or --pool with a name: one of the two")
    if output is Format.JSON and not yes:
        raise CliError(USAGE, "a question does not go into JSON", remedy="add --yes, after `bridgectl nodes`")
    broker, body = connect(context), {"reason": reason, "all": everything, **_scope(pool, None)}
    if not yes:
        found = document(broker.call("POST", "/v1/recall", query={"dry_run": "true"}, body=body))
        print_line(f"lent, or on their way out: {joined(found['lent'])}. Their work is asked to go; nothing is lent.")
        if not typer.confirm("Call them home?"):
            raise CliError(REFUSED, "not confirmed: nothing has changed")
    answer = document(broker.call("POST", "/v1/recall", body=body))
    if output is Format.JSON:
        print_json(answer)
        return
    where = "".join(f" --{option} {name}" for option, name in _scope(pool, None).items())
    ended = f"`bridgectl resume{where}` ends the recall"
    print_line(f"recalled: {joined(answer['lent'])}. Nothing else moves there; {ended}.")
    print_line("follow with: bridgectl handoffs --watch")


def resume(context: typer.Context, pool: Pool = None, node: Node = None, output: Output = Format.TABLE) -> None:
    """Let handoffs start again. Ends the pause and the recall of just what is named: pools and nodes have their own."""
    answer = document(connect(context).call("POST", "/v1/resume", body=_scope(pool, node)))
    if output is Format.JSON:
        print_json(answer)
        return
    print_line("handoffs may start again")
    for pause in answer["pauses"]:
        print_line(f"still paused: {paused_text(pause)}")


def _scope(pool: str | None, node: str | None) -> dict[str, str]:
    return {option: name for option, name in (("pool", pool), ("node", node)) if name is not None}
