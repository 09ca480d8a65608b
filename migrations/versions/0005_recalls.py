"""Pauses of a second kind: recalls.

A broker of the version before goes on with this schema: it takes a recall for a pause, so that nothing begins, and ends
both with its resume. It cannot set a pause, and says that the call failed: while both run, pause over this one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("pauses", sa.Column("kind", sa.Text(), server_default="stop", nullable=False))
    op.create_check_constraint(op.f("ck_pauses_kind"), "pauses", "kind IN ('stop', 'recall')")
    op.drop_constraint(op.f("pk_pauses"), "pauses")
    op.create_primary_key(op.f("pk_pauses"), "pauses", ["reach", "name", "kind"])


def downgrade() -> None:
    op.execute("DELETE FROM pauses WHERE kind <> 'stop'")
    op.execute("UPDATE settings SET paused = coalesce((SELECT reason FROM pauses WHERE reach = 'everything'), '')")
    op.drop_constraint(op.f("pk_pauses"), "pauses")
    op.create_primary_key(op.f("pk_pauses"), "pauses", ["reach", "name"])
    op.drop_constraint(op.f("ck_pauses_kind"), "pauses")
    op.drop_column("pauses", "kind")
