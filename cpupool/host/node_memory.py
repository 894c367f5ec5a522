"""The memory of each NUMA node, from sysfs.

Source: Documentation/ABI/stable/sysfs-devices-node (meminfo, hugepages) in the kernel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import HostFileError
from cpupool.core.node_topology import NodeMemory

if TYPE_CHECKING:
    from cpupool.core.node_topology import NodeMemories
    from cpupool.host.sysfs import FileTree

_NODES: Final = "devices/system/node"
_NODE: Final = re.compile(r"node(\d{1,18})", re.ASCII)
_TOTAL: Final = re.compile(r"^Node \d+ MemTotal:\s*(\d{1,18}) kB$", re.MULTILINE | re.ASCII)
_PAGES: Final = re.compile(r"hugepages-(\d{1,18})kB", re.ASCII)
_COUNT: Final = re.compile(r"\d{1,18}", re.ASCII)
_KIB: Final = 1024


def read(tree: FileTree) -> NodeMemories:
    """Return NUMA node id → its memory; nothing where the kernel does not tell.

    Args:
        tree: the machine's sysfs.

    Raises:
        HostFileError: a file is there and cannot be read.
    """
    found = {}
    for name in tree.names(_NODES):
        node = _NODE.fullmatch(name)
        memory = node and _memory(tree, f"{_NODES}/{name}")
        if node and memory:
            found[int(node[1])] = memory
    return found


def _memory(tree: FileTree, folder: str) -> NodeMemory | None:
    total = _TOTAL.search(tree.read(f"{folder}/meminfo") or "")
    if total is None:
        return None
    pages = {}
    for name in tree.names(f"{folder}/hugepages"):
        size = _PAGES.fullmatch(name)
        if size:
            path = f"{folder}/hugepages/{name}/nr_hugepages"
            count = tree.read(path) or "0"
            if not _COUNT.fullmatch(count):
                raise HostFileError(path, f"{count[:40]!r} is no number", "report it")
            pages[int(size[1]) * _KIB] = int(count)
    return NodeMemory(int(total[1]) * _KIB, pages)
