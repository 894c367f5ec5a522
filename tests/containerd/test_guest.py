"""A real containerd on cgroup version 2 and cores of two threads, which the host may not have."""

from __future__ import annotations

import pytest

from tests.containerd.guest_first_instruction import SUITE
from tests.containerd.runtime import Programs
from tests.vm.machine import TIMEOUT_S, Topology, booted

MODULE = "tests/containerd/guest_first_instruction.py"


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "test",
    [
        "test_no_container_runs_one_instruction_on_a_wrong_cpu",
        # `test_first_instruction.py` shows it on this machine, `tests/vm` on version 2.
        pytest.param(
            "test_containers_are_brought_where_they_belong_and_kept_there", marks=pytest.mark.soak
        ),
    ],
)
def test_containers_of_a_guest_run_on_their_own_threads(test: str) -> None:
    Programs.of(SUITE)  # the guest has no network to get them
    with booted(Topology(cores=4, threads=2), memory_mib=1536) as guest:
        guest.passes(f"{MODULE}::{test}")
