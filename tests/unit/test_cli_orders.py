"""bridgectl's orders and policy files: what is said when they succeed, and how they fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bridge.api.views import PlanView, WhyView
from bridge.cli.documents import load
from bridge.cli.failures import CliError
from bridge.cli.main import app
from bridge.cli.text import duration
from bridge.model.ledger import PutPause, RequestState
from bridge.model.ownership import Owner
from bridge.model.pause import Pause, PauseKind, Reach, Scope
from bridge.model.policy import Policy
from tests.unit.api_world import POLICY, TOKENS, World
from tests.unit.cli_world import CliRunner, Terminal


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tokens")


@pytest.fixture
def terminal(world: World, tmp_path: Path) -> Terminal:
    return Terminal(world, tmp_path, "platform")


# --- orders ---


@pytest.mark.parametrize(("command", "destination"), [("lend", "kubernetes"), ("reclaim", "slurm")])
def test_an_accepted_order(world: World, terminal: Terminal, command: str, destination: str) -> None:
    world.share()
    world.answer_all(RequestState.ACCEPTED, "handoffs h1, h2")
    assert terminal.shown(command, "gpu-[1-2]", "gpu-4", "--reason", "launch day") == (
        "accepted: handoffs h1, h2\nfollow with: bridgectl handoffs --watch\n"
    )
    request = world.ledger.request("req-1")
    assert request is not None
    assert (request.nodes, request.destination, request.reason, request.requested_by) == (
        ("gpu-1", "gpu-2", "gpu-4"),
        destination,
        "launch day",
        "platform",
    )


def test_a_refused_order_ends_with_1_in_the_leaders_words(world: World, terminal: Terminal) -> None:
    world.share()
    world.answer_all(RequestState.REFUSED, "node gpu-1 cannot be taken from slurm: it is in motion")
    result = terminal.run("lend", "gpu-1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: refused: node gpu-1 cannot be taken from slurm: it is in motion\n"
        "  where: POST http://broker/v1/handoffs\n"
    )


def test_an_order_that_nobody_answers_ends_with_3(world: World, terminal: Terminal) -> None:
    world.share()
    result = terminal.run("lend", "gpu-1", "--wait-s", "0", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["state"]) == (3, "pending")
    assert result.stderr == (
        "error: order req-1 is written, but no leader answered within 0 s\n"
        "  remedy: it is answered as soon as one leads: look at `bridgectl status` and `bridgectl events`\n"
    )


def test_an_order_for_an_unknown_node_names_it(world: World, terminal: Terminal) -> None:
    world.share()
    result = terminal.run("lend", "gpu-1", "gpu-9")
    assert result.exit_code == 1
    assert "  nodes[1]: no pool of the policy has gpu-9 (use names that" in result.stderr


def test_pause_and_resume(world: World, terminal: Terminal) -> None:
    paused = terminal.shown("pause", "switch maintenance")
    assert paused == "paused: switch maintenance. Running handoffs finish; `bridgectl resume` ends the pause.\n"
    assert world.ledger.read().paused == "switch maintenance"
    assert json.loads(terminal.shown("resume", "-o", "json")) == {"paused": "", "pauses": []}
    assert world.ledger.read().paused == ""


def test_pause_and_resume_of_a_pool_and_of_a_node(world: World, terminal: Terminal) -> None:
    world.share()
    assert terminal.shown("pause", "new driver", "--pool", "h100") == (
        "paused: new driver. Running handoffs finish; `bridgectl resume --pool h100` ends the pause.\n"
    )
    terminal.shown("pause", "bad fan", "--node", "gpu-1")
    assert "paused      paused pool h100: new driver\npaused      paused node gpu-1: bad fan\n" in terminal.shown(
        "status"
    )
    assert "paused: pool h100: new driver; node gpu-1: bad fan" in terminal.shown("nodes", "gpu-1")
    assert terminal.shown("resume", "--pool", "h100") == (
        "handoffs may start again\nstill paused: node gpu-1: bad fan\n"
    )
    assert terminal.shown("resume", "--node", "gpu-1") == "handoffs may start again\n"
    assert "  pool: the policy has no pool a100" in terminal.run("pause", "x", "--pool", "a100").stderr


def test_recall_shows_asks_and_then_calls(world: World, terminal: Terminal) -> None:
    world.share()
    world.own("gpu-3", Owner.KUBERNETES)
    no = terminal.run("recall", "--all", input="n\n")
    assert no.exit_code == 1
    assert "lent, or on their way out: gpu-3. Their work is asked to go; nothing is lent.\n" in no.stdout
    assert "error: not confirmed: nothing has changed\n" in no.stderr
    assert terminal.run("recall", "--all", input="").exit_code == 1
    assert world.ledger.read().pauses == ()
    said = terminal.run("recall", "--pool", "h100", "--reason", "power cut", input="y\n").stdout
    assert said.endswith(
        "recalled: gpu-3. Nothing else moves there; `bridgectl resume --pool h100` ends the recall.\n"
        "follow with: bridgectl handoffs --watch\n"
    )
    world.clock.pass_s(65)
    status = terminal.shown("status")
    assert "recalled    pool h100: recalled by platform: power cut (1m05s ago)\n" in status
    assert "paused" not in status
    assert "paused: pool h100: recalled by platform: power cut" in terminal.shown("nodes", "gpu-1")
    assert json.loads(terminal.shown("recall", "--all", "--yes", "-o", "json"))["lent"] == ["gpu-3"]
    assert terminal.shown("resume", "--pool", "h100") == (
        "handoffs may start again\nstill paused: recalled by platform: ordered with bridgectl\n"
    )


def test_a_tripped_breaker_is_shown_and_ended(world: World, terminal: Terminal) -> None:
    world.share()
    tripped = Pause(Scope(Reach.POOL, "h100"), "11 leases ended badly", "breaker", world.clock.now(), PauseKind.BREAKER)
    world.commit(PutPause(tripped, None))
    world.clock.pass_s(65)
    shown = terminal.shown("status")
    assert "breaker     pool h100: circuit breaker: 11 leases ended badly (1m05s ago)\n" in shown
    assert "paused: pool h100: circuit breaker: 11 leases ended badly" in terminal.shown("nodes", "gpu-1")
    assert terminal.shown("resume", "--pool", "h100") == "handoffs may start again\n"
    assert "breaker" not in terminal.shown("status")


@pytest.mark.parametrize(
    "arguments", [(), ("--all", "--pool", "h100"), ("--all", "-o", "json"), ("--node", "gpu-1", "--all")]
)
def test_a_recall_that_is_not_clear_sends_nothing(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    assert terminal.run("recall", *arguments).exit_code == 2
    assert terminal.wire.sent == []


# --- ways to fail ---


def test_a_role_that_may_not(world: World, tmp_path: Path) -> None:
    result = Terminal(world, tmp_path, "viewer").run("pause", "x")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: refused: viewer has role reader; this needs operator\n"
        "  where: POST http://broker/v1/pause\n"
        "  remedy: use a token with that role: --token-file or BRIDGE_CLIENT_TOKEN_FILE\n"
    )


def test_a_token_that_the_broker_does_not_know(terminal: Terminal) -> None:
    terminal.token_file.write_text("an-old-token-0123456789")
    result = terminal.run("nodes")
    assert result.exit_code == 1
    assert "this token is not in the broker's token file" in result.stderr
    assert str(terminal.token_file) in result.stderr
    assert "an-old-token" not in result.output


def test_a_token_file_may_hold_a_whole_line_of_the_brokers(world: World, terminal: Terminal) -> None:
    terminal.token_file.write_text(f"platform admin {TOKENS['platform'][1]}\n")
    assert terminal.run("nodes").exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file or directory"), (b"", "holds no token"), (b"\xff", "not a text file")],
)
def test_a_token_file_that_is_no_use(terminal: Terminal, content: bytes | None, message: str) -> None:
    terminal.token_file.unlink()
    if content is not None:
        terminal.token_file.write_bytes(content)
    result = terminal.run("nodes")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "--token-file or BRIDGE_CLIENT_TOKEN_FILE" in result.stderr


def test_an_unreachable_broker_ends_with_3(terminal: Terminal) -> None:
    def refuse(request: httpx.Request) -> None:
        raise httpx.ConnectError("[Errno 111] Connection refused")

    terminal.wire.before = refuse
    result = terminal.run("--url", "http://elsewhere:8080/", "nodes")
    assert result.exit_code == 3
    assert result.stderr == (
        "error: the broker is unreachable: [Errno 111] Connection refused\n"
        "  where: GET http://elsewhere:8080/v1/nodes\n"
        "  remedy: is a broker running there? name another one with --url or BRIDGE_URL\n"
    )


def test_a_ledger_that_is_away_ends_with_3(world: World, terminal: Terminal) -> None:
    world.ledger.away = "connection refused"
    result = terminal.run("nodes")
    assert result.exit_code == 3
    assert result.stderr.startswith("error: the broker cannot answer: ledger is unreadable: connection refused\n")


@pytest.mark.parametrize("answer", [httpx.Response(200, html="<p>hello</p>"), httpx.Response(404, text="nope")])
def test_something_else_that_answers_there(tmp_path: Path, terminal: Terminal, answer: httpx.Response) -> None:
    environment = {"BRIDGE_CLIENT_TOKEN_FILE": str(terminal.token_file)}
    transport = httpx.MockTransport(lambda request: answer)
    result = CliRunner().invoke(app, ["nodes"], obj=transport, env=environment)
    assert result.exit_code == 3
    assert f"what answers there is not a broker (HTTP {answer.status_code})" in result.stderr


@pytest.mark.parametrize(
    "arguments", [("lend",), ("nodes", "a", "b"), ("sing",), ("events", "--limit", "0"), ("pause",)]
)
def test_wrong_usage_ends_with_2_and_sends_nothing(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    assert terminal.run(*arguments).exit_code == 2
    assert terminal.wire.sent == []


def test_no_option_takes_a_token(terminal: Terminal) -> None:
    for command in ("--help", "status --help", "lend --help", "policy apply --help"):
        options = {word for word in terminal.run(*command.split()).stdout.split() if word.startswith("--")}
        assert "--token" not in options
        assert "--password" not in options


def test_settings_that_cannot_be_are_named_and_not_shown() -> None:
    result = CliRunner().invoke(app, ["node-controller"], env={"BRIDGE_PROBE_PORT": "s3cret"})
    assert result.exit_code == 2
    assert "BRIDGE_PROBE_PORT" in result.stderr
    assert "s3cret" not in result.stderr


def test_a_client_starts_without_the_servers_libraries() -> None:
    import subprocess

    heavy = "fastapi uvicorn sqlalchemy kubernetes alembic"
    code = f"import sys, bridge.cli.main; print(*[name for name in '{heavy}'.split() if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


# --- policy files ---


def policy_file(folder: Path, text: str) -> str:
    path = folder / "policy.yaml"
    path.write_text(dedent(text).lstrip("\n"))
    return str(path)


GOOD = """
    pools:
      - name: h100
        nodes: ["gpu-[1-4]"]
        kube_name: "{node}.testbed"
        partition: gpu
        slurm: {floor_nodes: 1, max_nodes: 4}
        kubernetes: {floor_nodes: 1}
"""


def test_check_then_apply(world: World, terminal: Terminal, tmp_path: Path) -> None:
    file = policy_file(tmp_path, GOOD)
    joining = "joining: gpu-1, gpu-2, gpu-3, gpu-4\nleaving: none\n"
    added = (
        "changes:\n"
        "  pools[h100]: none -> {name: h100, nodes: ['gpu-[1-4]'], kube_name: '{node}.testbed', partition: gpu, "
        "slurm: {floor_nodes: 1, max_nodes: 4}, kubernetes: {floor_nodes: 1}}\n"
    )
    moves = (
        "  gpu-1, gpu-2: slurm to kubernetes: Deployment default/chat waits for 2 nodes since 40 s\n"
        "  not gpu-3: changed hands 12 s ago, minimum hold is 60 s\n"
    )
    assert terminal.shown("policy", "check", file) == (
        f"{file} is valid: 4 nodes\n{joining}{added}would move now:\n{moves}"
    )
    assert world.ledger.read().policy_version == 0
    assert terminal.shown("policy", "apply", file, "--note", "first pool") == (
        f"version 1 is in force: 4 nodes\n{joining}{added}moves now:\n{moves}"
    )
    assert [(version, author, note) for version, _, author, note, _ in world.ledger.policy_history(9)] == [
        (1, "platform", "first pool")
    ]


def test_what_show_prints_can_be_applied(world: World, terminal: Terminal, tmp_path: Path) -> None:
    world.share()
    shown = terminal.shown("policy", "show")
    assert shown == dedent("""\
        # version 1; what is not here has its default, see --full
        pools:
        - name: h100
          nodes:
          - gpu-[1-4]
          kube_name: '{node}.testbed'
          partition: gpu
          slurm:
            floor_nodes: 1
            max_nodes: 4
          kubernetes:
            floor_nodes: 1
        """)
    before = world.ledger.read().policy
    terminal.shown("policy", "apply", "-", input=shown)
    assert (world.ledger.read().policy_version, world.ledger.read().policy) == (2, before)
    full = terminal.shown("policy", "show", "--full", "--version", "1")
    assert full.startswith("# version 1\npools:\n")
    assert "max_in_flight: 8" in full
    assert "changes: none\n" in terminal.shown("policy", "apply", "-", input=full)
    assert world.ledger.read().policy == before


NIGHT = """
        timetable:
          - {name: night, from: 22:00, until: "06:00", kubernetes_floor_nodes: 0}
"""


def test_times_may_be_written_as_people_write_them(world: World, terminal: Terminal, tmp_path: Path) -> None:
    file = policy_file(tmp_path, GOOD + NIGHT.lstrip("\n"))
    terminal.shown("policy", "apply", file)
    said = terminal.shown("policy", "check", file)
    assert "\nfloors of h100 now: slurm 1, kubernetes 1; from Mon 2026-03-02 22:00 UTC: slurm 1, kubernetes 0\n" in said
    shown = terminal.shown("policy", "show")
    assert "    from: '22:00'\n    until: 06:00\n" in shown
    assert "changes: none\n" in terminal.shown("policy", "check", "-", input=shown)


def test_diff_between_versions(world: World, terminal: Terminal, tmp_path: Path) -> None:
    world.share()
    changed = GOOD.replace("floor_nodes: 1, max", "floor_nodes: 2, max").replace("gpu-[1-4]", "gpu-[1-4],gpu-9")
    terminal.shown("policy", "apply", policy_file(tmp_path, changed + NIGHT.lstrip("\n")))
    lines = [
        "  pools[h100].nodes: ['gpu-[1-4]'] -> ['gpu-[1-4],gpu-9']",
        "  pools[h100].slurm.floor_nodes: 1 -> 2",
        "  pools[h100].timetable[night]: none -> "
        "{name: night, from: '22:00', until: '06:00', kubernetes_floor_nodes: 0}",
    ]
    assert terminal.shown("policy", "diff").splitlines() == ["version 1 to 2:", *lines]
    assert terminal.shown("policy", "diff", "1", "2").splitlines() == ["version 1 to 2:", *lines]
    assert terminal.shown("policy", "diff", "2", "1").splitlines()[2] == "  pools[h100].slurm.floor_nodes: 2 -> 1"
    assert terminal.shown("policy", "diff", "2") == "version 2 to 2: none\n"
    assert json.loads(terminal.shown("policy", "diff", "-o", "json"))["old_version"] == 1
    missing = terminal.run("policy", "diff", "7")
    assert (missing.exit_code, "there is no version 7: the newest is 2" in missing.stderr) == (1, True)


def test_rollback_shows_asks_and_then_applies(world: World, terminal: Terminal, tmp_path: Path) -> None:
    world.share()
    terminal.shown("policy", "apply", policy_file(tmp_path, GOOD.replace("max_nodes: 4", "max_nodes: 3")))
    no = terminal.run("policy", "rollback", "1", input="n\n")
    assert no.exit_code == 1
    assert "going back to version 1 is possible: 4 nodes\n" in no.stdout
    assert "changes:\n  pools[h100].slurm.max_nodes: 3 -> 4\nwould move now:\n  gpu-1, gpu-2: slurm to" in no.stdout
    assert "error: not confirmed: nothing has changed\n" in no.stderr
    assert world.ledger.read().policy_version == 2
    terminal.run("policy", "rollback", "1", input="y\n")
    version, _, author, note, policy = world.ledger.policy_history(1)[0]
    assert (version, author, note, policy.pools[0].slurm.max_nodes) == (3, "platform", "back to version 1", 4)
    shown = terminal.shown("policy", "rollback", "2", "--yes", "--note", "and forth")
    assert shown.startswith("version 4 is in force, with the words of 2: 4 nodes\n")
    assert world.ledger.policy_history(1)[0][3] == "and forth"


def test_rollback_without_a_terminal_or_with_json_does_nothing_unasked(world: World, terminal: Terminal) -> None:
    world.share()
    assert terminal.run("policy", "rollback", "1", input="").exit_code == 1
    assert terminal.run("policy", "rollback", "1", "-o", "json").exit_code == 2
    assert world.ledger.read().policy_version == 1


def test_rollback_does_not_overwrite_what_somebody_else_applied_while_it_asked(
    world: World, terminal: Terminal
) -> None:
    world.share()
    world.ledger.apply_policy(Policy(), [], replaces=1, author="other", note="", at=world.clock.now())

    def meanwhile(request: httpx.Request) -> None:
        if request.method == "PUT" and "dry_run" not in str(request.url):
            world.ledger.apply_policy(Policy(), [], replaces=2, author="other", note="", at=world.clock.now())

    terminal.wire.before = meanwhile
    result = terminal.run("policy", "rollback", "1", input="y\n")
    assert (result.exit_code, 'version "3" is current, not "2"' in result.stderr) == (1, True)
    assert world.ledger.read().policy_version == 3


def test_schema(terminal: Terminal) -> None:
    assert json.loads(terminal.shown("policy", "schema"))["properties"].keys() >= {"pools", "teams"}


def test_why_nothing_moves_is_said_and_kept_short(world: World, terminal: Terminal, tmp_path: Path) -> None:
    world.plan = PlanView(moves=[], whys=[WhyView(subject=f"job {id}", reason="waits") for id in range(30)])
    lines = terminal.shown("policy", "check", policy_file(tmp_path, GOOD)).splitlines()
    assert lines[-23:-20] == ["would move now:", "  nothing", "  not job 0: waits"]
    assert lines[-1] == "  and 10 more that do not: -o json"


def test_history(world: World, terminal: Terminal) -> None:
    world.share()
    world.clock.pass_s(90_000)
    assert terminal.shown("policy", "history") == (
        "VERSION  AGO    BY        NOTE   POOLS\n1        1d01h  platform  first  h100\n"
    )


def test_a_reader_may_check_but_not_apply(world: World, tmp_path: Path) -> None:
    reader, file = Terminal(world, tmp_path, "viewer"), policy_file(tmp_path, GOOD)
    assert reader.run("policy", "check", file).exit_code == 0
    assert reader.run("policy", "apply", file).exit_code == 1


def test_a_policy_that_changed_meanwhile_is_not_overwritten(world: World, terminal: Terminal, tmp_path: Path) -> None:
    world.share()
    file = policy_file(tmp_path, GOOD)
    result = terminal.run("policy", "apply", file, "--replaces", "0")
    assert result.exit_code == 1
    assert 'refused: version "1" is current, not "0"' in result.stderr
    assert "remedy: look at `bridgectl policy show`" in result.stderr


def test_every_mistake_has_its_line_and_its_remedy(terminal: Terminal, tmp_path: Path) -> None:
    file = policy_file(
        tmp_path,
        """
        # what we share
        pools:
          - name: h100
            nodes:
              - gpu-[1-4]
              - gpu-[7-
            partition: gpu
            gpus: 0
            slurm:
              flor_nodes: 1
              max_nodes: 1
              floor_nodes: 2
          - name: a100
            nodes: [a-1]
        """,
    )
    result = terminal.run("policy", "check", file)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {file} is not a policy that can be\n"
        f"  {file}:8: pools[0].gpus: Input should be greater than or equal to 1\n"
        "    remedy: use a value of at least 1\n"
        f"  {file}:10: pools[0].slurm.flor_nodes: Extra inputs are not permitted\n"
        "    remedy: did you mean 'floor_nodes'?\n"
        f"  {file}:13: pools[1].partition: Field required\n"
        "    remedy: add it\n"
    )


def test_what_only_the_broker_can_know_has_its_line_too(world: World, terminal: Terminal, tmp_path: Path) -> None:
    file = policy_file(tmp_path, GOOD.replace("gpu-[1-4]", "gpu-[7-"))
    result = terminal.run("policy", "check", file)
    assert f"  {file}:3: pools[0].nodes: host list" in result.stderr
    assert "    remedy: write Slurm host lists such as gpu-[1-4]\n" in result.stderr


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("pools:\n  - name: a\n   nodes: []\n", 3, "not YAML"),
        ("pools: [\n", 2, "not YAML"),
        ("pools:\n\t- name: a\n", 2, "not YAML"),
        ("pools: []\npools: []\n", 2, "'pools' is given again, after line 1"),
        ("pools:\n  - 1: x\n", 2, "'1' is not a name"),
        ("pools:\n  - name: 2026-01-01\n", 2, "'2026-01-01' is neither text nor a number"),
        ("pools:\n  - min_hold_s: .nan\n", 2, "'.nan' is neither text nor a number"),
        ("pools:\n  - name: !!binary aGk=\n", 2, "neither text nor a number"),
        ("pools:\n  - name: !!python/object:os.system x\n", 2, "cannot be read"),
        ("a: &a [*a]\n", 1, "nested too deeply"),
        ("[" * 50 + "]" * 50, 1, "nested too deeply"),
        ("a: b\x00", 1, "not YAML"),
        ("---\na: 1\n---\nb: 2\n", 3, "not YAML"),
    ],
)
def test_files_that_are_not_json_in_yaml(text: str, line: int, message: str) -> None:
    with pytest.raises(CliError) as raised:
        load(text, "policy.yaml")
    assert raised.value.where == f"policy.yaml:{line}"
    assert message in raised.value.what
    assert raised.value.remedy


def test_an_empty_file_is_an_empty_policy() -> None:
    assert load("# nothing\n", "policy.yaml").data == {}


def test_a_missing_file_ends_with_2(terminal: Terminal) -> None:
    result = terminal.run("policy", "apply", "/no/such/file")
    assert result.exit_code == 2
    assert result.stderr == "error: the policy file cannot be read: No such file or directory\n  where: /no/such/file\n"


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1), _JSON, max_size=4))
def test_whatever_json_can_say_is_read_back_from_yaml(data: dict[str, object]) -> None:
    assert load(yaml.safe_dump(data), "x").data == data
    assert load(yaml.safe_dump(POLICY), "x").data == POLICY


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (185, "3m05s"),
        (3599, "59m59s"),
        (7200, "2h00m"),
        (86_399, "23h59m"),
        (443_000, "5d03h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
