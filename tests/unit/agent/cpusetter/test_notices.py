from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.withheld import Withheld
from cpupool.manager.manager import Manager
from tests import builders
from tests.setters import EVERYTHING, MACHINE, Node, ids, owner_on_2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpupool.core.workloads import Container


def test_normal_starts_and_ends_are_no_event(caplog: pytest.LogCaptureFixture) -> None:
    node = owner_on_2()
    with caplog.at_level(logging.WARNING):
        node.run("second", builders.container(exclusive_a=1))
        node.source.saved["second"] = {"exclusive_a": ids("4")}
        node.setter.sweep()
        node.source.listed = []
        node.kernel.remove("kubepods/podowner-uid")
        node.kernel.remove("kubepods/podsecond-uid")
        node.now_s += 100
        node.setter.sweep()

    assert (node.events.pods, node.events.nodes, caplog.records) == ([], [], [])


def test_a_pool_that_is_missing_is_reported_to_the_pod_at_once() -> None:
    node = Node()
    node.run("lost", builders.container(exclusive_z=1))
    node.setter.sweep()
    node.source.saved = {"lost": {}}
    node.now_s += 1
    node.setter.sweep()

    ((pod, reason, message),) = node.events.pods
    assert (pod, reason) == ("lost", "CPUPoolMissing")
    assert message.startswith("container main: there is no pool exclusive_z; request a pool of")
    assert node.measured('cpupool_containers_confined{cause="no_pool"}') == 1
    assert node.measured('cpupool_containers{state="unknown"}') == 1


def test_devices_that_nothing_names_are_reported_when_that_lasts() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.setter.sweep()
    node.now_s += 1.9
    node.setter.sweep()
    assert node.events.pods == []

    node.now_s += 0.1
    node.setter.sweep()
    node.now_s += 100
    node.setter.sweep()
    assert [(pod, reason) for pod, reason, _ in node.events.pods] == [
        ("owner", "CPUDevicesUnknown")
    ]


def test_devices_that_are_no_cpu_numbers_are_not_called_offline() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("core-2")}}

    node.setter.sweep()
    node.now_s += 100
    node.setter.sweep()

    ((_, reason, message),) = node.events.pods
    assert reason == "CPUDevicesUnknown"
    assert "its devices of exclusive_a are not CPUs: another plugin has listed them" in message


def test_a_pod_that_loses_a_cpu_is_reported_once_for_each_set() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=2))
    node.source.saved = {"owner": {"exclusive_a": ids("2", "4")}}
    node.setter.sweep()

    def switch_off(cpus: str) -> None:
        node.kernel.online = CPUSet.parse(EVERYTHING) - CPUSet.parse(cpus)
        node.manager.update_topology(MACHINE.without(cpus).topology())
        node.setter.sweep()
        node.setter.sweep()

    switch_off("4")
    assert node.cpus("owner") == "2"
    switch_off("")
    switch_off("2,4")

    assert [(reason, message.split(";")[0]) for _, reason, message in node.events.pods] == [
        ("CPUOffline", "container main: its CPUs 4 are offline"),
        ("CPUOffline", "container main: every CPU of its pools is offline"),
    ]


@pytest.mark.parametrize(
    ("held", "cpus", "why"),
    [
        (
            "2",
            "4",
            "its CPUs 2 are for cgroup /dpdk.service alone (cpuset.cpus.partition: isolated)",
        ),
        ("2,4", "1", "its CPUs 2,4 are for cgroup /dpdk.service alone"),
    ],
)
def test_a_pod_whose_cpu_another_cgroup_has_taken_is_told_which_one_once_it_lasts(
    held: str, cpus: str, why: str
) -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=2))
    node.source.saved = {"owner": {"exclusive_a": ids("2", "4")}}
    node.setter.sweep()
    part = Withheld(CPUSet.parse(held), "/dpdk.service", "isolated")
    topology = MACHINE.without(held).topology()
    node.kernel.online = topology.online
    node.manager.update_topology(replace(topology, withheld=(part,)))
    node.setter.sweep()
    assert node.events.pods == []  # the kernel may just be giving back a CPU
    for _ in range(3):
        node.now_s += 2
        node.setter.sweep()
    assert node.cpus("owner") == cpus
    ((pod, reason, message),) = node.events.pods
    assert (pod, reason, why in message) == ("owner", "CPUOffline", True)
    remedy = "write member into cpuset.cpus.partition of /dpdk.service (systemd: remove"
    assert remedy in message
    assert message.endswith("or create the pod again")


TWO_CPUS = builders.container(exclusive_a=2, cpu=2000)
BOTH_KINDS = builders.container(exclusive_a=2, shared_a=100, cpu=2100)
SHARED_ALONE = builders.container(shared_a=1000, cpu=1000)


@pytest.mark.parametrize(
    ("container", "limits_milli", "told"),
    [
        pytest.param(TWO_CPUS, [2000, 500], ["500m"], id="a resize"),
        pytest.param(TWO_CPUS, [1999, 1999], ["1999m"], id="as written"),
        pytest.param(TWO_CPUS, [None, 4000], [], id="more"),
        pytest.param(BOTH_KINDS, [2100, 2000], [], id="not its own CPUs"),
        pytest.param(SHARED_ALONE, [1000, 500], [], id="shared CPUs alone"),
    ],
)
def test_a_limit_below_a_containers_own_cpus_is_reported_once(
    container: Container, limits_milli: Sequence[int | None], told: Sequence[str]
) -> None:
    node = Node()
    node.source.saved = {"owner": {"exclusive_a": ids("2", "4"), "shared_a": ids("7")}}
    node.run("owner")
    for limit_milli in limits_milli:
        limited = replace(container, limit_milli=limit_milli)
        node.source.listed = [builders.pod("owner", limited)]
        for _ in range(2):
            node.setter.sweep()
            node.now_s += 100

    assert [reason for _, reason, _ in node.events.pods] == ["CPULimitIgnored" for _ in told]
    for (_, _, message), limit in zip(node.events.pods, told, strict=True):
        assert message == (
            f"container main: its cpu limit of {limit} is less than its exclusive CPUs (2), and"
            " throttles nothing: it keeps them all, without a quota; for another number of CPUs"
            " request that number of exclusive_a in a new pod"
        )


def test_two_pods_with_one_cpu_are_reported() -> None:
    node = owner_on_2()
    node.run("thief", builders.container(exclusive_a=1))
    node.source.saved["thief"] = {"exclusive_a": ids("2")}
    node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("thief")) == ("2", "1")
    assert not node.events.pods, "the earlier owner may just have ended"

    node.now_s += 2
    node.setter.sweep()
    assert [(pod, reason) for pod, reason, _ in node.events.pods] == [("thief", "CPUContested")]


def test_a_pod_that_falsely_claims_to_mirror_a_static_pod_is_reported() -> None:
    node = owner_on_2()
    node.run("hash", builders.container(exclusive_a=1), listed=False)
    claims = [builders.pod(name, cgroup_uid="hash-uid") for name in ("static", "forged")]
    assert node.source.listed is not None
    node.source.listed += claims
    node.setter.sweep()
    assert node.cpus("hash") == "1", "neither is believed"

    node.now_s += 2
    node.setter.sweep()
    assert [(pod, reason) for pod, reason, _ in node.events.pods] == [
        ("static", "StaticPodForged"),
        ("forged", "StaticPodForged"),
    ]


def test_a_container_that_keeps_its_old_shared_cpus_is_reported() -> None:
    node = Node(manager=Manager(Names(), moves_pinned=False))
    node.run("both", builders.container(exclusive_a=1, shared_a=100))
    node.source.saved = {"both": {"exclusive_a": ids("2"), "shared_a": ids("7")}}
    node.setter.sweep()
    wider = NodePools.of(
        Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0,7"), Pool.named("default", "1")
    )
    node.manager.reconfigure(wider, MACHINE.topology())
    node.setter.sweep()

    assert node.cpus("both") == "0,2"
    ((_, reason, message),) = node.events.pods
    assert reason == "StaleSharedCPUs"
    assert "it stays on the shared CPUs 0 that its pools had before" in message

    node.source.announced = {"exclusive_a": CPUSet.of(2), "shared_a": CPUSet.of(0)}
    restarted = Node(
        source=node.source, kernel=node.kernel, manager=Manager(Names(), moves_pinned=False)
    )
    restarted.manager.reconfigure(wider, MACHINE.topology())
    restarted.setter.sweep()
    assert restarted.cpus("both") == "0,2", "the next agent recognises it"
