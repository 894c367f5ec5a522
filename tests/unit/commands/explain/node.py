"""A node whose containers are explained."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool import cli
from cpupool.core.cgroups import FoundContainer, Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.manager.manager import Manager
from cpupool.manager.report import NodeStatus, describe
from cpupool.manager.status_json import to_json
from tests.builders import given, pod
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, ContainerRef, Pod

LAPTOP = MACHINES["laptop_4c8t"]
EXCLUSIVE = Pool.named("exclusive_a", "2,4")
THREADED = Pool.named("exclusive_m", "6", multi_threaded=True)
SHARED = Pool.named("shared_b", "1")
DEFAULT = Pool.named("default", "0")
BY_NRI = (
    "the container runtime sets the CPUs of containers that start now (NRI), before their first"
    " instruction"
)
CHOSEN_BEFORE = "choice: chosen before this agent started: not recorded"


class Node:
    """A manager that is told what a kubelet would tell it, and what its agent writes then."""

    def __init__(self, *pools: Pool, moves_pinned: bool = True) -> None:
        self.manager = Manager(Names(), moves_pinned=moves_pinned)
        self.reconfigure(*(pools or (EXCLUSIVE, THREADED, SHARED, DEFAULT)))
        self._pods: list[Pod] = []

    def reconfigure(self, *pools: Pool) -> None:
        self.manager.reconfigure(NodePools.of(*pools), LAPTOP.topology())

    def advise(self, pool: str, size: int, *available: str) -> None:
        """Let the kubelet ask which devices to take."""
        self.manager.preferred(pool, available, (), size)

    def run(self, name: str, *containers: Container, **ids: str) -> Pod:
        """Run a pod, the last container of which has these devices."""
        made = pod(name, *containers)
        self._pods.append(made)
        self.manager.observe(pods=self._pods)
        if ids:
            self.manager.accept(given(made, made.containers[-1].name, **ids))
        return made

    def status(
        self,
        waiting_for: str = "",
        notices: Mapping[ContainerRef, float] | None = None,
        **found: str,
    ) -> NodeStatus:
        """Say what the agent has seen: pod → the CPUs of its container `main`."""
        seen = [
            FoundContainer(f"{name}-uid", "main-id", "path", cpus) for name, cpus in found.items()
        ]
        state = self.manager.snapshot()
        return describe(
            *state,
            seen,
            waiting_for,
            Writer.NRI,
            choices=self.manager.choices(),
            notices=notices,
        )


def explain(file: Path, status: NodeStatus, name: str, *options: str) -> int:
    file.write_text(json.dumps(to_json(status)))
    machine = ["--topology", str(file.parent)]
    return cli.main(["explain", name, "--file", str(file), *machine, *options])


def steps(printed: str) -> list[str]:
    """Pick the numbered lines, without their numbers."""
    numbered = (line.partition(". ") for line in printed.splitlines())
    return [text for number, _, text in numbered if number.strip().isdigit()]


def without(*gone: int) -> CPUTopology:
    """Read the laptop with some CPUs switched off."""
    return replace(LAPTOP.topology(), online=LAPTOP.topology().online - CPUSet(gone))
