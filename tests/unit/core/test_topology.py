from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.topology import CoreType, CPUFacts, CPUTopology, assemble, describe
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping

LAPTOP = MACHINES["laptop_4c8t"]


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)


def built(
    facts: Mapping[int, CPUFacts],
    *,
    online: str = "0-3",
    present: str = "",
    nodes: Mapping[int, CPUSet] | None = None,
) -> CPUTopology:
    return assemble(
        online=cpus(online),
        present=cpus(present),
        isolated=CPUSet(),
        facts=facts,
        nodes=nodes or {},
        distances={},
        hybrid={},
    )


def test_a_core_is_its_online_threads() -> None:
    topology = LAPTOP.topology()

    assert [str(core) for core in topology.cores] == ["0-1", "2-3", "4-5", "6-7"]
    assert topology.core_of(5) == cpus("4-5")
    assert topology.with_siblings(cpus("0,7")) == cpus("0-1,6-7")


def test_a_cpu_that_nothing_has_seen_is_a_core_of_its_own() -> None:
    topology = LAPTOP.topology()

    assert topology.core_of(99) == cpus("99")
    assert topology.node_of(99) is None


def test_an_offline_cpu_keeps_its_siblings_and_its_node_in_memory() -> None:
    machine = MACHINES["telco_2s_2n_16c32t"]

    after = machine.without("9").topology().remembering(machine.topology())

    assert 9 not in after.online
    assert 9 in after.present
    assert after.cores[after.cpus[25].core] == cpus("25")
    assert after.core_of(9) == after.core_of(25) == cpus("9,25")
    assert after.node_of(9) == 1
    assert str(after.nodes[1]) == "8,10-15,24-31"


def test_memory_outlives_one_reading_after_the_other() -> None:
    one_off = LAPTOP.without("2").topology().remembering(LAPTOP.topology())
    both_off = LAPTOP.without("2-3").topology().remembering(one_off)
    one_back = LAPTOP.without("3").topology().remembering(both_off)

    assert both_off.core_of(2) == both_off.core_of(3) == cpus("2-3")
    assert one_back.core_of(2) == cpus("2-3")
    assert set(one_back.offline) == {3}


def test_a_cpu_that_leaves_the_machine_is_forgotten() -> None:
    facts = {cpu: CPUFacts(core=cpus("0-1"), socket=cpus("0-1")) for cpu in range(2)}
    before = built(facts, online="0-1")

    after = built(facts, online="0").remembering(before)

    assert after.present == cpus("0")
    assert after.core_of(0) == cpus("0")


def test_a_cpu_that_was_never_online_has_nothing_to_remember() -> None:
    facts = {0: CPUFacts(core=cpus("0"), socket=cpus("0"))}
    before = built(facts, online="0", present="0-1")

    assert built(facts, online="0", present="0-1").remembering(before).offline == {}


def test_taking_cpus_away_cuts_every_group() -> None:
    topology = MACHINES["two_dies"].without("0-3,16-19,8").topology()

    assert [str(group) for group in topology.sockets] == ["4-7,20-23", "9-15,24-31"]
    assert [str(group) for group in topology.dies] == ["4-7,20-23", "9-11,24-27", "12-15,28-31"]
    assert [str(group) for group in topology.l3] == ["4-7,20-23", "9-11,24-27", "12-15,28-31"]
    assert {node: str(group) for node, group in topology.nodes.items()} == {
        0: "",
        1: "4-7,20-23",
        2: "9-11,24-27",
        3: "12-15,28-31",
    }


def test_taking_cpus_away_from_a_machine_without_l3_and_dies_leaves_it_without() -> None:
    topology = MACHINES["arm_no_smt"].without("0").topology()

    assert topology.l3 == topology.dies == ()
    assert {(info.l3, info.die) for info in topology.cpus.values()} == {(None, None)}


def test_hybrid_cores_have_their_type() -> None:
    topology = MACHINES["hybrid"].without("0-1,15").topology()

    assert topology.cpus[2].core_type is CoreType.PERFORMANCE
    assert topology.cpus[8].core_type is CoreType.EFFICIENCY
    assert topology.hybrid == {"cpu_core": cpus("2-7"), "cpu_atom": cpus("8-14")}
    assert {info.core_type for info in LAPTOP.topology().cpus.values()} == {CoreType.STANDARD}


def test_groups_never_share_a_cpu_where_the_kernels_sets_contradict_each_other() -> None:
    sets = {0: "0-1", 1: "1-2", 2: "1-3", 3: "0-3"}
    topology = built(
        {cpu: CPUFacts(core=cpus(text), socket=cpus("0-3")) for cpu, text in sets.items()}
    )

    assert [str(core) for core in topology.cores] == ["0-1", "2-3"]
    assert [info.core for info in topology.cpus.values()] == [0, 0, 1, 1]


def test_one_die_per_socket_is_no_die() -> None:
    facts = {
        cpu: CPUFacts(core=CPUSet.of(cpu), socket=cpus("0-3"), die=cpus("0-3"), die_id=7)
        for cpu in range(4)
    }
    topology = built(facts)

    assert topology.dies == ()
    assert {(info.die, info.die_id) for info in topology.cpus.values()} == {(None, None)}


def test_a_core_goes_by_the_id_of_its_lowest_thread() -> None:
    facts = {
        cpu: CPUFacts(core=cpus("0-1"), socket=cpus("0-1"), core_id=cpu + 10) for cpu in range(2)
    }

    assert [info.core_id for info in built(facts, online="0-1").cpus.values()] == [10, 10]


def test_a_cpu_of_no_node_has_none() -> None:
    facts = {cpu: CPUFacts(core=CPUSet.of(cpu), socket=cpus("0-3")) for cpu in range(4)}
    topology = built(facts, nodes={3: cpus("0-1,9"), 1: CPUSet()})

    assert list(topology.nodes.items()) == [(1, CPUSet()), (3, cpus("0-1"))]
    assert [topology.node_of(cpu) for cpu in range(4)] == [3, 3, None, None]


def test_a_machine_is_described_in_values_that_json_knows() -> None:
    described = json.loads(json.dumps(describe(MACHINES["sparse_nodes"].topology())))

    assert list(described) == (
        "online cores sockets dies l3 nodes distances cpus hybrid".split()  # noqa: SIM905
    )
    assert described["nodes"] == {"0": "0-1", "8": "2-3", "33": "4-5", "45": "6-7", "250": ""}
    assert described["distances"]["8"] == [21, 10, 21, 21, 21]
    assert described["cpus"][3] == {
        "cpu": 3,
        "core": 3,
        "socket": 0,
        "node": 8,
        "die": None,
        "l3": 1,
        "siblings": "3",
        "core_id": 3,
        "package_id": 0,
        "die_id": None,
    }


@pytest.mark.parametrize("name", MACHINES)
def test_every_online_cpu_of_a_named_machine_stands_in_one_core(name: str) -> None:
    topology = MACHINES[name].topology()

    assert sum(len(core) for core in topology.cores) == len(topology.online)
    assert CPUSet.union(topology.cores) == topology.online
