"""Properties of a container beside CPUs and NUMA nodes: CPU time, memory, files of cgroup v2.

The names are those of the CRI's LinuxContainerResources, the values those of the OCI runtime
specification (config-linux.md); the ranges are the kernel's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Self, TypeVar

from cpupool.core.bandwidth import PERIOD_US, Bandwidth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNLIMITED: Final = -1
"""The text for no limit of memory, swap or CPU time."""
MAX: Final = "max"
"""The word of cgroup v2 for no limit."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_BYTES_OR_MAX: Final = re.compile(r"max|[0-9]{1,18}", re.ASCII)
_WEIGHT: Final = re.compile(r"(?:default )?([0-9]{1,5})", re.ASCII)
_LEAST_BYTES: Final = 6 << 20
"""No container starts with less (docs.docker.com, "Resource constraints")."""
_MOST_BYTES: Final = 2**63 - 1
_MOST_WEIGHT: Final = 10_000


_T = TypeVar("_T")


class OCIProperty(Enum):
    """A property that a plugin's answer can set, by its Go name in LinuxContainerResources (CRI).

    `UNIFIED` is an extension: the CRI has a map there.
    """

    CPUSET_CPUS = "CpusetCpus"
    CPUSET_MEMS = "CpusetMems"
    CPU_SHARES = "CpuShares"
    CPU_QUOTA = "CpuQuota"
    CPU_PERIOD = "CpuPeriod"
    MEMORY_LIMIT = "MemoryLimitInBytes"
    MEMORY_SWAP_LIMIT = "MemorySwapLimitInBytes"
    OOM_SCORE_ADJ = "OomScoreAdj"
    UNIFIED = "Unified"


CPUSET_CPUS: Final = OCIProperty.CPUSET_CPUS.value
CPUSET_MEMS: Final = OCIProperty.CPUSET_MEMS.value
_BY_NAME: Final = {known.value: known for known in OCIProperty}


class BadProperty(ValueError):
    """A value that a property cannot have; the text says why."""


@dataclass(frozen=True, slots=True)
class _Range:
    least: int
    most: int
    or_unlimited: bool = False

    def __contains__(self, number: int) -> bool:
        unlimited = self.or_unlimited and number == UNLIMITED
        return unlimited or self.least <= number <= self.most

    def __str__(self) -> str:
        return f"{self.least} to {self.most}{', or -1' if self.or_unlimited else ''}"


_BYTES: Final = _Range(_LEAST_BYTES, _MOST_BYTES, or_unlimited=True)
_RANGES: Final = {
    OCIProperty.CPU_SHARES: _Range(2, 262_144),
    OCIProperty.CPU_QUOTA: _Range(1_000, 2**44 - 1, or_unlimited=True),
    OCIProperty.CPU_PERIOD: _Range(1_000, 1_000_000),
    OCIProperty.MEMORY_LIMIT: _BYTES,
    OCIProperty.MEMORY_SWAP_LIMIT: _BYTES,
    # The least is the kubelet's for a Guaranteed pod: no container outlives the node's daemons.
    OCIProperty.OOM_SCORE_ADJ: _Range(-997, 1_000),
}
_NAMED: Final = {
    "cpu.max": OCIProperty.CPU_QUOTA,
    "cpu.weight": OCIProperty.CPU_SHARES,
    "cpuset.cpus": OCIProperty.CPUSET_CPUS,
    "cpuset.mems": OCIProperty.CPUSET_MEMS,
    "memory.max": OCIProperty.MEMORY_LIMIT,
    "memory.swap.max": OCIProperty.MEMORY_SWAP_LIMIT,
}
_OOM_CONTROL: Final = "memory.oom_control"


def _is_weight(text: str) -> bool:
    found = _WEIGHT.fullmatch(text)
    return found is not None and 1 <= int(found[1]) <= _MOST_WEIGHT


def _is_protection(text: str) -> bool:
    return _BYTES_OR_MAX.fullmatch(text) is not None


def _is_high(text: str) -> bool:
    return _is_protection(text) and (text == MAX or int(text) >= _LEAST_BYTES)


_FILES: Final[Mapping[str, tuple[Callable[[str], bool], str]]] = {
    "io.weight": (_is_weight, f"1 to {_MOST_WEIGHT}"),
    "memory.high": (_is_high, f"at least {_LEAST_BYTES}, or max"),
    "memory.low": (_is_protection, "bytes, or max"),
    "memory.min": (_is_protection, "bytes, or max"),
}
"""The files of cgroup v2 that an answer may set, with what each can have.

No other property sets them, no cgroup of another container depends on them, and the agent needs
none of them itself.
"""


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties that a container must have; None changes nothing.

    Attributes:
        shares: its weight for CPU time, in the shares of cgroup v1.
        bandwidth: how long it may run in each period.
        memory_bytes: the most memory; `UNLIMITED` for no limit.
        swap_bytes: the most memory and swap together, as in the OCI; `UNLIMITED` for no limit.
        oom_score_adj: added to its OOM score; it has an effect only at the container's creation.
        unified: file of cgroup v2 → its content.
    """

    shares: int | None = None
    bandwidth: Bandwidth | None = None
    memory_bytes: int | None = None
    swap_bytes: int | None = None
    oom_score_adj: int | None = None
    unified: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Read properties: name in the CRI → text. CPUs and NUMA nodes are left out.

        Raises:
            BadProperty: a value is not one that the property can have.
        """
        found = {
            known: _integer(known, text)
            for name, text in texts.items()
            if (known := _BY_NAME[name]) in _RANGES
        }
        quota_us = found.get(OCIProperty.CPU_QUOTA)
        period_us = found.get(OCIProperty.CPU_PERIOD)
        unified = texts.get(OCIProperty.UNIFIED.value)
        return cls(
            found.get(OCIProperty.CPU_SHARES),
            None if quota_us is None else Bandwidth(quota_us, period_us or PERIOD_US),
            found.get(OCIProperty.MEMORY_LIMIT),
            found.get(OCIProperty.MEMORY_SWAP_LIMIT),
            found.get(OCIProperty.OOM_SCORE_ADJ),
            {} if unified is None else _unified(unified),
        )

    def __str__(self) -> str:
        """Return the set properties as text for a log line."""
        shown = {
            "CPU shares": self.shares,
            "the CPU quota": self.bandwidth,
            "memory": self.memory_bytes,
            "memory and swap": self.swap_bytes,
            "the OOM score": self.oom_score_adj,
            **self.unified,
        }
        return ", ".join(f"{name} {value}" for name, value in shown.items() if value is not None)

    def __bool__(self) -> bool:
        """Return whether anything is set."""
        return self != NO_PROPERTIES

    def lacking(self, has: Properties) -> Properties:
        """Return those of these properties that a running container lacks, without the OOM score.

        Args:
            has: the container's properties; None for those that its kernel lacks.
        """
        return Properties(
            self.shares if has.shares is None else None,
            self.bandwidth if has.bandwidth is None else None,
            self.memory_bytes if has.memory_bytes is None else None,
            self.swap_bytes if has.swap_bytes is None else None,
            unified={name: text for name, text in self.unified.items() if name not in has.unified},
        )

    def differing(self, has: Properties) -> Properties:
        """Return those of these properties that a running container has otherwise.

        Memory and swap come together, because the limit of swap includes the memory. The result is
        without the OOM score.

        Args:
            has: the container's properties; None for those that its kernel lacks.
        """
        wrong = Properties(
            _otherwise(self.shares, has.shares),
            _otherwise(self.bandwidth, has.bandwidth),
            _otherwise(self.memory_bytes, has.memory_bytes),
            _otherwise(self.swap_bytes, has.swap_bytes),
            unified={
                name: text
                for name, text in self.unified.items()
                if _otherwise(text, has.unified.get(name)) is not None
            },
        )
        if wrong.memory_bytes is None and wrong.swap_bytes is None:
            return wrong
        swap_bytes = None if has.swap_bytes is None else self.keeping_swap(has).swap_bytes
        return replace(wrong, memory_bytes=self.memory_bytes, swap_bytes=swap_bytes)

    def keeping_swap(self, has: Properties) -> Properties:
        """Return these properties, with as much swap as a container has if they set memory only.

        The limit of swap includes the memory, so the kernel would change the swap, or refuse a
        limit of memory alone.

        Args:
            has: the container's memory, and its memory and swap together.
        """
        limit, swap = self.memory_bytes, has.swap_bytes
        if limit is None or self.swap_bytes is not None or swap is None or has.memory_bytes is None:
            return self
        kept = UNLIMITED
        if UNLIMITED not in {limit, swap}:
            # Without a limit of memory it is the swap alone.
            kept = limit + swap - max(0, has.memory_bytes)
        return replace(self, swap_bytes=kept)


NO_PROPERTIES: Final = Properties()


def property_named(name: str) -> OCIProperty | None:
    """Return the property of a name in the CRI; None for a name that no container has."""
    return _BY_NAME.get(name)


def _otherwise(wanted: _T | None, has: _T | None) -> _T | None:
    """Return the wanted value if a container has another one; else None."""
    return None if has is None or has == wanted else wanted


def _integer(known: OCIProperty, text: str) -> int:
    allowed = _RANGES[known]
    number = int(text) if _INTEGER.fullmatch(text) else None
    if number is None or number not in allowed:
        raise BadProperty(f"sets {known.value} to {text[:40]!r}; it can be {allowed}")
    return number


def _unified(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in text.split(","):
        name, _, content = entry.partition("=")
        shown = name[:40]
        if name == _OOM_CONTROL:
            why = "is a file of cgroup version 1, and stops a container instead of killing it"
            raise BadProperty(f"sets {name} in Unified, which {why}")
        if named := _NAMED.get(name):
            raise BadProperty(f"sets {shown} in Unified, which is {named.value}")
        if name not in _FILES:
            known = ", ".join(_FILES)
            raise BadProperty(f"sets {shown!r} in Unified, which is none of {known}")
        allows, what = _FILES[name]
        if not allows(content) or name in found:
            raise BadProperty(f"sets {shown} to {content[:40]!r}; it can be {what}, once")
        found[name] = content
    return found
