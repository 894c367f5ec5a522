"""An agent believes its own annotation on a container, and no annotation of a pod's author."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import EXCLUSIVE_CPUS, Names
from cpupool.core.workloads import ContainerID
from cpupool.host.sysfs import Sysfs
from cpupool.runtime.cri import CRI
from cpupool.wire import cpu_manager_state
from tests import dying, policies
from tests.containerd.conftest import containerd
from tests.containerd.pods import CONTAINER, Kind, Layout
from tests.vm.machine import TIMEOUT_S
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted
    from tests.containerd.runtime import ContainerdHost

# The first may have to get containerd from a slow mirror.
pytestmark = [pytest.mark.timeout(TIMEOUT_S), pytest.mark.usefixtures("packages")]


@dataclass(frozen=True, slots=True)
class OnlyDefault(Layout):
    """A pool file with nothing but the default pool, and a CPU manager policy for it."""

    policy: str = "none"

    @property
    def pools(self) -> str:
        pool = f'pools:\n  default: {{cpus: "{self.default}"}}\n'
        return f"{pool}cpuManager: {{policy: {self.policy}}}\n"

    @property
    def resources(self) -> tuple[str, ...]:
        return ()


@pytest.fixture(scope="module")
def host() -> Iterator[ContainerdHost]:
    with containerd(passing=True) as host:
        yield host


@pytest.fixture
def packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", policies.installed(folder))


@pytest.fixture
def machine(host: ContainerdHost) -> CPUSet:
    cpus = Sysfs.at(host.root.sysfs).topology().online
    if len(cpus) < 2:
        pytest.skip("two CPUs are needed: on one, every choice is the same")
    return cpus


def layout(cpus: CPUSet, policy: str) -> OnlyDefault:
    return OnlyDefault(cpus, CPUSet(), CPUSet(), policy=policy)


def chosen(node: Node, *pods: Hosted) -> list[str]:
    """Return the CPUs that an agent reads from the annotations of containers."""
    cri = CRI([node.host.socket], Names(), timeout_s=DEADLINE_S)
    found = {one.id: str(one.chosen) for one in cri.chosen([pod.container for pod in pods])}
    return [found.get(ContainerID(pod.container), "") for pod in pods]


def await_record(node: Node, pod: Hosted, cpus: CPUSet) -> None:
    """Wait until the agent has recorded these CPUs for the pod, and for no other."""

    def recorded() -> object:
        file = node.host.root.choices
        return file.exists() and cpu_manager_state.parse(file.read_bytes()).entries

    expected = {pod.pod.uid: {CONTAINER: cpus}}
    eventually(lambda: recorded() == expected, lambda: f"{expected}: {recorded()}\n{node.log()}")


def started(node: Node, cpus: CPUSet) -> None:
    """Wait until the agent has placed a container on these CPUs, which it then has no more."""
    plain = node.run(Kind.DEFAULT)
    eventually(lambda: node.tree.effective(node.path(plain)) == cpus, node.log)
    node.remove(plain)


def test_a_choice_is_on_the_container_and_comes_back_from_there(
    node: Node, machine: CPUSet
) -> None:
    node.configure(layout(machine, "highest"))
    own = CPUSet.of(max(machine))
    with node.agent("nri") as agent:
        started(node, own)
        pod = node.run(Kind.STATIC)
        assert node.record(pod).environment[EXCLUSIVE_CPUS] == str(own)
        assert chosen(node, pod) == [str(own)]
        await_record(node, pod, own)
        agent.kill()
    node.host.root.choices.unlink()
    with node.agent("nri"):
        await_record(node, pod, own)


@pytest.mark.parametrize("step", dying.STEPS)
def test_an_agent_that_is_killed_while_it_answers_gives_what_the_runtime_knows(
    node: Node, machine: CPUSet, step: str
) -> None:
    node.configure(layout(machine, "highest"))
    pod = node.admit(Kind.STATIC)
    killed = {dying.DIES: step, dying.VICTIM: pod.pod.uid}
    lowest, highest = CPUSet.of(min(machine)), CPUSet.of(max(machine))
    with node.agent("nri", program="tests.dying", environment=killed) as agent:
        started(node, highest)
        # The runtime goes on without its plugin.
        node.launch(pod)
        assert agent.wait(DEADLINE_S) == -signal.SIGKILL
    assert chosen(node, pod) == [str(highest) if step == "answered" else ""]
    if step == "answered":
        assert node.record(pod).always(highest)
        node.host.root.choices.unlink()

    # A new choice would be another.
    node.configure(layout(machine, "lowest"))
    own = lowest if step == "chosen" else highest
    with node.agent("nri"):
        await_record(node, pod, own)
        eventually(lambda: node.tree.effective(node.path(pod)) == own, node.log)


def test_a_choice_that_a_pods_author_annotates_is_not_believed(node: Node, machine: CPUSet) -> None:
    """The runtime's list agrees with it: the pod runs on the CPU that all containers share."""
    first = CPUSet.of(machine.first)
    node.configure(layout(first, "none"))
    with node.agent("nri"):
        started(node, first)
        forger = node.admit(Kind.STATIC, annotations={Names().chosen: str(first)})
        node.launch(forger)
        listed = CRI([node.host.socket], Names()).cpu_list(ContainerID(forger.container))
        assert listed == str(first)
        assert chosen(node, forger) == [""]

    # The policy never gives the first CPU.
    node.configure(layout(machine, "later"))
    with node.agent("nri"):
        await_record(node, forger, CPUSet(sorted(machine)[1:2]))
