"""Plugins that decide what containers of a real containerd get."""

from __future__ import annotations

import signal
import threading
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool.api.resourceplugin_pb2 import ResourceAllocationInfo
from cpupool.core.cpuset import CPUSet
from cpupool.host.sysfs import Sysfs
from cpupool.policies.qrm import katalyst
from tests import dying, waits
from tests.containerd.node import at_once
from tests.containerd.pods import NIC, Kind, Layout
from tests.containerd.test_static_policy import assert_alone, watched
from tests.resource_plugins import Refusal
from tests.scenarios.test_resource_plugins import DEDICATED, Plugin, cpus
from tests.vm.machine import TIMEOUT_S
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)

TRIES = 24
LATE_S = 0.3
"""So long that the runtime has made a pod's sandbox before."""
SPENT_S, WITHIN_S = 1.0, 10.0
ORDINARY, HELD = 50, 3


@pytest.fixture
def governed(node: Node) -> Node:
    """Return a node whose first CPU is reserved; a plugin may give any other."""
    node.configure(Layout.governed(Sysfs.at(node.host.root.sysfs).topology(), "qrm"))
    return node


@contextmanager
def agent(
    node: Node, program: str = "cpupool", **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    options = ("--resource-plugins", "--resource-plugin-reconcile=0.1")
    with node.agent("nri", *options, environment=environment, program=program) as process:
        yield process


def last(node: Node) -> CPUSet:
    """Return the CPU that a plugin gives."""
    return CPUSet.of(max(node.layout.default))


@pytest.fixture
def uid() -> str:
    """Return the UID of a pod that a test knows before its agent starts."""
    return str(uuid.uuid4())


def admit(node: Node, plugin: Plugin, uid: str = "") -> Hosted:
    """Admit a pod of dedicated cores, for which the plugin has a CPU."""
    owner = node.admit(Kind.STATIC, annotations=DEDICATED, uid=uid)
    plugin.gives[owner.pod.name] = cpus(str(last(node)))
    return owner


def served(node: Node, resource: str) -> None:
    eventually(lambda: f"plugin registered resource={resource} " in node.log(), node.log)


def neighbours(node: Node, count: int = 2) -> list[Hosted]:
    """Start pods that share, after which the agent knows all pods admitted before."""
    pods = at_once(node.run, [Kind.DEFAULT] * count)
    for pod in pods:
        await_cpus(node, pod, *shares(node))
    return pods


def shares(node: Node) -> tuple[CPUSet, CPUSet]:
    """Return what a container without an answer has before and after the plugin's."""
    return node.layout.default, node.layout.default - last(node)


def await_cpus(node: Node, pod: Hosted, *expected: CPUSet) -> None:
    path = node.path(pod)
    eventually(lambda: node.tree.effective(path) in expected, node.log)


def test_the_runtime_makes_a_container_of_the_answers(governed: Node) -> None:
    node = governed
    with Plugin(node.host) as cpu, Plugin(node.host, "memory") as memory, agent(node):
        served(node, "cpu")
        served(node, "memory")
        owner = admit(node, cpu)
        cpu.gives[owner.pod.name] = cpus(
            str(last(node)), envs={"GIVEN": "by the plugin"}, annotations={"example.com/why": "qrm"}
        )
        memory.gives[owner.pod.name] = ResourceAllocationInfo(
            oci_property_name="CpusetMems", allocation_result="0"
        )
        others = neighbours(node)
        with watched(node, others) as seen:
            node.launch(owner)
            assert node.record(owner).always(last(node))
        assert_alone(node, owner, last(node), seen)
        spec = node.spec(owner)
        assert spec["linux"]["resources"]["cpu"]["cpus"] == str(last(node))
        assert spec["linux"]["resources"]["cpu"]["mems"] == "0"
        assert "GIVEN=by the plugin" in spec["process"]["env"]
        assert spec["annotations"]["example.com/why"] == "qrm"
        node.remove(owner)
        eventually(lambda: not (cpu.known or memory.known), "the plugins have forgotten the pod")


@pytest.mark.parametrize("annotations", [{katalyst.PROPOSED_ROLE: "ETL"}, {}], ids=["role", "none"])
def test_no_container_that_a_plugin_serves_runs_one_instruction_before_its_answer(
    governed: Node, annotations: dict[str, str]
) -> None:
    node = governed
    with Plugin(node.host) as cpu, Plugin(node.host, "memory") as memory, agent(node):
        served(node, "cpu")
        served(node, "memory")
        own = {"nokia.k8s.io/cpus-exclusive": "true"}
        cpu.gives = defaultdict(lambda: cpus(str(last(node)), annotations=own))
        nodes = ResourceAllocationInfo(oci_property_name="CpusetMems", allocation_result="0")
        memory.gives = defaultdict(lambda: nodes)
        answers = cpu.allocate

        def slowly(request: bytes) -> bytes:
            threading.Event().wait(LATE_S)
            return answers(request)

        cpu.replies["Allocate"] = slowly
        for _ in range(TRIES):
            pod = node.admit(Kind.STATIC, annotations=annotations)
            node.launch(pod)
            assert node.record(pod).always(last(node))
            assert node.record(pod).environment["EXCLUSIVE_CPUS"] == str(last(node))
            assert node.spec(pod)["linux"]["resources"]["cpu"]["mems"] == "0"
            node.remove(pod)


def test_a_refused_pod_is_held_with_the_plugins_words_until_it_has_an_answer(
    governed: Node,
) -> None:
    node = governed
    with Plugin(node.host) as plugin, agent(node):
        served(node, "cpu")
        owner = admit(node, plugin)
        plugin.gives[owner.pod.name] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "no CPU is left")
        neighbours(node)
        with ThreadPoolExecutor(1) as pool:
            launched = pool.submit(node.launch, owner)
            eventually(lambda: any("no CPU is left" in why for why in owner.refused), node.log)
            plugin.gives[owner.pod.name] = cpus(str(last(node)))
            launched.result()
        assert node.record(owner).always(last(node))


def test_a_resource_that_only_its_plugin_knows_works_from_end_to_end(governed: Node) -> None:
    node = governed
    with Plugin(node.host, NIC) as plugin, agent(node):
        served(node, NIC)
        pod = node.admit(Kind.NIC)
        plugin.gives[pod.pod.name] = ResourceAllocationInfo(
            envs={"AFFINITY_NIC_ADDR_IPV6": "fdbd:dc05:3:155::20"},
            annotations={"kubernetes.io/host-netns-path": "/var/run/netns/ns1"},
        )
        neighbours(node)
        node.launch(pod)
        environment = node.record(pod).environment
        assert environment["AFFINITY_NIC_ADDR_IPV6"] == "fdbd:dc05:3:155::20"
        annotations = node.spec(pod)["annotations"]
        assert annotations["kubernetes.io/host-netns-path"] == "/var/run/netns/ns1"
        assert node.record(pod).always(node.layout.default)
        node.remove(pod)
        eventually(lambda: not plugin.known, "the plugin has forgotten the pod")


def test_a_slow_plugin_delays_no_ordinary_pod(governed: Node) -> None:
    """It is slower than 9 s: it answers once all others run."""
    node = governed
    file, free = node.host.folder / "waits", threading.Event()
    quick, slow = Plugin(node.host), Plugin(node.host, NIC)
    answers = slow.allocate

    def slowly(request: bytes) -> bytes:
        free.wait(DEADLINE_S)
        return answers(request)

    slow.replies["Allocate"] = slowly
    try:
        with (
            quick,
            slow,
            agent(node, "tests.waits", WAITS=str(file)),
            ThreadPoolExecutor(HELD) as pool,
        ):
            served(node, "cpu")
            served(node, NIC)
            held = [node.admit(Kind.NIC) for _ in range(HELD)]
            slow.gives = {
                each.pod.name: ResourceAllocationInfo(envs={"NIC": "eth0"}) for each in held
            }
            ordinary = [node.admit(kind) for kind in [Kind.DEFAULT, Kind.STATIC] * (ORDINARY // 2)]
            quick.gives = {each.pod.name: cpus("0") for each in ordinary}
            eventually(lambda: len(quick.asked["Allocate"]) == ORDINARY // 2, node.log)
            neighbours(node)
            launched = [pool.submit(node.launch, each) for each in held]
            eventually(lambda: all(each.refused for each in held), node.log)
            at_once(node.launch, ordinary)
            assert {each.pod.name: each.refused for each in ordinary if each.refused} == {}
            assert not any(each.done() for each in launched)
            free.set()
            for each in launched:
                each.result()
        for pod in held:
            assert all("has not answered" in why for why in pod.refused), pod.refused
            assert node.record(pod).environment["NIC"] == "eth0"
        assert_within_budget(waits.granted(file))
    finally:
        free.set()


def assert_within_budget(granted: list[tuple[float, float]]) -> None:
    """Assert that the runtime might wait at most 1 s in any 10 s, for all containers together."""
    assert granted, "the held container has waited"
    for _, end_s in granted:
        within = [(max(since, end_s - WITHIN_S), min(end, end_s)) for since, end in granted]
        assert sum(end - since for since, end in within if end > since) <= SPENT_S + 1e-6, granted


STEPS = (dying.PLANNED, *dying.STEPS, dying.STARTED)
AFTER_THE_REQUEST = ("answered", dying.STARTED)
"""The steps that come only when the runtime is asked to make the container."""


@contextmanager
def halted(node: Node, step: str, uid: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent that halts at a step of a pod."""
    by = {dying.DIES: step, dying.VICTIM: uid, dying.SIGNAL: str(int(signal.SIGSTOP))}
    with agent(node, "tests.dying", **by) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)


def await_halt(process: subprocess.Popen[bytes], node: Node) -> None:
    stat = Path(f"/proc/{process.pid}/stat")
    eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", node.log)


def launch(node: Node, pod: Hosted) -> None:
    """Start a pod, and as the kubelet does, once more after the runtime has ended meanwhile."""
    try:
        node.launch(pod)
    except grpc.RpcError:
        pod.attempt += 1
        node.start(pod)


def assert_right(node: Node, owner: Hosted, others: list[Hosted]) -> None:
    """Assert that the owner gets its CPU, and that the others have left it for good."""
    own, shared = last(node), node.layout.default - last(node)
    await_cpus(node, owner, own)
    for each in others:
        await_cpus(node, each, shared)
    for each in others:
        seen = [sighting.cpus for sighting in node.record(each).sightings]
        assert seen in ([shared], [node.layout.default, shared]), seen


@pytest.mark.parametrize(
    "step",
    # At the others the runtime does not wait: tests/scenarios/test_plugin_deaths.py has them.
    [
        pytest.param(step, marks=() if step in AFTER_THE_REQUEST else pytest.mark.soak)
        for step in STEPS
    ],
)
def test_an_agent_that_is_killed_has_nothing_allocated_twice(
    governed: Node, uid: str, step: str
) -> None:
    node = governed
    with Plugin(node.host, need_reconcile=True) as plugin, ThreadPoolExecutor(1) as pool:
        with halted(node, step, uid) as process:
            served(node, "cpu")
            others = neighbours(node)
            owner = admit(node, plugin, uid)
            launched = pool.submit(node.launch, owner) if step in AFTER_THE_REQUEST else None
            await_halt(process, node)
            process.kill()
        if launched:
            # The runtime goes on without its plugin.
            launched.result()
        with agent(node):
            if not launched:
                node.launch(owner)
            assert node.record(owner).always(last(node))
            assert_right(node, owner, others)
        assert plugin.allocated() == [owner.pod.name]


@pytest.mark.parametrize("step", STEPS)
def test_a_plugin_that_is_killed_allocates_nothing_twice(
    governed: Node, uid: str, step: str
) -> None:
    node = governed
    again = Plugin(node.host, need_reconcile=True)
    with ThreadPoolExecutor(1) as pool, halted(node, step, uid) as process:
        with Plugin(node.host, need_reconcile=True) as plugin:
            served(node, "cpu")
            others = neighbours(node)
            owner = admit(node, plugin, uid)
            launched = pool.submit(node.launch, owner) if step in AFTER_THE_REQUEST else None
            await_halt(process, node)
        plugin.socket.unlink(missing_ok=True)
        process.send_signal(signal.SIGCONT)
        eventually(lambda: "plugin is gone resource=cpu " in node.log(), node.log)
        again.gives, again.known = plugin.gives, plugin.known
        with again:
            if launched:
                launched.result()
            else:
                node.launch(owner)
            assert node.record(owner).always(last(node))
            assert_right(node, owner, others)
    assert plugin.allocated() + again.allocated() == [owner.pod.name]


@pytest.mark.parametrize("step", STEPS)
def test_a_runtime_that_is_killed_has_nothing_allocated_twice(
    governed: Node, uid: str, step: str
) -> None:
    node = governed
    with (
        Plugin(node.host, need_reconcile=True) as plugin,
        ThreadPoolExecutor(1) as pool,
        halted(node, step, uid) as process,
    ):
        served(node, "cpu")
        others = neighbours(node)
        owner = admit(node, plugin, uid)
        launched = pool.submit(launch, node, owner) if step in AFTER_THE_REQUEST else None
        await_halt(process, node)
        connections = node.connections()
        node.host.stop(signal.SIGKILL)
        process.send_signal(signal.SIGCONT)
        node.host.start()
        eventually(lambda: node.connections() > connections, node.log)
        if launched:
            launched.result()
        else:
            node.launch(owner)
            assert node.record(owner).always(last(node))
        assert_right(node, owner, others)
        assert plugin.allocated() == [owner.pod.name]
