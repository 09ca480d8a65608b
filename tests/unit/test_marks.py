"""Reading marks from both sides without a broker: what cannot be read wholly is said to be UNKNOWN."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridge.kube import marks as kube_marks
from bridge.kube import names
from bridge.kube.connection import ApiError, Json
from bridge.planning.leftovers import KubeObject, SlurmMarks
from bridge.settings import KubeSettings, SlurmSettings
from bridge.slurm import marks as slurm_marks
from tests.unit.kube_api import FakeApi
from tests.unit.test_slurm_rest import Slurmrestd, job, node, reservation

MARK = "bridge:k3f9q2m8x1:4:17"
CONFIG = """\
Configuration data as of 2026-12-02T20:00:00
JobSubmitPlugins        = lua
PrologSlurmctld[0]      = /usr/lib/slurm-bridge/prolog_slurmctld_fence
SLURM_CONF              = /etc/slurm/slurm.conf

Slurmctld(primary) at slurmctld is UP
"""


class Site:
    """A slurmrestd, a scontrol that prints `config`, and the agent's folder."""

    def __init__(self, folder: Path, config: str | None = CONFIG) -> None:
        self.server = Slurmrestd()
        self.agent_dir = folder / "agent"
        self.agent_dir.mkdir()
        (folder / "token").write_text("a.b.c\n")
        says = f"print({config!r})" if config is not None else "raise SystemExit('no slurmctld')"
        scontrol = (sys.executable, "-c", says)
        self.settings = SlurmSettings(slurm_token_file=folder / "token", slurm_scontrol=scontrol)

    def read(self) -> SlurmMarks:
        return slurm_marks.read_marks(self.settings, self.agent_dir, transport=httpx.MockTransport(self.server))


def test_slurm_is_read_whole(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.server.nodes = [node("gpu-1", "IDLE", "DRAIN", reason=f"{MARK} lent"), node("gpu-2")]
    site.server.reservations = [reservation("bridge-h100", "gpu-[1-2]"), reservation("theirs", "gpu-2")]
    site.server.jobs = [job(17, admin_comment='{"bridge":{}}')]
    (site.agent_dir / "fence").write_text("")
    found = site.read()
    assert found.unread == ()
    assert found.nodes["gpu-1"].reason == f"{MARK} lent"
    assert found.reservations == {"bridge-h100": frozenset({"gpu-1", "gpu-2"})}
    assert [each.admin_comment for each in found.jobs] == ['{"bridge":{}}']
    assert found.configuration["PrologSlurmctld[0]"] == "/usr/lib/slurm-bridge/prolog_slurmctld_fence"
    assert found.files == (str(site.agent_dir / "fence"),)


def test_of_a_long_queue_every_job_is_read(tmp_path: Path) -> None:
    """A broker may read the tail of a queue later; a tag there would be missed."""
    site = Site(tmp_path)
    site.server.jobs = [job(id, admin_comment='{"bridge":{}}') for id in range(1, 1001)]
    assert len(site.read().jobs) == 1000


@pytest.mark.parametrize("part", ["nodes", "reservations", "jobs"])
def test_a_part_of_slurm_that_fails_is_unknown_and_the_others_are_read(tmp_path: Path, part: str) -> None:
    site = Site(tmp_path)
    refusal: dict[str, Any] = {"description": "Unable to contact slurm controller", "error_number": 1800}
    site.server.faults[f"GET {part}/"] = lambda _: site.server.answer(200, (refusal,))
    found = site.read()
    assert [each.partition(":")[0] for each in found.unread] == [part]
    assert "Unable to contact slurm controller" in found.unread[0]
    assert bool(found.nodes) == (part != "nodes")


def test_without_anything_of_slurm_all_of_it_is_unknown(tmp_path: Path) -> None:
    site = Site(tmp_path, config=None)
    site.settings.slurm_token_file.unlink()
    found = site.read()
    assert [each.partition(":")[0] for each in found.unread] == ["nodes", "reservations", "jobs", "slurm.conf"]


# --- Kubernetes ---

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(plural: str, group: str = names.GROUP) -> Json:
    versions = [{"name": "v1alpha0", "storage": False}, {"name": names.VERSION, "storage": True}]
    spec = {"group": group, "names": {"plural": plural}, "versions": versions}
    return {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}


def cluster(**objects: list[Json]) -> FakeApi:
    """An apiserver that knows every list, most of them empty."""
    api = FakeApi()
    for path in (*kube_marks._LISTS, *kube_marks._IN_OUR_NAMESPACE, DEFINITIONS):
        api.objects[path] = objects.get(path.rpartition("/")[2], [])
    return api


def test_kubernetes_is_read_whole() -> None:
    taint = {"key": names.TAINT, "value": "k3f9q2m8x1", "effect": "NoSchedule"}
    metadata = {"name": "gpu-1", "labels": {names.SHARED: "true"}, "annotations": {names.MARK: MARK}}
    api = cluster(
        customresourcedefinitions=[definition("nodeloans"), definition("queues", "kueue.x-k8s.io")],
        nodes=[{"metadata": metadata, "spec": {"taints": [taint]}}],
        leases=[{"metadata": {"name": "node-controller", "namespace": names.NAMESPACE}}],
        serviceaccounts=[{"metadata": {"name": "default", "namespace": names.NAMESPACE}}],
    )
    api.objects[names.LOANS] = [{"metadata": {"name": "gpu-1"}, "spec": {"owner": "slurm", "lease": "k3f9q2m8x1"}}]
    found = kube_marks.read_marks(api)
    assert found.unread == ()
    assert found.objects == (
        KubeObject("customresourcedefinitions.apiextensions.k8s.io", f"nodeloans.{names.GROUP}"),
        KubeObject("customresourcedefinitions.apiextensions.k8s.io", "queues.kueue.x-k8s.io"),
        KubeObject(f"nodeloans.{names.GROUP}", "gpu-1", says="slurm's, lease k3f9q2m8x1"),
        KubeObject(
            "nodes",
            "gpu-1",
            labels=frozenset({names.SHARED}),
            annotations=frozenset({names.MARK}),
            taint="k3f9q2m8x1",
        ),
        KubeObject("leases.coordination.k8s.io", "node-controller", names.NAMESPACE),
    )


def test_an_object_that_does_not_go_says_what_holds_it() -> None:
    held = {"name": "gpu-1", "deletionTimestamp": "2026-12-02T09:00:00Z", "finalizers": ["example.org/audit"]}
    api = cluster(customresourcedefinitions=[definition("nodeloans")])
    api.objects[names.LOANS] = [{"metadata": held, "spec": {}}]
    (_, loan) = kube_marks.read_marks(api).objects
    assert loan.says == "being deleted since 2026-12-02T09:00:00Z, waits for example.org/audit"


def test_a_list_goes_on_over_its_pages() -> None:
    api = cluster()
    pages = iter([("gpu-1", "more"), ("gpu-2", "")])

    def page(_: Any) -> Json:
        name, token = next(pages)
        return {"metadata": {"continue": token}, "items": [{"metadata": {"name": name}}]}

    api.answers["GET", names.NODES] = page
    assert [each.name for each in kube_marks.read_marks(api).objects] == ["gpu-1", "gpu-2"]


def test_a_list_that_may_not_be_read_is_unknown() -> None:
    api = cluster(nodes=[{"metadata": {"name": "gpu-1"}}])

    def forbidden(_: Any) -> Json:
        raise ApiError(403, {"reason": "Forbidden", "message": "cannot list clusterroles"})

    api.answers["GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"] = forbidden
    found = kube_marks.read_marks(api)
    assert found.unread == ("clusterroles: apiserver answers 403 Forbidden: cannot list clusterroles",)
    assert [each.name for each in found.objects] == ["gpu-1"]


def test_half_a_list_is_unknown_and_none_of_it_is_believed() -> None:
    api = cluster()
    answers = iter([{"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "gpu-1"}}]}])

    def page(_: Any) -> Json:
        try:
            return next(answers)
        except StopIteration:
            raise ApiError(410, {"reason": "Expired", "message": "too old"}) from None

    api.answers["GET", names.NODES] = page
    found = kube_marks.read_marks(api)
    assert (found.objects, [each.partition(":")[0] for each in found.unread]) == ((), ["nodes"])


def test_without_a_way_to_kubernetes_it_is_unknown(tmp_path: Path) -> None:
    found = kube_marks.connect_and_read(KubeSettings(kubeconfig=tmp_path / "none"))
    assert "cannot reach Kubernetes" in "".join(found.unread)
    broken = tmp_path / "kubeconfig"
    broken.write_text(json.dumps({"apiVersion": "v1", "kind": "Config"}))
    assert kube_marks.connect_and_read(KubeSettings(kubeconfig=broken)).unread != ()
