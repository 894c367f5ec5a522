"""A node whose containers the agent moves, in virtual time: the agent's roles and a kernel.

The machine has two NUMA nodes with one L3 cache each: CPUs 0-7 with siblings 16-23, and CPUs 8-15
with siblings 24-31. One core of each is reserved, so 14 CPUs of each can be given.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cpupool.agent.compactor import Compactor
from cpupool.agent.own_cpus_keeper import OwnCPUsKeeper
from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import Compaction, CPUManager, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerRef, CPUMoves, RuntimeContainer
from cpupool.host.own_folders import OwnFolders
from cpupool.host.root import HostRoot
from cpupool.manager import resizing
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from cpupool.wire import cpu_manager_state
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.events import Heard
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.devices import DeviceNodes, NodesOfDevices
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.host.own_folders import Told

BEGUN_S: Final = 1_795_000_000.0
AGE_S: Final = 600
NOTICE_S: Final = 10
MOVING: Final = CPUManager(
    "dynamic",
    CPUSet.parse("0,8,16,24"),
    topology_policy=TopologyPolicy.SINGLE_NUMA_NODE,
    max_notice_s=NOTICE_S,
    compaction=Compaction(4, AGE_S),
)


@dataclass
class Node:
    """A node, its kernel, its kubelet and the time on it; it has the `Owners` of its keeper.

    Attributes:
        folder: where the folders of containers are.
        settings: the CPU manager of its pool file.
        topology: its machine.
        now_s: the seconds since it began.
        kernel: container → the CPUs on which it runs.
        heard: the Events.
        begun: how often a move has begun.
    """

    folder: Path
    settings: CPUManager = MOVING
    topology: CPUTopology = field(default_factory=MACHINES["telco_2s_2n_16c32t"].topology)
    now_s: float = 0.0
    kernel: dict[ContainerRef, CPUSet] = field(default_factory=dict)
    heard: Heard = field(default_factory=Heard)
    begun: int = 0

    def __post_init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.sandboxes: dict[str, Pod] = {}
        self.device_nodes: dict[str, Mapping[str, frozenset[DeviceNodes]]] = {}
        self.ended: frozenset[str] = frozenset()
        self.metrics = Metrics()
        self.start(State("dynamic"))

    def start(self, recorded: State) -> None:
        """Start an agent, which finds a record."""
        self.manager = Manager()
        self.reconfigure(self.settings)
        self._observe()
        self.manager.adopt(self.found(), recorded)
        telemetry = builders.telemetry(events=self.heard, metrics=self.metrics)
        self.compactor = Compactor(
            self.manager,
            telemetry=telemetry,
            ready=lambda: True,
            begun=self._count,
            unix_s=self.unix_s,
            now_s=lambda: self.now_s,
        )
        self.folders = OwnFolders(HostRoot.under(self.folder), self.heard, wall_s=self.unix_s)
        self.keeper = OwnCPUsKeeper(
            self,
            self.folders,
            telemetry=telemetry,
            announced=lambda: None,
            now_s=lambda: self.now_s,
            wall_s=self.unix_s,
        )

    def reconfigure(self, settings: CPUManager) -> None:
        """Edit the pool file."""
        default = Pool.named("default", str(self.topology.online))
        self.manager.reconfigure(NodePools.of(default, cpu_manager=settings), self.topology)

    def told(self, name: str) -> Told:
        """Return what a container reads in its folder."""
        told = self.folders.told(ContainerRef(f"{name}-uid", name))
        assert told is not None
        return told

    def kill(self) -> None:
        """Kill the agent, and start another, which reads the record from its file."""
        facts, resolution = self.manager.snapshot()
        chosen = resolution.view.chosen.items()
        state = State(
            "dynamic",
            entries={uid: grant.parts for uid, grant in chosen},
            changes={uid: grant.changes for uid, grant in chosen if grant.changes},
            moved_unix_s=facts.moved_unix_s,
        )
        self.start(cpu_manager_state.parse(cpu_manager_state.encode(state)))

    def found(self) -> list[FoundContainer]:
        """Return the cgroups of the containers."""
        return [
            FoundContainer(ref.pod, ContainerID(f"{ref.name}-id"), f"kubepods/{ref.pod}", str(cpus))
            for ref, cpus in self.kernel.items()
        ]

    def unix_s(self) -> float:
        """Return the time on the wall."""
        return BEGUN_S + self.now_s

    def run(
        self,
        name: str,
        cpu: int,
        moves: CPUMoves = CPUMoves.NEVER,
        *,
        notice_s: int | None = None,
        near: frozenset[int] = frozenset(),
        balanced: bool = True,
    ) -> None:
        """Let the kubelet start a pod with a container of its name; it may have to wait."""
        container = builders.container(name, cpu=1000 * cpu, running=False)
        pod = replace(
            builders.pod(name, replace(container, balanced=balanced)),
            created=datetime.fromtimestamp(self.unix_s(), UTC).isoformat(),
            created_s=self.unix_s(),
            cpu_moves=moves,
            notice_s=notice_s,
        )
        self.pods[name] = self.sandboxes[name] = pod
        self.device_nodes[pod.cgroup_uid] = {name: frozenset({frozenset({near})} if near else ())}
        self._observe()
        self.try_again()

    def end(self, name: str) -> None:
        """Let a pod end."""
        pod = self.pods.pop(name)
        self.sandboxes.pop(name, None)
        self.kernel.pop(ContainerRef(pod.cgroup_uid, name), None)
        self.ended |= {pod.cgroup_uid}
        self._observe()

    def until(self, at_s: float) -> None:
        """Let time pass, and the roles do what is due."""
        while True:
            self.settle()
            due_s = self.now_s + min(self.keeper.step(), self.look())
            if due_s > at_s:
                break
            self.now_s = max(due_s, self.now_s + 0.01)
        self.now_s = at_s
        self.settle()

    def settle(self) -> None:
        """Let roles and kernel work until nothing changes."""
        before = None
        while before != (now := (dict(self.kernel), self.manager.snapshot().resolution.grants)):
            before = now
            self.try_again()
            self.look()
            self.sweep()
            self.keeper.step()

    def look(self) -> float:
        """Let the compactor look; return the seconds to its next look."""
        return self.compactor.step()

    def sweep(self) -> None:
        """Let the kernel move each container onto its CPUs, and the agent read them back."""
        for ref in list(self.kernel):
            self.kernel[ref] = self.wanted(ref.name)
        self.manager.settle(self.kernel)

    def wanted(self, name: str) -> CPUSet:
        """Return the CPUs on which a container must run."""
        placed = self.manager.snapshot().assignment((f"{name}-uid", ContainerID(f"{name}-id")))
        return placed.cpus

    def cpus(self, name: str) -> str:
        """Return the CPUs on which a container runs; empty if it waits."""
        return str(self.kernel.get(ContainerRef(f"{name}-uid", name), ""))

    def own_cpus(self) -> Mapping[ContainerRef, resizing.OwnCPUs]:
        """Return the CPUs of the containers whose own CPUs can change."""
        return resizing.own_cpus(self.manager.snapshot(), self.kernel)

    def narrow(self, ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
        """End a notice."""
        return self.manager.narrow(ref, assigned, leaving)

    def needs(self, _ref: ContainerRef, _cpus: CPUSet) -> bool | None:
        """Return that no thread is in sight."""
        return None

    def pod(self, uid: str) -> Pod | None:
        """Return a pod by its id."""
        return next((pod for pod in self.pods.values() if pod.cgroup_uid == uid), None)

    def remaining(self) -> None:
        """Return that the pods are not known."""
        return

    def _count(self) -> None:
        self.begun += 1

    def try_again(self) -> None:
        """Let the kubelet create the containers of the pods that have their CPUs."""
        chosen = self.manager.snapshot().resolution.view.chosen
        for name in [name for name, pod in self.sandboxes.items() if pod.cgroup_uid in chosen]:
            pod = self.sandboxes.pop(name)
            (container,) = pod.containers
            running = replace(container, id=ContainerID(f"{name}-id"))
            self.pods[name] = replace(pod, containers=(running,))
            ref = ContainerRef(pod.cgroup_uid, name)
            self.keeper.prepare(ref)
            self._observe()
            self.kernel[ref] = self.wanted(name)

    def _observe(self) -> None:
        boxes = [
            RuntimeContainer(ContainerID(f"{name}-box"), pod.cgroup_uid, pod.namespace, name)
            for name, pod in self.pods.items()
        ]
        self.manager.observe_containers(boxes, every=True)
        named: NodesOfDevices = self.device_nodes
        self.manager.observe(pods=self.pods.values(), device_nodes=named, idle=self.ended)
