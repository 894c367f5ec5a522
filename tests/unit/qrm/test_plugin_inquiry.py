"""What plugins on real sockets say for podresources, and a clock that the test sets."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api import resourceplugin_pb2 as api
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
from cpupool.core.workloads import ContainerRef
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm.plugin_client import Introduction, ResourcePlugin
from cpupool.qrm.plugin_inquiry import PluginInquiry
from tests.machines import MACHINES
from tests.resource_plugins import PluginDouble, Refusal
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cpupool.core.plugin_facts import Record

TOPOLOGY = MACHINES["arm_no_smt"].topology()
OF_CONTAINER, OF_NODE = "GetTopologyAwareResources", "GetTopologyAwareAllocatableResources"
NIC, OTHER = "example.com/nic", "example.com/other"
SHORT_S = 0.1
"""How long a question to a plugin waits that never answers."""
AWAY = Refusal(grpc.StatusCode.UNAVAILABLE, "no route")


def given(number: float = 1.0, **fields: Any) -> RecordedAnswer:
    return RecordedAnswer(number, {NIC: AnswerPart(quantity=number)}, **fields)


def container(name: str) -> ContainerRef:
    return ContainerRef(f"{name}-uid", "main")


def record(*names: str, resource: str = NIC) -> Record:
    return {container(name): {resource: given()} for name in names}


def nic(name: str = "eth0", resource: str = NIC, **place: Any) -> bytes:
    """Make what a container has: one NIC."""
    places = [api.TopologyAwareQuantity(**{"resource_value": 1.0, "name": name, **place})]
    each = api.TopologyAwareResource(topology_aware_quantity_list=places)
    of_container = api.ContainerTopologyAwareResources(allocated_resources={resource: each})
    return api.GetTopologyAwareResourcesResponse(
        container_topology_aware_resources=of_container
    ).SerializeToString()


def stock(amount: float) -> api.GetTopologyAwareAllocatableResourcesResponse:
    each = api.AllocatableTopologyAwareResource(aggregated_allocatable_quantity=amount)
    return api.GetTopologyAwareAllocatableResourcesResponse(allocatable_resources={NIC: each})


class World:
    """Plugins on sockets, and those who ask them.

    Attributes:
        plugins: resource → the plugin that serves it.
        now_s: the time.
        hanging: how many questions a mute plugin has.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.plugins: dict[str, ResourcePlugin] = {}
        self.now_s = 0.0
        self.hanging = threading.Semaphore(0)
        self._end = threading.Event()
        self._made = 0

    def inquiry(self, answer_s: float = DEADLINE_S) -> PluginInquiry:
        return PluginInquiry(lambda: self.plugins, answer_s=answer_s, now_s=lambda: self.now_s)

    @contextmanager
    def plugin(self, resource: str = NIC) -> Iterator[PluginDouble]:
        """Register a plugin, in the place of another."""
        self._made += 1
        with PluginDouble(self._folder / f"{self._made}.sock", resource) as double:
            introduction = Introduction(resource, double.socket, PluginOptions())
            before = self.plugins.get(resource)
            self.plugins[resource] = ResourcePlugin(introduction)
            if before is not None:
                before.close()
            try:
                yield double
            finally:
                self.end()

    def mute(self, _request: bytes) -> bytes:
        self.hanging.release()
        self._end.wait(DEADLINE_S)
        return b""

    def hangs(self) -> None:
        """Wait until a question hangs."""
        assert self.hanging.acquire(timeout=DEADLINE_S)

    def end(self) -> None:
        self._end.set()


@pytest.fixture
def world(folder: Path) -> World:
    return World(folder)


def names(inquiry: PluginInquiry, known: Record) -> dict[str, str]:
    """Return pod → the name of the NIC that a plugin says it has."""
    return {
        ref.pod.removesuffix("-uid"): each.topology_aware_quantity_list[0].name
        for ref, by_resource in inquiry.given(known, TOPOLOGY).items()
        for placed in by_resource.values()
        for each in placed.values()
    }


def amounts(inquiry: PluginInquiry) -> Mapping[str, float]:
    return {
        resource: found[NIC].aggregated_allocatable_quantity
        for resource, found in inquiry.stocks(TOPOLOGY).items()
    }


def asked(plugin: PluginDouble) -> list[str]:
    """Return the pods for which a plugin was asked."""
    requests = map(api.GetTopologyAwareResourcesRequest.FromString, plugin.asked[OF_CONTAINER])
    return [each.pod_uid.removesuffix("-uid") for each in requests]


def by_pod(**names: str) -> Any:
    """Make a reply: a NIC by the pod, or a refusal for one without a name."""

    def reply(request: bytes) -> bytes:
        uid = api.GetTopologyAwareResourcesRequest.FromString(request).pod_uid
        if name := names.get(uid.removesuffix("-uid")):
            return nic(name)
        raise Refusal(grpc.StatusCode.NOT_FOUND, "no such container")

    return reply


def test_a_plugin_is_asked_for_the_containers_with_an_answer_of_its_own(world: World) -> None:
    known = {
        **record("a", "b"),
        container("c"): {OTHER: given()},
        container("d"): {NIC: given(refused="bad")},
    }
    with world.plugin() as plugin:
        plugin.replies[OF_CONTAINER] = by_pod(a="eth0", b="eth1")
        inquiry = world.inquiry()
        assert names(inquiry, known) == {"a": "eth0", "b": "eth1"}
        assert asked(plugin) == ["a", "b"]
        # Nothing is kept in place of a question.
        plugin.replies[OF_CONTAINER] = by_pod(a="eth2", b="eth1")
        assert names(inquiry, known) == {"a": "eth2", "b": "eth1"}


def test_what_a_plugin_refuses_or_says_wrong_is_as_it_was_said_last(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.plugin() as plugin:
        inquiry = world.inquiry()
        plugin.replies[OF_CONTAINER] = by_pod(b="eth1")
        assert names(inquiry, record("a", "b")) == {"b": "eth1"}
        plugin.replies[OF_CONTAINER] = by_pod(a="eth0")
        assert names(inquiry, record("a", "b")) == {"a": "eth0", "b": "eth1"}
        plugin.replies[OF_CONTAINER] = by_pod(a="eth0", b="eth1")
        names(inquiry, record("a", "b"))
        caplog.clear()
        plugin.replies[OF_CONTAINER] = nic(resource_value=float("nan"))
        for _ in range(2):
            assert names(inquiry, record("a", "b")) == {"a": "eth0", "b": "eth1"}
        (message,) = caplog.messages
        assert "nan, which is no amount" in message


def test_a_failure_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def refused(request: bytes) -> bytes:
        uid = api.GetTopologyAwareResourcesRequest.FromString(request).pod_uid
        raise Refusal(grpc.StatusCode.NOT_FOUND, f"{uid} is question {len(plugin.asked)}")

    with world.plugin() as plugin:
        inquiry = world.inquiry()
        plugin.replies[OF_CONTAINER] = refused
        for known in (record("a", "b"), record("b", "a"), record("c")):
            assert names(inquiry, known) == {}
        assert len(caplog.messages) == 1
        plugin.replies[OF_CONTAINER] = by_pod(a="eth0")
        names(inquiry, record("a"))
        plugin.replies[OF_CONTAINER] = refused
        names(inquiry, record("a"))
        assert len(caplog.messages) == 2


def test_an_answer_that_is_too_long_is_not_read_and_the_next_one_is(world: World) -> None:
    def reply(request: bytes) -> bytes:
        uid = api.GetTopologyAwareResourcesRequest.FromString(request).pod_uid
        return bytes(1024 * 1024) if uid == "a-uid" else nic("eth1")

    with world.plugin() as plugin:
        plugin.replies[OF_CONTAINER] = reply
        inquiry = world.inquiry()
        for _ in range(2):
            assert names(inquiry, record("a", "b")) == {"b": "eth1"}


def test_last_words_end_with_the_answer_that_they_go_with(world: World) -> None:
    known = record("a", "b", "c")
    with world.plugin() as plugin:
        inquiry = world.inquiry()
        plugin.replies[OF_CONTAINER] = by_pod(a="eth0", b="eth1", c="eth2")
        names(inquiry, known)
        plugin.replies[OF_CONTAINER] = by_pod()
        later = {container("a"): {NIC: given()}, container("b"): {NIC: given(2.0)}}
        assert names(inquiry, later) == {"a": "eth0"}
        # Another container of this name has nothing of the first one.
        assert names(inquiry, known) == {"a": "eth0"}


def test_a_plugin_without_the_methods_is_asked_once(world: World) -> None:
    with world.plugin() as plugin:
        inquiry = world.inquiry()
        calls: list[str] = []
        world.plugins[NIC] = ResourcePlugin(
            Introduction(NIC, plugin.socket, PluginOptions()),
            lambda call: calls.append(call.method),
        )
        for _ in range(2):
            assert names(inquiry, record("a", "b", "c")) == {}
            assert inquiry.stocks(TOPOLOGY).get(NIC, {}) == {}
        assert calls == [OF_CONTAINER, OF_NODE]


def test_a_mute_plugin_costs_one_question(world: World) -> None:
    with world.plugin() as plugin:
        inquiry = world.inquiry(SHORT_S)
        plugin.replies[OF_CONTAINER] = plugin.replies[OF_NODE] = world.mute
        # One question, although there are three containers; and none about the node.
        assert names(inquiry, record("a", "b", "c")) == {}
        assert names(inquiry, record("a", "b", "c")) == {}
        assert amounts(inquiry) == {}
        # On a machine that is busy, it may not have reached the plugin.
        assert asked(plugin) in ([], ["a"])
        assert not plugin.asked[OF_NODE]


def test_each_question_has_its_bound(world: World) -> None:
    with world.plugin() as plugin:
        plugin.replies[OF_CONTAINER] = by_pod(a="eth0")
        plugin.answers(OF_NODE, stock(2.0))
        # No answer comes within a microsecond.
        assert names(world.inquiry(1e-6), record("a")) == {}
        assert amounts(world.inquiry(1e-6)) == {}


def test_a_plugin_without_an_answer_is_not_asked_again_while_it_may_work(world: World) -> None:
    with world.plugin() as plugin:
        inquiry = world.inquiry()
        plugin.answers(OF_CONTAINER, AWAY)
        plugin.answers(OF_NODE, stock(2.0))
        for _ in range(2):
            assert names(inquiry, record("a", "b", "c")) == {}
            assert amounts(inquiry) == {}
        assert (asked(plugin), plugin.asked[OF_NODE]) == (["a"], [])

        # Ten seconds later it must have come to an end.
        world.now_s += 10.0
        plugin.replies[OF_CONTAINER] = by_pod(a="eth0", b="eth1", c="eth2")
        assert names(inquiry, record("a", "b", "c")) == {"a": "eth0", "b": "eth1", "c": "eth2"}
        assert amounts(inquiry) == {NIC: 2.0}


def test_another_plugin_in_its_place_is_asked_at_once(world: World) -> None:
    with world.plugin() as away:
        inquiry = world.inquiry()
        away.answers(OF_CONTAINER, AWAY)
        assert names(inquiry, record("a")) == {}
        with world.plugin() as plugin:
            plugin.replies[OF_CONTAINER] = by_pod(a="eth0")
            assert names(inquiry, record("a")) == {"a": "eth0"}


def test_a_plugin_that_is_replaced_while_it_is_asked_ends_the_question(world: World) -> None:
    with ThreadPoolExecutor(1) as pool, world.plugin() as mute:
        inquiry = world.inquiry()
        mute.replies[OF_CONTAINER] = world.mute
        found = pool.submit(names, inquiry, record("a"))
        world.hangs()
        with world.plugin() as plugin:
            plugin.replies[OF_CONTAINER] = by_pod(a="eth0")
            # Long before the mute one's time is over.
            assert found.result() == {}
            assert names(inquiry, record("a")) == {"a": "eth0"}


def test_a_mute_plugin_holds_up_no_other(world: World) -> None:
    known = {container("a"): {OTHER: given(), NIC: given()}}
    with world.plugin(OTHER) as mute, world.plugin() as plugin:
        mute.replies[OF_CONTAINER] = mute.replies[OF_NODE] = world.mute
        answered = threading.Event()

        def reply(_request: bytes) -> bytes:
            answered.set()
            return nic("eth0")

        plugin.replies[OF_CONTAINER] = reply
        plugin.answers(OF_NODE, stock(2.0))
        with ThreadPoolExecutor(2) as pool:
            inquiry = world.inquiry()
            found = pool.submit(names, inquiry, known)
            world.hangs()
            assert answered.wait(DEADLINE_S)
            # The node is asked about beside it.
            other = pool.submit(amounts, inquiry)
            world.hangs()
            world.plugins[OTHER].close()
            assert found.result() == {"a": "eth0"}
            assert other.result() == {NIC: 2.0}


def test_a_dead_plugins_last_words_stand(world: World) -> None:
    inquiry = world.inquiry()
    with world.plugin() as plugin:
        plugin.replies[OF_CONTAINER] = by_pod(a="eth0")
        plugin.answers(OF_NODE, stock(2.0))
        assert names(inquiry, record("a")) == {"a": "eth0"}
        assert amounts(inquiry) == {NIC: 2.0}
    # The socket is there, and nobody listens; then it is known that nobody does.
    assert names(inquiry, record("a")) == {"a": "eth0"}
    world.plugins.clear()
    assert names(inquiry, record("a")) == {"a": "eth0"}
    assert amounts(inquiry) == {NIC: 2.0}
    # The node's stock is not what a container has for its life.
    world.now_s += 300.0
    assert names(inquiry, record("a")) == {"a": "eth0"}
    assert amounts(inquiry) == {}


def test_a_slow_plugin_is_heard_about_all_its_containers_in_some_rounds(world: World) -> None:
    every = "abcde"

    def slowly(request: bytes) -> bytes:
        world.now_s += 0.4
        uid = api.GetTopologyAwareResourcesRequest.FromString(request).pod_uid
        return nic(f"eth-{uid[0]}")

    with world.plugin() as plugin:
        inquiry = world.inquiry()
        plugin.replies[OF_CONTAINER] = slowly
        # A round begins no question after one second.
        assert names(inquiry, record(*every)).keys() == set("abc")
        assert names(inquiry, record(*every)) == {name: f"eth-{name}" for name in every}
        assert asked(plugin) == list("abcdea")
        names(inquiry, record(*every))
        assert asked(plugin) == list("abcdeabcd")


def test_one_question_about_a_container_is_under_way_at_a_time(world: World) -> None:
    with ThreadPoolExecutor(8) as pool, world.plugin() as mute:
        inquiry = world.inquiry()
        mute.replies[OF_CONTAINER] = world.mute
        rounds = [pool.submit(names, inquiry, record("a", "b")) for _ in range(8)]
        eventually(lambda: all(each.running() for each in rounds), "all of them ask")
        world.hangs()
        world.plugins[NIC].close()
        assert [each.result() for each in rounds] == [{}] * 8
        assert asked(mute) == ["a"]
