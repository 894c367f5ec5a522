from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.errors import HostFileError
from cpupool.host.sysfs import RecordedTree
from cpupool.plugins import nic_files
from cpupool.plugins.nics import NIC

if TYPE_CHECKING:
    from pathlib import Path

NET = "class/net"
FILES = {
    f"{NET}/eth0/device/numa_node": "0",
    f"{NET}/eth0/speed": "25000",
    f"{NET}/eth0/operstate": "up",
    f"{NET}/eth1/device/numa_node": "-1",
    f"{NET}/eth1/speed": "-1",
    f"{NET}/eth1/operstate": "down",
    f"{NET}/veth0/operstate": "up",
    f"{NET}/no_address/device/numa_node": "0",
}
ADDRESSES = """\
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
fdbddc05000301540000000000000020 04 40 00 82     eth0
fdbddc05000301540000000000000021 04 40 00 82     eth0
fdbddc05000301550000000000000020 05 40 00 82     eth1
fdbddc05000301560000000000000020 06 40 00 82    veth0
"""


class Sysfs(RecordedTree):
    def __init__(self) -> None:
        super().__init__("sysfs", FILES)

    def read(self, path: str) -> str | None:
        # As the kernel does without a link.
        if path == f"{NET}/eth1/speed":
            raise HostFileError(path, "Invalid argument", "make it readable")
        return super().read(path)


def test_the_machines_interfaces_with_an_address_are_found(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/if_inet6").write_text(ADDRESSES)
    assert nic_files.found(Sysfs(), tmp_path) == (
        NIC("eth0", 0, "fdbd:dc05:3:154::20", speed_mbits=25000),
        NIC("eth1", None, "fdbd:dc05:3:155::20", healthy=False),
    )


def test_a_kernel_without_ipv6_has_none(tmp_path: Path) -> None:
    assert nic_files.found(Sysfs(), tmp_path) == ()


def test_what_is_listed_counts_and_is_completed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/ns1").touch()
    listed = (
        NIC("eth0", ipv4="10.0.0.2"),
        NIC("eth0", 1, ipv4="10.0.0.3", speed_mbits=100),
        NIC("eth0", 1, "::1", netns="/run/ns1"),
        NIC("eth0", 1, "::1", netns="/run/ns2"),
        NIC("gone", ipv4="10.0.0.4"),
    )
    assert nic_files.completed(listed, Sysfs(), tmp_path) == (
        NIC("eth0", 0, ipv4="10.0.0.2", speed_mbits=25000),
        NIC("eth0", 1, ipv4="10.0.0.3", speed_mbits=100),
        NIC("eth0", 1, "::1", netns="/run/ns1"),
        NIC("eth0", 1, "::1", netns="/run/ns2", healthy=False),
        NIC("gone", ipv4="10.0.0.4", healthy=False),
    )
