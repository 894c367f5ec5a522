from __future__ import annotations

import threading

import pytest

from cpupool.core.assignments import Placement
from cpupool.core.errors import ConfigError, UnavailableDevices
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from tests import builders
from tests.unit.manager.laptop import MACHINE, POOLS, cpus_of, health, manager
from tests.waiting import DEADLINE_S


class TestConfiguration:
    def test_pools_that_are_refused_change_nothing(self) -> None:
        node = manager()
        both_threads = NodePools.of(Pool.named("exclusive_a", "2-3"))

        with pytest.raises(ConfigError, match="threads of one core"):
            node.reconfigure(both_threads, MACHINE.topology())

        assert node.pools() == POOLS
        assert health(node, "exclusive_a") == {"2": True, "4": True}

    def test_a_cpu_that_a_pod_holds_has_no_other_owner_after_it_moved_to_another_pool(self) -> None:
        node = manager()
        holder, other = (
            builders.pod("holder", builders.container(exclusive_a=1)),
            builders.pod("other"),
        )
        node.observe(pods=[holder, other])
        node.accept(builders.given(holder, exclusive_a="4"))

        moved = NodePools.of(
            Pool.named("exclusive_b", "4"),
            Pool.named("exclusive_c", "5"),
            Pool.named("default", "0-3"),
        )
        with pytest.raises(ConfigError):
            node.reconfigure(moved, MACHINE.topology())
        moved = NodePools.of(Pool.named("exclusive_b", "4"), Pool.named("default", "0-3"))
        node.reconfigure(moved, MACHINE.topology())

        assert cpus_of(node, "holder") == "4"
        assert health(node, "exclusive_b") == {"4": False}
        with pytest.raises(UnavailableDevices):
            node.allocate("exclusive_b", ["4"])

        node.observe(pods=[other])
        assert health(node, "exclusive_b") == {"4": True}

    def test_a_cpu_that_a_pod_holds_leaves_the_shared_pool_that_now_lists_it(self) -> None:
        node = manager()
        holder = builders.pod("holder", builders.container(exclusive_b=1))
        sharer = builders.pod("sharer", builders.container(shared_a=100))
        plain = builders.pod("plain")
        node.observe(pods=[holder, sharer, plain])
        node.accept(builders.given(holder, exclusive_b="6") | builders.given(sharer, shared_a="0"))

        node.reconfigure(
            NodePools.of(Pool.named("shared_a", "4-6"), Pool.named("default", "0-3,7")),
            MACHINE.topology(),
        )

        assert cpus_of(node, "holder") == "6-7"
        assert cpus_of(node, "sharer") == "4-5"
        assert cpus_of(node, "plain") == "0-3"

    def test_an_agent_that_starts_after_a_pool_was_removed_leaves_its_cpus_to_their_owner(
        self,
    ) -> None:
        node = manager(NodePools.of(Pool.named("default", "0-7")))
        holder = builders.pod("holder", builders.container(exclusive_gone=1))
        node.observe(pods=[holder, builders.pod("plain")])
        node.accept(builders.given(holder, exclusive_gone="4"))

        assert cpus_of(node, "holder") == "4"
        assert cpus_of(node, "plain") == "0-3,6-7"

    def test_a_container_of_a_shared_pool_that_is_gone_is_confined(self) -> None:
        node = manager()
        sharer = builders.pod("sharer", builders.container(shared_a=100))
        node.observe(pods=[sharer])
        node.accept(builders.given(sharer, shared_a="0"))

        node.reconfigure(NodePools.of(Pool.named("default", "1-3")), MACHINE.topology())

        placed = node.snapshot().resolution.containers["sharer-uid", ContainerID("main-id")]
        assert placed.assignment.placement is Placement.CONFINED
        assert placed.assignment.reason == "there is no pool shared_a"
        assert cpus_of(node, "sharer") == "1-3"

    def test_a_change_of_policy_takes_no_sibling_from_a_pod(self) -> None:
        node = manager()
        holder = builders.pod("holder", builders.container(exclusive_b=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_b="6"))

        node.reconfigure(NodePools.of(Pool.named("exclusive_b", "6")), MACHINE.topology())

        assert cpus_of(node, "holder") == "6-7"

    def test_what_a_container_was_told_outlives_agent_and_pool(self) -> None:
        node = manager(NodePools.of(Pool.named("default", "0-7")))
        holder = builders.pod("holder", builders.container(exclusive_gone=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_gone="6"))
        assert cpus_of(node, "holder") == "6"

        node.accept(builders.given(holder, announced="6-7,99", exclusive_gone="6"))

        assert cpus_of(node, "holder") == "6-7"

    def test_the_sibling_of_a_cpu_that_went_offline_before_the_agent_started_is_kept(self) -> None:
        node = manager(offline="6")
        holder = builders.pod("holder", builders.container(exclusive_b=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, announced="6-7", exclusive_b="6"))

        assert cpus_of(node, "holder") == "7"


def test_what_was_learned_before_the_pools_is_granted_by_them() -> None:
    node = Manager()
    node.update_topology(MACHINE.topology())
    owner = builders.pod("owner", builders.container(exclusive_b=1))
    node.observe(pods=[owner])
    node.accept(builders.given(owner, exclusive_b="6"))
    node.reconfigure(POOLS, MACHINE.topology())

    assert cpus_of(node, "owner") == "6-7"


class TestWaiting:
    def test_the_first_list_comes_at_once(self) -> None:
        listed = manager().wait_for_devices("exclusive_a", -1, lambda: False)

        assert listed is not None
        assert [device.id for device in listed.offer] == ["2", "4"]

    def test_a_waiter_hears_of_a_change_of_its_own_pool_only(self) -> None:
        node = manager()
        seen = node.devices("exclusive_a").generation

        node.update_topology(MACHINE.without("6").topology())
        assert node.devices("exclusive_a").generation == seen

        node.update_topology(MACHINE.without("4").topology())
        changed = node.wait_for_devices("exclusive_a", seen, lambda: False)
        assert changed is not None
        assert changed.generation != seen

    def test_a_cancelled_waiter_returns_when_notified(self) -> None:
        node = manager()
        waits = threading.Event()
        cancelled = threading.Event()

        def looks() -> bool:
            # Told under the manager's lock: who takes that next, as notify does, finds it waiting.
            answer = cancelled.is_set()
            waits.set()
            return answer

        waiter = threading.Thread(
            target=node.wait_for_devices,
            args=("exclusive_a", node.devices("exclusive_a").generation, looks),
            daemon=True,
        )
        waiter.start()
        assert waits.wait(DEADLINE_S)
        cancelled.set()
        node.notify()
        waiter.join(DEADLINE_S)

        assert not waiter.is_alive()

    def test_facts_that_change_no_list_wake_no_waiter(self) -> None:
        node = manager()
        waits = threading.Event()
        cancelled = threading.Event()
        looked = []

        def looks() -> bool:
            answer = cancelled.is_set()
            looked.append(answer)
            waits.set()
            return answer

        waiter = threading.Thread(
            target=node.wait_for_devices,
            args=("exclusive_a", node.devices("exclusive_a").generation, looks),
            daemon=True,
        )
        waiter.start()
        assert waits.wait(DEADLINE_S)
        for number in range(100):
            node.observe(pods=[builders.pod(f"web{number}")])
        cancelled.set()
        node.notify()
        waiter.join(DEADLINE_S)

        assert looked == [False, True]

    def test_a_waiter_for_a_pool_that_went_away_returns(self) -> None:
        node = manager()
        node.reconfigure(NodePools.of(Pool.named("default", "0-7")), MACHINE.topology())

        assert node.wait_for_devices("exclusive_a", -1, lambda: False) is None
        assert node.advertised() == ()
