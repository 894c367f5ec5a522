"""What the container runtime tells of containers, beside what the API server and the kubelet do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core import environment
from cpupool.core.assignments import Placement
from cpupool.core.bandwidth import Limit
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.manager import offers
from tests import builders
from tests.runtimes import reported
from tests.unit.manager.sighted import (
    MACHINE,
    OTHER_POLICIES,
    SHRUNK,
    cpus_of,
    listed,
    manager,
    observe_containers,
    owned,
    placed,
)


class TestOfAListedPod:
    def test_a_container_is_placed_by_its_id_before_the_api_server_knows_that(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(running=False, exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="4"))
        assert cpus_of(node, "p-uid") == "1"

        node.observe_containers([reported("p-uid"), reported("p-uid", "")])

        assert cpus_of(node, "p-uid") == "4"
        assert placed(node, "p-uid", "sandbox-id").placement is Placement.DEFAULT

    def test_an_ephemeral_container_that_no_list_shows_yet_goes_to_the_default_pool(self) -> None:
        node = manager()
        node.observe(pods=[builders.pod("p")])
        node.observe_containers([reported("p-uid", "debugger", exclusive_a="4")])
        assert placed(node, "p-uid", "debugger-id").placement is Placement.DEFAULT
        assert owned(node) == {}

    @pytest.mark.parametrize("ends_first", [False, True])
    def test_a_finished_pod_holds_nothing(self, *, ends_first: bool) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_a=1))
        ended = replace(pod, finished=True)
        node.observe(pods=[ended if ends_first else pod])
        observe_containers(node, reported("p-uid", exclusive_a="2"))
        node.observe(pods=[ended])
        assert owned(node) == {}
        assert node.snapshot().facts.devices == {}
        assert cpus_of(node, "p-uid") == "1"

    def test_a_container_that_is_lost_from_sight_takes_nothing_with_it(self) -> None:
        node = manager()
        node.observe(pods=[builders.pod("p", builders.container(running=False, exclusive_a=1))])
        observe_containers(node, reported("p-uid", exclusive_a="2"))

        node.forget_containers([ContainerID("main-id"), ContainerID("unheard-of")])

        assert placed(node, "p-uid").placement is Placement.DEFAULT
        assert owned(node) == {"p-uid": "2"}
        node.observe_containers([reported("p-uid", identifier="again")])
        assert cpus_of(node, "p-uid", "again") == "2"

    def test_what_the_runtime_says_counts_before_an_id_that_the_api_server_remembers(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_a=1), builders.container("side"))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))
        node.observe_containers([reported("p-uid", "side", identifier="main-id")])
        assert (
            node.snapshot().resolution.containers["p-uid", ContainerID("main-id")].container.name
            == "side"
        )


class TestOfAStranger:
    """A pod that only the container runtime has reported."""

    def test_it_is_placed_by_its_annotations_and_owns_its_cpus(self) -> None:
        node = manager()
        observe_containers(
            node,
            reported("s", ""),
            reported("s", exclusive_a="2", shared_a="0,1"),
            reported("s", "side"),
        )
        assert (cpus_of(node, "s"), cpus_of(node, "s", "side-id")) == ("0,2", "1")
        assert owned(node) == {"s": "2"}
        assert node.snapshot().resolution.pods["s"].qos is None
        assert node.snapshot().resolution.missing == ()

        node.reconfigure(SHRUNK, MACHINE.topology())
        assert listed(node) == {"2", "4"}
        assert cpus_of(node, "nobody") == "0-1"

    def test_its_cpus_are_its_own_until_the_last_of_it_is_gone(self) -> None:
        node = manager()
        observe_containers(node, reported("s", ""), reported("s", exclusive_a="2"))
        node.release(node.promised_until())
        node.forget_containers([ContainerID("main-id")])
        assert owned(node) == {"s": "2"}, "its container is about to start again"
        node.observe_containers([reported("s", identifier="again", exclusive_a="2")])
        assert cpus_of(node, "s", "again") == "2"

        node.forget_containers([ContainerID("again"), ContainerID("sandbox-id")])
        assert owned(node) == {}
        assert offers.held_ids(node.snapshot().facts) == {}
        node.reconfigure(SHRUNK, MACHINE.topology())
        assert listed(node) == {"4"}

    def test_nothing_moves_when_the_api_server_lists_it(self) -> None:
        node = manager()
        observe_containers(node, reported("s-uid", ""), reported("s-uid", exclusive_b="6"))
        before = placed(node, "s-uid")
        node.observe(pods=[builders.pod("s", builders.container(exclusive_b=1))])
        assert placed(node, "s-uid") == before
        assert owned(node) == {"s-uid": "6-7"}

    def test_nothing_moves_when_a_static_pod_is_listed_under_its_own_uid(self) -> None:
        node = manager()
        node.allocate("exclusive_b", ["6"])
        node.observe_containers([reported("hash", ""), reported("hash", exclusive_b="6")])
        node.reconfigure(OTHER_POLICIES, MACHINE.topology())
        assert cpus_of(node, "hash") == "6-7"

        mirror = builders.pod("mirror", builders.container(exclusive_b=1), cgroup_uid="hash")
        node.observe(pods=[mirror])

        assert cpus_of(node, "hash") == "6-7"
        assert owned(node) == {"hash": "6-7"}
        assert offers.held_ids(node.snapshot().facts) == {"exclusive_b": {"6"}}


class TestPromises:
    def test_one_is_kept_until_the_kubelet_names_the_container(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["2"])
        node.allocate("exclusive_a", ["4"])
        node.observe_containers([reported("s-uid", exclusive_a="2")])
        assert [one.ids for one in node.snapshot().facts.promises] == [{"2"}, {"4"}]
        assert offers.held_ids(node.snapshot().facts) == {"exclusive_a": {"2", "4"}}

        node.accept(builders.given(builders.pod("s"), exclusive_a="2"))
        assert [one.ids for one in node.snapshot().facts.promises] == [{"4"}]
        assert offers.held_ids(node.snapshot().facts) == {"exclusive_a": {"2", "4"}}

    def test_what_the_container_was_told_outlives_a_change_of_policy(self) -> None:
        node = manager()
        node.observe(pods=[builders.pod("p", builders.container(exclusive_a=1, exclusive_b=1))])
        node.allocate("exclusive_a", ["2"])
        node.allocate("exclusive_b", ["6"])
        node.reconfigure(OTHER_POLICIES, MACHINE.topology())

        node.observe_containers([reported("p-uid", exclusive_a="2", exclusive_b="6")])

        assert cpus_of(node, "p-uid") == "2,6-7"

    def test_what_other_containers_were_told_is_not_taken_for_it(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["4"])
        node.allocate("exclusive_b", ["6"])
        observe_containers(node, reported("s", exclusive_a="2"))
        assert owned(node) == {"s": "2"}

    def test_milli_cpus_are_promised_and_found_alike(self) -> None:
        node = manager()
        node.observe(pods=[builders.pod("p", builders.container(shared_a=2))])
        node.allocate("shared_a", ["7", "8"])
        node.observe_containers([reported("p-uid", shared_a="7,8")])
        assert (cpus_of(node, "p-uid"), placed(node, "p-uid").limit) == ("0", Limit(2))


class TestEverySighting:
    def test_it_replaces_what_was_sighted_before(self) -> None:
        node = manager()
        observe_containers(
            node, reported("a", "x", exclusive_a="2"), reported("b", "y", exclusive_a="4")
        )
        node.release(node.promised_until())
        node.observe_containers(
            [reported("b", "y", exclusive_a="4"), reported("c", "z")], every=True
        )
        assert owned(node) == {"b": "4"}
        assert set(node.snapshot().resolution.pods) == {"b", "c"}
        assert offers.held_ids(node.snapshot().facts) == {"exclusive_a": {"4"}}

    def test_what_is_reported_again_wakes_no_role_and_decides_nothing_anew(self) -> None:
        node = manager()
        observe_containers(node, reported("s", exclusive_a="2"))
        before = node.snapshot().resolution
        node.observe_containers([reported("s", exclusive_a="2")])
        node.observe_containers([reported("s", exclusive_a="2")], every=True)
        node.forget_containers([ContainerID("unheard-of")])
        assert node.snapshot().resolution is before


def test_what_a_container_is_told_at_creation_is_what_allocate_told() -> None:
    node = manager()
    allocated = {
        **node.allocate("exclusive_b", ["6"]).environment,
        **node.allocate("shared_a", ["0", "1"]).environment,
    }
    node.observe_containers([reported("s", exclusive_b="6", shared_a="0,1")])
    assert environment.of_container(placed(node, "s")) == allocated


def test_a_cpu_of_its_own_that_a_shared_pool_lists_now_is_not_called_shared() -> None:
    node = manager()
    observe_containers(node, reported("s", exclusive_a="2", shared_a="0"))
    node.reconfigure(
        NodePools.of(Pool.named("shared_a", "0,2"), Pool.named("default", "1")), MACHINE.topology()
    )
    assert environment.of_container(placed(node, "s")) == {
        "EXCLUSIVE_CPUS": "2",
        "SHARED_CPUS": "0",
        "CPUPOOL_CPUS_EXCLUSIVE_A": "2",
        "CPUPOOL_CPUS_SHARED_A": "0",
    }


def test_a_container_is_of_the_pod_that_the_runtime_names() -> None:
    node = manager()
    node.observe(pods=[builders.pod("p")])
    node.observe_containers([reported("q-uid"), reported("q-uid", "")])
    assert node.snapshot().resolution.containers.keys() == {("q-uid", "main-id")}


def test_what_the_runtime_no_longer_reports_so_has_no_cpus_any_more() -> None:
    node = manager()
    node.observe(pods=[builders.pod("one"), builders.pod("two")])
    listed = set(node.snapshot().resolution.containers)
    first, second = (reported("one-uid", identifier=name) for name in ("first", "second"))
    # From here on nothing of the listed pods changes.
    observe_containers(node, first, second)
    assert node.snapshot().resolution.containers.keys() - listed == {
        ("one-uid", "first"),
        ("one-uid", "second"),
    }
    node.forget_containers([second.id])
    assert node.snapshot().resolution.containers.keys() - listed == {("one-uid", "first")}
    observe_containers(node, replace(first, pod="two-uid"))
    assert node.snapshot().resolution.containers.keys() - listed == {("two-uid", "first")}
