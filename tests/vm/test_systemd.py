"""A node whose first process is systemd: the agent beside it, and beside a real containerd."""

from __future__ import annotations

import pytest

from tests.containerd.guest_first_instruction import SUITE
from tests.containerd.runtime import Programs
from tests.vm.machine import TIMEOUT_S, Topology, booted

TOPOLOGY = Topology(sockets=4, threads=2, nodes=4)
CONTAINERD = "tests/containerd/guest_first_instruction.py"
RESIZES = "tests/containerd/guest_dynamic_policy.py"


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "modules",
    [
        pytest.param(
            (
                "tests/vm/guest_systemd.py",
                f"{CONTAINERD}::test_no_container_runs_one_instruction_on_a_wrong_cpu",
            ),
            id="usual",
        ),
        # `test_first_instruction.py` shows the rest on this machine, `test_node.py` on version 2.
        pytest.param((CONTAINERD,), id="containerd", marks=pytest.mark.soak),
        # The embedded node shows resizes, too, and this machine where it has three CPUs.
        pytest.param((RESIZES,), id="resizes", marks=pytest.mark.soak),
    ],
)
def test_the_agent_beside_systemd_and_containerd(modules: tuple[str, ...]) -> None:
    Programs.of(SUITE)  # the guest has no network to get them
    with booted(TOPOLOGY, memory_mib=1536, systemd=True) as guest:
        guest.passes(*modules)
