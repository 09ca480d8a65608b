"""Host lists: what Slurm prints is read, what could run a command or fill the memory is refused with a remedy."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model import hostlists
from bridge.model.errors import Invalid
from bridge.model.hostlists import expand, join


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu-[1-3]", ("gpu-1", "gpu-2", "gpu-3")),
        ("cn[001-002,101]", ("cn001", "cn002", "cn101")),
        ("n[0-2]", ("n0", "n1", "n2")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("sh-[2,11]-4", ("sh-2-4", "sh-11-4")),
        ("cpn-f13-03-[01-02],login", ("cpn-f13-03-01", "cpn-f13-03-02", "login")),
        ("gpu-0001.example.internal", ("gpu-0001.example.internal",)),
        ("n[1-2,2],n1", ("n1", "n2")),
    ],
)
def test_reads_what_slurm_and_admins_write(text: str, names: tuple[str, ...]) -> None:
    assert expand([text]) == names


def test_digit_width_makes_another_node() -> None:
    assert set(expand(["a1,a01,a001"])) == {"a1", "a01", "a001"}
    assert set(join(["a1", "a01", "a001"]).split(",")) == {"a1", "a01", "a001"}


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("@x'; touch /tmp/owned; '", "write names and ranges"),
        ("@all", "write names and ranges"),
        ("n1!n2", "write names and ranges"),
        ("n*", "write names and ranges"),
        ("n1 n2", "write names and ranges"),
        ("", "write names and ranges"),
        ("nœud1", "write names and ranges"),
        ("a,,b", "take the comma out"),
        ("a,", "take the comma out"),
        ("n[8-011]", "same number of digits"),
        ("n[3-1]", "write 1-3"),
        ("n[1-2", "not closed"),
        ("n[[1]]", "do not match"),
        ("n]1[", "do not match"),
        ("n[a-b]", "not a number or a range"),
        ("n[1-2,]", "not a number or a range"),
        ("n[1][2]", "write names and ranges"),
        ("-rf", "use letters, digits"),
    ],
)
def test_refuses_with_the_place_and_a_remedy(text: str, remedy: str) -> None:
    with pytest.raises(Invalid, match=remedy.replace("[", r"\[")):
        expand([text])


def test_five_million_names_are_refused_before_they_exist() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match="names 5000000 nodes: at most 100000"):
            expand(["n[1-5000000]"])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_the_limit_counts_all_expressions_together() -> None:
    with pytest.raises(Invalid, match="names 6 nodes: at most 5"):
        expand(["a[1-3]", "b[1-3]"], limit=5)


@pytest.mark.parametrize("text", ["", "a b", "n[1-2]", "a,b", "@x", "--help", "a\n", "x" * 300])
def test_only_single_names_are_joined(text: str) -> None:
    with pytest.raises(Invalid, match="not a node name"):
        join(["good", text])


def test_a_long_list_is_folded_to_something_that_reads_the_same() -> None:
    names = [f"gpu-{number:05}" for number in range(20_000)]
    folded = join(names)
    assert len(folded) < hostlists.MAX_PLAIN_CHARS
    assert set(expand([folded])) == set(names)


def test_a_fold_that_slurm_would_refuse_is_not_sent() -> None:
    names = [f"gpu-{number:05}.example.internal" for number in range(5_000)]
    with pytest.raises(Invalid, match="move fewer nodes at once"):
        join(names)


_NAMES = st.from_regex(r"[a-z]{1,3}-?[0-9]{1,4}", fullmatch=True)


@given(st.lists(_NAMES, min_size=1, max_size=30, unique=True))
def test_joining_then_expanding_gives_the_same_names(names: list[str]) -> None:
    assert set(expand([join(names)])) == set(names)


@given(st.lists(_NAMES, min_size=2, max_size=30, unique=True))
def test_folding_never_changes_a_name(names: list[str]) -> None:
    assert set(expand([hostlists._fold(names)])) == set(names)


@given(st.text(alphabet="n1,[]-0a@;'/ ", max_size=30))
def test_any_text_is_expanded_or_refused_never_more(text: str) -> None:
    try:
        names = expand([text], limit=1_000)
    except Invalid:
        return
    assert 0 < len(names) <= 1_000
    assert all(hostlists.NAME.fullmatch(name) for name in names)
