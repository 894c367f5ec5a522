"""Whatever happens to a node with a CPU manager policy, one sweep brings every container home.

Agents are killed between two writes, other programs write, and ended pods keep their cgroups.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupWriteRejected
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerKind
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.policies.koordinator.policy import KOORDINATOR
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.cgroups import KernelModel
from tests.searching import examples
from tests.setters import EVERYTHING, MACHINE, Node

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

RESERVED = CPUSet.of(0)
STATIC = CPUManager("static", RESERVED)
FILES = (
    NodePools.of(Pool.named("default", EVERYTHING), cpu_manager=STATIC),
    NodePools.of(Pool.named("default", "0-3"), cpu_manager=STATIC),
    NodePools.of(Pool.named("default", EVERYTHING), cpu_manager=CPUManager(KOORDINATOR, RESERVED)),
    NodePools.of(Pool.named("default", "0-5"), Pool.named("exclusive_a", "6")),
)
KINDS = (ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR)
PAUSE_S: Final = 3600.0
"""The time before each sweep, so that no repair waits because of an earlier one."""


class Killed(Exception):
    """The agent does not get to its next write."""


class Kernel(KernelModel):
    """The kernel below an agent that dies.

    Attributes:
        lives: how many more writes the agent makes.
    """

    lives: float = math.inf

    def write(self, path: str, cpus: CPUSet) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        super().write(path, cpus)


class Sweeping(RuleBasedStateMachine):
    """A node whose agent writes the cgroups itself."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = Kernel(CgroupVersion.V2, {})
        self.node = Node()
        self.pools = FILES[0]
        self.offline = CPUSet()
        self.pods: dict[str, Pod] = {}
        self.left: list[str] = []
        self.touched: set[str] | None = None
        self.recorded = False
        self.numbers = iter(range(10_000))

    @initialize(version=st.sampled_from(CgroupVersion))
    def the_agent_starts(self, version: CgroupVersion) -> None:
        self.kernel = Kernel(version, {"kubepods": EVERYTHING}, EVERYTHING)
        self.start(State("static"))

    def start(self, recorded: State) -> None:
        now_s, source = self.node.now_s, self.node.source
        self.node = Node(source, self.kernel, pools=None, recorded=recorded, now_s=now_s)
        self.configure()

    def configure(self) -> None:
        self.node.manager.reconfigure(self.pools, MACHINE.without(str(self.offline)).topology())

    @rule(
        asked=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), min_size=1, max_size=3)
    )
    def a_pod_comes(self, asked: list[tuple[ContainerKind, int]]) -> None:
        name = f"web-{next(self.numbers)}"
        containers = [
            builders.container(f"{name}-{number}", kind, cpu=1000 * cpus or 500)
            for number, (kind, cpus) in enumerate(asked)
        ]
        online = str(self.kernel.online)
        self.kernel.make(f"kubepods/pod{name}-uid", online)
        for container in containers:
            self.kernel.make(self.node.path(name, container.name), online)
        self.pods[name] = replace(builders.pod(name, *containers), created=f"{len(name)} {name}")
        self.touch(self.pods[name].uid)
        self.node.source.listed = list(self.pods.values())

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods)))
        del self.pods[name]
        self.left.append(name)
        self.node.source.listed = list(self.pods.values())

    @precondition(lambda self: self.left)
    @rule()
    def the_cgroups_of_ended_pods_go(self) -> None:
        while self.left:
            name = self.left.pop()
            self.kernel.remove(f"kubepods/pod{name}-uid")
            self.touch(f"{name}-uid")

    @rule(pools=st.sampled_from(FILES))
    def the_pool_file_is_edited(self, pools: NodePools) -> None:
        self.pools = pools
        self.configure()

    @rule(offline=st.sampled_from(["", "1", "2-3", "7"]))
    def cpus_go_offline_and_return(self, offline: str) -> None:
        self.touched = None
        self.offline = CPUSet.parse_or_empty(offline)
        if self.kernel.version is CgroupVersion.V1:
            self.kernel.switch_off(self.offline)
        self.kernel.online = CPUSet.parse(EVERYTHING) - self.offline
        self.node.manager.update_topology(MACHINE.without(offline).topology())

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), cpus=st.sets(st.integers(0, 7), min_size=1).map(CPUSet))
    def another_program_writes(self, data: st.DataObject, cpus: CPUSet) -> None:
        paths = sorted(path for path in self.kernel.sets if path != "kubepods")
        path = data.draw(st.sampled_from(paths))
        self.touch(path.split("/")[1].removeprefix("pod"))
        with suppress(CgroupWriteRejected):
            KernelModel.write(self.kernel, path, cpus)

    def touch(self, pod: str) -> None:
        """The kernel reports a change in the cgroups of a pod."""
        if self.touched is not None:
            self.touched.add(pod)

    @rule(writes=st.integers(0, 4), recorded=st.booleans())
    def the_agent_will_be_killed(self, *, writes: int, recorded: bool) -> None:
        self.kernel.lives = writes
        self.recorded = recorded
        if not writes:
            self.restart()

    def restart(self) -> None:
        self.kernel.lives = math.inf
        chosen = self.node.manager.snapshot().resolution.view.chosen if self.recorded else {}
        self.start(State("static", entries={uid: grant.parts for uid, grant in chosen.items()}))

    def owned(self) -> dict[str, CPUSet]:
        owned = builders.owned(self.node.manager)
        return {uid: CPUSet.union(has.values()) for uid, has in owned.items()}

    @invariant()
    def one_sweep_settles_it(self) -> None:
        try:
            self.sweep()
        except Killed:
            self.restart()
            self.sweep()
        written = len(self.kernel.writes)
        self.sweep()
        assert self.kernel.writes[written:] == []
        self.containers_run_where_they_belong()

    def sweep(self) -> None:
        self.node.now_s += PAUSE_S
        touched, self.touched = self.touched, set()
        self.node.setter.sweep(touched)

    def containers_run_where_they_belong(self) -> None:
        owned, kernel = self.owned(), self.kernel
        everyone = CPUSet.union(owned.values())
        assert sum(map(len, owned.values())) == len(everyone)
        resolution = self.node.manager.snapshot().resolution
        shared = resolution.view.default.cpus or kernel.online
        assert shared
        assert shared.isdisjoint(everyone)
        for found in kernel.containers():
            others = CPUSet.union(cpus for uid, cpus in owned.items() if uid != found.pod)
            assert CPUSet.parse(found.cpus).isdisjoint(others)
        for name, pod in self.pods.items():
            for container in pod.containers:
                own = resolution.grants.part(pod.cgroup_uid, POLICY_CPUS, container.name)
                has = kernel.effective(self.node.path(name, container.name))
                assert has == (own & kernel.online or shared)


Sweeping.TestCase.settings = examples(100, stateful_step_count=20)
TestSweeping = Sweeping.TestCase
