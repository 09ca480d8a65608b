"""Reads of Kubernetes what carries marks of the bridge, for `bridge.planning.leftovers`: by itself, without a broker.

It needs the rights of a cluster admin. ``FailClosed``: a list that could not be read wholly is named in `unread`.
"""

from __future__ import annotations

from collections.abc import Iterator

from bridge.kube.connection import Api, Connection, Json
from bridge.kube.names import GROUP, NAMESPACE, NAMESPACES, NODES, PODS, TAINT
from bridge.model.errors import BridgeError
from bridge.planning.leftovers import KubeMarks, KubeObject
from bridge.settings import KubeSettings

_PAGE_SIZE = 500

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_LISTS = (
    NODES,
    PODS,
    NAMESPACES,
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
)
_IN_OUR_NAMESPACE = (
    f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets",
    f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases",
    f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
    f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
    f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
    f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
)
"""Deleted with the namespace. Its pods are among all pods."""
_OF_EVERY_NAMESPACE = frozenset(("default", "kube-root-ca.crt"))


def connect_and_read(settings: KubeSettings) -> KubeMarks:
    """What stands in the cluster that the settings name. Never raises: without a way there all of it is `unread`."""
    try:
        connection = Connection.open(settings.kubeconfig, timeout_s=settings.kube_timeout_s)
    except BridgeError as why:
        return KubeMarks(unread=(str(why),))
    try:
        return read_marks(connection)
    finally:
        connection.close()


def read_marks(api: Api) -> KubeMarks:
    """What stands in the cluster now."""
    objects: list[KubeObject] = []
    unread: list[str] = []

    def read(path: str) -> list[Json]:
        try:
            found = list(_pages(api, path))
        except BridgeError as why:
            unread.append(f"{path.rpartition('/')[2]}: {why}")
            return []
        objects.extend(_object(path, body) for body in found)
        return found

    ours = [body for body in read(_DEFINITIONS) if body["spec"]["group"] == GROUP]
    for definition in ours:
        for version in definition["spec"]["versions"]:
            if version["storage"]:
                read(f"/apis/{GROUP}/{version['name']}/{definition['spec']['names']['plural']}")
    for path in (*_LISTS, *_IN_OUR_NAMESPACE):
        read(path)
    return KubeMarks(tuple(each for each in objects if _may_matter(each)), tuple(unread))


def _pages(api: Api, path: str) -> Iterator[Json]:
    token = ""
    while True:
        page = api.call("GET", path, query={"limit": str(_PAGE_SIZE), **({"continue": token} if token else {})})
        yield from page.get("items") or ()
        token = (page.get("metadata") or {}).get("continue") or ""
        if not token:
            return


def _may_matter(found: KubeObject) -> bool:
    return found.namespace != NAMESPACE or found.name not in _OF_EVERY_NAMESPACE


def _object(path: str, body: Json) -> KubeObject:
    metadata, spec = body["metadata"], body.get("spec") or {}
    taints = {taint["key"]: str(taint.get("value") or "") for taint in spec.get("taints") or ()}
    plural, group = path.rpartition("/")[2], path.split("/")[2] if path.startswith("/apis/") else ""
    return KubeObject(
        resource=f"{plural}.{group}" if group else plural,
        name=metadata["name"],
        namespace=metadata.get("namespace") or "",
        labels=frozenset(metadata.get("labels") or ()),
        annotations=frozenset(metadata.get("annotations") or ()),
        finalizers=tuple(metadata.get("finalizers") or ()),
        taint=taints.get(TAINT),
        says=_says(metadata, spec),
    )


def _says(metadata: Json, spec: Json) -> str:
    """A few words on what is in an object of ours, as far as they help to see who has a node."""
    words = []
    if metadata.get("deletionTimestamp"):
        held = ", ".join(metadata.get("finalizers") or ()) or "its end"
        words.append(f"being deleted since {metadata['deletionTimestamp']}, waits for {held}")
    if "owner" in spec and "lease" in spec:
        words.append(f"{spec['owner']}'s, lease {spec['lease']}")
    if isinstance(spec.get("closed"), dict):
        words.append(f"keeps pods off {', '.join(sorted(spec['closed'])) or 'no node'}")
    return "; ".join(words)
