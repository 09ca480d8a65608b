"""The PrologSlurmctld fence as slurmctld runs it: a bare environment, a job's node list, an exit code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.settings import ReconcilerSettings
from bridge.slurm_agent.files import fence_text, replace

FENCE = Path(__file__).parents[2] / "slurm_plugins" / "prolog_slurmctld_fence"
CLOCKS_DIFFER_S = 5
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]

# scontrol's own expansion is in the end-to-end tests; this one is ClusterShell's.
SCONTROL = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(FENCE.parents[1])!r})
from bridge.model.hostlists import expand
assert sys.argv[1:3] == ["show", "hostnames"]
print("\\n".join(expand([sys.argv[3]])))
"""


@dataclass
class Bench:
    folder: Path
    shell: str

    @property
    def file(self) -> Path:
        return self.folder / "fence"

    def close(self, *nodes: str, age_s: float = 0) -> None:
        replace(self.file, fence_text(nodes, int(time.time() - age_s)))

    def start_job(self, nodes: str | None, **environment: str) -> subprocess.CompletedProcess[str]:
        job = {"SLURM_JOB_ID": "7"} | ({} if nodes is None else {"SLURM_JOB_NODELIST": nodes})
        shell = [self.shell, "sh"] if self.shell == "busybox" else [self.shell]
        return subprocess.run(
            [*shell, str(FENCE)],
            env={"BRIDGE_FENCE_CONF": str(self.folder / "fence.conf"), **job, **environment},
            capture_output=True,
            text=True,
            timeout=20,
        )


@pytest.fixture(params=SHELLS)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(SCONTROL)
    scontrol.chmod(0o755)
    (tmp_path / "fence.conf").write_text(f"# places\nfence_file={tmp_path}/fence\nscontrol={scontrol}\nstale_s=60")
    return Bench(tmp_path, request.param)


@pytest.mark.parametrize(
    ("closed", "job", "refused"),
    [
        (["gpu-2"], "gpu-[1-4]", "gpu-2"),
        (["gpu-2", "gpu-4"], "gpu-[1-4]", "gpu-2 gpu-4"),
        (["gpu-1"], "gpu-1", "gpu-1"),
        (["gpu-01"], "gpu-1", ""),
        (["gpu-1"], "gpu-10", ""),
        (["gpu-10"], "gpu-1", ""),
        (["gpu.1"], "gpu-1", ""),
        ([], "gpu-[1-4]", ""),
        (["gpu-[1-4]"], "gpu-1", ""),
    ],
)
def test_a_job_is_refused_for_exactly_the_closed_nodes(bench: Bench, closed: list[str], job: str, refused: str) -> None:
    bench.close(*closed)
    done = bench.start_job(job)
    assert done.returncode == (1 if refused else 0)
    words = f"bridge-fence: job 7 refused, not Slurm's at present: {refused}\n" if refused else ""
    assert done.stderr == words


def test_ten_thousand_closed_nodes_are_read(bench: Bench) -> None:
    bench.close(*(f"a-rather-long-node-name-{number:05}" for number in range(10_000)))
    assert bench.start_job("a-rather-long-node-name-09999,other").returncode == 1
    assert bench.start_job("other").returncode == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "is missing"),
        ("", "is not whole"),
        ("1796201113\ngpu-1\n", "is not whole"),
        ("1796201113\ngpu-1\nend 3\n", "is not whole"),
        ("gpu-1\nend 1\n", "does not start with a time"),
        ("\ngpu-1\nend 2\n", "does not start with a time"),
        ("08\ngpu-1\nend 2\n", "does not start with a time"),
        ("1; touch owned\ngpu-1\nend 2\n", "does not start with a time"),
        ("$(touch owned)\ngpu-1\nend 2\n", "does not start with a time"),
        ("99999999999999999999\ngpu-1\nend 2\n", "does not start with a time"),
        ("1796201113\x00\xff\ngpu-1\nend 2\n", "does not start with a time"),
    ],
)
def test_a_file_that_is_not_one_allows_and_alarms(bench: Bench, content: str | None, why: str) -> None:
    if content is not None:
        bench.file.write_text(content, encoding="latin-1")
    done = bench.start_job("gpu-1")
    assert (done.returncode, why in done.stderr) == (0, True), done.stderr
    assert "starts without the fence being asked" in done.stderr
    assert not (Path.cwd() / "owned").exists()


@pytest.mark.parametrize(
    ("age_s", "exit_code", "why"), [(50, 1, "refused"), (75, 0, "s old"), (-75, 0, "from the future")]
)
def test_an_old_fence_is_not_believed(bench: Bench, age_s: float, exit_code: int, why: str) -> None:
    bench.close("gpu-1", age_s=age_s)
    done = bench.start_job("gpu-1")
    assert (done.returncode, why in done.stderr) == (exit_code, True), done.stderr


def test_a_job_without_nodes_or_an_scontrol_that_fails_allows_and_alarms(bench: Bench) -> None:
    bench.close("gpu-1")
    for job in (None, "", "gpu-[1-"):
        done = bench.start_job(job)
        assert (done.returncode, "without the fence" in done.stderr) == (0, True), done.stderr


def test_a_hostile_node_list_is_not_executed(bench: Bench) -> None:
    bench.close("gpu-1")
    done = bench.start_job(f"gpu-1'; touch {bench.folder}/owned; '$(touch {bench.folder}/owned)")
    assert done.returncode == 0
    assert not (bench.folder / "owned").exists()


def test_without_settings_the_places_are_the_documented_ones(bench: Bench) -> None:
    (bench.folder / "fence.conf").unlink()
    done = bench.start_job("gpu-1")
    assert done.returncode == 0
    assert "/var/lib/slurm-bridge/fence" in done.stderr


def test_the_broker_opens_behind_a_silent_agent_only_when_the_prolog_believes_its_file_no_more() -> None:
    """In between, Slurm would start jobs on a node that the old file still closes: those that may not be requeued are
    cancelled by the refusal, the others wait for two minutes."""
    [believed_s] = re.findall(r"^stale_s=(\d+)$", FENCE.read_text(), re.MULTILINE)
    settings = ReconcilerSettings()
    assert settings.fence_stale_s > int(believed_s) + CLOCKS_DIFFER_S
    assert settings.fence_stale_s < settings.open_deadline_s, "or the opening would be given up first"
