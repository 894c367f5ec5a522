"""Resizes in any order: a CPU that a container gets is its alone once the runtime is told."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import POLICY_CPUS
from cpupool.policies.static.policy import StaticPolicy
from tests import builders
from tests.nri_agents import PLAIN, Agent, cpu_of, of
from tests.nri_runtime import FakeRuntime, Plugin, Refused
from tests.searching import examples
from tests.unit.runtime.nri.static import Resizing, govern, guaranteed, web

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from cpupool.core.workloads import Pod
    from tests.nri_pods import Container

OWNERS = {name: web(name, cpus, str(cpus)) for name, cpus in zip("abc", (1, 2, 1), strict=True)}
SHARES = (None, 0, 512, 1024, 1536, 2048, 3072, 4096, 5120, 8192)


@dataclass
class Runtime:
    """A container runtime that does what the plugin says, and nothing if the plugin refuses.

    Attributes:
        plugin: its plugin.
        agent: the plugin's agent.
        cgroups: container → its CPUs.
        shares: container → its shares.
    """

    plugin: Plugin
    agent: Agent
    cgroups: dict[str, CPUSet] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)

    def create(self, container: Container) -> None:
        answer = self.plugin.create(container)
        for update in answer.update:
            self.cgroups[update.container_id] = CPUSet.parse(update.linux.resources.cpu.cpus)
        self.cgroups[container.id] = CPUSet.parse(cpu_of(answer).cpus)
        self.shares[container.id] = container.shares
        self.plugin.start(container)

    def resize(self, pod: Pod, shares: int | None, cpus: str) -> None:
        container = guaranteed(pod, pod.name, shares=self.shares[pod.name])
        container = replace(container, cpus=str(self.cgroups[pod.name]))
        before = owned(self.agent)
        try:
            answer = self.plugin.update(container, cpus, shares=shares)
        except Refused:
            assert owned(self.agent) == before
            return
        named = Counter(update.container_id for update in answer.update)
        assert set(named.values()) == {1}
        assert answer.update[-1].container_id == container.id
        self.shares[pod.name] = shares or self.shares[pod.name]
        for update in answer.update:
            self.cgroups[update.container_id] = CPUSet.parse(update.linux.resources.cpu.cpus)

    def check(self) -> None:
        own = owned(self.agent)
        for (name, has), (other, others) in itertools.combinations(self.cgroups.items(), 2):
            assert has.isdisjoint(others), f"{name} and {other}"
        for name, pod in OWNERS.items():
            assert self.cgroups[name] == own[pod.cgroup_uid]
        assert 0 in self.cgroups[PLAIN.name]


def owned(agent: Agent) -> dict[str, CPUSet]:
    return {uid: has[POLICY_CPUS] for uid, has in builders.owned(agent.manager).items()}


def test_no_order_of_resizes_gives_a_cpu_to_two(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StaticPolicy, "resizes", True)
    sockets = (folder / f"nri-{number}.sock" for number in itertools.count())
    words = st.tuples(
        st.sampled_from(sorted(OWNERS)), st.sampled_from(SHARES), st.sampled_from(["", "0-7"])
    )

    @examples(80)
    @given(st.lists(words, min_size=4, max_size=12))
    def resized(words: list[tuple[str, int | None, str]]) -> None:
        socket = next(sockets)
        agent = Agent(socket, manager=Resizing())
        govern(agent)
        agent.manager.observe(pods=[*OWNERS.values(), PLAIN])
        with FakeRuntime(socket, alone=True) as fake, agent.running():
            runtime = Runtime(fake.welcome(), agent)
            for name, pod in OWNERS.items():
                runtime.create(guaranteed(pod, name))
            runtime.create(of(PLAIN, PLAIN.name))
            runtime.check()
            for name, shares, cpus in words:
                runtime.resize(OWNERS[name], shares, cpus)
                runtime.check()

    resized()
