"""``bridgectl explain``, and the example of docs/explain.md: what the code says today."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bridge.model.errors import Unreadable
from bridge.planning.explain import Explanation, Kind, Link
from tests.unit.api_world import World
from tests.unit.cli_world import Terminal
from tests.unit.explain_world import Fleet, job, policy, running

DOC = Path(__file__).parents[2] / "docs" / "explain.md"
EXAMPLE = Fleet(
    "KKksS",
    (job(17, 4), running(12, "n4", left_s=840)),
    rules=policy(kubernetes={"floor_nodes": 2}),
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tokens")


@pytest.fixture
def terminal(world: World, tmp_path: Path) -> Terminal:
    return Terminal(world, tmp_path, "viewer")


def explained(world: World, kind: str, name: str) -> Explanation:
    found = EXAMPLE.told(kind, name)
    world.explanations[Kind(kind), name] = found
    return found


def test_the_example_of_the_page(world: World, terminal: Terminal) -> None:
    explained(world, "job", "17")
    session = re.search(
        r"^```console\n\$ bridgectl (.*?)\n(.*?)^```$", DOC.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert session
    assert terminal.shown(*session[1].split()) == session[2]


@pytest.mark.parametrize(("kind", "name"), [("job", "17"), ("node", "n3"), ("team", "web"), ("pool", "h100")])
def test_text_fits_100_columns_and_marks_the_first_obstacle(
    world: World, terminal: Terminal, kind: str, name: str
) -> None:
    found = explained(world, kind, name)
    shown = terminal.shown("explain", kind, name)
    assert " ".join(shown.partition("\n\n")[0].split()) == found.verdict
    assert max(len(line) for line in shown.splitlines() if not line.strip().startswith("$")) <= 100
    assert shown.count("  =>  ") == any(link.holds for link in found.chain)
    assert re.search(r"^when\n  ", shown, re.MULTILINE)


def test_json_is_what_the_api_says(world: World, terminal: Terminal) -> None:
    found = explained(world, "pool", "h100")
    document = json.loads(terminal.shown("explain", "pool", "h100", "-o", "json"))
    assert document["verdict"] == found.verdict
    assert [link["text"] for link in document["chain"]] == [link.text for link in found.chain]


def test_a_pod_is_asked_for_with_its_namespace(world: World, terminal: Terminal) -> None:
    world.explanations[Kind.POD, "web/chat-1"] = Explanation(Kind.POD, "pod web/chat-1", "pod web/chat-1 waits.")
    assert terminal.shown("explain", "pod", "web/chat-1").startswith("pod web/chat-1 waits.\n")


def test_what_people_wrote_cannot_move_the_cursor(world: World, terminal: Terminal) -> None:
    link = Link("nodes", True, "drained by admin: \x1b[2Jbad\nDIMM", {}, "scontrol show node n1\x07")
    world.explanations[Kind.NODE, "n1"] = Explanation(Kind.NODE, "node n1", "stays \x1b[1m", (link,))
    shown = terminal.shown("explain", "node", "n1")
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "DIMM" in shown


def test_no_such_subject_and_unknown_have_their_exit_codes(world: World, terminal: Terminal) -> None:
    missing = terminal.run("explain", "job", "99")
    assert (missing.exit_code, "Slurm's queue has no job 99" in missing.stderr) == (1, True)
    world.plan_fails = Unreadable("slurmrestd", "refused")
    assert terminal.run("explain", "job", "17").exit_code == 3
    assert terminal.run("explain", "cluster", "x").exit_code == 2
