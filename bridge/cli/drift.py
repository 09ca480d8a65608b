"""``bridgectl drift``: where the world and the ledger disagree, and the command where a person is needed."""

from __future__ import annotations

from typing import Any

import typer

from bridge.cli.client import connect
from bridge.cli.failures import REFUSED, UNKNOWN
from bridge.cli.output import Column, Format, Output, print_json, print_line, print_table
from bridge.cli.text import age, clean

_COLUMNS = (
    Column("NODE"),
    Column("SIDE"),
    Column("KIND"),
    Column("STANDS"),
    Column("THE BRIDGE"),
    Column("LEDGER", needed=False),
    Column("SINCE", needed=False),
)


def drift(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Where world and ledger disagree. Exit code 1 when they do anywhere, 3 while a side is UNKNOWN."""
    found = connect(context).get("/v1/drift")
    if output is Format.JSON:
        print_json(found)
    else:
        _show(found)
    if found["unknown"]:
        raise typer.Exit(UNKNOWN)
    if found["items"]:
        raise typer.Exit(REFUSED)


def _show(found: dict[str, Any]) -> None:
    for why in found["unknown"]:
        print_line(f"UNKNOWN {why}")
    rows = [_row(finding, found["now"]) for finding in found["items"]]
    print_table(_COLUMNS, rows, empty="world and ledger agree" if not found["unknown"] else "")
    commands = [finding for finding in found["items"] if finding["command"]]
    if commands:
        print_line()
        print_line("for a person")
    for finding in commands:
        print_line(f"  {finding['name']}: {clean(finding['command'])}")


def _row(finding: dict[str, Any], now: str) -> list[str]:
    return [
        finding["name"],
        finding["side"],
        finding["kind"],
        finding["stands"],
        finding["does"],
        finding["known"],
        age(finding["since"], now),
    ]
