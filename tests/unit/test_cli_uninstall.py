"""``bridgectl uninstall --check``: lines for people, JSON for programs, an exit code for scripts, and no broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from bridge import wiring
from bridge.cli.main import app
from bridge.model.slurm import SlurmNode
from bridge.planning.leftovers import ELSEWHERE, KubeMarks, KubeObject, SlurmMarks

DOC = Path(__file__).parents[2] / "docs" / "bridgectl.md"
DRAINED = SlurmNode("gpu-1", frozenset({"IDLE", "DRAIN"}), 8, reason="bridge:k3f9q2m8x1:4:17 lent to kubernetes: chat")
SLURM = SlurmMarks(nodes={"gpu-1": DRAINED})
KUBERNETES = KubeMarks((KubeObject("nodes", "gpu-2.testbed", taint="k3f9q2m8x1"),))

Run = Callable[..., Result]


def no_broker(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.method} {request.url}: there may be no broker any more")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(slurm: SlurmMarks, kubernetes: KubeMarks, *arguments: str) -> Result:
        monkeypatch.setattr(wiring, "read_marks", lambda: (slurm, kubernetes))
        return CliRunner().invoke(app, ["uninstall", *arguments], obj=httpx.MockTransport(no_broker))

    return run


def test_what_remains_and_how_it_goes(run: Run) -> None:
    result = run(SLURM, KUBERNETES, "--check")
    assert result.exit_code == 1
    assert result.stdout.partition("\nnot to be seen from here\n")[0] == (
        "SIDE        WHAT   NAME                 STANDS\n"
        "slurm       drain  gpu-1                bridge:k3f9q2m8x1:4:17 lent to kubernetes: chat\n"
        "kubernetes  taint  nodes gpu-2.testbed  tainted with lease k3f9q2m8x1\n"
        "\n"
        "to remove it, in this order\n"
        "  # this opens the node to Slurm's jobs: see first that no pod runs there and none can start\n"
        "  scontrol update NodeName=gpu-1 State=RESUME\n"
        "  # this opens the node to pods: see first that no Slurm job runs there and none can start\n"
        "  kubectl taint node gpu-2.testbed bridge.slurm-kube.io/lease:NoSchedule-\n"
    )


def test_nothing_remains(run: Run) -> None:
    result = run(SlurmMarks(), KubeMarks(), "--check")
    assert result.exit_code == 0
    assert result.stdout.startswith("nothing of the bridge remains in Slurm or Kubernetes\n")
    assert all(place in result.stdout for place in ELSEWHERE)


@pytest.mark.parametrize("slurm", [SLURM, SlurmMarks()], ids=["something remains", "nothing else"])
def test_unknown_is_never_nothing(run: Run, slurm: SlurmMarks) -> None:
    result = run(slurm, KubeMarks(unread=("clusterroles: forbidden",)), "--check")
    assert result.exit_code == 3
    assert result.stdout.startswith("UNKNOWN kubernetes: clusterroles: forbidden\n")
    assert "nothing of the bridge remains" not in result.stdout
    assert ("State=RESUME" in result.stdout) == (slurm is SLURM)


def test_json(run: Run) -> None:
    result = run(SLURM, KubeMarks(unread=("nodes: forbidden",)), "--check", "-o", "json")
    assert result.exit_code == 3
    said = json.loads(result.stdout)
    assert said["unknown"] == ["kubernetes: nodes: forbidden"]
    assert [(each["side"], each["kind"], each["name"]) for each in said["items"]] == [("slurm", "drain", "gpu-1")]
    assert said["elsewhere"] == list(ELSEWHERE)


def test_the_example_of_the_page(run: Run) -> None:
    text = DOC.read_text("utf-8")
    session = re.search(r"^```text\n\$ bridgectl uninstall --check\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert session
    reason = "bridge:k3f9q2m8:1:4 lent to kubernetes: launch day"
    drained = SlurmNode("gpu-1", frozenset({"IDLE", "DRAIN"}), 8, reason=reason, reason_user="bridge")
    slurm = SlurmMarks(nodes={"gpu-1": drained}, reservations={"bridge-h100": frozenset({"gpu-1"})})
    kubernetes = KubeMarks((KubeObject("nodes", "gpu-2.testbed", taint="m4d8w1x7"),))
    assert run(slurm, kubernetes, "--check").stdout == session[1]


def test_without_check_nothing_is_looked_at_and_nothing_done(run: Run) -> None:
    result = run(SLURM, KUBERNETES)
    assert result.exit_code == 2
    assert "nothing is removed by this program" in result.stderr
    assert "bridgectl uninstall --check" in result.stderr
