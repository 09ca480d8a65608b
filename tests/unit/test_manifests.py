"""The manifests: rendered as a site would, and checked for what must hold of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.kube import names
from bridge.settings import (
    ApiSettings,
    InspectorSettings,
    KubeSettings,
    NodeControllerSettings,
    ReconcilerSettings,
    SlurmSettings,
    StoreSettings,
)

ROOT = Path(__file__).parents[2] / "k8s_manifests"
OVERLAYS = ("testbed", "testbed-broker", "production", "broker-outside")
Object = dict[str, Any]


def kubectl() -> list[str] | None:
    """kubectl of the machine, or the testbed's binary that is also one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "slurm-kube-bridge"
    built = sorted(cache.glob("kube-*/kube"), key=lambda path: path.stat().st_mtime)
    if built:
        return [str(built[-1]), "kubectl"]
    found = shutil.which("kubectl")
    return [found] if found else None


def render(overlay: str) -> list[Object]:
    command = kubectl()
    if command is None:
        pytest.skip("no kubectl on this machine: run testbed/bin/kube-binary")
    output = subprocess.run([*command, "kustomize", str(ROOT / "overlays" / overlay)], capture_output=True)
    assert output.returncode == 0, output.stderr.decode()
    return list(yaml.safe_load_all(output.stdout))


@pytest.fixture(scope="module", params=OVERLAYS)
def rendered(request: pytest.FixtureRequest) -> list[Object]:
    return render(request.param)


@pytest.fixture(scope="module")
def production() -> list[Object]:
    return render("production")


def one(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


def rules(objects: list[Object], kind: str, name: str) -> set[tuple[str, str]]:
    """(resource, verb) pairs that a role grants."""
    return {
        (resource, verb)
        for rule in one(objects, kind, name)["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


KUSTOMIZED = sorted(path for path in ROOT.rglob("*.yaml") if ROOT / "chart" not in path.parents)


@pytest.mark.parametrize("path", KUSTOMIZED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_is_yaml_and_is_used(path: Path) -> None:
    assert all(document for document in yaml.safe_load_all(path.read_text()))
    if path.name == "kustomization.yaml":
        body = yaml.safe_load(path.read_text())
        assert all((path.parent / entry).exists() for entry in [*body["resources"], *body.get("components", ())])
        return
    folder = next(parent for parent in path.parents if (parent / "kustomization.yaml").exists())
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert str(path.relative_to(folder)) in listed


def test_everything_of_ours_lives_in_our_namespace(rendered: list[Object]) -> None:
    assert {o["metadata"].get("namespace", names.NAMESPACE) for o in rendered} == {names.NAMESPACE}
    assert one(rendered, "Namespace", names.NAMESPACE)["metadata"]["labels"][names.INFRASTRUCTURE] == "true"


def test_no_role_grants_more_than_its_part_does(rendered: list[Object]) -> None:
    broker = rules(rendered, "ClusterRole", "slurm-kube-bridge-broker")
    controller = rules(rendered, "ClusterRole", "slurm-kube-bridge-node-controller")
    inspector = rules(rendered, "ClusterRole", "slurm-kube-bridge-inspector")
    everything = broker | controller | inspector
    assert not {resource for resource, _ in everything} & {"secrets", "configmaps", "*"}
    assert not {verb for _, verb in everything} & {"delete", "deletecollection", "*", "escalate", "impersonate"}
    assert {resource for resource, verb in broker if verb in ("create", "patch", "update")} == {
        "nodeloans",
        "nodeinspections",
        "events",
    }
    assert ("nodeloans", "patch") not in controller
    assert inspector == {
        ("nodeinspections", "list"),
        ("nodeinspections", "watch"),
        ("nodeinspections/status", "patch"),
    }


def is_restricted(pod: Object) -> None:
    """Of the rules of https://kubernetes.io/docs/concepts/security/pod-security-standards/ those on who it runs as."""
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any(key in pod for key in ("hostPID", "hostNetwork", "hostIPC"))


def test_the_node_controller_asks_for_nothing_of_its_host(rendered: list[Object]) -> None:
    pod = one(rendered, "Deployment", "node-controller")["spec"]["template"]["spec"]
    is_restricted(pod)
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_the_probes_ask_where_the_process_answers(rendered: list[Object]) -> None:
    (container,) = one(rendered, "Deployment", "node-controller")["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "probes", "containerPort": NodeControllerSettings().probe_port}]
    paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"/healthz", "/readyz"}


def test_the_inspector_sees_processes_and_device_numbers_and_no_more(rendered: list[Object]) -> None:
    pod = one(rendered, "DaemonSet", "inspector")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert "hostNetwork" not in pod
    assert "privileged" not in container["securityContext"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert [v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v] == ["/dev"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"] if mount["name"] == "dev")


def test_the_inspector_runs_on_every_shared_node_whatever_its_taints(rendered: list[Object]) -> None:
    pod = one(rendered, "DaemonSet", "inspector")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {names.SHARED: "true"}
    assert pod["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize("workload", [("Deployment", "node-controller"), ("DaemonSet", "inspector")])
def test_the_environment_is_what_the_settings_read(
    rendered: list[Object], workload: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (container,) = one(rendered, *workload)["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "from-the-downward-api"))
    if workload[1] == "inspector":
        settings = InspectorSettings()
        assert settings.node_name == "from-the-downward-api"
        assert all(pattern.startswith("/host/dev/") for pattern in settings.inspector_devices)
    else:
        controller = NodeControllerSettings()
        assert controller.node_controller_holder == "from-the-downward-api"
        assert controller.node_controller_namespace == "from-the-downward-api"


def test_the_fence_is_bound_to_the_object_that_the_controller_writes(rendered: list[Object]) -> None:
    for name in ("slurm-kube-bridge-fence-bind", "slurm-kube-bridge-fence-create"):
        binding = one(rendered, "ValidatingAdmissionPolicyBinding", name)["spec"]
        assert binding["policyName"] == name
        assert binding["paramRef"] == {"name": NodeControllerSettings().fence_name, "parameterNotFoundAction": "Allow"}
        assert one(rendered, "ValidatingAdmissionPolicy", name)["spec"]["failurePolicy"] == "Ignore"
        (exempt,) = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert exempt == {"key": names.INFRASTRUCTURE, "operator": "NotIn", "values": ["true"]}


def test_every_policy_is_in_force(rendered: list[Object]) -> None:
    policies = {o["metadata"]["name"] for o in rendered if o["kind"] == "ValidatingAdmissionPolicy"}
    bound = {o["spec"]["policyName"] for o in rendered if o["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert policies == bound


def test_the_policies_name_service_accounts_that_exist(rendered: list[Object]) -> None:
    accounts = {
        f"system:serviceaccount:{o['metadata']['namespace']}:{o['metadata']['name']}"
        for o in rendered
        if o["kind"] == "ServiceAccount"
    }
    for policy in ("slurm-kube-bridge-inspector", "slurm-kube-bridge-node-writes"):
        (condition,) = one(rendered, "ValidatingAdmissionPolicy", policy)["spec"]["matchConditions"]
        assert condition["expression"].split('"')[1] in accounts


# --- the broker inside the cluster ---


def broker_pod(objects: list[Object]) -> Object:
    pod: Object = one(objects, "Deployment", "broker")["spec"]["template"]["spec"]
    return pod


def test_two_brokers_run_beside_the_nodes_they_lend(production: list[Object]) -> None:
    assert one(production, "Deployment", "broker")["spec"]["replicas"] == 2
    assert one(production, "PodDisruptionBudget", "broker")["spec"]["maxUnavailable"] == 1
    (term,) = broker_pod(production)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [{"key": names.SHARED, "operator": "NotIn", "values": ["true"]}]


def test_the_broker_fits_pod_security_restricted(production: list[Object]) -> None:
    pod = broker_pod(production)
    is_restricted(pod)
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} == {"secret", "emptyDir"}


def test_the_brokers_environment_is_what_the_settings_read(
    production: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (container,) = broker_pod(production)["containers"]
    (settings,) = (o for o in production if o["kind"] == "ConfigMap")
    assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    given = {v["name"]: v.get("value", "from-the-downward-api") for v in container["env"]} | settings["data"]
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    read = [ApiSettings(), KubeSettings(), ReconcilerSettings(), SlurmSettings(), StoreSettings()]
    known = {f"BRIDGE_{field}".upper() for settings in read for field in type(settings).model_fields}
    assert given.keys() - known == {"SLURM_CONF_SERVER"}, "every other name is a setting of the broker"
    assert ReconcilerSettings().holder == KubeSettings().kube_namespace == "from-the-downward-api"
    assert KubeSettings().kubeconfig is None, "it uses its own service account"
    (secrets,) = (v for v in broker_pod(production)["volumes"] if "secret" in v)
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == secrets["name"])
    files = (StoreSettings().database_password_file, ApiSettings().token_file, SlurmSettings().slurm_token_file)
    assert {str(file.parent) for file in files if file} == {mount["mountPath"]}


def test_no_secret_stands_in_what_is_applied(rendered: list[Object]) -> None:
    for secret in (o for o in rendered if o["kind"] == "Secret"):
        assert not secret.keys() & {"data", "stringData"}, secret["metadata"]["name"]


def test_the_broker_is_reached_and_probed_where_it_answers(production: list[Object]) -> None:
    (container,) = broker_pod(production)["containers"]
    assert container["ports"] == [{"name": "api", "containerPort": ApiSettings().api_port}]
    assert {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")} == {"api"}
    service = one(production, "Service", "broker")["spec"]
    assert service["ports"][0]["targetPort"] == "api"
    labels = one(production, "Deployment", "broker")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    policy = one(production, "NetworkPolicy", "broker")["spec"]
    assert policy["ingress"] == [{"ports": [{"port": ApiSettings().api_port, "protocol": "TCP"}]}]
    out = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert out == {53, 5432, 6817, 6820}, "names, Postgres, slurmctld, slurmrestd"


def test_a_broker_outside_gets_an_identity_and_nothing_runs_for_it_inside() -> None:
    outside = render("broker-outside")
    assert not [o for o in outside if o["metadata"]["name"] == "broker"]
    token = one(outside, "Secret", "bridge-broker-token")
    assert token["type"] == "kubernetes.io/service-account-token"
    account = token["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert one(outside, "ServiceAccount", account)
