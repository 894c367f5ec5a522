"""The agent's composition root: settings in, wired roles out."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cpupool.enforce.load_balancing import LoadBalancingGoal
from cpupool.enforce.mover import Mover
from cpupool.enforce.properties import PropertiesGoal
from cpupool.enforce.quotas import QuotaGoal
from cpupool.enforce.sweep import Sweep
from cpupool.enforce.writers import Writers
from cpupool.host import files
from cpupool.host.answer_record import AnswerRecord
from cpupool.host.bandwidth import CFSBandwidth
from cpupool.host.cgroup_memory import CgroupMemory
from cpupool.host.cgroup_properties import CgroupProperties
from cpupool.host.cgroupfs import CgroupFS, CgroupVersion, hierarchy
from cpupool.host.choice_record import ChoiceRecord
from cpupool.host.cpu_time import CPUTimes
from cpupool.host.files import FileLock
from cpupool.host.mounts import Mounts
from cpupool.host.partitions import Partitions
from cpupool.host.pool_files import PoolFiles
from cpupool.host.status_file import StatusFile
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.kubelet.podresources import PodResources
from cpupool.kubelet.podresources_service import ExtendedPodResources
from cpupool.kubelet.qrm_checkpoint import QRMCheckpoints
from cpupool.kubelet.serving import ServedSocket, Server
from cpupool.manager.learner import Learner
from cpupool.manager.manager import Manager
from cpupool.manager.ports import Writer
from cpupool.one_agent import OneAgent
from cpupool.roles import (
    configurator,
    cpu_annotator,
    cpusetter,
    device_manager,
    load_watcher,
    machine_watcher,
    memory_keeper,
    mount_keeper,
    node_resources,
    nri_plugin,
    pod_failer,
    reporter,
    resource_manager,
    topology_reporter,
)
from cpupool.roles.answer_import import AnswerImport
from cpupool.roles.configurator import Configurator
from cpupool.roles.cpu_annotator import CPUAnnotator
from cpupool.roles.cpusetter import CPUSetter
from cpupool.roles.device_manager import DeviceManager
from cpupool.roles.load_watcher import LoadWatcher
from cpupool.roles.machine_watcher import MachineWatcher
from cpupool.roles.memory_keeper import MemoryKeeper
from cpupool.roles.mount_keeper import MountKeeper
from cpupool.roles.node_resources import NodeResources
from cpupool.roles.nri_plugin import NRIPlugin
from cpupool.roles.plugin_offers import PluginOffers
from cpupool.roles.pod_failer import PodFailer
from cpupool.roles.reporter import Reporter
from cpupool.roles.resource_manager import ResourceManager
from cpupool.roles.topology_reporter import TopologyReporter, surroundings
from cpupool.runtime.cri import CRI
from cpupool.runtime.nri import NRIRuntime
from cpupool.signals import Signals
from cpupool.supervisor import supervise
from cpupool.telemetry import log as logs
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from cpupool.telemetry.server import TelemetryServer
from cpupool.wire import orchestration

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.koordinator import NodeRules
    from cpupool.core.workloads import ContainerID
    from cpupool.enforce.repair import Goal
    from cpupool.enforce.sweep import SweepReport
    from cpupool.host.root import HostRoot
    from cpupool.manager.ports import EventSink, TopologySource
    from cpupool.setup import Cluster, Setup
    from cpupool.supervisor import Loop

log = logs.get(__name__)

_OptionalRole = PodFailer | CPUAnnotator | TopologyReporter | ResourceManager | NodeResources
_SILENT_S: Final = 300.0
"""A loop that says nothing for so long, beside the time between two sweeps, hangs."""


class Agent:
    """Everything that runs on a node.

    Args:
        settings: its settings.
        root: where the machine's trees are.
        topology: the machine's CPUs.
        join: makes the cluster, from where it counts and the signals of what it learns.
        observe: called after each sweep.

    Attributes:
        manager: the node's state.
        health: what the probes answer.
        resource_manager: lets plugins decide; without their folders, earlier answers still count.
        server: answers probes and scrapes; None where the settings want none.

    Raises:
        HostFileError: the port of the telemetry cannot be had.
    """

    def __init__(
        self,
        settings: Setup,
        root: HostRoot,
        topology: TopologySource,
        join: Callable[[Metrics, Signals], Cluster],
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
        self._signals = signals = Signals()
        self._observe = observe
        self._one_agent = OneAgent(
            FileLock(root.lock),
            self.health,
            self._silent_s,
            unready=(cpusetter.NAME, device_manager.CONDITION, configurator.CONDITION),
            entered=partial(self._enter, root),  # only the one agent writes there
            serving_s={nri_plugin.NAME: 45.0},  # at rest it beats every 30 s
        )
        cluster = self._cluster = join(self._metrics, signals)
        placed: dict[ContainerID, CPUSet] = {}
        sockets = [settings.cri_socket] if settings.cri_socket else root.cri_sockets
        look, launch = signals.runtime, settings.launch
        nri = NRIRuntime(root.nri_socket, settings.names, look=look, launch=launch, memory=placed)
        cri = CRI(sockets, settings.names, memory=placed, awaits=nri.awaits)
        self._plugged = settings.enforcement in {None, Writer.NRI}
        plugin = nri if self._plugged else None
        writers = Writers(settings.enforcement, plugin, cri, lambda: self._nri.waits)
        self._machine_watcher = MachineWatcher(
            self.manager, topology, health=self.health, changed=signals.machine
        )
        self._load_watcher = LoadWatcher(
            self.manager,
            CPUTimes(root.proc, root.cgroup, settings.cgroup_root).read,
            health=self.health,
            changed=signals.load,
        )
        events = cluster.events
        self._record = ChoiceRecord(
            self.manager, root.choices, root.boot_id, events=events, metrics=self._metrics
        )
        self.resource_manager = _resource_manager(
            settings,
            root,
            self.manager,
            events=self._cluster.events,
            metrics=self._metrics,
            health=self.health,
            changed=signals.answers,
            declares=self._cluster.node_status is not None,
        )
        tree = CgroupFS(root.cgroup, settings.cgroup_root)
        self._cpusetter = self._make_cpusetter(settings, root, tree, writers, cri)
        memory = CgroupMemory(root.cgroup, settings.cgroup_root)
        self._memory_keeper = MemoryKeeper(
            self._record.decided,
            memory,
            placed=placed,
            look=signals.runtime,
            events=self._cluster.events,
            metrics=self._metrics,
            health=self.health,
        )
        self._nri = NRIPlugin(
            self.manager,
            nri,
            required=settings.enforcement is Writer.NRI,
            missing_facts=settings.missing_facts,
            ready=lambda: self._cpusetter.informed,
            with_memory=memory.with_memory,
            found=tree.containers,
            look=signals.runtime,
            appears=root.nri_socket.parent,
            events=self._cluster.events,
            metrics=self._metrics,
            health=self.health,
            decided=self._record.decided,
            waits=settings.nri_waits,
        )
        self._configurator = Configurator(
            self.manager,
            PoolFiles(
                settings.config, cluster.config_map, last=root.last_config_map, complain=events.node
            ),
            last_good=root.last_good_pools,
            labels=self._cluster,
            topology=topology,
            events=self._cluster.events,
            metrics=self._metrics,
            health=self.health,
            changed=signals.pools,
        )
        mounts = Mounts(
            root,
            settings.starter,
            mounted=CheckpointFile(root.checkpoint).mounted,
            events=self._cluster.events,
        )
        self._mount_keeper = MountKeeper(
            self.manager,
            mounts,
            health=self.health,
            ready=self._is_ready,
            provided=signals.mounts,
        )
        self._device_manager = DeviceManager(
            self.manager,
            root,
            mounts,
            metrics=self._metrics,
            health=self.health,
            kubelet_changed=signals.kubelet,
            ready=self._is_ready,
        )
        self._reporter = Reporter(
            self.manager,
            writers,
            StatusFile(root.status),
            metrics=self._metrics,
            health=self.health,
            plugins=self.resource_manager.reports.report,
        )
        self._optional = _optional(
            settings,
            root,
            self._cluster,
            plugins=self.resource_manager,
            manager=self.manager,
            metrics=self._metrics,
            health=self.health,
            ready=self._is_ready,
        )
        address = settings.telemetry
        self.server = address and TelemetryServer(*address, self._metrics, self.health)
        self._connect(signals)

    def configure(self) -> None:
        """Put this node's pools in force; without it, `run` does, and waits where they are refused.

        Raises:
            ConfigError: the pool files are refused, or they are unsafe on this machine.
            CPUPoolError: something cannot be read.
        """
        self._configurator.load()

    def wake(self) -> None:
        """Look at pods and pools now: something of the cluster has changed."""
        self._signals.cluster()

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set; while another agent runs on this node, wait.

        Raises:
            LoopFailed: a loop ended with an error.
        """
        work = {
            machine_watcher.NAME: self._machine_watcher.run,
            load_watcher.NAME: self._load_watcher.run,
            device_manager.NAME: self._device_manager.run,
            mount_keeper.NAME: self._mount_keeper.run,
            cpusetter.NAME: self._cpusetter.run,
            memory_keeper.NAME: self._memory_keeper.run,
            configurator.NAME: self._configurator.run,
        }
        if self._plugged:
            work[nri_plugin.NAME] = self._nri.run
        work |= {name: role.run for name, role in self._optional.items()}
        loops: dict[str, Loop] = {
            name: partial(self._one_agent.run, name, work[name]) for name in work
        }
        loops[reporter.NAME] = self._reporter.run
        loops.update(self._cluster.loops(self.health.beat))
        for name in loops.keys() - work.keys():
            self.health.expect(name, self._silent_s)
        # Its own hang is a probe without an answer.
        if self.server:
            loops["telemetry"] = self.server.run
        try:
            supervise(loops, stop, self._signals.stop, self.health.stuck)
        finally:
            self._one_agent.release()

    def _make_cpusetter(
        self, settings: Setup, root: HostRoot, tree: CgroupFS, writers: Writers, cri: CRI
    ) -> CPUSetter:
        quotas = CFSBandwidth(root.cgroup, settings.cgroup_root)
        learner = Learner(
            self.manager,
            pods=self._cluster,
            devices=PodResources(root.podresources_socket),
            checkpoint=CheckpointFile(root.checkpoint),
            containers=cri,
            nri=writers.asks,
            rules=partial(_rules, self._cluster),
        )
        mover = Mover(
            self.manager,
            tree,
            writers,
            self._metrics,
            beat=lambda: self.health.beat(cpusetter.NAME),
            refused=self._signals.refused,
            now_s=time.monotonic,
            decided=self._record.decided,
        )
        sweep = Sweep(
            manager=self.manager,
            tree=tree,
            writers=writers,
            learner=learner,
            mover=mover,
            goals=_goals(settings, root, quotas, writers, self._metrics),
            events=self._cluster.events,
            metrics=self._metrics,
            now_s=time.monotonic,
            cpu_s=time.thread_time,
            recorded=self._record.recorded,
            take_over=self.resource_manager.take_over,
        )
        return CPUSetter(
            sweep,
            learner,
            stays=lambda cgroup: mover.stays(tree.relative(cgroup)),
            places=dict.fromkeys(tree.places(), True) | dict.fromkeys(quotas.places(), False),
            metrics=self._metrics,
            health=self.health,
            interval_s=settings.interval_s,
            swept=self._swept,
            readiness_changed=self._signals.readiness,
        )

    def _connect(self, signals: Signals) -> None:
        """Connect each signal with the roles that look then."""
        sweep, pools = self._cpusetter.wake_at_once, self._configurator.wake
        devices, mounts, nri = self._device_manager, self._mount_keeper, self._nri
        machine, load, memory = self._machine_watcher, self._load_watcher, self._memory_keeper
        signals.pods.wakes(self._cpusetter.facts_changed)
        signals.cluster.wakes(sweep, pools)
        # A file that was refused may fit the machine now.
        signals.machine.wakes(sweep, pools)
        signals.load.wakes(sweep)
        signals.answers.wakes(sweep, nri.facts_changed)
        # The pools were checked against a reading of the machine that may be old by now.
        signals.pools.wakes(machine.wake, load.wake, devices.wake, mounts.wake, sweep)
        signals.kubelet.wakes(self._cpusetter.kubelet_changed)
        signals.runtime.wakes(self._cpusetter.facts_changed)
        signals.refused.wakes(machine.wake)
        signals.readiness.wakes(devices.wake, mounts.wake, nri.wake)
        signals.mounts.wakes(devices.wake)
        signals.swept.wakes(nri.facts_changed)
        signals.stop.wakes(sweep, pools, devices.wake, mounts.wake, nri.wake, self._cluster.wake)
        signals.stop.wakes(machine.wake, load.wake, memory.wake, self._reporter.wake)
        for role in self._optional.values():
            signals.swept.wakes(role.look)
            signals.stop.wakes(role.wake)
        if self.server:
            signals.stop.wakes(self.server.wake)

    def _enter(self, root: HostRoot) -> None:
        """Begin as the one agent of the node."""
        files.remove_unfinished(root.state, root.run)
        self.resource_manager.recall()

    def _swept(self, report: SweepReport) -> None:
        self._signals.swept()
        self._mount_keeper.swept(report.overwritten)
        self._memory_keeper.swept(report)
        self._reporter.swept(report)
        self._observe(report)

    def _is_ready(self) -> bool:
        return self._cpusetter.ready


def _goals(
    settings: Setup, root: HostRoot, quotas: CFSBandwidth, writers: Writers, metrics: Metrics
) -> list[Goal[Any, Any]]:
    """Return what the cpusetter keeps after the CPUs."""
    partitions = Partitions(root, os.uname().release, settings.cgroup_root)
    return [
        QuotaGoal(quotas, writers, metrics),
        PropertiesGoal(CgroupProperties(root.cgroup, settings.cgroup_root), writers, metrics),
        LoadBalancingGoal(partitions),
    ]


def _resource_manager(
    settings: Setup,
    root: HostRoot,
    manager: Manager,
    *,
    events: EventSink,
    metrics: Metrics,
    health: Health,
    changed: Callable[[], None],
    declares: bool,
) -> ResourceManager:
    return ResourceManager(
        manager,
        settings.plugin_folders,
        AnswerRecord(root.answers, events.node),
        AnswerImport(QRMCheckpoints(root.qrm_checkpoints), events),
        events=events,
        metrics=metrics,
        health=health,
        changed=changed,
        v2=hierarchy(root.cgroup)[1] is CgroupVersion.V2,
        names=settings.plugin_names,
        doors=(_podresources(root, manager),),
        offers=PluginOffers(changed) if declares else None,
        reconcile_s=settings.reconcile_s,
    )


def _podresources(root: HostRoot, manager: Manager) -> ServedSocket:
    asked = PodResources(root.podresources_socket)
    service = ExtendedPodResources(asked, lambda: manager.snapshot().facts)
    return ServedSocket(
        root.extended_podresources_socket, lambda: Server(service), "extended podresources"
    )


def _rules(cluster: Cluster) -> NodeRules | None:
    node = cluster.node()
    return orchestration.of_node(node.labels, node.annotations) if node else None


def _optional(
    settings: Setup,
    root: HostRoot,
    cluster: Cluster,
    *,
    plugins: ResourceManager,
    manager: Manager,
    metrics: Metrics,
    health: Health,
    ready: Callable[[], bool],
) -> dict[str, _OptionalRole]:
    """Return the role for plugins, and those that write to the API server, where it takes it."""
    roles: dict[str, _OptionalRole] = {}
    if settings.plugin_folders:
        roles[resource_manager.NAME] = plugins
    if (written := cluster.node_status) and (offers := plugins.offers):
        roles[node_resources.NAME] = NodeResources(
            written,
            lambda: offers.known,
            node=cluster.node,
            names=settings.names,
            report=plugins.reports.in_node,
            health=health,
        )
    if status := cluster.pod_status:
        roles[pod_failer.NAME] = PodFailer(
            manager, status, after_s=settings.fail_misfit_after_s, health=health
        )
    if annotations := cluster.pod_annotations:
        roles[cpu_annotator.NAME] = CPUAnnotator(manager, annotations, health=health)
    if sink := cluster.topology:
        roles[topology_reporter.NAME] = TopologyReporter(
            manager,
            sink,
            settings.publishing,
            names=settings.names,
            node=cluster.node,
            node_name=settings.node_name,
            around=surroundings(root, settings.kubelet_config, settings.publishing),
            ready=ready,
            events=cluster.events,
            metrics=metrics,
            health=health,
        )
    return roles
