"""The shared nodes: who owns each and what keeps it where it is."""

from __future__ import annotations

from fastapi import APIRouter

from bridge.api.dependencies import Deps, Reader
from bridge.api.inputs import NodeName
from bridge.api.problems import Problem, responses
from bridge.api.views import Listing, NodeDetail, NodeView, SightingView

router = APIRouter(prefix="/v1/nodes", tags=["nodes"], responses=responses())


@router.get("", operation_id="listNodes", summary="All shared nodes")
def list_nodes(deps: Deps, caller: Reader) -> Listing[NodeView]:
    """In order of name: owner, lease, live handoff with what it waits for, closures, idle time, backoff."""
    state = deps.ledger.read()
    return Listing[NodeView](now=deps.clock.now(), items=[NodeView.of(name, state) for name in sorted(state.nodes)])


@router.get("/{name}", operation_id="getNode", summary="One shared node", responses=responses(404))
def get_node(name: NodeName, deps: Deps, caller: Reader) -> NodeDetail:
    """The same as in the list, and what was last seen of it on either side."""
    state = deps.ledger.read()
    if name not in state.nodes:
        raise Problem(404, "unknown-node", f"no pool of the policy has a node {name}")
    seen = [SightingView.of(sighting) for (node, _), sighting in deps.ledger.sightings().items() if node == name]
    return NodeDetail(**NodeView.of(name, state).__dict__, now=deps.clock.now(), seen=seen)
