"""The checks of `cpupool doctor` of CPUs: what keeps threads from them, and who else uses them.

The functions turn facts into rows, and read nothing themselves.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from cpupool.commands.checks.findings import Row, Verdict, listed
from cpupool.core import default_pool
from cpupool.core.cpu_manager import CPU_MANAGER, TOPOLOGY_SCOPE, Scope
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import PoolKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.cpu_manager import CPUManager
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.core.withheld import Withheld
    from cpupool.host.interrupts import Interrupt
    from cpupool.host.processes import Daemon, RuntimeProcess
    from cpupool.manager.report import ContainerStatus, NodeStatus

AFFINITY: Final = "affinity"
BUBBLES: Final = "bubbles"
_GATE: Final = "PodLevelResources"
_RUNTIME: Final = "runtime affinity"


def withheld(parts: Iterable[Withheld]) -> Iterator[Row]:
    """Return a row for each cgroup that keeps containers from CPUs that run."""
    for part in parts:
        yield Row("cgroups", Verdict.PROBLEM, part.why, part.remedy)


def daemons(found: Collection[Daemon], exclusive: CPUSet, others: CPUSet) -> Row:
    """Check that services stay off exclusive CPUs; `others` is where they may go."""
    if not found:
        fact = "no service of the node is in sight: a container sees its own processes only"
        return Row("daemons", Verdict.UNSEEN, fact, "run this on the node, not in a container")
    units = {service.unit for service in found}
    loose = {service.unit: service.cpus for service in found if service.cpus & exclusive}
    if not loose:
        fact = f"none of {len(units)} services may run on an exclusive CPU"
        return Row("daemons", Verdict.OK, fact)
    named = listed(f"{unit} on {cpus}" for unit, cpus in sorted(loose.items()))
    return Row(
        "daemons",
        Verdict.WARNING,
        f"{len(loose)} of {len(units)} services may run on the exclusive CPUs {exclusive}: {named}",
        f"systemctl set-property system.slice AllowedCPUs={others} (cgroup version 2), or set"
        f" CPUAffinity={others} in the unit of each of them, but not for the container runtime or"
        " the kubelet, and not in system.conf: containers inherit it and lose their CPUs",
    )


def runtimes(found: Collection[RuntimeProcess]) -> Iterator[Row]:
    """Check that container runtimes have no affinity of their own, which containers inherit.

    From Linux 6.2 on the kernel keeps an inherited affinity when it changes a cpuset.
    """
    if not found:
        return
    masked = {
        f"{process.name} on {process.cpus} of {process.cpuset}": None
        for process in sorted(found, key=lambda process: process.pid)
        if process.cpus < process.cpuset
    }
    if not masked:
        names = sorted({process.name for process in found})
        yield Row(_RUNTIME, Verdict.OK, f"{', '.join(names)} may run on all CPUs of their cpusets")
        return
    yield Row(
        _RUNTIME,
        Verdict.WARNING,
        f"a CPU affinity binds {listed(masked)}; containers inherit it, and threads then do not run"
        " on all CPUs of their cpusets",
        "remove CPUAffinity= from its unit and from /etc/systemd/system.conf (or taskset from its"
        " command), then restart it and the containers; use AllowedCPUs= to keep it off CPUs",
    )


def kept_threads(
    found: Iterable[tuple[CPUSet, CPUSet]], owners: Mapping[str, CPUSet]
) -> Iterator[Row]:
    """Check that some thread of each container may run on each of the container's own CPUs.

    An application may pin its threads on purpose; a CPU that none of them may use is idle.

    Args:
        found: the CPUs of a container's cpuset, and those on which any of its threads may run; none
            where no thread is in sight.
        owners: container → its own CPUs.
    """
    seen = [(cpuset, threads) for cpuset, threads in found if threads]
    idle: dict[str, CPUSet] = {}
    for name, own in owners.items():
        of_owner = [threads for cpuset, threads in seen if own and own <= cpuset]
        if of_owner and (kept := own - CPUSet.union(of_owner)):
            idle[name] = kept
    if idle:
        yield Row(
            AFFINITY,
            Verdict.WARNING,
            "no thread may run on some own CPUs: "
            + listed(f"{name} not on {cpus}" for name, cpus in sorted(idle.items())),
            "if the application has not chosen this, it has inherited the runtime's affinity: mend"
            " that and restart the container; taskset -a -cp mends a running process",
        )
    elif any(owners.values()) and seen:
        yield Row(AFFINITY, Verdict.OK, "each own CPU of a container can be used by its threads")


def bubbles(status: NodeStatus) -> Iterator[str]:
    """Yield a sentence for each bubble: which pod has it, and who has which of its CPUs."""
    inside: defaultdict[str, list[ContainerStatus]] = defaultdict(list)
    for container in status.containers:
        if container.bubble:
            inside[container.name.rpartition("/")[0]].append(container)
    for pod, containers in inside.items():
        bubble = next(each.bubble.cpus for each in containers if each.bubble)
        sharing: defaultdict[CPUSet, list[str]] = defaultdict(list)
        said = []
        for each in containers:
            name = each.name.rpartition("/")[2]
            if each.bubble and each.bubble.owns:
                said.append(f"{name} owns {each.exclusive}")
            else:
                sharing[each.exclusive].append(name)
        said += [
            f"{' and '.join(names)} share{'s' * (len(names) == 1)} {cpus}"
            for cpus, names in sharing.items()
        ]
        yield f"pod {pod} has the bubble {bubble}: {', '.join(said)}"


def pod_level(
    manager: CPUManager, status: NodeStatus | None, gates: Mapping[str, bool]
) -> Iterator[Row]:
    """Describe the CPUs of pods with resources of their own, where the pool file gives them some.

    Args:
        manager: the CPU manager of the pool file.
        status: the agent's; None without.
        gates: the feature gates in the kubelet's configuration: name → whether it is on.
    """
    if not manager.pod_level:
        return
    if gates.get(_GATE) is False:
        fact = f"the kubelet's configuration switches {_GATE} off: no pod has resources of its own"
        yield Row(BUBBLES, Verdict.WARNING, fact, f"remove featureGates.{_GATE}")
    elif not manager.bubbles:
        fact = f"whole containers of pods with resources of their own own CPUs; {TOPOLOGY_SCOPE}"
        yield Row(BUBBLES, Verdict.OK, f"{fact}: {Scope.POD.value} gives each such pod a bubble")
    elif status is not None:
        fact = "; ".join(bubbles(status)) or "no pod with resources of its own runs"
        yield Row(BUBBLES, Verdict.OK, fact)


def isolation(pools: NodePools, topology: CPUTopology, tickless: CPUSet) -> Iterator[Row]:
    """Compare the CPUs that the boot took from the scheduler with the pools.

    Args:
        pools: the node's.
        topology: its CPUs.
        tickless: those without a timer tick (`nohz_full`).
    """
    exclusive = CPUSet.union(pool.cpus for pool in pools.of_kind(PoolKind.EXCLUSIVE))
    shared = CPUSet.union(pool.cpus for pool in pools.of_kind(PoolKind.SHARED))
    default, policy = default_pool.declared(pools, topology), pools.cpu_manager
    used = {"shared or default pools": shared | default}
    if policy.chooses:
        given = f"the default pool, which the policy {policy.policy} of {CPU_MANAGER} gives out,"
        used = {"shared pools": shared, given: default}
    harms = {
        "isolcpus": (topology.isolated, "the kernel does not spread a container's tasks over them"),
        "nohz_full": (tickless, "with several tasks on one CPU it only makes system calls slower"),
    }
    found = False
    for parameter, (cpus, harm) in harms.items():
        for place, common in used.items():
            crowded = cpus & common
            if not crowded:
                continue
            found = True
            yield Row(
                "isolation",
                Verdict.WARNING,
                f"CPUs {crowded} of {place} are in {parameter}: {harm}",
                f"take them out of {parameter}, or put them into an exclusive pool",
            )
        if cpus & exclusive and not exclusive <= cpus:
            found = True
            yield Row(
                "isolation",
                Verdict.WARNING,
                f"{parameter} has {cpus & exclusive} of the exclusive CPUs {exclusive}: how quiet a"
                " container runs depends on which it gets",
                f"put all of them into {parameter}, or none",
            )
    if not found:
        cpus_of = ", ".join(f"{name} {cpus or 'none'}" for name, (cpus, _) in harms.items())
        yield Row("isolation", Verdict.OK, cpus_of)


def interrupts(found: Collection[Interrupt], exclusive: CPUSet) -> Row:
    """Check that interrupts are served elsewhere than on exclusive CPUs."""
    allowed = [interrupt for interrupt in found if interrupt.allowed & exclusive]
    if not allowed:
        fact = f"none of {len(found)} may be served by an exclusive CPU"
        return Row("interrupts", Verdict.OK, fact)
    now = [interrupt for interrupt in allowed if interrupt.effective & exclusive]
    named = listed(
        f"{interrupt.number} {','.join(interrupt.handlers)} by {interrupt.effective & exclusive}"
        for interrupt in now
    )
    return Row(
        "interrupts",
        Verdict.WARNING,
        f"{len(allowed)} of {len(found)} may be served by the exclusive CPUs {exclusive},"
        f" {len(now)} are now{f': {named}' if now else ''}",
        "boot with irqaffinity= and isolcpus=managed_irq, ban these CPUs from irqbalance, or write"
        " other CPUs to /proc/irq/NUMBER/smp_affinity_list",
    )


def owners(found: Iterable[FoundContainer], exclusive: CPUSet) -> Row:
    """Check in the cgroups themselves that no exclusive CPU has two pods.

    Raises:
        CPUSetParseError: the kernel's list is none.
    """
    if not exclusive:
        return Row("owners", Verdict.OK, "no pool is exclusive")
    by_pod: defaultdict[str, CPUSet] = defaultdict(CPUSet)
    for container in found:
        by_pod[container.pod] |= CPUSet.parse(container.cpus) & exclusive
    taken = contested = CPUSet()
    for cpus in by_pod.values():
        contested |= taken & cpus
        taken |= cpus
    if not contested:
        fact = f"no exclusive CPU has two pods; {taken or 'none'} of {exclusive} have one"
        return Row("owners", Verdict.OK, fact)
    pods = sorted(pod for pod, cpus in by_pod.items() if cpus & contested)
    return Row(
        "owners",
        Verdict.PROBLEM,
        f"the exclusive CPUs {contested} are in the cpusets of {len(pods)} pods: {listed(pods)}",
        "start the agent; if it runs, look at `cpupool status` and at its log",
    )
