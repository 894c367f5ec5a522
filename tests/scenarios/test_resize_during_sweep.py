"""A container is resized while a sweep moves others: these do not get the CPUs that it owns now.

The sweep has decided before the resize. It asks the container runtime for a change, and the runtime
asks the agent about the resize before it answers.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.owners import NodeOwners
from cpupool.core.cpu_manager import DYNAMIC, CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RuntimeBusy
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.enforce.writer_choice import Writers
from cpupool.host.cgroupfs import CgroupFS, CgroupVersion
from tests.cgroups import KernelModel
from tests.nri_agents import MACHINE, PLAIN, Agent, of
from tests.nri_runtime import FakeRuntime, Refused
from tests.runtimes import ModelRuntime
from tests.setters import Source, setter_on
from tests.unit.runtime.nri.static import guaranteed, web
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cpupool.api import nri_pb2
    from cpupool.core.cgroups import FoundContainer
    from cpupool.enforce.sweep import SweepReport
    from tests.nri_pods import Container
    from tests.nri_runtime import Plugin

OWNER = web("web", 2)
MAIN, OTHER = guaranteed(OWNER), of(PLAIN, "plain")
REF = ContainerRef(OWNER.cgroup_uid, "main")
POLICY = CPUManager(DYNAMIC, reserved=CPUSet.of(0), max_notice_s=0)
CPU = 1024
BEFORE, AFTER = "0-1,4-7", "0-1,6-7"
"""The CPUs of the others while the owner has two CPUs, and four."""


class Node:
    """A node with an owner of CPUs 2-3 and another container, which has been moved to CPU 0."""

    def __init__(self, folder: Path, runtime: FakeRuntime, plugin: Plugin, agent: Agent) -> None:
        self.runtime, self.plugin, self.agent = runtime, plugin, agent
        self.kernel = KernelModel(CgroupVersion.V1, {"kubepods": "0-7"}, "0-7")
        writers = Writers(None, agent.runtime, ModelRuntime())
        (folder / "cgroup.controllers").write_text("cpuset\n")
        self.owners = NodeOwners(
            agent.manager,
            CgroupFS(folder),
            Path("/proc"),
            look=lambda: None,
            informed=lambda: True,
        )
        self.setter = setter_on(
            self.kernel, agent.manager, Source([OWNER, PLAIN]), writers=writers, swept=self._swept
        )
        self.sweep()
        for container in (MAIN, OTHER):
            answer = plugin.create(container)
            cpus = answer.adjust.linux.resources.cpu.cpus
            self.kernel.make(_path(container).rpartition("/")[0], "0-7")
            self.kernel.make(_path(container), cpus)
            plugin.start(container)
        assert (self.cpus(MAIN), self.cpus(OTHER)) == ("2-3", BEFORE)
        self.kernel.write(_path(OTHER), CPUSet.of(0))

    def _swept(self, report: SweepReport) -> None:
        self.owners.swept(report)

    def sweep(self, touched: frozenset[str] | None = None) -> SweepReport:
        report = self.setter.sweep(touched)
        self._swept(report)
        return report

    def cpus(self, container: Container) -> str:
        return str(self.kernel.effective(_path(container)))

    def obey(self, update: nri_pb2.ContainerUpdate) -> None:
        """Make a change, as the runtime does."""
        container = MAIN if update.container_id == MAIN.id else OTHER
        self.kernel.write(_path(container), CPUSet.parse(update.linux.resources.cpu.cpus))

    def grow(self) -> None:
        """Resize the owner from two CPUs to four, and make the changes of the answer."""
        self._resize(4)

    def shrink(self) -> None:
        """Resize the owner to two CPUs again; it has no notice."""
        self._resize(2)

    def _resize(self, count: int) -> None:
        answer = self.plugin.update(MAIN, shares=count * CPU, quota_us=count * 100_000)
        for update in answer.update:
            self.obey(update)

    def owned(self) -> str:
        """Return the CPUs that nobody else may have."""
        return str(self.agent.manager.snapshot().resolution.view.chosen[OWNER.cgroup_uid].cpus)

    @property
    def asked(self) -> list[tuple[str, str]]:
        """The changes that the agent has asked for: the container and its CPUs."""
        updates = [each for call in self.plugin.updates for each in call]
        return [(each.container_id, each.linux.resources.cpu.cpus) for each in updates]


def _path(container: Container) -> str:
    return f"kubepods/pod{container.pod.uid}/{container.id}"


@contextmanager
def living(folder: Path, update_s: float) -> Iterator[Node]:
    path = folder / "nri.sock"
    agent = Agent(path, update_s=update_s, guarded=True)
    agent.manager.reconfigure(
        NodePools.of(Pool.named("default", "0-7"), cpu_manager=POLICY), MACHINE.topology()
    )
    with FakeRuntime(path) as runtime, agent.running():
        plugin = runtime.welcome()
        eventually(agent.runtime.connected, "the plugin is connected")
        yield Node(folder, runtime, plugin, agent)


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    with living(folder, 60.0) as made:
        yield made


@pytest.fixture
def impatient(folder: Path) -> Iterator[Node]:
    """Give a node whose agent does not wait long for the runtime."""
    with living(folder, 0.01) as made:
        yield made


def test_a_sweep_repeats_no_change_that_a_resize_has_overtaken(node: Node) -> None:
    node.plugin.silent, node.plugin.obey = True, node.obey
    with ThreadPoolExecutor(1) as pool:
        sweep = pool.submit(node.sweep)
        eventually(lambda: node.asked, "the sweep widens the container of the other pod")
        node.grow()
        node.plugin.silent = False
        node.plugin.answer_updates()
        report = sweep.result()
    assert node.asked == [(OTHER.id, BEFORE)]
    assert (node.cpus(MAIN), node.cpus(OTHER)) == ("2-5", AFTER)
    assert not report.uncertain
    assert node.owners.own_cpus()[REF].settled


def test_a_change_that_the_runtime_makes_after_a_resize_is_repaired_in_the_same_sweep(
    node: Node,
) -> None:
    node.plugin.silent = True
    with ThreadPoolExecutor(1) as pool:
        sweep = pool.submit(node.sweep)
        eventually(lambda: node.asked, "the sweep widens the container of the other pod")
        node.grow()
        node.kernel.write(_path(OTHER), CPUSet.parse(BEFORE))
        node.plugin.silent, node.plugin.obey = False, node.obey
        node.plugin.answer_updates()
        sweep.result()
    assert node.asked == [(OTHER.id, BEFORE), (OTHER.id, AFTER)]
    assert (node.cpus(MAIN), node.cpus(OTHER)) == ("2-5", AFTER)


def test_no_change_is_complete_while_the_runtime_may_still_make_an_earlier_one(
    impatient: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = impatient
    node.plugin.silent = True
    assert node.sweep().uncertain
    assert node.asked == [(OTHER.id, BEFORE)]
    node.grow()
    assert (node.cpus(MAIN), node.cpus(OTHER)) == ("2-5", AFTER)
    assert node.sweep().uncertain
    assert not node.owners.own_cpus()[REF].settled, "the others may get its CPUs once more"

    read = node.kernel.containers

    def read_just_before(known: Mapping[str, Sequence[FoundContainer]]) -> list[FoundContainer]:
        found = [*read(known)]
        node.kernel.write(_path(OTHER), CPUSet.parse(BEFORE))
        node.plugin.answer_updates()
        eventually(lambda: not node.agent.runtime.unanswered, "the agent has the answer")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(node.kernel, "containers", read_just_before)
        assert node.sweep().uncertain
    assert not node.owners.own_cpus()[REF].settled
    node.plugin.silent, node.plugin.obey = False, node.obey
    # No event names the pod: the sweep reads everything again by itself.
    eventually(lambda: not node.sweep(frozenset()).uncertain, "the runtime has answered the sweep")
    assert node.cpus(OTHER) == AFTER
    assert node.owners.own_cpus()[REF].settled


def test_a_request_for_a_container_that_has_ended_holds_nothing_up(impatient: Node) -> None:
    node = impatient
    node.plugin.silent = True
    assert node.sweep().uncertain
    assert node.asked == [(OTHER.id, BEFORE)]
    node.kernel.remove(_path(OTHER))
    node.plugin.stop(OTHER)
    node.grow()
    node.shrink()
    # The runtime never answers.
    assert not node.sweep().uncertain
    assert (node.cpus(MAIN), node.owned()) == ("2-3", "2-3")
    assert node.owners.own_cpus()[REF].settled


def test_a_request_that_the_runtime_has_lost_holds_nothing_up_for_longer_than_a_minute(
    impatient: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, runtime = impatient, impatient.agent.runtime
    node.plugin.silent = True
    assert node.sweep().uncertain
    node.grow()
    assert node.sweep().uncertain
    monkeypatch.setattr(runtime, "_now_s", lambda: time.monotonic() + 60)
    assert not node.sweep().uncertain
    assert node.owners.own_cpus()[REF].settled


def test_a_request_stays_open_while_the_runtime_answers_a_later_one(
    impatient: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, runtime = impatient, impatient.agent.runtime
    node.plugin.silent = True
    assert node.sweep().uncertain
    node.plugin.silent = False
    monkeypatch.setattr(runtime, "_now_s", lambda: time.monotonic() + 10)
    monkeypatch.setattr(runtime, "_update_s", DEADLINE_S)
    runtime.update(ContainerID(OTHER.id), CPUSet.parse("0-1"))
    assert runtime.unanswered
    node.plugin.answer_updates()
    eventually(lambda: not runtime.unanswered, "the answer to the first request")


def test_cpus_that_were_left_are_not_free_while_the_runtime_may_give_them_back(
    impatient: Node,
) -> None:
    node = impatient
    node.grow()
    node.kernel.write(_path(MAIN), CPUSet.of(0))
    node.plugin.silent = True
    assert node.sweep().uncertain
    assert (MAIN.id, "2-5") in node.asked
    node.shrink()
    assert node.cpus(MAIN) == "2-3"
    assert node.sweep().uncertain
    assert node.owned() == "2-5"

    node.plugin.silent, node.plugin.obey = False, node.obey
    node.plugin.answer_updates()
    eventually(lambda: not node.sweep().uncertain, "the runtime has answered")
    assert (node.cpus(MAIN), node.owned()) == ("2-3", "2-3")


def test_a_change_whose_cpus_have_another_owner_is_not_asked_for(node: Node) -> None:
    runtime, other = node.agent.runtime, ContainerID(OTHER.id)
    node.grow()
    with pytest.raises(RuntimeBusy, match="they have another owner by now"):
        runtime.update(other, CPUSet.parse(BEFORE))
    runtime.update_all({other: CPUSet.parse(BEFORE)})
    assert node.asked == []
    runtime.update(other, CPUSet.parse("0-1"))
    assert node.asked == [(OTHER.id, "0-1")]


def test_a_call_over_cri_that_a_resize_has_overtaken_is_refused(node: Node) -> None:
    cpus = CPUSet.parse(BEFORE)
    with node.agent.runtime.expecting(ContainerID(OTHER.id), cpus):
        assert not node.plugin.update(OTHER, cpus=BEFORE).update
        node.grow()
        with pytest.raises(Refused, match="they have another owner by now"):
            node.plugin.update(OTHER, cpus=BEFORE)
