"""The three examples of the QoS Resource Manager's proposal, with our plugins as real processes.

The proposal's machine has 80 CPUs, 0-39 on NUMA node 0 and 40-79 on node 1.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.machines import Machine
from tests.processes import Process
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    asked_by_the_runtime,
    right,
    run,
    served,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

PROPOSED = Machine(sockets=2, cores=20, threads=2, adjacent=True)
POOLS = """
pools:
  default: {cpus: "0-79"}
nodeSelector: {role: worker}
cpuManager: {policy: qrm, reserved: "0-1,40-41", topologyPolicy: restricted}
"""
ALL = "0-79"
ROLE = "kubernetes.io/pod-role"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    machine = PROPOSED.write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


@contextmanager
def plugins(world: World, config: str, *names: str) -> Iterator[list[Process]]:
    """Run plugins, each in a process of its own."""
    configure(world, config)
    with ExitStack() as running:
        yield [running.enter_context(plugin(world, name)) for name in names]


@contextmanager
def plugin(world: World, name: str, end: int = signal.SIGTERM) -> Iterator[Process]:
    process = Process(
        *(sys.executable, "-W", "error", "-m", "cpupool", "resource-plugin", name),
        *("--host-root", world.folder, "--config", world.folder / "plugins/config.yaml"),
    )
    with process.collecting(end):
        yield process


def configure(world: World, config: str) -> None:
    path = world.folder / "plugins/config.yaml"
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(config)
    fresh.replace(path)


def of_role(world: World, name: str, role: str, **requests: str) -> Pod:
    return run(world, name, {ROLE: role}, **requests)


EXAMPLE_1 = """
pools:
  online: {cpus: 76}
  offline: {cpus: 4}
roles:
  online-micro_service: {pool: online}
  ETL: {pool: offline}
"""


def test_example_1_two_pools_by_role_whose_sizes_change(world: World) -> None:
    with plugins(world, EXAMPLE_1, "cpu"), asked_by_the_runtime(world) as agent:
        served(agent)
        run(world, "system", cpu="0")
        pods = (
            of_role(world, "pod1", "online-micro_service", cpu="4"),
            of_role(world, "pod2", "ETL", cpu="2"),
            of_role(world, "pod3", "online-micro_service", cpu="4"),
        )
        for pod in pods:
            started(world, pod)
        right(world, ALL, pod1="0-37,40-77", pod2="38-39,78-79", pod3="0-37,40-77", system=ALL)

        configure(world, EXAMPLE_1.replace("76", "28").replace("cpus: 4", "cpus: 52"))
        right(world, ALL, pod1="0-13,40-53", pod2="14-39,54-79", pod3="0-13,40-53", system=ALL)

        configure(world, EXAMPLE_1)
        right(world, ALL, pod1="0-37,40-77", pod2="38-39,78-79", pod3="0-37,40-77", system=ALL)
