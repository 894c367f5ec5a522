"""Features that depend on the kernel's release."""

from __future__ import annotations

import re
from typing import Final

_RELEASE: Final = re.compile(r"(\d+)\.(\d+)", re.ASCII)
_REMEMBERS_AFFINITY: Final = (6, 2)
_ISOLATES_REMOTELY: Final = (6, 7)


def remembers_affinity(release: str) -> bool:
    """Return whether pinned threads stay pinned when their cpuset is written.

    Linux 6.2 keeps the CPUs that a thread has asked for (`user_cpus_ptr`, commit 8f9ea86fdf99) and
    applies them within the new set; on older kernels the thread then may run on the whole set. Only
    the number decides: the agent cannot know whether an older kernel has a backport.

    Args:
        release: the output of `uname -r`; an unknown form stands for an old kernel.
    """
    return _since(_REMEMBERS_AFFINITY, release)


def isolates_remotely(release: str) -> bool:
    """Return whether a cgroup can be an isolated partition while its parent is not a partition.

    Linux 6.7 can (`cpuset.cpus.exclusive`, commit 181c8e091aae). Only the number decides: cpupool
    does not rely on a backport in an older kernel.

    Args:
        release: the output of `uname -r`; an unknown form stands for an old kernel.
    """
    return _since(_ISOLATES_REMOTELY, release)


def _since(first: tuple[int, int], release: str) -> bool:
    number = _RELEASE.match(release)
    return number is not None and tuple(map(int, number.groups())) >= first
