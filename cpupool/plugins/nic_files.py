"""The machine's network interfaces, from sysfs and procfs.

Source: Documentation/ABI/testing/sysfs-class-net (operstate, speed), sysfs-bus-pci (numa_node) and
net/ipv6/addrconf.c (/proc/net/if_inet6) in the kernel. sysfs shows the network namespace of the
process that has mounted it, and procfs that of its reader.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import HostFileError
from cpupool.plugins.nics import NIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cpupool.host.sysfs import FileTree

_NET: Final = "class/net"
_ADDRESS: Final = re.compile(r"([0-9a-f]{32}) \w+ \w+ (\w+) \w+ +(\S+)", re.ASCII)
_GLOBAL: Final = "00"
"""The scope of an address that other machines can reach."""
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)


def found(tree: FileTree, proc: Path) -> tuple[NIC, ...]:
    """Return the interfaces of devices that have an address.

    Args:
        tree: the machine's sysfs.
        proc: the machine's procfs.

    Raises:
        HostFileError: a file is there and cannot be read.
    """
    addresses = _addresses(proc)
    names = sorted(name for name in tree.names(_NET) if tree.names(f"{_NET}/{name}/device"))
    known = (_read(tree, NIC(name, ipv6=addresses.get(name, ""))) for name in names)
    return tuple(nic for nic in known if nic.ipv6)


def completed(listed: Iterable[NIC], tree: FileTree, base: Path) -> tuple[NIC, ...]:
    """Return interfaces that an admin has listed, completed by the kernel's facts.

    This process does not see an interface of another network namespace: it takes one for healthy
    while the namespace is there.

    Args:
        listed: the admin's words, which prevail over the kernel's.
        tree: the machine's sysfs.
        base: the machine's root folder.

    Raises:
        HostFileError: a file is there and cannot be read.
    """
    return tuple(
        replace(nic, healthy=(base / nic.netns.lstrip("/")).exists())
        if nic.netns
        else _read(tree, nic)
        for nic in listed
    )


def _read(tree: FileTree, nic: NIC) -> NIC:
    folder = f"{_NET}/{nic.name}"
    node, speed = tree.read(f"{folder}/device/numa_node") or "", ""
    # The kernel refuses to read the speed of an interface without a link.
    with suppress(HostFileError):
        speed = tree.read(f"{folder}/speed") or ""
    return replace(
        nic,
        # Both files have -1 for an unknown value.
        node=int(node) if nic.node is None and _NUMBER.fullmatch(node) else nic.node,
        speed_mbits=nic.speed_mbits or (int(speed) if _NUMBER.fullmatch(speed) else 0),
        healthy=tree.read(f"{folder}/operstate") == "up",
    )


def _addresses(proc: Path) -> Mapping[str, str]:
    """Return interface → its first global IPv6 address."""
    try:
        text = (proc / "net/if_inet6").read_text("ascii")
    except (OSError, UnicodeDecodeError):
        # A kernel without IPv6 has no such file.
        return {}
    found: dict[str, str] = {}
    for address, scope, name in _ADDRESS.findall(text):
        if scope == _GLOBAL:
            found.setdefault(name, str(IPv6Address(int(address, 16))))
    return found
