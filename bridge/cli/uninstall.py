"""``bridgectl uninstall --check``: what remains of the bridge on both sides. Asks these sides, not a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from bridge.cli.failures import REFUSED, UNKNOWN, USAGE, CliError
from bridge.cli.output import Column, Format, Output, print_json, print_line, print_table
from bridge.model.ownership import Side
from bridge.planning.leftovers import ELSEWHERE, Leftover, commands, leftovers

_COLUMNS = (Column("SIDE"), Column("WHAT"), Column("NAME"), Column("STANDS"))


def uninstall(
    check: Annotated[bool, typer.Option("--check", help="List what remains, and what removes it")] = False,
    output: Output = Format.TABLE,
) -> None:
    """What remains of the bridge, wherever it is. Exit code 1 when anything does, 3 while anything is UNKNOWN."""
    if not check:
        remedy = "`bridgectl uninstall --check` lists what remains, with the commands that remove it"
        why = "nothing is removed by this program, as a mark may be all that keeps a node closed"
        raise CliError(USAGE, why, remedy=remedy)
    from bridge.wiring import read_marks

    slurm, kubernetes = read_marks()
    found = leftovers(slurm, kubernetes)
    unknown = [(Side.SLURM, why) for why in slurm.unread] + [(Side.KUBERNETES, why) for why in kubernetes.unread]
    if output is Format.JSON:
        items = [asdict(each) for each in found]
        says = [f"{side}: {why}" for side, why in unknown]
        print_json({"unknown": says, "items": items, "elsewhere": list(ELSEWHERE)})
    else:
        _show(found, [f"UNKNOWN {side}: {why}" for side, why in unknown])
    if unknown:
        raise typer.Exit(UNKNOWN)
    if found:
        raise typer.Exit(REFUSED)


def _show(found: Sequence[Leftover], unknown: Sequence[str]) -> None:
    for why in unknown:
        print_line(why)
    rows = [[each.side, each.kind, each.name, each.stands] for each in found]
    print_table(_COLUMNS, rows, empty="" if unknown else "nothing of the bridge remains in Slurm or Kubernetes")
    if found:
        print_line()
        print_line("to remove it, in this order")
    said = ""
    for command, first in commands(found).items():
        if first and first != said:
            print_line(f"  # {first}")
        said = first
        print_line(f"  {command}")
    print_line()
    print_line("not to be seen from here")
    for place in ELSEWHERE:
        print_line(f"  {place}")
