"""The writes that bring one container's cgroup to its set: read, plan, write, verify."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, HostError
from cpupool.enforce.write_order import Write, plan
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cpupool.core.cgroups import CgroupNode
    from cpupool.core.cpuset import CPUSet
    from cpupool.enforce.ports import CgroupAccess

log = logs.get(__name__)


def bring(
    tree: CgroupAccess,
    path: str,
    want: CPUSet,
    attempts: int = 3,
    before: CPUSet | None = None,
) -> tuple[Write, ...]:
    """Make a container run on exactly `want`, and return the writes of the attempt that did it.

    Another program may change the tree at the same time, so each attempt reads the tree again. An
    attempt that the kernel refuses puts every cgroup back that it has changed. So does an attempt
    after which the container runs on a CPU outside `want`: on cgroup v2 a set that has no CPU in
    common with its ancestors means all CPUs of the parent. Where it has some in common, the writes
    stay, and take full effect once the ancestor in the way gives room.

    Args:
        tree: the cgroups.
        path: the container's.
        want: the set that it must run on.
        attempts: the number of attempts.
        before: the set that the nested cgroups followed last; None if it is not known.

    Raises:
        CgroupNotFound: the container has ended; the cgroups above it are as before.
        CgroupWriteRejected: the kernel refused a value (`errno` tells why), or took them all and
            the container does not run on `want` (`errno` is 0).
        HostFileError: the tree cannot be read.
        ValueError: `want` is empty.
    """
    for _ in range(attempts - 1):
        with suppress(CgroupWriteRejected):
            return _attempt(tree, path, want, before)
    return _attempt(tree, path, want, before)


def bring_nested(tree: CgroupAccess, path: str, want: CPUSet, before: CPUSet) -> bool:
    """Let nested cgroups follow a container that its runtime has written; return whether they did.

    A runtime writes the container's own cgroup, and may do so after `bring` has given up. A nested
    cgroup that has ended is left out.

    Args:
        tree: the cgroups.
        path: the container's.
        want: the set that it runs on.
        before: the set that the nested cgroups followed last.
    """
    try:
        with suppress(CgroupNotFound):
            _, node = tree.read(path)
            for step in plan((), replace(node, cpus=want), want, before):
                with suppress(CgroupNotFound):
                    tree.write(step.path, step.cpus)
    except HostError as error:
        log.warning("nested cgroups stay on other CPUs", cgroup=path, error=error)
        return False
    return True


def takes_one_write(tree: CgroupAccess, path: str, want: CPUSet) -> bool:
    """Return whether a write of the container's own cgroup is all that brings it to `want`.

    Raises:
        CgroupNotFound: the container has ended.
        HostFileError: the tree cannot be read.
        ValueError: `want` is empty.
    """
    return plan(*tree.read(path), want) == (Write(path, want),)


def _attempt(
    tree: CgroupAccess, path: str, want: CPUSet, before: CPUSet | None
) -> tuple[Write, ...]:
    ancestors, node = tree.read(path)
    now = {ancestor.path: ancestor.cpus for ancestor in (*ancestors, *_subtree(node))}
    made: list[Write] = []
    undo: list[Write] = []
    try:
        for step in plan(ancestors, node, want, before):
            try:
                done = _write(tree, step, ancestors, path)
            except CgroupNotFound:
                if not step.path.startswith(f"{path}/"):
                    raise
                # A nested cgroup that has ended needs no set.
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
        # With nsdelegate the kernel lets no program write the cpuset of its own container
        # (cgroup-v2.rst, "Delegation"). This container is the agent's: it is alone in its pod, and
        # the cgroup of the pod confines it as well.
        step = Write(ancestors[-1].path, step.cpus)
        tree.write(step.path, step.cpus)
    return step


def _put_back(tree: CgroupAccess, undo: Sequence[Write]) -> None:
    # In reverse order the tree passes through its earlier states, and each of them is lawful.
    for step in reversed(undo):
        # A cgroup that inherited before keeps its new set: an empty set is never written.
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
                f"it has {effective}, and {above.path} lacks {lacking}; "
                "bring that online, or give it to the cgroups above"
            )
    return f"it runs on {effective}; find the program that writes this cgroup too"


def _subtree(node: CgroupNode) -> Iterator[CgroupNode]:
    yield node
    for child in node.children:
        yield from _subtree(child)
