"""The Helm chart, rendered by Helm: the same objects as kustomize makes, and clear words where it cannot."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.control_plane import control_plane, eventually, kube_binary

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "k8s_manifests"
KUBERNETES = ("--kube-version", "1.34.4")
NAMESPACE = ("--namespace", "slurm-kube-bridge")
Object = dict[str, Any]


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def helm() -> str:
    return run(ROOT / "testbed" / "bin" / "helm-binary").strip()


@pytest.fixture(scope="module")
def kustomize() -> list[str]:
    return [f"{run(ROOT / 'testbed' / 'bin' / 'kube-binary').strip()}/kube", "kubectl", "kustomize"]


def by_name(text: str) -> dict[tuple[str, str], Object]:
    """The objects by kind and name, with one name for the settings: both tools add a hash of the content to it."""
    found = {}
    for body in yaml.safe_load_all(text):
        if body["kind"] == "ConfigMap":
            assert body["metadata"]["name"].startswith("broker-settings-")
            body["metadata"]["name"] = "broker-settings"
        if body["kind"] == "Deployment" and body["metadata"]["name"] == "broker":
            (container,) = body["spec"]["template"]["spec"]["containers"]
            (settings,) = container["envFrom"]
            assert settings["configMapRef"]["name"].startswith("broker-settings-")
            settings["configMapRef"]["name"] = "broker-settings"
        key = (body["kind"], body["metadata"]["name"])
        assert key not in found
        found[key] = body
    return found


def template(helm: str, *options: str, chart: str | Path = MANIFESTS / "chart") -> dict[tuple[str, str], Object]:
    return by_name(run(helm, "template", "bridge", chart, *NAMESPACE, *KUBERNETES, *options))


@pytest.mark.parametrize(("overlay", "values"), [("production", ()), ("broker-outside", ("broker.inside=false",))])
def test_the_chart_renders_what_the_overlay_does(
    helm: str, kustomize: list[str], overlay: str, values: tuple[str, ...]
) -> None:
    charted = template(helm, *(f"--set={value}" for value in values))
    applied = by_name(run(*kustomize, MANIFESTS / "overlays" / overlay))
    applied.pop(("Namespace", "slurm-kube-bridge"))  # made first, as it holds the broker's Secret
    applied.pop(("Secret", "bridge-broker-token"), None)  # the overlay's way to an identity; the chart has none
    assert charted.keys() == applied.keys()
    for key, body in applied.items():
        assert charted[key] == body, key


def test_a_change_of_the_settings_rolls_the_brokers(helm: str) -> None:
    render = (helm, "template", "bridge", MANIFESTS / "chart", *NAMESPACE, *KUBERNETES)
    names = [
        body["metadata"]["name"]
        for change in ((), ("--set", "broker.settings.BRIDGE_MODE=dry_run"))
        for body in yaml.safe_load_all(run(*render, *change))
        if body["kind"] == "ConfigMap"
    ]
    before, after = names
    assert before != after


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--namespace", "elsewhere"), "install into the namespace slurm-kube-bridge"),
        ((*NAMESPACE, "--set", "image.tga=1"), "tga"),
        ((*NAMESPACE, "--set", "broker.settings.DATABASE_PASSWORD=x"), "DATABASE_PASSWORD"),
        ((*NAMESPACE, "--set", "image.repository=a b"), "repository"),
    ],
)
def test_a_wrong_value_is_named(helm: str, options: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [helm, "template", "bridge", str(MANIFESTS / "chart"), *KUBERNETES, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert said in done.stderr


def test_the_chart_is_as_helm_wants_charts(helm: str, tmp_path: Path) -> None:
    assert "0 chart(s) failed" in run(helm, "lint", MANIFESTS / "chart", *NAMESPACE, *KUBERNETES)
    packed = run(helm, "package", MANIFESTS / "chart", "--destination", tmp_path).split()[-1]
    assert template(helm, chart=packed) == template(helm), "what lies behind its links is in the package"


OURS = (
    "crd,validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings,priorityclasses"
)


def test_the_chart_installs_upgrades_and_leaves_nothing(helm: str, tmp_path: Path) -> None:
    assert kube_binary() is not None, "built by the fixture of the other tests"
    with control_plane(tmp_path) as plane:
        to_it = (*NAMESPACE, "--kubeconfig", plane.kubeconfig)
        plane.kubectl("apply", "-f", str(MANIFESTS / "base" / "namespace.yaml"))
        before = plane.kubectl("get", OURS, "-o", "name").stdout
        install = (helm, "upgrade", "--install", "bridge", MANIFESTS / "chart", *to_it)
        run(*install)
        brokers = plane.kubectl("get", "deployments", "-A", "-o", "name").stdout.split()
        assert sorted(brokers) == ["deployment.apps/broker", "deployment.apps/node-controller"]
        run(*install, "--set", "broker.inside=false")
        brokers = plane.kubectl("get", "deployments", "-A", "-o", "name").stdout.split()
        assert brokers == ["deployment.apps/node-controller"]

        crds = [f"{plural}.bridge.slurm-kube.io" for plural in ("nodeloans", "nodeinspections", "nodefences")]
        allowed = "bridge.slurm-kube.io/allow-deletion=true"
        eventually(
            "the CRDs may be deleted", lambda: plane.kubectl("annotate", "crd", *crds, allowed, check=False).stdout
        )
        run(helm, "uninstall", "bridge", "--wait", *to_it)
        assert plane.kubectl("get", OURS, "-o", "name").stdout == before
