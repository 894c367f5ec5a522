"""The three examples of the QoS Resource Manager's proposal.

Once with our plugins as real processes, and once with plugins that answer as the proposal's do.
The proposal's machine has 80 CPUs, 0-39 on NUMA node 0 and 40-79 on node 1.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import ParseDict

from cpupool.api.podresources_pb2 import TopologyAwareQuantity
from cpupool.api.resourceplugin_pb2 import ResourceAllocationInfo
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerRef
from cpupool.plugins.nic import BANDWIDTH, NEAR_NIC
from cpupool.qrm import answer_record
from tests.machines import Machine
from tests.processes import ForkedProcess, Process
from tests.scenarios.seeds.examples import values
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_plugins_are_seen import allocatable, listed
from tests.scenarios.test_resource_plugins import (
    DEDICATED,
    Plugin,
    asked_by_the_runtime,
    cpus,
    environment,
    right,
    run,
    served,
    started,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from cpupool.core.plugin_facts import RecordedAnswer
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
ROLE = "kubernetes.io/pod-role"
POSSIBLE = "0-1,8-9"
"""The answer by which the proposal explains the fields of an answer."""
CPU_STATE = values("qos_resource_manager/2-cpu-state.json")["machineState"]
MEMORY_STATE = values("qos_resource_manager/2-memory-state.json")["machineState"]["memory"]
MEMORY_BYTES = tuple(int(node["total"]) for node in MEMORY_STATE.values())
NICS = [
    nic
    for node in values("qos_resource_manager/3-nic-state.json")["machineState"].values()
    for nic in node["nics"]
]


def resources(example: str) -> dict[str, str]:
    """Return what the proposal fills into LinuxContainerResources."""
    found: dict[str, str] = values(f"qos_resource_manager/{example}-resources.json")
    return found


def proposed(said: Any) -> ResourceAllocationInfo:
    """Return the proposal's answer as a message, whose fields have other names by now."""
    said = {**said, "allocation_result": said.get("allocatation_result", "")}
    said.pop("allocatation_result", None)
    hints = [{"nodes": hint["nodes"], "preferred": True} for hint in said["resource_hints"]]
    return ParseDict({**said, "resource_hints": {"hints": hints}}, ResourceAllocationInfo())


def allocated(example: str) -> ResourceAllocationInfo:
    """Return the answer in a ResourceAllocationResponse of the proposal."""
    response = values(f"qos_resource_manager/{example}.json")["allocatation_result"]
    # Those for memory have the key cpu.
    (said,) = response["resource_allocation"].values()
    return proposed(said)


def adjusted() -> dict[str, ResourceAllocationInfo]:
    """Return the answers after the adjustment of the first example: pod → answer."""
    pods = values("qos_resource_manager/1-adjusted.json")["pod_resources"].values()
    names = ("pod1", "pod2", "pod3")
    return {name: proposed(pod["container0"]["cpu"]) for name, pod in zip(names, pods, strict=True)}


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
    process = ForkedProcess(
        *("resource-plugin", name, "--host-root", world.folder),
        *("--config", world.folder / "plugins/config.yaml"),
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
        first = {pod.name: resources(f"1-{pod.name}")["cpusetCpus"] for pod in pods}
        right(world, ALL, **first, system=ALL)
        for pod in pods[:2]:
            agrees(world, pod, "cpu", allocated(f"1-{pod.name}-cpu"))
            (container,) = listed(world)[pod.name].containers
            places = of_resource(container.resources, "cpu").topology_aware_quantity_list
            pool = CPUSet.parse(first[pod.name])
            assert {place.node: place.resource_value for place in places} == {
                node: len(pool & CPUSet.parse(cpus)) for node, cpus in enumerate(("0-39", "40-79"))
            }

        configure(world, EXAMPLE_1.replace("76", "28").replace("cpus: 4", "cpus: 52"))
        later = {name: answer.allocation_result for name, answer in adjusted().items()}
        right(world, ALL, **later, system=ALL)
        for pod in pods:
            agrees(world, pod, "cpu", adjusted()[pod.name])

        configure(world, EXAMPLE_1)
        right(world, ALL, **first, system=ALL)


EXAMPLE_2 = f"""
reserved: "{",".join(node["reserved_cpuset"] for node in CPU_STATE.values())}"
reservedMemory: {MEMORY_STATE["0"]["systemReserved"]}
roles:
  storage-service: {{numaNode: same-role}}
  reranker: {{numaNode: same-role}}
  numa-enhancement: {{numaNode: same-role}}
"""


def test_example_2_roles_that_keep_apart_have_numa_nodes_of_their_own(world: World) -> None:
    with plugins(world, EXAMPLE_2, "cpu", "memory"), asked_by_the_runtime(world) as agent:
        served(agent, "cpu,memory")
        run(world, "system", cpu="0")
        storage = of_role(world, "pod1", "storage-service", cpu="20", memory="40Gi")
        started(world, storage)
        own = {"pod1": resources("2-pod1")["cpusetCpus"]}
        shared = "0-1,22-79"
        right(world, shared, **own, system=shared)

        reranker = of_role(world, "pod2", "reranker", cpu="10", memory="20Gi")
        started(world, reranker)
        own["pod2"] = resources("2-pod2")["cpusetCpus"]
        shared = "0-1,22-41,52-79"
        right(world, shared, **own, system=shared)
        for pod, gib in ((storage, 40), (reranker, 20)):
            assert memory(world, pod) == resources(f"2-{pod.name}")["cpusetMems"]
            agrees(world, pod, "cpu", allocated(f"2-{pod.name}-cpu"))
            # The proposal counts NUMA nodes, which no request can be compared with.
            answer = allocated(f"2-{pod.name}-memory")
            assert answer.allocated_quantity == 1
            answer.allocated_quantity = gib * 2**30
            agrees(world, pod, "memory", answer)


EXAMPLE_3 = f"""{EXAMPLE_2}
  everything: {{numaNode: alone}}
nics:
  eth0: {{ipv6: "{NICS[0]["address"]["ipv6"]}"}}
  eth1:
    numaNode: {NICS[1]["nuam_node"]}
    ipv6: "{NICS[1]["address"]["ipv6"]}"
    netns: {NICS[1]["netns"]}
    mbits: 25000
"""


def test_example_3_pods_on_a_node_share_the_nic_near_it(world: World) -> None:
    write_nics(world)
    with plugins(world, EXAMPLE_3, "cpu", "memory", "nic"), asked_by_the_runtime(world) as agent:
        served(agent, f"NIC,cpu,memory,{BANDWIDTH}")
        run(world, "system", cpu="0")
        # All resources of NUMA node 0 are allocated.
        everything = of_role(world, "pod0", "everything", cpu="38", memory="20Gi")
        started(world, everything)
        own = {"pod0": CPU_STATE["0"]["default_cpuset"]}
        right(world, "0-1,40-79", **own, system="0-1,40-79")
        assert memory(world, everything) == "0"
        had = given(world, everything)["memory"].parts["memory"].quantity
        assert had == int(MEMORY_STATE["0"]["allocatable"])

        # The proposal's third story: no resource of Kubernetes, but an annotation.
        asks = {ROLE: "numa-enhancement", "nokia.k8s.io/requests": '{"NIC": "1"}'}
        pods = [run(world, name, asks, cpu="10", memory="20Gi") for name in ("pod1", "pod2")]
        options = {
            pod.name: values(f"qos_resource_manager/3-{pod.name}-options.json") for pod in pods
        }
        for pod in pods:
            started(world, pod)
            own[pod.name] = options[pod.name]["linux_container_resources"]["cpusetCpus"]
        shared = "0-1,40-41,62-79"
        right(world, shared, **own, system=shared)
        for pod in pods:
            wanted = options[pod.name]
            assert memory(world, pod) == wanted["linux_container_resources"]["cpusetMems"]
            assert wanted["envs"].items() <= environment(world, pod.name).items()
            nic = given(world, pod)[NEAR_NIC].parts["NIC"]
            assert wanted["annotations"].items() <= nic.annotations.items()
            agrees(world, pod, "NIC", allocated("3-pod1-nic"))
            # By podresources, too, a NIC has its name.
            (container,) = listed(world)[pod.name].containers
            (nic_place,) = of_resource(container.resources, NEAR_NIC).topology_aware_quantity_list
            assert nic_place == named(NICS[1], namespace="ns1")
        places = of_resource(
            allocatable(world).resources, NEAR_NIC
        ).topology_aware_allocatable_quantity_list
        assert list(places) == [named(NICS[0]), named(NICS[1], namespace="ns1")]


def test_example_1_with_a_plugin_that_answers_as_the_proposals(world: World) -> None:
    with Plugin(world, need_reconcile=True) as plugin, asked_by_the_runtime(world) as agent:
        served(agent)
        online = allocated("1-pod1-cpu")
        plugin.gives = {"pod1": online, "pod2": allocated("1-pod2-cpu"), "pod3": online}
        plugin.gives["possible"] = cpus(POSSIBLE, allocated_quantity=4)
        pods = {name: run(world, name, cpu="2") for name in plugin.gives}
        for pod in pods.values():
            started(world, pod)
        first = {name: resources(f"1-{name}")["cpusetCpus"] for name in ("pod1", "pod2", "pod3")}
        right(world, ALL, **first, possible=POSSIBLE)

        later = {name: answer.allocation_result for name, answer in adjusted().items()}
        for name, text in later.items():
            plugin.now_gives(pods[name], text)
        right(world, ALL, **later, possible=POSSIBLE)


def test_examples_2_and_3_with_plugins_that_answer_as_the_proposals(world: World) -> None:
    with (
        Plugin(world) as cpu,
        Plugin(world, "memory") as memory_nodes,
        Plugin(world, "NIC") as nic,
        asked_by_the_runtime(world) as agent,
    ):
        served(agent, "NIC,cpu,memory")
        for plugin, resource in ((cpu, "cpu"), (memory_nodes, "memory")):
            plugin.gives = {name: allocated(f"2-{name}-{resource}") for name in ("pod1", "pod2")}
        nic.gives = {"pod2": allocated("3-pod1-nic")}
        first = run(world, "pod1", DEDICATED, cpu="20", memory="40Gi")
        asks = {**DEDICATED, "nokia.k8s.io/requests": '{"NIC": "1"}'}
        second = run(world, "pod2", asks, cpu="10", memory="20Gi")
        for pod in (first, second):
            started(world, pod)
        cpus = {name: resources(f"2-{name}")["cpusetCpus"] for name in ("pod1", "pod2")}
        right(world, "0-1,22-41,52-79", **cpus)
        for pod in (first, second):
            assert memory(world, pod) == resources(f"2-{pod.name}")["cpusetMems"]
        wanted = values("qos_resource_manager/3-pod1-options.json")
        assert wanted["envs"].items() <= environment(world, "pod2").items()
        assert wanted["linux_container_resources"] == resources("2-pod2")


def of_resource(resources: Iterable[Any], name: str) -> Any:
    (found,) = [each for each in resources if each.resource_name == name]
    return found


def named(nic: Mapping[str, Any], namespace: str = "") -> TopologyAwareQuantity:
    """Return one NIC of the proposal's plugin, as podresources have it."""
    name, prefix = nic["interface_name"], "katalyst.kubewharf.io/"
    annotations = {f"{prefix}resource_identifier": f"{namespace}-{name}" if namespace else name}
    if namespace:
        annotations[f"{prefix}netns_name"] = namespace
    return TopologyAwareQuantity(
        resource_value=1.0,
        node=nic["nuam_node"],
        name=name,
        type="NIC",
        annotations=annotations,
    )


def write_nics(world: World) -> None:
    (world.folder / "var/run/netns").mkdir(parents=True)
    (world.folder / "var/run/netns/ns1").touch()
    eth0 = world.machine.sys / "class/net/eth0"
    (eth0 / "device").mkdir(parents=True)
    for name, text in (("operstate", "up"), ("speed", "25000"), ("device/numa_node", "0")):
        (eth0 / name).write_text(f"{text}\n")


def given(world: World, pod: Pod) -> Mapping[str, RecordedAnswer]:
    """Return what the agent has recorded for a pod's container: resource → answer."""
    record = answer_record.parse(world.node.root.answers.read_bytes())
    return record.get(ContainerRef(pod.uid, "main"), {})


def agrees(world: World, pod: Pod, resource: str, answer: ResourceAllocationInfo) -> None:
    """Check that our plugin has answered as the proposal's."""
    found = given(world, pod)[resource].parts[resource]
    assert (found.oci_property, found.value, found.quantity, found.scalar, found.of_node) == (
        answer.oci_property_name,
        answer.allocation_result,
        answer.allocated_quantity,
        answer.is_scalar_resource,
        answer.is_node_resource,
    )
    hints = {(tuple(hint.nodes), hint.preferred) for hint in answer.resource_hints.hints}
    assert {(tuple(hint.nodes or ()), hint.preferred) for hint in found.hints or ()} == hints
    assert found.env == dict(answer.envs)
    assert dict(answer.annotations).items() <= found.annotations.items()


def memory(world: World, pod: Pod) -> str:
    """Return the NUMA nodes of a pod's container, once the agent has recorded them.

    A container without a level of Katalyst's starts without waiting for them.
    """
    eventually(lambda: "memory" in given(world, pod), "the memory plugin's answer is recorded")
    return str(given(world, pod)["memory"].memory)
