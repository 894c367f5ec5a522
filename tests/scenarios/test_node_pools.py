"""Pools on a NUMA node on the embedded node: the pods that are bound there share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool import cli
from tests.scenarios.test_resource_plugins import (
    asked_by_the_runtime,
    right,
    run,
    served,
    started,
)
from tests.scenarios.test_seed_examples import ALL, memory, plugins, world
from tests.waiting import eventually

if TYPE_CHECKING:
    import pytest

    from tests.scenarios.test_agent_process import World

__all__ = ["world"]

BOUND = {"katalyst.kubewharf.io/memory_enhancement": '{"numa_binding": "true"}'}
POOLS = 'reserved: "0-1,40-41"\npools: {share: {cpus: 16}, offline: {}}\n'


def test_bound_pods_share_a_pool_on_their_node(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with plugins(world, POOLS, "cpu", "memory"), asked_by_the_runtime(world) as process:
        served(process, "cpu,memory")
        web = run(world, "web", cpu="4", memory="1Gi")
        started(world, web)
        right(world, ALL, web="2-9,42-49")
        first, second = (
            run(world, name, BOUND, cpu=cpu, memory="1Gi")
            for name, cpu in (("first", "6"), ("second", "2"))
        )
        for pod in (first, second):
            started(world, pod)
        right(world, ALL, web="2-9,42-49", first="10-17", second="10-17")
        assert (memory(world, first), memory(world, second)) == ("0", "0")
        # The plugin refuses it; a shared pod starts all the same, as in the patched kubelet.
        wide = run(world, "wide", BOUND, cpu="39", memory="1Gi")
        started(world, wide)
        right(world, ALL, web="2-9,42-49", first="10-17", second="10-17", wide=ALL)
        world.node.delete_pod(wide.uid)

        world.node.delete_pod(first.uid)
        right(world, ALL, web="2-9,42-49", second="10-11")

        def explained() -> str:
            assert cli.main(["explain", f"--pools={world.node.root.plugin_pools}"]) == 0
            return capsys.readouterr().out

        why = "share-NUMA0: 10-11 (2 CPUs): its pods on NUMA node 0 request 2 CPUs\n"
        eventually(lambda: explained().startswith(why), explained)

    # Both begin again, with what they have recorded.
    with plugins(world, POOLS, "cpu", "memory"), asked_by_the_runtime(world):
        started(world, run(world, "third", BOUND, cpu="2", memory="1Gi"))
        right(world, ALL, web="2-9,42-49", second="10-13", third="10-13")
