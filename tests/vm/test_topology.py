"""The topology that cpupool reads in a guest is the one that QEMU was asked for."""

from __future__ import annotations

import json

import pytest

from tests.vm.machine import PYTHON, TIMEOUT_S, Topology, booted


# The guests of other tests read theirs: of two nodes, and of four.
@pytest.mark.soak
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "asked", [Topology(sockets=4, cores=2, threads=2, nodes=4), Topology(cores=2)], ids=str
)
def test_the_topology_read_is_the_one_asked_of_qemu(asked: Topology) -> None:
    with booted(asked) as guest:
        read = json.loads(guest.output(PYTHON, "-m", "cpupool", "topology", "--json"))
    placed = {
        one["cpu"]: (one["core"], one["socket"], one["node"], one["siblings"])
        for one in read["cpus"]
    }
    assert placed == {cpu: expected(asked, cpu) for cpu in range(asked.cpus)}


def expected(asked: Topology, cpu: int) -> tuple[int, int, int, str]:
    """Give core, socket, NUMA node and siblings of a CPU."""
    core = cpu // asked.threads
    first, last = core * asked.threads, (core + 1) * asked.threads - 1
    siblings = str(cpu) if first == last else f"{first}-{last}"
    return core, core // asked.cores, cpu * asked.nodes // asked.cpus, siblings
