"""Our plugins on the embedded node: pools on a NUMA node, and what reclaimed pods may request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool import cli
from cpupool.kube import views
from cpupool.plugins.load_sizing import PERIOD_S
from cpupool.policies.qrm.katalyst import RECLAIMED_MILLI
from tests.scenarios.seeds.test_qos_resource_manager import ALL, configure, memory, plugins, world
from tests.scenarios.test_node_resources import WRITES, ours, path
from tests.scenarios.test_pools_by_load import Load, plugin
from tests.scenarios.test_resource_plugins import (
    QOS,
    agent,
    asked_by_the_runtime,
    right,
    run,
    served,
    started,
)
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


def test_reclaimed_pods_may_request_what_others_of_them_leave_idle(world: World) -> None:
    configure(world, "pools: {online: {cpus: 60}, reclaim: {}}\n")
    load = Load(world)
    names = f"--resource-plugin-names={RECLAIMED_MILLI}=cpu:1000"

    def offered() -> object:
        return views.node(world.api.kept(path(world))).resources.get(RECLAIMED_MILLI)

    with plugin(world, load) as process, agent(world, WRITES, names) as manager:
        served(manager)
        eventually(lambda: offered() == ours(20_000), "the node offers the pool")
        batch = run(world, "batch", {QOS: "reclaimed_cores"}, cpu="0", **{RECLAIMED_MILLI: "8000"})
        started(world, batch)
        right(world, ALL, batch="30-39,70-79")

        load.goes_on(process, 0, "not measured of 20: 20 CPUs for reclaimed pods", batch=11.0)
        said = "11.0 in use of 20: from 20 to 21 CPUs for reclaimed pods"
        load.goes_on(process, PERIOD_S, said, batch=11.0)
        eventually(lambda: offered() == ours(21_000), "the node offers more")
