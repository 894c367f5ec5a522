"""Sizes by the load of pods: what is measured, requested, or not known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_time import CPUTime, Waited
from cpupool.core.names import STATIC_POD_HASH
from cpupool.plugins.config_file import parse
from cpupool.plugins.cpu import CPUPlugin
from cpupool.plugins.headroom import Headroom
from cpupool.plugins.load_sizing import PERIOD_S, NextSize, PoolLoad, PoolNow
from cpupool.plugins.pool_sizer import RAMP_UP_S, PoolSizer
from tests.unit.plugins.asking import INIT, LAYOUT, SIDECAR, Asked, ask

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = """
reserved: "0-1,40-41"
pools: {online: {minCpus: 4}, batch: {minCpus: 2}, fixed: {cpus: 10}, rest: {}, more: {}}
roles: {web: {pool: online}, etl: {pool: batch}, fixed: {pool: fixed}}
"""
US_PER_S = 1_000_000


class Node:
    """Pods that use CPUs, and the sizer; each step is a period later."""

    def __init__(self, config: str = CONFIG) -> None:
        plugin = CPUPlugin(LAYOUT, parse("f.yaml", config), "mark")
        self.plugin = plugin
        self.asked = Asked(plugin)
        self.sizer = PoolSizer()
        self.now_s = 1000.0
        self.used_us: dict[str, int] = {}
        self.waited: dict[str, Waited] = {}

    def step(self, waiting: Mapping[str, float] | None = None, /, **uses: float) -> NextSize:
        """Let pods use so many CPUs in a period; return the decision about the pool online."""
        self.now_s += PERIOD_S
        for pod, cpus in uses.items():
            self.used_us[pod] = self.used_us.get(pod, 0) + round(cpus * PERIOD_S * US_PER_S)
        for pod, share in (waiting or {}).items():
            us = self.waited.get(pod, Waited(0, 0)).us + round(share * PERIOD_S * US_PER_S)
            self.waited[pod] = Waited(us, 0)
        by_cpu = dict.fromkeys(LAYOUT.cpus, 0)
        return self.read(CPUTime(by_cpu, dict(self.used_us), dict(self.waited)))

    def read(self, reading: CPUTime | None) -> NextSize:
        self.sizer = self.sizer.after(self.plugin, self.asked.state, reading, self.now_s)
        self.asked.state = self.plugin.resized(self.asked.state, self.sizer.sizes)
        return self.sizer.decisions["online"]


@pytest.fixture
def node() -> Node:
    return Node()


def test_what_the_pods_of_a_pool_use_sizes_it(node: Node) -> None:
    for pod in ("one", "two"):
        node.asked.allocate(ask(pod, 1, "web"))
    node.asked.allocate(ask("etl", 1, "etl"))
    node.asked.allocate(ask("fixed", 1, "fixed"))
    uses = {"one": 8.0, "two": 4.0, "etl": 1.0, "fixed": 9.0, "strange": 9.0}
    assert node.step(**uses).before.load is None
    assert node.step(**uses).before.load == PoolLoad(12.0)
    assert node.sizer.decisions["batch"].before.load == PoolLoad(1.0)
    assert node.sizer.decisions.keys() == {"online", "batch"}
    # 12 CPUs at 80 % busy.
    assert (node.step(**uses).size, node.sizer.sizes["batch"]) == (15, 2)


def test_a_pool_on_a_node_follows_its_load_within_the_node(node: Node) -> None:
    bound = {
        "memory_enhancement": '{"numa_binding": "true"}',
        "cpu_enhancement": '{"cpuset_pool": "online"}',
    }
    node.asked.allocate(ask("bound", 10, says=bound), 1)
    # It begins with what its pods request.
    assert len(node.asked.state.pools["online-NUMA1"]) == 10
    node.step(bound=2.0)
    node.step(bound=2.0)
    decision = node.sizer.decisions["online-NUMA1"]
    assert decision.before == PoolNow(10, 4, PoolLoad(2.0), 38)
    assert node.sizer.decisions["online"].before.load == PoolLoad(0.0)
    for _ in range(10):
        node.step(bound=38.0)
    assert node.sizer.sizes["online-NUMA1"] == 38
    for _ in range(300):
        node.step(bound=0.1)
    # It has as few as the pool of the file, and no fewer than it says.
    assert node.sizer.sizes["online-NUMA1"] == 4
    node.asked.remove("bound")
    node.step()
    assert "online-NUMA1" not in node.sizer.decisions


def test_the_floor_on_a_node_is_no_more_than_its_pods_request(node: Node) -> None:
    says = {
        "memory_enhancement": '{"numa_binding": "true"}',
        "cpu_enhancement": '{"cpuset_pool": "online"}',
    }
    node.asked.allocate(ask("bound", 1.5, says=says), 0)
    node.step(bound=0.0)
    node.step(bound=0.0)
    assert node.sizer.decisions["online-NUMA0"].before.floor == 2


def test_a_reclaimed_pod_counts_with_what_it_uses() -> None:
    node = Node("pools: {reclaim: {cpus: 10}, online: {minCpus: 4}}")
    node.step(other=0.0)
    node.asked.allocate(ask("batch", 8, says={"qos_level": "reclaimed_cores"}))
    node.step(batch=5.0)
    assert node.sizer.headroom == Headroom(10, 5.0, 10.0, 11.0)


def test_the_file_says_how_busy_a_pool_may_be_and_how_fast_it_changes() -> None:
    node = Node(CONFIG + "load: {usePercent: 50, mostUp: 6, mostDown: 3, pauseSeconds: 10}")
    node.asked.allocate(ask("web", 1, "web"))
    assert [node.step(web=12).size for _ in range(5)] == [4, 10, 16, 22, 24]
    assert [node.step(web=1).size for _ in range(6)] == [24, 21, 21, 18, 18, 15]


def test_the_longest_wait_of_a_pod_is_that_of_the_pool(node: Node) -> None:
    for pod in ("one", "two", "three"):
        node.asked.allocate(ask(pod, 1, "web"))
    for _ in range(2):
        node.step({"one": 0.1, "two": 0.3}, one=1, two=1, three=1)
    assert node.sizer.decisions["online"].before.load == PoolLoad(3.0, 0.3)


def test_a_new_pod_counts_with_its_request_until_its_load_is_known(node: Node) -> None:
    node.step(other=0.0)
    node.asked.allocate(ask("new", 9, "web", INIT))
    node.asked.allocate(ask("new", 6, "web"))
    node.asked.allocate(ask("new", 2, "web", SIDECAR))
    # Not in a cgroup yet.
    assert node.step(other=0.0).before.load == PoolLoad(8.0)
    periods = int(RAMP_UP_S / PERIOD_S)
    loads = [node.step(new=1).before.load for _ in range(periods + 2)]
    assert loads == [PoolLoad(8.0)] * periods + [PoolLoad(1.0)] * 2
    assert node.step(new=11).before.load == PoolLoad(11.0)
    node.used_us.clear()
    # It has ended, and the manager has not said so yet.
    assert node.step(other=0.0).before.load == PoolLoad(0.0)


def test_a_new_pod_that_uses_more_than_it_requests(node: Node) -> None:
    node.step(other=0.0)
    node.asked.allocate(ask("new", 2, "web"))
    assert node.step(new=5).before.load == PoolLoad(5.0)


def test_a_pod_that_runs_already_is_known_at_once(node: Node) -> None:
    node.asked.allocate(ask("old", 40, "web"))
    node.step(old=1)
    assert node.step(old=1).before.load == PoolLoad(1.0)


def test_a_static_pod_is_found_by_the_name_of_its_cgroup(node: Node) -> None:
    question = ask("mirror", 1, "web")
    node.asked.allocate(replace(question, annotations={STATIC_POD_HASH: "hash"}))
    for _ in range(2):
        node.step(hash=3)
    assert node.sizer.decisions["online"].before.load == PoolLoad(3.0)


def test_without_a_measurement_every_pool_keeps_its_size(node: Node) -> None:
    node.asked.allocate(ask("web", 1, "web"))
    for _ in range(3):
        node.step(web=12)
    assert node.sizer.sizes["online"] == 15
    node.now_s += PERIOD_S
    assert node.read(None).size == 15
    node.now_s += PERIOD_S
    # As after a restart of the machine's counter.
    node.used_us.clear()
    assert node.step(web=0.1).before.load is None
    assert node.step(web=12).before.load == PoolLoad(12.0)
    assert node.sizer.sizes["online"] == 15


def test_a_reading_that_fails_does_not_lose_what_was_used(node: Node) -> None:
    node.asked.allocate(ask("web", 1, "web"))
    node.step(web=12)
    node.now_s += PERIOD_S
    node.read(None)
    # Twice as much, in two periods.
    assert node.step(web=24).before.load == PoolLoad(12.0)


def test_pools_that_do_not_follow_their_load_leave_the_others_what_is_theirs(node: Node) -> None:
    node.asked.allocate(ask("web", 1, "web"))
    node.asked.allocate(ask("etl", 1, "etl"))
    for _ in range(30):
        node.step(web=45, etl=45)
    # 76 CPUs: 10 by the file, and one for each of the pools with a weight.
    assert sum(node.sizer.sizes.values()) == 64
    sizes = {name: len(cpus) for name, cpus in node.asked.state.pools.items()}
    assert (sizes["fixed"], sizes["rest"], sizes["more"]) == (10, 1, 1)
