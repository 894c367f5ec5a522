from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cgroups import Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RuntimeBusy, RuntimeRefused
from cpupool.core.workloads import ContainerID
from cpupool.enforce.writer_choice import Writers
from cpupool.host.cgroupfs import CgroupVersion
from tests.cgroups import KernelModel
from tests.nri_agents import EARLIER, OWNER, Agent, of
from tests.nri_runtime import FakeRuntime, Plugin
from tests.quotas import QuotaModel
from tests.runtimes import ModelRuntime
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.api import nri_pb2
    from cpupool.core.properties import Properties
    from tests.nri_pods import Container


@pytest.mark.parametrize(("nri", "may"), [("", True), ("v0.12.0", True), ("v0.12.1", False)])
def test_the_runtimes_version_tells_whether_changes_can_lock_it_up(
    folder: Path, nri: str, *, may: bool
) -> None:
    agent = Agent(folder / "nri.sock")
    assert agent.runtime.may_lock_up, "nothing is known yet"
    with FakeRuntime(folder / "nri.sock", nri=nri) as runtime, agent.running():
        runtime.welcome()
        assert agent.runtime.may_lock_up is may


@dataclass
class Calls(ModelRuntime):
    """The runtime as it is called: it asks its plugin first, as containerd and CRI-O do."""

    here: bool = True
    ask: Callable[[str, int | None], nri_pb2.UpdateContainerResponse] = field(kw_only=True)
    answers: list[list[nri_pb2.ContainerUpdate]] = field(default_factory=list)

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        super().update(container, cpus)
        self.answers.append(list(self.ask(str(cpus), None).update))

    def adjust(self, container: ContainerID, properties: Properties) -> None:
        super().adjust(container, properties)
        assert properties.bandwidth
        self.answers.append(list(self.ask("", properties.bandwidth.quota_us).update))


@pytest.fixture
def old(folder: Path) -> Iterator[tuple[Agent, Plugin]]:
    """Give a plugin of a runtime that its changes could lock up: none may come."""
    agent = Agent(folder / "nri.sock")
    with FakeRuntime(folder / "nri.sock", alone=True, nri="v0.12.0") as runtime, agent.running():
        plugin = runtime.welcome()
        eventually(agent.runtime.connected, "the plugin is connected")
        yield agent, plugin
        assert plugin.updates == []


def called(agent: Agent, plugin: Plugin) -> tuple[Container, Calls, Writers]:
    """Create a container that belongs on CPU 2, and give the ways to it."""
    container = agent.allocated(of(OWNER, devices={"exclusive_a": "2"}, quota_us=50_000))
    plugin.create(container)
    calls = Calls(
        lists={"c1": "2"}, ask=lambda cpus, quota_us: plugin.update(container, cpus, quota_us)
    )
    return container, calls, Writers(None, agent.runtime, calls)


def test_a_runtime_that_could_lock_up_is_called_and_its_question_passes(
    old: tuple[Agent, Plugin],
) -> None:
    agent, plugin = old
    container, calls, writers = called(agent, plugin)
    identifier = ContainerID("c1")
    writer = writers.of(identifier, new=True)
    assert writer is Writer.CRI

    # Where it waits until its own CPUs are free.
    kernel = KernelModel(CgroupVersion.V2, {"pod": "0-7", "pod/c1": "2"})
    writers.through(writer, kernel, "pod/c1", identifier).write("pod/c1", CPUSet.of(0))
    assert (calls.answers, agent.runtime.cpu_list(identifier)) == ([[]], "0")
    # A quota leaves it there.
    quotas = QuotaModel({"pod": (-1, 100_000), "pod/c1": (-1, 100_000)})
    assert writers.limit(quotas, "pod/c1", identifier, Bandwidth(60_000)) is Writer.CRI
    assert (calls.answers, agent.runtime.cpu_list(identifier)) == ([[], []], "0")

    # A change by another program does not.
    (update,) = plugin.update(container, "5").update
    assert update.linux.resources.cpu.cpus == "2"
    assert agent.runtime.cpu_list(identifier) == "2"


def test_another_change_of_a_container_that_is_called_about_does_not_pass(
    old: tuple[Agent, Plugin],
) -> None:
    agent, plugin = old
    container, _, _ = called(agent, plugin)
    with agent.runtime.expecting(ContainerID("c1"), CPUSet.of(0)):
        (update,) = plugin.update(container, "5").update
    assert update.linux.resources.cpu.cpus == "2"


def test_a_call_that_fails_leaves_the_list_that_the_runtime_has(old: tuple[Agent, Plugin]) -> None:
    agent, plugin = old
    _, calls, writers = called(agent, plugin)
    calls.refusing = "no"
    kernel = KernelModel(CgroupVersion.V2, {"pod": "0-7", "pod/c1": "2"})
    with pytest.raises(RuntimeRefused):
        writers.through(Writer.CRI, kernel, "pod/c1", ContainerID("c1")).write(
            "pod/c1", CPUSet.of(0)
        )
    assert agent.runtime.cpu_list(ContainerID("c1")) == "2"


def test_a_runtime_that_waits_for_an_answer_is_not_called(old: tuple[Agent, Plugin]) -> None:
    agent, plugin = old
    _, calls, writers = called(agent, plugin)
    agent.patient = True
    agent.manager.observe(pods=[EARLIER])
    answer = plugin.creating(of(EARLIER, "held"))
    eventually(lambda: "held" in agent.manager.snapshot().facts.sighted, "the container waits")
    quotas = QuotaModel({"pod": (-1, 100_000), "pod/c1": (-1, 100_000)})
    with pytest.raises(RuntimeBusy, match="it waits for an answer itself"):
        writers.limit(quotas, "pod/c1", ContainerID("c1"), Bandwidth(60_000))
    assert calls.answers == []
    agent.give(EARLIER, exclusive_a="4")
    answer.result(DEADLINE_S)
    assert writers.limit(quotas, "pod/c1", ContainerID("c1"), Bandwidth(60_000)) is Writer.CRI
