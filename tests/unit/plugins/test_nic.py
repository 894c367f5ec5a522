from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import TopologyHint
from cpupool.plugins.base import Amount
from cpupool.plugins.nic import BANDWIDTH, NEAR_NIC, NICPlugin, NoNIC
from cpupool.plugins.nics import NIC
from cpupool.plugins.placing import BadRequest
from cpupool.plugins.service import Device
from cpupool.plugins.state import PluginState
from cpupool.policies.qrm.questions import PluginOptions
from tests.unit.plugins.asking import INIT, MAIN, SIDECAR, Asked, ask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.plugin_facts import AnswerPart
    from cpupool.policies.qrm.questions import ContainerRole, Question

ETH0 = NIC("eth0", 0, "fdbd:dc05:3:154::20", speed_mbits=25000)
ETH1 = NIC("eth1", 1, "fdbd:dc05:3:155::20", netns="/var/run/netns/ns1", speed_mbits=25000)


NAMED = Device(0, "NIC", "eth0")


class Nics(Asked):
    def __init__(self, *nics: NIC) -> None:
        super().__init__(NICPlugin(nics, frozenset({0, 1})))

    def given(self, question: Question, *nodes: int) -> AnswerPart:
        self.allocate(question, *nodes)
        (answer,) = self.plugin.answers(self.state, question.container).values()
        return answer

    def name(self, question: Question, *nodes: int) -> str:
        return self.given(question, *nodes).annotations["qrm.katalyst.kubewharf.io/nic_name"]


def near(pod: str, role: ContainerRole = MAIN, says: Mapping[str, str] | None = None) -> Question:
    return ask(pod, 1, "", role, resource=NEAR_NIC, says=says)


def mbits(pod: str, quantity: float, says: Mapping[str, str] | None = None) -> Question:
    return ask(pod, quantity, resource=BANDWIDTH, says=says)


def test_pods_on_a_node_share_its_nic() -> None:
    asked = Nics(ETH0, ETH1)
    assert asked.plugin.options == PluginOptions(aligned=True)
    assert asked.plugin.resources == ("NIC", "resource.katalyst.kubewharf.io/net_bandwidth")
    for pod in ("pod1", "pod2"):
        question = near(pod)
        assert asked.hints(question) == [([0], True), ([1], True), ([0, 1], False)]
        answer = asked.given(question, 1)
        assert answer.env == {"AFFINITY_NIC_ADDR_IPV6": "fdbd:dc05:3:155::20"}
        assert answer.annotations == {
            "kubernetes.io/host-netns-path": "/var/run/netns/ns1",
            "qrm.katalyst.kubewharf.io/nic_name": "eth1",
            "qrm.katalyst.kubewharf.io/netns_path": "/var/run/netns/ns1",
            "qrm.katalyst.kubewharf.io/inet_addr_ipv6": "fdbd:dc05:3:155::20",
        }
        assert answer.hints == (TopologyHint(frozenset({1}), preferred=True),)
        assert (answer.oci_property, answer.value, answer.scalar, answer.of_node) == (
            *("", ""),
            *(False, False),
        )


def test_an_interface_of_the_host_has_no_namespace() -> None:
    nic = NIC("eth0", 0, ipv4="10.0.0.2")
    answer = Nics(nic).given(near("a"))
    assert answer.env == {"AFFINITY_NIC_ADDR_IPV4": "10.0.0.2"}
    assert answer.annotations == {
        "qrm.katalyst.kubewharf.io/nic_name": "eth0",
        "qrm.katalyst.kubewharf.io/inet_addr": "10.0.0.2",
    }


def test_bandwidth_is_counted() -> None:
    asked = Nics(ETH0, ETH1)
    answer = asked.given(mbits("a", 20000), 0)
    assert (answer.quantity, answer.value, answer.by_node) == (20000, "0", {0: 20000})
    assert (answer.scalar, answer.of_node) == (True, True)
    assert answer.annotations["qrm.katalyst.kubewharf.io/net_bandwidth"] == "20000"
    # Nine tenths of the speed are given out.
    assert asked.hints(mbits("b", 2500)) == [([0], True), ([1], True), ([0, 1], False)]
    assert asked.hints(mbits("b", 2501)) == [([1], True), ([0, 1], False)]
    with pytest.raises(NoNIC, match=r"near NUMA nodes \[0\]"):
        asked.allocate(mbits("b", 2501), 0)
    with pytest.raises(NoNIC, match="none of 2 NICs has 22501 Mbit/s left"):
        asked.hints(mbits("c", 22501))
    # A NIC without a promise needs no bandwidth, and takes none.
    assert asked.name(near("d"), 0) == "eth0"
    asked.remove("a")
    assert asked.hints(mbits("c", 22500)) == [([0], True), ([1], True), ([0, 1], False)]


def test_a_request_that_grows_is_counted_once() -> None:
    asked = Nics(ETH0)
    asked.allocate(mbits("a", 20000), 0)
    assert asked.hints(mbits("a", 10000)) == [([0], True)]
    assert asked.given(mbits("a", 10000)).quantity == 20000
    assert asked.given(mbits("a", 22000)).quantity == 22000


def test_the_nic_with_the_most_bandwidth_left_is_taken_and_then_the_first_by_name() -> None:
    asked = Nics(NIC("b", 0, speed_mbits=1000), NIC("a", 0, speed_mbits=1000))
    assert [asked.name(mbits(pod, 100)) for pod in "123"] == ["a", "b", "a"]


def test_a_nic_of_exactly_the_nodes_comes_first() -> None:
    asked = Nics(NIC("any", None, speed_mbits=1), NIC("near", 0, speed_mbits=9))
    assert asked.hints(near("a")) == [([0], True), ([0, 1], True)]
    assert asked.name(near("a"), 0, 1) == "any"
    assert asked.name(near("b"), 0) == "near"
    # A node that the machine lacks says nothing.
    assert Nics(NIC("x", 7)).hints(near("a")) == [([0, 1], True)]


def test_an_unhealthy_nic_serves_nobody_new() -> None:
    down = NIC("eth1", 1, "::2", healthy=False)
    asked = Nics(ETH0, down)
    assert asked.hints(near("a")) == [([0], True), ([0, 1], False)]
    with pytest.raises(NoNIC):
        asked.allocate(near("a"), 1)
    with pytest.raises(NoNIC, match="none of 1 NICs is healthy"):
        Nics(down).hints(near("a"))


def test_the_network_namespace_is_a_wish_or_a_demand() -> None:
    asked = Nics(ETH0, ETH1)

    def wants(kind: str) -> Question:
        return near(kind, says={"network_enhancement": f'{{"namespace_type": "{kind}"}}'})

    assert asked.hints(wants("host_ns")) == [([0], True), ([0, 1], False)]
    assert asked.hints(wants("anti_host_ns")) == [([1], True), ([0, 1], False)]
    everywhere = [([0], True), ([1], True), ([0, 1], False)]
    assert asked.hints(wants("host_ns_preferred")) == everywhere
    assert asked.name(wants("host_ns_preferred")) == "eth0"
    assert asked.name(wants("anti_host_ns_preferred")) == "eth1"
    with pytest.raises(NoNIC, match="network namespace"):
        Nics(ETH0).hints(wants("anti_host_ns"))


def test_a_pod_may_want_a_near_nic_only() -> None:
    says = {"network_enhancement": '{"topology_affinity_restricted": "true"}'}
    assert Nics(ETH0, ETH1).hints(near("a", says=says)) == [([0], True), ([1], True)]


def test_other_containers_than_the_main_one_get_nothing() -> None:
    asked = Nics(ETH0)
    for role in (INIT, SIDECAR):
        assert asked.hints(near("a", role)) is None
        assert asked.allocate(near("a", role)) == ""
    assert asked.state.held == {}


def test_a_container_requests_one_of_the_resources() -> None:
    asked = Nics(ETH0)
    asked.allocate(near("a"))
    with pytest.raises(BadRequest, match="request one of them"):
        asked.hints(mbits("a", 1))
    with pytest.raises(BadRequest, match="request one of them"):
        asked.allocate(mbits("a", 1))


def test_the_stock_is_bandwidth_or_nics() -> None:
    plugin = NICPlugin((ETH0, ETH1, NIC("x", 1, speed_mbits=10, healthy=False)), frozenset({0, 1}))
    state = PluginState()
    mbits = plugin.stock(state, BANDWIDTH)[BANDWIDTH]
    assert mbits.by_node == {0: Amount(25000, 22500), 1: Amount(25010, 22500)}
    assert mbits.of_node
    assert mbits.devices == (
        (NAMED, Amount(25000, 22500)),
        (Device(1, "NIC", "eth1", "ns1"), Amount(25000, 22500)),
        (Device(1, "NIC", "x"), Amount(10, 0)),
    )
    nics = plugin.stock(state, NEAR_NIC)[NEAR_NIC]
    assert nics.by_node == {0: Amount(1, 1), 1: Amount(2, 1)}
    assert not nics.of_node
    assert [each for _, each in nics.devices] == [Amount(1, 1), Amount(1, 1), Amount(1, 0)]


def test_a_container_has_a_nic_with_a_name() -> None:
    asked = Nics(ETH0, ETH1)
    asked.allocate(near("a"), 1)
    asked.allocate(mbits("b", 2000), 0)
    found = [
        asked.plugin.devices(asked.state, question.container)
        for question in (near("a"), mbits("b", 2000))
    ]
    assert found == [
        {NEAR_NIC: ((Device(1, "NIC", "eth1", "ns1"), 1.0),)},
        {BANDWIDTH: ((NAMED, 2000.0),)},
    ]


def test_a_nic_near_no_node_is_named_at_the_first() -> None:
    asked = Nics(NIC("x", speed_mbits=10))
    asked.allocate(near("a"))
    assert asked.plugin.devices(asked.state, near("a").container) == {
        NEAR_NIC: ((Device(0, "NIC", "x"), 1.0),)
    }
