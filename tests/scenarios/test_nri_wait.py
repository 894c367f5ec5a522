"""An agent that starts while a pod ends: it serves without NRI, says so, and then connects."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from cpupool import cli
from cpupool.core.cgroups import Writer
from tests.machines import MACHINES
from tests.scenarios import test_agent_process
from tests.scenarios.test_agent_process import POOLS
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.scenarios.test_agent_process import World

_RELEASED: Final = "CPUContainerReleased"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with test_agent_process.living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


def let_end(world: World, name: str, grace: timedelta) -> None:
    """Let the API server tell from now on that a pod is being deleted."""
    until = (datetime.now(UTC) + grace).strftime("%Y-%m-%dT%H:%M:%SZ")
    publish = world.api.set_pods

    def told(body: dict[str, Any]) -> dict[str, Any]:
        if body["metadata"]["name"] != name:
            return body
        return {**body, "metadata": {**body["metadata"], "deletionTimestamp": until}}

    def set_pods(bodies: Iterable[dict[str, Any]]) -> None:
        publish([told(body) for body in bodies])

    world.api.set_pods = set_pods  # type: ignore[method-assign]
    set_pods(world.node.bodies()["items"])


def status(world: World) -> dict[str, Any]:
    file = world.node.root.status
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def test_until_the_pod_has_ended_it_serves_as_without_nri(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.agent(end=signal.SIGKILL):
        world.run("earlier", exclusive_a=1)
        slow = world.run("slow")
        eventually(lambda: world.node.plugged, "NRI is connected")
        world.await_cpus(earlier="2", slow="0-1")
    let_end(world, "slow", timedelta(minutes=10))
    with world.agent("--nri-wait", "3600") as agent:
        eventually(lambda: "nri: waits for default/slow until " in agent.log, lambda: agent.log)
        eventually(
            lambda: status(world).get("nri", "").startswith("waits for default/slow until "),
            "the status tells",
        )
        assert status(world)["enforcement"] == Writer.CGROUP.value
        cli.main(["status", "--file", str(world.node.root.status), "--topology", str(world.folder)])
        assert "nri: waits for default/slow until " in capsys.readouterr().out

        world.run("owner", exclusive_a=1)
        world.run("plain")
        world.await_cpus(earlier="2", slow="0-1", owner="3", plain="0-1")
        message = world.await_event(_RELEASED, "owner")
        assert "container main: it has started while the connection to NRI waits for" in message
        assert not world.node.plugged

        world.node.delete_pod(slow.uid)
        eventually(lambda: world.node.plugged, lambda: agent.log)
        world.run("later", exclusive_a=1)
        world.await_cpus(earlier="2", owner="3", plain="0-1", later="4")
        eventually(lambda: status(world)["nri"] == "", "the status tells")
        assert status(world)["enforcement"] == Writer.NRI.value
        assert not any(world.events(_RELEASED, pod) for pod in ("earlier", "plain", "later"))


def test_it_connects_by_the_bound_and_says_what_that_may_cost(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        world.run("slow")
        eventually(lambda: world.node.plugged, "NRI is connected")
    let_end(world, "slow", timedelta(hours=1))
    with world.agent("--nri-wait", "0.5") as agent:
        eventually(lambda: world.node.plugged, lambda: agent.log)
        assert "nri: waits for default/slow until " in agent.log
        assert "nri: connects while a pod ends pod=default/slow" in agent.log
