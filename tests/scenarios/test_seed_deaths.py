"""Plugins, manager and runtime are killed between two steps of the proposal's examples.

Whatever dies, the node ends as in seeds/test_qos_resource_manager.py, where nothing dies. The
manager is the agent. Pods require it, so that no container is created while it is away; those with
CPUs of their own are of dedicated cores, so that none is created without its plugins' answers.
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import pytest

from cpupool.core.names import REQUIRED_PLUGINS
from cpupool.core.workloads import ContainerRef
from cpupool.plugins import state_codec
from cpupool.plugins.nic import BANDWIDTH
from cpupool.qrm import answer_record
from tests import dying
from tests.processes import Process
from tests.scenarios.seeds.test_qos_resource_manager import (
    ALL,
    EXAMPLE_1,
    EXAMPLE_2,
    EXAMPLE_3,
    ROLE,
    configure,
    memory,
    world,
    write_nics,
)
from tests.scenarios.test_node_pools import BOUND
from tests.scenarios.test_resource_plugins import QOS, environment, right, run, started
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cpupool.core.plugin_facts import RecordedAnswer
    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

__all__ = ["world"]

AGENT = "agent"
OF_THE_AGENT = (dying.PLANNED, *dying.STEPS[:2])
"""The steps of the agent until it has the first answer for a container."""
OF_PLUGINS = (dying.ASKED, *dying.STEPS[:2])
"""The steps of a plugin until the agent has its answer."""
RESOURCES = {"memory": "memory", "nic": BANDWIDTH}
"""Plugin → what containers request of it; policy qrm names the resource of the plugin for CPUs."""
NODE_POOLS = 'reserved: "0-1,40-41"\npools: {share: {}}\n'
LATER = "0-13,40-53"
"""The online pool of the first example, after its change."""
SMALLER = EXAMPLE_1.replace("76", "28").replace("cpus: 4", "cpus: 52")


class Play:
    """The agent and the plugins of an example, each a process; ends them all by SIGKILL.

    Args:
        world: the node.
        config: the plugins' file.
        plugins: their names.
    """

    def __init__(self, world: World, config: str, *plugins: str) -> None:
        self.world = world
        self.plugins = plugins
        self._config = config
        # A plugin may register after the agent has begun to create containers.
        named = [f"{RESOURCES[name]}={RESOURCES[name]}" for name in plugins if name in RESOURCES]
        self._names = (f"--resource-plugin-names={','.join(named)}",) if named else ()
        self._running: dict[str, ExitStack] = {}

    def __enter__(self) -> Self:
        configure(self.world, self._config)
        for name in (*self.plugins, AGENT):
            self.revive(name)
        eventually(lambda: self.world.node.plugged, "the runtime asks the agent")
        return self

    def __exit__(self, *_: object) -> None:
        for name in tuple(self._running):
            self.kill(name)

    def kill(self, name: str) -> None:
        self._running.pop(name, ExitStack()).close()
        if name == AGENT:
            eventually(lambda: not self.world.node.plugged, "the runtime knows of it")

    def revive(self, name: str) -> Process:
        """Kill a process, and start it again."""
        return self._begin(name)

    def dies(self, name: str, step: str, victim: str) -> Process:
        """Start a process again that is killed at a step."""
        fate = {dying.DIES: step, dying.VICTIM: victim}
        return self._begin(name, fate, program="tests.dying")

    def halts(self, steps: Iterable[str], victim: str) -> Process:
        """Start the agent again; it halts at each step until it gets SIGCONT."""
        fate = {dying.DIES: ",".join(steps), dying.VICTIM: victim}
        fate[dying.SIGNAL] = str(int(signal.SIGSTOP))
        return self._begin(AGENT, fate, program="tests.dying")

    def _begin(
        self, name: str, fate: Mapping[str, str] | None = None, *, program: str = "cpupool"
    ) -> Process:
        self.kill(name)
        stack = self._running[name] = ExitStack()
        if name == AGENT:
            options = ("--resource-plugins", "--resource-plugin-reconcile=0.1", *self._names)
            return stack.enter_context(
                self.world.agent(*options, environment=fate, program=program, end=signal.SIGKILL)
            )
        folder = self.world.folder
        process = Process(
            *("env", *(f"{key}={value}" for key, value in (fate or {}).items())),
            *(sys.executable, "-W", "error", "-m", program, "resource-plugin", name),
            *("--host-root", folder, "--config", folder / "plugins/config.yaml"),
        )
        return stack.enter_context(process.collecting(signal.SIGKILL))


class Asking(NamedTuple):
    """A pod that comes to the node.

    Attributes:
        name: its name.
        annotations: among them its role.
        requests: those of its container.
        steps: the steps at which the fate strikes until its container has all answers.
        last: the step at which it strikes when its container is created.
    """

    name: str
    annotations: Mapping[str, str]
    requests: Mapping[str, str]
    steps: Sequence[str] = ()
    last: str = ""


class Fate(Protocol):
    """What dies."""

    def start(self, play: Play, pod: Asking) -> Pod:
        """Start a pod."""
        ...

    def change(self, play: Play, config: str, online: str) -> None:
        """Change the plugins' file, so that containers move to other CPUs."""
        ...


class TheManager:
    """Dies at each step, one after the other, and once more before the next pod."""

    def start(self, play: Play, pod: Asking) -> Pod:
        play.kill(AGENT)
        found = run(play.world, pod.name, dict(pod.annotations), **pod.requests)
        for step in pod.steps:
            gone(play.dies(AGENT, step, found.uid))
        if pod.last:
            gone(play.dies(AGENT, pod.last, found.uid), trying=play.world)
        play.revive(AGENT)
        started(play.world, found)
        return found

    def change(self, play: Play, config: str, online: str) -> None:
        play.kill(AGENT)
        configure(play.world, config)
        for step in (*dying.STEPS[:2], dying.WRITTEN):
            gone(play.dies(AGENT, step, online))
        play.revive(AGENT)


class ThePlugins:
    """Die all at each step, one after the other, and once more before the next pod."""

    def start(self, play: Play, pod: Asking) -> Pod:
        found = None
        for step in OF_PLUGINS if pod.steps else ():
            dying_now = [play.dies(name, step, pod.name) for name in play.plugins]
            found = found or run(play.world, pod.name, dict(pod.annotations), **pod.requests)
            for process in dying_now:
                gone(process)
        for name in play.plugins:
            play.revive(name)
        found = found or run(play.world, pod.name, dict(pod.annotations), **pod.requests)
        started(play.world, found)
        return found

    def change(self, play: Play, config: str, online: str) -> None:
        for name in play.plugins:
            play.kill(name)
        configure(play.world, config)
        for step in (*dying.STEPS[:2], dying.LISTED):
            for process in [play.dies(name, step, online) for name in play.plugins]:
                gone(process)
        for name in play.plugins:
            play.revive(name)


class TheRuntime:
    """Dies at each step of the agent."""

    def start(self, play: Play, pod: Asking) -> Pod:
        play.kill(AGENT)
        found = run(play.world, pod.name, dict(pod.annotations), **pod.requests)
        steps = [*pod.steps, *filter(None, [pod.last])]
        agent = play.halts(steps, found.uid)
        for _ in pod.steps:
            self._die(play, agent)
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(self._die, play, agent) if pod.last else None
            started(play.world, found)
            if last:
                last.result()
        return found

    def change(self, play: Play, config: str, online: str) -> None:
        agent = play.halts((*dying.STEPS[:2], dying.WRITTEN), online)
        configure(play.world, config)
        for _ in range(3):
            self._die(play, agent)

    def _die(self, play: Play, agent: Process) -> None:
        stat = Path(f"/proc/{agent.process.pid}/stat")
        halted = lambda: stat.read_text().rpartition(")")[2].split()[0] == "T"  # noqa: E731
        eventually(halted, lambda: agent.log)
        play.world.node.restart_runtime()
        agent.process.send_signal(signal.SIGCONT)


FATES = (TheManager, ThePlugins, TheRuntime)


def fated(daily: type[Fate]) -> pytest.MarkDecorator:
    """Let each of the three die; only one of them every day, as each takes many processes."""
    params = [
        pytest.param(each(), id=each.__name__, marks=() if each is daily else pytest.mark.soak)
        for each in FATES
    ]
    return pytest.mark.parametrize("fate", params)


def gone(process: Process, trying: World | None = None) -> None:
    """Wait until a process has died; meanwhile the kubelet may try again what is held."""

    def died() -> bool:
        if trying:
            trying.node.try_again()
        return process.process.poll() is not None

    eventually(died, lambda: process.log)


@fated(ThePlugins)
def test_example_1(world: World, fate: Fate) -> None:
    online = {ROLE: "online-micro_service", REQUIRED_PLUGINS: '["cpupool"]'}
    with Play(world, EXAMPLE_1, "cpu") as play:
        run(world, "system", cpu="0")
        fate.start(play, Asking("pod1", online, {"cpu": "4"}, OF_THE_AGENT, "answered"))
        fate.start(play, Asking("pod2", {**online, ROLE: "ETL"}, {"cpu": "2"}))
        fate.start(play, Asking("pod3", online, {"cpu": "4"}, last=dying.STARTED))
        right(world, ALL, pod1="0-37,40-77", pod2="38-39,78-79", pod3="0-37,40-77", system=ALL)

        fate.change(play, SMALLER, LATER)
        right(world, ALL, pod1=LATER, pod2="14-39,54-79", pod3=LATER, system=ALL)
        agree(world, "cpu")


@fated(TheManager)
def test_example_2(world: World, fate: Fate) -> None:
    with Play(world, EXAMPLE_2, "cpu", "memory") as play:
        run(world, "system", cpu="0")
        asks = {"cpu": "20", "memory": "40Gi"}
        fate.start(play, Asking("pod1", own("storage-service"), asks, OF_THE_AGENT, "answered"))
        asks = {"cpu": "10", "memory": "20Gi"}
        fate.start(play, Asking("pod2", own("reranker"), asks, last=dying.STARTED))
        shared = "0-1,22-41,52-79"
        right(world, shared, pod1="2-21", pod2="42-51", system=shared)
        assert memories(world) == {"pod1": "0", "pod2": "1", "system": ""}
        agree(world, "cpu", "memory")


@fated(TheRuntime)
def test_example_3(world: World, fate: Fate) -> None:
    write_nics(world)
    with Play(world, EXAMPLE_3, "cpu", "memory", "nic") as play:
        run(world, "system", cpu="0")
        fate.start(play, Asking("pod0", own("everything"), {"cpu": "38", "memory": "20Gi"}))
        asks = {"cpu": "10", "memory": "20Gi", BANDWIDTH: "1000"}
        role = own("numa-enhancement")
        pods = (
            fate.start(play, Asking("pod1", role, asks, OF_THE_AGENT, "answered")),
            fate.start(play, Asking("pod2", role, asks, last=dying.STARTED)),
        )
        shared = "0-1,40-41,62-79"
        right(world, shared, pod0="2-39", pod1="42-51", pod2="52-61", system=shared)
        assert memories(world) == {"pod0": "0", "pod1": "1", "pod2": "1", "system": ""}
        record = agree(world, "cpu", "memory", "nic")
        for pod in pods:
            address = environment(world, pod.name)["AFFINITY_NIC_ADDR_IPV6"]
            assert address == "fdbd:dc05:3:155::20"
            (nic,) = record[ContainerRef(pod.uid, "main")][BANDWIDTH].parts.values()
            assert nic.annotations["kubernetes.io/host-netns-path"] == "/var/run/netns/ns1"


@fated(ThePlugins)
def test_pools_on_a_node(world: World, fate: Fate) -> None:
    bound = {**BOUND, REQUIRED_PLUGINS: '["cpupool"]'}
    with Play(world, NODE_POOLS, "cpu", "memory") as play:
        run(world, "system", cpu="0")
        asks = {"cpu": "6", "memory": "1Gi"}
        first = fate.start(play, Asking("pod1", bound, asks, OF_THE_AGENT, "answered"))
        asks = {"cpu": "2", "memory": "1Gi"}
        second = fate.start(play, Asking("pod2", bound, asks, last=dying.STARTED))
        right(world, ALL, pod1="2-9", pod2="2-9", system=ALL)
        # A shared pod starts also before it has an answer; its memory moves only if that may.
        eventually(lambda: has_memory(world, first, second), "the agent has all answers")
        assert (memory(world, first), memory(world, second)) == ("0", "0")
        agree(world, "cpu", "memory")


def own(role: str) -> Mapping[str, str]:
    """Return the annotations of a pod with CPUs of its own, by its role."""
    return {ROLE: role, QOS: "dedicated_cores", REQUIRED_PLUGINS: '["cpupool"]'}


def has_memory(world: World, *pods: Pod) -> bool:
    """Return whether the agent has an answer about the memory of each pod."""
    record = answer_record.parse(world.node.root.answers.read_bytes())
    return all("memory" in record.get(ContainerRef(pod.uid, "main"), {}) for pod in pods)


def memories(world: World) -> Mapping[str, str]:
    """Return pod → the NUMA nodes with which its container was created."""
    return {
        one.pod.name: one.instance.adjusted.resources.cpu.mems
        for one in world.node.processes()
        if one.container
    }


def agree(world: World, *plugins: str) -> Mapping[ContainerRef, Mapping[str, RecordedAnswer]]:
    """Return the agent's record, after each plugin's state is seen to have the same containers."""
    record = answer_record.parse(world.node.root.answers.read_bytes())
    for name in plugins:
        path = world.folder / f"var/lib/cpupool/plugins/{name}.json"
        held = state_codec.parse(path.read_bytes()).held.values()
        served = {(one.question.container, one.question.resource) for one in held}
        resources = {resource for _, resource in served}
        known = {(ref, each) for ref, given in record.items() for each in resources & given.keys()}
        assert served == known
    return record
