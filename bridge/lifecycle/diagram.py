"""Draws the state table: ``python -m bridge.lifecycle.diagram > docs/lifecycle.md``. A test compares the two."""

from __future__ import annotations

import sys

from bridge.lifecycle.table import OWNER_IN, TABLE
from bridge.model.handoff import Step

_OWNER_WORDS = {"_nobody": "bridge", "_source": "source", "_destination": "destination", None: "as before"}


def _owner_word(step: Step) -> str:
    rule = OWNER_IN[step]
    return _OWNER_WORDS[rule.__name__ if rule is not None else None]


def page() -> str:
    """The whole of ``docs/lifecycle.md``: diagram, owners, and the reason on each edge."""
    lines = [
        "# The life of a handoff",
        "",
        "Made of the table in `bridge/lifecycle/table.py` by `make docs`; do not edit.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {Step.CLOSE}",
        f"    [*] --> {Step.ADMIT}",
        f"    [*] --> {Step.ADOPT}",
    ]
    lines += [f"    {edge.step} --> {edge.to}: {edge.fact}" for edge in TABLE]
    lines += [f"    {step} --> [*]" for step in Step if step.ended]
    lines += ["```", "", "| step | owner meanwhile |", "| --- | --- |"]
    lines += [f"| {step} | {_owner_word(step)} |" for step in Step]
    lines += ["", "| from | on | to | because |", "| --- | --- | --- | --- |"]
    lines += [f"| {edge.step} | {edge.fact} | {edge.to} | {edge.why} |" for edge in TABLE]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
