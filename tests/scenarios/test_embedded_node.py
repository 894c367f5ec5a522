"""The production roles on the embedded node: describe the node, let something happen, look."""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.agent.app import Agent
from cpupool.agent.setup import Setup
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError, PodRefused
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.sysfs import Sysfs
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.local.cgroups import Cgroups, EmulatedCgroups, RealCgroups
from cpupool.local.cluster import EmbeddedCluster, EventLog
from cpupool.local.node import SANDBOX, EmbeddedNode
from cpupool.manager.manager import Manager
from tests.loops import running
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cpupool.core.events import EventSink
    from cpupool.core.workloads import Pod
    from cpupool.enforce.sweep import SweepReport
    from cpupool.local.devices import Listing
    from cpupool.local.pods import ContainerProcess
    from tests.machines import WrittenMachine

POOLS = """
pools:
  exclusive_a: {cpus: "2-5"}
  shared_b: {cpus: "6-7"}
  default: {cpus: "0-1"}
"""
POLICIES = """
pools:
  exclusive_build: {cpus: "2-5,18-21", cpuBindPolicy: fullPhysicalCores, reserved: "2,18"}
  exclusive_web: {cpus: "8-9,24-25", cpuBindPolicy: spreadAcrossCores}
  default: {cpus: "0-1"}
"""
HERE = CPUSet(os.sched_getaffinity(0))


@dataclass
class World:
    """An embedded node with the agent running on it."""

    node: EmbeddedNode
    agent: Agent

    def run(self, name: str, **containers: Mapping[str, int]) -> Pod:
        """Run a pod: container name → pool → amount. Names that begin with `init` or `sidecar`
        make that kind."""
        return self.node.run_pod(manifest(name, containers), self.init_is_right)

    def init_is_right(self, pod: Pod, name: str) -> None:
        self.eventually(pod.name, **{name: "2-3"})

    def cpus(self, pod: str) -> dict[str, str]:
        """Read the cpuset of each container of a pod."""
        tree = CgroupFS(self.node.root.cgroup, self.node.cgroup_root)
        return {
            process.container: str(tree.effective(self.node.path_of(process)))
            for process in self.node.processes()
            if process.pod.name == pod
        }

    def eventually(self, pod: str, **expected: str) -> None:
        """Wait until containers have these CPUs; `sandbox` is the pod's."""
        named = {SANDBOX if name == "sandbox" else name: cpus for name, cpus in expected.items()}
        eventually(
            lambda: named.items() <= self.cpus(pod).items(),
            lambda: f"{pod} on {named}: {self.cpus(pod)}",
        )

    def settled(self, **healthy: int) -> None:
        """Wait until the kubelet knows so many healthy devices of each pool."""
        for pool, count in healthy.items():
            condition = partial(_has_healthy, count)
            self.node.kubelet.wait_for(f"nokia.k8s.io/{pool}", condition, DEADLINE_S)

    def environment(self, pod: str, container: str = "main") -> Mapping[str, str]:
        (found,) = (
            process.instance.environment
            for process in self.node.processes()
            if (process.pod.name, process.container) == (pod, container)
        )
        return found


def _has_healthy(count: int, listing: Listing) -> bool:
    return listing.allocatable == count


def manifest(name: str, containers: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    spec: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    for container, requests in containers.items():
        limits = {f"nokia.k8s.io/{pool}": str(amount) for pool, amount in requests.items()}
        made: dict[str, Any] = {"name": container, "resources": {"limits": limits}}
        if container.startswith("sidecar"):
            made["restartPolicy"] = "Always"
        app = not container.startswith(("sidecar", "init"))
        spec["containers" if app else "initContainers"].append(made)
    return {"metadata": {"name": name}, "spec": spec}


@contextmanager
def living(
    folder: Path,
    home: Cgroups,
    pools: str,
    sysfs: Path,
    manager: TopologyPolicy = TopologyPolicy.BEST_EFFORT,
    *,
    interval_s: float = 0.2,
    nri: bool = False,
    events: EventSink | None = None,
    observe: Callable[[SweepReport], None] = lambda _report: None,
) -> Iterator[World]:
    config = folder / "config"
    config.mkdir()
    (config / "poolconfig-node.yaml").write_text(pools + "nodeSelector: {node: this}\n")
    settings = Setup(config, interval_s=interval_s)

    def changed() -> None:
        agent.wake()

    with EmbeddedNode(folder, home, sysfs=sysfs, manager=manager, nri=nri, changed=changed) as node:
        cluster = EmbeddedCluster(node, {"node": "this"}, events or EventLog())
        machine = Sysfs.at(sysfs)
        agent = Agent(
            Manager(),
            settings,
            node.root,
            machine,
            lambda _metrics, _changed: cluster,
            observe=observe,
        )
        agent.configure()
        with running(agent.run, wake=agent.wake):
            yield World(node, agent)


@contextmanager
def plugged(folder: Path, pools: str, events: EventSink | None = None) -> Iterator[World]:
    """Run a node of 16 CPUs whose runtime asks the agent by NRI."""
    machine = MACHINES["arm_no_smt"].write(folder)
    with (
        EmulatedCgroups(folder, machine.topology().online, "") as home,
        living(folder, home, pools, machine.sys, nri=True, events=events) as made,
    ):
        eventually(lambda: made.node.plugged, "the runtime asks the agent")
        yield made


@pytest.fixture
def machine(folder: Path) -> WrittenMachine:
    """Sixteen CPUs on as many cores."""
    return MACHINES["arm_no_smt"].write(folder)


@pytest.fixture
def world(folder: Path, machine: WrittenMachine) -> Iterator[World]:
    with (
        EmulatedCgroups(folder, machine.topology().online, "") as home,
        living(folder, home, POOLS, machine.sys) as made,
    ):
        made.settled(exclusive_a=4, shared_b=2000)
        yield made


def test_every_kind_of_container_gets_the_cpus_of_its_pools(world: World) -> None:
    pod = world.run(
        "web",
        init={"exclusive_a": 2},
        sidecar={"shared_b": 500},
        main={"exclusive_a": 1},
        both={"exclusive_a": 1, "shared_b": 100},
        plain={},
    )
    world.node.add_ephemeral(pod.uid, {"name": "debug"})
    world.eventually(
        "web", sandbox="0-1", sidecar="6-7", main="2", both="3,6-7", plain="0-1", debug="0-1"
    )
    assert world.environment("web")["EXCLUSIVE_CPUS"] == "2"
    assert world.environment("web", "sidecar")["SHARED_CPUS"] == "6-7"
    assert "EXCLUSIVE_CPUS" not in world.environment("web", "plain")


def test_a_static_pod_is_known_to_the_kubelet_by_its_config_hash(world: World) -> None:
    body = manifest("web", {"main": {"exclusive_a": 1}})
    body["metadata"]["annotations"] = {
        "kubernetes.io/config.hash": "f00d",
        "kubernetes.io/config.mirror": "f00d",
    }
    world.node.run_pod(body)
    world.eventually("web", main="2")
    assert set(CheckpointFile(world.node.root.checkpoint).by_pod_uid()) == {"f00d"}


def test_a_container_that_restarts_gets_the_same_cpus_again(world: World) -> None:
    pod = world.run("web", main={"exclusive_a": 2})
    world.eventually("web", main="2-3")
    before = world.environment("web")
    world.node.restart_container(pod.uid, "main")
    world.eventually("web", main="2-3")
    assert world.environment("web") == before


def test_a_cpuset_that_somebody_changes_is_put_right(world: World) -> None:
    world.run("web", main={"exclusive_a": 1})
    world.eventually("web", main="2")
    main = world.node.processes()[1]
    file = world.node.root.cgroup / "cpuset" / world.node.path_of(main) / "cpuset.cpus"
    file.write_text("0-7")
    world.eventually("web", main="2")


def test_cpus_of_a_pod_that_ended_go_to_the_next(world: World) -> None:
    first = world.run("first", main={"exclusive_a": 4})
    with pytest.raises(PodRefused, match="Insufficient"):
        world.run("second", main={"exclusive_a": 1})
    world.node.finish_pod(first.uid)
    second = world.run("second", main={"exclusive_a": 4})
    world.eventually("second", main="2-5")
    world.node.delete_pod(second.uid)
    world.run("third", main={"exclusive_a": 4})
    world.eventually("third", main="2-5")


def test_pods_survive_a_restart_of_the_kubelet(world: World) -> None:
    world.run("web", main={"exclusive_a": 3})
    world.eventually("web", main="2-4")
    world.node.kubelet.restart()
    world.settled(exclusive_a=4, shared_b=2000)
    assert world.node.admit_again() == {}
    world.run("next", main={"exclusive_a": 1})
    world.eventually("next", main="5")
    world.eventually("web", main="2-4")


def test_a_pod_whose_cpu_went_offline_is_not_admitted_again(
    world: World, machine: WrittenMachine
) -> None:
    pod = world.run("web", main={"exclusive_a": 1})
    world.eventually("web", main="2")
    machine.switch_off(CPUSet.of(2))
    world.settled(exclusive_a=3)
    refused = world.node.admit_again()
    assert "main holds 2 of nokia.k8s.io/exclusive_a" in str(refused[pod.uid])
    assert [one.finished for one in world.node.pods()] == [True]
    machine.switch_on(CPUSet.of(2))
    world.settled(exclusive_a=4)


@pytest.fixture
def smt_world(folder: Path) -> Iterator[World]:
    """A node of 16 cores with two threads each, whose pools list both."""
    machine = MACHINES["telco_2s_2n_16c32t"].write(folder)
    with (
        EmulatedCgroups(folder, machine.topology().online, "") as home,
        living(folder, home, POLICIES, machine.sys) as made,
    ):
        made.settled(exclusive_build=6, exclusive_web=4)
        yield made


def test_a_pod_gets_whole_cores_or_the_reason_why_not(smt_world: World) -> None:
    with pytest.raises(PodRefused, match=r"exclusive_build: 3 CPUs requested .* a multiple of 2"):
        smt_world.run("half", main={"exclusive_build": 3})
    smt_world.run("build", main={"exclusive_build": 4})
    smt_world.eventually("build", main="3-4,19-20")


def test_pods_of_a_pool_that_spreads_have_threads_of_one_core(smt_world: World) -> None:
    smt_world.run("one", main={"exclusive_web": 2})
    smt_world.run("other", main={"exclusive_web": 2})
    smt_world.eventually("one", main="8-9")
    smt_world.eventually("other", main="24-25")


def test_a_real_process_runs_on_its_cpus_in_this_machines_own_cgroups(folder: Path) -> None:
    exclusive = max(HERE)
    rest = HERE - Sysfs.at(Path("/sys")).topology().core_of(exclusive)
    if not rest:
        pytest.skip("two cores are needed")
    pools = f'pools:\n  exclusive_a: {{cpus: "{exclusive}"}}\n  default: {{cpus: "{rest}"}}\n'
    with ExitStack() as opened:
        try:
            home = opened.enter_context(RealCgroups.open(f"test-{uuid.uuid4().hex[:8]}", HERE))
        except HostError as error:
            pytest.skip(f"this machine's cgroups cannot be used: {error}")
        world = opened.enter_context(living(folder, home, pools, Path("/sys")))
        world.settled(exclusive_a=1)
        world.run("web", main={"exclusive_a": 1}, plain={})
        for name, cpus in ((SANDBOX, rest), ("main", CPUSet.of(exclusive)), ("plain", rest)):
            (process,) = (one for one in world.node.processes() if one.container == name)
            eventually(partial(_runs_on, process, cpus), f"{name} on {cpus}")


def _runs_on(process: ContainerProcess, cpus: CPUSet) -> bool:
    return process.cpus_allowed() == cpus
