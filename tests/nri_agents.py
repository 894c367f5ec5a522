"""NRIPlugins of tests: one place where they are made, and what a fake runtime tells them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.manager.manager import Manager
from cpupool.runtime.nri.adapter import NRIRuntime
from cpupool.runtime.nri.conversation import Conversation
from cpupool.runtime.nri.holding import MissingFacts, Obstacles
from cpupool.runtime.nri.plugin import NRIPlugin
from cpupool.runtime.nri.responses import Responses
from cpupool.runtime.nri.wait_before_connecting import ConnectionWait, WaitRules
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.events import Heard
from tests.loops import running
from tests.machines import MACHINES
from tests.memory import having
from tests.nri_pods import Container
from tests.nri_pods import Pod as NRIPod
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cpupool.api import nri_pb2
    from cpupool.core.assignments import MemoryNodes
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.events import EventSink
    from cpupool.core.mounts import Mount
    from cpupool.core.workloads import ContainerRef, Pod
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.resolve import Snapshot
    from cpupool.runtime.nri.connection import Launch

MACHINE = MACHINES["laptop_4c8t"]
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"),
    Pool.named("exclusive_b", "6"),
    Pool.named("shared_a", "1"),
    Pool.named("default", "0"),
)
OWNER = builders.pod("owner", builders.container(running=False, exclusive_a=1))
OWNER_SANDBOX = NRIPod(OWNER.uid).sandbox
EARLIER = builders.pod("earlier", builders.container(running=False, exclusive_a=1))
PLAIN = builders.pod("plain", builders.container(running=False))


def of(pod: Pod, identifier: str = "c1", **fields: object) -> Container:
    """Give a pod's container as the runtime knows it."""
    return replace(Container(NRIPod(pod.uid, pod.name), identifier), **fields)  # type: ignore[arg-type]


def cpu_of(answer: nri_pb2.CreateContainerResponse) -> nri_pb2.LinuxCPU:
    return answer.adjust.linux.resources.cpu


def plugin_on(
    manager: Manager,
    runtime: NRIRuntime,
    *,
    required: bool = False,
    missing_facts: MissingFacts = MissingFacts.HOLD,
    ready: Callable[[], bool] = lambda: True,
    with_memory: Callable[[], CPUSet] = lambda: CPUSet.of(0, 1),
    found: Callable[[], Iterable[FoundContainer]] = tuple,
    decided: Callable[[], Snapshot] | None = None,
    look: Callable[[], None] = lambda: None,
    events: EventSink | None = None,
    metrics: Metrics | None = None,
    health: Health | None = None,
    wait: ConnectionWait | None = None,
    folder: Callable[[ContainerRef], Mount | None] = lambda _ref: None,
    now_s: Callable[[], float] = time.monotonic,
) -> NRIPlugin:
    """Make an agent's plugin of the runtime behind a socket."""
    told = builders.telemetry(events=events, metrics=metrics, health=health)
    wait = wait or ConnectionWait(
        manager,
        runtime,
        found=found,
        rules=WaitRules(),
        look=look,
        metrics=told.metrics,
        now_s=now_s,
    )
    answers = Responses(
        runtime,
        manager.names,
        missing_facts,
        ready=ready,
        with_memory=with_memory,
        forget=manager.forget_containers,
        events=told.events,
        metrics=told.metrics,
        folder=folder,
    )
    conversation = Conversation(
        manager,
        runtime,
        Obstacles(runtime, ready=ready, found=found),
        answers,
        look=look,
        metrics=told.metrics,
        decided=decided,
        now_s=now_s,
    )
    return NRIPlugin(runtime, conversation, wait, required=required, ready=ready, telemetry=told)


@dataclass
class Agent:
    """The role with a manager that knows the pools, and no pod yet."""

    socket: Path
    missing_facts: MissingFacts = MissingFacts.HOLD
    required: bool = False
    launch: Launch | None = None
    ready: bool = True
    manager: Manager = field(default_factory=Manager)
    health: Health = field(default_factory=Health)
    metrics: Metrics = field(default_factory=Metrics)
    events: Heard = field(default_factory=Heard)
    found: tuple[FoundContainer, ...] = ()
    """Every container directory."""
    patient: bool = False
    """Containers wait for their facts as long as it takes."""
    clock: Callable[[], float] = time.monotonic
    waits: WaitRules = WaitRules()  # noqa: RUF009 - it is frozen
    update_s: float = DEADLINE_S
    guarded: bool = False
    """It asks the runtime for no CPUs that a container must not have by the decisions of now."""
    recorded: list[list[str]] = field(default_factory=list)
    """The pods whose choices were recorded, each time."""
    memory: dict[str, MemoryNodes] = field(default_factory=dict)
    """Pod → the memory nodes of its containers."""
    folder: Callable[[ContainerRef], Mount | None] = lambda _ref: None
    """Gives a container the folder that tells it of changes of its CPUs."""
    looked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.manager.reconfigure(POOLS, MACHINE.topology())
        self.manager.observe(pods=[])
        self.plugin = self.made()

    def made(self) -> NRIPlugin:
        """Make the role anew, and what it knows of the runtime."""
        self.runtime = NRIRuntime(
            self.socket,
            self.manager.names,
            look=self.looked.release,
            launch=self.launch,
            allows=self._allows,
            update_s=self.update_s,
            now_s=self._now_s,
        )
        self.wait = ConnectionWait(
            self.manager,
            self.runtime,
            found=lambda: self.found,
            rules=self.waits,
            look=self.looked.release,
            metrics=self.metrics,
            now_s=self._now_s,
        )
        return plugin_on(
            self.manager,
            self.runtime,
            required=self.required,
            missing_facts=self.missing_facts,
            ready=lambda: self.ready,
            found=lambda: self.found,
            decided=self.decided,
            look=self.looked.release,
            events=self.events,
            metrics=self.metrics,
            health=self.health,
            wait=self.wait,
            folder=self._folder,
            now_s=self._now_s,
        )

    def decided(self) -> Snapshot:
        """Give the decisions, and note which choices are recorded with them."""
        now = self.manager.snapshot()
        self.recorded.append(sorted(now.resolution.view.chosen))
        return now._replace(resolution=having(now.resolution, self.memory))

    def _folder(self, ref: ContainerRef) -> Mount | None:
        return self.folder(ref)

    def _allows(self, key: ContainerKey, cpus: CPUSet) -> bool:
        return not self.guarded or self.manager.snapshot().allows(key, cpus)

    def _now_s(self) -> float:
        return 0.0 if self.patient else self.clock()

    def running(self) -> AbstractContextManager[threading.Event]:
        return running(self.plugin.run, wake=self.plugin.wake)

    def give(self, pod: Pod, **ids: str) -> None:
        """Let the kubelet's word on a container's devices come."""
        self.manager.accept(builders.given(pod, **ids))
        self.plugin.facts_changed()

    def allocated(self, container: Container) -> Container:
        """Let the kubelet have asked for the devices that a container's annotations name."""
        for pool, text in container.devices.items():
            self.manager.promise(builders.resource(pool), map(str, CPUSet.parse(text)))
        return container

    def metric(self, line: str) -> bool:
        return line in self.metrics.render()[1].decode()
