"""Schemathesis: the API keeps what its OpenAPI document says, for whatever a client may send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from bridge.model.ledger import RequestState
from bridge.model.ownership import Owner
from tests.unit.api_world import World, bearer

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("schema")
    world = World(folder / "tokens")
    world.share()
    world.own("gpu-1", Owner.KUBERNETES)
    world.begin("gpu-2", "h2", blockers=("job 17 runs",))
    world.answer_all(RequestState.ACCEPTED, "begins")
    return schemathesis.openapi.from_asgi("/openapi.json", world.app())


BOUNDED = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("holder", ["platform", "slurmctl"])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_api_keeps_its_word(schema: Any, holder: str, mode: GenerationMode) -> None:
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 18
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not {"parameters", "requestBody"} & operation.definition.raw.keys():
            continue  # what takes nothing cannot be given anything wrong

        @BOUNDED
        @given(case=operation.as_strategy(generation_mode=mode))
        def keeps_its_word(case: Any) -> None:
            # Nobody is there to end a long poll.
            if "wait_s" in (case.query or {}):
                case.query["wait_s"] = "0"
            case.call_and_validate(checks=CHECKS, headers=bearer(holder))

        keeps_its_word()
