"""What the agent has the kubelet mount into containers, over upgrades and faults."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import ENABLE_SHARED_CPUS
from cpupool.host import mounts
from tests.machines import MACHINES
from tests.processes import Process
from tests.scenarios.test_agent_process import POOLS, living
from tests.scenarios.test_mixed_cpus import await_units, run
from tests.starter.containers import needs_namespaces
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.test_agent_process import World

log = logging.getLogger(__name__)

STARTER, POOL = "/opt/cpupool/process-starter", "/run/cpupool/shared_b"
SHARED_B = "/var/lib/cpupool/pools/shared_b"
_FULL = 'mount -t tmpfs -o size=512k none "$0" && head -c 400000 /dev/zero >"$0/big" && exec "$@"'
_PAGE = Path(__file__).parents[2] / "docs/user/mixed-cpus.md"
_MOUNTED = (
    'mount -t tmpfs none /run && mkdir -p "$1" && mount --bind -o ro "$0" "$1"'
    ' && shift && exec "$@" >&2'
)
_CONTAINER = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNTED)
_READER = """
import itertools, json, os, sys

os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

def number(listed):
    ranges = [piece.partition("-") for piece in listed.split(",")]
    cpus = {cpu for a, _, b in ranges for cpu in range(int(a), int(b or a) + 1)}
    return sum(1 << (cpu - 6) for cpu in cpus)

generation, newest, edits = 0, 0, {}
for reads in itertools.count(1):
    with open("cpus.json") as file:
        described = json.load(file)
    with open("cpus") as file:
        plain = file.read()
    assert described["generation"] >= generation, (described, generation)
    generation = described["generation"]
    edit = edits.setdefault(generation, number(described["cpus"]))
    assert edit == number(described["cpus"]), (described, edit)
    assert plain.endswith(chr(10)), plain
    assert number(plain) >= max(edit, newest), (plain, described, newest)
    newest = number(plain)
    if reads >= 10_000 and len(edits) >= 20:
        break
assert sorted(edits.values()) == list(edits.values()), edits
sys.stderr.write(f"{reads} reads, {len(edits)} generations")
"""
"""Reads as an application does, and as nobody. The bits of an edit's number are its CPUs."""
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


def described(state: Path) -> dict[str, Any]:
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
        assert described(state) == {"cpus": "6-7", "generation": 1, "pool": "shared_b"}

    # What a container finds that starts before the agent does.
    assert shown(state) == "6-7"
    with world.agent("--starter", str(image(world, "one"))):
        world.await_pool("shared_b", 3000)
        assert described(state) == {"cpus": "6-7", "generation": 1, "pool": "shared_b"}
        world.node.delete_pod(owner.uid)
        after = {"cpus": "2,6-7", "generation": 2, "pool": "shared_b"}
        eventually(lambda: described(state) == after, lambda: str(described(state)))
        assert shown(state) == "2,6-7"
        world.await_cpus(sharer="2,6-7")


def test_no_reader_ever_sees_a_file_in_part_or_a_generation_that_goes_back(world: World) -> None:
    slowest_s = 0.0
    folder = world.node.root.state / "pools/shared_b"
    with world.agent():
        eventually((folder / "cpus.json").exists, "the files")
        edit(world, 1)
        with Process(sys.executable, "-c", _READER, folder).collecting() as reader:
            for number in range(2, 1 << 10):
                slowest_s = max(slowest_s, edit(world, number))
                if reader.process.poll() is not None:
                    break
    assert reader.process.returncode == 0, reader.log
    log.info("%s, the slowest notice after %.3f s", reader.log, slowest_s)


def test_the_generation_grows_when_somebody_elses_write_has_been_repaired(world: World) -> None:
    def generation() -> int:
        return int(described(world.node.root.state)["generation"])

    def disturbed(pod: str) -> None:
        world.disturb(pod, "9")
        world.await_cpus(**cpus)

    world.mount.show(worker=f"{POOLS}mixedCPUs: {{pool: shared_b}}\n")
    cpus = {"owner": "2", "sharer": "6-7", "mixed": "3,6-7", "openshifts": "4,6-7", "plain": "0-1"}
    with world.agent():
        world.await_pool("shared_b", 2000)
        world.run("owner", exclusive_a=1)
        world.run("sharer", shared_b=10)
        world.run("mixed", exclusive_a=1, shared_b=10)
        await_units(world, 256)
        openshifts = run(world, "openshifts", main={"exclusive_a": 1, ENABLE_SHARED_CPUS: 1})
        world.run("plain")
        world.await_cpus(**cpus)
        assert world.mounts(openshifts) == {POOL: SHARED_B}
        # Pods that come and others' CPUs are no news.
        disturbed("owner")
        disturbed("plain")
        assert generation() == 1
        for number, pod in enumerate(("sharer", "mixed", "openshifts"), 2):
            disturbed(pod)
            eventually(lambda number=number: generation() == number, pod)  # type: ignore[misc]
        assert described(world.node.root.state)["cpus"] == "6-7"


def edit(world: World, number: int) -> float:
    """Give the shared pool the CPUs whose bits are set; tell how long the notice took."""
    cpus = ",".join(str(bit + 6) for bit in range(10) if number >> bit & 1)
    world.mount.show(worker=POOLS.replace("6-7", cpus))
    began_s = time.monotonic()
    wanted = str(CPUSet.parse(cpus))
    eventually(lambda: described(world.node.root.state)["cpus"] == wanted, wanted)
    return time.monotonic() - began_s


@needs_namespaces
def test_the_example_of_the_page_follows_the_pool_in_a_container(world: World) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (inside,) = re.findall(r'"(/run/cpupool/[^"/]+)"', example)
    folder = world.node.root.state / "pools/shared_b"
    with world.agent():
        eventually((folder / "cpus.json").exists, "the files")
        # It writes to a pipe, as without a terminal. -E ignores the machine's PYTHONUNBUFFERED.
        python = (sys.executable, "-E", "-c", example)
        with Process(*_CONTAINER, folder, inside, *python).collecting() as reader:
            reader.await_line("generation 1: 6-7")
            edit(world, 0b100)
            reader.await_line("generation 2: 8")
            edit(world, 0b101)
            reader.await_line("generation 3: 6,8")
    assert len(reader.lines) == 3


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
def test_a_state_folder_in_which_no_program_runs_is_reported(world: World) -> None:
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
