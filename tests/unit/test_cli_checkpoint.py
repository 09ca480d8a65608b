"""``bridgectl checkpoint``: what a job writes into its own comment, with squeue and scontrol as little programs."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bridge.cli.main import app
from bridge.planning.wishes import reported
from tests.unit.test_wishes import said

PROGRAM = """#!{python}
import json, pathlib, sys
here = pathlib.Path({folder!r})
with (here / "calls").open("a") as log:
    log.write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + "\\n")
if (here / "fails").exists():
    sys.exit((here / "fails").read_text())
if sys.argv[0].endswith("squeue"):
    print((here / "comment").read_text())
"""


class Node:
    """A compute node, on which a job with `comment` runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("squeue", "scontrol"):
            program = folder / name
            program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
            program.chmod(0o755)
        self.comment("(null)")

    def comment(self, text: str) -> None:
        (self.folder / "comment").write_text(text)

    def run(self, *options: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["checkpoint", *options])
        return done.exit_code, done.output + done.stderr

    def calls(self) -> list[list[str]]:
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    return Node(tmp_path)


def test_a_report_keeps_the_words_that_stand_there(node: Node) -> None:
    node.comment("nightly; bridge: checkpoint=600 saved=5 grace=120")
    before = datetime.now(UTC).replace(microsecond=0)
    code, shown = node.run()
    assert code == 0
    asked, (scontrol, update, address, comment) = node.calls()
    assert asked == ["squeue", "--noheader", "--jobs=17", "--states=all", "--format=%k"]
    assert (scontrol, update, address) == ("scontrol", "update", "JobId=17")
    wish = said(user=comment.removeprefix("Comment="))
    assert comment.startswith("Comment=nightly; bridge: checkpoint=600 saved=")
    assert (wish.checkpoint_s, wish.grace_s) == (600, 120)
    assert wish.saved_at is not None
    assert before <= wish.saved_at
    assert shown.startswith("job 17: nightly; bridge:")


def test_a_task_of_an_array_is_never_named_by_the_id_of_all(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert node.run()[0] == 0
    assert [call[2] for call in node.calls()] == ["--jobs=17_3", "JobId=17_3"]


def test_another_job_may_be_named_and_its_interval_said(node: Node) -> None:
    assert node.run("--job", "18", "--every-s", "900")[0] == 0
    assert node.calls()[1][2] == "JobId=18"
    assert "checkpoint=900" in node.calls()[1][3]


@pytest.mark.parametrize("job", ["", "x", "17;x", "17_3_4", "-1", "17 Priority=9"])
def test_outside_a_job_nothing_is_done(node: Node, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", job)
    code, shown = node.run()
    assert (code, node.calls()) == (2, [])
    assert "this is no Slurm job" in shown


def test_what_slurm_refuses_is_said(node: Node) -> None:
    (node.folder / "fails").write_text("slurm_load_jobs error: Invalid job id specified")
    code, shown = node.run()
    assert code == 1
    assert "squeue: slurm_load_jobs error: Invalid job id specified" in shown


AT = datetime(2026, 12, 2, 8, 45, 13, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "bridge: saved=1796201113"),
        ("nightly", "nightly; bridge: saved=1796201113"),
        ("bridge: saved=5", "bridge: saved=1796201113"),
        ("bridge: checkpoint=600 grace=9", "bridge: checkpoint=600 grace=9 saved=1796201113"),
        ("a bridge: grace=9 b", "a bridge: grace=9 saved=1796201113 b"),
        ("bridge: my own", "bridge: my own; bridge: saved=1796201113"),
    ],
)
def test_a_report_changes_nothing_else_of_a_comment(before: str, after: str) -> None:
    assert reported(before, AT) == after
    assert said(user=after).saved_at == AT
    assert reported(after, AT) == after


def test_an_interval_is_read_back() -> None:
    assert said(user=reported("bridge: signal=B:USR1", AT, 300.0)).checkpoint_s == 300
