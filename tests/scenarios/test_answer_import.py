"""A node moves from Katalyst's manager to an agent while its pods run.

No plugin is asked to allocate again, and every container stays on its CPUs.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from cpupool.qrm import katalyst_checkpoint
from tests.machines import MACHINES
from tests.qrm_checkpoints import Recorded, written
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_plugin_deaths import agent, gone
from tests.scenarios.test_resource_plugins import DEDICATED, POOLS, Plugin, cpus, right, run
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

IMPORTED = "answers of Katalyst's manager are imported"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def record(world: World, **has: tuple[Pod, str]) -> None:
    """Let Katalyst's manager have recorded the CPUs of pods, and of one that has ended."""
    file, _ = katalyst_checkpoint.usual_paths(world.node.root)
    file.parent.mkdir(parents=True)
    entries = [Recorded.cpus(pod.uid, text) for pod, text in has.values()]
    file.write_bytes(written(*entries, Recorded.cpus("ended-uid", "1-3")))


@pytest.fixture
def moved(world: World) -> World:
    """Make a node on which the patched kubelet has placed two pods."""
    own, web = run(world, "own", DEDICATED), run(world, "web")
    record(world, own=(own, "6-7"), web=(web, "1-4"))
    world.disturb("own", "6-7")
    world.disturb("web", "1-4")
    return world


def test_containers_stay_on_their_cpus_and_nothing_is_allocated_again(moved: World) -> None:
    before_ns = {name: moved.written_ns(name) for name in ("own", "web")}
    with agent(moved) as process:
        process.await_line(f"{IMPORTED} taken=2 refused=0 left_out=1")
        right(moved, "0-5", own="6-7", web="1-4")
        with Plugin(moved) as plugin:
            plugin.gives = {"new": cpus("5")}
            run(moved, "new", DEDICATED)
            right(moved, "0-4", own="6-7", web="1-4", new="5")
            assert plugin.allocated() == ["new"]
            moved.disturb("own", "0-7")
            right(moved, "0-4", own="6-7", web="1-4", new="5")
    assert moved.written_ns("web") == before_ns["web"]


@pytest.mark.parametrize("step", ["chosen", "recorded"])
def test_an_agent_that_is_killed_while_it_imports_does_so_once(moved: World, step: str) -> None:
    with agent(moved, step, '"value":"6-7"', end=signal.SIGKILL) as process:
        gone(process)
    recorded = moved.node.root.answers.exists()
    assert recorded == (step == "recorded")

    with agent(moved) as process:
        right(moved, "0-5", own="6-7", web="1-4")
        assert (IMPORTED in process.log) == (step == "chosen")
    with agent(moved) as process, Plugin(moved) as plugin:
        plugin.gives = {"new": cpus("5")}
        run(moved, "new", DEDICATED)
        right(moved, "0-4", own="6-7", web="1-4", new="5")
        assert plugin.allocated() == ["new"]
        assert IMPORTED not in process.log


def test_of_two_containers_with_one_cpu_the_second_is_confined(world: World) -> None:
    first, second = run(world, "first", DEDICATED), run(world, "second", DEDICATED)
    record(world, second=(second, "3-4"), first=(first, "2-3"))
    with Plugin(world) as plugin, agent(world) as process:
        process.await_line(f"{IMPORTED} taken=1 refused=1 left_out=1")
        right(world, "0-1,4-7", first="2-3", second="0-1,4-7")
        said = world.await_event("PluginAnswerRefused", "second")
        assert "the answer for cpu names CPUs 3, which another pod owns" in said
        eventually(lambda: plugin.asked["NotifyRegistrationStatus"], "the plugin is registered")
        assert plugin.allocated() == []


def test_a_damaged_file_is_named_and_the_plugin_is_asked(moved: World) -> None:
    file, _ = katalyst_checkpoint.usual_paths(moved.node.root)
    file.write_bytes(file.read_bytes().replace(b"6-7", b"5-7"))
    with Plugin(moved) as plugin, agent(moved):
        plugin.gives = {"own": cpus("6-7"), "web": cpus("1-2")}
        right(moved, "0-5", own="6-7", web="1-2")
        assert sorted(plugin.allocated()) == ["own", "web"]
    assert "its checksum is" in moved.await_event("PluginAnswersNotImported")


def test_also_a_damaged_record_of_ours_counts_alone(moved: World) -> None:
    moved.node.root.answers.parent.mkdir(parents=True, exist_ok=True)
    moved.node.root.answers.write_bytes(b"damaged")
    with Plugin(moved) as plugin, agent(moved) as process:
        plugin.gives = {"own": cpus("5"), "web": cpus("1-2")}
        right(moved, "0-4,6-7", own="5", web="1-2")
        assert IMPORTED not in process.log
