"""What the leader could not read in its last pass, for standbys that are asked how things are.

A broker of the version before goes on with this schema: it says nothing of its sight, and a standby says that.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("leader", sa.Column("sight", postgresql.JSONB()))
    op.add_column("leader", sa.Column("sight_at", sa.TIMESTAMP(timezone=True)))


def downgrade() -> None:
    op.drop_column("leader", "sight_at")
    op.drop_column("leader", "sight")
