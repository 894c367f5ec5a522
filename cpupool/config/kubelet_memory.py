"""The memory that a kubelet keeps from pods, and the part of it that its memory manager lists.

Source: kubernetes pkg/kubelet/cm/node_container_manager_linux.go (GetNodeAllocatableReservation),
pkg/kubelet/cm/memorymanager/memory_manager.go.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cpupool.config.document import Listing, Table
from cpupool.config.kubelet_settings import EVICTION, KUBE, RESERVED_MEMORY, SYSTEM
from cpupool.core import quantity
from cpupool.core.errors import QuantityError
from cpupool.core.node_topology import HUGE_PAGES
from cpupool.core.pod_resources import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.config.reader import Reader

AVAILABLE: Final = "memory.available"
USUAL_EVICTION: Final = "100Mi"
"""The threshold where the settings have none (DefaultEvictionHard in v1beta1/defaults_linux.go)."""


def kept(reader: Reader, found: Table) -> Mapping[str, Decimal]:
    """Return memory, or a size of huge pages → the bytes that are kept from pods.

    It is empty where a part is no amount: the threshold of eviction may be a percentage.
    """
    evicted = found.get(EVICTION)
    threshold = USUAL_EVICTION
    if isinstance(evicted, Table):
        threshold = reader.word(evicted.get(AVAILABLE)) or "0"
    parts = [reader.words(found.get(name)) for name in (SYSTEM, KUBE)]
    return _sums([*parts, {MEMORY: threshold}])


def reserved(reader: Reader, found: Table) -> Mapping[str, Decimal]:
    """Return the same by the list for the memory manager, as sums over all NUMA nodes."""
    listed = found.get(RESERVED_MEMORY)
    items = listed.items if isinstance(listed, Listing) else ()
    return _sums([reader.words(reader.part(item).get("limits")) for item in items])


def _sums(parts: Iterable[Mapping[str, str]]) -> Mapping[str, Decimal]:
    found: dict[str, Decimal] = {}
    for part in parts:
        for name, text in part.items():
            if name == MEMORY or name.startswith(HUGE_PAGES):
                try:
                    found[name] = found.get(name, Decimal()) + quantity.parse(text)
                except QuantityError:
                    return {}
    return found
