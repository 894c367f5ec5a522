"""The goal of CFS quotas: no quota throttles a container that runs on exclusive CPUs.

cpupool writes the cgroup of a pod directly, because neither NRI nor CRI can. The writer of a
container's CPUs writes the cgroup of the container. On cgroup v1 no cgroup may have more than its
parent at any moment (kernel: kernel/sched/core.c, `tg_cfs_schedulable_down`); on v2 the lesser of
the two limits applies. One order of writes is right for both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cpupool.core.bandwidth import Bandwidth, settle_pod
from cpupool.core.cgroups import POD_ITSELF, Writer
from cpupool.core.errors import CgroupWriteRejected, CPUPoolError
from cpupool.core.requests import ResourceKind
from cpupool.core.workloads import ContainerID
from cpupool.enforce import repair
from cpupool.enforce.foreign_writers import Reason, reason
from cpupool.enforce.notices import Notice
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from cpupool.core.bandwidth import Limit
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.workloads import Pod
    from cpupool.enforce.notices import NoticeKey
    from cpupool.enforce.ports import BandwidthTree
    from cpupool.enforce.repair import Target
    from cpupool.enforce.writer_choice import Writers
    from cpupool.manager.resolve import Resolution
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_NEW_S: Final = 2.0
"""The runtime first makes a cgroup, and writes what the kubelet asked for a moment later."""


@dataclass(frozen=True, slots=True)
class CgroupQuota:
    """A cgroup, its CPU time, and the CPU time that it must have.

    Attributes:
        path: its directory.
        has: the CPU time that it has.
        wants: the CPU time that it must have.
        container: the id; `POD_ITSELF` for the cgroup of the pod.
    """

    path: str
    has: Bandwidth
    wants: Bandwidth
    container: ContainerID = POD_ITSELF


def plan(pod: CgroupQuota, containers: Iterable[CgroupQuota]) -> tuple[CgroupQuota, ...]:
    """Order the writes so that after each step no container has more than its pod.

    A container that fits into the present quota of the pod comes before the pod, others after it.
    """
    wrong = [container for container in containers if container.has != container.wants]
    fit = [level for level in wrong if pod.has.holds(level.wants)]
    rest = [level for level in wrong if not pod.has.holds(level.wants)]
    return (*fit, *([pod] if pod.has != pod.wants else []), *rest)


def starts_right(tree: BandwidthTree, path: str, limit: Limit) -> bool:
    """Return whether a container has its CPU time already, in a pod without a limit.

    Any thread may call it.

    Args:
        tree: the CPU time of cgroups.
        path: the container's cgroup.
        limit: what it must have.

    Raises:
        HostFileError: a file cannot be read, or has unexpected content.
    """
    has, above = tree.bandwidth(path), tree.bandwidth(path.rpartition("/")[0])
    unlimited = above is not None and above.cpus is None
    return unlimited and has is not None and limit.settle(has) == has


@dataclass(frozen=True, slots=True)
class _Concern:
    """The facts on which the quotas of a pod depend.

    Attributes:
        pod: the pod.
        limits: container → its limit, for those that cpupool decides.
        lifts: it owns CPUs, so it has no limit.
        unsure: the limit of one of its containers is not known at the moment.
    """

    pod: Pod
    limits: Mapping[ContainerID, Limit]
    lifts: bool
    unsure: bool


@dataclass(frozen=True, slots=True)
class _Want:
    """The wanted quotas of a pod, and its directories: path → container id."""

    concern: _Concern
    directories: Mapping[str, ContainerID]

    @property
    def pod_path(self) -> str:
        path, container = next(iter(self.directories.items()))
        return path if container == POD_ITSELF else path.rpartition("/")[0]


@dataclass(slots=True)
class _Memory:
    """The memory of one pod while it is there.

    Attributes:
        lifted: a container of it has had no limit, or may have had none before this agent started.
        had: path → its CPU time when everything was right last.
        since_s: path → the time of the first look.
    """

    lifted: bool
    had: Mapping[str, Bandwidth] = field(default_factory=dict)
    since_s: Mapping[str, float] = field(default_factory=dict)


class QuotaGoal:
    """Keeps the CFS quotas of each pod and its containers; an `enforce.repair.Goal`.

    Args:
        tree: reads them, and writes those of cgroups that no runtime writes.
        writers: choose the writer of each container.
        metrics: counts repairs.
    """

    problem = "quota stays wrong"
    pause_s = repair.PAUSE_S

    def __init__(self, tree: BandwidthTree, writers: Writers, metrics: Metrics) -> None:
        self._tree = tree
        self._writers = writers
        self._metrics = metrics
        self._resolution: Resolution | None = None
        self._concerns: Mapping[str, _Concern] = {}
        self._memories: dict[str, _Memory] = {}

    def wants(self, found: Sequence[FoundContainer], resolution: Resolution) -> Mapping[str, _Want]:
        """Return the wanted quotas of each pod that requests pools, or owns CPUs."""
        first = self._resolution is None
        if resolution is not self._resolution:
            self._resolution, self._concerns = resolution, dict(_concerns(resolution))
        directories: dict[str, dict[str, ContainerID]] = {}
        for container in found:
            if container.pod in self._concerns:
                of_pod = directories.setdefault(container.pod, {})
                of_pod[container.path] = ContainerID(container.id)
        wants = {pod: _Want(self._concerns[pod], there) for pod, there in directories.items()}
        self._memories = {
            pod: self._memories.get(pod) or _Memory(lifted=first and want.concern.lifts)
            for pod, want in wants.items()
        }
        return wants

    def put_right(self, key: str, want: _Want, now_s: float, *, was_right: bool) -> Reason | None:
        """Write the quotas of a pod that differ, and read them back."""
        memory = self._memories[key]
        has = self._read(want, memory, now_s)
        if was_right and memory.had == has:
            return None
        steps = self._steps(want, memory, has)
        try:
            found = self._carry_out(steps, memory, now_s, was_right=was_right)
        except CPUPoolError:
            # The kubelet may have written meanwhile: then other steps are right.
            has = self._read(want, memory, now_s)
            others = self._steps(want, memory, has)
            if set(others) <= set(steps):
                raise
            steps = others
            found = self._carry_out(others, memory, now_s, was_right=was_right)
        memory.had = {**has, **{step.path: step.wants for step in steps}}
        return found

    def stays(self, key: str, changed: AbstractSet[str], /) -> bool:
        """Return whether nothing has changed in the cgroups of a pod, which are watched."""
        return key not in changed

    def notices(self, targets: Mapping[str, Target[_Want]]) -> Iterator[tuple[NoticeKey, Notice]]:
        """Yield the pods whose quota cannot be set, or is overwritten again and again."""
        for uid, target in targets.items():
            pod = self._concerns[uid].pod
            if target.stuck and target.backoff.delay_s:
                yield _notice(uid, _failed(pod, target.stuck))
            elif target.contested:
                yield _notice(uid, _contested(pod))

    def _read(self, want: _Want, memory: _Memory, now_s: float) -> dict[str, Bandwidth]:
        """Return path → CPU time of the pod, which comes first, and of its limited containers.

        A cgroup that is gone is left out.
        """
        limits = want.concern.limits
        limited = (path for path, container in want.directories.items() if container in limits)
        paths = [want.pod_path, *limited]
        read = ((path, self._tree.bandwidth(path)) for path in paths)
        there = {path: has for path, has in read if has is not None}
        memory.since_s = {path: memory.since_s.get(path, now_s) for path in there}
        return there

    def _steps(
        self, want: _Want, memory: _Memory, has: Mapping[str, Bandwidth]
    ) -> tuple[CgroupQuota, ...]:
        """Return the writes; none where the CPU time of the pod cannot be limited."""
        concern, pod_path = want.concern, want.pod_path
        if pod_path not in has:
            return ()
        ids = {path: id_ for path, id_ in want.directories.items() if path in has}
        containers = [
            CgroupQuota(path, has[path], concern.limits[container].settle(has[path]), container)
            for path, container in ids.items()
            if path != pod_path
        ]
        limited = [(concern.limits[level.container], level.has) for level in containers]
        # The pod has room for a container before that container runs.
        there = set(want.directories.values())
        limited += [
            (limit, Bandwidth())
            for container, limit in concern.limits.items()
            if container not in ids.values()
            and (container in there or self._writers.starting(container))
        ]
        memory.lifted |= any(limit.milli is None for limit, _ in limited)
        pod = has[pod_path]
        wants = settle_pod(pod, concern.pod.limit_milli, limited, lifts=memory.lifted)
        if concern.unsure and not wants.holds(pod):
            # That container keeps its CPU time, and would use up what the others need.
            wants = pod
        return plan(CgroupQuota(pod_path, pod, wants), containers)

    def _carry_out(
        self, steps: Sequence[CgroupQuota], memory: _Memory, now_s: float, *, was_right: bool
    ) -> Reason | None:
        """Write the steps that the kernel takes; return why they differed, a foreign write first.

        Raises:
            CPUPoolError: the first write that failed.
        """
        reasons = {
            step.path: reason(new=now_s - memory.since_s[step.path] < _NEW_S, was_right=was_right)
            for step in steps
        }
        failed: list[CPUPoolError] = []
        for step in steps:
            try:
                self._write(step, reasons[step.path])
            except CPUPoolError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        for step in steps:
            has = self._tree.bandwidth(step.path)
            if has not in (None, step.wants):
                why = f"it has {has}; find the program that writes this cgroup too"
                raise CgroupWriteRejected(step.path, str(step.wants), 0, why)
        return max(reasons.values(), key=lambda found: found.foreign, default=None)

    def _write(self, step: CgroupQuota, found: Reason) -> None:
        writer = Writer.CGROUP
        if step.container == POD_ITSELF:
            self._tree.limit(step.path, step.wants)
        else:
            writer = self._writers.limit(self._tree, step.path, step.container, step.wants)
        self._metrics.quota_repaired(found.value)
        log.info(
            "quota repaired",
            cgroup=step.path,
            found=step.has,
            quota=step.wants,
            by=found.value,
            way=writer.value,
        )


def _concerns(resolution: Resolution) -> Iterator[tuple[str, _Concern]]:
    limits: dict[str, dict[ContainerID, Limit]] = {}
    unsure: set[str] = set()
    for (uid, container), placed in resolution.containers.items():
        if placed.assignment.limit is not None:
            limits.setdefault(uid, {})[container] = placed.assignment.limit
        if placed.assignment.cause is not None:
            unsure.add(uid)
    for uid, pod in resolution.pods.items():
        requested = {resource for container in pod.containers for resource in container.requests}
        owns = uid in resolution.view.chosen
        if requested or owns:
            lifts = owns or any(resource.kind is ResourceKind.EXCLUSIVE for resource in requested)
            yield uid, _Concern(pod, limits.get(uid, {}), lifts, uid in unsure)


def _notice(uid: str, notice: Notice) -> tuple[NoticeKey, Notice]:
    return ((uid, POD_ITSELF), notice.event), notice


def _failed(pod: Pod, why: str) -> Notice:
    return Notice(
        "CPUQuotaFailed",
        "quota cannot be set",
        pod,
        "",
        f"its threads may be throttled: {why}",
        "look at cpu.max, or cpu.cfs_quota_us, of the pod's cgroup and of those below it",
    )


def _contested(pod: Pod) -> Notice:
    return Notice(
        "CPUQuotaContested",
        "quota is contested",
        pod,
        "",
        "its CPU quota is overwritten again and again",
        "find what resizes the pod, reloads systemd (journalctl -t systemd) or writes its cgroups",
    )
