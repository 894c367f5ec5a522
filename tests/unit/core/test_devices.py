"""Devices: a pool's CPUs as the kubelet sees them, and the ids that it may hand back."""

from __future__ import annotations

import pytest

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import Device
from cpupool.core.errors import AllocationError, UnavailableDevices, UnknownDevices
from cpupool.core.pools import Pool
from tests.machines import MACHINES

MACHINE = MACHINES["telco_2s_2n_16c32t"]
TELCO = MACHINE.topology()
"""CPUs 0-31 on two NUMA nodes of eight cores; the sibling of each CPU n below 16 is n + 16."""
EXCLUSIVE = Pool.named("exclusive", "6-9")
SHARED = Pool.named("shared", "4-5")
NONE = CPUSet()


def healthy(pool: Pool, held: CPUSet = NONE, offline: CPUSet = NONE) -> list[str]:
    topology = MACHINE.having_lost(offline)
    return [device.id for device in devices.devices_of(pool, topology, held) if device.healthy]


def test_an_exclusive_pool_lists_its_cpus_with_their_numa_nodes() -> None:
    listed = list(devices.devices_of(EXCLUSIVE, TELCO, NONE))
    assert listed == [
        Device("6", healthy=True, node=0),
        Device("7", healthy=True, node=0),
        Device("8", healthy=True, node=1),
        Device("9", healthy=True, node=1),
    ]
    assert devices.capacity(EXCLUSIVE) == 4


def test_a_shared_pool_lists_a_device_per_milli_cpu_on_no_node() -> None:
    listed = list(devices.devices_of(SHARED, TELCO, NONE))
    assert [device.id for device in listed] == [str(number) for number in range(2000)]
    assert {(device.healthy, device.node) for device in listed} == {(True, None)}
    assert devices.capacity(SHARED) == 2000


def test_an_offline_cpu_is_unhealthy_and_keeps_its_node() -> None:
    listed = list(devices.devices_of(EXCLUSIVE, MACHINE.having_lost(CPUSet.of(8)), NONE))
    assert listed[2] == Device("8", healthy=False, node=1)
    assert healthy(EXCLUSIVE, offline=CPUSet.of(8)) == ["6", "7", "9"]


def test_a_cpu_held_elsewhere_is_unhealthy() -> None:
    assert healthy(EXCLUSIVE, held=CPUSet.of(7)) == ["6", "8", "9"]


def test_a_cpu_whose_sibling_is_held_elsewhere_is_unhealthy_under_either_policy() -> None:
    multi_threaded = Pool.named("exclusive", "6-9", multi_threaded=True)
    for pool in (EXCLUSIVE, multi_threaded):
        assert healthy(pool, held=CPUSet.of(23)) == ["6", "8", "9"]


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
    devices.check_ids(pool, ids)


@pytest.mark.parametrize("pool", [EXCLUSIVE, SHARED])
@pytest.mark.parametrize(
    "unknown",
    ["2000", "-1", "", " 6", "06", "007", "+6", "6.0", "six", "\u0666", "6\n", "9" * 5000],
)
def test_ids_that_the_pool_never_listed_are_refused(pool: Pool, unknown: str) -> None:
    with pytest.raises(UnknownDevices, match="no such devices") as raised:
        devices.check_ids(pool, ["6", unknown, "7"])
    assert raised.value.pool == pool.name
    assert raised.value.ids == (unknown,)


def test_available_devices_are_accepted() -> None:
    devices.check_available(EXCLUSIVE, ["6", "9"], TELCO, held=CPUSet.of(8))


def test_an_id_that_is_named_twice_is_refused() -> None:
    with pytest.raises(AllocationError, match=r"devices are named twice \(7\); name each once"):
        devices.check_ids(EXCLUSIVE, ["6", "7", "7"])


@pytest.mark.parametrize(
    ("offline", "held"),
    [
        pytest.param(CPUSet.of(7), NONE, id="an offline CPU"),
        pytest.param(NONE, CPUSet.of(7), id="a CPU held elsewhere"),
        pytest.param(NONE, CPUSet.of(23), id="a CPU whose sibling is held elsewhere"),
    ],
)
def test_devices_that_cannot_be_given_out_are_refused(offline: CPUSet, held: CPUSet) -> None:
    with pytest.raises(UnavailableDevices, match=r"exclusive: .* \(7\); wait") as raised:
        devices.check_available(EXCLUSIVE, ["6", "7"], MACHINE.having_lost(offline), held)
    assert raised.value.ids == ("7",)


def test_milli_cpus_are_always_available() -> None:
    devices.check_available(
        SHARED, ["0"], MACHINE.having_lost(CPUSet.of(4, 5)), held=CPUSet.of(4, 5)
    )


def test_exclusive_ids_name_their_cpus_and_others_are_left_out() -> None:
    ids = ["7", "6", "8191", "8192", "x", "07", "999999999999"]
    assert str(devices.exclusive_cpus(ids)) == "6-7,8191"


def test_ids_are_described_as_a_list_in_the_order_of_numbers() -> None:
    assert devices.describe_ids(["10", "9", "226000", "8", "1"]) == "1,8-10,226000"
