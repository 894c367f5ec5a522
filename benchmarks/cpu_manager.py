"""The time until pods get CPUs of their own from the CPU manager policy `static`.

The agent is a process on a machine of 512 CPUs in a folder. It speaks NRI over a real socket with a
runtime that this process plays, and watches an API server that this process plays, too.
"""

from __future__ import annotations

import gc
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from benchmarks.choice_times import LARGE
from benchmarks.documents import Times, table
from benchmarks.played_runtime import PlayedPod, connected, cpus_of
from benchmarks.processes import await_idle, cpu_s
from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.cpu_manager import CPUManager, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.host.sysfs import Sysfs
from cpupool.manager.manager import Manager
from tests import builders
from tests.containerd import node as nodes
from tests.containerd.pods import Kind, Layout
from tests.containerd.runtime import ContainerdHost
from tests.containerd.test_static_policy import watched
from tests.nri_frames import frames
from tests.nri_runtime import PLUGIN, FakeRuntime
from tests.scenarios.test_agent_process import living
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from google.protobuf.message import Message

    from cpupool.core import workloads
    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted
    from tests.nri_runtime import Plugin
    from tests.scenarios.test_agent_process import World

OWNERS: Final = 250
SHARING: Final = 50
CREATED: Final = 200
PLANS: Final = 200
AIM_MS: Final = 10.0
ROUNDS: Final = 30
NEIGHBOURS: Final = 4
_RESERVED: Final = "0-3"
_POOL_FILE: Final = f"""
cpuManager: {{policy: static, reserved: "{_RESERVED}"}}
nodeSelector: {{role: worker}}
"""


def creates(tell: Callable[[str], None]) -> str:
    """Return a table: from a runtime's request for a container to the agent's answer."""
    tell(f"{CREATED} containers of a runtime")
    owners = [PlayedPod(number, 1) for number in range(OWNERS)]
    sharing = [PlayedPod(OWNERS + number, 0) for number in range(SHARING)]
    new = [PlayedPod(OWNERS + SHARING + number, 1) for number in range(CREATED)]
    with (
        tempfile.TemporaryDirectory(prefix="cpl-", dir="/tmp") as folder,
        living(Path(folder), LARGE.write(Path(folder)), {"role": "worker"}) as world,
    ):
        world.mount.show(worker=_POOL_FILE)
        world.api.set_pods([pod.body() for pod in (*owners, *sharing, *new)])
        # The runtime alone has the containers that share, so that each answer moves all of them.
        for pod in owners:
            world.place.make(pod.path)
        world.node.root.nri_socket.parent.mkdir(parents=True, exist_ok=True)
        with FakeRuntime(world.node.root.nri_socket) as runtime, world.agent() as agent:
            plugin = connected(world, runtime, LARGE, (*owners, *sharing), new)
            eventually(
                lambda: all(len(CPUSet.parse(cpus_of(world, pod.path))) == 1 for pod in owners),
                "every owner has its CPU",
            )
            pid = agent.process.pid
            apart = _create(world, plugin, new[: CREATED // 2], lambda: await_idle(pid))
            before_s = cpu_s(pid)
            in_turn = _create(world, plugin, new[CREATED // 2 :], lambda: None)
            each_ms = (cpu_s(pid) - before_s) / (CREATED // 2) * 1000
    header = ("request", "aim", "elapsed, the agent idle before", "elapsed, one after the other")
    rows = [
        (request, aim, *(Times.of_values(taken).shown(float(aim or "inf")) for taken in both))
        for request, aim, both in zip(
            ("CreateContainer", "StartContainer"),
            (f"{AIM_MS:g}", ""),
            zip(apart, in_turn, strict=True),
            strict=True,
        )
    ]
    return table(header, [*rows, ("the agent's CPU time for a pod", "", "", f"{each_ms:.1f}")])


def plans(tell: Callable[[str], None]) -> str:
    """Return a table: the choice for a whole pod, by the policy's options."""
    options = {
        "no option": (StaticOptions(), TopologyPolicy.NONE),
        "full-pcpus-only": (StaticOptions(full_pcpus_only=True), TopologyPolicy.NONE),
        "distribute-cpus-across-numa": (
            StaticOptions(distribute_cpus_across_numa=True),
            TopologyPolicy.NONE,
        ),
        "prefer-align-cpus-by-uncorecache": (
            StaticOptions(prefer_align_cpus_by_uncorecache=True),
            TopologyPolicy.NONE,
        ),
        "topologyPolicy: single-numa-node": (StaticOptions(), TopologyPolicy.SINGLE_NUMA_NODE),
    }
    rows = []
    for name, (chosen, policy) in options.items():
        tell(f"{PLANS} plans, {name}")
        config = CPUManager("static", CPUSet.parse(_RESERVED), chosen, policy)
        rows.append((name, f"{AIM_MS:g}", Times.of(_planning(config)).shown(AIM_MS)))
    return table(("policy static with", "aim", "CPU time"), rows)


def neighbours(tell: Callable[[str], None]) -> str:
    """Return a table: busy neighbours on a new owner's CPUs, with a real containerd."""
    tell(f"{ROUNDS} owners beside {NEIGHBOURS} neighbours in a real containerd")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="cpl-", dir="/tmp") as folder,
            ContainerdHost(Path(folder)) as host,
            nodes.node(host) as node,
        ):
            alone_ms = [_started_ms(node, node.run(Kind.DEFAULT)) for _ in range(ROUNDS)]
            node.configure(Layout.governed(Sysfs.at(host.root.sysfs).topology()))
            with node.agent("nri"):
                beside = nodes.at_once(node.run, [Kind.DEFAULT] * NEIGHBOURS)
                owned = [_owner(node, beside) for _ in range(ROUNDS)]
                node.clear()
    except pytest.skip.Exception as reason:
        return f"Not measured: {reason}."
    overlaps_ms, starts_ms = zip(*owned, strict=True)
    header = ("what", "median / 99th percentile / maximum")
    rows = [
        ("neighbours on an owner's CPUs after its first instruction", Times.of_values(overlaps_ms)),
        ("start of a container, containerd alone", Times.of_values(alone_ms)),
        ("start of an owner, containerd with the agent", Times.of_values(starts_ms)),
    ]
    return table(header, [(what, times.shown(float("inf"))) for what, times in rows])


def _create(
    world: World, plugin: Plugin, pods: Sequence[PlayedPod], wait: Callable[[], None]
) -> tuple[Sequence[float], Sequence[float]]:
    """Create and start containers; return how long both answers took for each, in ms.

    Args:
        world: the node.
        plugin: the agent's.
        pods: the containers' pods.
        wait: called before each request that is timed.
    """
    created_ms: list[float] = []
    started_ms: list[float] = []
    # This process plays a runtime, and those are not written in Python.
    gc.disable()
    for pod in pods:
        plugin.run_sandbox(pod.container.pod)
        wait()
        request = nri_pb2.CreateContainerRequest(
            pod=pod.container.pod.message(), container=pod.container.message()
        )
        raw = _asked(plugin, "CreateContainer", request, created_ms)
        answer = nri_pb2.CreateContainerResponse.FromString(raw)
        assert len(answer.update) == SHARING
        own = answer.adjust.linux.resources.cpu.cpus
        assert len(CPUSet.parse(own)) == pod.cpus, own
        world.place.make(pod.path)
        world.overwrite(pod.path, own)
        wait()
        start = nri_pb2.StateChangeEvent(
            event=nri_pb2.START_CONTAINER,
            pod=pod.container.pod.message(),
            container=pod.container.message(),
        )
        _asked(plugin, "StateChange", start, started_ms)
    gc.enable()
    return created_ms, started_ms


def _asked(plugin: Plugin, method: str, request: Message, taken_ms: list[float]) -> bytes:
    """Return the bytes of an answer, and note the time from the last byte in to the last out."""
    body = ttrpc_pb2.Request(
        service=PLUGIN, method=method, payload=request.SerializeToString(), timeout_nano=2 * 10**9
    ).SerializeToString()
    began_s: list[float] = []

    def written(call: int) -> Iterator[bytes]:
        began_s.append(time.perf_counter())
        yield frames(1, call, 1, body)

    def ended(_: Future[bytes]) -> None:
        taken_ms.append((time.perf_counter() - began_s[0]) * 1000)

    answered = plugin.call_with(written)
    answered.add_done_callback(ended)
    return answered.result()


def _planning(config: CPUManager) -> Iterator[Callable[[], object]]:
    """Yield calls that each show the sandbox of a pod to the Manager, which plans the pod."""
    manager = Manager()
    manager.reconfigure(NodePools.of(cpu_manager=config), LARGE.topology())
    manager.adopt(())
    owners = [_planned(number, 1, running=True) for number in range(OWNERS // 2)]
    later = [_planned(OWNERS + number, 1 << number % 4, running=False) for number in range(PLANS)]
    manager.observe(pods=owners, device_nodes={pod.uid: {} for pod in owners})
    for pod in later:
        sandbox = RuntimeContainer(
            ContainerID(f"{pod.uid}-sandbox"), pod.cgroup_uid, pod.namespace, pod.name
        )
        manager.observe(pods=[*owners, pod], device_nodes={pod.uid: {}})
        yield partial(manager.observe_containers, [sandbox])
        assert pod.cgroup_uid in manager.snapshot().resolution.view.chosen
        manager.forget_containers([sandbox.id])
        manager.observe(pods=owners, idle=frozenset({pod.cgroup_uid}))


def _planned(number: int, cores: int, *, running: bool) -> workloads.Pod:
    container = builders.container(f"c{number}", cpu=2000 * cores, running=running)
    return builders.pod(f"pod-{number:03}", container)


def _owner(node: Node, beside: list[Hosted]) -> tuple[float, float]:
    """Start a pod with a CPU of its own.

    Returns:
        How long neighbours were on its CPU after its first instruction, and how long its start
        took, both in ms.
    """
    node.await_right(beside)
    owner = node.admit(Kind.STATIC)
    with watched(node, beside) as seen:
        node.launch(owner)
        own, first_ns = node.expected(owner), node.record(owner).sightings[0].at_ns
        node.await_right([owner])
    late_ns = [at_ns for at_ns, _, cpus in seen if not cpus.isdisjoint(own)]
    overlap_ns = max(0, *late_ns, first_ns) - first_ns if late_ns else 0
    return overlap_ns / 1e6, _started_ms(node, owner)


def _started_ms(node: Node, one: Hosted) -> float:
    """Remove a pod, and return the time from the call to its first instruction."""
    began_ns = node.record(one).sightings[0].at_ns
    node.remove(one)
    return (began_ns - one.called_ns) / 1e6
