"""Who is calling: bearer tokens from a file, and the role that each token carries.

``FailClosed``
    A line that cannot be understood grants nothing, and a token file that cannot be read lets nobody in.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from bridge.model.errors import Unreadable

_LOG = structlog.get_logger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")
_MIN_TOKEN_CHARS = 16


class Role(StrEnum):
    """What a token may do. `AGENT` is for the Slurm agent alone and stands outside the order of the other three."""

    AGENT = "agent"
    READER = "reader"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: Role) -> bool:
        """Whether a token of this role may do what `needed` may: reader < operator < admin, agent only itself."""
        if Role.AGENT in (self, needed):
            return self is needed
        return _RANK[self] >= _RANK[needed]


_RANK = {Role.READER: 1, Role.OPERATOR: 2, Role.ADMIN: 3}


@dataclass(frozen=True, slots=True)
class Principal:
    """The named holder of a token: what the ledger records as author, requester or actor."""

    name: str
    role: Role


class TokenFile:
    """The tokens of one file, read again whenever the file has changed, so that revoking needs no restart.

    Each line is ``<name> <role> <token>``; empty lines and lines that begin with ``#`` are skipped. Tokens have at
    least 16 characters. Only their SHA-256 digests stay in memory. Safe to use from many threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._version: tuple[int, int, int] | None = None
        self._known: tuple[tuple[bytes, Principal], ...] = ()

    def authenticate(self, token: str) -> Principal | None:
        """The holder of `token`, or None. Raises `Unreadable` when the file cannot be read."""
        digest = _digest(token)
        found = None
        for known, principal in self._current():
            # No early exit: the time taken must not tell how far down the file a token stands.
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def _current(self) -> tuple[tuple[bytes, Principal], ...]:
        with self._lock:
            try:
                stat = self._path.stat()
                # The inode is part of it: a Secret volume swaps whole files, possibly within one clock tick.
                version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if version != self._version:
                    self._known = parse_tokens(self._path.read_text(encoding="utf-8"))
                    self._version = version
            except (OSError, UnicodeDecodeError) as error:
                self._version, self._known = None, ()
                raise Unreadable("the token file", type(error).__name__) from error
            return self._known


def parse_tokens(text: str) -> tuple[tuple[bytes, Principal], ...]:
    """(digest, holder) of every good line. Bad lines are logged by number, never by content, and grant nothing."""
    known: dict[bytes, Principal] = {}
    ambiguous: set[bytes] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        problem = _problem_of(fields)
        if problem:
            _LOG.warning("token line ignored", line=number, problem=problem)
            continue
        digest, principal = _digest(fields[2]), Principal(fields[0], Role(fields[1]))
        if known.setdefault(digest, principal) != principal:
            _LOG.warning("token line ignored", line=number, problem="the same token stands for two holders")
            ambiguous.add(digest)
    return tuple((digest, principal) for digest, principal in known.items() if digest not in ambiguous)


def _problem_of(fields: list[str]) -> str:
    if len(fields) != 3:
        return "not '<name> <role> <token>'"
    if not _NAME.fullmatch(fields[0]):
        return "the name is not made of letters, digits, '_', '.', '@' and '-'"
    if fields[1] not in {role.value for role in Role}:
        return f"the role is none of {', '.join(sorted(role.value for role in Role))}"
    if len(fields[2]) < _MIN_TOKEN_CHARS:
        return f"the token is shorter than {_MIN_TOKEN_CHARS} characters"
    return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
