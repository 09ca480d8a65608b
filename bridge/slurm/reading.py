"""slurmrestd's JSON to the model's types. Pure, and tolerant of everything but doubt.

Slurm spells the same fact differently from release to release: a number is ``7`` or ``{set, infinite, number}``, a
state is a word with flags or a list, GPUs are ``gpu:h100:4(S:0-1)`` or ``gres/gpu=4``. Unknown fields are ignored and
unknown flags are kept, but an answer with errors, half an answer, or a record without name or state is `Unreadable`:
``FailClosed`` starts here. Written against data versions v0.0.40 to v0.0.45 and the plain shapes before them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson

from bridge.model import hostlists
from bridge.model.errors import Invalid, Unreadable
from bridge.model.slurm import SlurmJob, SlurmNode

Record = Mapping[str, Any]
_T = TypeVar("_T")

_UNKNOWN_NUMBERS = frozenset({0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 2**64 - 2, 2**64 - 1, -2})
"""How Slurm's C says "not set" and "infinite" in 16, 32 and 64 bits; old versions print them as they are."""

_NO_NODES = frozenset({"", "(null)", "None", "None assigned", "N/A"})
_OVER = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    }
)
_HOLDS_NODES = frozenset({"RUNNING", "CONFIGURING", "SIGNALING", "RESIZING", "STOPPED", "STAGE_OUT"})


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation as far as the bridge must know it. `ends_at` is None when it has no end."""

    name: str
    nodes: frozenset[str]
    flags: frozenset[str]
    users: frozenset[str]
    ends_at: datetime | None


# --- the answer as a whole ---


def answer(body: bytes, source: str) -> Record:
    """The decoded answer; `Unreadable` when it is not a JSON object or has something in ``errors``.

    slurmrestd says 200 also when it failed, so only ``errors`` tells (an unknown node has error_number 0).
    """
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Unreadable(source, f"answer is not whole JSON ({len(body)} bytes: {error})") from error
    if not isinstance(decoded, dict):
        raise Unreadable(source, "answer is not a JSON object")
    if decoded.get("errors"):
        raise Unreadable(source, errors_of(decoded))
    return decoded


def lenient(body: bytes) -> Record:
    """Whatever object the body holds, for its words only; empty when it holds none."""
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def errors_of(decoded: Record) -> str:
    """Slurm's own words for what went wrong, or an empty string."""
    errors = decoded.get("errors") or ()
    return "; ".join(_error_words(error) for error in errors) if isinstance(errors, list) else str(errors)


def error_numbers(decoded: Record) -> frozenset[int]:
    errors = decoded.get("errors") or ()
    numbers = (error.get("error_number") for error in errors if isinstance(error, dict))
    return frozenset(number for number in numbers if isinstance(number, int))


def _error_words(error: object) -> str:
    if not isinstance(error, dict):
        return str(error)
    words = [str(error[key]) for key in ("description", "error") if error.get(key) not in (None, "", "No error")]
    number = error.get("error_number", error.get("error_code"))
    return ": ".join(words or ["unnamed error"]) + (f" ({number})" if number else "")


def records(decoded: Record, kind: str, source: str) -> list[Record]:
    """The list under `kind`; `Unreadable` when it is missing or holds anything but objects."""
    found = decoded.get(kind)
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise Unreadable(source, f"answer has no list of {kind}")
    return found


def _each(decoded: Record, kind: str, source: str, read: Callable[[Record], _T]) -> list[_T]:
    """Every record read, or `Unreadable` naming the one that could not be."""
    done = []
    for record in records(decoded, kind, source):
        try:
            done.append(read(record))
        except (Invalid, ArithmeticError, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            who = record.get("name") or record.get("job_id") or "a record"
            raise Unreadable(source, f"{who} in {kind} makes no sense: {error!r}") from error
    return done


# --- values ---


def number(value: object) -> float | None:
    """A plain number or a ``{set, infinite, number}`` triple; None when it is unset or infinite."""
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _UNKNOWN_NUMBERS:
        return None
    return value


def _count(value: object, default: int = 0) -> int:
    found = number(value)
    return default if found is None else int(found)


def _time(value: object) -> datetime | None:
    seconds = number(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None and seconds > 0 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object) -> frozenset[str]:
    """A list of words, or one text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
    return frozenset(str(part).strip() for part in parts if str(part).strip())


def flags(*values: object) -> frozenset[str]:
    """State flags in capitals, from a list, or from the older ``IDLE+DRAIN`` and ``DOWN*`` spellings."""
    found: set[str] = set()
    for value in values:
        for text in value if isinstance(value, list) else [value] if isinstance(value, str) else ():
            for word in str(text).strip().upper().split("+"):
                if word.endswith("*"):
                    found.add("NOT_RESPONDING")
                found.add(word.rstrip("*"))
    found.discard("")
    return frozenset(found)


_GPU = re.compile(
    r"(?:gres[/:])?gpu(?P<type>:(?!\d+(?:\(|$))[^:=()]+)?(?:[:=](?P<count>\d+))?(?:\(.*\))?", re.IGNORECASE
)
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


def gpus(text: object) -> int:
    """GPUs in a Gres or TRES text; other resources in it are ignored.

    In a TRES text (``gres/gpu=8,gres/gpu:h100=8``) the typed entries are part of the untyped one; in a Gres text
    (``gpu:h100:4,gpu:a100:2``) they are different devices.
    """
    total_of_all: int | None = None
    total = 0
    for entry in _COMMA_OUTSIDE_PARENTHESES.split(_text(text)):
        found = _GPU.fullmatch(entry.strip().replace(":no_consume", ""))
        if found is None:
            continue
        amount = int(found["count"] or 1)
        if "=" in entry and found["type"] is None:
            total_of_all = amount
        total += amount
    return total if total_of_all is None else total_of_all


# --- nodes, reservations, slurmctld ---


def nodes(decoded: Record, source: str = "Slurm nodes") -> dict[str, SlurmNode]:
    """All nodes of a ``/nodes/`` or ``/node/…`` answer, by name."""
    return {node.name: node for node in _each(decoded, "nodes", source, _node)}


def _node(record: Record) -> SlurmNode:
    states = flags(record.get("state"), record.get("state_flags"))
    if not record["name"] or not states:
        raise ValueError("a node needs a name and a state")
    return SlurmNode(
        name=str(record["name"]),
        states=states,
        gpus=gpus(record.get("gres")),
        gpus_used=max(gpus(record.get("gres_used")), gpus(record.get("tres_used"))),
        reason=_text(record.get("reason")),
        reason_user=_text(record.get("reason_set_by_user")),
        reason_set_at=_time(record.get("reason_changed_at")),
        partitions=_words(record.get("partitions")),
        features=_words(record.get("active_features") or record.get("features")),
        slurmd_started_at=_time(record.get("slurmd_start_time")),
    )


def reservations(decoded: Record, prefix: str, source: str = "Slurm reservations") -> dict[str, Reservation]:
    """The reservations whose name starts with `prefix`, by name. What others write into theirs cannot harm us."""

    def read(record: Record) -> Reservation | None:
        return _reservation(record) if str(record["name"]).startswith(prefix) else None

    found = _each(decoded, "reservations", source, read)
    return {reservation.name: reservation for reservation in found if reservation is not None}


def _reservation(record: Record) -> Reservation:
    return Reservation(
        name=str(record["name"]),
        nodes=frozenset(_node_names(record.get("node_list"))),
        flags=flags(record.get("flags")),
        users=_words(record.get("users")),
        ends_at=_time(record.get("end_time")),
    )


def _node_names(value: object) -> tuple[str, ...]:
    text = _text(value)
    return () if text in _NO_NODES else hostlists.expand([text])


def uptime_s(decoded: Record, source: str = "Slurm diag") -> float | None:
    """From a ``/diag/`` answer: seconds since slurmctld began to count, on its own clock, so that clocks may differ.

    It begins anew at a restart, at midnight UTC and at ``sdiag --reset``: a restart is never missed, and a few seconds
    a day slurmctld looks restarted when it is not, which only makes the bridge wait. For the first half second of its
    life slurmctld says that it began at 0. None: this server does not tell.
    """
    statistics = decoded.get("statistics")
    if not isinstance(statistics, dict):
        raise Unreadable(source, "answer has no statistics")
    if "req_time_start" not in statistics:
        return None
    asked, began = number(statistics.get("req_time")), number(statistics["req_time_start"])
    return max(0.0, asked - began) if asked and began else 0.0


# --- jobs ---


@dataclass(frozen=True, slots=True)
class QueueStates:
    """A ``/jobs/state/`` answer: what every live job record shows, and how many rows are over.

    Keys are job ids as in ``/job/<id>``: a running task or a het component has its own (``16_0`` and ``11+1`` are jobs
    16 and 11), the pending tasks of an array share the array's. Each word is ``<id as Slurm spells it> <flag>``. Two
    equal values mean that nothing changed.
    """

    live: Mapping[int, frozenset[str]]
    over: int


def queue_states(decoded: Record, source: str = "Slurm job states") -> QueueStates:
    live: dict[int, set[str]] = {}
    over = 0

    def read(record: Record) -> None:
        nonlocal over
        spelled = str(record["job_id"])
        states = flags(record.get("state") or record.get("job_state"))
        if not states:
            raise ValueError("a job needs a state")
        if _is_over(states):
            over += 1
            return
        id = int(re.split(r"[_+]", spelled, maxsplit=1)[0])
        live.setdefault(id, set()).update(f"{spelled} {state}" for state in states)

    _each(decoded, "jobs", source, read)
    return QueueStates({id: frozenset(words) for id, words in live.items()}, over)


def jobs(decoded: Record, source: str = "Slurm jobs") -> tuple[SlurmJob, ...]:
    """The jobs that are not over, with what a throttled array may start now: its limit less its running tasks."""
    read = [job for job in _each(decoded, "jobs", source, _job) if job is not None]
    running = Counter(job.array for job in read if job.job.nodes)
    return tuple(
        replace(job.job, task_count=max(0, min(job.job.task_count, job.throttle - running[job.array])))
        if job.throttle and not job.job.nodes
        else job.job
        for job in read
    )


@dataclass(frozen=True, slots=True)
class _ArrayJob:
    """A job with what only its siblings can make sense of: its array's id and ``%`` limit (0: none)."""

    job: SlurmJob
    array: int
    throttle: int


def _is_over(states: frozenset[str]) -> bool:
    return bool(states & _OVER) and not states & (_HOLDS_NODES | {"COMPLETING", "PENDING", "SUSPENDED"})


def _state(states: frozenset[str]) -> str:
    """The one word that says what the job does to its nodes. An unknown one is kept as Slurm spells it."""
    if "COMPLETING" in states:
        return "COMPLETING"
    if "SUSPENDED" in states:
        return "SUSPENDED"
    if states & _HOLDS_NODES:
        return "RUNNING"
    return "PENDING" if "PENDING" in states else "+".join(sorted(states))


def _job(record: Record) -> _ArrayJob | None:
    record = _as_slurmctld_says(record)
    states = flags(record.get("job_state"))
    if not states:
        raise ValueError("a job needs a state")
    if _is_over(states):
        return None
    state = _state(states)
    pending = state == "PENDING"
    node_count = max(1, _count(record.get("node_count"), 1))
    limit_min = number(record.get("time_limit"))
    waits_for = _text(record.get("state_reason"))
    job = SlurmJob(
        id=int(record["job_id"]),
        state=state,
        user=str(record.get("user_name") or record.get("user_id") or ""),
        account=_text(record.get("account")),
        partition=_text(record.get("partition")),
        name=_text(record.get("name")),
        priority=_count(record.get("priority")),
        node_count=node_count,
        gpus_per_node=_gpus_per_node(record, node_count),
        nodes=_node_names(record.get("nodes")),
        waits_for=waits_for,
        submitted_at=_time(record.get("submit_time")),
        begins_at=_time(record.get("eligible_time")),
        started_at=None if pending else _time(record.get("start_time")),
        ends_at=None if pending else _time(record.get("end_time")),
        time_limit_s=None if limit_min is None else limit_min * 60,
        features=_text(record.get("features")),
        exclusive=bool({"none", "true"} & (_words(record.get("shared")) | _words(record.get("exclusive")))),
        may_requeue=bool(record.get("requeue")) and bool(record.get("batch_flag")),
        held=pending and (record.get("hold") is True or waits_for.startswith("JobHeld")),
        task_count=_tasks(_text(record.get("array_task_string"))) if pending else 1,
        het_job=_count(record.get("het_job_id")) or None,
        admin_comment=_text(record.get("admin_comment")),
    )
    return _ArrayJob(job, _count(record.get("array_job_id")), _count(record.get("array_max_tasks")))


def _as_slurmctld_says(record: Record) -> Record:
    """An accounting record (slurmdb) in slurmctld's field names; slurmctld's own records pass unchanged."""
    state = record.get("state")
    if "job_state" in record or not isinstance(state, dict):
        return record
    times, array = record.get("time") or {}, record.get("array") or {}
    return {
        **record,
        "job_state": state.get("current"),
        "state_reason": state.get("reason"),
        "node_count": record.get("allocation_nodes"),
        "user_name": record.get("user"),
        "features": record.get("constraints"),
        "admin_comment": (record.get("comment") or {}).get("administrator"),
        "array_job_id": array.get("job_id"),
        "het_job_id": (record.get("het") or {}).get("job_id"),
        "time_limit": times.get("limit"),
        "submit_time": times.get("submission"),
        "eligible_time": times.get("eligible"),
        "start_time": times.get("start"),
        "end_time": times.get("end"),
    }


def _gpus_per_node(record: Record, node_count: int) -> int:
    """GPUs the job asks on each node: the largest of what its ``--gpus…`` options come to, rounded up.

    The total in ``tres_req_str`` counts only where no option is readable: many sites do not track GPUs as a TRES.
    """
    tasks = max(1, _count(record.get("tasks"), 1))
    tasks_per_node = _count(record.get("tasks_per_node")) or math.ceil(tasks / node_count)
    sockets = _count(record.get("sockets_per_node")) or 1
    asked = max(
        gpus(record.get("tres_per_node")),
        math.ceil(gpus(record.get("tres_per_job")) / node_count),
        gpus(record.get("tres_per_socket")) * sockets,
        gpus(record.get("tres_per_task")) * tasks_per_node,
    )
    return asked or math.ceil(gpus(record.get("tres_req_str")) / node_count)


_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def _tasks(text: str) -> int:
    """How many tasks ``0-99:2,107%4`` stands for; 1 for a job that is no array. Slurm may cut long ones (``…``)."""
    count = 0
    for first, last, step in _TASKS.findall(text.split("%")[0]):
        count += (int(last) - int(first)) // int(step or 1) + 1 if last else 1
    return max(1, count)
