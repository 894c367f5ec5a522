from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.plugins.binding_hints import NoBinding
from cpupool.plugins.config_file import parse
from cpupool.plugins.cpu import CPUPlugin, PoolsRunEmpty
from cpupool.plugins.placing import BadRequest
from cpupool.policies.layout import Layout
from cpupool.policies.qrm.questions import PluginOptions
from tests.machines import Machine
from tests.unit.plugins.asking import INIT, LAYOUT, SIDECAR, Asked, ask

MARK = "nokia.k8s.io/cpus-exclusive"
POOLS = """
pools:
  online: {cpus: 76}
  offline: {cpus: 4}
roles:
  online-micro_service: {pool: online}
  ETL: {pool: offline}
"""
BOUND = """
reserved: "0-1,40-41"
pools: {share: {}}
roles:
  storage-service: {numaNode: same-role}
  reranker: {numaNode: same-role}
  own: {numaNode: alone}
"""
DEDICATED = {"qos_level": "dedicated_cores", "memory_enhancement": '{"numa_binding": "true"}'}


def cpu(config: str) -> Asked:
    return Asked(CPUPlugin(LAYOUT, parse("f.yaml", config), MARK))


def test_a_role_names_its_pool() -> None:
    asked = cpu(POOLS)
    assert asked.plugin.options == PluginOptions(aligned=True, reconciled=True)
    web, etl = ask("web", 4, "online-micro_service"), ask("etl", 2, "ETL")
    assert asked.hints(web) is None
    assert asked.allocate(web) == "0-37,40-77"
    assert asked.allocate(etl) == "38-39,78-79"
    (answer,) = asked.plugin.answers(asked.state, web.container).values()
    assert (answer.quantity, answer.scalar, answer.hints) == (76, True, None)

    smaller = parse("f.yaml", POOLS.replace("76", "28").replace("cpus: 4", "cpus: 52"))
    asked.plugin = CPUPlugin(LAYOUT, smaller, MARK)
    asked.state = asked.plugin.settled(asked.state)
    assert asked.value(web) == "0-13,40-53"
    assert asked.value(etl) == "14-39,54-79"


def test_katalysts_classes_name_a_pool() -> None:
    asked = cpu("pools: {share: {}, mine: {cpus: 4}, reclaim: {cpus: 4}}")
    enhanced = '{"cpuset_pool": "mine"}'
    assert asked.allocate(ask("a", 1)) == "0-35,40-75"
    assert asked.allocate(ask("b", 1, says={"cpu_enhancement": enhanced})) == "38-39,78-79"
    assert asked.allocate(ask("c", 1, says={"qos_level": "reclaimed_cores"})) == "36-37,76-77"
    # A pod of the system, as one that no rule names, runs where the manager lets it.
    assert asked.allocate(ask("d", 1, says={"qos_level": "system_cores"})) == ""
    assert cpu("").allocate(ask("e", 1)) == ""


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({"qos_level": "reclaimed_cores"}, "no pool 'reclaim'"),
        ({"cpu_enhancement": '{"cpuset_pool": "x"}'}, "no pool 'x'"),
        ({"qos_level": "dedicated_cores"}, "without numa_binding"),
        ({"memory_enhancement": "{"}, "memory_enhancement cannot be read"),
        ({"cpu_enhancement": "[]"}, "cpu_enhancement cannot be read"),
        ({"cpu_enhancement": '{"a": 1}'}, "cpu_enhancement cannot be read"),
        (
            {"qos_level": "dedicated_core"},
            "unknown value 'dedicated_core'; did you mean dedicated_c",
        ),
        (
            {"memory_enhancement": '{"numa_binding": "yes"}'},
            "'yes' of numa_binding; use true or false",
        ),
        ({"memory_enhancement": '{"numa_bindng": "true"}'}, "unknown key 'numa_bindng'; did you"),
        ({"numa_binding": "True"}, "unknown value 'True'; did you mean true"),
        ({**DEDICATED, "cpu_enhancement": '{"numa_number": "two"}'}, "numa_number is 'two'"),
        ({**DEDICATED, "cpu_enhancement": '{"numa_ids": "a"}'}, "numa_ids is 'a'"),
    ],
)
def test_what_no_rule_serves_is_refused(annotations: dict[str, str], why: str) -> None:
    asked = cpu(BOUND)
    with pytest.raises(BadRequest, match=why):
        asked.hints(ask("a", 1, says=annotations))
    with pytest.raises(BadRequest, match=why):
        asked.allocate(ask("a", 1, says=annotations))


def test_roles_that_keep_apart_are_on_nodes_of_their_own() -> None:
    asked = cpu(BOUND)
    storage, reranker = ask("pod1", 20, "storage-service"), ask("pod2", 10, "reranker")
    assert asked.hints(storage) == [([0], True), ([1], True)]
    assert asked.allocate(storage, 0) == "2-21"
    assert asked.hints(reranker) == [([1], True)]
    assert asked.allocate(reranker, 1) == "42-51"
    # The same role goes to the same node, another one nowhere.
    assert asked.hints(ask("pod3", 10, "storage-service")) == [([0], True)]
    with pytest.raises(NoBinding):
        asked.hints(ask("pod4", 10, "own"))
    with pytest.raises(NotEnoughCPUs):
        asked.allocate(ask("pod5", 10, "reranker"), 0)
    asked.remove("pod1")
    assert asked.allocate(ask("pod6", 10, "reranker"), 0) == "2-11"


def test_an_answer_of_its_own_is_marked_and_has_its_nodes() -> None:
    asked = cpu(BOUND)
    storage = ask("pod1", 20, "storage-service")
    asked.allocate(storage, 0)
    (answer,) = asked.plugin.answers(asked.state, storage.container).values()
    assert answer.annotations == {MARK: "true"}
    assert answer.by_node == {0: 20}
    assert answer.quantity == 20
    assert [sorted(hint.nodes or ()) for hint in answer.hints or ()] == [[0]]
    # A manager that has forgotten it gets the same.
    assert asked.hints(storage) == [([0], True)]
    assert asked.allocate(storage, 1) == "2-21"


def test_pools_leave_the_cpus_of_a_container_of_its_own() -> None:
    asked = cpu(BOUND)
    web = ask("web", 1)
    assert asked.allocate(web) == "2-39,42-79"
    asked.allocate(ask("pod1", 20, "storage-service"), 0)
    assert asked.value(web) == "22-39,42-79"
    asked.remove("pod1")
    assert asked.value(web) == "2-39,42-79"


def test_a_pool_that_follows_its_load_keeps_its_size_and_the_cpus_that_it_has() -> None:
    asked = cpu("pools: {online: {minCpus: 4}, offline: {}}\nroles: {a: {pool: online}}")
    web = ask("web", 1, "a")
    assert asked.allocate(web) == "0-1,40-41"
    plugin = asked.plugin
    assert isinstance(plugin, CPUPlugin)
    asked.state = plugin.resized(asked.state, {"online": 12})
    assert asked.value(web) == "0-5,40-45"
    asked.state = plugin.settled(asked.state)
    assert asked.value(web) == "0-5,40-45"
    asked.state = plugin.resized(asked.state, {"online": 8})
    assert asked.value(web) == "0-3,40-43"
    # A container with CPUs of its own leaves it as many as it has at least.
    asked.allocate(ask("own", 40, says=DEDICATED), 0)
    assert asked.value(web) == "40-47"
    with pytest.raises(PoolsRunEmpty, match="would leave 4 for 2 pools, which have 5 at least"):
        asked.allocate(ask("more", 36, says=DEDICATED), 1)
    asked.allocate(ask("less", 35, says=DEDICATED), 1)
    assert len(CPUSet.parse(asked.value(web))) == 4


def test_pools_never_run_empty() -> None:
    asked = cpu("reserved: 2-79\npools: {a: {}, b: {}}".replace("2-79", "4-39,44-79"))
    with pytest.raises(PoolsRunEmpty, match="4 CPUs would leave 4 for 5 pools") as error:
        raise PoolsRunEmpty(4, 5, 5, 4)
    assert "remove a pool" in str(error.value)
    bound = ask("a", 4, says=DEDICATED)
    assert asked.allocate(bound, 0) == "0-3"
    with pytest.raises(PoolsRunEmpty, match="3 CPUs would leave 1 for 2 pools"):
        asked.allocate(ask("b", 3, says=DEDICATED), 1)
    assert asked.allocate(ask("c", 2, says=DEDICATED), 1) == "40-41"


def test_a_request_that_grows_keeps_its_cpus() -> None:
    asked = cpu(BOUND)
    asked.allocate(ask("a", 2, "storage-service"), 0)
    asked.allocate(ask("b", 2, "storage-service"), 0)
    more = ask("a", 4, "storage-service")
    assert asked.hints(more) == [([0], True)]
    assert asked.allocate(more, 0) == "2-3,6-7"
    assert asked.allocate(ask("a", 1, "storage-service"), 0) == "2-3,6-7"


def test_a_node_of_ones_own_has_all_its_cpus() -> None:
    asked = cpu(BOUND)
    assert asked.allocate(ask("a", 4, "own"), 1) == "42-79"
    with pytest.raises(NotEnoughCPUs):
        asked.allocate(ask("b", 39, "own"), 0)
    assert asked.hints(ask("c", 1, "storage-service")) == [([0], True)]
    assert asked.hints(ask("d", 4, "own")) == [([0], True)]
    with pytest.raises(NoBinding, match="together with the pods"):
        asked.hints(ask("e", 4, says={**DEDICATED, "numa_number": "2"}))


def test_without_a_hint_the_first_preferred_nodes_are_taken() -> None:
    asked = cpu(BOUND)
    asked.allocate(ask("a", 4, "own"))
    assert asked.allocate(ask("b", 4, "reranker")) == "42-45"


def test_a_sidecar_follows_the_main_container() -> None:
    asked = cpu(BOUND)
    sidecar = ask("a", 1, "storage-service", SIDECAR)
    assert asked.hints(sidecar) is None
    assert asked.allocate(sidecar) == ""
    # Marked, so that the manager knows that what follows is the pod's own.
    (answer,) = asked.plugin.answers(asked.state, sidecar.container).values()
    assert answer.annotations == {MARK: "true"}
    main = asked.allocate(ask("a", 2, "storage-service"), 0)
    assert asked.value(sidecar) == main == "2-3"


def test_an_init_container_of_a_bound_pod_gets_nothing() -> None:
    asked = cpu(BOUND)
    init = ask("a", 1, "storage-service", INIT)
    assert asked.hints(init) is None
    assert asked.allocate(init, 0) == ""
    assert init.container not in asked.state.held
    assert asked.allocate(ask("b", 1, "", INIT)) == "2-39,42-79"


def test_katalysts_wishes_count() -> None:
    asked = cpu("")
    several = {
        **DEDICATED,
        "numa_number": "2",
        "cpu_enhancement": '{"distribute_evenly_across_numa": "true"}',
    }
    assert asked.allocate(ask("a", 8, says=several), 0, 1) == "0-3,40-43"
    exclusive = '{"numa_binding": "true", "numa_exclusive": "true"}'
    with pytest.raises(NoBinding):
        asked.hints(ask("b", 8, says={**DEDICATED, "memory_enhancement": exclusive}))
    asked.remove("a")
    says = {**DEDICATED, "numa_ids": "1"}
    assert asked.hints(ask("c", 8, says=says)) == [([1], True)]
    asked.allocate(ask("c", 8, says=says), 1)
    # Pods of Katalyst's share a node, except those that want none.
    assert asked.hints(ask("d", 8, says=DEDICATED)) == [([0], True), ([1], True)]
    apart = {**DEDICATED, "cpu_enhancement": '{"numa_share": "false"}'}
    assert asked.hints(ask("e", 8, says=apart)) == [([0], True)]


def test_an_edit_takes_no_cpu_from_its_owner() -> None:
    asked = cpu(BOUND)
    storage, web = ask("a", 4, "storage-service"), ask("web", 1)
    named = ask("named", 1, says={"cpu_enhancement": '{"cpuset_pool": "share"}'})
    asked.allocate(storage, 0)
    assert asked.allocate(web) == asked.allocate(named) == "6-39,42-79"
    asked.plugin = CPUPlugin(LAYOUT, parse("f.yaml", "reserved: 2-3"), MARK)
    asked.state = asked.plugin.settled(asked.state)
    assert asked.value(storage) == "2-5"
    # Their pool is gone.
    assert asked.value(web) == asked.value(named) == ""
    # Its role is gone, and with it who may be beside it: no other pod may.
    assert asked.hints(ask("b", 4, says=DEDICATED)) == [([0], True), ([1], True)]


def test_offline_cpus_are_left_out_while_others_remain() -> None:
    asked = cpu(BOUND)
    storage, web = ask("a", 4, "storage-service"), ask("web", 1)
    asked.allocate(storage, 0)
    asked.allocate(web)
    machine = Machine(sockets=2, cores=20, threads=2, adjacent=True)
    for off, left, shared in (("4-6", "2-3", "7-39,42-79"), ("2-5", "2-5", "6-39,42-79")):
        layout = Layout.of_topology(machine.without(off).topology())
        plugin = replace(CPUPlugin(LAYOUT, parse("f.yaml", BOUND), MARK), layout=layout)
        asked.plugin, asked.state = plugin, plugin.settled(asked.state)
        assert asked.value(storage) == left
        assert asked.value(web) == shared


def test_the_stock_is_that_of_the_nodes() -> None:
    asked = cpu(BOUND)
    stock = asked.plugin.stock(asked.state, "cpu")
    assert stock == {"cpu": ({0: (40, 38), 1: (40, 38)}, False, ())}
