"""The stage: a simulated world, the production broker on it, and the days that are played."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bridge import logs
from bridge.api.app import create_app
from bridge.api.auth import TokenFile
from bridge.api.dependencies import ApiDependencies
from bridge.api.drift import DriftView
from bridge.api.explanations import ExplanationView
from bridge.api.views import PlanView
from bridge.demo import summary
from bridge.demo.pace import Pace
from bridge.demo.serving import TOKEN_FILE, command, listen, served, url_of, write_tokens
from bridge.demo.telling import LEGEND, Teller
from bridge.model.errors import Invalid
from bridge.model.ownership import Node, Owner
from bridge.model.policy import Policy, PoolPolicy
from bridge.planning.explain import Kind
from bridge.ports import Ledger
from bridge.settings import ApiSettings, LogSettings, ReconcilerSettings
from bridge.simulation.workload import Day, Submit, small_days
from bridge.simulation.world import World
from bridge.store import embedded, migrate
from bridge.store.memory import MemoryLedger
from bridge.store.postgres import PostgresLedger
from bridge.wiring import drift_view, explanation_view, make_reconciler, new_id, plan_view, status_view

DAYS = 4
DAY = Day(nodes=4, length_s=450, jobs=7, mean_job=1 / 15, gang_weights=(3, 3, 3, 1), scalings=24)
FLOOR_NODES = 1
FLEET_EVERY_S = 120.0
KEPT_SPEED = 10.0
HOME = Path("build/demo")


def run(*, keep: bool, seed: int, speed: float) -> None:
    """Play the days at `speed` simulated seconds a second, print what moves and why, and end with a summary.

    With `keep` the simulation then goes on, with its API, until it is interrupted. Raises `Invalid` where nothing may
    be written below the working directory.
    """
    logs.configure(LogSettings(log_level="ERROR", log_json=False))
    # So that Postgres is stopped either way; a shell starts what runs in the background deaf to SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{DAYS} small days of {DAY.length_s / 60:g} minutes on {DAY.nodes} nodes of 8 GPUs, {speed:g} times as fast.\n"
        "Slurm and Kubernetes are simulated; the broker and its API are the real ones."
    )
    world = World(seed, DAY.nodes)
    try:
        ledger = _open_ledger(world, console)
        try:
            _Stage(world, ledger, console).play(keep=keep, seed=seed, speed=speed)
        finally:
            ledger.close()
    except KeyboardInterrupt:
        console.print("Stopped.")


def _open_ledger(world: World, console: Console) -> Ledger:
    """An empty ledger: on an embedded Postgres, or in memory on a machine where that cannot run."""
    try:
        HOME.mkdir(parents=True, exist_ok=True)
        url = embedded.start(HOME / "postgres")
    except OSError as error:
        raise Invalid(
            f"{error.filename or HOME}: {error.strerror}: run elsewhere, or remove {HOME} if it is another user's"
        ) from error
    except Invalid as why:
        console.print(f"Postgres cannot run here, so the ledger is kept in memory: {why}", markup=False)
        return MemoryLedger(world.clock.now)
    migrate.downgrade(url, revision="base")
    migrate.upgrade(url)
    console.print("The ledger is on Postgres, in build/demo.")
    return PostgresLedger(url)


class _Stage:
    def __init__(self, world: World, ledger: Ledger, console: Console) -> None:
        self._world = world
        self._ledger = ledger
        self._console = console
        self._teller = Teller(console, ledger, world)
        self._pods = summary.PodWaits(world)
        self._began = world.clock.now()
        self._world_moves = threading.Lock()
        """Free only while real time passes: the API's dry run looks at the world from another thread."""
        policy = world.policy(
            slurm={"floor_nodes": FLOOR_NODES}, demand_age_s=5, idle_age_s=10, min_hold_s=60, failure_backoff_s=60
        )
        ledger.apply_policy(policy, world.nodes, replaces=0, author="demo", note="the demo's policy", at=self._began)
        settings = ReconcilerSettings(holder="demo", idle_tick_s=3, busy_tick_s=0.5)
        self._reconciler = make_reconciler(ledger, world.slurm, world.kube, settings, clock=world.clock, new_id=new_id)

    def play(self, *, keep: bool, seed: int, speed: float) -> None:
        settings = ApiSettings(token_file=HOME / "tokens")
        listener = listen(settings)
        url = url_of(listener)
        write_tokens(settings.token_file, new_id() + new_id())
        with served(create_app(self._dependencies(settings)), listener):
            if settings.api_port not in (0, listener.getsockname()[1]):
                self._console.print(f"Port {settings.api_port} is taken; another one is used.")
            self._console.print(f"API on {url}/docs, the token is in {TOKEN_FILE}.")
            self._console.print(f"\n{LEGEND}\n")
            wishes = small_days(random.Random(seed), DAY, DAYS)  # noqa: S311 a demo must be repeatable
            self._world.play(wishes)
            self._pass_until(DAYS * DAY.length_s, speed)
            self._sum_up(jobs=sum(isinstance(wish, Submit) for wish in wishes))
            if keep:
                self._invite(url)
                self._pass_until(float("inf"), min(speed, KEPT_SPEED))

    def _dependencies(self, settings: ApiSettings) -> ApiDependencies:
        return ApiDependencies(
            ledger=self._ledger,
            clock=self._world.clock,
            new_id=new_id,
            tokens=TokenFile(settings.token_file),
            plan=self._plan,
            members=self._members,
            explain=self._explain,
            drift=self._drift,
            status=lambda: status_view(self._ledger, self._reconciler, self._world.clock),
        )

    def _plan(self, policy: Policy | None, nodes: Sequence[Node]) -> PlanView:
        with self._world_moves:
            return plan_view(self._reconciler.preview(policy, nodes))

    def _drift(self) -> DriftView:
        with self._world_moves:
            return drift_view(self._reconciler, self._world.clock)

    def _explain(self, kind: Kind, name: str) -> ExplanationView | None:
        with self._world_moves:
            return explanation_view(self._reconciler.explain(kind, name), self._world.clock)

    def _members(self, pool: PoolPolicy) -> tuple[str, ...]:
        with self._world_moves:
            return self._reconciler.members(pool)

    # --- time passes ---

    def _pass_until(self, until_s: float, speed: float) -> None:
        pace = Pace()

        def sleep(seconds: float) -> None:
            self._world_moves.release()
            try:
                pace(seconds)
            finally:
                self._world_moves.acquire()

        with self._world_moves:
            while (now_s := self._world.clock.monotonic_s()) < until_s:
                self._world.run(min(now_s + FLEET_EVERY_S, until_s), self._step, speed=speed, sleeper=sleep)
                self._teller.fleet()

    def _step(self) -> float:
        wait_s = self._reconciler.tick()
        self._teller.tell()
        return wait_s

    # --- the end ---

    def _sum_up(self, *, jobs: int) -> None:
        handoffs = self._ledger.handoffs(limit=10_000)
        jobs_s = summary.job_waits(self._world, jobs, self._began)
        self._console.print()
        self._console.print(summary.handoff_table(handoffs))
        self._console.print()
        self._console.print(summary.wait_table(jobs_s, jobs, self._pods))
        self._console.print()
        self._console.print(summary.job_line(self._world, jobs))
        self._console.print(summary.owner_line(summary.owned_s(handoffs, self._world.clock.now())))
        self._console.print(summary.booking_line(self._world))

    def _invite(self, url: str) -> None:
        self._console.print(
            f"\nStaying up at {url}, at most {KEPT_SPEED:g} times as fast; Ctrl-C ends it. Elsewhere try:"
        )
        for words in ("nodes", "plan", self._possible_order(), "handoffs --watch"):
            self._console.print(f"  {command(url)} {words}")
        self._console.print()

    def _possible_order(self) -> str:
        """One that breaks no floor."""
        leases = sorted(self._ledger.read().leases.items())
        with_slurm = [name for name, lease in leases if lease.owner is Owner.SLURM]
        with_kubernetes = [name for name, lease in leases if lease.owner is Owner.KUBERNETES]
        return f"lend {with_slurm[-1]}" if len(with_slurm) > FLOOR_NODES else f"reclaim {with_kubernetes[-1]}"
