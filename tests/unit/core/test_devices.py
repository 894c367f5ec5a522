from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import Advertised, Device, Offer, nodes_of
from cpupool.core.errors import (
    AllocationError,
    SMTAlignmentError,
    UnavailableDevices,
    UnknownDevices,
)
from cpupool.core.names import ENABLE_SHARED_CPUS, Names
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import Pool
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.requests import Resource

MACHINE = MACHINES["telco_2s_2n_16c32t"]
TELCO = MACHINE.topology()
"""CPUs 0-31 on two NUMA nodes of eight cores; the sibling of each CPU n below 16 is n + 16."""
EXCLUSIVE = Pool.named("exclusive", "6-9")
SHARED = Pool.named("shared", "4-5")
NONE = CPUSet()
WHOLE = replace(
    Pool.named("exclusive", "6-8,22-24"), policy=PoolPolicy(CPUBindPolicy.FULL_PHYSICAL_CORES)
)
"""The cores 6, 7 and 8 with their siblings 22, 23 and 24."""


def listed(pool: Pool | Advertised) -> Advertised:
    if isinstance(pool, Advertised):
        return pool
    return Advertised(builders.resource(pool.name), pool)


def offer(
    pool: Pool | Advertised,
    taken: CPUSet = NONE,
    offline: CPUSet = NONE,
    held: frozenset[str] = frozenset(),
) -> Offer:
    return Offer.of(listed(pool), MACHINE.having_lost(offline), taken, held)


def healthy(pool: Pool | Advertised, taken: CPUSet = NONE, offline: CPUSet = NONE) -> list[str]:
    return [device.id for device in offer(pool, taken, offline) if device.healthy]


def test_an_exclusive_pool_lists_its_cpus_with_their_numa_nodes() -> None:
    listed = list(offer(EXCLUSIVE))
    assert listed == [
        Device("6", healthy=True, node=0),
        Device("7", healthy=True, node=0),
        Device("8", healthy=True, node=1),
        Device("9", healthy=True, node=1),
    ]
    assert devices.capacity(EXCLUSIVE) == 4


def test_a_shared_pool_lists_a_device_per_milli_cpu_on_no_node() -> None:
    listed = list(offer(SHARED))
    assert [device.id for device in listed] == [str(number) for number in range(2000)]
    assert {(device.healthy, device.node) for device in listed} == {(True, None)}
    assert devices.capacity(SHARED) == 2000


def test_an_offline_cpu_is_unhealthy_and_on_no_node() -> None:
    listed = list(offer(EXCLUSIVE, offline=CPUSet.of(8)))
    assert listed[2] == Device("8", healthy=False, node=None)
    assert healthy(EXCLUSIVE, offline=CPUSet.of(8)) == ["6", "7", "9"]


def test_a_cpu_held_elsewhere_is_unhealthy() -> None:
    assert healthy(EXCLUSIVE, taken=CPUSet.of(7)) == ["6", "8", "9"]


def test_a_cpu_whose_sibling_is_held_elsewhere_is_unhealthy_under_either_policy() -> None:
    multi_threaded = Pool.named("exclusive", "6-9", multi_threaded=True)
    for pool in (EXCLUSIVE, multi_threaded):
        assert healthy(pool, taken=CPUSet.of(23)) == ["6", "8", "9"]


def test_a_shared_pool_is_healthy_while_one_of_its_cpus_runs() -> None:
    assert len(healthy(SHARED, offline=CPUSet.of(4))) == 2000
    assert healthy(SHARED, offline=CPUSet.of(4, 5)) == []


@pytest.mark.parametrize(
    ("pool", "ids"),
    [
        pytest.param(EXCLUSIVE, [], id="none of an exclusive pool"),
        pytest.param(EXCLUSIVE, ["6", "9"], id="an exclusive pool's CPUs"),
        pytest.param(SHARED, ["0", "1999", "10"], id="a shared pool's milli-CPUs"),
    ],
)
def test_ids_that_the_pool_lists_are_accepted(pool: Pool, ids: list[str]) -> None:
    offer(pool).check_listed(ids)


@pytest.mark.parametrize("pool", [EXCLUSIVE, SHARED])
@pytest.mark.parametrize(
    "unknown",
    ["2000", "-1", "", " 6", "06", "007", "+6", "6.0", "six", "\u0666", "6\n", "9" * 5000],
)
def test_ids_that_the_pool_never_listed_are_refused(pool: Pool, unknown: str) -> None:
    with pytest.raises(UnknownDevices, match="no such devices") as raised:
        offer(pool).check_listed(["6", unknown, "7"])
    assert raised.value.pool == pool.name
    assert raised.value.ids == (unknown,)


def test_available_devices_are_accepted() -> None:
    offer(EXCLUSIVE, taken=CPUSet.of(8)).check_free(["6", "9"])


def test_an_id_that_is_named_twice_is_refused() -> None:
    with pytest.raises(AllocationError, match=r"devices are named twice \(7\); name each once"):
        offer(EXCLUSIVE).check_listed(["6", "7", "7"])


@pytest.mark.parametrize(
    ("offline", "taken"),
    [
        pytest.param(CPUSet.of(7), NONE, id="an offline CPU"),
        pytest.param(NONE, CPUSet.of(7), id="a CPU held elsewhere"),
        pytest.param(NONE, CPUSet.of(23), id="a CPU whose sibling is held elsewhere"),
    ],
)
def test_devices_that_cannot_be_given_out_are_refused(offline: CPUSet, taken: CPUSet) -> None:
    with pytest.raises(UnavailableDevices, match=r"exclusive: .* \(7\); wait") as raised:
        offer(EXCLUSIVE, taken, offline).check_free(["6", "7"])
    assert raised.value.ids == ("7",)


def test_milli_cpus_are_always_available() -> None:
    offer(SHARED, taken=CPUSet.of(4, 5), offline=CPUSet.of(4, 5)).check_free(["0"])


RESERVING = replace(EXCLUSIVE, policy=PoolPolicy(reserved=CPUSet.of(7)))


def test_reserved_cpus_are_no_devices() -> None:
    assert [device.id for device in offer(RESERVING)] == ["6", "8", "9"]
    assert devices.capacity(RESERVING) == 3
    with pytest.raises(UnknownDevices) as raised:
        offer(RESERVING).check_listed(["6", "7"])
    assert raised.value.ids == ("7",)


def test_a_device_that_becomes_reserved_while_a_pod_holds_it_drains() -> None:
    drained = offer(RESERVING, held=frozenset({"7"}))
    assert drained.draining == {"7"}
    assert Device("7", healthy=True, node=0) in list(drained)
    with pytest.raises(UnavailableDevices, match="have left the pool"):
        drained.check_free(["6", "7"])


def test_whole_cores_are_accepted_where_the_pool_promises_them() -> None:
    offer(WHOLE).check_free(["6", "22", "24", "8"])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param(
            ["6", "7", "22"],
            "exclusive: 3 CPUs requested of cores with 2; request a multiple of 2",
            id="no multiple",
        ),
        pytest.param(
            ["6", "22", "7", "24"],
            "exclusive: these CPUs are parts of cores, and the pool hands out whole ones (7, 24);"
            " start the pod again: other devices will be chosen",
            id="halves of two cores",
        ),
    ],
)
def test_parts_of_cores_are_refused_where_the_pool_promises_whole_ones(
    ids: list[str], message: str
) -> None:
    with pytest.raises(AllocationError) as raised:
        offer(WHOLE).check_free(ids)
    assert str(raised.value) == message


def test_a_pool_without_enough_whole_cores_says_how_many_cpus_they_have() -> None:
    assert str(devices.unaligned("exclusive", SMTAlignmentError(4, 2, available=2))) == (
        "exclusive: 4 CPUs requested, 2 free on whole cores; request fewer, or wait until other"
        " pods end"
    )


def test_a_core_is_not_whole_while_its_sibling_is_offline() -> None:
    with pytest.raises(AllocationError, match="1 CPUs requested of cores with 2"):
        offer(WHOLE, offline=CPUSet.of(22)).check_free(["6"])


def test_a_listed_cpu_that_a_pod_has_beside_its_device_is_unhealthy() -> None:
    listed = Offer.of(
        Advertised(builders.resource(WHOLE.name), WHOLE), TELCO, NONE, {"6"}, withheld=CPUSet.of(22)
    )
    assert [device.id for device in listed if not device.healthy] == ["22"]
    with pytest.raises(UnavailableDevices) as raised:
        listed.check_free(["7", "22"])
    assert raised.value.ids == ("22",)


def test_a_device_that_a_pod_holds_stays_listed_after_its_cpu_has_left_the_pool() -> None:
    drained = offer(EXCLUSIVE, held=frozenset({"7", "10"}))
    assert Device("10", healthy=True, node=1) in list(drained)
    assert drained.draining == {"10"}
    drained.check_listed(["10"])
    with pytest.raises(UnavailableDevices, match="have left the pool") as raised:
        drained.check_free(["6", "10"])
    assert raised.value.ids == ("10",)


def test_a_draining_device_is_unhealthy_while_its_cpu_is_offline() -> None:
    drained = offer(EXCLUSIVE, offline=CPUSet.of(10), held=frozenset({"10"}))
    assert list(drained)[-1] == Device("10", healthy=False, node=None)


def test_a_pool_that_is_gone_lists_what_pods_hold_and_nothing_else() -> None:
    gone = offer(Pool.named("exclusive_gone", ""), held=frozenset({"9"}))
    assert list(gone) == [Device("9", healthy=True, node=1)]
    shared = offer(Pool.named("shared_gone", ""), held=frozenset({"10", "9"}))
    assert list(shared) == [Device(one, healthy=True, node=None) for one in ("9", "10")]


def test_a_shared_pool_that_shrank_withdraws_free_milli_cpus_for_those_that_drain() -> None:
    held = frozenset({"1998", "1999", "2000", "2001", "2500"})
    ids = {device.id for device in offer(SHARED, held=held)}
    assert len(ids) == devices.capacity(SHARED)
    assert held <= ids
    assert ids - held == {str(number) for number in range(1995)}
    with pytest.raises(UnknownDevices):
        offer(SHARED, held=held).check_listed(["1997"])


@dataclass(frozen=True)
class Counting(Advertised):
    """A resource that remembers which ids it has looked at."""

    looked_at: list[str] = field(default_factory=list)

    def unlisted(self, ids: Iterable[str]) -> list[str]:
        ids = sorted(ids)
        self.looked_at.extend(ids)
        return super().unlisted(ids)


@pytest.mark.parametrize("pool", [EXCLUSIVE, SHARED])
def test_of_other_held_ids_only_those_that_have_come_are_looked_at(pool: Pool) -> None:
    resource = Counting(builders.resource(pool.name), pool)
    before, now = frozenset({"6", "2500", "3000", "x"}), frozenset({"7", "2500", "4000", "x"})
    earlier = offer(resource, held=before)
    resource.looked_at.clear()
    later = earlier.holding(now, since=before)
    assert resource.looked_at == ["4000", "7"]
    assert later == offer(resource, held=now)


def test_a_shared_pool_of_which_too_much_is_held_lists_just_that() -> None:
    held = frozenset(str(number) for number in range(500, 3500))
    assert {device.id for device in offer(SHARED, held=held)} == held


UNITS = Advertised(ENABLE_SHARED_CPUS, Pool.named("shared_a", "4-5"), units=3)
"""Three containers may use the CPUs 4 and 5."""


def test_a_pool_of_units_lists_so_many_whatever_its_cpus() -> None:
    listed = list(offer(UNITS))
    assert listed == [Device(one, healthy=True, node=None) for one in ("0", "1", "2")]
    assert UNITS.capacity == 3
    with pytest.raises(UnknownDevices):
        offer(UNITS).check_listed(["3"])


def test_units_are_healthy_while_one_cpu_of_their_pool_runs() -> None:
    assert healthy(UNITS, offline=CPUSet.of(4)) == ["0", "1", "2"]
    assert healthy(UNITS, offline=CPUSet.of(4, 5)) == []


def test_units_that_are_held_beyond_their_number_drain() -> None:
    assert [one.id for one in offer(UNITS, held=frozenset({"0", "7"}))] == ["0", "1", "7"]
    gone = offer(Advertised.gone(ENABLE_SHARED_CPUS), held=frozenset({"1"}))
    assert list(gone) == [Device("1", healthy=True, node=None)]
    with pytest.raises(UnavailableDevices):
        gone.check_free(["1"])


@pytest.mark.parametrize(
    ("pool", "lost", "expected"),
    [
        (EXCLUSIVE, "", 0),
        (EXCLUSIVE, "6,8,23", 2),
        (SHARED, "4", 1000),
        (SHARED, "4-5", 2000),
        (UNITS, "4", 0),
        (UNITS, "4-5", 3),
        (Pool.named("shared_gone", ""), "4", 0),
    ],
)
def test_devices_without_an_online_cpu_are_counted(
    pool: Pool | Advertised, lost: str, expected: int
) -> None:
    assert listed(pool).offline(MACHINE.having_lost(CPUSet.parse(lost))) == expected


def test_ids_that_are_none_do_not_drain() -> None:
    assert offer(EXCLUSIVE, held=frozenset({"x", "-1", "007"})).draining == frozenset()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(offer(SHARED), offer(SHARED, offline=CPUSet.of(4)), True, id="one CPU runs"),
        pytest.param(offer(SHARED), offer(SHARED, offline=CPUSet.of(4, 5)), False, id="none runs"),
        pytest.param(offer(SHARED), offer(SHARED, held=frozenset({"9999"})), False, id="draining"),
        pytest.param(offer(EXCLUSIVE), offer(EXCLUSIVE, taken=CPUSet.of(30)), True, id="no matter"),
        pytest.param(offer(EXCLUSIVE), offer(EXCLUSIVE, taken=CPUSet.of(7)), False, id="taken"),
    ],
)
def test_offers_are_compared_as_the_kubelet_sees_them(one: Offer, other: Offer, same: bool) -> None:
    assert one.looks_like(other) is same


def test_exclusive_ids_name_their_cpus_and_others_are_left_out() -> None:
    ids = ["7", "6", "8191", "8192", "x", "07", "999999999999"]
    assert str(devices.exclusive_cpus(ids)) == "6-7,8191"


def test_ids_are_described_as_a_list_in_the_order_of_numbers() -> None:
    assert devices.describe_ids(["10", "9", "226000", "8", "1"]) == "1,8-10,226000"


def annotated(text: str) -> dict[Resource, frozenset[str]]:
    return devices.allocated({"nokia.k8s.io/allocated.shared": text}, {}, Names())


def test_an_allocation_is_read_for_each_pool_of_the_domain() -> None:
    annotations = {
        "example.com/allocated.exclusive-a": "2-3",
        "example.com/allocated.shared.v2_a": "9,0-1,1-2,0",
        "example.com/allocated.": "4",
        "example.com/allocated.exclusive-a/../b": "4",
        "example.com/allocated.exclusive-\0": "4",
        "example.com/exclusive-a": "5",
        "nokia.k8s.io/allocated.exclusive-a": "6",
    }
    assert devices.allocated(annotations, {}, Names("example.com")) == {
        "exclusive-a": {"2", "3"},
        "shared.v2_a": {"0", "1", "2", "9"},
    }


@pytest.mark.parametrize("text", ["2", "4", ""])
def test_what_a_pod_carries_itself_counts_for_none_of_its_containers(text: str) -> None:
    key = "nokia.k8s.io/allocated.exclusive_a"
    annotations = {key: "2", "nokia.k8s.io/allocated.exclusive_b": "6"}
    assert devices.allocated(annotations, {key: text}, Names()) == {"exclusive_b": {"6"}}


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "x", ",", "2,", ",2", "2,,3", "2 ,3", "2\n"),
        *("-", "-2", "2-", "2-4-6", "2-x", "2..4"),
        *("+2", "02", "0x2", "1_0", "2.0", "\u0662", "\u00b2", "1000000000"),
        pytest.param("5-3", id="backwards"),
        pytest.param("2,5-3", id="backwards in the middle"),
        pytest.param("0-1000001", id="too many"),
        pytest.param("0-600000,600000-1200000", id="too many together"),
        pytest.param("0-1100000,200000-0", id="too many, with a run backwards"),
        pytest.param(",".join(["1"] * 131_073), id="too long"),
    ],
)
def test_what_cpupool_has_not_written_counts_as_no_allocation(text: str) -> None:
    assert annotated(text) == {}


def test_devices_without_a_numa_node_limit_no_choice() -> None:
    assert nodes_of([[0], [-1], [], [0, 1]]) == {frozenset({0}), frozenset({0, 1})}
