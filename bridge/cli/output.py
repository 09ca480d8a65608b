"""Tables for people, JSON for programs. Colours only on a terminal; on a narrow one the least important columns go."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.cli.text import clean

_STYLES = {
    "slurm": "cyan",
    "kubernetes": "blue",
    "bridge": "yellow",
    "UNKNOWN": "bold red",
    "fresh": "green",
    "done": "green",
    "returned": "yellow",
    "failed": "red",
    "quarantined": "red",
    "paused": "yellow",
}
_PIPE_COLUMNS = 1_000_000


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="A table for people or JSON for programs")]


@dataclass(frozen=True, slots=True)
class Column:
    """`needed` columns stay; the others are dropped from the right when the terminal is too narrow for them."""

    title: str
    needed: bool = True


def print_json(document: Any) -> None:
    """`document` as the API gave it."""
    print(json.dumps(document, indent=2, ensure_ascii=True))


def print_json_line(document: Any) -> None:
    """The same on one line, shown at once: for a stream of documents."""
    print(json.dumps(document, ensure_ascii=True), flush=True)


def print_line(text: str = "") -> None:
    print(clean(text), flush=True)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """A row a line, or the sentence `empty` when there is none."""
    if not rows:
        print_line(empty)
        return
    shown = [index for index, column in enumerate(columns) if column.needed or any(row[index] for row in rows)]
    console = _console()
    while True:
        table = _table([columns[index] for index in shown], [[row[index] for index in shown] for row in rows])
        optional = [index for index in shown if not columns[index].needed]
        # Measured as if there were room, as a measure is never wider than the console it is asked for.
        width = console.measure(table, options=console.options.update_width(_PIPE_COLUMNS)).maximum
        if width <= console.width or not optional:
            break
        shown.remove(optional[-1])
    _show(console, table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, one a line; empty values are left out."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value:
            table.add_row(name, _styled(value))
    _show(_console(), table)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, overflow="fold")
    for row in rows:
        table.add_row(*(_styled(cell) for cell in row))
    return table


def _styled(value: str) -> Text:
    text = clean(value)
    return Text(text, style=_STYLES.get(text.split(" ", 1)[0].rstrip(","), ""))


def _console() -> Console:
    """The terminal as it is; a pipe gets full lines, however long."""
    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False)
    return Console(file=io.StringIO(), width=_PIPE_COLUMNS, highlight=False, color_system=None)


def _show(console: Console, table: Table) -> None:
    console.print(table)
    if isinstance(console.file, io.StringIO):
        # Rich fills the last column with blanks, which a pipe does not want.
        print(*(line.rstrip() for line in console.file.getvalue().splitlines()), sep="\n")
