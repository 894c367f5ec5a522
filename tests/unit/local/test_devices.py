from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.errors import NotEnoughDevices
from cpupool.core.workloads import ContainerKind
from cpupool.local import devices
from cpupool.local.devices import DeviceRequest, IDs, Listing
from tests.builders import container, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from cpupool.core.workloads import Container

TWO_NODES = {"0": (0,), "1": (0,), "2": (0,), "10": (1,), "11": (1,), "12": (1,)}


def ids(text: str) -> IDs:
    return frozenset(filter(None, text.split(",")))


def request(
    count: int,
    nodes: Mapping[str, tuple[int, ...]],
    *,
    free: str = "",
    reusable: str = "",
    resource: str = "x/a",
) -> DeviceRequest:
    """Ask for devices of a resource of which `free` are free, all of them unless it is given."""
    listing = Listing(healthy=frozenset(nodes), nodes={k: v for k, v in nodes.items() if v})
    taken = ids(free) if free else listing.healthy - ids(reusable)
    return DeviceRequest(resource, count, listing, taken, ids(reusable))


def no_advice(_available: IDs, _must_include: IDs, _size: int) -> IDs:
    return frozenset()


def advising(text: str) -> Callable[[IDs, IDs, int], IDs]:
    return lambda _available, _must_include, _size: ids(text)


@pytest.mark.parametrize(
    ("requests", "nodes"),
    [
        pytest.param([request(3, TWO_NODES)], {0}, id="the first node that is large enough"),
        pytest.param(
            [request(3, TWO_NODES, free="0,10,11,12")], {1}, id="the node with enough free"
        ),
        pytest.param([request(4, TWO_NODES)], {0, 1}, id="both nodes when one is too small"),
        pytest.param(
            [request(2, TWO_NODES, reusable="10")], {1}, id="the node of what can be used again"
        ),
        pytest.param(
            [request(1, TWO_NODES), request(1, {"20": (1,)}, resource="x/b")],
            {1},
            id="a node that serves both resources",
        ),
        pytest.param(
            [request(4, TWO_NODES), request(1, {"20": (1,)}, resource="x/b")],
            {0, 1},
            id="both nodes for the one that needs them",
        ),
        pytest.param(
            [request(1, TWO_NODES, free="10"), request(1, {"20": (0,)}, resource="x/b")],
            {0},
            id="the lowest where two resources cannot agree",
        ),
        pytest.param([request(1, {"0": ()})], None, id="no topology, no preference"),
        pytest.param(
            [request(1, {"0": ()}), request(1, {"20": (1,)}, resource="x/b")],
            {1},
            id="one without a topology has no say",
        ),
        pytest.param([request(9, TWO_NODES)], {0, 1}, id="all nodes where none suffice"),
        pytest.param([], None, id="nothing is asked"),
    ],
)
def test_the_fewest_numa_nodes_are_preferred(
    requests: list[DeviceRequest], nodes: AbstractSet[int] | None
) -> None:
    merged = devices.affinity(requests, {0, 1}, TopologyPolicy.BEST_EFFORT)
    assert (merged.hint.nodes, merged.admit) == (nodes, True)


@pytest.mark.parametrize(
    ("manager", "free", "admitted"),
    [
        (TopologyPolicy.NONE, "0,10", True),
        (TopologyPolicy.BEST_EFFORT, "0,10", True),
        (TopologyPolicy.RESTRICTED, "0,10", False),
        (TopologyPolicy.RESTRICTED, "0,1", True),
        (TopologyPolicy.SINGLE_NUMA_NODE, "0,10", False),
        (TopologyPolicy.SINGLE_NUMA_NODE, "0,1", True),
    ],
)
def test_the_topology_manager_lets_in_what_its_policy_accepts(
    manager: TopologyPolicy, free: str, *, admitted: bool
) -> None:
    requests = [request(2, TWO_NODES, free=free)]
    assert devices.affinity(requests, {0, 1}, manager).admit is admitted


def test_nodes_without_devices_count_as_in_the_kubelet() -> None:
    one = request(1, {"10": (1,)})
    other = request(1, {"20": (2,)}, resource="x/b")
    merged = devices.affinity([one, other], range(4), TopologyPolicy.BEST_EFFORT)
    # {0, 1} serves the one, {0, 2} the other, and node 0 is the lowest that two sets share.
    assert merged.hint.nodes == frozenset({0})


@pytest.mark.parametrize(
    ("asked", "nodes", "advice", "chosen"),
    [
        pytest.param(request(2, TWO_NODES), {1}, "", "10,11", id="the lowest of the aligned"),
        pytest.param(request(2, TWO_NODES), {1}, "12,11", "11,12", id="as advised"),
        pytest.param(
            request(2, TWO_NODES), {1}, "12", "10,12", id="too little advice is filled up"
        ),
        pytest.param(request(2, TWO_NODES), {1}, "10,11,12", "10,11", id="too much advice is cut"),
        pytest.param(
            request(2, TWO_NODES), {1}, "0,1", "10,11", id="advice off the aligned is passed over"
        ),
        pytest.param(
            request(2, TWO_NODES, free="10,11,12"),
            None,
            "0,7",
            "10,11",
            id="advice that is not free",
        ),
        pytest.param(
            request(4, TWO_NODES), {1}, "2", "2,10,11,12", id="aligned first, then as advised"
        ),
        pytest.param(
            request(2, TWO_NODES, reusable="2"), {0}, "", "0,2", id="what is reusable comes first"
        ),
        pytest.param(
            request(1, TWO_NODES, reusable="2,12"),
            {0, 1},
            "",
            "2",
            id="no more than asked is reused",
        ),
        pytest.param(
            request(2, {"2": (), "10": (), "9": ()}), None, "", "2,9", id="ids count as numbers"
        ),
        pytest.param(request(3, TWO_NODES), {0}, "10", "0,1,2", id="exactly the aligned, unasked"),
    ],
)
def test_devices_are_chosen_as_the_kubelet_does(
    asked: DeviceRequest, nodes: set[int] | None, advice: str, chosen: str
) -> None:
    affinity = None if nodes is None else frozenset(nodes)
    assert devices.choose(asked, affinity, advising(advice)) == ids(chosen)


def test_the_plugin_is_asked_with_all_that_it_may_give_and_what_it_must() -> None:
    asked: list[tuple[IDs, IDs, int]] = []

    def prefer(available: IDs, must_include: IDs, size: int) -> IDs:
        asked.append((available, must_include, size))
        return frozenset()

    devices.choose(request(2, TWO_NODES, reusable="2"), frozenset({0}), prefer)
    devices.choose(request(4, TWO_NODES), frozenset({1}), prefer)
    devices.choose(request(3, TWO_NODES), frozenset({1}), prefer)
    assert asked == [(ids("0,1,2"), ids("2"), 2), (frozenset(TWO_NODES), ids("10,11,12"), 4)]


def test_too_few_free_devices_are_refused_with_the_numbers() -> None:
    with pytest.raises(NotEnoughDevices) as caught:
        devices.choose(request(3, TWO_NODES, free="0", reusable="10"), None, no_advice)
    assert (caught.value.pool, caught.value.requested, caught.value.free) == ("x/a", 2, 1)


def test_ids_are_grouped_by_numa_node_as_in_the_checkpoint() -> None:
    listing = Listing(ids("0,10,11,2,shared"), nodes={"0": (0,), "10": (1,), "11": (0, 1)})
    assert devices.by_node(listing.healthy, listing) == {
        -1: ("2", "shared"),
        0: ("0", "11"),
        1: ("10", "11"),
    }


def test_a_plugin_that_is_gone_leaves_its_devices_unhealthy() -> None:
    listing = Listing(ids("0,1"), ids("2")).all_unhealthy()
    assert (listing.capacity, listing.allocatable) == (3, 0)


APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


@pytest.mark.parametrize(
    ("containers", "total"),
    [
        pytest.param(
            [container("a", exclusive_a=2), container("b", exclusive_a=1)], 3, id="apps add up"
        ),
        pytest.param(
            [
                container("i", INIT, exclusive_a=5),
                container("j", INIT, exclusive_a=4),
                container("a", exclusive_a=2),
            ],
            5,
            id="the largest init container counts",
        ),
        pytest.param(
            [container("i", INIT, exclusive_a=1), container("a", exclusive_a=2)],
            2,
            id="a small one does not",
        ),
        pytest.param(
            [container("s", SIDECAR, exclusive_a=1), container("a", exclusive_a=2)],
            3,
            id="sidecars add to apps",
        ),
        pytest.param(
            [
                container("s", SIDECAR, exclusive_a=2),
                container("i", INIT, exclusive_a=3),
                container("t", SIDECAR, exclusive_a=1),
                container("a", exclusive_a=1),
            ],
            5,
            id="an init container runs beside the sidecars before it",
        ),
        pytest.param([container("a")], 0, id="nothing asked"),
    ],
)
def test_a_pod_is_counted_as_the_scheduler_does(containers: list[Container], total: int) -> None:
    assert devices.total_requests(pod("p", *containers)).total() == total
