"""A restart of the agent changes no grant of the CPU manager policy, whatever has changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.koordinator import QoS
from cpupool.host.choice_record import ChoiceRecord
from cpupool.manager.manager import Manager
from cpupool.manager.ports import FoundContainer
from cpupool.telemetry.metrics import Metrics
from tests.events import Heard
from tests.machines import MACHINES
from tests.properties.test_koordinator import (
    MORE,
    OURS,
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
    from cpupool.core.workloads import Pod

MACHINE = MACHINES["telco_2s_2n_16c32t"]


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
    st.builds(Offline, st.sampled_from(["", "1", "17-19", "1-3,8-11"])),
    st.builds(Edits, st.sampled_from([OURS, OURS - CPUSet.parse("3,19"), MORE])),
)


@dataclass
class Node:
    """A node whose agent is killed and started again after each event.

    Attributes:
        folder: where the agent has its record.
        pods: the pods that the API server lists.
        ended: the others that still have a cgroup.
    """

    folder: Path
    policy: str = "koordinator"
    default: CPUSet = OURS
    offline: str = ""
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
        pools = pool_file(self.default)
        manager = replace(pools.cpu_manager, policy=self.policy)
        topology = MACHINE.without(self.offline).topology()
        self.manager.reconfigure(replace(pools, cpu_manager=manager), topology)
        self.manager.observe(pods=self.pods)

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
            case _:
                pass

    @property
    def chosen(self) -> Mapping[str, Grant]:
        return self.manager.snapshot().resolution.view.chosen


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
)
def test_a_restart_changes_no_grant(first: list[Arrives], story: list[tuple[object, bool]]) -> None:
    """Also with an event between the two lives of the agent."""
    with TemporaryDirectory() as folder:
        node = Node(Path(folder))
        for number, pod in enumerate(first, 100):
            node.happens(pod, number)
        node.start()
        for number, (event, meanwhile) in enumerate(story):
            before = node.chosen
            node.happens(event, number)
            if not meanwhile:
                node.look()
                node.record.decided()
                before = node.chosen
            node.start()
            if not meanwhile:
                assert node.chosen == before
            for uid, grant in before.items():
                assert node.chosen[uid].parts.items() >= grant.parts.items()
                assert node.chosen[uid].sharing is grant.sharing
