"""A CPU manager policy of a few lines drives a node: selected in the pool file, asked through NRI.

The policy is no part of cpupool (`examples/policy`), and no other module knows it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cpupool.policies.koordinator.pod_annotations import RESOURCE_STATUS
from tests import policies
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_mixed_cpus import Runtime, guaranteed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.nri_runtime import FakeRuntime
    from tests.scenarios.test_agent_process import World

POOLS = """
pools:
  exclusive_a: {cpus: "8-9"}
  default: {cpus: "0-5"}
nodeSelector: {role: worker}
cpuManager: {policy: highest}
"""


@pytest.fixture
def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PYTHONPATH", policies.installed(folder))
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def test_containers_get_and_keep_cpus_of_their_own(world: World, runtime: FakeRuntime) -> None:
    with world.agent(end=signal.SIGKILL):
        nri = Runtime(world, runtime)
        # The policy chooses for one after the other: pods of the same second have no order.
        first = guaranteed(world, "first", 2)
        world.await_containers({"first/main": "4-5", "first/": "0-3"})
        second = guaranteed(world, "second", 1)
        both = {"first/main": "4-5", "second/main": "3", "first/": "0-2", "second/": "0-2"}
        world.await_containers(both)
        # Its container requests no CPU, and the policy wants one for it.
        plain = world.run("plain")
        placed = {"first/main": "4-5", "second/main": "3", "plain/main": "2"}
        rest = {"first/": "0-1", "second/": "0-1", "plain/": "0-1"}
        world.await_containers({**placed, **rest})

        answer = nri.create(first, "0-15", {}).adjust
        assert answer.linux.resources.cpu.cpus == "4-5"
        assert {one.key: one.value for one in answer.env} == {"EXCLUSIVE_CPUS": "4-5"}
        assert answer.annotations == {"nokia.k8s.io/cpus-chosen": "4-5"}

    nri.lose()
    world.disturb("plain", "0-15")
    with world.agent():
        nri.regain(first, second)
        world.await_containers({**placed, **rest})
        world.disturb("first", "3")
        world.await_containers({**placed, **rest})

        # It comes after those who have CPUs already.
        world.node.delete_pod(plain.uid)
        del placed["plain/main"], rest["plain/"]
        third = guaranteed(world, "third", 2)
        rest = dict.fromkeys(rest, "0") | {"third/": "0"}
        world.await_containers({**placed, **rest, "third/main": "1-2"})
        assert nri.create(third, "0-15", {}).adjust.linux.resources.cpu.cpus == "1-2"

        # What a pod has had is everybody's when it has ended, and then the next owner's.
        nri.end(first)
        world.node.delete_pod(first.uid)
        placed = {"second/main": "3", "third/main": "1-2"}
        rest = {one: "0,4-5" for one in rest if one != "first/"}
        world.await_containers({**placed, **rest})
        fourth = guaranteed(world, "fourth", 1)
        rest = dict.fromkeys(rest, "0,4") | {"fourth/": "0,4"}
        world.await_containers({**placed, **rest, "fourth/main": "5"})
        assert nri.create(fourth, "0-15", {}).adjust.linux.resources.cpu.cpus == "5"


def test_pods_keep_their_cpus_while_the_package_is_gone(
    world: World, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.agent(end=signal.SIGKILL):
        nri = Runtime(world, runtime)
        first = guaranteed(world, "first", 2)
        placed = {"first/main": "4-5", "first/": "0-3"}
        world.await_containers(placed)
        nri.create(first, "0-15", {})

    # A restart without the package: nobody gets its CPUs, and nobody else gets CPUs of its own.
    nri.lose()
    with monkeypatch.context() as gone:
        gone.delenv("PYTHONPATH")
        with world.agent(end=signal.SIGKILL) as agent:
            agent.await_line("last good pools in force")
            nri.regain(first)
            assert "unknown value 'highest'" in world.await_event("CPUPoolConfigInvalid")
            second = guaranteed(world, "second", 1)
            world.await_containers({**placed, "second/main": "0-3", "second/": "0-3"})
            assert nri.create(second, "0-15", {}).adjust.linux.resources.cpu.cpus == "0-3"
            assert "Traceback" not in agent.log

    nri.lose()
    with world.agent():
        nri.regain(first, second)
        rest = dict.fromkeys(("first/", "second/"), "0-2")
        world.await_containers({"first/main": "4-5", "second/main": "3", **rest})


def command(*arguments: str | Path, code: int = 0) -> str:
    """Return what a command of a process of its own writes."""
    line = [sys.executable, "-W", "error", "-m", "cpupool", *arguments]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a pool file, and a pod with a container that requests no whole CPU."""
    monkeypatch.setenv("PYTHONPATH", policies.installed(folder))
    (folder / "pools.yaml").write_text(POOLS)
    containers = [
        {"name": "main", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}},
        {"name": "side", "resources": {"limits": {"cpu": "100m", "memory": "1Gi"}}},
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": containers},
    }
    (folder / "pod.json").write_text(json.dumps(pod))
    MACHINES["arm_no_smt"].write(folder)
    return folder


def test_every_command_knows_the_policy(files: Path) -> None:
    pools, machine = files / "pools.yaml", files / "sys"
    said = command("validate", pools, "--topology", machine)
    assert "default 0-5; cpuManager with policy: highest, onMisfit: hold" in said
    on = ("--pools", pools, "--topology", machine, "--policy", "pool", "--json")
    ran = json.loads(command("simulate", *on, "--pods", files / "pod.json"))
    placed = {one["name"]: one["cpus"] for one in ran["policies"]["pool"]["containers"]}
    assert placed == {"default/web/main": "4-5", "default/web/side": "3"}
    assert "counts 6 cpu for this node: what the CPU manager can give" in command(
        "kubelet-config", pools, "--topology", machine
    ).replace("\n# ", " ")
    admitted = command("admit", "--pool-files", pools, "--json", files / "pod.json")
    assert json.loads(admitted)["pods"][0]["admitted"]


def test_a_command_where_the_package_is_missing_says_so_at_the_key(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    pools, pod = files / "pools.yaml", files / "pod.json"
    missing = "pools.yaml:6:22: cpuManager.policy: unknown value 'highest'; use none or static"
    for arguments in (
        ("validate", pools),
        ("simulate", "--pools", pools, "--topology", files / "sys", "--pods", pod),
        ("kubelet-config", pools, "--topology", files / "sys"),
    ):
        assert missing in command(*arguments, code=1 if arguments[0] == "validate" else 2)

    # As the webhook: the file's pools are known, and the policy may go by any words.
    assert missing in command("admit", "--as", "me", "--pool-files", pools, "--diff", pod)
    body = json.loads(pod.read_text())
    body["metadata"]["annotations"] = {RESOURCE_STATUS: '{"cpuset": "1"}'}
    pod.write_text(json.dumps(body))
    denied = command("admit", "--pool-files", pools, "--json", pod, code=1)
    assert "only a scheduler may write this" in denied
