"""Commands on the policy. Files are YAML; mistakes are shown with their line, changes with what they would move."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
import yaml

from bridge.cli.client import Answer, Broker, RefusedInput, connect
from bridge.cli.client import document as answered
from bridge.cli.documents import Document, load
from bridge.cli.failures import REFUSED, USAGE, CliError
from bridge.cli.output import Column, Format, Output, print_json, print_line, print_table
from bridge.cli.text import age, dotted, joined, moment

policy = typer.Typer(help="The policy: floors, limits and the nodes of each pool.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A YAML file, or - for standard input", allow_dash=True)]
Note = Annotated[str, typer.Option(help="Why, for the history")]
_MOST_WHYS = 20

yaml.add_representer(Answer, yaml.SafeDumper.represent_dict, Dumper=yaml.SafeDumper)


@policy.command()
def show(
    context: typer.Context,
    version: Annotated[int | None, typer.Option(min=0, help="An older one; the one in force by default")] = None,
    full: Annotated[bool, typer.Option("--full", help="With all defaults")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Print the policy in force as a YAML file that can be changed and applied."""
    query = {"version": version, "defaults": str(full).lower()}
    response = connect(context).call("GET", "/v1/policy", query=query)
    document = response.json()
    if output is Format.JSON:
        print_json(document)
        return
    what_else = "" if full else "; what is not here has its default, see --full"
    print_line(f"# version {_version_of(response)}{what_else}")
    print(yaml.safe_dump(document, sort_keys=False, default_flow_style=False), end="")


@policy.command()
def schema(context: typer.Context) -> None:
    """Print the JSON Schema of policy files, for editors and other checks."""
    print_json(connect(context).get("/v1/policy/schema"))


@policy.command()
def diff(
    context: typer.Context,
    old: Annotated[int | None, typer.Argument(min=0, help="A version; the one before NEW by default")] = None,
    new: Annotated[int | None, typer.Argument(min=0, help="Another; the one in force by default")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Say what differs between two versions of the policy. What a file would change is said by `check`."""
    broker = connect(context)
    if old is None:
        old = max(_version_of(broker.call("GET", "/v1/policy")) - 1, 0)
    found = broker.get("/v1/policy/diff", old=old, new=new)
    if output is Format.JSON:
        print_json(found)
        return
    _print_differences(found["differences"], f"version {found['old_version']} to {found['new_version']}")


@policy.command()
def check(context: typer.Context, file: File, output: Output = Format.TABLE) -> None:
    """Say what a policy file would change and move, or what is wrong with it. Nothing happens."""
    document = _read(file)
    change = _put(connect(context), document, {"dry_run": "true"}, {})
    _print_change(change, f"{document.name} is valid", output)


@policy.command()
def apply(
    context: typer.Context,
    file: File,
    note: Note = "",
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
def rollback(
    context: typer.Context,
    version: Annotated[int, typer.Argument(min=0, help="The version whose document comes back")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    note: Note = "",
    output: Output = Format.TABLE,
) -> None:
    """Put an older version in force again, as a new one: say what it would do, ask, then do it."""
    if output is Format.JSON and not yes:
        raise CliError(USAGE, "a question does not go into JSON", remedy="add --yes, after `bridgectl policy diff`")
    broker = connect(context)
    etag = {"If-Match": broker.call("GET", "/v1/policy").headers["ETag"]}
    document = Document(f"version {version}", broker.get("/v1/policy", version=version))
    if not yes:
        change = _put(broker, document, {"dry_run": "true"}, etag)
        _print_change(change, f"going back to version {version} is possible", output)
        if not typer.confirm("Put it in force?"):
            raise CliError(REFUSED, "not confirmed: nothing has changed")
    change = _put(broker, document, {"note": note or f"back to version {version}"}, etag)
    _print_change(change, f"version {change['version']} is in force, with the words of {version}", output)


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
        response = broker.call("PUT", "/v1/policy", query=query, body=document.data, headers=headers)
    except RefusedInput as refused:
        raise _with_lines(refused, document) from refused
    change: dict[str, Any] = answered(response)
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
    _print_differences(change["differences"], "changes")
    for each in change["floors"]:
        print_line(f"floors of {each['pool']} now: {_floors(each['now'])}{_next_floors(each)}")
    if change.get("mode", "active") == "dry_run":
        print_line("would move now, if the broker did not run in dry_run:")
    else:
        print_line("would move now:" if change["dry_run"] else "moves now:")
    for move in change["moves"]:
        print_line(f"  {', '.join(move['nodes'])}: {move['source']} to {move['destination']}: {move['reason']}")
    if not change["moves"]:
        print_line("  nothing")
    for why in change["whys"][:_MOST_WHYS]:
        print_line(f"  not {why['subject']}: {why['reason']}")
    if len(change["whys"]) > _MOST_WHYS:
        print_line(f"  and {len(change['whys']) - _MOST_WHYS} more that do not: -o json")


def _print_differences(differences: list[dict[str, Any]], title: str) -> None:
    print_line(f"{title}:" if differences else f"{title}: none")
    for each in differences:
        print_line(f"  {each['path']}: {_value(each['old'])} -> {_value(each['new'])}")


def _floors(floors: dict[str, int]) -> str:
    return ", ".join(f"{side} {nodes}" for side, nodes in floors.items())


def _next_floors(floors: dict[str, Any]) -> str:
    if floors["next"] is None:
        return ", for a week at least"
    return f"; from {moment(floors['next_at']):%a %Y-%m-%d %H:%M} UTC: {_floors(floors['next'])}"


def _value(value: Any) -> str:
    """On one line, as YAML would have it."""
    if value is None:
        return "none"
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf).removesuffix("...\n").strip()


def _version_of(response: httpx.Response) -> int:
    return int(response.headers["ETag"].strip('"'))
