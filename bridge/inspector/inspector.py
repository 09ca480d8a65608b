"""Answers the ``NodeInspection`` of one node, and keeps the answer true while it says that somebody holds a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from bridge.kube import names, resources
from bridge.kube.connection import MERGE_PATCH, Api, Json
from bridge.kube.view import View
from bridge.model.errors import CallFailed, Unreadable
from bridge.model.kube import DeviceHolder, Inspection

MOST_HOLDERS = 200
_RETRY_S = 0.5
_CATCH_UP_S = 2.0
"""How long our own answer may take to come back through the watch before it is given again."""

_Question = tuple[str, Inspection | None]

log = structlog.get_logger(__name__)


class Inspector:
    """`scan` is called in the thread of `run`; what it raises as `Unreadable` is the answer's error."""

    def __init__(
        self,
        api: Api,
        node: str,
        scan: Callable[[], tuple[DeviceHolder, ...]],
        *,
        recheck_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._api = api
        self._node = node
        self._scan = scan
        self._recheck_s = recheck_s
        self._monotonic_s = monotonic_s
        self._answered: tuple[_Question, float] | None = None
        """The question as it stood when it was answered last, and when: the view shows it so for a moment longer."""
        self._bell = threading.Event()
        self._stopped = False
        self._view = View(
            api,
            names.INSPECTIONS,
            _question,
            monotonic_s=monotonic_s,
            on_change=lambda _key, _before, _after: self._bell.set(),
            query={"fieldSelector": f"metadata.name={node}"},
        )

    def run(self) -> None:
        """Until `stop`."""
        self._view.start()
        while not self._stopped:
            self._bell.wait(self._step())
            self._bell.clear()
        self._view.close()

    def stop(self) -> None:
        self._stopped = True
        self._bell.set()

    def _step(self) -> float | None:
        """Look if there is something to look for; the seconds until the next look, or None: until the bell rings."""
        question = self._view.items().get(self._node)
        if question is None:
            return None
        if self._answered is not None and self._answered[0] == question:
            unseen_s = self._monotonic_s() - self._answered[1]
            if unseen_s < _CATCH_UP_S:
                return _CATCH_UP_S - unseen_s
        nonce, answer = question
        if answer is not None and answer.nonce == nonce and not answer.holders and not answer.error:
            return None
        found = self.look(nonce)
        if found == answer:
            return self._recheck_s
        try:
            self._answer(found)
        except CallFailed as error:
            log.warning("answer not written", node=self._node, problem=str(error))
            return _RETRY_S
        self._answered = (question, self._monotonic_s())
        log.info("answered", node=self._node, nonce=nonce, holders=len(found.holders), error=found.error)
        return None if not found.holders and not found.error else self._recheck_s

    def look(self, nonce: str) -> Inspection:
        try:
            return Inspection(nonce, self._scan()[:MOST_HOLDERS])
        except Unreadable as error:
            return Inspection(nonce, error=error.detail)

    def _answer(self, found: Inspection) -> None:
        path = f"{names.INSPECTIONS}/{self._node}/status"
        self._api.call("PATCH", path, body={"status": resources.inspection_status(found)}, content_type=MERGE_PATCH)


def _question(body: Json) -> _Question:
    return resources.inspection_nonce(body), resources.inspection(body)
