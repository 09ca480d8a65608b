"""YAML as the policy document, with the line of every value, so that a mistake can be shown where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from bridge.cli.failures import USAGE, CliError

Path = tuple[str | int, ...]
_MAX_DEPTH = 20


@dataclass(slots=True)
class Document:
    """`data` as JSON would hold it; `lines` are the line numbers (from 1) by path."""

    name: str
    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Sequence[str | int]) -> int:
        """The line of the value at `path`, or of the nearest thing around it that is in the document."""
        known = (self.lines.get(tuple(path[:length])) for length in range(len(path), -1, -1))
        return next((line for line in known if line is not None), 1)


def load(text: str, name: str) -> Document:
    """The document in `text`; `name` is the file's, for messages. Raises `CliError` with line and remedy.

    What YAML has and JSON has not is refused: dates, binary values, keys that are not text, keys given twice. Digits
    with colons are text.
    """
    document = Document(name)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _mistake(name, line, f"not YAML: {error.problem}", "check indentation, colons and quotes") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise _mistake(name, 1, f"not YAML: {type(error).__name__}", "check that it is a text file in UTF-8") from error
    document.data = {} if root is None else _value(root, (), document)
    return document


def _value(node: yaml.Node, path: Path, document: Document) -> Any:
    line = node.start_mark.line + 1
    document.lines.setdefault(path, line)
    if len(path) > _MAX_DEPTH:
        raise _mistake(document.name, line, "nested too deeply", "a policy has a handful of levels")
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), document) for index, item in enumerate(node.value)]
    return _scalar(node, line, document)


def _mapping(node: yaml.MappingNode, path: Path, document: Document) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, line = key_node.value, key_node.start_mark.line + 1
        if key_node.tag != "tag:yaml.org,2002:str":
            raise _mistake(document.name, line, f"{key!r} is not a name", "put it in quotes")
        if key in found:
            first = document.lines[*path, key]
            raise _mistake(document.name, line, f"{key!r} is given again, after line {first}", "keep one of them")
        document.lines[*path, key] = line
        found[key] = _value(value_node, (*path, key), document)
    return found


def _scalar(node: yaml.Node, line: int, document: Document) -> Any:
    if node.tag == "tag:yaml.org,2002:int" and ":" in node.value:
        return node.value  # YAML 1.1 takes 22:00 for 1320; a person means a time
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise _mistake(document.name, line, f"{node.value!r} cannot be read", "put it in quotes") from error
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise _mistake(document.name, line, f"{node.value!r} is neither text nor a number", "put it in quotes")


def _mistake(name: str, line: int, what: str, remedy: str) -> CliError:
    return CliError(USAGE, what, where=f"{name}:{line}", remedy=remedy)
