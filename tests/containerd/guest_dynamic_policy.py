"""What `test_dynamic_policy.py` shows, in a guest; `tests/vm/test_systemd.py` runs this there.

The guest has CPUs for a container that grows, cgroup version 2 and containerd 1.7.
"""

from __future__ import annotations

from tests.containerd.guest_first_instruction import host
from tests.containerd.test_dynamic_policy import *  # noqa: F403

__all__ = ["host"]
