"""Each of our plugins is deployed with what it needs, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpupool.commands.resource_plugin import NAMES
from cpupool.host.root import HostRoot
from tests.architecture.test_manifests import ROOT, documents, only, parsed

FOLDER = ROOT / "daemonsets/plugins"
PODS = [
    only("DaemonSet", documents(path.read_text()))["spec"]["template"]["spec"]
    for path in (FOLDER / "cpu-memory.yaml", FOLDER / "nic.yaml")
]
CONTAINERS = {
    container["name"]: (pod, container) for pod in PODS for container in pod["containers"]
}
WRITES, READS = False, True
ROOTS = HostRoot()
OWN = {
    "cpu": {str(ROOTS.cgroup): READS, str(ROOTS.plugin_pools.parent): WRITES},
    "memory": {},
    "nic": {"/var/run/netns": READS},
}
"""What a plugin mounts beside its file, its socket and its state."""


def test_every_plugin_is_deployed_once() -> None:
    assert sorted(CONTAINERS) == sorted(NAMES)
    for name, (_, container) in CONTAINERS.items():
        assert parsed(container["args"]).plugin == [name]


@pytest.mark.parametrize("name", NAMES)
def test_a_plugin_sees_the_folders_that_it_uses_and_no_others(name: str) -> None:
    pod, container = CONTAINERS[name]
    taken = parsed(container["args"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    places = {mount["mountPath"]: mount.get("readOnly", False) for mount in mounts.values()}

    assert places == {
        str(taken.config.parent): READS,
        taken.socket_folder: WRITES,
        str(ROOTS.state / "plugins"): WRITES,
        **OWN[name],
    }
    (config,) = (mount for mount in mounts.values() if mount["mountPath"] == "/etc/cpupool")
    assert volumes.pop(config["name"])["configMap"] == {"name": "cpupool-resource-plugins"}
    for volume in volumes.values():
        if volume["name"] in mounts:
            mount = mounts[volume["name"]]
            assert mount["mountPath"] == volume["hostPath"]["path"]
            assert "subPath" not in mount


@pytest.mark.parametrize("pod", PODS, ids=["cpu-memory", "nic"])
def test_a_plugin_has_no_more_rights_than_it_needs(pod: dict[str, Any]) -> None:
    names = {container["name"] for container in pod["containers"]}
    assert not pod["automountServiceAccountToken"]
    assert pod.get("hostNetwork", False) is (names == {"nic"})
    assert not {"hostPID", "hostIPC", "securityContext", "serviceAccountName"} & set(pod)
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "runAsUser": 0,
            "runAsGroup": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
            "seLinuxOptions": {"type": "spc_t"},
        }
        assert not {"ports", "env"} & set(container)


def test_no_volume_of_a_pod_is_unused() -> None:
    for pod in PODS:
        mounted = {
            mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]
        }
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_documented_file_is_the_one_that_is_mounted() -> None:
    written = (FOLDER / "kustomization.yaml").read_text()
    for _, container in CONTAINERS.values():
        name = Path(parsed(container["args"]).config).name
        assert f"create configmap cpupool-resource-plugins --from-file={name}\n" in written
