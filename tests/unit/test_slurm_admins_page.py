"""What the page for Slurm admins has them install: files that exist, units that systemd takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bridge.planning.leftovers import PROLOG
from bridge.settings import AgentSettings, SlurmSettings

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "slurm_plugins"
PAGE = (ROOT / "docs" / "slurm-admins.md").read_text("utf-8")
UNITS = sorted((PLUGINS / "systemd").glob("*.service"))


def test_every_file_of_the_plugins_is_on_the_page() -> None:
    named = set(re.findall(r"slurm_plugins/([\w./-]+\w)", PAGE))
    assert named == {str(path.relative_to(PLUGINS)) for path in PLUGINS.rglob("*") if path.is_file()}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_what_the_page_installs_with_settings_that_exist(unit: Path) -> None:
    text = unit.read_text("utf-8")
    started = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert started, "starts nothing"
    assert started[1].replace("bin/bridgectl", "bin/pip") in PAGE
    assert unit.name.removesuffix(".service") in re.findall(r"systemctl enable --now (\S+)", PAGE)
    for path in re.findall(r"/(?:etc|var/lib|run)/slurm-bridge[\w./-]*", text):
        assert path.removesuffix("/token") in PAGE or path == str(SlurmSettings().slurm_token_file), path


def test_the_units_and_the_settings_mean_the_same_places() -> None:
    agent, token = (unit.read_text("utf-8") for unit in UNITS)
    assert f"StateDirectory={AgentSettings().agent_dir.name}\n" in agent
    assert str(AgentSettings().agent_token_file) in PAGE
    assert f" {SlurmSettings().slurm_user} {SlurmSettings().slurm_token_file}\n" in token


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_a_unit_without_a_word(unit: Path, tmp_path: Path) -> None:
    """Of a key that it does not know systemd says so, and goes on without: a lost hardening."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here")
    copy = tmp_path / unit.name
    # What is started is not installed here.
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text("utf-8"), flags=re.MULTILINE))
    said = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False, timeout=30)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_the_page_calls_the_prolog_by_the_name_that_uninstall_looks_for() -> None:
    assert re.search(rf"^PrologSlurmctld=\S+/{PROLOG}$", PAGE, re.MULTILINE)
