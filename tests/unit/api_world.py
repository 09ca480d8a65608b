"""A broker's API on an in-memory ledger, with a leader's hand to put things into it. For the tests of API and CLI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fastapi import FastAPI

from bridge.api.app import ApiDependencies, create_app
from bridge.api.auth import TokenFile
from bridge.api.drift import DriftView
from bridge.api.explanations import ExplanationView
from bridge.api.inventory import inventory
from bridge.api.views import Freshness, MoveView, PlanView, SourceView, StatusView, WhyView
from bridge.model.errors import Unreadable
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import AnswerRequest, Change, Note, PutClosure, PutHandoff, PutLease, RequestState
from bridge.model.mode import Mode
from bridge.model.ownership import Closure, Lease, Mark, Node, Owner, Side
from bridge.model.policy import Policy, PoolPolicy
from bridge.planning.drift import Finding
from bridge.planning.explain import Explanation, Kind
from bridge.store.memory import MemoryLedger

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
LEASE = "k3v9q2m8"
TOKENS = {
    "viewer": ("reader", "reader-token-0123456789"),
    "oncall": ("operator", "operator-token-0123456789"),
    "platform": ("admin", "admin-token-0123456789"),
    "slurmctl": ("agent", "agent-token-0123456789"),
}
POLICY = {
    "pools": [
        {
            "name": "h100",
            "nodes": ["gpu-[1-4]"],
            "kube_name": "{node}.testbed",
            "partition": "gpu",
            "slurm": {"floor_nodes": 1, "max_nodes": 4},
            "kubernetes": {"floor_nodes": 1},
        }
    ]
}


@dataclass
class StoppedClock:
    time: datetime = NOON

    def now(self) -> datetime:
        return self.time

    def monotonic_s(self) -> float:
        return self.time.timestamp()

    def pass_s(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


FRESH = StatusView(
    slurm=SourceView(state=Freshness.FRESH, read_at=NOON),
    kubernetes=SourceView(state=Freshness.FRESH, read_at=NOON),
    ledger=SourceView(state=Freshness.FRESH, read_at=NOON),
    leader="broker-0",
    epoch=1,
    last_tick_age_s=0.4,
)
PLAN = PlanView(
    moves=[
        MoveView(
            nodes=["gpu-1", "gpu-2"],
            source=Side.SLURM,
            destination=Side.KUBERNETES,
            reason="Deployment default/chat waits for 2 nodes since 40 s",
        )
    ],
    whys=[WhyView(subject="gpu-3", reason="changed hands 12 s ago, minimum hold is 60 s")],
)


def unread(pool: PoolPolicy) -> tuple[str, ...]:
    raise Unreadable("slurm", f"nobody answers for pool {pool.name}")


@dataclass
class World:
    """`tokens_path` may be rewritten; `status`, `plan` and `members` are what the wiring would answer.

    `members` None: the scheduler that knows them cannot be read. `planned_for` is what was asked of the planner last.
    """

    tokens_path: Path
    clock: StoppedClock = field(default_factory=StoppedClock)
    status: StatusView = FRESH
    plan: PlanView = PLAN
    plan_fails: Unreadable | None = None
    planned_for: tuple[Policy | None, tuple[str, ...]] = (None, ())
    members: tuple[str, ...] | None = None
    explanations: dict[tuple[Kind, str], Explanation] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()
    mode: Mode = Mode.ACTIVE
    ids: int = 0

    def __post_init__(self) -> None:
        self.ledger = MemoryLedger(self.clock.now)
        self.epoch = self.ledger.campaign("broker-0", ttl_s=10**9) or 0
        lines = [f"{name} {role} {token}" for name, (role, token) in TOKENS.items()]
        self.tokens_path.write_text("\n".join(lines))

    def app(self) -> FastAPI:
        return create_app(
            ApiDependencies(
                ledger=self.ledger,
                clock=self.clock,
                new_id=self._new_id,
                tokens=TokenFile(self.tokens_path),
                plan=self._plan,
                members=self._members,
                status=lambda: self.status,
                explain=self._explain,
                drift=lambda: DriftView.of(self.findings, self.unknown, self.clock.now()),
                mode=self.mode,
            )
        )

    def _plan(self, policy: Policy | None, nodes: Sequence[Node]) -> PlanView:
        self.planned_for = (policy, tuple(node.name for node in nodes))
        if self.plan_fails:
            raise self.plan_fails
        return self.plan

    def _explain(self, kind: Kind, name: str) -> ExplanationView | None:
        if self.plan_fails:
            raise self.plan_fails
        found = self.explanations.get((kind, name))
        return None if found is None else ExplanationView.of(found, self.clock.now())

    def _members(self, pool: PoolPolicy) -> tuple[str, ...]:
        if self.members is None:
            return unread(pool)
        return self.members

    def _new_id(self) -> str:
        self.ids += 1
        return f"req-{self.ids}"

    # --- the leader's hand ---

    def commit(self, *changes: Change) -> None:
        self.ledger.commit(self.epoch, changes)

    def share(self, document: dict[str, object] = POLICY) -> None:
        """Put a policy in force, as its first version."""
        policy = Policy.model_validate(document)
        self.ledger.apply_policy(
            policy, inventory(policy, unread), replaces=0, author="platform", note="first", at=self.clock.now()
        )

    def own(self, node: str, owner: Owner, *, handoff: str | None = None) -> Lease:
        """Give `node` a first lease."""
        lease = Lease(
            id=LEASE,
            node=node,
            owner=owner,
            epoch=self.epoch,
            generation=self.ledger.next_generation(),
            owner_since=self.clock.now(),
            handoff=handoff,
        )
        self.commit(PutLease(lease, replaces=None))
        return lease

    def begin(self, node: str, id: str, *, blockers: tuple[str, ...] = ()) -> Handoff:
        """Begin a handoff of `node` from Slurm to Kubernetes, which is emptying."""
        now = self.clock.now()
        generation = self.ledger.next_generation()
        handoff = Handoff(
            id=id,
            lease=LEASE,
            node=node,
            source=Side.SLURM,
            destination=Side.KUBERNETES,
            step=Step.EMPTY,
            reason="launch day",
            requested_by="oncall",
            generation=generation,
            nonce="n1",
            evict=False,
            began_at=now - timedelta(seconds=70),
            step_began_at=now - timedelta(seconds=65),
            step_deadline_at=now + timedelta(seconds=3600),
            blockers=blockers,
        )
        lease = Lease(LEASE, node, Owner.BRIDGE, self.epoch, generation, handoff.began_at, handoff=id)
        closure = Closure(node, Side.SLURM, Mark(LEASE, self.epoch, generation), "bridge", handoff.began_at)
        self.commit(
            PutHandoff(handoff, replaces=None),
            PutLease(lease, replaces=None),
            PutClosure(closure),
            self.step_note(handoff, Step.CLOSE, 70),
            self.step_note(handoff, Step.EMPTY, 65),
        )
        return handoff

    def step_note(self, handoff: Handoff, step: Step, ago_s: float) -> Note:
        return Note(
            kind="step",
            message=f"{handoff.node}: {step}",
            at=self.clock.now() - timedelta(seconds=ago_s),
            node=handoff.node,
            handoff=handoff.id,
            data={"step": step.value},
        )

    def answer_all(self, state: RequestState, answer: str) -> None:
        """From now on answer every order as soon as it is written."""

        def on_change(what: str) -> None:
            for request in self.ledger.read().requests:
                self.commit(AnswerRequest(request.id, state, answer))

        self.ledger.watch(on_change)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name][1]}"}
