"""What the bridge asks of pyslurm (25.11), each answer as JSON in slurmrestd's own words, so that `reading` reads both.

It runs in a process of its own (``python -m bridge.slurm.pyslurm_calls <file descriptor>``), see `pyslurm_process`.
pyslurm says less of a job than slurmrestd does, and its odd corners, found by reading it, are met here:

- A job's state is one word, its flag where it has one: a pending job may be called ``SPECIAL_EXIT``.
- A job's pending reason may be a sentence for people in the place of Slurm's word.
- ``tres_per_node``, ``tres_per_job`` and ``tres_per_socket`` are empty where Slurm writes ``gres/gpu:8``. The first is
  still in ``gres_per_node``; for the others there is the total, where Slurm tracks ``gres/gpu`` as a TRES.
- A node's Gres with a size (``min-vram:no_consume:32G``) is a `ValueError`: the driver asks ``scontrol`` then.
- Task 0 of an array has no task id.
- A text that is no UTF-8 is a `UnicodeDecodeError`, and users may name their jobs as they like.
- Flags of a reservation that it does not know are a `ValueError`: they are asked of the bridge's own only.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import orjson

from bridge.slurm.latch import OURS

API = {
    "": ("Job", "Jobs", "Node", "Nodes", "ReservationFlags", "Reservations", "RPCError", "slurmctld"),
    "Job": ("requeue", "send_signal"),
    "Jobs": ("load", "values"),
    "Nodes": ("load", "modify", "values"),
    "Reservations": ("load", "values"),
    "ReservationFlags": ("IGNORE_RUNNING_JOBS", "MAINTENANCE"),
    "slurmctld": ("Statistics",),
    "slurmctld.Statistics": ("load",),
}
"""All of pyslurm that is used, but for the attributes of its records."""

NODE = (
    *("name", "state", "configured_gres", "allocated_tres", "reason", "reason_user", "reason_time", "partitions"),
    *("available_features", "active_features", "slurmd_start_time"),
)
RESERVATION = ("name", "nodes", "flags", "users", "end_time")
STATISTICS = ("request_time", "data_since")
JOB = (
    *("id", "name", "state", "state_reason", "user_name", "account", "partition", "qos", "priority", "reservation"),
    *("allocated_nodes", "num_nodes", "ntasks", "ntasks_per_node", "sockets_per_node", "constraints"),
    *("submit_time", "eligible_time", "start_time", "end_time", "time_limit", "required_switches", "resource_sharing"),
    *("is_requeueable", "is_batch_job", "requeue_count", "heterogeneous_id", "admin_comment", "comment"),
    *("array_id", "array_task_id", "array_tasks_parallel", "array_tasks_waiting"),
    *("gres_per_node", "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task", "requested_tres"),
)
"""Attributes of pyslurm's records that are read."""

_OF_PENDING = frozenset({"REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "LAUNCH_FAILED", "RECONFIG_FAIL"})
"""Flags that pyslurm shows in the place of PENDING."""

_NODES_ARE_CLOSED = "Nodes required for job are DOWN"
"""Begins the sentence that Slurm has for a gang whose nodes are drained; its word for it is ``Resources``."""

_UNPARSED = (IndexError, KeyError, TypeError, ValueError)
"""What pyslurm's parsing of a text may raise."""


# --- reading ---


def nodes(api: Any) -> bytes:
    """``nodes``, and in ``without_gres`` the names of those whose Gres pyslurm could not read."""
    found = [_node(node) for node in api.Nodes.load().values()]
    return orjson.dumps({"nodes": found, "without_gres": [node["name"] for node in found if node["gres"] is None]})


def _node(node: Any) -> dict[str, object]:
    return {
        "name": node.name,
        "state": node.state,
        "gres": _parsed(lambda: _joined(node.configured_gres, ":")),
        "tres_used": _parsed(lambda: _joined(node.allocated_tres, "=")),
        "reason": _said(node, "reason"),
        "reason_set_by_user": node.reason_user or "",
        "reason_changed_at": node.reason_time or 0,
        "partitions": list(node.partitions or ()),
        "features": list(node.available_features or ()),
        "active_features": list(node.active_features or ()),
        "slurmd_start_time": node.slurmd_start_time or 0,
    }


def reservations(api: Any) -> bytes:
    return orjson.dumps({"reservations": [_reservation(api, found) for found in api.Reservations.load().values()]})


def _reservation(api: Any, found: Any) -> dict[str, object]:
    if not found.name.startswith(OURS):
        return {"name": found.name}
    words = {"MAINT": api.ReservationFlags.MAINTENANCE, "IGNORE_JOBS": api.ReservationFlags.IGNORE_RUNNING_JOBS}
    set_flags = found.flags
    return {
        "name": found.name,
        "node_list": found.nodes or "",
        "flags": [word for word, flag in words.items() if flag in set_flags],
        "users": list(found.users or ()),
        "end_time": found.end_time or 0,
    }


def diag(api: Any) -> bytes:
    found = api.slurmctld.Statistics.load()
    return orjson.dumps({"statistics": {"req_time": found.request_time, "req_time_start": found.data_since}})


def jobs(api: Any) -> bytes:
    return orjson.dumps({"jobs": [_job(job) for job in api.Jobs.load().values()]})


def job(api: Any, id: int) -> bytes:
    """The records of a job, of its array and of its het job. ``Job.load`` knows only the first of them."""
    kin = [found for found in api.Jobs.load().values() if id in (found.id, found.array_id, found.heterogeneous_id)]
    return orjson.dumps({"jobs": [_job(found) for found in kin]})


def _job(job: Any) -> dict[str, object]:
    return {
        "job_id": job.id,
        "name": _said(job, "name"),
        "job_state": _states(job),
        "state_reason": _reason(_said(job, "state_reason")),
        "user_name": job.user_name or "",
        "account": job.account or "",
        "partition": job.partition or "",
        "qos": job.qos or "",
        "resv_name": job.reservation or "",
        "priority": _number(job.priority),
        "nodes": job.allocated_nodes or "",
        "node_count": _number(job.num_nodes),
        "tasks": _number(job.ntasks),
        "tasks_per_node": _number(job.ntasks_per_node),
        "sockets_per_node": _number(job.sockets_per_node),
        "features": ",".join(job.constraints or ()),
        "shared": ["none"] if job.resource_sharing == "NO" else [],
        "submit_time": _number(job.submit_time),
        "eligible_time": _number(job.eligible_time),
        "start_time": _number(job.start_time),
        "end_time": _number(job.end_time),
        "time_limit": _number(job.time_limit),
        "required_switches": _number(job.required_switches),
        "requeue": bool(job.is_requeueable),
        "batch_flag": bool(job.is_batch_job),
        "restart_cnt": _number(job.requeue_count),
        "het_job_id": _number(job.heterogeneous_id),
        "admin_comment": _said(job, "admin_comment"),
        "comment": _said(job, "comment"),
        **_array(job),
        **_gpus(job),
    }


def _states(job: Any) -> list[str]:
    """UNKNOWN, and so in the way, where a flag of a pending job stands on one that has nodes."""
    if job.state not in _OF_PENDING:
        return [job.state] if job.state else []
    return [job.state, "UNKNOWN" if job.allocated_nodes else "PENDING"]


def _reason(said: str) -> str:
    return "Resources" if said.startswith(_NODES_ARE_CLOSED) else said


def _array(job: Any) -> dict[str, object]:
    is_task = job.array_id and not job.array_tasks_waiting
    return {
        "array_job_id": _number(job.array_id),
        "array_task_id": (_number(job.array_task_id) or 0) if is_task else None,
        "array_max_tasks": _number(job.array_tasks_parallel),
        "array_task_string": job.array_tasks_waiting or "",
    }


def _gpus(job: Any) -> dict[str, object]:
    return {
        "tres_per_node": _parsed(lambda: _joined(job.gres_per_node, ":")) or _tres(job, "tres_per_node"),
        "tres_per_job": _tres(job, "tres_per_job"),
        "tres_per_socket": _tres(job, "tres_per_socket"),
        "tres_per_task": _tres(job, "tres_per_task"),
        "tres_req_str": _tres(job, "requested_tres"),
    }


def _tres(job: Any, name: str) -> str:
    return _parsed(lambda: _joined(_counts(getattr(job, name)), "=", "gres/")) or ""


def _counts(tres: Any) -> dict[str, object]:
    return {} if tres is None else {name: found.count for name, found in tres.gres.items()}


def _said(record: Any, name: str) -> str:
    """What somebody wrote; U+FFFD for what is no text."""
    try:
        return getattr(record, name) or ""
    except UnicodeDecodeError:
        return "\ufffd"


def _parsed(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except _UNPARSED:
        return None


def _joined(counts: Mapping[str, object] | None, sign: str, prefix: str = "") -> str:
    """``gpu:h100:8`` or ``gres/gpu=8``. A count may be one with the indexes of what it counts."""
    return ",".join(
        f"{prefix}{name}{sign}{count['count'] if isinstance(count, Mapping) else count}"
        for name, count in (counts or {}).items()
    )


def _number(value: object) -> int | None:
    """None for what is unset, and for pyslurm's word for what has no end."""
    return value if isinstance(value, int) else None


# --- writing ---


def update_nodes(api: Any, names: Sequence[str], state: str, reason: str) -> None:
    """One call for all of them."""
    change = api.Node(state=state, reason=reason) if reason else api.Node(state=state)
    api.Nodes(list(names)).modify(change)


def signal(api: Any, id: int, name: str, steps: str) -> None:
    """To ``all`` of it, to the ``batch`` script alone, or to its ``children`` alone."""
    api.Job(id).send_signal(f"SIG{name}", steps=steps)


def requeue(api: Any, id: int) -> None:
    api.Job(id).requeue()


CALLS: Mapping[str, Callable[..., bytes | None]] = {
    call.__name__: call for call in (nodes, reservations, diag, jobs, job, update_nodes, signal, requeue)
}


# --- the process ---


def answer(api: Any, name: str, arguments: Iterable[object]) -> tuple[str, object]:
    """``("done", bytes or None)``, ``("refused", (error number, words))`` by Slurm, or ``("failed", words)``."""
    try:
        return "done", CALLS[name](api, *arguments)
    except api.RPCError as why:
        return "refused", (why.errno if isinstance(why.errno, int) else 0, str(why) or "no words")
    except Exception as why:  # whatever a binding of a C library may raise
        return "failed", f"{type(why).__name__}: {why}"


def serve(pipe: Connection) -> None:
    """Answer one call after the other, until nobody is there any more to ask."""
    api, failed = None, ""
    try:
        api = importlib.import_module("pyslurm")
    except Exception as why:
        failed = f"pyslurm could not be imported: {type(why).__name__}: {why}"
    while True:
        try:
            name, arguments = pipe.recv()
            pipe.send(("failed", failed) if failed else answer(api, name, arguments))
        except (EOFError, ConnectionError):
            return


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
