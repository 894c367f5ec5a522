"""The signals between the agent's roles: which kind of change wakes which loops."""

from __future__ import annotations

from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Change(Enum):
    """A kind of change on the node."""

    PODS = auto()
    """The pods of the node."""
    CLUSTER = auto()
    """The labels of the node, or the ConfigMap."""
    MACHINE = auto()
    """CPUs went offline or came back."""
    LOAD = auto()
    """The load has given another size to a shared set."""
    ANSWERS = auto()
    """Plugins for resources have come, gone or answered."""
    POOLS = auto()
    """The pools."""
    KUBELET = auto()
    """Another kubelet listens than before, or none."""
    RUNTIME = auto()
    """The container runtime waits for facts, or has started or ended a container."""
    REFUSED = auto()
    """A container does not get its CPUs; one of them may be offline."""
    READINESS = auto()
    """It has become known, or unknown, who owns which CPU."""
    MOUNTS = auto()
    """There are mounts for other pods than before."""
    NOTICES = auto()
    """A container knows that CPUs of its own leave."""
    SWEPT = auto()
    """A sweep has ended."""
    STOP = auto()
    """The loops must notice that they end."""


class Signals:
    """Wakes the loops that act on a change; any thread may tell of a change."""

    def __init__(self) -> None:
        self._wakes: dict[Change, tuple[Callable[[], None], ...]] = {}

    def connect(self, wakes: Mapping[Change, Iterable[Callable[[], None]]]) -> None:
        """Set the functions that each change calls; none of them may block."""
        self._wakes = {change: tuple(called) for change, called in wakes.items()}

    def of(self, change: Change) -> Callable[[], None]:
        """Return a function that tells of a change."""
        return partial(self.tell, change)

    def tell(self, change: Change) -> None:
        """Wake the loops that act on a change."""
        for wake in self._wakes.get(change, ()):
            wake()
