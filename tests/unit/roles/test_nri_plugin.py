from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    ContainerNotFound,
    RemoteProtocolError,
    RuntimeBusy,
    RuntimeRefused,
    RuntimeSilent,
)
from cpupool.core.pools import NodePools, Pool
from cpupool.core.quota import Bandwidth
from cpupool.core.workloads import ContainerID
from cpupool.enforce.ways import Ways
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.manager import Manager
from cpupool.manager.ports import Way
from cpupool.roles.nri_plugin import MissingFacts, NRIPlugin
from cpupool.runtime.nri_connection import Connection, Launch
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.cgroups import KernelModel
from tests.events import Heard
from tests.loops import running
from tests.machines import MACHINES
from tests.nri_runtime import (
    FIRST_EVENTS,
    PLUGIN,
    Container,
    FakeRuntime,
    Plugin,
    Refused,
    frames,
)
from tests.nri_runtime import Pod as NRIPod
from tests.quotas import QuotaModel
from tests.runtimes import ModelRuntime
from tests.searching import examples
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cpupool.core.workloads import Pod

MACHINE = MACHINES["laptop_4c8t"]
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"),
    Pool.named("exclusive_b", "6"),
    Pool.named("shared_a", "1"),
    Pool.named("default", "0"),
)
OWNER = builders.pod("owner", builders.container(running=False, exclusive_a=1))
OWNER_SANDBOX = NRIPod(OWNER.uid).sandbox
EARLIER = builders.pod("earlier", builders.container(running=False, exclusive_a=1))
PLAIN = builders.pod("plain", builders.container(running=False))


def of(pod: Pod, identifier: str = "c1", **fields: object) -> Container:
    """Give a pod's container as the runtime knows it."""
    return replace(Container(NRIPod(pod.uid, pod.name), identifier), **fields)  # type: ignore[arg-type]


def cpu_of(answer: nri_pb2.CreateContainerResponse) -> nri_pb2.LinuxCPU:
    return answer.adjust.linux.resources.cpu


@dataclass
class Agent:
    """The role with a manager that knows the pools, and no pod yet."""

    socket: Path
    missing_facts: MissingFacts = MissingFacts.HOLD
    required: bool = False
    launch: Launch | None = None
    ready: bool = True
    manager: Manager = field(default_factory=Manager)
    health: Health = field(default_factory=Health)
    metrics: Metrics = field(default_factory=Metrics)
    events: Heard = field(default_factory=Heard)
    patient: bool = False
    """Containers wait for their facts as long as it takes."""
    clock: Callable[[], float] = time.monotonic
    update_s: float = DEADLINE_S
    looked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.manager.reconfigure(POOLS, MACHINE.topology())
        self.manager.observe(pods=[])
        self.plugin = self.made()

    def made(self) -> NRIPlugin:
        return NRIPlugin(
            self.manager,
            self.socket,
            launch=self.launch,
            required=self.required,
            missing_facts=self.missing_facts,
            ready=lambda: self.ready,
            look=self.looked.release,
            events=self.events,
            metrics=self.metrics,
            health=self.health,
            update_s=self.update_s,
            now_s=lambda: 0.0 if self.patient else self.clock(),
        )

    def running(self) -> AbstractContextManager[threading.Event]:
        return running(self.plugin.run, wake=self.plugin.wake)

    def give(self, pod: Pod, **ids: str) -> None:
        """Let the kubelet's word on a container's devices come."""
        self.manager.accept(builders.given(pod, **ids))
        self.plugin.facts_changed()

    def allocated(self, container: Container) -> Container:
        """Let the kubelet have asked for the devices that a container's annotations name."""
        for pool, text in container.devices.items():
            self.manager.promise(builders.resource(pool), map(str, CPUSet.parse(text)))
        return container

    def metric(self, line: str) -> bool:
        return line in self.metrics.render()[1].decode()


@pytest.fixture
def runtime(folder: Path) -> Iterator[FakeRuntime]:
    with FakeRuntime(folder / "nri.sock", alone=True) as made:
        yield made


@pytest.fixture
def agent(folder: Path) -> Agent:
    return Agent(folder / "nri.sock")


@pytest.fixture
def plugin(agent: Agent, runtime: FakeRuntime) -> Iterator[Plugin]:
    with agent.running():
        connected = runtime.welcome()
        eventually(agent.plugin.connected, "the plugin is connected")
        yield connected


def test_a_container_is_created_on_the_cpus_that_its_annotations_name(
    agent: Agent, plugin: Plugin
) -> None:
    answer = plugin.create(agent.allocated(of(OWNER, devices={"exclusive_a": "2"})))
    assert cpu_of(answer).cpus == "2"
    assert {one.key: one.value for one in answer.adjust.env} == {
        "EXCLUSIVE_CPUS": "2",
        "CPUPOOL_CPUS_EXCLUSIVE_A": "2",
    }
    assert builders.owned(agent.manager) == {OWNER.uid: {"exclusive_a": CPUSet.of(2)}}
    assert agent.metric('outcome="pools",request="create"} 1.0')


def test_what_a_pods_author_annotates_gives_no_cpu(agent: Agent, plugin: Plugin) -> None:
    owner = agent.allocated(of(OWNER, devices={"exclusive_a": "2"}))
    forged = {"nokia.k8s.io/allocated.exclusive_a": "2"}
    forger = NRIPod(PLAIN.uid, PLAIN.name, annotations=forged)
    answer = plugin.create(Container(forger, "c2"))
    assert cpu_of(answer).cpus == "0"
    assert not answer.adjust.env

    assert cpu_of(plugin.create(owner)).cpus == "2"
    agent.manager.observe(pods=[PLAIN])
    assert builders.owned(agent.manager) == {OWNER.uid: {"exclusive_a": CPUSet.of(2)}}


def test_a_container_without_pools_is_created_on_the_default_pool(
    agent: Agent, plugin: Plugin
) -> None:
    answer = plugin.create(of(PLAIN))
    assert cpu_of(answer).cpus == "0"
    assert not cpu_of(answer).HasField("quota")
    assert not answer.adjust.env


def test_variables_of_a_kind_are_joined_and_only_those_that_are_wrong_are_set(
    agent: Agent, plugin: Plugin
) -> None:
    told = {"EXCLUSIVE_CPUS": "2", "CPUPOOL_CPUS_EXCLUSIVE_A": "2", "CPUPOOL_CPUS_EXCLUSIVE_B": "6"}
    owner = of(OWNER, devices={"exclusive_a": "2", "exclusive_b": "6"}, environment=told)
    answer = plugin.create(agent.allocated(owner))
    assert cpu_of(answer).cpus == "2,6"
    assert [(one.key, one.value) for one in answer.adjust.env] == [("EXCLUSIVE_CPUS", "2,6")]


@pytest.mark.parametrize(
    ("devices", "before_us", "quota_us"),
    [
        ({"shared_a": "0-499"}, None, 50_000),
        ({"shared_a": "0-499"}, 80_000, 50_000),
        ({"shared_a": "0-499"}, 20_000, None),
        ({"exclusive_a": "2"}, 100_000, -1),
        ({"exclusive_a": "2"}, None, None),
        ({"exclusive_a": "2", "shared_a": "0-499"}, 100_000, -1),
    ],
)
def test_the_quota_follows_the_pools(
    agent: Agent,
    plugin: Plugin,
    devices: dict[str, str],
    before_us: int | None,
    quota_us: int | None,
) -> None:
    container = agent.allocated(of(OWNER, devices=devices, quota_us=before_us))
    cpu = cpu_of(plugin.create(container))
    assert (cpu.quota.value if cpu.HasField("quota") else None) == quota_us


def test_what_is_not_the_kubelets_is_left_alone(agent: Agent, plugin: Plugin) -> None:
    answer = plugin.create(Container(NRIPod("u", labelled=False), "c1"))
    assert not answer.HasField("adjust")
    assert agent.plugin.held(ContainerID("c1")) is None


def test_an_answer_waits_for_the_kubelets_word(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER))
    eventually(lambda: agent.manager.snapshot().resolution.containers, "the container is known")
    assert agent.looked.acquire(timeout=DEADLINE_S)
    assert not answer.done()
    agent.give(OWNER, exclusive_a="4")
    assert cpu_of(answer.result(DEADLINE_S)).cpus == "4"


def test_a_container_whose_devices_nobody_names_is_held(agent: Agent, plugin: Plugin) -> None:
    agent.manager.observe(pods=[OWNER])
    with pytest.raises(Refused, match=r"owner/main is held: .*exclusive_a.* tries again"):
        plugin.create(of(OWNER))
    assert agent.metric('outcome="held",request="create"} 1.0')
    assert [reason for _, reason, _ in agent.events.pods] == ["CPUContainerHeld"]


def test_the_runtime_waits_once_for_a_container_and_a_second_in_ten_for_all(folder: Path) -> None:
    now_s = 100.0
    agent = Agent(folder / "nri.sock", clock=lambda: now_s)
    others = [
        builders.pod(name, builders.container(running=False, exclusive_a=1)) for name in ("b", "c")
    ]
    agent.manager.observe(pods=[OWNER, *others])
    with FakeRuntime(folder / "nri.sock") as runtime, agent.running():
        plugin = runtime.welcome()
        eventually(agent.plugin.connected, "the plugin is connected")
        answer = waiting(agent, plugin, of(OWNER))
        now_s += 1.0
        agent.plugin.wake()
        with pytest.raises(Refused):
            answer.result(DEADLINE_S)
        for unlucky in (of(OWNER, "again"), of(others[0], "other")):
            with pytest.raises(Refused):
                plugin.create(unlucky)

        now_s += 10.0
        answer = waiting(agent, plugin, of(others[0], "other again"))
        agent.give(others[0], exclusive_a="4")
        assert cpu_of(answer.result(DEADLINE_S)).cpus == "4"
        with pytest.raises(Refused):
            plugin.create(of(OWNER, "once more"))
        waiting(agent, plugin, of(others[1], "third"))


def waiting(
    agent: Agent, plugin: Plugin, container: Container
) -> Future[nri_pb2.CreateContainerResponse]:
    """Let the runtime create a container, and return once it waits for that."""
    # Its answer comes after everything that was said before.
    plugin.run_sandbox(container.pod)
    while agent.looked.acquire(blocking=False):
        pass
    answer = plugin.creating(container)
    assert agent.looked.acquire(timeout=DEADLINE_S), "a container that waits asks for a sweep"
    assert not answer.done()
    return answer


def test_a_container_that_is_held_is_not_there(agent: Agent, plugin: Plugin) -> None:
    agent.manager.observe(pods=[OWNER])
    with pytest.raises(Refused):
        plugin.create(of(OWNER))
    eventually(
        lambda: agent.manager.snapshot().facts.sighted.keys() == {OWNER_SANDBOX},
        "only the sandbox is",
    )


def test_a_creation_that_ends_while_it_waits_leaves_nothing(folder: Path) -> None:
    agent = Agent(folder / "nri.sock", MissingFacts.RELEASE)
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    with FakeRuntime(folder / "nri.sock") as runtime, agent.running():
        plugin = runtime.welcome()
        answer = plugin.creating(of(OWNER))
        plugin.stop(of(OWNER))
        with pytest.raises(Refused, match="c1 has ended"):
            answer.result(DEADLINE_S)
        assert agent.plugin.held(ContainerID("c1")) is None
        assert agent.manager.snapshot().facts.sighted.keys() == {OWNER_SANDBOX}


def test_a_container_that_waits_stays_known_whatever_the_runtime_names_again(
    agent: Agent, plugin: Plugin
) -> None:
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER))
    plugin.synchronize()
    agent.give(OWNER, exclusive_a="4")
    assert cpu_of(answer.result(DEADLINE_S)).cpus == "4"


def test_or_released_into_the_default_pool(folder: Path, runtime: FakeRuntime) -> None:
    agent = Agent(folder / "nri.sock", MissingFacts.RELEASE)
    agent.manager.observe(pods=[OWNER])
    with agent.running():
        assert cpu_of(runtime.welcome().create(of(OWNER))).cpus == "0"


def taken(agent: Agent, plugin: Plugin) -> Container:
    """Start a container of an earlier pod on CPU 2, and let the kubelet give that to another."""
    agent.manager.observe(pods=[EARLIER, OWNER])
    agent.give(EARLIER, exclusive_a="2")
    container = of(EARLIER, "earlier")
    plugin.run_sandbox(container.pod)
    plugin.create(container)
    plugin.start(container)
    agent.give(OWNER, exclusive_a="2")
    return container


def test_a_container_waits_until_the_pod_that_has_its_cpu_is_gone(
    agent: Agent, plugin: Plugin
) -> None:
    agent.patient = True
    taken(agent, plugin)
    answer = plugin.creating(of(OWNER))
    eventually(lambda: "c1" in agent.manager.snapshot().facts.sighted, "the container waits")
    assert not answer.done()
    agent.manager.observe(pods=[replace(EARLIER, finished=True), OWNER])
    agent.plugin.facts_changed()
    created = answer.result(DEADLINE_S)
    assert cpu_of(created).cpus == "2"
    assert ("EXCLUSIVE_CPUS", "2") in {(one.key, one.value) for one in created.adjust.env}
    assert not agent.events.pods


def test_the_runtimes_word_on_a_pods_end_is_enough(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    earlier = taken(agent, plugin)
    # The API server has never listed it.
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER))
    eventually(lambda: "c1" in agent.manager.snapshot().facts.sighted, "the container waits")
    plugin.stop(earlier)
    assert not answer.done()
    plugin.remove_sandbox(earlier.pod)
    assert cpu_of(answer.result(DEADLINE_S)).cpus == "2"


def test_a_container_whose_cpu_another_pod_has_is_held(agent: Agent, plugin: Plugin) -> None:
    taken(agent, plugin)
    with pytest.raises(Refused, match=r"owner/main is held: .* pod default/earlier still has them"):
        plugin.create(of(OWNER))
    assert agent.plugin.held(ContainerID("c1")) is None
    ((pod, reason, message),) = agent.events.pods
    assert (pod, reason) == ("owner", "CPUContainerHeld")
    assert "CPUs 2 of exclusive_a" in message
    assert "pod default/earlier" in message
    assert "look why that pod does not end" in message


def test_or_released_until_it_can_have_its_cpu(folder: Path, runtime: FakeRuntime) -> None:
    agent = Agent(folder / "nri.sock", MissingFacts.RELEASE)
    with agent.running():
        plugin = runtime.welcome()
        taken(agent, plugin)
        answer = plugin.create(of(OWNER))
    assert cpu_of(answer).cpus == "0"
    ((pod, reason, message),) = agent.events.pods
    assert (pod, reason) == ("owner", "CPUContainerReleased")
    assert "starts in the default pool" in message
    assert "pod default/earlier" in message


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(replace(OWNER, node_critical=True), id="of the class system-node-critical"),
        pytest.param(replace(OWNER, cgroup_uid="hash"), id="static"),
    ],
)
def test_what_the_node_may_need_is_never_held(agent: Agent, plugin: Plugin, pod: Pod) -> None:
    agent.manager.observe(pods=[pod])
    container = Container(NRIPod(pod.cgroup_uid, pod.name), "c1")
    assert cpu_of(plugin.create(container)).cpus == "0"
    assert [reason for _, reason, _ in agent.events.pods] == ["CPUContainerReleased"]


def test_others_leave_the_cpus_of_a_container_before_it_starts(
    agent: Agent, plugin: Plugin
) -> None:
    plugin.create(of(PLAIN, "p"))
    plugin.start(of(PLAIN, "p"))
    edited = NodePools.of(Pool.named("exclusive_c", "0"), Pool.named("default", "2-3"))
    agent.manager.reconfigure(edited, MACHINE.topology())
    answer = plugin.create(agent.allocated(of(OWNER, devices={"exclusive_c": "0"})))
    assert [(one.container_id, one.linux.resources.cpu.cpus) for one in answer.update] == [
        ("p", "2-3")
    ]
    assert agent.plugin.held(ContainerID("p")) == "2-3"


def test_a_container_is_judged_once_the_runtime_has_brought_it_onto_its_cpus(
    agent: Agent, plugin: Plugin
) -> None:
    container = of(PLAIN)
    plugin.create(container)
    assert agent.plugin.starting(ContainerID("c1"))
    plugin.start(container)
    assert not agent.plugin.starting(ContainerID("c1"))
    assert agent.plugin.held(ContainerID("c1")) == "0"


def test_what_has_ended_is_forgotten(agent: Agent, plugin: Plugin) -> None:
    for end in (plugin.stop, plugin.remove):
        container = of(PLAIN)
        plugin.run_sandbox(container.pod)
        plugin.create(container)
        end(container)
        plugin.remove_sandbox(container.pod)
        assert agent.plugin.held(ContainerID("c1")) is None
        assert not agent.manager.snapshot().facts.sighted


@pytest.mark.parametrize(
    ("asked_us", "before_us", "quota_us"),
    [
        pytest.param(None, 20_000, None, id="left as it is, and strict enough"),
        pytest.param(0, 20_000, None, id="so in zeros"),
        pytest.param(0, 80_000, 50_000, id="left as it is, and too wide"),
        pytest.param(80_000, 20_000, 50_000, id="widened too far"),
        pytest.param(-1, 20_000, 50_000, id="lifted"),
    ],
)
def test_an_update_widens_no_quota(
    agent: Agent, plugin: Plugin, asked_us: int | None, before_us: int, quota_us: int | None
) -> None:
    container = agent.allocated(of(OWNER, devices={"shared_a": "0-499"}, quota_us=before_us))
    plugin.create(container)
    (update,) = plugin.update(container, quota_us=asked_us).update
    cpu = update.linux.resources.cpu
    assert (cpu.quota.value if cpu.HasField("quota") else None) == quota_us


def test_a_quota_keeps_the_runtimes_own_period(agent: Agent, plugin: Plugin) -> None:
    container = agent.allocated(of(OWNER, devices={"shared_a": "0-499"}, quota_us=80_000))
    plugin.create(container)
    (update,) = plugin.update(container, quota_us=40_000, period_us=50_000).update
    cpu = update.linux.resources.cpu
    assert (cpu.quota.value, cpu.period.value) == (25_000, 50_000)


@pytest.mark.parametrize("asked", ["", "0-7"])
def test_an_update_takes_no_container_off_its_cpus(
    agent: Agent, plugin: Plugin, asked: str
) -> None:
    container = agent.allocated(of(OWNER, devices={"exclusive_a": "2"}))
    plugin.create(container)
    (update,) = plugin.update(container, asked, quota_us=300_000).update
    cpu = update.linux.resources.cpu
    assert (update.container_id, cpu.cpus, cpu.quota.value) == ("c1", "2", -1)


@pytest.mark.parametrize(("nri", "may"), [("", True), ("v0.12.0", True), ("v0.12.1", False)])
def test_the_runtimes_version_tells_whether_changes_can_lock_it_up(
    folder: Path, nri: str, *, may: bool
) -> None:
    agent = Agent(folder / "nri.sock")
    assert agent.plugin.may_lock_up, "nothing is known yet"
    with FakeRuntime(folder / "nri.sock", nri=nri) as runtime, agent.running():
        runtime.welcome()
        assert agent.plugin.may_lock_up is may


@dataclass
class Calls(ModelRuntime):
    """The runtime as it is called: it asks its plugin first, as containerd and CRI-O do."""

    here: bool = True
    ask: Callable[[str, int | None], nri_pb2.UpdateContainerResponse] = field(kw_only=True)
    answers: list[list[nri_pb2.ContainerUpdate]] = field(default_factory=list)

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        super().update(container, cpus)
        self.answers.append(list(self.ask(str(cpus), None).update))

    def limit(self, container: ContainerID, bandwidth: Bandwidth) -> None:
        super().limit(container, bandwidth)
        self.answers.append(list(self.ask("", bandwidth.quota_us).update))


@pytest.fixture
def old(folder: Path) -> Iterator[tuple[Agent, Plugin]]:
    """Give a plugin of a runtime that its changes could lock up: none may come."""
    agent = Agent(folder / "nri.sock")
    with FakeRuntime(folder / "nri.sock", alone=True, nri="v0.12.0") as runtime, agent.running():
        plugin = runtime.welcome()
        eventually(agent.plugin.connected, "the plugin is connected")
        yield agent, plugin
        assert plugin.updates == []


def called(agent: Agent, plugin: Plugin) -> tuple[Container, Calls, Ways]:
    """Create a container that belongs on CPU 2, and give the ways to it."""
    container = agent.allocated(of(OWNER, devices={"exclusive_a": "2"}, quota_us=50_000))
    plugin.create(container)
    calls = Calls(
        lists={"c1": "2"}, ask=lambda cpus, quota_us: plugin.update(container, cpus, quota_us)
    )
    return container, calls, Ways(None, agent.plugin, calls)


def test_a_runtime_that_could_lock_up_is_called_and_its_question_passes(
    old: tuple[Agent, Plugin],
) -> None:
    agent, plugin = old
    container, calls, ways = called(agent, plugin)
    identifier = ContainerID("c1")
    way = ways.of(identifier, None, new=True)
    assert way is Way.CRI

    # Where it waits until its own CPUs are free.
    kernel = KernelModel(CgroupVersion.V2, {"pod": "0-7", "pod/c1": "2"})
    ways.through(way, kernel, "pod/c1", identifier).write("pod/c1", CPUSet.of(0))
    assert (calls.answers, agent.plugin.held(identifier)) == ([[]], "0")
    # A quota leaves it there.
    quotas = QuotaModel({"pod": (-1, 100_000), "pod/c1": (-1, 100_000)})
    assert ways.limit(quotas, "pod/c1", identifier, Bandwidth(60_000)) is Way.CRI
    assert (calls.answers, agent.plugin.held(identifier)) == ([[], []], "0")

    # Nobody else's change does.
    (update,) = plugin.update(container, "5").update
    assert update.linux.resources.cpu.cpus == "2"
    assert agent.plugin.held(identifier) == "2"


def test_another_change_of_a_container_that_is_called_about_does_not_pass(
    old: tuple[Agent, Plugin],
) -> None:
    agent, plugin = old
    container, _, _ = called(agent, plugin)
    with agent.plugin.expecting(ContainerID("c1"), CPUSet.of(0)):
        (update,) = plugin.update(container, "5").update
    assert update.linux.resources.cpu.cpus == "2"


def test_a_call_that_fails_leaves_the_list_that_the_runtime_has(old: tuple[Agent, Plugin]) -> None:
    agent, plugin = old
    _, calls, ways = called(agent, plugin)
    calls.refusing = "no"
    kernel = KernelModel(CgroupVersion.V2, {"pod": "0-7", "pod/c1": "2"})
    with pytest.raises(RuntimeRefused):
        ways.through(Way.CRI, kernel, "pod/c1", ContainerID("c1")).write("pod/c1", CPUSet.of(0))
    assert agent.plugin.held(ContainerID("c1")) == "2"


def test_a_runtime_that_waits_for_an_answer_is_not_called(old: tuple[Agent, Plugin]) -> None:
    agent, plugin = old
    _, calls, ways = called(agent, plugin)
    agent.patient = True
    agent.manager.observe(pods=[EARLIER])
    answer = plugin.creating(of(EARLIER, "held"))
    eventually(lambda: "held" in agent.manager.snapshot().facts.sighted, "the container waits")
    quotas = QuotaModel({"pod": (-1, 100_000), "pod/c1": (-1, 100_000)})
    with pytest.raises(RuntimeBusy, match="it waits for an answer itself"):
        ways.limit(quotas, "pod/c1", ContainerID("c1"), Bandwidth(60_000))
    assert calls.answers == []
    agent.give(EARLIER, exclusive_a="4")
    answer.result(DEADLINE_S)
    assert ways.limit(quotas, "pod/c1", ContainerID("c1"), Bandwidth(60_000)) is Way.CRI


def test_what_runs_is_corrected_when_the_plugin_comes(agent: Agent, runtime: FakeRuntime) -> None:
    running = nri_pb2.CONTAINER_RUNNING
    owner = of(OWNER, "owner", cpus="2", devices={"exclusive_a": "2"}, state=running)
    there = [
        of(PLAIN, "right", cpus="0", state=running),
        of(PLAIN, "wrong", cpus="0-7", state=running),
        of(PLAIN, "nobodys", state=running),
        of(PLAIN, "not-started"),
        of(PLAIN, "over", cpus="0-7", state=nri_pb2.CONTAINER_STOPPED),
        agent.allocated(owner),
        of(PLAIN, "garbage", cpus="banana", state=running),
    ]
    with agent.running():
        plugin = runtime.accept()
        plugin.configure()
        updates = plugin.synchronize(there)
        assert {one.container_id: one.linux.resources.cpu.cpus for one in updates} == {
            "wrong": "0",
            "not-started": "0",
        }
        eventually(agent.plugin.connected, "the plugin is connected")
        # Some runtimes start one while they name it, and do not tell.
        assert not agent.plugin.starting(ContainerID("not-started"))
        # The runtime has no list for these, so they are written directly.
        assert agent.plugin.held(ContainerID("nobodys")) == ""
        assert agent.plugin.held(ContainerID("over")) is None
        assert agent.metric("cpupool_nri_connected 1.0")
        assert agent.looked.acquire(timeout=DEADLINE_S)


def test_the_runtime_is_asked_to_move_a_container(agent: Agent, plugin: Plugin) -> None:
    plugin.create(of(PLAIN))
    agent.plugin.update(ContainerID("c1"), CPUSet.of(5))
    ((update,),) = plugin.updates
    assert (update.container_id, update.linux.resources.cpu.cpus) == ("c1", "5")
    assert agent.plugin.held(ContainerID("c1")) == "5"


def test_a_runtime_that_does_not_move_a_container_is_told_of(agent: Agent, plugin: Plugin) -> None:
    with pytest.raises(ContainerNotFound):
        agent.plugin.update(ContainerID("c1"), CPUSet.of(5))
    plugin.create(of(PLAIN))
    plugin.failing.add("c1")
    with pytest.raises(RuntimeRefused, match="CPUs 5: look at its log"):
        agent.plugin.update(ContainerID("c1"), CPUSet.of(5))
    assert agent.plugin.held(ContainerID("c1")) == "0"


def test_who_waits_for_the_runtime_lets_go_when_it_waits_itself(
    agent: Agent, plugin: Plugin
) -> None:
    plugin.create(of(PLAIN))
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    plugin.silent = True
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(agent.plugin.update, ContainerID("c1"), CPUSet.of(5))
        eventually(lambda: plugin.updates, "the runtime is asked")
        answer = plugin.creating(of(OWNER, "held"))
        with pytest.raises(RuntimeBusy):
            asked.result(DEADLINE_S)
        agent.give(OWNER, exclusive_a="2")
        assert cpu_of(answer.result(DEADLINE_S)).cpus == "2"
    # What it answers later counts.
    plugin.answer_updates()
    eventually(lambda: agent.plugin.held(ContainerID("c1")) == "5", "it is moved")


def test_several_containers_are_moved_by_one_call(agent: Agent, plugin: Plugin) -> None:
    for name in ("c1", "c2", "c3"):
        plugin.create(of(PLAIN, name))
    plugin.failing.add("c2")
    agent.plugin.update_all({ContainerID(f"c{number}"): CPUSet.of(5) for number in (1, 2, 3, 4)})
    (updates,) = plugin.updates
    assert [one.container_id for one in updates] == ["c1", "c2", "c3"]
    held = [agent.plugin.held(ContainerID(f"c{number}")) for number in (1, 2, 3)]
    assert held == ["5", "0", "5"], "a failure concerns one container"
    agent.plugin.update_all({ContainerID("c4"): CPUSet.of(5)})
    assert len(plugin.updates) == 1


def test_a_runtime_that_does_not_answer_is_asked_nothing_more(folder: Path) -> None:
    now_s = 0.0
    agent = Agent(folder / "nri.sock", clock=lambda: now_s, update_s=0.05)
    with FakeRuntime(folder / "nri.sock") as runtime, agent.running():
        plugin = runtime.welcome()
        for name in ("c1", "c2"):
            plugin.create(of(PLAIN, name))
        plugin.silent = True
        with pytest.raises(RuntimeSilent, match="CPUs 5: it does not answer"):
            agent.plugin.update(ContainerID("c1"), CPUSet.of(5))
        with pytest.raises(RuntimeSilent):
            agent.plugin.update(ContainerID("c2"), CPUSet.of(5))
        with pytest.raises(RuntimeSilent):
            agent.plugin.update_all({ContainerID("c2"): CPUSet.of(5)})
        with pytest.raises(RuntimeSilent):
            agent.plugin.limit(ContainerID("c2"), Bandwidth(400_000))
        eventually(lambda: len(plugin.updates) == 1, "only one call has come")
        # It says other things meanwhile, and its answer may still come.
        assert cpu_of(plugin.create(of(PLAIN, "c3"))).cpus == "0"

        now_s = 6.0
        with pytest.raises(RuntimeSilent):
            agent.plugin.update(ContainerID("c2"), CPUSet.of(5))
        eventually(lambda: len(plugin.updates) == 2, "it is asked again after a while")

        while agent.looked.acquire(blocking=False):
            pass
        plugin.answer_updates()
        assert agent.looked.acquire(timeout=DEADLINE_S), "an answer is news"
        assert agent.plugin.held(ContainerID("c2")) == "5"
        plugin.silent = False
        eventually(lambda: moved(agent, "c1"), "it is asked as before")


def moved(agent: Agent, container: str) -> bool:
    with suppress(RuntimeSilent):
        agent.plugin.update(ContainerID(container), CPUSet.of(5))
        return True
    return False


def test_nothing_is_asked_of_a_runtime_that_waits_for_an_answer(
    agent: Agent, plugin: Plugin
) -> None:
    plugin.create(of(PLAIN))
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER, "held"))
    eventually(lambda: "held" in agent.manager.snapshot().facts.sighted, "the container waits")
    with pytest.raises(RuntimeRefused, match="it waits for an answer itself"):
        agent.plugin.update(ContainerID("c1"), CPUSet.of(5))
    agent.give(OWNER, exclusive_a="2")
    answer.result(DEADLINE_S)
    agent.plugin.update(ContainerID("c1"), CPUSet.of(5))


def test_a_quota_is_set_by_the_runtime_and_no_cpus_are(agent: Agent, plugin: Plugin) -> None:
    plugin.create(of(PLAIN))
    agent.plugin.limit(ContainerID("c1"), Bandwidth(400_000))
    ((update,),) = plugin.updates
    cpu = update.linux.resources.cpu
    assert (cpu.cpus, cpu.quota.value, cpu.period.value) == ("", 400_000, 100_000)
    assert not update.ignore_failure
    assert agent.plugin.held(ContainerID("c1")) == "0"

    with pytest.raises(ContainerNotFound):
        agent.plugin.limit(ContainerID("c2"), Bandwidth())
    plugin.failing.add("c1")
    with pytest.raises(RuntimeRefused, match="did not set the CPU quota max 100000"):
        agent.plugin.limit(ContainerID("c1"), Bandwidth())


def test_many_at_once_are_decided_together(
    agent: Agent, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    sight = Mock(wraps=agent.manager.sight)
    monkeypatch.setattr(agent.manager, "sight", sight)
    pods = [builders.pod(f"p{number}") for number in range(100)]
    answers = plugin.create_many(of(pod, f"c{number}") for number, pod in enumerate(pods))
    assert {cpu_of(answer.result(DEADLINE_S)).cpus for answer in answers} == {"0"}
    assert sight.call_count < 50


def test_it_comes_back_when_the_runtime_does(agent: Agent, runtime: FakeRuntime) -> None:
    with agent.running():
        first = runtime.welcome([of(PLAIN, cpus="0", state=nri_pb2.CONTAINER_RUNNING)])
        eventually(agent.plugin.connected, "the plugin is connected")
        first.create(agent.allocated(of(OWNER, "c2", devices={"exclusive_a": "2"})))
        agent.manager.observe(pods=[OWNER])
        first.creating(of(OWNER, "c3", name="other"))
        first.hang_up()
        second = runtime.accept()
        assert not agent.plugin.connected()
        # What the runtime has is remembered: it may be reached another way.
        assert agent.plugin.held(ContainerID("c1")) == "0"
        assert not agent.plugin.starting(ContainerID("c2"))
        second.configure()
        second.synchronize()
        eventually(agent.plugin.connected, "the plugin is connected again")
        assert agent.plugin.held(ContainerID("c1")) is None


def test_without_a_runtime_it_tries_again(agent: Agent, folder: Path) -> None:
    agent.required = True
    agent.__post_init__()
    with agent.running():
        eventually(lambda: "nri.sock" in str(agent.health.ready()), "the probe tells why")
        with FakeRuntime(folder / "nri.sock") as runtime:
            runtime.welcome()
            eventually(lambda: agent.health.ready().ok, "the node is ready")


def test_a_runtime_that_refuses_as_its_socket_appears_is_reached_soon(
    agent: Agent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of two pauses in a row the second lasts for ever.
    monkeypatch.setattr("cpupool.roles.nri_plugin._PAUSES_S", (0.0, 100 * DEADLINE_S))
    reach = Connection.to
    attempts: list[str] = []
    refused = threading.Event()

    def recorded(path: Path, timeout_s: float) -> Connection:
        try:
            return reach(path, timeout_s)
        except RemoteProtocolError as error:
            attempts.append(str(error))
            if "Connection refused" in str(error):
                made.listen()
                refused.set()
            raise

    monkeypatch.setattr(Connection, "to", recorded)
    with agent.running():
        eventually(lambda: len(attempts) == 2, "no pause follows but the last")
        with FakeRuntime(folder / "nri.sock", listens=False) as made:
            agent.plugin.wake()
            assert refused.wait(DEADLINE_S)
            made.accept()


def test_its_end_is_not_overheard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(folder / "nri.sock", ready=False)
    monkeypatch.setattr("cpupool.roles.nri_plugin._LOOK_S", 10 * DEADLINE_S)

    class Stop(threading.Event):
        """Set by somebody the moment after it was looked at first."""

        def is_set(self) -> bool:
            was = super().is_set()
            self.set()
            agent.plugin.wake()
            return was

    loop = threading.Thread(target=agent.plugin.run, args=(Stop(),), daemon=True)
    loop.start()
    loop.join(DEADLINE_S)
    assert not loop.is_alive()


def test_it_waits_until_it_is_known_who_owns_which_cpu(folder: Path, runtime: FakeRuntime) -> None:
    agent = Agent(folder / "nri.sock", ready=False)
    with agent.running():
        agent.ready = True
        agent.plugin.wake()
        runtime.welcome()


def test_a_plugin_that_the_runtime_has_started_serves_at_once_and_ends_with_it(
    runtime: FakeRuntime, folder: Path
) -> None:
    ours, its = socket.socketpair()
    launch = Launch(ours.detach(), "cpupool", "07")
    agent = Agent(folder / "nri.sock", ready=False, launch=launch)
    ended: list[RemoteProtocolError] = []

    def run() -> None:
        try:
            agent.plugin.run(threading.Event())
        except RemoteProtocolError as error:
            ended.append(error)

    loop = threading.Thread(target=run)
    loop.start()
    plugin = runtime.adopt(its)
    assert plugin.registered.result().plugin_idx == "07"
    plugin.configure()
    assert not plugin.synchronize([of(PLAIN, cpus="0-7", state=nri_pb2.CONTAINER_RUNNING)])
    # Until it is known who owns what, only what Allocate has answered is certain.
    assert not plugin.create(of(PLAIN, cpus="0-3")).HasField("adjust")
    assert agent.plugin.held(ContainerID("c1")) == "0-3"
    owner = agent.allocated(of(OWNER, "c2", devices={"exclusive_a": "2"}))
    assert cpu_of(plugin.create(owner)).cpus == "2"
    plugin.hang_up()
    loop.join(DEADLINE_S)
    assert ended


def test_until_the_pools_are_known_who_has_devices_of_one_waits(
    runtime: FakeRuntime, folder: Path
) -> None:
    ours, its = socket.socketpair()
    now_s = 100.0
    launch = Launch(ours.detach(), "cpupool", "07")
    agent = Agent(folder / "nri.sock", ready=False, launch=launch, clock=lambda: now_s)
    agent.manager = Manager()
    agent.plugin = agent.made()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(agent.plugin.run, threading.Event())
        plugin = runtime.adopt(its)
        plugin.configure()
        plugin.synchronize()
        owner = agent.allocated(of(OWNER, devices={"exclusive_a": "2"}))
        answer = waiting(agent, plugin, owner)
        now_s += 1.0
        agent.plugin.wake()
        with pytest.raises(Refused, match="owner/main is held: this node's pools are not known"):
            answer.result(DEADLINE_S)
        assert not plugin.create(of(PLAIN, "p")).HasField("adjust")
        now_s += 10.0
        answer = waiting(agent, plugin, replace(owner, id="c2", name="other"))
        agent.manager.reconfigure(POOLS, MACHINE.topology())
        agent.plugin.facts_changed()
        assert cpu_of(answer.result(DEADLINE_S)).cpus == "2"
        plugin.hang_up()
        with pytest.raises(RemoteProtocolError):
            ended.result(DEADLINE_S)


def test_an_old_runtime_is_served_too(agent: Agent, folder: Path) -> None:
    with (
        FakeRuntime(folder / "nri.sock", dedicated=False, events=FIRST_EVENTS) as runtime,
        agent.running(),
    ):
        plugin = runtime.welcome()
        container = of(PLAIN, own_labels=False)
        plugin.run_sandbox(container.pod)
        assert cpu_of(plugin.create(container)).cpus == "0"
        plugin.start(container)
        assert not agent.plugin.starting(ContainerID("c1"))


METHODS = ("Configure", "Synchronize", "CreateContainer", "UpdateContainer", "StateChange")


def test_no_bytes_end_the_agent(agent: Agent, runtime: FakeRuntime) -> None:
    @examples(60)
    @given(st.sampled_from(METHODS), st.binary(max_size=200), st.binary(max_size=60))
    def said(method: str, payload: bytes, rest: bytes) -> None:
        plugin = runtime.accept()
        request = ttrpc_pb2.Request(service=PLUGIN, method=method, payload=payload)
        plugin.write(frames(1, 1, 1, request.SerializeToString()) + rest)
        plugin.hang_up()
        agent.plugin.wake()

    with agent.running():
        said()
        assert cpu_of(runtime.welcome().create(of(PLAIN))).cpus == "0"
    # The runtime has not counted these calls, so it complains of their answers.
    runtime.problems.clear()
