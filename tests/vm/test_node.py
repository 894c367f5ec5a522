"""The agent and the cgroup tree on the real kernel, with siblings and two NUMA nodes."""

from __future__ import annotations

import pytest

from tests.vm.boot import Kernel
from tests.vm.machine import TIMEOUT_S, CgroupVersion, Topology, booted

TOPOLOGY = Topology(sockets=2, cores=4, threads=2, nodes=2)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    ("kernel", "cgroup", "modules"),
    [
        pytest.param(
            Kernel.TRIXIE,
            CgroupVersion.V2,
            (
                "tests/vm/guest_node.py",
                "tests/vm/guest_koordinator.py",
                "tests/vm/guest_dynamic.py",
                "tests/vm/guest_memory.py",
                "tests/vm/guest_properties.py",
                "tests/vm/guest_offline.py",
                "tests/vm/guest_withheld.py",
                "tests/vm/guest_cgroup_v2.py",
                "tests/vm/guest_load_balancing.py",
            ),
            id="6.12-v2",
        ),
        # The modules of 6.12 again: an older kernel, for `make soak`.
        pytest.param(
            Kernel.BOOKWORM,
            CgroupVersion.V2,
            (
                "tests/vm/guest_offline.py",
                "tests/vm/guest_withheld.py",
                "tests/vm/guest_cgroup_v2.py",
                "tests/vm/guest_load_balancing.py",
            ),
            id="6.1-v2",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            Kernel.BOOKWORM,
            CgroupVersion.V1,
            (
                "tests/vm/guest_node.py",
                "tests/vm/guest_memory.py",
                "tests/vm/guest_properties.py",
                "tests/vm/guest_offline.py",
                "tests/kernel/test_cgroup_v1.py",
            ),
            id="6.1-v1",
        ),
    ],
)
def test_cpupool_on_the_real_kernel(
    kernel: Kernel, cgroup: CgroupVersion, modules: tuple[str, ...]
) -> None:
    with booted(TOPOLOGY, kernel=kernel, cgroup=cgroup) as guest:
        guest.passes(*modules)
