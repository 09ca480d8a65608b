"""An apiserver in memory, as far as the node controller uses one: versions, conditional writes, status, evictions.

Where it answers as the real one does is written down in `tests/contracts/apiserver.py` and tried on both. A kubelet
lets evicted pods go after their grace; nothing else happens by itself.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from bridge.kube import names
from bridge.kube.connection import JSON_PATCH, MERGE_PATCH, ApiError, Json
from bridge.kube.resources import time_text

_EVENTS = names.EVENTS.format("default")


class StoredApi:
    """`objects` by path. `after(seconds, do)` has something done later; `now` is the time of what is written."""

    def __init__(self, *, now: Callable[[], datetime], after: Callable[[float, Callable[[], None]], object]) -> None:
        self.objects: dict[str, Json] = {}
        self.events: list[Json] = []
        self.evicted: list[str] = []
        self._now, self._after = now, after
        self._versions = itertools.count(1)

    # --- what the cluster's other people do ---

    def put(self, path: str, body: Json) -> Json:
        """Make or replace an object, whatever is there."""
        stored = copy.deepcopy(body)
        before = self.objects.get(path)
        stored["metadata"].setdefault("uid", f"uid-{path}-{next(self._versions)}")
        generation = 1
        if before is not None:
            stored["metadata"]["uid"] = before["metadata"]["uid"]
            generation = before["metadata"]["generation"] + (before.get("spec") != stored.get("spec"))
        stored["metadata"]["generation"] = generation
        stored["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[path] = stored
        return stored

    def change(self, path: str, patch: Json) -> None:
        self.put(path, _merged(self.objects[path], patch))

    def remove(self, path: str) -> None:
        self.objects.pop(path, None)

    # --- what the node controller calls ---

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        match method, content_type, body:
            case "GET", _, _:
                return self._get(path, query or {})
            case "POST", _, dict() if path.endswith("/eviction"):
                return self._evict(path.removesuffix("/eviction"), body)
            case "POST", _, dict():
                return self._create(path, body)
            case "PATCH", kind, dict() if kind == MERGE_PATCH:
                return self._merge(path, body)
            case "PATCH", kind, list() if kind == JSON_PATCH:
                return self._json_patch(path, body)
        raise ApiError(405, {"message": f"{method} of {content_type} is not played here"})

    def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Iterator[Json]:
        raise ApiError(405, {"message": "watches are not played here"})

    def _get(self, path: str, query: Mapping[str, str]) -> Json:
        if path in self.objects:
            return copy.deepcopy(self.objects[path])
        if path in (names.PODS, names.NAMESPACES, names.VOLUME_ATTACHMENTS):
            found = [body for body in self.objects.values() if body["kind"] == _KIND_OF[path] and _meets(body, query)]
            return {"metadata": {"resourceVersion": "0"}, "items": copy.deepcopy(found)}
        raise _not_found(path)

    def _create(self, path: str, body: Json) -> Json:
        if path == _EVENTS:
            self.events.append(copy.deepcopy(body))
            return body
        place = f"{path}/{body['metadata']['name']}"
        if place in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists", "message": f"{place} already exists"})
        return copy.deepcopy(self.put(place, body))

    def _merge(self, path: str, patch: Json) -> Json:
        status = path.endswith("/status")
        place = path.removesuffix("/status")
        before = self._existing(place)
        wanted = patch.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != before["metadata"]["resourceVersion"]:
            raise ApiError(409, {"reason": "Conflict", "message": "the object has been modified"})
        after = _merged(before, {"status": patch["status"]} if status else {**patch, "status": before.get("status")})
        if after == before:
            return copy.deepcopy(before)
        return copy.deepcopy(self.put(place, after))

    def _json_patch(self, path: str, patch: Sequence[Json]) -> Json:
        after = copy.deepcopy(self._existing(path))
        for step in patch:
            *parents, key = step["path"].strip("/").split("/")
            place: Any = after
            for parent in parents:
                place = place[parent]
            if step["op"] == "test" and place.get(key) != step["value"]:
                raise ApiError(422, {"reason": "Invalid", "message": f"testing value {step['path']} failed"})
            if step["op"] == "add":
                place[key] = step["value"]
            if step["op"] == "remove":
                del place[key]
        return copy.deepcopy(self.put(path, after))

    def _evict(self, path: str, body: Json) -> Json:
        pod = self._existing(path)
        metadata = pod["metadata"]
        if body["deleteOptions"]["preconditions"]["uid"] != metadata["uid"]:
            raise ApiError(409, {"reason": "Conflict", "message": "the UID in the precondition does not match"})
        if "deletionTimestamp" in metadata:
            return {"status": "Success"}
        if (budget := self._budget_against(pod)) is not None:
            cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {budget} needs more pods"}
            raise ApiError(429, {"reason": "TooManyRequests", "message": "no", "details": {"causes": [cause]}})
        self.evicted.append(metadata["name"])
        self.change(path, {"metadata": {"deletionTimestamp": time_text(self._now())}})
        self._after(pod["spec"]["terminationGracePeriodSeconds"], lambda: self.remove(path))
        return {"status": "Success"}

    def _budget_against(self, pod: Json) -> str | None:
        for body in self.objects.values():
            if body["kind"] == "PodDisruptionBudget" and body["status"]["disruptionsAllowed"] == 0:
                selected = body["spec"]["selector"]["matchLabels"].items()
                if selected <= (pod["metadata"].get("labels") or {}).items():
                    return str(body["metadata"]["name"])
        return None

    def _existing(self, path: str) -> Json:
        if path not in self.objects:
            raise _not_found(path)
        return self.objects[path]


_KIND_OF = {names.PODS: "Pod", names.NAMESPACES: "Namespace", names.VOLUME_ATTACHMENTS: "VolumeAttachment"}


def _not_found(path: str) -> ApiError:
    return ApiError(404, {"reason": "NotFound", "message": f"{path} not found"})


def _meets(body: Json, query: Mapping[str, str]) -> bool:
    """The two selectors that the node controller asks with."""
    if field := query.get("fieldSelector"):
        return bool(body["spec"].get("nodeName") == field.removeprefix("spec.nodeName="))
    if label := query.get("labelSelector"):
        key, value = label.split("=")
        return bool((body["metadata"].get("labels") or {}).get(key) == value)
    return True


def _merged(before: Any, patch: Any) -> Any:
    """RFC 7386: null takes away, an object is merged, all else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    after = dict(before) if isinstance(before, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _merged(after.get(key), value)
    return after
