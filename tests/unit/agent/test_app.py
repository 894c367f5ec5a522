from __future__ import annotations

import json
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.app import Agent
from cpupool.agent.setup import Setup
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.names import Names
from cpupool.core.workloads import Container, ContainerID, PodUID
from cpupool.host.mounts import Mounts
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.kubelet.podresources import PodResources
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.cluster import EmbeddedCluster
from cpupool.local.kubelet import EmbeddedKubelet
from cpupool.manager.manager import Manager
from cpupool.telemetry.health import Health
from tests import builders
from tests.cgroups import overwrite
from tests.events import Heard
from tests.loops import running
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from cpupool.enforce.sweep import SweepReport
    from tests.machines import WrittenMachine

POOLS = "pools:\n  exclusive_a: {cpus: '4'}\n  shared_b: {cpus: '6'}\n  default: {cpus: 0-1}\n"
UID = "1b2c3d4e-0000-1111-2222-333344445555"
POD = f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
ID = "ab" * 32
CONTAINER = f"{POD}/cri-containerd-{ID}.scope"
LOOPS = (
    "compactor",
    "configurator",
    "cpusetter",
    "device manager",
    "load watcher",
    "machine watcher",
    "memory keeper",
    "mount keeper",
    "nri plugin",
    "own CPUs keeper",
    "reporter",
)
_QUIET_S = 0.2


class World:
    """An agent that sweeps once an hour, on a machine in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root = HostRoot.under(folder)
        self.machine: WrittenMachine = MACHINES["laptop_4c8t"].write(folder)
        self.place = EmulatedCgroups(folder, self.machine.topology().online, "a test")
        self._config = folder / "etc"
        self._config.mkdir()
        (self._config / "poolconfig-a.yaml").write_text(POOLS + "nodeSelector: {node: a}\n")
        self.heard = Heard()
        self.listed: tuple[Pod, ...] = ()
        self._swept = threading.Semaphore(0)

    def agent(self) -> Agent:
        settings = Setup(self._config, interval_s=3600.0, telemetry=("127.0.0.1", 0))
        cluster = EmbeddedCluster(self, {"node": "a"}, self.heard)
        return Agent(
            Manager(),
            settings,
            self.root,
            Sysfs.at(self.root.sysfs),
            lambda _metrics, _signals: cluster,
            observe=self._observe,
        )

    @contextmanager
    def running(self) -> Iterator[Agent]:
        """Run an agent; it has made the sweeps of its start, and the next one needs an event."""
        with started(self.agent()) as agent:
            self.await_sweep()
            while self._swept.acquire(timeout=_QUIET_S):
                pass
            yield agent

    def pods(self) -> tuple[Pod, ...]:
        return self.listed

    def holds(self, monkeypatch: pytest.MonkeyPatch, **pools: str) -> None:
        """Let the one container hold devices: pool → id."""
        main = Container(
            "main", requests=builders.asking(dict.fromkeys(pools, 1)), id=ContainerID(ID)
        )
        pod = replace(builders.pod("web", main, cgroup_uid=UID), uid=PodUID(UID))
        self.listed = (pod,)
        held = {
            f"nokia.k8s.io/{pool}": AllocatedDevices(frozenset({one}))
            for pool, one in pools.items()
        }
        monkeypatch.setattr(CheckpointFile, "by_pod_uid", lambda _self: {UID: {"main": held}})

    def show_no_pools(self) -> None:
        for file in self._config.iterdir():
            file.unlink()

    def await_sweep(self) -> None:
        assert self._swept.acquire(timeout=DEADLINE_S), "no sweep"

    def directory(self, path: str) -> Path:
        return self.place.root / "cpuset" / path

    def cpus(self) -> str:
        return (self.directory(CONTAINER) / "cpuset.cpus").read_text().strip()

    def await_cpus(self, expected: str) -> None:
        eventually(lambda: self.cpus() == expected, lambda: f"{expected}, but {self.cpus()}")

    def _observe(self, _report: SweepReport) -> None:
        self._swept.release()


@contextmanager
def started(agent: Agent) -> Iterator[Agent]:
    with running(agent.run):
        yield agent


def get(agent: Agent, path: str) -> tuple[int, str]:
    assert agent.server
    connection = HTTPConnection("127.0.0.1", agent.server.port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def await_devices(kubelet: EmbeddedKubelet, number: int) -> None:
    kubelet.wait_for(
        "nokia.k8s.io/exclusive_a", lambda listed: listed.allocatable == number, DEADLINE_S
    )


@pytest.fixture
def _events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing asked of a kubelet that is not there: each time again would be a sweep."""
    monkeypatch.setattr(PodResources, "allocatable_cpus", lambda _self: CPUSet())


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    made = World(folder)
    made.root.device_plugins.mkdir(parents=True)
    with made.place:
        made.place.make("kubepods.slice")
        yield made


class TestAgent:
    @pytest.mark.usefixtures("_events_only")
    @pytest.mark.parametrize(
        "path",
        [
            pytest.param(POD, id="a pod's slice"),
            pytest.param(f"kubepods.slice/cri-containerd-{ID}.scope", id="containerd's scope"),
            pytest.param(f"kubepods.slice/crio-{ID}.scope", id="CRI-O's scope"),
            pytest.param(f"kubepods.slice/{ID}", id="a plain name"),
        ],
    )
    def test_a_new_cgroup_is_looked_at_at_once(self, world: World, path: str) -> None:
        with world.running():
            world.directory(path).mkdir()
            world.await_sweep()

    @pytest.mark.usefixtures("_events_only")
    def test_a_container_that_somebody_moves_is_moved_back_at_once(self, world: World) -> None:
        world.place.make(CONTAINER)
        with world.running():
            world.await_cpus("0-1")
            overwrite(world.directory(CONTAINER) / "cpuset.cpus", "0-7")
            world.await_cpus("0-1")

    @pytest.mark.usefixtures("_events_only")
    def test_a_quota_that_somebody_writes_is_lifted_again_at_once(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.place.make(CONTAINER)
        quotas = [
            world.root.cgroup / "cpu" / path / "cpu.cfs_quota_us" for path in (POD, CONTAINER)
        ]
        for file in quotas:
            file.parent.mkdir(parents=True)
            file.write_text("100000")
            file.with_name("cpu.cfs_period_us").write_text("100000")
        world.holds(monkeypatch, exclusive_a="4")
        with world.running():
            for _ in range(2):
                eventually(lambda: {file.read_text() for file in quotas} == {"-1"}, "both lifted")
                for file in quotas:
                    overwrite(file, 100_000)
            eventually(lambda: {file.read_text() for file in quotas} == {"-1"}, "and again")

    @pytest.mark.usefixtures("_events_only")
    def test_a_foreign_write_is_announced_to_the_users_of_the_shared_pool(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[frozenset[str]] = []

        def provide(_self: Mounts, _shared: object, announced: set[str]) -> None:
            if announced:
                told.append(frozenset(announced))

        monkeypatch.setattr(Mounts, "provide", provide)
        world.place.make(CONTAINER)
        world.holds(monkeypatch, shared_b="0")
        with world.running():
            eventually(lambda: len(told) == 1, "it may have been moved before the agent came")
            overwrite(world.directory(CONTAINER) / "cpuset.cpus", "0-7")
            eventually(lambda: len(told) > 1, "it is announced")
        assert set(told) == {frozenset({"shared_b"})}

    @pytest.mark.usefixtures("_events_only")
    def test_a_container_leaves_an_offline_cpu_before_a_sweep_is_due(self, world: World) -> None:
        world.place.make(CONTAINER)
        with world.running():
            world.await_cpus("0-1")
            world.machine.switch_off(CPUSet.of(1))
            world.await_cpus("0")

    def test_every_loop_says_that_it_turns(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        turning: set[str] = set()
        monkeypatch.setattr(Health, "beat", lambda _self, loop: turning.add(loop))
        with world.running():
            eventually(lambda: turning == set(LOOPS), lambda: str(turning))

    def test_a_status_file_that_cannot_be_written_is_reported_once_and_costs_nothing(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.place.make(CONTAINER)
        world.root.run.parent.mkdir()
        world.root.run.touch()
        with world.running() as agent:
            world.await_cpus("0-1")
            for _ in range(2):
                agent.wake()
                world.await_sweep()
            assert caplog.text.count("status file cannot be written") == 1
            assert caplog.text.count("another agent on this node would not be noticed") == 1

            world.root.run.unlink()
            agent.wake()
            eventually(world.root.status.exists, "the status file")
        (shown,) = json.loads(world.root.status.read_text())["containers"]
        assert shown["found"] == "0-1"

    def test_what_goes_on_is_reported_over_http(self, world: World) -> None:
        world.place.make(CONTAINER)
        with world.running() as agent:
            world.await_cpus("0-1")
            eventually(lambda: "cpupool_config_valid 1.0" in get(agent, "/metrics")[1], "pools")
            status, live = get(agent, "/healthz")
            assert status == 200
            assert live.splitlines() == [f"{loop}: ok" for loop in LOOPS]
            status, ready = get(agent, "/readyz")
            assert status == 503
            assert f"kubelet: failing: {world.root.kubelet_socket} is not there" in ready
            pool = '{kind="exclusive",pool="exclusive_a"} 1.0'
            eventually(
                lambda: f"cpupool_pool_capacity{pool}" in get(agent, "/metrics")[1], "the pool"
            )

    def test_pods_outlive_their_pools_over_a_restart_of_agent_and_kubelet(
        self, world: World
    ) -> None:
        owner = builders.pod("owner", builders.container(exclusive_a=1))
        with EmbeddedKubelet(world.root.kubelet, Names()) as kubelet:
            with world.running():
                await_devices(kubelet, 1)
                kubelet.admit(owner)
                world.listed = (owner,)
            world.show_no_pools()
            await_devices(kubelet, 0)
            with world.running() as agent:
                await_devices(kubelet, 1)
                kubelet.restart()
                await_devices(kubelet, 1)
                kubelet.admit(owner)
                eventually(lambda: get(agent, "/readyz")[0] == 200, "it lacks nothing")

    def test_a_kubelet_that_places_containers_itself_is_offered_nothing(self, world: World) -> None:
        with (
            EmbeddedKubelet(world.root.kubelet, Names()) as kubelet,
            world.running() as agent,
        ):
            await_devices(kubelet, 1)
            kubelet.static_cpus = CPUSet.of(5)
            kubelet.restart()
            eventually(lambda: "cpuManagerPolicy" in get(agent, "/readyz")[1], "the conflict")
            await_devices(kubelet, 0)
            kubelet.static_cpus = CPUSet()
            kubelet.restart()
            await_devices(kubelet, 1)
            eventually(lambda: get(agent, "/readyz")[0] == 200, "readiness")

    def test_a_node_has_one_agent_at_a_time(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.place.make(CONTAINER)
        with ExitStack() as first:
            first.enter_context(world.running())
            world.await_cpus("0-1")
            with started(world.agent()) as second:
                eventually(lambda: "another agent runs on this node" in caplog.text, "a warning")
                status, ready = get(second, "/readyz")
                assert (status, ready) == (
                    503,
                    "node: failing: another agent runs here; end one of the two\n",
                )
                assert get(second, "/healthz")[0] == 200
                first.close()
                world.await_sweep()
        assert caplog.text.count("another agent runs on this node") == 1

    def test_an_agent_that_waits_for_another_can_be_stopped(self, world: World) -> None:
        with world.running(), started(world.agent()) as second:
            eventually(lambda: get(second, "/readyz")[0] == 503, "an answer")
