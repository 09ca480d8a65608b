"""The circuit breaker: its pauses, and of each handoff the step whose deadline passed.

A broker of the version before goes on with this schema: it takes a tripped breaker, and one that a person lifted not
long ago, for pauses of their pool, which its resume ends.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_STEPS = (
    "'admit', 'adopt', 'close', 'empty', 'clean', 'open', 'prove', 'reopen', 'reprove', 'done', 'returned', 'failed', "
    "'quarantined'"
)


def upgrade() -> None:
    op.add_column("pauses", sa.Column("calm_since", sa.TIMESTAMP(timezone=True)))
    op.add_column("pauses", sa.Column("released_at", sa.TIMESTAMP(timezone=True)))
    op.drop_constraint(op.f("ck_pauses_kind"), "pauses")
    op.create_check_constraint(op.f("ck_pauses_kind"), "pauses", "kind IN ('stop', 'recall', 'breaker')")
    op.add_column("handoffs", sa.Column("late_in", sa.Text()))
    op.create_check_constraint(op.f("ck_handoffs_late_in"), "handoffs", f"late_in IN ({_STEPS})")
    op.create_index("ix_handoffs_ended_at", "handoffs", ["ended_at"])


def downgrade() -> None:
    op.drop_index("ix_handoffs_ended_at", table_name="handoffs")
    op.drop_constraint(op.f("ck_handoffs_late_in"), "handoffs")
    op.drop_column("handoffs", "late_in")
    op.execute("DELETE FROM pauses WHERE kind = 'breaker'")
    op.drop_constraint(op.f("ck_pauses_kind"), "pauses")
    op.create_check_constraint(op.f("ck_pauses_kind"), "pauses", "kind IN ('stop', 'recall')")
    op.drop_column("pauses", "released_at")
    op.drop_column("pauses", "calm_since")
