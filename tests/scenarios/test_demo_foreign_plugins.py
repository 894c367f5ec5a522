"""A plugin that is not ours is tried without a cluster, by its protocol alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool import cli
from cpupool.api.resourceplugin_pb2 import (
    AllocationEntry,
    ContainerResources,
    GetResourcesAllocationResponse,
    RegisterRequest,
    RemovePodRequest,
    ResourceAllocation,
    ResourceAllocationInfo,
    ResourceAllocationResponse,
    ResourceHintsResponse,
    ResourceRequest,
)
from cpupool.commands.demo import live, manifests
from cpupool.policies.qrm import katalyst
from cpupool.qrm import plugin_client as resource_plugin
from tests.demos import Demos
from tests.guides import blocks
from tests.machines import Machine
from tests.resource_plugins import PluginDouble, Refusal
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

GUIDE = Path(__file__).parents[2] / "docs/user/qrm.md"
MACHINE = Machine(cores=8)
CONFIG = """\
pools: {default: {cpus: "0-5"}, exclusive_a: {cpus: "6-7"}}
cpuManager: {policy: qrm, reserved: 1}
"""
LEVEL = "katalyst.kubewharf.io/qos_level"


class Counting(PluginDouble):
    """Gives a pod of dedicated_cores the next CPU from 1, and another pod the CPUs 0 and 5."""

    def __init__(self, socket: Path, resource: str = "cpu") -> None:
        super().__init__(socket, resource)
        self.known: dict[str, dict[str, ResourceAllocation]] = {}
        self.gives: Callable[[ResourceRequest], str] = self.counted
        self.replies |= {
            "GetTopologyHints": lambda _: ResourceHintsResponse().SerializeToString(),
            "Allocate": self.allocate,
            "GetResourcesAllocation": self.allocations,
            "RemovePod": self.remove,
        }

    def counted(self, asked: ResourceRequest) -> str:
        dedicated = asked.annotations.get(LEVEL) == "dedicated_cores"
        return str(len(self.known)) if dedicated else "0,5"

    def allocate(self, request: bytes) -> bytes:
        asked = ResourceRequest.FromString(request)
        given = ResourceAllocationInfo(
            oci_property_name="CpusetCpus",
            is_node_resource=True,
            is_scalar_resource=True,
            allocated_quantity=1,
            allocation_result=self.gives(asked),
        )
        entry = AllocationEntry(key=asked.resource_name, value=given)
        allocation = ResourceAllocation(resource_allocation=[entry])
        self.known.setdefault(asked.pod_uid, {})[asked.container_name] = allocation
        return ResourceAllocationResponse(allocation_result=allocation).SerializeToString()

    def allocations(self, _request: bytes) -> bytes:
        return GetResourcesAllocationResponse(
            pod_resources={
                uid: ContainerResources(container_resources=containers)
                for uid, containers in self.known.items()
            }
        ).SerializeToString()

    def remove(self, request: bytes) -> bytes:
        self.known.pop(RemovePodRequest.FromString(request).pod_uid, None)
        return b""


@pytest.fixture
def plugins(folder: Path) -> Path:
    found = folder / "q"
    found.mkdir()
    (folder / "mine.yaml").write_text(CONFIG)
    return found


@pytest.fixture
def demos(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Demos:
    return Demos(MACHINE, folder, monkeypatch)


def options(plugins: Path) -> list[str]:
    mine = plugins.parent / "mine.yaml"
    return ["--qrm", "--config", str(mine), "--plugin-folder", str(plugins)]


def test_its_answers_are_kept_and_shown(plugins: Path, demos: Demos) -> None:
    with Counting(plugins / "p.sock"):
        shown = demos.run(*options(plugins))

    runs = {row["name"]: row["runs"] for row in shown["processes"]}
    assert runs["shared/main"] == "0,5"
    assert runs["dedicated/main"] == "1"
    assert runs["system/main"] == "0,2-5"
    assert runs["poller/poll"] == "6"
    assert [path.name for path in plugins.iterdir()] == []


def test_it_may_register_by_a_call(plugins: Path, demos: Demos) -> None:
    plugin = Counting(plugins / "p.sock")
    del plugin.replies["GetInfo"]
    door = plugins / "kubelet.sock"

    def register() -> None:
        eventually(door.exists, "the door of the agent")
        asked = RegisterRequest(version="v1alpha1", endpoint="p.sock", resource_name="cpu")
        with grpc.insecure_channel(f"unix:{door}") as channel:
            channel.unary_unary(
                "/resourceplugin.v1alpha1.Registration/Register",
                RegisterRequest.SerializeToString,
            )(asked)

    with plugin:
        calls = threading.Thread(target=register)
        calls.start()
        shown = demos.run(*options(plugins))
        calls.join()

    assert {row["name"]: row["runs"] for row in shown["processes"]}["shared/main"] == "0,5"


def test_the_plugin_of_the_guide_is_tried(plugins: Path, demos: Demos, folder: Path) -> None:
    (program,) = blocks(GUIDE.read_text(), "python")
    pod = manifests.pod("web", [{"name": "main", "resources": {"requests": {"cpu": "100m"}}}])
    pod["metadata"]["labels"] = {katalyst.POD_ROLE: "offline"}
    (folder / "pods.json").write_text(json.dumps(pod))
    command = [sys.executable, "-c", program, str(plugins / "p.sock")]
    with subprocess.Popen(command) as process:
        try:
            shown = demos.run(
                "--qrm", "--plugin-folder", str(plugins), "--pods", str(folder / "pods.json")
            )
        finally:
            process.terminate()

    assert {row["name"]: row["runs"] for row in shown["processes"]}["web/main"] == "4-7"


@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_a_pod_is_told_with_its_role(
    where: str, plugins: Path, demos: Demos, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = manifests.pod("web", [{"name": "main", "resources": {"requests": {"cpu": "100m"}}}])
    pod["metadata"][where] = {katalyst.POD_ROLE: "offline"}
    (folder / "pods.json").write_text(json.dumps(pod))
    with Counting(plugins / "p.sock"):
        pods = ["--pods", str(folder / "pods.json")]
        assert cli.main(["demo", *options(plugins), *pods]) == 0

    assert "Pod web of the role offline runs on CPUs 0,5." in capfd.readouterr().out


def hangs(plugin: Counting, method: str, opened: ExitStack) -> None:
    """Let a method not answer before the end of the test."""
    ended = threading.Event()
    opened.callback(ended.set)

    def silent(_request: bytes) -> bytes:
        ended.wait()
        return b""

    plugin.replies[method] = silent


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        pytest.param(
            lambda plugin, opened: hangs(plugin, "GetInfo", opened),
            "no plugin registers for cpu: {socket}: asking a plugin for its name on {socket} failed"
            " (DEADLINE_EXCEEDED",
            id="hangs before it has said who it is",
        ),
        pytest.param(
            lambda plugin, opened: hangs(plugin, "Allocate", opened),
            "the plugin for cpu has no new CPUs for the pod shared: it has not answered in time",
            id="hangs when it is asked",
        ),
        pytest.param(
            lambda plugin, _: plugin.answers("Allocate", b"\xff\xff\xff"),
            "the plugin for cpu has no new CPUs for the pod shared: container main: the plugin ",
            id="answers what is no message",
        ),
        pytest.param(
            lambda plugin, _: setattr(plugin, "gives", lambda _: "0-99"),
            "the plugin for cpu has no new CPUs for the pod shared: container main: ",
            id="gives CPUs that the machine lacks",
        ),
        pytest.param(
            lambda plugin, _: setattr(plugin, "gives", lambda _: "all of them\nplease"),
            "the plugin for cpu has no new CPUs for the pod shared: container main: ",
            id="gives what is no CPU list",
        ),
        pytest.param(
            lambda plugin, _: plugin.answers(
                "Allocate", Refusal(grpc.StatusCode.INTERNAL, "no\nroom")
            ),
            "the plugin for cpu has no new CPUs for the pod shared: container main: the plugin ",
            id="refuses",
        ),
    ],
)
def test_a_plugin_that_does_not_work_is_said_in_one_line(
    broken: Callable[[Counting, ExitStack], None],
    said: str,
    *,
    plugins: Path,
    demos: Demos,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(resource_plugin, "_INTRODUCTION_S", 0.01)
    if "DEADLINE" in said or "in time" in said:
        monkeypatch.setattr(live, "PATIENCE_S", 1.0)
    plugin = Counting(plugins / "p.sock")
    with ExitStack() as opened:
        opened.enter_context(plugin)
        broken(plugin, opened)
        assert cli.main(["demo", *options(plugins)]) == 1

    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("cpupool: " + said.format(socket=plugins / "p.sock")), line


@pytest.mark.parametrize("kind", ["none", "dead", "another"])
def test_a_plugin_that_never_registers_is_said_in_one_line(
    kind: str,
    plugins: Path,
    demos: Demos,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(live, "PATIENCE_S", 0.5)
    path = plugins / "p.sock"
    why = {
        "none": f"none has a socket in {plugins}",
        "dead": f"{path}: ",
        "another": f"{path}: serves nic",
    }[kind]
    with ExitStack() as opened:
        if kind == "dead":
            opened.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        if kind == "another":
            opened.enter_context(Counting(path, "nic"))
        assert cli.main(["demo", *options(plugins)]) == 1

    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"cpupool: no plugin registers for cpu: {why}"), line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--plugin-folder", "{q}"], "--plugin-folder: add --qrm, or a pool file with --config"),
        (["--qrm", "--plugin-folder", "{q}/no"], "--plugin-folder: {q}/no is no folder"),
        (["--qrm", "--plugin-folder", "{q}/kubelet.sock"], "is no folder"),
        (
            ["--qrm", "--config", "{none}"],
            "--qrm: {none} has the policy none; write cpuManager: {{policy: qrm",
        ),
        (["--qrm", "--cpu-manager", "static"], "--cpu-manager is for a policy without plugins"),
        (["--qrm", "--plugin-folder", "{held}"], "another manager has made {held}/kubelet.sock"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    given: list[str],
    said: str,
    *,
    plugins: Path,
    demos: Demos,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    none, held = folder / "none.yaml", folder / "h"
    none.write_text("pools: {default: {cpus: 0}}")
    held.mkdir()
    for place in (plugins, held):
        (place / "kubelet.sock").touch()
    named = {"q": plugins, "none": none, "held": held}

    assert cli.main(["demo", *(each.format(**named) for each in given)]) == 2

    printed = capfd.readouterr()
    assert said.format(**named) in printed.err
    assert printed.out == ""
