"""A broker over REST. Every way in which that can fail becomes a `CliError` that says where and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import typer

from bridge.cli.failures import REFUSED, UNKNOWN, USAGE, CliError
from bridge.cli.text import dotted

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 45  # longer than the longest long poll, which is 30


@dataclass(frozen=True, slots=True)
class Target:
    """Which broker, and the file with the token for it. `transport` replaces the network in tests."""

    url: str
    token_file: Path
    transport: httpx.BaseTransport | None = None


class Answer(dict[str, Any]):
    """An object of a broker's answer, which may be of another version than this program: a field that is not there
    ends the command with a sentence."""

    def __missing__(self, field: str) -> Any:
        raise CliError(
            UNKNOWN,
            f"the broker's answer has no field {field!r}: it is of another version than this bridgectl",
            remedy="use the bridgectl of that broker's version, or look at the whole answer with -o json",
        )


def document(response: httpx.Response) -> Any:
    """The answer's document, its objects as `Answer`."""
    return response.json(object_hook=Answer)


class RefusedInput(CliError):
    """422: `errors` are the wrong values with location, message and remedy."""

    def __init__(self, what: str, errors: list[dict[str, Any]], where: str) -> None:
        details = [f"{dotted(error['location'][1:])}: {error['message']} ({error['remedy']})" for error in errors]
        super().__init__(REFUSED, what, details=details, where=where)
        self.errors = errors


class Broker:
    """Calls of one command to one broker."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._http = httpx.Client(
            base_url=target.url,
            transport=target.transport,
            headers={"Authorization": f"Bearer {_token(target.token_file)}", "User-Agent": "bridgectl"},
            timeout=httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
        )

    def get(self, path: str, **query: Any) -> Any:
        """The answer's document; query parameters that are None are left out."""
        return document(self.call("GET", path, query=query))

    def call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """The answer, if it is one of success."""
        where = f"{method} {self._target.url.rstrip('/')}{path}"
        params = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            response = self._http.request(method, path, params=params, json=body, headers=headers)
        except httpx.TransportError as error:
            raise CliError(
                UNKNOWN,
                f"the broker is unreachable: {error or type(error).__name__}",
                where=where,
                remedy="is a broker running there? name another one with --url or BRIDGE_URL",
            ) from error
        if response.is_success and "json" in response.headers.get("content-type", ""):
            return response
        raise self._failure(response, where)

    def _failure(self, response: httpx.Response, where: str) -> CliError:
        if response.headers.get("content-type", "") != "application/problem+json":
            what = f"what answers there is not a broker (HTTP {response.status_code})"
            return CliError(UNKNOWN, what, where=where, remedy="check --url or BRIDGE_URL")
        problem = document(response)
        detail = problem["detail"]
        if response.status_code == 422:
            return RefusedInput(detail, problem.get("errors", []), where)
        if response.status_code == 401:
            remedy = f"put a token of that broker into {self._target.token_file}, or name another file: --token-file"
            return CliError(REFUSED, f"the broker does not let us in: {detail}", where=where, remedy=remedy)
        if response.status_code >= 500:
            return CliError(UNKNOWN, f"the broker cannot answer: {detail}", where=where, remedy="try again shortly")
        remedy = _REMEDIES.get(problem["type"].rpartition(":")[2]) or _REMEDIES.get(response.status_code, "")
        return CliError(REFUSED, f"refused: {detail}", where=where, remedy=remedy)


_REMEDIES: dict[int | str, str] = {
    "read-only": "name another broker with --url or BRIDGE_URL: `bridgectl status` says which one leads",
    403: "use a token with that role: --token-file or BRIDGE_CLIENT_TOKEN_FILE",
    412: "look at `bridgectl policy show`, bring your file up to it, then apply it again",
}


def connect(context: typer.Context) -> Broker:
    """The broker that the command line, the environment or the default names."""
    target = context.find_object(Target)
    if target is None:
        raise CliError(USAGE, "no broker is named", remedy="set BRIDGE_URL or --url")
    return Broker(target)


def _token(path: Path) -> str:
    """The token in a file that holds it alone, or as the last word of a line ``<name> <role> <token>``."""
    remedy = "name a file that holds your token: --token-file or BRIDGE_CLIENT_TOKEN_FILE"
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise CliError(USAGE, f"the token file cannot be read: {reason}", where=str(path), remedy=remedy) from error
    if not words or not words[-1].isascii():
        raise CliError(USAGE, "the token file holds no token", where=str(path), remedy=remedy)
    return words[-1]
