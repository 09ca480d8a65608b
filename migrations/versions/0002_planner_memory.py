"""What a pass remembers for the planner: use of teams, demands left alone, victims; and whom a handoff may end.

A broker of the version before goes on with this schema: what it does not know has a default.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("handoffs", sa.Column("demand", sa.Text(), server_default="", nullable=False))
    op.add_column(
        "handoffs",
        sa.Column("victims", postgresql.JSONB(astext_type=sa.Text()), server_default="[]", nullable=False),
    )
    op.add_column("handoffs", sa.Column("signalled_at", sa.TIMESTAMP(timezone=True), nullable=True))
    op.create_check_constraint(op.f("ck_handoffs_victims"), "handoffs", "jsonb_typeof(victims) = 'array'")
    op.create_index(
        "ix_handoffs_reclaimed",
        "handoffs",
        ["destination", "ordinal"],
        unique=False,
        postgresql_where=sa.text("step = 'done' AND requested_by <> 'adoption'"),
    )
    _memory()


def _memory() -> None:
    op.create_table(
        "usage",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("gpu_s", sa.Double(), nullable=False),
        sa.Column("at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.CheckConstraint("gpu_s >= 0 AND gpu_s < 'Infinity'", name=op.f("ck_usage_gpu_s")),
        sa.PrimaryKeyConstraint("team", name=op.f("pk_usage")),
    )
    op.create_table(
        "backoffs",
        sa.Column("demand", sa.Text(), nullable=False),
        sa.Column("until", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.CheckConstraint("failures >= 1", name=op.f("ck_backoffs_failures")),
        sa.PrimaryKeyConstraint("demand", name=op.f("pk_backoffs")),
    )
    op.create_table(
        "preempted",
        sa.Column("at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("side", sa.Text(), nullable=False),
        sa.Column("loss_gpu_s", sa.Double(), nullable=False),
        sa.CheckConstraint("side IN ('slurm', 'kubernetes')", name=op.f("ck_preempted_side")),
        sa.CheckConstraint("loss_gpu_s >= 0 AND loss_gpu_s < 'Infinity'", name=op.f("ck_preempted_loss_gpu_s")),
        sa.PrimaryKeyConstraint("at", "key", "side", name=op.f("pk_preempted")),
    )


def downgrade() -> None:
    for table in ("preempted", "backoffs", "usage"):
        op.drop_table(table)
    op.drop_index("ix_handoffs_reclaimed", table_name="handoffs")
    op.drop_constraint(op.f("ck_handoffs_victims"), "handoffs", type_="check")
    for column in ("signalled_at", "victims", "demand"):
        op.drop_column("handoffs", column)
