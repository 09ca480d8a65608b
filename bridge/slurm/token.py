"""The broker's JWT for Slurm, from a file that a program on the controller host keeps fresh."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import orjson
import structlog

_log = structlog.get_logger(__name__)

MAX_BYTES = 16_384
WARN_BEFORE_S = 120
"""Less than this left means that nobody refreshes the file any more: say so before Slurm refuses everything."""


class TokenFile:
    """Reads the file anew for every call: it is tiny, it is replaced every few minutes, and so a fresh token is never
    missed, not even after a refusal. The signature is Slurm's to check; only the expiry is looked at, to warn in time.
    """

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._path = path
        self._now = now
        self._warned_of = ""

    def __call__(self) -> str:
        """The token. `OSError` when the file cannot be read, `ValueError` when it holds anything but one line."""
        with self._path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("ascii").strip()
        if not text or any(char.isspace() for char in text):
            raise ValueError(f"{self._path} must hold one token on one line")
        self._warn_of_expiry(text)
        return text

    def _warn_of_expiry(self, text: str) -> None:
        expires_at = expiry(text)
        if expires_at is None or text == self._warned_of:
            return
        left_s = (expires_at - self._now()).total_seconds()
        if left_s < WARN_BEFORE_S:
            self._warned_of = text
            _log.error(
                "slurm_token_not_renewed", file=str(self._path), expires_at=expires_at.isoformat(), left_s=round(left_s)
            )


def expiry(token: str) -> datetime | None:
    """The ``exp`` claim of a JWT, unverified; None when there is none to read."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (binascii.Error, ValueError, TypeError, KeyError, OverflowError, OSError):
        return None
