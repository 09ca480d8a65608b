"""slurmrestd's JSON to the model's types. Pure, and tolerant of everything but doubt.

Slurm spells the same fact differently from release to release: a number is ``7`` or ``{set, infinite, number}``, a
state is a word with flags or a list, GPUs are ``gpu:h100:4(S:0-1)`` or ``gres/gpu=4``. Unknown fields are ignored and
unknown flags are kept, but an answer with errors, half an answer, or a record without what proves anything (its name,
its state, where it runs) is `Unreadable`, in words that name record and field: ``FailClosed`` starts here. What users
may write into a record blinds nobody, be it bytes that are no text or a time limit of eight thousand years. Written
against data versions v0.0.40 to v0.0.45 and the plain shapes before them.

A long queue is 8 kB a job of which the bridge wants a tenth. So jobs are first decoded by their known shape into
`_Raw`, which skips the rest; an answer of any other shape is decoded whole and put into the same `_Raw`, whatever is in
it. What the fields mean is read from there in one place, which doubts everything.
"""

from __future__ import annotations

import gc
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from sys import intern
from typing import Annotated, Any, TypeVar

import msgspec
import orjson

from bridge.model import hostlists
from bridge.model.errors import Invalid, Unreadable
from bridge.model.slurm import GPU_TYPE, SlurmJob, SlurmNode

Record = Mapping[str, Any]
_T = TypeVar("_T")

_UNKNOWN_NUMBERS = frozenset({0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 2**64 - 2, 2**64 - 1, -2})
"""How Slurm's C says "not set" and "infinite" in 16, 32 and 64 bits; old versions print them as they are."""
_LEAST_UNKNOWN = 0xFFFE

_NO_NODES = frozenset({"", "(null)", "None", "None assigned", "N/A"})
_OVER = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    }
)
_MAY_STAND_BESIDE = frozenset(
    {
        *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "UPDATE_DB", "POWER_UP_NODE"),
        "EXPEDITING",
    }
)
"""Flags of a job that is over all the same. One that we do not know may mean that some of it is still there."""
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
        decoded = _decoded(body)
    except orjson.JSONDecodeError as error:
        raise Unreadable(source, f"answer is not whole JSON ({len(body)} bytes: {error})") from error
    if not isinstance(decoded, dict):
        raise Unreadable(source, "answer is not a JSON object")
    if decoded.get("errors"):
        raise Unreadable(source, errors_of(decoded))
    return decoded


def _decoded(body: bytes) -> Any:
    """slurmrestd passes on the bytes of names and comments as users wrote them: what is no UTF-8 becomes U+FFFD."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        readable = body.decode("utf-8", "replace").encode()
        if readable == body:
            raise
        return orjson.loads(readable)


def lenient(body: bytes) -> Record:
    """Whatever object the body holds, for its words only; empty when it holds none."""
    try:
        decoded = _decoded(body)
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
            raise Unreadable(source, f"{who!s:.60} in {kind} makes no sense: {error!r}") from error
    return done


# --- values ---


class _Number(msgspec.Struct, gc=False):
    """Slurm's triple, decoded by its shape."""

    set: bool = False
    infinite: bool = False
    number: int | float = 0


def number(value: object) -> float | None:
    """A plain number or a ``{set, infinite, number}`` triple; None when it is unset or infinite."""
    if type(value) is _Number:
        value = value.number if value.set and not value.infinite else None
    elif isinstance(value, dict):
        if value.get("infinite") or not value.get("set"):
            return None
        value = value.get("number")
    if type(value) is int and 0 <= value < _LEAST_UNKNOWN:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _UNKNOWN_NUMBERS:
        return None
    return value


def _count(value: object, default: int = 0) -> int:
    found = number(value)
    return default if found is None else int(found)


_LAST_SECOND = datetime.max.replace(tzinfo=UTC).timestamp()


def _time(value: object) -> datetime | None:
    """None for a time that is not set, or after the year 9999, where a long enough ``--time`` ends."""
    seconds = number(value)
    if seconds is None or seconds <= 0:
        return None
    if seconds >= 2**63:
        raise ValueError(f"{seconds!r} is no time")
    return datetime.fromtimestamp(seconds, UTC) if seconds < _LAST_SECOND else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _told(record: Record, field: str) -> str | None:
    """A text that must be one where it is told at all; None where it is not."""
    value = record.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field} is {value!r:.40}, not a text")
    return value


def _name(record: Record) -> str:
    name = _told(record, "name")
    if not name:
        raise ValueError("it has no name")
    return name


def _words(value: object) -> frozenset[str]:
    """A list of words, or one text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
    return frozenset(str(part).strip() for part in parts if str(part).strip())


def flags(*values: object) -> frozenset[str]:
    """State flags in capitals, from a list, or from the older ``IDLE+DRAIN`` and ``DOWN*`` spellings."""
    texts: list[str] = []
    for value in values:
        if isinstance(value, list):
            texts += map(str, value)
        elif isinstance(value, str):
            texts.append(value)
    return _flags(tuple(texts))


@lru_cache(maxsize=4096)
def _flags(texts: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    for text in texts:
        for word in text.strip().upper().split("+"):
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
    return _gpus(text)[0] if isinstance(text, str) and text else 0


@lru_cache(maxsize=4096)
def _gpus(text: str) -> tuple[int, frozenset[str]]:
    """How many, and of which types as far as it tells."""
    total_of_all: int | None = None
    total = 0
    types: set[str] = set()
    for entry in _COMMA_OUTSIDE_PARENTHESES.split(text):
        found = _GPU.fullmatch(entry.strip().replace(":no_consume", ""))
        if found is None:
            continue
        amount = int(found["count"] or 1)
        if found["type"] is not None:
            types.add(found["type"].removeprefix(":"))
        elif "=" in entry:
            total_of_all = amount
        total += amount
    return total if total_of_all is None else total_of_all, frozenset(types)


# --- nodes, reservations, slurmctld ---


def nodes(decoded: Record, source: str = "Slurm nodes") -> dict[str, SlurmNode]:
    """All nodes of a ``/nodes/`` or ``/node/…`` answer, by name."""
    return {node.name: node for node in _each(decoded, "nodes", source, _node)}


def _node(record: Record) -> SlurmNode:
    states = flags(record.get("state"), record.get("state_flags"))
    if not states:
        raise ValueError("a node needs a state")
    return SlurmNode(
        name=_name(record),
        states=states,
        gpus=gpus(_told(record, "gres")),
        gpus_used=max(gpus(record.get("gres_used")), gpus(record.get("tres_used"))),
        reason=_told(record, "reason") or "",
        reason_user=_text(record.get("reason_set_by_user")),
        reason_set_at=_time(record.get("reason_changed_at")),
        partitions=_words(record.get("partitions")),
        features=_words(record.get("active_features") or record.get("features")) | _gpu_types(record.get("gres")),
        slurmd_started_at=_time(record.get("slurmd_start_time")),
        topology=_text(record.get("topology")),
    )


def _gpu_types(gres: object) -> frozenset[str]:
    """``gpu:h100`` for each type of GPU that the node tells, as a feature that a job may ask for."""
    return frozenset(f"{GPU_TYPE}{type}" for type in _gpus(_text(gres))[1])


def reservations(decoded: Record, prefix: str, source: str = "Slurm reservations") -> dict[str, Reservation]:
    """The reservations whose name starts with `prefix`, by name. What others write into theirs cannot harm us."""

    def read(record: Record) -> Reservation | None:
        return _reservation(record) if _name(record).startswith(prefix) else None

    found = _each(decoded, "reservations", source, read)
    return {reservation.name: reservation for reservation in found if reservation is not None}


def _reservation(record: Record) -> Reservation:
    return Reservation(
        name=_name(record),
        nodes=frozenset(_node_names(_told(record, "node_list"))),
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


def states(decoded: Record, source: str = "Slurm job states") -> list[tuple[int, frozenset[str]]]:
    """The rows of a ``/jobs/state/`` answer: a job's id, and its words, none when it is over.

    The id is the one in ``/job/<id>``: a running task or a het component has its own (``16_0`` and ``11+1`` are jobs 16
    and 11), the pending tasks of an array share the array's. Each word is ``<id as Slurm spells it> <flag>``.
    """
    return _each(decoded, "jobs", source, _states)


def _states(record: Record) -> tuple[int, frozenset[str]]:
    spelled = str(record.get("job_id"))
    states = flags(record.get("state") or record.get("job_state"))
    if not states:
        raise ValueError("a job needs a state")
    id = _job_id(re.split(r"[_+]", spelled, maxsplit=1)[0])
    return id, frozenset() if _is_over(states) else frozenset(f"{spelled} {state}" for state in states)


def _job_id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).isdecimal():
        raise ValueError(f"job_id is {value!r:.40}, not a number")
    return int(value)


class _Raw(msgspec.Struct, gc=False, kw_only=True):
    """The fields of a job record that the bridge reads, under Slurm's names, in the shape of today's data versions.

    The decoder holds records to these types and is fastest where the order is Slurm's. A record of any other shape is
    put in here as far as it goes, see `_any_job`.
    """

    account: str | None = None
    admin_comment: str | None = None
    array_job_id: _Number | int | None = None
    array_max_tasks: _Number | int | None = None
    array_task_string: str | None = None
    batch_flag: bool | None = None
    comment: str | None = None
    eligible_time: _Number | int | None = None
    end_time: _Number | int | None = None
    features: str | None = None
    het_job_id: _Number | int | None = None
    job_id: Annotated[int, msgspec.Meta(ge=0)]
    job_state: list[str]
    name: str | None = None
    nodes: str | None = None
    tasks_per_node: _Number | int | None = None
    node_count: _Number | int | None = None
    tasks: _Number | int | None = None
    partition: str | None = None
    hold: bool | None = None
    priority: _Number | int | None = None
    qos: str | None = None
    required_switches: _Number | int | None = None
    requeue: bool | None = None
    restart_cnt: _Number | int | None = None
    resv_name: str | None = None
    shared: list[str] | None = None
    exclusive: list[str] | None = None
    sockets_per_node: _Number | int | None = None
    start_time: _Number | int | None = None
    state_reason: str | None = None
    submit_time: _Number | int | None = None
    time_limit: _Number | int | None = None
    tres_per_job: str | None = None
    tres_per_node: str | None = None
    tres_per_socket: str | None = None
    tres_per_task: str | None = None
    tres_req_str: str | None = None
    user_id: _Number | int | str | None = None
    user_name: str | None = None


class _RawJobs(msgspec.Struct, gc=False):
    jobs: list[_Raw]
    errors: list[Any] = []


_OF_TODAY = msgspec.json.Decoder(_RawJobs)


def decode_jobs(body: bytes, source: str = "Slurm jobs") -> tuple[SlurmJob, ...]:
    """`jobs` of the answer in `body`, about four times as fast as `answer` and `jobs` where its shape is today's."""
    try:
        with collecting_later():
            decoded = _OF_TODAY.decode(body)
            if not decoded.errors:
                return _with_throttles([(raw, job) for raw in decoded.jobs if (job := _job(raw)) is not None])
    except (msgspec.MsgspecError, Invalid, ArithmeticError, OSError, TypeError, ValueError):
        pass  # the slow way finds the words for it, or reads it after all
    return jobs(answer(body, source), source)


@contextmanager
def collecting_later() -> Iterator[None]:
    """Without garbage collection: it would walk a hundred thousand new jobs again and again, a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def jobs(decoded: Record, source: str = "Slurm jobs") -> tuple[SlurmJob, ...]:
    """The jobs that are not over, with what a throttled array may start now: its limit less its running tasks."""
    return _with_throttles([job for job in _each(decoded, "jobs", source, _any_job) if job is not None])


def _with_throttles(read: list[tuple[_Raw, SlurmJob]]) -> tuple[SlurmJob, ...]:
    """Their ``%`` limit is told of arrays only, which are few, and only their siblings can make sense of it."""
    limited = {raw.job_id: limit for raw, job in read if (limit := _count(raw.array_max_tasks)) and not job.nodes}
    running = Counter(job.array or 0 for _, job in read if job.nodes) if limited else Counter[int]()
    return tuple(
        replace(job, task_count=max(0, min(job.task_count, limited[job.id] - running[job.array or 0])))
        if job.id in limited and not job.nodes
        else job
        for _, job in read
    )


def _is_over(states: frozenset[str]) -> bool:
    return bool(states & _OVER) and states <= _OVER | _MAY_STAND_BESIDE


@lru_cache(maxsize=4096)
def _state(states: frozenset[str]) -> str:
    """The one word that says what the job does to its nodes, empty when it is over. An unknown one is kept as it is."""
    if _is_over(states):
        return ""
    if "COMPLETING" in states:
        return "COMPLETING"
    if "SUSPENDED" in states:
        return "SUSPENDED"
    if states & _HOLDS_NODES:
        return "RUNNING"
    return "PENDING" if "PENDING" in states else "+".join(sorted(states))


_TEXTS = frozenset(
    {
        *("state_reason", "user_name", "account", "partition", "qos", "name", "tres_per_node", "tres_per_job"),
        *("tres_per_socket", "tres_per_task", "tres_req_str", "features", "resv_name", "array_task_string"),
        *("admin_comment", "comment"),
    }
)
_LISTS = frozenset({"shared", "exclusive"})
_FIELDS = tuple(field for field in _Raw.__struct_fields__ if field not in ("job_id", "job_state", "nodes"))


def _any_job(record: Record) -> tuple[_Raw, SlurmJob] | None:
    record = _as_slurmctld_says(record)
    raw = _Raw(job_id=_job_id(record.get("job_id")), job_state=list(flags(record.get("job_state"))))
    raw.nodes = _told(record, "nodes")
    for field in _FIELDS:
        value = record.get(field)
        setattr(raw, field, _text(value) if field in _TEXTS else list(_words(value)) if field in _LISTS else value)
    job = _job(raw)
    return None if job is None else (raw, job)


def _job(raw: _Raw) -> SlurmJob | None:
    """None when it is over. Texts are texts here; a number may still be anything."""
    states = _flags(tuple(raw.job_state))
    if not states:
        raise ValueError("a job needs a state")
    state = _state(states)
    if not state:
        return None
    pending = state == "PENDING"
    if raw.nodes is None and not pending:
        raise ValueError(f"it is {state}, and yet has no nodes")
    node_count = max(1, _count(raw.node_count, 1))
    limit_min = number(raw.time_limit)
    waits_for = intern(raw.state_reason or "")
    gpus_per_node, gpu_type = _gpus_per_node(raw, node_count)
    return SlurmJob(
        id=raw.job_id,
        state=state,
        user=intern(raw.user_name or str(_count(raw.user_id) or "")),
        account=intern(raw.account or ""),
        partition=intern(raw.partition or ""),
        name=raw.name or "",
        priority=_count(raw.priority),
        node_count=node_count,
        gpus_per_node=gpus_per_node,
        nodes=_node_names(raw.nodes) if raw.nodes else (),
        waits_for=waits_for,
        submitted_at=_time(raw.submit_time),
        begins_at=_time(raw.eligible_time),
        started_at=None if pending else _time(raw.start_time),
        ends_at=None if pending else _time(raw.end_time),
        time_limit_s=None if limit_min is None else limit_min * 60,
        features=intern(raw.features or ""),
        exclusive=bool(raw.shared or raw.exclusive) and _is_exclusive(raw),
        may_requeue=bool(raw.requeue and raw.batch_flag),
        held=pending and (raw.hold is True or waits_for.startswith("JobHeld") or number(raw.priority) == 0),
        task_count=_tasks(raw.array_task_string) if pending and raw.array_task_string else 1,
        het_job=_count(raw.het_job_id) or None,
        admin_comment=raw.admin_comment or "",
        comment=raw.comment or "",
        qos=intern(raw.qos or ""),
        reservation=raw.resv_name or "",
        gpu_type=gpu_type,
        switches=_count(raw.required_switches),
        array=_count(raw.array_job_id) or None,
        restarts=_count(raw.restart_cnt),
    )


def _is_exclusive(raw: _Raw) -> bool:
    return not {"none", "true"}.isdisjoint((*(raw.shared or ()), *(raw.exclusive or ())))


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
        "resv_name": (record.get("reservation") or {}).get("name"),
        "restart_cnt": record.get("restart_cnt"),
        "admin_comment": (record.get("comment") or {}).get("administrator"),
        "comment": (record.get("comment") or {}).get("job"),
        "array_job_id": array.get("job_id"),
        "het_job_id": (record.get("het") or {}).get("job_id"),
        "time_limit": times.get("limit"),
        "submit_time": times.get("submission"),
        "eligible_time": times.get("eligible"),
        "start_time": times.get("start"),
        "end_time": times.get("end"),
    }


def _gpus_per_node(raw: _Raw, node_count: int) -> tuple[int, str]:
    """GPUs the job asks on each node: the largest of what its ``--gpus…`` options come to, rounded up; and their type.

    The total in ``tres_req_str`` counts only where no option is readable: many sites do not track GPUs as a TRES. A job
    that asks for several types, or for GPUs of any type, has none.
    """
    per_node, per_job, per_socket = raw.tres_per_node or "", raw.tres_per_job or "", raw.tres_per_socket or ""
    per_task, total = raw.tres_per_task or "", raw.tres_req_str or ""
    sockets = (_count(raw.sockets_per_node) or 1) if per_socket else 1
    tasks_per_node = 1
    if per_task:
        tasks = max(1, _count(raw.tasks, 1))
        tasks_per_node = _count(raw.tasks_per_node) or math.ceil(tasks / node_count)
    return _gpus_asked(per_node, per_job, per_socket, per_task, total, node_count, sockets, tasks_per_node)


@lru_cache(maxsize=4096)
def _gpus_asked(
    per_node: str,
    per_job: str,
    per_socket: str,
    per_task: str,
    total: str,
    node_count: int,
    sockets: int,
    tasks_per_node: int,
) -> tuple[int, str]:
    asked = max(
        gpus(per_node),
        math.ceil(gpus(per_job) / node_count),
        gpus(per_socket) * sockets,
        gpus(per_task) * tasks_per_node,
    )
    types = {type for text in (per_node, per_job, per_socket, per_task) for type in _gpus(text)[1]}
    return asked or math.ceil(gpus(total) / node_count), types.pop() if len(types) == 1 else ""


_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def _tasks(text: str) -> int:
    """How many tasks ``0-99:2,107%4`` stands for; 1 for a job that is no array. Slurm may cut long ones (``…``)."""
    count = 0
    for first, last, step in _TASKS.findall(text.split("%")[0]):
        count += (int(last) - int(first)) // int(step or 1) + 1 if last else 1
    return max(1, count)
