from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from cpupool import cli
from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from tests.nodes import OTHER, POOL_FILE, AnsweringAgent, WrittenNode, container
from tests.unit.commands.doctor.rows import NOBODY, verdicts


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
            *("CPU manager", "problem", "state is of 'static': the next start of the kubelet"),
            *(
                "var/lib/kubelet/cpu_manager_state",
                '{"policyName":"static","defaultCpuSet":"0-7","checksum":0}',
            ),
            id="the state of a static CPU manager before the policy none",
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
def test_a_file_that_is_wrong_is_reported(
    examine: Any, node: WrittenNode, *, check: str, verdict: str, fact: str, path: str, text: str
) -> None:
    node.put(path, text)

    _, rows = examine()

    told = [row for row in rows[check] if fact in row["fact"]]
    assert [row["verdict"] for row in told] == [verdict]
    assert verdict == "ok" or told[0]["remedy"]


def test_interrupts_and_daemons_on_exclusive_cores_are_reported(
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


def process(node: WrittenNode, pid: int, name: str, cpus: str, cgroup: str) -> None:
    node.put(f"proc/{pid}/cgroup", f"0::/{cgroup}\n")
    node.put(f"proc/{pid}/status", f"Name:\t{name}\nCpus_allowed_list:\t{cpus}\n")


def test_the_advice_for_daemons_gives_no_affinity_to_the_runtime(
    examine: Any, node: WrittenNode
) -> None:
    node.daemon("0-31")
    (row,) = examine()[1]["daemons"]
    assert "system.slice AllowedCPUs=0-3,8-19,24-31" in row["remedy"]
    assert "not for the container runtime or the kubelet, and not in system.conf" in row["remedy"]


def test_a_runtime_with_an_affinity_is_reported(examine: Any, node: WrittenNode) -> None:
    for pid, name, cpus in (
        (901, "containerd", "0-1"),
        (902, "containerd-shim", "0-1"),
        (903, "containerd-shim", "0-1"),
        (904, "kubelet", "0-31"),
    ):
        process(node, pid, name, cpus, f"system.slice/{name}.service")
    node.put("sys/fs/cgroup/cpuset.cpus.effective", "0-31\n")

    (row,) = examine()[1]["runtime affinity"]

    assert row["verdict"] == "warning"
    assert "binds containerd on 0-1 of 0-31, containerd-shim on 0-1 of 0-31; con" in row["fact"]
    assert "remove CPUAffinity= from its unit and from /etc/systemd/system.conf" in row["remedy"]

    for pid, name in ((901, "containerd"), (902, "containerd-shim"), (903, "containerd-shim")):
        process(node, pid, name, "0-31", f"system.slice/{name}.service")
    (row,) = examine()[1]["runtime affinity"]
    assert row["verdict"] == "ok"


def test_a_runtime_in_a_smaller_cpuset_has_no_affinity(examine: Any, node: WrittenNode) -> None:
    process(node, 901, "crio", "0-1", "system.slice/crio.service")
    node.put("sys/fs/cgroup/cpuset.cpus.effective", "0-31\n")
    node.put("sys/fs/cgroup/system.slice/cpuset.cpus.effective", "0-1\n")
    assert examine()[1]["runtime affinity"][0]["verdict"] == "ok"


def test_own_cpus_that_no_thread_may_use_are_reported(examine: Any, node: WrittenNode) -> None:
    owner = replace(container("default/web/main", "4-5"), exclusive=CPUSet.parse("4-5"))
    node.status(owner)
    node.container(OTHER, "4-5")
    node.put(f"sys/fs/cgroup/{OTHER}/cgroup.threads", "7\n8\n")
    process(node, 7, "app", "4", OTHER)
    process(node, 8, "app", "4", OTHER)
    (row,) = examine()[1]["affinity"]
    assert (row["verdict"], f"{owner.name} not on 5" in row["fact"]) == ("warning", True)

    # One thread on each is how an application pins them.
    process(node, 8, "app", "5", OTHER)
    assert examine()[1]["affinity"][0]["verdict"] == "ok"


def test_the_cgroup_that_keeps_cpus_is_named(examine: Any, node: WrittenNode) -> None:
    kubepods = OTHER.split("/")[0]
    node.put(f"sys/fs/cgroup/{kubepods}/cpuset.cpus.effective", "0-6,8-31\n")
    node.put("sys/fs/cgroup/cpuset.cpus.effective", "0-6,8-31\n")
    node.put("sys/fs/cgroup/dpdk.service/cpuset.cpus.partition", "isolated\n")
    node.put("sys/fs/cgroup/dpdk.service/cpuset.cpus.effective", "7\n")

    code, rows = examine()

    assert code == 1
    assert rows["cgroups"][-1] == {
        "verdict": "problem",
        "fact": "CPUs 7 are for cgroup /dpdk.service alone (cpuset.cpus.partition: isolated)",
        "remedy": "write member into cpuset.cpus.partition of /dpdk.service (systemd: remove"
        " CPUSetPartition=)",
    }
    assert "/dpdk.service" in rows["pools"][0]["fact"]


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
        "1 of 2 have no shared CPUs in addition to the kubelet's: ns/b/main: not named yet"
    )


def test_offline_cpus_of_pools_are_reported(examine: Any, node: WrittenNode) -> None:
    node.put("sys/devices/system/cpu/online", "0-4,6-31\n")

    assert [(row["verdict"], row["fact"]) for row in examine()[1]["pools"]] == [
        ("warning", "pools.exclusive_a.cpus: CPUs 5 are offline")
    ]


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


DROP_IN = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


@pytest.mark.parametrize("source", ["drop-in", "flag"])
def test_the_kubelet_is_judged_by_the_configuration_in_force(
    examine: Any, node: WrittenNode, source: str
) -> None:
    node.put("etc/kubelet.d/10.conf", f"{DROP_IN}cpuManagerPolicy: static\n")
    flags = {
        "drop-in": "--config-dir=/etc/kubelet.d",
        "flag": "--cpu-manager-policy=static",
    }
    words = ("/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml", flags[source])
    node.put("proc/77/cmdline", "\0".join(words))

    _, rows = examine()

    (row,) = (one for one in rows["kubelet"] if one["verdict"] == "problem")
    assert "the kubelet's CPU manager is 'static'" in row["fact"]
    assert ("10.conf:3:19" in row["fact"]) == (source == "drop-in")


def test_a_policy_that_the_file_does_not_name_is_no_contradiction_to_the_state(
    examine: Any, node: WrittenNode
) -> None:
    # A flag that cannot be seen has set static.
    node.put("var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
    node.put(
        "var/lib/kubelet/cpu_manager_state",
        '{"policyName":"static","defaultCpuSet":"0-7","checksum":0}',
    )

    _, rows = examine()

    assert not any("sets cpuManagerPolicy none" in one["fact"] for one in rows["CPU manager"])


def test_drop_ins_that_cannot_be_read_are_a_row(examine: Any, node: WrittenNode) -> None:
    _, rows = examine("--kubelet-config-dir", str(node.folder / "absent"))

    (row,) = rows["kubelet"]
    assert row["verdict"] == "problem"
    assert "absent: No such file or directory" in row["fact"]
