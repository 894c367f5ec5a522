"""CgroupFS and repair on cgroup version 2 of a guest; `test_node.py` runs this there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import CgroupFS
from cpupool.local.cgroups import RealCgroups
from tests.cgroups import CgroupTreeContract, Ground, V2RulesContract

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE = Path("/sys/fs/cgroup")


def make(path: str, cpus: str) -> None:
    directory = BASE / path
    directory.mkdir()
    (directory.parent / "cgroup.subtree_control").write_text("+cpuset")
    if cpus:
        (directory / "cpuset.cpus").write_text(cpus)


@pytest.fixture
def ground() -> Iterator[Ground]:
    with RealCgroups.open("vm", CPUSet.of(0, 1)) as home:
        root = home.cgroup_root.strip("/")
        make(f"{root}/kubepods", "0-1")
        tree = CgroupFS(BASE, home.cgroup_root)
        yield Ground(tree, f"{root}/kubepods", make, lambda path: (BASE / path).rmdir())


class TestRealCgroupV2(CgroupTreeContract, V2RulesContract):
    pass
