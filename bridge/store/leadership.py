"""Who leads: one row with a holder, an epoch and an expiry, all on the database's clock.

`EpochGrows`: the epoch grows each time somebody becomes leader, also the same one again: by one, or to one above the
largest mark outside where the database was restored from the past. Every commit reads the row ``FOR SHARE``, so a new
leader waits for commits that are under way, and none with the old epoch can follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import Connection, column, func, or_, select, table, update

from bridge.model.errors import Fenced
from bridge.model.ledger import LeadersSight
from bridge.model.ownership import Side
from bridge.store.tables import generation, leader

_CLOCK = func.clock_timestamp()


def campaign(connection: Connection, holder: str, ttl_s: float, above: tuple[int, int]) -> int | None:
    epoch: int | None = connection.execute(
        update(leader)
        .where(or_(leader.c.holder.is_(None), leader.c.expires_at <= _CLOCK))
        .values(
            holder=holder,
            epoch=func.greatest(leader.c.epoch, above[0]) + 1,
            expires_at=_CLOCK + timedelta(seconds=ttl_s),
        )
        .returning(leader.c.epoch)
    ).scalar()
    if epoch is not None and above[1] > 0:
        _raise_generations(connection, above[1])
    return epoch


def _raise_generations(connection: Connection, above: int) -> None:
    """Let all numbers that are drawn from now on be larger than `above`.

    The sequence is no part of the transaction. Numbers that the leader before draws meanwhile may come again; nothing
    is committed with them, as the row that says who leads is ours already.
    """
    drawn: int = connection.execute(select(column("last_value")).select_from(table(generation.name))).scalar_one()
    if drawn < above:
        connection.execute(select(func.setval(generation.name, above)))


def renew(connection: Connection, holder: str, epoch: int, ttl_s: float, unread: Mapping[Side, str]) -> bool:
    renewed = connection.execute(
        update(leader)
        .where(leader.c.holder == holder, leader.c.epoch == epoch, leader.c.expires_at > _CLOCK)
        .values(
            expires_at=_CLOCK + timedelta(seconds=ttl_s),
            # With its epoch, as a leader of an older version does not take back what was said before it.
            sight={"epoch": epoch, "unread": {str(side): why for side, why in unread.items()}},
            sight_at=_CLOCK,
        )
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


def sight(connection: Connection) -> LeadersSight | None:
    row = connection.execute(
        select(leader.c.epoch, leader.c.sight, leader.c.sight_at).where(leader.c.expires_at > _CLOCK)
    ).one_or_none()
    if row is None or row.sight is None or row.sight["epoch"] != row.epoch:
        return None
    return LeadersSight({Side(side): why for side, why in row.sight["unread"].items()}, row.sight_at)


def demand(connection: Connection, epoch: int) -> None:
    """Hold on to the leader row until the transaction ends. Raises `Fenced` unless `epoch` leads now."""
    row = connection.execute(
        select(leader.c.epoch, (leader.c.expires_at > _CLOCK).label("leads")).with_for_update(read=True)
    ).one()
    if not row.leads:
        raise Fenced(f"epoch {epoch} is over: its leader lease has expired")
    if row.epoch != epoch:
        raise Fenced(f"epoch {epoch} is over: epoch {row.epoch} leads")
