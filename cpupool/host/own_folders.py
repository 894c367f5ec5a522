"""The folder in which a container finds its own CPUs, if they can change while it runs.

The folder is `self/<pod's UID>/<container>` below the state folder. The runtime mounts it into the
container. It has three files:

* `cpus`: the CPUs in force;
* `assigned`: the CPUs that the container must have;
* `cpus.json`: both lists, and the change between them.
"""

from __future__ import annotations

import calendar
import json
import math
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.core.mounts import Mount
from cpupool.core.names import OWN_FOLDER
from cpupool.host import mounted_files
from cpupool.host.mounted_files import MountedFiles
from cpupool.manager.resizing import Reason
from cpupool.wire import json_text
from cpupool.wire.json_text import Fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.core.events import EventSink
    from cpupool.core.workloads import ContainerRef
    from cpupool.host.root import HostRoot

_DOCUMENT: Final = "cpus.json"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""A UID or a name of Kubernetes: one folder, below its parent."""


class NotBefore(NamedTuple):
    """The time before which CPUs do not leave: in Unix time, and on the monotonic clock."""

    wall_s: float
    monotonic_s: float


@dataclass(frozen=True, slots=True)
class ToldChange:
    """A change of a container's CPUs: announced, or complete.

    Attributes:
        reason: why.
        removed: the CPUs that leave, or have left.
        added: the CPUs that come, or have come.
        not_before: when the CPUs leave; None for a change that is complete.
    """

    reason: Reason
    removed: CPUSet = field(default_factory=CPUSet)
    added: CPUSet = field(default_factory=CPUSet)
    not_before: NotBefore | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """The content of a container's folder, without its generation.

    Attributes:
        cpus: the CPUs in force.
        assigned: the CPUs that it must have.
        baseline: the CPUs of its creation.
        change: the change that this content tells of, if one is known.
    """

    cpus: CPUSet
    assigned: CPUSet
    baseline: CPUSet
    change: ToldChange | None = None

    @property
    def announced(self) -> ToldChange | None:
        """The change that is announced, and not complete."""
        return self.change if self.change and self.change.not_before else None

    @classmethod
    def of(cls, document: bytes) -> Self:
        """Return the content that a document tells.

        Raises:
            CPUPoolError: it is damaged.
        """
        members = Fields.of(json_text.load(document))
        change = members.part("change")
        return cls(
            members.read("cpus", CPUSet.parse),
            members.read("assigned", CPUSet.parse),
            members.read("baseline", CPUSet.parse),
            None if change is None else _change(change),
        )

    def document(self, generation: int) -> bytes:
        """Return the document of this content: one line of JSON."""
        shown = {
            "generation": generation,
            "cpus": str(self.cpus),
            "assigned": str(self.assigned),
            "baseline": str(self.baseline),
            "change": self.change and _members(self.change),
        }
        return f"{json.dumps(shown)}\n".encode()


class OwnFolders:
    """The folders of all containers. Several threads may read; one at a time writes.

    The files need not survive a power failure: no container does, and each begins with new files.

    Args:
        root: where the state folder is.
        events: receives Events for the node's admin.
        wall_s: the wall clock, from which the generation of a lost file is derived.
    """

    def __init__(
        self, root: HostRoot, events: EventSink, *, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._root = root
        self._wall_s = wall_s
        self._files = MountedFiles(root, (root.own_folders,), events, durable=False)
        self._newest: dict[ContainerRef, int] = {}

    def mount(self, ref: ContainerRef) -> Mount:
        """Return the mount of a container's folder.

        Raises:
            HostFileError: the container has no name for a folder.
        """
        return Mount(OWN_FOLDER, self._root.on_host(self._of(ref)))

    def there(self, ref: ContainerRef) -> bool:
        """Return whether a container has a folder."""
        return _is_name(ref.pod) and _is_name(ref.name) and os.path.isdir(self._of(ref))  # noqa: PTH112 - a folder that cannot be looked up is none

    def told(self, ref: ContainerRef) -> Told | None:
        """Return what a container's folder tells; None where it tells nothing, or is damaged."""
        if not self.there(ref):
            return None
        document = mounted_files.read(self._of(ref) / _DOCUMENT)
        try:
            return None if document is None else Told.of(document)
        except CPUPoolError:
            return None

    def tell(self, ref: ContainerRef, told: Told, *, again: bool = False) -> None:
        """Write a container's folder, unless it has this content; make it if it is missing.

        `cpus.json` comes last: who is woken by it finds the other two.

        Args:
            ref: the container.
            told: what to tell.
            again: tell it with a new generation, even if the folder tells it already.

        Raises:
            HostFileError: the container has no name for a folder, or a file cannot be written.
            OSError: the folder cannot be made.
        """
        folder = self._of(ref)
        self._files.make(folder)
        self._files.put(folder / "assigned", f"{told.assigned}\n".encode())
        self._files.put(folder / "cpus", f"{told.cpus}\n".encode())
        path = folder / _DOCUMENT
        before = mounted_files.read(path)
        generation = self._generation(ref, before)
        if again or before != told.document(generation):
            generation += 1
        self._files.put(path, told.document(generation))
        self._newest[ref] = generation

    def pods(self) -> frozenset[str]:
        """Return the UIDs of the pods that have folders."""
        return frozenset(each.name for each in mounted_files.folders(self._root.own_folders))

    def remove(self, pod: str) -> None:
        """Remove the folders of a pod.

        Raises:
            OSError: they cannot be removed.
        """
        shutil.rmtree(self._root.own_folders / _checked(pod))
        self._newest = {ref: newest for ref, newest in self._newest.items() if ref.pod != pod}

    def _of(self, ref: ContainerRef) -> Path:
        return self._root.own_folders / _checked(ref.pod) / _checked(ref.name)

    def _generation(self, ref: ContainerRef, before: bytes | None) -> int:
        """Return the newest generation that a container may have seen.

        A file that is lost may have had any. The Unix time is greater than a generation that began
        with an earlier Unix time, and has grown less than once a second since.
        """
        read = mounted_files.generation(before) or int(self._wall_s())
        return max(read, self._newest.get(ref, 0))


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _checked(text: str) -> str:
    if not _is_name(text):
        raise HostFileError(
            repr(text[:60]), "is no name of a folder", "recreate the pod with a name of Kubernetes"
        )
    return text


def _members(change: ToldChange) -> dict[str, object]:
    shown: dict[str, object] = {
        "reason": change.reason.value,
        "removed": str(change.removed),
        "added": str(change.added),
    }
    if change.not_before:
        # Both are rounded down: who leaves by either of them leaves in time.
        wall, monotonic_s = change.not_before
        shown["notBefore"] = time.strftime(_TIME, time.gmtime(math.floor(wall)))
        shown["notBeforeMonotonic"] = math.floor(monotonic_s * 1000) / 1000
    return shown


def _change(members: Fields) -> ToldChange:
    not_before = None
    if "notBefore" in members.members:
        not_before = NotBefore(
            members.read("notBefore", _unix_s), members.get("notBeforeMonotonic", float)
        )
    return ToldChange(
        members.read("reason", Reason),
        members.read("removed", CPUSet.parse),
        members.read("added", CPUSet.parse),
        not_before,
    )


def _unix_s(text: str) -> float:
    return float(calendar.timegm(time.strptime(text, _TIME)))
