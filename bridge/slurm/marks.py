"""Reads of Slurm what carries marks of the bridge, for `bridge.planning.leftovers`: by itself, without a broker.

``FailClosed``: nodes, reservations and jobs are read wholly, or that part is named in `unread`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import httpx

from bridge.model.errors import BridgeError
from bridge.planning.leftovers import RESERVATION_PREFIX, SlurmMarks
from bridge.settings import SlurmSettings
from bridge.slurm import reading
from bridge.slurm.client import RestClient
from bridge.slurm.scontrol import Scontrol
from bridge.slurm.token import TokenFile

_JOBS_S = 120.0
"""The least time for reading the whole queue, in which every tag may matter: slurmrestd takes a millisecond a job."""
_SETTING = re.compile(r"^([A-Z]\w*(?:\[\d+\])?)\s*=\s(.*?)\s*$", re.MULTILINE)
_Read = TypeVar("_Read")


def read_marks(settings: SlurmSettings, agent_dir: Path, *, transport: httpx.BaseTransport | None = None) -> SlurmMarks:
    """What stands in Slurm now, and the files that an agent left in `agent_dir` of this host. Never raises."""
    token = TokenFile(settings.slurm_token_file, lambda: datetime.now(UTC))
    timeout_s = settings.slurm_timeout_s
    client = RestClient(settings.slurm_url, token, timeout_s, transport=transport)
    patient = RestClient(settings.slurm_url, token, max(timeout_s, _JOBS_S), transport=transport)
    scontrol = Scontrol(settings.slurm_scontrol, token, timeout_s)
    unread: list[str] = []

    def part(name: str, read: Callable[[], _Read], otherwise: _Read) -> _Read:
        try:
            return read()
        except BridgeError as why:
            unread.append(f"{name}: {why}")
            return otherwise

    try:
        return SlurmMarks(
            nodes=part("nodes", lambda: reading.nodes(client.read("nodes/")), {}),
            reservations=part(
                "reservations",
                lambda: {
                    name: found.nodes
                    for name, found in reading.reservations(client.read("reservations/"), RESERVATION_PREFIX).items()
                },
                {},
            ),
            jobs=part("jobs", lambda: reading.decode_jobs(patient.body("jobs/")), ()),
            configuration=part("slurm.conf", lambda: _configuration(scontrol("show", "config")), {}),
            files=tuple(str(path) for path in sorted(agent_dir.glob("*")) if path.is_file()),
            unread=tuple(unread),
        )
    finally:
        client.close()
        patient.close()


def _configuration(text: str) -> dict[str, str]:
    """The settings in what ``scontrol show config`` prints."""
    return dict(_SETTING.findall(text))
