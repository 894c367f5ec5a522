"""What doctor takes from the API server of a kubeconfig."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.core.cpu_manager import CPUManager
from tests.kubeconfigs import Login, login
from tests.nodes import POOL_FILE, POOLS
from tests.unit.commands.doctor.rows import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.nodes import WrittenNode

CONFIG_MAP = "/api/v1/namespaces/cpupool/configmaps/cpu-pooler-configmap"
CONFIGZ = "/api/v1/nodes/node-a/proxy/configz"


@pytest.fixture
def cluster(tmp_path: Path, node: WrittenNode) -> Iterator[Login]:
    """Take the node's labels, pool files and kubelet configuration to its API server."""
    (node.root.kubelet / "config.yaml").unlink()
    with login(tmp_path, admin=True) as found:
        found.server.set_labels({"kind": "b"})
        files = {kind: f"{POOL_FILE}nodeSelector: {{kind: {kind}}}\n" for kind in "ab"}
        found.server.keep_config_map(CONFIG_MAP, **files)
        found.server.proxied[CONFIGZ] = {"kubeletconfig": {"systemReserved": {"cpu": "28"}}}
        yield found


def doctor(cluster: Login, node: WrittenNode, *options: str) -> int:
    kubeconfig = str(cluster.kubeconfig({"jane": cluster.certificate("jane")}))
    place = ("--host-root", str(node.folder), "--agent", NOBODY, "--kubeconfig", kubeconfig)
    return cli.main(["doctor", "--json", *place, *options])


def test_the_api_server_gives_labels_pool_files_and_kubelet_configuration(
    cluster: Login, node: WrittenNode, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(cluster, node, "--node-name", "node-a")
    printed = capsys.readouterr()
    rows = {row["check"]: row for row in json.loads(printed.out)["checks"]}

    assert rows["pool file"]["fact"] == "poolconfig-b.yaml is in force"
    assert rows["kubelet"]["verdict"] == "ok"
    assert cluster.server.verbs() == {
        ("get", "nodes"),
        ("get", "configmaps"),
        ("get", "nodes/proxy"),
        ("get", "apis"),
        ("list", "pods"),
    }


def test_what_the_command_line_says_is_not_asked(
    cluster: Login, node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("kind: KubeletConfiguration\nsystemReserved: {cpu: '28'}\n")
    options = ["--kubelet-config", str(mine), "--config", str(node.pool_files)]

    doctor(cluster, node, "--node-name", "node-a", *options, "--node-labels", "kind=c")

    # Only an API server knows the object of the node's topology, and the kubelet's number of CPUs.
    assert cluster.server.verbs() == {("get", "apis"), ("get", "nodes"), ("list", "pods")}


def test_a_kubelet_that_does_not_suit_is_named_as_its_source(
    cluster: Login, node: WrittenNode, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.proxied[CONFIGZ] = {"kubeletconfig": {"cpuManagerPolicy": "static"}}

    assert doctor(cluster, node, "--node-name", "node-a") == 1

    assert "configz of node-a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "the node has no name; give --node-name, or set NODE_NAME"),
        (["--node-name", "gone"], "there is no node gone; look at `kubectl get nodes`"),
        (["--node-name", "node-a", "--configmap", "a/b"], "there is no ConfigMap a/b; look"),
    ],
)
def test_an_api_server_that_does_not_know_the_node_is_one_line(
    cluster: Login,
    node: WrittenNode,
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.server.proxied["/api/v1/nodes/gone/proxy/configz"] = {"kubeletconfig": {}}

    assert doctor(cluster, node, *options) == 2
    assert said in capsys.readouterr().err


def test_the_version_of_the_kubelet_decides_whether_pods_are_resized_in_place(
    cluster: Login, node: WrittenNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.status(pools=replace(POOLS, cpu_manager=CPUManager("dynamic", 1)))
    body = {
        "metadata": {"name": "node-a", "uid": "node-a-uid", "labels": {"kind": "b"}},
        "status": {"nodeInfo": {"kubeletVersion": "v1.32.4"}},
    }
    cluster.server.keep("/api/v1/nodes/node-a", body)

    doctor(cluster, node, "--node-name", "node-a")

    rows = [
        row for row in json.loads(capsys.readouterr().out)["checks"] if row["check"] == "resizes"
    ]
    assert "the kubelet is v1.32.4, and resizes pods in place only from 1.33 on" in [
        row["fact"] for row in rows
    ]


FEWER = (
    "the kubelet counts 24 CPUs, and 32 are online: pods get no place on the others",
    "restart the kubelet: pods run on meanwhile",
)
MORE = (
    "the kubelet counts 48 CPUs, and 32 are online: pods are sent that these cannot run",
    "drain the node, stop the kubelet, delete cpu_manager_state in its folder, start it",
)


@pytest.mark.parametrize(
    ("capacity", "policy", "rows"),
    [
        ({"cpu": "32"}, "none", [("ok", "it counts the 32 CPUs that are online", "")]),
        ({"cpu": "24"}, "none", [("warning", *FEWER)]),
        ({"cpu": "48"}, "static", [("warning", *MORE)]),
        ({}, "none", []),
        # The row `kubelet` says that this is damaged.
        ({"cpu": "24"}, ["static"], [("warning", *FEWER)]),
    ],
)
def test_a_kubelet_that_has_not_counted_the_cpus_that_are_online_is_named(
    cluster: Login,
    node: WrittenNode,
    capacity: dict[str, str],
    policy: object,
    *,
    rows: list[tuple[str, str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.server.proxied[CONFIGZ] = {"kubeletconfig": {"cpuManagerPolicy": policy}}
    body = {
        "metadata": {"name": "node-a", "uid": "node-a-uid", "labels": {"kind": "b"}},
        "status": {"capacity": capacity},
    }
    cluster.server.keep("/api/v1/nodes/node-a", body)

    doctor(cluster, node, "--node-name", "node-a")

    assert rows == [
        (each["verdict"], each["fact"], each["remedy"])
        for each in json.loads(capsys.readouterr().out)["checks"]
        if each["check"] == "kubelet's CPUs"
    ]
