"""By which way a container's CPUs are set: one per container, so that no two writers fight.

A runtime that has a CPU list for a container writes it again with its every update of that
container; one that has none leaves the cgroup as it finds it. So a container whose list the runtime
has is set through the runtime only, and the runtime tells: after a restart of the agent, too.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, ContainerNotFound, RuntimeUnreachable
from cpupool.manager.ports import Way
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from cpupool.core.quota import Bandwidth
    from cpupool.core.workloads import ContainerID
    from cpupool.manager.ports import (
        BandwidthTree,
        BatchingRuntime,
        CgroupAccess,
        CgroupNode,
        ContainerRuntime,
    )

log = logs.get(__name__)


class Ways:
    """Chooses the way of each container.

    Args:
        asked: the way that containers shall go; None for the best that works: NRI, else the cgroup.
        nri: the runtime as its plugin reaches it; None where none is wanted.
        cri: the runtime as the kubelet reaches it.
    """

    def __init__(
        self, asked: Way | None, nri: BatchingRuntime | None, cri: ContainerRuntime
    ) -> None:
        self._asked = asked
        self._nri = nri
        self._cri = cri
        self._answers_calls = False
        self._told = False

    @property
    def node(self) -> Way:
        """The way of a container that starts now."""
        if self._asked is Way.CRI:
            return Way.CRI if self._cri.connected() else Way.CGROUP
        return Way.NRI if self.asks() else Way.CGROUP

    def asks(self) -> bool:
        """Tell whether the runtime asks before it creates or updates a container."""
        return self._nri is not None and self._nri.connected()

    def starting(self, container: ContainerID) -> bool:
        """Tell whether the runtime is about to bring a container onto its CPUs."""
        return self._nri is not None and self._nri.starting(container)

    def unasked(self, container: ContainerID, before: Way | None, *, new: bool) -> Way | None:
        """Return the way of a container as `of`, or None where that takes a call of the runtime."""
        held = bool(self._nri and self._nri.held(container))
        if held and self.asks() and not self._by_calls():
            return Way.NRI
        # The runtime has heard of no CPUs yet, and the question would cost time in which the
        # container runs where it should not.
        unasked = new and before is None and self._asked is not Way.CRI
        return Way.CGROUP if unasked and not held else None

    def of(self, container: ContainerID, before: Way | None, *, new: bool) -> Way:
        """Choose the way of a container that is to be written.

        Args:
            container: its id.
            before: by which way it was written last; None where it has not been written yet.
            new: it has started since the agent did; older ones stay with the way they have.

        Raises:
            RuntimeUnreachable: the runtime has a CPU list for it, and cannot be reached.
            CPUPoolError: the runtime does not answer.
        """
        way = self.unasked(container, before, new=new)
        if way is not None:
            return way
        held = bool(self._nri and self._nri.held(container))
        if held or before in {Way.NRI, Way.CRI}:
            if self._cri.connected():
                return Way.CRI
            raise RuntimeUnreachable(container)
        if not self._cri.connected():
            return Way.CGROUP
        listed = self._cri.held(container)
        asked = self._asked is Way.CRI and new and listed is not None
        return Way.CRI if listed or asked else Way.CGROUP

    def through(
        self, way: Way, tree: CgroupAccess, path: str, container: ContainerID
    ) -> CgroupAccess:
        """Give the cgroups as they are written by this way.

        The runtime writes the container's own cgroup. What lies above and below it is no business
        of the runtime's, and is written directly by every way.
        """
        runtime = self._runtime(way)
        if runtime is None:
            return tree

        def update(cpus: CPUSet) -> None:
            with self._foretold(way, container, cpus):
                runtime.update(container, cpus)

        return _ThroughRuntime(tree, path, update)

    def ask_ahead(self, wanted: Mapping[ContainerID, CPUSet]) -> None:
        """Let the runtime set the CPUs of containers that go by NRI, in one call.

        Raises:
            CPUPoolError: it has set none, or has not answered yet.
        """
        if self._nri is not None:
            self._nri.update_all(wanted)

    def limit(
        self, tree: BandwidthTree, path: str, container: ContainerID, bandwidth: Bandwidth
    ) -> Way:
        """Set how long a container may run by the way by which its CPUs are set, and give that.

        Raises:
            CgroupNotFound: it has ended.
            RuntimeBusy: it may be tried again in a moment.
            CPUPoolError: it cannot be set.
        """
        way = self.of(container, None, new=False)
        runtime = self._runtime(way)
        if runtime is None:
            tree.limit(path, bandwidth)
            return way
        try:
            with self._foretold(way, container, CPUSet()):
                runtime.limit(container, bandwidth)
        except ContainerNotFound as error:
            raise CgroupNotFound(path) from error
        return way

    def _runtime(self, way: Way) -> ContainerRuntime | None:
        if way is Way.CGROUP:
            return None
        return self._nri if self._nri and way is Way.NRI else self._cri

    def _by_calls(self) -> bool:
        """Tell whether changes go by CRI, since NRI could lock the runtime up.

        A runtime that has answered over CRI once is never asked by NRI in place of that: it is busy
        when it does not answer, and then it would lock up soonest.
        """
        if self._nri is None or not self._nri.may_lock_up:
            return False
        self._answers_calls = self._answers_calls or self._cri.connected()
        if not self._answers_calls and not self._told:
            self._told = True
            log.warning(
                "changes of running containers can lock the container runtime up",
                reason="its NRI is older than 0.12.1, and no CRI socket is reached",
                remedy="mount the folder of its CRI socket into the agent's pod, or upgrade it",
            )
        return self._answers_calls

    def _foretold(
        self, way: Way, container: ContainerID, cpus: CPUSet
    ) -> AbstractContextManager[None]:
        """Tell the plugin of a call about which the runtime will ask it."""
        if self._nri is not None and way is Way.CRI and self.asks():
            return self._nri.expecting(container, cpus)
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
