from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.api import ttrpc_pb2
from cpupool.core.cpu_manager import Misfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import POLICY_CPUS
from cpupool.manager.manager import Manager
from cpupool.policies.view import DEFAULT
from tests import builders
from tests.nri_agents import MACHINE, PLAIN, Agent, cpu_of, of
from tests.nri_frames import frames
from tests.nri_runtime import PLUGIN, FakeRuntime, Refused
from tests.searching import examples
from tests.unit.runtime.nri.static import found, govern, web
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cpupool.api import nri_pb2
    from cpupool.core.workloads import Pod
    from tests.nri_pods import Container

METHODS = ("Configure", "Synchronize", "CreateContainer", "UpdateContainer", "StateChange")


def test_no_bytes_end_the_agent(folder: Path) -> None:
    agent = Agent(folder / "nri.sock")

    @examples(60)
    @given(st.sampled_from(METHODS), st.binary(max_size=200), st.binary(max_size=60))
    def said(method: str, payload: bytes, rest: bytes) -> None:
        plugin = runtime.accept()
        request = ttrpc_pb2.Request(service=PLUGIN, method=method, payload=payload)
        plugin.write(frames(1, 1, 1, request.SerializeToString()) + rest)
        plugin.hang_up()
        agent.plugin.wake()

    with FakeRuntime(folder / "nri.sock", alone=True) as runtime, agent.running():
        said()
        assert cpu_of(runtime.welcome().create(of(PLAIN))).cpus == "0"
        # The runtime has not counted these calls, so it complains of their answers.
        runtime.problems.clear()


class Word(Enum):
    """What a runtime can say, and what can happen to it."""

    RUN_SANDBOX = auto()
    REMOVE_SANDBOX = auto()
    CREATE = auto()
    START = auto()
    STOP = auto()
    REMOVE = auto()
    UPDATE = auto()
    DISOBEY = auto()
    HANG_UP = auto()


WORDS = (*Word, Word.CREATE, Word.CREATE, Word.START, Word.START)
PODS = {
    "plain": PLAIN,
    **{name: web(name, cpus, str(cpus)) for name, cpus in zip("abcd", (1, 2, 3, 4), strict=True)},
}


class Disorder:
    """A runtime that says anything in any order, and now and then moves no other container.

    Attributes:
        cgroups: container → its pod, and the CPUs of its cgroup.
        started: container → its own CPUs at its start.
        ended: pod → how many containers of it have ended.
    """

    def __init__(self, runtime: FakeRuntime, agent: Agent) -> None:
        self.runtime, self.agent = runtime, agent
        self.plugin = runtime.welcome()
        self.obeys = True
        self.cgroups: dict[str, tuple[Pod, CPUSet]] = {}
        self.started: dict[str, CPUSet] = {}
        self.ended: Counter[str] = Counter()

    def say(self, word: Word, name: str) -> None:
        pod = PODS[name]
        # The kubelet's next try has another id.
        container = of(pod, f"{pod.name}-{self.ended[pod.name]}")
        match word:
            case Word.RUN_SANDBOX:
                self.plugin.run_sandbox(container.pod)
            case Word.REMOVE_SANDBOX:
                self.plugin.remove_sandbox(container.pod)
            case Word.CREATE if container.id not in self.cgroups:
                self.create(container, pod)
            case Word.START:
                self.start(container)
            case Word.STOP | Word.REMOVE:
                (self.plugin.stop if word is Word.STOP else self.plugin.remove)(container)
                self.started.pop(container.id, None)
                self.cgroups.pop(container.id, None)
                self.ended[pod.name] += 1
            case Word.UPDATE:
                self.move(self.plugin.update(container, "0-7").update)
            case Word.DISOBEY:
                self.obeys = not self.obeys
            case Word.HANG_UP:
                self.plugin.hang_up()
                self.agent.plugin.wake()
                self.plugin = self.runtime.accept()
                self.plugin.configure()
                self.move(self.plugin.synchronize(list(self.living())))
            case _:
                pass
        self.show_cgroups()

    def create(self, container: Container, pod: Pod) -> None:
        with suppress(Refused):
            answer = self.plugin.create(container)
            self.move(answer.update)
            self.cgroups[container.id] = pod, CPUSet.parse(cpu_of(answer).cpus)

    def start(self, container: Container) -> None:
        with suppress(Refused):
            self.plugin.starting(container).result(DEADLINE_S)
            if container.id not in self.cgroups:
                return
            pod, cpus = self.cgroups[container.id]
            own = builders.owned(self.agent.manager).get(pod.cgroup_uid, {}).get(POLICY_CPUS)
            self.plugin.start(container)
            self.started[container.id] = own or CPUSet()
            others = (self.cgroups[other] for other in self.started if other != container.id)
            for other, has in others:
                assert not own or other is pod or own.isdisjoint(has)
            assert not own or cpus == own

    def move(self, updates: Iterable[nri_pb2.ContainerUpdate]) -> None:
        for update in updates:
            if self.obeys and update.container_id in self.cgroups:
                pod, _ = self.cgroups[update.container_id]
                cpus = CPUSet.parse(update.linux.resources.cpu.cpus)
                self.cgroups[update.container_id] = pod, cpus

    def living(self) -> Iterable[Container]:
        """Give the containers as the runtime lists them to a plugin that connects."""
        return (of(pod, name, cpus=str(cpus)) for name, (pod, cpus) in self.cgroups.items())

    def show_cgroups(self) -> None:
        self.agent.found = tuple(
            found(pod, name, str(cpus)) for name, (pod, cpus) in self.cgroups.items()
        )

    def check(self) -> None:
        assert not self.plugin.closed.is_set()
        view = self.agent.manager.snapshot().resolution.view
        own = [grant.cpus for grant in view.chosen.values()]
        assert sum(map(len, own)) == len(CPUSet.union(own))
        assert view.extents[DEFAULT] == CPUSet.parse("0-7") - CPUSet.union(own)
        assert 0 in view.extents[DEFAULT]


def test_no_order_of_messages_gives_a_cpu_to_two_or_keeps_one(folder: Path) -> None:
    sockets = (folder / f"nri-{number}.sock" for number in itertools.count())

    @examples(120)
    @given(
        st.sampled_from([Misfit.HOLD, Misfit.SHARE, Misfit.FAIL]),
        st.lists(
            st.tuples(st.sampled_from(WORDS), st.sampled_from(sorted(PODS))),
            min_size=30,
            max_size=60,
        ),
    )
    def said(misfit: Misfit, words: list[tuple[Word, str]]) -> None:
        socket = next(sockets)
        # Each look at the clock is long after the last: no container waits in real time.
        agent = Agent(socket, clock=itertools.count(0.0, 60.0).__next__)
        govern(agent, misfit)
        agent.manager.observe(pods=PODS.values())
        with FakeRuntime(socket) as runtime, agent.running():
            disorder = Disorder(runtime, agent)
            for word in words:
                disorder.say(*word)
                disorder.check()
            fresh = Manager()
            fresh.reconfigure(agent.manager.pools(), MACHINE.topology())
            fresh.observe(pods=PODS.values())
            fresh.observe_containers(agent.manager.snapshot().facts.sighted.values())
            fresh.adopt(agent.found)
            has, would = builders.owned(agent.manager), builders.owned(fresh)
            # The next agent sees who runs alone where.
            running = {disorder.cgroups[name][0].cgroup_uid for name in disorder.started}
            for uid in running & has.keys():
                assert would[uid] == has[uid]
            # All pods end: every CPU is free again.
            agent.manager.observe_containers((), every=True)
            agent.manager.observe(pods=[], idle=frozenset(pod.cgroup_uid for pod in PODS.values()))
            assert builders.owned(agent.manager) == {}

    said()
