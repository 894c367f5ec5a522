"""The server of our plugins for the QoS Resource Manager: it keeps their states and their sockets.

Only the thread of the serving loop asks the plugins and changes their states, so that no answer is
made of half a change. A state is in its file before the manager has the answer.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError, HostFileError, QuantityError
from cpupool.core.names import STATIC_POD_HASH
from cpupool.core.quantity import is_amount
from cpupool.host.files import DirectoryWatch, FileLock
from cpupool.host.record_file import RecordFile
from cpupool.loops.step_loop import StepLoop
from cpupool.plugins import state_codec
from cpupool.plugins.load_sizing import PERIOD_S
from cpupool.plugins.service import PluginService
from cpupool.plugins.state import PluginState
from cpupool.rpc.serving import Server, ServingLoop
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.workloads import ContainerRef
    from cpupool.plugins.base import Plugin, Stock
    from cpupool.plugins.pool_loop import PoolLoop
    from cpupool.plugins.service import Device
    from cpupool.policies.qrm.questions import PluginOptions, Question

log = logs.get(__name__)

_LOOK_S: Final = PERIOD_S
_FOLDER_MODE: Final = 0o750
_REMEMBERED: Final = ("katalyst.kubewharf.io/", STATIC_POD_HASH)
"""The prefixes of the annotations that a plugin reads; a state has no others."""


class PluginServer(StepLoop):
    """Serves plugins until it ends.

    Args:
        names: the plugins.
        made: returns name → plugin, by the machine and the configuration of now; raises
            CPUPoolError if these cannot be used.
        pools: sizes pools by their load.
        watched: a folder; when it changes, the plugins may be others.
        sockets: the folder that the manager watches.
        states: the folder for the states.
    """

    def __init__(
        self,
        names: Sequence[str],
        made: Callable[[], Mapping[str, Plugin]],
        pools: PoolLoop,
        *,
        watched: Path,
        sockets: Path,
        states: Path,
    ) -> None:
        super().__init__(watches=[DirectoryWatch(watched, lambda _path: self.wake())])
        self._names = names
        self._made = made
        self._pools = pools
        self._sockets = sockets
        self._states = states
        self._failures = Failures()
        self._loop = ServingLoop(name="plugins")
        self._kept: dict[str, KeptPlugin] = {}
        self._doors: Sequence[_Door] = ()

    def hung(self) -> str:
        """Return the name of the thread that serves if it hangs, or ""; any thread may call it."""
        self._loop.thread.ask()
        return self._loop.thread.name if self._loop.thread.hangs else ""

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set; `wake` after setting it returns at once.

        Raises:
            CPUPoolError: the plugins cannot be made, or their files not be locked.
        """
        with ExitStack() as opened:
            if not all(self._locked(opened, name, stop) for name in self._names):
                return
            plugins = self._made()
            for name, plugin in plugins.items():
                self._kept[name] = KeptPlugin(plugin, self._file(name))
            opened.enter_context(self._loop)
            self._doors = [
                _Door(self._loop, self._sockets, resource, self._kept[name])
                for name, plugin in plugins.items()
                for resource in plugin.resources
            ]
            for door in self._doors:
                opened.callback(door.close)
            super().run(stop)

    def step(self) -> float:
        """Let the plugins follow what has changed, and serve; return the seconds to the next."""
        self._loop.check()
        self._follow()
        for door in self._doors:
            door.ensure()
        return _LOOK_S

    def _locked(self, opened: ExitStack, name: str, stop: threading.Event) -> bool:
        lock = FileLock(self._states / f"{name}.lock")
        opened.callback(lock.release)
        return lock.acquire(stop, lambda: log.warning("waiting: another process serves", name=name))

    def _file(self, name: str) -> RecordFile[PluginState]:
        path = self._states / f"{name}.json"
        return RecordFile(path, PluginState(), state_codec.encode, state_codec.parse)

    def _follow(self) -> None:
        """Let the plugins follow machine, configuration and load; a refused change changes none."""
        try:
            for name, plugin in self._made().items():
                self._loop.call(self._kept[name].follow(plugin, self._pools))
        except CPUPoolError as error:
            if self._failures.begins(error):
                log.warning("change refused, the plugins keep what they had", reason=error)
        else:
            self._failures.ends()


class KeptPlugin:
    """A plugin and its state; all methods are for the thread of the serving loop.

    Args:
        plugin: the plugin.
        record: the file with its state.
    """

    def __init__(self, plugin: Plugin, record: RecordFile[PluginState]) -> None:
        self._plugin = plugin
        self._record = record
        self._state = record.read()

    @property
    def options(self) -> PluginOptions:
        """The questions that the plugin wants to get."""
        return self._plugin.options

    def hints(self, question: Question) -> tuple[TopologyHint, ...] | None:
        """Return the NUMA nodes that can serve a container; None for no preference."""
        return self._plugin.hints(self._state, _remembered(question))

    def allocate(self, question: Question, hint: TopologyHint | None) -> AnswerParts:
        """Return the answers for a container, once the file has them."""
        self._keep(self._plugin.allocate(self._state, _remembered(question), hint))
        found = self.allocations().get(question.container, {})
        log.info(
            "allocated",
            pod=f"{question.namespace}/{question.pod_name}",
            container=question.container.name,
            **{name: answer.value or "nothing" for name, answer in found.items()},
        )
        return found

    def allocations(self) -> Mapping[ContainerRef, AnswerParts]:
        """Return the present answers of each container."""
        return {ref: self._plugin.answers(self._state, ref) for ref in self._state.held}

    def asked_by(self, container: ContainerRef) -> Question | None:
        """Return the request of a container that has an answer."""
        held = self._state.held.get(container)
        return held.question if held else None

    def devices(self, container: ContainerRef) -> Mapping[str, tuple[tuple[Device, float], ...]]:
        """Return resource → devices, and how much a container has of each."""
        if container not in self._state.held:
            return {}
        return self._plugin.devices(self._state, container)

    def remove(self, pod: str) -> None:
        """Forget a pod, known or not."""
        self._keep(self._plugin.settled(self._state.without(pod)))

    def stock(self, resource: str) -> Mapping[str, Stock]:
        """Return how much there is of a resource, and of those that come with it."""
        return self._plugin.stock(self._state, resource)

    async def follow(self, plugin: Plugin, pools: PoolLoop) -> None:
        """Decide by another machine, configuration or load from now on.

        Raises:
            HostFileError: the state that follows cannot be written; nothing has changed.
        """
        settled = pools.sized(plugin, plugin.settled(self._state))
        for pool, cpus in settled.pools.items():
            if cpus != self._state.pools.get(pool):
                log.info("pool has other CPUs", pool=pool, cpus=cpus)
        self._keep(settled)
        self._plugin = plugin
        pools.publish(plugin, settled)

    def _keep(self, state: PluginState) -> None:
        self._record.write(state)
        self._state = state


class _Door:
    """A socket of a plugin, in the folder that the manager watches."""

    def __init__(self, loop: ServingLoop, folder: Path, resource: str, kept: KeptPlugin) -> None:
        name = resource.rpartition("/")[2].lower()
        self._path = folder / f"cpupool-{name}.sock"
        self._loop = loop
        self._service = PluginService(resource, kept)
        self._server: Server | None = None

    def ensure(self) -> None:
        """Serve, if the socket is not there, or has been deleted.

        Raises:
            HostFileError: it cannot be bound.
        """
        if self._server is not None and self._path.is_socket():
            return
        try:
            self._path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self._loop.call(self._begin())
        except (OSError, RuntimeError) as error:
            raise HostFileError(
                str(self._path), f"cannot be bound ({error})", "check that its folder is writable"
            ) from error

    def close(self) -> None:
        """End its connections, and remove the socket."""
        if self._loop.runs:
            self._loop.call(self._end())

    async def _begin(self) -> None:
        await self._end()
        server = Server(self._service, room=self._loop.room)
        await server.begin(self._path)
        self._server = server

    async def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.end()


def _remembered(question: Question) -> Question:
    """Return a request with the annotations that a plugin reads, and without labels.

    Raises:
        QuantityError: it requests what is no amount.
    """
    if not is_amount(question.quantity):
        raise QuantityError(f"{question.quantity:g}", "request an amount from 0 to 2^53")
    kept = {
        key: value for key, value in question.annotations.items() if key.startswith(_REMEMBERED)
    }
    return replace(question, labels={}, annotations=kept)
