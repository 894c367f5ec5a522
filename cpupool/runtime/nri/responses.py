"""The NRI plugin's responses to the container runtime about containers that nothing holds back.

`conversation.py` takes the requests, `holding.py` finds the obstacles, and this module makes the
responses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cpupool.core import environment
from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.bandwidth import PERIOD_US, UNLIMITED_US, Bandwidth
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError
from cpupool.core.properties import NO_PROPERTIES
from cpupool.core.workloads import ContainerRef
from cpupool.enforce import notices
from cpupool.runtime.nri.adapter import OUTDATED
from cpupool.runtime.nri.holding import MissingFacts
from cpupool.runtime.nri.messages import Adjustment, Update
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cpupool.core.errors import PlacementError
    from cpupool.core.events import EventSink
    from cpupool.core.mounts import Mount
    from cpupool.core.names import Names
    from cpupool.core.properties import Properties
    from cpupool.core.workloads import ContainerID
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.resolve import Snapshot
    from cpupool.runtime.nri.adapter import NRIRuntime
    from cpupool.runtime.nri.containers import KnownContainer
    from cpupool.runtime.nri.holding import Obstacle
    from cpupool.runtime.nri.messages import (
        CreateContainer,
        NamedContainer,
        NRIContainer,
        StartContainer,
        UpdateContainer,
    )
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_KNOWN: Final = {Placement.POOLS, Placement.POLICY, Placement.PLUGIN}
"""Placements that follow from facts about the container itself."""
_CHANGING: Final = {Placement.POLICY, Placement.PLUGIN}
"""Placements whose own CPUs can change while the container runs."""


class Responses:
    """Makes the responses to the runtime's requests about single containers.

    Args:
        runtime: the container runtime.
        names: the public names, with the resource domain.
        missing_facts: the treatment of a container whose devices are unknown, or whose CPUs another
            pod has.
        ready: whether the owner of each CPU is known.
        with_memory: returns the NUMA nodes that have memory.
        forget: forgets containers that the runtime does not create.
        events: tells pods' owners that a container is held, or released.
        metrics: counts starts on occupied CPUs.
        folder: returns the folder from which a new container with CPUs of its own learns how they
            change; None if it has none.
    """

    def __init__(
        self,
        runtime: NRIRuntime,
        names: Names,
        missing_facts: MissingFacts,
        *,
        ready: Callable[[], bool],
        with_memory: Callable[[], CPUSet],
        forget: Callable[[Sequence[ContainerID]], None],
        events: EventSink,
        metrics: Metrics,
        folder: Callable[[ContainerRef], Mount | None] = lambda _ref: None,
    ) -> None:
        self._runtime = runtime
        self._names = names
        self._missing_facts = missing_facts
        self._ready = ready
        self._with_memory = with_memory
        self._forget = forget
        self._look_due = False
        self._events = events
        self._metrics = metrics
        self._folder = folder
        self._refused_starts: dict[ContainerID, Obstacle] = {}
        self._refused_resizes: dict[ContainerID, str] = {}

    def create(self, message: CreateContainer, obstacle: Obstacle | None, now: Snapshot) -> str:
        """Answer a creation, and return the outcome as a word."""
        container = message.container
        if obstacle:
            held = obstacle.keeps(self._missing_facts)
            why = obstacle.holds(container) if held else obstacle.releases(container)
            if obstacle.pod:
                event = "CPUContainerHeld" if held else notices.RELEASED
                self._events.pod(obstacle.pod, obstacle.refusal or event, why)
            if held:
                return self._hold(message, why)
        wanted = self._wanted(container.key, now, is_there=False)
        variables, annotations, properties = _of_plugins(container, now)
        if wanted is None and not (variables or annotations or properties):
            self._runtime.answer_create(message, None)
            return "unchanged"
        wanted = wanted or CPUAssignment(Placement.DEFAULT, properties=properties)
        variables |= environment.of_container(wanted)
        pod = now.resolution.pods.get(container.key[0]) if container.key else None
        essential = pod is not None and pod.essential
        memory = CPUSet()
        if wanted.memory is not None:
            try:
                wanted.memory.check(self._with_memory())
                memory = wanted.memory.nodes
            except CPUPoolError as error:
                # The memory keeper has the Event.
                if not essential:
                    return self._hold(message, str(error))
        adjustment = Adjustment(
            self._without_kept(container, wanted, now),
            {
                name: value
                for name, value in variables.items()
                if container.environment.get(name) != value
            },
            {**annotations, **wanted.annotations(self._names)},
            memory,
            _properties(wanted, container.limits, container.cpu.quota_us, container.cpu.period_us),
            self._mounts(container, wanted),
        )
        updates = self._making_room(container, wanted.exclusive, now)
        self._runtime.answer_create(message, adjustment, updates)
        if wanted.exclusive:
            # What only cpupool moves, as sandboxes, leaves the CPUs before the container starts.
            self._look_due = True
        return wanted.placement.value

    def start(self, message: StartContainer, obstacle: Obstacle | None) -> str:
        """Answer a start, and return the outcome as a word."""
        container = message.container
        if obstacle is None:
            self._runtime.answer_start(message)
            return "unchanged"
        if not obstacle.keeps(self._missing_facts):
            self._runtime.answer_start(message)
            self._breach(container, obstacle)
            return "shared"
        why = obstacle.stops(container)
        if obstacle.pod:
            self._events.pod(obstacle.pod, notices.OCCUPIED, why)
        self._refused_starts[container.id] = obstacle
        self._runtime.refuse(message, why)
        return "held"

    def update(self, message: UpdateContainer, now: Snapshot, had: CPUSet | None = None) -> str:
        """Keep a container on its CPUs, whatever an update by another program sets.

        cpupool's own call passes unchanged: the container's CPUs may not be free yet. With a
        resize, others leave first the CPUs that the container gets.

        Args:
            message: the update.
            now: where the container belongs.
            had: its own CPUs before the resize that the update asks for; None for no resize.

        Returns:
            The outcome as a word.
        """
        container, outcome, resized = message.container, "unchanged", had is not None
        update, others = None, list[Update]()
        wanted, own = self._wanted(container.key, now), self._runtime.expects(message)
        if own and container.key and not now.allows(container.key, message.asked.cpu_set):
            # A resize has given the CPUs away since the call was made.
            self._runtime.refuse(message, OUTDATED)
            return "refused"
        if wanted is not None and not own:
            outcome = wanted.placement.value
            # Neither None nor 0 changes what the container has.
            asked, has = message.asked, container.cpu
            properties = _properties(
                wanted,
                container.limits,
                asked.quota_us or has.quota_us,
                asked.period_us or has.period_us,
            )
            update = Update(container.id, wanted.cpus, properties, ignore_failure=not resized)
            if had is not None:
                others = self._making_room(container, wanted.exclusive - had, now)
        self._runtime.answer_update(message, update, others)
        self._refused_resizes.pop(container.id, None)
        # What only cpupool moves leaves the CPUs with the next sweep.
        self._look_due |= resized
        return outcome

    def refuse_resize(self, message: UpdateContainer, error: PlacementError, now: Snapshot) -> str:
        """Refuse a resize: the container keeps all that it has. Return the outcome as a word."""
        container = message.container
        why = f"container {container.title} is not resized: {error}; the kubelet tries again"
        self._runtime.refuse(message, why)
        # The kubelet tries again and again.
        if self._refused_resizes.get(container.id) != why:
            self._refused_resizes[container.id] = why
            log.warning("resize refused", reason=why)
            pod = now.resolution.pods.get(container.key[0]) if container.key else None
            if pod and not error.passes:
                self._events.pod(pod, notices.RESIZE_REFUSED, why)
        return "refused"

    def take_look(self) -> bool:
        """Return whether a sweep must look since this was asked last."""
        due, self._look_due = self._look_due, False
        return due

    def started(self, container: NamedContainer) -> None:
        """Record the runtime's report that a container has started."""
        # CRI-O starts a container although a plugin refuses.
        if obstacle := self._refused_starts.pop(container.id, None):
            self._breach(container, obstacle)

    def ended(self, container: ContainerID) -> None:
        """Record the runtime's report that a container has ended."""
        self._refused_starts.pop(container, None)
        self._refused_resizes.pop(container, None)

    def corrections(
        self,
        now: Snapshot,
        near: CPUSet | None = None,
        *,
        without: ContainerID | None = None,
        ignore_failure: bool = True,
    ) -> Iterator[Update]:
        """Move the containers that the runtime has on other CPUs than they belong on.

        The runtime moves them in this order: an owner gets CPUs after the others have left them.

        Args:
            now: where they belong.
            near: only those that are on one of these CPUs; None for all.
            without: a container that has its CPUs otherwise; None for none.
            ignore_failure: whether the runtime keeps a failure to itself.
        """
        moves: list[tuple[ContainerID, KnownContainer, CPUAssignment]] = []
        for identifier, container in self._runtime.containers.items():
            if identifier == without:
                continue
            # The cpusetter has the containers that run and for which the runtime has no CPUs.
            if container.started and not container.cpus:
                continue
            if near is not None and near.isdisjoint(container.cpus):
                continue
            wanted = self._wanted(container.key, now)
            if wanted is not None and wanted.cpus != container.cpus:
                moves.append((identifier, container, wanted))
        moves.sort(key=lambda move: bool(move[2].exclusive - move[1].cpus))
        for identifier, container, wanted in moves:
            container.cpus = wanted.cpus
            container.moved |= not container.started
            yield Update(identifier, wanted.cpus, ignore_failure=ignore_failure)

    def _making_room(self, owner: NRIContainer, cpus: CPUSet, now: Snapshot) -> list[Update]:
        """Move the other containers off CPUs that a container gets as its own."""
        if not cpus:
            return []
        pod = now.resolution.pods.get(owner.key[0]) if owner.key else None
        essential = pod is not None and pod.essential
        # CRI-O refuses the owner's change if it cannot move another; containerd logs that.
        strict = self._missing_facts is MissingFacts.HOLD and not essential
        return list(self.corrections(now, cpus, without=owner.id, ignore_failure=not strict))

    def _mounts(self, container: NRIContainer, wanted: CPUAssignment) -> tuple[Mount, ...]:
        """Return the folder that tells a container of changes of its CPUs, if they can change."""
        known = container.known
        if known is None or wanted.placement not in _CHANGING or not wanted.exclusive:
            return ()
        mount = self._folder(ContainerRef(known.pod, known.name))
        return () if mount is None else (mount,)

    def _without_kept(
        self, container: NRIContainer, wanted: CPUAssignment, now: Snapshot
    ) -> CPUSet:
        """Return the CPUs of a new container without those that an owner has not left yet.

        If none is left, return all. A plugin may move an owner; the next sweep adds its old CPUs.
        """
        if wanted.cpus == wanted.exclusive:
            return wanted.cpus
        pod = container.key[0] if container.key else ""
        kept = CPUSet.union(
            other.cpus - has.cpus
            for other in self._runtime.containers.values()
            if other.key
            and other.key[0] != pod
            and other.cpus != (has := now.assignment(other.key)).cpus
            and has.exclusive
        )
        return wanted.cpus - (kept - wanted.exclusive) or wanted.cpus

    def _hold(self, message: CreateContainer, why: str) -> str:
        self._runtime.refuse(message, why)
        self._forget([message.container.id])
        # The next try finds the CPUs that have become free until then.
        self._look_due = True
        return "held"

    def _breach(self, container: NamedContainer, obstacle: Obstacle) -> None:
        """Report a container that starts although it is not alone on its CPUs."""
        self._metrics.start_breached()
        log.warning("container starts on occupied CPUs", reason=(why := obstacle.allows(container)))
        if obstacle.pod:
            self._events.pod(obstacle.pod, notices.OCCUPIED, why)

    def _wanted(
        self, key: ContainerKey | None, now: Snapshot, *, is_there: bool = True
    ) -> CPUAssignment | None:
        """Return where a container belongs; None if the facts are not certain enough.

        Args:
            key: its ids.
            now: the facts and decisions.
            is_there: whether an earlier agent may have chosen its CPUs.
        """
        if key is None:
            return None
        assignment = now.assignment(key)
        facts = now.facts
        # `now` may be older than the sweep that has recognised the choices of an earlier agent, and
        # the pools that come into force may have a policy with choices.
        chooses = facts.pools.cpu_manager.chooses or (is_there and not facts.configured)
        owners_known = facts.recovered or not chooses
        known = (self._ready() and owners_known) or assignment.placement in _KNOWN
        return assignment if known and assignment.cpus else None


def _of_plugins(
    container: NRIContainer, now: Snapshot
) -> tuple[dict[str, str], dict[str, str], Properties]:
    """Return the variables, annotations and properties that plugins give a container."""
    known, plugins = container.known, now.facts.plugins
    if known is None:
        return {}, {}, NO_PROPERTIES
    ref = ContainerRef(known.pod, known.name)
    return *plugins.texts(ref), plugins.properties.get(ref, NO_PROPERTIES)


def _properties(
    wanted: CPUAssignment, has: Properties, quota_us: int | None, period_us: int | None
) -> Properties:
    """Return what a container starts with; its CPU time only if that is not what is asked for."""
    properties = wanted.properties.keeping_swap(has)
    if wanted.limit is None:
        return properties
    asked = Bandwidth(quota_us or UNLIMITED_US, period_us or PERIOD_US)
    start = wanted.limit.start(asked)
    return replace(properties, bandwidth=None if start == asked else start)
