from __future__ import annotations

import pytest

from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerKind
from tests import builders
from tests.unit.manager.laptop import MACHINE, cpus_of, health, manager


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

    def test_without_any_pool_no_container_is_placed(self) -> None:
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

    def test_the_device_of_an_offline_cpu_is_unhealthy_and_on_no_node(self) -> None:
        node = manager()
        node.update_topology(MACHINE.without("4").topology())

        offline = next(device for device in node.devices("exclusive_a").offer if device.id == "4")
        assert (offline.healthy, offline.node) == (False, None)

    def test_a_cpu_whose_return_shows_a_shared_core_is_not_given(self) -> None:
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


def test_what_stands_in_for_an_empty_default_pool_has_no_cpu_of_an_answer() -> None:
    node = manager(offline="1")
    node.observe(pods=[builders.pod("plain")])
    assert cpus_of(node, "plain") == "0,2-7"

    node.allocate("exclusive_a", ["2"])
    assert cpus_of(node, "plain") == "0,4-7"
