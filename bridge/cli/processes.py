"""Commands that start a process of the bridge. Each runs until it is told to stop."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer


def serve() -> None:
    """Run a broker: the REST API and the reconciler.

    BRIDGE_MODE says how much it may do:

    active (the default): everything.

    dry_run: lead, and say in the event log, `bridgectl plan` and metrics what would move; move nothing.

    read_only: only look, never lead, never write: for a dashboard or a backup.
    """
    from bridge.wiring import serve as run

    run()


def node_controller() -> None:
    """Run the node controller: the Kubernetes half of every handoff."""
    from bridge import logs
    from bridge.node_controller.run import run
    from bridge.settings import KubeSettings, LogSettings, NodeControllerSettings

    settings = NodeControllerSettings(), KubeSettings()
    logs.configure(LogSettings())
    run(*settings)


def inspector() -> None:
    """Run the inspector on a shared node: says who holds its GPUs."""
    from bridge import logs
    from bridge.inspector.run import run
    from bridge.settings import InspectorSettings, KubeSettings, LogSettings

    settings = InspectorSettings(), KubeSettings()
    logs.configure(LogSettings())
    run(*settings)


def slurm_agent() -> None:
    """Run the agent beside slurmctld: keeps the fence and the policy file fresh."""
    from bridge import logs
    from bridge.settings import AgentSettings, LogSettings
    from bridge.slurm_agent import run

    settings = AgentSettings()
    logs.configure(LogSettings())
    run(settings, stop=_stopped_by_signals())


def migrate() -> None:
    """Bring the database to the schema of this version, then end."""
    from bridge.settings import StoreSettings
    from bridge.wiring import open_ledger

    open_ledger(StoreSettings()).close()


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Stay up with the API when the day is over")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same day")] = 1,
    speed: Annotated[float, typer.Option(min=0.01, help="Simulated seconds in a second")] = 60,
) -> None:
    """A few small days on a simulated cluster: jobs and services come and go, nodes change hands."""
    from bridge.demo import run

    run(keep=keep, seed=seed, speed=speed)


def _stopped_by_signals() -> threading.Event:
    """Set by SIGTERM or SIGINT: as process 1 of a container we would not even be ended by them."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop
