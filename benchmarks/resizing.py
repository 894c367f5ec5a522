"""The time until a resize in place has an effect: on the container itself, and on the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.processes import PATIENCE_S, agent
from benchmarks.rows import ms
from cpupool.host.cgroupfs import CgroupFS
from tests.apiserver import FakeAPIServer
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rows import Row
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import Pod
    from cpupool.local.node import EmbeddedNode

POOLS: Final = (
    'pools:\n  default: {cpus: "0-15"}\n'
    'cpuManager: {policy: dynamic, reserved: "0-0", maxNoticeSeconds: 1}\n'
)
NOTICES_S: Final = (0, 1)
OTHERS: Final = 20
ROUNDS: Final = 30
_LOOK_S: Final = 0.001


def resizing() -> Iterator[Row]:
    """Resizes in place under the policy dynamic, from 2 CPUs to 4 and back, by NRI."""
    with (
        FakeAPIServer() as api,
        agent(api, Machine(cores=16), POOLS, "--enforcement", "nri", nri=True) as (node, _),
    ):
        _until(lambda: node.plugged)
        owners = {notice_s: _run(node, f"own-{notice_s}", "2", notice_s) for notice_s in NOTICES_S}
        others = [_run(node, f"other-{number}", "100m", 0).name for number in range(OTHERS)]
        beside = f"beside {OTHERS} pods"
        grown_ms, alone_ms = [], []
        for notice_s, pod in owners.items():
            back_ms = []
            for _ in range(ROUNDS):
                before, begun_s = _cpus(node, pod.name), time.perf_counter()
                _resize(node, pod, "4")
                grown_ms.append((time.perf_counter() - begun_s) * 1000)
                lent = _cpus(node, pod.name) - before
                assert len(lent) == 2, "the CPUs are in force with the answer"
                _until(lambda cpus=lent: not any(cpus & _cpus(node, each) for each in others))  # type: ignore[misc]
                alone_ms.append((time.perf_counter() - begun_s) * 1000)
                begun_s = time.perf_counter()
                _resize(node, pod, "2")
                _until(lambda name=pod.name, has=before: _cpus(node, name) == has)  # type: ignore[misc]
                _until(lambda cpus=lent: all(cpus <= _cpus(node, each) for each in others))  # type: ignore[misc]
                back_ms.append((time.perf_counter() - begun_s) * 1000)
            shrunk = f"4 to 2 CPUs, a notice of {notice_s} s, {beside}"
            yield (f"{shrunk}, until all others have them", ms(back_ms), "-")
        yield (f"2 to 4 CPUs in place, {beside}, until they are in force", ms(grown_ms), "-")
        yield ("the same, until no other container has them", ms(alone_ms), "-")


def _resize(node: EmbeddedNode, pod: Pod, cpu: str) -> None:
    """Resize in place; the kubelet tries again until the CPUs of the resize before are free."""
    node.resize(pod.uid, {"main": cpu})

    def done() -> bool:
        if waits := bool(node.resizing()):
            node.try_again()
        return not waits

    _until(done)


def _run(node: EmbeddedNode, name: str, cpu: str, notice_s: int) -> Pod:
    limits = {"cpu": cpu, "memory": "1Gi"}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    metadata = {"name": name, "annotations": {"nokia.k8s.io/cpu-notice-seconds": str(notice_s)}}
    pod = node.run_pod({"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})

    def runs() -> bool:
        node.try_again()
        return not node.held()

    _until(runs)
    return pod


def _cpus(node: EmbeddedNode, pod: str) -> CPUSet:
    tree = CgroupFS(node.root.cgroup, node.cgroup_root)
    (path,) = (
        node.path_of(process)
        for process in node.processes()
        if (process.pod.name, process.container) == (pod, "main")
    )
    while not (found := tree.effective(path)):
        # The file of an emulated cgroup is empty for the moment in which it is written.
        pass
    return found


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the agent has not moved the containers"
        time.sleep(_LOOK_S)
