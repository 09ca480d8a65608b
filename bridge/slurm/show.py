"""What ``scontrol show`` prints, as records. Pure.

Asked only for what a driver cannot learn otherwise: nobody promises that this text stays as it is, so a field may be
missing, and of a node only fields without spaces are believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.slurm.reading import Record

_FIELD = re.compile(r"(?P<name>[\w/:.-]+)=(?P<value>\S*)")
_TO_THE_END_OF_THE_LINE = frozenset(
    {"OS", "Reason", "Comment", "Extra", "AdminComment", "SystemComment", "JobName", "Command", "WorkDir", "SubmitLine"}
)
"""Fields that may hold spaces, and then whatever else."""

_NODE_FIELDS = {
    "NodeName": "name",
    "State": "state",
    "Gres": "gres",
    "GresUsed": "gres_used",
    "AllocTRES": "tres_used",
    "ActiveFeatures": "active_features",
    "Partitions": "partitions",
    "Topology": "topology",
}


def records(text: str, first: str) -> list[dict[str, str]]:
    """One for each `first` field (``NodeName``, ``JobId``) at the start of a line, with all that follows until the
    next. ``(null)`` and ``N/A`` are left as they are."""
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.lstrip().startswith(f"{first}="):
            found.append({})
        if found and not line.startswith("#"):
            found[-1].update(field for field in _fields(line) if field[0] not in found[-1])
    return found


def _fields(line: str) -> Iterator[tuple[str, str]]:
    at = 0
    while match := _FIELD.search(line, at):
        name = match["name"]
        if name in _TO_THE_END_OF_THE_LINE:
            yield name, line[match.start("value") :].strip()
            return
        yield name, match["value"]
        at = match.end()


def nodes(text: str) -> Record:
    """``scontrol show nodes`` as a ``/nodes/`` answer, as far as it tells the same. Reasons are not in it: their end,
    user and time cannot be told apart from what a person wrote."""
    return {
        "nodes": [
            {ours: record[theirs] for theirs, ours in _NODE_FIELDS.items() if theirs in record}
            for record in records(text, "NodeName")
        ]
    }
