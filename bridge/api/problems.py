"""Errors as ``application/problem+json`` (RFC 9457): what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from bridge.model import policy
from bridge.model.errors import CallFailed, Unreadable

_LOG = structlog.get_logger(__name__)
_RETRY_AFTER_S = "2"
READ_ONLY = "read-only"
"""The kind of problem that every writing route of a broker in mode `read_only` answers with."""
_KNOWN_FIELDS = tuple(
    {
        field.alias or name
        for kind in vars(policy).values()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, field in kind.model_fields.items()
    }
)


class InputError(BaseModel):
    """One thing that is wrong with what was sent."""

    model_config = ConfigDict(frozen=True)

    location: tuple[str | int, ...] = Field(
        description="The path to the value: body, query, path or header first, then names and list positions",
        examples=[["body", "pools", 0, "slurm", "floor_nodes"]],
    )
    message: str = Field(examples=["Input should be greater than or equal to 0"])
    remedy: str = Field(description="What to change", examples=["use a value of at least 0"])


class ProblemDocument(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(examples=["urn:slurm-kube-bridge:problem:refused"])
    title: str = Field(examples=["Conflict"])
    status: int = Field(examples=[409])
    detail: str = Field(examples=["gpu-1 is in motion already"])
    instance: str = Field(description="The path that was asked for", examples=["/v1/handoffs"])
    errors: list[InputError] = Field(default=[], description="With status 422: each wrong value")


class Problem(Exception):
    """Raised by a route to answer with `status`. `kind` names the sort of problem and never changes its meaning."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        errors: Sequence[InputError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})


def invalid(errors: Sequence[InputError]) -> Problem:
    """422 with each wrong value."""
    count = len(errors)
    return Problem(422, "invalid", f"{count} value{'s are' if count > 1 else ' is'} not valid", errors=errors)


def problem_response(problem: Problem, path: str) -> Response:
    document = ProblemDocument(
        type=f"urn:slurm-kube-bridge:problem:{problem.kind}",
        title=HTTPStatus(problem.status).phrase,
        status=problem.status,
        detail=problem.detail,
        instance=path,
        errors=list(problem.errors),
    )
    return JSONResponse(
        document.model_dump(mode="json", exclude=set() if problem.errors else {"errors"}),
        status_code=problem.status,
        headers=problem.headers,
        media_type="application/problem+json",
    )


BODY = (400, 413)
"""What a body alone may bring about: not JSON in UTF-8, or too long."""


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the problems a route may answer with, besides 401, 403, 422 and 503 that all may."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {"application/problem+json": {"schema": schema}},
        }
        for status in (401, 403, 422, 503, *statuses)
    }


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem document."""
    app.exception_handler(Problem)(_on_problem)
    app.exception_handler(RequestValidationError)(_on_invalid)
    app.exception_handler(HTTPException)(_on_http)
    app.exception_handler(Unreadable)(_on_unreadable)
    app.exception_handler(CallFailed)(_on_unreadable)
    app.exception_handler(Exception)(_on_bug)
    _describe(app)


def _describe(app: FastAPI) -> None:
    # FastAPI describes a response model as application/json only: our media type refers to schemas that we add.
    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = schema["components"]["schemas"]
        schemas.update(problem.pop("$defs"))
        schemas["ProblemDocument"] = problem
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _on_problem(request: Request, error: Problem) -> Response:
    return problem_response(error, request.url.path)


def _on_invalid(request: Request, error: RequestValidationError) -> Response:
    errors = [InputError(location=_place(e), message=e["msg"], remedy=remedy_of(e)) for e in error.errors()]
    return problem_response(invalid(errors), request.url.path)


def _on_http(request: Request, error: HTTPException) -> Response:
    details = {404: "there is nothing at this path", 405: f"{request.method} is not possible here"}
    detail = details.get(error.status_code, str(error.detail))
    kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    return problem_response(Problem(error.status_code, kind, detail, headers=error.headers), request.url.path)


def _on_unreadable(request: Request, error: Exception) -> Response:
    _LOG.warning("answered 503", path=request.url.path, error=str(error))
    problem = Problem(503, "unreadable", str(error), headers={"Retry-After": _RETRY_AFTER_S})
    return problem_response(problem, request.url.path)


def _on_bug(request: Request, error: Exception) -> Response:
    # What went wrong inside is for the log, where the server writes the traceback, not for the caller.
    return problem_response(Problem(500, "internal", "the broker failed; its log says why"), request.url.path)


def _place(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Down to the value, also where a whole object was found wrong: see `bridge.model.policy.wrong`."""
    return (*error["loc"], *error.get("ctx", {}).get("at", ()))


def remedy_of(error: Mapping[str, Any]) -> str:
    """What to do about one pydantic error."""
    context = error.get("ctx", {})
    kind = str(error["type"])
    if "remedy" in context:
        return str(context["remedy"])
    if kind == "extra_forbidden":
        return _spelling(str(error["loc"][-1]))
    bounds = {"greater_than_equal": "ge", "greater_than": "gt", "less_than_equal": "le", "less_than": "lt"}
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    if kind in bounds and bounds[kind] in context:
        return f"use a value {words[bounds[kind]]} {context[bounds[kind]]:.15g}"
    if kind in ("literal_error", "enum"):
        return f"use one of {context.get('expected', 'the listed values')}"
    return _REMEDIES.get(kind, "change the value as the message says")


_REMEDIES = {
    "missing": "add it",
    "json_invalid": "send well-formed JSON",
    "model_attributes_type": "send a JSON object with Content-Type: application/json",
    "string_pattern_mismatch": "use only the characters that the pattern allows",
    "string_too_long": "shorten it",
    "string_too_short": "fill it in",
    "too_short": "add at least one entry",
    "too_long": "split it up",
    "int_parsing": "use a whole number",
    "int_type": "use a whole number",
    "string_type": "use text: put it in quotes",
    "tuple_type": "use a list",
    "dict_type": "use names with values",
    "model_type": "use names with values",
    "float_type": "use a number",
    "bool_type": "use true or false",
    "finite_number": "use a number that is not infinite",
    "int_from_float": "use a whole number",
    "float_parsing": "use a number",
    "bool_parsing": "use true or false",
}


def _spelling(name: str) -> str:
    close = get_close_matches(name, _KNOWN_FIELDS, n=1)
    return f"did you mean '{close[0]}'?" if close else "remove it: there is no such field"
