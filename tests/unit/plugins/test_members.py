"""Pools on one NUMA node, for shared pods that are bound to it."""

from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.plugins import state_codec
from cpupool.plugins.binding_hints import NoBinding
from cpupool.plugins.config_file import parse
from cpupool.plugins.cpu import CPUPlugin, PoolsRunEmpty
from tests.unit.plugins.asking import INIT, LAYOUT, SIDECAR, Asked, ask

MARK = "nokia.k8s.io/cpus-exclusive"
BINDS = {"memory_enhancement": '{"numa_binding": "true"}'}
DEDICATED = {"qos_level": "dedicated_cores", **BINDS}
MINE = {**BINDS, "cpu_enhancement": '{"cpuset_pool": "mine"}'}
CONFIG = """
reserved: "0-1,40-41"
pools: {share: {cpus: 10}, rest: {}, mine: {minCpus: 4}}
"""


def cpu(config: str = CONFIG) -> Asked:
    return Asked(CPUPlugin(LAYOUT, parse("f.yaml", config), MARK))


def sizes(asked: Asked) -> dict[str, int]:
    return {name: len(cpus) for name, cpus in asked.state.pools.items()}


def test_a_pool_on_a_node_has_what_its_pods_request() -> None:
    asked = cpu()
    one, two = ask("one", 2.5, says=BINDS), ask("two", 0.5, says=BINDS)
    assert asked.hints(one) == [([0], True), ([1], True)]
    assert asked.allocate(one, 1) == "50-52"
    assert asked.allocate(two, 1) == "50-52"
    assert sizes(asked) == {"share-NUMA1": 3, "share": 10, "rest": 59, "mine": 4}
    assert asked.allocate(ask("three", 2, says=BINDS), 1) == asked.value(one) == "50-52,54-55"
    # Only the pool with a weight has given.
    assert str(asked.state.pools["share"]) == "2-7,42-45"
    assert str(asked.state.pools["mine"]) == "46-49"
    asked.remove("one")
    assert asked.value(two) == "50-52"
    asked.remove("two")
    asked.remove("three")
    assert sizes(asked) == {"share": 10, "rest": 62, "mine": 4}


def test_its_answer_is_shared_and_names_the_node() -> None:
    asked = cpu()
    question = ask("a", 2, says=BINDS)
    asked.allocate(question, 1)
    (answer,) = asked.plugin.answers(asked.state, question.container).values()
    assert (answer.oci_property, answer.value, answer.quantity) == ("CpusetCpus", "50-51", 2)
    assert (answer.annotations, answer.scalar) == ({}, True)
    assert [(sorted(hint.nodes or ()), hint.preferred) for hint in answer.hints or ()] == [
        ([1], True)
    ]
    # A manager that has forgotten it gets the same.
    assert asked.hints(question) == [([1], True)]
    assert asked.allocate(question, 0) == "50-51"


def test_a_request_above_one_node_is_refused() -> None:
    asked = cpu()
    with pytest.raises(NoBinding, match="do not fit on one NUMA node"):
        asked.hints(ask("a", 41, says=BINDS))
    # 38 CPUs of each node are not reserved.
    with pytest.raises(NoBinding):
        asked.hints(ask("a", 38.5, says=BINDS))
    assert asked.hints(ask("a", 38, says=BINDS)) == [([0], True), ([1], True)]


def test_the_requests_on_a_node_are_counted() -> None:
    asked = cpu()
    asked.allocate(ask("a", 36.5, says=BINDS), 0)
    assert asked.hints(ask("b", 1.5, says=BINDS)) == [([0], True), ([1], True)]
    assert asked.hints(ask("b", 1.6, says=BINDS)) == [([1], True)]
    with pytest.raises(NoBinding, match=r"no 1.6 CPUs for its pool are on NUMA nodes \[0\]"):
        asked.allocate(ask("b", 1.6, says=BINDS), 0)
    with pytest.raises(NoBinding, match=r"NUMA nodes \[0, 1\]"):
        asked.allocate(ask("b", 1.6, says=BINDS), 0, 1)
    assert asked.allocate(ask("b", 1.5, says=BINDS), 0) == "2-39"
    assert asked.allocate(ask("c", 1, says=BINDS)) == "56"


def test_sums_of_requests_have_no_errors() -> None:
    asked = cpu()
    for number in range(10):
        asked.allocate(ask(f"pod{number}", 0.1, says=BINDS), 0)
    assert sizes(asked)["share-NUMA0"] == 1


def test_a_request_that_grows_stays_on_its_node() -> None:
    asked = cpu()
    asked.allocate(ask("a", 2, says=BINDS), 1)
    asked.allocate(ask("b", 30, says=BINDS), 1)
    more = ask("a", 8, says=BINDS)
    assert asked.hints(more) == [([1], True)]
    assert asked.allocate(more, 1) == "42-79"
    with pytest.raises(NoBinding):
        asked.hints(ask("a", 9, says=BINDS))
    assert asked.allocate(ask("a", 1, says=BINDS), 1) == "42-79"


def test_a_sidecar_follows_the_main_container() -> None:
    asked = cpu()
    sidecar, init = ask("a", 1, "", SIDECAR, says=BINDS), ask("a", 1, "", INIT, says=BINDS)
    assert asked.hints(sidecar) is asked.hints(init) is None
    assert asked.allocate(init) == asked.allocate(sidecar) == ""
    assert init.container not in asked.state.held
    main = ask("a", 2, says=BINDS)
    assert asked.allocate(main, 1) == "50-52"
    assert asked.value(sidecar) == "50-52"
    (answer,) = asked.plugin.answers(asked.state, sidecar.container).values()
    assert answer.hints is None
    # Its request counts, also if it comes later.
    assert asked.allocate(ask("a", 3, "", SIDECAR, says=BINDS)) == asked.value(main)
    assert sizes(asked)["share-NUMA1"] == 5
    asked.remove("a")
    assert not [name for name in asked.state.pools if "NUMA" in name]


def test_a_node_has_one_such_pool_and_no_cpus_of_ones_own() -> None:
    asked = cpu()
    asked.allocate(ask("shared", 2, says=BINDS), 0)
    assert asked.hints(ask("mine", 2, says=MINE)) == [([1], True)]
    assert asked.hints(ask("own", 2, says=DEDICATED)) == [([1], True)]
    asked.allocate(ask("own", 2, says=DEDICATED), 1)
    with pytest.raises(NoBinding):
        asked.hints(ask("mine", 2, says=MINE))
    assert asked.hints(ask("more", 2, says=BINDS)) == [([0], True)]


def test_what_the_pools_of_the_file_have_at_least_stays() -> None:
    asked = cpu('reserved: "10-39,50-79"\npools: {share: {minCpus: 9}, rest: {}}')
    assert asked.allocate(ask("a", 8, says=BINDS), 0) == "0-2,5-9"
    assert len(asked.state.pools["share"]) == 9
    # Its pool follows the load of its pods: it has at least what they request, or `minCpus`.
    with pytest.raises(PoolsRunEmpty, match="3 CPUs would leave 20 for 4 pools, which have 21"):
        asked.allocate(ask("b", 3, says=BINDS), 1)
    assert asked.allocate(ask("b", 2, says=BINDS), 1) == "48-49"


def test_it_has_what_its_pods_request_whatever_the_numbers_of_others_are() -> None:
    asked = cpu("pools: {online: {cpus: 76}, offline: {cpus: 4}}")
    asked.allocate(ask("a", 20, says=BINDS), 0)
    assert sizes(asked) == {"share-NUMA0": 20, "online": 57, "offline": 3}


def test_a_pool_that_the_file_does_not_have_is_there_on_nodes() -> None:
    asked = cpu("")
    assert asked.allocate(ask("a", 1)) == ""
    assert asked.allocate(ask("b", 1, says=BINDS), 0) == "0"


def test_the_pods_of_a_pool_that_is_gone_have_no_answer() -> None:
    asked = cpu()
    mine = ask("a", 4, says=MINE)
    assert asked.allocate(mine, 0) == "8-11"
    asked.plugin = CPUPlugin(LAYOUT, parse("f.yaml", "pools: {share: {}}"), MARK)
    asked.state = asked.plugin.settled(asked.state)
    assert asked.value(mine) == ""
    assert sizes(asked) == {"share": 80}


def test_a_pool_whose_node_is_gone_runs_elsewhere() -> None:
    asked = cpu()
    question = ask("a", 4, says=BINDS)
    asked.allocate(question, 0)
    for reserved, cpus in (("0-37", 2), ("0-39", 1)):
        config = CONFIG.replace("0-1,40-41", reserved)
        asked.plugin = CPUPlugin(LAYOUT, parse("f.yaml", config), MARK)
        asked.state = asked.plugin.settled(asked.state)
        assert len(CPUSet.parse(asked.value(question))) == cpus
        assert sum(sizes(asked).values()) == len(CPUSet.union(asked.state.pools.values()))


def test_the_state_file_has_it() -> None:
    asked = cpu()
    question = ask("a", 4, says=BINDS)
    asked.allocate(question, 1)
    asked.state = state_codec.parse(state_codec.encode(asked.state))
    assert asked.plugin.settled(asked.state) == asked.state
    assert asked.value(question) == "50-53"
