"""What docs/slurm-admins.md says of the broker's Slurm user, on the real slurmctld: Admin is the least that works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.testbed import Testbed

LEVELS = ("None", "Operator", "Admin")
CALLER = "alice"
NODE = "gpu-1"
REFUSALS = ("Invalid user id", "Access/permission denied")
"""As Slurm says it of nodes and of the rest."""


@pytest.fixture(params=LEVELS)
def level(testbed: Testbed, request: pytest.FixtureRequest) -> Iterator[str]:
    """An ordinary user for whom slurmdbd says nothing but this AdminLevel. slurmctld hears of it at once."""
    wanted: str = request.param
    _grant(testbed, wanted)
    yield wanted
    testbed.slurm("scontrol", "delete", "reservationname=rights", check=False)
    testbed.slurm("scontrol", "update", f"nodename={NODE}", "state=resume", user="admin", check=False)
    _grant(testbed, "None")


def test_a_drain_takes_admin_and_the_rest_an_operator(testbed: Testbed, level: str) -> None:
    job = testbed.slurm.sbatch("--nodes=1", f"--nodelist={NODE}", "--hold", user="bob")
    reservation = "reservationname=rights starttime=now duration=unlimited user=bridge flags=maint,ignore_jobs"
    allowed = {
        "drain": _allowed(testbed, "update", f"nodename={NODE}", "state=drain", "reason=rights"),
        "reserve": _allowed(testbed, "create", *reservation.split(), f"nodes={NODE}"),
        "update a job": _allowed(testbed, "update", f"jobid={job}", "starttime=now"),
    }
    expected = {
        "None": set(),
        "Operator": {"reserve", "update a job"},
        "Admin": {"drain", "reserve", "update a job"},
    }
    assert {what for what, done in allowed.items() if done} == expected[level]


def _grant(testbed: Testbed, level: str) -> None:
    testbed.slurm("sacctmgr", "-i", "modify", "user", CALLER, "set", f"adminlevel={level}")


def _allowed(testbed: Testbed, *words: str) -> bool:
    try:
        testbed.slurm("scontrol", *words, user=CALLER)
    except AssertionError as refusal:
        if any(words in str(refusal) for words in REFUSALS):
            return False
        raise
    return True
