"""The cost of a sweep on a node with many pods: where nothing is new, and where one pod is."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.rows import cpu_ms, ms
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.enforce.quota_repair import QuotaGoal
from cpupool.host.bandwidth import CFSBandwidth
from cpupool.host.cgroupfs import CgroupFS
from cpupool.local import cgroups
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import without_runtime
from tests.setters import setter_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row
    from cpupool.core.devices import PodDevices
    from cpupool.core.workloads import Pod

PODS: Final = 250
SWEEPS: Final = 50
POOL: Final = "shared_a"
_GIVEN: Final = AllocatedDevices(frozenset(map(str, range(100))))


def sweep() -> Iterator[Row]:
    """A sweep over 500 right containers of 250 pods of a shared pool, with quotas."""
    with tempfile.TemporaryDirectory(prefix="cpl-") as folder, ExitStack() as stack:
        place = stack.enter_context(cgroups.opened(Path(folder), "bench", CPUSet.of(0)))
        pods = [
            builders.pod(f"p{number}", builders.container(f"p{number}", shared_a=100))
            for number in range(PODS + 1)
        ]
        for pod in pods[:PODS]:
            # As on a real node: a sandbox and a container in each pod.
            place.make(f"kubepods/burstable/pod{pod.uid}/{'0' * 64}")
            place.make(f"kubepods/burstable/pod{pod.uid}/{pod.containers[0].id}")
        tree = CgroupFS(place.root, place.cgroup_root)
        manager, source = Manager(Names()), _Pods(pods[:PODS])
        manager.reconfigure(
            NodePools.of(Pool.named(POOL, "0"), Pool.named("default", "0")),
            MACHINES["single_cpu"].topology(),
        )
        quotas = QuotaGoal(_bandwidth(Path(folder), tree), without_runtime(), Metrics())
        setter = setter_on(tree, manager, source, goals=[quotas])
        while (report := setter.sweep()).repairs:
            pass
        assert len(report.found) == 2 * PODS
        quiet_ms = [cpu_ms(setter.sweep) for _ in range(SWEEPS)]
        one = partial(setter.sweep, {pods[0].uid})
        one_ms = [cpu_ms(one) for _ in range(SWEEPS)]
        come_ms, gone_ms = [], []
        facts = partial(setter.sweep, frozenset())
        for _ in range(SWEEPS):
            source.listed = pods
            come_ms.append(cpu_ms(facts))
            source.listed = pods[:PODS]
            gone_ms.append(cpu_ms(facts))
        kind = "emulated" if isinstance(place, EmulatedCgroups) else "real"
    what = f"sweep of {2 * PODS} right containers, {kind} cgroups"
    yield (what, ms(quiet_ms), "50 ms of CPU")
    yield (f"{what}: those of one pod have changed", ms(one_ms), "-")
    yield (f"{what}: a pod is listed", ms(come_ms), "-")
    yield (f"{what}: a pod is listed no longer", ms(gone_ms), "-")


def _bandwidth(folder: Path, tree: CgroupFS) -> CFSBandwidth:
    """Make the quotas of pods and containers, all of them right, in a folder."""
    made = folder / "quotas"
    (made / "cpuset").mkdir(parents=True)
    (made / "cpuset/cpuset.cpus").touch()
    for found in tree.containers():
        for path in (found.path, found.path.rpartition("/")[0]):
            cgroup = made / "cpu" / path
            cgroup.mkdir(parents=True, exist_ok=True)
            (cgroup / "cpu.cfs_quota_us").write_text("10000\n")
            (cgroup / "cpu.cfs_period_us").write_text("100000\n")
    return CFSBandwidth(made)


class _Pods:
    """Pods of which the kubelet has given each its devices."""

    def __init__(self, listed: list[Pod]) -> None:
        self.listed = listed

    def pods(self) -> tuple[Pod, ...]:
        return tuple(self.listed)

    def by_pod_name(self) -> dict[tuple[str, str], PodDevices]:
        return {}

    def by_pod_uid(self) -> dict[str, PodDevices]:
        resource = Names().resource(POOL)
        return {pod.uid: {pod.containers[0].name: {resource: _GIVEN}} for pod in self.listed}

    def allocatable_cpus(self) -> CPUSet:
        return CPUSet()
