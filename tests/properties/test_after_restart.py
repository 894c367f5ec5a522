"""A restart of the agent changes no grant of the CPU manager policy, whatever has changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.core.orchestration import QoS
from cpupool.core.pools import NodePools, Pool
from cpupool.host.choice_record import ChoiceRecord
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from tests.events import Heard
from tests.machines import MACHINES
from tests.properties.test_koordinator import (
    MORE,
    OURS,
    RESERVED,
    Arrives,
    Edits,
    Ends,
    arrivals,
    arriving,
    pool_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.grants import Grant
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod

MACHINE = MACHINES["telco_2s_2n_16c32t"]
SIBLINGS = (Pool.named("shared_b", "20-21,12"),)
"""CPUs 20 and 21 are siblings of CPUs of `exclusive_a`: a file for a machine without SMT."""


@dataclass(frozen=True)
class Changes:
    """A pod gets the class, the annotations and the requests of another one."""

    which: int
    to: Arrives


@dataclass(frozen=True)
class Switches:
    """Another CPU manager policy comes into force."""

    policy: str


@dataclass(frozen=True)
class Offline:
    """Only these CPUs are offline."""

    cpus: str


@dataclass(frozen=True)
class Adds:
    """The pool file has these other pools, which may have CPUs on cores of the first ones."""

    pools: tuple[Pool, ...]


@dataclass(frozen=True)
class Reserves:
    """The pool file reserves these CPUs, or so many."""

    reserved: CPUSet | int


owners = st.builds(
    Arrives,
    st.sampled_from([QoS.LSE, QoS.LSR]),
    st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple),
    st.just(CPUSet()),
    st.none(),
    st.just(value=False),
    st.booleans(),
)
changes = st.builds(Changes, st.integers(0, 20), st.one_of(owners, arrivals))
events = st.one_of(
    owners,
    arrivals,
    st.builds(Ends, st.integers(0, 20)),
    changes,
    changes,
    st.builds(Switches, st.sampled_from(["koordinator", "static", "none"])),
    st.builds(Offline, st.sampled_from(["", "", "1", "17-19", "1-3,8-11", "16-31", "2-31"])),
    st.builds(Adds, st.sampled_from([(), SIBLINGS, SIBLINGS])),
    st.builds(Reserves, st.sampled_from([RESERVED, 1, 3, 10])),
    st.builds(Edits, st.sampled_from([OURS, OURS - CPUSet.parse("3,19"), MORE])),
)


@dataclass
class Node:
    """A node whose agent is killed and started again after each event.

    Attributes:
        folder: where the agent has its record.
        good: the pool file that came into force last.
        pods: the pods that the API server lists.
        ended: the others that still have a cgroup.
    """

    folder: Path
    policy: str = "koordinator"
    default: CPUSet = OURS
    more: tuple[Pool, ...] = ()
    reserved: CPUSet | int = RESERVED
    offline: str = ""
    good: NodePools = field(default_factory=NodePools)
    pods: list[Pod] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start an agent that has no other source than the record."""
        (self.folder / "boot_id").write_text("this boot\n")
        self.manager = Manager()
        self.record = ChoiceRecord(
            self.manager,
            self.folder / "record",
            self.folder / "boot_id",
            events=Heard(),
            metrics=Metrics(),
        )
        self.look()
        with_cgroup = [FoundContainer(uid, "x", f"kubepods/{uid}/x", "0") for uid in self.ended]
        self.manager.adopt(with_cgroup, self.record.recorded())
        self.record.decided()

    def look(self) -> None:
        """Let the agent know everything that has changed."""
        pools = NodePools.of(*pool_file(self.default), *self.more, cpu_manager=self.cpu_manager)
        topology = MACHINE.without(self.offline).topology()
        self.manager.update_topology(topology)
        if pools != self.manager.pools():
            self.put_in_force(pools, topology)
        self.manager.observe(pods=self.pods)

    def put_in_force(self, pools: NodePools, topology: CPUTopology) -> None:
        """Do as the configurator does."""
        try:
            self.manager.reconfigure(pools, topology)
            self.good = pools
        except ConfigError:
            if not self.manager.snapshot().facts.configured:
                self.manager.reconfigure(self.good, topology, again=True)

    @property
    def cpu_manager(self) -> CPUManager:
        if self.policy == "none":
            return CPUManager()
        return CPUManager(self.policy, reserved=self.reserved)

    def happens(self, event: object, number: int) -> None:
        match event:
            case Arrives():
                self.pods.append(arriving(number, event))
            case Ends(which) if self.pods:
                self.ended.append(self.pods.pop(which % len(self.pods)).cgroup_uid)
            case Changes(which, to) if self.pods:
                which %= len(self.pods)
                self.pods[which] = changed(self.pods[which], to)
            case Switches(policy):
                self.policy = policy
            case Offline(cpus):
                self.offline = cpus
            case Edits(default):
                self.default = default
            case Adds(pools):
                self.more = pools
            case Reserves(reserved):
                self.reserved = reserved
            case _:
                pass

    @property
    def chosen(self) -> Mapping[str, Grant]:
        return self.manager.snapshot().resolution.view.chosen

    @property
    def given(self) -> dict[str, object]:
        """The pools in force, and what they have for containers that start now."""
        facts, resolution = self.manager.snapshot()
        extents = resolution.view.extents.items()
        return {
            "pools": facts.pools,
            "blocked": facts.blocked,
            "available": facts.policy.available(resolution.view),
            "extents": {name: cpus & facts.topology.online for name, cpus in extents},
        }


def changed(pod: Pod, to: Arrives) -> Pod:
    other = arriving(0, to)
    counts = [each.whole_cpus for each in other.containers] + [0] * len(pod.containers)
    containers = (
        replace(each, whole_cpus=count, request_milli=1000 * count)
        for each, count in zip(pod.containers, counts, strict=False)
    )
    return replace(pod, containers=tuple(containers), orchestration=other.orchestration)


@given(
    st.lists(owners, min_size=1, max_size=3),
    st.lists(st.tuples(events, st.booleans()), min_size=1, max_size=6),
    st.booleans(),
)
def test_a_restart_changes_no_grant(
    first: list[Arrives], story: list[tuple[object, bool]], smt: bool
) -> None:
    """Also with an event between the two lives of the agent."""
    with TemporaryDirectory() as folder:
        node = Node(Path(folder))
        if not smt:
            node.offline, node.more = "16-31", SIBLINGS
        for number, pod in enumerate(first, 100):
            node.happens(pod, number)
        node.start()
        for number, (event, meanwhile) in enumerate(story):
            before = node.chosen
            node.happens(event, number)
            if not meanwhile:
                node.look()
                node.record.decided()
                before, had = node.chosen, node.given
            node.start()
            if not meanwhile:
                assert node.chosen == before
                assert node.given == had
            for uid, grant in before.items():
                assert node.chosen[uid].parts.items() >= grant.parts.items()
                assert node.chosen[uid].sharing is grant.sharing
