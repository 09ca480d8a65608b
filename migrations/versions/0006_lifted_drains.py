"""When the drain of ours had been set whose reason a node still shows after it was lifted.

A broker of the version before goes on with this schema: it neither reads nor writes the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("lifted_drain_at", sa.TIMESTAMP(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("nodes", "lifted_drain_at")
