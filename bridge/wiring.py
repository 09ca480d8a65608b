"""Builds the parts of a broker from settings: the only place that knows which adapter stands behind which port."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog
import uvicorn
from apscheduler.schedulers.background import BackgroundScheduler

from bridge import logs
from bridge.api.app import create_app
from bridge.api.auth import TokenFile
from bridge.api.dependencies import ApiDependencies
from bridge.api.drift import DriftView
from bridge.api.explanations import ExplanationView
from bridge.api.views import Freshness, MoveView, PlanView, SourceView, StatusView, VictimView, WhyView
from bridge.kube import marks as kube_marks
from bridge.kube.port import KubeApi
from bridge.model.errors import CallFailed, Invalid, Unreadable
from bridge.model.kube import KubeObservation, LoanSpec, PodNote
from bridge.model.ledger import LeadersSight
from bridge.model.mode import Mode
from bridge.model.ownership import Side
from bridge.planning.explain import Explanation
from bridge.planning.leftovers import KubeMarks, SlurmMarks
from bridge.planning.snapshot import Plan
from bridge.ports import Clock, KubePort, Ledger, OnChange, SlurmPort
from bridge.reconciler import onlooker
from bridge.reconciler.bell import Bell
from bridge.reconciler.decide import Bounds
from bridge.reconciler.loop import Reconciler, Timing
from bridge.settings import (
    AgentSettings,
    ApiSettings,
    KubeSettings,
    LogSettings,
    ModeSettings,
    ReconcilerSettings,
    SlurmDriver,
    SlurmSettings,
    StoreSettings,
)
from bridge.slurm import marks as slurm_marks
from bridge.slurm.pyslurm import PyslurmDriver
from bridge.slurm.rest import SlurmRestDriver
from bridge.store import embedded, migrate
from bridge.store.postgres import PostgresLedger

log = structlog.get_logger()


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


def collect_rarely() -> None:
    """Have the garbage collector walk everything alive a hundred times less often than by default.

    A long queue is half a million long-lived objects and each plan makes as many short-lived ones, none of them in a
    cycle: by default full collections take a third of a plan (`make bench`: 0.65 s at most instead of 0.42 s).
    """
    gc.set_threshold(100_000, 50, 100)


def new_id() -> str:
    """A name that is never used twice: 16 hexadecimal digits, short enough for a drain reason and a taint value."""
    return secrets.token_hex(8)


def open_ledger(settings: StoreSettings, mode: Mode = Mode.ACTIVE) -> PostgresLedger:
    """The ledger at the configured URL, or on an embedded Postgres when there is none; migrated to the newest.

    In mode `read_only` nothing is created, migrated or written: the database has to be there and of this version.
    """
    password_file = settings.database_password_file
    if mode is Mode.READ_ONLY:
        url = settings.database_url or _embedded_there(settings)
        migrate.check(url, password_file)
        return PostgresLedger(url, password_file, read_only=True)
    url = settings.database_url or embedded.start(settings.data_dir)
    migrate.upgrade(url, password_file)
    return PostgresLedger(url, password_file)


def _embedded_there(settings: StoreSettings) -> str:
    if not embedded.exists(settings.data_dir):
        raise Invalid(
            f"there is no database in {settings.data_dir}, and in mode {Mode.READ_ONLY} none is made: name one with "
            "BRIDGE_DATABASE_URL or BRIDGE_DATA_DIR"
        )
    return embedded.start(settings.data_dir)


class NoKubernetes:
    """Stands in where there is no way to Kubernetes, for somebody who looks at a ledger far from its clusters."""

    def __init__(self, why: str) -> None:
        self._why = why

    def observe(self) -> KubeObservation:
        raise Unreadable("kube.observe", self._why)

    def want(self, loans: Sequence[LoanSpec]) -> None:
        raise CallFailed(self._why)

    def inspect(self, node: str, nonce: str) -> None:
        raise CallFailed(self._why)

    def tell(self, notes: Sequence[PodNote]) -> None:
        """There is nobody to tell."""

    def watch(self, on_change: OnChange) -> None:
        """Nothing ever changes."""

    def close(self) -> None:
        """Nothing is open."""


def connect_kubernetes(settings: KubeSettings, clock: Clock, mode: Mode) -> KubeApi | NoKubernetes:
    """The port as the settings say. Only in mode `read_only` it may be that nothing says how: then it is UNKNOWN."""
    try:
        return KubeApi.connect(settings, clock)
    except Invalid as why:
        if mode is not Mode.READ_ONLY:
            raise
        return NoKubernetes(str(why))


def make_slurm(settings: SlurmSettings, clock: Clock) -> SlurmRestDriver | PyslurmDriver:
    """The driver that the settings name. Neither talks to anybody before its first call."""
    driver = PyslurmDriver if settings.slurm_driver is SlurmDriver.PYSLURM else SlurmRestDriver
    return driver(settings, now=clock.now, monotonic_s=clock.monotonic_s)


def make_reconciler(
    ledger: Ledger,
    slurm: SlurmPort,
    kubernetes: KubePort,
    settings: ReconcilerSettings,
    *,
    clock: Clock,
    new_id: Callable[[], str] = new_id,
    mode: Mode = Mode.ACTIVE,
) -> Reconciler:
    return Reconciler(
        mode=mode,
        ledger=ledger,
        slurm=slurm,
        kubernetes=kubernetes,
        clock=clock,
        new_id=new_id,
        holder=settings.holder or f"{socket.gethostname()}-{os.getpid()}",
        bounds=Bounds(
            close_s=settings.close_deadline_s,
            clean_s=settings.clean_deadline_s,
            open_s=settings.open_deadline_s,
            prove_s=settings.prove_deadline_s,
        ),
        timing=Timing(
            leader_ttl_s=settings.leader_ttl_s,
            call_timeout_s=settings.call_timeout_s,
            idle_tick_s=settings.idle_tick_s,
            busy_tick_s=settings.busy_tick_s,
            settle_s=settings.slurm_settle_s,
            fence_stale_s=settings.fence_stale_s,
        ),
    )


# --- what the API asks of the reconciler ---


def plan_view(plan: Plan, mode: Mode = Mode.ACTIVE) -> PlanView:
    moves = [
        MoveView(
            nodes=list(move.nodes),
            source=move.source,
            destination=move.destination,
            reason=move.reason,
            demand=move.demand,
            victims=[VictimView.of(victim) for victim in move.victims],
        )
        for move in plan.moves
    ]
    return PlanView(moves=moves, whys=[WhyView(subject=why.subject, reason=why.reason) for why in plan.whys], mode=mode)


def explanation_view(found: Explanation | None, clock: Clock) -> ExplanationView | None:
    return None if found is None else ExplanationView.of(found, clock.now())


def drift_view(reconciler: Reconciler, clock: Clock) -> DriftView:
    found, unknown = reconciler.drift()
    return DriftView.of(found, unknown, clock.now())


def status_view(ledger: Ledger, reconciler: Reconciler, clock: Clock) -> StatusView:
    """What this process knows of its own sight. A standby does not look at Slurm and Kubernetes: it says what the
    leader last told the ledger.
    """
    pulse, told = reconciler.pulse, SourceView(state=Freshness.FRESH, read_at=clock.now())
    leader: tuple[str, int] | None = None
    sight: LeadersSight | None = None
    try:
        leader, sight = ledger.leader(), ledger.leaders_sight()
    except Unreadable as why:
        told = SourceView(state=Freshness.UNKNOWN, reason=str(why))
    finished = pulse.finished_monotonic_s
    rehearses = reconciler.mode is Mode.DRY_RUN and pulse.epoch is not None
    return StatusView(
        mode=reconciler.mode,
        would_move_nodes=sum(len(move.nodes) for move in pulse.plan.moves) if rehearses else None,
        slurm=_source(Side.SLURM, reconciler, leader, sight),
        kubernetes=_source(Side.KUBERNETES, reconciler, leader, sight),
        ledger=told,
        leader=leader[0] if leader else None,
        epoch=leader[1] if leader else None,
        last_tick_age_s=None if finished is None else clock.monotonic_s() - finished,
    )


def _source(
    side: Side, reconciler: Reconciler, leader: tuple[str, int] | None, sight: LeadersSight | None
) -> SourceView:
    pulse = reconciler.pulse
    if reconciler.mode is Mode.READ_ONLY and pulse.finished_monotonic_s is None:
        return SourceView(state=Freshness.UNKNOWN, reason="this replica has just started and has not looked yet")
    if reconciler.mode is Mode.READ_ONLY or pulse.epoch is not None:
        return _seen(pulse.unread.get(side, ""))
    if leader is None:
        return SourceView(state=Freshness.UNKNOWN, reason="nobody leads, and only the leader looks")
    if sight is None:
        return SourceView(state=Freshness.UNKNOWN, reason=f"the leader {leader[0]} has not finished a pass yet")
    return _seen(sight.unread.get(side, ""), sight.at)


def _seen(unread: str, read_at: datetime | None = None) -> SourceView:
    if unread:
        return SourceView(state=Freshness.UNKNOWN, reason=unread)
    return SourceView(state=Freshness.FRESH, read_at=read_at)


# --- what remains, without any broker ---


def read_marks() -> tuple[SlurmMarks, KubeMarks]:
    """What stands in Slurm and in Kubernetes now, as the settings of a broker name them."""
    logs.configure(LogSettings(log_level="ERROR"))
    return slurm_marks.read_marks(SlurmSettings(), AgentSettings().agent_dir), kube_marks.connect_and_read(
        KubeSettings()
    )


# --- the broker process ---


def serve() -> None:
    """Run a broker: API and reconciler in one process, until SIGTERM or SIGINT."""
    logs.configure(LogSettings())
    collect_rarely()
    mode, api, settings = ModeSettings().mode, ApiSettings(), ReconcilerSettings()
    clock = SystemClock()
    ledger = open_ledger(StoreSettings(), mode)
    slurm = make_slurm(SlurmSettings(), clock)
    kubernetes = connect_kubernetes(KubeSettings(), clock, mode)
    reconciler = make_reconciler(ledger, slurm, kubernetes, settings, clock=clock, mode=mode)
    log.info("broker starts", mode=str(mode))
    app = create_app(
        ApiDependencies(
            mode=mode,
            ledger=onlooker.ledger_in(mode, ledger),
            clock=clock,
            new_id=new_id,
            tokens=TokenFile(api.token_file),
            plan=lambda policy, nodes: plan_view(reconciler.preview(policy, nodes), mode),
            members=reconciler.members,
            status=lambda: status_view(ledger, reconciler, clock),
            explain=lambda kind, name: explanation_view(reconciler.explain(kind, name), clock),
            drift=lambda: drift_view(reconciler, clock),
        )
    )
    bell, stop = Bell(), threading.Event()
    timetable = start_timetable(reconciler, bell, settings)
    if mode is not Mode.READ_ONLY:  # who does nothing need not hurry
        ledger.watch(bell.ring)
        kubernetes.watch(bell.ring)
    loop = threading.Thread(target=_run_or_die, args=(reconciler, bell, stop), name="reconciler", daemon=True)
    loop.start()
    try:
        uvicorn.run(app, host=api.api_host, port=api.api_port, log_config=None, timeout_graceful_shutdown=3)
    finally:
        timetable.shutdown(wait=False)
        stop.set()
        bell.ring("stop")
        loop.join(timeout=10)
        slurm.close()
        kubernetes.close()
        ledger.close()


def start_timetable(reconciler: Reconciler, bell: Bell, settings: ReconcilerSettings) -> BackgroundScheduler:
    """What has a timetable. It only orders: the loop's own thread does the work in its next pass, if it leads."""

    def order_upkeep() -> None:
        reconciler.order_upkeep()
        bell.ring("timetable")

    scheduler = BackgroundScheduler(timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1})
    scheduler.add_job(order_upkeep, "interval", hours=settings.upkeep_every_h, next_run_time=datetime.now(UTC))
    scheduler.start()
    return scheduler


def _run_or_die(reconciler: Reconciler, bell: Bell, stop: threading.Event) -> None:
    """A broker whose loop has died must not go on answering as if it lived: the process ends and is started again."""
    try:
        reconciler.run(bell, stop)
    except BaseException:
        log.exception("the reconciler died")
        os.kill(os.getpid(), signal.SIGTERM)
        raise
