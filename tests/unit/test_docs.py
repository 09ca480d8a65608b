"""README and the other pages name only what exists: targets, commands, settings, files, links, invariants."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from pydantic_settings import BaseSettings

from bridge import settings
from bridge.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/bridgectl.md",
    "docs/rest.md",
    "docs/lifecycle.md",
    "docs/policy.md",
    "docs/explain.md",
    "docs/modes.md",
    "docs/kubernetes-admins.md",
    "docs/training-users.md",
    "docs/slurm-admins.md",
    "docs/slurm-drivers.md",
)

_CODE_LINES = re.compile(r"^```\w*\n(.*?)^```$|^ {4}(\S[^\n]*)$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_SUFFIXES = (".py", ".md", ".yml", ".toml", ".lock", ".lua", ".json", ".env", "/")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_lines(page: str) -> list[str]:
    """Lines of fenced and indented code."""
    blocks = (fenced or indented for fenced, indented in _CODE_LINES.findall(text_of(page)))
    return [line for block in blocks for line in block.splitlines()]


def spans(page: str) -> list[str]:
    """Inline code outside fences."""
    return _SPAN.findall(re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE))


def code(page: str) -> list[str]:
    return [*code_lines(page), *spans(page)]


def fence(page: str, first_line: str) -> list[str]:
    found = re.search(rf"^```\w*\n{re.escape(first_line)}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no block that begins with {first_line}"
    return found[1].splitlines()


# --- commands ---


def test_every_make_target_exists() -> None:
    makefiles = (ROOT / "Makefile").read_text() + (ROOT / "testbed" / "testbed.mk").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefiles, re.MULTILINE))
    named = {
        (page, target)
        for page in PAGES
        for line in code(page)
        for target in re.findall(r"(?:^|[\s;&])make ([a-z][a-z0-9-]*)", line)
    }
    assert len(named) >= 12
    assert {(page, target) for page, target in named if target not in targets} == set()


def invocations() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in code(page):
            for found in re.findall(r"(?:^|[\s/])bridgectl (?:--url \S+ )?([a-z][^#|`]*)", line):
                yield page, found.strip().rstrip(".,;")


def test_every_bridgectl_command_parses() -> None:
    """Only parsed: what they do is tested elsewhere."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group | typer.core.TyperGroup)
    found = list(invocations())
    assert len(found) >= 20
    for page, words in found:
        name, *arguments = shlex.split(words)
        command = group.commands.get(name)
        assert command is not None, f"{page}: bridgectl {words}"
        while hasattr(command, "commands") and arguments:
            name, *arguments = arguments
            assert name in command.commands, f"{page}: bridgectl {words}"
            command = command.commands[name]
        options = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        used = {word.split("=")[0] for word in arguments if word.startswith("-")}
        assert used <= options | {"--help"}, f"{page}: bridgectl {words}"


def test_every_setting_exists() -> None:
    known = {
        f"BRIDGE_{field.upper()}"
        for kind in vars(settings).values()
        if isinstance(kind, type) and issubclass(kind, BaseSettings)
        for field in kind.model_fields
    }
    for plugin in (path for path in (ROOT / "slurm_plugins").iterdir() if path.is_file()):
        known.update(re.findall(r"\bBRIDGE_[A-Z_]+", plugin.read_text("utf-8")))
    named = {(page, name) for page in PAGES for name in re.findall(r"\bBRIDGE_[A-Z][A-Z_]*[A-Z]\b", text_of(page))}
    assert {name for _, name in named} >= {"BRIDGE_URL", "BRIDGE_TOKEN_FILE"}
    assert {(page, name) for page, name in named if name not in known} == set()


# --- files and names ---


def looks_like_a_path(span: str) -> bool:
    if re.search(r"[\s<>{}*$|()]", span) or span.startswith(("/", "~", "build", "..", ".venv")) or "://" in span:
        return False
    return span.endswith(_SUFFIXES) or re.fullmatch(r"[\w.]+(?:/[\w.-]+)+", span) is not None


@pytest.mark.parametrize("page", PAGES)
def test_every_file_exists(page: str) -> None:
    """Named from the root or, as in ARCHITECTURE.md, from ``bridge/``."""
    named = [span for span in spans(page) if looks_like_a_path(span)]
    assert [path for path in named if not ((ROOT / path).exists() or (ROOT / "bridge" / path).exists())] == []


def test_the_files_of_the_architecture_are_found() -> None:
    """Or the test above would say nothing."""
    assert len([span for span in spans("ARCHITECTURE.md") if looks_like_a_path(span)]) >= 25


def test_the_layout_is_that_of_the_package() -> None:
    told = {
        name.rstrip("/")
        for line in fence("ARCHITECTURE.md", "bridge/")
        for name in re.findall(r"(?<=  )[\w.]+(?:/|\.py)", line)
    }
    there = {path.name for path in (ROOT / "bridge").iterdir() if not path.name.startswith("__")}
    assert told == there


def test_every_identifier_of_the_architecture_is_in_the_code() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "bridge").rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    named = [
        name
        for span in spans("ARCHITECTURE.md")
        if re.fullmatch(r"[A-Za-z_][\w.]*", span) and not looks_like_a_path(span)
        for name in span.split(".")
    ]
    assert len(named) >= 25
    assert [name for name in named if name not in words] == []


# --- links and promises ---


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_resolves(page: str) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


def test_each_invariant_is_stated_where_the_architecture_says() -> None:
    rows = re.findall(r"^\| ([A-Z][A-Za-z]+) \| (`[^|]+) \|", text_of("ARCHITECTURE.md"), re.MULTILINE)
    promised = re.findall(r"`([A-Z][A-Za-z]+)`", text_of("README.md").partition("## The promises")[2].split("\n\n")[1])
    assert [name for name, _ in rows] == promised
    for name, modules in rows:
        for module in re.findall(r"`([^`]+)`", modules):
            path = ROOT / "bridge" / module
            file = path / "__init__.py" if path.is_dir() else path
            docstring = file.read_text(encoding="utf-8").split('"""')[1]
            assert re.search(rf"`{name}`", docstring), f"{module} does not state {name}"
