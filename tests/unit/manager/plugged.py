"""A node whose containers have CPUs by the answers of plugins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cpupool.core.cpu_manager import CPUManager, Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import AnswerPart, PluginFacts, RecordedAnswer, ServedAs
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import (
    Container,
    ContainerID,
    ContainerKind,
    ContainerRef,
    Pod,
    RuntimeContainer,
)
from cpupool.manager.manager import Manager
from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.policy import QRM
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping

MACHINE = MACHINES["arm_no_smt"]


def pools(
    policy: str = QRM,
    topology: TopologyPolicy = TopologyPolicy.NONE,
    misfit: Misfit = Misfit.HOLD,
) -> NodePools:
    own = CPUManager(policy, CPUSet.of(0), topology_policy=topology, on_misfit=misfit)
    return NodePools.of(
        Pool.named("default", "0-7"), Pool.named("exclusive_a", "8-9"), cpu_manager=own
    )


def container(
    name: str = "main",
    kind: ContainerKind = ContainerKind.APP,
    *,
    running: bool = False,
    pool: bool = False,
    more: Mapping[str, float] | None = None,
    **quantities: float,
) -> Container:
    """Make a container that requests amounts, and one of a pool; two CPUs where none is said."""
    of_pool = {"exclusive_a": 1} if pool else {}
    made = builders.container(name, kind, running=running)
    amounts = {**quantities, **(more or {})}
    return replace(made, requests=builders.asking(of_pool), quantities=amounts or {"cpu": 2.0})


def pod(
    name: str,
    *containers: Container,
    level: str = "",
    daemon: bool = False,
    annotations: Mapping[str, str] | None = None,
    **fields: Any,
) -> Pod:
    texts = {**({katalyst.QOS_LEVEL: level} if level else {}), **(annotations or {})}
    made = builders.pod(name, *(containers or (container(),)))
    described = katalyst.described({}, texts, of_daemon_set=daemon)
    return replace(made, description=described, **fields)


def cpus(text: str, *, exclusive: bool = False, refused: str = "") -> RecordedAnswer:
    answer = AnswerPart("CpusetCpus", text, 2.0, scalar=True)
    return RecordedAnswer(2.0, {"cpu": answer}, exclusive=exclusive, refused=refused)


def ref(pod_name: str, name: str = "main") -> ContainerRef:
    return ContainerRef(f"{pod_name}-uid", name)


def manager(
    *pods: Pod,
    given: Mapping[ContainerRef, Mapping[str, RecordedAnswer]] | None = None,
    served: tuple[str, ...] = ("cpu",),
    refusals: Mapping[ContainerRef, str] | None = None,
    configured: NodePools | None = None,
    names: Mapping[str, ServedAs] | None = None,
) -> Manager:
    made = Manager()
    made.reconfigure(configured or pools(), MACHINE.topology())
    facts = PluginFacts(frozenset(served), given or {}, refusals or {}, names or {})
    made.observe(pods=pods, plugins=facts)
    made.adopt(())
    return made


def starts(node: Manager, *pods: Pod) -> None:
    """Let the runtime make the pods' sandboxes."""
    node.observe_containers(
        RuntimeContainer(ContainerID(f"{each.name}-sandbox"), each.uid, each.namespace, each.name)
        for each in pods
    )
