"""Watches of cgroups, which tell of their end otherwise than other folders."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.host.inotify import FolderEvents
from tests.kernel.v1 import CPUSETS, needed
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needed(CPUSETS)

PODS = 20


@pytest.fixture
def base() -> Iterator[Path]:
    made = CPUSETS / f"cpupool-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    made.mkdir()
    try:
        yield made
    finally:
        for folder, _, _ in os.walk(made, topdown=False):
            Path(folder).rmdir()


def watches() -> int:
    """Count the watches that the kernel keeps for this process (proc_pid_fdinfo(5))."""
    found = 0
    for file in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            found += file.read_text().count("inotify wd:")
    return found


def test_a_cgroup_that_has_gone_keeps_no_watch(base: Path) -> None:
    seen: list[Path] = []
    before = watches()
    events = FolderEvents(base, seen.append, depth=2, writes=True)
    try:
        for number in range(PODS):
            container = base / f"pod{number}" / "container"
            container.mkdir(parents=True)
            eventually(lambda: watches() == before + 3, "both are watched")
            container.rmdir()
            container.parent.rmdir()
            eventually(lambda: watches() == before + 1, lambda: f"{watches() - before} watches")
        # One with the name of another that has gone is watched anew.
        container.mkdir(parents=True)
        eventually(lambda: watches() == before + 3, "both are watched again")
        seen.clear()
        (container / "notify_on_release").write_text("0")
        eventually(lambda: container / "notify_on_release" in seen, "a write is seen")
    finally:
        events.stop()
    assert watches() == before
