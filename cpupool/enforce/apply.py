"""Bring one container's cgroup to its set: read, plan, write, verify."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING

from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, HostError
from cpupool.enforce.plan import Write, plan
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cpupool.core.cpuset import CPUSet
    from cpupool.manager.ports import CgroupAccess, CgroupNode

log = logs.get(__name__)


def repair(tree: CgroupAccess, path: str, want: CPUSet, attempts: int = 3) -> tuple[Write, ...]:
    """Make a container run on exactly `want`, and give the writes of the attempt that did it.

    Somebody else may change the tree at the same time, so each attempt reads it anew. One that is
    refused in the middle gives every cgroup that it changed its earlier set back, and so does one
    after which the container runs on a CPU outside `want`: on cgroup v2 a set of which the
    ancestors leave nothing means all of the parent's CPUs. Where they leave a part, the writes
    stay, and take full effect once the ancestor in the way gives room.

    Raises:
        CgroupNotFound: the container has ended; what was changed above it is put back.
        CgroupWriteRejected: the kernel refused a value (`errno` tells why), or took them all and
            the container does not run on `want` (`errno` is 0).
        HostFileError: the tree cannot be read.
        ValueError: `want` is empty.
    """
    for _ in range(attempts - 1):
        with suppress(CgroupWriteRejected):
            return _attempt(tree, path, want)
    return _attempt(tree, path, want)


def takes_one_write(tree: CgroupAccess, path: str, want: CPUSet) -> bool:
    """Return whether a write of the container's own cgroup is all that brings it to `want`.

    Raises:
        CgroupNotFound: the container has ended.
        HostFileError: the tree cannot be read.
        ValueError: `want` is empty.
    """
    return plan(*tree.read(path), want) == (Write(path, want),)


def _attempt(tree: CgroupAccess, path: str, want: CPUSet) -> tuple[Write, ...]:
    ancestors, node = tree.read(path)
    now = {ancestor.path: ancestor.cpus for ancestor in (*ancestors, *_subtree(node))}
    made: list[Write] = []
    undo: list[Write] = []
    try:
        for step in plan(ancestors, node, want):
            try:
                done = _write(tree, step, ancestors, path)
            except CgroupNotFound:
                if not step.path.startswith(f"{path}/"):
                    raise
                # A nested cgroup that is gone is in nobody's way.
                continue
            made.append(done)
            undo.append(Write(done.path, now[done.path]))
            now[done.path] = done.cpus
        effective = tree.effective(path)
    except HostError:
        _put_back(tree, undo)
        raise
    if effective == want:
        return tuple(made)
    if not effective <= want:
        _put_back(tree, undo)
    raise CgroupWriteRejected(path, str(want), 0, _obstacle(tree, path, want, effective))


def _write(tree: CgroupAccess, step: Write, ancestors: Sequence[CgroupNode], path: str) -> Write:
    try:
        tree.write(step.path, step.cpus)
    except CgroupWriteRejected as error:
        if error.errno != errno.EPERM or step.path != path or not ancestors:
            raise
        # Of cgroups mounted with nsdelegate the kernel refuses a program the cpuset of one: its own
        # container's (cgroup-v2.rst, "Delegation"). That is the agent's, alone in its pod, whose
        # cgroup confines it as well.
        step = Write(ancestors[-1].path, step.cpus)
        tree.write(step.path, step.cpus)
    return step


def _put_back(tree: CgroupAccess, undo: Sequence[Write]) -> None:
    # Undone in reverse, the tree passes through the states it came by, each of them lawful.
    for step in reversed(undo):
        # What inherited before keeps the set it was given: an empty one is never written.
        if not step.cpus:
            continue
        try:
            tree.write(step.path, step.cpus)
        except CgroupNotFound:
            continue
        except HostError as error:
            log.warning("cgroup not put back", cgroup=step.path, error=error)


def _obstacle(tree: CgroupAccess, path: str, want: CPUSet, effective: CPUSet) -> str:
    ancestors, _ = tree.read(path)
    for above in ancestors:
        lacking = want - tree.effective(above.path)
        if lacking:
            return (
                f"it runs on {effective}, and {above.path} has no CPU {lacking}; "
                "bring that online, or give it to the cgroups above"
            )
    return f"it runs on {effective}; find the program that writes this cgroup too"


def _subtree(node: CgroupNode) -> Iterator[CgroupNode]:
    yield node
    for child in node.children:
        yield from _subtree(child)
