"""The ledger: who owns which node, under which lease, since when, and everything that happened.

Besides the tables, triggers say what may follow what. They bind every role, the owner of the tables included.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

_TABLES = (
    "events",
    "requests",
    "sightings",
    "closures",
    "leases",
    "handoffs",
    "nodes",
    "policies",
    "fence_ack",
    "settings",
    "leader",
)

_NEVER_CHANGED = ("events", "policies")
_NEVER_DELETED = ("leader", "settings", "nodes", "handoffs", "leases")

_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: what it holds is history', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$
"""

_EPOCH_GROWS = """
CREATE FUNCTION epoch_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.epoch < OLD.epoch OR (NEW.epoch = OLD.epoch AND NEW.holder <> coalesce(OLD.holder, '')) THEN
        RAISE EXCEPTION 'a new leader needs an epoch above %', OLD.epoch
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$
"""

_LATER_WINS = """
CREATE FUNCTION later_wins() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF EXISTS (SELECT FROM leases WHERE node = NEW.node AND generation >= NEW.generation) THEN
            RAISE EXCEPTION 'generation % of node % is not later than all before it', NEW.generation, NEW.node
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
    ELSIF OLD.ended_at IS NOT NULL OR NEW.epoch < OLD.epoch
        OR (NEW.node, NEW.generation, NEW.id, NEW.owner) <> (OLD.node, OLD.generation, OLD.id, OLD.owner) THEN
        RAISE EXCEPTION 'generation % of node % is written already', OLD.generation, OLD.node
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$
"""

_HISTORY_STANDS = """
CREATE FUNCTION history_stands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.ended_at IS NOT NULL OR (NEW.id, NEW.node) <> (OLD.id, OLD.node) THEN
        RAISE EXCEPTION 'handoff % of node % is written already', OLD.id, OLD.node
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$
"""

_FUNCTIONS = {
    "refuse": _REFUSE,
    "epoch_grows": _EPOCH_GROWS,
    "later_wins": _LATER_WINS,
    "history_stands": _HISTORY_STANDS,
}


def upgrade() -> None:
    op.execute("CREATE SEQUENCE generation AS bigint")
    _who_leads()
    _policies_and_nodes()
    _ownership()
    _for_people()
    op.execute("INSERT INTO leader DEFAULT VALUES")
    op.execute("INSERT INTO settings DEFAULT VALUES")
    _triggers()


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(table)
    for function in _FUNCTIONS:
        op.execute(f"DROP FUNCTION {function}")
    op.execute("DROP SEQUENCE generation")


def _triggers() -> None:
    for source in _FUNCTIONS.values():
        op.execute(source)
    for table in _NEVER_CHANGED:
        op.execute(
            f"CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
        )
    for table in _NEVER_DELETED:
        op.execute(
            f"CREATE TRIGGER never_deleted BEFORE DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
        )
    op.execute("CREATE TRIGGER epoch_grows BEFORE UPDATE ON leader FOR EACH ROW EXECUTE FUNCTION epoch_grows()")
    op.execute("CREATE TRIGGER later_wins BEFORE INSERT OR UPDATE ON leases FOR EACH ROW EXECUTE FUNCTION later_wins()")
    op.execute("CREATE TRIGGER history_stands BEFORE UPDATE ON handoffs FOR EACH ROW EXECUTE FUNCTION history_stands()")


def _who_leads() -> None:
    op.create_table(
        "leader",
        sa.Column("single", sa.SmallInteger(), server_default="1", autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("expires_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("(holder IS NULL) = (expires_at IS NULL)", name=op.f("ck_leader_held_until")),
        sa.CheckConstraint("epoch >= 0", name=op.f("ck_leader_epoch")),
        sa.CheckConstraint("single = 1", name=op.f("ck_leader_single")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_leader")),
    )
    op.create_table(
        "settings",
        sa.Column("single", sa.SmallInteger(), server_default="1", autoincrement=False, nullable=False),
        sa.Column("paused", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint("single = 1", name=op.f("ck_settings_single")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_settings")),
    )
    op.create_table(
        "fence_ack",
        sa.Column("single", sa.SmallInteger(), server_default="1", autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.CheckConstraint("generation >= 0", name=op.f("ck_fence_ack_generation")),
        sa.CheckConstraint("single = 1", name=op.f("ck_fence_ack_single")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_fence_ack")),
    )


def _policies_and_nodes() -> None:
    op.create_table(
        "policies",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), server_default="", nullable=False),
        sa.Column("document", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.CheckConstraint("jsonb_typeof(document) = 'object'", name=op.f("ck_policies_document")),
        sa.CheckConstraint("version >= 1", name=op.f("ck_policies_version")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_policies")),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("slurm_name", sa.Text(), nullable=False),
        sa.Column("kube_name", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("idle_since", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("backoff_until", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("unusable", sa.Text(), server_default="", nullable=False),
        sa.Column("removed_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("'' NOT IN (name, slurm_name, kube_name, pool)", name=op.f("ck_nodes_named")),
        sa.CheckConstraint("gpus >= 1", name=op.f("ck_nodes_gpus")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_index(
        "uq_nodes_kube_name", "nodes", ["kube_name"], unique=True, postgresql_where=sa.text("removed_at IS NULL")
    )
    op.create_index(
        "uq_nodes_slurm_name", "nodes", ["slurm_name"], unique=True, postgresql_where=sa.text("removed_at IS NULL")
    )


def _ownership() -> None:
    op.create_table(
        "handoffs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("lease", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("evict", sa.Boolean(), nullable=False),
        sa.Column("began_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("step_began_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("step_deadline_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("blockers", postgresql.ARRAY(sa.Text()), server_default="{}", nullable=False),
        sa.Column("ended_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(ended_at IS NOT NULL) = (step IN ('done', 'returned', 'failed', 'quarantined'))",
            name=op.f("ck_handoffs_ended"),
        ),
        sa.CheckConstraint("destination IN ('slurm', 'kubernetes')", name=op.f("ck_handoffs_destination")),
        sa.CheckConstraint("lease ~ '^[a-z0-9]{8,40}$'", name=op.f("ck_handoffs_lease")),
        sa.CheckConstraint("source IN ('slurm', 'kubernetes')", name=op.f("ck_handoffs_source")),
        sa.CheckConstraint(
            "step IN ('admit', 'adopt', 'close', 'empty', 'clean', 'open', 'prove', 'reopen', 'reprove', "
            "'done', 'returned', 'failed', 'quarantined')",
            name=op.f("ck_handoffs_step"),
        ),
        sa.CheckConstraint("generation >= 1", name=op.f("ck_handoffs_generation")),
        sa.CheckConstraint("source <> destination", name=op.f("ck_handoffs_moves")),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_handoffs_node")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_handoffs")),
        sa.UniqueConstraint("node", "id", name=op.f("uq_handoffs_node_id")),
    )
    op.create_index("ix_handoffs_node_ordinal", "handoffs", ["node", "ordinal"], unique=False)
    op.create_index("ix_handoffs_ordinal", "handoffs", ["ordinal"], unique=False)
    op.create_index(
        "uq_handoffs_live_node", "handoffs", ["node"], unique=True, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_table(
        "leases",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner_since", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("handoff", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("id ~ '^[a-z0-9]{8,40}$'", name=op.f("ck_leases_id")),
        sa.CheckConstraint("owner IN ('slurm', 'kubernetes', 'bridge')", name=op.f("ck_leases_owner")),
        sa.CheckConstraint("epoch >= 1", name=op.f("ck_leases_epoch")),
        sa.CheckConstraint("generation >= 1", name=op.f("ck_leases_generation")),
        sa.ForeignKeyConstraint(
            ["node", "handoff"],
            ["handoffs.node", "handoffs.id"],
            name=op.f("fk_leases_node_handoff"),
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_leases_node")),
        sa.PrimaryKeyConstraint("node", "generation", name=op.f("pk_leases")),
    )
    op.create_index("ix_leases_generation", "leases", ["generation"], unique=False)
    op.create_index(
        "uq_leases_live_node", "leases", ["node"], unique=True, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_table(
        "closures",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("side", sa.Text(), nullable=False),
        sa.Column("lease", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=True),
        sa.Column("set_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("lease ~ '^[a-z0-9]{8,40}$'", name=op.f("ck_closures_lease")),
        sa.CheckConstraint("side IN ('slurm', 'kubernetes')", name=op.f("ck_closures_side")),
        sa.CheckConstraint("epoch >= 0 AND generation >= 0", name=op.f("ck_closures_mark")),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_closures_node")),
        sa.PrimaryKeyConstraint("node", "side", name=op.f("pk_closures")),
    )


def _for_people() -> None:
    op.create_table(
        "sightings",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("side", sa.Text(), nullable=False),
        sa.Column("at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("summary", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("unknown", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint("side IN ('slurm', 'kubernetes')", name=op.f("ck_sightings_side")),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_sightings_node")),
        sa.PrimaryKeyConstraint("node", "side", name=op.f("pk_sightings")),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint("destination IN ('slurm', 'kubernetes')", name=op.f("ck_requests_destination")),
        sa.CheckConstraint("state IN ('pending', 'accepted', 'refused')", name=op.f("ck_requests_state")),
        sa.CheckConstraint("cardinality(nodes) >= 1", name=op.f("ck_requests_nodes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    op.create_index(
        "ix_requests_pending", "requests", ["ordinal"], unique=False, postgresql_where=sa.text("state = 'pending'")
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("handoff", sa.Text(), nullable=True),
        sa.Column("lease", sa.Text(), nullable=True),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(
        "ix_events_handoff_id",
        "events",
        ["handoff", "id"],
        unique=False,
        postgresql_where=sa.text("handoff IS NOT NULL"),
    )
