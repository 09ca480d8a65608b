"""The agent's loop: ask, write, acknowledge.

The stamp in the fence file is when the broker was last heard. While the broker is away the files stay as they are and
the stamp gets old, so that the Prolog stops believing the fence by itself: a fence must not be the outage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx
import pydantic
import structlog

from bridge.settings import AgentSettings
from bridge.slurm_agent.files import FENCE, POLICY, FenceAnswer, fence_text, holds, policy_text, replace

_log = structlog.get_logger(__name__)

LONGEST_POLL_S = 5.0
"""Stamp and acknowledgement are renewed once a poll, and the broker counts on hearing of us every few seconds."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
_ANSWER_WITHIN_S = 10
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 10.0


class SlurmAgent:
    """One broker, one folder. `turn` is a whole round; it raises `OSError`, `ValueError` or `httpx.HTTPError`."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        wall_s: Callable[[], float] = time.time,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._token_file = settings.agent_token_file
        self._folder = settings.agent_dir
        self._poll_s = min(settings.agent_poll_s, LONGEST_POLL_S)
        self._wall_s = wall_s
        self._http = httpx.Client(
            base_url=settings.agent_url, timeout=self._poll_s + _ANSWER_WITHIN_S, transport=transport
        )
        self._generation: int | None = None

    def close(self) -> None:
        self._http.close()

    def turn(self) -> None:
        """Wait for a change for a few seconds at most, write what the broker said, and tell it what is written.

        The first answer of a process is asked for at once, whatever is in the files: they may be of last month.
        """
        answer = self._ask()
        replace(self._folder / FENCE, fence_text(answer.closed, int(self._wall_s())))
        policy = policy_text(answer.policy)
        if not holds(self._folder / POLICY, policy):
            replace(self._folder / POLICY, policy)
        self._call("POST", "/v1/slurm/fence/ack", json={"generation": answer.generation})
        if answer.generation != self._generation:
            _log.info("fence_written", generation=answer.generation, closed=len(answer.closed))
        self._generation = answer.generation

    def _ask(self) -> FenceAnswer:
        known = self._generation
        params = {} if known is None else {"after": known, "wait_s": self._poll_s}
        return FenceAnswer.model_validate_json(self._call("GET", "/v1/slurm/fence", params=params))

    def _call(
        self, method: str, path: str, *, params: dict[str, float] | None = None, json: dict[str, int] | None = None
    ) -> bytes:
        """The body of a successful answer. The token is read anew each time, so that it can be replaced in place."""
        headers = {"Authorization": f"Bearer {self._token_file.read_text(encoding='ascii').strip()}"}
        with self._http.stream(method, path, params=params, json=json, headers=headers) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise ValueError(f"{path}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
        if not response.is_success:
            raise ValueError(f"{method} {path}: HTTP {response.status_code} {bytes(body[:200])!r}")
        return bytes(body)


def run(settings: AgentSettings, *, stop: threading.Event | None = None) -> None:
    """Take turns until `stop` is set. A failed turn leaves the files alone and is tried again, ever less often."""
    stop = stop or threading.Event()
    agent = SlurmAgent(settings)
    backoff_s = _FIRST_BACKOFF_S
    try:
        while not stop.is_set():
            try:
                agent.turn()
            except (OSError, ValueError, httpx.HTTPError, pydantic.ValidationError) as error:
                _log.error("fence_not_refreshed", error=f"{type(error).__name__}: {error}", again_in_s=backoff_s)
                stop.wait(backoff_s)
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
            else:
                backoff_s = _FIRST_BACKOFF_S
    finally:
        agent.close()
