"""A real containerd on cgroup version 2 and cores of two threads, which the host may not have."""

from __future__ import annotations

import pytest

from tests.containerd.guest_first_instruction import SUITE
from tests.containerd.runtime import Programs
from tests.vm.machine import TIMEOUT_S, Topology, booted


@pytest.mark.timeout(TIMEOUT_S)
def test_containers_of_a_guest_run_on_their_own_threads() -> None:
    Programs.of(SUITE)  # the guest has no network to get them
    with booted(Topology(cores=4, threads=2), memory_mib=1536) as guest:
        guest.passes("tests/containerd/guest_first_instruction.py")
