"""Which of the pods that say so is the mirror of a static pod."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.assignments import Cause
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices, PodDevices
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, PodUID, RuntimeContainer
from cpupool.manager import mirror_pods
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES

HASH = "hash"
TRUE = builders.pod("static", builders.container(exclusive_a=1), cgroup_uid=HASH)
FORGED = builders.pod("forged", builders.container(), cgroup_uid=HASH)
OTHER = builders.pod("other", builders.container(exclusive_a=1), cgroup_uid=HASH)
POOLS = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "1"))
SANDBOX = RuntimeContainer(ContainerID("sandbox"), HASH, "default", "static")


@pytest.fixture
def node() -> Manager:
    made = Manager(Names())
    made.reconfigure(POOLS, MACHINES["laptop_4c8t"].topology())
    made.observe(pods=[])
    return made


def cpus(node: Manager) -> str:
    return str(node.snapshot().resolution.assignment((HASH, ContainerID("main-id"))).cpus)


def forged(node: Manager) -> list[str]:
    facts, _ = node.snapshot()
    return [pod.name for pod in mirror_pods.forged(facts.pods or (), facts.static)]


def given(ids: str, container: str = "main") -> PodDevices:
    return {container: {Names().resource("exclusive_a"): AllocatedDevices(frozenset(ids))}}


def owning(node: Manager) -> Manager:
    """Let the static pod own CPU 4, with its mirror alone in the list."""
    node.observe(pods=[TRUE])
    node.accept(builders.given(TRUE, exclusive_a="4"))
    return node


@pytest.mark.parametrize("pods", [(TRUE, FORGED), (FORGED, TRUE)], ids=["first", "last"])
def test_a_mirror_counts_where_the_sandbox_has_its_name(
    node: Manager, pods: tuple[object, ...]
) -> None:
    node.observe_containers([SANDBOX])
    node.observe(pods=pods)  # type: ignore[arg-type]
    node.accept(builders.given(TRUE, exclusive_a="4"))
    assert cpus(node) == "4"
    assert node.snapshot().resolution.pods[HASH] == TRUE
    assert forged(node) == ["forged"]


def test_the_sandbox_contradicts_a_single_mirror(node: Manager) -> None:
    node.observe(pods=[OTHER])
    assert forged(node) == []
    node.observe_containers([SANDBOX])
    assert forged(node) == ["other"]
    assert node.snapshot().resolution.pods[HASH].name == "static"
    assert node.snapshot().resolution.missing == (), (
        "it is asked for nothing, and nothing is held for it"
    )


def test_of_two_new_claims_neither_counts_until_the_kubelet_has_spoken(node: Manager) -> None:
    node.observe(pods=[FORGED, TRUE])
    assert HASH not in node.snapshot().resolution.pods
    assert forged(node) == ["forged", "static"]
    assert node.snapshot().resolution.missing == ()
    assert (
        node.snapshot().resolution.assignment((HASH, ContainerID("x"))).cause is Cause.UNKNOWN_POD
    )

    node.name_static_pods({HASH: ("default", "static")})
    assert node.snapshot().resolution.pods[HASH] == TRUE
    assert forged(node) == ["forged"]


def test_what_a_hash_owns_stays_with_it_whatever_pod_claims_it(node: Manager) -> None:
    owning(node)
    for pods in ([TRUE, FORGED], [FORGED, OTHER, TRUE], [TRUE]):
        node.observe(pods=pods)
        assert cpus(node) == "4"
        assert builders.owned(node) == {HASH: {"exclusive_a": CPUSet.of(4)}}


def test_nothing_moves_when_the_kubelet_makes_its_mirror_anew(node: Manager) -> None:
    owning(node)
    again = replace(TRUE, uid=PodUID("new-uid"))
    node.observe(pods=[again, FORGED, TRUE])
    assert node.snapshot().resolution.pods[HASH].uid == "new-uid"
    assert cpus(node) == "4"


class TestTheKubeletsRecords:
    def test_the_same_devices_of_the_same_container_name_a_hash(self) -> None:
        live = {("default", "static"): given("4"), ("default", "forged"): given("2")}
        saved = {HASH: given("4"), "other": given("2")}
        assert mirror_pods.recorded({HASH}, saved, live) == {HASH: ("default", "static")}

    @pytest.mark.parametrize(
        "live", [{}, {("default", "forged"): given("2")}, {("default", "x"): given("4", "side")}]
    )
    def test_others_do_not(self, live: dict[tuple[str, str], PodDevices]) -> None:
        assert mirror_pods.recorded({HASH}, {HASH: given("4")}, live) == {}

    def test_without_devices_there_is_nothing_to_ask(self) -> None:
        assert mirror_pods.uncertain([FORGED], {}) == frozenset()
        assert mirror_pods.uncertain([TRUE, FORGED], {}) == {HASH}
