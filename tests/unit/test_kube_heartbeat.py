"""The heartbeat and the election: two readers of one Lease, neither of which believes another host's clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bridge.kube.connection import ApiError, Json
from bridge.kube.heartbeat import Heartbeat
from bridge.kube.names import lease_path
from bridge.node_controller.election import Election
from tests.unit.kube_api import FakeApi

PATH = lease_path("bridge", "controller")


class Clock:
    """Monotonic time that a test moves; wall time that is wrong by an hour for whoever says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class LeaseApi(FakeApi):
    """One Lease with the apiserver's optimistic lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lease: Json | None = None
        self._version = 0

    def call(self, method: str, path: str, *, body: Any = None, **_: Any) -> Json:
        if self.down:
            return super().call(method, path)
        if method == "GET":
            if self.lease is None:
                raise ApiError(404, {"message": "no lease"})
            return {**self.lease, "metadata": dict(self.lease["metadata"]), "spec": dict(self.lease["spec"])}
        assert body is not None
        if method == "PUT" and body["metadata"]["resourceVersion"] != str(self._version):
            raise ApiError(409, {"reason": "Conflict", "message": "changed"})
        if method == "POST" and self.lease is not None:
            raise ApiError(409, {"reason": "AlreadyExists", "message": "exists"})
        self._version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": str(self._version)}}
        return self.lease


@pytest.fixture
def api() -> LeaseApi:
    return LeaseApi()


@pytest.fixture
def clock() -> Clock:
    return Clock()


Candidate = Callable[[str], Election]


@pytest.fixture
def candidate(api: LeaseApi, clock: Clock) -> Candidate:
    """Elections whose hosts' wall clocks are hours apart."""

    def make(holder: str) -> Election:
        wrong = timedelta(hours=len(holder))
        return Election(
            api,
            namespace="bridge",
            name="controller",
            holder=holder,
            duration_s=10,
            monotonic_s=clock,
            now=lambda: datetime(2026, 5, 4, tzinfo=UTC) + wrong,
        )

    return make


@pytest.fixture
def heartbeat(api: LeaseApi, clock: Clock) -> Heartbeat:
    return Heartbeat(api, PATH, monotonic_s=clock, every_s=1)


# --- heartbeat ---


def test_alive_is_who_was_seen_to_renew(heartbeat: Heartbeat, candidate: Candidate, clock: Clock) -> None:
    one = candidate("one")
    one.step()
    heartbeat.read()
    assert not heartbeat.alive(), "one reading cannot tell a fresh Lease from an old one"
    clock.now_s += 2
    one.step()
    heartbeat.read()
    assert heartbeat.alive()
    clock.now_s += 11
    heartbeat.read()
    assert not heartbeat.alive()


def test_a_lease_given_back_is_no_heartbeat(heartbeat: Heartbeat, candidate: Candidate) -> None:
    one = candidate("one")
    one.step()
    heartbeat.read()
    one.step()
    heartbeat.read()
    one.resign()
    heartbeat.read()
    assert not heartbeat.alive()


def test_age_is_that_of_the_last_answer(
    heartbeat: Heartbeat, candidate: Candidate, api: LeaseApi, clock: Clock
) -> None:
    assert heartbeat.age_s() == float("inf")
    heartbeat.read()
    assert heartbeat.age_s() == 0, "that there is no Lease is an answer too"
    candidate("one").step()
    api.down = True
    clock.now_s += 3
    heartbeat.read()
    assert heartbeat.age_s() == 3
    assert "refused" in heartbeat.problem


def test_coming_alive_rings(api: LeaseApi, clock: Clock, candidate: Candidate) -> None:
    rung: list[bool] = []
    heartbeat = Heartbeat(api, PATH, monotonic_s=clock, every_s=1, on_change=lambda: rung.append(True))
    one = candidate("one")
    for _ in range(3):
        one.step()
        heartbeat.read()
    assert rung == [True]


# --- election ---


def test_the_first_leads_and_the_second_waits_out_the_lease(candidate: Candidate, clock: Clock) -> None:
    one, two = candidate("one"), candidate("seconds")
    one.step()
    two.step()
    assert (one.leads(), two.leads()) == (True, False)
    clock.now_s += 9.5
    two.step()
    assert (one.leads(), two.leads()) == (False, False), "one stops a little before two may start"
    clock.now_s += 0.5
    two.step()
    assert (one.leads(), two.leads()) == (False, True)


def test_a_renewed_lease_is_not_taken(candidate: Candidate, clock: Clock) -> None:
    one, two = candidate("one"), candidate("two")
    one.step()
    two.step()
    for _ in range(20):
        clock.now_s += 3
        one.step()
        two.step()
        assert (one.leads(), two.leads()) == (True, False)


def test_who_lost_the_lease_knows_at_its_next_step(candidate: Candidate, clock: Clock, api: LeaseApi) -> None:
    one, two = candidate("one"), candidate("two")
    one.step()
    two.step()
    clock.now_s += 10
    two.step()
    one.step()
    assert (one.leads(), two.leads()) == (False, True)
    assert api.lease is not None
    assert api.lease["spec"]["leaseTransitions"] == 1


def test_two_at_once_are_told_apart_by_the_version(candidate: Candidate, api: LeaseApi) -> None:
    one, two = candidate("one"), candidate("two")
    one.step()
    one.resign()
    real_call, rival = api.call, iter([two])

    def racing(method: str, path: str, **kwargs: Any) -> Json:
        if method == "PUT":
            for other in rival:
                other.step()
        return real_call(method, path, **kwargs)

    api.call = racing  # type: ignore[method-assign]
    one.step()
    assert (one.leads(), two.leads()) == (False, True)


def test_leadership_ends_by_itself_when_the_apiserver_is_away(
    candidate: Candidate, api: LeaseApi, clock: Clock
) -> None:
    one = candidate("one")
    one.step()
    api.down = True
    clock.now_s += 5
    one.step()
    assert one.leads()
    clock.now_s += 4.1
    one.step()
    assert not one.leads()


def test_a_lease_given_back_is_taken_at_once(candidate: Candidate) -> None:
    one, two = candidate("one"), candidate("two")
    one.step()
    two.step()
    one.resign()
    two.step()
    assert (one.leads(), two.leads()) == (False, True)
