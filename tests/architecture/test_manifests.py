"""What is deployed is what the API takes, what each part needs, and no more rights than that."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate  # type: ignore[import-untyped]  # it carries no types
import pytest
import yaml

from cpupool import cli
from cpupool.core.names import Names
from cpupool.host.root import HostRoot
from cpupool.qrm import katalyst_checkpoint, podresources_service
from cpupool.version import VERSION
from tests.machines import MACHINES, Machine
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parents[2]
KUSTOMIZATIONS = sorted(ROOT.glob("daemonsets/*/kustomization.yaml"))
CERTIFICATES = ROOT / "daemonsets/webhook-cert-manager/certificates.yaml"
MANIFESTS = sorted(
    path
    for folder in ("daemonsets", "configmaps")
    for path in ROOT.joinpath(folder).rglob("*.yaml")
    if path not in (path.with_name("kustomization.yaml"), CERTIFICATES)
)
"""Those whose kinds are Kubernetes' own."""
CERT_MANAGER = "cert-manager.io/v1"
WORKLOADS = ("DaemonSet", "Deployment")
OLDEST, NEWEST = "1.28", "1.37"
"""The versions of Kubernetes between which cpupool runs."""
SINCE = {"ValidatingAdmissionPolicy": "1.30"}
"""What an overlay needs that not every version has."""

PROFILES = [
    ("cpu-pooler-configmap", "telco", MACHINES["telco_2s_2n_16c32t"]),
    ("cpu-pooler-configmap", "small", Machine(cores=2)),
    ("epyc-1s-32c", "epyc-1s-32c", Machine(l3=4, cores=8, threads=2)),
    ("xeon-2s-64c", "xeon-2s-64c", Machine(sockets=2, cores=32, threads=2)),
    ("arm-1s-80c", "arm-1s-80c", Machine(cores=80)),
    ("vm-8cpu", "vm-8cpu", Machine(cores=4, threads=2, adjacent=True)),
]
"""ConfigMap, the label that chooses a pool file in it, and the machine that the file is for."""


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def only(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    (one,) = (document for document in found if document["kind"] == kind)
    return one


@pytest.fixture
def daemonset() -> dict[str, Any]:
    return only("DaemonSet", documents((ROOT / "daemonsets/agent/daemonset.yaml").read_text()))


@pytest.fixture
def pod(daemonset: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def agent(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return dict(container)


def parsed(arguments: list[str]) -> argparse.Namespace:
    return cli._parser(arguments).parse_args(arguments)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_manifest_is_what_the_api_takes(path: Path, version: str) -> None:
    found = documents(path.read_text())
    version = max(version, *(SINCE.get(one["kind"], OLDEST) for one in found))

    # Where it lacks a version it takes an older one, and says so.
    versions = {kubernetes_validate.validate(one, version, strict=True) for one in found}

    assert versions == {version}


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_a_kustomization_lists_what_lies_beside_it(path: Path) -> None:
    beside = {one.name for one in path.parent.glob("*.yaml")} - {path.name}
    listed = set(yaml.safe_load(path.read_text()).get("resources", ()))
    other_folders = {one for one in listed if one.startswith("../")}

    assert listed - other_folders == beside
    assert all((path.parent / one / path.name).is_file() for one in other_folders)


def kustomized(folder: Path) -> list[dict[str, Any]]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl to build kustomizations with")
    command = [kubectl, "kustomize", str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return documents(built.stdout)


def resource_domains(found: list[dict[str, Any]]) -> set[str]:
    """Collect what the agent, the webhook, and the API server are told."""
    pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] in WORKLOADS]
    containers = [container for pod in pods for container in pod["containers"]]
    arguments = [vars(parsed(container["args"])) for container in containers]
    return {one["resource_domain"] for one in arguments if "resource_domain" in one} | {
        re.findall("'([^']*)'", one["matchConditions"][0]["expression"])[0]
        for document in found
        for one in document.get("webhooks", ())
    }


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_kustomize_builds_what_the_api_takes(path: Path) -> None:
    found = kustomized(path.parent)

    for document in found:
        if document["apiVersion"] != CERT_MANAGER:
            kubernetes_validate.validate(document, NEWEST, strict=True)
    # What is applied again with each upgrade replaces no pools, and is for the documented domain.
    assert not [one for one in found if one["kind"] == "ConfigMap"]
    assert resource_domains(found) <= {Names().domain}


def test_the_documented_overlay_changes_the_resource_domain_everywhere(tmp_path: Path) -> None:
    text = (ROOT / "docs/user/webhook.md").read_text()
    (overlay,) = re.findall(r"^```yaml\n(patches:\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    example = os.path.relpath(ROOT / "daemonsets/example", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{example}]\n{overlay}")

    found = kustomized(tmp_path)

    assert resource_domains(found) == {"example.com"}


def test_the_topology_reporter_is_a_setting_of_any_overlay_with_the_agent(
    tmp_path: Path, daemonset: dict[str, Any]
) -> None:
    built = with_component(tmp_path, "topology-reporter")

    arguments, volume = without_mount(built)
    assert arguments.node_topology == "zones"
    # It sees this one file more: the folder around it has the Secrets of the node's pods.
    assert volume["hostPath"]["path"] == str(HostRoot().kubelet_config)
    assert built == daemonset


def test_asking_plugins_is_a_setting_of_any_overlay_with_the_agent(
    tmp_path: Path, daemonset: dict[str, Any]
) -> None:
    built = with_component(tmp_path, "resource-plugins")

    for checkpoint in reversed(katalyst_checkpoint.usual_paths(HostRoot())):
        read, folder = without_volume(built)
        assert read["readOnly"]
        assert folder["hostPath"] == {"path": str(checkpoint.parent), "type": "DirectoryOrCreate"}
    written, podresources = without_volume(built)
    assert not written.get("readOnly")
    arguments, volume = without_mount(built)
    assert arguments.resource_plugins
    own, katalyst = arguments.resource_plugin_folders.split(",")
    assert volume["hostPath"] == {"path": katalyst, "type": "DirectoryOrCreate"}
    socket = podresources_service.usual_path(HostRoot())
    assert podresources["hostPath"] == {"path": str(socket.parent), "type": "DirectoryOrCreate"}
    assert Path(own).parent == HostRoot().state
    assert built == daemonset


def test_writing_resource_status_is_a_setting_of_any_overlay_with_the_agent(
    tmp_path: Path, daemonset: dict[str, Any]
) -> None:
    built = with_component(tmp_path, "resource-status")

    (container,) = built["spec"]["template"]["spec"]["containers"]
    assert parsed(container["args"]).write_resource_status
    container["args"].pop()
    assert built == daemonset


def test_writing_the_nodes_resources_is_a_setting_of_any_overlay_with_the_agent(
    tmp_path: Path, daemonset: dict[str, Any]
) -> None:
    built = with_component(tmp_path, "node-resources")

    (container,) = built["spec"]["template"]["spec"]["containers"]
    assert parsed(container["args"]).write_node_resources
    container["args"].pop()
    assert built == daemonset


def test_only_the_component_for_it_shows_the_agent_the_nodes_processes(
    tmp_path: Path, daemonset: dict[str, Any]
) -> None:
    built = with_component(tmp_path, "host-processes")

    assert built["spec"]["template"]["spec"].pop("hostPID") is True
    assert built == daemonset


def with_component(folder: Path, component: str) -> dict[str, Any]:
    """Build an overlay with the agent and a component; return the agent's DaemonSet."""
    there = os.path.relpath(ROOT / "daemonsets", folder.resolve())
    overlay = {
        "resources": [f"{there}/agent", f"{there}/fail-misfits"],
        "components": [f"{there}/{component}"],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return only("DaemonSet", kustomized(folder))


def without_mount(built: dict[str, Any]) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Remove the last argument and the last mount of a DaemonSet; return settings and volume."""
    pod = built["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = parsed(container["args"])
    container["args"].pop()
    mount, volume = without_volume(built)
    assert mount["readOnly"]
    return arguments, volume


def without_volume(built: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Remove the last mount of a DaemonSet, and return it with its volume."""
    pod = built["spec"]["template"]["spec"]
    mount, volume = pod["containers"][0]["volumeMounts"].pop(), pod["volumes"].pop()
    assert mount["name"] == volume["name"]
    assert mount["mountPath"] == volume["hostPath"]["path"]
    return mount, volume


def test_the_webhook_is_asked_about_koordinators_pods_with_any_overlay_that_has_it(
    tmp_path: Path,
) -> None:
    folder = os.path.relpath(ROOT / "daemonsets", tmp_path.resolve())
    for base in ("webhook", "webhook-cert-manager"):
        overlay = {
            "resources": [f"{folder}/{base}"],
            "components": [f"{folder}/koordinator-webhook"],
        }
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))

        built = only("MutatingWebhookConfiguration", kustomized(tmp_path))

        kubernetes_validate.validate(built, NEWEST, strict=True)
        pools, koordinators = built["webhooks"]
        for key in ("sideEffects", "failurePolicy", "timeoutSeconds", "namespaceSelector"):
            assert koordinators[key] == pools[key]
        service = pools["clientConfig"]["service"]
        assert koordinators["clientConfig"]["service"] == {**service, "path": "/validating-pods"}


def test_the_agent_takes_its_arguments_and_serves_its_probes(
    agent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (variable,) = agent["env"]
    monkeypatch.setenv(variable["name"], "this-node")

    taken = parsed(agent["args"])

    (port,) = agent["ports"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert taken.node_name == "this-node"
    assert taken.metrics_port == port["containerPort"]
    probes = {name: agent[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")}
    assert probes == {
        "liveness": {"path": "/healthz", "port": port["name"]},
        "readiness": {"path": "/readyz", "port": port["name"]},
    }


def test_the_agent_sees_the_folders_that_it_uses_and_no_others(
    pod: dict[str, Any], agent: dict[str, Any]
) -> None:
    taken = parsed(agent["args"])
    root = HostRoot.under(Path(taken.host_root))
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in agent["volumeMounts"]}
    config = mounts.pop("pools")
    pools = volumes.pop("pools")

    places = {mount["mountPath"]: mount.get("readOnly", False) for mount in mounts.values()}

    writes, reads = False, True
    sockets = {str(socket.parent) for socket in (root.nri_socket, *root.cri_sockets)}
    assert places == {
        str(root.cgroup): writes,
        str(root.device_plugins): writes,
        str(root.podresources_socket.parent): reads,
        str(root.run): writes,
        str(root.state): writes,
        **dict.fromkeys(sockets, reads),
    }
    assert {volume["hostPath"]["path"] for volume in volumes.values()} == {
        str(Path("/") / Path(place).relative_to(taken.host_root)) for place in places
    }
    # The pod starts on a node of another runtime, and where NRI is off.
    assert {
        volume["hostPath"]["path"]
        for volume in volumes.values()
        if volume["hostPath"]["type"] == "DirectoryOrCreate"
    } == {str(root.run), str(root.state), *sockets}
    assert not any("subPath" in mount for mount in (config, *mounts.values()))
    assert config["mountPath"] == str(taken.config)
    assert set(pools) == {"name", "configMap"}


def test_the_agent_has_no_more_rights_than_it_needs(
    pod: dict[str, Any], agent: dict[str, Any]
) -> None:
    assert agent["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "seLinuxOptions": {"type": "spc_t"},
    }
    assert not {"hostPID", "hostIPC", "hostNetwork", "securityContext"} & set(pod)


def test_the_manifests_carry_the_version_of_the_code() -> None:
    found = [one for path in MANIFESTS for one in documents(path.read_text())]
    pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] in WORKLOADS]
    images = [container["image"] for pod in pods for container in pod["containers"]]

    assert images == [f"cpupool:{VERSION}"] * 6
    assert f"--tag cpupool:{VERSION} " in (ROOT / "Containerfile").read_text()


def test_every_configmap_is_the_one_that_the_agent_mounts(
    daemonset: dict[str, Any], pod: dict[str, Any]
) -> None:
    (mounted,) = (one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one)
    found = [
        only("ConfigMap", documents(path.read_text()))["metadata"]
        for path in MANIFESTS
        if path.parent.name == "configmaps"
    ]

    place = {"name": mounted, "namespace": daemonset["metadata"]["namespace"]}
    assert found == [place] * len({name for name, _, _ in PROFILES})


@pytest.mark.parametrize(
    ("name", "profile", "machine"), PROFILES, ids=[profile for _, profile, _ in PROFILES]
)
def test_a_configmap_fits_its_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, profile: str, machine: Machine
) -> None:
    machine.write(tmp_path)
    labels = f"cpupool.io/profile={profile}"
    configmap = str(ROOT / f"configmaps/{name}.yaml")

    code = cli.main(["validate", configmap, "--topology", str(tmp_path), "--node-labels", labels])

    *told, taken = capsys.readouterr().out.splitlines()
    assert code == 0
    assert all(": ok: " in line for line in told)
    assert taken == f"this node takes poolconfig-{profile}.yaml"


def test_the_image_is_built_from_files_that_are_there() -> None:
    text = (ROOT / "Containerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    context = (ROOT / ".containerignore").read_text().splitlines()
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]

    assert sources
    assert {f"!{source}" for source in sources} == {one for one in context if one[0] == "!"}
    assert "*" in context
    assert all((ROOT / source).exists() for source in sources)
    assert not any(fnmatch(source, pattern) for source in sources for pattern in context[2:])
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]


def test_the_image_runs_a_command_as_nobody() -> None:
    _, _, last = (ROOT / "Containerfile").read_text().rpartition("\nFROM ")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", last, re.MULTILINE)
    (user,) = re.findall(r"^USER (.*)$", last, re.MULTILINE)

    assert json.loads(entrypoint) == list(project["scripts"])
    assert all(int(part) > 0 for part in user.split(":"))
    assert "RUN" not in last
