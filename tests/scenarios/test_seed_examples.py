"""The three examples of the QoS Resource Manager's proposal, with our plugins as real processes.

The proposal's machine has 80 CPUs, 0-39 on NUMA node 0 and 40-79 on node 1.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool.core.workloads import ContainerRef
from cpupool.plugins.nic import BANDWIDTH, NEAR_NIC
from cpupool.wire import answer_record
from tests.machines import Machine
from tests.processes import Process
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    asked_by_the_runtime,
    environment,
    right,
    run,
    served,
    started,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cpupool.core.resource_plugins import Given
    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

PROPOSED = Machine(sockets=2, cores=20, threads=2, adjacent=True)
POOLS = """
pools:
  default: {cpus: "0-79"}
nodeSelector: {role: worker}
cpuManager: {policy: qrm, reserved: "0-1,40-41", topologyPolicy: restricted}
"""
ALL = "0-79"
MEMORY_BYTES = (237706936320, 237806551040)
ROLE = "kubernetes.io/pod-role"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    machine = PROPOSED.write(folder)
    for node, bytes_ in enumerate(MEMORY_BYTES):
        meminfo = f"Node {node} MemTotal:  {bytes_ // 1024} kB\n"
        (folder / f"sys/devices/system/node/node{node}/meminfo").write_text(meminfo)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        for path in (world.place.root / "cpuset").rglob("cpuset.mems"):
            path.write_text("0-1\n")
        world.mount.show(worker=POOLS)
        yield world


@contextmanager
def plugins(world: World, config: str, *names: str) -> Iterator[list[Process]]:
    """Run plugins, each in a process of its own."""
    configure(world, config)
    with ExitStack() as running:
        yield [running.enter_context(plugin(world, name)) for name in names]


@contextmanager
def plugin(world: World, name: str, end: int = signal.SIGTERM) -> Iterator[Process]:
    process = Process(
        *(sys.executable, "-W", "error", "-m", "cpupool", "resource-plugin", name),
        *("--host-root", world.folder, "--config", world.folder / "plugins/config.yaml"),
    )
    with process.collecting(end):
        yield process


def configure(world: World, config: str) -> None:
    path = world.folder / "plugins/config.yaml"
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(config)
    fresh.replace(path)


def of_role(world: World, name: str, role: str, **requests: str) -> Pod:
    return run(world, name, {ROLE: role}, **requests)


EXAMPLE_1 = """
pools:
  online: {cpus: 76}
  offline: {cpus: 4}
roles:
  online-micro_service: {pool: online}
  ETL: {pool: offline}
"""


def test_example_1_two_pools_by_role_whose_sizes_change(world: World) -> None:
    with plugins(world, EXAMPLE_1, "cpu"), asked_by_the_runtime(world) as agent:
        served(agent)
        run(world, "system", cpu="0")
        pods = (
            of_role(world, "pod1", "online-micro_service", cpu="4"),
            of_role(world, "pod2", "ETL", cpu="2"),
            of_role(world, "pod3", "online-micro_service", cpu="4"),
        )
        for pod in pods:
            started(world, pod)
        right(world, ALL, pod1="0-37,40-77", pod2="38-39,78-79", pod3="0-37,40-77", system=ALL)

        configure(world, EXAMPLE_1.replace("76", "28").replace("cpus: 4", "cpus: 52"))
        right(world, ALL, pod1="0-13,40-53", pod2="14-39,54-79", pod3="0-13,40-53", system=ALL)

        configure(world, EXAMPLE_1)
        right(world, ALL, pod1="0-37,40-77", pod2="38-39,78-79", pod3="0-37,40-77", system=ALL)


EXAMPLE_2 = """
reserved: "0-1,40-41"
reservedMemory: 500Mi
roles:
  storage-service: {numaNode: same-role}
  reranker: {numaNode: same-role}
  numa-enhancement: {numaNode: same-role}
"""


def test_example_2_roles_that_keep_apart_have_numa_nodes_of_their_own(world: World) -> None:
    with plugins(world, EXAMPLE_2, "cpu", "memory"), asked_by_the_runtime(world) as agent:
        served(agent, "cpu,memory")
        run(world, "system", cpu="0")
        storage = of_role(world, "pod1", "storage-service", cpu="20", memory="40Gi")
        started(world, storage)
        shared = "0-1,22-79"
        right(world, shared, pod1="2-21", system=shared)

        reranker = of_role(world, "pod2", "reranker", cpu="10", memory="20Gi")
        started(world, reranker)
        shared = "0-1,22-41,52-79"
        right(world, shared, pod1="2-21", pod2="42-51", system=shared)
        assert (memory(world, storage), memory(world, reranker)) == ("0", "1")


EXAMPLE_3 = (
    EXAMPLE_2
    + """
  everything: {numaNode: alone}
nics:
  eth0: {ipv6: "fdbd:dc05:3:154::20"}
  eth1: {numaNode: 1, ipv6: "fdbd:dc05:3:155::20", netns: /var/run/netns/ns1, mbits: 25000}
"""
)


def test_example_3_pods_on_a_node_share_the_nic_near_it(world: World) -> None:
    write_nics(world)
    with plugins(world, EXAMPLE_3, "cpu", "memory", "nic"), asked_by_the_runtime(world) as agent:
        served(agent, f"NIC,cpu,memory,{BANDWIDTH}")
        run(world, "system", cpu="0")
        # All resources of NUMA node 0 are allocated.
        started(world, of_role(world, "pod0", "everything", cpu="38", memory="20Gi"))
        right(world, "0-1,40-79", pod0="2-39", system="0-1,40-79")

        # The proposal's third story: no resource of Kubernetes, but an annotation.
        asks = {ROLE: "numa-enhancement", "nokia.k8s.io/requests": '{"NIC": "1"}'}
        pods = [run(world, name, asks, cpu="10", memory="20Gi") for name in ("pod1", "pod2")]
        for pod in pods:
            started(world, pod)
        shared = "0-1,40-41,62-79"
        right(world, shared, pod0="2-39", pod1="42-51", pod2="52-61", system=shared)
        for pod in pods:
            assert memory(world, pod) == "1"
            address = environment(world, pod.name)["AFFINITY_NIC_ADDR_IPV6"]
            assert address == "fdbd:dc05:3:155::20"
            record = answer_record.parse(world.node.root.answers.read_bytes())
            (nic,) = record[ContainerRef(pod.uid, "main")][NEAR_NIC].answers.values()
            assert nic.annotations["kubernetes.io/host-netns-path"] == "/var/run/netns/ns1"


def write_nics(world: World) -> None:
    (world.folder / "var/run/netns").mkdir(parents=True)
    (world.folder / "var/run/netns/ns1").touch()
    eth0 = world.machine.sys / "class/net/eth0"
    (eth0 / "device").mkdir(parents=True)
    for name, text in (("operstate", "up"), ("speed", "25000"), ("device/numa_node", "0")):
        (eth0 / name).write_text(f"{text}\n")


def memory(world: World, pod: Pod) -> str:
    """Return the NUMA nodes of a pod's container, once the agent has recorded them.

    A container without a level of Katalyst's starts without waiting for them.
    """
    container = ContainerRef(pod.uid, "main")

    def answers() -> Mapping[str, Given]:
        record = answer_record.parse(world.node.root.answers.read_bytes())
        return record.get(container, {})

    eventually(lambda: "memory" in answers(), "the memory plugin's answer is recorded")
    return str(answers()["memory"].memory)
