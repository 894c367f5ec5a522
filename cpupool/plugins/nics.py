"""Network interfaces of a machine, and the NUMA nodes to which they are near."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NIC:
    """A network interface.

    Attributes:
        name: as in its network namespace.
        node: the NUMA node to which it is near; None if the kernel names none.
        ipv6: its address; empty for none.
        ipv4: its address; empty for none.
        netns: the path of its network namespace; empty for the host's.
        speed_mbits: its speed in Mbit/s; 0 if unknown.
        healthy: whether containers can use it now.
    """

    name: str
    node: int | None = None
    ipv6: str = ""
    ipv4: str = ""
    netns: str = ""
    speed_mbits: int = 0
    healthy: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name, which together are unique."""
        return self.netns, self.name
