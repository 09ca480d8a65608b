"""What a kubelet and a Prometheus ask: no token, no secrets."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from bridge.api.dependencies import Deps
from bridge.api.metrics import exposition
from bridge.api.problems import responses
from bridge.api.views import View

router = APIRouter(tags=["probes"])


class Health(View):
    """The answer of a probe."""

    status: str


@router.get("/healthz", operation_id="healthz", summary="Whether the process answers")
async def healthz() -> Health:
    """Says nothing about the ledger: a broker that cannot read it must not be restarted for that."""
    return Health(status="ok")


@router.get(
    "/readyz", operation_id="readyz", summary="Whether the ledger can be read", responses={503: responses(503)[503]}
)
def readyz(deps: Deps) -> Health:
    """503 while the ledger cannot be read, so that a Service sends clients to a replica that can."""
    deps.ledger.leader()
    return Health(status="ready")


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request) -> Response:
    """Counts only: no names of people, no reasons, no tokens."""
    return Response(exposition(request.app.state.ledger_metrics), media_type=CONTENT_TYPE_LATEST)
