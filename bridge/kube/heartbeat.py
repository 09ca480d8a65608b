"""Whether the node controller lives, and whether the apiserver answers with its quorum: both from reading one Lease."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bridge.kube.connection import Api, ApiError
from bridge.model.errors import CallFailed

_DEFAULT_DURATION_S = 10.0


class Heartbeat:
    """Reads the Lease at `path` every `every_s` in a thread of its own.

    Clocks of hosts differ by minutes, so the Lease's own times are never compared with ours: it is alive when we have
    *seen it change* within its duration, by our monotonic clock. Right after our start nothing is known: not alive.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        monotonic_s: Callable[[], float],
        every_s: float,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self._api = api
        self._monotonic_s = monotonic_s
        self._every_s = every_s
        self._on_change = on_change
        self._lock = threading.Lock()
        self._read_at_s: float | None = None
        self._version = ""
        self._renewed_at_s: float | None = None
        self._duration_s = _DEFAULT_DURATION_S
        self._problem = "not read yet"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()

    def alive(self) -> bool:
        with self._lock:
            return self._renewed_at_s is not None and self._monotonic_s() - self._renewed_at_s <= self._duration_s

    def age_s(self) -> float:
        """Seconds since the apiserver last answered with its quorum (also to say that there is no such Lease)."""
        with self._lock:
            return float("inf") if self._read_at_s is None else self._monotonic_s() - self._read_at_s

    @property
    def problem(self) -> str:
        with self._lock:
            return self._problem

    def read(self) -> None:
        """Read the Lease once. A GET without a version is answered by a quorum."""
        began_at_s = self._monotonic_s()
        was_alive = self.alive()
        try:
            lease = self._api.call("GET", self.path)
        except ApiError as error:
            with self._lock:
                self._problem = str(error)
                if error.status == 404:  # an answer all the same: no node controller has ever run here
                    self._read_at_s = began_at_s
            return
        except CallFailed as error:
            with self._lock:
                self._problem = str(error)
            return
        version = f"{lease['metadata']['uid']}/{lease['metadata']['resourceVersion']}"
        with self._lock:
            self._problem = ""
            self._read_at_s = began_at_s
            self._duration_s = float(lease["spec"].get("leaseDurationSeconds") or _DEFAULT_DURATION_S)
            if self._version and version != self._version:
                self._renewed_at_s = began_at_s
            if not lease["spec"].get("holderIdentity"):
                self._renewed_at_s = None  # given back by its holder
            self._version = version
        if self.alive() != was_alive and not self._stop.is_set():
            self._on_change()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.read()
            self._stop.wait(self._every_s)
