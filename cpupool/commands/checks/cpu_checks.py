"""The checks of `cpupool doctor` for causes that keep threads from CPUs.

The functions turn facts into rows, and read nothing themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.commands.checks.findings import Row, Verdict, listed
from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cpupool.core.withheld import Withheld
    from cpupool.host.processes import Daemon, RuntimeProcess

AFFINITY: Final = "affinity"
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
