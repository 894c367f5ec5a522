"""The thread that serves every device plugin, and their gRPC servers."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from grpclib import server
from grpclib.config import Configuration

from cpupool.core.errors import CPUPoolError, HostFileError, without_frames
from cpupool.loops.threads import OwnedThread
from cpupool.rpc.channel import Codec
from cpupool.rpc.http2 import Connection, Room, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from grpclib.const import Handler

_CALL_S: Final = 10.0
_MOST_CONNECTIONS: Final = 16
"""The most connections of a server: the kubelet has one, two for a moment around its restart."""
_ROOM_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of messages that wait for clients: four of the longest requests."""
_FOLDER_MODE: Final = 0o750
_SOCKET_MODE: Final = 0o600
_READ: Final = frozenset((":method", ":path", "content-type", "te"))
"""The headers of a call that the server reads. A client's deadline ends its call by a reset, too,
and no method here has metadata: the library logs a traceback for a deadline that is over and for
metadata that it cannot decode, and leaves some of these calls without a response."""
_TURNS: Final = 5
"""The turns until a client that the kernel has connected has a connection here: four, and one."""

T = TypeVar("T")


class ServingFailed(CPUPoolError):
    """The thread of the device plugins has not done what another thread asked of it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the thread of the device plugins {what}; if this repeats, start the agent again"
        )


class ServingLoop:
    """An event loop in a thread of its own; runs from `with` to its end.

    Args:
        look: wakes the owner; it must not block. It is called when the loop has ended by an error,
            so that `check` raises, and when the kubelet begins or ends to listen to a plugin.
        name: the thread's name.

    Attributes:
        room: counts the messages that wait for clients of all its servers.
        thread: its thread.
    """

    def __init__(
        self, look: Callable[[], None] = lambda: None, *, name: str = "device plugins"
    ) -> None:
        self.look: Final = look
        self.room: Final = Room(_ROOM_BYTES)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self.thread: Final = OwnedThread(name, self._run, ask=self._ask, failed=look)

    def __enter__(self) -> Self:
        self._loop = self._runner.get_loop()
        self.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._post(self._end.set)
        self.thread.join()

    @property
    def runs(self) -> bool:
        """Whether its thread runs."""
        return self._loop is not None and self.thread.runs

    def check(self) -> None:
        """See that the loop runs, and has turned since an earlier check.

        Raises:
            ThreadFailed: it has ended, or hangs.
        """
        self.thread.check()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread and return its result; for other threads.

        Raises:
            ServingFailed: it takes longer than ten seconds, or the loop does not run.
        """
        if self._loop is None or not self.runs:
            work.close()
            raise ServingFailed("does not run")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_CALL_S)
        except TimeoutError as error:
            if not future.cancel():
                raise
            raise ServingFailed(f"has not answered for {_CALL_S:g} s") from error

    def _ask(self) -> None:
        self._post(self.thread.answer)

    def _post(self, callback: Callable[[], object]) -> None:
        # It is closed where the thread has ended.
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback)

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._end.wait())


class Service(Protocol):
    """The methods with which a server answers."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return path → method; grpclib's name for it."""
        ...


class Server(server.Server):
    """A gRPC server; all its methods are for the thread of a running loop.

    It keeps so many connections; one more ends the oldest without an open stream, or else the
    oldest. At its end it cuts off its connections: grpclib's server leaves them to the clients,
    which would wait for answers that do not come.

    Args:
        service: its methods.
        room: counts the messages that wait for clients; None for a server that has its loop alone.
        most: how many connections it keeps.
    """

    def __init__(
        self, service: Service, *, room: Room | None = None, most: int = _MOST_CONNECTIONS
    ) -> None:
        super().__init__([service], codec=Codec(), config=Configuration())
        self._room = room or Room(_ROOM_BYTES)
        self._most = most
        self._connections: dict[Connection, None] = {}
        self._path: Path | None = None

    async def begin(self, path: Path) -> None:
        """Serve on a socket for root alone; if the caller gives up, nothing listens.

        Raises:
            OSError: the socket cannot be bound.
        """
        self._path = path
        beginning = asyncio.create_task(self.start(sock=_listening(path)))
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await beginning
            self.close()
            raise

    async def end(self) -> None:
        """Remove the socket, and cut off every connection."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        # No client can connect any more. asyncio would forget a socket that it accepts just before
        # the close, and its client would wait.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.close()
        for connection in tuple(self._connections):
            connection.processor.close("the server ends")

    def connected(self, connection: Connection) -> None:
        """Take a connection, the youngest."""
        if len(self._connections) >= self._most:
            idle = (other for other in self._connections if not other.processor.streams)
            oldest = next(idle, None) or next(iter(self._connections))
            del self._connections[oldest]
            oldest.processor.close("there are too many connections")
        self._connections[connection] = None

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    def _protocol_factory(self) -> Connection:
        return Connection(
            _Handler(self._mapping, self._codec, None, self.__dispatch__),
            self._config,
            self._h2_config,
            room=self._room,
            opened=self.connected,
            lost=self.lost,
        )


class _Handler(server.Handler):
    """The library's tasks, one for each call; one that has ended leaves nothing.

    A task keeps the error that has ended it, whose frames have the message that it was sending.
    """

    def accept(
        self,
        stream: Stream,  # type: ignore[override]
        headers: list[tuple[str, str]],
        release_stream: Callable[[], Any],
    ) -> None:
        super().accept(stream, [each for each in headers if each[0] in _READ], release_stream)
        self._tasks[stream].add_done_callback(partial(self._ended, stream))

    def _ended(self, stream: Stream, task: asyncio.Task[None]) -> None:
        self._tasks.pop(stream, None)
        self._cancelled.discard(task)
        with suppress(asyncio.CancelledError):
            # The question takes the error of a cancelled task away.
            if error := task.exception():
                without_frames(error)
        stream.forget()


def _listening(path: Path) -> socket.socket:
    """Return a socket that listens; it replaces a file of its name.

    The name appears once clients can connect: a client that watches the folder connects at once.

    Raises:
        OSError: it cannot be bound.
    """
    # As long as its later name, which may be as long as the kernel allows.
    unnamed = path.with_name(f".{path.name[1:]}")
    unnamed.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(unnamed))
        unnamed.chmod(_SOCKET_MODE)
        listening.listen()
        unnamed.rename(path)
    except OSError:
        listening.close()
        raise
    return listening


class ServedSocket:
    """One server on one socket, for root alone; a context manager, which one thread uses.

    Args:
        path: the socket; its folder is made if missing, for root alone.
        made: makes the server, each time that the socket is bound.
        name: the socket's name in messages.
    """

    def __init__(self, path: Path, made: Callable[[], Server], name: str) -> None:
        self.path: Final = path
        self._made = made
        self._name = name
        self._loop = ServingLoop(name=name)
        self._server: Server | None = None

    @property
    def thread(self) -> OwnedThread:
        """The thread that serves."""
        return self._loop.thread

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self._server is not None:
                self._loop.call(self._end())
        finally:
            self._loop.__exit__(*error)

    def ensure(self) -> None:
        """Serve, if the socket is not there or has been deleted.

        Raises:
            HostFileError: it cannot be bound.
            ThreadFailed: the thread that serves has ended, or hangs.
            ServingFailed: that thread does not answer.
        """
        self._loop.check()
        if self._server is not None and self.path.is_socket():
            return
        try:
            self.path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self._loop.call(self._serve())
        except (OSError, RuntimeError) as error:
            raise HostFileError(
                str(self.path),
                f"the {self._name} cannot be bound ({error})",
                "check that its folder is mounted and writable",
            ) from error

    async def _serve(self) -> None:
        await self._end()
        server = self._made()
        await server.begin(self.path)
        self._server = server

    async def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.end()
