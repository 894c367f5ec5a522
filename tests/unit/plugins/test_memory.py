from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.plugins.binding_hints import NoBinding
from cpupool.plugins.config_file import parse
from cpupool.plugins.memory import MemoryPlugin
from cpupool.plugins.placing import BadRequest
from cpupool.policies.qrm.questions import PluginOptions
from tests.unit.plugins.asking import INIT, LAYOUT, SIDECAR, Asked, ask

GB = 2**30
TOTAL = {0: 237706936320, 1: 237806551040}
ROLES = """
reservedMemory: 500Mi
pools: {online: {}}
roles:
  online: {pool: online}
  storage-service: {numaNode: same-role}
  reranker: {numaNode: same-role}
  own: {numaNode: alone}
"""


def memory(total: dict[int, int] | None = None) -> Asked:
    return Asked(MemoryPlugin(LAYOUT, parse("f.yaml", ROLES), total or TOTAL))


def test_roles_that_keep_apart_have_memory_of_their_own() -> None:
    asked = memory()
    assert asked.plugin.options == PluginOptions(aligned=True, reconciled=True)
    storage, reranker = ask("pod1", 40 * GB, "storage-service"), ask("pod2", 20 * GB, "reranker")
    assert asked.hints(storage) == [([0], True), ([1], True)]
    assert asked.allocate(storage, 0) == "0"
    assert asked.hints(reranker) == [([1], True)]
    with pytest.raises(NoBinding, match=r"no 21474836480 bytes are free on NUMA nodes \[0\]"):
        asked.allocate(reranker, 0)
    assert asked.allocate(reranker, 1) == "1"
    (answer,) = asked.plugin.answers(asked.state, storage.container).values()
    assert (answer.oci_property, answer.quantity) == ("CpusetMems", 40 * GB)
    assert answer.by_node == {0: 40 * GB}
    assert [sorted(hint.nodes or ()) for hint in answer.hints or ()] == [[0]]
    asked.remove("pod1")
    assert asked.hints(ask("pod3", GB, "reranker")) == [([0], True), ([1], True)]


def test_shared_pods_that_are_bound_have_the_memory_of_their_node() -> None:
    asked = memory()
    bound = {"memory_enhancement": '{"numa_binding": "true"}'}
    one, side = ask("a", GB, says=bound), ask("a", GB, "", SIDECAR, says=bound)
    assert asked.hints(one) == [([0], True), ([1], True)]
    assert asked.hints(side) is None
    assert asked.allocate(side) == ""
    assert asked.allocate(one, 1) == asked.value(side) == "1"
    # As in the plugin for CPUs: no pod with CPUs of its own, and one pool on a node.
    assert asked.hints(ask("b", GB, "storage-service")) == [([0], True)]
    other = {**bound, "cpu_enhancement": '{"cpuset_pool": "online"}'}
    assert asked.hints(ask("c", GB, says=other)) == [([0], True)]
    assert asked.allocate(ask("d", GB, says=bound), 1) == "1"
    assert asked.allocate(ask("web", GB, "online")) == "0"
    with pytest.raises(NoBinding):
        asked.hints(ask("e", TOTAL[0] + GB, says=bound))


def test_what_is_requested_is_counted() -> None:
    asked = memory()
    most = TOTAL[0] - 524288000
    asked.allocate(ask("a", most - GB, "storage-service"), 0)
    assert asked.allocate(ask("b", GB, "storage-service"), 0) == "0"
    with pytest.raises(NoBinding):
        asked.allocate(ask("c", 1, "storage-service"), 0)
    assert asked.hints(ask("d", 1, "storage-service")) == [([1], True)]


def test_a_request_that_grows_stays_on_its_node() -> None:
    asked = memory()
    asked.allocate(ask("a", GB, "storage-service"), 1)
    same = ask("a", GB / 2, "storage-service")
    assert asked.hints(same) == [([1], True)]
    assert asked.allocate(same, 0) == "1"
    more = ask("a", 2 * GB, "storage-service")
    assert asked.hints(more) == [([1], True)]
    assert asked.allocate(more, 1) == "1"
    assert asked.state.held[more.container].answer.by_node == {1: 2 * GB}


def test_unbound_containers_make_room_for_bound_ones() -> None:
    asked = memory()
    web = ask("web", GB, "online")
    assert asked.hints(web) is None
    assert asked.allocate(web) == "0-1"
    asked.allocate(ask("a", GB, "storage-service"), 0)
    assert asked.value(web) == "1"
    asked.allocate(ask("b", GB, "reranker"), 1)
    # There is nowhere else to go.
    assert asked.value(web) == "0-1"
    asked.remove("a")
    assert asked.value(web) == "0"


def test_a_sidecar_follows_the_main_container() -> None:
    asked = memory()
    sidecar, init = (ask("a", GB, "storage-service", role) for role in (SIDECAR, INIT))
    assert asked.hints(sidecar) is None
    assert asked.allocate(sidecar) == ""
    assert asked.allocate(init, 0) == ""
    assert init.container not in asked.state.held
    asked.allocate(ask("a", GB, "storage-service"), 1)
    assert asked.value(sidecar) == "1"
    # An unbound sidecar is as any other container.
    assert asked.allocate(ask("web", GB, "online", SIDECAR)) == "0"


def test_nodes_of_ones_own_have_all_their_memory() -> None:
    asked = memory({0: 4 * GB, 1: 4 * GB})
    own = ask("a", 5 * GB, "own")
    assert asked.hints(own) == [([0, 1], True)]
    assert asked.allocate(own) == "0-1"
    free = 4 * GB - 524288000
    assert asked.state.held[own.container].answer.by_node == {0: free, 1: free}
    with pytest.raises(NoBinding):
        asked.hints(ask("b", 1, "storage-service"))


def test_pods_that_want_a_node_alone_share_none_with_their_own_role() -> None:
    asked = memory()
    asked.allocate(ask("a", GB, "own"), 0)
    assert asked.hints(ask("b", GB, "own")) == [([1], True)]
    # Also if it had memory left.
    held = asked.state.held[ask("a", GB).container]
    some = replace(held, answer=replace(held.answer, by_node={0: GB}))
    asked.state = asked.state.holding(some)
    with pytest.raises(NoBinding):
        asked.allocate(ask("b", GB, "own"), 0)


def test_nodes_are_filled_one_after_the_other() -> None:
    asked = memory({0: 4 * GB, 1: 4 * GB})
    wide = ask("a", 5 * GB, "storage-service")
    with pytest.raises(NoBinding):
        asked.hints(wide)
    assert asked.allocate(wide, 0, 1) == "0-1"
    free = 4 * GB - 524288000
    assert asked.state.held[wide.container].answer.by_node == {0: free, 1: 5 * GB - free}
    # A node that the machine lacks has no memory.
    with pytest.raises(NoBinding):
        asked.allocate(ask("b", GB, "reranker"), 7)


def test_what_no_rule_serves_is_refused() -> None:
    with pytest.raises(BadRequest):
        memory().hints(ask("a", GB, says={"qos_level": "dedicated_cores"}))


def test_the_stock_is_that_of_the_nodes() -> None:
    asked = memory({0: 4 * GB, 1: GB // 4})
    stock = asked.plugin.stock(asked.state, "memory")
    assert stock == {"memory": ({0: (4 * GB, 4 * GB - 524288000), 1: (GB // 4, 0)}, False, ())}
