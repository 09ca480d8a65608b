"""``bridgectl inspector``: from settings to a running process and back to its end."""

from __future__ import annotations

import signal
import time

from bridge.inspector.inspector import Inspector
from bridge.inspector.scan import devices, holders
from bridge.kube.connection import Connection
from bridge.model.errors import Invalid
from bridge.model.kube import DeviceHolder
from bridge.settings import InspectorSettings, KubeSettings

HOST_ROOT = "/host"
"""Where the manifest mounts parts of the host's file system; people know the devices without it."""


def run(settings: InspectorSettings, kube: KubeSettings) -> None:
    """Answer for the node until a signal asks to end. `Invalid` when the settings do not say which node it is."""
    if not settings.node_name:
        raise Invalid("the inspector does not know its node: set BRIDGE_NODE_NAME to the Kubernetes name of the node")

    def scan() -> tuple[DeviceHolder, ...]:
        # Devices are looked up anew each time: a driver that is loaded later gives them new numbers.
        found = devices(settings.inspector_devices, root=HOST_ROOT)
        return holders(settings.inspector_proc, found, ignored=settings.inspector_ignored)

    connection = Connection.open(kube.kubeconfig, timeout_s=kube.kube_timeout_s)
    inspector = Inspector(
        connection,
        settings.node_name,
        scan,
        recheck_s=settings.inspector_recheck_s,
        monotonic_s=time.monotonic,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: inspector.stop())
    try:
        inspector.run()
    finally:
        connection.close()
