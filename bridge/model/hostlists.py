"""Slurm host lists (``gpu-[01-16],login1``) to names and back, safely.

ClusterShell's default resolver runs shell commands from ``groups.conf`` for ``@group`` syntax, so it is never used
here: characters are checked first, then `RESOLVER_NOGROUP` resolves. The number of names is counted before anything is
expanded, as five million of them take a gigabyte. Digits keep their width: a1, a01 and a001 are three nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from bridge.model.errors import Invalid

MAX_NODES = 100_000
"""More names than this are a mistake or an attack, not a cluster."""

MAX_PLAIN_CHARS = 64_000
"""A longer comma list is folded: Linux refuses a single argument of 131,072 bytes."""

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_EXPRESSION = re.compile(r"[A-Za-z0-9._,\[\]-]+", re.ASCII)
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?", re.ASCII)
_FOLD_SLURM_READS = re.compile(r"[A-Za-z0-9_-]+(?:\[[0-9,-]+\])?", re.ASCII)


def expand(expressions: Iterable[str], *, limit: int = MAX_NODES) -> tuple[str, ...]:
    """All names of the host lists, each once, in ClusterShell's order (by prefix, then by number).

    `Invalid` says which expression is wrong, why, and what to write instead; or that there are more than `limit` names.
    """
    parts = [part for expression in expressions for part in _split(expression)]
    count = sum(_count(part) for part in parts)
    if count > limit:
        raise Invalid(f"host list {_short(','.join(parts))} names {count} nodes: at most {limit} are allowed")
    names = NodeSet(resolver=RESOLVER_NOGROUP)
    for part in parts:
        names.update(_resolve(part))
    found = tuple(str(name) for name in names)
    for name in found:
        if NAME.fullmatch(name) is None:
            raise Invalid(f"node name {_short(name)}: use letters, digits, '-', '_' and '.', at most 253 characters")
    return found


def join(names: Iterable[str]) -> str:
    """The names as one text that Slurm reads as exactly these: a plain comma list, folded only when that is too long.

    `Invalid` for a text that is not one node name, so that nothing but names ever reaches Slurm.
    """
    listed = list(dict.fromkeys(names))
    for name in listed:
        if NAME.fullmatch(name) is None:
            raise Invalid(f"{_short(name)} is not a node name: use letters, digits, '-', '_' and '.'")
    plain = ",".join(listed)
    return plain if len(plain) <= MAX_PLAIN_CHARS else _fold(listed)


def _fold(names: list[str]) -> str:
    """A fold that Slurm reads too (one bracket, at the end), checked by expanding it again."""
    folded = str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    parts = list(_split(folded))
    readable = all(_FOLD_SLURM_READS.fullmatch(part) or NAME.fullmatch(part) for part in parts)
    if not readable or set(expand([folded], limit=len(names))) != set(names):
        raise Invalid(
            f"{len(names)} node names cannot be folded into a host list that Slurm reads: move fewer nodes at once"
        )
    return folded


def _split(expression: str) -> Iterable[str]:
    """The expression cut at the commas outside brackets."""
    if _EXPRESSION.fullmatch(expression) is None:
        raise Invalid(f"host list {_short(expression)}: write names and ranges such as gpu-[01-16],login1")
    depth, start = 0, 0
    for at, char in enumerate(expression):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise Invalid(f"host list {_short(expression)}: brackets do not match")
        if char == "," and depth == 0:
            yield _not_empty(expression[start:at], expression)
            start = at + 1
    if depth:
        raise Invalid(f"host list {_short(expression)}: a bracket is not closed")
    yield _not_empty(expression[start:], expression)


def _not_empty(part: str, expression: str) -> str:
    if not part:
        raise Invalid(f"host list {_short(expression)}: there is no name beside a comma, take the comma out")
    return part


def _count(part: str) -> int:
    """How many names `part` stands for, without making them."""
    count = 1
    for bracket in _BRACKET.findall(part):
        count *= sum(_range_size(piece, part) for piece in bracket.split(","))
    return count


def _range_size(piece: str, part: str) -> int:
    found = _RANGE.fullmatch(piece)
    if found is None:
        raise Invalid(f"host list {_short(part)}: {piece!r} is not a number or a range such as 01-16")
    first, last = found[1], found[2] or found[1]
    if int(last) < int(first):
        raise Invalid(f"host list {_short(part)}: range {piece} runs backwards, write {last}-{first}")
    padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
    if padded and len(first) != len(last):
        raise Invalid(f"host list {_short(part)}: both ends of range {piece} need the same number of digits")
    return int(last) - int(first) + 1


def _resolve(part: str) -> NodeSet:
    try:
        return NodeSet(part, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise Invalid(f"host list {_short(part)}: {error}; write names and ranges such as gpu-[01-16]") from error


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
