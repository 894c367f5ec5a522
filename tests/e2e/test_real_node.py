"""What the embedded node promises, on a node of a real cluster."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from tests.e2e.cluster import UNCHECKED, missing, patiently, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.node import RealNode

if missing():
    pytest.skip(
        f"no {' and no '.join(missing())}: needs a cluster with this machine as a node",
        allow_module_level=True,
    )

pytestmark = pytest.mark.timeout(900)
BURST = 20


def end(node: RealNode, pod: str, container: str = "main") -> None:
    for process in node.processes(pod, container):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def test_every_kind_of_container_lands_on_the_cpus_of_its_pools(node: RealNode) -> None:
    containers = {
        "init": {"exclusive_e2e": 1},
        "sidecar": {"shared_e2e": 100},
        "main": {"exclusive_e2e": 1},
        "both": {"shared_e2e": 100},
        "plain": {},
    }
    if len(node.layout.exclusive) > 1:
        containers["both"]["exclusive_e2e"] = 1
    default, shared = node.layout.default, node.layout.shared

    node.create(("web", containers))
    patiently(lambda: "init" in node.cpus("web"), lambda: node.cpus("web"))
    node.await_cpus("web", init=node.own_cpus("web", "init"), sandbox=default)
    end(node, "web", "init")
    patiently(lambda: len(node.cpus("web")) == 5, lambda: node.cpus("web"))

    own = node.own_cpus("web")
    assert len(own) == 1
    assert own <= node.layout.exclusive
    both = shared
    if "exclusive_e2e" in containers["both"]:
        both = shared | node.own_cpus("web", "both")
        assert own.isdisjoint(both)
    node.await_cpus("web", sandbox=default, sidecar=shared, main=own, both=both, plain=default)


def test_a_container_that_restarts_is_on_its_cpus_again(node: RealNode) -> None:
    node.run("owner", main={"exclusive_e2e": 1})
    own, before = node.own_cpus("owner"), node.instance("owner")
    node.await_cpus("owner", main=own)

    end(node, "owner")
    patiently(lambda: node.instance("owner") not in (None, before), lambda: node.instance("owner"))

    node.await_cpus("owner", main=own)
    assert node.own_cpus("owner") == own


def test_a_cpuset_that_somebody_writes_is_put_right(node: RealNode) -> None:
    node.run("owner", main={"exclusive_e2e": 1})
    node.run("plain", main={})
    own = node.own_cpus("owner")
    node.await_cpus("owner", main=own)

    for pod in ("owner", "plain"):
        node.tree.write(node.path(pod), node.topology.online)

    node.await_cpus("owner", main=own)
    node.await_cpus("plain", main=node.layout.default)


def test_pods_keep_their_cpus_when_the_kubelet_restarts(
    node: RealNode, restart_kubelet: Callable[[], object]
) -> None:
    node.run("owner", main={"exclusive_e2e": 1})
    node.run("sharer", main={"shared_e2e": 100})
    own = node.own_cpus("owner")
    before = [node.instance("owner"), node.instance("sharer")]

    for _ in range(2):
        restart_kubelet()
        node.await_devices(
            exclusive_e2e=len(node.layout.exclusive), shared_e2e=1000 * len(node.layout.shared)
        )

    node.run("next", main={"shared_e2e": 100})
    node.await_cpus("next", main=node.layout.shared)
    node.await_cpus("owner", main=own)
    node.await_cpus("sharer", main=node.layout.shared)
    assert [node.instance("owner"), node.instance("sharer")] == before
    assert not node.refused()


def test_an_edit_moves_shared_containers_at_once(node: RealNode) -> None:
    node.run("sharer", main={"shared_e2e": 100})
    node.await_cpus("sharer", main=node.layout.shared)
    before = node.instance("sharer")

    edited = node.layout.pools_without_exclusive()
    node.configure(edited)
    node.await_cpus("sharer", main=edited["shared_e2e"])
    node.await_devices(exclusive_e2e=0, shared_e2e=1000 * len(edited["shared_e2e"]))

    node.configure(node.layout.pools())
    node.await_cpus("sharer", main=node.layout.shared)
    assert node.instance("sharer") == before


def test_a_cpu_that_leaves_its_pool_stays_with_its_pod(
    node: RealNode, restart_kubelet: Callable[[], object]
) -> None:
    node.run("owner", main={"exclusive_e2e": 1})
    node.run("sharer", main={"shared_e2e": 100})
    own, before = node.own_cpus("owner"), node.instance("owner")

    edited = node.layout.pools_without_exclusive()
    node.configure(edited)
    rest = edited["shared_e2e"] - node.topology.with_siblings(own)
    node.await_devices(exclusive_e2e=1, shared_e2e=1000 * len(edited["shared_e2e"]))
    node.await_cpus("sharer", main=rest)
    node.await_cpus("owner", main=own)

    restart_kubelet()
    node.await_devices(exclusive_e2e=1)
    node.await_cpus("owner", main=own)
    assert node.instance("owner") == before

    node.delete("owner")
    node.await_cpus("sharer", main=edited["shared_e2e"])
    node.await_devices(exclusive_e2e=0)


def test_a_bad_edit_changes_nothing_and_is_reported(node: RealNode) -> None:
    node.run("owner", main={"exclusive_e2e": 1})
    own = node.own_cpus("owner")
    unique = f"exclusive_{node.namespace}"

    node.configure(node.layout.pools() | {unique: node.layout.exclusive})
    patiently(
        lambda: any(unique in text for text in told("Node", node.name, "CPUPoolConfigInvalid")),
        lambda: told("Node", node.name, "CPUPoolConfigInvalid"),
    )

    node.await_devices(exclusive_e2e=len(node.layout.exclusive))
    node.run("sharer", main={"shared_e2e": 100})
    node.await_cpus("sharer", main=node.layout.shared)
    node.await_cpus("owner", main=own)


def test_a_pod_that_asks_for_a_pool_that_is_not_there_is_confined_and_reported(
    node: RealNode,
) -> None:
    # A webhook that knows the pools would refuse it.
    node.create(("lost", {"main": {"shared_missing": 1}}), labels=UNCHECKED)

    node.await_cpus("lost", main=node.layout.default)
    patiently(
        lambda: any("shared_missing" in text for text in told("Pod", "lost", "CPUPoolMissing")),
        lambda: told("Pod", "lost", "CPUPoolMissing"),
    )


def test_an_agent_killed_in_a_burst_of_pods_places_all_of_them_when_it_is_back(
    node: RealNode,
) -> None:
    amounts = (
        *([{"exclusive_e2e": 1}] * len(node.layout.exclusive)),
        *([{"shared_e2e": 10}] * (BURST // 2)),
        *([{}] * BURST),
    )[:BURST]
    pods = {f"burst-{place}": {"main": amount} for place, amount in enumerate(amounts)}

    node.create(*pods.items())
    patiently(lambda: node.cpus("burst-0"), lambda: node.cpus("burst-0"))
    node.agent.kill()
    node.agent.start()
    node.await_devices(
        exclusive_e2e=len(node.layout.exclusive), shared_e2e=1000 * len(node.layout.shared)
    )
    # What the kubelet refused while no plugin served its devices, a controller would create again.
    patiently(
        lambda: all(node.cpus(pod) or pod in node.refused() for pod in pods),
        lambda: [pod for pod in pods if not node.cpus(pod)],
    )
    if refused := node.refused():
        node.delete(*refused)
        node.create(*((pod, pods[pod]) for pod in refused))

    owned: list[CPUSet] = []
    for pod, containers in pods.items():
        node.await_container(pod)
        if "exclusive_e2e" in containers["main"]:
            owned.append(node.own_cpus(pod))
            expected = owned[-1]
        else:
            expected = node.layout.shared if containers["main"] else node.layout.default
        node.await_cpus(pod, main=expected)
    assert CPUSet.union(owned) == node.layout.exclusive
