"""This module makes the roles that bring containers onto their CPUs and keep them there.

These are the cpusetter with the parts of its sweep, the NRI plugin, and the memory keeper. They
share the two ways to the container runtime, NRI and CRI.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from cpupool.agent import cpusetter
from cpupool.agent.cgroup_news import CgroupNews
from cpupool.agent.changes import Change
from cpupool.agent.cpusetter import CPUSetter
from cpupool.agent.memory_keeper import MemoryKeeper
from cpupool.agent.own_cpus_keeper import OwnCPUsKeeper
from cpupool.agent.owners import NodeOwners
from cpupool.core.cgroups import Writer
from cpupool.enforce.announcer import Announcer
from cpupool.enforce.directories import Directories
from cpupool.enforce.load_balancing import LoadBalancingGoal
from cpupool.enforce.mover import Mover
from cpupool.enforce.properties import PropertiesGoal
from cpupool.enforce.quota_repair import QuotaGoal, starts_right
from cpupool.enforce.sweep import Sweep
from cpupool.enforce.writer_choice import Writers
from cpupool.host import cgroup_names
from cpupool.host.bandwidth import CFSBandwidth
from cpupool.host.cgroup_memory import CgroupMemory
from cpupool.host.cgroup_properties import CgroupProperties
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.choice_record import ChoiceRecord
from cpupool.host.isolated_partitions import Partitions
from cpupool.host.own_folders import OwnFolders
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.kubelet.podresources import PodResources
from cpupool.manager.learner import Learner
from cpupool.runtime.cri import CRI
from cpupool.runtime.nri.adapter import NRIRuntime
from cpupool.runtime.nri.conversation import Conversation
from cpupool.runtime.nri.holding import Obstacles
from cpupool.runtime.nri.plugin import NRIPlugin
from cpupool.runtime.nri.responses import Responses
from cpupool.runtime.nri.wait_before_connecting import ConnectionWait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cpupool.agent.changes import Signals
    from cpupool.agent.setup import Cluster, Setup
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.orchestration import NodeRules
    from cpupool.core.workloads import ContainerID
    from cpupool.enforce.repair import Goal
    from cpupool.enforce.sweep import SweepReport
    from cpupool.host.root import HostRoot
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.manager import Manager
    from cpupool.telemetry.metrics import Metrics
    from cpupool.wire.cpu_manager_state import State


class Enforcement:
    """Makes the roles that write where containers run.

    Args:
        manager: decides where each container belongs.
        settings: say how often to look, and how to speak with the container runtime.
        root: where the machine's trees are.
        cluster: has the pods, and the node's annotations.
        signals: wake the roles that look at a change.
        telemetry: takes the roles' reports.
        take_over: called before the first move, once the pods are known, with every container's
            directory and an earlier agent's record of its choices.
        swept: called after each sweep, on the sweeping thread.

    Attributes:
        cpusetter: sweeps the cgroups.
        nri: answers the container runtime.
        memory_keeper: keeps memory nodes.
        own_cpus_keeper: tells containers how their own CPUs change.
        writers: know which way writes each container.
    """

    def __init__(
        self,
        manager: Manager,
        settings: Setup,
        root: HostRoot,
        *,
        cluster: Cluster,
        signals: Signals,
        telemetry: Telemetry,
        take_over: Callable[[Sequence[FoundContainer], State | None], None],
        swept: Callable[[SweepReport], None],
    ) -> None:
        self._manager, self._settings, self._root = manager, settings, root
        self._cluster, self._taken_over = cluster, take_over
        self._signals, self._telemetry = signals, telemetry
        self._look = signals.of(Change.RUNTIME)
        self._record = ChoiceRecord(
            manager,
            root.choices,
            root.boot_id,
            events=telemetry.events,
            metrics=telemetry.metrics,
        )
        self._tree = CgroupFS(root.cgroup, root.cgroup_root)
        memory = CgroupMemory(root.cgroup, root.cgroup_root)
        placed: dict[ContainerID, CPUSet] = {}
        runtime = settings.runtime
        nri = NRIRuntime(
            root.nri_socket,
            manager.names,
            look=self._look,
            started=self._container_started,
            launch=runtime.launch,
            memory=placed,
            allows=lambda key, cpus: manager.snapshot().allows(key, cpus),
        )
        sockets = [runtime.cri_socket] if runtime.cri_socket else root.cri_sockets
        cri = CRI(sockets, manager.names, memory=placed, awaits=nri.awaits)
        wait = ConnectionWait(
            manager,
            nri,
            found=self._tree.containers,
            rules=runtime.waits,
            look=self._look,
            metrics=telemetry.metrics,
            now_s=time.monotonic,
        )
        plugin = nri if runtime.plugged else None
        self._owners = NodeOwners(
            manager,
            self._tree,
            root.proc,
            look=self._look,
            informed=lambda: self.cpusetter.informed,
        )
        folders = OwnFolders(root, telemetry.events)
        self.own_cpus_keeper = OwnCPUsKeeper(
            self._owners, folders, telemetry=telemetry, announced=signals.of(Change.NOTICES)
        )
        self.writers = Writers(runtime.enforcement, plugin, cri, lambda: wait.waits)
        self.cpusetter = self._make_cpusetter(cri, swept)
        self.nri = self._make_nri_plugin(nri, wait, memory)
        self.memory_keeper = MemoryKeeper(
            self._record.decided, memory, placed=placed, look=self._look, telemetry=telemetry
        )

    def _make_cpusetter(self, cri: CRI, swept: Callable[[SweepReport], None]) -> CPUSetter:
        root, tree, writers = self._root, self._tree, self.writers
        metrics, health = self._telemetry.metrics, self._telemetry.health
        quotas = CFSBandwidth(root.cgroup, root.cgroup_root)
        learner = Learner(
            self._manager,
            pods=self._cluster,
            devices=PodResources(root.podresources_socket),
            checkpoint=CheckpointFile(root.checkpoint),
            containers=cri,
            nri=writers.asks,
            rules=partial(_rules, self._cluster),
        )
        mover = Mover(
            self._manager,
            tree,
            writers,
            metrics,
            beat=lambda: health.beat(cpusetter.NAME),
            refused=self._signals.of(Change.REFUSED),
            now_s=time.monotonic,
            decided=self._record.decided,
            starts_limited=partial(starts_right, quotas),
        )
        sweep = Sweep(
            manager=self._manager,
            directories=Directories(tree, writers),
            learner=learner,
            mover=mover,
            goals=_goals(root, quotas, writers, metrics),
            announcer=Announcer(self._telemetry.events, metrics),
            now_s=time.monotonic,
            cpu_s=time.thread_time,
            take_over=self._take_over,
        )
        places = dict.fromkeys(tree.places(), True) | dict.fromkeys(quotas.places(), False)
        return CPUSetter(
            sweep,
            learner,
            CgroupNews(
                places,
                writers,
                lambda cgroup: mover.stays(tree.relative(cgroup)),
                learner.shares,
                lambda cgroup, container: mover.starts_right(
                    tree.relative(cgroup),
                    (cgroup_names.pod_id(cgroup.parent.name) or "", container),
                ),
            ),
            telemetry=self._telemetry,
            interval_s=self._settings.interval_s,
            swept=swept,
            readiness_changed=self._signals.of(Change.READINESS),
        )

    def _make_nri_plugin(
        self, nri: NRIRuntime, wait: ConnectionWait, memory: CgroupMemory
    ) -> NRIPlugin:
        settings, telemetry = self._settings.runtime, self._telemetry

        def ready() -> bool:
            return self.cpusetter.informed

        responses = Responses(
            nri,
            self._manager.names,
            settings.missing_facts,
            ready=ready,
            with_memory=memory.with_memory,
            forget=self._manager.forget_containers,
            events=telemetry.events,
            metrics=telemetry.metrics,
            folder=self.own_cpus_keeper.prepare,
        )
        conversation = Conversation(
            self._manager,
            nri,
            Obstacles(nri, ready=ready, found=self._tree.containers),
            responses,
            look=self._look,
            metrics=telemetry.metrics,
            decided=self._record.decided,
        )
        return NRIPlugin(
            nri,
            conversation,
            wait,
            required=settings.enforcement is Writer.NRI,
            ready=ready,
            appears=self._root.nri_socket.parent,
            telemetry=telemetry,
        )

    def may_move(self) -> bool:
        """Return whether containers may move: a restart must find where they are.

        The annotation of a container that has moved names CPUs that others may own by now.
        """
        return self.cpusetter.ready and self._record.is_kept()

    def swept(self, report: SweepReport) -> None:
        """Pass a sweep's report to the keepers; called on the sweeping thread."""
        self.memory_keeper.swept(report)
        if (repaired := self._owners.swept(report)) is not None:
            self.own_cpus_keeper.repaired(repaired)

    def _container_started(self, container: ContainerID) -> None:
        self.cpusetter.container_started(container)

    def _take_over(self, found: Sequence[FoundContainer]) -> None:
        """Take over the decisions of an earlier agent for the containers that are there."""
        recorded = self._record.recorded()
        self._taken_over(found, recorded)
        self._manager.adopt(found, recorded)


def _goals(
    root: HostRoot, quotas: CFSBandwidth, writers: Writers, metrics: Metrics
) -> list[Goal[Any, Any]]:
    """Return the goals that the cpusetter keeps after the CPUs."""
    partitions = Partitions(root, os.uname().release, root.cgroup_root)
    return [
        QuotaGoal(quotas, writers, metrics),
        PropertiesGoal(CgroupProperties(root.cgroup, root.cgroup_root), writers, metrics),
        LoadBalancingGoal(partitions),
    ]


def _rules(cluster: Cluster) -> NodeRules | None:
    node = cluster.node()
    return node.rules if node else None
