"""slurmrestd over HTTP: which data version it speaks, a bounded time for every call, and Slurm's words on failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import structlog
import tenacity

from bridge.model.errors import CallFailed, Unreadable
from bridge.slurm import reading

_log = structlog.get_logger(__name__)

DATA_VERSIONS = tuple(range(45, 39, -1))
"""v0.0.N of slurmrestd's data parsers that `reading` knows, newest first (Slurm 23.11 to 26.05)."""

MAX_ANSWER_BYTES = 512 * 1024 * 1024
_UNAUTHENTICATED = frozenset({401, 511})
_BUSY = frozenset({429, 502, 503, 504})


class _Again(Exception):
    """A read failed in a way that may be over at once: a lost connection, a token that has just been replaced."""


class ReadRefused(Unreadable):
    """slurmrestd answered with errors. `numbers` are Slurm's own, as far as it gave any."""

    def __init__(self, source: str, words: str, numbers: frozenset[int]) -> None:
        super().__init__(source, words)
        self.numbers = numbers


class NotThere(Unreadable):
    """slurmrestd has no such path in this data version."""


class RestClient:
    """Calls of slurmrestd. Reads raise `Unreadable`, writes `CallFailed`; nothing else comes out.

    `timeout_s` bounds a whole call, body included: a server that drips its answer is as late as one that is silent. A
    read is tried once more after a lost connection or a refused token, never after a time-out.
    """

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        timeout_s: float,
        *,
        transport: httpx.BaseTransport | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = httpx.Client(base_url=url, timeout=timeout_s, transport=transport, follow_redirects=False)
        self._token = token
        self._timeout_s = timeout_s
        self._monotonic_s = monotonic_s
        self._version: int | None = None

    def close(self) -> None:
        self._http.close()

    def version(self) -> int:
        """The newest data version that the server has and we know, found by asking; kept until a call meets a 404."""
        if self._version is None:
            self._version = self._find_version()
            _log.info("slurmrestd_data_version", version=f"v0.0.{self._version}")
        return self._version

    def _find_version(self) -> int:
        for version in DATA_VERSIONS:
            try:
                path = f"/slurm/v0.0.{version}/ping/"
                _decoded(self._read_twice(path), path)
            except NotThere:
                continue
            return version
        known = f"v0.0.{DATA_VERSIONS[-1]} to v0.0.{DATA_VERSIONS[0]}"
        raise Unreadable("slurmrestd", f"it speaks none of the data versions {known}: start it with one of them")

    def read(self, path: str) -> reading.Record:
        """The decoded answer to ``GET /slurm/v0.0.N/<path>``."""
        body = self.body(path)
        return _decoded(body, self._versioned(path))

    def body(self, path: str) -> bytes:
        """The same as it came, which may still be half an answer or say 200 and have errors."""
        try:
            return self._read_twice(self._versioned(path))
        except NotThere:
            self._version = None  # perhaps slurmrestd was upgraded: ask again next time
            raise

    def _versioned(self, path: str) -> str:
        return f"/slurm/v0.0.{self.version()}/{path}"

    def _read_twice(self, path: str) -> bytes:
        try:
            for attempt in tenacity.Retrying(
                stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_exception_type(_Again), reraise=True
            ):
                with attempt:
                    return self._read_once(path)
        except _Again as error:
            raise Unreadable(f"slurmrestd {path}", str(error)) from error
        raise AssertionError("tenacity ends with a result or an error")

    def _read_once(self, path: str) -> bytes:
        source = f"slurmrestd {path}"
        try:
            status, body = self._call("GET", path)
        except httpx.TimeoutException as error:
            raise Unreadable(source, _words(error)) from error
        except httpx.HTTPError as error:
            raise _Again(_words(error)) from error
        except (OSError, ValueError) as error:
            raise Unreadable(source, f"no token: {error}") from error
        if status in _UNAUTHENTICATED or status in _BUSY:
            raise _Again(_refusal(status, body))
        if status == 404 and not body.lstrip().startswith(b"{"):
            raise NotThere(source, "no such path")
        if status != 200:
            raise ReadRefused(source, _refusal(status, body), reading.error_numbers(reading.lenient(body)))
        return body

    def write(self, method: str, path: str, json: Mapping[str, Any] | None = None) -> reading.Record:
        """One write, never repeated here: the answer. `CallFailed` unless slurmrestd says 200 and reports no error."""
        try:
            status, body = self._call(method, self._versioned(path), json)
        except Unreadable as error:
            raise CallFailed(str(error)) from error
        except httpx.HTTPError as error:
            raise CallFailed(f"slurmrestd {method} {path}: {_words(error)}, outcome unknown") from error
        except (OSError, ValueError) as error:
            raise CallFailed(f"slurmrestd {method} {path}: no token: {error}") from error
        if status == 404:
            self._version = None
        return _written(f"{method} {path}", status, body)

    def _call(self, method: str, path: str, json: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        deadline = self._monotonic_s() + self._timeout_s
        body = bytearray()
        headers = {"X-SLURM-USER-TOKEN": self._token()}
        with self._http.stream(method, path, headers=headers, json=json) as response:
            for chunk in response.iter_bytes():
                body += chunk
                if self._monotonic_s() > deadline:
                    raise httpx.ReadTimeout(f"answer not whole after {self._timeout_s:g} s ({len(body)} bytes)")
                if len(body) > MAX_ANSWER_BYTES:
                    raise httpx.ReadError(f"answer is larger than {MAX_ANSWER_BYTES} bytes")
        return response.status_code, bytes(body)


def _decoded(body: bytes, path: str) -> reading.Record:
    source = f"slurmrestd {path}"
    try:
        return reading.answer(body, source)
    except Unreadable as error:  # 200 and errors all the same
        raise ReadRefused(source, error.detail, reading.error_numbers(reading.lenient(body))) from error


class WriteRefused(CallFailed):
    """Slurm answered and said no. `numbers` are its error numbers."""

    def __init__(self, words: str, numbers: frozenset[int]) -> None:
        super().__init__(words)
        self.numbers = numbers


def _written(what: str, status: int, body: bytes) -> reading.Record:
    decoded = reading.lenient(body)
    if status != 200 or not decoded or decoded.get("errors"):
        raise WriteRefused(f"slurmrestd {what}: {_refusal(status, body)}", reading.error_numbers(decoded))
    return decoded


def _refusal(status: int, body: bytes) -> str:
    words = reading.errors_of(reading.lenient(body)) or " ".join(body[:200].decode("utf-8", "replace").split())
    hint = " (is the token expired, or of a user that Slurm does not know?)" if status in _UNAUTHENTICATED else ""
    return f"HTTP {status}: {words or 'no words'}{hint}"


def _words(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
