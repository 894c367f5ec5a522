from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    AllocationError,
    ConfigError,
    NoDevicesAsked,
    NotEnoughDevices,
    UnavailableDevices,
    UnknownDevices,
)
from cpupool.core.names import Names
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind
from cpupool.manager.manager import Manager
from cpupool.manager.ports import FoundContainer
from tests import builders
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

MACHINE = MACHINES["laptop_4c8t"]  # cores 0-1, 2-3, 4-5, 6-7
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"),
    Pool.named("exclusive_b", "6", multi_threaded=True),
    Pool.named("shared_a", "0"),
    Pool.named("default", "1"),
)


def manager(pools: NodePools = POOLS, offline: str = "") -> Manager:
    made = Manager(Names())
    made.reconfigure(pools, MACHINE.without(offline).topology())
    return made


def cpus_of(node: Manager, pod: str, container: str = "main") -> str:
    _, resolution = node.snapshot()
    return str(resolution.assignment((f"{pod}-uid", ContainerID(f"{container}-id"))).cpus)


def health(node: Manager, pool: str) -> dict[str, bool]:
    return {device.id: device.healthy for device in node.devices(pool).offer}


class TestAllocate:
    def test_a_single_threaded_pool_gives_the_cpu_alone(self) -> None:
        answer = manager().allocate("exclusive_a", ["4", "2"])

        assert answer.environment == {
            "EXCLUSIVE_CPUS": "2,4",
            "CPUPOOL_CPUS_EXCLUSIVE_A": "2,4",
        }
        assert answer.annotations == {"nokia.k8s.io/allocated.exclusive_a": "2,4"}

    def test_a_multi_threaded_pool_gives_the_sibling_with_it(self) -> None:
        answer = manager().allocate("exclusive_b", ["6"])

        assert answer.environment["EXCLUSIVE_CPUS"] == "6-7"
        assert answer.annotations == {"nokia.k8s.io/allocated.exclusive_b": "6"}

    def test_a_shared_pool_gives_all_its_cpus_and_notes_the_ids_as_ranges(self) -> None:
        answer = manager().allocate("shared_a", [str(number) for number in range(300, 0, -1)])

        assert answer.environment == {"SHARED_CPUS": "0", "CPUPOOL_CPUS_SHARED_A": "0"}
        assert answer.annotations == {"nokia.k8s.io/allocated.shared_a": "1-300"}

    @pytest.mark.parametrize(
        ("pool", "ids", "error"),
        [
            pytest.param("exclusive_a", [], NoDevicesAsked, id="no ids"),
            pytest.param("exclusive_a", ["2", "6"], UnknownDevices, id="ids of another pool"),
            pytest.param("exclusive_a", ["02"], UnknownDevices, id="an odd spelling"),
            pytest.param("shared_a", ["1000"], UnknownDevices, id="beyond the last milli-CPU"),
            pytest.param("exclusive_a", ["2", "2"], AllocationError, id="the same twice"),
            pytest.param("default", ["1"], AllocationError, id="the default pool"),
            pytest.param("nobody", ["1"], AllocationError, id="no such pool"),
        ],
    )
    def test_what_cannot_be_served_is_refused(
        self, pool: str, ids: list[str], error: type[AllocationError]
    ) -> None:
        with pytest.raises(error):
            manager().allocate(pool, ids)

    def test_an_offline_cpu_is_refused(self) -> None:
        with pytest.raises(UnavailableDevices, match="4"):
            manager(offline="4").allocate("exclusive_a", ["2", "4"])


class TestPreferred:
    def test_what_must_be_included_is(self) -> None:
        assert manager().preferred("exclusive_a", ["2", "4"], ["4"], 1) == ("4",)

    @pytest.mark.parametrize(
        ("must", "size"), [([], 3), (["2", "4"], 1)], ids=["too few", "more forced than wanted"]
    )
    def test_an_impossible_size_is_refused(self, must: list[str], size: int) -> None:
        with pytest.raises(NotEnoughDevices):
            manager().preferred("exclusive_a", ["2", "4"], must, size)

    def test_it_knows_which_cpus_other_pods_hold(self) -> None:
        policy = PoolPolicy(
            CPUBindPolicy.SPREAD_ACROSS_CORES, exclusive=ExclusivePolicy.PHYSICAL_CORE
        )
        node = manager(NodePools.of(replace(Pool.named("exclusive_a", "2-5"), policy=policy)))
        holder = builders.pod("holder", builders.container(exclusive_a=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_a="2"))

        assert node.preferred("exclusive_a", ["3", "4", "5"], [], 1) == ("4",)
        # The kubelet has seen it end already.
        assert node.preferred("exclusive_a", ["2", "3", "4", "5"], [], 1) == ("2",)

    def test_it_knows_what_was_just_promised(self) -> None:
        policy = PoolPolicy(
            CPUBindPolicy.SPREAD_ACROSS_CORES, exclusive=ExclusivePolicy.PHYSICAL_CORE
        )
        node = manager(NodePools.of(replace(Pool.named("exclusive_a", "2-5"), policy=policy)))
        node.allocate("exclusive_a", ["2"])

        assert node.preferred("exclusive_a", ["3", "4", "5"], [], 1) == ("4",)

    def test_the_last_choice_of_each_cpu_is_kept(self) -> None:
        node = manager(NodePools.of(Pool.named("exclusive_a", "2,4,6")))
        for free in (["2", "4"], ["4", "6"]):
            node.preferred("exclusive_a", free, [], 2)

        kept = node.choices()

        assert {(pool, cpu): str(one.cpus) for (pool, cpu), one in kept.items()} == {
            ("exclusive_a", 2): "2,4",
            ("exclusive_a", 4): "4,6",
            ("exclusive_a", 6): "4,6",
        }
        assert str(kept["exclusive_a", 2].steps[0].left) == "2,4"

    def test_a_choice_is_forgotten_with_the_pod_that_it_was_for(self) -> None:
        node = manager(NodePools.of(Pool.named("exclusive_a", "2,4,6")))
        node.preferred("exclusive_a", ["2", "4"], [], 2)
        node.allocate("exclusive_a", ["2", "6"])
        holder = builders.pod("holder", builders.container(exclusive_a=2))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_a="2,6"))
        assert {cpu for _, cpu in node.choices()} == {2, 4}

        node.observe(pods=[])
        assert {cpu for _, cpu in node.choices()} == {4}


class TestConfiguration:
    def test_pools_that_are_refused_change_nothing(self) -> None:
        node = manager()
        both_threads = NodePools.of(Pool.named("exclusive_a", "2-3"))

        with pytest.raises(ConfigError, match="threads of one core"):
            node.reconfigure(both_threads, MACHINE.topology())

        assert node.pools() == POOLS
        assert health(node, "exclusive_a") == {"2": True, "4": True}

    def test_a_cpu_that_a_pod_holds_is_nobody_elses_after_it_moved_to_another_pool(self) -> None:
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

    def test_it_says_which_pools_it_changed(self) -> None:
        change = manager().reconfigure(
            NodePools.of(
                Pool.named("exclusive_a", "2"),
                Pool.named("exclusive_b", "6"),
                Pool.named("shared_b", "0"),
                Pool.named("default", "1"),
            ),
            MACHINE.topology(),
        )
        assert (change.added, change.removed) == (("shared_b",), ("shared_a",))
        assert sorted(change.resized) == ["exclusive_a", "exclusive_b"]

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

        node.accept(builders.given(holder, told="6-7,99", exclusive_gone="6"))

        assert cpus_of(node, "holder") == "6-7"

    def test_the_sibling_of_a_cpu_that_went_offline_before_the_agent_started_is_kept(self) -> None:
        node = manager(offline="6")
        holder = builders.pod("holder", builders.container(exclusive_b=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, told="6-7", exclusive_b="6"))

        assert cpus_of(node, "holder") == "7"


def test_what_was_learned_before_the_pools_is_granted_by_them() -> None:
    node = Manager()
    node.update_topology(MACHINE.topology())
    owner = builders.pod("owner", builders.container(exclusive_b=1))
    node.observe(pods=[owner])
    node.accept(builders.given(owner, exclusive_b="6"))
    node.reconfigure(POOLS, MACHINE.topology())

    assert cpus_of(node, "owner") == "6-7"


class TestDraining:
    """A pod holds CPU 4 of exclusive_a, and the pool shrinks to CPU 2."""

    SHRUNK = NodePools.of(Pool.named("exclusive_a", "2"), Pool.named("default", "0-1,4-5"))
    GONE = NodePools.of(Pool.named("default", "0-7"))

    def shrunk(self, pools: NodePools = SHRUNK) -> tuple[Manager, Pod]:
        node = manager()
        holder = builders.pod("holder", builders.container(exclusive_a=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_a="4"))
        node.reconfigure(pools, MACHINE.topology())
        return node, holder

    def test_the_device_stays_listed_and_healthy_until_the_pod_ends(self) -> None:
        node, _ = self.shrunk()
        assert health(node, "exclusive_a") == {"2": True, "4": True}
        assert cpus_of(node, "holder") == "4"
        assert cpus_of(node, "plain") == "0-1"

        node.observe(pods=[])
        assert health(node, "exclusive_a") == {"2": True}
        assert cpus_of(node, "plain") == "0-1,4-5"

    def test_nobody_else_gets_it(self) -> None:
        node, _ = self.shrunk()
        assert node.preferred("exclusive_a", ["2", "4"], [], 1) == ("2",)
        with pytest.raises(NotEnoughDevices):
            node.preferred("exclusive_a", ["2", "4"], [], 2)
        with pytest.raises(UnavailableDevices, match="have left the pool"):
            node.allocate("exclusive_a", ["4"])

    def test_a_plugin_stays_for_a_pool_that_is_gone_while_a_pod_holds_its_devices(self) -> None:
        node, _ = self.shrunk(self.GONE)
        assert [pool.name for pool in node.advertised()] == ["exclusive_a"]
        assert health(node, "exclusive_a") == {"4": True}

        node.observe(pods=[])
        assert node.advertised() == ()

    def test_a_restarted_agent_lists_it_as_soon_as_the_devices_are_known(self) -> None:
        node = manager(self.GONE)
        holder = builders.pod("holder", builders.container(exclusive_a=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_a="4"))
        assert health(node, "exclusive_a") == {"4": True}

    def test_the_held_milli_cpus_of_a_shared_pool_stay(self) -> None:
        node = manager(NodePools.of(Pool.named("shared_a", "0-1")))
        holder = builders.pod("holder", builders.container(shared_a=2))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, shared_a="1998,1999"))
        node.reconfigure(NodePools.of(Pool.named("shared_a", "0")), MACHINE.topology())

        ids = health(node, "shared_a")
        assert len(ids) == 1000
        assert {"0", "997", "1998", "1999"} <= ids.keys()
        assert cpus_of(node, "holder") == "0"


class TestPolicies:
    """Pools whose siblings are devices, on cores 2-3 and 4-5."""

    SPREAD = PoolPolicy(CPUBindPolicy.SPREAD_ACROSS_CORES)
    MULTI = NodePools.of(Pool.named("exclusive_a", "2,4", multi_threaded=True))
    SINGLE = NodePools.of(Pool.named("exclusive_a", "2,4"))
    OTHER = NodePools.of(Pool.named("exclusive_a", "3,4"))
    THREADS = NodePools.of(replace(Pool.named("exclusive_a", "2-5"), policy=SPREAD))

    def node(self, pools: NodePools, *ids: str) -> Manager:
        node = manager(pools)
        for one in ids:
            told = node.allocate("exclusive_a", [one]).environment["EXCLUSIVE_CPUS"]
            holder = builders.pod(f"holder-{one}", builders.container(exclusive_a=1))
            node.observe(pods=[*(node.snapshot().facts.pods or ()), holder])
            node.accept(builders.given(holder, told=told, exclusive_a=one))
        return node

    def test_two_pods_may_have_the_threads_of_a_core(self) -> None:
        node = self.node(self.THREADS, "2", "3")

        assert (cpus_of(node, "holder-2"), cpus_of(node, "holder-3")) == ("2", "3")
        assert health(node, "exclusive_a") == dict.fromkeys(("2", "3", "4", "5"), True)
        assert cpus_of(node, "plain") == "0-1,6-7"

    def test_they_keep_them_over_an_edit_and_a_restart(self) -> None:
        node = self.node(self.THREADS, "2", "3")
        facts = node.snapshot().facts
        node.reconfigure(self.SINGLE, MACHINE.topology())
        successor = manager(self.SINGLE)
        successor.observe(pods=facts.pods or ())
        successor.accept(facts.devices)

        for one in (node, successor):
            assert (cpus_of(one, "holder-2"), cpus_of(one, "holder-3")) == ("2", "3")
            assert health(one, "exclusive_a") == {"2": True, "3": True, "4": True}

    def test_a_sibling_that_came_along_is_nobodys_device_after_an_edit(self) -> None:
        node = self.node(self.MULTI, "2")
        node.reconfigure(self.THREADS, MACHINE.topology())

        assert cpus_of(node, "holder-2") == "2-3"
        assert health(node, "exclusive_a") == {"2": True, "3": False, "4": True, "5": True}
        with pytest.raises(UnavailableDevices, match="3"):
            node.allocate("exclusive_a", ["3"])
        node.observe(pods=[])
        assert health(node, "exclusive_a")["3"]

    def test_a_sibling_that_was_promised_is_nobodys_device_after_an_edit(self) -> None:
        node = manager(self.MULTI)
        node.allocate("exclusive_a", ["2"])
        node.reconfigure(self.THREADS, MACHINE.topology())
        assert not health(node, "exclusive_a")["3"]

    def test_an_idle_sibling_stays_idle_when_the_pool_lists_it_in_place_of_the_cpu(self) -> None:
        node = self.node(self.SINGLE, "2")
        node.reconfigure(self.OTHER, MACHINE.topology())
        assert health(node, "exclusive_a") == {"2": True, "3": False, "4": True}

    @pytest.mark.parametrize("edits", [(), (OTHER,), (OTHER, SINGLE), (MULTI, SINGLE)])
    def test_no_record_gives_a_sibling_to_somebody_else(self, edits: tuple[NodePools, ...]) -> None:
        """Of a pool that lists one CPU per core, before and after edits and a restart."""
        node = self.node(self.SINGLE, "2")
        thief = builders.pod("thief", builders.container(exclusive_a=1))
        node.observe(pods=[thief, *(node.snapshot().facts.pods or ())])
        node.accept(builders.given(thief, exclusive_a="3"))
        for pools in edits:
            node.reconfigure(pools, MACHINE.topology())
        facts = node.snapshot().facts
        successor = manager(facts.pools)
        successor.observe(pods=facts.pods or ())
        successor.accept(facts.devices)

        for one in (node, successor):
            assert cpus_of(one, "holder-2") == "2"
            assert cpus_of(one, "thief") == "0-1,6-7"

    def test_a_device_that_becomes_reserved_drains(self) -> None:
        node = self.node(self.THREADS, "2")
        policy = replace(self.SPREAD, reserved=CPUSet.of(2, 3))
        reserving = replace(Pool.named("exclusive_a", "2-5"), policy=policy)
        change = node.reconfigure(NodePools.of(reserving), MACHINE.topology())

        assert change.resized == ("exclusive_a",)
        assert cpus_of(node, "holder-2") == "2"
        assert health(node, "exclusive_a") == {"2": True, "4": True, "5": True}
        assert cpus_of(node, "plain") == "0-1,6-7"
        node.observe(pods=[])
        assert health(node, "exclusive_a") == {"4": True, "5": True}
        assert cpus_of(node, "plain") == "0-1,6-7"


class TestPromises:
    """Allocate has answered, the pod is not known yet, and the CPU moves to another pool."""

    MOVED = NodePools.of(Pool.named("exclusive_b", "2"), Pool.named("default", "0-1,4-5"))

    def test_a_promised_cpu_is_nobody_elses(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["2"])
        node.allocate("exclusive_a", ["4"])
        node.reconfigure(self.MOVED, MACHINE.topology())

        assert health(node, "exclusive_a") == {"2": True, "4": True}
        assert health(node, "exclusive_b") == {"2": False}
        assert cpus_of(node, "nobody") == "0-1"

    def test_it_goes_to_the_pod_that_turns_up_with_it(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["2"])
        node.reconfigure(self.MOVED, MACHINE.topology())
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))
        assert cpus_of(node, "p") == "2"
        assert node.snapshot().facts.promises == ()

        node.observe(pods=[])
        assert health(node, "exclusive_b") == {"2": True}

    def test_what_is_left_of_it_stays_promised(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["2", "4"])
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))
        assert [one.ids for one in node.snapshot().facts.promises] == [{"4"}]

    def test_it_can_be_forgotten(self) -> None:
        node = manager()
        node.promise(builders.resource("exclusive_a"), ["2"])
        until = node.promised_until()
        node.promise(builders.resource("exclusive_a"), ["4"])
        node.reconfigure(self.MOVED, MACHINE.topology())

        node.release(until)

        assert health(node, "exclusive_b") == {"2": True}
        assert health(node, "exclusive_a") == {"4": True}


class TestSharedPartOfPinnedContainers:
    """A container with CPUs of its own on a kernel that forgets its threads' affinity."""

    AFTER = NodePools.of(
        Pool.named("exclusive_a", "2,4"),
        Pool.named("exclusive_c", "6"),
        Pool.named("shared_a", "0"),
    )
    BEFORE = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0,6"))

    def node(self, pools: NodePools, *, moves_pinned: bool = False) -> Manager:
        node = Manager(Names(), moves_pinned=moves_pinned)
        node.reconfigure(pools, MACHINE.topology())
        pinned = builders.pod("pinned", builders.container(exclusive_a=1, shared_a=10))
        light = builders.pod("light", builders.container(shared_a=10))
        node.observe(pods=[pinned, light])
        node.accept(builders.given(pinned, told="2", exclusive_a="2"))
        node.accept(
            builders.given(pinned, told="0,6", shared_a="1") | builders.given(light, shared_a="2")
        )
        return node

    def test_it_keeps_its_shared_part_and_others_move(self) -> None:
        node = self.node(self.BEFORE)
        node.reconfigure(self.AFTER, MACHINE.topology())

        assert cpus_of(node, "pinned") == "0,2,6"
        assert cpus_of(node, "light") == "0"
        (stale,) = (
            placed.pod.name
            for placed in node.snapshot().resolution.containers.values()
            if placed.assignment.stale
        )
        assert stale == "pinned"

    def test_nobody_gets_a_cpu_on_which_it_still_runs(self) -> None:
        node = self.node(self.BEFORE)
        node.reconfigure(self.AFTER, MACHINE.topology())
        assert health(node, "exclusive_c") == {"6": False}

    def test_its_next_instance_has_the_new_shared_part(self) -> None:
        node = self.node(self.BEFORE)
        node.reconfigure(self.AFTER, MACHINE.topology())
        again = builders.container(exclusive_a=1, shared_a=10)
        node.observe(pods=[builders.pod("pinned", replace(again, id=ContainerID("next")))])

        _, resolution = node.snapshot()
        assert str(resolution.assignment(("pinned-uid", ContainerID("next"))).cpus) == "0,2"
        assert health(node, "exclusive_c") == {"6": True}

    def test_an_edit_that_is_taken_back_leaves_nothing_stale(self) -> None:
        node = self.node(self.BEFORE)
        node.reconfigure(self.AFTER, MACHINE.topology())
        node.reconfigure(self.BEFORE, MACHINE.topology())
        assert not any(
            one.assignment.stale for one in node.snapshot().resolution.containers.values()
        )

    def test_it_moves_at_once_where_the_kernel_remembers(self) -> None:
        node = self.node(self.BEFORE, moves_pinned=True)
        node.reconfigure(self.AFTER, MACHINE.topology())
        assert cpus_of(node, "pinned") == "0,2"

    @pytest.mark.parametrize(
        ("found", "then"),
        [("0,2,6", "0,2,6"), ("0-7", "0,2"), ("0,2", "0,2")],
        ids=["as told", "a foreign write", "right already"],
    )
    def test_a_restarted_agent_recognises_it(self, found: str, then: str) -> None:
        node = self.node(self.AFTER)
        node.adopt([FoundContainer("pinned-uid", "main-id", "some/path", found)])
        assert cpus_of(node, "pinned") == then

    def test_nothing_is_recognised_where_the_kernel_remembers(self) -> None:
        node = self.node(self.AFTER, moves_pinned=True)
        node.adopt([FoundContainer("pinned-uid", "main-id", "some/path", "0,2,6")])
        assert cpus_of(node, "pinned") == "0,2"

    def test_what_is_none_of_its_kind_is_passed_over(self) -> None:
        node = self.node(self.AFTER)
        node.adopt(
            [
                FoundContainer("light-uid", "main-id", "some/path", "0,6"),
                FoundContainer("nobody", "x", "some/path", "0,6"),
            ]
        )
        assert cpus_of(node, "light") == "0"


class TestPlacement:
    def test_exclusive_cpus_stay_when_the_shared_pool_beside_them_goes(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_a=1, shared_a=5))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2", shared_a="0"))
        node.reconfigure(
            NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "0-1")),
            MACHINE.topology(),
        )
        assert cpus_of(node, "p") == "2"

    def test_every_kind_of_container_is_placed_by_its_own_request(self) -> None:
        node = manager()
        pod = builders.pod(
            "p",
            builders.container("init", ContainerKind.INIT, exclusive_a=1),
            builders.container("side", ContainerKind.SIDECAR, shared_a=10),
            builders.container("app", exclusive_b=1, shared_a=10),
            builders.container("debug", ContainerKind.EPHEMERAL),
        )
        node.observe(pods=[pod])
        node.accept(
            builders.given(pod, "init", exclusive_a="2")
            | builders.given(pod, "side", shared_a="0")
            | builders.given(pod, "app", exclusive_b="6", shared_a="1")
        )

        placed = {name: cpus_of(node, "p", name) for name in ("init", "side", "app", "debug")}
        assert placed == {"init": "2", "side": "0", "app": "0,6-7", "debug": "1"}

    def test_a_container_whose_devices_are_unknown_is_confined_and_missed(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_a=1, shared_a=5))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, shared_a="0"))

        _, resolution = node.snapshot()
        assert cpus_of(node, "p") == "1"
        assert [ref.name for ref in resolution.missing] == ["main"]
        (placed,) = resolution.containers.values()
        assert placed.assignment.reason == "the kubelet has named no devices of exclusive_a"

    def test_what_no_pod_explains_goes_to_the_default_pool(self) -> None:
        assert cpus_of(manager(), "nobody") == "1"

    def test_without_a_default_pool_it_is_what_no_pool_reaches(self) -> None:
        node = manager(NodePools.of(Pool.named("exclusive_a", "2"), Pool.named("shared_a", "0")))

        assert cpus_of(node, "nobody") == "1,4-7"

    def test_without_any_pool_nobody_is_placed(self) -> None:
        assert cpus_of(manager(NodePools()), "nobody") == ""

    def test_the_first_owner_keeps_a_cpu_that_two_pods_claim(self) -> None:
        node = manager()
        first = builders.pod("first", builders.container(exclusive_a=1))
        second = builders.pod("second", builders.container(exclusive_a=2))
        node.observe(pods=[first])
        node.accept(builders.given(first, exclusive_a="2"))

        node.observe(pods=[second, first])
        node.accept(builders.given(second, exclusive_a="2,4"))

        assert cpus_of(node, "first") == "2"
        assert cpus_of(node, "second") == "1"

    def test_a_finished_pod_owns_nothing(self) -> None:
        node = manager()
        ended = builders.pod("ended", builders.container(exclusive_a=1), finished=True)
        heir = builders.pod("heir", builders.container(exclusive_a=1))
        node.observe(pods=[ended, heir])
        node.accept(builders.given(ended, exclusive_a="2") | builders.given(heir, exclusive_a="2"))

        assert cpus_of(node, "heir") == "2"

    def test_what_is_known_of_a_living_pod_is_never_forgotten(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))

        node.accept({})
        node.observe(pods=[pod, builders.pod("q")])

        assert cpus_of(node, "p") == "2"


class TestOfflineCPUs:
    def test_containers_shrink_to_what_is_online_and_grow_back(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_b=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_b="6"))

        node.update_topology(MACHINE.without("7").topology())
        assert cpus_of(node, "p") == "6"

        node.update_topology(MACHINE.topology())
        assert cpus_of(node, "p") == "6-7"

    def test_a_container_without_an_online_cpu_is_confined_and_stays_the_owner(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))

        node.update_topology(MACHINE.without("2").topology())

        assert cpus_of(node, "p") == "1"
        assert str(builders.owned(node)[pod.uid]["exclusive_a"]) == "2"

    @pytest.mark.parametrize("seen_before", [True, False])
    def test_a_sibling_that_was_offline_when_its_core_was_given_away_stays_idle(
        self, seen_before: bool
    ) -> None:
        node = manager() if seen_before else manager(offline="7")
        node.update_topology(MACHINE.without("7").topology())
        node.allocate("exclusive_b", ["6"])
        pod = builders.pod("p", builders.container(exclusive_b=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_b="6"))

        node.update_topology(MACHINE.topology())

        assert cpus_of(node, "p") == "6"
        assert "7" not in cpus_of(node, "nobody")

    def test_the_device_of_an_offline_cpu_is_unhealthy_and_keeps_its_node(self) -> None:
        node = manager()
        node.update_topology(MACHINE.without("4").topology())

        offline = next(device for device in node.devices("exclusive_a").offer if device.id == "4")
        assert (offline.healthy, offline.node) == (False, 0)

    def test_a_cpu_whose_return_shows_a_shared_core_is_given_to_nobody(self) -> None:
        clash = NodePools.of(Pool.named("exclusive_a", "2"), Pool.named("default", "0-1,3"))
        node = manager(clash, offline="3")
        assert health(node, "exclusive_a") == {"2": True}

        problems = node.update_topology(MACHINE.topology())

        assert "siblings" in str(problems[0])
        assert health(node, "exclusive_a") == {"2": False}
        assert cpus_of(node, "nobody") == "0-1"

    def test_a_pod_keeps_its_cpu_when_the_sibling_returns_in_another_pool(self) -> None:
        clash = NodePools.of(Pool.named("exclusive_a", "2"), Pool.named("default", "0-1,3"))
        node = manager(clash, offline="3")
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))

        node.update_topology(MACHINE.topology())

        assert cpus_of(node, "p") == "2"
        assert cpus_of(node, "nobody") == "0-1"
        # The kubelet admits the pod again only while its device is healthy.
        assert health(node, "exclusive_a") == {"2": True}

    def test_a_pod_keeps_its_cpu_when_the_sibling_returns_in_its_own_pool(self) -> None:
        node = manager(NodePools.of(Pool.named("exclusive_a", "2-3")), offline="3")
        node.allocate("exclusive_a", ["2"])
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))

        problems = node.update_topology(MACHINE.topology())

        assert "threads of one core" in str(problems[0])
        assert cpus_of(node, "p") == "2"
        assert health(node, "exclusive_a") == {"2": True, "3": False}


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

    def test_a_cancelled_waiter_returns_when_notified(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cpupool.manager.manager._WAIT_S", 3600.0)
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

    def test_a_waiter_for_a_pool_that_went_away_returns(self) -> None:
        node = manager()
        node.reconfigure(NodePools.of(Pool.named("default", "0-7")), MACHINE.topology())

        assert node.wait_for_devices("exclusive_a", -1, lambda: False) is None
        assert node.advertised() == ()


def test_the_cpus_of_a_claim_that_the_machine_lacks_are_nobodys() -> None:
    node = manager()
    pod = builders.pod("p", builders.container(exclusive_a=1))
    node.observe(pods=[pod])
    node.accept(builders.given(pod, exclusive_a="77,garbage"))

    assert builders.owned(node) == {}
    assert cpus_of(node, "p") == "1"
    assert CPUSet.parse("2,4") <= node.snapshot().facts.topology.online
