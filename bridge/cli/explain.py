"""``bridgectl explain``: the verdict, the chain with its first obstacle marked, what would help, and when."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from bridge.cli.client import connect
from bridge.cli.output import Format, Output, print_json, print_line
from bridge.cli.text import clean, duration
from bridge.planning.explain import Kind

_WIDTH = 100
_FINE, _FIRST, _ALSO = "ok", "=>", " x"
_INDENT = 21


def explain(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(help="What the name is")],
    name: Annotated[str, typer.Argument(help="A job's id, namespace/name of a pod, or a node, a team, a pool")],
    output: Output = Format.TABLE,
) -> None:
    """Why a job or a pod waits, a node stays, or how a team or a pool stands. `=>` marks the first obstacle."""
    found = connect(context).get(f"/v1/explain/{kind}/{quote(name)}")
    if output is Format.JSON:
        print_json(found)
        return
    for line in _lines(found):
        print_line(line)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield from textwrap.wrap(clean(found["verdict"]), _WIDTH)
    yield ""
    yield "why"
    yield from _chain(found["chain"])
    if found["remedies"]:
        yield ""
        yield "what would help, what displaces least first"
        for number, remedy in enumerate(found["remedies"], 1):
            yield from _remedy(number, remedy)
    yield ""
    yield "when"
    estimate = found["estimate"]
    when = "not known" if estimate["in_s"] is None else f"in about {duration(estimate['in_s'])}"
    basis = clean(estimate["basis"]).removeprefix("not known: ")
    yield from textwrap.wrap(f"{when}: {basis}", _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _chain(chain: list[dict[str, Any]]) -> Iterator[str]:
    """A link an entry. The command is shown for obstacles; those of the other links are in the JSON."""
    met = False
    for link in chain:
        mark = _FINE if not link["holds"] else _ALSO if met else _FIRST
        met = met or link["holds"]
        head = f"  {mark}  {clean(link['layer']):<15}"
        yield from textwrap.wrap(
            clean(link["text"]), _WIDTH, initial_indent=head, subsequent_indent=" " * _INDENT, break_on_hyphens=False
        )
        if link["holds"] and link["command"]:
            yield f"{' ' * _INDENT}$ {clean(link['command'])}"


def _remedy(number: int, remedy: dict[str, Any]) -> Iterator[str]:
    hours = remedy["displaces_gpu_s"] / 3600
    cost = f"displaces {remedy['displaces']}" + (f", {hours:.2f} GPU-hours lost" if hours else "")
    head, indent = f"  {number}. ", " " * 5
    text = clean(f"{remedy['text']} ({cost})")
    yield from textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
    if remedy["command"]:
        yield f"{indent}$ {clean(remedy['command'])}"
