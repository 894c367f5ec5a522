"""The files and folders that the agent lets containers mount."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder that is mounted read-only into a container.

    `host_path` is its path for the kubelet and the container runtime.
    """

    container_path: str
    host_path: str
