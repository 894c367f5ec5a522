from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import ENABLE_SHARED_CPUS
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.host.cgroupfs import CgroupVersion
from tests import builders
from tests.cgroups import KernelModel
from tests.setters import EVERYTHING, MACHINE, POOLS, Node, ids, owner_on_2


@pytest.mark.parametrize(
    ("written", "by"),
    [
        pytest.param(EVERYTHING, "runtime", id="as it was created"),
        pytest.param("4-5", "unknown", id="any other set"),
    ],
)
def test_a_repair_names_who_probably_wrote(
    written: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = owner_on_2()
    assert node.measured('cpupool_repairs_total{reason="new"}') == 2

    node.kernel.write(node.path("owner"), CPUSet.parse(written))
    with caplog.at_level(logging.INFO):
        node.setter.sweep()

    assert node.measured(f'cpupool_repairs_total{{reason="{by}"}}') == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"found={written} cpus=2 by={by}" in line
    assert " op=sweep-" in line


def test_a_scope_that_is_emptied_was_reset_by_systemd() -> None:
    node = Node(kernel=KernelModel(CgroupVersion.V2, {"kubepods": EVERYTHING}, EVERYTHING))
    scope = f"kubepods/podstranger/cri-containerd-{'0' * 64}.scope"
    node.kernel.make("kubepods/podstranger", "")
    node.kernel.make(scope, "")
    node.setter.sweep()

    node.kernel.sets[scope] = CPUSet()
    node.setter.sweep()

    assert str(node.kernel.effective(scope)) == "1"
    assert node.measured('cpupool_repairs_total{reason="systemd"}') == 1


def test_a_move_of_our_own_blames_no_program() -> None:
    node = owner_on_2()
    node.manager.reconfigure(
        NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "0")),
        MACHINE.topology(),
    )
    node.setter.sweep()

    assert node.cpus("plain") == "0"
    assert node.measured('cpupool_repairs_total{reason="moved"}') == 1


def test_a_container_that_is_gone_is_forgotten() -> None:
    node = owner_on_2()
    node.kernel.remove(node.path("plain"))
    node.setter.sweep()
    node.kernel.make(node.path("plain"), EVERYTHING)
    node.setter.sweep()

    assert node.measured('cpupool_repairs_total{reason="new"}') == 3


@pytest.mark.parametrize("older", [False, True], ids=["new", "older than the agent"])
@pytest.mark.parametrize(
    ("asks", "overwritten"),
    [
        ({"exclusive_a": "2", "shared_a": "0"}, {"shared_a"}),
        ({"exclusive_a": "2", ENABLE_SHARED_CPUS: "0"}, {"shared_a"}),
        ({"exclusive_a": "2"}, set()),
    ],
)
def test_a_sweep_names_the_shared_pools_of_what_somebody_else_had_moved(
    asks: dict[str, str], overwritten: set[str], *, older: bool
) -> None:
    node = Node(pools=replace(POOLS, mixed=MixedCPUs("shared_a")))
    node.source.saved = {"owner": {pool: ids(held) for pool, held in asks.items()}}
    if not older:
        node.setter.sweep()
    node.run(
        "owner", replace(builders.container(), requests=builders.asking(dict.fromkeys(asks, 1)))
    )
    assert node.setter.sweep().overwritten == (overwritten if older else set())
    node.kernel.write(node.path("owner"), CPUSet.parse("5"))
    assert node.setter.sweep().overwritten == overwritten
    assert node.setter.sweep().overwritten == set()
