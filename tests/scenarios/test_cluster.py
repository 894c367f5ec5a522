"""What reaches the agent through its API server: every kind of pod, labels, and its absence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.scenarios import test_agent_process
from tests.scenarios.test_agent_process import POOLS
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

world = test_agent_process.world


def container(name: str, **pools: int) -> dict[str, Any]:
    amounts = {f"nokia.k8s.io/{pool}": str(amount) for pool, amount in pools.items()}
    return {"name": name, "resources": {"limits": amounts}}


def manifest(name: str, **spec: object) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name}, "spec": spec}


def kubelets_mark(config_hash: str) -> Mapping[str, str]:
    """Mark a pod as the mirror of one that the kubelet has from a file."""
    return {
        "kubernetes.io/config.hash": config_hash,
        "kubernetes.io/config.mirror": config_hash,
        "kubernetes.io/config.source": "file",
    }


def test_every_kind_of_container_comes_to_its_cpus(world: World) -> None:
    web = manifest(
        "web",
        initContainers=[
            container("init", exclusive_a=2),
            {**container("sidecar", shared_b=500), "restartPolicy": "Always"},
        ],
        containers=[
            container("main", exclusive_a=1),
            container("both", exclusive_a=1, shared_b=100),
            container("plain"),
        ],
    )
    static = manifest("static", containers=[container("main", exclusive_a=1)])
    static["metadata"]["annotations"] = kubelets_mark("f00d")

    def init_is_right(_pod: Pod, name: str) -> None:
        world.await_containers({"web/": "0-1", f"web/{name}": "2-3"})

    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        uid = world.node.run_pod(web, init_is_right).uid
        world.node.add_ephemeral(uid, {"name": "debug"})
        world.node.run_pod(static)
        placed = {
            "web/": "0-1",
            "web/sidecar": "6-7",
            "web/main": "2",
            "web/both": "3,6-7",
            "web/plain": "0-1",
            "web/debug": "0-1",
            "static/": "0-1",
            "static/main": "4",
        }
        world.await_containers(placed)
        for name in ("sidecar", "main", "both", "plain"):
            world.node.restart_container(uid, name)
        world.await_containers(placed)

        # A pod that has ended stays listed and owns nothing.
        world.node.finish_pod(uid)
        world.run("next", exclusive_a=3)
        world.await_cpus(static="4", next="2-3,5")


def test_a_pod_of_the_same_name_has_its_own_devices(world: World) -> None:
    """A StatefulSet makes the pod anew before the agent has heard of the first one's end."""
    with world.agent():
        world.await_pool("exclusive_a", 4)
        first = world.run("db-0", exclusive_a=1)
        world.await_cpus(**{"db-0": "2"})
        world.api.down()
        world.node.delete_pod(first.uid)
        world.run("thief", exclusive_a=1)
        world.run("db-0", exclusive_a=1)
        world.await_cpus(**{"thief": "0-1", "db-0": "0-1"})
        world.api.up()
        world.await_cpus(**{"thief": "2", "db-0": "3"})


def test_a_label_moves_running_pods_to_other_pools_and_back(world: World) -> None:
    smaller = 'pools: {exclusive_a: {cpus: "2-3"}, default: {cpus: "0"}}\nnodeSelector: {role: x}\n'
    world.mount.show(worker=POOLS, smaller=smaller)
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        world.run("owner", exclusive_a=3)
        world.run("sharer", shared_b=10)
        world.run("plain")
        world.await_cpus(owner="2-4", sharer="6-7", plain="0-1")

        world.api.set_labels({"role": "x"})
        # Only what is held of a pool that is gone stays listed.
        world.await_pool("shared_b", 10)
        world.await_pool("exclusive_a", 3)
        world.await_cpus(owner="2-4", sharer="0", plain="0")
        assert "there is no pool shared_b; request" in world.await_event("CPUPoolMissing", "sharer")

        world.api.set_labels({"role": "worker"})
        world.await_pool("shared_b", 2000)
        world.await_pool("exclusive_a", 4)
        world.await_cpus(owner="2-4", sharer="6-7", plain="0-1")


def test_while_the_api_server_is_away_the_known_is_kept_and_the_new_confined(world: World) -> None:
    with world.agent() as agent:
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        owner = world.run("owner", exclusive_a=1)
        world.run("sharer", shared_b=10)
        world.await_cpus(owner="2", sharer="6-7")
        world.api.down()
        agent.await_line("API server cannot be followed")

        world.run("late", exclusive_a=1)
        world.disturb("sharer", "0-15")
        world.await_cpus(owner="2", sharer="6-7", late="0-1")
        # The new instance has an id that no source has reported.
        world.node.restart_container(owner.uid, "main")
        world.await_cpus(owner="0-1", sharer="6-7", late="0-1")

        world.api.up()
        world.await_cpus(owner="2", sharer="6-7", late="3")
        eventually(lambda: world.api.watching("nodes") == 1, "the labels are followed again")
        # What was missed came through the watches: nothing was listed a second time.
        assert (world.api.count("list", "pods"), world.api.count("list", "nodes")) == (1, 1)
