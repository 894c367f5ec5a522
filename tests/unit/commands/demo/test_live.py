"""What a live node says of its processes when something is wrong with them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.setup import Setup
from cpupool.commands.demo import live as live_module
from cpupool.commands.demo import manifests
from cpupool.commands.demo.live import LiveNode
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode
from cpupool.manager.allocation import Allocation
from cpupool.manager.manager import Manager
from tests.machines import Machine
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod

HERE = CPUSet(os.sched_getaffinity(0))
FIRST, LAST = HERE.first, max(HERE)
POOLS = f"pools: {{default: {{cpus: {FIRST}}}, exclusive_a: {{cpus: {LAST}}}}}"
MACHINE = Machine(cores=LAST + 2)
NAMES = Names()
two_cpus = pytest.mark.skipif(len(HERE) < 2, reason="on one CPU every process is where it belongs")


class LateKernel(EmulatedCgroups):
    """It does not confine the first containers, the sandbox and the init container of a pod."""

    entered = 0

    def enter(self, path: str, pid: int) -> None:
        self.entered += 1
        if self.entered > 2:
            super().enter(path, pid)


@contextmanager
def living(
    folder: Path, pools: str, machine: Machine, kernel: type[EmulatedCgroups] = EmulatedCgroups
) -> Iterator[LiveNode]:
    written = machine.write(folder)
    (folder / "etc").mkdir()
    (folder / "etc/poolconfig-a.yaml").write_text(pools)
    settings = Setup(folder / "etc")
    with (
        kernel(folder, written.topology().online, "a test") as place,
        LiveNode(folder, place, settings, {}, written.sys) as live,
    ):
        assert dict(live.await_pools())
        yield live


def run(live: LiveNode, pool: str, amount: int) -> None:
    container = manifests.container("main", NAMES, {pool: amount})
    init = manifests.container("init", NAMES, {pool: amount})
    live.run_pod(manifests.pod("web", [container], [init]))


@two_cpus
def test_an_init_container_that_never_came_to_its_cpus_stays_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with living(folder, POOLS, MACHINE, LateKernel) as live:
        monkeypatch.setattr(live_module, "PATIENCE_S", 0.2)
        run(live, "exclusive_a", 1)

        assert "web/init" in live.astray


def test_a_container_that_got_no_cpus_is_wrong_wherever_it_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Manager, "allocate", lambda *_: Allocation(CPUSet(), {}, {}))
    with living(folder, POOLS, MACHINE) as live:
        monkeypatch.setattr(live_module, "PATIENCE_S", 0.2)
        run(live, "exclusive_a", 1)
        rows = {row.name: row for row in live.settled_rows()}

    assert not rows["web/main"].right
    assert "web/main" in live.astray


@two_cpus
def test_a_container_that_is_not_brought_back_was_not_repaired(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with living(folder, POOLS, MACHINE) as live:
        run(live, "exclusive_a", 1)
        live.settled_rows()
        monkeypatch.setattr("cpupool.host.cgroupfs.CgroupFS.containers", lambda *_: iter(()))
        # A sweep that has found the container already would still repair it.
        live.agent.wake()
        eventually(lambda: live._last_sweep and not live._last_sweep.found, "a blind sweep")
        monkeypatch.setattr(live_module, "PATIENCE_S", 0.2)
        moved = live.disturb()

    assert moved
    assert moved.name == "web/main"
    assert moved.after_ms is None


def test_an_offline_cpu_of_a_shared_pool_is_reported_and_not_run_on(folder: Path) -> None:
    pools = f"pools: {{default: {{cpus: {FIRST}}}, shared_a: {{cpus: '{FIRST},{LAST + 1}'}}}}"
    with living(folder, pools, MACHINE.without(str(LAST + 1))) as live:
        run(live, "shared_a", 10)
        eventually(lambda: all(row.right for row in live.rows()), "all where they belong")
        rows = {row.name: row for row in live.rows()}

    assert rows["web/main"].belongs == rows["web/main"].runs == str(FIRST)
    assert str(LAST + 1) in rows["web/main"].given


def test_the_status_is_of_a_moment_that_has_seen_every_process(folder: Path) -> None:
    with living(folder, POOLS, MACHINE) as live:
        run(live, "exclusive_a", 1)

        names = [one.name for one in live.status().containers]

    assert names == ["demo/web", "demo/web/main"]


def test_a_pod_that_the_agent_does_not_know_yet_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = MACHINE.write(folder)
    (folder / "etc").mkdir()
    (folder / "etc/poolconfig-a.yaml").write_text("cpuManager: {policy: static, reserved: 1}")
    listed = EmbeddedNode.pods
    refusals: list[str] = []

    def late(node: EmbeddedNode) -> tuple[Pod, ...]:
        """List the pods once the runtime has refused one."""
        refusals.extend(node.held().values())
        return listed(node) if refusals else ()

    monkeypatch.setattr(EmbeddedNode, "pods", late)
    limits = {"cpu": "1", "memory": "1Gi"}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    with (
        EmulatedCgroups(folder, written.topology().online, "a test") as place,
        LiveNode(folder, place, Setup(folder / "etc"), {}, written.sys, nri=True) as live,
    ):
        live.await_plugin()
        pod = live.run_pod({"metadata": {"name": "web"}, "spec": spec})

        assert live.node.held() == {}
        assert live.own_cpus(pod) == {"main": CPUSet.of(1)}
    assert "has not listed its pod yet" in refusals[0]
