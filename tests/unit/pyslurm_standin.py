"""A module in the place of pyslurm 25.11, with the signatures of the part that the bridge uses, on the simulated Slurm.

Written from the signatures and the behaviour of the sdist: `SIGNATURES` is what was read there.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from bridge.model.errors import CallFailed, Unreadable
from bridge.model.slurm import SlurmJob, SlurmNode
from bridge.simulation.slurm import SimulatedSlurm
from bridge.slurm import pyslurm_calls
from bridge.slurm.pyslurm_process import outcome

SIGNATURES = {
    "Node.__init__": "(self, name=None, **kwargs)",
    "Nodes.__init__": "(self, nodes=None)",
    "Nodes.load": "(preload_passwd_info=False)",
    "Nodes.modify": "(self, changes)",
    "Nodes.values": "(self)",
    "Job.__init__": "(self, job_id)",
    "Job.send_signal": "(self, signal, steps='children', hurry=False)",
    "Job.requeue": "(self, hold=False)",
    "Jobs.load": "(preload_passwd_info=False, frozen=False)",
    "Jobs.values": "(self)",
    "Reservations.load": "()",
    "Reservations.values": "(self)",
    "slurmctld.Statistics.load": "()",
    "RPCError.__init__": "(self, errno=-1, msg=None)",
}

COMMUNICATION_FAILED, INVALID_NODE_NAME, INVALID_NODE_STATE, DISABLED = 1800, 2018, 2028, 2062
INVALID_JOB_ID, ALREADY_DONE = 2017, 2021


class Record:
    """A record of pyslurm: it has exactly these attributes, unset ones being None."""

    def __init__(self, names: tuple[str, ...], **values: Any) -> None:
        assert values.keys() <= set(names)
        self.__dict__.update({**dict.fromkeys(names), **values})


class RPCError(Exception):
    def __init__(self, errno=-1, msg=None):  # type: ignore[no-untyped-def]
        self.errno = errno
        self.msg = msg or f"Slurm error {errno}"
        super().__init__(self.msg)


class ReservationFlags(enum.Flag):
    MAINTENANCE = enum.auto()
    IGNORE_RUNNING_JOBS = enum.auto()
    SPECIFIC_NODES = enum.auto()


def make(slurm: SimulatedSlurm) -> Any:
    """The module. It acts as user ``bridge``."""

    class _Map:
        def __init__(self, data: list[Any]) -> None:
            self.data = data

        def values(self):  # type: ignore[no-untyped-def]
            return iter(self.data)

    class Node:
        def __init__(self, name=None, **kwargs):  # type: ignore[no-untyped-def]
            assert kwargs.keys() <= {"state", "reason", "comment", "extra"}
            self.name, self.changes = name, kwargs

    class Nodes(_Map):
        def __init__(self, nodes=None):  # type: ignore[no-untyped-def]
            super().__init__([Node(name) if isinstance(name, str) else name for name in nodes or ()])

        @staticmethod
        def load(preload_passwd_info=False):  # type: ignore[no-untyped-def]
            return Nodes([_node(node) for node in _seen().nodes.values()])

        def modify(self, changes):  # type: ignore[no-untyped-def]
            known = _seen().nodes
            if not {node.name for node in self.data} <= known.keys():
                raise RPCError(INVALID_NODE_NAME)
            drained = {name for name, node in known.items() if "DRAIN" in node.states}
            for node in self.data:
                if changes.changes["state"] == "DRAIN":
                    slurm.admin_drain(node.name, changes.changes["reason"], user="bridge")
                elif node.name in drained:
                    slurm.admin_resume(node.name)
            if changes.changes["state"] == "RESUME" and not drained >= {node.name for node in self.data}:
                raise RPCError(INVALID_NODE_STATE)

        values = _Map.values

    class Job:
        def __init__(self, job_id):  # type: ignore[no-untyped-def]
            self.id = job_id

        def send_signal(self, signal, steps="children", hurry=False):  # type: ignore[no-untyped-def]
            assert (signal[:3], hurry) == ("SIG", False)
            target = {"all": "", "batch": "B:", "children": "S:"}[steps]
            slurm.signal(self.id, _where(self.id), f"{target}{signal[3:]}")

        def requeue(self, hold=False):  # type: ignore[no-untyped-def]
            try:
                slurm.requeue(self.id, _where(self.id))
            except CallFailed:
                raise RPCError(DISABLED) from None

    class Jobs(_Map):
        @staticmethod
        def load(preload_passwd_info=False, frozen=False):  # type: ignore[no-untyped-def]
            return Jobs([_job(job) for job in _seen().jobs])

        values = _Map.values

    class Reservations(_Map):
        @staticmethod
        def load():  # type: ignore[no-untyped-def]
            _seen()
            return Reservations([_reservation(name, nodes) for name, nodes in slurm._reservations.items()])

        values = _Map.values

    class Statistics:
        @staticmethod
        def load():  # type: ignore[no-untyped-def]
            seen = _seen()
            now_s = int(seen.read_at.timestamp())
            return Record(
                pyslurm_calls.STATISTICS, request_time=now_s, data_since=now_s - int(seen.controller_up_s or 0)
            )

    def _seen():  # type: ignore[no-untyped-def]
        try:
            return slurm.observe()
        except Unreadable:
            raise RPCError(COMMUNICATION_FAILED) from None

    def _where(id: int) -> tuple[str, ...]:
        nodes = {job.id: job.nodes for job in _seen().jobs}
        if id not in nodes:
            raise RPCError(INVALID_JOB_ID)
        return nodes[id]

    def _reservation(name: str, nodes: set[str]) -> Record:
        flags = ReservationFlags.MAINTENANCE | ReservationFlags.IGNORE_RUNNING_JOBS | ReservationFlags.SPECIFIC_NODES
        end_s = _seconds(_seen().read_at + timedelta(days=365))
        listed = ",".join(sorted(nodes))
        return Record(pyslurm_calls.RESERVATION, name=name, nodes=listed, flags=flags, users=["bridge"], end_time=end_s)

    return SimpleNamespace(
        Job=Job,
        Jobs=Jobs,
        Node=Node,
        Nodes=Nodes,
        ReservationFlags=ReservationFlags,
        Reservations=Reservations,
        RPCError=RPCError,
        slurmctld=SimpleNamespace(Statistics=Statistics),
    )


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _node(node: SlurmNode) -> Record:
    base = node.states & {"IDLE", "ALLOCATED", "MIXED", "DOWN"}
    return Record(
        pyslurm_calls.NODE,
        name=node.name,
        state="+".join([*base, *sorted(node.states - base)]),
        configured_gres={"gpu": node.gpus},
        allocated_tres={"cpu": 8},
        reason=node.reason or None,
        reason_user=node.reason_user or None,
        reason_time=_seconds(node.reason_set_at),
        partitions=sorted(node.partitions),
        available_features=[],
        active_features=[],
        slurmd_start_time=_seconds(node.slurmd_started_at),
    )


def _job(job: SlurmJob) -> Record:
    waiting = f"0-{job.task_count - 1}" if job.array == job.id and job.state == "PENDING" else None
    return Record(
        pyslurm_calls.JOB,
        id=job.id,
        name=job.name,
        state=job.state,
        state_reason=job.waits_for,
        user_name=job.user,
        account=job.account,
        partition=job.partition,
        priority=job.priority,
        allocated_nodes=",".join(job.nodes) or None,
        num_nodes=job.node_count,
        ntasks=1,
        constraints=[],
        submit_time=_seconds(job.submitted_at),
        eligible_time=_seconds(job.begins_at),
        start_time=_seconds(job.started_at),
        end_time=_seconds(job.ends_at),
        time_limit=None if job.time_limit_s is None else int(job.time_limit_s / 60),
        resource_sharing="NO" if job.exclusive else "OK",
        is_requeueable=job.may_requeue,
        is_batch_job=True,
        requeue_count=job.restarts,
        heterogeneous_id=job.het_job,
        array_id=job.array,
        array_tasks_waiting=waiting,
        gres_per_node={"gres/gpu": job.gpus_per_node} if job.gpus_per_node else {},
    )


class InProcess:
    """`AsksPyslurm` without the process: for a stand-in that lives in this one."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def __call__(self, name: str, *arguments: object) -> bytes:
        self.calls.append((name, arguments))
        return outcome(*pyslurm_calls.answer(self.api, name, arguments))

    def close(self) -> None:
        pass


class StandInScontrol:
    """scontrol on the simulated Slurm, as far as the driver calls it."""

    def __init__(self, slurm: SimulatedSlurm) -> None:
        self._slurm = slurm
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str, says: str = "") -> str:
        self.calls.append(arguments)
        if arguments == ("--all", "show", "nodes"):
            return "\n\n".join(self._shown(node) for node in self._slurm.observe().nodes.values())
        values = dict(word.split("=", 1) for word in arguments if "=" in word)
        if "ReservationName" in values:
            self._reservation(arguments[0], values["ReservationName"], values)
        elif arguments[0] == "requeue":
            job = int(arguments[1].split("_")[0])
            self._slurm.requeue(job, self._slurm.job(job).nodes)
        else:
            assert (arguments[0], values["StartTime"]) == ("update", "now")
            self._slurm.hasten(int(values["JobId"].split("_")[0]))
        return f"{says}\n"

    @staticmethod
    def _shown(node: SlurmNode) -> str:
        return (
            f"NodeName={node.name} Arch=x86_64\n   Gres=gpu:h100:{node.gpus}(S:0-1)\n"
            f"   State={'+'.join(sorted(node.states))} Topology=core:leaf1\n"
        )

    def _reservation(self, verb: str, name: str, values: dict[str, str]) -> None:
        added = values.get("Nodes+", values.get("Nodes", ""))
        if added:
            unknown = set(added.split(",")) - self._slurm.observe().nodes.keys()
            if unknown:
                raise CallFailed(f"Invalid node name specified: {unknown}")
            self._slurm.admin_reserve(name, added.split(","))
        if "Nodes-" in values:
            self._slurm._unreserve(name, values["Nodes-"].split(","))
        if verb == "delete":
            self._slurm.admin_unreserve(name)
