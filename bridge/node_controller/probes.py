"""``/healthz``, ``/readyz`` and ``/metrics`` over plain HTTP, for the kubelet and Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str]
"""Returns what is wrong, or an empty string."""


class Probes:
    """Serves from construction until `close`. `checks` maps a path to the check behind it."""

    def __init__(self, port: int, checks: dict[str, Check], *, host: str = "0.0.0.0") -> None:  # noqa: S104 (the kubelet)
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._send(200, generate_latest(), CONTENT_TYPE_LATEST)
                elif self.path in checks:
                    problem = checks[self.path]()
                    self._send(503 if problem else 200, (problem or "ok").encode(), "text/plain; charset=utf-8")
                else:
                    self._send(404, b"not found", "text/plain")

            def _send(self, status: int, body: bytes, content_type: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """A line for every probe would be noise."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="probes", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
