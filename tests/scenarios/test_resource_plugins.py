"""Plugins of the QoS Resource Manager on a node: they decide, and an agent process enforces.

The test plan of the QRM proposal, and where each line is shown:

* a plugin that listens is discovered: `test_a_plugin_that_listens_is_discovered_and_answers`
  (unit/qrm/test_resource_manager.py); one that calls: `test_a_plugin_registers_at_the_door`;
* the resources of a container are those of its answers:
  `test_a_container_is_created_with_the_memory_of_its_answer` and
  `test_variables_and_annotations_come_at_the_creation` (unit/runtime/nri/plugin);
* plugins allocate, and prefer NUMA nodes: `test_a_plugin_says_which_cpus_containers_have`, and
  `test_hints_come_first_and_their_merger_goes_with_the_request` (unit/qrm/plugin_admitter);
* a reconcile updates cgroups: `test_a_plugin_moves_a_container_that_runs`;
* answers are stored and resumed: tests/unit/wire/test_answer_record.py,
  `test_a_killed_agent_and_a_dead_plugin_leave_every_container_where_it_is`, and at each step
  test_plugin_deaths.py;
* podresources have what plugins say, allocated and allocatable: test_plugins_are_seen.py; with our
  own plugin for NICs: `test_example_3_pods_on_a_node_share_the_nic_near_it`
  (seeds/test_qos_resource_manager.py).
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api.resourceplugin_pb2 import (
    AllocationEntry,
    ContainerResources,
    GetResourcesAllocationResponse,
    RegisterRequest,
    RemovePodRequest,
    ResourceAllocation,
    ResourceAllocationInfo,
    ResourceAllocationResponse,
    ResourceRequest,
)
from cpupool.api.resourceplugin_pb2_grpc import RegistrationStub
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
from cpupool.core.workloads import ContainerRef
from cpupool.qrm.assembly import answers_file
from tests.machines import MACHINES
from tests.processes import Process
from tests.resource_plugins import PluginDouble, Refusal
from tests.scenarios.test_agent_process import living
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from cpupool.core.workloads import Pod
    from tests.containerd.runtime import ContainerdHost
    from tests.scenarios.test_agent_process import World

POOLS = """
pools:
  default: {cpus: "0-7"}
nodeSelector: {role: worker}
cpuManager: {policy: qrm, reserved: "0-0"}
"""
ALL = "0-7"
QOS = "katalyst.kubewharf.io/qos_level"
DEDICATED = {QOS: "dedicated_cores"}


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def agent(
    world: World, *options: str, end: int = signal.SIGTERM
) -> AbstractContextManager[Process]:
    return world.agent("--resource-plugins", "--resource-plugin-reconcile=0.1", *options, end=end)


class Plugin(PluginDouble):
    """A plugin with a state: it gives each container what a test says, by the pod's name.

    Attributes:
        gives: pod → what its containers have.
        known: pod UID → container → what it has.
        lists: held while it lists, so that a test can change several answers at one time.
    """

    def __init__(
        self, world: World | ContainerdHost, resource: str = "cpu", **options: bool
    ) -> None:
        folder = world.folder / "var/lib/cpupool/resource-plugins"
        folder.mkdir(parents=True, exist_ok=True)
        name = resource.rpartition("/")[2]
        super().__init__(folder / f"{name}.sock", resource, **options)
        self.gives: dict[str, ResourceAllocationInfo | Refusal] = {}
        self.known: dict[str, dict[str, ResourceAllocation]] = {}
        self.lists = threading.Lock()
        self.replies |= {
            "Allocate": self.allocate,
            "GetResourcesAllocation": self.allocations,
            "RemovePod": self.remove,
        }

    def allocate(self, request: bytes) -> bytes:
        asked = ResourceRequest.FromString(request)
        given = self.gives[asked.pod_name]
        if isinstance(given, Refusal):
            raise given
        entry = AllocationEntry(key=self.resource, value=given)
        allocation = ResourceAllocation(resource_allocation=[entry])
        self.known.setdefault(asked.pod_uid, {})[asked.container_name] = allocation
        return ResourceAllocationResponse(allocation_result=allocation).SerializeToString()

    def allocations(self, _request: bytes) -> bytes:
        with self.lists:
            return GetResourcesAllocationResponse(
                pod_resources={
                    uid: ContainerResources(container_resources=containers)
                    for uid, containers in self.known.items()
                }
            ).SerializeToString()

    def remove(self, request: bytes) -> bytes:
        self.known.pop(RemovePodRequest.FromString(request).pod_uid, None)
        return b""

    def now_gives(self, pod: Pod, cpus: str) -> None:
        """Change what a pod's container has."""
        self.known[pod.uid]["main"].resource_allocation[0].value.allocation_result = cpus

    def allocated(self) -> list[str]:
        """Return the pods for which it was asked to allocate, in order."""
        return [ResourceRequest.FromString(each).pod_name for each in self.asked["Allocate"]]


def cpus(text: str, **fields: Any) -> ResourceAllocationInfo:
    return ResourceAllocationInfo(
        oci_property_name="CpusetCpus", allocation_result=text, is_scalar_resource=True, **fields
    )


def body(name: str, annotations: dict[str, str], **requests: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": requests}}
    metadata = {"name": name, "annotations": annotations}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def run(world: World, name: str, annotations: dict[str, str] | None = None, **requests: str) -> Pod:
    return world.node.run_pod(body(name, annotations or {}, **(requests or {"cpu": "2"})))


def right(world: World, shared: str, **mains: str) -> None:
    """Wait until each pod's container has its CPUs, and each sandbox the shared ones."""
    sandboxes = {f"{name}/": shared for name in mains}
    world.await_containers(sandboxes | {f"{name}/main": found for name, found in mains.items()})


def test_a_plugin_says_which_cpus_containers_have(world: World) -> None:
    with Plugin(world) as plugin, agent(world):
        plugin.gives = {"web": cpus("1-4"), "own": cpus("6-7")}
        run(world, "web")
        run(world, "none", cpu="0")
        right(world, ALL, web="1-4", none=ALL)

        own = run(world, "own", DEDICATED)
        right(world, "0-5", web="1-4", none="0-5", own="6-7")

        world.node.delete_pod(own.uid)
        right(world, ALL, web="1-4", none=ALL)
        eventually(lambda: own.uid not in plugin.known, "the plugin has forgotten the pod")
        assert plugin.allocated() == ["web", "own"]


def test_a_plugin_moves_a_container_that_runs(world: World) -> None:
    with Plugin(world, need_reconcile=True) as plugin, agent(world):
        plugin.gives = {"web": cpus("1-4"), "own": cpus("6-7")}
        web, own = run(world, "web"), run(world, "own", DEDICATED)
        right(world, "0-5", web="1-4", own="6-7")

        plugin.now_gives(own, "5-7")
        right(world, "0-4", web="1-4", own="5-7")

        # A set without a CPU, and a CPU of another owner: the last good set stays.
        plugin.now_gives(own, "")
        plugin.now_gives(web, "4-5")
        world.disturb("web", ALL)
        world.disturb("own", ALL)
        right(world, "0-4", web="1-4", own="5-7")

        plugin.now_gives(own, "7")
        right(world, "0-6", web="4-5", own="7")


def test_a_plugin_swaps_the_cpus_of_two_containers_that_run(world: World) -> None:
    with Plugin(world, need_reconcile=True) as plugin, agent(world):
        plugin.gives = {"a": cpus("2-3"), "b": cpus("4-5")}
        a, b = run(world, "a", DEDICATED), run(world, "b", DEDICATED)
        right(world, "0-1,6-7", a="2-3", b="4-5")
        with plugin.lists:
            plugin.now_gives(a, "4-5")
            plugin.now_gives(b, "2-3")
        right(world, "0-1,6-7", a="4-5", b="2-3")


def test_an_owner_whose_cpus_change_is_alone_on_the_old_ones_until_it_leaves(world: World) -> None:
    with Plugin(world, need_reconcile=True) as plugin, agent(world) as process:
        plugin.gives = {"own": cpus("6-7")}
        own = run(world, "own", DEDICATED)
        run(world, "none", cpu="0")
        right(world, "0-5", own="6-7", none="0-5")

        plugin.now_gives(own, "4-5")
        right(world, "0-3,6-7", own="4-5", none="0-3,6-7")
    moved = [line for line in process.lines if "cpuset repaired" in line]
    (left,) = [at for at, line in enumerate(moved) if "found=6-7 cpus=4-5" in line]
    returned = [
        at for at, line in enumerate(moved) if "cpus=0-3,6-7" in line and own.uid not in line
    ]
    assert len(returned) == 2, "the container of the other pod, and its sandbox"
    assert min(returned) > left, moved


def test_the_loser_of_two_recorded_answers_is_confined_with_an_event(world: World) -> None:
    def own(text: str) -> dict[str, RecordedAnswer]:
        return {"cpu": RecordedAnswer(2.0, {"cpu": AnswerPart("CpusetCpus", text)}, exclusive=True)}

    first, second = run(world, "first", DEDICATED), run(world, "second", DEDICATED)
    record = {
        ContainerRef(first.uid, "main"): own("2-3"),
        ContainerRef(second.uid, "main"): own("3"),
    }
    answers_file(world.folder / "var/lib/cpupool/plugin-answers.json").write(record)
    with agent(world):
        right(world, "0-1,4-7", first="2-3", second="0-1,4-7")
        said = world.await_event("CPUContested", "second")
        assert "container main: its plugin gives it CPUs 3 exclusively, but pod" in said
        assert "default/first owns them; create this pod or that one again" in said


def test_a_killed_agent_and_a_dead_plugin_leave_every_container_where_it_is(world: World) -> None:
    plugin = Plugin(world, need_reconcile=True)
    plugin.gives = {"web": cpus("1-4"), "own": cpus("6-7"), "late": cpus("1")}
    with plugin, agent(world, end=signal.SIGKILL):
        run(world, "web")
        run(world, "own", DEDICATED)
        right(world, "0-5", web="1-4", own="6-7")
    plugin.socket.unlink(missing_ok=True)

    world.disturb("web", ALL)
    world.disturb("own", ALL)
    with agent(world):
        right(world, "0-5", web="1-4", own="6-7")

        # The plugin returns with its state.
        again = Plugin(world, need_reconcile=True)
        again.gives, again.known = plugin.gives, plugin.known
        with again:
            run(world, "late")
            right(world, "0-5", web="1-4", own="6-7", late="1")
            assert again.allocated() == ["late"]


@pytest.fixture
def plugged(folder: Path) -> Iterator[World]:
    """Make a node whose runtime asks the agent before it creates a container."""
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


@contextmanager
def asked_by_the_runtime(world: World) -> Iterator[Process]:
    with agent(world) as process:
        eventually(lambda: world.node.plugged, "the runtime asks the agent")
        yield process


def served(process: Process, resources: str = "cpu") -> None:
    """Wait until pods that request a resource are held without an answer."""
    process.await_line(f"plugins answer resources={resources}")


def started(world: World, pod: Pod) -> None:
    """Let the kubelet try again until a pod's container runs."""

    def runs() -> bool:
        world.node.try_again()
        return pod.uid not in world.node.held()

    eventually(runs, lambda: f"{pod.name} runs: {world.node.held()}")


def refused(world: World, pod: Pod, why: str) -> str:
    """Let the kubelet try again until a pod is held for a reason; return the whole message."""

    def held() -> bool:
        world.node.try_again()
        return why in world.node.held().get(pod.uid, "")

    eventually(held, lambda: f"{pod.name} is held: {world.node.held()}")
    return world.node.held()[pod.uid]


def test_a_refused_pod_is_held_with_the_plugins_words(plugged: World) -> None:
    with Plugin(plugged) as plugin, asked_by_the_runtime(plugged) as process:
        served(process)
        full = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "no CPU is left")
        plugin.gives = {"own": full, "web": full}
        own = run(plugged, "own", DEDICATED)
        words = refused(plugged, own, "no CPU is left")
        assert "container default/own/main is held" in words
        assert "no CPU is left" in plugged.await_event("UnexpectedAdmissionError", "own")
        # A pod of shared cores starts, on the CPUs of containers without an answer.
        started(plugged, run(plugged, "web"))
        assert own.uid in plugged.node.held()

        plugin.gives = {"own": cpus("6-7"), "web": cpus("1-2")}
        started(plugged, own)
        right(plugged, "0-5", own="6-7", web="1-2")


def test_an_answer_that_breaks_a_rule_holds_and_says_which(plugged: World) -> None:
    with Plugin(plugged) as plugin, asked_by_the_runtime(plugged) as process:
        served(process)
        plugin.gives = {"own": cpus("6-9")}
        own = run(plugged, "own", DEDICATED)
        refused(plugged, own, "CPUs 8-9, which are not the policy's")
        assert plugin.allocated() == ["own"]


def test_a_slow_plugin_delays_no_other_pod(plugged: World) -> None:
    free = threading.Event()
    nic = Plugin(plugged, "example.com/nic")
    nic.gives = {"slow": ResourceAllocationInfo(envs={"NIC": "eth0"})}
    quick, answers = Plugin(plugged), nic.allocate

    def slowly(request: bytes) -> bytes:
        free.wait(DEADLINE_S)
        return answers(request)

    nic.replies["Allocate"] = slowly
    quick.gives = {f"web-{n}": cpus("1-4") for n in range(10)}
    quick.gives["own"] = cpus("6-7")
    try:
        with nic, quick, asked_by_the_runtime(plugged) as process:
            served(process, "cpu,example.com/nic")
            slow = plugged.node.run_pod(body("slow", {}, **{"example.com/nic": "1"}))
            refused(plugged, slow, "has not answered for container main yet")
            others = [run(plugged, f"web-{n}") for n in range(10)]
            own = run(plugged, "own", DEDICATED)
            started(plugged, own)
            for each in others:
                started(plugged, each)
            mains = {each.name: "1-4" for each in others}
            eventually(
                lambda: mains.items() <= mains_of(plugged).items(), lambda: str(mains_of(plugged))
            )
            assert mains_of(plugged)["own"] == "6-7"

            free.set()
            started(plugged, slow)
            assert environment(plugged, "slow")["NIC"] == "eth0"
    finally:
        free.set()


def mains_of(world: World) -> dict[str, str]:
    found = world.containers()
    return {name.removesuffix("/main"): each for name, each in found.items() if "main" in name}


def environment(world: World, name: str) -> dict[str, str]:
    (found,) = (
        one.instance.environment
        for one in world.node.processes()
        if (one.pod.name, one.container) == (name, "main")
    )
    return dict(found)


def test_a_third_partys_resource_works_from_end_to_end(plugged: World) -> None:
    nic = Plugin(plugged, "example.com/nic")
    nic.gives = {
        "web": ResourceAllocationInfo(
            envs={"AFFINITY_NIC_ADDR_IPV6": "fdbd:dc05:3:155::20"},
            annotations={"kubernetes.io/host-netns-path": "/var/run/netns/ns1"},
        )
    }
    plugged.mount.show(worker=POOLS.replace('policy: qrm, reserved: "0-0"', "policy: none"))
    with nic, asked_by_the_runtime(plugged) as process:
        served(process, "example.com/nic")
        web = plugged.node.run_pod(body("web", {}, **{"example.com/nic": "1"}))
        started(plugged, web)
        assert environment(plugged, "web")["AFFINITY_NIC_ADDR_IPV6"] == "fdbd:dc05:3:155::20"
        plugged.node.delete_pod(web.uid)
        eventually(lambda: not nic.known, "the plugin has forgotten the pod")


def test_a_plugin_registers_at_the_door(world: World) -> None:
    plugin = Plugin(world)
    plugin.replies.pop("GetInfo")
    plugin.gives = {"web": cpus("1-4")}
    door = plugin.socket.parent / "kubelet.sock"
    with plugin, agent(world):
        eventually(door.is_socket, "the door is there")
        request = RegisterRequest(
            version="v1alpha1", endpoint=plugin.socket.name, resource_name="cpu"
        )
        with grpc.insecure_channel(f"unix:{door}") as channel:
            RegistrationStub(channel).Register(request, timeout=DEADLINE_S)
        run(world, "web")
        right(world, ALL, web="1-4")


def test_the_guides_plugin_works(world: World) -> None:
    page = (Path(__file__).parents[2] / "docs/user/qrm.md").read_text()
    (code,) = re.findall(r"^```python\n(.+?)^```", page, re.MULTILINE | re.DOTALL)
    socket = world.folder / "var/lib/cpupool/resource-plugins/roles.sock"
    socket.parent.mkdir(parents=True)
    script = world.folder / "plugin.py"
    script.write_text(code)
    with Process(sys.executable, script, socket).collecting(signal.SIGKILL), agent(world):
        online, other = {"kubernetes.io/pod-role": "online"}, {"kubernetes.io/pod-role": "none"}
        run(world, "web", online)
        run(world, "own", {**DEDICATED, "katalyst.kubewharf.io/pod_role": "offline"})
        right(world, "0-3", web="1-3", own="4-7")
        run(world, "batch", other)
        right(world, "0-3", web="1-3", own="4-7", batch="0-3")
