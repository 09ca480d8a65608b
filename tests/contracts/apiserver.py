"""What the node controller's writes rely on, of an apiserver real or played. Subclass and give it a `place`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bridge.kube import names
from bridge.kube.connection import JSON_PATCH, MERGE_PATCH, Api, ApiError, Json


@dataclass(frozen=True)
class Place:
    """A cluster with one Node, the NodeFence ``shared``, a NodeLoan of the node and a pod of a Deployment on it."""

    api: Api
    node: str
    pod: str
    """Its path."""

    @property
    def node_path(self) -> str:
        return f"{names.NODES}/{self.node}"

    @property
    def loan_path(self) -> str:
        return f"{names.LOANS}/{self.node}"

    @property
    def fence_path(self) -> str:
        return f"{names.FENCES}/shared"


class ApiserverContract:
    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    @pytest.fixture
    def forbid(self, place: Place) -> None:
        """A PodDisruptionBudget under which the pod must not go stands."""
        raise NotImplementedError

    def test_a_merge_patch_of_an_older_version_is_a_conflict_and_changes_nothing(self, place: Place) -> None:
        before = place.api.call("GET", place.node_path)
        patch = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"], "annotations": {"a": "1"}}}
        after = merge(place, place.node_path, patch)
        assert after["metadata"]["annotations"]["a"] == "1"
        assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
        patch["metadata"]["annotations"] = {"a": "2"}
        assert refusal(lambda: merge(place, place.node_path, patch)).status == 409
        assert place.api.call("GET", place.node_path)["metadata"]["annotations"]["a"] == "1"

    def test_null_takes_a_field_away(self, place: Place) -> None:
        taint = {"key": names.TAINT, "value": "lease0001", "effect": "NoSchedule"}
        with_it = merge(place, place.node_path, {"spec": {"taints": [taint]}, "metadata": {"annotations": {"a": "1"}}})
        assert [t["value"] for t in with_it["spec"]["taints"] if t["key"] == names.TAINT] == ["lease0001"]
        without = merge(place, place.node_path, {"spec": {"taints": None}, "metadata": {"annotations": {"a": None}}})
        assert not without["spec"].get("taints")
        assert "a" not in (without["metadata"].get("annotations") or {})

    def test_an_entry_of_the_fence_is_tested_and_replaced_in_one_write(self, place: Place) -> None:
        entry = f"/spec/closed/{place.node}"
        patch(place, [{"op": "add", "path": entry, "value": "one"}])
        patch(place, [{"op": "test", "path": entry, "value": "one"}, {"op": "add", "path": entry, "value": "two"}])
        stale = [{"op": "test", "path": entry, "value": "one"}, {"op": "remove", "path": entry}]
        assert refusal(lambda: patch(place, stale)).status == 422
        assert place.api.call("GET", place.fence_path)["spec"]["closed"][place.node] == "two"
        patch(place, [{"op": "test", "path": entry, "value": "two"}, {"op": "remove", "path": entry}])
        assert place.node not in place.api.call("GET", place.fence_path)["spec"]["closed"]

    def test_what_is_there_is_not_made_again_and_what_is_not_cannot_be_changed(self, place: Place) -> None:
        fence = {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": "NodeFence",
            "metadata": {"name": "shared"},
            "spec": {"closed": {}},
        }
        assert refusal(lambda: place.api.call("POST", names.FENCES, body=fence)).status == 409
        absent = f"{names.NODES}/no-such-node"
        assert refusal(lambda: place.api.call("GET", absent)).status == 404
        assert refusal(lambda: merge(place, absent, {"metadata": {"annotations": {"a": "1"}}})).status == 404

    def test_a_status_leaves_the_spec_and_its_generation_alone(self, place: Place) -> None:
        before = place.api.call("GET", place.loan_path)
        version = before["metadata"]["resourceVersion"]
        body = {
            "metadata": {"resourceVersion": version},
            "status": {"phase": "Closed"},
            "spec": {"owner": "kubernetes"},
        }
        after = merge(place, f"{place.loan_path}/status", body)
        assert after["status"]["phase"] == "Closed"
        assert after["spec"] == before["spec"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        assert refusal(lambda: merge(place, f"{place.loan_path}/status", body)).status == 409

    def test_only_the_very_pod_is_evicted(self, place: Place) -> None:
        assert refusal(lambda: evict(place, "uid-of-another")).status == 409
        assert "deletionTimestamp" not in place.api.call("GET", place.pod)["metadata"]
        evict(place, uid(place))
        assert "deletionTimestamp" in place.api.call("GET", place.pod)["metadata"]
        assert refusal(lambda: evict(place, "x", f"{place.pod}-gone")).status == 404

    @pytest.mark.usefixtures("forbid")
    def test_a_budget_without_room_is_named(self, place: Place) -> None:
        refused = refusal(lambda: evict(place, uid(place)))
        assert refused.status == 429
        assert [cause["reason"] for cause in refused.causes] == ["DisruptionBudget"]
        assert "keep" in refused.causes[0]["message"], "the budget's name"
        assert "deletionTimestamp" not in place.api.call("GET", place.pod)["metadata"]


def refusal(call: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call()  # type: ignore[operator]
    return caught.value


def merge(place: Place, path: str, body: Json) -> Json:
    return place.api.call("PATCH", path, body=body, content_type=MERGE_PATCH)


def patch(place: Place, steps: list[Json]) -> Json:
    return place.api.call("PATCH", place.fence_path, body=steps, content_type=JSON_PATCH)


def uid(place: Place) -> str:
    return str(place.api.call("GET", place.pod)["metadata"]["uid"])


def evict(place: Place, uid: str, path: str = "") -> Json:
    path = path or place.pod
    *_, namespace, _, name = path.split("/")
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    return place.api.call("POST", f"{path}/eviction", body=body)
