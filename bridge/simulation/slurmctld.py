"""The simulated slurmctld, its one partition, and a slurmd on every shared node: Slurm without the bridge.

Simulated is what a real 24.11 was seen to do, unpleasant parts included: RESUME clears anybody's drain and leaves the
reason standing; a resumed node does not respond for a moment; a drain overwrites the reason that stood there; a
restarted slurmctld tells old news for a while; a job that is over may still have processes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bridge.model.errors import CallFailed
from bridge.model.ownership import Node, Side
from bridge.model.slurm import SlurmJob, SlurmNode
from bridge.simulation.backfill import Host, Waiting, schedule
from bridge.simulation.clock import Latency, SimulatedClock, Timer
from bridge.simulation.machines import Machines, Process


@dataclass(frozen=True, slots=True)
class SlurmTimings:
    """Seconds that Slurm takes, as measured on a small cluster (the time-outs are slurm.conf's defaults)."""

    scheduling_s: float = 0.8
    registration_s: float = 0.6
    ping_s: float = 30
    slurmd_timeout_s: float = 300
    requeue_hold_s: float = 120
    old_news_s: float = 3


@dataclass(frozen=True, slots=True)
class JobRequest:
    """An sbatch: `nodes` nodes, on each `gpus_per_node` GPUs, all at the same moment, for at most
    `time_limit_s` (None: no limit).

    How it ends is part of the story: processes need `dying_s` to go once the job is over (it is COMPLETING as long),
    the epilog `epilog_s`, and one process that left its session stays `orphan_s` longer, unseen by Slurm. A job that
    `exits_on_signal` ends `exits_in_s` after any signal, its checkpoint written; any other lets signals pass.

    With `tasks` it is a job array, of which `tasks_at_once` may run at a time (``%4``; 0: no limit).
    """

    nodes: int = 1
    duration_s: float = 600
    user: str = "alice"
    account: str = "research"
    name: str = "train"
    priority: int = 1000
    gpus_per_node: int = 8
    time_limit_s: float | None = None
    may_requeue: bool = True
    held: bool = False
    begin_in_s: float = 0
    dying_s: float = 0
    epilog_s: float = 0.5
    orphan_s: float = 0
    exits_on_signal: bool = False
    exits_in_s: float = 5
    tasks: int = 1
    tasks_at_once: int = 0
    comment: str = ""


@dataclass(slots=True)
class SlurmdNode:
    """A node record and its slurmd. `strays` are processes that a silent slurmd was told in vain to kill; `nameless`:
    the drain was set without a reason of its own, where an old one stood."""

    name: str
    machine: str
    gpus: int
    booted_at: datetime
    drained: bool = False
    down: bool = False
    reason: str = ""
    reason_user: str = ""
    reason_set_at: datetime | None = None
    nameless: bool = False
    slurmd_alive: bool = True
    responding: bool = True
    registering: Timer | None = None
    flags: frozenset[str] = frozenset()
    gres_known: bool = True
    jobs: list[Job] = field(default_factory=list)
    strays: list[Process] = field(default_factory=list)


@dataclass(slots=True)
class Job:
    """A job record. Only a job that holds nodes has any in `nodes`; that of a completing one still does.

    `signals` are those it got in its present run, `restarts` how often it was put back into the queue. All tasks of an
    array that have not started are one record, under the array's id; each that starts gets a record of its own, and the
    last one keeps that of the array. Components of a het job have one record each and one `het` leader.
    """

    id: int
    request: JobRequest
    submitted_at: datetime
    begins_at: datetime
    held: bool
    state: str = "PENDING"
    waits_for: str = "None"
    nodes: tuple[str, ...] = ()
    started_at: datetime | None = None
    ends: Timer | None = None
    processes: list[Process] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    restarts: int = 0
    tasks_left: int = 1
    array: int | None = None
    het: int | None = None

    @property
    def where(self) -> tuple[int, int]:
        """Place in the queue: higher priority first, then first come."""
        return (-self.request.priority, self.id)

    @property
    def limit_s(self) -> float:
        return math.inf if self.request.time_limit_s is None else self.request.time_limit_s


class Slurmctld:
    """See the module. What users and admins do and what breaks are its methods; names are Slurm's."""

    def __init__(
        self,
        clock: SimulatedClock,
        nodes: Collection[Node],
        machines: Machines,
        *,
        partition: str,
        timings: SlurmTimings,
        latency: Latency,
    ) -> None:
        self._clock = clock
        self._machines = machines
        self._partition = partition
        self._timings = timings
        self._latency = latency
        self._nodes = {
            node.slurm_name: SlurmdNode(node.slurm_name, node.name, node.gpus, booted_at=clock.now()) for node in nodes
        }
        self._removed: dict[str, SlurmdNode] = {}
        self._jobs: dict[int, Job] = {}
        self._live: dict[int, Job] = {}
        self._reservations: dict[str, set[str]] = {}
        self._planned: frozenset[str] = frozenset()
        self._scheduling: Timer | None = None
        self._controller_up = True
        self._controller_started_s = clock.monotonic_s()
        self._old_news_until_s = 0.0
        self.fence: frozenset[str] = frozenset()
        """Nodes in the PrologSlurmctld's fence file: a job that was allocated one of them is refused there."""

    # --- what users do ---

    def submit(self, request: JobRequest) -> int:
        job = self._enqueue(request)
        if request.tasks > 1:
            job.tasks_left, job.array = request.tasks, job.id
        return job.id

    def submit_het(self, *requests: JobRequest) -> int:
        """A heterogeneous job: a record for each component, all of which start at the same moment. Its leader's id."""
        components = [self._enqueue(request) for request in requests]
        for job in components:
            job.het = components[0].id
        return components[0].id

    def _enqueue(self, request: JobRequest) -> Job:
        now = self._clock.now()
        job = Job(len(self._jobs) + 1, request, now, now + timedelta(seconds=request.begin_in_s), request.held)
        self._jobs[job.id] = self._live[job.id] = job
        self._schedule_soon()
        if request.begin_in_s:
            self._clock.after(request.begin_in_s, self._schedule_soon)
        return job

    def cancel(self, job: int) -> None:
        """Of a het job all components; of an array what has not started."""
        for found in self._components(self._jobs[job]):
            if found.state == "PENDING":
                self._close(found, "CANCELLED")
            elif found.state in ("RUNNING", "SUSPENDED"):
                self._end(found, "CANCELLED")

    def cancel_all(self) -> None:
        """Everybody gives up."""
        for job in list(self._live):
            if job in self._live:
                self.cancel(job)

    def user_requeue(self, job: int) -> None:
        """`CallFailed` for a job that was submitted with ``--no-requeue``. A requeued job waits before it may start."""
        self._requeue(self._jobs[job])

    def user_comments(self, job: int, comment: str) -> None:
        """scontrol update Comment=…, also from within the job."""
        found = self._jobs[job]
        found.request = replace(found.request, comment=comment)

    def may_not_requeue(self, job: int) -> None:
        """scontrol update Requeue=0: the user changes their mind."""
        found = self._jobs[job]
        found.request = replace(found.request, may_requeue=False)

    def suspend(self, job: int) -> None:
        """Its processes stop, and stay: the node looks IDLE while their memory and GPUs are in use."""
        found = self._jobs[job]
        if found.state == "RUNNING":
            found.state = "SUSPENDED"
            _cancel(found.ends)

    def let_go(self, job: int) -> None:
        """scontrol release: the user or an admin takes the hold off a pending job."""
        self._jobs[job].held = False
        self._schedule_soon()

    # --- what admins do ---

    def admin_drain(self, node: str, reason: str, user: str = "admin") -> None:
        """Without a reason (scontrol asks for one, the API does not) the old one stays, whosever it was, with its user
        and time."""
        if reason:
            self._drain(self._node(node), reason, user)
        else:
            found = self._node(node)
            found.nameless |= not found.drained
            found.drained = True

    def admin_resume(self, node: str, user: str = "admin") -> None:
        """RESUME clears anybody's drain, whoever `user` is; a reservation around the node stands."""
        del user
        self._resume(self._node(node))

    def admin_reserve(self, name: str, nodes: Collection[str]) -> None:
        """A MAINT reservation of the admins' own."""
        self._reserve(name, nodes)

    def admin_unreserve(self, name: str) -> None:
        self._unreserve(name, self._nodes)

    def admin_takes_out(self, node: str) -> None:
        """scontrol update reservation=… nodes-=…: out of every reservation around the node, whosever it is."""
        for name, nodes in list(self._reservations.items()):
            if node in nodes:
                self._unreserve(name, [node])

    def remove_node(self, node: str, away_s: float = 2) -> None:
        """A slurm.conf without it, and a restart: its record is gone and its mark, its jobs end in NODE_FAIL, and every
        reservation goes on without it."""
        self._node(node)
        self.restart_controller(away_s)
        self._clock.after(away_s, lambda: self._forget(node))

    def put_node_back(self, node: str, away_s: float = 2) -> None:
        """It is in slurm.conf again: after the restart it is a new node, without any mark, and registers."""
        self.restart_controller(away_s)
        self._clock.after(away_s, lambda: self._meet(node))

    # --- what breaks ---

    def slurm_drains(self, node: str, reason: str) -> None:
        """Slurm's own drain (``Kill task failed``): it does nothing to a node that is drained already."""
        if not self._node(node).drained:
            self._drain(self._node(node), reason, "root")

    def lose_slurmd(self, node: str) -> None:
        """slurmd, or the network to it, is gone; what runs there runs on. Noticed by the next pings, DOWN later."""
        found = self._node(node)
        found.slurmd_alive = False
        _cancel(found.registering)
        self._clock.after(self._latency(self._timings.ping_s), lambda: self._miss_ping(found))
        self._clock.after(self._timings.slurmd_timeout_s, lambda: self._set_down(found))

    def return_slurmd(self, node: str) -> None:
        """slurmd is back and registers. With ReturnToService=2 a DOWN node becomes usable; a drained one stays so."""
        found = self._node(node)
        found.slurmd_alive = True
        found.booted_at = self._clock.now()
        while found.strays:
            self._machines.stop(found.strays.pop())
        self._await_registration(found)

    def set_flags(self, node: str, flags: Iterable[str]) -> None:
        """Further state flags (``POWERED_DOWN``, ``FAIL``, ``INVALID_REG``…); a node with any of them starts no job."""
        self._node(node).flags = frozenset(flags)
        self._schedule_soon()

    def forget_gres(self, node: str, for_s: float = 60) -> None:
        """``Gres=(null)``: a node that has just registered looks as if it had no GPU."""
        found = self._node(node)
        found.gres_known = False
        self._clock.after(for_s, lambda: setattr(found, "gres_known", True))

    def restart_controller(self, away_s: float = 2, *, state_lost: bool = False) -> None:
        """slurmctld restarts: no answer for `away_s`, then old news about nodes for a moment.

        With `state_lost` its StateSaveLocation is gone, and both latches with it: every drain and reservation.
        """
        self._controller_up = False
        self._clock.after(away_s, lambda: self._controller_returns(state_lost))

    # --- questions for the oracle and for tests ---

    def node(self, name: str) -> SlurmNode:
        """What is true of a node now, beside any fault of the port."""
        return self._show_node(self._node(name))

    def job(self, job: int) -> SlurmJob:
        return self._show_job(self._jobs[job])

    def live(self) -> tuple[int, ...]:
        """The jobs that are not over."""
        return tuple(self._live)

    def signals(self, job: int) -> tuple[str, ...]:
        """Those that a job got in its present run, or in its last one."""
        return tuple(self._jobs[job].signals)

    def open(self, name: str) -> bool:
        """No latch stands: neither a drain nor a reservation (the Prolog's fence is asked only when a job starts)."""
        return name in self._nodes and not self._nodes[name].drained and name not in self._reserved()

    # --- as it is shown ---

    def _visible(self, job: Job) -> bool:
        return not (job.state == "COMPLETING" and self._tells_old_news())

    def _tells_old_news(self) -> bool:
        return self._clock.monotonic_s() < self._old_news_until_s

    def _show_node(self, node: SlurmdNode) -> SlurmNode:
        return SlurmNode(
            name=node.name,
            states=self._states(node),
            gpus=node.gpus if node.gres_known else 0,
            gpus_used=_used(node),
            reason=node.reason,
            reason_user=node.reason_user,
            reason_set_at=node.reason_set_at,
            partitions=frozenset({self._partition}),
            slurmd_started_at=node.booted_at,
        )

    def _states(self, node: SlurmdNode) -> frozenset[str]:
        jobs = {job.state for job in node.jobs}
        if node.down:
            base = "DOWN"
        elif "RUNNING" not in jobs:
            base = "IDLE"
        else:
            base = "ALLOCATED" if _used(node) >= node.gpus else "MIXED"
        reservations = [name for name, nodes in self._reservations.items() if node.name in nodes]
        flags = {
            "DRAIN": node.drained,
            "COMPLETING": "COMPLETING" in jobs and not self._tells_old_news(),
            "NOT_RESPONDING": not node.responding and not self._tells_old_news(),
            "MAINTENANCE": bool(reservations),
            "RESERVED": bool(reservations),
            "PLANNED": node.name in self._planned and base == "IDLE",
        }
        return frozenset({base} | {flag for flag, is_set in flags.items() if is_set} | node.flags)

    def _show_job(self, job: Job) -> SlurmJob:
        request = job.request
        limit_s = request.time_limit_s
        return SlurmJob(
            id=job.id,
            state=job.state,
            user=request.user,
            account=request.account,
            partition=self._partition,
            name=request.name,
            priority=0 if job.held else request.priority,
            node_count=request.nodes,
            gpus_per_node=request.gpus_per_node,
            nodes=job.nodes,
            waits_for=job.waits_for if job.state == "PENDING" else "None",
            submitted_at=job.submitted_at,
            begins_at=job.begins_at,
            started_at=job.started_at,
            ends_at=job.started_at + timedelta(seconds=limit_s) if job.started_at and limit_s else None,
            time_limit_s=limit_s,
            exclusive=True,
            may_requeue=request.may_requeue,
            held=job.held,
            restarts=job.restarts,
            task_count=self._startable(job) if job.state == "PENDING" else 1,
            array=job.array,
            het_job=job.het,
            comment=request.comment,
        )

    def _startable(self, job: Job) -> int:
        """How many tasks of a pending record may start as far as its own limit goes."""
        if not job.request.tasks_at_once or job.array != job.id:
            return job.tasks_left
        running = sum(task.array == job.id and bool(task.nodes) for task in self._live.values())
        return max(0, min(job.tasks_left, job.request.tasks_at_once - running))

    # --- node updates ---

    def _node(self, name: str) -> SlurmdNode:
        if name not in self._nodes:
            raise CallFailed(f"Slurm knows no node '{name}'")
        return self._nodes[name]

    def _drain(self, node: SlurmdNode, reason: str, user: str) -> None:
        if node.drained and node.reason == reason:
            return
        node.drained, node.nameless = True, False
        node.reason, node.reason_user = reason, user
        node.reason_set_at = self._clock.now().replace(microsecond=0)
        self._schedule_soon()

    def _resume(self, node: SlurmdNode) -> None:
        """The reason stays. slurmctld asks the node to register again and takes it for silent until it has."""
        if not (node.drained or node.down):
            return
        node.drained = node.down = node.nameless = False
        node.responding = False
        if node.slurmd_alive:
            self._await_registration(node)

    def _reserve(self, name: str, nodes: Collection[str]) -> None:
        self._reservations.setdefault(name, set()).update(nodes)

    def _unreserve(self, name: str, nodes: Collection[str]) -> None:
        """The last node to leave takes the reservation with it."""
        kept = self._reservations.pop(name, set()) - set(nodes)
        if kept:
            self._reservations[name] = kept
        self._schedule_soon()

    # --- nodes come and go ---

    def _await_registration(self, node: SlurmdNode) -> None:
        _cancel(node.registering)
        delay_s = self._latency(self._timings.registration_s)
        node.registering = self._clock.after(delay_s, lambda: self._register(node))

    def _register(self, node: SlurmdNode) -> None:
        node.responding = True
        node.down = False
        self._schedule_soon()

    def _miss_ping(self, node: SlurmdNode) -> None:
        if not node.slurmd_alive:
            node.responding = False

    def _set_down(self, node: SlurmdNode) -> None:
        """The time-out is over: its jobs are ended in slurmctld's books, whatever their processes do."""
        if node.slurmd_alive:
            return
        node.down = True
        node.responding = False
        node.reason = f"{node.reason} : Not responding" if node.reason else "Not responding"
        for job in list(node.jobs):
            if job.state in ("RUNNING", "SUSPENDED"):
                self._end(job, "PENDING" if job.request.may_requeue else "NODE_FAIL")

    def _controller_returns(self, state_lost: bool) -> None:
        self._controller_up = True
        self._controller_started_s = self._clock.monotonic_s()
        self._old_news_until_s = self._clock.monotonic_s() + self._timings.old_news_s
        if state_lost:
            self._reservations.clear()
            for node in self._nodes.values():
                node.drained, node.reason, node.reason_user, node.reason_set_at = False, "", "", None
        self._schedule_soon()

    def _forget(self, name: str) -> None:
        node = self._removed[name] = self._nodes.pop(name)
        for job in list(node.jobs):
            if job.state in ("RUNNING", "SUSPENDED"):
                self._end(job, "NODE_FAIL")
        for reservation, nodes in list(self._reservations.items()):
            if name in nodes:
                self._unreserve(reservation, [name])

    def _meet(self, name: str) -> None:
        old = self._removed.pop(name)
        node = SlurmdNode(name, old.machine, old.gpus, booted_at=self._clock.now(), responding=False)
        self._nodes[name] = node
        for stray in old.strays:
            self._machines.stop(stray)
        self._await_registration(node)

    # --- the scheduler (its rules are in `backfill`) ---

    def _reserved(self) -> set[str]:
        return {name for nodes in self._reservations.values() for name in nodes}

    def _usable(self, node: SlurmdNode) -> bool:
        broken = node.down or not node.responding or node.flags
        return not (node.drained or broken or node.name in self._reserved())

    def _schedule_soon(self) -> None:
        if self._scheduling is None:
            self._scheduling = self._clock.after(self._latency(self._timings.scheduling_s), self._schedule)

    def _schedule(self) -> None:
        self._scheduling = None
        while self._controller_up and self._round():
            pass

    def _round(self) -> bool:
        """Whether another one is due at once: each starts one task of an array at most."""
        queue = sorted((job for job in self._live.values() if job.state == "PENDING"), key=lambda job: job.where)
        for job in queue:
            job.waits_for = self._obstacle(job)
        leads = [job for job in queue if not job.waits_for and job.het in (None, job.id)]
        whole = [job for job in leads if all(part.state == "PENDING" for part in self._components(job))]
        waiting = [self._waiting(job) for job in whole]
        hosts = [self._host(node) for node in self._nodes.values() if self._usable(node)]
        found = schedule(waiting, hosts, nodes=len(self._nodes), reserved=len(self._reserved()))
        self._planned = found.planned
        for id, reason in found.waits_for.items():
            for job in self._components(self._jobs[id]):
                job.waits_for = reason
        for id, nodes in found.starts.items():
            self._start_whole(self._jobs[id], nodes)
        arrays = (self._jobs[id] for id in found.starts if self._jobs[id].array == id)
        return any(job.state == "PENDING" for job in arrays)

    def _obstacle(self, job: Job) -> str:
        if any(component.held for component in self._components(job)):
            return "JobHeldUser"
        if not self._startable(job):
            return "JobArrayTaskLimit"
        return "BeginTime" if job.begins_at > self._clock.now() else ""

    def _waiting(self, job: Job) -> Waiting:
        """A het job as one gang with the nodes of all components, each of which has room for any of them."""
        requests = [component.request for component in self._components(job)]
        gpus = max(request.gpus_per_node for request in requests)
        limit_s = max(component.limit_s for component in self._components(job))
        return Waiting(job.id, sum(request.nodes for request in requests), gpus, limit_s)

    def _components(self, job: Job) -> list[Job]:
        if job.het is None:
            return [job]
        return [other for other in self._live.values() if other.het == job.het]

    def _start_whole(self, job: Job, nodes: Collection[str]) -> None:
        if job.array == job.id and job.tasks_left > 1:
            job.tasks_left -= 1
            task = Job(len(self._jobs) + 1, job.request, job.submitted_at, job.begins_at, job.held, array=job.id)
            self._jobs[task.id] = self._live[task.id] = task
            self._start(task, nodes)
            return
        names = list(nodes)
        for component in self._components(job):
            taken, names = names[: component.request.nodes], names[component.request.nodes :]
            self._start(component, taken)

    def _host(self, node: SlurmdNode) -> Host:
        left_s = (
            job.limit_s - (self._clock.now() - job.started_at).total_seconds() if job.started_at else 0.0
            for job in node.jobs
        )
        return Host(node.name, node.gpus - _used(node), max(left_s, default=0.0))

    # --- jobs begin and end ---

    def _start(self, job: Job, nodes: Collection[str]) -> None:
        if self.fence.intersection(nodes):
            self._refuse(job)
            return
        now = self._clock.now()
        job.state, job.nodes, job.started_at = "RUNNING", tuple(nodes), now
        job.signals.clear()
        request = job.request
        outcome = "COMPLETED" if request.duration_s <= job.limit_s else "TIMEOUT"
        job.ends = self._clock.after(min(request.duration_s, job.limit_s), lambda: self._end(job, outcome))
        for name in nodes:
            node = self._nodes[name]
            node.reason, node.reason_user, node.reason_set_at = "", "", None
            node.jobs.append(job)
            if node.slurmd_alive:
                job.processes.append(self._machines.start(node.machine, Side.SLURM, f"job {job.id}", request.user))

    def _refuse(self, job: Job) -> None:
        """PrologSlurmctld says no: back to the queue without a hold, or cancelled where requeue is forbidden."""
        if job.request.may_requeue:
            self._put_back(job)
        else:
            self._close(job, "CANCELLED")
        self._schedule_soon()

    def _put_back(self, job: Job) -> None:
        hold_s = self._timings.requeue_hold_s
        job.state = "PENDING"
        job.restarts += 1
        job.begins_at = self._clock.now() + timedelta(seconds=hold_s)
        self._clock.after(hold_s, self._schedule_soon)

    def _signal(self, job: Job, signal: str) -> None:
        if job.state != "RUNNING":
            return
        job.signals.append(signal)
        if job.request.exits_on_signal:
            _cancel(job.ends)
            job.ends = self._clock.after(job.request.exits_in_s, lambda: self._end(job, "COMPLETED"))

    def _hasten(self, job: Job) -> None:
        """scontrol update StartTime=now. While a requeued job is COMPLETING it is taken and forgotten."""
        for component in self._components(job):
            if component.state == "PENDING":
                component.begins_at = min(component.begins_at, self._clock.now())
        self._schedule_soon()

    def _requeue(self, job: Job) -> None:
        if not job.request.may_requeue:
            raise CallFailed(f"job {job.id} may not be requeued")
        for component in self._components(job):
            if component.state in ("RUNNING", "SUSPENDED"):
                self._end(component, "PENDING")

    def _end(self, job: Job, outcome: str) -> None:
        _cancel(job.ends)
        job.state = "COMPLETING"
        request = job.request
        orphan = job.processes.pop() if request.orphan_s and job.processes else None
        processes, job.processes = job.processes, []
        self._clock.after(request.dying_s, lambda: self._stop(processes, killed=outcome != "COMPLETED"))
        over_s = request.dying_s + self._latency(request.epilog_s)
        self._clock.after(over_s, lambda: self._completed(job, outcome))
        if orphan is not None:
            self._clock.after(over_s + request.orphan_s, lambda: self._machines.stop(orphan))

    def _stop(self, processes: Iterable[Process], *, killed: bool) -> None:
        """A process that ends by itself is gone; one that slurmd should kill stays where slurmd is gone."""
        hosts = {node.machine: node for node in (*self._removed.values(), *self._nodes.values())}
        for process in processes:
            host = hosts[process.node]
            if killed and (not host.slurmd_alive or host.name in self._removed):
                host.strays.append(process)
            else:
                self._machines.stop(process)

    def _completed(self, job: Job, outcome: str) -> None:
        for name in job.nodes:
            if name in self._nodes:
                self._nodes[name].jobs.remove(job)
        job.nodes, job.started_at = (), None
        if outcome == "PENDING":
            self._put_back(job)
        else:
            self._close(job, outcome)
        self._schedule_soon()

    def _close(self, job: Job, outcome: str) -> None:
        job.state = outcome
        del self._live[job.id]


def _used(node: SlurmdNode) -> int:
    """GPUs in use: those of suspended and of completing jobs too, as Slurm gives neither to anybody else."""
    return sum(job.request.gpus_per_node for job in node.jobs)


def _cancel(timer: Timer | None) -> None:
    if timer is not None:
        timer.cancel()
