"""Our types and their JSON: there and back, and within what the schema allows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bridge.kube import resources
from bridge.kube.names import FENCING_RULE
from bridge.model.kube import DeviceHolder, Inspection, LoanSpec, LoanStatus
from bridge.model.ownership import Mark, Owner

CRDS = Path(__file__).parents[2] / "k8s_manifests" / "base" / "crds"

numbers = st.integers(0, 10**18 - 1)
marks = st.builds(Mark, st.from_regex(r"[a-z0-9]{8,40}", fullmatch=True), numbers, numbers)
texts = st.text(max_size=60)
specs = st.builds(
    LoanSpec, st.just("gpu-1"), st.sampled_from(Owner), marks, st.integers(0, 64), st.booleans(), texts, texts
)
statuses = st.builds(
    LoanStatus,
    st.sampled_from(["Closing", "Draining", "Closed", "Empty", "Opening", "Open"]),
    st.none() | marks,
    st.booleans(),
    st.booleans(),
    texts,
    texts,
    st.integers(0, 100),
    st.integers(0, 64),
    st.lists(texts, max_size=resources.MAX_BLOCKERS).map(tuple),
)
inspections = st.builds(
    Inspection,
    texts,
    st.lists(st.builds(DeviceHolder, st.integers(1, 2**22), texts, texts, texts), max_size=3).map(tuple),
    texts,
)


def schema(plural: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())
    properties: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return properties


@given(specs)
def test_a_spec_comes_back(spec: LoanSpec) -> None:
    assert resources.loan_spec(resources.loan_object(spec)) == spec


@given(statuses)
def test_a_status_comes_back(status: LoanStatus) -> None:
    assert resources.loan_status({"status": resources.status_object(status)}) == status


@given(inspections)
def test_an_inspection_comes_back(answer: Inspection) -> None:
    assert resources.inspection({"status": resources.inspection_status(answer)}) == answer


def test_a_question_without_an_answer() -> None:
    body = resources.inspection_object("gpu-1", "n1")
    assert resources.inspection_nonce(body) == "n1"
    assert resources.inspection(body) is None


SPEC = LoanSpec("gpu-1", Owner.BRIDGE, Mark("lease0001", 1, 2), 8, reason="r" * 5000)
STATUS = LoanStatus(observed=SPEC.mark, blockers=("b" * 5000,) * 100)


@pytest.mark.parametrize(
    ("plural", "part", "body"),
    [
        ("nodeloans", "spec", resources.loan_object(SPEC)["spec"]),
        ("nodeloans", "status", resources.status_object(STATUS)),
        ("nodeinspections", "spec", resources.inspection_object("gpu-1", "n1")["spec"]),
        ("nodeinspections", "status", resources.inspection_status(Inspection("n1"))),
    ],
)
def test_we_write_only_what_the_schema_knows(plural: str, part: str, body: dict[str, Any]) -> None:
    """The apiserver would drop any other field without a word."""
    known = schema(plural)[part]
    assert body.keys() <= known["properties"].keys()
    assert set(known.get("required", ())) <= body.keys()


def test_texts_are_cut_to_what_the_schema_allows() -> None:
    known = schema("nodeloans")
    assert len(resources.loan_object(SPEC)["spec"]["reason"]) <= known["spec"]["properties"]["reason"]["maxLength"]
    blockers = resources.status_object(STATUS)["blockers"]
    allowed = known["status"]["properties"]["blockers"]
    assert len(blockers) <= allowed["maxItems"]
    assert max(map(len, blockers)) <= allowed["items"]["maxLength"]
    assert blockers[-1] == "and 81 more"


def test_the_schema_fences_with_the_words_that_we_look_for() -> None:
    (rule,) = schema("nodeloans")["spec"]["x-kubernetes-validations"]
    assert rule["message"] == FENCING_RULE


def test_times() -> None:
    at = datetime(2026, 5, 4, 12, 1, 3, 250_000, tzinfo=UTC)
    assert resources.time_text(at) == "2026-05-04T12:01:03.250000Z"
    assert resources.time_of(resources.time_text(at)) == at
    assert resources.time_of(None) is None
