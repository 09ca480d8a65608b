"""What the API is built from, and how a route gets hold of it and of its caller."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from bridge.api.auth import Principal, Role, TokenFile
from bridge.api.changes import Changes
from bridge.api.drift import DriftView
from bridge.api.explanations import ExplanationView
from bridge.api.inventory import Members
from bridge.api.problems import READ_ONLY, Problem
from bridge.api.views import PlanView, StatusView
from bridge.model.mode import Mode
from bridge.model.ownership import Node
from bridge.model.policy import Policy
from bridge.planning.explain import Kind
from bridge.ports import Clock, Ledger


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    """Everything `bridge.api.app.create_app` needs.

    `new_id` makes ids of requests. `plan` is a dry run on what is known now, of the policy in force (None) or of
    another one with its inventory; it raises `Unreadable` when too little is known. `members` says which nodes a pool
    without host lists has. `explain` answers why (None: no such subject); it raises `Unreadable` as `plan` does.
    `drift` compares the ledger with a fresh reading of both sides. `status` says what this process knows of its own
    sight and never raises. All are called on any thread. In `mode` `read_only` everything that writes is refused, in
    `dry_run` the leader refuses orders.
    """

    ledger: Ledger
    clock: Clock
    new_id: Callable[[], str]
    tokens: TokenFile
    plan: Callable[[Policy | None, Sequence[Node]], PlanView]
    members: Members
    status: Callable[[], StatusView]
    explain: Callable[[Kind, str], ExplanationView | None]
    drift: Callable[[], DriftView]
    mode: Mode = Mode.ACTIVE


def _dependencies(request: Request) -> ApiDependencies:
    found: ApiDependencies = request.app.state.dependencies
    return found


def _changes(request: Request) -> Changes:
    found: Changes = request.app.state.changes
    return found


_BEARER = HTTPBearer(auto_error=False, description="A token from the broker's token file")


async def _caller(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
) -> Principal:
    # Async, and so on the event loop: a stat of one small file is cheaper than a thread.
    if credentials is None:
        raise _unauthorized("send a header 'Authorization: Bearer <token>'")
    principal = _dependencies(request).tokens.authenticate(credentials.credentials)
    if principal is None:
        raise _unauthorized("this token is not in the broker's token file")
    return principal


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def demand(principal: Principal, *roles: Role) -> None:
    """Raise a 403 unless the role of `principal` covers one of `roles`."""
    if not any(principal.role.covers(role) for role in roles):
        needed = " or ".join(roles)
        raise Problem(403, "forbidden", f"{principal.name} has role {principal.role}; this needs {needed}")


def may_write(deps: ApiDependencies) -> None:
    """Raise a 409 in mode `read_only`."""
    if deps.mode is Mode.READ_ONLY:
        detail = "this broker runs in read_only and writes nothing: ask one that runs in active (BRIDGE_MODE)"
        raise Problem(409, READ_ONLY, detail)


def _require(*roles: Role) -> Callable[[Request, Principal], Coroutine[Any, Any, Principal]]:
    """A route that readers may not use writes."""

    async def required(request: Request, principal: Annotated[Principal, Depends(_caller)]) -> Principal:
        demand(principal, *roles)
        if Role.READER not in roles:
            may_write(_dependencies(request))
        return principal

    return required


Deps = Annotated[ApiDependencies, Depends(_dependencies)]
Polls = Annotated[Changes, Depends(_changes)]
Reader = Annotated[Principal, Depends(_require(Role.READER))]
Operator = Annotated[Principal, Depends(_require(Role.OPERATOR))]
Agent = Annotated[Principal, Depends(_require(Role.AGENT))]
AgentOrReader = Annotated[Principal, Depends(_require(Role.AGENT, Role.READER))]
