"""The composition root: settings in, wired roles out, one supervisor for their threads."""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cpupool.config import poolconfig
from cpupool.config.poolconfig import Source
from cpupool.core.errors import (
    ConfigError,
    CPUPoolError,
    HostError,
    HostFileError,
    ManifestError,
    Problem,
    refuse_errors,
)
from cpupool.core.names import Names
from cpupool.core.pools import NodePools
from cpupool.host import cgroup_names, files
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.files import DirectoryWatch
from cpupool.kube import views
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.kubelet.podresources import PodResources
from cpupool.manager import report
from cpupool.manager.manager import Manager
from cpupool.roles.cpusetter import CPUSetter
from cpupool.roles.device_manager import DeviceManager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cpupool.config.poolconfig import PoolFile
    from cpupool.core.workloads import Pod
    from cpupool.host.root import HostRoot
    from cpupool.manager.ports import FoundContainer, PodSource, TopologySource
    from cpupool.manager.resolve import Resolution
    from cpupool.roles.cpusetter import SweepReport

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 2.0
_SIGNAL_S: Final = 0.2
_END_S: Final = 30.0


class AgentFailed(CPUPoolError):
    """A loop of the agent ended with an error; the process must be started again."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the agent is told from outside.

    Attributes:
        config: the folder with `poolconfig-<name>.yaml` files.
        node_labels: this node's labels; they choose the pool file.
        names: the public strings, with the resource domain.
        cgroup_root: the kubelet's `--cgroup-root`; empty to look in the usual places.
        interval_s: a sweep happens at least this often, whether or not an event calls for one.
    """

    config: Path
    node_labels: Mapping[str, str] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    cgroup_root: str = ""
    interval_s: float = SWEEP_INTERVAL_S


def read_pool_files(folder: Path, names: Names) -> tuple[PoolFile, ...]:
    """Read every pool file of a folder, as a mounted ConfigMap shows them.

    Raises:
        ConfigError: with the problems of all files.
        HostFileError: the folder or a file in it cannot be read.
    """
    problems: list[Problem] = []
    try:
        paths = sorted(path for path in folder.iterdir() if poolconfig.is_pool_file(path.name))
        sources = [Source.of(path.name, path.read_bytes()) for path in paths]
    except OSError as error:
        raise HostFileError(
            str(error.filename or folder),
            str(error.strerror),
            "name the folder where the pool ConfigMap is mounted with --config",
        ) from error
    parsed = poolconfig.parse_all(sources, names, problems)
    refuse_errors(problems)
    return parsed


class PodFile:
    """Pods from a file that holds a PodList, as `kubectl get pods -o json` prints it.

    Args:
        path: the file; read again whenever it changes.
        names: for the resources that are ours.
    """

    def __init__(self, path: Path, names: Names) -> None:
        self._path = path
        self._names = names
        self._seen: tuple[int, int, int] | None = None
        self._pods: dict[str, Pod] = {}

    def pods(self) -> tuple[Pod, ...] | None:
        """Give the pods in the file, without those that cannot be read.

        Raises:
            CPUPoolError: the file cannot be read, or holds something else.
        """
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._seen:
                self._pods = self._read()
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            raise HostFileError(
                str(self._path), str(error), "write the node's pods there: kubectl get pods -o json"
            ) from error
        return tuple(self._pods.values())

    def _read(self) -> dict[str, Pod]:
        if not self._path.is_file():
            raise HostFileError(str(self._path), "this is no regular file", "name one with --pods")
        text = self._path.read_text("utf-8")
        if not text.strip():
            # A shell empties the file before kubectl has an answer; a node without pods says so.
            raise HostFileError(str(self._path), "this file is empty", "wait for its writer")
        pods: dict[str, Pod] = {}
        for body in views.pods_from_text(str(self._path), text):
            try:
                pod = views.pod(body, self._names)
            except ManifestError as error:
                # One odd pod must not hide all others.
                log.warning("pod cannot be read error=%s", error)
                continue
            pods[pod.uid] = pod
        return pods


class Agent:
    """Everything that runs on a node.

    Args:
        settings: what the agent is told.
        root: where the machine's trees are.
        topology: the machine's CPUs.
        pods: where the pods come from; None to advertise pools without placing containers.
        observe: called after each sweep.

    Attributes:
        manager: the node's state.
    """

    def __init__(
        self,
        settings: Settings,
        root: HostRoot,
        topology: TopologySource,
        pods: PodSource | None,
        observe: Callable[[SweepReport], None] = lambda _report: None,
    ) -> None:
        self.manager = Manager(settings.names)
        self._settings = settings
        self._root = root
        self._topology = topology
        self._observe = observe
        self._published: tuple[Resolution, tuple[FoundContainer, ...], str] | None = None
        self._complaint = ""
        self._owners_known = False
        self._cpusetter: CPUSetter | None = None
        self._watches: list[DirectoryWatch] = []
        if pods is not None:
            tree = CgroupFS(root.cgroup, settings.cgroup_root)
            self._watches = [
                DirectoryWatch(place, self._cgroup_changed, recursive=True, writes=True)
                for place in tree.places()
            ]
            self._cpusetter = CPUSetter(
                manager=self.manager,
                tree=tree,
                pods=pods,
                devices=PodResources(root.podresources_socket),
                checkpoint=CheckpointFile(root.checkpoint),
                interval_s=settings.interval_s,
                swept=self._swept,
            )
        self._device_manager = DeviceManager(
            self.manager,
            root,
            topology,
            topology_changed=self._sweep_soon,
            ready=self._knows_owners,
        )

    def configure(self) -> None:
        """Read this node's pools and put them in force.

        Raises:
            ConfigError: the pool files are refused, or they are unsafe on this machine.
            HostFileError: something cannot be read.
        """
        found = read_pool_files(self._settings.config, self._settings.names)
        chosen = poolconfig.select(found, self._settings.node_labels)
        topology = self._topology.topology()
        if chosen is None:
            log.warning(
                "no pool file matches this node, so it has no pools folder=%s labels=%s",
                self._settings.config,
                dict(self._settings.node_labels),
            )
            self.manager.reconfigure(NodePools(), topology)
            return
        try:
            problems = self.manager.reconfigure(chosen.pools, topology)
        except ConfigError as error:
            raise ConfigError(chosen.located(error.problems)) from error
        for problem in (*chosen.warnings, *chosen.located(problems)):
            log.warning("pool file problem=%s", problem)

    def wake(self) -> None:
        """Look at everything now; also how a loop notices that it shall stop."""
        self._device_manager.wake()
        self._sweep_soon()

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set.

        Raises:
            AgentFailed: a loop ended with an error.
        """
        loops: dict[str, Callable[[threading.Event], None]] = {
            "device manager": self._device_manager.run
        }
        if self._cpusetter is None:
            log.warning("no source of pods, so no container is placed: give one with --pods")
        else:
            loops["cpusetter"] = self._cpusetter.run
        try:
            supervise(loops, stop, self.wake)
        finally:
            for watch in self._watches:
                watch.stop()

    def _cgroup_changed(self, path: Path) -> None:
        # Every exec writes cgroup.procs, which moves no container: only sets and new cgroups count.
        if path.name == "cpuset.cpus" or cgroup_names.is_cgroup(path.name):
            self._sweep_soon()

    def _knows_owners(self) -> bool:
        # Without pods to place nobody here will ever know; then the kubelet's books must do.
        return self._cpusetter is None or self._cpusetter.ready

    def _sweep_soon(self) -> None:
        if self._cpusetter:
            self._cpusetter.wake()

    def _swept(self, swept: SweepReport) -> None:
        for watch in self._watches:
            watch.ensure()
        if not self._owners_known and self._knows_owners():
            self._owners_known = True
            self._device_manager.wake()
        self._publish(swept)
        self._observe(swept)

    def _publish(self, swept: SweepReport) -> None:
        facts, resolution = self.manager.state()
        path = self._root.status
        try:
            news = (resolution, swept.found, swept.waiting_for)
            if self._published != news:
                status = report.describe(facts, *news)
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_atomically(path, json.dumps(report.to_json(status)).encode())
                self._published = news
            os.utime(path)
            self._complaint = ""
        except (OSError, HostError) as error:
            # A full disk must not keep a container from its CPUs.
            if self._complaint != str(error):
                log.warning("status file cannot be written path=%s error=%s", path, error)
            self._complaint = str(error)
            self._published = None


def supervise(
    loops: Mapping[str, Callable[[threading.Event], None]],
    stop: threading.Event,
    wake: Callable[[], None],
) -> None:
    """Run loops in threads of their own until `stop`; one that fails ends them all.

    Raises:
        AgentFailed: names the loop that failed first.
    """
    failures: list[tuple[str, Exception]] = []

    def guarded(name: str, loop: Callable[[threading.Event], None]) -> None:
        try:
            loop(stop)
        except Exception as error:  # whatever ends a loop must end the process
            log.exception("loop failed name=%s", name)
            failures.append((name, error))
        finally:
            stop.set()

    threads = [
        threading.Thread(target=guarded, args=item, name=item[0], daemon=True)
        for item in loops.items()
    ]
    for thread in threads:
        thread.start()
    # A signal that the kernel hands to another thread does not end an unlimited wait of this one.
    while not stop.wait(_SIGNAL_S):
        pass
    wake()
    for thread in threads:
        thread.join(_END_S)
    if failures:
        name, error = failures[0]
        raise AgentFailed(f"the {name} stopped: {error}; the agent must be started again")
    hanging = [thread.name for thread in threads if thread.is_alive()]
    if hanging:
        raise AgentFailed(f"the {hanging[0]} did not end within {_END_S:g} s; look at its log")
