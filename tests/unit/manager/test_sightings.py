"""What the container runtime tells of containers, beside what the API server and the kubelet do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core import environment
from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.bandwidth import Limit
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.manager import offers
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import reported

if TYPE_CHECKING:
    from cpupool.core.workloads import RuntimeContainer

MACHINE = MACHINES["laptop_4c8t"]  # cores 0-1, 2-3, 4-5, 6-7
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"),
    Pool.named("exclusive_b", "6", multi_threaded=True),
    Pool.named("shared_a", "0"),
    Pool.named("default", "1"),
)
OTHER_POLICIES = NodePools.of(
    Pool.named("exclusive_a", "2,4", multi_threaded=True),
    Pool.named("exclusive_b", "6"),
    Pool.named("default", "1"),
)
SHRUNK = NodePools.of(Pool.named("exclusive_a", "4"), Pool.named("default", "0-3"))


def manager(pools: NodePools = POOLS) -> Manager:
    made = Manager(Names())
    made.reconfigure(pools, MACHINE.topology())
    made.observe(pods=[])
    return made


def observe_containers(node: Manager, *found: RuntimeContainer, every: bool = False) -> None:
    """Let the kubelet ask for the devices of these containers, and the runtime tell of them."""
    for one in found:
        for pool, ids in one.devices.items():
            node.promise(pool, ids)
    node.observe_containers(found, every=every)


def placed(node: Manager, pod: str, container: str = "main-id") -> CPUAssignment:
    return node.snapshot().resolution.assignment((pod, ContainerID(container)))


def cpus_of(node: Manager, pod: str, container: str = "main-id") -> str:
    return str(placed(node, pod, container).cpus)


def owned(node: Manager) -> dict[str, str]:
    by_pod = builders.owned(node)
    return {pod: str(CPUSet.union(by_pool.values())) for pod, by_pool in by_pod.items()}


def listed(node: Manager, pool: str = "exclusive_a") -> set[str]:
    return {device.id for device in node.devices(pool).offer}


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

    def test_an_annotation_fulfils_no_promise(self) -> None:
        node = manager()
        node.observe(pods=[builders.pod("p", builders.container(exclusive_a=1))])
        observe_containers(node, reported("p-uid", exclusive_a="2"))
        observe_containers(node, reported("p-uid", exclusive_a="4"))

        assert owned(node) == {"p-uid": "2"}
        node.reconfigure(NodePools.of(Pool.named("exclusive_b", "6")), MACHINE.topology())
        assert listed(node) == {"2", "4"}


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

    def test_a_part_of_an_answer_of_allocate_is_none(self) -> None:
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
