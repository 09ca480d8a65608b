"""What a Slurm job says of itself to the bridge: how often it saves its state, when it last did, how it likes to end.

Three voices, the first one that says something counts:

1. the site's, in the admin comment: ``{"checkpoint_s": 600, "grace_s": 120, "signal": "USR1"}``;
2. the user's, in the job's comment, which they may change at any time, also from within the job:
   ``bridge: checkpoint=600 grace=120 signal=B:USR1 saved=1796201113``;
3. the tag that job_submit.lua wrote at the submission, in the same words as the site's but under ``"bridge"``: for what
   only the script said (``#SBATCH --signal``), and for a comment that was overwritten since.

`saved` is a report: the moment of the last checkpoint in seconds since 1970, in the user's comment alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from bridge.model.slurm import SlurmJob, is_signal

MOST_S = 1e9
"""More seconds than any wish can mean."""

Said = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Wishes:
    """None or empty: the job does not say. `signal` is spelled as in `bridge.model.slurm.is_signal`."""

    checkpoint_s: float | None = None
    grace_s: float | None = None
    signal: str = ""
    saved_at: datetime | None = None


def wishes(job: SlurmJob) -> Wishes:
    return _wishes(job.admin_comment, job.comment)


@lru_cache(maxsize=4096)
def _wishes(admin_comment: str, comment: str) -> Wishes:
    site, tag = _of_admin(admin_comment)
    user = _of_user(comment)
    checkpoint_s = (_seconds(said.get(key)) for said, key in ((site, _C), (user, "checkpoint"), (tag, _C)))
    grace_s = (_seconds(said.get(key)) for said, key in ((site, _G), (user, "grace"), (tag, _G)))
    signal = (_signal(said.get("signal")) for said in (site, user, tag))
    return Wishes(
        next((seconds for seconds in checkpoint_s if seconds), None),
        next((seconds for seconds in grace_s if seconds is not None), None),
        next(filter(None, signal), ""),
        _moment(user.get("saved", "")),
    )


_C, _G = "checkpoint_s", "grace_s"


def _of_admin(comment: str) -> tuple[Said, Said]:
    """The site's own words, and the tag."""
    try:
        said = json.loads(comment) if comment.lstrip().startswith("{") else {}
    except (ValueError, RecursionError):
        return {}, {}
    tag = said.get("bridge") if isinstance(said, dict) else None
    return said if isinstance(said, dict) else {}, tag if isinstance(tag, dict) else {}


_WORDS = re.compile(r"(?<![A-Za-z0-9_])bridge:((?:\s*[a-z]+=[^\s=]+)+)(?=\s|$)")
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,3})?")
_MOMENT = re.compile(r"\d{1,10}(\.\d{1,6})?")


def _of_user(comment: str) -> dict[str, str]:
    found = _WORDS.search(comment)
    return dict(word.split("=") for word in found[1].split()) if found else {}


def _seconds(value: object) -> float | None:
    """A number of the site's JSON, or the digits of a comment."""
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = float(min(value, MOST_S))
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _signal(value: object) -> str:
    if not isinstance(value, str):
        return ""
    target, colon, name = value.rpartition(":")
    spelled = f"{target}{colon}{name.upper().removeprefix('SIG')}"
    return spelled if is_signal(spelled) else ""


def _moment(text: str) -> datetime | None:
    return datetime.fromtimestamp(float(text), UTC) if _MOMENT.fullmatch(text) else None


def reported(comment: str, at: datetime, checkpoint_s: float | None = None) -> str:
    """A user's comment with the report of a checkpoint made `at`, and with an interval where one is given.

    Everything else in it stays as it is.
    """
    words = _of_user(comment) | {"saved": f"{at.timestamp():.0f}"}
    if checkpoint_s is not None:
        words["checkpoint"] = f"{checkpoint_s:g}"
    said = "bridge: " + " ".join(f"{key}={value}" for key, value in words.items())
    found = _WORDS.search(comment)
    if found:
        return comment[: found.start()] + said + comment[found.end() :]
    return f"{comment}; {said}" if comment else said
