"""What depends on the kernel's release."""

from __future__ import annotations

import re
from typing import Final

_RELEASE: Final = re.compile(r"(\d+)\.(\d+)", re.ASCII)
_REMEMBERS_AFFINITY: Final = (6, 2)
_ISOLATES_REMOTELY: Final = (6, 7)


def remembers_affinity(release: str) -> bool:
    """Tell whether threads stay pinned where they pinned themselves when their cpuset is written.

    Linux 6.2 keeps what a thread has asked for (`user_cpus_ptr`, commit 8f9ea86fdf99) and applies
    it within the new set; before, a thread may run on the whole set from then on. Only the number
    counts: whether a distributor has brought the change to an older kernel is not known.

    Args:
        release: as `uname -r` prints it; one that is no release is taken for an old kernel.
    """
    return _since(_REMEMBERS_AFFINITY, release)


def isolates_remotely(release: str) -> bool:
    """Tell whether a cgroup can be an isolated partition while its parent is no partition.

    Linux 6.7 can (`cpuset.cpus.exclusive`, commit 181c8e091aae). Only the number counts: a kernel
    with an early form of it under an older number is not trusted with the CPUs of a node.

    Args:
        release: as `uname -r` prints it; one that is no release is taken for an old kernel.
    """
    return _since(_ISOLATES_REMOTELY, release)


def _since(first: tuple[int, int], release: str) -> bool:
    number = _RELEASE.match(release)
    return number is not None and tuple(map(int, number.groups())) >= first
