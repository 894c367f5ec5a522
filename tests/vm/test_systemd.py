"""The agent on a node whose first process is systemd, with the systemd driver's cgroups."""

from __future__ import annotations

import pytest

from tests.vm.machine import TIMEOUT_S, Topology, booted


@pytest.mark.timeout(TIMEOUT_S)
def test_the_agent_beside_systemd() -> None:
    with booted(Topology(cores=4, threads=2), systemd=True) as guest:
        guest.passes("tests/vm/guest_systemd.py")
