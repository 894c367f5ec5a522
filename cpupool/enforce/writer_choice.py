"""The choice of the program that writes the CPUs of a container.

Each container has exactly one such program, so no two programs overwrite each other. A runtime that
has a CPU list for a container writes the list with each update of that container. A runtime without
a list leaves the cgroup alone. So cpupool writes a container through its runtime if the runtime has
a list for it, and else directly. The runtime itself tells the agent for which containers it has a
list. It also tells an agent that has just started.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from cpupool.core.cgroups import POD_ITSELF, Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    CgroupNotFound,
    ContainerNotFound,
    CPUPoolError,
    RuntimeAwaitsAnswer,
    RuntimeBusy,
    RuntimeUnreachable,
)
from cpupool.core.properties import NO_PROPERTIES, Properties
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from cpupool.core.bandwidth import Bandwidth
    from cpupool.core.cgroups import CgroupNode
    from cpupool.core.workloads import ContainerID, RuntimeContainer
    from cpupool.enforce.ports import (
        BandwidthTree,
        BatchingRuntime,
        CalledRuntime,
        CgroupAccess,
        ContainerRuntime,
    )

log = logs.get(__name__)


class Writers:
    """Chooses the writer of each container, and writes through it.

    Args:
        asked: the only writer, by a setting; None for the best that works: NRI, else the cgroup.
        nri: the runtime as its plugin reaches it; None without a plugin.
        cri: the runtime as the kubelet reaches it.
        nri_waits: returns the pod for which the connection to NRI waits, and the end of the wait;
            empty if it does not wait.

    Attributes:
        nri_waits: the same.
    """

    def __init__(
        self,
        asked: Writer | None,
        nri: BatchingRuntime | None,
        cri: CalledRuntime,
        nri_waits: Callable[[], str] = str,
    ) -> None:
        self.nri_waits = nri_waits
        self._asked = asked
        self._nri = nri
        self._cri = cri
        self._last: dict[ContainerID, Writer] = {}
        self._answers_calls = False
        self._warned = False

    @property
    def node(self) -> Writer:
        """The writer of a container that starts now."""
        if self._asked is Writer.CRI:
            return Writer.CRI if self._cri.connected() else Writer.CGROUP
        return Writer.NRI if self.asks() else Writer.CGROUP

    def asks(self) -> bool:
        """Return whether the runtime asks before it creates or updates a container."""
        return self._nri is not None and self._nri.connected()

    def starting(self, container: ContainerID) -> bool:
        """Return whether the runtime is about to bring a container onto its CPUs."""
        return self._nri is not None and self._nri.starting(container)

    @property
    def unanswered(self) -> bool:
        """Whether the runtime may still make a change that it has not answered."""
        return self._nri is not None and self._nri.unanswered

    @property
    def delays(self) -> bool:
        """Whether the start of a container waits for others to leave its CPUs."""
        return self._nri is not None and self._nri.delays

    def wrote(self, container: ContainerID, writer: Writer) -> None:
        """Record the writer of a container's CPUs."""
        self._last[container] = writer

    def forget(self, container: ContainerID) -> None:
        """Forget a container that has ended."""
        self._last.pop(container, None)

    def unasked(
        self, container: ContainerID, *, new: bool, known: RuntimeContainer | None = None
    ) -> Writer | None:
        """Return the writer of a container as `of`, or None if that needs a call.

        Args:
            container: its id; `POD_ITSELF` for a pod's own cgroup.
            new: whether it has started since the agent did.
            known: the runtime's report of it; None for none.
        """
        sandbox = known is not None and not known.name
        if sandbox or container == POD_ITSELF:
            # No runtime changes these.
            return Writer.CGROUP
        if self.delays:
            # The runtime waits for this sweep, and asks cpupool before its next write.
            return Writer.CGROUP
        by_plugin = self._by_plugin(container)
        if by_plugin and self.asks() and not self._by_calls():
            return Writer.NRI
        if new and known is not None and not by_plugin and self._asked is Writer.CRI:
            return Writer.CRI if self._cri.connected() else None
        # The runtime has no CPUs for it yet, and a question would cost time in which the container
        # runs where it should not.
        unasked = new and container not in self._last and self._asked is not Writer.CRI
        return Writer.CGROUP if unasked and not by_plugin else None

    def of(self, container: ContainerID, *, new: bool) -> Writer:
        """Choose the writer of a container.

        Args:
            container: its id.
            new: whether it has started since the agent did; an older container keeps its writer.

        Raises:
            RuntimeUnreachable: the runtime has a CPU list for it, and cannot be reached.
            RuntimeBusy: the runtime waits for an answer of the agent, and may be asked after that.
            CPUPoolError: the runtime does not answer.
        """
        writer = self.unasked(container, new=new)
        if writer is not None:
            return writer
        if self._by_plugin(container) or self._last.get(container) in {Writer.NRI, Writer.CRI}:
            if self._cri.connected():
                return Writer.CRI
            raise RuntimeUnreachable(container)
        if not self._cri.connected():
            return Writer.CGROUP
        try:
            listed = self._cri.cpu_list(container)
        except RuntimeAwaitsAnswer as error:
            raise RuntimeBusy(container, "its CPUs", str(error)) from error
        asked = self._asked is Writer.CRI and new and listed is not None
        return Writer.CRI if listed or asked else Writer.CGROUP

    def through(
        self, writer: Writer, tree: CgroupAccess, path: str, container: ContainerID
    ) -> CgroupAccess:
        """Return access to the cgroups by this writer.

        The runtime writes the cgroup of the container. cpupool always writes the cgroups above and
        below it directly.
        """
        runtime = self._runtime(writer)
        if runtime is None:
            return tree

        return _ThroughRuntime(tree, path, partial(self._update, writer, runtime, container))

    def ask_ahead(
        self, writer: Writer, wanted: Mapping[ContainerID, CPUSet]
    ) -> Mapping[ContainerID, CPUPoolError]:
        """Let the runtime set the CPUs of containers of one writer, all at one time.

        Returns:
            The containers whose CPUs the runtime has not set, as far as that is known; none that
            has ended.

        Raises:
            CPUPoolError: by NRI it has set none, or has not answered yet.
        """
        failed: dict[ContainerID, CPUPoolError] = {}

        def call(container: ContainerID, cpus: CPUSet) -> None:
            try:
                self._update(writer, self._cri, container, cpus)
            except ContainerNotFound:
                pass
            except CPUPoolError as error:
                failed[container] = error

        if writer is Writer.NRI and self._nri is not None:
            self._nri.update_all(wanted)
        if writer is Writer.CRI and len(wanted) > 1:
            self._cri.at_once([partial(call, *change) for change in wanted.items()])
        return failed

    def limit(
        self, tree: BandwidthTree, path: str, container: ContainerID, bandwidth: Bandwidth
    ) -> Writer:
        """Set the CPU time of a container, as `adjust`."""
        wanted = Properties(bandwidth=bandwidth)
        return self.adjust(path, container, wanted, partial(tree.limit, path, bandwidth))

    def adjust(
        self,
        path: str,
        container: ContainerID,
        properties: Properties,
        directly: Callable[[], None],
    ) -> Writer:
        """Set properties of a container through the writer of its CPUs; return that writer.

        Args:
            path: its cgroup.
            container: its id.
            properties: the values.
            directly: sets the same without the runtime.

        Raises:
            CgroupNotFound: it has ended.
            RuntimeBusy: it may be tried again in a moment.
            CPUPoolError: it cannot be set.
        """
        # The runtime is asked for the CPUs, which come first, and not again: that takes long.
        directs = self._last.get(container) is Writer.CGROUP and not self._by_plugin(container)
        writer = Writer.CGROUP if directs else self.of(container, new=False)
        runtime = self._runtime(writer)
        if runtime is None:
            directly()
            return writer
        try:
            with self._announced(writer, container, CPUSet(), properties):
                runtime.adjust(container, properties)
        except ContainerNotFound as error:
            raise CgroupNotFound(path) from error
        return writer

    def _update(
        self, writer: Writer, runtime: ContainerRuntime, container: ContainerID, cpus: CPUSet
    ) -> None:
        with self._announced(writer, container, cpus):
            runtime.update(container, cpus)

    def _runtime(self, writer: Writer) -> ContainerRuntime | None:
        if writer is Writer.CGROUP:
            return None
        return self._nri if self._nri and writer is Writer.NRI else self._cri

    def _by_plugin(self, container: ContainerID) -> bool:
        """Return whether the runtime has a CPU list for a container, and its plugin knows that."""
        return bool(self._nri and self._nri.cpu_list(container))

    def _by_calls(self) -> bool:
        """Return whether changes go by CRI, because NRI could lock the runtime up.

        A runtime that has answered over CRI once is never asked by NRI: when it does not answer, it
        is busy, and then the risk is largest.
        """
        if self._nri is None or not self._nri.may_lock_up:
            return False
        self._answers_calls = self._answers_calls or self._cri.connected()
        if not self._answers_calls and not self._warned:
            self._warned = True
            log.warning(
                "changes of running containers can lock the container runtime up",
                reason="its NRI is older than 0.12.1, and no CRI socket is reached",
                remedy="mount the folder of its CRI socket into the agent's pod, or upgrade it",
            )
        return self._answers_calls

    def _announced(
        self,
        writer: Writer,
        container: ContainerID,
        cpus: CPUSet,
        properties: Properties = NO_PROPERTIES,
    ) -> AbstractContextManager[None]:
        """Announce a call to the plugin: the runtime will ask the plugin about it."""
        if self._nri is not None and writer is Writer.CRI and self.asks():
            return self._nri.expecting(container, cpus, properties)
        return nullcontext()


class _ThroughRuntime:
    def __init__(self, tree: CgroupAccess, path: str, update: Callable[[CPUSet], None]) -> None:
        self._path = path
        self._update = update
        self._tree = tree

    def read(self, path: str) -> tuple[tuple[CgroupNode, ...], CgroupNode]:
        return self._tree.read(path)

    def effective(self, path: str) -> CPUSet:
        return self._tree.effective(path)

    def write(self, path: str, cpus: CPUSet) -> None:
        if path != self._path:
            self._tree.write(path, cpus)
            return
        try:
            self._update(cpus)
        except ContainerNotFound as error:
            raise CgroupNotFound(path) from error
