"""The policy: read with its version, replaced only by someone who has read the version they replace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse

from bridge.api.auth import Role
from bridge.api.dependencies import ApiDependencies, Deps, Reader, demand, may_write
from bridge.api.differences import differences
from bridge.api.inputs import Limit, Remark
from bridge.api.inventory import InvalidPolicy, inventory, uprooted
from bridge.api.policy_schema import schema
from bridge.api.problems import BODY, InputError, Problem, invalid, responses
from bridge.api.views import (
    FloorsView,
    Listing,
    PlanView,
    PolicyChangeView,
    PolicyDiffView,
    PolicyVersionView,
    WhyView,
)
from bridge.model.errors import Conflict, Invalid, Unreadable
from bridge.model.ledger import LedgerState
from bridge.model.ownership import Node
from bridge.model.policy import Policy, PoolPolicy
from bridge.planning.timetable import floors, next_change
from bridge.ports import Ledger

router = APIRouter(prefix="/v1/policy", tags=["policy"], responses=responses())

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=64, description="ETag of the version that is replaced", examples=['"3"']),
]
Version = Annotated[int, Query(ge=0, le=2**31 - 1)]


@router.get(
    "",
    operation_id="getPolicy",
    summary="The policy in force, or an older version",
    response_model=Policy,
    responses=responses(404),
)
def get_policy(
    deps: Deps,
    caller: Reader,
    version: Annotated[Version | None, Query(description="This one; the one in force when left out")] = None,
    defaults: Annotated[bool, Query(description="Whether values that are their defaults are told too")] = True,
) -> Any:
    """The document; its version is the ETag. To go back to an older one, put it in the place of today's."""
    state = deps.ledger.read()
    found = state.policy_version if version is None else version
    policy, headers = _version(found, state, deps.ledger), {"ETag": _etag(found)}
    return JSONResponse(policy.model_dump(mode="json", exclude_defaults=not defaults), headers=headers)


@router.get("/schema", operation_id="getPolicySchema", summary="The JSON Schema of the policy")
def get_policy_schema(caller: Reader) -> dict[str, Any]:
    """For editors and for checks without a broker. It does not say what only a broker knows: nodes and what they do."""
    return schema()


@router.get("/diff", operation_id="diffPolicy", summary="What differs between two versions", responses=responses(404))
def diff_policy(
    deps: Deps,
    caller: Reader,
    old: Annotated[Version, Query(description="From this version")],
    new: Annotated[Version | None, Query(description="To this one; the one in force when left out")] = None,
) -> PolicyDiffView:
    """Value by value. Pools, teams and lines of a timetable are compared by name. Version 0 is the empty policy."""
    state = deps.ledger.read()
    to = state.policy_version if new is None else new
    found = differences(_version(old, state, deps.ledger), _version(to, state, deps.ledger))
    return PolicyDiffView(old_version=old, new_version=to, differences=found)


@router.put("", operation_id="putPolicy", summary="Replace the policy", responses=responses(*BODY, 409, 412, 428))
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

    With `dry_run` nothing is stored, and `If-Match` is checked only when it is sent. The answer lists what moves at
    once under the new policy, and why not more; while Slurm or Kubernetes is UNKNOWN it says that instead. Which nodes
    a pool by partition or label has is asked of its scheduler in this call, and then stays until the next one: 503 when
    that scheduler cannot be read.
    """
    if not dry_run:
        demand(caller, Role.ADMIN)
        may_write(deps)
    state = deps.ledger.read()
    _check_version(if_match, state.policy_version, required=not dry_run)
    nodes = _nodes_of(policy, state, deps)
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
    names, planned = {node.name for node in nodes}, _planned(policy, nodes, deps)
    return PolicyChangeView(
        version=version,
        dry_run=dry_run,
        nodes=len(names),
        joining=sorted(names - state.nodes.keys()),
        leaving=sorted(state.nodes.keys() - names),
        differences=differences(state.policy, policy),
        floors=[_floors(pool, policy.timezone, deps.clock.now()) for pool in policy.pools if pool.timetable],
        moves=planned.moves,
        whys=planned.whys,
        mode=deps.mode,
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


def _version(version: int, state: LedgerState, ledger: Ledger) -> Policy:
    """Versions count from 1 without a gap, so the history down to `version` ends with it."""
    if version == state.policy_version:
        return state.policy
    if version == 0:
        return Policy()
    found = ledger.policy_history(state.policy_version - version + 1) if version < state.policy_version else []
    for number, _, _, _, policy in found:
        if number == version:
            return policy
    raise Problem(404, "not-found", f"there is no version {version}: the newest is {state.policy_version}")


def _nodes_of(policy: Policy, state: LedgerState, deps: ApiDependencies) -> tuple[Node, ...]:
    try:
        nodes = inventory(policy, deps.members)
    except InvalidPolicy as error:
        raise invalid(error.errors) from error
    except Unreadable as error:
        detail = f"which nodes are in a pool by partition or label cannot be asked: {error}"
        raise Problem(503, "unreadable", detail, headers={"Retry-After": "2"}) from error
    kept = uprooted(nodes, state)
    if kept:
        raise _invalid_document(f"these nodes cannot leave or be renamed now: {'; '.join(kept)}")
    return nodes


def _planned(policy: Policy, nodes: Sequence[Node], deps: ApiDependencies) -> PlanView:
    """What would move. That this is not known is an answer too: the document is as valid without it."""
    try:
        return deps.plan(policy, nodes)
    except Unreadable as error:
        return PlanView(moves=[], whys=[WhyView(subject="everything", reason=f"UNKNOWN moves nothing: {error}")])


def _floors(pool: PoolPolicy, timezone: str, now: datetime) -> FloorsView:
    change = next_change(pool, timezone, now, within=timedelta(days=7))
    next_at, then = change or (None, None)
    return FloorsView(pool=pool.name, now=floors(pool, timezone, now), next=then, next_at=next_at)


def _invalid_document(message: str) -> Problem:
    return invalid(
        [InputError(location=("body", "pools"), message=message, remedy="move them to their home side first")]
    )
