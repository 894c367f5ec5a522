"""The order of the writes that bring a container's cgroup to its set; `apply.py` makes them.

On cgroup v1 a child must lie within its parent at every moment (kernel:
Documentation/admin-guide/cgroup-v1/cpusets.rst), so sets are widened from the root down and
narrowed from the leaves up. cgroup v2 takes any order and cuts at the parent; this order is right
for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cpupool.core.cgroups import CgroupNode
    from cpupool.core.cpuset import CPUSet


@dataclass(frozen=True, slots=True)
class Write:
    """A step of a plan: the new CPUs of one cgroup."""

    path: str
    cpus: CPUSet


def plan(
    ancestors: Sequence[CgroupNode],
    node: CgroupNode,
    want: CPUSet,
    before: CPUSet | None = None,
) -> tuple[Write, ...]:
    """Order the writes that bring a container's cgroup to `want` in steps that are each lawful.

    Ancestors are widened where they stand in the way, and never narrowed: other pods run there.
    A nested cgroup that had the container's set follows it; a nested cgroup that the application
    made narrower stays while it lies within the new set.

    Args:
        ancestors: the cgroups above, root first.
        node: the container's cgroup, with the nested ones.
        want: the set that it must have.
        before: the set that the nested cgroups followed last; the runtime may have written only the
            container since.

    Raises:
        ValueError: `want` is empty, which the kernel takes for "inherit" (v2) or "no CPU" (v1).
    """
    if not want:
        raise ValueError(f"{node.path}: a container needs a CPU, an empty set is never written")
    widened = (
        Write(above.path, above.cpus | want)
        for above in ancestors
        if above.cpus and not want <= above.cpus
    )
    return (*widened, *_move(node, want, before))


def _move(node: CgroupNode, want: CPUSet, before: CPUSet | None = None) -> Iterator[Write]:
    children = [child for child in node.children if child.cpus]
    had = (node.cpus, before)
    below = [step for child in children for step in _move(child, _nested(child, had, want))]
    itself = [Write(node.path, want)] if node.cpus != want else []
    if all(child.cpus <= want for child in children):
        yield from itself
        yield from below
        return
    # The children leave through a set that holds both where they are and where they go.
    if node.cpus and not want <= node.cpus:
        yield Write(node.path, node.cpus | want)
    yield from below
    yield from itself


def _nested(child: CgroupNode, had: Sequence[CPUSet | None], want: CPUSet) -> CPUSet:
    if child.cpus in had:
        return want
    return child.cpus & want or want
