"""The truth below both schedulers: which process really runs on which machine.

Slurm and Kubernetes each believe something; an inspector on the node and the oracle look here. A process may outlive
the job or pod that it belongs to, and that is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bridge.model.ownership import Node, Side


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has the GPUs of its machine open. `work` is the job or pod it was started for."""

    pid: int
    node: str
    side: Side
    work: str
    user: str

    def __str__(self) -> str:
        return f"process {self.pid} of {self.work} ({self.user})"


OnStart = Callable[[Process, tuple[Process, ...]], None]
"""Told of a new process and of those that were on its machine already."""


class Machines:
    """All machines by the bridge's node name, and the processes on them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._running: dict[str, list[Process]] = {node.name: [] for node in nodes}
        self._last_pid = 1000
        self._observers: list[OnStart] = []

    def on_start(self, observer: OnStart) -> None:
        self._observers.append(observer)

    def start(self, node: str, side: Side, work: str, user: str) -> Process:
        self._last_pid += 1
        process = Process(self._last_pid, node, side, work, user)
        already = self.running(node)
        self._running[node].append(process)
        for observer in self._observers:
            observer(process, already)
        return process

    def stop(self, process: Process) -> None:
        """End a process; one that has ended already (the machine lost power) is no error."""
        running = self._running[process.node]
        if process in running:
            running.remove(process)

    def power_off(self, node: str) -> None:
        self._running[node].clear()

    def running(self, node: str) -> tuple[Process, ...]:
        return tuple(self._running[node])

    def names(self) -> tuple[str, ...]:
        return tuple(self._running)
