from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.host.interrupts import Interrupt, interrupts

if TYPE_CHECKING:
    from pathlib import Path


def write(proc: Path, number: str, *handlers: str, **files: str) -> None:
    folder = proc / "irq" / number
    folder.mkdir(parents=True)
    for handler in handlers:
        (folder / handler).mkdir()
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def test_interrupts_with_handlers_are_listed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write(tmp_path, "100", "b", "a", smp_affinity_list="0-3", effective_affinity_list="2")
    write(tmp_path, "9", "acpi", smp_affinity_list="0")
    write(tmp_path, "11", smp_affinity_list="0-3")
    (tmp_path / "irq/default_smp_affinity").write_text("f\n")

    assert list(interrupts(tmp_path)) == [
        Interrupt(9, ("acpi",), CPUSet.of(0), CPUSet.of(0)),
        Interrupt(100, ("a", "b"), CPUSet.parse("0-3"), CPUSet.of(2)),
    ]


def test_an_interrupt_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, "1", "gone")
    write(tmp_path, "2", "odd", smp_affinity_list="x")
    write(tmp_path, "3", "good", smp_affinity_list="0")

    assert [one.number for one in interrupts(tmp_path)] == [3]


def test_a_machine_without_procfs_has_none(tmp_path: Path) -> None:
    assert list(interrupts(tmp_path / "missing")) == []
