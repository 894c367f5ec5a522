"""The record of plugins' answers is gone or damaged while the plugin is away.

An exclusive owner keeps its CPUs over the agent's restart, by its annotation (NRI) or by its cgroup
(no NRI); an owner of which nothing is known has an Event.
"""

from __future__ import annotations

import json
import signal
import zlib
from typing import TYPE_CHECKING

import pytest

from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    ALL,
    DEDICATED,
    POOLS,
    Plugin,
    agent,
    cpus,
    right,
    run,
    served,
    started,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

GIVES = {"own": "6-7", "web": "1-4"}
RECORD = "var/lib/cpupool/plugin-answers.json"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def forged(file: Path) -> None:
    """Write what no agent writes, with the right checksum."""
    entries = [{"pod": "x", "answers": {"cpu": None}}]
    checksum = zlib.crc32(json.dumps(entries, separators=(",", ":"), sort_keys=True).encode())
    file.write_text(json.dumps({"version": 1, "checksum": checksum, "entries": entries}))


FATES: dict[str, Callable[[Path], object]] = {
    "gone": lambda file: file.unlink(),
    "cut": cut,
    "garbage": lambda file: file.write_bytes(b"\xff\x00garbage"),
    "forged": forged,
}


@pytest.fixture(params=["annotation", "cgroup"])
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def world(folder: Path, way: str) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=way == "annotation") as world:
        world.mount.show(worker=POOLS)
        yield world


def two_answers(world: World, plugin: Plugin, way: str) -> tuple[Pod, Pod]:
    """Let a plugin give CPUs to an owner and to a pod that shares, and kill the agent."""
    plugin.gives = {name: cpus(text) for name, text in GIVES.items()}
    with plugin, agent(world, end=signal.SIGKILL) as process:
        served(process)
        if way == "annotation":
            eventually(lambda: world.node.plugged, "the runtime asks the agent")
        run(world, "plain", cpu="0")
        own, web = run(world, "own", DEDICATED), run(world, "web")
        for pod in (own, web):
            started(world, pod)
        right(world, "0-5", plain="0-5", own="6-7", web="1-4")
    plugin.socket.unlink(missing_ok=True)
    return own, web


@pytest.mark.parametrize("fate", FATES)
def test_an_owner_stays_alone_on_its_cpus(world: World, way: str, fate: str) -> None:
    plugin = Plugin(world, need_reconcile=True)
    own, _ = two_answers(world, plugin, way)
    file = world.folder / RECORD
    before = file.read_bytes()
    FATES[fate](file)
    damaged = file.read_bytes() if file.exists() else b""

    world.disturb("plain", ALL)
    if way == "annotation":
        world.disturb("own", ALL)
    with agent(world, end=signal.SIGKILL) as process:
        right(world, "0-5", plain="0-5", own="6-7", web="1-4")
        said = world.await_event("PluginAnswerKept", "own")
        assert "container main keeps CPUs 6-7 for itself" in said
        assert ("its annotation names" if way == "annotation" else "where it runs") in said
        assert "start the plugin" in said
        if damaged:
            assert "plugin-answers.json.corrupt" in world.await_event("RecordSetAside")
            assert file.with_name(f"{file.name}.corrupt").read_bytes() == damaged
    assert "Traceback" not in "".join(process.lines)
    assert file.read_bytes() != before

    # What was found is in the record now, so the next agent knows it, too.
    world.disturb("own", ALL)
    with agent(world):
        right(world, "0-5", plain="0-5", own="6-7", web="1-4")

        # The plugin returns with its state.
        again = Plugin(world, need_reconcile=True)
        again.gives, again.known = plugin.gives, plugin.known
        with again:
            again.now_gives(own, "5-7")
            right(world, "0-4", plain="0-4", own="5-7", web="1-4")
            assert again.allocated() == []


def test_a_plugin_that_lists_nothing_is_asked_again_and_its_answer_counts(
    world: World, way: str
) -> None:
    first = Plugin(world)
    two_answers(world, first, way)
    (world.folder / RECORD).unlink()
    with agent(world):
        right(world, "0-5", plain="0-5", own="6-7", web="1-4")
        again = Plugin(world)
        again.gives = {"own": cpus("4-5"), "web": cpus("1-3")}
        with again:
            right(world, "0-3,6-7", plain="0-3,6-7", own="4-5", web="1-3")
            assert sorted(again.allocated()) == ["own", "web"]


@pytest.mark.parametrize("way", ["cgroup"], indirect=True)
def test_an_owner_of_which_nothing_is_known_has_an_event(world: World, way: str) -> None:
    two_answers(world, Plugin(world), way)
    (world.folder / RECORD).unlink()
    world.disturb("own", ALL)
    with agent(world):
        right(world, ALL, plain=ALL, own=ALL, web="1-4")
        said = world.await_event("PluginAnswerLost", "own")
        assert "start the plugin, or create the pod again" in said


@pytest.mark.parametrize("way", ["annotation"], indirect=True)
def test_until_the_pools_are_known_what_runs_stays(world: World, way: str) -> None:
    two_answers(world, Plugin(world), way)
    before = world.containers()
    world.api.slow("nodes")
    with agent(world) as process:
        # The runtime takes the corrections of an agent before it counts as plugged.
        process.await_line("NRI connected")
        eventually(lambda: world.node.plugged, "the runtime asks the agent")
        assert world.containers() == before
        world.api.up()
        process.await_line("pool configuration applied")
        right(world, "0-5", plain="0-5", own="6-7", web="1-4")
