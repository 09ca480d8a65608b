"""What jobs say of themselves, by whom, and what is taken for nothing said."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bridge.model.slurm import SlurmJob
from bridge.planning.wishes import Wishes, wishes


def said(admin: str = "", user: str = "") -> Wishes:
    return wishes(SlurmJob(17, "RUNNING", "alice", "vision", "gpu", admin_comment=admin, comment=user))


@pytest.mark.parametrize(
    ("admin", "user", "expected"),
    [
        ("", "", None),
        ('{"checkpoint_s": 600}', "bridge: checkpoint=900", 600),
        (' {"checkpoint_s": 600.5}', "", 600.5),
        ('{"bridge": {"pool": "h100", "checkpoint_s": 300}}', "", 300),
        ('{"bridge": {"checkpoint_s": 300}}', "bridge: checkpoint=900", 900),  # changed since the submission
        ('{"checkpoint_s": 600, "bridge": {"checkpoint_s": 300}}', "bridge: checkpoint=900", 600),
        ('{"checkpoint_s": "600"}', "", 600),
        ('{"checkpoint_s": "soon"}', "bridge: checkpoint=900", 900),
        ('{"checkpoint_s": 0}', "", None),
        ('{"checkpoint_s": -1}', "", None),
        ('{"checkpoint_s": NaN}', "", None),
        ('{"checkpoint_s": Infinity}', "", 1e9),
        ('{"checkpoint_s": 1' + "0" * 400 + "}", "", 1e9),
        ('{"checkpoint_s": true}', "", None),
        ('{"checkpoint_s"', "", None),
        ('{"bridge": [7]}', "", None),
        ('["checkpoint_s"]', "", None),
        ('{"a":' * 100_000 + '"checkpoint_s"', "", None),
        ("", "my run; bridge: grace=120 checkpoint=600.5", 600.5),
        ("", "bridge:checkpoint=600 and more", 600),
        ("", "checkpoint=600", None),
        ("", "notbridge: checkpoint=600", None),
        ("", "bridge: checkpoint=-1", None),
        ("", "bridge: checkpoint=0", None),
        ("", "bridge: checkpoint=soon grace=5", None),
    ],
)
def test_how_often_it_saves_its_state(admin: str, user: str, expected: float | None) -> None:
    assert said(admin, user).checkpoint_s == expected


@pytest.mark.parametrize(
    ("admin", "user", "grace_s", "signal"),
    [
        ("", "bridge: grace=120 signal=USR1", 120, "USR1"),
        ("", "bridge: grace=0", 0, ""),
        ("", "bridge: signal=sigterm", None, "TERM"),
        ("", "bridge: signal=B:USR2", None, "B:USR2"),
        ("", "bridge: signal=S:usr1", None, "S:USR1"),
        ("", "bridge: signal=KILL", None, ""),
        ("", "bridge: signal=X:USR1", None, ""),
        ("", "bridge: signal=USR1&flags", None, ""),
        ('{"bridge": {"grace_s": 300, "signal": "B:USR1"}}', "bridge: grace=20", 20, "B:USR1"),
        ('{"signal": "HUP"}', "bridge: signal=USR1", None, "HUP"),
        ('{"signal": 9, "grace_s": null}', "", None, ""),
    ],
)
def test_how_it_wants_to_be_told_to_end(admin: str, user: str, grace_s: float | None, signal: str) -> None:
    assert (said(admin, user).grace_s, said(admin, user).signal) == (grace_s, signal)


@pytest.mark.parametrize(
    ("user", "saved_at"),
    [
        ("bridge: saved=1796201113", datetime(2026, 12, 2, 8, 45, 13, tzinfo=UTC)),
        ("bridge: checkpoint=600 saved=0.5", datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
        ("bridge: saved=soon", None),
        ("bridge: saved=99999999999", None),
        ("saved=1796201113", None),
    ],
)
def test_when_it_last_saved_its_state(user: str, saved_at: datetime | None) -> None:
    assert said(user=user).saved_at == saved_at


def test_a_report_is_the_users_alone() -> None:
    assert said(admin='{"saved": 1796201113, "bridge": {"saved": 1796201113}}').saved_at is None
