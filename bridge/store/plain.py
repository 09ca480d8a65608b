"""Makes values fit for storage, the same way for both ledgers.

Words from outside (a drain reason, a pod's message) may hold what Postgres cannot store. They must not be able to stop
a commit, so NUL and lone surrogates become U+FFFD. A time without a zone is our own mistake and is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar, cast

import orjson

from bridge.model.errors import Invalid

T = TypeVar("T")

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def plain(value: T) -> T:
    """`value` (a text, time, tuple, mapping, or a dataclass of these) as the ledger will give it back.

    Mappings become what JSON makes of them (tuples become lists). Raises `Invalid` for a time without a zone and for a
    mapping that JSON cannot express.
    """
    return cast(T, _plain(value))


def _plain(value: Any) -> Any:
    match value:
        case str():
            # An enum member is a str too; it holds no such characters and comes back as the member it is.
            return _UNSTORABLE.sub("\ufffd", value) if _UNSTORABLE.search(value) else value
        case datetime():
            if value.tzinfo is None:
                raise Invalid(f"time {value.isoformat()} has no zone: give UTC")
            return value
        case tuple():
            return tuple(_plain(item) for item in value)
        case Mapping():
            return _as_json(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _plain_fields(value)
        case _:
            return value


def _plain_fields(value: Any) -> Any:
    before = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    after = {name: _plain(item) for name, item in before.items()}
    changed = {name: item for name, item in after.items() if item is not before[name]}
    return dataclasses.replace(value, **changed) if changed else value


def _as_json(value: Any) -> Any:
    try:
        return orjson.loads(orjson.dumps(_without_unstorable(value)))
    except orjson.JSONEncodeError as error:
        raise Invalid(f"data cannot be written as JSON: {error}") from None


def _without_unstorable(value: Any) -> Any:
    match value:
        case str():
            return plain(value)
        case Mapping():
            return {plain(key): _without_unstorable(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_unstorable(item) for item in value]
        case _:
            return value
