"""The agent's composition root: settings in, wired roles out."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.core.errors import HostFileError
from cpupool.core.names import Names
from cpupool.enforce.bandwidth import BandwidthKeeper
from cpupool.enforce.load_balancing import LoadBalancingKeeper
from cpupool.enforce.ways import Ways
from cpupool.host import bandwidth, cgroup_names, partitions
from cpupool.host.bandwidth import CFSBandwidth
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.files import DirectoryWatch, FileLock
from cpupool.host.mounts import Mounts
from cpupool.host.partitions import Partitions
from cpupool.host.pool_files import PoolFiles
from cpupool.host.status import StatusFile
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.kubelet.podresources import PodResources
from cpupool.manager.manager import Manager
from cpupool.manager.ports import NodeLabels, PodSource, Way
from cpupool.manager.usage import fragmentation, usage
from cpupool.policies.none import BUILT_IN
from cpupool.roles import configurator, cpusetter, device_manager, machine_watcher, nri_plugin
from cpupool.roles.configurator import Configurator
from cpupool.roles.cpusetter import CPUSetter
from cpupool.roles.device_manager import DeviceManager
from cpupool.roles.machine_watcher import MachineWatcher
from cpupool.roles.nri_plugin import MissingFacts, NRIPlugin
from cpupool.runtime.cri import CRI
from cpupool.supervisor import supervise
from cpupool.telemetry import log as logs
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from cpupool.telemetry.server import TelemetryServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cpupool.core.cpuset import CPUSet
    from cpupool.host.root import HostRoot
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.ports import ConfigMapSource, EventSink, TopologySource
    from cpupool.policies.base import CPUManagerPolicies
    from cpupool.roles.cpusetter import SweepReport
    from cpupool.runtime.nri_connection import Launch
    from cpupool.supervisor import Loop

log = logs.get(__name__)

SWEEP_INTERVAL_S: Final = 30.0
_STATUS: Final = "status"
_TELL_S: Final = 0.2
_IDLE_S: Final = 60.0
_KEPT_FILES: Final = {"cpuset.cpus", *bandwidth.FILES, *partitions.FILES}
"""What is kept of a container, and put back when somebody else has written it."""
_CGROUP_LEVELS: Final = 5
"""Below kubepods: QoS class, pod, and three that a runtime and a container may make."""
_SILENT_S: Final = 300.0
"""A loop that says nothing for so long, beside the time between two sweeps, hangs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the agent is told from outside.

    Attributes:
        config: the folder with `poolconfig-<name>.yaml` files.
        names: the public strings, with the resource domain.
        cgroup_root: the kubelet's `--cgroup-root`; empty to look in the usual places.
        interval_s: a sweep happens at least this often, whether or not an event calls for one.
        moves_pinned: as for `Manager`.
        telemetry: address, empty for every one, and port of probes and metrics; None for neither.
        starter: the process starter, for containers to have mounted; None for none.
        enforcement: as for `Ways`.
        missing_facts: as for `NRIPlugin`.
        cri_socket: the container runtime's; None to try the usual ones.
        launch: how the container runtime has started this process as its NRI plugin, if it has.
        cpu_managers: as for `Manager`.
    """

    config: Path
    names: Names = field(default_factory=Names)
    cgroup_root: str = ""
    interval_s: float = SWEEP_INTERVAL_S
    moves_pinned: bool = True
    telemetry: tuple[str, int] | None = None
    starter: Path | None = None
    enforcement: Way | None = None
    missing_facts: MissingFacts = MissingFacts.HOLD
    cri_socket: Path | None = None
    launch: Launch | None = None
    cpu_managers: CPUManagerPolicies = field(default_factory=lambda: BUILT_IN)


class Cluster(PodSource, NodeLabels, Protocol):
    """What the agent learns of its cluster, and where it tells something."""

    @property
    def events(self) -> EventSink:
        """Takes what pods' authors and the node's admin shall hear."""
        ...

    @property
    def config_map(self) -> ConfigMapSource | None:
        """The ConfigMap with the pool files; None where the folder of the settings counts."""
        ...

    def loops(self, beat: Callable[[str], None]) -> Mapping[str, Loop]:
        """Return what must run, by name, to hear from the cluster; each beats with its name."""
        ...

    def wake(self) -> None:
        """Let the loops notice that they shall stop."""
        ...


class Agent:
    """Everything that runs on a node.

    Args:
        settings: what the agent is told.
        root: where the machine's trees are.
        topology: the machine's CPUs.
        join: makes the cluster, from where it counts and what it calls when it knows something new.
        observe: called after each sweep.

    Attributes:
        manager: the node's state.
        health: what the probes answer.
        server: answers probes and scrapes; None where the settings want none.

    Raises:
        HostFileError: the port of the telemetry cannot be had.
    """

    def __init__(
        self,
        settings: Settings,
        root: HostRoot,
        topology: TopologySource,
        join: Callable[[Metrics, Callable[[], None]], Cluster],
        observe: Callable[[SweepReport], None] = lambda _report: None,
    ) -> None:
        self.manager = Manager(
            settings.names,
            moves_pinned=settings.moves_pinned,
            cpu_managers=settings.cpu_managers,
        )
        self.health = Health()
        self._silent_s = _SILENT_S + settings.interval_s
        self._metrics = Metrics()
        self._observe = observe
        self._lock = FileLock(root.lock)
        self._entering = threading.Lock()
        self._entered = False
        self._status = StatusFile(root.status)
        self._measured: NodeFacts | None = None
        self._told: SweepReport | None = None
        self._untold = threading.Event()
        self._heeded: tuple[bool, bool, Mapping[str, CPUSet]] = (False, False, {})
        self._cluster = join(self._metrics, self.wake)
        tree = CgroupFS(root.cgroup, settings.cgroup_root)
        quotas = CFSBandwidth(root.cgroup, settings.cgroup_root)
        self._watches = [
            DirectoryWatch(place, self._cgroup_changed, depth=_CGROUP_LEVELS, writes=True)
            for place in (*tree.places(), *quotas.places())
        ]
        self._cri = CRI(
            [settings.cri_socket] if settings.cri_socket else root.cri_sockets, settings.names
        )
        self._nri = NRIPlugin(
            self.manager,
            root.nri_socket,
            launch=settings.launch,
            required=settings.enforcement is Way.NRI,
            missing_facts=settings.missing_facts,
            ready=lambda: self._cpusetter.informed,
            look=self._tell_news,
            events=self._cluster.events,
            metrics=self._metrics,
            health=self.health,
        )
        self._plugged = settings.enforcement in {None, Way.NRI}
        if self._plugged:
            self._watches.append(DirectoryWatch(root.nri_socket.parent, self._runtime_changed))
        self._ways = Ways(settings.enforcement, self._nri if self._plugged else None, self._cri)
        self._machine_watcher = MachineWatcher(
            self.manager, topology, health=self.health, changed=self._topology_changed
        )
        self._cpusetter = CPUSetter(
            manager=self.manager,
            tree=tree,
            pods=self._cluster,
            devices=PodResources(root.podresources_socket),
            checkpoint=CheckpointFile(root.checkpoint),
            containers=self._cri,
            ways=self._ways,
            events=self._cluster.events,
            metrics=self._metrics,
            health=self.health,
            keepers=[
                BandwidthKeeper(quotas, self._ways, self._metrics),
                LoadBalancingKeeper(
                    Partitions(root.cgroup, os.uname().release, settings.cgroup_root)
                ),
            ],
            interval_s=settings.interval_s,
            swept=self._swept,
            refused=self._machine_watcher.wake,
        )
        self._configurator = Configurator(
            self.manager,
            PoolFiles(settings.config, self._cluster.config_map, last=root.last_config_map),
            last_good=root.last_good_pools,
            labels=self._cluster,
            topology=topology,
            events=self._cluster.events,
            metrics=self._metrics,
            health=self.health,
            changed=self._pools_changed,
        )
        self._device_manager = DeviceManager(
            self.manager,
            root,
            Mounts(
                root,
                settings.starter,
                mounted=CheckpointFile(root.checkpoint).mounted,
                events=self._cluster.events,
            ),
            metrics=self._metrics,
            health=self.health,
            kubelet_changed=self._cpusetter.kubelet_changed,
            ready=lambda: self._cpusetter.ready,
        )
        self.server = settings.telemetry and TelemetryServer(
            *settings.telemetry, self._metrics, self.health
        )

    def configure(self) -> None:
        """Put this node's pools in force; without it, `run` does, and waits where they are refused.

        Raises:
            ConfigError: the pool files are refused, or they are unsafe on this machine.
            CPUPoolError: something cannot be read.
        """
        self._configurator.load()

    def wake(self) -> None:
        """Look at pods and pools now: something of the cluster has changed."""
        self._cpusetter.tell_news()
        self._configurator.wake()

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set; while another agent runs on this node, wait.

        Raises:
            LoopFailed: a loop ended with an error.
        """
        work = {
            machine_watcher.NAME: self._machine_watcher.run,
            device_manager.NAME: self._device_manager.run,
            cpusetter.NAME: self._cpusetter.run,
            configurator.NAME: self._configurator.run,
        }
        if self._plugged:
            work[nri_plugin.NAME] = self._nri.run
        loops: dict[str, Loop] = {
            name: partial(self._once_alone, name, work[name]) for name in work
        }
        loops[_STATUS] = self._tell
        loops.update(self._cluster.loops(self.health.beat))
        for name in loops.keys() - work.keys():
            self.health.expect(name, self._silent_s)
        # Its own hang is a probe without an answer.
        if self.server:
            loops["telemetry"] = self.server.run
        try:
            supervise(loops, stop, self._wake_all)
        finally:
            for watch in self._watches:
                watch.stop()
            self._lock.release()

    def _once_alone(self, name: str, loop: Loop, stop: threading.Event) -> None:
        if self._alone(stop):
            self.health.expect(name, self._silent_s)
            loop(stop)

    def _alone(self, stop: threading.Event) -> bool:
        """Wait until no other agent runs on this node; tell whether it came to that."""
        # The first loop that comes here asks for all.
        with self._entering:
            if not self._entered and not stop.is_set():
                try:
                    self._entered = self._lock.acquire(stop, self._tell_waiting)
                except HostFileError as error:
                    log.warning("another agent on this node would not be noticed", reason=error)
                    self._entered = True
                if self._entered:
                    # Whoever has not spoken yet must not look ready.
                    for condition in (
                        cpusetter.NAME,
                        device_manager.CONDITION,
                        configurator.CONDITION,
                    ):
                        self.health.set(condition, ok=False, message="it is starting; wait")
                    self.health.set("node", ok=True)
            return self._entered

    def _tell_waiting(self) -> None:
        self.health.set("node", ok=False, message="another agent runs here; end one of the two")
        log.warning("another agent runs on this node, waiting for its end")

    def _wake_all(self) -> None:
        self.wake()
        self._machine_watcher.wake()
        self._device_manager.wake()
        self._cluster.wake()
        self._nri.wake()
        self._untold.set()
        if self.server:
            self.server.wake()

    def _tell_news(self) -> None:
        self._cpusetter.tell_news()

    def _runtime_changed(self, _path: Path) -> None:
        # A runtime that has restarted waits for nobody before it creates containers.
        self._nri.wake()

    def _cgroup_changed(self, path: Path) -> None:
        # Every exec writes cgroup.procs, which moves no container: only sets and new cgroups count.
        if cgroup_names.is_cgroup(path.name):
            self._cpusetter.tell_news()
        elif path.name in _KEPT_FILES:
            self._cpusetter.wake()

    def _topology_changed(self) -> None:
        self._cpusetter.tell_news()
        # A file that was refused may fit the machine now.
        self._configurator.wake()

    def _pools_changed(self) -> None:
        # They were checked against a reading of the machine that may be old by now.
        self._machine_watcher.wake()
        self._device_manager.wake()
        self._cpusetter.tell_news()

    def _swept(self, swept: SweepReport) -> None:
        for watch in self._watches:
            watch.ensure()
        self._nri.facts_changed()
        _, resolution = self.manager.snapshot()
        heeded = (self._cpusetter.informed, self._cpusetter.ready, resolution.shared)
        if heeded != self._heeded:
            self._heeded = heeded
            self._device_manager.wake()
            self._nri.wake()
        if swept.overwritten:
            self._device_manager.announce(swept.overwritten)
        self._told = swept
        self._untold.set()
        self._observe(swept)

    def _tell(self, stop: threading.Event) -> None:
        """Publish what the last sweep saw; the next one does not wait for a disk."""
        while not stop.is_set():
            self.health.beat(_STATUS)
            self._untold.wait(_IDLE_S)
            self._untold.clear()
            swept = self._told
            if swept is not None:
                facts, resolution = self.manager.snapshot()
                way = self._ways.node
                self._metrics.enforced_by(way.value, [one.value for one in Way])
                self._measure(facts)
                self._status.publish(
                    facts,
                    resolution,
                    swept.found,
                    swept.waiting_for,
                    way,
                    choices=self.manager.choices(),
                )
            stop.wait(_TELL_S)

    def _measure(self, facts: NodeFacts) -> None:
        if facts is self._measured:
            return
        self._measured = facts
        counted = usage(facts)
        self._metrics.keep_pools([pool.name for pool in counted])
        for pool in counted:
            self._metrics.pool(
                pool.name,
                pool.kind.value,
                capacity=pool.capacity,
                allocated=pool.allocated,
                offline=pool.offline,
                draining=pool.draining,
            )
        for name, scores in fragmentation(facts).items():
            self._metrics.fragmentation(name, scores)
