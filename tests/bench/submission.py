"""What job_submit.lua adds to a submission, in microseconds, in each Lua that Slurm may be built with.

A row is one kind of job, submitted 10,000 times in a row by a loop inside Lua, less the same loop around a script that
does nothing. Fields are read and set through metatables, as slurmctld has it; what slurmctld itself does for every
job_submit/lua before a script begins (it lists all jobs of the queue as ``slurm.jobs``) is not in it. The policy file
is read anew as often as the clock says, once a second.
"""

from __future__ import annotations

import importlib
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from bridge.slurm_agent.files import PoolFacts, policy_text

PLUGIN = Path(__file__).parents[2] / "slurm_plugins" / "job_submit.lua"
LUAS = ("lua51", "lua52", "lua53", "lua54", "luajit21")
SUBMISSIONS = 10_000
PARTITIONS = 50
"""Of the policy file; a file of one partition takes less."""

UNSET = "min_nodes = 4294967294, max_nodes = 4294967294, num_tasks = 4294967294, ntasks_per_node = 65534"
SCRIPT = "#!/bin/bash\\n#SBATCH --signal=B:USR1@300\\n" + "srun python train.py --some-option=value\\n" * 100
KINDS = {
    "of another partition": f'{{partition = "cpu", {UNSET}}}',
    "plain": f'{{partition = "shared7", tres_per_node = "gres/gpu:h100:8", {UNSET}}}',
    "with every wish": f'{{partition = "shared7", tres_per_node = "gres/gpu:8", {UNSET}, req_switch = 4294967294, '
    f'wait4switch = 4294967294, comment = "bridge: checkpoint=600 grace=120 borrow=yes", script = "{SCRIPT}"}}',
    "refused": f'{{partition = "shared7", {UNSET.replace("min_nodes = 4294967294", "min_nodes = 900")}}}',
}

_LOOP = """
    local fields, submissions = %s, %d
    local set = {}
    local proxy = { __index = function(_, name) return fields[name] end,
                    __newindex = function(_, name, value) set[name] = value end }
    local parts = {}
    for i = 1, 60 do parts["shared" .. i] = { total_nodes = 16, flag_default = 0 } end
    return function()
      local began = os.clock()
      for _ = 1, submissions do slurm_job_submit(setmetatable({}, proxy), parts, 2001) end
      return (os.clock() - began) / submissions * 1e6
    end
"""


class Row(TypedDict):
    lua: str
    submission: str
    submissions: int
    added_us: float


def rows(luas: tuple[str, ...] = LUAS, submissions: int = SUBMISSIONS) -> list[Row]:
    """Luas that are not in this lupa are left out. The least of three runs counts, for others only add noise."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy"
        facts = {"nodes": 16, "max_nodes": 12, "gpus": 8, "owned": 3, "reclaim_s": 40, "borrow_qos": "cheap"}
        pools = {f"pool{i}": PoolFacts(partition=f"shared{i}", **facts, switches=1) for i in range(PARTITIONS)}  # type: ignore[arg-type]
        file.write_text(policy_text(pools))
        loading = partial(_loaded, file=file)
        for name in luas:
            try:
                module = importlib.import_module(f"lupa.{name}")
            except ImportError:
                continue
            for kind, fields in KINDS.items():
                nothing = _least_us(loading(module, "function slurm_job_submit() return 0 end"), fields, submissions)
                ours = _least_us(loading(module, PLUGIN.read_text()), fields, submissions)
                added_us = round(max(0.0, ours - nothing), 2)
                found.append(Row(lua=name, submission=kind, submissions=submissions, added_us=added_us))
    return found


def _loaded(module: Any, script: str, *, file: Path) -> Any:
    lua = module.LuaRuntime()
    lua.globals().os.getenv = lambda name: str(file) if name == "BRIDGE_POLICY_FILE" else None
    lua.execute("slurm = {SUCCESS = 0, ERROR = -1, log_user = function() end, log_error = function() end}")
    lua.execute(script)
    return lua


def _least_us(lua: Any, fields: str, submissions: int) -> float:
    loop = lua.execute(_LOOP % (fields, submissions))
    return float(min(loop() for _ in range(3)))
