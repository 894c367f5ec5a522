"""Trouble on a node: CPUs go, others write, everything starts anew."""

from __future__ import annotations

import copy
import shutil
import signal
from typing import TYPE_CHECKING

from cpupool import cli
from cpupool.core.cpuset import CPUSet
from cpupool.kubelet.checkpoint import CheckpointFile
from tests.scenarios import test_agent_process
from tests.scenarios.test_agent_process import POOLS
from tests.unit.agent.test_app import get
from tests.waiting import eventually

if TYPE_CHECKING:
    import pytest

    from cpupool.agent.app import Agent
    from tests.scenarios.test_agent_process import World

world = test_agent_process.world


def await_answer(agent: Agent, path: str, *expected: str) -> None:
    """Wait until a page has all these lines, or parts of lines."""

    def answers() -> bool:
        return all(part in get(agent, path)[1] for part in expected)

    eventually(answers, lambda: f"{expected} in {get(agent, path)}")


def sweeps(agent: Agent) -> float:
    (line,) = (
        line
        for line in get(agent, "/metrics")[1].splitlines()
        if line.startswith("cpupool_sweep_duration_seconds_count")
    )
    return float(line.split()[1])


def test_cpus_that_go_offline_are_left_and_come_back(world: World) -> None:
    with world.agent_here() as agent:
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        world.run("owner", exclusive_a=2)
        world.run("other", exclusive_a=1)
        world.run("sharer", shared_b=10)
        world.run("plain")
        world.await_cpus(owner="2-3", other="4", sharer="6-7", plain="0-1")
        for level in ("numa_node", "uncore_cache"):
            scattered = f'cpupool_pool_fragmentation{{level="{level}",pool="exclusive_a"}} 0.0'
            await_answer(agent, "/metrics", scattered)

        world.machine.switch_off(CPUSet.parse("1,3,6"))
        world.await_cpus(owner="2", other="4", sharer="7", plain="0")
        world.await_pool("exclusive_a", 3)
        assert "main: its CPUs 3 are offline; bring them" in world.await_event(
            "CPUOffline", "owner"
        )
        offline = 'cpupool_pool_offline{kind="exclusive",pool="exclusive_a"}'
        await_answer(agent, "/metrics", f"{offline} 1.0")

        world.machine.switch_on(CPUSet.parse("1,3,6"))
        world.await_cpus(owner="2-3", other="4", sharer="6-7", plain="0-1")
        world.await_pool("exclusive_a", 4)
        await_answer(agent, "/metrics", f"{offline} 0.0")
        assert not any(world.events("CPUOffline", name) for name in ("other", "sharer", "plain"))


def test_a_cpu_limit_that_is_resized_below_a_containers_own_cpus_is_reported(world: World) -> None:
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=2)
        world.await_cpus(owner="2-3")

        resized = copy.deepcopy(world.node.bodies()["items"])
        resized[0]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "500m"
        world.api.set_pods(resized)

        assert "500m is less than its exclusive CPUs (2)" in world.await_event(
            "CPULimitIgnored", "owner"
        )
        world.await_cpus(owner="2-3")


def test_a_static_cpu_manager_is_refused_until_it_is_gone(world: World) -> None:
    world.node.kubelet.static_cpus = CPUSet.parse("2-15")
    world.run("plain")
    written_ns = world.written_ns("plain")
    with world.agent_here() as agent:
        await_answer(agent, "/readyz", "cpusetter: failing", "set cpuManagerPolicy to none")
        assert get(agent, "/readyz")[0] == 503
        assert get(agent, "/healthz")[0] == 200
        assert "set cpuManagerPolicy to none" in world.await_event("KubeletCPUManagerStatic")
        await_answer(agent, "/metrics", "cpupool_cpu_manager_conflict 1.0")
        before = sweeps(agent)
        agent.wake()
        eventually(lambda: sweeps(agent) > before, "one more sweep")
        assert world.written_ns("plain") == written_ns
        assert world.node.kubelet.listing("nokia.k8s.io/exclusive_a").capacity == 0

        world.node.kubelet.static_cpus = CPUSet()
        world.node.kubelet.restart()
        world.await_pool("exclusive_a", 4)
        world.await_cpus(plain="0-1")
        eventually(lambda: get(agent, "/readyz")[0] == 200, lambda: str(get(agent, "/readyz")))
        await_answer(agent, "/metrics", "cpupool_cpu_manager_conflict 0.0")


def test_a_node_without_pools_is_ready_whatever_its_kubelet_does(world: World) -> None:
    world.mount.show()
    world.node.kubelet.static_cpus = CPUSet.parse("2-15")
    world.run("plain")
    written_ns = world.written_ns("plain")
    with world.agent_here() as agent:
        await_answer(agent, "/readyz", "cpusetter: ok", "kubelet: ok", "labels: ok")
        assert get(agent, "/readyz")[0] == 200
        assert get(agent, "/healthz")[0] == 200
        assert world.written_ns("plain") == written_ns

        # With pools there is something to fight over.
        world.mount.show(worker=POOLS)
        await_answer(agent, "/readyz", "set cpuManagerPolicy to none")
        assert world.node.kubelet.listing("nokia.k8s.io/exclusive_a").capacity == 0


def test_who_writes_again_and_again_is_reported_once_and_holds_up_no_other(world: World) -> None:
    with world.agent() as agent:
        world.await_pool("exclusive_a", 4)
        world.run("fought", exclusive_a=1)
        world.run("plain")
        world.await_cpus(fought="2", plain="0-1")

        def is_contested() -> bool:
            world.disturb("fought", "0-15")
            world.await_cpus(fought="2", plain="0-1")
            return bool(world.events("CPUSetContested", "fought"))

        eventually(is_contested, "an Event")
        told = world.await_event("CPUSetContested", "fought")
        assert "overwritten again and again, probably by the container runtime" in told

        # The next repair is not due yet.
        world.disturb("fought", "0-15")
        world.disturb("plain", "2-5")
        world.await_cpus(fought="2", plain="0-1")
        assert len(world.events("CPUSetContested", "fought")) == 1
        assert not world.events("CPUSetContested", "plain")
    assert "by=runtime" in agent.log


def test_a_bad_pool_file_at_the_start_leaves_the_last_good_pools(world: World) -> None:
    with world.agent_here() as agent:
        world.await_pool("exclusive_a", 4)
        await_answer(agent, "/metrics", "cpupool_config_valid 1.0")
        world.mount.show(worker=POOLS.replace("6-7", "5-99"))
        await_answer(agent, "/metrics", "cpupool_config_valid 0.0")
        assert "CPUs 5 are also in shared_b" in world.await_event("CPUPoolConfigInvalid")
    with world.agent_here() as agent:
        world.await_pool("shared_b", 2000)
        await_answer(agent, "/metrics", "cpupool_config_valid 0.0")
        world.run("late", shared_b=10)
        world.await_cpus(late="6-7")

        world.mount.show(worker=POOLS.replace("6-7", "6-8"))
        world.await_pool("shared_b", 3000)
        world.await_cpus(late="6-8")
        await_answer(agent, "/metrics", "cpupool_config_valid 1.0")
        eventually(
            lambda: "resized shared_b" in str(world.event("CPUPoolConfigApplied")),
            lambda: str(world.event("CPUPoolConfigApplied")),
        )


def test_an_agent_killed_in_a_burst_of_pods_leaves_none_astray(world: World) -> None:
    asked: list[dict[str, int]] = [{"exclusive_a": 1}, {"shared_b": 10}, {}, {}, {"shared_b": 10}]
    burst = [(f"pod-{number}", asked[number % len(asked)]) for number in range(20)]

    with world.agent(end=signal.SIGKILL):
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        for name, pools in burst[:10]:
            world.run(name, **pools)
    with world.agent():
        for name, pools in burst[10:]:
            world.run(name, **pools)
        told = {one.pod.name: one.instance.environment for one in world.node.processes()}
        own = {
            name: told[name]["EXCLUSIVE_CPUS"] for name in told if "EXCLUSIVE_CPUS" in told[name]
        }
        assert sorted(own.values()) == ["2", "3", "4", "5"]
        shared = {name: "6-7" for name in told if "SHARED_CPUS" in told[name]}
        assert len(shared) == 8
        world.await_cpus(**{**dict.fromkeys(told, "0-1"), **shared, **own})


def test_a_reboot_after_a_shrink_loses_no_pod(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        owner = world.run("owner", exclusive_a=2)
        vanishing = world.run("vanishing", exclusive_a=1)
        sharer = world.run("sharer", shared_b=1500)
        world.await_cpus(owner="2-3", vanishing="4", sharer="6-7")
        world.mount.show(worker=POOLS.replace('"2-5"', '"4-5"').replace('"6-7"', '"6"'))
        # All that is held stays listed: half a CPU that is gone, and the owner's two.
        world.await_pool("shared_b", 1500)
        world.await_pool("exclusive_a", 4)
        world.await_cpus(owner="2-3", vanishing="4", sharer="6")

    world.node.delete_pod(vanishing.uid)
    world.place.remove("kubepods")
    shutil.rmtree(world.node.root.run)
    world.node.kubelet.restart()
    assert vanishing.uid in CheckpointFile(world.node.root.checkpoint).by_pod_uid()

    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 1500)
        assert world.node.admit_again() == {}
        for pod in (owner, sharer):
            world.node.restart_container(pod.uid, "main")
        world.await_cpus(owner="2-3", sharer="6")
        # What only the checkpoint still gives to somebody is free.
        world.run("next", exclusive_a=2)
        world.await_cpus(owner="2-3", sharer="6", next="4-5")


def test_an_old_kernel_keeps_pinned_containers_where_they_are(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.agent_here(moves_pinned=False):
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        pinned = world.run("pinned", exclusive_a=1, shared_b=10)
        world.run("sharer", shared_b=10)
        world.await_cpus(pinned="2,6-7", sharer="6-7")
        written_ns = world.written_ns("pinned")
        world.mount.show(worker=POOLS.replace('"6-7"', '"7-8"'))
        world.await_cpus(pinned="2,6-7", sharer="7-8")
        assert "restart it to take" in world.await_event("StaleSharedCPUs", "pinned")

    with world.agent_here(moves_pinned=False):
        world.await_pool("shared_b", 2000)
        world.disturb("sharer", "0-15")
        world.await_cpus(pinned="2,6-7", sharer="7-8")
        assert world.written_ns("pinned") == written_ns
        shown = ["status", "--json", "--file", str(world.node.root.status)]
        eventually(
            lambda: cli.main(shown) == 0 and "stale-shared" in capsys.readouterr().out,
            "status names it",
        )
        world.node.restart_container(pinned.uid, "main")
        world.await_cpus(pinned="2,7-8", sharer="7-8")
