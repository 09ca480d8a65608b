"""The driver of the Slurm port on pyslurm: for a broker on a host of a cluster with Slurm 25.11 and no slurmrestd.

pyslurm is GPL-2.0, an extra that nothing imports here: it runs in a process of its own (`pyslurm_process`). It acts as
the user that the broker runs as, by munge or auth/slurm; there is no token. ``scontrol`` writes the reservation
(`latch`), names one task of an array, hurries what was requeued, and tells topology and the Gres that pyslurm cannot
read. ``FailClosed`` as in `rest`: what Slurm did not answer wholly is `Unreadable`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from bridge.model.errors import CallFailed, Unreadable
from bridge.model.ownership import Mark
from bridge.model.slurm import SlurmJob, SlurmNode, SlurmObservation
from bridge.settings import SlurmSettings
from bridge.slurm import reading, show
from bridge.slurm.latch import INVALID_NODE_STATE, OURS, Latch, any_drained, checked, drain_reason, held
from bridge.slurm.pyslurm_process import AsksPyslurm, PyslurmProcess, Refused, Silent
from bridge.slurm.scontrol import RunsScontrol, Scontrol
from bridge.slurm.telling import GONE, There, check_id, check_signal, hasten, there

_log = structlog.get_logger(__name__)

TOPOLOGY_MAX_AGE_S = 300
"""Switches are re-cabled rarely, and where a node hangs decides only which one is taken."""

_STEPS = {"": "all", "B": "batch", "S": "children"}
"""pyslurm's words for whom a signal is, by what stands before its name."""
_SLURMS_OWN = 1000
"""From here on error numbers are Slurm's. pyslurm takes any number that the C library left behind for one, also after a
signal that was sent."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class PyslurmDriver:
    """`bridge.ports.SlurmPort` on pyslurm 25.11 and scontrol. Not thread-safe."""

    def __init__(
        self,
        settings: SlurmSettings,
        *,
        now: Callable[[], datetime] = _utc_now,
        monotonic_s: Callable[[], float] = time.monotonic,
        pyslurm: AsksPyslurm | None = None,
        scontrol: RunsScontrol | None = None,
    ) -> None:
        self._now = now
        self._monotonic_s = monotonic_s
        self._pyslurm = pyslurm or PyslurmProcess(settings.slurm_timeout_s)
        self._scontrol = scontrol or Scontrol(settings.slurm_scontrol, None, settings.slurm_timeout_s)
        self._latch = Latch(self._reservations, self._scontrol, settings.slurm_user, now)
        self._topology: dict[str, str] = {}
        self._topology_read_s: float | None = None

    def close(self) -> None:
        self._pyslurm.close()

    # --- reading ---

    def observe(self) -> SlurmObservation:
        """See the port. slurmctld's age is read last, so that a restart between two of the reads shows."""
        read_at = self._now()
        nodes = self._nodes()
        latched = held(self._reservations())
        jobs = reading.decode_jobs(self._read("jobs"), "pyslurm jobs")
        up_s = reading.uptime_s(reading.answer(self._read("diag"), "pyslurm diag"), "pyslurm diag")
        return SlurmObservation(read_at, with_gpus_in_use(nodes, jobs), jobs, latched, up_s)

    def _nodes(self) -> dict[str, SlurmNode]:
        answer = reading.answer(self._read("nodes"), "pyslurm nodes")
        nodes = reading.nodes(answer, "pyslurm nodes")
        without_gres = frozenset(answer.get("without_gres", ()))
        if without_gres:
            shown = self._shown()
            missing = sorted(without_gres - shown.keys())
            if missing:
                raise Unreadable("pyslurm nodes", f"neither it nor scontrol tells the Gres of {', '.join(missing)}")
            nodes |= {name: _with_gres(nodes[name], shown[name]) for name in without_gres}
        elif self._topology_is_old():
            self._refresh_topology()
        return {name: replace(node, topology=self._topology.get(name, "")) for name, node in nodes.items()}

    def _shown(self) -> dict[str, SlurmNode]:
        """What scontrol tells of all nodes; their topology is kept."""
        try:
            text = self._scontrol("--all", "show", "nodes")
        except CallFailed as why:
            raise Unreadable("scontrol show nodes", str(why)) from why
        shown = reading.nodes(show.nodes(text), "scontrol show nodes")
        self._topology = {name: node.topology for name, node in shown.items() if node.topology}
        self._topology_read_s = self._monotonic_s()
        return shown

    def _topology_is_old(self) -> bool:
        read_s = self._topology_read_s
        return read_s is None or self._monotonic_s() - read_s > TOPOLOGY_MAX_AGE_S

    def _refresh_topology(self) -> None:
        try:
            self._shown()
        except Unreadable as why:
            self._topology_read_s = self._monotonic_s()
            _log.warning("the topology of the nodes stays as it was read last", why=str(why))

    def _reservations(self) -> dict[str, reading.Reservation]:
        source = "pyslurm reservations"
        return reading.reservations(reading.answer(self._read("reservations"), source), OURS, source)

    def _read(self, name: str, *arguments: object) -> bytes:
        try:
            return self._pyslurm(name, *arguments)
        except (Refused, Silent) as why:
            raise Unreadable(f"pyslurm {name}", str(why)) from why

    # --- the first latch: DRAIN ---

    def drain(self, nodes: Collection[str], mark: Mark, why: str) -> None:
        reason = drain_reason(mark, why)
        self._update_nodes(checked(nodes), "DRAIN", reason)

    def resume(self, nodes: Collection[str]) -> None:
        """RESUME. Slurm refuses it for a node that is not drained, after resuming the others: that is no failure."""
        names = checked(nodes)
        try:
            self._update_nodes(names, "RESUME", "")
        except _WriteRefused as refusal:
            if refusal.number != INVALID_NODE_STATE or any_drained(self._nodes_as_told, names):
                raise

    def _update_nodes(self, names: list[str], state: str, reason: str) -> None:
        if names:
            self._write("update_nodes", names, state, reason)

    def _nodes_as_told(self) -> dict[str, SlurmNode]:
        return reading.nodes(reading.answer(self._read("nodes"), "pyslurm nodes"), "pyslurm nodes")

    def _write(self, name: str, *arguments: object) -> None:
        try:
            self._pyslurm(name, *arguments)
        except Refused as why:
            raise _WriteRefused(f"pyslurm {name}: {why}", why.number) from why
        except Silent as why:
            raise CallFailed(f"pyslurm {name}: {why}, outcome unknown") from why

    # --- the second latch: the reservation ---

    def hold(self, nodes: Collection[str], reservation: str) -> None:
        self._latch.hold(nodes, reservation)

    def release(self, nodes: Collection[str], reservation: str) -> None:
        self._latch.release(nodes, reservation)

    def renew_reservations(self) -> tuple[str, ...]:
        return self._latch.renew()

    # --- what running jobs are told ---

    def signal(self, job: int, nodes: Collection[str], signal: str) -> None:
        """pyslurm knows jobs by number only: a task that bears its array's is told nothing while others of it live."""
        check_signal(signal)
        names = checked(nodes)
        found, is_alone = self._look_up(job)
        if found is None or not found.runs_on(names):
            return
        if found.address != str(job) and not is_alone:
            raise CallFailed(f"pyslurm cannot signal task {found.address} without all others of array {job}")
        target, _, name = signal.rpartition(":")
        try:
            self._write("signal", job, name, _STEPS[target])
        except _WriteRefused as refusal:
            if refusal.number not in GONE and not 0 < refusal.number < _SLURMS_OWN:
                raise

    def requeue(self, job: int, nodes: Collection[str]) -> None:
        names = checked(nodes)
        found, _ = self._look_up(job)
        if found is None or not found.runs_on(names):
            return
        found.check_may_requeue()
        if found.address == str(job):
            self._write("requeue", job)
        else:
            self._scontrol("requeue", found.address)

    def hasten(self, job: int) -> None:
        hasten(self._scontrol, self._look_up(job)[0])

    def _look_up(self, job: int) -> tuple[There | None, bool]:
        """What there is of it, and whether nothing else of its array lives."""
        check_id(job)
        try:
            answer = reading.answer(self._read("job", job), "pyslurm job")
            kin = reading.jobs(answer, "pyslurm job")
            return there(job, answer), all(found.id == job for found in kin if found.array == job)
        except Unreadable as error:
            raise CallFailed(str(error)) from error


class _WriteRefused(CallFailed):
    """Slurm answered and said no."""

    def __init__(self, words: str, number: int) -> None:
        super().__init__(words)
        self.number = number


def _with_gres(node: SlurmNode, shown: SlurmNode) -> SlurmNode:
    return replace(node, gpus=shown.gpus, features=node.features | shown.features)


def with_gpus_in_use(nodes: Mapping[str, SlurmNode], jobs: Collection[SlurmJob]) -> dict[str, SlurmNode]:
    """pyslurm tells the GPUs in use only where Slurm tracks them as a TRES: else they are what jobs there asked for."""
    asked = Counter[str]()
    for job in jobs:
        asked.update(dict.fromkeys(job.nodes, job.gpus_per_node))
    return {
        name: replace(node, gpus_used=max(node.gpus_used, min(node.gpus, asked[name]))) if asked[name] else node
        for name, node in nodes.items()
    }
