"""The agent as a whole: this module makes its roles, connects them, and runs them.

It is the one place that knows every role. A role knows no other role: it tells of a `Change`, and
`_connect` lists the roles that look then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.agent import (
    compactor,
    configurator,
    cpusetter,
    device_manager,
    load_watcher,
    machine_watcher,
    memory_keeper,
    mount_keeper,
    own_cpus_keeper,
    reporter,
)
from cpupool.agent.changes import Change, Signals
from cpupool.agent.cluster_writers import cluster_writers
from cpupool.agent.compactor import Compactor
from cpupool.agent.configurator import Configurator
from cpupool.agent.device_manager import DeviceManager
from cpupool.agent.enforcement import Enforcement
from cpupool.agent.load_watcher import LoadWatcher
from cpupool.agent.machine_watcher import MachineWatcher
from cpupool.agent.mount_keeper import MountKeeper
from cpupool.agent.reporter import Reporter
from cpupool.agent.single_instance import SingleInstance
from cpupool.host import files
from cpupool.host.cpu_time import CPUTimes
from cpupool.host.files import FileLock
from cpupool.host.mounts import Mounts
from cpupool.host.pool_files import PoolFiles
from cpupool.host.status_file import StatusFile
from cpupool.host.usable_cpus import UsableCPUs
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.loops.supervisor import supervise
from cpupool.loops.telemetry import Telemetry
from cpupool.qrm import resource_manager
from cpupool.qrm.assembly import make_node_resources, make_resource_manager
from cpupool.runtime.nri import plugin as nri_plugin
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from cpupool.telemetry.server import TelemetryServer

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from cpupool.agent.cluster_writers import ClusterWriter
    from cpupool.agent.setup import Cluster, Setup
    from cpupool.enforce.sweep import SweepReport
    from cpupool.host.root import HostRoot
    from cpupool.host.usable_cpus import TopologySource
    from cpupool.loops.supervisor import Loop
    from cpupool.manager.manager import Manager
    from cpupool.qrm.node_resources_writer import NodeResources

_SILENT_S: Final = 300.0
"""A loop that says nothing for so long, beside the time between two sweeps, hangs."""


class Role(Protocol):
    """A loop of the agent."""

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; `wake` after setting it returns at once."""
        ...

    def wake(self) -> None:
        """Look now, and end if `stop` is set."""
        ...


class Agent:
    """All roles of the agent of a node.

    Args:
        manager: the node's state.
        settings: its settings.
        root: where the machine's trees are.
        topology: the machine's CPUs.
        join: makes the cluster, which counts in these metrics and tells of changes by the signals.
        observe: called after each sweep.

    Attributes:
        manager: as given.
        health: the source of the answers to probes.
        resource_manager: lets plugins decide; without their folders, earlier answers stay valid.
        notices: returns when the notices of containers end, in Unix time.
        server: answers probes and scrapes; None where the settings want none.

    Raises:
        HostFileError: the port of the telemetry cannot be had.
    """

    def __init__(
        self,
        manager: Manager,
        settings: Setup,
        root: HostRoot,
        topology: TopologySource,
        join: Callable[[Metrics, Signals], Cluster],
        *,
        observe: Callable[[SweepReport], None] = lambda _report: None,
    ) -> None:
        self.manager = manager
        self.health = Health()
        self._settings, self._root, self._observe = settings, root, observe
        self._silent_s = _SILENT_S + settings.interval_s
        self._metrics, self._signals = Metrics(), Signals()
        self._cluster = join(self._metrics, self._signals)
        self._telemetry = Telemetry(self._cluster.events, self._metrics, self.health)
        self._single_instance = self._make_single_instance()
        self.resource_manager = make_resource_manager(
            manager,
            settings.plugins,
            root,
            telemetry=self._telemetry,
            changed=self._signals.of(Change.ANSWERS),
        )
        enforcement = self._enforcement = Enforcement(
            manager,
            settings,
            root,
            cluster=self._cluster,
            signals=self._signals,
            telemetry=self._telemetry,
            take_over=self.resource_manager.take_over,
            swept=self._swept,
        )
        self._cpusetter = enforcement.cpusetter
        self.notices = enforcement.own_cpus_keeper.notices
        # The machine, and how its CPUs are shared out.
        cpus = UsableCPUs(topology, root.cgroup, root.cgroup_root)
        self._machine_watcher = self._make_machine_watcher(cpus)
        self._load_watcher = self._make_load_watcher()
        self._compactor = Compactor(
            manager,
            telemetry=self._telemetry,
            ready=enforcement.may_move,
            begun=self._signals.of(Change.RUNTIME),
        )
        self._configurator = self._make_configurator(cpus)
        # The files of containers, the kubelet, the API server, and the status file.
        mounts = self._make_mounts()
        self._mount_keeper = self._make_mount_keeper(mounts)
        self._device_manager = self._make_device_manager(mounts)
        node_resources = make_node_resources(
            self.resource_manager,
            self._cluster.node_status,
            self._cluster.node,
            manager=manager,
            telemetry=self._telemetry,
        )
        self._cluster_writers: Mapping[str, ClusterWriter | NodeResources] = {
            **node_resources,
            **cluster_writers(
                manager,
                settings,
                root,
                cluster=self._cluster,
                telemetry=self._telemetry,
                ready=self._is_ready,
            ),
        }
        self._reporter = self._make_reporter()
        address = settings.telemetry
        self.server = address and TelemetryServer(*address, self._metrics, self.health)
        self._connect()

    def configure(self) -> None:
        """Put this node's pools in force.

        The caller need not: `run` does it, too, and waits while the pools are refused.

        Raises:
            ConfigError: the pool files are refused, or they are unsafe on this machine.
            CPUPoolError: something cannot be read.
        """
        self._configurator.load()

    def wake(self) -> None:
        """Look at pods and pools now, because the cluster has changed."""
        self._signals.tell(Change.CLUSTER)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set, and wait while another agent runs on this node.

        Raises:
            LoopFailed: a loop ended with an error.
        """
        alone = self._roles()
        loops: dict[str, Loop] = {
            name: partial(self._single_instance.run, name, role.run) for name, role in alone.items()
        }
        loops[reporter.NAME] = self._reporter.run
        loops.update(self._cluster.loops(self.health.beat))
        for name in loops.keys() - alone.keys():
            self.health.expect(name, self._silent_s)
        # It has no heartbeat: if it hangs, the probe gets no answer.
        if self.server:
            loops["telemetry"] = self.server.run
        try:
            supervise(loops, stop, self._signals.of(Change.STOP), self.health.stuck)
        finally:
            self._single_instance.release()

    def _roles(self) -> dict[str, Role]:
        """Return the roles that only one agent on the node may have."""
        roles: dict[str, Role] = {
            machine_watcher.NAME: self._machine_watcher,
            load_watcher.NAME: self._load_watcher,
            device_manager.NAME: self._device_manager,
            mount_keeper.NAME: self._mount_keeper,
            cpusetter.NAME: self._cpusetter,
            memory_keeper.NAME: self._enforcement.memory_keeper,
            own_cpus_keeper.NAME: self._enforcement.own_cpus_keeper,
            configurator.NAME: self._configurator,
            compactor.NAME: self._compactor,
        }
        if self._settings.runtime.plugged:
            roles[nri_plugin.NAME] = self._enforcement.nri
        if self._settings.plugins.folders:
            roles[resource_manager.NAME] = self.resource_manager
        return {**roles, **self._cluster_writers}

    def _make_single_instance(self) -> SingleInstance:
        return SingleInstance(
            FileLock(self._root.lock),
            self.health,
            self._silent_s,
            unready=(cpusetter.NAME, device_manager.CONDITION, configurator.CONDITION),
            entered=self._enter,
            serving_s={nri_plugin.NAME: 45.0},  # at rest it beats every 30 s
        )

    def _make_machine_watcher(self, cpus: UsableCPUs) -> MachineWatcher:
        return MachineWatcher(
            self.manager,
            cpus,
            health=self.health,
            changed=self._signals.of(Change.MACHINE),
            withholding=cpus,
        )

    def _make_load_watcher(self) -> LoadWatcher:
        root = self._root
        return LoadWatcher(
            self.manager,
            CPUTimes(root.proc, root.cgroup, root.cgroup_root).read,
            health=self.health,
            changed=self._signals.of(Change.LOAD),
        )

    def _make_configurator(self, cpus: UsableCPUs) -> Configurator:
        return Configurator(
            self.manager,
            PoolFiles(
                self._settings.config,
                self._cluster.config_map,
                last=self._root.last_config_map,
                complain=self._cluster.events.node,
            ),
            last_good=self._root.last_good_pools,
            labels=self._cluster,
            topology=cpus,
            telemetry=self._telemetry,
            changed=self._signals.of(Change.POOLS),
        )

    def _make_mounts(self) -> Mounts:
        return Mounts(
            self._root,
            self._settings.starter,
            mounted=CheckpointFile(self._root.checkpoint).mounted,
            events=self._cluster.events,
        )

    def _make_mount_keeper(self, mounts: Mounts) -> MountKeeper:
        return MountKeeper(
            self.manager,
            mounts,
            health=self.health,
            ready=self._is_ready,
            provided=self._signals.of(Change.MOUNTS),
        )

    def _make_device_manager(self, mounts: Mounts) -> DeviceManager:
        return DeviceManager(
            self.manager,
            self._root,
            mounts,
            telemetry=self._telemetry,
            kubelet_changed=self._signals.of(Change.KUBELET),
            ready=self._is_ready,
        )

    def _make_reporter(self) -> Reporter:
        return Reporter(
            self.manager,
            self._enforcement.writers,
            StatusFile(self._root.status),
            telemetry=self._telemetry,
            plugins=self.resource_manager.reports.report,
            notices=self.notices,
        )

    def _connect(self) -> None:
        """Connect each change with the roles that look then."""
        sweep, learn = self._cpusetter.wake_at_once, self._cpusetter.facts_changed
        machine, load = self._machine_watcher.wake, self._load_watcher.wake
        pools, devices = self._configurator.wake, self._device_manager.wake
        mounts, nri = self._mount_keeper.wake, self._enforcement.nri
        roles = [*self._roles().values(), self._reporter]
        after_sweeps = [
            self._compactor,
            self.resource_manager,
            *self._cluster_writers.values(),
        ]
        self._signals.connect(
            {
                Change.PODS: [self._cpusetter.pods_changed],
                Change.CLUSTER: [sweep, pools],
                # A file that was refused may fit the machine now.
                Change.MACHINE: [sweep, pools],
                Change.LOAD: [sweep],
                Change.ANSWERS: [sweep, nri.facts_changed],
                # The pools were checked against a reading of the machine that may be old by now.
                Change.POOLS: [machine, load, self._compactor.wake, devices, mounts, sweep],
                Change.KUBELET: [self._cpusetter.kubelet_changed],
                Change.RUNTIME: [learn],
                Change.REFUSED: [machine],
                Change.READINESS: [devices, mounts, nri.wake],
                Change.MOUNTS: [devices],
                Change.NOTICES: [self._reporter.wake],
                Change.SWEPT: [nri.facts_changed, *(role.look for role in after_sweeps)],
                Change.STOP: [
                    sweep,
                    self._cluster.wake,
                    *(role.wake for role in roles),
                    *([self.server.wake] if self.server else []),
                ],
            }
        )

    def _enter(self) -> None:
        """Begin as the one agent of the node."""
        # No other agent writes there now.
        files.remove_unfinished(self._root.state, self._root.run)
        self.resource_manager.recall()

    def _swept(self, report: SweepReport) -> None:
        self._signals.tell(Change.SWEPT)
        self._mount_keeper.swept(report.overwritten)
        self._enforcement.swept(report)
        self._reporter.swept(report)
        self._observe(report)

    def _is_ready(self) -> bool:
        return self._cpusetter.ready
