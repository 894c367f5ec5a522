"""The node's state as one JSON document, which the agent writes and the commands read."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from cpupool.core.assignments import Placement, Step
from cpupool.core.cgroups import Writer
from cpupool.core.cpu_manager import (
    COMPACTION,
    CPU_MANAGER,
    CPUS,
    ELIGIBLE,
    MAX_NOTICE,
    NAMESPACES,
    ON_MISFIT,
    OPTIONS,
    POD_LEVEL,
    POLICY,
    RESERVED,
    SUPPRESSION,
    SYSTEM_PODS,
    TOPOLOGY_POLICY,
    TOPOLOGY_SCOPE,
    USUAL_NOTICE_S,
    Compaction,
    CPUManager,
    Eligible,
    Misfit,
    Scope,
    StaticOptions,
    Suppression,
    SystemPods,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import LATEST_UNIX_S, PastResize
from cpupool.core.names import KUBELET_CPUS, POLICY_CPUS, resource_named
from cpupool.core.pool_policy import PoolPolicy
from cpupool.core.pools import HyperThreadingPolicy, MixedCPUs, NodePools, Pool, PoolKind
from cpupool.core.withheld import Withheld
from cpupool.manager.report import (
    ContainerStatus,
    InBubble,
    NodeResource,
    NodeStatus,
    OwnChanges,
    PluginAnswer,
    PluginStatus,
    PoolShare,
    RefusedPod,
)
from cpupool.policies.base import Choice
from cpupool.policies.view import BEST_EFFORT, DEFAULT, Size
from cpupool.wire.json_text import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.requests import Resource

SCHEMA = "cpupool-status/2"
_Number = TypeVar("_Number", int, float)


def to_json(status: NodeStatus) -> dict[str, Any]:
    """Write a status as JSON values."""
    return {
        "schema": SCHEMA,
        "waiting_for": status.waiting_for,
        "enforcement": status.enforcement.value,
        "nri": status.nri,
        "offline": str(status.offline),
        "withheld": [
            {"cpus": str(part.cpus), "cgroup": part.cgroup, "partition": part.partition}
            for part in status.withheld
        ],
        "blocked": str(status.blocked),
        "pools": {
            pool.name: {
                "kind": pool.kind.value,
                "cpus": str(pool.cpus),
                "hyperThreadingPolicy": pool.hyper_threading.value,
                "policy": pool.policy.written(),
            }
            for pool in status.pools
        },
        "mixedCPUs": _mixed_to_json(status.pools.mixed),
        CPU_MANAGER: status.pools.cpu_manager.written(),
        "reserved": str(status.reserved),
        "sets": {name: str(cpus) for name, cpus in status.sets.items()},
        "draining": dict(status.draining),
        "sizes": {name: asdict(size) for name, size in status.sizes.items()},
        "plugin_folders": list(status.plugin_folders),
        "plugins": [asdict(plugin) for plugin in status.plugins],
        "lost": list(status.lost),
        "node_resources": [asdict(each) for each in status.node_resources],
        "refused": [{"name": pod.name, "why": pod.why, "held": pod.held} for pod in status.refused],
        "containers": [
            {
                "name": container.name,
                "placement": container.placement.value,
                "wanted": str(container.wanted),
                "found": container.found,
                "reason": container.reason,
                "exclusive": str(container.exclusive),
                "qos": container.qos,
                "assigned": str(container.assigned),
                "shares": [_share_to_json(share) for share in container.shares],
                "answers": [asdict(answer) for answer in container.answers],
                "changes": container.changes and _changes_to_json(container.changes),
                "bubble": container.bubble
                and {"cpus": str(container.bubble.cpus), "owns": container.bubble.owns},
            }
            for container in status.containers
        ],
    }


def _mixed_to_json(mixed: MixedCPUs | None) -> dict[str, Any] | None:
    if mixed is None:
        return None
    return {"pool": mixed.pool, "containersLimit": mixed.containers_limit}


def _changes_to_json(changes: OwnChanges) -> dict[str, Any]:
    return {
        "baseline": str(changes.baseline),
        "leaving": str(changes.leaving),
        "notice_over": changes.notice_over,
        "notice_ends_unix_s": changes.notice_ends_unix_s,
        "resizes": [
            {
                "before": str(each.before),
                "after": str(each.after),
                "unix_s": each.unix_s,
                "moved": each.moved,
            }
            for each in changes.resizes
        ],
    }


def _share_to_json(share: PoolShare) -> dict[str, Any]:
    return {
        "pool": share.pool,
        "requested": share.requested,
        "devices": share.devices,
        "given": str(share.given),
        "siblings": str(share.siblings),
        "reused_from": share.reused_from,
        "choice": share.choice
        and {
            "cpus": str(share.choice.cpus),
            "proven": share.choice.proven,
            "steps": steps_to_json(share.choice.steps),
        },
        "cpus": str(share.cpus),
    }


def resource(name: str) -> Resource:
    """Return the resource that a status names.

    Raises:
        ValueError: it is not a resource of cpupool.
    """
    native = {str(cpus): cpus for cpus in (KUBELET_CPUS, POLICY_CPUS)}
    found = native.get(name) or resource_named(name)
    if found is None:
        raise ValueError(f"{name[:60]!r} is no resource of cpupool")
    return found


def steps_to_json(steps: Iterable[Step]) -> list[dict[str, str]]:
    """Write the reasons of a choice as JSON values."""
    return [{"rule": step.rule, "why": step.why, "left": str(step.left)} for step in steps]


def steps_of(fields: Fields) -> tuple[Step, ...]:
    """Read what `steps_to_json` wrote, in the member `steps`.

    Raises:
        JSONRefused: there is something else.
    """
    return tuple(
        Step(step.get("rule", str), step.get("why", str), step.read("left", CPUSet.parse))
        for step in fields.objects("steps")
    )


def from_json(document: object) -> NodeStatus:
    """Read a status that `to_json` wrote; members of another name are ignored.

    Raises:
        JSONRefused: it has another schema, or a member is missing, or is something else.
    """
    top = Fields.of(document)
    if (schema := top.get("schema", str)) != SCHEMA:
        raise top.refusal("schema", f"is {schema[:60]!r}, and not {SCHEMA}")
    pools, draining = top.within("pools"), top.within("draining")
    sets, sizes = top.within("sets", optional=True), top.within("sizes", optional=True)
    if BEST_EFFORT in sets.members and DEFAULT not in sets.members:
        raise sets.refusal(DEFAULT, "is missing")
    return NodeStatus(
        NodePools.of(
            *(_pool(name, pools.within(name)) for name in pools.members),
            mixed=_mixed(top.part("mixedCPUs")),
            cpu_manager=_cpu_manager(top.part(CPU_MANAGER)),
        ),
        tuple(map(_container, top.objects("containers"))),
        top.get("waiting_for", str),
        {name: draining.get(name, int) for name in draining.members},
        top.read("enforcement", Writer),
        top.read("offline", CPUSet.parse),
        top.read("blocked", CPUSet.parse),
        top.read("reserved", CPUSet.parse, ""),
        tuple(
            RefusedPod(pod.get("name", str), pod.get("why", str), pod.get("held", bool))
            for pod in top.objects("refused", optional=True)
        ),
        {name: sets.read(name, CPUSet.parse) for name in sets.members},
        {name: _size(sizes.within(name)) for name in sizes.members},
        top.texts("plugin_folders"),
        tuple(map(_plugin, top.objects("plugins", optional=True))),
        top.texts("lost"),
        tuple(map(_node_resource, top.objects("node_resources", optional=True))),
        top.get("nri", str, ""),
        tuple(
            Withheld(
                part.read("cpus", CPUSet.parse), part.get("cgroup", str), part.get("partition", str)
            )
            for part in top.objects("withheld", optional=True)
        ),
    )


def _pool(name: str, pool: Fields) -> Pool:
    try:
        policy = PoolPolicy.read(_texts(pool.within("policy")))
    except ValueError as error:
        raise pool.refusal("policy", f"is refused: {error}") from error
    return Pool(
        name,
        pool.read("kind", PoolKind),
        pool.read("cpus", CPUSet.parse),
        pool.read("hyperThreadingPolicy", HyperThreadingPolicy),
        policy,
    )


def _mixed(mixed: Fields | None) -> MixedCPUs | None:
    if mixed is None:
        return None
    return MixedCPUs(mixed.get("pool", str), mixed.get("containersLimit", int))


def _cpu_manager(manager: Fields | None) -> CPUManager:
    if not (manager and manager.members):
        return CPUManager()
    reserved = manager.members.get(RESERVED)
    if isinstance(reserved, str):
        reserved = manager.read(RESERVED, CPUSet.parse)
    elif reserved is not None:
        reserved = manager.get(RESERVED, int)
    names, options = StaticOptions.names(), manager.texts(OPTIONS)
    if unknown := [option for option in options if option not in names]:
        raise manager.refusal(OPTIONS, f"has {unknown[0][:60]!r}, which is no option")
    suppression, system = manager.part(SUPPRESSION), manager.part(SYSTEM_PODS)
    compaction = manager.part(COMPACTION)
    return CPUManager(
        manager.get(POLICY, str),
        reserved,
        StaticOptions(**{names[option]: True for option in options}),
        manager.read(TOPOLOGY_POLICY, TopologyPolicy),
        manager.read(ON_MISFIT, Misfit),
        declared=manager.get("declared", bool),
        suppression=None
        if suppression is None
        else Suppression(
            suppression.get("threshold_percent", int), suppression.get("min_percent", int)
        ),
        topology_scope=manager.read(TOPOLOGY_SCOPE, Scope, Scope.CONTAINER.value),
        max_notice_s=manager.get(MAX_NOTICE, int, USUAL_NOTICE_S),
        eligible=manager.read(ELIGIBLE, Eligible, Eligible.POD.value),
        system_pods=SystemPods()
        if system is None
        else SystemPods(system.texts(NAMESPACES), system.read(CPUS, CPUSet.parse)),
        pod_level=manager.get(POD_LEVEL, bool, default=False),
        compaction=None
        if compaction is None
        else Compaction(
            compaction.get("moves_per_hour", int), compaction.get("minimum_age_s", int)
        ),
    )


def _container(container: Fields) -> ContainerStatus:
    return ContainerStatus(
        name=container.get("name", str),
        placement=container.read("placement", Placement),
        wanted=container.read("wanted", CPUSet.parse),
        found=container.read("found", _listed),
        reason=container.get("reason", str),
        exclusive=container.read("exclusive", CPUSet.parse),
        shares=tuple(map(_share, container.objects("shares"))),
        qos=container.get("qos", str, ""),
        assigned=container.read("assigned", CPUSet.parse, ""),
        answers=tuple(map(_answer, container.objects("answers", optional=True))),
        changes=_changes(container.part("changes")),
        bubble=_bubble(container.part("bubble")),
    )


def _bubble(bubble: Fields | None) -> InBubble | None:
    if bubble is None:
        return None
    return InBubble(bubble.read("cpus", CPUSet.parse), bubble.get("owns", bool))


def _changes(changes: Fields | None) -> OwnChanges | None:
    if changes is None:
        return None
    return OwnChanges(
        changes.read("baseline", CPUSet.parse),
        changes.read("leaving", CPUSet.parse),
        changes.get("notice_over", bool),
        _moment(changes, "notice_ends_unix_s", float),
        tuple(map(_resize, changes.objects("resizes"))),
    )


def _resize(resize: Fields) -> PastResize:
    return PastResize(
        resize.read("before", CPUSet.parse),
        resize.read("after", CPUSet.parse),
        _moment(resize, "unix_s", int),
        resize.get("moved", str, ""),
    )


def _moment(fields: Fields, key: str, kind: type[_Number]) -> _Number | None:
    if fields.members.get(key) is None:
        return None
    if not 0 <= (moment := fields.get(key, kind)) <= LATEST_UNIX_S:
        raise fields.refusal(key, "is no Unix time")
    return moment


def _listed(text: str) -> str:
    CPUSet.parse(text)
    return text


def _share(share: Fields) -> PoolShare:
    choice = share.part("choice")
    return PoolShare(
        pool=share.read("pool", resource),
        requested=share.get("requested", int),
        devices=share.get("devices", int),
        given=share.read("given", CPUSet.parse),
        siblings=share.read("siblings", CPUSet.parse),
        reused_from=share.get("reused_from", str),
        choice=None if choice is None else _choice(choice),
        cpus=share.read("cpus", CPUSet.parse),
    )


def _choice(choice: Fields) -> Choice:
    return Choice(choice.read("cpus", CPUSet.parse), steps_of(choice), choice.get("proven", bool))


def _answer(answer: Fields) -> PluginAnswer:
    return PluginAnswer(
        answer.get("resource", str),
        _texts(answer.within("values")),
        answer.texts("texts"),
        answer.get("nodes", str),
        answer.get("why", str),
        answer.get("confirmed", str),
    )


def _plugin(plugin: Fields) -> PluginStatus:
    return PluginStatus(
        *(plugin.get(key, str) for key in ("socket", "resource", "why", "answered"))
    )


def _node_resource(found: Fields) -> NodeResource:
    return NodeResource(
        found.get("resource", str),
        found.get("amount", int),
        found.get("why", str),
        found.get("remedy", str),
    )


def _size(size: Fields) -> Size:
    return Size(size.get("count", int), size.get("whole", int), size.get("why", str))


def _texts(fields: Fields) -> Mapping[str, str]:
    return {name: fields.get(name, str) for name in fields.members}
