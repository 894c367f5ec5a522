"""Keeps CFS quotas of containers and their pods so that none strangles what runs on its CPUs.

Level-triggered as the cpusets are: what a cgroup has is compared with what it must have, whoever
changed it. A pod's own cgroup is written directly, neither NRI nor CRI can; a container's by the
way by which its CPUs are set. On cgroup v1 none may have more than the one above it at any moment
(kernel: kernel/sched/core.c, `tg_cfs_schedulable_down`), on v2 the lesser of the two counts; one
order of writes is right for both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, CPUPoolError, RuntimeBusy
from cpupool.core.quota import Bandwidth, settle_pod
from cpupool.core.requests import ResourceKind
from cpupool.core.workloads import ContainerID
from cpupool.enforce.drift import Reason
from cpupool.enforce.notices import Notice
from cpupool.enforce.patience import Backoff
from cpupool.manager.ports import POD_ITSELF, Way
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.core.quota import Limit
    from cpupool.core.workloads import Pod
    from cpupool.enforce.notices import NoticeKey
    from cpupool.enforce.ways import Ways
    from cpupool.manager.ports import BandwidthTree, FoundContainer
    from cpupool.manager.resolve import Resolution
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_TRY_AGAIN_S: Final = 0.1
_NEW_S: Final = 2.0
"""The runtime first makes a cgroup, and writes what the kubelet asked for a moment later."""


@dataclass(frozen=True, slots=True)
class Level:
    """A cgroup, how long it may run, and how long it must.

    Attributes:
        path: its directory.
        has: what it has.
        wants: what it must have.
        container: whose it is; `POD_ITSELF` for the pod's own.
    """

    path: str
    has: Bandwidth
    wants: Bandwidth
    container: ContainerID = POD_ITSELF


def plan(pod: Level, containers: Iterable[Level]) -> tuple[Level, ...]:
    """Order what must be written so that after each step no container has more than its pod.

    Containers that fit into what the pod has come first, and those that do not come after it.
    """
    wrong = [one for one in containers if one.has != one.wants]
    fit = [one for one in wrong if pod.has.holds(one.wants)]
    rest = [one for one in wrong if not pod.has.holds(one.wants)]
    return (*fit, *([pod] if pod.has != pod.wants else []), *rest)


@dataclass(frozen=True, slots=True)
class _Concern:
    """What must be of one pod.

    Attributes:
        pod: the pod.
        limits: of those of its containers for whom cpupool has a say.
        lifts: it requests exclusive CPUs, whose holders are not limited.
        unsure: what one of its containers must have is not known for the moment.
    """

    pod: Pod
    limits: Mapping[ContainerID, Limit]
    lifts: bool
    unsure: bool


@dataclass(slots=True)
class _Seen:
    """What is remembered of one pod while it is there.

    Attributes:
        lifted: a container of it has had no limit, or may have had none before this agent came.
        right: what had to be when everything was right last; None if it never was.
        had: path → what there was then.
        since_s: path → when it was seen first.
        tried: what the repairs in `backoff` were to bring about.
        backoff: how patient to be with it.
        contested: somebody has overwritten what was right.
        stuck: why it could not be put right.
    """

    lifted: bool
    right: object = None
    had: Mapping[str, Bandwidth] = field(default_factory=dict)
    since_s: Mapping[str, float] = field(default_factory=dict)
    tried: object = None
    backoff: Backoff = field(default_factory=Backoff)
    contested: bool = False
    stuck: str = ""


class BandwidthKeeper:
    """Keeps CFS quotas; satisfies `enforce.keeper.Keeper`.

    Args:
        tree: reads them, and writes those of cgroups that no runtime writes.
        ways: by which way a container is written.
        metrics: where repairs are counted.

    Attributes:
        due_s: when to look again without an event.
    """

    def __init__(self, tree: BandwidthTree, ways: Ways, metrics: Metrics) -> None:
        self.due_s = math.inf
        self._tree = tree
        self._ways = ways
        self._metrics = metrics
        self._resolution: Resolution | None = None
        self._concerns: Mapping[str, _Concern] = {}
        self._seen: dict[str, _Seen] = {}

    def keep(
        self, found: Sequence[FoundContainer], resolution: Resolution, now_s: float
    ) -> Mapping[NoticeKey, Notice]:
        """Put right what differs, and tell of what cannot be, or does not stay so."""
        self.due_s = math.inf
        first = self._resolution is None
        if resolution is not self._resolution:
            self._resolution, self._concerns = resolution, dict(_concerns(resolution))
        there: dict[str, list[FoundContainer]] = {}
        for one in found:
            if one.pod in self._concerns:
                there.setdefault(one.pod, []).append(one)
        self._seen = {
            pod: self._seen.get(pod) or _Seen(lifted=first and self._concerns[pod].lifts)
            for pod in there
        }
        for pod, directories in there.items():
            self._keep(self._concerns[pod], directories, self._seen[pod], now_s)
        return dict(self._notices())

    def _keep(
        self, concern: _Concern, found: Sequence[FoundContainer], seen: _Seen, now_s: float
    ) -> None:
        goal = (concern, frozenset(one.path for one in found))
        if seen.tried != goal:
            seen.tried, seen.backoff, seen.contested = goal, Backoff(), False
        if now_s < seen.backoff.due_s:
            self._look_at(seen.backoff.due_s)
            return
        try:
            foreign = self._put_right(concern, found, seen, now_s)
        except RuntimeBusy:
            self._look_at(now_s + _TRY_AGAIN_S)
        except CPUPoolError as error:
            self._fail(seen, error, now_s)
        else:
            if foreign:
                seen.backoff, seen.contested = seen.backoff.after(now_s), True
            seen.right, seen.stuck = goal, ""

    def _put_right(
        self, concern: _Concern, found: Sequence[FoundContainer], seen: _Seen, now_s: float
    ) -> bool:
        """Write what must be written, and tell whether somebody else had written before."""
        has = self._read(concern, found, seen, now_s)
        if seen.right == seen.tried and seen.had == has:
            return False
        steps = self._steps(concern, found, seen, has)
        try:
            foreign = self._carry_out(steps, seen, now_s)
        except CPUPoolError:
            # Where somebody has written meanwhile, as the kubelet the pod's, other steps are right.
            has = self._read(concern, found, seen, now_s)
            others = self._steps(concern, found, seen, has)
            if set(others) <= set(steps):
                raise
            steps, foreign = others, self._carry_out(others, seen, now_s)
        seen.had = {**has, **{step.path: step.wants for step in steps}}
        return foreign

    def _fail(self, seen: _Seen, error: CPUPoolError, now_s: float) -> None:
        seen.backoff, seen.contested = seen.backoff.after(now_s), False
        self._look_at(max(seen.backoff.due_s, now_s + _TRY_AGAIN_S))
        # One that has ended is in nobody's way, however long its directory stays.
        if seen.stuck != str(error) and not isinstance(error, CgroupNotFound):
            seen.stuck = str(error)
            log.warning("quota stays wrong", error=error)

    def _look_at(self, due_s: float) -> None:
        self.due_s = min(self.due_s, due_s)

    def _read(
        self, concern: _Concern, found: Sequence[FoundContainer], seen: _Seen, now_s: float
    ) -> dict[str, Bandwidth]:
        """Read what the pod has and those of its containers that count, as far as they are there.

        Paths: the pod's own first.
        """
        paths = [_pod_path(found[0]), *(one.path for one in found if one.id in concern.limits)]
        read = ((path, self._tree.bandwidth(path)) for path in paths)
        there = {path: has for path, has in read if has is not None}
        seen.since_s = {path: seen.since_s.get(path, now_s) for path in there}
        return there

    def _steps(
        self,
        concern: _Concern,
        found: Sequence[FoundContainer],
        seen: _Seen,
        has: Mapping[str, Bandwidth],
    ) -> tuple[Level, ...]:
        """Give what must be written; nothing where the pod has no CPU time to limit."""
        pod_path = _pod_path(found[0])
        if pod_path not in has:
            return ()
        ids = {one.path: ContainerID(one.id) for one in found if one.path in has}
        containers = [
            Level(path, has[path], concern.limits[container].settle(has[path]), container)
            for path, container in ids.items()
            if path != pod_path
        ]
        limited = [(concern.limits[one.container], one.has) for one in containers]
        # The pod has room for a container before that runs.
        there = {one.id for one in found}
        limited += [
            (limit, Bandwidth())
            for container, limit in concern.limits.items()
            if container not in ids.values()
            and (container in there or self._ways.starting(container))
        ]
        seen.lifted |= any(limit.milli is None for limit, _ in limited)
        pod = has[pod_path]
        wants = settle_pod(pod, concern.pod.limit_milli, limited, lifts=seen.lifted)
        if concern.unsure and not wants.holds(pod):
            # That container runs on with what it was given, and would use up what the others need.
            wants = pod
        return plan(Level(pod_path, pod, wants), containers)

    def _carry_out(self, steps: Sequence[Level], seen: _Seen, now_s: float) -> bool:
        """Write all that can be, and tell whether somebody else had written before.

        Of what cannot be written the first is raised.
        """
        reasons = {step.path: _reason(seen, step.path, now_s) for step in steps}
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
        return any(reason.foreign for reason in reasons.values())

    def _write(self, step: Level, reason: Reason) -> None:
        way = Way.CGROUP
        if step.container == POD_ITSELF:
            self._tree.limit(step.path, step.wants)
        else:
            way = self._ways.limit(self._tree, step.path, step.container, step.wants)
        self._metrics.quota_repaired(reason.value)
        log.info(
            "quota repaired",
            cgroup=step.path,
            found=step.has,
            quota=step.wants,
            by=reason.value,
            way=way.value,
        )

    def _notices(self) -> Iterator[tuple[NoticeKey, Notice]]:
        for uid, seen in self._seen.items():
            pod = self._concerns[uid].pod
            if not seen.backoff.delay_s:
                continue
            if seen.stuck:
                yield _notice(uid, _failed(pod, seen.stuck))
            elif seen.contested:
                yield _notice(uid, _contested(pod))


def _concerns(resolution: Resolution) -> Iterator[tuple[str, _Concern]]:
    limits: dict[str, dict[ContainerID, Limit]] = {}
    unsure: set[str] = set()
    for (uid, container), placed in resolution.containers.items():
        if placed.assignment.limit is not None:
            limits.setdefault(uid, {})[container] = placed.assignment.limit
        if placed.assignment.cause is not None:
            unsure.add(uid)
    for uid, pod in resolution.pods.items():
        asked = {one for container in pod.containers for one in container.requests}
        if asked:
            lifts = any(one.kind is ResourceKind.EXCLUSIVE for one in asked)
            yield uid, _Concern(pod, limits.get(uid, {}), lifts, uid in unsure)


def _pod_path(found: FoundContainer) -> str:
    return found.path if found.id == POD_ITSELF else found.path.rpartition("/")[0]


def _reason(seen: _Seen, path: str, now_s: float) -> Reason:
    if now_s - seen.since_s[path] < _NEW_S:
        return Reason.NEW
    return Reason.UNKNOWN if seen.right == seen.tried else Reason.MOVED


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
