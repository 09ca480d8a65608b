"""One node controller at a time, by a coordination Lease that is also its heartbeat.

The client library's own election was left for three reasons: it measures with the wall clock, cannot be stopped, and
renews whatever its holder's health is. Here the Lease is renewed only by a controller whose watches and workers live;
expiry is counted on the monotonic clock from the moment a change was *seen*, so clocks of hosts may differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

import structlog

from bridge.kube.connection import Api, ApiError, Json
from bridge.kube.names import lease_path
from bridge.kube.resources import time_text
from bridge.model.errors import CallFailed

log = structlog.get_logger(__name__)


class Election:
    """Call `step` every few seconds; ask `leads` before every write."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        holder: str,
        duration_s: int,
        monotonic_s: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._duration_s = duration_s
        self._monotonic_s = monotonic_s
        self._now = now
        self._lock = threading.Lock()
        self._leads_until_s = float("-inf")
        self._seen_version = ""
        self._seen_at_s = 0.0

    def leads(self) -> bool:
        """Whether no other can have become leader yet: a tenth of the duration is kept as a margin."""
        with self._lock:
            return self._monotonic_s() < self._leads_until_s

    def step(self) -> None:
        """Renew the Lease if it is ours, take it if it is free or expired. Failures leave things as they are."""
        began_at_s = self._monotonic_s()
        try:
            ours = self._campaign(began_at_s)
        except CallFailed as error:
            log.warning("lease not renewed", problem=str(error))
            return
        with self._lock:
            self._leads_until_s = began_at_s + 0.9 * self._duration_s if ours else float("-inf")

    def resign(self) -> None:
        """Give the Lease back, so that a standby need not wait for its expiry."""
        with self._lock:
            self._leads_until_s = float("-inf")
        try:
            lease = self._api.call("GET", self._path)
            if lease["spec"].get("holderIdentity") == self._holder:
                lease["spec"]["holderIdentity"] = ""
                self._api.call("PUT", self._path, body=lease)
        except CallFailed:
            return  # it expires

    @property
    def _path(self) -> str:
        return lease_path(self._namespace, self._name)

    def _campaign(self, began_at_s: float) -> bool:
        try:
            lease = self._api.call("GET", self._path)
        except ApiError as error:
            if error.status != 404:
                raise
            self._api.call("POST", lease_path(self._namespace), body=self._new())
            return True
        version = str(lease["metadata"]["resourceVersion"])
        if version != self._seen_version:
            self._seen_version, self._seen_at_s = version, began_at_s
        spec = lease["spec"]
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._holder):
            expires_s = self._seen_at_s + float(spec.get("leaseDurationSeconds") or self._duration_s)
            if began_at_s < expires_s:
                return False
        self._take(lease, takes_over=holder != self._holder)
        return True

    def _take(self, lease: Json, *, takes_over: bool) -> None:
        now = time_text(self._now())
        spec = lease["spec"]
        if takes_over:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec.update(holderIdentity=self._holder, renewTime=now, leaseDurationSeconds=self._duration_s)
        self._api.call("PUT", self._path, body=lease)  # refused when anybody wrote it since we read it

    def _new(self) -> Json:
        now = time_text(self._now())
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": self._duration_s,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }
