"""``bridgectl demo``: a small day on a simulated cluster, with the production broker, API and an embedded Postgres.

Slurm and Kubernetes are simulated behind the same ports and on their own quick clock; planner, lifecycle, reconciler,
store and API are the ones that run in production. The same seed gives the same day.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import uvicorn
from rich.console import Console
from rich.table import Table

from bridge import logs
from bridge.api.app import create_app
from bridge.api.auth import TokenFile
from bridge.api.dependencies import ApiDependencies
from bridge.api.views import PlanView
from bridge.model.handoff import Handoff, Step
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Owner, Side
from bridge.reconciler.loop import Reconciler
from bridge.settings import ApiSettings, LogSettings, ReconcilerSettings
from bridge.simulation.workload import Day, small_day
from bridge.simulation.world import World
from bridge.store import embedded, migrate
from bridge.store.postgres import PostgresLedger
from bridge.wiring import make_reconciler, new_id, plan_view, status_view

DAY = Day(nodes=4, length_s=1800, jobs=16, scalings=24)
STRIP_EVERY_S = 120.0
HOME = Path("build/demo")
_LETTER = {Owner.SLURM: "S", Owner.KUBERNETES: "K", Owner.BRIDGE: "·"}


def run(*, keep: bool, seed: int, speed: float) -> None:
    """Play the day at `speed` simulated seconds a second, print what moves and why, and end with a summary."""
    logs.configure(LogSettings(log_level="ERROR", log_json=False))
    console = Console(highlight=False)
    console.print("A day of 30 minutes on four nodes of 8 GPUs, shared by Slurm and Kubernetes (both simulated).")
    console.print("Starting Postgres, the broker and its API ...")
    ledger = _fresh_ledger()
    demo = _Demo(World(seed, DAY.nodes), ledger, console)
    server = demo.serve_api()
    try:
        demo.play(seed, speed)
        demo.summary()
        if keep:
            console.print("\nStaying up; Ctrl-C ends it. Try:  .venv/bin/bridgectl nodes")
            demo.stay_up(speed)
    except KeyboardInterrupt:
        console.print("Stopped.")
    finally:
        server.should_exit = True
        ledger.close()


def _fresh_ledger() -> PostgresLedger:
    url = embedded.start(HOME / "postgres")
    migrate.downgrade(url, revision="base")
    migrate.upgrade(url)
    return PostgresLedger(url)


@dataclass
class _Demo:
    world: World
    ledger: PostgresLedger
    console: Console
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the simulated world moves: the API's dry run looks at it from another thread."""
    seen_event: int = 0

    def __post_init__(self) -> None:
        policy = self.world.policy(
            slurm={"floor_nodes": 1}, demand_age_s=5, idle_age_s=10, min_hold_s=60, failure_backoff_s=60
        )
        now = self.world.clock.now()
        self.ledger.apply_policy(policy, self.world.nodes, replaces=0, author="demo", note="the demo's policy", at=now)
        settings = ReconcilerSettings(holder="demo", idle_tick_s=3, busy_tick_s=0.5)
        self.start = now
        self.reconciler: Reconciler = make_reconciler(
            self.ledger, self.world.slurm, self.world.kube, settings, clock=self.world.clock, new_id=new_id
        )

    # --- the API, as in production ---

    def serve_api(self) -> uvicorn.Server:
        api = ApiSettings(token_file=HOME / "tokens")
        token = new_id() + new_id()
        api.token_file.touch(mode=0o600)
        api.token_file.write_text(f"demo admin {token}\n")
        client = Path("build/tokens-admin")
        client.touch(mode=0o600)
        client.write_text(token + "\n")
        app = create_app(
            ApiDependencies(
                ledger=self.ledger,
                clock=self.world.clock,
                new_id=new_id,
                tokens=TokenFile(api.token_file),
                plan=self._plan,
                status=lambda: status_view(self.ledger, self.reconciler, self.world.clock),
            )
        )
        server = uvicorn.Server(uvicorn.Config(app, host=api.api_host, port=api.api_port, log_config=None))
        threading.Thread(target=server.run, name="api", daemon=True).start()
        self.console.print(f"API on http://{api.api_host}:{api.api_port}/docs, the token is in {client}\n")
        return server

    def _plan(self) -> PlanView:
        with self.lock:
            return plan_view(self.reconciler.preview())

    # --- the day ---

    def play(self, seed: int, speed: float) -> None:
        self.world.play(small_day(random.Random(seed), DAY))  # noqa: S311 a demo must be repeatable
        strip_at_s = 0.0
        while strip_at_s < DAY.length_s:
            strip_at_s += STRIP_EVERY_S
            self._pass_until(strip_at_s, speed)
            self._strip()

    def stay_up(self, speed: float) -> None:
        while True:
            self._pass_until(self.world.clock.monotonic_s() + 10, min(speed, 10))

    def _pass_until(self, until_s: float, speed: float) -> None:
        self.world.run(until_s, self._step, speed=speed, sleeper=time.sleep)

    def _step(self) -> float:
        with self.lock:
            wait_s = self.reconciler.tick()
        self._tell()
        return wait_s

    # --- what people see ---

    def _tell(self) -> None:
        for event in self.ledger.events(after=self.seen_event, limit=500):
            self.seen_event = event.id
            step = event.data.get("step")
            if event.kind == "step" and step == Step.CLOSE and "direction" in event.data:
                self.console.print(f"{self._at(event.at)}  [yellow]move[/]  {event.message}")
            elif event.kind == "step" and step in (Step.DONE, Step.RETURNED, Step.FAILED, Step.QUARANTINED):
                self._tell_end(event.handoff, event.at)

    def _tell_end(self, handoff_id: str | None, at: datetime) -> None:
        handoff = self.ledger.handoff(handoff_id) if handoff_id else None
        if handoff is None:
            return
        took_s = (at - handoff.began_at).total_seconds()
        where = f"now {handoff.destination}'s" if handoff.step is Step.DONE else f"{handoff.step}: {handoff.outcome}"
        self.console.print(f"{self._at(at)}  [green]{handoff.step}[/]  {handoff.node}: {where}, after {took_s:.1f} s")

    def _strip(self) -> None:
        state = self.ledger.read()
        letters = " ".join(_LETTER[lease.owner] for _, lease in sorted(state.leases.items()))
        jobs = Counter(job.state for job in self.world.slurm.observe().jobs)
        pods = self.world.kube.cluster.of("default/chat")
        ready = sum(pod.ready for pod in pods)
        self.console.print(
            f"{self._at(self.world.clock.now())}  [dim]nodes {letters} | jobs {jobs['RUNNING']} running, "
            f"{jobs['PENDING']} waiting | chat pods {ready} of {len(pods)} ready[/]"
        )

    def _at(self, moment: datetime) -> str:
        minutes, seconds = divmod(int((moment - self.start).total_seconds()), 60)
        return f"[dim]{minutes:02d}:{seconds:02d}[/]"

    def summary(self) -> None:
        handoffs = [h for h in self.ledger.handoffs(limit=10_000) if h.requested_by != "adoption"]
        table = Table(title="The day", title_justify="left", show_edge=False)
        for column in ("handoffs", "count", "done", "p50 s", "max s"):
            table.add_column(column, justify="left" if column == "handoffs" else "right")
        for side in Side:
            table.add_row(*_row(side, [h for h in handoffs if h.destination is side]))
        self.console.print()
        self.console.print(table)
        booked = len(self.world.oracle.violations)
        self.console.print(f"nodes used by both sides at once: {booked}; {_owners(self.ledger.read())}")


def _row(side: Side, handoffs: list[Handoff]) -> tuple[str, ...]:
    done = [h for h in handoffs if h.step is Step.DONE and h.ended_at is not None]
    seconds = sorted((h.ended_at - h.began_at).total_seconds() for h in done if h.ended_at is not None)
    p50 = f"{statistics.median(seconds):.1f}" if seconds else "-"
    longest = f"{seconds[-1]:.1f}" if seconds else "-"
    return (f"to {side}", str(len(handoffs)), str(len(done)), p50, longest)


def _owners(state: LedgerState) -> str:
    owners = Counter(lease.owner for lease in state.leases.values())
    return ", ".join(f"{count} with {owner}" for owner, count in sorted(owners.items()))
