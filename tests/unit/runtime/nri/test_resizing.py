"""Updates by which the kubelet resizes a container that owns CPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.api import nri_pb2
from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs, SMTAlignmentError
from cpupool.core.mounts import Mount
from cpupool.core.pools import NodePools, Pool
from cpupool.core.properties import Properties
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.policies.static.policy import StaticPolicy
from cpupool.runtime.nri.holding import MissingFacts
from cpupool.wire.cpu_manager_state import State
from tests.nri_agents import MACHINE, PLAIN, Agent, of
from tests.nri_runtime import FakeRuntime, Plugin, Refused
from tests.unit.runtime.nri.static import Resizing, govern, guaranteed, web
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.manager.resolve import Snapshot

WEB = web("web", 2)
OTHER = web("other", 2, "2026-01-02T00:00:00Z")
MAIN = guaranteed(WEB)
CPU = 1024


@dataclass
class Node(Agent):
    """An agent whose policy resizes.

    Attributes:
        resizing: its manager.
        known: how many CPUs the container `web` had in each decision that an answer was made of.
    """

    resizing: Resizing = field(default_factory=Resizing)
    known: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manager = self.resizing
        super().__post_init__()

    def decided(self) -> Snapshot:
        now = super().decided()
        grant = now.resolution.view.chosen.get(WEB.cgroup_uid)
        self.known.append(len(grant.cpus) if grant else 0)
        return now


@pytest.fixture(autouse=True)
def _policy_resizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StaticPolicy, "resizes", True)


@pytest.fixture
def agent(folder: Path) -> Node:
    return Node(folder / "nri.sock")


@pytest.fixture
def plugin(agent: Node, runtime: FakeRuntime) -> Iterator[Plugin]:
    """Give the plugin of a node where `web` owns two CPUs, and `plain` has the others."""
    with agent.running():
        connected = runtime.welcome()
        eventually(agent.runtime.connected, "the plugin is connected")
        run(agent, connected)
        yield connected


def run(agent: Node, plugin: Plugin) -> None:
    govern(agent)
    agent.manager.observe(pods=[WEB, PLAIN])
    for container in (MAIN, of(PLAIN, "plain")):
        plugin.create(container)
        plugin.start(container)
    assert (owned(agent), listed(agent)) == ("2-3", {"c1": "2-3", "plain": "0-1,4-7"})


def owned(agent: Node) -> str:
    return str(agent.manager.snapshot().resolution.view.chosen[WEB.cgroup_uid].cpus)


def listed(agent: Node) -> dict[str, str]:
    """Give the CPUs that the runtime has for each container, as far as the plugin knows."""
    return {name: str(known.cpus) for name, known in agent.runtime.containers.items()}


def told(agent: Node) -> int | None:
    """Give how many CPUs the container asks for, as the manager knows."""
    return agent.manager.snapshot().facts.sighted[ContainerID("c1")].owns


def cpus(answer: nri_pb2.UpdateContainerResponse) -> list[tuple[str, str, bool]]:
    return [
        (update.container_id, update.linux.resources.cpu.cpus, update.ignore_failure)
        for update in answer.update
    ]


def test_others_leave_the_new_cpus_in_the_same_answer_and_the_owner_comes_last(
    agent: Node, plugin: Plugin
) -> None:
    answer = plugin.update(MAIN, shares=4 * CPU, quota_us=400_000)
    assert cpus(answer) == [("plain", "0,5-7", False), ("c1", "1-4", False)]
    own = answer.update[-1].linux.resources.cpu
    assert own.quota.value == -1
    assert listed(agent) == {"c1": "1-4", "plain": "0,5-7"}
    assert (agent.resizing.asked, told(agent)) == ([(WEB.cgroup_uid, 4)], 4)
    assert agent.metric('outcome="policy",request="update"} 1.0')
    assert not agent.events.pods


def test_a_resize_is_recorded_before_the_runtime_has_its_answer(
    agent: Node, plugin: Plugin
) -> None:
    plugin.update(MAIN, shares=4 * CPU)
    assert agent.known[-1] == 4


def test_a_resize_asks_for_a_sweep(agent: Node, plugin: Plugin) -> None:
    while agent.looked.acquire(blocking=False):
        pass
    plugin.update(MAIN, shares=2 * CPU)
    assert not agent.looked.acquire(blocking=False)
    plugin.update(MAIN, shares=4 * CPU)
    assert agent.looked.acquire(timeout=10.0)


def test_a_container_keeps_what_is_in_force_until_its_notice_has_ended(
    agent: Node, plugin: Plugin
) -> None:
    """The manager of these tests takes no CPU: as during a notice."""
    assert cpus(plugin.update(MAIN, shares=CPU)) == [("c1", "2-3", False)]
    assert agent.resizing.asked == [(WEB.cgroup_uid, 1)]


@pytest.mark.parametrize(
    ("missing_facts", "ignored"), [(MissingFacts.HOLD, False), (MissingFacts.RELEASE, True)]
)
def test_the_runtime_may_refuse_a_resize_if_another_container_stays(
    folder: Path, runtime: FakeRuntime, missing_facts: MissingFacts, *, ignored: bool
) -> None:
    agent = Node(folder / "nri.sock", missing_facts=missing_facts)
    with agent.running():
        plugin = runtime.welcome()
        run(agent, plugin)
        other, own = cpus(plugin.update(MAIN, shares=4 * CPU))
    assert (other[2], own[2]) == (ignored, False)


def test_a_container_is_named_once_also_if_the_runtime_has_it_on_other_cpus(
    agent: Node, plugin: Plugin
) -> None:
    with agent.runtime.expecting(ContainerID("c1"), CPUSet.parse("0-7")):
        pass
    assert listed(agent)["c1"] == "0-7"
    answer = plugin.update(MAIN, shares=4 * CPU)
    assert cpus(answer) == [("plain", "0,5-7", False), ("c1", "1-4", False)]


def test_another_owner_keeps_its_cpus(agent: Node, plugin: Plugin) -> None:
    agent.manager.observe(pods=[WEB, OTHER, PLAIN])
    other = guaranteed(OTHER, "other")
    plugin.create(other)
    plugin.start(other)
    assert listed(agent)["other"] == "4-5"
    answer = plugin.update(MAIN, shares=4 * CPU)
    assert cpus(answer) == [("plain", "0,7", False), ("c1", "1-3,6", False)]


def test_a_container_that_is_created_again_begins_with_what_it_requests_now(
    agent: Node, plugin: Plugin
) -> None:
    """A `resizePolicy` of RestartContainer brings no update."""
    plugin.stop(MAIN)
    plugin.create(guaranteed(web("web", 1), "c2"))
    uid = WEB.cgroup_uid
    assert agent.resizing.begun == [(uid, 2), (PLAIN.cgroup_uid, 0), (uid, 1)]
    assert not agent.resizing.asked


class TestRefusals:
    def test_the_kubelet_learns_why_and_nothing_changes(self, agent: Node, plugin: Plugin) -> None:
        before = listed(agent)
        with pytest.raises(
            Refused,
            match=r"^cpupool: container default/web/main is not resized: 8 CPUs requested, 5 free;"
            r" request fewer, or free some; the kubelet tries again$",
        ):
            plugin.update(MAIN, shares=8 * CPU)
        assert (owned(agent), listed(agent), told(agent)) == ("2-3", before, 2)
        assert agent.metric('outcome="refused",request="update"} 1.0')

    def test_the_pod_has_an_event_once_for_each_reason(self, agent: Node, plugin: Plugin) -> None:
        def refused(error: NotEnoughCPUs | SMTAlignmentError) -> None:
            agent.resizing.refusal = error
            with pytest.raises(Refused):
                plugin.update(MAIN, shares=8 * CPU)

        few, parts = NotEnoughCPUs(8, 5), SMTAlignmentError(3, 2)
        for error in (few, few, parts, parts):
            refused(error)
        assert [(pod, reason) for pod, reason, _ in agent.events.pods] == [
            ("web", "CPUResizeRefused")
        ] * 2
        assert "8 CPUs requested, 5 free" in agent.events.pods[0][2]
        assert "request a multiple of 2" in agent.events.pods[1][2]

    @pytest.mark.parametrize("between", ["an update", "another container"])
    def test_a_new_refusal_has_an_event_again(
        self, agent: Node, plugin: Plugin, between: str
    ) -> None:
        container = MAIN
        for _ in range(2):
            with pytest.raises(Refused):
                plugin.update(container, shares=8 * CPU)
            if between == "an update":
                plugin.update(container, shares=2 * CPU)
            else:
                plugin.stop(container)
                plugin.remove(container)
                plugin.create(container)
        assert len(agent.events.pods) == 2

    def test_a_refused_resize_can_succeed_later(self, agent: Node, plugin: Plugin) -> None:
        agent.resizing.refusal = NotEnoughCPUs(4, 1)
        with pytest.raises(Refused):
            plugin.update(MAIN, shares=4 * CPU)
        agent.resizing.refusal = None
        plugin.update(MAIN, shares=4 * CPU)
        assert owned(agent) == "1-4"

    def test_no_whole_number_is_for_the_manager_to_refuse(
        self, agent: Node, plugin: Plugin
    ) -> None:
        plugin.update(MAIN, shares=2560)
        assert agent.resizing.asked == [(WEB.cgroup_uid, 0)]


class TestUnknownOwners:
    """An agent that has just started does not know what its predecessor chose."""

    @pytest.fixture
    def plugin(self, agent: Node, runtime: FakeRuntime) -> Iterator[Plugin]:
        govern(agent, adopted=False)
        agent.manager.observe(pods=[WEB])
        with agent.running():
            connected = runtime.welcome([replace(MAIN, cpus="2-3")])
            eventually(agent.runtime.connected, "the plugin is connected")
            yield connected

    @pytest.mark.parametrize("shares", [CPU, 4 * CPU, 2560])
    def test_a_resize_is_refused(self, agent: Node, plugin: Plugin, shares: int) -> None:
        with pytest.raises(
            Refused,
            match="web/main is not resized: the agent does not know the owners of CPUs yet; the"
            " kubelet tries again",
        ):
            plugin.update(MAIN, shares=shares)
        assert (agent.resizing.asked, agent.events.pods, told(agent)) == ([], [], 2)
        assert agent.metric('outcome="refused",request="update"} 1.0')

    @pytest.mark.parametrize("shares", [None, 0, 2 * CPU])
    def test_other_updates_pass(self, agent: Node, plugin: Plugin, shares: int | None) -> None:
        assert cpus(plugin.update(MAIN, shares=shares)) == []
        assert told(agent) == 2

    def test_so_do_containers_that_own_none(self, agent: Node, plugin: Plugin) -> None:
        agent.manager.observe(pods=[WEB, PLAIN])
        assert cpus(plugin.update(of(PLAIN, "plain", shares=CPU), shares=2 * CPU)) == []


class TestOtherUpdates:
    """Each ends as under `static`: the container keeps its CPUs, without a quota."""

    @pytest.mark.parametrize("shares", [None, 0, 2 * CPU])
    def test_one_without_another_number_resizes_nothing(
        self, agent: Node, plugin: Plugin, shares: int | None
    ) -> None:
        """The kubelet changes memory first, with the CPU numbers of before."""
        answer = plugin.update(MAIN, shares=shares, quota_us=200_000)
        assert cpus(answer) == [("c1", "2-3", True)]
        assert answer.update[0].linux.resources.cpu.quota.value == -1
        assert agent.resizing.asked == []

    def test_shares_that_the_runtime_has_forgotten_resize_nothing(
        self, agent: Node, plugin: Plugin
    ) -> None:
        """CRI-O has those of the creation after a restart."""
        plugin.update(MAIN, shares=4 * CPU)
        assert cpus(plugin.update(MAIN, "0-7")) == [("c1", "1-4", True)]
        assert agent.resizing.asked == [(WEB.cgroup_uid, 4)]

    def test_another_program_takes_no_container_off_its_cpus(
        self, agent: Node, plugin: Plugin
    ) -> None:
        assert cpus(plugin.update(MAIN, "0-7")) == [("c1", "2-3", True)]
        assert agent.resizing.asked == []

    def test_a_container_that_shares_is_not_resized(self, agent: Node, plugin: Plugin) -> None:
        container = of(PLAIN, "plain", shares=512)
        assert cpus(plugin.update(container, shares=2 * CPU)) == [("plain", "0-1,4-7", True)]
        assert agent.resizing.asked == []

    def test_a_pod_whose_containers_own_cpus_together_keeps_them(
        self, agent: Node, plugin: Plugin
    ) -> None:
        agent.resizing.give_together(WEB)
        assert cpus(plugin.update(MAIN, shares=4 * CPU)) == [("c1", "2-3", True)]
        assert agent.resizing.asked == []

    def test_a_policy_that_resizes_nothing_keeps_the_cpus(
        self, agent: Node, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(StaticPolicy, "resizes", False)
        answer = plugin.update(MAIN, shares=4 * CPU, quota_us=400_000)
        assert cpus(answer) == [("c1", "2-3", True)]
        assert answer.update[0].linux.resources.cpu.quota.value == -1
        assert (agent.resizing.asked, told(agent)) == ([], 4)


class TestOwnCalls:
    """What cpupool asks for over CRI comes back as an update, and passes unchanged."""

    @pytest.mark.parametrize(
        ("properties", "asked"),
        [
            pytest.param(Properties(), {}, id="its CPUs"),
            pytest.param(Properties(bandwidth=Bandwidth(-1)), {"quota_us": -1}, id="its quota"),
            pytest.param(Properties(shares=4 * CPU), {"shares": 4 * CPU}, id="its shares"),
        ],
    )
    def test_it_is_no_resize(
        self, agent: Node, plugin: Plugin, properties: Properties, asked: dict[str, int]
    ) -> None:
        with agent.runtime.expecting(ContainerID("c1"), CPUSet(), properties):
            assert cpus(plugin.update(MAIN, **asked)) == []  # type: ignore[arg-type]
        assert agent.resizing.asked == []

    @pytest.mark.parametrize(
        "properties", [Properties(), Properties(bandwidth=Bandwidth(-1)), Properties(shares=CPU)]
    )
    def test_a_resize_that_comes_meanwhile_is_not_lost(
        self, agent: Node, plugin: Plugin, properties: Properties
    ) -> None:
        with agent.runtime.expecting(ContainerID("c1"), CPUSet(), properties):
            answer = plugin.update(MAIN, shares=4 * CPU, quota_us=400_000)
        assert cpus(answer)[-1] == ("c1", "1-4", False)
        assert agent.resizing.asked == [(WEB.cgroup_uid, 4)]


def test_after_a_resize_without_an_agent_others_leave_before_the_owner_gets_their_cpus(
    folder: Path, runtime: FakeRuntime
) -> None:
    agent = Agent(folder / "nri.sock")
    settings = CPUManager("dynamic", reserved=CPUSet.of(0))
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=settings)
    agent.manager.reconfigure(pools, MACHINE.topology())
    agent.manager.observe(pods=[web("web", 4), PLAIN])
    agent.manager.adopt((), State("dynamic", entries={WEB.cgroup_uid: {"main": CPUSet.of(2, 3)}}))
    running = [
        replace(MAIN, cpus="2-3", shares=4 * CPU, state=nri_pb2.CONTAINER_RUNNING),
        of(PLAIN, "plain", cpus="0-1,4-7", state=nri_pb2.CONTAINER_RUNNING),
    ]
    with agent.running():
        plugin = runtime.accept()
        plugin.configure()
        moved = plugin.synchronize(running)
    assert [(each.container_id, each.linux.resources.cpu.cpus) for each in moved] == [
        ("plain", "0-1,6-7"),
        ("c1", "2-5"),
    ]


class TestFolder:
    """The folder that tells a container of changes of its CPUs."""

    MOUNT = Mount("/run/cpupool/self", "/var/lib/cpupool/self/web-uid/main")

    @pytest.fixture
    def plugin(self, agent: Node, runtime: FakeRuntime) -> Iterator[Plugin]:
        agent.folder = self.made
        self.asked: list[ContainerRef] = []
        govern(agent)
        agent.manager.observe(pods=[WEB, PLAIN])
        with agent.running():
            yield runtime.welcome()

    def made(self, ref: ContainerRef) -> Mount | None:
        self.asked.append(ref)
        return self.MOUNT

    def test_an_owner_has_it(self, plugin: Plugin) -> None:
        (mount,) = plugin.create(MAIN).adjust.mounts
        assert mount == nri_pb2.Mount(
            destination=self.MOUNT.container_path,
            type="bind",
            source=self.MOUNT.host_path,
            options=["rbind", "rprivate", "ro"],
        )
        assert self.asked == [ContainerRef(WEB.cgroup_uid, "main")]

    def test_others_have_none(self, plugin: Plugin) -> None:
        assert not plugin.create(of(PLAIN, "plain")).adjust.mounts
        assert self.asked == []

    def test_a_folder_that_cannot_be_made_holds_no_container(
        self, agent: Node, plugin: Plugin
    ) -> None:
        agent.folder = lambda _ref: None
        assert not plugin.create(MAIN).adjust.mounts
