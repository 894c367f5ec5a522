"""CPUSetters of tests: one place where they are made, on a model of the kernel."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cpupool.agent.cgroup_news import CgroupNews
from cpupool.agent.cpusetter import NAME, CPUSetter
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.enforce.announcer import Announcer
from cpupool.enforce.directories import Directories
from cpupool.enforce.mover import Mover
from cpupool.enforce.sweep import Sweep
from cpupool.enforce.writer_choice import Writers
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.loops.telemetry import Telemetry
from cpupool.manager.learner import Learner
from cpupool.manager.manager import Manager
from cpupool.manager.ports import CheckpointSource, DeviceSource, PodSource
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.cgroups import KernelModel
from tests.events import Heard
from tests.machines import MACHINES
from tests.runtimes import ModelRuntime, without_runtime
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.core.cgroups import Writer
    from cpupool.core.errors import CPUPoolError
    from cpupool.core.events import EventSink
    from cpupool.core.workloads import Container, ContainerID, Pod
    from cpupool.enforce.ports import CgroupTree
    from cpupool.enforce.repair import Goal
    from cpupool.enforce.sweep import SweepReport
    from cpupool.manager.ports import ContainerSource
    from cpupool.wire.cpu_manager_state import State

MACHINE = MACHINES["laptop_4c8t"]
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0"), Pool.named("default", "1")
)
EVERYTHING = "0-7"


class Facts(PodSource, DeviceSource, CheckpointSource, Protocol):
    """Pods, podresources and checkpoint in one."""


def setter_on(
    tree: CgroupTree,
    manager: Manager,
    facts: Facts,
    *,
    containers: ContainerSource | None = None,
    writers: Writers | None = None,
    events: EventSink | None = None,
    metrics: Metrics | None = None,
    health: Health | None = None,
    goals: Sequence[Goal[Any, Any]] = (),
    interval_s: float = 1.0,
    swept: Callable[[SweepReport], None] = lambda _report: None,
    refused: Callable[[], None] = lambda: None,
    now_s: Callable[[], float] = time.monotonic,
    cpu_s: Callable[[], float] = time.thread_time,
    recorded: State | None = None,
    places: Mapping[Path, bool] | None = None,
    starts_right: Callable[[Path, ContainerID], bool] = lambda _cgroup, _container: False,
) -> CPUSetter:
    """Make a cpusetter: on a node whose runtime cannot be reached, unless it is told otherwise."""
    writers = writers or without_runtime()
    events, metrics, health = events or Heard(), metrics or Metrics(), health or Health()
    learner = Learner(
        manager,
        pods=facts,
        devices=facts,
        checkpoint=facts,
        containers=containers or ModelRuntime(),
        nri=writers.asks,
    )
    mover = Mover(
        manager,
        tree,
        writers,
        metrics,
        beat=lambda: health.beat(NAME),
        refused=refused,
        now_s=now_s,
    )
    sweep = Sweep(
        manager=manager,
        directories=Directories(tree, writers),
        learner=learner,
        mover=mover,
        goals=goals,
        announcer=Announcer(events, metrics),
        now_s=now_s,
        cpu_s=cpu_s,
        take_over=lambda found: manager.adopt(found, recorded),
    )
    return CPUSetter(
        sweep,
        learner,
        CgroupNews(places or {}, writers, lambda _cgroup: False, learner.shares, starts_right),
        telemetry=Telemetry(events, metrics, health),
        interval_s=interval_s,
        swept=swept,
        now_s=now_s,
    )


@dataclass
class Source:
    """Pods, podresources and checkpoint in one; each can fail and counts how often it is asked.

    `live` and `saved` hold pod name → pool → ids, `told` pool → the CPUs that containers were told.
    """

    listed: list[Pod] | None = field(default_factory=list)
    live: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    saved: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    failing: dict[str, CPUPoolError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    static_cpus: CPUSet = field(default_factory=CPUSet)
    announced: dict[str, CPUSet] = field(default_factory=dict)

    def pods(self) -> tuple[Pod, ...] | None:
        self._ask("pods")
        return None if self.listed is None else tuple(self.listed)

    def by_pod_name(self) -> dict[tuple[str, str], dict[str, dict[str, AllocatedDevices]]]:
        self._ask("podresources")
        return {("default", pod): self._resources(ids) for pod, ids in self.live.items()}

    def allocatable_cpus(self) -> CPUSet:
        self._ask("cpu manager")
        return self.static_cpus

    def by_pod_uid(self) -> dict[str, dict[str, dict[str, AllocatedDevices]]]:
        self._ask("checkpoint")
        return {f"{pod}-uid": self._resources(ids) for pod, ids in self.saved.items()}

    def _ask(self, source: str) -> None:
        self.asked.append(source)
        if source in self.failing:
            raise self.failing[source]

    def _resources(self, ids: dict[str, frozenset[str]]) -> dict[str, dict[str, AllocatedDevices]]:
        return {
            "main": {
                Names().resource(pool): AllocatedDevices(held, self.announced.get(pool, CPUSet()))
                for pool, held in ids.items()
            }
        }


@dataclass
class Node:
    """A cpusetter on a model of the kernel."""

    source: Source = field(default_factory=Source)
    kernel: KernelModel = field(
        default_factory=lambda: KernelModel(CgroupVersion.V1, {"kubepods": EVERYTHING}, EVERYTHING)
    )
    manager: Manager = field(default_factory=lambda: Manager(Names()))
    events: Heard = field(default_factory=Heard)
    metrics: Metrics = field(default_factory=Metrics)
    health: Health = field(default_factory=Health)
    asked: Writer | None = None
    nri: ModelRuntime | None = None
    cri: ModelRuntime = field(default_factory=ModelRuntime)
    pools: NodePools | None = POOLS
    goals: tuple[Goal[Any, Any], ...] = ()
    clock: Callable[[], float] | None = None
    recorded: State | None = None
    now_s: float = 0.0
    cpu_s: float = 0.0
    sweep_costs_s: float = 0.0
    swept: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    places: dict[Path, bool] = field(default_factory=dict)
    starts_right: bool = False
    refusals: int = 0

    def __post_init__(self) -> None:
        if self.pools is not None:
            self.manager.reconfigure(self.pools, MACHINE.topology())
        self.setter = setter_on(
            self.kernel,
            self.manager,
            self.source,
            containers=self.cri,
            writers=Writers(self.asked, self.nri, self.cri),
            events=self.events,
            metrics=self.metrics,
            health=self.health,
            goals=self.goals,
            interval_s=60.0,
            swept=lambda _report: self.swept.release(),
            refused=self._refused,
            now_s=self.clock or (lambda: self.now_s),
            cpu_s=self.spent_s,
            recorded=self.recorded,
            places=self.places,
            starts_right=lambda _cgroup, _container: self.starts_right,
        )

    def spent_s(self) -> float:
        self.cpu_s += self.sweep_costs_s
        return self.cpu_s

    def _refused(self) -> None:
        self.refusals += 1

    def run(self, name: str, *containers: Container, listed: bool = True) -> None:
        pod = builders.pod(name, *containers)
        self.kernel.make(f"kubepods/pod{pod.uid}", EVERYTHING)
        for container in pod.containers:
            self.kernel.make(self.path(name, container.name), EVERYTHING)
        if listed and self.source.listed is not None:
            self.source.listed.append(pod)

    def measured(self, series: str) -> float:
        """Read one series as Prometheus would: `name{label="value"}`."""
        _, body = self.metrics.render()
        found = re.search(rf"^{re.escape(series)} (\S+)$", body.decode(), re.MULTILINE)
        assert found, series
        return float(found[1])

    def path(self, pod: str, container: str = "main") -> str:
        return f"kubepods/pod{pod}-uid/{container}-id"

    def cpus(self, pod: str, container: str = "main") -> str:
        return str(self.kernel.effective(self.path(pod, container)))


def ids(*given: str) -> frozenset[str]:
    return frozenset(given)


def owner_on_2() -> Node:
    """A node where `owner` has been put on CPU 2 and `plain` on CPU 1."""
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    assert (node.cpus("owner"), node.cpus("plain")) == ("2", "1")
    return node


@contextmanager
def running(node: Node) -> Iterator[None]:
    """Let the loop run with no role to wake it."""
    stop = threading.Event()
    thread = threading.Thread(target=node.setter.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        node.setter.wake()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
