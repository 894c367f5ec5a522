from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool import cli
from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.local.kubelet import EmbeddedKubelet
from tests.cri_server import FakeCRI
from tests.kubeconfigs import Login, login
from tests.nodes import OTHER, POOL_FILE, AnsweringAgent, WrittenNode, container

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Rows = dict[str, list[dict[str, str]]]
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def node(folder: Path) -> WrittenNode:
    return WrittenNode(folder)


@pytest.fixture
def kubelet(node: WrittenNode) -> Iterator[EmbeddedKubelet]:
    """Serve the kubelet's sockets, and those of the plugins of both pools."""
    node.root.checkpoint.unlink()
    with ExitStack() as opened:
        serving = opened.enter_context(EmbeddedKubelet(node.root.kubelet, Names()))
        for pool in ("exclusive_a", "shared_x"):
            plugin = opened.enter_context(socket.socket(socket.AF_UNIX))
            plugin.bind(str(node.root.device_plugins / f"cpupool-{pool}.sock"))
            plugin.listen()
        yield serving


@pytest.fixture
def runtime(node: WrittenNode) -> Iterator[FakeCRI]:
    """Serve the container runtime's sockets."""
    with FakeCRI(node.root.cri_sockets[0]) as serving, socket.socket(socket.AF_UNIX) as plugins:
        node.root.nri_socket.parent.mkdir()
        plugins.bind(str(node.root.nri_socket))
        yield serving


@pytest.fixture
def agent() -> Iterator[AnsweringAgent]:
    with AnsweringAgent() as answering:
        yield answering


@pytest.fixture
def examine(node: WrittenNode, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on the node and give its exit code and its rows by check."""

    def run(*options: str, agent: str = NOBODY) -> tuple[int, Rows]:
        code = cli.main(
            [
                *("doctor", "--json", "--host-root", str(node.folder)),
                *("--config", str(node.pool_files), "--agent", agent, *options),
            ]
        )
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "cpupool-doctor/1"
        rows: Rows = {}
        for row in document["checks"]:
            rows.setdefault(row.pop("check"), []).append(row)
        return code, rows

    return run


def verdicts(rows: Rows) -> dict[str, list[str]]:
    return {check: [row["verdict"] for row in found] for check, found in rows.items()}


@pytest.mark.usefixtures("kubelet", "runtime")
def test_a_node_where_all_is_well(examine: Any, agent: AnsweringAgent) -> None:
    code, rows = examine(agent=agent.url)

    assert code == 0
    assert {verdict for told in verdicts(rows).values() for verdict in told} == {"ok"}
    assert set(rows) == {
        *("pool file", "agent", "rights", "cgroups", "kubelet", "CPU manager", "device plugins"),
        *("starter", "podresources", "checkpoint", "pools", "isolation", "interrupts", "daemons"),
        *("container runtime", "containers", "owners"),
    }


def test_it_is_drawn_with_the_remedy_below_the_fact(
    node: WrittenNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.container(OTHER, "4")

    assert cli.main(["doctor", "--host-root", str(node.folder), "--agent", NOBODY]) == 1

    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if " owners " in line)
    assert lines[at].startswith("x  problem  owners")
    assert lines[at + 2].strip().startswith("> ") or lines[at + 1].strip().startswith("> ")
    assert max(map(len, lines)) <= 80
    assert "problem" in lines[-1]
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("check", "verdict", "fact", "path", "text"),
    [
        pytest.param(
            *("CPU manager", "problem", "'static' and writes the same cpusets"),
            *("var/lib/kubelet/cpu_manager_state", '{"policyName":"static"}'),
            id="a static CPU manager",
        ),
        pytest.param(
            *("kubelet", "problem", "the scheduler gives 27 away"),
            *("var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\nkubeReserved: {cpu: 1}"),
            id="too little reserved",
        ),
        pytest.param(
            *("kubelet", "problem", "cpuManagerPolicy"),
            "var/lib/kubelet/config.yaml",
            "{kind: KubeletConfiguration, cpuManagerPolicy: static, systemReserved: {cpu: 28}}",
            id="a static CPU manager after the next restart",
        ),
        pytest.param(
            *("kubelet", "problem", "neither a KubeletConfiguration"),
            *("var/lib/kubelet/config.yaml", "kind: Pod"),
            id="no kubelet configuration",
        ),
        pytest.param(
            *("checkpoint", "problem", "it is not JSON"),
            *("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", "x"),
            id="a damaged checkpoint",
        ),
        pytest.param(
            *("pool file", "problem", "unknown key"),
            *("etc/cpu-pooler/poolconfig-a.yaml", POOL_FILE.replace("cpus", "cpu", 1)),
            id="a pool file with a typo",
        ),
        pytest.param(
            *("pool file", "problem", "this machine has no CPUs 99"),
            *("etc/cpu-pooler/poolconfig-a.yaml", POOL_FILE.replace('"4-7"', '"4-7,99"')),
            id="a pool file for another machine",
        ),
        pytest.param(
            *("pool file", "warning", "something else than the pools that the agent has in force"),
            *("etc/cpu-pooler/poolconfig-a.yaml", POOL_FILE.replace('"4-7"', '"4-8"')),
            id="a pool file that is not in force",
        ),
        pytest.param(
            *("isolation", "warning", "CPUs 2 of shared or default pools are in isolcpus"),
            *("sys/devices/system/cpu/isolated", "2,4-7"),
            id="an isolated CPU in a shared pool",
        ),
        pytest.param(
            *("isolation", "warning", "isolcpus has 4-5 of the exclusive CPUs 4-7"),
            *("sys/devices/system/cpu/isolated", "4-5"),
            id="half a pool isolated",
        ),
        pytest.param(
            *("isolation", "warning", "are in nohz_full"),
            *("sys/devices/system/cpu/nohz_full", "0-1,4-7"),
            id="a tickless CPU in the default pool",
        ),
        pytest.param(
            *("isolation", "ok", "isolcpus none, nohz_full none"),
            *("sys/devices/system/cpu/nohz_full", "(null)"),
            id="a kernel that could do without a tick",
        ),
        pytest.param(
            *("agent", "problem", "no status file of this version"),
            *("run/cpupool/status.json", "{}"),
            id="a status of another version",
        ),
    ],
)
def test_a_file_that_is_wrong_is_told(
    examine: Any, node: WrittenNode, *, check: str, verdict: str, fact: str, path: str, text: str
) -> None:
    node.put(path, text)

    _, rows = examine()

    told = [row for row in rows[check] if fact in row["fact"]]
    assert [row["verdict"] for row in told] == [verdict]
    assert verdict == "ok" or told[0]["remedy"]


def test_interrupts_and_daemons_on_exclusive_cores_are_told(
    examine: Any, node: WrittenNode
) -> None:
    node.interrupt("0-31", "20")
    node.daemon("0-31")

    _, rows = examine()

    # 20 is the idle sibling of 4: whatever runs there disturbs its owner.
    assert rows["interrupts"][0] == {
        "verdict": "warning",
        "fact": "1 of 1 may be served by the exclusive CPUs 4-7,20-23, 1 are now: 24 eth0-rx by 20",
        "remedy": rows["interrupts"][0]["remedy"],
    }
    assert rows["daemons"][0]["fact"].endswith("CPUs 4-7,20-23: sshd.service on 0-31")
    assert "CPUAffinity=0-3,8-19,24-31" in rows["daemons"][0]["remedy"]


def test_services_of_another_pid_namespace_are_not_in_sight(
    examine: Any, node: WrittenNode
) -> None:
    node.put("proc/100/cgroup", "0::/kubepods.slice/kubepods-podaaaa.slice/x.scope\n")
    node.put("proc/101/cgroup", "0::/system.slice/containerd.service/kubepods-podbbbb.slice:x\n")

    (row,) = examine()[1]["daemons"]
    assert (row["verdict"], row["remedy"]) == ("unseen", "run this on the node, not in a container")


def test_what_cannot_be_seen_is_named_at_the_end(
    node: WrittenNode, capsys: pytest.CaptureFixture[str]
) -> None:
    (node.root.kubelet / "config.yaml").unlink()

    cli.main(["doctor", "--host-root", str(node.folder), "--agent", NOBODY])

    *_, unseen, counts = capsys.readouterr().out.split("\n\n")
    assert unseen.startswith("not seen: ")
    assert " kubelet;" in unseen
    assert " unseen" in counts


def test_the_answer_of_the_kubelet_itself_can_be_piped_in(examine: Any, node: WrittenNode) -> None:
    (node.root.kubelet / "config.yaml").unlink()
    (row,) = examine()[1]["kubelet"]
    assert row["verdict"] == "unseen"
    assert "/proxy/configz` piped in" in row["remedy"]
    read, write = os.pipe()
    with os.fdopen(write, "w") as answer:
        answer.write('{"kubeletconfig": {"systemReserved": {"cpu": "28"}}}')

    rows = examine("--kubelet-config", f"/dev/fd/{read}")[1]

    os.close(read)
    assert verdicts(rows)["kubelet"] == ["ok"]


def test_an_exclusive_cpu_of_two_pods_is_seen_in_the_cgroups(
    examine: Any, node: WrittenNode
) -> None:
    node.container(OTHER, "0-31")

    code, rows = examine()

    assert code == 1
    assert rows["owners"][0]["fact"] == (
        "the exclusive CPUs 4 are in the cpusets of 2 pods: aaaa, bbbb"
    )


def test_containers_that_are_astray_or_confined_are_named(examine: Any, node: WrittenNode) -> None:
    node.status(
        container("ns/a/main", "4", "0-31"), container("ns/b/main", "0-1", reason="no devices")
    )

    _, rows = examine()

    assert [row["verdict"] for row in rows["containers"]] == ["problem", "warning"]
    assert "ns/a/main runs on 0-31, not on 4" in rows["containers"][0]["fact"]
    assert "ns/b/main: no devices" in rows["containers"][1]["fact"]


def test_containers_that_wait_for_the_kubelets_cpus_are_named(
    examine: Any, node: WrittenNode
) -> None:
    left = replace(container("ns/a/main", ""), placement=Placement.KUBELET, found="4-7")
    node.status(left)
    assert [row["verdict"] for row in examine()[1]["containers"]] == ["ok"]

    node.status(left, replace(left, name="ns/b/main", reason="not named yet"))
    (row,) = examine()[1]["containers"]
    assert row["verdict"] == "warning"
    assert row["fact"] == (
        "1 of 2 have no shared CPUs beside the kubelet's: ns/b/main: not named yet"
    )


def test_offline_cpus_of_pools_are_told(examine: Any, node: WrittenNode) -> None:
    node.put("sys/devices/system/cpu/online", "0-4,6-31\n")

    assert [(row["verdict"], row["fact"]) for row in examine()[1]["pools"]] == [
        ("warning", "pools.exclusive_a.cpus: CPUs 5 are offline")
    ]


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


def test_a_kubelet_that_places_containers_itself_is_told(
    examine: Any, node: WrittenNode, kubelet: EmbeddedKubelet
) -> None:
    (node.root.kubelet / "cpu_manager_state").unlink()
    assert examine()[1]["CPU manager"][0]["verdict"] == "ok"

    kubelet.static_cpus = CPUSet.parse("2-31")

    assert examine()[1]["CPU manager"][0]["verdict"] == "problem"


def test_a_static_cpu_manager_that_cpupool_only_adds_to_is_welcome(
    examine: Any, node: WrittenNode
) -> None:
    node.put("var/lib/kubelet/cpu_manager_state", '{"policyName":"static"}')
    pools = NodePools.of(Pool.named("shared_x", "2-3,18-19"), mixed=MixedCPUs("shared_x"))
    node.status(pools=pools)
    assert examine()[1]["CPU manager"][0]["verdict"] == "ok"

    node.status(pools=replace(pools, mixed=None))
    assert examine()[1]["CPU manager"][0]["verdict"] == "problem"


def test_shared_cpus_that_a_static_kubelet_gives_out_too_are_told(
    examine: Any, node: WrittenNode, kubelet: EmbeddedKubelet
) -> None:
    node.put("var/lib/kubelet/cpu_manager_state", '{"policyName":"static"}')
    node.status(pools=NodePools.of(Pool.named("shared_x", "2-3"), mixed=MixedCPUs("shared_x")))
    kubelet.static_cpus = CPUSet.parse("3-31")
    (row,) = examine()[1]["CPU manager"]
    assert (row["verdict"], row["fact"].endswith("the shared pools' CPUs 3")) == ("problem", True)
    assert "add them to its reservedSystemCPUs, delete cpu_manager_state" in row["remedy"]

    kubelet.static_cpus = CPUSet.parse("4-31")
    assert examine()[1]["CPU manager"][0]["verdict"] == "ok"


def test_sockets_on_which_nobody_listens(
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


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("containerd", "[plugins.'io.containerd.nri.v1.nri']"),
        ("cri-o", "enable_nri = true"),
        ("other", "switch NRI on"),
    ],
)
def test_a_runtime_without_nri_is_told_how_to_have_it(
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


def test_a_runtime_that_refuses_calls_is_told(examine: Any, runtime: FakeCRI) -> None:
    runtime.failing["Version"] = grpc.StatusCode.UNIMPLEMENTED

    refused, nri = examine()[1]["container runtime"]

    assert "it was told to fail" in refused["fact"]
    assert "switched off" in refused["remedy"]
    assert nri["verdict"] == "ok"


def test_a_runtime_folder_that_may_not_be_read_is_told(
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


def test_a_starter_that_no_container_can_run(examine: Any, node: WrittenNode) -> None:
    node.starter.chmod(0o644)
    assert verdicts(examine()[1])["starter"] == ["warning"]

    # A runtime makes a folder where the source of a mount is missing.
    node.starter.unlink()
    node.starter.mkdir()
    assert verdicts(examine()[1])["starter"] == ["warning"]


def test_a_node_without_pods_or_cgroups(examine: Any, node: WrittenNode) -> None:
    (node.folder / "sys/fs/cgroup/kubepods.slice").rename(node.folder / "gone")
    assert "there is no cgroup of pods" in examine()[1]["cgroups"][0]["fact"]

    (node.folder / "sys/fs/cgroup/cgroup.controllers").unlink()
    _, rows = examine()

    assert verdicts(rows)["cgroups"] == ["problem"]
    assert verdicts(rows)["owners"] == ["problem"]


def test_cgroup_version_1_is_a_warning(examine: Any, node: WrittenNode) -> None:
    (node.folder / "sys/fs/cgroup/cgroup.controllers").unlink()
    node.put("sys/fs/cgroup/cpuset/cpuset.cpus", "0-31")
    node.put("sys/fs/cgroup/cpuset/kubepods/cpuset.cpus", "0-31")

    row = examine()[1]["cgroups"][0]

    assert (row["verdict"], row["fact"]) == ("warning", "version 1, driver cgroupfs (kubepods)")


def test_two_drivers_left_their_cgroups(examine: Any, node: WrittenNode) -> None:
    (node.folder / "sys/fs/cgroup/kubepods").mkdir()

    assert "cgroupfs and systemd" in examine()[1]["cgroups"][0]["fact"]


def test_nothing_is_known_but_the_machine(examine: Any, node: WrittenNode) -> None:
    node.root.status.unlink()
    (node.pool_files / "poolconfig-a.yaml").rename(node.pool_files / "other")
    (node.root.kubelet / "config.yaml").unlink()
    (node.root.kubelet / "cpu_manager_state").unlink()
    node.root.checkpoint.unlink()

    _, rows = examine()

    for check in ("pool file", "kubelet", "CPU manager", "pools"):
        assert verdicts(rows)[check] == ["unseen"]
        assert rows[check][0]["remedy"]
    assert verdicts(rows)["checkpoint"] == ["ok"]


def test_what_is_wrong_with_a_file_with_and_without_the_machine_is_told_together(
    examine: Any, node: WrittenNode
) -> None:
    broken = POOL_FILE.replace('"4-7"', '"4-7,99", cpu: 3')
    node.put("etc/cpu-pooler/poolconfig-a.yaml", broken)

    told = " ".join(row["fact"] for row in examine()[1]["pool file"])

    assert "unknown key" in told
    assert "this machine has no CPUs 99" in told


def test_labels_choose_the_pool_file(examine: Any, node: WrittenNode) -> None:
    node.put("etc/cpu-pooler/poolconfig-a.yaml", POOL_FILE + "nodeSelector: {kind: a}\n")
    node.put("etc/cpu-pooler/poolconfig-b.yaml", POOL_FILE + "nodeSelector: {kind: b}\n")
    assert examine()[1]["pool file"] == [
        {
            "verdict": "unseen",
            "fact": "there are 2, and the node's labels choose one of them",
            "remedy": "give the labels with --node-labels",
        }
    ]

    _, rows = examine("--node-labels", "kind=b")

    assert rows["pool file"][0]["fact"] == "poolconfig-b.yaml is in force"


def test_a_node_that_no_pool_file_is_for_is_told(examine: Any, node: WrittenNode) -> None:
    node.put("etc/cpu-pooler/poolconfig-a.yaml", POOL_FILE + "nodeSelector: {kind: a}\n")

    _, rows = examine("--node-labels", "kind=b")

    assert verdicts(rows)["pool file"] == ["warning"]
    assert "none of 1 is for a node with these labels" in rows["pool file"][0]["fact"]


def test_a_file_without_the_right_to_read_it_is_told_and_stops_nothing(
    examine: Any, node: WrittenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may read everything, so the file system is asked to refuse instead.
    refused = {node.root.checkpoint, node.root.status, node.root.kubelet / "config.yaml"}
    read = type(node.folder).read_bytes

    def read_bytes(path: Path) -> bytes:
        if path in refused:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(type(node.folder), "read_bytes", read_bytes)

    _, rows = examine()

    for check in ("agent", "kubelet", "checkpoint"):
        assert rows[check][0]["verdict"] == "problem"
        assert "Permission denied" in rows[check][0]["fact"]
        assert rows[check][0]["remedy"] == "run this as root"
    assert len(rows["agent"]) == 1
    assert verdicts(rows)["pools"] == ["ok"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host-root", "/no/such"], "there is no sys in it"),
        (["--kubelet-config", "/no/such"], "/no/such: no such file or folder"),
        (["--config", "/no/such"], "/no/such: no such file or folder"),
        (["--bundle", "/no/such"], "/no/such: no support bundle, or a damaged one (No such file"),
        (["--agent", "localhost:9404"], "'localhost:9404' is no address; write it as http://"),
        (["--agent", "http://a:b"], "'http://a:b' is no address"),
        (["--bundel", "x"], "see cpupool"),
    ],
)
def test_bad_usage_is_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", *options]) == 2

    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_pools_without_an_exclusive_one_disturb_nobody(examine: Any, node: WrittenNode) -> None:
    node.status(pools=NodePools.of(Pool.named("default", "0-31")))
    node.interrupt("0-31", "20")

    _, rows = examine()

    assert verdicts(rows)["owners"] == verdicts(rows)["interrupts"] == ["ok"]


def test_the_pool_file_may_be_a_manifest(examine: Any, node: WrittenNode) -> None:
    indented = "".join(f"    {line}\n" for line in POOL_FILE.splitlines())
    manifest = node.put("a.yaml", f"kind: ConfigMap\ndata:\n  poolconfig-m.yaml: |\n{indented}")

    _, rows = examine("--config", str(manifest))

    assert rows["pool file"][0]["fact"] == "poolconfig-m.yaml is in force"


def test_an_agent_without_pods_may_lack_the_right_to_them(examine: Any, node: WrittenNode) -> None:
    node.status(waiting_for="the list of this node's pods")

    row = examine()[1]["rights"][0]

    assert row["verdict"] == "warning"
    assert "if its log says Forbidden" in row["remedy"]


def test_without_a_machine_there_is_nothing_to_judge(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "sys").mkdir()

    assert cli.main(["doctor", "--host-root", str(folder)]) == 2

    assert "no CPU in devices/system/cpu" in capsys.readouterr().err


def test_a_socket_that_may_not_be_dialled_is_told(
    examine: Any, kubelet: EmbeddedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(_socket: object, _path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", connect)

    row = examine()[1]["device plugins"][0]

    assert (row["verdict"], row["remedy"]) == ("problem", "run this as root")


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
    }


def test_what_the_command_line_says_is_not_asked(
    cluster: Login, node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("kind: KubeletConfiguration\nsystemReserved: {cpu: '28'}\n")
    options = ["--kubelet-config", str(mine), "--config", str(node.pool_files)]

    doctor(cluster, node, "--node-name", "node-a", *options, "--node-labels", "kind=c")

    assert cluster.server.requests == []


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
