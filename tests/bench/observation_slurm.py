"""How long it takes to read 100,000 Slurm jobs, to see what changed in their states, and to make demand of them.

A job is decoded from a record of slurmrestd (data parser v0.0.44, Slurm 25.11; user and account replaced) with its own
id, priority and times, once in one body of half a gigabyte. Limits: decode 2 s, delta 0.1 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import orjson

from bridge.model.policy import Policy, PoolPolicy
from bridge.model.slurm import SlurmJob, SlurmObservation
from bridge.planning.demand import slurm_queue
from bridge.slurm import reading
from bridge.slurm.states import LiveStates

JOBS = 100_000
RUNS = 5
CHANGED = 100
"""Jobs that changed their state between two readings."""


def rows() -> list[dict[str, Any]]:
    """``what``, median ``seconds`` of five, ``jobs``, and ``mb`` of JSON where there is any."""
    return [_decode(), *_delta(), *_demand()]


def _decode() -> dict[str, Any]:
    record = orjson.loads(RECORD)
    body = b'{"jobs":[' + b",".join(_job(record, id) for id in range(1, JOBS + 1)) + b'],"errors":[],"warnings":[]}'

    def run() -> None:
        if len(reading.decode_jobs(body)) != JOBS:
            raise AssertionError("not all jobs were read")

    return _row(f"decode {JOBS} jobs", run, mb=round(len(body) / 1e6))


def _job(record: dict[str, Any], id: int) -> bytes:
    own = {"job_id": id, "name": f"train-{id}", "user_name": f"user{id % 200}", "account": f"account{id % 20}"}
    numbers = {"priority": id * 7, "submit_time": 1_762_783_691 + id, "eligible_time": 1_762_783_691 + id}
    return orjson.dumps({**record, **own, **{field: _triple(value) for field, value in numbers.items()}})


def _triple(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def _delta() -> list[dict[str, Any]]:
    states = {id: "RUNNING" if id % 50 == 0 else "PENDING" for id in range(1, JOBS + 1)}
    live = LiveStates()
    bodies = [_states(states)]
    for at in range(RUNS):
        states.update(dict.fromkeys(range(at * CHANGED + 1, (at + 1) * CHANGED + 1), "RUNNING"))
        bodies.append(_states(states))
    first = _row(f"first /jobs/state/ of {JOBS} jobs", lambda: LiveStates().update(bodies[0]), len(bodies[0]) // 10**6)
    live.update(bodies[0])
    answers = iter(bodies[1:])
    return [first, _row(f"delta of {JOBS} job states", lambda: live.update(next(answers)), len(bodies[0]) // 10**6)]


def _states(states: dict[int, str]) -> bytes:
    return orjson.dumps({"jobs": [{"job_id": str(id), "state": [state]} for id, state in states.items()]})


def _demand() -> list[dict[str, Any]]:
    """Gangs of 1 to 64 nodes of 20 accounts in a pool of 5,000 nodes; priorities all different, and all the same."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    pool = PoolPolicy(name="shared", nodes=("n[1-5000]",), partition="shared")
    policy = Policy(pools=(pool,))
    chance = Random(1)
    accounts = [f"account{i}" for i in range(20)]
    jobs = [
        SlurmJob(
            id=id,
            state="PENDING",
            user="alice",
            account=chance.choice(accounts),
            partition="shared",
            priority=chance.randrange(10**6),
            node_count=chance.choice((1, 1, 1, 2, 4, 8, 16, 32, 64)),
            gpus_per_node=chance.choice((1, 4, 8)),
            waits_for=chance.choice(("Resources", "Priority")),
            submitted_at=now - timedelta(seconds=10**6 - id),
            begins_at=now - timedelta(seconds=10**6 - id),
        )
        for id in range(JOBS)
    ]
    found = []
    for kind, these in (("", jobs), (" of one priority", [replace(job, priority=1) for job in jobs])):
        seen = SlurmObservation(now, {}, tuple(these))
        found.append(
            _row(f"demand of {JOBS} jobs{kind}", lambda seen=seen: slurm_queue(pool, policy, seen, now, nodes=5_000))
        )
    return found


def _row(what: str, run: Callable[[], object], mb: int = 0) -> dict[str, Any]:
    seconds = []
    for _ in range(RUNS):
        began = perf_counter()
        run()
        seconds.append(perf_counter() - began)
    return {"what": what, "seconds": round(median(seconds), 4), "jobs": JOBS} | ({"mb": mb} if mb else {})


RECORD = """
{"account":"acct04","accrue_time":{"set":true,"infinite":false,"number":0},"admin_comment":"",
"allocating_node":"login","array_job_id":{"set":true,"infinite":false,"number":0},"array_task_id":{"set":false,
"infinite":false,"number":0},"array_max_tasks":{"set":true,"infinite":false,"number":0},"array_task_string":"",
"association_id":9,"batch_features":"","batch_flag":true,"batch_host":"","flags":["USING_DEFAULT_ACCOUNT",
"USING_DEFAULT_QOS","USING_DEFAULT_WCKEY"],"burst_buffer":"","burst_buffer_state":"","cluster":"hpc",
"cluster_features":"","command":"","comment":"","container":"","container_id":"","contiguous":false,"core_spec":0,
"thread_spec":32766,"cores_per_socket":{"set":false,"infinite":false,"number":0},"billable_tres":{"set":false,
"infinite":false,"number":0.0},"cpus_per_task":{"set":true,"infinite":false,"number":1},
"cpu_frequency_minimum":{"set":false,"infinite":false,"number":0},"cpu_frequency_maximum":{"set":false,
"infinite":false,"number":0},"cpu_frequency_governor":{"set":false,"infinite":false,"number":0},"cpus_per_tres":"",
"cron":"","deadline":{"set":true,"infinite":false,"number":0},"delay_boot":{"set":true,"infinite":false,
"number":0},"dependency":"","derived_exit_code":{"status":["SUCCESS"],"return_code":{"set":true,"infinite":false,
"number":0},"signal":{"id":{"set":false,"infinite":false,"number":0},"name":""}},"eligible_time":{"set":true,
"infinite":false,"number":1762787291},"end_time":{"set":true,"infinite":false,"number":1762787351},
"excluded_nodes":"","exit_code":{"status":["SUCCESS"],"return_code":{"set":true,"infinite":false,"number":0},
"signal":{"id":{"set":false,"infinite":false,"number":0},"name":""}},"extra":"","failed_node":"","features":"",
"federation_origin":"","federation_siblings_active":"","federation_siblings_viable":"","gres_detail":[],
"group_id":10000,"group_name":"group01","het_job_id":{"set":true,"infinite":false,"number":0},"het_job_id_set":"",
"het_job_offset":{"set":true,"infinite":false,"number":0},"job_id":4965,"job_resources":null,"job_size_str":[],
"job_state":["PENDING"],"last_sched_evaluation":{"set":true,"infinite":false,"number":1762783691},"licenses":"",
"licenses_allocated":"","mail_type":[],"mail_user":"user05","max_cpus":{"set":true,"infinite":false,"number":0},
"max_nodes":{"set":true,"infinite":false,"number":0},"mcs_label":"","memory_per_tres":"","name":"wrap",
"network":"","nodes":"","nice":0,"tasks_per_core":{"set":false,"infinite":true,"number":0},
"tasks_per_tres":{"set":true,"infinite":false,"number":0},"tasks_per_node":{"set":true,"infinite":false,
"number":0},"tasks_per_socket":{"set":false,"infinite":true,"number":0},"tasks_per_board":{"set":true,
"infinite":false,"number":0},"cpus":{"set":true,"infinite":false,"number":1},"node_count":{"set":true,
"infinite":false,"number":1},"tasks":{"set":true,"infinite":false,"number":1},"partition":"gpu","prefer":"",
"memory_per_cpu":{"set":true,"infinite":false,"number":512},"memory_per_node":{"set":false,"infinite":false,
"number":0},"minimum_cpus_per_node":{"set":true,"infinite":false,"number":1},
"minimum_tmp_disk_per_node":{"set":true,"infinite":false,"number":0},"power":{"flags":[]},
"preempt_time":{"set":true,"infinite":false,"number":0},"preemptable_time":{"set":true,"infinite":false,
"number":0},"pre_sus_time":{"set":true,"infinite":false,"number":0},"hold":false,"priority":{"set":true,
"infinite":false,"number":909},"priority_by_partition":[],"profile":["NOT_SET"],"qos":"normal","reboot":false,
"required_nodes":"","required_switches":0,"requeue":true,"resize_time":{"set":true,"infinite":false,"number":0},
"restart_cnt":0,"resv_name":"","scheduled_nodes":"","segment_size":0,"selinux_context":"","shared":[],
"step_id":{"sluid":"sDXHK9Q1J50E00","job_id":{"set":true,"infinite":false,"number":4965},
"step_het_component":{"set":false,"infinite":false,"number":0},"step_id":"entire"},"sockets_per_board":0,
"sockets_per_node":{"set":false,"infinite":false,"number":0},"start_time":{"set":true,"infinite":false,
"number":1762787291},"state_description":"","state_reason":"BeginTime","standard_input":"/dev/null",
"standard_output":"slurm-%j.out","standard_error":"","stdin_expanded":"/dev/null",
"stdout_expanded":"/home/USER/slurm-4965.out","stderr_expanded":"","submit_time":{"set":true,"infinite":false,
"number":1762783691},
"submit_line":"sbatch --time 1 --wrap sleep 30 && true --partition gpu --gpus 4 --begin now+1hour",
"suspend_time":{"set":true,"infinite":false,"number":0},"system_comment":"","time_limit":{"set":true,
"infinite":false,"number":1},"time_minimum":{"set":true,"infinite":false,"number":0},
"threads_per_core":{"set":false,"infinite":false,"number":0},"tres_bind":"","tres_freq":"",
"tres_per_job":"gres/gpu:4","tres_per_node":"","tres_per_socket":"","tres_per_task":"",
"tres_req_str":"cpu=1,mem=512M,node=1,billing=1","tres_alloc_str":"","user_id":10000,"user_name":"user05",
"maximum_switch_wait_time":0,"wckey":"","current_working_directory":"/home/USER"}
"""
