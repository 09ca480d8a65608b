"""Pauses of everything, of a pool or of a node, beside each other.

A broker of the version before goes on with this schema: it reads and writes `settings.paused`, which holds the reason
why everything is paused. What it writes there is not read by a broker of this version: while both run, pause over this
one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "pauses",
        sa.Column("reach", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.CheckConstraint("reach IN ('everything', 'pool', 'node')", name=op.f("ck_pauses_reach")),
        sa.CheckConstraint("(reach = 'everything') = (name = '')", name=op.f("ck_pauses_named")),
        sa.CheckConstraint("reason <> ''", name=op.f("ck_pauses_reason")),
        sa.PrimaryKeyConstraint("reach", "name", name=op.f("pk_pauses")),
    )
    op.execute(
        "INSERT INTO pauses (reach, name, reason, actor, at) "
        "SELECT 'everything', '', paused, 'before the upgrade', now() FROM settings WHERE paused <> ''"
    )


def downgrade() -> None:
    op.drop_table("pauses")
