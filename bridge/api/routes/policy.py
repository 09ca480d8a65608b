"""The policy: read with its version, replaced only by someone who has read the version they replace."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from bridge.api.auth import Role
from bridge.api.dependencies import Deps, Reader, demand
from bridge.api.inputs import Limit, Remark
from bridge.api.inventory import InvalidPolicy, inventory, uprooted
from bridge.api.problems import BODY, InputError, Problem, invalid, responses
from bridge.api.views import Listing, PolicyChangeView, PolicyVersionView
from bridge.model.errors import Conflict, Invalid
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Node
from bridge.model.policy import Policy

router = APIRouter(prefix="/v1/policy", tags=["policy"], responses=responses())

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=64, description="ETag of the version that is replaced", examples=['"3"']),
]


@router.get("", operation_id="getPolicy", summary="The policy in force")
def get_policy(response: Response, deps: Deps, caller: Reader) -> Policy:
    """The document; its version is the ETag."""
    state = deps.ledger.read()
    response.headers["ETag"] = _etag(state.policy_version)
    return state.policy


@router.put("", operation_id="putPolicy", summary="Replace the policy", responses=responses(*BODY, 412, 428))
def put_policy(
    policy: Policy,
    response: Response,
    deps: Deps,
    caller: Reader,
    if_match: IfMatch = None,
    dry_run: Annotated[bool, Query(description="Only say what it would do; any reader may ask")] = False,
    note: Remark = "",
) -> PolicyChangeView:
    """Needs role admin. `If-Match` names the version it replaces: 428 without one, 412 when it is not current any more.

    With `dry_run` nothing is stored, and `If-Match` is checked only when it is sent.
    """
    if not dry_run:
        demand(caller, Role.ADMIN)
    state = deps.ledger.read()
    _check_version(if_match, state.policy_version, required=not dry_run)
    nodes = _nodes_of(policy, state)
    version = state.policy_version
    if not dry_run:
        try:
            version = deps.ledger.apply_policy(
                policy, nodes, replaces=version, author=caller.name, note=note, at=deps.clock.now()
            )
        except Conflict as error:
            raise Problem(412, "changed", str(error)) from error
        except Invalid as error:
            raise _invalid_document(str(error)) from error
    response.headers["ETag"] = _etag(version)
    names = {node.name for node in nodes}
    return PolicyChangeView(
        version=version,
        dry_run=dry_run,
        nodes=len(names),
        joining=sorted(names - state.nodes.keys()),
        leaving=sorted(state.nodes.keys() - names),
    )


@router.get("/history", operation_id="listPolicyVersions", summary="Versions of the policy, newest first")
def list_policy_versions(deps: Deps, caller: Reader, limit: Limit = 20) -> Listing[PolicyVersionView]:
    """Who changed it when, with which words, to what."""
    versions = [
        PolicyVersionView(version=version, at=at, author=author, note=note, policy=policy)
        for version, at, author, note, policy in deps.ledger.policy_history(limit)
    ]
    return Listing[PolicyVersionView](now=deps.clock.now(), items=versions)


def _etag(version: int) -> str:
    return f'"{version}"'


def _check_version(if_match: str | None, current: int, *, required: bool) -> None:
    if if_match is None:
        if required:
            raise Problem(428, "version-missing", "send If-Match with the ETag of the policy that this one replaces")
        return
    if if_match.strip() != _etag(current):
        detail = f"version {_etag(current)} is current, not {if_match}: read it, then change that"
        raise Problem(412, "changed", detail, headers={"ETag": _etag(current)})


def _nodes_of(policy: Policy, state: LedgerState) -> tuple[Node, ...]:
    try:
        nodes = inventory(policy)
    except InvalidPolicy as error:
        raise invalid(error.errors) from error
    kept = uprooted(nodes, state)
    if kept:
        raise _invalid_document(f"these nodes cannot leave or be renamed now: {'; '.join(kept)}")
    return nodes


def _invalid_document(message: str) -> Problem:
    return invalid(
        [InputError(location=("body", "pools"), message=message, remedy="move them to their home side first")]
    )
