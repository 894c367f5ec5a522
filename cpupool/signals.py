"""The signals between the agent's roles: which kind of change wakes which loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Signal:
    """Wakes the loops that act on one kind of change; any thread may call it."""

    def __init__(self) -> None:
        self._wakes: tuple[Callable[[], None], ...] = ()

    def wakes(self, *wakes: Callable[[], None]) -> None:
        """Add what is called at each change; it must not block."""
        self._wakes += wakes

    def __call__(self) -> None:
        """Wake the loops."""
        for wake in self._wakes:
            wake()


@dataclass(frozen=True, slots=True)
class Signals:
    """The kinds of changes on a node, each with the roles that look then.

    Attributes:
        pods: pods of the node are others.
        cluster: the labels of the node, or the ConfigMap are others.
        machine: CPUs went offline or came back.
        load: the load has given another size to a shared set.
        answers: plugins for resources, or their answers, are others.
        pools: the pools are others.
        kubelet: another kubelet listens than before, or none.
        runtime: the container runtime waits for facts, or has started or ended a container.
        refused: a container does not get its CPUs; one of them may be offline.
        readiness: it has become known, or unknown, who owns which CPU.
        mounts: there are mounts for other pools than before.
        swept: a sweep has ended.
        stop: the loops are to notice that they shall end.
    """

    pods: Signal = field(default_factory=Signal)
    cluster: Signal = field(default_factory=Signal)
    machine: Signal = field(default_factory=Signal)
    load: Signal = field(default_factory=Signal)
    answers: Signal = field(default_factory=Signal)
    pools: Signal = field(default_factory=Signal)
    kubelet: Signal = field(default_factory=Signal)
    runtime: Signal = field(default_factory=Signal)
    refused: Signal = field(default_factory=Signal)
    readiness: Signal = field(default_factory=Signal)
    mounts: Signal = field(default_factory=Signal)
    swept: Signal = field(default_factory=Signal)
    stop: Signal = field(default_factory=Signal)
