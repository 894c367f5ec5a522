"""Container runtimes of tests, at the ports of the manager."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.errors import (
    ContainerNotFound,
    RemoteProtocolError,
    RuntimeBusy,
    RuntimeRefused,
    RuntimeSilent,
)
from cpupool.core.properties import NO_PROPERTIES
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.enforce.writer_choice import Writers
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from cpupool.core.bandwidth import Bandwidth
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.properties import Properties


@dataclass
class ModelRuntime:
    """A `ContainerSource` and a `ContainerRuntime` in memory; not connected unless it is told.

    Attributes:
        here: whether it answers.
        containers: what it recognises.
        lists: the CPU lists that it has, by container id.
        begun: ids of containers that it is bringing onto their CPUs.
        silent: whether it answers no question, although it is here.
        refusing: why it refuses updates; empty where it takes them.
        busy: whether it puts updates off.
        mute: whether it leaves updates without an answer.
        written: called with each update that it takes.
        calls: the containers of each call that updates several.
        limited: called with each quota that it takes.
        adjusted: called with the properties of each such change.
        asked: the ids that it was asked to recognise, one entry for each question.
        may_lock_up: whether changes by its plugin can lock it up.
        delays: whether a start waits, and the runtime takes no change.
        unanswered: whether it may still make a change that it has not answered.
        expected: the calls that its plugin was told to expect, while they are made.
    """

    here: bool = False
    containers: tuple[RuntimeContainer, ...] = ()
    lists: dict[str, str] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    silent: bool = False
    refusing: str = ""
    busy: bool = False
    mute: bool = False
    written: Callable[[ContainerID, CPUSet], None] = lambda _id, _cpus: None
    calls: list[list[ContainerID]] = field(default_factory=list)
    limited: Callable[[ContainerID, Bandwidth], None] = lambda _id, _bandwidth: None
    adjusted: Callable[[ContainerID, Properties], None] = lambda _id, _properties: None
    asked: list[frozenset[str]] = field(default_factory=list)
    may_lock_up: bool = False
    delays: bool = False
    unanswered: bool = False
    expected: dict[str, str] = field(default_factory=dict)

    def connected(self) -> bool:
        return self.here

    def recognise(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        self.asked.append(frozenset(ids))
        self._answer()
        return tuple(one for one in self.containers if one.id in ids)

    def chosen(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        self._answer()
        return tuple(one for one in self.containers if one.id in ids and one.chosen)

    def cpu_list(self, container: ContainerID) -> str | None:
        self._answer()
        return self.lists.get(container)

    def starting(self, container: ContainerID) -> bool:
        return container in self.begun

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        self._change(container, f"CPUs {cpus}")
        self.lists[container] = str(cpus)
        self.written(container, cpus)

    def update_all(self, wanted: Mapping[ContainerID, CPUSet]) -> None:
        self.calls.append(list(wanted))
        for container, cpus in wanted.items():
            with suppress(ContainerNotFound, RuntimeRefused):
                self.update(container, cpus)

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(len(calls)) as pool:
            for call in [pool.submit(each) for each in calls]:
                call.result()

    def adjust(self, container: ContainerID, properties: Properties) -> None:
        self._change(container, str(properties))
        if properties.bandwidth is not None:
            self.limited(container, properties.bandwidth)
        self.adjusted(container, properties)

    @contextmanager
    def expecting(
        self, container: ContainerID, cpus: CPUSet, properties: Properties = NO_PROPERTIES
    ) -> Iterator[None]:
        del properties
        if self.busy:
            raise RuntimeBusy(container, str(cpus), "it is busy")
        self.expected[container] = str(cpus)
        try:
            yield
        finally:
            del self.expected[container]

    def _change(self, container: ContainerID, what: str) -> None:
        if container not in self.lists:
            raise ContainerNotFound(container)
        if self.busy:
            raise RuntimeBusy(container, what, "it is busy")
        if self.mute:
            raise RuntimeSilent(container, what, "it does not answer")
        if self.refusing:
            raise RuntimeRefused(container, what, self.refusing)

    def _answer(self) -> None:
        if self.silent:
            raise RemoteProtocolError("the container runtime does not answer")


def without_runtime() -> Writers:
    """Give the ways of a node whose runtime cannot be reached: each container's cgroup."""
    return Writers(None, None, ModelRuntime())


def reported(
    pod: str, name: str = "main", /, *, identifier: str = "", **ids: str
) -> RuntimeContainer:
    """Make what a runtime reports of a container or, without a name, of a sandbox.

    Args:
        pod: the id in its pod's cgroup name; `<name>-uid` for a pod that `builders.pod` has made.
        name: the container's name.
        identifier: the runtime's, `<name>-id` where none is given.
        ids: pool → ids separated by commas, as on the container's annotations.
    """
    return RuntimeContainer(
        ContainerID(identifier or f"{name or 'sandbox'}-id"),
        pod,
        "default",
        pod.removesuffix("-uid"),
        name,
        {builders.resource(pool): frozenset(listed.split(",")) for pool, listed in ids.items()},
    )
