"""ASGI middleware that bounds what a client may send and says how an answer may be treated."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.api.problems import Problem, problem_response

MAX_BODY_BYTES = 1 << 20

_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)


class _BodyTooLarge(Exception):
    pass


class _Disconnected(Exception):
    pass


class BodyLimit:
    """Answers 413 to a body above `max_bytes`, announced or not, before any of the application has parsed it."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        try:
            body = await self._read(receive)
        except _BodyTooLarge:
            await self._refuse(scope, receive, send)
            return
        except _Disconnected:
            return  # half a body is no order
        await self._app(scope, _Replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise _Disconnected
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._max_bytes:
                raise _BodyTooLarge
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"the body is larger than {self._max_bytes} bytes"
        response = problem_response(Problem(413, "too-large", detail), scope["path"])
        await response(scope, receive, send)


class _Replay:
    """A `receive` that hands out a body read before, then whatever the connection still says (a disconnect)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class SafeHeaders:
    """Adds the headers that keep answers out of caches and away from a browser's guesses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)
