"""The CPUs that serve the machine's interrupts, from procfs.

Kernel document: Documentation/core-api/irq/irq-affinity.rst.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = "irq"
ALLOWED = "smp_affinity_list"
EFFECTIVE = "effective_affinity_list"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """One interrupt that a driver handles.

    Attributes:
        number: the kernel's number.
        handlers: their names, as in /proc/interrupts.
        allowed: the CPUs that may serve it.
        effective: the CPUs that serve it now; the allowed CPUs where the kernel has no such file.
    """

    number: int
    handlers: tuple[str, ...]
    allowed: CPUSet
    effective: CPUSet


def interrupts(proc: Path) -> Iterator[Interrupt]:
    """Yield the interrupts that have a handler, without interrupts that vanish meanwhile.

    Args:
        proc: the folder that stands for /proc.
    """
    folders = (entry for entry in (proc / FOLDER).glob("*") if entry.name.isdecimal())
    for folder in sorted(folders, key=lambda entry: int(entry.name)):
        with suppress(OSError, ValueError):
            # The kernel makes a directory for each handler.
            handlers = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
            if handlers:
                allowed = _cpus(folder / ALLOWED)
                effective = folder / EFFECTIVE
                yield Interrupt(
                    number=int(folder.name),
                    handlers=handlers,
                    allowed=allowed,
                    effective=_cpus(effective) if effective.exists() else allowed,
                )


def _cpus(path: Path) -> CPUSet:
    return CPUSet.parse(path.read_text("ascii"))
