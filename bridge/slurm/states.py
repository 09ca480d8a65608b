"""What ``/jobs/state/`` shows, from one reading to the next, at the price of what changed.

Of a hundred thousand rows a handful differ from those of a second ago. So rows are compared as the bytes they came in,
and only new ones are read.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from bridge.slurm import reading

_NOTHING: frozenset[str] = frozenset()


class _Rows(msgspec.Struct, gc=False):
    jobs: list[msgspec.Raw]
    errors: list[Any] = []


_DECODER = msgspec.json.Decoder(_Rows)


class LiveStates:
    """The states of all live jobs by id, see `reading.states`. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, frozenset[str]]] = {}
        self._live: dict[int, frozenset[str]] = {}
        self._over = 0

    @property
    def live(self) -> dict[int, frozenset[str]]:
        """The words of each job by its id. Equal words mean that nothing changed. Not to be written."""
        return self._live

    @property
    def records(self) -> int:
        """How many job records Slurm has, those of jobs that are over included."""
        return len(self._live) + self._over

    def update(self, body: bytes, source: str = "Slurm job states") -> set[int]:
        """Take in an answer; the ids that are new, gone, or in another state than before.

        `Unreadable` when any row makes no sense, and then nothing is taken in.
        """
        rows = set(_rows(body, source))
        known = self._rows
        new = list(rows.difference(known))
        fresh = dict(zip(new, _read(new, source), strict=True))
        if not fresh and len(rows) == len(known):
            return set()
        gone = known.keys() - rows
        touched = {id for id, _ in fresh.values()} | {known[row][0] for row in gone}
        for row in gone:
            del known[row]
        known.update(fresh)
        return self._tell(touched)

    def _tell(self, touched: set[int]) -> set[int]:
        """Put together anew the words of these ids, each of which may have many rows."""
        words: dict[int, frozenset[str]] = {}
        self._over = 0
        for id, said in self._rows.values():
            if not said:
                self._over += 1
            elif id in touched:
                words[id] = words.get(id, _NOTHING) | said
        changed = {id for id in touched if words.get(id, _NOTHING) != self._live.get(id, _NOTHING)}
        for id in changed:
            if id in words:
                self._live[id] = words[id]
            else:
                del self._live[id]
        return changed


def _rows(body: bytes, source: str) -> list[bytes]:
    """Each row of the answer as it is written, or written anew where the answer is not of the usual shape."""
    try:
        with reading.collecting_later():
            decoded = _DECODER.decode(body)
            if not decoded.errors:
                return list(map(bytes, decoded.jobs))
    except (msgspec.MsgspecError, ValueError):
        pass  # the slow way finds the words for it, or reads it after all
    return [orjson.dumps(record) for record in reading.records(reading.answer(body, source), "jobs", source)]


def _read(rows: list[bytes], source: str) -> list[tuple[int, frozenset[str]]]:
    return reading.states(reading.answer(b'{"jobs":[' + b",".join(rows) + b"]}", source), source)
