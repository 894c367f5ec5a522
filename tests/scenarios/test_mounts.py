"""What the agent has the kubelet mount into containers, over upgrades and faults."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.host import mounts
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import POOLS, living
from tests.starter.containers import needs_namespaces
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.test_agent_process import World

STARTER, POOL = "/opt/cpupool/process-starter", "/run/cpupool/shared_b"
SHARED_B = "/var/lib/cpupool/pools/shared_b"
_FULL = 'mount -t tmpfs -o size=512k none "$0" && head -c 400000 /dev/zero >"$0/big" && exec "$@"'
_NOEXEC = 'mount -t tmpfs -o noexec none "$0" && exec "$@"'


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def image(world: World, name: str, size: int = 100) -> Path:
    """Make an image's starter."""
    path = world.folder / name
    path.write_bytes(b"\x7fELF" + name.encode() * size)
    return path


def shown(state: Path) -> str:
    """Give the CPUs that containers of the shared pool find."""
    return (state / "pools/shared_b/cpus").read_text().strip()


def told(state: Path) -> dict[str, Any]:
    """Give what they find for programs."""
    found: dict[str, Any] = json.loads((state / "pools/shared_b/cpus.json").read_text())
    return found


def in_tmpfs(world: World, script: str) -> tuple[str, ...]:
    """Give the words before a command that has the state folder in a file system of its own."""
    state = world.node.root.state
    state.mkdir(parents=True)
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(state))


def test_the_files_are_there_with_the_first_reply_and_follow_the_pool(world: World) -> None:
    state = world.node.root.state
    with world.agent("--starter", str(image(world, "one"))):
        world.await_pool("shared_b", 2000)
        (version,) = (state / "starter").iterdir()
        starter = f"/var/lib/cpupool/starter/{version.name}/process-starter"
        owner = world.run("owner", exclusive_a=1)
        sharer = world.run("sharer", shared_b=10)
        assert world.mounts(owner) == {STARTER: starter}
        assert world.mounts(sharer) == {STARTER: starter, POOL: SHARED_B}
        assert not list((state / "pools").glob("exclusive*"))
        assert shown(state) == "6-7"

        # The owner's CPU goes over to the shared pool, and stays its own until it ends.
        world.await_cpus(owner="2", sharer="6-7")
        world.mount.show(worker=POOLS.replace('"2-5"', '"3-5"').replace('"6-7"', '"2,6-7"'))
        world.await_pool("shared_b", 3000)
        assert told(state) == {"cpus": "6-7", "generation": 1, "pool": "shared_b"}

    # What a container finds that starts before the agent does.
    assert shown(state) == "6-7"
    with world.agent("--starter", str(image(world, "one"))):
        world.await_pool("shared_b", 3000)
        assert told(state) == {"cpus": "6-7", "generation": 1, "pool": "shared_b"}
        world.node.delete_pod(owner.uid)
        after = {"cpus": "2,6-7", "generation": 2, "pool": "shared_b"}
        eventually(lambda: told(state) == after, lambda: str(told(state)))
        assert shown(state) == "2,6-7"
        world.await_cpus(sharer="2,6-7")


def test_a_pool_that_comes_while_pods_run_has_its_folder_with_the_first_reply(
    world: World,
) -> None:
    with world.agent("--starter", str(image(world, "one"))):
        for number in range(5):
            pool = f"shared_{number}"
            world.mount.show(worker=POOLS.replace("shared_b", pool))
            world.await_pool(pool, 2000)
            pod = world.run(f"p{number}", **{pool: 10})
            assert f"/run/cpupool/{pool}" in world.mounts(pod)


def test_an_upgrade_keeps_the_old_starter_for_as_long_as_a_pod_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "SPARE_S", 0.0)
    with world.agent_here(starter=image(world, "one")):
        old = world.run("old", exclusive_a=1)
    with world.agent_here(starter=image(world, "two")):
        new = world.run("new", exclusive_a=1)
        first, second = (
            world.folder / world.mounts(pod)[STARTER].lstrip("/") for pod in (old, new)
        )
        assert first.read_bytes() != second.read_bytes()
        world.await_cpus(old="2", new="3")
        world.node.restart_container(old.uid, "main")
        assert first.exists()

        world.node.delete_pod(old.uid)
        # The kubelet's checkpoint names a pod that has ended until the next one comes.
        world.run("next", exclusive_a=1)
        eventually(lambda: not first.parent.exists(), "the old version goes")
        assert second.exists()


def test_without_a_starter_the_agent_does_all_else(world: World) -> None:
    with world.agent("--starter", str(world.folder / "none")) as agent:
        owner = world.run("owner", exclusive_a=1)
        sharer = world.run("sharer", shared_b=10)
        world.await_cpus(owner="2", sharer="6-7")
        assert world.mounts(owner) == {}
        assert world.mounts(sharer) == {POOL: SHARED_B}
        said = world.await_event("CPUPoolFilesFailed")
        assert "none" in said

        image(world, "none")
        starters = world.node.root.state / "starter"
        eventually(lambda: list(starters.glob("*/process-starter")), "the starter")
        assert STARTER in world.mounts(world.run("late", exclusive_a=1))
    assert agent.log.count("containers' files are not as they should be") == 1


@needs_namespaces
def test_a_state_folder_in_which_no_program_runs_is_told(world: World) -> None:
    starter = image(world, "starter")
    with world.agent("--starter", str(starter), before=in_tmpfs(world, _NOEXEC)) as agent:
        assert "without noexec" in world.await_event("CPUPoolFilesFailed")
        # A runtime may mount it without the flag, and nothing starts without the file.
        assert STARTER in world.mounts(world.run("owner", exclusive_a=1))
    assert agent.log.count('what="process starter"') == 1


@needs_namespaces
def test_on_a_full_disk_nothing_is_given_out_half(world: World) -> None:
    starter = image(world, "starter", 30_000)
    with world.agent("--starter", str(starter), before=in_tmpfs(world, _FULL)) as agent:
        first = world.run("first", shared_b=10)
        assert world.mounts(first) == {POOL: SHARED_B}
        agent.await_line('what="process starter"')
        state = Path(f"/proc/{agent.process.pid}/root") / world.node.root.state.relative_to("/")
        assert shown(state) == "6-7"
        with suppress(OSError), (state / "rest").open("wb", buffering=0) as rest:
            while rest.write(bytes(4096)):
                pass
        world.mount.show(worker=POOLS.replace('"6-7"', '"5-7"').replace('"2-5"', '"2-4"'))
        world.await_cpus(first="5-7")
        agent.await_line('what="files of pool shared_b"')
        assert shown(state) == "6-7"

        for file in ("rest", "big"):
            os.unlink(state / file)  # noqa: PTH108 - the path is another process's
        eventually(lambda: shown(state) == "5-7", "the file is right")
        eventually(lambda: list(state.glob("starter/*/process-starter")), "the starter")
        assert list(state.glob("**/.cpupool-*")) == []
        assert world.mounts(world.run("second", shared_b=10)).keys() == {STARTER, POOL}
    assert agent.log.count('what="process starter"') == 1
