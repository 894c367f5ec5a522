"""The files of isolated partitions in an ordinary folder."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from cpupool.host.isolated_partitions import Partitions
from cpupool.host.root import HostRoot

if TYPE_CHECKING:
    from pathlib import Path

RELEASE = "6.12.8+deb13-amd64"


class PartitionFiles:
    """A cgroup tree of version 2 in which every file holds what was written last.

    Args:
        folder: what plays `/`.
    """

    def __init__(self, folder: Path) -> None:
        self._root = HostRoot.under(folder)
        self.cgroup = self._root.cgroup
        self.cgroup.mkdir(parents=True)
        (self.cgroup / "cgroup.controllers").write_text("cpuset cpu\n")

    def make(self, path: str, exclusive: str = "", state: str = "member") -> str:
        """Make a cgroup and those above it that lack, and give its path."""
        folder = self.cgroup / path
        if folder.parent != self.cgroup and not folder.parent.exists():
            self.make(path.rpartition("/")[0])
        folder.mkdir()
        (folder / "cpuset.cpus.exclusive").write_text(f"{exclusive}\n")
        (folder / "cpuset.cpus.exclusive.effective").symlink_to("cpuset.cpus.exclusive")
        (folder / "cpuset.cpus.partition").write_text(f"{state}\n")
        return path

    def remove(self, path: str) -> None:
        """Remove a cgroup."""
        shutil.rmtree(self.cgroup / path)

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file past cpupool."""
        (self.cgroup / path / name).write_text(f"{text}\n")

    def exclusive(self) -> dict[str, str]:
        """Give the list of each cgroup that has one, by path."""
        files = sorted(self.cgroup.rglob("cpuset.cpus.exclusive"))
        texts = {str(one.parent.relative_to(self.cgroup)): one.read_text().strip() for one in files}
        return {path: text for path, text in texts.items() if text}

    def state(self, path: str) -> str:
        """Give what a cgroup is."""
        return (self.cgroup / path / "cpuset.cpus.partition").read_text().strip()

    def tree(self, release: str = RELEASE, cgroup_root: str = "") -> Partitions:
        """Open it."""
        return Partitions(self._root, release, cgroup_root)

    def let_unbound_work_run(self, mask: str) -> None:
        """Let unbound workqueues run on the CPUs of a hexadecimal mask."""
        file = self._root.sysfs / "devices/virtual/workqueue/cpumask_requested"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{mask}\n")
