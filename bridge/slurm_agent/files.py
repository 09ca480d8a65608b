"""The two files that Slurm's plugins read, and how they are replaced.

Both are lines of plain text, so that POSIX sh and a bare Lua read them without a library, and both end with a line
``end <number of lines before it>``: a reader that does not find it has half a file and ignores it.

Fence (read by ``prolog_slurmctld_fence``): when the broker was last heard, in seconds since 1970 on this host's clock,
then the Slurm name of each node that is not Slurm's::

    1796201113
    gpu-1
    end 2

Policy (read by ``job_submit.lua``): the format's version, then one line for each partition that has shared nodes::

    bridge-policy 2
    partition=shared pool=h100 nodes=4 max_nodes=3 gpus_per_node=8 owned=2 reclaim_s=40 borrow_qos=cheap
    end 2

After the first five come, where they are known or the policy says so: how many of the nodes Slurm owns now, how long
nodes lately took to come back, what jobs that may be borrowed against get as their QoS, and defaults for gangs
(``switches``, ``switches_wait_s``, ``segment_nodes``). ``warn=0``: nobody is told to wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

FENCE = "fence"
POLICY = "policy"

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]
_Count = Annotated[int, Field(strict=True, ge=0, le=100_000)]


class _Answer(BaseModel):
    # A newer broker may say more; what is said must be exact.
    model_config = ConfigDict(frozen=True, extra="ignore")


class PoolFacts(_Answer):
    """What a job must know of a pool: its size, how many of its nodes Slurm can ever own and owns now, GPUs on each,
    how long nodes lately took to come back; and what the policy does to jobs. A broker may say less."""

    partition: _Name
    nodes: _Count
    max_nodes: _Count
    gpus: _Count
    owned: _Count | None = None
    reclaim_s: _Count | None = None
    warn: bool = True
    borrow_qos: _Name | None = None
    switches: _Count | None = None
    switches_wait_s: _Count | None = None
    segment_nodes: _Count | None = None


class FenceAnswer(_Answer):
    """The broker's answer to ``GET /v1/slurm/fence``: all leases up to `generation`, as nodes closed to Slurm."""

    generation: Annotated[int, Field(strict=True, ge=0, lt=10**18)]
    closed: Annotated[tuple[_Name, ...], Field(max_length=100_000)]
    policy: Annotated[dict[_Name, PoolFacts], Field(max_length=1_000)]


_OF_FIRST = ("borrow_qos", "switches", "switches_wait_s", "segment_nodes")
"""Of pools that share a partition the first one's word counts."""


def fence_text(closed: Iterable[str], heard_at_s: int) -> str:
    return _whole([str(heard_at_s), *sorted(set(closed))])


def policy_text(pools: dict[str, PoolFacts]) -> str:
    """Pools that share a partition are one line: a job there may span them."""
    partitions: dict[str, list[tuple[str, PoolFacts]]] = {}
    for name, facts in sorted(pools.items()):
        partitions.setdefault(facts.partition, []).append((name, facts))
    return _whole(["bridge-policy 2", *(_partition_line(name, found) for name, found in sorted(partitions.items()))])


def _partition_line(partition: str, pools: list[tuple[str, PoolFacts]]) -> str:
    nodes = sum(facts.nodes for _, facts in pools)
    max_nodes = sum(facts.max_nodes for _, facts in pools)
    gpus = max(facts.gpus for _, facts in pools)
    names = "+".join(name for name, _ in pools)
    line = f"partition={partition} pool={names} nodes={nodes} max_nodes={max_nodes} gpus_per_node={gpus}"
    if all(facts.owned is not None for _, facts in pools):
        line += f" owned={sum(facts.owned or 0 for _, facts in pools)}"
    if any(facts.reclaim_s is not None for _, facts in pools):
        line += f" reclaim_s={max(facts.reclaim_s or 0 for _, facts in pools)}"
    if not all(facts.warn for _, facts in pools):
        line += " warn=0"
    first = pools[0][1]
    return line + "".join(f" {key}={value}" for key in _OF_FIRST if (value := getattr(first, key)) is not None)


def _whole(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in [*lines, f"end {len(lines)}"])


def holds(path: Path, text: str) -> bool:
    """True when the file is exactly `text` already."""
    try:
        return path.read_bytes() == text.encode("ascii")
    except FileNotFoundError:
        return False


def replace(path: Path, text: str) -> None:
    """Make `path` hold `text`, for all readers at one moment, also across a power cut. Readable by everyone."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "w", encoding="ascii", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
