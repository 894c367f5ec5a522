"""What doctor says about resource plugins, and about other programs that write cpusets."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.assignments import Placement
from cpupool.core.cgroups import Writer
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.manager.report import (
    ContainerStatus,
    NodeResource,
    NodeStatus,
    PluginAnswer,
    PluginStatus,
)
from cpupool.manager.status_json import to_json
from tests.kubeconfigs import login
from tests.nodes import KUBELET, POOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from tests.nodes import WrittenNode
    from tests.unit.commands.doctor.rows import Rows

    Bind: TypeAlias = Callable[[str, int], None]

CHECK = "resource plugins"
WRITERS = "cpuset writers"
FOLDERS = ("/var/lib/cpupool/resource-plugins", "/var/lib/katalyst/plugin-socks")
MANAGER = "memory manager"
CPU = PluginStatus(f"{FOLDERS[0]}/cpu.sock", "cpu")
QRM = replace(POOLS, cpu_manager=CPUManager("qrm", 1))


def written(node: WrittenNode, *plugins: PluginStatus, policy: bool = True, **fields: Any) -> None:
    """Write a status of an agent that asks plugins."""
    nri = {"enforcement": Writer.NRI}
    fields = {"plugin_folders": FOLDERS, "containers": (), **nri, **fields}
    status = NodeStatus(QRM if policy else POOLS, plugins=plugins, **fields)
    node.put("run/cpupool/status.json", json.dumps(to_json(status)))


@pytest.fixture
def bind(node: WrittenNode) -> Iterator[Bind]:
    """Make sockets in our folder, each of some user."""
    folder = node.folder / FOLDERS[0].lstrip("/")
    folder.mkdir(parents=True)
    with ExitStack() as opened:

        def bound(name: str, owner: int) -> None:
            made = opened.enter_context(socket.socket(socket.AF_UNIX))
            made.bind(str(folder / name))
            os.chown(folder / name, owner, owner)

        yield bound


def facts(rows: Rows, check: str = CHECK) -> dict[str, str]:
    """Return fact → verdict."""
    return {row["fact"]: row["verdict"] for row in rows.get(check, [])}


def test_plugins_that_answer_are_right(examine: Any, node: WrittenNode, bind: Bind) -> None:
    bind("cpu.sock", 0)
    bind("kubelet.sock", 0)
    written(node, CPU)
    _, rows = examine()
    assert facts(rows) == {"the agent asks the plugins for cpu": "ok"}


def test_a_resource_that_the_nodes_status_lacks_is_a_warning(
    examine: Any, node: WrittenNode, bind: Bind
) -> None:
    bind("cpu.sock", 0)
    there, refused = NodeResource("example.com/a", 7), NodeResource("example.com/b", 1, "403", "do")
    written(node, CPU, node_resources=(there,))
    _, rows = examine()
    assert facts(rows) == {"the agent asks the plugins for cpu": "ok"}
    written(node, CPU, node_resources=(there, refused))
    _, rows = examine()
    (row,) = rows[CHECK]
    assert row["verdict"] == "warning"
    assert row["fact"] == "pods cannot request example.com/b, the node's status lacks it: 403"
    assert row["remedy"] == "do"


@pytest.mark.parametrize("writer", [Writer.CRI, Writer.CGROUP])
def test_what_plugins_set_and_only_nri_gives_is_a_warning(
    examine: Any, node: WrittenNode, bind: Bind, writer: Writer
) -> None:
    bind("cpu.sock", 0)
    written(node, CPU, enforcement=writer)
    _, rows = examine()
    (row,) = rows[CHECK]
    assert row["verdict"] == "warning"
    assert "without NRI a container starts before its answer applies" in row["fact"]
    assert row["remedy"] == "enable NRI in the container runtime"


def test_without_plugins_there_is_a_row_only_with_their_policy(
    examine: Any, node: WrittenNode
) -> None:
    _, rows = examine()
    assert CHECK not in rows
    assert WRITERS not in rows
    written(node, plugin_folders=())
    _, rows = examine()
    fact = "the policy is qrm, and the agent asks no plugin: all containers share its CPUs"
    assert facts(rows) == {fact: "problem"}


def test_a_socket_of_another_user_and_one_out_of_the_agents_sight(
    examine: Any, node: WrittenNode, bind: Bind
) -> None:
    bind("cpu.sock", 0)
    bind("nic.sock", 65534)
    bind("memory.sock", 0)
    written(node, CPU)
    _, rows = examine()
    assert facts(rows) == {
        "the agent asks no plugin at a socket of another user than root:"
        f" {FOLDERS[0]}/nic.sock": "warning",
        f"the agent does not see the sockets {FOLDERS[0]}/memory.sock": "problem",
    }


def test_a_socket_of_another_user_is_no_empty_folder(
    examine: Any, node: WrittenNode, bind: Bind
) -> None:
    bind("nic.sock", 65534)
    written(node, policy=False)
    _, rows = examine()
    fact = f"the agent asks no plugin at a socket of another user than root: {FOLDERS[0]}/nic.sock"
    assert facts(rows) == {fact: "warning"}


def test_folders_without_a_plugin(examine: Any, node: WrittenNode, bind: Bind) -> None:
    written(node, policy=False)
    _, rows = examine()
    fact = f"no plugin has a socket in {FOLDERS[0]}, {FOLDERS[1]}; there is no folder {FOLDERS[1]}"
    assert facts(rows) == {fact: "warning"}


def test_plugins_that_fail_or_are_gone(examine: Any, node: WrittenNode) -> None:
    away = PluginStatus(f"{FOLDERS[0]}/memory.sock", "memory", "is away")
    strange = PluginStatus(f"{FOLDERS[0]}/x.sock", "", f"{FOLDERS[0]}/x.sock is mute")
    written(node, away, strange, lost=("cpu", "example.com/nic"))
    _, rows = examine()
    assert facts(rows) == {
        f"the plugin for memory at {away.socket}: is away": "warning",
        f"{FOLDERS[0]}/x.sock is mute": "warning",
        "the plugin for cpu, example.com/nic is gone: its last answers stay": "warning",
        "the policy is qrm, and no plugin serves cpu: containers get no CPUs from a plugin": (
            "problem"
        ),
    }


ORM = "Katalyst's manager asks the same plugins, and writes the same cpusets"


@pytest.mark.parametrize(
    ("words", "rival"),
    [
        (("katalyst-agent", "--agents=katalyst-agent-orm,katalyst-agent-qrm"), True),
        (("/usr/bin/katalyst-agent", "--agents", "katalyst-agent-orm"), True),
        (("katalyst-agent", "--agents=*"), True),
        (("katalyst-agent", "--agents=*,-katalyst-agent-orm"), False),
        (("katalyst-agent", "--agents=katalyst-agent-qrm"), False),
        (("katalyst-agent",), False),
    ],
)
def test_katalysts_manager_is_a_second_writer(
    examine: Any, node: WrittenNode, words: tuple[str, ...], *, rival: bool
) -> None:
    written(node, CPU)
    node.put("proc/4711/cmdline", "\0".join((*words, "")))
    _, rows = examine()
    right = "no other program is known to write cpusets here"
    assert facts(rows, WRITERS) == ({ORM: "problem"} if rival else {right: "ok"})


def test_another_nri_plugin_is_a_second_writer_under_every_policy(
    examine: Any, node: WrittenNode
) -> None:
    node.put("proc/4711/cmdline", "/bin/nri-resource-policy-balloons\0--v\0")
    _, rows = examine()
    fact = (
        "nri-resource-policy-balloons sets the CPUs of containers by NRI, too: the runtime may"
        " refuse both"
    )
    assert facts(rows, WRITERS) == {fact: "problem"}


def test_writers_are_unseen_where_no_process_can_be_seen(examine: Any, node: WrittenNode) -> None:
    written(node, CPU)
    (node.folder / "proc/100/cgroup").unlink()
    _, rows = examine()
    assert facts(rows, WRITERS) == {"the node's processes cannot be seen from here": "unseen"}
    written(node, CPU, policy=False)
    _, rows = examine()
    assert WRITERS not in rows, "without the policy their absence is no fault"


def test_the_api_server_names_a_writer(examine: Any, node: WrittenNode, tmp_path: Path) -> None:
    agent = {"name": "katalyst-agent", "args": ["--agents=katalyst-agent-orm"]}
    with login(tmp_path, admin=True) as cluster:
        metadata = {"name": "k", "namespace": "default", "uid": "k"}
        spec = {"nodeName": "node-a", "containers": [agent]}
        cluster.server.keep(
            "/api/v1/namespaces/default/pods/k", {"metadata": metadata, "spec": spec}
        )
        user = {"jane": cluster.certificate("jane")}
        kubelet = str(node.root.kubelet_config)
        options = ("--node-name", "node-a", "--node-labels", "a=b", "--kubelet-config", kubelet)
        _, rows = examine("--kubeconfig", str(cluster.kubeconfig(user)), *options)
        assert facts(rows, WRITERS) == {ORM: "problem"}
        cluster.server.forbidden = {("list", "pods")}
        _, rows = examine("--kubeconfig", str(cluster.kubeconfig(user)), *options)
        assert [row["verdict"] for row in rows[WRITERS]] == ["unseen"]


def test_the_kubelets_static_cpu_manager_is_a_writer(examine: Any, node: WrittenNode) -> None:
    written(node, CPU)
    static = KUBELET.replace("cpuManagerPolicy: none", "cpuManagerPolicy: static")
    node.put("var/lib/kubelet/config.yaml", static)
    _, rows = examine()
    assert "problem" in {row["verdict"] for row in rows["kubelet"]}


def held(policy: str, plugin: str) -> str:
    return (
        f"the kubelet's memory manager is {policy!r}: it chooses the NUMA nodes for the memory of"
        f" Guaranteed pods, and so does the plugin for {plugin}"
    )


ALONE = "none, so only the plugin for memory chooses NUMA nodes for memory"
UNSEEN = "the kubelet's policy cannot be seen from here"
DAMAGED = "the kubelet's memory_manager_state is not readable: policyName is not of type str"


@pytest.mark.parametrize(
    ("state", "configured", "fact", "verdict"),
    [
        ('{"policyName": "Static", "machineState": {}}', "None", held("Static", "memory"), 1),
        ('{"policyName": "None"}', "Static", ALONE, 0),
        ("", "Static", held("Static", "memory"), 1),
        ("", "None", ALONE, 0),
        ("", "", UNSEEN, 0),
        ("{}", "None", DAMAGED, 1),
    ],
)
def test_the_kubelets_memory_manager_beside_a_plugin_for_memory(
    examine: Any, node: WrittenNode, state: str, configured: str, fact: str, *, verdict: bool
) -> None:
    written(node, PluginStatus(f"{FOLDERS[0]}/memory.sock", "memory"))
    if state:
        node.put("var/lib/kubelet/memory_manager_state", state)
    node.root.kubelet_config.unlink()
    if configured:
        node.put("var/lib/kubelet/config.yaml", f"{KUBELET}memoryManagerPolicy: {configured}\n")
    _, rows = examine()
    (row,) = rows[MANAGER]
    assert row["fact"] == fact
    assert (row["verdict"] == "problem") is bool(verdict)


def test_the_memory_manager_matters_where_an_answer_sets_memory_nodes(
    examine: Any, node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.put("var/lib/kubelet/memory_manager_state", '{"policyName": "Static", "secret": 1}')
    written(node, CPU)
    _, rows = examine()
    assert MANAGER not in rows, "no plugin sets memory nodes"

    answer = PluginAnswer("example.com/nic", {"CpusetMems": "0"})
    cpus = CPUSet.of(0)
    container = ContainerStatus(
        "default/a/main", Placement.POOLS, cpus, "0", "", CPUSet(), answers=(answer,)
    )
    written(node, CPU, containers=(container,))
    _, rows = examine()
    assert facts(rows, MANAGER) == {held("Static", "example.com/nic"): "problem"}

    bundle = tmp_path / "bundle.tar.gz"
    host = ("--host-root", str(node.folder), "--config", str(node.pool_files))
    assert cli.main(["support-bundle", "--output", str(bundle), *host]) == 0
    capsys.readouterr()
    assert cli.main(["doctor", "--json", "--bundle", str(bundle)]) == 1
    assert held("Static", "example.com/nic") in capsys.readouterr().out
