"""`onMisfit: fail`: the agent fails a pod that cannot have its CPUs, through a real HTTP server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpu_manager import CPUManager, Misfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from tests.machines import MACHINES
from tests.nri_pods import Pod as Sandbox
from tests.scenarios.test_agent_process import living
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.agent.app import Agent
    from tests.nri_runtime import FakeRuntime, Plugin
    from tests.scenarios.test_agent_process import World

MACHINE = MACHINES["arm_no_smt"]
POOLS = """
pools:
  default: {cpus: "0-7"}
nodeSelector: {role: worker}
"""
FAIL = CPUManager("static", CPUSet.of(0), on_misfit=Misfit.FAIL)
REJECTED = (
    "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request:"
    " requested=9, available=7, which is unexpected"
)


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINE.write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def pending(name: str, cpus: int) -> dict[str, Any]:
    """Return a pod that the kubelet has admitted, and that has no container yet."""
    limits = {"cpu": str(cpus), "memory": "1Gi"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


def status(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.api.kept(f"/api/v1/namespaces/default/pods/{name}")["status"]
    return found


def begin(world: World, runtime: FakeRuntime, agent: Agent) -> None:
    """Bind two pods, and let the runtime start their sandboxes; another pod runs."""
    plugin: Plugin = runtime.accept()
    plugin.configure()
    plugin.synchronize([])
    world.await_event("CPUPoolConfigApplied")
    # The agent holds no pod that started before it first moves a container.
    world.run("plain")
    world.await_cpus(plain="0-7")
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=FAIL)
    agent.manager.reconfigure(pools, MACHINE.topology())
    plain = world.node.bodies()["items"]
    world.api.set_pods([*plain, pending("large", 9), pending("small", 2)])
    for name in ("large", "small"):
        plugin.run_sandbox(Sandbox(uid=f"uid-of-{name}", name=name))


def test_a_pod_that_does_not_fit_fails(world: World, runtime: FakeRuntime) -> None:
    with world.agent_here() as agent:
        begin(world, runtime, agent)
        eventually(lambda: status(world, "large")["phase"] == "Failed", "the pod fails")
        assert status(world, "large")["reason"] == "UnexpectedAdmissionError"
        assert status(world, "large")["message"] == REJECTED
        assert status(world, "small")["phase"] == "Pending"
        # Once the watch shows it, the pod is no misfit.
        eventually(lambda: not agent.manager.snapshot().resolution.view.refused, "it has ended")
    assert world.api.count("patch", "pods/status") == 1


def test_without_the_right_the_pod_stays_held(
    world: World, runtime: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.forbidden.add(("patch", "pods/status"))
    with world.agent_here() as agent:
        begin(world, runtime, agent)
        eventually(lambda: world.api.count("patch", "pods/status") >= 2, "it tries again")
        (refusal,) = agent.manager.snapshot().resolution.view.refused.values()
    assert refusal.holds
    assert status(world, "large")["phase"] == "Pending"
    lines = [one.message for one in caplog.records if "may not fail pods" in one.message]
    assert len(lines) == 1
    assert "daemonsets/fail-misfits" in lines[0]
