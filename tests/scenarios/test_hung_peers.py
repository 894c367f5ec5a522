"""Every peer of the agent hangs in turn: it takes calls and never answers.

What happens meanwhile is asserted while the peer still hangs; how long it took is only logged.
"""

from __future__ import annotations

import copy
import logging
import socket
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from cpupool.api import nri_pb2
from tests.cri_server import FakeCRI
from tests.nri_pods import Container
from tests.nri_pods import Pod as NRIPod
from tests.scenarios import test_agent_process
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.local.pods import ContainerProcess
    from tests.nri_runtime import FakeRuntime, Plugin
    from tests.scenarios.test_agent_process import World

log = logging.getLogger(__name__)
world = test_agent_process.world

_CONTAINERS: Final = 33
"""In each of two pods; with two sandboxes that is about 70 cgroups."""
_DEFAULT: Final = "0-1"
_NOBODYS: Final = "8-9"


@pytest.fixture
def cri(world: World) -> Iterator[FakeCRI]:
    with FakeCRI(world.node.root.cri_sockets[0]) as serving:
        yield serving


def processes(world: World, pod: str) -> list[ContainerProcess]:
    """Give the containers of a pod."""
    return [one for one in world.node.processes() if one.pod.name == pod and one.container]


def run_many(world: World, pod: str) -> None:
    containers = [{"name": f"c{number}"} for number in range(_CONTAINERS)]
    world.node.run_pod(
        {"kind": "Pod", "metadata": {"name": pod}, "spec": {"containers": containers}}
    )


def await_pod(world: World, pod: str, cpus: str) -> None:
    """Wait until all containers of a pod are on these CPUs."""

    def on() -> set[str]:
        paths = [world.node.path_of(one) for one in processes(world, pod)]
        return {str(world.tree.effective(path)) for path in paths}

    eventually(lambda: on() == {cpus}, lambda: f"{pod} on {cpus}: {on()}")


def disturb(world: World, pod: str) -> None:
    for one in processes(world, pod):
        world.overwrite(world.node.path_of(one), _NOBODYS)


def goes_on(world: World, peer: str) -> None:
    """See other containers kept, and a pod that comes taken, while a peer hangs."""
    for turn in ("first", "second"):
        began_s = time.monotonic()
        disturb(world, "others")
        await_pod(world, "others", _DEFAULT)
        log.info("%s hangs: others right the %s time after %.2f s", peer, turn, _since(began_s))
    began_s = time.monotonic()
    world.run_now(f"late-{peer}", exclusive_a=1)
    log.info("%s hangs: a pod is admitted after %.2f s", peer, _since(began_s))


def _since(began_s: float) -> float:
    return time.monotonic() - began_s


@contextmanager
def hanging_socket(path: Path) -> Iterator[socket.socket]:
    """Listen in the place of a peer; no connection gets an answer."""
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(64)
        listener.settimeout(DEADLINE_S)
        yield listener


def held(world: World, pod: str) -> list[Container]:
    """Give a pod's containers as a runtime that has their CPU lists."""
    running = nri_pb2.CONTAINER_RUNNING
    return [
        Container(NRIPod(one.pod.uid, pod), one.instance.id, one.container, _DEFAULT, state=running)
        for one in processes(world, pod)
    ]


def obey(world: World, container: str, cpus: str) -> None:
    (found,) = (one for one in world.node.processes() if one.instance.id == container)
    world.overwrite(world.node.path_of(found), cpus)


def tell(world: World, cri: FakeCRI, pod: str) -> None:
    """Let the runtime know a pod's containers."""
    for one in processes(world, pod):
        sandbox = f"sandbox-of-{one.pod.uid}"
        cri.add_sandbox(sandbox, pod)
        known = cri.add(one.instance.id, pod, one.container, annotations=dict(one.annotations))
        for labels in (cri.sandboxes[sandbox].labels, known.labels):
            labels["io.kubernetes.pod.uid"] = one.pod.uid
            labels["io.kubernetes.pod.namespace"] = one.pod.namespace


def ghost(world: World) -> dict[str, Any]:
    """Make a pod whose devices the kubelet has never named."""
    body: dict[str, Any] = copy.deepcopy(world.node.bodies()["items"][0])
    body["metadata"] |= {"name": "ghost", "uid": "ghost-uid"}
    limits = {"nokia.k8s.io/exclusive_a": "1"}
    body["spec"]["containers"] = [{"name": "main", "resources": {"limits": limits}}]
    body["status"] = {"phase": "Running"}
    return body


def obey_plugin(world: World, update: nri_pb2.ContainerUpdate) -> None:
    obey(world, update.container_id, update.linux.resources.cpu.cpus)


def connected(runtime: FakeRuntime, world: World) -> Plugin:
    plugin = runtime.accept()
    plugin.obey = partial(obey_plugin, world)
    plugin.configure()
    plugin.synchronize(held(world, "held"))
    return plugin


def test_whichever_peer_hangs_others_are_right_and_pods_are_taken(
    world: World, cri: FakeCRI, runtime: FakeRuntime
) -> None:
    run_many(world, "held")
    run_many(world, "others")
    with world.agent_here():
        plugin = connected(runtime, world)
        await_pod(world, "held", _DEFAULT)
        await_pod(world, "others", _DEFAULT)
        world.await_pool("exclusive_a", 4)

        # NRI.
        plugin.silent, plugin.obey = True, lambda _update: None
        disturb(world, "held")
        eventually(lambda: plugin.updates, "a call hangs")
        goes_on(world, "nri")
        await_pod(world, "late-nri", "2")
        await_pod(world, "held", _NOBODYS)
        assert len(plugin.updates) < _CONTAINERS, "one call does not wait for each container"
        plugin.silent, plugin.obey = False, partial(obey_plugin, world)
        plugin.answer_updates()
        await_pod(world, "held", _DEFAULT)

        # CRI.
        cri.answers.clear()
        goes_on(world, "cri")
        await_pod(world, "late-cri", "3")
        cri.answers.set()

        # The kubelet, for what its checkpoint does not tell.
        with hanging_socket(world.node.root.podresources_socket) as listener:
            world.api.set_pods([*world.node.bodies()["items"], ghost(world)])
            with listener.accept()[0]:
                goes_on(world, "kubelet")
                await_pod(world, "late-kubelet", "4")

        # The API server: what is not listed is known from the runtime.
        world.api.slow()
        goes_on(world, "api")
        tell(world, cri, "late-api")
        await_pod(world, "late-api", "5")
        world.api.up()


def test_a_runtime_that_nri_could_lock_up_is_called_and_waited_for(
    world: World, cri: FakeCRI, runtime: FakeRuntime
) -> None:
    runtime.nri = "v0.12.0"
    run_many(world, "held")
    run_many(world, "others")
    tell(world, cri, "held")
    with world.agent_here():
        plugin = connected(runtime, world)
        known = {one.id: one for one in held(world, "held")}

        def update(container: str, cpus: str) -> None:
            answer = plugin.update(known[container], cpus).update
            obey(world, container, answer[0].linux.resources.cpu.cpus if answer else cpus)

        cri.obey = update
        disturb(world, "held")
        await_pod(world, "held", _DEFAULT)

        cri.answers.clear()
        answered = cri.calls.copy()
        disturb(world, "held")
        # An update, or whatever else the agent asks the runtime first.
        eventually(lambda: cri.calls.total() > answered.total(), "a call hangs")
        goes_on(world, "cri")
        await_pod(world, "held", _NOBODYS)
        hung = (cri.calls - answered)["UpdateContainerResources"]
        assert hung < _CONTAINERS, "one call does not wait for each container"
        cri.answers.set()
        await_pod(world, "held", _DEFAULT)
        assert plugin.updates == []
