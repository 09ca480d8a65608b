"""The tables, as SQLAlchemy Core sees them. `migrations/` makes them; a test compares the two.

What a row may say is written as constraints here, so that the database refuses an illegal row even from a hand that
types SQL. What may follow what (generations and epochs that only grow, history that is never rewritten) is kept by
triggers, which live in the migrations alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from bridge.model.handoff import ADOPTER, Step
from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner, Side
from bridge.model.pause import PauseKind, Reach
from bridge.store.changes import LEASE_ID

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _time(name: str, *, nullable: bool = False, default: str | None = None) -> Column[object]:
    return Column(
        name, TIMESTAMP(timezone=True), nullable=nullable, server_default=None if default is None else text(default)
    )


def _words(name: str) -> Column[str]:
    """Free text for people; empty says nothing."""
    return Column(name, Text, nullable=False, server_default="")


def _one_of(column: str, words: type[StrEnum]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({_listed(words)})", name=column)


def _listed(words: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _ended(step: Step) -> bool:
    return step.ended


def _lease_id(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} ~ '{LEASE_ID}'", name=column)


def _amount(column: str) -> CheckConstraint:
    """No NaN either, which Postgres holds for the largest number."""
    return CheckConstraint(f"{column} >= 0 AND {column} < 'Infinity'", name=column)


def _single_row() -> tuple[Column[int], CheckConstraint]:
    """Key of a table that has exactly one row."""
    return (
        Column("single", SmallInteger, primary_key=True, autoincrement=False, server_default="1"),
        CheckConstraint("single = 1", name="single"),
    )


generation = Sequence("generation", metadata=metadata, data_type=BigInteger)
"""Fencing tokens of all nodes: one sequence, so that of two marks anywhere the later one is the larger."""

leader = Table(
    "leader",
    metadata,
    *_single_row(),
    Column("holder", Text),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    _time("expires_at", nullable=True),
    Column("sight", JSONB),
    _time("sight_at", nullable=True),
    CheckConstraint("epoch >= 0", name="epoch"),
    CheckConstraint("(holder IS NULL) = (expires_at IS NULL)", name="held_until"),
)

settings = Table("settings", metadata, *_single_row(), _words("paused"))
"""`paused` is what a broker of the first version reads; others read `pauses`."""

pauses = Table(
    "pauses",
    metadata,
    Column("reach", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("kind", Text, primary_key=True, server_default=PauseKind.STOP),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    _time("at"),
    _time("calm_since", nullable=True),
    _time("released_at", nullable=True),
    _one_of("reach", Reach),
    _one_of("kind", PauseKind),
    CheckConstraint(f"(reach = '{Reach.EVERYTHING}') = (name = '')", name="named"),
    CheckConstraint("reason <> ''", name="reason"),
)

fence_ack = Table(
    "fence_ack",
    metadata,
    *_single_row(),
    Column("generation", BigInteger, nullable=False),
    _time("at"),
    CheckConstraint("generation >= 0", name="generation"),
)

policies = Table(
    "policies",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    _time("at"),
    Column("author", Text, nullable=False),
    _words("note"),
    Column("document", JSONB, nullable=False),
    CheckConstraint("version >= 1", name="version"),
    CheckConstraint("jsonb_typeof(document) = 'object'", name="document"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("slurm_name", Text, nullable=False),
    Column("kube_name", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    _time("idle_since", nullable=True),
    _time("backoff_until", nullable=True),
    _words("unusable"),
    _time("lifted_drain_at", nullable=True),
    _time("removed_at", nullable=True),
    CheckConstraint("gpus >= 1", name="gpus"),
    CheckConstraint("'' NOT IN (name, slurm_name, kube_name, pool)", name="named"),
    # Of the nodes in the inventory only: a machine that left may come back under another name.
    Index("uq_nodes_slurm_name", "slurm_name", unique=True, postgresql_where=text("removed_at IS NULL")),
    Index("uq_nodes_kube_name", "kube_name", unique=True, postgresql_where=text("removed_at IS NULL")),
)

handoffs = Table(
    "handoffs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("ordinal", BigInteger, Identity(always=True), nullable=False),
    Column("lease", Text, nullable=False),
    Column("node", Text, ForeignKey("nodes.name"), nullable=False),
    Column("source", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("step", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("requested_by", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("nonce", Text, nullable=False),
    Column("evict", Boolean, nullable=False),
    _time("began_at"),
    _time("step_began_at"),
    _time("step_deadline_at"),
    Column("blockers", ARRAY(Text), nullable=False, server_default="{}"),
    _time("ended_at", nullable=True),
    Column("outcome", Text),
    _words("demand"),
    Column("victims", JSONB, nullable=False, server_default="[]"),
    _time("signalled_at", nullable=True),
    Column("late_in", Text),
    UniqueConstraint("node", "id"),  # for the foreign key of `leases`
    _one_of("source", Side),
    _one_of("destination", Side),
    _one_of("step", Step),
    _one_of("late_in", Step),
    _lease_id("lease"),
    CheckConstraint("source <> destination", name="moves"),
    CheckConstraint("generation >= 1", name="generation"),
    CheckConstraint("jsonb_typeof(victims) = 'array'", name="victims"),
    CheckConstraint(
        f"(ended_at IS NOT NULL) = (step IN ({_listed(step for step in Step if step.ended)}))", name="ended"
    ),
    Index("uq_handoffs_live_node", "node", unique=True, postgresql_where=text("ended_at IS NULL")),
    Index("ix_handoffs_ordinal", "ordinal"),
    Index("ix_handoffs_ended_at", "ended_at"),
    Index("ix_handoffs_node_ordinal", "node", "ordinal"),
    # What each pass reads to know how long a reclaim takes; see `bridge.store.ledger`.
    Index(
        "ix_handoffs_reclaimed",
        "destination",
        "ordinal",
        postgresql_where=text(f"step = '{Step.DONE}' AND requested_by <> '{ADOPTER}'"),
    ),
)

leases = Table(
    "leases",
    metadata,
    Column("node", Text, ForeignKey("nodes.name"), primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    _time("owner_since"),
    Column("handoff", Text),
    _time("ended_at", nullable=True),
    # Deferred, because the lease is put before the handoff that it names.
    ForeignKeyConstraint(["node", "handoff"], ["handoffs.node", "handoffs.id"], deferrable=True, initially="DEFERRED"),
    _one_of("owner", Owner),
    _lease_id("id"),
    CheckConstraint("epoch >= 1", name="epoch"),
    CheckConstraint("generation >= 1", name="generation"),
    Index("uq_leases_live_node", "node", unique=True, postgresql_where=text("ended_at IS NULL")),
    Index("ix_leases_generation", "generation"),
)

closures = Table(
    "closures",
    metadata,
    Column("node", Text, ForeignKey("nodes.name"), primary_key=True),
    Column("side", Text, primary_key=True),
    Column("lease", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("set_by", Text),
    _time("set_at", nullable=True),
    _one_of("side", Side),
    _lease_id("lease"),
    CheckConstraint("epoch >= 0 AND generation >= 0", name="mark"),
)

sightings = Table(
    "sightings",
    metadata,
    Column("node", Text, ForeignKey("nodes.name"), primary_key=True),
    Column("side", Text, primary_key=True),
    _time("at"),
    Column("summary", JSONB, nullable=False),
    _words("unknown"),
    _one_of("side", Side),
)

usage = Table(
    "usage",
    metadata,
    Column("team", Text, primary_key=True),
    Column("gpu_s", Double, nullable=False),
    _time("at"),
    _amount("gpu_s"),
)

backoffs = Table(
    "backoffs",
    metadata,
    Column("demand", Text, primary_key=True),
    _time("until"),
    Column("failures", Integer, nullable=False),
    CheckConstraint("failures >= 1", name="failures"),
)

preempted = Table(
    "preempted",
    metadata,
    # The time first, as old rows are deleted by it. The same work may be ended again, at another time.
    Column("at", TIMESTAMP(timezone=True), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("side", Text, primary_key=True),
    Column("loss_gpu_s", Double, nullable=False),
    _one_of("side", Side),
    _amount("loss_gpu_s"),
)

requests = Table(
    "requests",
    metadata,
    Column("id", Text, primary_key=True),
    Column("ordinal", BigInteger, Identity(always=True), nullable=False),
    Column("nodes", ARRAY(Text), nullable=False),
    Column("destination", Text, nullable=False),
    Column("requested_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    _time("requested_at"),
    Column("state", Text, nullable=False),
    _words("answer"),
    _one_of("destination", Side),
    _one_of("state", RequestState),
    CheckConstraint("cardinality(nodes) >= 1", name="nodes"),
    Index("ix_requests_pending", "ordinal", postgresql_where=text("state = 'pending'")),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _time("at"),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("actor", Text, nullable=False),
    # No foreign keys: the log may speak of what the ledger never had, such as a node that was refused.
    Column("node", Text),
    Column("handoff", Text),
    Column("lease", Text),
    Column("data", JSONB, nullable=False, server_default="{}"),
    Index("ix_events_handoff_id", "handoff", "id", postgresql_where=text("handoff IS NOT NULL")),
)
