"""Which plugin of the QoS Resource Manager serves which resource.

A plugin makes a socket in a watched folder, and introduces itself there. A socket that is gone is a
plugin that is gone; another socket at its place is another plugin. Only root's sockets are asked,
and of many, as dead plugins leave them, those that serve a resource and the youngest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.host.files import DirectoryWatch
from cpupool.qrm.plugin_client import is_trusted, socket_status
from cpupool.qrm.plugin_worker import PluginWorker
from cpupool.qrm.registration import REGISTRATION_SOCKET
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from cpupool.core.names import Names
    from cpupool.loops.threads import OwnedThread
    from cpupool.qrm.plugin_client import Introduction, PluginCall

log = logs.get(__name__)

MOST_ASKED: Final = 64
"""The most sockets that are asked at a time, each in a thread of its own."""
MOST_NAMES: Final = 64
"""The most resources that plugins serve, or have served of late: each is kept for minutes."""
_Identity = tuple[int, int]
"""Birth and inode of a socket: inode numbers alone are used again."""


class PluginRegistry:
    """Follows the sockets of some folders; only one thread calls it.

    Args:
        folders: where plugins make their sockets; a folder may be missing.
        post: the same argument of `PluginWorker`.
        changed: called when something in a folder has changed; any thread calls it.
        registered: called after another plugin serves a resource, or none any more.
        refuses: returns why no plugin may serve a resource; empty if one may.
        observe: the same argument of `PluginWorker`.
        started: called with the thread of each plugin.
    """

    def __init__(
        self,
        folders: Iterable[Path],
        post: Callable[[Callable[[], None]], None],
        *,
        changed: Callable[[], None],
        registered: Callable[[str, PluginWorker | None], None],
        refuses: Callable[[str], str],
        observe: Callable[[PluginCall], None],
        started: Callable[[OwnedThread], None] = lambda _thread: None,
    ) -> None:
        self._started = started
        self._folders = tuple(folders)
        self._watches = [
            DirectoryWatch(folder, lambda _path: changed()) for folder in self._folders
        ]
        self._post = post
        self._registered = registered
        self._refuses = refuses
        self._observe = observe
        self._found: dict[Path, tuple[_Identity, PluginWorker]] = {}
        self._strange: frozenset[Path] = frozenset()
        self._crowded = self._looked = False
        self._ending: list[PluginWorker] = []
        self._plugins: dict[str, PluginWorker] = {}

    @property
    def plugins(self) -> Mapping[str, PluginWorker]:
        """Resource → the plugin that serves it now."""
        return self._plugins

    @property
    def workers(self) -> list[PluginWorker]:
        """Every socket's plugin, also those that do not serve a resource, or not yet."""
        return [worker for _, worker in self._found.values()]

    @property
    def expected(self) -> bool:
        """Whether a plugin is about to introduce itself, or to have the place of its resource."""
        return not self._looked or any(
            not (worker.complaint or worker.closed)
            and self._plugins.get(worker.resource) is not worker
            for worker in self.workers
        )

    def look(self) -> None:
        """Compare the sockets with the known plugins.

        Raises:
            ThreadFailed: a thread of a plugin, or of a watch, has failed.
        """
        for watch in self._watches:
            watch.ensure()
        there = self._asked(dict(self._sockets()))
        for path, (identity, worker) in tuple(self._found.items()):
            worker.thread.check()
            again = worker.refused and not self._refuses(worker.resource)
            if again or there.get(path) != identity:
                self._lose(path)
        self._ending = [worker for worker in self._ending if worker.thread.runs]
        for path, identity in there.items():
            if len(self._found) + len(self._ending) >= MOST_ASKED:
                break
            if path not in self._found:
                self._found[path] = identity, self._worker(path)
        self._looked = True

    def register(self, known: Introduction) -> None:
        """Take a plugin that has registered by a call; it introduces itself no more."""
        path = known.endpoint
        status = _status(path)
        if status is None or not is_trusted(status):
            log.warning("plugin has registered without a socket of root's", socket=path)
            return
        # The caller has the reason from the door; it does not hear of what has come in between.
        if self._refuses(known.resource):
            return
        identity = _identity(status)
        if path in self._found:
            before, worker = self._found[path]
            if (before, worker.introduction, worker.closed) == (identity, known, False):
                return
            self._lose(path)
        elif len(self._found) >= MOST_ASKED:
            vacant = next((other for other in self._found if not self._serves(other)), None)
            if vacant is None:
                log.warning("too many plugins, one is not asked", socket=path, most=MOST_ASKED)
                return
            self._lose(vacant)
        self._found[path] = identity, self._worker(path, known)

    def stop(self) -> None:
        """Ask no plugin any more, and wait until no thread is left."""
        for watch in self._watches:
            watch.stop()
        for worker in self.workers:
            worker.close()
        for worker in (*self.workers, *self._ending):
            worker.thread.join()

    def _worker(self, socket: Path, known: Introduction | None = None) -> PluginWorker:
        worker = PluginWorker(socket, self._post, self._introduced, self._observe, known)
        self._started(worker.thread)
        return worker

    def _introduced(self, worker: PluginWorker) -> None:
        resource = worker.resource
        if why := self._refuses(resource):
            log.warning("plugin refused", socket=worker.socket, reason=why)
            worker.notify(why)
            return
        before = self._plugins.get(resource)
        self._plugins[resource] = worker
        log.info("plugin registered", resource=resource, socket=worker.socket)
        if before is not None and before is not worker:
            before.close()
        # The kubelet, too, registers first: a plugin that is notified has the place.
        worker.notify()
        self._registered(resource, worker)

    def _lose(self, path: Path) -> None:
        _, worker = self._found.pop(path)
        worker.close()
        self._ending.append(worker)
        if self._plugins.get(worker.resource) is worker:
            del self._plugins[worker.resource]
            log.warning("plugin is gone", resource=worker.resource, socket=worker.socket)
            self._registered(worker.resource, None)

    def _serves(self, path: Path) -> bool:
        """Return whether a socket's plugin has introduced itself, and has not been replaced."""
        _, worker = self._found[path]
        return worker.introduction is not None and not (worker.closed or worker.refused)

    def _asked(self, there: Mapping[Path, _Identity]) -> Mapping[Path, _Identity]:
        """Return the sockets that are asked: the oldest that serve, then the youngest."""
        crowded = len(there) > MOST_ASKED
        if crowded and not self._crowded:
            log.warning("too many sockets, the youngest are asked", most=MOST_ASKED)
        self._crowded = crowded
        if not crowded:
            return there

        def rank(path: Path) -> tuple[bool, int]:
            born_ns, _ = there[path]
            serves = path in self._found and self._serves(path)
            return (False, born_ns) if serves else (True, -born_ns)

        return {path: there[path] for path in sorted(there, key=rank)[:MOST_ASKED]}

    def _sockets(self) -> Iterable[tuple[Path, _Identity]]:
        strange = set()
        for folder in self._folders:
            for path in _entries(folder):
                status = _status(path)
                if status is None:
                    continue
                if not is_trusted(status):
                    strange.add(path)
                    if path not in self._strange:
                        log.warning("socket is not root's, no plugin is asked", socket=path)
                    continue
                yield path, _identity(status)
        self._strange = frozenset(strange)


def refusal(resource: str, known: Collection[str], names: Names) -> str:
    """Return why no plugin may serve a resource beside the known ones; empty if one may."""
    if names.pool_of(resource) is not None:
        return f"{resource} is a pool of cpupool, which no plugin can serve"
    if resource not in known and len(known) >= MOST_NAMES:
        return (
            f"plugins serve, or have served in the last minutes, {MOST_NAMES} resources, and more"
            " are not taken; end those that make up names, and register later"
        )
    return ""


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a socket that may be a plugin's; None for anything else.

    A name with a dot in front is not complete, as in the kubelet's plugin watcher.
    """
    return (
        None
        if path.name == REGISTRATION_SOCKET or path.name.startswith(".")
        else socket_status(path)
    )


def _identity(status: os.stat_result) -> _Identity:
    return status.st_mtime_ns, status.st_ino
