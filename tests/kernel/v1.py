"""This machine's own hierarchies of cgroup version 1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.host.cgroupfs import CgroupVersion, hierarchy

if TYPE_CHECKING:
    from collections.abc import Sequence

CGROUP: Final = Path("/sys/fs/cgroup")
CPU: Final = CGROUP / "cpu"
CPUSETS: Final = CGROUP / "cpuset"
_NEEDED: Final = CPUSet.of(0, 1)


def needed(*bases: Path) -> Sequence[pytest.MarkDecorator]:
    """Mark tests that write into these hierarchies, and use CPUs 0 and 1."""
    why_not = _why_not(bases)
    return [pytest.mark.real_cgroup, pytest.mark.skipif(bool(why_not), reason=why_not)]


def _why_not(bases: Sequence[Path]) -> str:
    try:
        if hierarchy(CGROUP)[1] is not CgroupVersion.V1:
            return "this machine's cpusets are those of cgroup v2"
    except HostFileError as error:
        return str(error)
    for base in bases:
        if not os.access(base, os.W_OK):
            return f"{base} is not writable: run the tests as root"
    if _NEEDED - CPUSet.parse((CPUSETS / "cpuset.cpus").read_text()):
        return "CPUs 0 and 1 are needed"
    return ""
