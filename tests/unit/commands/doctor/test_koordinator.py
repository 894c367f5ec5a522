"""What doctor says about koordlet beside cpupool, and about koord-scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.policies.koordinator.topology_annotations import CPU_TOPOLOGY
from cpupool.wire.node_topology import GROUP, MANAGER, PLURAL, V1ALPHA2
from tests.kubeconfigs import Login, login
from tests.nodes import POOLS, AnsweringAgent, WrittenNode, container

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODE = "node-a"
KOORDINATOR = replace(POOLS, cpu_manager=CPUManager("koordinator", 1))
ON = "it runs here, and writes the same cpusets as cpupool: "


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Login]:
    with login(tmp_path, admin=True) as found:
        found.server.crds = {GROUP: [V1ALPHA2]}
        yield found


def options(cluster: Login, node: WrittenNode) -> tuple[str, ...]:
    user = {"jane": cluster.certificate("jane")}
    given = ("--node-labels", "a=b", "--kubelet-config", str(node.root.kubelet_config))
    return ("--kubeconfig", str(cluster.kubeconfig(user)), "--node-name", NODE, *given)


def koordlet(node: WrittenNode, *words: str) -> None:
    node.put("proc/4711/cmdline", "\0".join(["/koordlet", *words, ""]))


@pytest.mark.parametrize(
    ("words", "on", "gates"),
    [
        ((), "BECPUSuppress, CPUSetAllocator", "BECPUSuppress=false,CPUSetAllocator=false"),
        (
            ("-feature-gates=CPUSetAllocator=False,BECPUSuppress=true",),
            "BECPUSuppress",
            "BECPUSuppress=false",
        ),
        (
            ("--feature-gates", "CPUSetAllocator=false,BECPUSuppress=false,BECPUManager=true"),
            "BECPUManager",
            "BECPUManager=false",
        ),
    ],
)
def test_a_koordlet_that_writes_cpusets_is_named_with_what_to_switch_off(
    examine: Any, node: WrittenNode, words: tuple[str, ...], on: str, gates: str
) -> None:
    koordlet(node, *words)
    (row,) = examine()[1]["koordlet"]
    assert (row["verdict"], row["fact"]) == ("warning", f"{ON}{on}")
    assert row["remedy"].startswith(f"add {gates} to its --feature-gates: ")


def test_a_koordlet_without_these_features_is_right(examine: Any, node: WrittenNode) -> None:
    koordlet(node, "--feature-gates=CPUSetAllocator=false,BECPUSuppress=false,GroupIdentity=true")
    (row,) = examine()[1]["koordlet"]
    fact = "it runs here without the features that write cpusets"
    assert (row["verdict"], row["fact"]) == ("ok", fact)


def test_a_node_without_koordlet_has_a_row_only_with_its_policy(
    examine: Any, node: WrittenNode
) -> None:
    assert "koordlet" not in examine()[1]
    node.status(pools=KOORDINATOR)
    (row,) = examine()[1]["koordlet"]
    assert (row["verdict"], row["fact"]) == ("ok", "no koordlet runs here")
    (node.folder / "proc/100/cgroup").unlink()
    (row,) = examine()[1]["koordlet"]
    assert row["verdict"] == "unseen"


def test_the_api_server_names_a_koordlet_that_is_out_of_sight(
    cluster: Login, examine: Any, node: WrittenNode
) -> None:
    found = {"name": "koordlet", "args": ["--feature-gates=BECPUSuppress=false"]}
    for name, containers in (("koordlet-x", [found]), ("web", [{"name": "main"}])):
        metadata = {"name": name, "namespace": "default", "uid": name}
        spec = {"nodeName": NODE, "containers": containers}
        path = f"/api/v1/namespaces/default/pods/{name}"
        cluster.server.keep(path, {"metadata": metadata, "spec": spec})
    (row,) = examine(*options(cluster, node))[1]["koordlet"]
    assert row["fact"] == f"{ON}CPUSetAllocator"


def assigned(node: WrittenNode) -> None:
    """Write a pod to which a scheduler has assigned CPUs."""
    own = replace(container("ns/lsr/main", "0-1"), qos="LSR", assigned=CPUSet.parse("0-1"))
    node.status(own, pools=KOORDINATOR)


def test_a_scheduler_that_assigns_cpus_without_knowing_them_is_reported(
    examine: Any, node: WrittenNode, agent: AnsweringAgent
) -> None:
    assert "node topology" not in examine(agent=agent.url)[1]
    assigned(node)
    (row,) = examine(agent=agent.url)[1]["node topology"]
    assert row["verdict"] == "warning"
    assert row["fact"].startswith("a scheduler assigns CPUs to pods here")
    assert row["remedy"] == "start the agents with --node-topology=koordinator"


@pytest.mark.parametrize("annotations", [(), (CPU_TOPOLOGY,)])
def test_zones_alone_do_not_tell_a_scheduler_the_cpus(
    cluster: Login,
    examine: Any,
    node: WrittenNode,
    agent: AnsweringAgent,
    *,
    annotations: tuple[str, ...],
) -> None:
    assigned(node)
    agent.metrics.topology_published()
    path = f"/apis/{GROUP}/{V1ALPHA2}/{PLURAL}/{NODE}"
    cluster.server.keep(path, {"metadata": {}})
    fields: dict[str, Any] = {f"f:{key}": {} for key in annotations}
    ours = {
        "manager": MANAGER,
        "operation": "Apply",
        "fieldsV1": {"f:zones": {}, "f:metadata": {"f:annotations": fields}},
    }
    metadata = {"managedFields": [ours], "annotations": dict.fromkeys(annotations, "{}")}
    cluster.server.keep(path, {"zones": [], "metadata": metadata})

    found = examine(*options(cluster, node), agent=agent.url)[1]["node topology"]

    assert [row["verdict"] for row in found] == ["ok", *([] if annotations else ["warning"])]


def test_pods_that_the_api_server_does_not_show_are_unseen(
    cluster: Login, examine: Any, node: WrittenNode
) -> None:
    cluster.server.forbidden = {("list", "pods")}
    (row,) = examine(*options(cluster, node))[1]["koordlet"]
    assert row["verdict"] == "unseen"
