"""The edge of the node controller: single reads (always from the quorum) and single writes (always conditional)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from bridge.kube import names, resources
from bridge.kube.connection import JSON_PATCH, MERGE_PATCH, Api, ApiError, Json
from bridge.kube.pods import Pod, read_pod
from bridge.model.errors import Conflict, Fenced
from bridge.model.ownership import Mark
from bridge.node_controller.decisions import FenceSeen, NodeSeen, taints_with

FIELD_MANAGER = "slurm-kube-bridge-node-controller"
_MANAGED = {"fieldManager": FIELD_MANAGER}


class Cluster:
    """Everything the controller reads and writes. `leads` is asked before every write: no leader, no write."""

    def __init__(self, api: Api, *, fence: str, leads: Callable[[], bool]) -> None:
        self._api = api
        self._fence_name = fence
        self._fence_path = f"{names.FENCES}/{fence}"
        self._leads = leads

    # --- reads ---

    def loan(self, node: str) -> Json | None:
        return self._get(f"{names.LOANS}/{node}")

    def node(self, node: str) -> NodeSeen | None:
        body = self._get(f"{names.NODES}/{node}")
        return None if body is None else read_node(body)

    def fence(self, node: str) -> FenceSeen:
        body = self._get(self._fence_path)
        return FenceSeen(exists=False) if body is None else read_fence(body, node)

    def pods(self, node: str) -> tuple[Pod, ...]:
        body = self._api.call("GET", names.PODS, query={"fieldSelector": f"spec.nodeName={node}"})
        return tuple(read_pod(item) for item in body["items"])

    def infrastructure(self) -> frozenset[str]:
        """The namespaces on the site's allow-list."""
        body = self._api.call("GET", names.NAMESPACES, query={"labelSelector": f"{names.INFRASTRUCTURE}=true"})
        return frozenset(item["metadata"]["name"] for item in body["items"])

    def attachments(self, node: str, infrastructure: Collection[str]) -> tuple[str, ...]:
        """What VolumeAttachments of others than infrastructure are left on the node, one blocker each."""
        body = self._api.call("GET", names.VOLUME_ATTACHMENTS)
        found = [item for item in body["items"] if item["spec"]["nodeName"] == node]
        return tuple(
            f"volume {item['spec']['source'].get('persistentVolumeName') or item['metadata']['name']} is still attached"
            for item in found
            if self._claimed_by(item) not in infrastructure
        )

    def _claimed_by(self, attachment: Json) -> str:
        """Namespace of the claim behind an attached volume, empty when that cannot be told."""
        name = attachment["spec"]["source"].get("persistentVolumeName")
        volume = self._get(f"{names.PERSISTENT_VOLUMES}/{name}") if name else None
        claim = (volume or {}).get("spec", {}).get("claimRef") or {}
        return str(claim.get("namespace") or "")

    def _get(self, path: str) -> Json | None:
        try:
            return self._api.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    # --- writes ---

    def put_taint(self, node: NodeSeen, mark: Mark) -> NodeSeen:
        return self._write_node(node, taints_with(node, mark.lease), str(mark))

    def lift_taint(self, node: NodeSeen) -> NodeSeen:
        return self._write_node(node, taints_with(node, None), None)

    def make_fence(self, node: str) -> FenceSeen:
        body = {
            "apiVersion": resources.API_VERSION,
            "kind": "NodeFence",
            "metadata": {"name": self._fence_name},
            "spec": {"closed": {}},
        }
        return read_fence(self._write("POST", names.FENCES, body), node)

    def put_fence(self, node: str, replaces: str, mark: Mark) -> FenceSeen:
        path = f"/spec/closed/{node}"
        test = [{"op": "test", "path": path, "value": replaces}] if replaces else []
        return self._write_fence(node, [*test, {"op": "add", "path": path, "value": str(mark)}])

    def lift_fence(self, node: str, entry: str) -> FenceSeen:
        path = f"/spec/closed/{node}"
        return self._write_fence(node, [{"op": "test", "path": path, "value": entry}, {"op": "remove", "path": path}])

    def write_status(self, loan: Json, status: Json) -> None:
        """Replace the status of the very version of the NodeLoan that was read."""
        metadata = loan["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": status}
        self._write("PATCH", f"{names.LOANS}/{metadata['name']}/status", body, MERGE_PATCH)

    def evict(self, pod: Pod, grace_s: int | None) -> str:
        """Ask for the eviction of exactly this pod. Empty when it is on its way or gone, else why not."""
        options: Json = {"preconditions": {"uid": pod.uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        metadata = {"name": pod.name, "namespace": pod.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        try:
            self._call("POST", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)
        except ApiError as error:
            return _why_not_evicted(error)
        return ""

    def tell(self, node: NodeSeen, reason: str, note: str, *, now: datetime) -> None:
        """A Warning Event on the Node, for ``kubectl describe node``."""
        on = {"kind": "Node", "name": node.name, "uid": node.uid}
        body = {
            **resources.event_object(on, reason, note, now, by=FIELD_MANAGER, action="Close", kind="Warning"),
            "metadata": {"generateName": "slurm-kube-bridge-", "namespace": "default"},
        }
        self._write("POST", names.EVENTS.format("default"), body)

    def _write_node(self, node: NodeSeen, taints: list[Json], mark: str | None) -> NodeSeen:
        metadata = {"resourceVersion": node.version, "annotations": {names.MARK: mark}}
        body = {"metadata": metadata, "spec": {"taints": taints or None}}
        return read_node(self._write("PATCH", f"{names.NODES}/{node.name}", body, MERGE_PATCH))

    def _write_fence(self, node: str, patch: list[Json]) -> FenceSeen:
        try:
            return read_fence(self._write("PATCH", self._fence_path, patch, JSON_PATCH), node)
        except ApiError as error:
            if error.status == 422:  # the test of what the patch replaces failed
                raise Conflict(f"the NodeFence's entry of {node} has changed") from error
            raise

    def _write(self, method: str, path: str, body: Json | list[Json], content_type: str = "application/json") -> Json:
        try:
            return self._call(method, path, body, content_type)
        except ApiError as error:
            if error.status in (404, 409):
                raise Conflict(f"{method} {path}: {error.message}") from error
            raise

    def _call(self, method: str, path: str, body: Json | list[Json], content_type: str = "application/json") -> Json:
        if not self._leads():
            raise Fenced("this node controller does not lead any more")
        return self._api.call(method, path, query=_MANAGED, body=body, content_type=content_type)


def read_node(body: Json) -> NodeSeen:
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    ready: Json = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
    return NodeSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        ready=ready.get("status") == "True",
        ready_since=resources.time_of(ready.get("lastTransitionTime")),
        ready_reason=str(ready.get("reason") or "no Ready condition"),
        cordoned=bool(spec.get("unschedulable")),
        gpus_allocatable=int((status.get("allocatable") or {}).get(names.GPU_RESOURCE) or 0),
        taints=tuple(spec.get("taints") or ()),
        mark=str((metadata.get("annotations") or {}).get(names.MARK) or ""),
        last_writer=_last_writer(metadata.get("managedFields") or ()),
    )


def read_fence(body: Json, node: str) -> FenceSeen:
    return FenceSeen(exists=True, entry=str(((body.get("spec") or {}).get("closed") or {}).get(node) or ""))


def _last_writer(managed_fields: Collection[Json]) -> str:
    """Who wrote anything but the status after us, by what Kubernetes keeps of it, or "somebody".

    Kubernetes remembers who set a field, not who took one away: a name is known only of those who also set something.
    """
    entries = [entry for entry in managed_fields if not entry.get("subresource")]
    ours = max((entry.get("time") or "" for entry in entries if entry["manager"] == FIELD_MANAGER), default="")
    later = [entry for entry in entries if (entry.get("time") or "") > ours and entry["manager"] != FIELD_MANAGER]
    newest = max(later, key=lambda entry: str(entry["time"]), default=None)
    return str(newest["manager"]) if newest else "somebody"


def _why_not_evicted(error: ApiError) -> str:
    """Empty when there is nothing left to evict."""
    if error.status == 404:
        return ""
    if error.status == 409:
        return ""  # another pod has taken the name: ours is gone
    budget = next((c for c in error.causes if c.get("reason") == "DisruptionBudget"), None)
    if error.status == 429 and budget is not None:
        return f"PodDisruptionBudget allows no disruption: {budget.get('message') or error.message}"
    if error.status == 500 and "more than one PodDisruptionBudget" in error.message:
        return (
            "more than one PodDisruptionBudget covers it, which the eviction API does not support: remove all but one"
        )
    return f"eviction failed with {error.status}: {error.message}"
