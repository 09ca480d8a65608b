"""What a job's ``--constraint`` asks of each node, as alternatives: a node helps if it has all features of one of them.

Slurm's manual (sbatch, ``--constraint``): ``&`` and, ``|`` or, ``[a|b]`` all nodes alike, ``a*2`` so many of a kind,
parentheses; operators are taken from left to right. An expression that is not understood is no wish: the demand must
not disappear for it, and Slurm itself still decides where the job runs.
"""

from __future__ import annotations

import re
from functools import lru_cache

Alternatives = tuple[frozenset[str], ...]

_WORD = re.compile(r"\s*([A-Za-z0-9_.:=+/-]+(?:\*\d{1,6})?|[&|,()\[\]])")
_MOST_ALTERNATIVES = 32
_MOST_WORDS = 200
_NO_WISH: Alternatives = ()


class _NotUnderstood(ValueError):
    """The expression is not one that Slurm's manual describes, or has too many alternatives."""


@lru_cache(maxsize=4096)
def alternatives(expression: str, node_count: int) -> Alternatives:
    """The alternatives of `expression` for a job of `node_count` nodes; empty where any node will do.

    With counts (``a*2&b*2``) each node need only be one of the kinds, and where the counts are fewer than the nodes the
    others may be anything. ``[a|b]`` is read as ``a|b``: which of them all nodes shall be is left to Slurm.
    """
    if not expression.strip():
        return _NO_WISH
    try:
        words = _words(expression)
        if any("*" in word for word in words):
            return _counted(words, node_count)
        found = _parse(words)
    except _NotUnderstood:
        return _NO_WISH
    return _distinct(found)


def _words(expression: str) -> list[str]:
    words: list[str] = []
    at = 0
    text = expression.rstrip()
    while at < len(text):
        found = _WORD.match(text, at)
        if found is None or len(words) == _MOST_WORDS:
            raise _NotUnderstood(text[at:])
        words.append(found[1])
        at = found.end()
    return words


def _counted(words: list[str], node_count: int) -> Alternatives:
    """``a*2&b*2`` is two nodes of one kind and two of another: a kind for each node, if the counts cover all nodes."""
    kinds: list[frozenset[str]] = []
    covered = 0
    for word in words:
        if word in "&|,()[]":
            continue
        feature, _, count = word.partition("*")
        kinds.append(frozenset({feature}))
        covered += int(count or 1)
    return _distinct(kinds) if covered >= node_count else _NO_WISH


def _parse(words: list[str]) -> list[frozenset[str]]:
    rest = list(reversed(words))
    found = _sequence(rest)
    if rest:
        raise _NotUnderstood(rest[-1])
    return found


def _sequence(rest: list[str]) -> list[frozenset[str]]:
    """Terms with operators between them, from left to right, up to a closing bracket or the end."""
    found = _term(rest)
    while rest and rest[-1] in ("&", ",", "|"):
        operator = rest.pop()
        term = _term(rest)
        found = [*found, *term] if operator == "|" else [left | right for left in found for right in term]
        if len(found) > _MOST_ALTERNATIVES:
            raise _NotUnderstood("too many alternatives")
    return found


def _term(rest: list[str]) -> list[frozenset[str]]:
    if not rest:
        raise _NotUnderstood("the end")
    word = rest.pop()
    if word in "([":
        found = _sequence(rest)
        if not rest or rest.pop() != {"(": ")", "[": "]"}[word]:
            raise _NotUnderstood(word)
        return found
    if word in "&|,)]":
        raise _NotUnderstood(word)
    return [frozenset({word})]


def _distinct(found: list[frozenset[str]]) -> Alternatives:
    """Without repeated ones, and without those that ask more than another one does (``a|a&b`` is ``a``)."""
    kept = {one for one in found if not any(other < one for other in found)}
    return tuple(sorted(kept, key=sorted))
