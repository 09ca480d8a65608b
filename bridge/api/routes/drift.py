"""Where the world and the ledger disagree, and who puts it right."""

from __future__ import annotations

from fastapi import APIRouter

from bridge.api.dependencies import Deps, Reader
from bridge.api.drift import DriftView
from bridge.api.problems import Problem, responses
from bridge.model.ownership import Side

router = APIRouter(prefix="/v1", tags=["status"], responses=responses())


@router.get("/drift", operation_id="getDrift", summary="Where the world and the ledger disagree")
def get_drift(deps: Deps, caller: Reader) -> DriftView:
    """Marks that are missing or that the ledger does not know, nodes that vanished, appeared, changed or are misnamed.

    From a fresh reading, on any replica; moves nothing. While one side is UNKNOWN, `unknown` says why and the findings
    of the other side are listed; 503 when neither could be read.
    """
    found = deps.drift()
    if len(found.unknown) == len(Side):
        raise Problem(503, "unreadable", "; ".join(found.unknown), headers={"Retry-After": "2"})
    return found
