"""While the runtime waits for the plugin's answer it holds its lock: no CRI call begins then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RuntimeAwaitsAnswer, RuntimeBusy
from cpupool.core.names import Names
from cpupool.core.properties import Properties
from cpupool.core.workloads import ContainerID
from cpupool.enforce.writer_choice import Writers
from cpupool.runtime.cri import CRI
from tests.cri_server import FakeCRI
from tests.nri_agents import OWNER, Agent, of
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.nri_runtime import Plugin

MAIN = ContainerID("a" * 64)
CPUS = CPUSet.parse("2-3")


@pytest.fixture
def served(folder: Path) -> Iterator[FakeCRI]:
    with FakeCRI(folder / "cri.sock") as serving:
        serving.add_sandbox("sandbox", "web")
        serving.add(MAIN, "web", cpus="0")
        yield serving


@pytest.fixture
def cri(served: FakeCRI, agent: Agent) -> CRI:
    awaits = agent.runtime.awaits
    return CRI([served.socket], Names(), awaits=awaits, timeout_s=DEADLINE_S)


def writer_of(cri: CRI, agent: Agent) -> object:
    return Writers(None, agent.runtime, cri).of(MAIN, new=False)


QUESTIONS: dict[str, Callable[[CRI, Agent], object]] = {
    "recognise": lambda cri, _: cri.recognise([MAIN]),
    "chosen": lambda cri, _: cri.chosen([MAIN]),
    "cpu_list": lambda cri, _: cri.cpu_list(MAIN),
}
CHANGES: dict[str, Callable[[CRI, Agent], object]] = {
    "update": lambda cri, _: cri.update(MAIN, CPUS),
    "adjust": lambda cri, _: cri.adjust(MAIN, Properties(bandwidth=Bandwidth(1000, 10_000))),
    "writer": writer_of,
}


def test_no_call_begins_while_a_request_of_the_runtime_is_open(
    agent: Agent, plugin: Plugin, served: FakeCRI, cri: CRI
) -> None:
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER))
    eventually(agent.runtime.awaits, "the request is open")
    assert cri.connected(), "runtimes tell their version without a lock"
    assert set(served.calls) == {"Version"}

    for ask in QUESTIONS.values():
        with pytest.raises(RuntimeAwaitsAnswer):
            ask(cri, agent)
    for change in CHANGES.values():
        with pytest.raises(RuntimeBusy):
            change(cri, agent)
    assert set(served.calls) == {"Version"}
    assert not answer.done()

    agent.give(OWNER, exclusive_a="4")
    answer.result(DEADLINE_S)
    for call in (*QUESTIONS.values(), *CHANGES.values()):
        call(cri, agent)
    assert served.updates


def test_of_several_calls_none_begins_after_the_runtime_has_asked(
    agent: Agent, plugin: Plugin, served: FakeCRI, cri: CRI
) -> None:
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    assert cri.connected()
    listed = served.ListContainers

    def asks_meanwhile(*arguments: object) -> object:
        answer = listed(*arguments)  # type: ignore[arg-type]
        plugin.creating(of(OWNER))
        eventually(agent.runtime.awaits, "the request is open")
        return answer

    served.ListContainers = asks_meanwhile  # type: ignore[method-assign,assignment]
    served.restart()
    with pytest.raises(RuntimeAwaitsAnswer):
        cri.chosen([MAIN])
    assert served.calls["ContainerStatus"] == 0
    assert served.calls["ListPodSandbox"] == 0
