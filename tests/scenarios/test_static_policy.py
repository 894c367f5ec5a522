"""The kubelet's static CPU manager policy, by an agent process: the proposal's rows and scenarios.

The rows and scenarios are those of "Policy 2: static cpuset control" in the CPU Manager proposal
(kubernetes/community#654). The agent writes cgroups itself; `test_cpu_manager_policy.py` and
`tests/containerd/` show the same through NRI.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.cpuset import CPUSet
from tests.machines import MACHINES
from tests.pods import resized
from tests.scenarios.test_agent_process import APPLIED, living
from tests.unit.agent import test_app
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

WORKER = "nodeSelector: {role: worker}\n"
STATIC = f'cpuManager: {{policy: static, reserved: "0-1"}}\n{WORKER}'
NONE = f"cpuManager: {{policy: none}}\npools: {{default: {{cpus: 0-7}}}}\n{WORKER}"
LAPTOP = MACHINES["laptop_4c8t"]
"""Four cores of two threads: 0 and 1, 2 and 3..."""
EVERYTHING = "0-7"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, LAPTOP.write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=STATIC)
        yield world


def run(world: World, pod: str, **cpus: str) -> Pod:
    """Start a Guaranteed pod: container → cpu."""
    listed = [
        {"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}
        for name, cpu in cpus.items()
    ]
    return start(world, pod, listed)


def start(world: World, pod: str, containers: list[dict[str, Any]]) -> Pod:
    return world.node.run_pod(
        {"kind": "Pod", "metadata": {"name": pod}, "spec": {"containers": containers}}
    )


def right(world: World, shared: str = EVERYTHING, **own: str) -> None:
    """Wait until containers, named pod__container, have their own CPUs and all others share."""
    owners = {name.replace("__", "/"): cpus for name, cpus in own.items()}
    world.await_containers(dict.fromkeys(world.containers(), shared) | owners)


def test_row_1_a_guaranteed_container_of_half_a_cpu_shares(world: World) -> None:
    with world.agent():
        run(world, "pod", a="500m")
        right(world)


def test_row_2_two_cpus_are_the_two_threads_of_a_core(world: World) -> None:
    with world.agent():
        run(world, "pod", a="2")
        right(world, "0-1,4-7", pod__a="2-3")


def test_row_2_two_cpus_without_siblings_are_two_cores_of_a_socket(folder: Path) -> None:
    machine = MACHINES["arm_no_smt"]
    with living(folder, machine.write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=f"cpuManager: {{policy: static, reserved: 1}}\n{WORKER}")
        with world.agent():
            run(world, "pod", a="2")
            right(world, str(machine.topology().online - CPUSet.of(1, 2)), pod__a="1-2")


def test_row_3_beside_one_cpu_of_its_own_a_half_shares(world: World) -> None:
    with world.agent():
        run(world, "pod", a="1", b="500m")
        right(world, "0-1,3-7", pod__a="2")


def test_row_4_parts_of_cpus_share(world: World) -> None:
    with world.agent():
        run(world, "pod", a="1500m", b="500m")
        right(world)


def test_row_5_a_burstable_pod_shares(world: World) -> None:
    with world.agent():
        start(world, "pod", [{"name": "a", "resources": {"requests": {"cpu": "2"}}}])
        right(world)


def test_row_6_a_best_effort_pod_shares(world: World) -> None:
    with world.agent():
        start(world, "pod", [{"name": "a"}])
        right(world)


def test_scenario_1_a_container_arrives_that_requires_exclusive_cores(world: World) -> None:
    with world.agent():
        run(world, "before", a="500m")
        right(world)
        run(world, "arrives", a="2")
        right(world, "0-1,4-7", arrives__a="2-3")


def test_scenario_2_a_container_with_exclusive_cores_terminates(world: World) -> None:
    with world.agent():
        run(world, "stays", a="1")
        right(world, "0-1,3-7", stays__a="2")
        ends = run(world, "ends", a="2")
        right(world, "0-1,3,6-7", stays__a="2", ends__a="4-5")
        world.node.delete_pod(ends.uid)
        right(world, "0-1,3-7", stays__a="2")
        run(world, "next", a="2")
        right(world, "0-1,3,6-7", stays__a="2", next__a="4-5")


def test_scenario_3_the_shared_pool_never_becomes_empty(world: World) -> None:
    with world.agent():
        run(world, "large", a="6")
        right(world, "0-1", large__a="2-7")
        run(world, "late", a="1")
        right(world, "0-1", large__a="2-7")
        told = world.await_event("UnexpectedAdmissionError", "late")
        assert "not enough cpus available to satisfy request: requested=1, available=0" in told


def test_the_policy_comes_into_force_while_pods_run_and_ends_so(world: World) -> None:
    world.mount.show(worker=NONE)
    with world.agent() as agent:
        first = run(world, "first", a="4")
        run(world, "second", a="2")
        run(world, "third", a="2")
        right(world)

        # The oldest first, as far as they fit.
        world.mount.show(worker=STATIC)
        right(world, "0-1", first__a="2-5", second__a="6-7")
        world.await_event("UnexpectedAdmissionError", "third")

        world.mount.show(worker=NONE)
        agent.await_line(APPLIED)
        run(world, "fourth", a="1")
        right(world, "0-1", first__a="2-5", second__a="6-7")
        world.node.delete_pod(first.uid)
        right(world, "0-5", second__a="6-7")


def test_reserved_cpus_that_grow_are_drained(world: World) -> None:
    with world.agent():
        first = run(world, "first", a="2")
        right(world, "0-1,4-7", first__a="2-3")
        world.mount.show(worker=STATIC.replace("0-1", "0-3"))
        run(world, "second", a="2")
        right(world, "0-1,6-7", first__a="2-3", second__a="4-5")
        world.node.delete_pod(first.uid)
        right(world, "0-3,6-7", second__a="4-5")
        run(world, "third", a="2")
        right(world, "0-3", second__a="4-5", third__a="6-7")


def test_cpus_that_go_offline_come_back_to_their_owner(world: World) -> None:
    with world.agent():
        run(world, "pod", a="2")
        right(world, "0-1,4-7", pod__a="2-3")
        world.machine.switch_off(CPUSet.of(3))
        right(world, "0-1,4-7", pod__a="2")
        world.machine.switch_off(CPUSet.of(2, 3))
        # Without any CPU of its own it shares, and no other container gets them.
        right(world, "0-1,4-7")
        world.machine.switch_on(CPUSet.of(2, 3))
        right(world, "0-1,4-7", pod__a="2-3")


@pytest.mark.parametrize(
    ("cpu", "now"),
    [("3", "cpu 3"), ("1", "cpu 1"), ("1500m", "no whole number of CPUs")],
    ids=["more", "fewer", "no whole number"],
)
def test_a_resize_changes_no_cpus_and_is_reported_also_over_restarts(
    world: World, capsys: pytest.CaptureFixture[str], cpu: str, now: str
) -> None:
    def explained() -> str:
        cli.main(["explain", "pod", "--file", str(world.node.root.status)])
        return capsys.readouterr().out

    with world.agent(end=signal.SIGKILL):
        pod = run(world, "pod", a="2")
        right(world, "0-1,4-7", pod__a="2-3")
        world.node.edit_pod(pod.uid, lambda body: resized(body, cpu))
        fact = f"it requests {now} since a resize, and keeps CPUs 2-3 until the pod ends"
        told = world.await_event("CPUResizeIgnored", "pod")
        assert (
            told == f"container a: {fact}; create the pod again to give it as many as it requests"
        )
        eventually(lambda: "resize" in explained(), explained)
        right(world, "0-1,4-7", pod__a="2-3")
    # The cgroup says nothing, and another pod wants the CPUs.
    world.overwrite(world.path("pod", "a"), EVERYTHING)
    with world.agent():
        right(world, "0-1,4-7", pod__a="2-3")
        run(world, "large", a="4")
        right(world, "0-1", pod__a="2-3", large__a="4-7")
        # What it requested first is right again.
        world.node.edit_pod(pod.uid, lambda body: resized(body, "2"))
        eventually(lambda: "resize" not in explained(), explained)


def test_without_a_pool_file_an_owner_keeps_its_cpus_over_restarts(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        run(world, "pod", a="2")
        right(world, "0-1,4-7", pod__a="2-3")
        world.mount.show()
        run(world, "late", a="500m")
        right(world, "0-1,4-7", pod__a="2-3")
    with world.agent():
        run(world, "later", a="500m")
        right(world, "0-1,4-7", pod__a="2-3")


def test_the_metrics_count_what_the_policy_decided(world: World) -> None:
    with world.agent_here() as agent:

        def shown(*expected: str) -> None:
            def missing() -> list[str]:
                page = test_app.get(agent, "/metrics")[1]
                return [line for line in expected if f"cpupool_cpu_manager_{line}\n" not in page]

            eventually(lambda: not missing(), lambda: str(missing()))

        run(world, "pod", a="2", b="1")
        right(world, "0-1,5-7", pod__a="2-3", pod__b="4")
        shown("pinning_requests_total 2.0", "pinning_errors_total 0.0")
        run(world, "large", a="4")
        shown(
            "pinning_requests_total 3.0",
            "pinning_errors_total 1.0",
            "shared_pool_size_millicores 3000.0",
            "exclusive_cpu_allocation_count 3.0",
            'allocation_per_numa{numa_node="0"} 3.0',
        )
