"""Pools in force stay in force over a restart, although the machine contradicts them meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.policies.view import DEFAULT
from tests import builders
from tests.builders import container, given, pod
from tests.unit.agent.test_configurator import WORKER, World

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.manager.manager import Manager

SIBLINGS = CPUSet.parse("1,3,5,7")
"""What `nosmt` switches off on the machine."""
SPLIT = (
    "nodeSelector: {node: a}\n"
    "pools: {exclusive_a: {cpus: '2,4'}, shared_b: {cpus: '3,6'}, default: {cpus: '0'}}\n"
)
TORN = (
    "nodeSelector: {node: a}\npools: {default: {cpus: '0,2,4,6'}}\n"
    "cpuManager: {policy: static, reserved: 1, options: {full-pcpus-only: true}}\n"
)
COUNTED = "nodeSelector: {node: a}\ncpuManager: {policy: static, reserved: 3}\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def decided(manager: Manager) -> dict[str, object]:
    facts, resolution = manager.snapshot()
    view = resolution.view
    return {
        "configured": facts.configured,
        "pools": facts.pools,
        "blocked": facts.blocked,
        "owners": view.grants,
        "extents": view.extents,
        "available": facts.policy.available(view),
        "devices": {name: tuple(manager.devices(name).offer) for name in ("exclusive_a",)}
        if facts.pools.by_name("exclusive_a")
        else {},
    }


@pytest.mark.parametrize(
    ("file", "before", "after", "told"),
    [
        pytest.param(SPLIT, SIBLINGS, CPUSet(), "2-3", id="a core of two pools"),
        pytest.param(TORN, SIBLINGS, CPUSet(), "1,3,5,7", id="cores of whole cores are torn"),
        pytest.param(COUNTED, CPUSet(), CPUSet.parse("3-7"), "", id="too few CPUs are left"),
    ],
)
def test_the_next_agent_decides_as_the_one_that_saw_the_machine_change(
    world: World, file: str, before: CPUSet, after: CPUSet, told: str
) -> None:
    world.machine.switch_off(before)
    world.mount.show(worker=file)
    world.role.look()
    world.manager.adopt(())
    owner = pod("owner", container(exclusive_a=1))
    world.manager.observe(pods=[owner])
    world.manager.accept(given(owner, exclusive_a="4"))

    world.machine.switch_on(before)
    world.machine.switch_off(after)
    problems = world.manager.update_topology(world.machine.topology())
    running = decided(world.manager)
    assert str(running["blocked"]) == told
    assert problems

    world.restart()
    world.role.look()
    world.manager.observe(pods=[owner])
    world.manager.accept(given(owner, exclusive_a="4"))
    world.manager.adopt(())
    assert decided(world.manager) == running

    # The admin hears what to do, and that these pools stay.
    ((reason, message),) = world.heard.nodes
    assert reason == "CPUPoolConfigInvalid"
    assert message.startswith(f"{WORKER}:")
    assert "Until it is corrected the last good pools stay" in message
    assert (f"no further container gets CPUs {told}" in message) is bool(told)
    assert not world.valid()

    # Once the machine is as before, so are the pools.
    world.machine.switch_on(after)
    world.machine.switch_off(before)
    world.manager.update_topology(world.machine.topology())
    assert not world.manager.snapshot().facts.blocked
    world.role.look()
    assert world.valid()


def test_an_owner_of_a_contradictory_core_keeps_it_until_it_ends(world: World) -> None:
    world.machine.switch_off(SIBLINGS)
    world.mount.show(worker=SPLIT)
    world.role.look()
    owner = pod("owner", container(exclusive_a=1))
    for restarted in (False, True):
        if restarted:
            world.restart()
            world.role.look()
        world.manager.observe(pods=[owner])
        world.manager.accept(given(owner, exclusive_a="2"))
        world.machine.switch_on(SIBLINGS)
        world.manager.update_topology(world.machine.topology())
        assert builders.owned(world.manager) == {"owner-uid": {"exclusive_a": CPUSet.of(2)}}
        healthy = {each.id: each.healthy for each in world.manager.devices("exclusive_a").offer}
        assert healthy == {"2": True, "4": True}
        shared = world.manager.snapshot().resolution.view.extents
        assert (shared["shared_b"], shared[DEFAULT]) == (CPUSet.of(6), CPUSet.of(0))

    world.manager.observe(pods=[], idle=frozenset({"owner-uid"}))
    world.manager.accept({})
    healthy = {each.id: each.healthy for each in world.manager.devices("exclusive_a").offer}
    assert healthy == {"2": False, "4": True}
