"""The reasons why a container has its CPUs, or none: the steps that `cpupool explain` shows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from cpupool.commands.checks import plugin_rows
from cpupool.core import withheld
from cpupool.core.assignments import Placement, Step
from cpupool.core.cgroups import Writer
from cpupool.core.cpu_manager import SYSTEM_CPUS, SYSTEM_PODS
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import QoS
from cpupool.core.pools import PoolKind
from cpupool.core.requests import Resource, ResourceKind
from cpupool.core.workloads import QoSClass
from cpupool.manager import status_json
from cpupool.policies.view import BEST_EFFORT, DEFAULT, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.cpu_manager import CPUManager
    from cpupool.core.pools import Pool
    from cpupool.manager.report import ContainerStatus, NodeStatus, PoolShare
    from cpupool.wire.json_text import Fields

SIMULATION_SCHEMA: Final = "cpupool-simulation/1"
"""The schema of the file that `cpupool simulate --json` writes and `cpupool explain` reads."""
_WAYS: Final = {
    Writer.NRI: ("the container runtime", "NRI", "before their first instruction"),
    Writer.CRI: ("the container runtime", "CRI", "when cpupool has seen them"),
    Writer.CGROUP: ("cpupool", "the cgroup", "when it has seen them"),
}
_IN_POD: Final = {
    QoSClass.GUARANTEED.value: " in a Guaranteed pod",
    QoSClass.BURSTABLE.value: ", with an equal limit, in a Burstable pod",
}
_NONE_NAMED: Final = "the kubelet has named none for it"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons why one container has its CPUs.

    Attributes:
        name: the container.
        steps: the reasons, in their order.
        cpus: its CPUs; None where only its node knows.
        right: whether it has the right CPUs; a refused one has not. Where only its node knows its
            CPUs: whether there is no sign of wrong ones.
        pools: the CPUs of its pools.
    """

    name: str
    steps: tuple[Step, ...]
    cpus: CPUSet | None
    right: bool
    pools: CPUSet

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return {
            "name": self.name,
            "cpus": None if self.cpus is None else str(self.cpus),
            "right": self.right,
            "steps": status_json.steps_to_json(self.steps),
        }


def on_node(status: NodeStatus, container: ContainerStatus) -> Explanation:
    """Explain a container that the agent has found."""
    found = CPUSet.parse(container.found)
    pools = (status.pools.behind(share.pool) for share in container.shares)
    waits = _waits(status, container)
    return Explanation(
        container.name,
        (*_on_node(status, container), *waits),
        found,
        container.right and not waits,
        CPUSet.union(pool.cpus for pool in pools if pool),
    )


def in_simulation(container: Fields) -> Explanation:
    """Explain a container of a simulation.

    Args:
        container: as `cpupool simulate --json` writes it.

    Raises:
        JSONRefused: a member is missing, or is something else.
    """
    cpus = container.read("cpus", CPUSet.parse)
    chosen = status_json.steps_of(container)
    pool = container.read("pool", status_json.resource)
    request = f"it requests {amount(pool, container.get('requested', int))}"
    first = chosen[0].left if chosen else cpus
    misfits = {word: container.get(word, str, "") for word in ("refused", "held", "shares")}
    unserved = [Step(word, why, CPUSet()) for word, why in misfits.items() if why]
    last = unserved[0] if unserved else Step("given", "these CPUs", cpus)
    steps = (Step("request", request, first), *chosen, last)
    return Explanation(container.get("name", str), steps, cpus, not unserved, first)


def in_progress(status: NodeStatus) -> Iterator[str]:
    """Yield a sentence for each resize or move that is not complete."""
    for container in status.containers:
        if leaving := _leaving(container):
            yield f"{container.name}: {leaving}."


def _leaving(container: ContainerStatus) -> str:
    """Describe which CPUs a resize or a move takes from a container, and when; empty for none."""
    changes = container.changes
    if changes is None or not changes.leaving:
        return ""
    has, leaving = container.exclusive, changes.leaving
    change = "a move" if changes.resizes and changes.resizes[-1].moved else "a resize"
    what = f"{change} changes its CPUs from {has | leaving} to {has - leaving};"
    one = len(leaving) == 1
    leave, them = (f"CPU {leaving} leaves", "it") if one else (f"CPUs {leaving} leave", "them")
    if changes.notice_over:
        free = f"CPU {leaving} is free" if one else f"CPUs {leaving} are free"
        return f"{what} {free} when the container has left {them}"
    if (ends := changes.notice_ends_unix_s) is None:
        return f"{what} {leave} when its notice ends"
    left_s = max(0, ceil(ends - time.time()))
    return f"{what} {leave} in {left_s} s, at {_shown(ends)}, or when no thread needs {them}"


def _shown(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _resizes(container: ContainerStatus) -> Iterator[Step]:
    """Explain how resizes and moves have changed the own CPUs, and what is not complete."""
    changes = container.changes
    for each in changes.resizes if changes else ():
        when = "without the agent" if each.unix_s is None else _shown(each.unix_s)
        yield Step(each.rule, f"{when}: {each.what}", each.after)


def _on_node(status: NodeStatus, container: ContainerStatus) -> Iterator[Step]:
    yield _request(status, container)
    for share in container.shares:
        if share.pool.kind is ResourceKind.KUBELET:
            why = "the kubelet's static CPU manager gave these"
            yield Step("kubelet", why if share.devices else _NONE_NAMED, share.given)
            continue
        if share.pool.kind is ResourceKind.POLICY:
            yield from _by_policy(status, container, share)
            continue
        pool = status.pools.behind(share.pool)
        yield _pool(status, share, pool)
        if share.pool.kind.exclusive:
            yield from _chosen(share)
            yield _given(share)
            yield from _added_and_lost(status, container, share, pool)
        else:
            yield from _shared(container, share, pool)
    yield from _answered(status, container)
    yield from _placed(status, container)
    if container.placement is not Placement.KUBELET:
        who, way, when = _WAYS[status.enforcement]
        text = f"{who} sets the CPUs of containers that start now ({way}), {when}"
        yield Step("enforcement", text, container.wanted)
    yield _found(container)


def _waits(status: NodeStatus, container: ContainerStatus) -> tuple[Step, ...]:
    """Return why the other containers of its pod wait; empty if they do not."""
    pod = "/".join(container.name.split("/")[:2])
    return tuple(
        Step("held", f"the containers of its pod are not created: {refused.why}", CPUSet())
        for refused in status.refused
        if refused.held and refused.name == pod
    )


def _request(status: NodeStatus, container: ContainerStatus) -> Step:
    if not container.shares:
        pod_only = container.name.count("/") < 2
        unsaid = "it requests no pool"
        if pod_only:
            unsaid = "a pod's sandbox, or a container that its pod has not reported yet"
        elif container.answers:
            asked = " and ".join(answer.resource for answer in container.answers)
            unsaid = f"it requests {asked}, for which plugins answer"
        return Step("request", unsaid, container.wanted)
    requests, cpus = [], CPUSet()
    for share in container.shares:
        of_policy = share.pool.kind is ResourceKind.POLICY
        if of_policy and container.bubble:
            many = share.requested if container.bubble.owns else "no"
            equal = "" if container.bubble.owns else " with equal limits"
            request = f"{many} whole CPUs{equal}, in a pod with resources of its own"
        elif of_policy and not share.requested:
            # The policy of a package may serve any container.
            named = status.pools.cpu_manager.named
            request = f"no whole CPUs, and the policy {named} gives it some"
        elif of_policy and BEST_EFFORT in status.sets:
            request = f"{share.requested} whole CPUs for a pod of the class {container.qos}"
        else:
            request = amount(share.pool, share.requested, container.qos)
        requests.append(request)
        pool = status.pools.behind(share.pool)
        cpus |= pool.cpus if pool else share.given
    return Step("request", f"it requests {' and '.join(requests)}", cpus)


def amount(resource: Resource, requested: int, qos: str = "") -> str:
    """Describe how much of a resource a container requests.

    Args:
        resource: the resource.
        requested: the amount.
        qos: the class of its pod, Kubernetes' or another; empty where it is not known.
    """
    if resource.kind is ResourceKind.KUBELET:
        return f"{requested} of the kubelet's own CPUs"
    if resource.kind is ResourceKind.POLICY:
        return f"{requested} whole CPUs{_IN_POD.get(qos, '')}"
    milli = " milli-CPUs" if resource.kind is ResourceKind.SHARED else ""
    return f"{requested}{milli} of {resource}"


def _by_policy(status: NodeStatus, container: ContainerStatus, share: PoolShare) -> Iterator[Step]:
    manager = status.pools.cpu_manager
    kept = f"; CPUs {status.reserved} are reserved" if status.reserved else ""
    if share.choice:
        yield from share.choice.steps
    yield from _resizes(container)
    if not share.given:
        why = f"the policy {manager.named} has no CPUs that serve it now{kept}"
    else:
        why = f"the policy {manager.named} has chosen them for the whole pod"
        if container.bubble:
            why = f"the policy {manager.named} has chosen the bubble {container.bubble.cpus} for"
            why += " the resources of the whole pod: " + (
                "this part is the container's own"
                if container.bubble.owns
                else "its other containers share these, and run nowhere else"
            )
        if share.reused_from:
            why += f", also for {share.reused_from}, which runs at another time"
        why += kept
    yield Step("cpuManager", why, share.given)
    if offline := share.given & status.offline:
        why = f"{withheld.why(offline, status.withheld)}: it runs there again when they are back"
        yield Step("offline", why, share.cpus)


def _pool(status: NodeStatus, share: PoolShare, pool: Pool | None) -> Step:
    if pool is None:
        return Step("pool", f"this node has no pool {share.pool} now", share.given)
    said = pool_facts(share.pool, pool)
    kept = withheld.all_of(status.withheld)
    for what, cpus in (
        ("offline", status.offline - kept),
        ("withheld from containers", kept),
        ("on cores of two pools", status.blocked),
    ):
        if lost := pool.cpus & cpus:
            said.append(f"CPUs {lost} {what}")
    return Step("pool", ", ".join(said), status.offered(pool))


def pool_facts(resource: Resource, pool: Pool) -> list[str]:
    """Describe a pool."""
    said = [f"{resource} has CPUs {pool.cpus}"]
    if pool.kind is PoolKind.EXCLUSIVE:
        said += ["one owner each", pool.hyper_threading.value]
    return said + [f"{key} {value}" for key, value in pool.policy.written().items()]


def _chosen(share: PoolShare) -> Iterator[Step]:
    if share.choice is not None:
        yield from share.choice.steps
        if not share.choice.proven:
            why = "the best of the sets that were looked at: there were too many to see them all"
            yield Step("search", why, share.choice.cpus)
    elif share.devices and not share.reused_from:
        why = (
            "chosen before this agent started: not recorded; or the kubelet had nothing to ask,"
            " because it needed all that was left"
        )
        yield Step("choice", why, share.given)


def _given(share: PoolShare) -> Step:
    if not share.devices:
        why = _NONE_NAMED
    elif share.reused_from:
        why = (
            f"the kubelet gave those of the init container {share.reused_from}: it reuses what its"
            " pod's init containers had before others"
        )
    elif share.choice is None:
        why = "the kubelet gave these"
    elif share.choice.cpus == share.given:
        why = "the kubelet gave these, as GetPreferredAllocation had advised"
    else:
        why = (
            f"the kubelet did not follow GetPreferredAllocation, which advised {share.choice.cpus}:"
            " its Topology Manager aligned them otherwise, or another pod was quicker"
        )
    return Step("devices", why, share.given)


def _added_and_lost(
    status: NodeStatus, container: ContainerStatus, share: PoolShare, pool: Pool | None
) -> Iterator[Step]:
    granted = share.given | share.siblings
    if share.siblings:
        yield Step(
            "multiThreaded", f"the siblings on its cores are added, CPUs {share.siblings}", granted
        )
    if gone := share.given - (pool.offered if pool else CPUSet()):
        why = f"CPUs {gone} are the pool's to give no more: the pod keeps them until it ends"
        yield Step("draining", why, granted)
    if container.placement is Placement.POOLS and (offline := granted & status.offline):
        why = f"{withheld.why(offline, status.withheld)}: it runs there again when they are back"
        yield Step("offline", why, share.cpus)


def _shared(container: ContainerStatus, share: PoolShare, pool: Pool | None) -> Iterator[Step]:
    unit = "one per milli-CPU" if share.pool.kind is ResourceKind.SHARED else "for the container"
    why = f"the kubelet gave {share.devices}, {unit}" if share.devices else _NONE_NAMED
    on_pools = container.placement is Placement.POOLS
    yield Step("devices", why, pool.cpus if pool else share.cpus)
    if pool and on_pools and (lost := pool.cpus - share.cpus):
        yield Step("shared", f"CPUs {lost} are offline, or on a core that a pod owns", share.cpus)


def _answered(status: NodeStatus, container: ContainerStatus) -> Iterator[Step]:
    """Explain the answers of plugins for resources, and where no answer applies."""
    for answer in container.answers:
        if answer.why:
            why = f"it has no answer for {answer.resource} that counts: {answer.why}"
        else:
            said = plugin_rows.answered(answer)
            known = plugin_rows.confirmed(answer, status.lost)
            why = f"the plugin for {answer.resource} has answered: {said} ({known})"
        yield Step("plugin", why, container.wanted)


def _owned(status: NodeStatus, container: ContainerStatus) -> Iterator[Step]:
    if container.placement is Placement.PLUGIN:
        whose = "they are its own" if container.exclusive else "other containers may have them, too"
        why = f"a plugin for resources names its CPUs: {whose}"
    else:
        shared = container.wanted - container.exclusive
        whose = "its own"
        if container.bubble and not container.bubble.owns:
            whose = "its pod's: no other pod runs there"
        why = f"they are {whose}, and CPUs {shared} are shared" if shared else f"they are {whose}"
        if BEST_EFFORT in status.sets:
            alone = container.qos == QoS.LSE.value
            why += ": no other pod runs there" if alone else "; it lends them to best-effort pods"
    yield Step("own", why, container.wanted)
    if leaves := _leaving(container):
        yield Step("leaving", leaves, container.wanted - container.leaving)
    elif container.reason:
        yield Step("resize", container.reason, container.wanted)


def _placed(status: NodeStatus, container: ContainerStatus) -> Iterator[Step]:
    defaults = status.pools.of_kind(PoolKind.DEFAULT)
    default = f"the default pool {defaults[0].name}" if defaults else "the CPUs of no pool"
    if container.placement is Placement.KUBELET:
        why = f"{container.reason}: " if container.reason else ""
        why += "the kubelet's static CPU manager places it, and cpupool leaves it there"
        yield Step("kubelet", why, CPUSet.parse(container.found))
    elif container.placement in {Placement.POLICY, Placement.PLUGIN}:
        yield from _owned(status, container)
    elif container.placement is Placement.DEFAULT:
        yield _sharing(status, container, default)
        if container.reason:
            yield Step("reason", container.reason, container.wanted)
    elif container.placement is Placement.CONFINED:
        why = f"{container.reason}: it is kept on {default}, away from exclusive CPUs"
        yield Step("confined", why, container.wanted)
    else:
        if len(container.shares) > 1:
            yield Step("together", "the CPUs of all its pools", container.wanted)
        if container.reason:
            yield Step("kept", container.reason, container.wanted)


def _sharing(status: NodeStatus, container: ContainerStatus, default: str) -> Step:
    """Explain the CPUs of a container that has none of its own."""
    if BEST_EFFORT in status.sets:
        return _classed(status, container)
    system = status.sets.get(SYSTEM)
    if system and container.wanted == system:
        return Step(SYSTEM_PODS, system_pods(status.pools.cpu_manager), container.wanted)
    return Step("default", f"it runs on {default}", container.wanted)


def system_pods(manager: CPUManager) -> str:
    """Return where system pods run."""
    names = " and ".join(manager.system_pods.namespaces)
    return f"pods of {names} run on the CPUs of {SYSTEM_CPUS}, where nobody else runs"


def _classed(status: NodeStatus, container: ContainerStatus) -> Step:
    """Explain the shared CPUs of a pod's class."""
    shared, best_effort = status.sets[DEFAULT], status.sets[BEST_EFFORT]
    lent = container.wanted & best_effort - shared
    why = f"a pod of the class {container.qos} runs on the shared CPUs"
    if container.qos == QoS.SYSTEM.value and not container.wanted <= shared:
        why = "the Node's system-qos-resource names them for pods of the class SYSTEM"
    elif lent:
        why += f", and on CPUs {lent}, which LSR pods lend to best-effort pods"
    elif container.wanted < shared and not container.reason:
        why += " of its NUMA nodes"
    return Step("class", why, container.wanted)


def _found(container: ContainerStatus) -> Step:
    found = CPUSet.parse(container.found)
    if container.right:
        why = "its cgroup has these CPUs: it is where it belongs"
    elif container.wanted:
        why = (
            f"its cgroup has other CPUs than {container.wanted}: the agent moves it in a moment,"
            " or its log says what is in the way"
        )
    else:
        why = "there is no CPU for it, so cpupool does not change its cgroup"
    return Step("found", why, found)
