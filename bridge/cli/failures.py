"""How a command fails: an exit code for scripts; what, where and what to do about it for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from bridge.cli.text import clean
from bridge.model.errors import BridgeError, Invalid

REFUSED = 1
USAGE = 2
UNKNOWN = 3


class CliError(Exception):
    """Ends the command with `exit_code`. `where` and `remedy` may be empty; `details` are further lines."""

    def __init__(
        self, exit_code: int, what: str, *, where: str = "", remedy: str = "", details: Sequence[str] = ()
    ) -> None:
        super().__init__(what)
        self.exit_code = exit_code
        self.what = what
        self.where = where
        self.remedy = remedy
        self.details = tuple(details)

    def lines(self) -> list[str]:
        """What is written to standard error."""
        lines = [f"error: {clean(self.what)}", *(f"  {clean(detail)}" for detail in self.details)]
        if self.where:
            lines.append(f"  where: {clean(self.where)}")
        if self.remedy:
            lines.append(f"  remedy: {clean(self.remedy)}")
        return lines


class Commands(TyperGroup):
    """The group of all commands: turns what they raise on purpose into lines and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            failure = error
        except ValidationError as error:
            failure = _of_settings(error)
        except Invalid as error:
            failure = CliError(REFUSED, str(error))
        except BridgeError as error:
            failure = CliError(UNKNOWN, str(error))
        print(*failure.lines(), sep="\n", file=sys.stderr)
        raise typer.Exit(failure.exit_code)


def _of_settings(error: ValidationError) -> CliError:
    """Only settings are validated here. Their values are not shown: one may be a secret in the wrong place."""
    details = [f"BRIDGE_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors()]
    return CliError(USAGE, "the environment holds settings that cannot be", details=details)
