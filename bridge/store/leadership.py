"""Who leads: one row with a holder, an epoch and an expiry, all on the database's clock.

`EpochGrows`: the epoch grows by one each time somebody becomes leader, also the same one again. Every commit reads the
row ``FOR SHARE``, so a new leader waits for commits that are under way, and none with the old epoch can follow.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, func, or_, select, update

from bridge.model.errors import Fenced
from bridge.store.tables import leader

_CLOCK = func.clock_timestamp()


def campaign(connection: Connection, holder: str, ttl_s: float) -> int | None:
    epoch: int | None = connection.execute(
        update(leader)
        .where(or_(leader.c.holder.is_(None), leader.c.expires_at <= _CLOCK))
        .values(holder=holder, epoch=leader.c.epoch + 1, expires_at=_CLOCK + timedelta(seconds=ttl_s))
        .returning(leader.c.epoch)
    ).scalar()
    return epoch


def renew(connection: Connection, holder: str, epoch: int, ttl_s: float) -> bool:
    renewed = connection.execute(
        update(leader)
        .where(leader.c.holder == holder, leader.c.epoch == epoch, leader.c.expires_at > _CLOCK)
        .values(expires_at=_CLOCK + timedelta(seconds=ttl_s))
    )
    return renewed.rowcount == 1


def resign(connection: Connection, holder: str, epoch: int) -> bool:
    resigned = connection.execute(
        update(leader).where(leader.c.holder == holder, leader.c.epoch == epoch).values(holder=None, expires_at=None)
    )
    return resigned.rowcount == 1


def current(connection: Connection) -> tuple[str, int] | None:
    row = connection.execute(select(leader.c.holder, leader.c.epoch).where(leader.c.expires_at > _CLOCK)).one_or_none()
    return None if row is None else (row.holder, row.epoch)


def demand(connection: Connection, epoch: int) -> None:
    """Hold on to the leader row until the transaction ends. Raises `Fenced` unless `epoch` leads now."""
    row = connection.execute(
        select(leader.c.epoch, (leader.c.expires_at > _CLOCK).label("leads")).with_for_update(read=True)
    ).one()
    if not row.leads:
        raise Fenced(f"epoch {epoch} is over: its leader lease has expired")
    if row.epoch != epoch:
        raise Fenced(f"epoch {epoch} is over: epoch {row.epoch} leads")
