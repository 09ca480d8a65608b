"""Names that the bridge writes into a cluster, in one place, as manifests and people rely on them."""

from __future__ import annotations

GROUP = "bridge.slurm-kube.io"
VERSION = "v1alpha1"
API = f"/apis/{GROUP}/{VERSION}"
NAMESPACE = "slurm-kube-bridge"

TAINT = f"{GROUP}/lease"
"""Key of our NoSchedule taint; its value is the lease."""
MARK = f"{GROUP}/mark"
"""Node annotation with the whole mark, set and taken away in one write with the taint: neither lies about the other."""
SHARED = f"{GROUP}/shared"
"""Label (``"true"``) of the nodes that the bridge shares."""
INFRASTRUCTURE = f"{GROUP}/infrastructure"
"""Label (``"true"``) of namespaces whose DaemonSets may run on any node at any time: the site's allow-list."""
EVICT = f"{GROUP}/evict"
"""Pod annotation: ``"true"`` lets a pod without a controller be evicted."""
DO_NOT_DISRUPT = f"{GROUP}/do-not-disrupt"
"""Pod annotation: ``"true"`` means wait for the pod rather than evict it."""
IDLE = f"{GROUP}/idle"
"""Annotation of a Ray worker: ``"true"`` says that it holds its GPUs without using them, and may go first."""

GPU_RESOURCE = "nvidia.com/gpu"
CONTROLLER_LEASE = "node-controller"
"""The coordination Lease that elects the node controller and is its heartbeat."""

LOANS = f"{API}/nodeloans"
INSPECTIONS = f"{API}/nodeinspections"
FENCES = f"{API}/nodefences"
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
NAMESPACES = "/api/v1/namespaces"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"
VOLUME_ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
PERSISTENT_VOLUMES = "/api/v1/persistentvolumes"

FENCING_RULE = "epoch and generation must not go back"
"""Message of the CRD's rule, by which a 422 is known to be a fencing and not a mistake of ours."""


def lease_path(namespace: str, name: str = "") -> str:
    base = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return f"{base}/{name}" if name else base
