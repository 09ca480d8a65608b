"""ASGI middleware that bounds what a client may send and says how an answer may be treated."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1 << 20
"""The largest body that is read: a policy of 100,000 nodes fits, as host lists."""

_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)


class BodyLimit:
    """Stops reading a body at `max_bytes` and answers 413, whatever length was announced.

    FastAPI's own `max_body_size` does the same with an answer in plain text.
    """

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise HTTPException(413, f"the body is larger than {self._max_bytes} bytes")
            return message

        await self._app(scope, receive_counted, send)


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
