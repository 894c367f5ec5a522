from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from tests.nodes import KUBELET
from tests.unit.commands.doctor.rows import verdicts

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.local.kubelet import EmbeddedKubelet
    from tests.cri_server import FakeCRI
    from tests.nodes import AnsweringAgent, WrittenNode


def test_an_agent_that_is_silent_or_never_ran(examine: Any, node: WrittenNode) -> None:
    os.utime(node.root.status, (0, 0))
    assert "last word" in examine()[1]["agent"][0]["fact"]

    node.root.status.unlink()
    code, rows = examine()

    assert code == 1
    assert rows["agent"][0]["verdict"] == "problem"
    # The pool file takes the place of the pools in force.
    assert rows["pools"][0]["verdict"] == "ok"


def test_what_the_agent_says_is_repeated(
    examine: Any, node: WrittenNode, agent: AnsweringAgent
) -> None:
    agent.health.set("kubelet", ok=False, message="it is not there; start it")
    agent.metrics.watch_restarted("pods", "403")
    agent.metrics.watch_restarted("nodes", "410")
    agent.health.set("cpusetter", ok=False, message="waiting for the list of this node's pods")
    node.status(waiting_for="the list of this node's pods")

    _, rows = examine(agent=agent.url)

    assert {"verdict": "problem", "fact": "kubelet: it is not there", "remedy": "start it"} in (
        rows["agent"]
    )
    assert all(row["remedy"] for row in rows["agent"])
    assert rows["rights"][0]["verdict"] == "problem"
    assert rows["rights"][0]["fact"] == "the API server has refused the agent: pods"
    assert "containers" not in rows


def test_an_agent_that_may_not_watch_its_configmap_is_a_warning(
    examine: Any, agent: AnsweringAgent
) -> None:
    agent.metrics.watch_restarted("configmaps", "403")

    row = examine(agent=agent.url)[1]["rights"][0]

    assert row["verdict"] == "warning"
    assert row["fact"] == "the API server has refused the agent: configmaps"
    assert "the one ConfigMap" in row["remedy"]


def test_an_agent_without_pools_is_a_warning(examine: Any, node: WrittenNode) -> None:
    node.status(pools=NodePools(), waiting_for="a pool file for this node")

    assert examine()[1]["agent"][0]["verdict"] == "warning"


def test_a_kubelet_that_places_containers_itself_is_reported(
    examine: Any, node: WrittenNode, kubelet: EmbeddedKubelet
) -> None:
    (node.root.kubelet / "cpu_manager_state").unlink()
    assert examine()[1]["CPU manager"][0]["verdict"] == "ok"

    kubelet.static_cpus = CPUSet.parse("2-31")

    assert examine()[1]["CPU manager"][0]["verdict"] == "problem"


def test_a_static_cpu_manager_that_cpupool_only_adds_to_is_welcome(
    examine: Any, node: WrittenNode
) -> None:
    node.put(
        "var/lib/kubelet/cpu_manager_state",
        '{"policyName":"static","defaultCpuSet":"0-7","checksum":0}',
    )
    node.put("var/lib/kubelet/config.yaml", KUBELET.replace("none", "static"))
    pools = NodePools.of(Pool.named("shared_x", "2-3,18-19"), mixed=MixedCPUs("shared_x"))
    node.status(pools=pools)
    assert examine()[1]["CPU manager"][0]["verdict"] == "ok"

    node.status(pools=replace(pools, mixed=None))
    (row,) = examine()[1]["CPU manager"]
    assert (row["verdict"], row["fact"]) == (
        "problem",
        "the kubelet's CPU manager is 'static' and writes the same cpusets as cpupool",
    )


def test_shared_cpus_that_a_static_kubelet_gives_out_too_are_reported(
    examine: Any, node: WrittenNode, kubelet: EmbeddedKubelet
) -> None:
    node.put(
        "var/lib/kubelet/cpu_manager_state",
        '{"policyName":"static","defaultCpuSet":"0-7","checksum":0}',
    )
    node.put("var/lib/kubelet/config.yaml", KUBELET.replace("none", "static"))
    node.status(pools=NodePools.of(Pool.named("shared_x", "2-3"), mixed=MixedCPUs("shared_x")))
    kubelet.static_cpus = CPUSet.parse("3-31")
    (row,) = examine()[1]["CPU manager"]
    assert (row["verdict"], row["fact"].endswith("the shared pools' CPUs 3")) == ("problem", True)
    assert "add them to its reservedSystemCPUs, delete cpu_manager_state" in row["remedy"]

    kubelet.static_cpus = CPUSet.parse("4-31")
    assert examine()[1]["CPU manager"][0]["verdict"] == "ok"


def test_sockets_on_which_nothing_listens(
    examine: Any, node: WrittenNode, kubelet: EmbeddedKubelet
) -> None:
    (node.root.device_plugins / "cpupool-shared_x.sock").unlink()
    row = examine()[1]["device plugins"][0]
    assert row["verdict"] == "problem"
    assert "1 of 2 plugins" in row["fact"]

    kubelet.stop()
    code, rows = examine()

    assert code == 1
    assert verdicts(rows)["device plugins"] == ["problem"]
    assert verdicts(rows)["podresources"] == ["problem"]


def test_a_container_runtime_that_answers_is_named(examine: Any, runtime: FakeCRI) -> None:
    runtime.version = "v2.1.4"

    assert [row["fact"] for row in examine()[1]["container runtime"]] == [
        "containerd v2.1.4 answers CRI calls",
        "the runtime takes NRI plugins: containers start on their CPUs (enforcement nri)",
    ]


@pytest.mark.usefixtures("runtime")
def test_what_the_start_of_an_agent_can_cost_is_said_and_a_wait_is_a_warning(
    examine: Any, node: WrittenNode
) -> None:
    nri = examine()[1]["container runtime"][-1]
    assert nri["verdict"] == "ok"
    assert "cannot see a container that the kubelet ends after a failed probe" in nri["remedy"]

    text = "waits for default/slow until 2027-01-15T08:00:00Z"
    status = json.loads(node.root.status.read_text())
    node.put("run/cpupool/status.json", json.dumps({**status, "nri": text}))
    nri = examine()[1]["container runtime"][-1]
    assert nri["verdict"] == "warning"
    assert nri["fact"].startswith(f"nri: {text}; ")

    # What a dead agent has written last says nothing of today.
    os.utime(node.root.status, (0, 0))
    assert examine()[1]["container runtime"][-1]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("containerd", "[plugins.'io.containerd.nri.v1.nri']"),
        ("cri-o", "enable_nri = true"),
        ("other", "switch NRI on"),
    ],
)
def test_a_runtime_without_nri_is_reported_with_how_to_have_it(
    examine: Any, node: WrittenNode, runtime: FakeCRI, name: str, remedy: str
) -> None:
    node.root.nri_socket.unlink()
    runtime.name = name

    answers, nri = examine()[1]["container runtime"]

    assert (answers["verdict"], nri["verdict"]) == ("ok", "warning")
    assert remedy in nri["remedy"]
    assert "mount /run/nri" in nri["remedy"]


def test_a_node_whose_runtime_is_out_of_reach(examine: Any, node: WrittenNode) -> None:
    rows = examine()[1]["container runtime"]

    assert [row["verdict"] for row in rows] == ["warning", "warning"]
    assert rows[0]["fact"].startswith(f"there is no CRI socket {node.root.cri_sockets[0]} or ")
    assert "--cri-socket" in rows[0]["remedy"]


def test_a_runtime_that_refuses_calls_is_reported(examine: Any, runtime: FakeCRI) -> None:
    runtime.failing["Version"] = grpc.StatusCode.UNIMPLEMENTED

    refused, nri = examine()[1]["container runtime"]

    assert "it was told to fail" in refused["fact"]
    assert "switched off" in refused["remedy"]
    assert nri["verdict"] == "ok"


def test_a_runtime_folder_that_may_not_be_read_is_reported(
    examine: Any, node: WrittenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_socket = type(node.folder).is_socket

    def refuse(path: Path) -> bool:
        if path == node.root.nri_socket:
            raise PermissionError(13, "Permission denied")
        return is_socket(path)

    monkeypatch.setattr(type(node.folder), "is_socket", refuse)

    row = examine()[1]["container runtime"][-1]

    assert (row["verdict"], row["remedy"]) == ("problem", "run this as root")
