"""Why one node may not be taken from a side now: the planner's per-node reasons, in words and with their numbers."""

from __future__ import annotations

from datetime import datetime

from bridge.model.ownership import Side
from bridge.model.policy import PoolPolicy
from bridge.planning.snapshot import Place, obstacle

BUSY = "busy"


def refusal(place: Place, source: Side, pool: PoolPolicy, now: datetime, *, need_idle: bool = True) -> str:
    """Why `place` may not be taken from `source` at `now`; empty when it may.

    Without `need_idle` only what forbids every taking counts: a broken floor goes before idle age and minimum hold.
    """
    lasting = lasting_refusal(place, source, now)
    if lasting or not need_idle:
        return lasting
    held = hold_refusal(place, pool, now)
    if held:
        return held
    idle_s = place.idle_for_s(now)
    if idle_s < 0:
        return BUSY
    return f"idle for {idle_s:.0f} s, needed {pool.idle_age_s:g} s" if idle_s < pool.idle_age_s else ""


def lasting_refusal(place: Place, source: Side, now: datetime) -> str:
    """What forbids the taking whatever it is for."""
    found = obstacle(place, source)
    if found:
        return found
    theirs = place.sight.side(source.other).foreign
    if theirs:
        return f"of no use there: {theirs} on the {source.other} side"
    return backoff_refusal(place, now)


def backoff_refusal(place: Place, now: datetime) -> str:
    backoff = place.record.backoff_until
    if backoff is not None and now < backoff:
        return f"left alone for {(backoff - now).total_seconds():.0f} s more after a failed handoff"
    return ""


def hold_refusal(place: Place, pool: PoolPolicy, now: datetime) -> str:
    """``NoFlap``: a node that changed hands stays for the minimum hold."""
    held_s = (now - place.lease.owner_since).total_seconds()
    if held_s < pool.min_hold_s:
        return f"changed hands {held_s:.0f} s ago, minimum hold {pool.min_hold_s:g} s"
    return ""
