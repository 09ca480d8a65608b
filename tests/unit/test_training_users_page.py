"""The page for training users shows what job_submit.lua says, word for word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.unit.test_job_submit_lua import Plugin, job, plugin

PAGE = Path(__file__).parents[2] / "docs" / "training-users.md"
__all__ = ["plugin"]  # the fixture


def quoted() -> list[str]:
    return re.findall(r"^```text\n(.*?)\n^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_every_sentence_on_the_page_is_said(plugin: Plugin) -> None:
    gang: dict[str, Any] = {"min_nodes": 4, "max_nodes": 4}
    plugin.submit(job(**gang))
    plugin.rule(owned=2, reclaim_s=40)
    plugin.submit(job(min_nodes=3))
    plugin.rule(owned=4)
    plugin.submit(job(min_nodes=1, comment="bridge: chekpoint=600"))
    assert plugin.told == quoted()
