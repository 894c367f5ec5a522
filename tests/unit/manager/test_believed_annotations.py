"""Which annotations of a response to Allocate the agent believes."""

from __future__ import annotations

import pytest

from cpupool.core.assignments import Cause, Placement
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerRef
from cpupool.manager import offers
from tests import builders
from tests.runtimes import reported
from tests.unit.manager.sighted import (
    MACHINE,
    cpus_of,
    listed,
    manager,
    observe_containers,
    owned,
    placed,
)


class TestOfAListedPod:
    @pytest.mark.parametrize(
        ("pool", "ids", "cpus"),
        [
            pytest.param("exclusive_a", "2,4", "2,4", id="as many as asked for"),
            pytest.param("exclusive_a", "2", "1", id="fewer"),
            pytest.param("exclusive_a", "2,4,6", "1", id="more"),
            pytest.param("exclusive_b", "6,7", "1", id="of another pool"),
        ],
    )
    def test_annotations_count_as_far_as_the_spec_asks_for_as_many(
        self, pool: str, ids: str, cpus: str
    ) -> None:
        node = manager()
        node.observe(pods=[builders.pod("p", builders.container(exclusive_a=2))])
        observe_containers(node, reported("p-uid", **{pool: ids}))
        assert cpus_of(node, "p-uid") == cpus
        assert (cpus == "1") is bool(node.snapshot().resolution.missing)

    def test_what_is_known_already_counts_before_annotations(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="4"))
        node.observe_containers([reported("p-uid", exclusive_a="2")])
        assert cpus_of(node, "p-uid") == "4"
        assert owned(node) == {"p-uid": "4"}

    def test_annotations_take_no_cpu_from_its_owner(self) -> None:
        node = manager()
        owner = builders.pod("owner", builders.container("db", exclusive_a=1))
        forger = builders.pod("forger", builders.container(exclusive_a=1))
        node.observe(pods=[forger, owner])
        node.accept(builders.given(owner, "db", exclusive_a="4"))

        observe_containers(
            node,
            reported("forger-uid", exclusive_a="4"),
            reported("stranger", "x", exclusive_a="4"),
        )

        assert owned(node) == {"owner-uid": "4"}
        assert cpus_of(node, "owner-uid", "db-id") == "4"
        assert placed(node, "forger-uid").cause is Cause.NO_DEVICES
        assert placed(node, "stranger", "x-id").cause is Cause.NO_DEVICES

    def test_nor_does_one_owner_take_them_from_another(self) -> None:
        node = manager()
        observe_containers(
            node, reported("a", "x", exclusive_a="2"), reported("b", "y", exclusive_a="4")
        )
        observe_containers(node, reported("a", "x", exclusive_a="2", exclusive_b="4"))
        assert owned(node) == {"a": "2", "b": "4"}
        assert (cpus_of(node, "a", "x-id"), cpus_of(node, "b", "y-id")) == ("1", "4")

    def test_the_kubelets_word_corrects_annotations(self) -> None:
        node = manager()
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        observe_containers(node, reported("p-uid", exclusive_a="2"))
        node.accept(builders.given(pod, exclusive_a="4"))
        assert owned(node) == {"p-uid": "4"}

    def test_an_annotation_fulfils_no_promise(self) -> None:
        node = manager()
        node.observe(pods=[builders.pod("p", builders.container(exclusive_a=1))])
        observe_containers(node, reported("p-uid", exclusive_a="2"))
        observe_containers(node, reported("p-uid", exclusive_a="4"))

        assert owned(node) == {"p-uid": "2"}
        node.reconfigure(NodePools.of(Pool.named("exclusive_b", "6")), MACHINE.topology())
        assert listed(node) == {"2", "4"}


class TestOfAForger:
    """A pod whose annotations name devices that the kubelet gave to another, or to no pod."""

    OWNER = builders.pod("owner", builders.container("db", running=False, exclusive_a=1))

    def test_what_allocate_has_not_given_is_none(self) -> None:
        node = manager()
        node.observe_containers([reported("forger-uid", exclusive_a="4")])
        assert owned(node) == {}
        assert placed(node, "forger-uid").cause is Cause.NO_DEVICES
        assert node.snapshot().resolution.missing == (ContainerRef("forger-uid", "main"),), (
            "the kubelet knows"
        )

    def test_a_listed_pod_that_asks_for_nothing_gets_nothing(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["4"])
        node.observe_containers([reported("forger-uid", exclusive_a="4")])
        assert owned(node) == {"forger-uid": "4"}

        node.observe(pods=[builders.pod("forger")])

        assert owned(node) == {}
        assert placed(node, "forger-uid").placement is Placement.DEFAULT
        assert offers.held_ids(node.snapshot().facts) == {"exclusive_a": {"4"}}, (
            "they are still promised"
        )
        node.observe_containers([reported("owner-uid", "db", exclusive_a="4")])
        assert owned(node) == {"owner-uid": "4"}

    @pytest.mark.parametrize("listed_first", [False, True])
    def test_the_kubelets_records_take_it_back(self, *, listed_first: bool) -> None:
        node = manager()
        node.allocate("exclusive_a", ["4"])
        forger = builders.pod("forger", builders.container(exclusive_a=1))
        node.observe(pods=[forger, self.OWNER] if listed_first else [])
        node.observe_containers([reported("forger-uid", exclusive_a="4")])
        assert owned(node) == {"forger-uid": "4"}
        node.observe_containers([reported("owner-uid", "db", exclusive_a="4")])
        assert placed(node, "owner-uid", "db-id").cause is Cause.NO_DEVICES

        node.accept(builders.given(self.OWNER, "db", exclusive_a="4"))

        assert owned(node) == {"owner-uid": "4"}
        assert cpus_of(node, "owner-uid", "db-id") == "4"
        assert placed(node, "forger-uid").cause is Cause.NO_DEVICES

    def test_so_do_records_of_its_own_without_that_pool(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["4"])
        node.allocate("exclusive_b", ["6"])
        node.observe_containers([reported("forger-uid", exclusive_a="4", exclusive_b="6")])
        node.accept(builders.given(builders.pod("forger"), exclusive_b="6"))
        assert owned(node) == {"forger-uid": "6-7"}

    def test_a_part_of_an_response_to_allocate_is_none(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["2", "4"])
        node.observe_containers([reported("forger-uid", exclusive_a="4")])
        assert owned(node) == {}
        node.observe_containers([reported("owner-uid", "db", exclusive_a="2,4")])
        assert owned(node) == {"owner-uid": "2,4"}

    def test_of_two_that_claim_an_answer_the_listed_pod_comes_first(self) -> None:
        node = manager()
        node.observe(pods=[self.OWNER])
        node.allocate("exclusive_a", ["4"])
        node.observe_containers(
            [reported("forger-uid", exclusive_a="4"), reported("owner-uid", "db", exclusive_a="4")]
        )
        assert owned(node) == {"owner-uid": "4"}

    def test_two_that_have_taken_what_is_the_others_are_put_right(self) -> None:
        node = manager()
        pods = [builders.pod(name, builders.container(exclusive_a=1)) for name in "ab"]
        node.observe(pods=pods)
        for one in "24":
            node.allocate("exclusive_a", [one])
        node.observe_containers(
            [reported("a-uid", exclusive_a="4"), reported("b-uid", identifier="b", exclusive_a="2")]
        )
        assert node.snapshot().resolution.missing == ()
        assert len(node.snapshot().resolution.unconfirmed) == 2, "so the kubelet is asked"

        for pod, ids in zip(pods, "24", strict=True):
            node.accept(builders.given(pod, exclusive_a=ids))
        assert owned(node) == {"a-uid": "2", "b-uid": "4"}
        assert node.snapshot().resolution.unconfirmed == ()


class TestOfTheContainersOfAPod:
    """The kubelet gives the devices of an init container to later containers of its pod."""

    def test_all_of_them_may_be_those_of_another(self) -> None:
        node = manager()
        for name in ("init", "main"):
            node.allocate("exclusive_a", ["2", "4"])
            node.observe_containers([reported("p-uid", name, exclusive_a="2,4")])
            assert cpus_of(node, "p-uid", f"{name}-id") == "2,4"

    def test_and_some_of_them(self) -> None:
        node = manager()
        init = builders.container("init", running=False, exclusive_a=1)
        node.allocate("exclusive_a", ["2"])
        node.allocate("exclusive_a", ["2", "4"])
        node.observe_containers([reported("p-uid", "init", exclusive_a="2")])
        node.accept(builders.given(builders.pod("p", init), "init", exclusive_a="2"))
        node.observe_containers([reported("p-uid", exclusive_a="2,4")])
        assert cpus_of(node, "p-uid") == "2,4"
