"""Puts the API together: routes, errors, limits, metrics."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from prometheus_client import CollectorRegistry

from bridge import __doc__ as _what
from bridge.api import docs_page, problems
from bridge.api.changes import Changes
from bridge.api.dependencies import ApiDependencies
from bridge.api.limits import BodyLimit, SafeHeaders
from bridge.api.metrics import LedgerCollector, RequestDurations
from bridge.api.routes import drift, events, explain, fence, handoffs, nodes, policy, probes, status

__all__ = ["ApiDependencies", "create_app"]

_TAGS = [
    {"name": "status", "description": "How well the broker sees, and what it would do."},
    {"name": "nodes", "description": "The shared nodes and their owners."},
    {"name": "handoffs", "description": "Nodes on their way from one side to the other, and orders for them."},
    {"name": "policy", "description": "Floors and limits, with their history."},
    {"name": "events", "description": "The append-only log."},
    {"name": "control", "description": "The switch that stops new handoffs."},
    {"name": "slurm agent", "description": "For the agent on the Slurm controller's host."},
    {"name": "probes", "description": "Without a token."},
]


def create_app(deps: ApiDependencies) -> FastAPI:
    """The ASGI application. It watches `deps.ledger` from now on."""
    app = FastAPI(
        title="slurm-kube-bridge",
        summary="Lends GPU nodes between a Slurm partition and a Kubernetes pool.",
        version="1",
        description=(_what or "").strip(),
        openapi_tags=_TAGS,
        docs_url=None,
        redoc_url=None,
    )
    app.state.dependencies = deps
    app.state.changes = Changes()
    app.state.ledger_metrics = CollectorRegistry()
    app.state.ledger_metrics.register(LedgerCollector(deps.ledger))
    deps.ledger.watch(app.state.changes.notify)
    problems.install(app)
    for module in (status, explain, drift, nodes, handoffs, policy, events, fence, probes):
        app.include_router(module.router)
    _add_docs(app)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit)
    app.add_middleware(SafeHeaders)
    app.add_middleware(RequestDurations)
    return app


def _add_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page.render(app.openapi()))
