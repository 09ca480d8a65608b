"""Commands on the policy: show, check, apply, history. Files are YAML; mistakes are shown with their line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from bridge.cli.client import Broker, RefusedInput, connect
from bridge.cli.documents import Document, load
from bridge.cli.failures import REFUSED, USAGE, CliError
from bridge.cli.output import Column, Format, Output, print_json, print_line, print_table
from bridge.cli.text import age, dotted, joined

policy = typer.Typer(help="The policy: floors, limits and the nodes of each pool.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A YAML file, or - for standard input", allow_dash=True)]


@policy.command()
def show(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Print the policy in force as a YAML file that can be changed and applied."""
    response = connect(context).call("GET", "/v1/policy")
    document = response.json()
    if output is Format.JSON:
        print_json(document)
        return
    print_line(f"# version {response.headers['ETag'].strip(chr(34))}")
    print(yaml.safe_dump(document, sort_keys=False, default_flow_style=False), end="")


@policy.command()
def check(context: typer.Context, file: File, output: Output = Format.TABLE) -> None:
    """Say what a policy file would do, or what is wrong with it. Nothing changes."""
    document = _read(file)
    change = _put(connect(context), document, {"dry_run": "true"}, {})
    _print_change(change, f"{document.name} is valid", output)


@policy.command()
def apply(
    context: typer.Context,
    file: File,
    note: Annotated[str, typer.Option(help="Why, for the history")] = "",
    replaces: Annotated[
        int | None, typer.Option(min=0, help="The version that the file was made from; the one in force by default")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Put a policy file in force."""
    document, broker = _read(file), connect(context)
    etag = f'"{replaces}"' if replaces is not None else broker.call("GET", "/v1/policy").headers["ETag"]
    change = _put(broker, document, {"note": note}, {"If-Match": etag})
    _print_change(change, f"version {change['version']} is in force", output)


@policy.command()
def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 20,
    output: Output = Format.TABLE,
) -> None:
    """Who changed the policy, when and why."""
    listing = connect(context).get("/v1/policy/history", limit=limit)
    if output is Format.JSON:
        print_json(listing)
        return
    rows = [
        [
            str(each["version"]),
            age(each["at"], listing["now"]),
            each["author"],
            each["note"],
            joined(pool["name"] for pool in each["policy"]["pools"]),
        ]
        for each in listing["items"]
    ]
    columns = (Column("VERSION"), Column("AGO"), Column("BY"), Column("NOTE"), Column("POOLS", needed=False))
    print_table(columns, rows, empty="no policy yet: `bridgectl policy apply FILE`")


def _read(file: Path) -> Document:
    if str(file) == "-":
        return load(sys.stdin.read(), "standard input")
    try:
        return load(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file in UTF-8"
        raise CliError(USAGE, f"the policy file cannot be read: {reason}", where=str(file)) from error


def _put(broker: Broker, document: Document, query: dict[str, str], headers: dict[str, str]) -> dict[str, Any]:
    try:
        change: dict[str, Any] = broker.call(
            "PUT", "/v1/policy", query=query, body=document.data, headers=headers
        ).json()
    except RefusedInput as refused:
        raise _with_lines(refused, document) from refused
    return change


def _with_lines(refused: RefusedInput, document: Document) -> CliError:
    details = []
    for error in refused.errors:
        kind, *path = error["location"]
        place = f"{document.name}:{document.line_of(path)}" if kind == "body" else kind
        details.append(f"{place}: {dotted(path)}: {error['message']}")
        details.append(f"  remedy: {error['remedy']}")
    return CliError(REFUSED, f"{document.name} is not a policy that can be", details=details)


def _print_change(change: dict[str, Any], said: str, output: Format) -> None:
    if output is Format.JSON:
        print_json(change)
        return
    print_line(f"{said}: {change['nodes']} nodes")
    print_line(f"joining: {joined(change['joining'])}")
    print_line(f"leaving: {joined(change['leaving'])}")
