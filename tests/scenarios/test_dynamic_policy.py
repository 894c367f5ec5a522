"""The policy `dynamic` on the embedded node: the kubelet resizes, the agent answers by NRI."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.local.cgroups import EmulatedCgroups
from tests.demos import Demos
from tests.events import Heard
from tests.guides import blocks, commands
from tests.machines import MACHINES, Machine
from tests.scenarios import test_agent_process
from tests.scenarios.test_cpu_manager_guide import without_numbers
from tests.scenarios.test_embedded_node import living, plugged
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_embedded_node import World

POOLS = """
pools:
  exclusive_a: {cpus: "14-15"}
  default: {cpus: "0-7"}
cpuManager: {policy: dynamic, reserved: "0-0", maxNoticeSeconds: 3600}
"""


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def world(folder: Path, heard: Heard) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with (
        EmulatedCgroups(folder, machine.topology().online, "") as home,
        living(folder, home, POOLS, machine.sys, nri=True, events=heard) as made,
    ):
        made.settled(exclusive_a=2)
        yield made


def run(world: World | test_agent_process.World, name: str, cpu: str, **annotations: str) -> Pod:
    limits = {"cpu": cpu, "memory": "1Gi"}
    resources = {"limits": limits, "requests": limits}
    spec = {"containers": [{"name": "main", "resources": resources}]}
    said = {f"nokia.k8s.io/{word.replace('_', '-')}": text for word, text in annotations.items()}
    metadata = {"name": name, "annotations": said, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return world.node.run_pod({"metadata": metadata, "spec": spec})


def folder_of(world: World, pod: str) -> Path:
    (found,) = (
        process.instance.mounts["/run/cpupool/self"]
        for process in world.node.processes()
        if (process.pod.name, process.container) == (pod, "main")
    )
    return found


def told(world: World, pod: str) -> Mapping[str, Any]:
    text: Mapping[str, Any] = json.loads((folder_of(world, pod) / "cpus.json").read_text())
    return text


def told_soon(world: World, pod: str, **expected: object) -> Mapping[str, Any]:
    eventually(
        lambda: expected.items() <= told(world, pod).items(),
        lambda: f"{expected} in {told(world, pod)}",
    )
    return told(world, pod)


def test_a_container_grows_and_shrinks_and_its_folder_tells(world: World, heard: Heard) -> None:
    pod = run(world, "web", "2", cpu_notice_seconds="0")
    plain = run(world, "plain", "500m")
    world.eventually("web", main="1-2")
    world.eventually("plain", main="0,3-7")
    first = told_soon(world, "web", cpus="1-2", assigned="1-2", baseline="1-2", change=None)

    world.node.resize(pod.uid, {"main": "4"})
    assert world.cpus("web")["main"] == "1-4"
    assert world.cpus("plain")["main"] == "0,5-7"
    grown = told_soon(world, "web", cpus="1-4", assigned="1-4", baseline="1-2")
    assert grown["change"] == {"reason": "grow", "removed": "", "added": "3-4"}
    assert grown["generation"] > first["generation"]

    # Without a notice the runtime's answer has the CPUs that stay.
    world.node.resize(pod.uid, {"main": "3"})
    assert world.cpus("web")["main"] == "1-3"
    world.eventually("plain", main="0,4-7")
    shrunk = told_soon(world, "web", cpus="1-3", assigned="1-3")
    assert shrunk["change"]["reason"] == "shrink"
    assert (folder_of(world, "web") / "cpus").read_text() == "1-3\n"
    assert (plain.name, world.node.resizing()) == ("plain", {})


def test_cpus_stay_in_force_while_the_notice_lasts_and_a_grow_ends_it(world: World) -> None:
    pod = run(world, "web", "2")
    world.eventually("web", main="1-2")
    world.node.resize(pod.uid, {"main": "6"})
    world.node.resize(pod.uid, {"main": "3"})
    announced = told_soon(world, "web", cpus="1-6", assigned="1-3")
    assert announced["change"]["removed"] == "4-6"
    assert announced["change"].keys() >= {"notBefore", "notBeforeMonotonic"}
    assert world.cpus("web")["main"] == "1-6"

    world.node.resize(pod.uid, {"main": "6"})
    back = told_soon(world, "web", cpus="1-6", assigned="1-6")
    assert back["generation"] > announced["generation"]
    assert world.cpus("web")["main"] == "1-6"


def test_a_notice_ends_although_the_policy_is_another_by_then(world: World, folder: Path) -> None:
    pod = run(world, "web", "2", cpu_notice_seconds="1")
    plain = run(world, "plain", "500m")
    world.eventually("web", main="1-2")
    world.node.resize(pod.uid, {"main": "4"})
    world.node.resize(pod.uid, {"main": "2"})
    static = POOLS.replace("dynamic", "static").replace(", maxNoticeSeconds: 3600", "")
    file = folder / "config" / "poolconfig-node.yaml"
    file.write_text(f"{static}nodeSelector: {{node: this}}\n")
    world.eventually(plain.name, main="0,3-7")
    assert world.cpus("web")["main"] == "1-2"
    told_soon(world, "web", cpus="1-2", assigned="1-2")


@pytest.mark.parametrize(
    ("cpu", "why"),
    [
        ("20", "18 more than the 2 that it owns, and 5 are free"),
        ("2500m", "whole"),
        ("1", "with which it began"),
    ],
)
def test_a_resize_that_cannot_be_stays_in_progress_with_the_reason(
    world: World, heard: Heard, cpu: str, why: str
) -> None:
    pod = run(world, "web", "2")
    world.eventually("web", main="1-2")
    world.node.resize(pod.uid, {"main": cpu})
    assert why in world.node.resizing()[pod.uid]
    assert world.cpus("web")["main"] == "1-2"
    eventually(
        lambda: [reason for _, reason, _ in heard.pods if reason == "CPUResizeRefused"], "an Event"
    )


def test_nothing_is_lost_if_the_runtime_fails_after_the_agent_has_agreed(world: World) -> None:
    pod = run(world, "web", "2")
    world.eventually("web", main="1-2")
    (path,) = (
        world.node.path_of(process)
        for process in world.node.processes()
        if (process.pod.name, process.container) == ("web", "main")
    )
    cpus = world.node.root.cgroup / "cpuset" / path / "cpuset.cpus"
    cpus.rename(kept := cpus.with_name("kept"))
    cpus.mkdir()
    world.node.resize(pod.uid, {"main": "4"})
    assert "cannot be set" in world.node.resizing()[pod.uid]

    cpus.rmdir()
    kept.rename(cpus)
    world.node.try_again()
    world.eventually("web", main="1-4")
    told_soon(world, "web", cpus="1-4", assigned="1-4", baseline="1-2")
    assert world.node.resizing() == {}


def test_the_history_of_a_container_outlives_the_agent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = MACHINES["arm_no_smt"].write(folder)
    status = folder / "run/cpupool/status.json"

    def explained(*rules: str) -> list[str]:
        capsys.readouterr()
        cli.main(["explain", "default/web/main", "--json", "--file", str(status)])
        shown = json.loads(capsys.readouterr().out or "{}").get("containers", [])
        return [
            f"{step['why']} => {step['left']}"
            for each in shown
            for step in each["steps"]
            if step["rule"] in rules
        ]

    def announced() -> bool:
        return any(re.search(r"CPU 4 leaves in \d+ s, at ", line) for line in explained("leaving"))

    with test_agent_process.living(folder, machine, {"role": "worker"}, nri=True) as there:

        def starts() -> bool:
            there.node.try_again()
            return not there.node.held()

        there.mount.show(worker=f"{POOLS}nodeSelector: {{role: worker}}\n")
        with there.agent(end=signal.SIGKILL):
            eventually(lambda: there.node.plugged, "the agent answers the runtime")
            pod = run(there, "web", "2")
            eventually(starts, "the pod starts")
            there.node.resize(pod.uid, {"main": "4"})
            there.node.resize(pod.uid, {"main": "3"})
            eventually(announced, "the agent tells when a CPU leaves")
            resizes = explained("resize")
        assert [re.sub(r"^\d{4}-[^ ]*Z: ", "", line) for line in resizes] == [
            "from cpu 2 to 4: it got CPUs 3-4 => 1-4",
            "from cpu 4 to 3: it gave CPUs 4 back => 1-3",
        ]
        status.unlink()
        with there.agent():
            eventually(announced, "the next agent tells the same")
            assert explained("resize") == resizes


def test_the_demo_says_what_the_guide_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs/user/own-cpus.md").read_text()
    ((*options,),) = [given for command, *given in commands(guide) if command == "demo"]

    printed = Demos(Machine(cores=8), folder, monkeypatch).printed(*options).replace("\n  ", " ")

    # The times are other ones; three dots stand for what is left out.
    shown = blocks(guide, "text")[0].replace("\n  ", " ").replace("\n...", "")
    lines = [re.escape(line).replace(r"\.\.\.", ".*") for line in without_numbers(shown)]
    assert re.search("(?s:\n|\n.*\n)".join(lines), "\n".join(without_numbers(printed)))
    assert printed.count("WRONG") == 0
    assert "EXCLUSIVE_CPUS has the CPUs of a container's creation" in printed


COMPACTING = """
pools:
  default: {cpus: "0-15"}
cpuManager:
  policy: dynamic
  reserved: "0-0"
  topologyPolicy: single-numa-node
  maxNoticeSeconds: 0
  compaction: {movesPerHour: 2, minimumAgeSeconds: 0}
"""


def test_a_pod_that_waits_starts_after_another_has_moved(folder: Path, heard: Heard) -> None:
    with plugged(folder, COMPACTING, heard) as world:
        run(world, "first", "2")
        second = run(world, "second", "5")
        run(world, "movable", "3", cpu_moves="any")
        world.eventually("second", main="3-7")
        world.eventually("movable", main="8-10")
        world.node.delete_pod(second.uid)
        run(world, "late", "8")

        def starts() -> bool:
            world.node.try_again()
            return world.cpus("late").get("main") == "8-15"

        eventually(starts, lambda: f"{world.cpus('late')}, {world.cpus('movable')}")
        assert world.cpus("movable")["main"] == "3-5"
        told_soon(world, "movable", cpus="3-5", assigned="3-5", baseline="3-5")
        assert [reason for _, reason, _ in heard.pods if reason == "CPUsMoved"] == ["CPUsMoved"]
