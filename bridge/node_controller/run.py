"""``bridgectl node-controller``: from settings to a running process and back to its end."""

from __future__ import annotations

import secrets
import signal
import socket
import threading
import time
from datetime import UTC, datetime

from bridge.kube.connection import Connection
from bridge.node_controller.controller import RENEW_EVERY_S, Controller
from bridge.node_controller.probes import Probes
from bridge.settings import KubeSettings, NodeControllerSettings


def run(settings: NodeControllerSettings, kube: KubeSettings, *, stop: threading.Event | None = None) -> None:
    """Run until `stop` is set or a signal asks to end.

    Raises `Fenced` when the Lease is lost: the process must then end, as a fresh one is the surest way to forget.
    """
    stop = stop or _stop_on_signals()
    # Random, as a restarted process must not take itself for its predecessor, whose calls may still be on their way.
    holder = f"{settings.node_controller_holder or socket.gethostname()}_{secrets.token_hex(4)}"
    connection = Connection.open(kube.kubeconfig, timeout_s=kube.kube_timeout_s)
    controller = Controller(
        connection, settings, holder=holder, monotonic_s=time.monotonic, now=lambda: datetime.now(UTC)
    )
    probes = Probes(settings.probe_port, {"/healthz": controller.stuck, "/readyz": controller.problem})
    controller.start()
    try:
        while not stop.is_set():
            controller.tick()
            stop.wait(RENEW_EVERY_S)
    finally:
        controller.close()
        probes.close()
        connection.close()


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop
