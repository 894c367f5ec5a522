"""Pool files and pods for `cpupool demo`, made for the machine at hand.

The size of a pod is the largest, or the smallest, that the node can serve: a simulated node without
other pods says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cpupool.commands.demo.manifests import MILLI, SHARING, container, pod, whole
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PodRefused
from cpupool.core.pools import PoolKind
from cpupool.policies import built_in
from cpupool.policies.pools import preferred_cpus
from cpupool.simulate import workload
from cpupool.simulate.node import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.kube.views import Body
    from cpupool.plugins.demo import SamplePod


def pool_file(machine: CPUTopology) -> str:
    """Write a pool file with every core: the first is the default pool, the last ones exclusive."""
    default, *others = machine.cores
    # With three cores or more the shared pool has one of its own.
    shared = others.pop(0) if len(others) > 1 else default
    text = f'pools:\n  default: {{cpus: "{default}"}}\n  shared_demo: {{cpus: "{shared}"}}\n'
    if len(others) > 1 and len(others[-1]) > 1:
        whole = others.pop()
        text += f'  exclusive_smt: {{cpus: "{whole.first}", hyperThreadingPolicy: multiThreaded}}\n'
    if others:
        first_threads = CPUSet(core.first for core in others)
        text += f'  exclusive_demo: {{cpus: "{first_threads}"}}\n'
    return text


def cpu_manager_file(machine: CPUTopology, policy: str, *, reserves: bool = True) -> str:
    """Write a pool file with a CPU manager policy, which reserves one core if it can."""
    first, *others = machine.cores
    reserved = f", reserved: {len(first) if others else 1}" if reserves else ""
    return f"cpuManager: {{policy: {policy}{reserved}}}\n"


@dataclass(slots=True)
class Samples:
    """Pods for one pool file on one machine.

    Attributes:
        pools: the pool file's, which are valid on the machine.
        machine: the machine.
        names: the resource of each pool.
        bodies: their manifests, in the order of their start.
        left_out: the features that no pod shows, a line each, with the reason.
    """

    pools: NodePools
    machine: CPUTopology
    names: Names
    bodies: list[Body] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, pools: NodePools, machine: CPUTopology, names: Names, of_plugins: Iterable[Body] = ()
    ) -> Samples:
        """Make the pods.

        Args:
            pools: the pool file's, which are valid on the machine.
            machine: the machine.
            names: the resource of each pool.
            of_plugins: pods for plugins.
        """
        made = cls(pools, machine, names, list(of_plugins))
        chooses, policy = pools.cpu_manager.chooses, built_in.kind(pools.cpu_manager)
        if pools.pools or not chooses:
            made._add_pools_pods()
        if chooses and not (policy.asks_plugins or policy.reads_classes or policy.resizes):
            made._add_static_pods(len(made.own))
        return made

    @property
    def own(self) -> CPUSet:
        """The CPUs that containers can get of the CPU manager policy."""
        return built_in.assignable(self.pools, self.machine) or CPUSet()

    def _add_pools_pods(self) -> None:
        """Add pods with exclusive CPUs, with shared CPUs, and without a request."""
        threads = max(map(len, self.machine.cores))
        exclusive = dict(self._amounts(PoolKind.EXCLUSIVE, range(1, threads + 1)))
        shared = dict(list(self._amounts(PoolKind.SHARED, (MILLI,)))[:1])
        first, last = (
            dict(list(exclusive.items())[place]) for place in (slice(1), slice(-1, None))
        )
        pollers = [container("poll", self.names, first)]
        if len(exclusive) > 1:
            pollers.append(container("mixed", self.names, last | shared))
        self.bodies += (
            pod("poller", pollers, [container("prepare", self.names, first)]),
            pod(
                "sharer", [container("work", self.names, shared), container("logs", self.names, {})]
            ),
            pod("plain", [container("main", self.names, {})]),
        )

    def _amounts(self, kind: PoolKind, amounts: Iterable[int]) -> Iterator[tuple[str, int]]:
        """Yield each pool of a kind that can serve one of the amounts, with the first of these."""
        for pool in self.pools.of_kind(kind):
            bodies = (
                pod("trial", [container("main", self.names, {pool.name: amount})])
                for amount in amounts
            )
            if found := self._first(f"pool {pool.name}", zip(amounts, bodies, strict=False)):
                yield pool.name, found[0]

    def _add_static_pods(self, cpus: int) -> None:
        """Add two pods that do not fit at once, if the policy allows it, and one that shares.

        Args:
            cpus: how many CPUs the policy can give.
        """
        half = (cpus + 1) // 2
        early = self.add(
            (_guaranteed, _without_init), "early", (*range(half, 0, -1), *range(half + 1, cpus + 1))
        )
        left = cpus - early
        self.add(
            (_guaranteed, _without_init), "late", (*range(left + 1, cpus + 1), *range(left, 0, -1))
        )
        if not self.pools.pools:
            self.bodies.append(pod("sharer", [{"name": "work", "resources": SHARING}]))

    def add(
        self, forms: Iterable[Callable[[str, int], Body]], name: str, sizes: Iterable[int]
    ) -> int:
        """Add a pod with the first size and form that the node can serve; return it, 0 for none."""
        tried = ((size, form(name, size)) for size in sizes for form in forms)
        found = self._first(f"pod {name}", tried)
        if not found:
            return 0
        size, body = found
        self.bodies.append(body)
        return size

    def _first(self, what: str, sized: Iterable[tuple[int, Body]]) -> tuple[int, Body] | None:
        """Return the first size with which the node can serve a pod; else note why not."""
        why = "the CPU manager policy has no CPU to give"
        for size, body in sized:
            if not (why := self._refusal(body)):
                return size, body
        self.left_out.append(f"{what}: {why}")
        return None

    def _refusal(self, body: Body) -> str:
        """Return why the node does not serve a pod, while it has no other; empty if it does."""
        node = SimulatedNode(
            self.machine, self.pools, preferred_cpus.prefer, TopologyPolicy.BEST_EFFORT
        )
        try:
            admitted = node.admit(workload.arrival_of(body, self.names).pod, 0)
        except PodRefused as error:
            return str(error).removeprefix(f"{error.pod}: ")
        node.finish(0)
        return next(filter(None, (each.held or each.shares for each in admitted.placements)), "")


def of_plugins(described: Mapping[str, SamplePod]) -> Iterator[dict[str, Any]]:
    """Return pods for plugins, and one for which the agent asks no plugin."""
    for name, said in described.items():
        resources = whole(said.cpus) if said.cpus else SHARING
        body = pod(name, [{"name": "main", "resources": resources}])
        body["metadata"]["annotations"] = dict(said.annotations)
        yield body
    yield pod("system", [{"name": "main"}])


def _guaranteed(name: str, cpus: int) -> dict[str, Any]:
    """Return a Guaranteed pod with an init container; both containers request whole CPUs."""
    main, prepare = ({"name": each, "resources": whole(cpus)} for each in ("main", "prepare"))
    return pod(name, [main], [prepare])


def _without_init(name: str, cpus: int) -> dict[str, Any]:
    """Return the same: with `full-pcpus-only` CPUs of init containers do not become free."""
    return pod(name, [{"name": "main", "resources": whole(cpus)}])
