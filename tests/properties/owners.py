"""A node whose kubelet, runtime and machine do anything in any order, and the agent on it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.errors import AllocationError, ConfigError
from cpupool.core.names import Names, pool_variable
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool, PoolKind
from cpupool.core.workloads import Container, ContainerID, ContainerKind, RuntimeContainer
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.manager import Manager
from tests import builders
from tests.cgroups import KernelModel
from tests.machines import MACHINES
from tests.setters import setter_on

if TYPE_CHECKING:
    from cpupool.core.grants import Grant
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod

MACHINE = MACHINES["laptop_4c8t"]
EVERYTHING = "0-7"
SPREAD = PoolPolicy(CPUBindPolicy.SPREAD_ACROSS_CORES, exclusive=ExclusivePolicy.PHYSICAL_CORE)
WHOLE = PoolPolicy(CPUBindPolicy.FULL_PHYSICAL_CORES, reserved=CPUSet.of(2, 3))
LAWFUL = (
    NodePools.of(
        Pool.named("exclusive_a", "2,4"),
        Pool.named("exclusive_b", "6", multi_threaded=True),
        Pool.named("shared_a", "0"),
        Pool.named("default", "1"),
    ),
    NodePools.of(
        Pool.named("exclusive_a", "2", multi_threaded=True),
        Pool.named("exclusive_b", "4,6"),
        Pool.named("shared_a", "0-1"),
    ),
    NodePools.of(
        Pool.named("exclusive_a", "6"),
        Pool.named("shared_a", "0-3"),
        Pool.named("default", "4-5"),
    ),
    NodePools.of(
        Pool.named("exclusive_c", "3,5"),
        Pool.named("shared_a", "0,6-7"),
        Pool.named("default", "1"),
    ),
    NodePools.of(
        replace(Pool.named("exclusive_a", "2-5"), policy=SPREAD),
        replace(Pool.named("exclusive_b", "6"), policy=PoolPolicy(numa=NUMAPolicy.DISTRIBUTED)),
        Pool.named("shared_a", "0"),
        Pool.named("default", "1"),
    ),
    NodePools.of(
        replace(Pool.named("exclusive_a", "2-7"), policy=WHOLE),
        Pool.named("shared_a", "0-1"),
    ),
    NodePools.of(
        replace(Pool.named("exclusive_a", "4-7"), policy=replace(SPREAD, reserved=CPUSet.of(5))),
        replace(Pool.named("exclusive_c", "2-3"), policy=SPREAD),
        Pool.named("default", "0-1"),
    ),
    NodePools.of(
        Pool.named("exclusive_a", "3,5"),
        Pool.named("exclusive_b", "7"),
        Pool.named("default", "0-1"),
    ),
)
UNLAWFUL = (
    NodePools.of(Pool.named("exclusive_a", "2-3"), Pool.named("default", "0")),
    NodePools.of(Pool.named("exclusive_a", "2"), Pool.named("default", "3")),
    NodePools.of(Pool.named("exclusive_a", "2"), Pool.named("shared_a", "2")),
    NodePools.of(replace(Pool.named("exclusive_a", "2-4"), policy=WHOLE)),
)
NAMES = Names()


class Annotated(Enum):
    """What the annotations of a container say of its devices."""

    TRULY = "what Allocate wrote"
    NOT = "nothing"
    FALSELY = "what another pod was given, whether or not that is known yet"


@dataclass
class Life:
    """A pod that the kubelet admitted, with what it gave to it."""

    pod: Pod
    pool: Pool
    ids: tuple[str, ...]
    announced: CPUSet
    seen: bool


@dataclass
class Kubelet:
    """The kubelet's own books; satisfies the cpusetter's ports.

    Attributes:
        lives: the pods with devices.
        plain: those without that are listed.
        late: those without that are not listed yet.
        ended: those that have ended, and are listed still.
        answers: whether podresources does.
        checkpoint: whether there is one.
    """

    lives: list[Life] = field(default_factory=list)
    plain: list[Pod] = field(default_factory=list)
    late: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)
    answers: bool = True
    checkpoint: bool = False

    def pods(self) -> tuple[Pod, ...]:
        seen = tuple(life.pod for life in self.lives if life.seen)
        return (*self.ended, *seen, *self.plain)

    def by_pod_name(self) -> dict[tuple[str, str], dict[str, dict[str, AllocatedDevices]]]:
        return {
            (life.pod.namespace, life.pod.name): {
                "main": {NAMES.resource(life.pool.name): AllocatedDevices(frozenset(life.ids))}
            }
            for life in self.lives
            if self.answers
        }

    def by_pod_uid(self) -> dict[str, dict[str, dict[str, AllocatedDevices]]]:
        return {
            life.pod.uid: {
                "main": {
                    NAMES.resource(life.pool.name): AllocatedDevices(
                        frozenset(life.ids), life.announced
                    )
                }
            }
            for life in self.lives
            if self.checkpoint
        }

    def allocatable_cpus(self) -> CPUSet:
        return CPUSet()

    def in_use(self, pool: str) -> set[str]:
        return {
            identifier for life in self.lives if life.pool.name == pool for identifier in life.ids
        }


@cache
def machine_without(off: str) -> CPUTopology:
    return MACHINE.without(off).topology()


class Node(RuleBasedStateMachine):
    """Allocate, release, reconfigure, offline, online, disturb, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.off = CPUSet()
        self.kernel = KernelModel(CgroupVersion.V2, {"kubepods": EVERYTHING}, EVERYTHING)
        self.kubelet = Kubelet()
        self.count = 0
        self.start_agent(LAWFUL[0])

    def start_agent(self, pools: NodePools) -> None:
        self.owned: dict[str, dict[str, CPUSet]] = {}
        self.manager = Manager(NAMES)
        self.manager.reconfigure(pools, self.topology())
        self.setter = setter_on(self.kernel, self.manager, self.kubelet)

    @precondition(lambda self: not self.off)
    @rule(data=st.data(), edited=st.booleans())
    def restart_agent(self, data: st.DataObject, *, edited: bool) -> None:
        """All that it knew is gone, and the kubelet has written down what containers were told."""
        self.kubelet.checkpoint = True
        self.all_are_seen()
        before = self.granted()
        if edited and self.kubelet.lives:
            self.edit(data)
        self.start_agent(self.manager.pools())
        self.all_are_seen()
        assert self.granted() == before

    def granted(self) -> dict[str, dict[str, Grant]]:
        """Return what pods own whose containers have not ended: pod → resource → grant."""
        found: dict[str, dict[str, Grant]] = {
            life.pod.cgroup_uid: {} for life in self.kubelet.lives
        }
        for uid, grant in self.manager.snapshot().resolution.grants.of_pods:
            if uid in found:
                found[uid][grant.resource] = grant
        return found

    @precondition(lambda self: self.kubelet.lives)
    @rule(data=st.data())
    def edit_pod(self, data: st.DataObject) -> None:
        self.edit(data)
        self.sweep()

    def edit(self, data: st.DataObject) -> None:
        """Resize a pod in place, and let it matter more to the node."""
        life, cpus = data.draw(st.sampled_from(self.kubelet.lives)), data.draw(st.integers(0, 3))
        (main,) = life.pod.containers
        main = replace(main, whole_cpus=cpus, request_milli=1000 * cpus)
        critical = data.draw(st.booleans())
        life.pod = replace(life.pod, containers=(main,), node_critical=critical)

    @rule(data=st.data(), seen=st.booleans(), obeys=st.booleans())
    def allocate(self, data: st.DataObject, seen: bool, obeys: bool) -> None:
        """The kubelet admits a pod: it asks for preferred devices, then allocates them, or others.

        Who lists the pods may see it later.
        """
        pool = data.draw(st.sampled_from(devices.advertised(self.manager.pools()))).pool
        offer = self.manager.devices(pool.name).offer
        # What a false annotation alone holds drains, too.
        used = self.kubelet.in_use(pool.name) | offer.draining
        free = [one.id for one in offer if one.healthy and one.id not in used]
        if not free:
            return
        try:
            if pool.kind is PoolKind.SHARED:
                ids = tuple(free[:100])
            elif obeys:
                size = data.draw(st.integers(1, len(free)))
                ids = self.manager.preferred(pool.name, free, [], size)
                assert len(ids) == size
            else:
                ids = tuple(data.draw(st.sets(st.sampled_from(free), min_size=1)))
            answer = self.manager.allocate(pool.name, ids).environment
        except AllocationError:
            assert pool.policy.whole_cores
            return
        if pool.policy.whole_cores:
            given = devices.exclusive_cpus(ids)
            assert self.topology().with_siblings(given) & pool.cpus == given
        amount = {pool.name: len(ids)}
        told = CPUSet.parse(answer[pool_variable(pool.name)])
        self.kubelet.lives.append(Life(self.start(**amount), pool, ids, told, seen))
        self.kubelet.answers = True
        if seen:
            self.sweep()

    @rule()
    def all_are_seen(self) -> None:
        for life in self.kubelet.lives:
            life.seen = True
        self.kubelet.plain += self.kubelet.late
        self.kubelet.late.clear()
        self.kubelet.answers = True
        self.sweep()

    @rule(data=st.data())
    def next_is_seen(self, data: st.DataObject) -> None:
        """One of the pods that are not listed yet is, whichever came first."""
        if unseen := self.unseen():
            data.draw(st.sampled_from(unseen)).seen = True
            self.kubelet.answers = True
            self.sweep()

    @rule(seen=st.booleans())
    def start_plain_pod(self, seen: bool) -> None:
        (self.kubelet.plain if seen else self.kubelet.late).append(self.start())

    def start(self, **requests: int) -> Pod:
        self.count += 1
        name = f"p{self.count}"
        container = Container(
            "main", ContainerKind.APP, builders.asking(requests), ContainerID(f"{name}-main")
        )
        pod = builders.pod(name, container)
        self.kernel.make(f"kubepods/pod{pod.uid}", EVERYTHING)
        self.kernel.make(f"kubepods/pod{pod.uid}/{name}-main", "")
        self.kernel.make(f"kubepods/pod{pod.uid}/{name}-sandbox", "")
        return pod

    @rule(data=st.data(), annotated=st.sampled_from(Annotated))
    def observe_containers(self, data: st.DataObject, annotated: Annotated) -> None:
        """The container runtime tells of a pod, before or after everybody else."""
        if pods := self.pods():
            self.manager.observe_containers(
                self.told(data, data.draw(st.sampled_from(pods)), annotated)
            )

    @rule(data=st.data(), annotated=st.sampled_from(Annotated))
    def sight_everything(self, data: st.DataObject, annotated: Annotated) -> None:
        """The agent connects to the container runtime, which names all that it has."""
        told = (self.told(data, pod, annotated) for pod in self.pods())
        self.manager.observe_containers([one for of_pod in told for one in of_pod], every=True)

    @rule(data=st.data())
    def forget_containers(self, data: st.DataObject) -> None:
        """A container ends, and its pod goes on."""
        if pods := self.pods():
            pod = data.draw(st.sampled_from(pods))
            self.manager.forget_containers([ContainerID(f"{pod.name}-main")])

    def pods(self) -> list[Pod]:
        given = [life.pod for life in self.kubelet.lives]
        return given + self.kubelet.plain + self.kubelet.late

    def unseen(self) -> list[Life]:
        return [life for life in self.kubelet.lives if not life.seen]

    @rule(data=st.data())
    def forge(self, data: st.DataObject) -> None:
        """A pod claims what was given to another, and neither is listed yet."""
        if not (unseen := self.unseen()):
            return
        victim = data.draw(st.sampled_from(unseen))
        rivals = [
            life.pod
            for life in unseen
            if (life.pool.name, len(life.ids)) == (victim.pool.name, len(victim.ids))
        ]
        forgers = [pod for pod in rivals + self.kubelet.late if pod is not victim.pod]
        if not forgers or data.draw(st.booleans()):
            forgers = [self.start()]
            self.kubelet.late += forgers
        self.manager.observe_containers(
            self.annotated(data.draw(st.sampled_from(forgers)), [victim])
        )

    def told(
        self, data: st.DataObject, pod: Pod, annotated: Annotated
    ) -> tuple[RuntimeContainer, ...]:
        """Give what the runtime tells of a pod: its sandbox and its container."""
        lives = [life for life in self.kubelet.lives if life.pod is pod]
        if annotated is Annotated.FALSELY:
            others = [life for life in self.kubelet.lives if life.pod is not pod]
            lives = [data.draw(st.sampled_from(others))] if others else []
        if annotated is Annotated.NOT:
            lives = []
        return self.annotated(pod, lives)

    def annotated(self, pod: Pod, lives: list[Life]) -> tuple[RuntimeContainer, ...]:
        allocated = {builders.resource(life.pool.name): frozenset(life.ids) for life in lives}
        names = (pod.cgroup_uid, pod.namespace, pod.name)
        return (
            RuntimeContainer(ContainerID(f"{pod.name}-sandbox"), *names),
            RuntimeContainer(ContainerID(f"{pod.name}-main"), *names, "main", allocated),
        )

    @precondition(lambda self: self.kubelet.lives)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.all_are_seen()
        life = data.draw(st.sampled_from(self.kubelet.lives))
        self.kubelet.lives.remove(life)
        self.kernel.remove(f"kubepods/pod{life.pod.uid}")
        self.sweep()

    @precondition(lambda self: self.kubelet.lives)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A pod's containers end: the kubelet gives its devices away while it is still listed."""
        self.all_are_seen()
        life = data.draw(st.sampled_from(self.kubelet.lives))
        self.kubelet.lives.remove(life)
        self.kubelet.ended.append(life.pod)
        self.kernel.remove(f"kubepods/pod{life.pod.uid}")
        self.manager.forget_containers([ContainerID(f"{life.pod.name}-main")])
        self.sweep()

    @precondition(lambda self: self.kubelet.ended)
    @rule()
    def forget_ended(self) -> None:
        self.kubelet.ended.clear()
        self.sweep()

    @rule(pools=st.sampled_from(LAWFUL))
    def reconfigure(self, pools: NodePools) -> None:
        # The pools are lawful on the whole machine, so also with any of its CPUs off.
        self.manager.reconfigure(pools, self.topology())

    @rule(pools=st.sampled_from(UNLAWFUL))
    def reconfigure_badly(self, pools: NodePools) -> None:
        before = self.manager.pools()
        try:
            self.manager.reconfigure(pools, self.topology())
        except ConfigError:
            assert self.manager.pools() == before
        else:
            # Only with siblings that were never seen online can such pools pass.
            assert self.off

    @rule(cpu=st.integers(1, 7))
    def switch_off(self, cpu: int) -> None:
        self.switch(self.off | CPUSet.of(cpu))

    @rule(cpu=st.integers(1, 7))
    def switch_on(self, cpu: int) -> None:
        self.switch(self.off - CPUSet.of(cpu))

    def switch(self, off: CPUSet) -> None:
        self.off = off
        self.kernel.online = CPUSet.parse(EVERYTHING) - off
        self.manager.update_topology(self.topology())

    def topology(self) -> CPUTopology:
        return machine_without(str(self.off))

    @rule(data=st.data(), cpus=st.sets(st.integers(0, 7), min_size=1))
    def disturb(self, data: st.DataObject, cpus: set[int]) -> None:
        path = data.draw(st.sampled_from(sorted(self.kernel.sets)))
        self.kernel.write(path, CPUSet(cpus))

    @rule()
    def kubelet_falls_silent(self) -> None:
        self.kubelet.answers = False

    @rule()
    def sweep(self) -> None:
        """After a sweep only its owner runs on a CPU that a pod owns."""
        self.setter.sweep()
        owned = builders.owned(self.manager)
        for container in self.kernel.containers():
            others = CPUSet.union(
                cpus
                for uid, by_pool in owned.items()
                if uid != container.pod
                for cpus in by_pool.values()
            )
            wanted = (
                self.manager.snapshot()
                .resolution.assignment((container.pod, ContainerID(container.id)))
                .cpus
            )
            if wanted:
                assert CPUSet.parse(container.cpus).isdisjoint(others), container
