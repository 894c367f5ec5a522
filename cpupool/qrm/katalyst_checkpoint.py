"""The file in which Katalyst's managers keep what plugins have answered."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import HostFileError, RemoteProtocolError
from cpupool.core.workloads import ContainerRef
from cpupool.qrm.katalyst_checkpoint_codec import parse
from cpupool.qrm.plugin_client import ROOT
from cpupool.qrm.plugin_messages import recorded_answer
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cpupool.core.plugin_facts import AnswerPart, AnswerParts
    from cpupool.host.root import HostRoot
    from cpupool.qrm.katalyst_checkpoint_codec import Entry

log = logs.get(__name__)

MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest file: a node with 250 pods has about 1 MiB."""
_LOST: Final = (0x80, 0xFF)
"""Two bytes that JSON replaces; in a varint each means that another byte follows."""


def answers(paths: Iterable[Path]) -> Mapping[ContainerRef, AnswerParts]:
    """Return what each container has by the youngest of some files; nothing without a file.

    An answer that the file's JSON has destroyed is left out. An amount that is lost is 0.

    Raises:
        HostFileError: the file cannot be read, or is no file of root's.
        RemoteProtocolError: the file is damaged.
    """
    # The manager that ran last has written last.
    written_ns, path = max((_written_ns(path), path) for path in paths)
    if written_ns < 0:
        return {}
    found: defaultdict[ContainerRef, dict[str, AnswerPart]] = defaultdict(dict)
    destroyed: list[str] = []
    for entry in parse(_read(path)):
        if (answer := _answer(entry)) is None:
            destroyed.append(f"{entry.pod_uid}/{entry.container}/{entry.resource}")
        else:
            found[ContainerRef(entry.pod_uid, entry.container)][entry.resource] = answer
    if destroyed:
        log.warning(
            "answers cannot be read, and are asked for again",
            file=path,
            count=len(destroyed),
            first=destroyed[0],
        )
    return found


def usual_paths(root: HostRoot) -> tuple[Path, ...]:
    """Return where a kubelet with Katalyst's patch, and Katalyst's own manager, record answers."""
    folders = (root.kubelet, root.base / "var/lib/katalyst")
    return tuple(each / "resource-plugins/kubelet_qrm_checkpoint" for each in folders)


def _written_ns(path: Path) -> int:
    """Return when a file was written last; -1 if there is none."""
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise _unread(path, error.strerror) from error


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_opened) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != ROOT:
                raise _unread(path, "is no file of root's")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unread(path, error.strerror) from error
    if len(data) > MAX_BYTES:
        raise _unread(path, f"has more than {MAX_BYTES} bytes")
    return data


def _opened(path: str, flags: int) -> int:
    # A pipe is opened at once, without a writer.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _unread(path: Path, why: str | None) -> HostFileError:
    return HostFileError(
        str(path), f"the record of Katalyst's manager is not read ({why})", "remove it"
    )


def _answer(entry: Entry) -> AnswerPart | None:
    """Return an entry's answer; None if it cannot be read.

    What differs between two readings with other bytes in the place of the lost ones is lost.
    """
    try:
        first, second = (recorded_answer(entry.message(lost)) for lost in _LOST)
    except RemoteProtocolError:
        return None
    if entry.whole:
        return first
    first, second = (replace(each, quantity=0.0, by_node={}) for each in (first, second))
    return first if first == second else None
