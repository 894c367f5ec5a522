"""A synthesised machine reads back as it was described, also with CPUs switched off."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.host.sysfs import RecordedTree, Sysfs
from tests.drawn_machines import shapes

if TYPE_CHECKING:
    from tests.machines import Machine


def groups(machine: Machine, field: str) -> tuple[CPUSet, ...]:
    members: defaultdict[int, list[int]] = defaultdict(list)
    for thread in machine.layout():
        number = getattr(thread, field)
        if number is not None:
            members[number].append(thread.cpu)
    return tuple(sorted(map(CPUSet, members.values()), key=lambda group: group.first))


@given(shapes)
def test_a_machine_reads_back_as_described(machine: Machine) -> None:
    topology = machine.topology()

    assert topology.online == CPUSet(range(len(machine.layout())))
    assert topology.cores == groups(machine, "core")
    assert topology.sockets == groups(machine, "socket")
    assert topology.dies == (groups(machine, "die") if machine.dies > 1 else ())
    assert topology.l3 == groups(machine, "l3")
    assert tuple(topology.nodes.values()) == groups(machine, "node")
    for thread in machine.layout():
        assert topology.node_of(thread.cpu) == thread.node
        assert topology.cpus[thread.cpu].package_id == thread.socket


@given(shapes, st.sets(st.integers(1, 40)))
def test_cpus_that_go_offline_leave_every_group_and_are_remembered(
    machine: Machine, off: set[int]
) -> None:
    before = machine.topology()
    gone = before.online & CPUSet(off)

    after = machine.having_lost(gone)

    assert before.cut_to(after.online).remembering(before) == after
    assert after.online == before.online - gone
    for kind in ("cores", "sockets", "l3"):
        cut = [group - gone for group in getattr(before, kind)]
        assert set(getattr(after, kind)) == set(filter(None, cut))
    assert after.nodes == {node: cpus - gone for node, cpus in before.nodes.items()}
    for cpu in before.online:
        assert after.core_of(cpu) == before.core_of(cpu)
        assert after.node_of(cpu) == before.node_of(cpu)


CPUS = range(6)
some = st.sets(st.sampled_from(CPUS)).map(CPUSet)
KINDS = {"core": "core_cpus_list", "socket": "package_cpus_list", "die": "die_cpus_list"}
words = st.fixed_dictionaries(
    dict.fromkeys((*KINDS, "cache", "node", "link"), st.dictionaries(st.sampled_from(CPUS), some))
)
"""Groups as damaged firmware could name them: they overlap, and miss their own CPU."""


@given(some, words)
def test_groups_are_disjoint_whatever_sysfs_says(
    off: CPUSet, said: dict[str, dict[int, CPUSet]]
) -> None:
    folder = "devices/system/cpu"
    online = CPUSet(CPUS) - off | CPUSet.of(0)
    files = {f"{folder}/present": "0-5", f"{folder}/online": str(online)}
    for kind, name in KINDS.items():
        for cpu, cpus in said[kind].items():
            files[f"{folder}/cpu{cpu}/topology/{name}"] = str(cpus)
            files[f"{folder}/cpu{cpu}/topology/die_id"] = "0"
    for cpu, cpus in said["cache"].items():
        files[f"{folder}/cpu{cpu}/cache/index0/level"] = "3"
        files[f"{folder}/cpu{cpu}/cache/index0/shared_cpu_list"] = str(cpus)
    for node, cpus in said["node"].items():
        files[f"devices/system/node/node{node}/cpulist"] = str(cpus)
    for cpu, linked in said["link"].items():
        files |= {f"{folder}/cpu{cpu}/node{node}": "" for node in linked}

    topology = Sysfs(RecordedTree("contradictory", files)).topology()

    nodes = tuple(topology.nodes.values())
    for of_kind in (topology.cores, topology.sockets, topology.dies, topology.l3, nodes):
        assert sum(map(len, of_kind)) == len(CPUSet.union(of_kind))
        assert CPUSet.union(of_kind) <= online
    assert CPUSet.union(topology.cores) == CPUSet.union(topology.sockets) == online
    for cpu in online:
        on = [node for node, cpus in topology.nodes.items() if cpu in cpus]
        assert topology.node_of(cpu) == (on[0] if on else None)
        listing = [node for node, cpus in sorted(said["node"].items()) if cpu in cpus]
        assert on == list(said["link"].get(cpu) or listing)[:1]
